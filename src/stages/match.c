/* Questions about checked trees: which indexes and tensors an expression needs, what is constant,
 * what is a product. */
#include "stages/match.h"

#include <math.h>

uint32_t match_index_vars(const LangIndex *i) {
    if (i->kind == LANG_INDEX_VAR)
        return 1u << i->var;
    uint32_t vars = 0;
    if (i->kind == LANG_INDEX_LOOKUP)
        for (int k = 0; k < i->count; k++)
            vars |= match_index_vars(&i->indexes[k]);
    return vars;
}

uint32_t match_vars(const LangExpr *e) {
    if (!e)
        return 0;
    uint32_t vars = 0;
    if (e->kind == EXPR_VAR)
        return 1u << e->var;
    if (e->kind == EXPR_REF)
        for (int k = 0; k < e->index_count; k++)
            vars |= match_index_vars(&e->indexes[k]);
    vars |= match_vars(e->a) | match_vars(e->b);
    if (e->kind == EXPR_REDUCE)
        for (int k = 0; k < e->var_count; k++)
            vars &= ~(1u << e->vars[k]);
    return vars;
}

static double call_gelu(double a) {
    return 0.5 * a * (1.0 + erf(a * 0.70710678118654752440));
}

static double call_gelu_tanh(double a) {
    return 0.5 * a * (1.0 + tanh(0.79788456080286535588 * (a + 0.044715 * a * a * a)));
}

double match_call(LangFn fn, double a, double b) {
    switch (fn) {
    case LANG_FN_EXP:
        return (float)exp(a);
    case LANG_FN_LOG:
        return (float)log(a);
    case LANG_FN_SQRT:
        return sqrtf((float)a);
    case LANG_FN_RSQRT:
        return 1.0f / sqrtf((float)a);
    case LANG_FN_SIN:
        return (float)sin(a);
    case LANG_FN_COS:
        return (float)cos(a);
    case LANG_FN_SILU:
        return (float)(a / (1.0 + exp(-a)));
    case LANG_FN_SIGMOID:
        return (float)(1.0 / (1.0 + exp(-a)));
    case LANG_FN_TANH:
        return (float)tanh(a);
    case LANG_FN_GELU:
        return (float)call_gelu(a);
    case LANG_FN_GELU_TANH:
        return (float)call_gelu_tanh(a);
    case LANG_FN_MIN:
        return a < b ? a : b;
    case LANG_FN_MAX:
        return a > b ? a : b;
    case LANG_FN_ABS:
        return fabs(a);
    case LANG_FN_FLOOR:
        return floor(a);
    case LANG_FN_CEIL:
        return ceil(a);
    case LANG_FN_COUNT:
        break;
    }
    return NAN;
}

bool match_constant(const LangProgram *p, const LangExpr *e, int layer, double *value) {
    double a = 0, b = 0;
    switch (e->kind) {
    case EXPR_NUMBER:
        *value = (float)e->number;
        return true;
    case EXPR_CONST:
        *value = (float)p->consts[e->constant].values[layer];
        return true;
    case EXPR_IF:
        return match_constant(p, e->layer_true[layer] ? e->a : e->b, layer, value);
    case EXPR_VAR:
    case EXPR_REF:
    case EXPR_REDUCE:
        return false;
    default:
        break;
    }
    if (!match_constant(p, e->a, layer, &a) || (e->b && !match_constant(p, e->b, layer, &b)))
        return false;
    switch (e->kind) {
    case EXPR_NEG:
        *value = -a;
        return true;
    case EXPR_ADD:
        *value = (float)(a + b);
        return true;
    case EXPR_SUB:
        *value = (float)(a - b);
        return true;
    case EXPR_MUL:
        *value = (float)(a * b);
        return true;
    case EXPR_DIV:
        *value = (float)(a / b);
        return true;
    case EXPR_POW:
        *value = (float)pow(a, b);
        return true;
    case EXPR_CALL:
        *value = match_call(e->fn, a, b);
        return true;
    default:
        return false;
    }
}

bool match_layered(const LangExpr *e) {
    if (!e)
        return false;
    return e->kind == EXPR_CONST || e->kind == EXPR_IF || match_layered(e->a) ||
           match_layered(e->b);
}

void match_index_reads(const LangIndex *i, const LangExpr *ref, MatchRead visit, void *user) {
    if (i->kind != LANG_INDEX_LOOKUP)
        return;
    visit(user, i->tensor, ref);
    for (int k = 0; k < i->count; k++)
        match_index_reads(&i->indexes[k], ref, visit, user);
}

void match_reads(const LangExpr *e, MatchRead visit, void *user) {
    if (!e)
        return;
    if (e->kind == EXPR_REF) {
        visit(user, e->tensor, e);
        for (int k = 0; k < e->index_count; k++)
            match_index_reads(&e->indexes[k], e, visit, user);
    }
    match_reads(e->a, visit, user);
    match_reads(e->b, visit, user);
}

typedef struct ReadsTensor {
    int tensor;
    bool found;
} ReadsTensor;

static void reads_tensor(void *user, int tensor, const LangExpr *ref) {
    ReadsTensor *r = user;
    (void)ref;
    r->found |= tensor == r->tensor;
}

bool match_reads_tensor(const LangExpr *e, int tensor) {
    ReadsTensor r = {tensor, false};
    match_reads(e, reads_tensor, &r);
    return r.found;
}

void match_nodes(const LangExpr *e, MatchNode visit, void *user) {
    if (!e || !visit(user, e))
        return;
    match_nodes(e->a, visit, user);
    match_nodes(e->b, visit, user);
}

bool match_index_equal(const LangIndex *a, const LangIndex *b) {
    if (a->kind != b->kind)
        return false;
    switch (a->kind) {
    case LANG_INDEX_VAR:
        return a->var == b->var;
    case LANG_INDEX_INT:
        return a->value == b->value;
    case LANG_INDEX_LOOKUP:
        break;
    }
    if (a->tensor != b->tensor || a->count != b->count)
        return false;
    for (int k = 0; k < a->count; k++)
        if (!match_index_equal(&a->indexes[k], &b->indexes[k]))
            return false;
    return true;
}

bool match_equal(const LangExpr *a, const LangExpr *b) {
    if (!a || !b)
        return a == b;
    if (a->kind != b->kind || !match_equal(a->a, b->a) || !match_equal(a->b, b->b))
        return false;
    switch (a->kind) {
    case EXPR_NUMBER:
        return a->number == b->number;
    case EXPR_CONST:
        return a->constant == b->constant;
    case EXPR_VAR:
        return a->var == b->var;
    case EXPR_CALL:
        return a->fn == b->fn;
    case EXPR_REF:
        if (a->tensor != b->tensor || a->index_count != b->index_count)
            return false;
        for (int k = 0; k < a->index_count; k++)
            if (!match_index_equal(&a->indexes[k], &b->indexes[k]))
                return false;
        return true;
    case EXPR_REDUCE:
    case EXPR_IF:
        return a == b; /* never needed */
    default:
        return true;
    }
}

bool match_is_var(const LangIndex *i, int var) {
    return i->kind == LANG_INDEX_VAR && i->var == var;
}

int match_factors(const LangExpr *e, const LangExpr **out, int max) {
    if (e->kind != EXPR_MUL) {
        out[0] = e;
        return 1;
    }
    int left = match_factors(e->a, out, max);
    if (left >= max)
        return max + 1;
    int right = match_factors(e->b, out + left, max - left);
    return left + right > max ? max + 1 : left + right;
}

static bool is_weight(const LangProgram *p, const LangStmt *s, const LangExpr *reduce,
                      const LangExpr *e) {
    if (e->kind != EXPR_REF || p->tensors[e->tensor].kind != LANG_PARAM)
        return false;
    uint32_t bound = 0;
    for (int k = 0; k < reduce->var_count; k++)
        bound |= 1u << reduce->vars[k];
    bool summed = false, kept = false;
    for (int k = 0; k < e->index_count; k++) {
        const LangIndex *i = &e->indexes[k];
        if (i->kind == LANG_INDEX_LOOKUP)
            kept = true;
        if (i->kind != LANG_INDEX_VAR)
            continue;
        if (bound >> i->var & 1)
            summed = true;
        else if (!p->dims[s->vars[i->var].dim].runtime)
            kept = true;
    }
    return summed && kept;
}

bool match_is_product(const LangProgram *p, const LangStmt *s, const LangExpr *reduce) {
    if (reduce->kind != EXPR_REDUCE || reduce->red != LANG_RED_SUM)
        return false;
    const LangExpr *factors[17];
    int n = match_factors(reduce->a, factors, 16);
    for (int k = 0; k < n && k < 16; k++)
        if (is_weight(p, s, reduce, factors[k]))
            return true;
    return false;
}

uint64_t match_stride(const LangProgram *p, const LangTensor *t, int axis) {
    uint64_t n = 1;
    for (int k = axis; k < t->rank; k++)
        if (!p->dims[t->dims[k]].runtime)
            n *= p->dims[t->dims[k]].size;
    return n;
}
