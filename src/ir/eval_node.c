/* The value of a tree, one element at a time. */
#include <math.h>

#include "ir/eval_internal.h"

#define INV_SQRT2 0.70710678118654752440
#define GELU_TANH_A 0.79788456080286535588 /* sqrt(2 / pi) */
#define GELU_TANH_B 0.044715

static double call(LangFn fn, double a, double b) {
    switch (fn) {
    case LANG_FN_EXP:
        return exp(a);
    case LANG_FN_LOG:
        return log(a);
    case LANG_FN_SQRT:
        return sqrt(a);
    case LANG_FN_RSQRT:
        return 1 / sqrt(a);
    case LANG_FN_SIN:
        return sin(a);
    case LANG_FN_COS:
        return cos(a);
    case LANG_FN_SILU:
        return a / (1 + exp(-a));
    case LANG_FN_SIGMOID:
        return 1 / (1 + exp(-a));
    case LANG_FN_TANH:
        return tanh(a);
    case LANG_FN_GELU:
        return 0.5 * a * (1 + erf(a * INV_SQRT2));
    case LANG_FN_GELU_TANH:
        return 0.5 * a * (1 + tanh(GELU_TANH_A * (a + GELU_TANH_B * a * a * a)));
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

static float dot_f32(float sum, const float *a, int64_t sa, const float *b, int64_t sb, int64_t n) {
    if (sa == 1 && sb == 1) {
        for (int64_t i = 0; i < n; i++)
            sum += a[i] * b[i];
        return sum;
    }
    for (int64_t i = 0; i < n; i++)
        sum += a[i * sa] * b[i * sb];
    return sum;
}

static double dot_f64(double sum, const float *a, int64_t sa, const float *b, int64_t sb,
                      int64_t n) {
    for (int64_t i = 0; i < n; i++)
        sum += (double)a[i * sa] * (double)b[i * sb];
    return sum;
}

/* The innermost run: [low, high) of n's last variable, whose strides are sa and sb. A state's
 * positions are walked page by page. */
static double dot_run(Eval *e, const EvalNode *n, double sum, int64_t low, int64_t high, int64_t sa,
                      int64_t sb) {
    int last = n->vars[n->var_count - 1];
    while (low < high) {
        int64_t end = high;
        if (n->dot_paged && end > (low | (KV_PAGE_POSITIONS - 1)) + 1)
            end = (low | (KV_PAGE_POSITIONS - 1)) + 1;
        e->v[last] = low;
        const float *a = eval_ref_at(e, n->dot_a);
        const float *b = eval_ref_at(e, n->dot_b);
        sum = e->options.f64 ? dot_f64(sum, a, sa, b, sb, end - low)
                             : (double)dot_f32((float)sum, a, sa, b, sb, end - low);
        low = end;
    }
    return sum;
}

static double dot_level(Eval *e, const EvalNode *n, double sum, int level, int64_t *elems) {
    int64_t low, high;
    eval_bounds(e, n->vars[level], &low, &high);
    if (level == n->var_count - 1) {
        *elems += high - low;
        return dot_run(e, n, sum, low, high, n->dot_sa[level], n->dot_sb[level]);
    }
    int inner = n->vars[level + 1];
    const EvalVar *v = &e->running->vars[inner];
    int64_t inner_extent = (int64_t)e->extents[v->dim];
    /* Two axes that lie one in the other in both operands are one longer run. */
    if (level == n->var_count - 2 && !n->dot_paged && !v->upper && !v->lower &&
        n->dot_sa[level] == n->dot_sa[level + 1] * inner_extent &&
        n->dot_sb[level] == n->dot_sb[level + 1] * inner_extent) {
        e->v[n->vars[level]] = low;
        *elems += (high - low) * inner_extent;
        return dot_run(e, n, sum, 0, (high - low) * inner_extent, n->dot_sa[level + 1],
                       n->dot_sb[level + 1]);
    }
    for (int64_t i = low; i < high; i++) {
        e->v[n->vars[level]] = i;
        sum = dot_level(e, n, sum, level + 1, elems);
    }
    return sum;
}

typedef struct Accumulator {
    double value;
    int64_t elems;
    int64_t best; /* argmax: the variable's value */
} Accumulator;

static void accumulate(Eval *e, const EvalNode *n, Accumulator *acc) {
    double x = eval_node(e, n->a);
    if (n->red == LANG_RED_SUM || n->red == LANG_RED_MEAN) {
        acc->value = eval_round(e, acc->value + x);
    } else if (acc->elems == 0 || x > acc->value) {
        acc->value = x;
        acc->best = e->v[n->vars[0]];
    }
    acc->elems++;
}

static void reduce_level(Eval *e, const EvalNode *n, Accumulator *acc, int level) {
    if (level == n->var_count) {
        accumulate(e, n, acc);
        return;
    }
    int64_t low, high;
    eval_bounds(e, n->vars[level], &low, &high);
    for (int64_t i = low; i < high; i++) {
        e->v[n->vars[level]] = i;
        reduce_level(e, n, acc, level + 1);
    }
}

void eval_vector(Eval *e, EvalNode *n) {
    int var = n->vars[0];
    eval_bounds(e, var, &n->low, &n->high);
    for (int64_t i = n->low; i < n->high; i++) {
        e->v[var] = i;
        n->vector[i] = eval_node(e, n->a);
    }
}

static void softmax(Eval *e, EvalNode *n) {
    int64_t at = e->v[n->vars[0]];
    eval_vector(e, n);
    e->v[n->vars[0]] = at;
    double top = -INFINITY, sum = 0;
    for (int64_t i = n->low; i < n->high; i++)
        if (n->vector[i] > top)
            top = n->vector[i];
    for (int64_t i = n->low; i < n->high; i++) {
        n->vector[i] = eval_round(e, exp(eval_round(e, n->vector[i] - top)));
        sum = eval_round(e, sum + n->vector[i]);
    }
    for (int64_t i = n->low; i < n->high; i++)
        n->vector[i] = eval_round(e, n->vector[i] / sum);
}

static bool cache_holds(const Eval *e, const EvalNode *n) {
    if (!n->cached)
        return false;
    uint32_t deps = n->deps;
    if (n->red == LANG_RED_SOFTMAX)
        deps &= ~(1u << n->vars[0]); /* the vector has all its values */
    for (int i = 0; i < LANG_VARS_MAX; i++)
        if ((deps >> i & 1u) && n->key[i] != e->v[i])
            return false;
    return true;
}

static double reduce(Eval *e, EvalNode *n) {
    if (n->forced)
        return n->value;
    bool keeps = n->red == LANG_RED_SOFTMAX;
    if (!cache_holds(e, n)) {
        Accumulator acc = {0};
        if (keeps)
            softmax(e, n);
        else if (n->dot)
            acc.value = dot_level(e, n, 0, 0, &acc.elems);
        else
            reduce_level(e, n, &acc, 0);
        if (n->red == LANG_RED_MEAN)
            acc.value = eval_round(e, acc.value / (double)acc.elems);
        if (n->red == LANG_RED_MAX && acc.elems == 0)
            acc.value = -INFINITY;
        n->value = n->red == LANG_RED_ARGMAX ? (double)acc.best : acc.value;
        n->cached = true;
        for (int i = 0; i < LANG_VARS_MAX; i++)
            n->key[i] = e->v[i];
    }
    return keeps ? n->vector[e->v[n->vars[0]]] : n->value;
}

double eval_node(Eval *e, EvalNode *n) {
    switch (n->kind) {
    case EXPR_NUMBER:
        return n->number;
    case EXPR_CONST:
        return eval_round(e, n->values[e->layer > 0 ? e->layer : 0]);
    case EXPR_VAR:
        return eval_round(e, (double)e->v[n->var]);
    case EXPR_REF:
        return eval_ref_value(e, &n->ref);
    case EXPR_NEG:
        return -eval_node(e, n->a);
    case EXPR_ADD:
        return eval_round(e, eval_node(e, n->a) + eval_node(e, n->b));
    case EXPR_SUB:
        return eval_round(e, eval_node(e, n->a) - eval_node(e, n->b));
    case EXPR_MUL:
        return eval_round(e, eval_node(e, n->a) * eval_node(e, n->b));
    case EXPR_DIV:
        return eval_round(e, eval_node(e, n->a) / eval_node(e, n->b));
    case EXPR_POW: {
        double a = eval_node(e, n->a), b = eval_node(e, n->b);
        return eval_round(e, b == 2 ? a * a : pow(a, b));
    }
    case EXPR_CALL: {
        double a = eval_node(e, n->a);
        return eval_round(e, call(n->fn, a, n->b ? eval_node(e, n->b) : 0));
    }
    case EXPR_IF:
        return eval_node(e, n->layer_true[e->layer > 0 ? e->layer : 0] ? n->a : n->b);
    case EXPR_REDUCE:
        return reduce(e, n);
    }
    return NAN;
}
