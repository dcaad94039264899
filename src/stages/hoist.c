/* Takes function calls out of the layer block whose arguments no layer changes (the sines and
 * cosines of rotary positions): each becomes a f32 value in front of the layers. The numbers are
 * the same: a call gives f32 inside a statement, and f32 is stored. */
#include "stages/pass.h"

#include <stdio.h>
#include <string.h>

typedef struct Table {
    int tensor;
    const LangExpr *call; /* over the table's own indexes */
    int var_count;
    int dims[LANG_RANK_MAX];
    const LangStmt *stmt;
} Table;

typedef struct Hoist {
    Pass *pass;
    Table *tables;
    int count;
    const LangStmt *s; /* the statement being rewritten */
    LgStatus status;
} Hoist;

#define HOIST_TABLES_MAX 32

typedef struct Fixed {
    const Hoist *h;
    bool fixed;
    bool any;
} Fixed;

/* A tensor that is whole before the layers begin and that no layer touches. */
static void fixed_read(void *user, int tensor, const LangExpr *ref) {
    Fixed *f = user;
    const Pass *pass = f->h->pass;
    const LangTensor *t = &pass->p->tensors[tensor];
    (void)ref;
    if (t->in_layer || (t->kind != LANG_VALUE && t->kind != LANG_INPUT)) {
        f->fixed = false;
        return;
    }
    f->any = true;
    for (int k = pass->layer_begin; k < pass->layer_end; k++)
        if (stage_writes_tensor(&pass->stages[k], tensor))
            f->fixed = false;
}

static bool plain_node(void *user, const LangExpr *e) {
    Fixed *f = user;
    if (e->kind == EXPR_REDUCE || e->kind == EXPR_CONST || e->kind == EXPR_IF ||
        e->kind == EXPR_VAR)
        f->fixed = false;
    if (e->kind == EXPR_REF)
        for (int k = 0; k < e->index_count; k++)
            if (e->indexes[k].kind == LANG_INDEX_LOOKUP)
                f->fixed = false;
    return f->fixed;
}

static bool may_hoist(const Hoist *h, const LangExpr *e) {
    if (e->kind != EXPR_CALL)
        return false;
    Fixed f = {h, true, false};
    match_reads(e, fixed_read, &f);
    match_nodes(e, plain_node, &f);
    if (!f.fixed || !f.any)
        return false;
    uint32_t vars = match_vars(e);
    int n = 0;
    for (int v = 0; v < h->s->var_count; v++)
        if (vars >> v & 1) {
            n++;
            if (h->s->vars[v].reduced)
                return false;
        }
    /* Its rows must be the statement's, so that it is stored a row at a time. */
    int dim = -1, row = lift_row_var(h->pass->p, h->s, &dim);
    return row >= 0 && vars >> row & 1 && n < LANG_RANK_MAX;
}

/* A copy of e with the indexes renumbered by map. */
static const LangExpr *renumber(Arena *arena, const LangExpr *e, const int *map) {
    if (!e)
        return NULL;
    LangExpr *c = ARENA_NEW(arena, LangExpr);
    if (!c)
        return NULL;
    *c = *e;
    if (e->kind == EXPR_REF) {
        LangIndex *idx = ARENA_ARRAY(arena, LangIndex, (size_t)e->index_count + 1);
        if (!idx)
            return NULL;
        for (int k = 0; k < e->index_count; k++) {
            idx[k] = e->indexes[k];
            if (idx[k].kind == LANG_INDEX_VAR)
                idx[k].var = map[idx[k].var];
        }
        c->indexes = idx;
    }
    c->a = renumber(arena, e->a, map);
    c->b = renumber(arena, e->b, map);
    return (e->a && !c->a) || (e->b && !c->b) ? NULL : c;
}

/* The table of this call, new or known. vars: the statement's indexes in the table's order. */
static Table *table_of(Hoist *h, const LangExpr *e, int *vars) {
    Pass *pass = h->pass;
    uint32_t used = match_vars(e);
    int map[LANG_VARS_MAX] = {0}, n = 0, dim = -1;
    int row = lift_row_var(pass->p, h->s, &dim);
    map[row] = 0;
    vars[n++] = row;
    for (int v = 0; v < h->s->var_count; v++)
        if (used >> v & 1 && v != row) {
            map[v] = n;
            vars[n++] = v;
        }
    const LangExpr *call = renumber(pass->arena, e, map);
    if (!call)
        return NULL;
    for (int k = 0; k < h->count; k++) {
        bool same = h->tables[k].var_count == n && match_equal(h->tables[k].call, call);
        for (int v = 0; same && v < n; v++)
            same = h->tables[k].dims[v] == h->s->vars[vars[v]].dim;
        if (same)
            return &h->tables[k];
    }
    if (h->count == HOIST_TABLES_MAX)
        return NULL;
    Table *t = &h->tables[h->count];
    *t = (Table){.tensor = pass->p->tensor_count + h->count, .call = call, .var_count = n};
    for (int v = 0; v < n; v++)
        t->dims[v] = h->s->vars[vars[v]].dim;
    LangStmt *s = ARENA_NEW(pass->arena, LangStmt);
    LangIndex *idx = ARENA_ARRAY(pass->arena, LangIndex, (size_t)n);
    if (!s || !idx)
        return NULL;
    *s = (LangStmt){.line = h->s->line,
                    .op = LANG_ASSIGN,
                    .site = -1,
                    .target_count = 1,
                    .rhs = call,
                    .var_count = n};
    for (int v = 0; v < n; v++) {
        s->vars[v] = h->s->vars[vars[v]];
        idx[v] = (LangIndex){.kind = LANG_INDEX_VAR, .dim = t->dims[v], .var = v};
    }
    s->targets[0] = (LangTarget){.tensor = t->tensor, .index_count = n, .indexes = idx};
    t->stmt = s;
    h->count++;
    return t;
}

/* e with what may be hoisted replaced by reads of tables; e itself where nothing was. */
static const LangExpr *rewrite(Hoist *h, const LangExpr *e) {
    if (!e || h->status != LG_OK)
        return e;
    if (may_hoist(h, e)) {
        int vars[LANG_VARS_MAX];
        const Table *t = table_of(h, e, vars);
        if (!t && h->count == HOIST_TABLES_MAX)
            return e;
        LangExpr *ref = ARENA_NEW(h->pass->arena, LangExpr);
        LangIndex *idx = t ? ARENA_ARRAY(h->pass->arena, LangIndex, (size_t)t->var_count) : NULL;
        if (!t || !ref || !idx) {
            h->status = LG_NO_MEMORY;
            return e;
        }
        for (int v = 0; v < t->var_count; v++)
            idx[v] = (LangIndex){.kind = LANG_INDEX_VAR, .dim = t->dims[v], .var = vars[v]};
        *ref = (LangExpr){.kind = EXPR_REF,
                          .line = e->line,
                          .column = e->column,
                          .tensor = t->tensor,
                          .index_count = t->var_count,
                          .indexes = idx};
        return ref;
    }
    const LangExpr *a = rewrite(h, e->a), *b = rewrite(h, e->b);
    if (a == e->a && b == e->b)
        return e;
    LangExpr *c = ARENA_NEW(h->pass->arena, LangExpr);
    if (!c) {
        h->status = LG_NO_MEMORY;
        return e;
    }
    *c = *e;
    c->a = a;
    c->b = b;
    return c;
}

static LgStatus rewrite_stage(Hoist *h, Stage *stage) {
    if (stage->attend || stage->matmul)
        return LG_OK;
    h->s = stage->stmt;
    const LangExpr *rhs = rewrite(h, stage->stmt->rhs);
    if (h->status != LG_OK)
        return lg_fail_memory(h->pass->err);
    if (rhs == stage->stmt->rhs)
        return LG_OK;
    LangStmt *s = ARENA_NEW(h->pass->arena, LangStmt);
    if (!s)
        return lg_fail_memory(h->pass->err);
    *s = *stage->stmt;
    s->rhs = rhs;
    stage->stmt = s;
    return LG_OK;
}

/* "cos.phi": the function and the tensor that it reads; a number behind it where that is taken. */
static LgStr table_name(Pass *pass, const Table *t, const LangTensor *tensors, int count) {
    static const char *const fn[] = {
#define FN_NAME(id, name, args) #name,
        LANG_FN_MAP(FN_NAME)
#undef FN_NAME
    };
    const LangExpr *e = t->call->a;
    while (e && e->kind != EXPR_REF)
        e = e->a;
    LgStr of = e ? pass->p->tensors[e->tensor].name : LG_STR("table");
    for (int n = 0;; n++) {
        char *name = n ? arena_printf(pass->arena, "%s.%.*s.%d", fn[t->call->fn], LG_STR_ARG(of), n)
                       : arena_printf(pass->arena, "%s.%.*s", fn[t->call->fn], LG_STR_ARG(of));
        bool taken = false;
        for (int k = 0; name && k < count; k++)
            taken |= lg_str_eq_c(tensors[k].name, name);
        if (!taken)
            return name ? lg_str(name) : (LgStr){NULL, 0};
    }
}

static LgStatus add_tables(Hoist *h) {
    Pass *pass = h->pass;
    int old = pass->p->tensor_count, n = h->count;
    LangTensor *tensors = arena_grow(pass->arena, pass->p->tensors, (size_t)old,
                                     (size_t)old + (size_t)n, sizeof(LangTensor));
    Stage *stages = ARENA_ARRAY(pass->arena, Stage, (size_t)pass->stage_count + (size_t)n);
    if (!tensors || !stages)
        return lg_fail_memory(pass->err);
    int begin = pass->layer_begin;
    memcpy(stages, pass->stages, (size_t)begin * sizeof(Stage));
    memcpy(stages + begin + n, pass->stages + begin,
           (size_t)(pass->stage_count - begin) * sizeof(Stage));
    for (int k = 0; k < n; k++) {
        Table *t = &h->tables[k];
        LangTensor *y = &tensors[t->tensor];
        *y = (LangTensor){.name = table_name(pass, t, tensors, t->tensor),
                          .line = t->stmt->line,
                          .kind = LANG_VALUE,
                          .dtype = LANG_F32,
                          .dtype_written = true,
                          .rank = t->var_count,
                          .axis_count = t->var_count,
                          .index_dim = -1,
                          .stack_dim = -1,
                          .lora_site = -1};
        if (!y->name.ptr)
            return lg_fail_memory(pass->err);
        for (int v = 0; v < t->var_count; v++) {
            y->dims[v] = t->dims[v];
            y->axis_start[v + 1] = v + 1;
        }
        char *text =
            arena_printf(pass->arena, "%.*s, taken out of the layers", LG_STR_ARG(y->name));
        if (!text)
            return lg_fail_memory(pass->err);
        LangStmt *s = ARENA_NEW(pass->arena, LangStmt);
        if (!s)
            return lg_fail_memory(pass->err);
        *s = *t->stmt;
        s->text = lg_str(text);
        stages[begin + k] = (Stage){.op = STAGE_MAP,
                                    .maps = true,
                                    .stmt = s,
                                    .stmt_index = -1,
                                    .row_dim = t->dims[0],
                                    .site = -1,
                                    .low = -1,
                                    .fold = -1};
    }
    pass->p->tensors = tensors;
    pass->p->tensor_count += n;
    pass->stages = stages;
    pass->stage_count += n;
    pass->layer_begin += n;
    pass->layer_end += n;
    return LG_OK;
}

LgStatus pass_hoist(Pass *pass) {
    Hoist h = {.pass = pass, .status = LG_OK};
    h.tables = ARENA_ARRAY(pass->arena, Table, HOIST_TABLES_MAX);
    if (!h.tables)
        return lg_fail_memory(pass->err);
    for (int k = pass->layer_begin; k < pass->layer_end; k++)
        LG_TRY(rewrite_stage(&h, &pass->stages[k]));
    return h.count ? add_tables(&h) : LG_OK;
}
