/* What holds of a whole statement once its names are known: every index has a dim, ragged axes are
 * read under the bound they were written with, rows of a step stay apart, and a reduction reduces
 * what it binds. */
#include "lang/check.h"

static AstName var_place(const StmtCtx *s, LgStr name) {
    for (int k = 0; k < s->ast->target_count; k++)
        for (int i = 0; i < s->ast->targets[k].indexes.count; i++)
            if (lg_str_eq(s->ast->targets[k].indexes.items[i].name.text, name))
                return s->ast->targets[k].indexes.items[i].name;
    return (AstName){name, s->ast->expr->line, s->ast->expr->column};
}

static bool check_dims_known(StmtCtx *s) {
    for (int i = 0; i < s->out->var_count; i++) {
        const LangVar *v = &s->out->vars[i];
        if (v->dim >= 0)
            continue;
        AstName at = var_place(s, v->name);
        return diag_refuse(&s->c->diag, at.line, at.column,
                           "cannot tell what the index %s runs over: nothing on the right gives it "
                           "a dim. %s is accepted.",
                           diag_text(v->name).text,
                           v->reduced ? "A bound index that an axis is read by"
                                      : "`r in R` on the left");
    }
    return true;
}

static bool indexes_use(const LangIndex *list, int count, int var) {
    for (int i = 0; i < count; i++) {
        if (list[i].kind == LANG_INDEX_VAR && list[i].var == var)
            return true;
        if (list[i].kind == LANG_INDEX_LOOKUP && indexes_use(list[i].indexes, list[i].count, var))
            return true;
    }
    return false;
}

bool expr_uses(const LangExpr *e, int var) {
    if (!e)
        return false;
    if (e->kind == EXPR_VAR)
        return e->var == var;
    if (e->kind == EXPR_REF)
        return indexes_use(e->indexes, e->index_count, var);
    return expr_uses(e->a, var) || expr_uses(e->b, var);
}

/* The bound that an axis was written with, at the indexes that it is read by. */
static bool same_index_at(const TensorInfo *info, int rank, const LangIndex *read,
                          const LangIndex *written, const LangIndex *bound) {
    if (written->kind == LANG_INDEX_VAR) {
        for (int a = 0; a < rank; a++)
            if (info->targets[a].kind == LANG_INDEX_VAR && info->targets[a].var == written->var)
                return index_equal(&read[a], bound);
        return false;
    }
    if (written->kind != bound->kind || written->value != bound->value ||
        written->tensor != bound->tensor)
        return false;
    for (int i = 0; i < written->count; i++)
        if (!same_index_at(info, rank, read, &written->indexes[i], &bound->indexes[i]))
            return false;
    return true;
}

static bool same_width(const LangExpr *a, const LangExpr *b) {
    if (!a || !b)
        return a == b;
    const LangExpr *x = a->b;
    const LangExpr *y = b->b;
    return x->kind == y->kind && x->number == y->number && x->constant == y->constant;
}

static bool same_bound(const TensorInfo *info, int rank, const LangIndex *read, int axis,
                       const LangVar *v) {
    const Ragged *r = &info->ragged[axis];
    if (!v->upper || v->upper->tensor != r->upper->tensor || !same_width(r->lower, v->lower))
        return false;
    for (int i = 0; i < r->upper->index_count; i++)
        if (!same_index_at(info, rank, read, &r->upper->indexes[i], &v->upper->indexes[i]))
            return false;
    return true;
}

static bool check_indexes(StmtCtx *s, int tensor, const LangIndex *list, const LangExpr *at) {
    Check *c = s->c;
    const LangTensor *t = &c->tensors.items[tensor];
    const TensorInfo *info = &c->infos.items[tensor];
    for (int i = 0; i < t->rank; i++) {
        const LangIndex *x = &list[i];
        const LangVar *v = x->kind == LANG_INDEX_VAR ? &s->out->vars[x->var] : NULL;
        if (x->kind == LANG_INDEX_LOOKUP && !check_indexes(s, x->tensor, x->indexes, at))
            return false;
        bool ragged = info->ragged[i].upper != NULL;
        if (ragged && !(v && same_bound(info, t->rank, list, i, v)))
            return diag_refuse(&c->diag, at->line, at->column,
                               "cannot read %s here: line %d wrote its axis %s under a bound, and "
                               "this reads it without that bound. The same bound (as in `sum s <= "
                               "pos[t]: …`) is accepted.",
                               diag_text(t->name).text, t->line,
                               diag_text(check_dim_name(c, t->dims[i])).text);
        bool position = t->kind == LANG_STATE && i == 1;
        if (t->kind == LANG_STATE && i < 2 && x->kind != LANG_INDEX_LOOKUP &&
            !(position && v && v->upper))
            return diag_refuse(
                &c->diag, at->line, at->column,
                "cannot read %s over all of %s: not all of it is this sequence's, or "
                "written. A lookup (`%s`) is accepted%s.",
                diag_text(t->name).text, diag_text(check_dim_name(c, t->dims[i])).text,
                position ? "pos[t]" : "slot[t]",
                position ? ", or an index bounded by one (`s <= pos[t]`)" : "");
        if (v && v->upper && !ragged && !position)
            return diag_refuse(&c->diag, at->line, at->column,
                               "cannot read %s by %s: the index is bounded, and this axis is not "
                               "ragged. A state's position, or an axis written under the same "
                               "bound, is accepted.",
                               diag_text(t->name).text, diag_text(v->name).text);
    }
    return true;
}

static bool refuse_term(StmtCtx *s, const LangExpr *e, const LangExpr *term, LgStr name) {
    const char *red = lang_red_text(e->red);
    if (term == e->a)
        return diag_refuse(&s->c->diag, e->line, e->column,
                           "cannot take this %s: nothing under it uses the index %s. An expression "
                           "that uses each bound index is accepted.",
                           red, diag_text(name).text);
    return diag_refuse(&s->c->diag, term->line, term->column,
                       "cannot take this %s: one of its terms does not use the index %s, and would "
                       "count once for each %s. The %s in parentheses, with that term outside, is "
                       "accepted.",
                       red, diag_text(name).text, diag_text(name).text, red);
}

/* Every term of a sum or mean uses every index: `sum i: a[i]*b[i] + c` is a mistake, and `(sum i:
 * …) + c` what was meant. */
static bool check_terms(StmtCtx *s, const LangExpr *e, const LangExpr *term) {
    if (e->red == LANG_RED_SUM || e->red == LANG_RED_MEAN) {
        if (term->kind == EXPR_ADD || term->kind == EXPR_SUB)
            return check_terms(s, e, term->a) && check_terms(s, e, term->b);
        if (term->kind == EXPR_NEG)
            return check_terms(s, e, term->a);
    }
    for (int i = 0; i < e->var_count; i++)
        if (!expr_uses(term, e->vars[i]))
            return refuse_term(s, e, term, s->out->vars[e->vars[i]].name);
    return true;
}

static bool check_reduce(StmtCtx *s, const LangExpr *e) {
    for (int i = 0; i < e->var_count; i++) {
        const LangVar *v = &s->out->vars[e->vars[i]];
        if (s->c->dims.items[v->dim].runtime && !v->upper)
            return diag_refuse(&s->c->diag, e->line, e->column,
                               "cannot take this %s over all of %s: rows of a step belong to "
                               "different requests. A bounded index (`s <= pos[t]`) is accepted.",
                               lang_red_text(e->red), diag_text(check_dim_name(s->c, v->dim)).text);
    }
    return check_terms(s, e, e->a);
}

/* Ids name things: there is no arithmetic on them. */
static bool check_number(StmtCtx *s, const LangExpr *e) {
    const LangTensor *t = &s->c->tensors.items[e->tensor];
    if (t->index_dim < 0 || role_is_number(s->c, t->index_dim))
        return true;
    return diag_refuse(&s->c->diag, e->line, e->column,
                       "cannot use %s as a number: it holds ids of %s. Positions and computed "
                       "values are accepted; ids look something up.",
                       diag_text(t->name).text, diag_text(check_dim_name(s->c, t->index_dim)).text);
}

static bool check_expr(StmtCtx *s, const LangExpr *e) {
    if (!e)
        return true;
    if (e->kind == EXPR_REF)
        return check_indexes(s, e->tensor, e->indexes, e) && check_number(s, e);
    if (e->kind == EXPR_VAR) {
        const LangVar *v = &s->out->vars[e->var];
        if (s->c->dims.items[v->dim].runtime && !v->upper)
            return diag_refuse(&s->c->diag, e->line, e->column,
                               "cannot use %s as a number: it counts rows of a step, and a row's "
                               "result depends on that row alone. An input such as pos[%s] is "
                               "accepted.",
                               diag_text(v->name).text, diag_text(v->name).text);
        return true;
    }
    if (e->kind == EXPR_REDUCE && !check_reduce(s, e))
        return false;
    return check_expr(s, e->a) && check_expr(s, e->b);
}

static bool check_bound_exprs(StmtCtx *s) {
    for (int i = 0; i < s->out->var_count; i++) {
        const LangExpr *upper = s->out->vars[i].upper;
        if (upper && !check_indexes(s, upper->tensor, upper->indexes, upper))
            return false;
    }
    return true;
}

bool bounds_check(StmtCtx *s) {
    return check_dims_known(s) && check_bound_exprs(s) && check_expr(s, s->out->rhs);
}
