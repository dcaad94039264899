/* Lifts y = sum k: x * W (+ bias) to a MATMUL: rows of W are the target's axes in order, columns
 * the summed ones. */
#include "stages/pass.h"

typedef struct Product {
    Pass *pass;
    const LangStmt *s;
    const LangExpr *reduce, *x, *w;
    int lead; /* axes of w in front of its rows: 1 where an expert is looked up */
} Product;

static const char *name_of(const Product *m, int tensor) {
    const char *name = arena_strdup(m->pass->arena, m->pass->p->tensors[tensor].name);
    return name ? name : "?";
}

static LgStatus too_many(Pass *pass, const LangStmt *s, const LangExpr *reduce,
                         const LangExpr *const *factors, int n) {
    Buf names;
    buf_init(&names);
    for (int k = 0; k < n; k++) {
        if (k)
            buf_puts(&names, ", ");
        if (factors[k]->kind == EXPR_REF)
            buf_str(&names, pass->p->tensors[factors[k]->tensor].name);
        else
            buf_puts(&names, factors[k]->kind == EXPR_NUMBER ? "a number" : "an expression");
    }
    static const char *const words[] = {"no", "one", "two", "three", "four", "five", "six"};
    LgStatus status =
        lang_refuse(pass->p, s->line, reduce->column, pass->err,
                    "cannot lift: this sum has %s factors (%s); a matmul has two. Name the product "
                    "of two of them first.",
                    n < 7 ? words[n] : "many", names.data);
    buf_clear(&names);
    return status;
}

static bool is_bound(const Product *m, const LangIndex *i) {
    if (i->kind != LANG_INDEX_VAR)
        return false;
    for (int k = 0; k < m->reduce->var_count; k++)
        if (m->reduce->vars[k] == i->var)
            return true;
    return false;
}

/* The last axes of w and of x are the summed ones, in one order, and w's stored last axis is just
 * these. */
static LgStatus check_summed(const Product *m) {
    const LangProgram *p = m->pass->p;
    const LangTensor *w = &p->tensors[m->w->tensor];
    int n = m->reduce->var_count;
    int w_first = m->w->index_count - n, x_first = m->x->index_count - n;
    for (int k = 0; k < n; k++)
        if (w_first < 0 || !is_bound(m, &m->w->indexes[w_first + k]))
            return lang_refuse(
                p, m->s->line, m->w->column, m->pass->err,
                "cannot lift: the summed axes of %s are not its last ones. Declare it "
                "with them last.",
                name_of(m, m->w->tensor));
    if (w->axis_start[w->axis_count - 1] != w_first)
        return lang_refuse(
            p, m->s->line, m->w->column, m->pass->err,
            "cannot lift: what is summed of %s is not its last stored axis. Sum over "
            "the whole of that axis, and over nothing else.",
            name_of(m, m->w->tensor));
    for (int k = 0; k < n; k++)
        if (x_first < 0 ||
            !match_index_equal(&m->w->indexes[w_first + k], &m->x->indexes[x_first + k]))
            return lang_refuse(p, m->s->line, m->x->column, m->pass->err,
                               "cannot lift: the summed axes of %s are not its last ones in the "
                               "order of %s. Store it in that order first.",
                               name_of(m, m->x->tensor), name_of(m, m->w->tensor));
    for (int k = 0; k < n; k++) {
        const LangVar *v = &m->s->vars[m->w->indexes[w_first + k].var];
        if (v->upper || v->lower)
            return lang_refuse(p, m->s->line, m->reduce->column, m->pass->err,
                               "cannot lift: a product sums a whole axis, without a bound on %s. "
                               "Leave the bound out.",
                               pass_var(m->s, m->w->indexes[w_first + k].var, m->pass->arena));
    }
    return LG_OK;
}

/* The target's axes behind its row (and the expert's choice) are w's rows in order. */
static LgStatus check_rows(const Product *m, int target_lead) {
    const LangProgram *p = m->pass->p;
    const LangTarget *t = &m->s->targets[0];
    int rows = m->w->index_count - m->reduce->var_count - m->lead;
    bool same = t->index_count - target_lead == rows;
    for (int k = 0; same && k < rows; k++) {
        const LangIndex *i = &t->indexes[target_lead + k];
        same = i->kind == LANG_INDEX_VAR && !p->dims[i->dim].runtime &&
               match_index_equal(i, &m->w->indexes[m->lead + k]);
    }
    if (!same)
        return lang_refuse(
            p, m->s->line, m->w->column, m->pass->err,
            "cannot lift: the axes of %s are not the rows of %s in their order. Write "
            "the product in the order of the weight, then reorder it.",
            name_of(m, t->tensor), name_of(m, m->w->tensor));
    return LG_OK;
}

static LgStatus check_input(const Product *m, const Stage *stage, int target_lead) {
    const LangProgram *p = m->pass->p;
    const LangTensor *x = &p->tensors[m->x->tensor];
    int lead = m->x->index_count - m->reduce->var_count;
    bool good = x->kind == LANG_VALUE && lead >= 1 && lead <= target_lead && stage->row_var >= 0 &&
                match_is_var(&m->x->indexes[0], stage->row_var);
    for (int k = 1; good && k < lead; k++)
        good = match_index_equal(&m->x->indexes[k], &m->s->targets[0].indexes[k]);
    if (good)
        return LG_OK;
    return lang_refuse(p, m->s->line, m->x->column, m->pass->err,
                       "cannot lift: %s is no value with one row for each row of %s. Name the rows "
                       "that the product needs first.",
                       name_of(m, m->x->tensor), name_of(m, m->s->targets[0].tensor));
}

static LgStatus check_bias(const Product *m, const LangExpr *bias, int target_lead) {
    const LangProgram *p = m->pass->p;
    const LangTarget *t = &m->s->targets[0];
    int rows = t->index_count - target_lead;
    bool good =
        p->tensors[bias->tensor].kind == LANG_PARAM && bias->index_count == rows && m->lead == 0;
    for (int k = 0; good && k < rows; k++)
        good = match_index_equal(&bias->indexes[k], &t->indexes[target_lead + k]);
    if (good)
        return LG_OK;
    return lang_refuse(
        p, m->s->line, bias->column, m->pass->err,
        "cannot lift: what is added to a product is a param over the axes of %s. Name "
        "the product first, then add %s.",
        name_of(m, t->tensor), name_of(m, bias->tensor));
}

/* An expert is chosen by the axes that name the product: pick[t,j] for a target [t,j,…]. x has a
 * row for each choice, or one for all of a row's. */
static LgStatus check_choice(const Product *m, int target_lead, StageMatmul *out) {
    const LangProgram *p = m->pass->p;
    const LangTarget *t = &m->s->targets[0];
    const LangIndex *choice = &m->w->indexes[0];
    const LangTensor *which = &p->tensors[choice->tensor], *y = &p->tensors[t->tensor];
    int lead = m->x->index_count - m->reduce->var_count;
    bool good = which->kind == LANG_VALUE && choice->count <= t->index_count &&
                (lead == 1 || lead == target_lead);
    for (int k = 0; good && k < choice->count; k++)
        good = match_index_equal(&choice->indexes[k], &t->indexes[k]) &&
               t->indexes[k].kind == LANG_INDEX_VAR;
    if (!good)
        return lang_refuse(
            p, m->s->line, m->w->column, m->pass->err,
            "cannot lift: %s is looked up by another choice than that of its result. Accepted: "
            "y[t,j,f] = sum i: x[t,i] * W[pick[t,j],f,i], or x[t,j,i], where pick is a topk's.",
            name_of(m, m->w->tensor));
    out->slots = match_stride(p, y, 1) / match_stride(p, y, target_lead);
    out->share = lead == 1 ? out->slots : 1;
    return LG_OK;
}

static LgStatus split_factors(Product *m) {
    const LangProgram *p = m->pass->p;
    const LangExpr *factors[9];
    int n = match_factors(m->reduce->a, factors, 8);
    if (n != 2)
        return too_many(m->pass, m->s, m->reduce, factors, n > 8 ? 8 : n);
    for (int k = 0; k < 2; k++)
        if (factors[k]->kind != EXPR_REF)
            return lang_refuse(p, m->s->line, factors[k]->column, m->pass->err,
                               "cannot lift: a factor of this product is an expression, not a "
                               "tensor. Name it first.");
    bool second = p->tensors[factors[1]->tensor].kind == LANG_PARAM;
    m->w = factors[second];
    m->x = factors[!second];
    return LG_OK;
}

LgStatus lift_matmul(Pass *pass, const LangStmt *s, const LangExpr *reduce, const LangExpr *bias,
                     Stage *stage) {
    const LangProgram *p = pass->p;
    Product m = {.pass = pass, .s = s, .reduce = reduce};
    LgStatus split = split_factors(&m);
    if (split != LG_OK || !m.w || !m.x)
        return split;
    const LangTensor *w = &p->tensors[m.w->tensor];
    StageMatmul *out = ARENA_NEW(pass->arena, StageMatmul);
    if (!out)
        return lg_fail_memory(pass->err);
    *out = (StageMatmul){.x = m.x->tensor,
                         .w = m.w->tensor,
                         .bias = -1,
                         .expert = -1,
                         .experts = 1,
                         .slots = 1,
                         .share = 1};
    int target_lead = 1; /* axes of the target that name its row */
    if (m.w->indexes[0].kind == LANG_INDEX_LOOKUP) {
        m.lead = 1;
        out->expert = m.w->indexes[0].tensor;
        out->experts = p->dims[w->dims[0]].size;
        target_lead = m.w->indexes[0].count;
    }
    LG_TRY(check_summed(&m));
    LG_TRY(check_rows(&m, target_lead));
    LG_TRY(check_input(&m, stage, target_lead));
    if (m.lead)
        LG_TRY(check_choice(&m, target_lead, out));
    if (bias) {
        LG_TRY(check_bias(&m, bias, target_lead));
        out->bias = bias->tensor;
    }
    int summed = m.w->index_count - reduce->var_count;
    out->k = match_stride(p, w, summed);
    out->n = match_stride(p, w, m.lead) / out->k;
    stage->matmul = out;
    return LG_OK;
}
