/* Adapters as two more statements behind each site: `low` multiplies by A, `fold` adds scale * (low
 * * B).  The rewrite is of the checked tree, so that what runs for an adapter is lifted, fused and
 * cited like what the page says itself. */
#include <string.h>

#include "lang/check.h"
#include "lang/print.h"
#include "lang/sites.h"

typedef struct Rewrite {
    const LangProgram *old;
    LangProgram *p; /* arrays have room for what is added */
    Arena *arena;
    bool failed; /* memory */
    int z_dim;
} Rewrite;

/* One of the two statements in the making, and what the site's vars are called in it. */
typedef struct Made {
    Rewrite *rw;
    const LangStmt *from;
    LangStmt stmt;
    int map[LANG_VARS_MAX]; /* old var → new; -1: not in this statement */
    int z;
} Made;

static void *take(Rewrite *rw, size_t count, size_t bytes) {
    void *p = arena_array(rw->arena, count, bytes);
    rw->failed = rw->failed || !p;
    return p;
}

static LgStr join(Rewrite *rw, LgStr name, const char *suffix) {
    char *text = arena_printf(rw->arena, "%.*s%s", LG_STR_ARG(name), suffix);
    rw->failed = rw->failed || !text;
    return text ? lg_str(text) : name;
}

/* A name beside those of the statement. Page names have no dot, so that the second choice is always
 * free. */
static LgStr z_name(const LangStmt *stmt) {
    for (int i = 0; i < stmt->var_count; i++)
        if (lg_str_eq_c(stmt->vars[i].name, "z"))
            return LG_STR("z.rank");
    return LG_STR("z");
}

static void made_open(Made *m, Rewrite *rw, int site, LangStmtOp op, LangRole role) {
    const LangStmt *from = &rw->old->stmts[rw->old->sites[site].stmt];
    *m = (Made){.rw = rw, .from = from};
    m->stmt = (LangStmt){.line = from->line,
                         .in_layer = from->in_layer,
                         .op = op,
                         .role = role,
                         .site = site,
                         .target_count = 1};
    for (int i = 0; i < LANG_VARS_MAX; i++)
        m->map[i] = -1;
}

static void made_var(Made *m, int old, bool reduced) {
    if (m->map[old] >= 0)
        return;
    m->map[old] = m->stmt.var_count;
    m->stmt.vars[m->stmt.var_count] = m->from->vars[old];
    m->stmt.vars[m->stmt.var_count++].reduced = reduced;
}

static void made_z(Made *m, bool reduced) {
    m->z = m->stmt.var_count;
    m->stmt.vars[m->stmt.var_count++] =
        (LangVar){.name = z_name(m->from), .dim = m->rw->z_dim, .reduced = reduced};
}

static LangIndex z_index(const Made *m) {
    return (LangIndex){.kind = LANG_INDEX_VAR, .dim = m->rw->z_dim, .var = m->z};
}

static LangIndex remap(const Made *m, const LangIndex *x) {
    LangIndex out = *x;
    if (x->kind == LANG_INDEX_VAR)
        out.var = m->map[x->var];
    if (x->kind != LANG_INDEX_LOOKUP)
        return out;
    LangIndex *indexes = take(m->rw, (size_t)x->count, sizeof *indexes);
    for (int i = 0; indexes && i < x->count; i++)
        indexes[i] = remap(m, &x->indexes[i]);
    out.indexes = indexes;
    return out;
}

static bool uses(const LangIndex *x, int var) {
    if (x->kind == LANG_INDEX_VAR)
        return x->var == var;
    for (int i = 0; i < x->count; i++)
        if (uses(&x->indexes[i], var))
            return true;
    return false;
}

static bool list_uses(const LangIndex *list, int from, int end, int var) {
    for (int i = from; i < end; i++)
        if (uses(&list[i], var))
            return true;
    return false;
}

/* Whether a free var of the site tells rows of `low` apart: it is one of x's, of a lookup's, or of
 * the adapter's row. */
static bool is_row(const SiteShape *s, const LangSite *site, const LangStmt *stmt, int var) {
    if (stmt->vars[var].reduced)
        return false;
    int lookups_end = s->lookup ? s->in_end : s->lookup_count;
    return (s->x && list_uses(s->x->indexes, 0, s->x->index_count, var)) ||
           list_uses(s->w->indexes, 0, lookups_end, var) || uses(&site->ad, var);
}

static const LangExpr *node(Rewrite *rw, const LangExpr *at, LangExprKind kind, const LangExpr *a,
                            const LangExpr *b) {
    LangExpr *e = take(rw, 1, sizeof *e);
    if (!e)
        return NULL;
    e->kind = kind;
    e->line = at->line;
    e->column = at->column;
    e->a = a;
    e->b = b;
    return e;
}

static const LangExpr *ref(Rewrite *rw, const LangExpr *at, int tensor, const LangIndex *list,
                           int count) {
    LangExpr *e = (LangExpr *)node(rw, at, EXPR_REF, NULL, NULL);
    LangIndex *indexes = take(rw, (size_t)count, sizeof *indexes);
    if (!e || !indexes)
        return NULL;
    memcpy(indexes, list, (size_t)count * sizeof *indexes);
    e->tensor = tensor;
    e->index_count = count;
    e->indexes = indexes;
    return e;
}

static const LangExpr *sum(Made *m, const LangExpr *at, const LangExpr *body) {
    LangExpr *e = (LangExpr *)node(m->rw, at, EXPR_REDUCE, body, NULL);
    if (!e)
        return NULL;
    e->red = LANG_RED_SUM;
    for (int i = 0; i < m->stmt.var_count; i++)
        if (m->stmt.vars[i].reduced)
            e->vars[e->var_count++] = i;
    return e;
}

static int tensor_add(Rewrite *rw, const LangSite *site, LangTensorKind kind, LgStr owner,
                      const char *suffix) {
    int id = rw->p->tensor_count++;
    rw->p->tensors[id] = (LangTensor){.name = join(rw, owner, suffix),
                                      .line = rw->old->stmts[site->stmt].line,
                                      .kind = kind,
                                      .in_layer = site->in_layer,
                                      .dtype = LANG_BF16,
                                      .index_dim = -1,
                                      .stack_dim = -1,
                                      .lora_site = -1};
    return id;
}

/* An axis of its own, or (joined) a further index of the last one. */
static void axis_add(LangTensor *t, int dim, bool joined) {
    if (!joined)
        t->axis_start[t->axis_count++] = t->rank;
    t->dims[t->rank++] = dim;
    t->axis_start[t->axis_count] = t->rank;
}

/* What a site adds: A and B in the order of W's indexes, with the adapter first and the rank where
 * the other side was. */
typedef struct SiteTensors {
    int a, b, scale, low;
} SiteTensors;

static SiteTensors site_tensors(Rewrite *rw, const LangSite *site, const SiteShape *s) {
    const LangIndex *w = s->w->indexes;
    LgStr name = rw->old->tensors[site->param].name;
    const LangTensor *y = &rw->old->tensors[site->y];
    SiteTensors out;
    out.a = tensor_add(rw, site, LANG_ADAPTER, name, ".A");
    out.b = tensor_add(rw, site, LANG_ADAPTER, name, ".B");
    out.scale = tensor_add(rw, site, LANG_ADAPTER, name, ".scale");
    out.low = tensor_add(rw, site, LANG_VALUE, y->name, ".low");
    LangTensor *a = &rw->p->tensors[out.a];
    LangTensor *b = &rw->p->tensors[out.b];
    axis_add(a, site->ad.dim, false);
    axis_add(b, site->ad.dim, false);
    for (int i = 0; i < s->lookup_count; i++) {
        axis_add(a, w[i].dim, false);
        axis_add(b, w[i].dim, false);
    }
    axis_add(a, rw->z_dim, false);
    for (int i = s->in_begin; i < s->in_end; i++)
        axis_add(a, w[i].dim, i > s->in_begin);
    for (int i = s->out_begin; i < s->out_end; i++)
        axis_add(b, w[i].dim, i > s->out_begin);
    axis_add(b, rw->z_dim, false);
    LangTensor *scale = &rw->p->tensors[out.scale];
    axis_add(scale, site->ad.dim, false);
    scale->dtype = LANG_F32;
    scale->dtype_written = true;
    LangTensor *low = &rw->p->tensors[out.low];
    low->dtype = y->dtype;
    low->dtype_written = y->dtype_written;
    const LangStmt *stmt = &rw->old->stmts[site->stmt];
    for (int v = 0; v < stmt->var_count; v++)
        if (is_row(s, site, stmt, v))
            axis_add(low, stmt->vars[v].dim, false);
    axis_add(low, rw->z_dim, false);
    return out;
}

/* [adapter, lookups…, then W's indexes from..end with the rank before (A) or behind (B) them]. */
static const LangExpr *factor(Made *m, const LangSite *site, const SiteShape *s, int tensor,
                              bool is_a) {
    const LangIndex *w = s->w->indexes;
    LangIndex list[LANG_RANK_MAX];
    int n = 0;
    list[n++] = remap(m, &site->ad);
    for (int i = 0; i < s->lookup_count; i++)
        list[n++] = remap(m, &w[i]);
    if (is_a)
        list[n++] = z_index(m);
    int end = is_a ? s->in_end : s->out_end;
    for (int i = is_a ? s->in_begin : s->out_begin; i < end; i++)
        list[n++] = remap(m, &w[i]);
    if (!is_a)
        list[n++] = z_index(m);
    return ref(m->rw, s->w, tensor, list, n);
}

static void stmt_push(Made *m) {
    Buf text;
    buf_init(&text);
    if (!m->rw->failed)
        print_stmt_text(m->rw->p, &m->stmt, &text);
    LgStr copy = arena_str(m->rw->arena, buf_view(&text));
    m->rw->failed = m->rw->failed || text.failed || !copy.ptr;
    buf_clear(&text);
    m->stmt.text = copy;
    m->rw->p->stmts[m->rw->p->stmt_count++] = m->stmt;
}

/* The rows of `low` and the rank, in this statement's vars. */
static int low_indexes(const Made *m, const LangSite *site, const SiteShape *s, LangIndex *list) {
    int n = 0;
    for (int v = 0; v < m->from->var_count; v++)
        if (is_row(s, site, m->from, v))
            list[n++] =
                (LangIndex){.kind = LANG_INDEX_VAR, .dim = m->from->vars[v].dim, .var = m->map[v]};
    list[n++] = z_index(m);
    return n;
}

static void made_target(Made *m, int tensor, const LangIndex *list, int count) {
    LangIndex *indexes = take(m->rw, (size_t)count, sizeof *indexes);
    if (indexes)
        memcpy(indexes, list, (size_t)count * sizeof *indexes);
    m->stmt.targets[0] = (LangTarget){tensor, count, indexes};
}

/* q.low[t,z] = sum i: ha[t,i] * wq.A[ad[t],z,i];  a lookup's: x.low[t,z] = emb.A[ad[t],z,token[t]]
 */
static void add_low(Rewrite *rw, int index, const SiteShape *s, const SiteTensors *made) {
    const LangSite *site = &rw->old->sites[index];
    Made m;
    made_open(&m, rw, index, LANG_ASSIGN, LANG_LORA_LOW);
    for (int v = 0; v < m.from->var_count; v++)
        if (is_row(s, site, m.from, v))
            made_var(&m, v, false);
    made_z(&m, false);
    for (int i = s->in_begin; !s->lookup && i < s->in_end; i++)
        made_var(&m, s->w->indexes[i].var, true);
    LangIndex list[LANG_RANK_MAX];
    int n = low_indexes(&m, site, s, list);
    made_target(&m, made->low, list, n);
    const LangExpr *a = factor(&m, site, s, made->a, true);
    m.stmt.rhs = a;
    if (s->x) {
        for (int i = 0; i < s->x->index_count; i++)
            list[i] = remap(&m, &s->x->indexes[i]);
        const LangExpr *x = ref(rw, s->x, s->x->tensor, list, s->x->index_count);
        m.stmt.rhs = sum(&m, s->w, node(rw, s->w, EXPR_MUL, x, a));
    }
    stmt_push(&m);
}

/* q[t,g,m,c,r] += wq.scale[ad[t]] * (sum z: q.low[t,z] * wq.B[ad[t],g,m,c,r,z]) */
static void add_fold(Rewrite *rw, int index, const SiteShape *s, const SiteTensors *made) {
    const LangSite *site = &rw->old->sites[index];
    Made m;
    made_open(&m, rw, index, LANG_ADD_TO, LANG_LORA_FOLD);
    const LangTarget *y = &m.from->targets[0];
    LangIndex list[LANG_RANK_MAX];
    for (int i = 0; i < y->index_count; i++) {
        made_var(&m, y->indexes[i].var, false);
        list[i] = remap(&m, &y->indexes[i]);
    }
    made_z(&m, true);
    made_target(&m, site->y, list, y->index_count);
    int n = low_indexes(&m, site, s, list);
    const LangExpr *low = ref(rw, s->w, made->low, list, n);
    const LangExpr *b = factor(&m, site, s, made->b, false);
    LangIndex ad = remap(&m, &site->ad);
    const LangExpr *scale = ref(rw, s->w, made->scale, &ad, 1);
    m.stmt.rhs = node(rw, s->w, EXPR_MUL, scale, sum(&m, s->w, node(rw, s->w, EXPR_MUL, low, b)));
    stmt_push(&m);
}

static void add_site(Rewrite *rw, int index) {
    const LangSite *site = &rw->old->sites[index];
    SiteShape shape;
    if (site_shape(rw->old->tensors, &rw->old->stmts[site->stmt], site->param, &shape))
        return; /* the checker refused those */
    SiteTensors made = site_tensors(rw, site, &shape);
    if (rw->failed)
        return;
    add_low(rw, index, &shape, &made);
    if (!rw->failed)
        add_fold(rw, index, &shape, &made);
}

static bool copy_program(Rewrite *rw) {
    const LangProgram *old = rw->old;
    size_t sites = (size_t)old->site_count;
    LangProgram *p = ARENA_NEW(rw->arena, LangProgram);
    if (!p)
        return false;
    *p = *old;
    p->dims = arena_grow(rw->arena, old->dims, (size_t)old->dim_count, (size_t)old->dim_count + 1,
                         sizeof *p->dims);
    p->tensors = arena_grow(rw->arena, old->tensors, (size_t)old->tensor_count,
                            (size_t)old->tensor_count + 4 * sites, sizeof *p->tensors);
    p->stmts = ARENA_ARRAY(rw->arena, LangStmt, (size_t)old->stmt_count + 2 * sites);
    p->sites = arena_grow(rw->arena, old->sites, sites, sites, sizeof *p->sites);
    p->stmt_count = 0;
    rw->p = p;
    return p->dims && p->tensors && p->stmts && p->sites;
}

static void add_rank_dim(Rewrite *rw) {
    LgStr name = LG_STR("Z");
    for (int i = 0; i < rw->old->dim_count; i++)
        if (lg_str_eq(rw->old->dims[i].name, name))
            name = LG_STR("Z.rank");
    rw->z_dim = rw->p->dim_count++;
    rw->p->dims[rw->z_dim] = (LangDim){
        .name = name, .line = rw->old->tensors[rw->old->lora_input].line, .runtime = true};
}

LgStatus lang_rewrite_lora(const LangProgram *p, Arena *arena, LangProgram **out, LgError *err) {
    Rewrite rw = {.old = p, .arena = arena};
    if (!copy_program(&rw))
        return lg_fail_memory(err);
    if (p->site_count)
        add_rank_dim(&rw);
    int site = 0; /* sites are in the order of their statements */
    for (int i = 0; i < p->stmt_count && !rw.failed; i++) {
        if (i == p->layer_begin)
            rw.p->layer_begin = rw.p->stmt_count;
        if (i == p->layer_end)
            rw.p->layer_end = rw.p->stmt_count;
        int at = rw.p->stmt_count;
        rw.p->stmts[rw.p->stmt_count++] = p->stmts[i];
        for (; site < p->site_count && p->sites[site].stmt == i && !rw.failed; site++) {
            rw.p->sites[site].stmt = at;
            add_site(&rw, site);
        }
    }
    if (rw.failed)
        return lg_fail_memory(err);
    if (p->layer_begin >= p->stmt_count)
        rw.p->layer_begin = rw.p->stmt_count;
    if (p->layer_end >= p->stmt_count)
        rw.p->layer_end = rw.p->stmt_count;
    *out = rw.p;
    return LG_OK;
}
