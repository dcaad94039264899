/* Adapter sites: the statements that `lora … on …` names, which must be whole products or lookups,
 * and the row of the step that each of their rows belongs to. */
#include "lang/sites.h"

#include "lang/check.h"

static bool is_free(const LangStmt *stmt, const LangIndex *x) {
    return x->kind == LANG_INDEX_VAR && !stmt->vars[x->var].reduced;
}

static bool indexes_have(const LangIndex *list, int count, int var) {
    for (int i = 0; i < count; i++)
        if (list[i].kind == LANG_INDEX_VAR && list[i].var == var)
            return true;
    return false;
}

static bool free_only(const LangStmt *stmt, const LangIndex *x) {
    if (x->kind == LANG_INDEX_VAR)
        return !stmt->vars[x->var].reduced;
    for (int i = 0; i < x->count; i++)
        if (!free_only(stmt, &x->indexes[i]))
            return false;
    return true;
}

/* W's indexes: lookups, then what only the result has, then the summed ones, which are the last
 * stored axis. */
static const char *split_indexes(const LangTensor *tensors, const LangStmt *stmt, SiteShape *s) {
    const LangExpr *w = s->w;
    const LangTensor *t = &tensors[w->tensor];
    int i = 0;
    while (i < w->index_count && w->indexes[i].kind == LANG_INDEX_LOOKUP)
        i++;
    s->lookup_count = s->out_begin = i;
    while (i < w->index_count && is_free(stmt, &w->indexes[i]))
        i++;
    s->out_end = s->in_begin = i;
    while (i < w->index_count && w->indexes[i].kind == LANG_INDEX_VAR &&
           !is_free(stmt, &w->indexes[i]))
        i++;
    s->in_end = i;
    if (i < w->index_count || s->in_begin == s->in_end || s->out_begin == s->out_end)
        return "its indexes are not those of a matrix: what the result keeps, then what is summed";
    if (s->in_begin != t->axis_start[t->axis_count - 1])
        return "the summed indexes are not its last stored axis";
    for (i = 0; i < s->lookup_count; i++)
        if (!free_only(stmt, &w->indexes[i]))
            return "a lookup of it depends on a summed index";
    return NULL;
}

static const char no_product[] = "the statement is no whole product `y = sum i: x * W`";

/* The two factors of `sum: a * b`, a trailing `+ bias` aside; NULL where the right side is
 * something else. */
static const LangExpr *product_body(const LangTensor *tensors, const LangExpr *rhs) {
    if (rhs->kind == EXPR_ADD && rhs->b->kind == EXPR_REF &&
        tensors[rhs->b->tensor].kind == LANG_PARAM)
        rhs = rhs->a;
    const LangExpr *body = rhs->kind == EXPR_REDUCE && rhs->red == LANG_RED_SUM ? rhs->a : NULL;
    bool two =
        body && body->kind == EXPR_MUL && body->a->kind == EXPR_REF && body->b->kind == EXPR_REF;
    return two ? body : NULL;
}

static const char *product_factors(const LangTensor *tensors, const LangStmt *stmt, int param,
                                   SiteShape *s) {
    const LangExpr *body = product_body(tensors, stmt->rhs);
    if (!body)
        return no_product;
    bool w_first = body->a->tensor == param;
    s->w = w_first ? body->a : body->b;
    s->x = w_first ? body->b : body->a;
    LangTensorKind kind = tensors[s->x->tensor].kind;
    if (s->w->tensor != param || (kind != LANG_VALUE && kind != LANG_OUTPUT))
        return no_product;
    const char *why = split_indexes(tensors, stmt, s);
    if (why)
        return why;
    for (int i = 0; i < s->x->index_count; i++)
        if (s->x->indexes[i].kind == LANG_INDEX_INT)
            return "its input is a part of a tensor";
    for (int i = s->in_begin; i < s->in_end; i++)
        if (!indexes_have(s->x->indexes, s->x->index_count, s->w->indexes[i].var))
            return "a summed index is not one of both factors";
    for (int i = s->out_begin; i < s->out_end; i++)
        if (indexes_have(s->x->indexes, s->x->index_count, s->w->indexes[i].var))
            return "an index that the result keeps is one of both factors";
    for (int v = 0; v < stmt->var_count; v++)
        if (stmt->vars[v].upper)
            return "the sum is bounded";
    return NULL;
}

static const char *lookup_shape(const LangStmt *stmt, SiteShape *s) {
    const LangExpr *w = stmt->rhs;
    s->lookup = true;
    s->w = w;
    s->x = NULL;
    s->lookup_count = 0;
    s->in_begin = 0;
    s->in_end = s->out_begin = 1;
    s->out_end = w->index_count;
    if (w->index_count < 2 || w->indexes[0].kind != LANG_INDEX_LOOKUP)
        return "the statement does not look up its rows";
    for (int i = 1; i < w->index_count; i++)
        if (!is_free(stmt, &w->indexes[i]))
            return "the statement does not take whole rows of it";
    return NULL;
}

const char *site_shape(const LangTensor *tensors, const LangStmt *stmt, int param, SiteShape *out) {
    *out = (SiteShape){0};
    if (stmt->op != LANG_ASSIGN || stmt->target_count != 1)
        return "the statement is no whole `=` statement";
    for (int i = 0; i < stmt->targets[0].index_count; i++)
        if (stmt->targets[0].indexes[i].kind != LANG_INDEX_VAR)
            return "the statement defines a part of a tensor only";
    if (stmt->in_layer != tensors[param].in_layer)
        return "the param and the statement are of different scopes";
    if (stmt->rhs->kind == EXPR_REF && stmt->rhs->tensor == param)
        return lookup_shape(stmt, out);
    return product_factors(tensors, stmt, param, out);
}

/* written (in the vars of a tensor's definition) at the indexes that the tensor is read by; false:
 * memory, or no such index. */
static bool substitute(Check *c, const TensorInfo *info, int rank, const LangIndex *read,
                       const LangIndex *written, LangIndex *out) {
    if (written->kind == LANG_INDEX_VAR) {
        for (int a = 0; a < rank; a++) {
            if (info->targets[a].kind != LANG_INDEX_VAR || info->targets[a].var != written->var)
                continue;
            *out = read[a];
            return true;
        }
        return false;
    }
    *out = *written;
    LangIndex *indexes = ARENA_ARRAY(c->arena, LangIndex, (size_t)written->count);
    if (!indexes)
        return diag_memory(&c->diag);
    for (int i = 0; i < written->count; i++)
        if (!substitute(c, info, rank, read, &written->indexes[i], &indexes[i]))
            return false;
    out->indexes = indexes;
    return true;
}

/* Which rows the things that a statement reads belong to. */
typedef struct Rows {
    Check *c;
    const LangStmt *stmt;
    int dim; /* of the step's rows */
    bool any;
    bool several;
    LangIndex row;
} Rows;

static void rows_see(Rows *r, const LangIndex *row) {
    if (!free_only(r->stmt, row))
        return;
    if (r->any && !index_equal(&r->row, row))
        r->several = true;
    r->any = true;
    r->row = *row;
}

static void rows_of_read(Rows *r, int tensor, const LangIndex *indexes) {
    const LangTensor *t = &r->c->tensors.items[tensor];
    const TensorInfo *info = &r->c->infos.items[tensor];
    if (t->kind == LANG_INPUT && t->dims[0] == r->dim)
        rows_see(r, &indexes[0]);
    LangIndex row;
    if (info->row && info->targets && substitute(r->c, info, t->rank, indexes, info->row, &row))
        rows_see(r, &row);
    for (int i = 0; i < t->rank; i++)
        if (indexes[i].kind == LANG_INDEX_LOOKUP)
            rows_of_read(r, indexes[i].tensor, indexes[i].indexes);
}

static void rows_walk(Rows *r, const LangExpr *e) {
    if (!e)
        return;
    if (e->kind == EXPR_REF)
        rows_of_read(r, e->tensor, e->indexes);
    rows_walk(r, e->a);
    rows_walk(r, e->b);
}

const LangIndex *site_row(Check *c, const LangStmt *stmt) {
    if (c->lora_input < 0)
        return NULL;
    Rows r = {.c = c, .stmt = stmt, .dim = c->tensors.items[c->lora_input].dims[0]};
    for (int v = 0; v < stmt->var_count; v++)
        if (!stmt->vars[v].reduced && stmt->vars[v].dim == r.dim)
            rows_see(&r, &(LangIndex){.kind = LANG_INDEX_VAR, .dim = r.dim, .var = v});
    if (!r.any)
        rows_walk(&r, stmt->rhs);
    if (!r.any || r.several)
        return NULL;
    LangIndex *row = ARENA_NEW(c->arena, LangIndex);
    if (!row) {
        diag_memory(&c->diag);
        return NULL;
    }
    *row = r.row;
    return row;
}

static bool refuse_site(Check *c, int line, int column, LgStr param, const char *why) {
    return diag_refuse(&c->diag, line, column,
                       "cannot put adapters on %s: %s. A whole statement `y = sum i: x * W` (a "
                       "trailing `+ bias` allowed) or a lookup `y = W[table[t],i]` is accepted.",
                       diag_text(param).text, why);
}

static bool site_add(Check *c, int stmt, const LangExpr *at) {
    const LangStmt *st = &c->stmts.items[stmt];
    LangTensor *w = &c->tensors.items[at->tensor];
    SiteShape shape;
    const char *why = site_shape(c->tensors.items, st, at->tensor, &shape);
    if (!why && w->lora_site >= 0)
        why = "two statements use it";
    if (!why && (2 + shape.lookup_count + shape.in_end - shape.in_begin > LANG_RANK_MAX ||
                 2 + shape.lookup_count + shape.out_end - shape.out_begin > LANG_RANK_MAX ||
                 st->var_count == LANG_VARS_MAX))
        why = "its adapters would have too many axes";
    int y = st->targets[0].tensor;
    const LangIndex *row = c->infos.items[y].row;
    if (!why && !row)
        why = "which row of the step a result belongs to cannot be told";
    if (why)
        return refuse_site(c, at->line, at->column, w->name, why);
    LangIndex *indexes = ARENA_NEW(c->arena, LangIndex);
    if (!indexes || !AST_LIST_ROOM(c->arena, c->sites))
        return diag_memory(&c->diag);
    *indexes = *row;
    const LangTensor *ad = &c->tensors.items[c->lora_input];
    w->lora_site = c->sites.count;
    c->sites.items[c->sites.count++] =
        (LangSite){.param = at->tensor,
                   .stmt = stmt,
                   .in_layer = st->in_layer,
                   .lookup = shape.lookup,
                   .x = shape.lookup ? shape.w->indexes[0].tensor : shape.x->tensor,
                   .y = y,
                   .ad = {.kind = LANG_INDEX_LOOKUP,
                          .dim = ad->index_dim,
                          .tensor = c->lora_input,
                          .count = 1,
                          .indexes = indexes}};
    return true;
}

static bool sites_walk(Check *c, const bool *listed, int stmt, const LangExpr *e) {
    if (!e)
        return true;
    if (e->kind == EXPR_REF && listed[e->tensor] && !site_add(c, stmt, e))
        return false;
    return sites_walk(c, listed, stmt, e->a) && sites_walk(c, listed, stmt, e->b);
}

static bool sites_list(Check *c, bool *listed) {
    for (int i = 0; i < c->lora->names.count; i++) {
        AstName name = c->lora->names.items[i];
        const Symbol *s = check_find(c, name.text);
        const LangTensor *t = s && s->kind == SYMBOL_TENSOR ? &c->tensors.items[s->id] : NULL;
        if (!t || t->kind != LANG_PARAM)
            return refuse_site(c, name.line, name.column, name.text, "it is no param");
        if (listed[s->id])
            return refuse_site(c, name.line, name.column, name.text, "it is listed twice");
        if (!t->module.len)
            return refuse_site(c, name.line, name.column, name.text,
                               "no checkpoint tensor gives it the name that adapters use");
        listed[s->id] = true;
    }
    return true;
}

bool check_sites(Check *c) {
    if (!c->lora)
        return true;
    bool *listed = ARENA_ARRAY(c->arena, bool, (size_t)c->tensors.count);
    if (!listed)
        return diag_memory(&c->diag);
    if (!sites_list(c, listed))
        return false;
    for (int i = 0; i < c->stmts.count; i++)
        if (!sites_walk(c, listed, i, c->stmts.items[i].rhs))
            return false;
    for (int i = 0; i < c->lora->names.count; i++) {
        AstName name = c->lora->names.items[i];
        if (c->tensors.items[check_find(c, name.text)->id].lora_site < 0)
            return refuse_site(c, name.line, name.column, name.text, "no statement uses it");
    }
    return true;
}
