#include "tests/e2e/reading.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

#define U24 0x1p-24   /* f32: half a unit in the last place, relative */
#define U_BF16 0x1p-8 /* of eight bits */
#define U_F16 0x1p-11
#define TINY 0x1p-126 /* below it errors are absolute */
#define FN_ULPS 8     /* elementary functions: the loosest that the kernels claim */
#define SUM_SLACK 2   /* partial sums are added too */

typedef struct Bounded {
    double v, e;
} Bounded;

typedef struct BoundTensor {
    uint64_t extent[LANG_RANK_MAX], stride[LANG_RANK_MAX];
    uint64_t elems, cap;
    Bounded *at;       /* values; states: [layer][slots_max][positions_max][inner] */
    uint8_t *computed; /* since the last check */
    float **params;    /* [layers or 1] */
    const int32_t *input;
    int site;  /* ADAPTER tensors, else -1 */
    char part; /* 'A', 'B', 's' */
} BoundTensor;

struct Reading {
    const LangProgram *p;
    const Binding *binding;
    bool store_f32;
    int layers, slots_max, positions_max;
    BoundTensor *tensors;
    uint64_t *extents;
    const AdapterData *adapters[64];
    const Step *step;
    int use; /* which adapter of a set the two statements run for */
    int layer;
    const LangStmt *stmt;
    int64_t v[LANG_VARS_MAX];
    const LangExpr *memo_expr; /* a softmax: its vector, for these values of the other variables */
    int64_t memo_key[LANG_VARS_MAX];
    Bounded *memo;
    int64_t memo_low, memo_high;
};

static bool is_value(const LangTensor *t) {
    return t->kind == LANG_VALUE || t->kind == LANG_OUTPUT;
}

static float *expand(const Reading *b, int tensor, int layer) {
    const LangTensor *t = &b->p->tensors[tensor];
    uint64_t rows = 1, columns = 1;
    for (int i = 0; i < t->rank; i++)
        *(i < t->axis_start[t->axis_count - 1] ? &rows : &columns) *= b->p->dims[t->dims[i]].size;
    float *out = lg_alloc_array((size_t)(rows * columns), sizeof *out);
    for (uint64_t r = 0; out && r < rows; r++)
        binding_row_f32(binding_get(b->binding, tensor, layer), b->p, tensor, r, out + r * columns);
    return out;
}

/* A stands in the first statement of a site's two, B and the scale in the second. */
static void find_adapter_refs(Reading *b, const LangExpr *x, const LangStmt *s) {
    if (!x)
        return;
    if (x->kind == EXPR_REF && b->p->tensors[x->tensor].kind == LANG_ADAPTER) {
        BoundTensor *t = &b->tensors[x->tensor];
        t->site = s->site;
        t->part = s->role == LANG_LORA_LOW ? 'A' : x->index_count == 1 ? 's' : 'B';
    }
    find_adapter_refs(b, x->a, s);
    find_adapter_refs(b, x->b, s);
}

static bool make_tensors(Reading *b) {
    for (int i = 0; i < b->p->tensor_count; i++) {
        const LangTensor *t = &b->p->tensors[i];
        b->tensors[i].site = -1;
        if (t->kind != LANG_PARAM)
            continue;
        int layers = t->in_layer ? b->layers : 1;
        b->tensors[i].params = lg_calloc((size_t)layers, sizeof(float *));
        for (int layer = 0; b->tensors[i].params && layer < layers; layer++)
            if (!(b->tensors[i].params[layer] = expand(b, i, layer)))
                return false;
        if (!b->tensors[i].params)
            return false;
    }
    for (int i = 0; i < b->p->stmt_count; i++)
        if (b->p->stmts[i].role != LANG_PLAIN)
            find_adapter_refs(b, b->p->stmts[i].rhs, &b->p->stmts[i]);
    return true;
}

Reading *reading_create(const LangProgram *p, const Binding *binding, bool store_f32, int slots_max,
                        int positions_max) {
    Reading *b = lg_calloc(1, sizeof *b);
    if (!b)
        return NULL;
    *b = (Reading){.p = p,
                   .binding = binding,
                   .store_f32 = store_f32,
                   .layers = p->layer_count > 0 ? p->layer_count : 1,
                   .slots_max = slots_max,
                   .positions_max = positions_max};
    b->tensors = lg_calloc((size_t)p->tensor_count, sizeof *b->tensors);
    b->extents = lg_calloc((size_t)p->dim_count, sizeof *b->extents);
    b->memo = lg_calloc((size_t)positions_max + 4096, sizeof *b->memo);
    if (b->tensors && b->extents && b->memo && make_tensors(b))
        return b;
    reading_destroy(b);
    return NULL;
}

void reading_destroy(Reading *b) {
    if (!b)
        return;
    for (int i = 0; b->tensors && i < b->p->tensor_count; i++) {
        BoundTensor *t = &b->tensors[i];
        for (int k = 0; t->params && k < (b->p->tensors[i].in_layer ? b->layers : 1); k++)
            lg_free(t->params[k]);
        lg_free(t->params);
        lg_free(t->at);
        lg_free(t->computed);
    }
    lg_free(b->tensors);
    lg_free(b->extents);
    lg_free(b->memo);
    lg_free(b);
}

void reading_install(Reading *b, int32_t slot, const AdapterData *adapter) {
    b->adapters[slot] = adapter;
}

static int32_t max_of(const int32_t *values, int32_t count) {
    int32_t max = -1;
    for (int32_t i = 0; i < count; i++)
        max = values[i] > max ? values[i] : max;
    return max;
}

static int32_t rank_max(const Reading *b) {
    int32_t max = 0;
    for (size_t a = 0; a < sizeof b->adapters / sizeof b->adapters[0]; a++)
        for (int i = 0; b->adapters[a] && i < b->adapters[a]->site_count * b->layers; i++)
            if (b->adapters[a]->sites[i].rank > max)
                max = b->adapters[a]->sites[i].rank;
    return max;
}

static void size_tensor(Reading *b, int index) {
    const LangTensor *decl = &b->p->tensors[index];
    BoundTensor *t = &b->tensors[index];
    t->elems = 1;
    for (int i = decl->rank - 1; i >= 0; i--) {
        t->extent[i] = b->extents[decl->dims[i]];
        if (decl->kind == LANG_STATE && i < 2)
            t->extent[i] = (uint64_t)(i ? b->positions_max : b->slots_max);
        t->stride[i] = t->elems;
        t->elems *= t->extent[i];
    }
    uint64_t need = t->elems * (uint64_t)(decl->kind == LANG_STATE ? b->layers : 1);
    if ((!is_value(decl) && decl->kind != LANG_STATE) || need <= t->cap)
        return;
    lg_free(t->at);
    lg_free(t->computed);
    t->at = lg_alloc_array((size_t)need, sizeof *t->at);
    t->computed = lg_calloc((size_t)need, 1);
    t->cap = t->at && t->computed ? need : 0;
    for (uint64_t i = 0; i < t->cap; i++)
        t->at[i] = (Bounded){NAN, NAN};
}

void reading_step(Reading *b, const Step *step) {
    b->step = step;
    const char *const names[] = {"token", "slot", "pos", "last", "ad"};
    const int32_t *const values[] = {step->token, step->slot, step->pos, step->last, step->ad};
    for (int i = 0; i < b->p->dim_count; i++)
        b->extents[i] = b->p->dims[i].runtime ? (uint64_t)rank_max(b) : b->p->dims[i].size;
    for (int i = 0; i < b->p->tensor_count; i++) {
        const LangTensor *t = &b->p->tensors[i];
        for (int k = 0; t->kind == LANG_INPUT && k < 5; k++) {
            if (!lg_str_eq_c(t->name, names[k]))
                continue;
            b->tensors[i].input = values[k];
            b->extents[t->dims[0]] = (uint64_t)(k == 3 ? step->samples : step->rows);
            if (k == 2)
                b->extents[t->index_dim] = (uint64_t)(max_of(step->pos, step->rows) + 1);
        }
    }
    for (int i = 0; i < b->p->tensor_count; i++)
        size_tensor(b, i);
}

static int64_t index_value(const Reading *b, const LangIndex *x) {
    if (x->kind == LANG_INDEX_VAR)
        return b->v[x->var];
    if (x->kind == LANG_INDEX_INT)
        return x->value;
    const BoundTensor *t = &b->tensors[x->tensor];
    uint64_t at = 0;
    for (int i = 0; i < x->count; i++)
        at += (uint64_t)index_value(b, &x->indexes[i]) * t->stride[i];
    return t->input ? t->input[at] : (int64_t)t->at[at].v;
}

static uint64_t offset(const Reading *b, int tensor, const LangIndex *indexes, int count) {
    const BoundTensor *t = &b->tensors[tensor];
    uint64_t at = b->p->tensors[tensor].kind == LANG_STATE ? t->elems * (uint64_t)b->layer : 0;
    for (int i = 0; i < count; i++)
        at += (uint64_t)index_value(b, &indexes[i]) * t->stride[i];
    return at;
}

/* The expert that the fold at hand reads B of: the page gives a site one scale, adapters one for
 * each expert. */
static int64_t expert_of(const Reading *b, int site) {
    const LangExpr *product = b->stmt->rhs->b->a; /* low * B */
    (void)site;
    return index_value(b, &product->b->indexes[1]);
}

/* An element of an adapter's tensor by its declaration: the first index names the row's set. */
static Bounded adapter_element(const Reading *b, const LangExpr *x) {
    const BoundTensor *t = &b->tensors[x->tensor];
    const AdapterSet *set = &b->step->sets[index_value(b, &x->indexes[0])];
    if (b->use >= set->count)
        return (Bounded){0, 0};
    const AdapterData *data = b->adapters[set->use[b->use].slot];
    int layer = b->p->tensors[b->p->sites[t->site].param].in_layer ? b->layer : 0;
    const AdapterSite *site = &data->sites[layer * data->site_count + t->site];
    if (site->rank == 0)
        return (Bounded){0, 0};
    int lead = 0; /* an index more: the expert */
    if (site->experts && t->part == 's')
        site = &site->experts[expert_of(b, t->site)];
    else if (site->experts)
        site = &site->experts[index_value(b, &x->indexes[++lead])];
    if (t->part == 's') {
        double scale = (double)site->scale * (double)set->use[b->use].scale;
        return (Bounded){scale, fabs(scale) * U24};
    }
    int64_t z = index_value(b, &x->indexes[t->part == 'A' ? lead + 1 : x->index_count - 1]);
    if (z >= site->rank)
        return (Bounded){0, 0};
    uint64_t at = 0, size = 1;
    int first = lead + (t->part == 'A' ? 2 : 1),
        end = t->part == 'A' ? x->index_count : x->index_count - 1;
    for (int i = end - 1; i >= first; i--) {
        at += (uint64_t)index_value(b, &x->indexes[i]) * size;
        size *= t->extent[i];
    }
    float f = t->part == 'A' ? site->a[(uint64_t)z * size + at]
                             : site->b[at * (uint64_t)site->rank + (uint64_t)z];
    return (Bounded){(double)f, 0};
}

static Bounded load(const Reading *b, const LangExpr *x) {
    const LangTensor *decl = &b->p->tensors[x->tensor];
    const BoundTensor *t = &b->tensors[x->tensor];
    if (decl->kind == LANG_ADAPTER)
        return adapter_element(b, x);
    uint64_t at = offset(b, x->tensor, x->indexes, x->index_count);
    if (t->input)
        return (Bounded){(double)t->input[at], 0};
    if (t->params)
        return (Bounded){(double)t->params[decl->in_layer ? b->layer : 0][at], 0};
    return t->at[at];
}

static Bounded rounded(double v, double e) {
    return (Bounded){v, e + U24 * (fabs(v) + e) + TINY * U24};
}

static Bounded bound(Reading *b, const LangExpr *x);

/* The derivative's largest value near v times the argument's error, and the function's own. */
static Bounded through(double v, double slope, double e) {
    return (Bounded){v, slope * e + FN_ULPS * U24 * (fabs(v) + slope * e) + TINY * U24};
}

static Bounded call(Reading *b, const LangExpr *x) {
    Bounded a = bound(b, x->a), c = x->b ? bound(b, x->b) : (Bounded){0, 0};
    double low = fabs(a.v) > a.e ? fabs(a.v) - a.e : 0; /* nearest to 0 that the argument may be */
    switch (x->fn) {
    case LANG_FN_EXP:
        return through(exp(a.v), exp(a.v + a.e), a.e);
    case LANG_FN_LOG:
        return through(log(a.v), 1 / low, a.e);
    case LANG_FN_SQRT:
        return through(sqrt(a.v), 0.5 / sqrt(low), a.e);
    case LANG_FN_RSQRT:
        return through(1 / sqrt(a.v), 0.5 / (low * sqrt(low)), a.e);
    case LANG_FN_SIN:
        return through(sin(a.v), 1, a.e + U24); /* near a zero the error is absolute */
    case LANG_FN_COS:
        return through(cos(a.v), 1, a.e + U24);
    case LANG_FN_SILU:
        return through(a.v / (1 + exp(-a.v)), 1.1, a.e);
    case LANG_FN_SIGMOID:
        return through(1 / (1 + exp(-a.v)), 0.25, a.e);
    case LANG_FN_TANH:
        return through(tanh(a.v), 1, a.e);
    case LANG_FN_GELU:
        return through(0.5 * a.v * (1 + erf(a.v * sqrt(0.5))), 1.13, a.e);
    case LANG_FN_GELU_TANH: {
        double u = 0.79788456080286535588 * (a.v + 0.044715 * a.v * a.v * a.v);
        return through(0.5 * a.v * (1 + tanh(u)), 1.13, a.e + 2 * U24 * fabs(u));
    }
    case LANG_FN_MIN:
        return (Bounded){fmin(a.v, c.v), fmax(a.e, c.e)};
    case LANG_FN_MAX:
        return (Bounded){fmax(a.v, c.v), fmax(a.e, c.e)};
    case LANG_FN_ABS:
        return (Bounded){fabs(a.v), a.e};
    case LANG_FN_FLOOR:
        return (Bounded){floor(a.v), floor(a.v - a.e) == floor(a.v + a.e) ? 0 : 1};
    case LANG_FN_CEIL:
        return (Bounded){ceil(a.v), ceil(a.v - a.e) == ceil(a.v + a.e) ? 0 : 1};
    case LANG_FN_COUNT:
        break;
    }
    return (Bounded){NAN, NAN};
}

static void range(Reading *b, int var, int64_t *low, int64_t *high) {
    const LangVar *v = &b->stmt->vars[var];
    *low = 0;
    *high = (int64_t)b->extents[v->dim];
    if (v->upper) {
        double upper = bound(b, v->upper).v;
        if (upper + 1 < (double)*high)
            *high = (int64_t)upper + 1;
    }
    if (v->lower) {
        double lower = bound(b, v->lower).v;
        if (lower >= 0)
            *low = (int64_t)lower + 1;
    }
}

typedef struct Sum {
    double v, e, magnitude, best;
    int64_t elems;
} Sum;

static void reduce_level(Reading *b, const LangExpr *x, Sum *s, int level) {
    if (level == x->var_count) {
        Bounded a = bound(b, x->a);
        s->v += a.v;
        s->e = x->red == LANG_RED_MAX ? fmax(s->e, a.e) : s->e + a.e;
        s->magnitude += fabs(a.v) + a.e;
        s->best = s->elems ? fmax(s->best, a.v) : a.v;
        s->elems++;
        return;
    }
    int64_t low, high;
    range(b, x->vars[level], &low, &high);
    for (int64_t i = low; i < high; i++) {
        b->v[x->vars[level]] = i;
        reduce_level(b, x, s, level + 1);
    }
}

/* p = exp(x - m) / sum: relative errors of the exponentials, then of their sum and the quotient. */
static void softmax_vector(Reading *b, const LangExpr *x) {
    int var = x->vars[0];
    double top = -INFINITY, top_e = 0, sum = 0, sum_e = 0;
    int64_t mine = b->v[var];
    range(b, var, &b->memo_low, &b->memo_high);
    for (int64_t i = b->memo_low; i < b->memo_high; i++) {
        b->v[var] = i;
        b->memo[i] = bound(b, x->a);
        top = fmax(top, b->memo[i].v);
        top_e = fmax(top_e, b->memo[i].e);
    }
    b->v[var] = mine;
    double n = (double)(b->memo_high - b->memo_low);
    for (int64_t i = b->memo_low; i < b->memo_high; i++) {
        /* A product may be folded into the exponent: its rounding and the subtraction's, at the
         * size of both. */
        double off = b->memo[i].v - top;
        double e = b->memo[i].e + top_e + 2 * U24 * (fabs(b->memo[i].v) + fabs(top));
        b->memo[i].v = exp(off);
        b->memo[i].e = exp(off) * (expm1(e) + FN_ULPS * U24) + TINY;
        sum += b->memo[i].v;
        sum_e += b->memo[i].e;
    }
    sum_e += SUM_SLACK * n * U24 * (sum + sum_e);
    for (int64_t i = b->memo_low; i < b->memo_high; i++) {
        double p = b->memo[i].v / sum;
        b->memo[i] = rounded(p, (b->memo[i].e + p * sum_e) / (sum - sum_e) + 2 * U24 * p);
    }
    memcpy(b->memo_key, b->v, sizeof b->v);
    b->memo_expr = x;
}

static Bounded softmax(Reading *b, const LangExpr *x) {
    int var = x->vars[0];
    bool same = b->memo_expr == x;
    for (int i = 0; i < b->stmt->var_count && same; i++)
        if (!b->stmt->vars[i].reduced && i != var && b->memo_key[i] != b->v[i])
            same = false;
    if (!same)
        softmax_vector(b, x);
    return b->memo[b->v[var]];
}

static Bounded reduce(Reading *b, const LangExpr *x) {
    if (x->red == LANG_RED_SOFTMAX)
        return softmax(b, x);
    Sum s = {0};
    reduce_level(b, x, &s, 0);
    if (x->red == LANG_RED_MAX)
        return (Bounded){s.best, s.e};
    double n = (double)s.elems;
    Bounded sum = {s.v, s.e + SUM_SLACK * n * U24 * s.magnitude};
    if (x->red == LANG_RED_MEAN)
        return rounded(sum.v / n, sum.e / n + U24 * fabs(sum.v / n));
    return sum;
}

static Bounded power(Bounded a, Bounded c) {
    double v = pow(a.v, c.v);
    if (c.v == 2 && c.e <= 2 * U24 * 2)
        return rounded(v, 2 * fabs(a.v) * a.e + a.e * a.e);
    double relative = fabs(c.v) * a.e / fabs(a.v) + fabs(log(fabs(a.v))) * c.e;
    return (Bounded){v, fabs(v) * (expm1(relative) + FN_ULPS * U24)};
}

static Bounded bound(Reading *b, const LangExpr *x) {
    if (x->kind == EXPR_NUMBER)
        return (Bounded){x->number,
                         (double)(float)x->number == x->number ? 0 : U24 * fabs(x->number)};
    if (x->kind == EXPR_CONST)
        return (Bounded){b->p->consts[x->constant].values[b->layer],
                         U24 * fabs(b->p->consts[x->constant].values[b->layer])};
    if (x->kind == EXPR_VAR)
        return (Bounded){(double)b->v[x->var], 0};
    if (x->kind == EXPR_REF)
        return load(b, x);
    if (x->kind == EXPR_CALL)
        return call(b, x);
    if (x->kind == EXPR_REDUCE)
        return reduce(b, x);
    if (x->kind == EXPR_IF)
        return bound(b, x->layer_true[b->layer] ? x->a : x->b);
    Bounded a = bound(b, x->a), c = x->b ? bound(b, x->b) : (Bounded){0, 0};
    switch (x->kind) {
    case EXPR_NEG:
        return (Bounded){-a.v, a.e};
    case EXPR_ADD:
        return rounded(a.v + c.v, a.e + c.e);
    case EXPR_SUB:
        return rounded(a.v - c.v, a.e + c.e);
    case EXPR_MUL:
        return rounded(a.v * c.v, fabs(a.v) * c.e + fabs(c.v) * a.e + a.e * c.e);
    case EXPR_DIV: {
        double least = fabs(c.v) - c.e;
        return rounded(a.v / c.v, (a.e + fabs(a.v / c.v) * c.e) / least);
    }
    case EXPR_POW:
        return power(a, c);
    default:
        return (Bounded){NAN, NAN};
    }
}

static double store_unit(const Reading *b, const LangTensor *t) {
    LangDType type = t->dtype_written ? t->dtype : b->store_f32 ? LANG_F32 : LANG_BF16;
    return type == LANG_BF16 ? U_BF16 : type == LANG_F16 ? U_F16 : U24;
}

static void one_element(Reading *b, const LangStmt *s) {
    const LangTarget *target = &s->targets[0];
    BoundTensor *t = &b->tensors[target->tensor];
    uint64_t at = offset(b, target->tensor, target->indexes, target->index_count);
    /* The scale's first index is the row's set: rows without this adapter must keep their bits. */
    if (s->role == LANG_LORA_FOLD &&
        b->step->sets[index_value(b, &s->rhs->a->indexes[0])].count <= b->use)
        return;
    Bounded r = bound(b, s->rhs);
    if (s->op == LANG_ADD_TO)
        r = rounded(t->at[at].v + r.v, t->at[at].e + r.e);
    /* A store of what already has the type changes nothing. */
    bool copy = s->rhs->kind == EXPR_REF && s->op == LANG_WRITE && r.e == 0;
    if (!copy)
        r.e += store_unit(b, &b->p->tensors[target->tensor]) * (fabs(r.v) + r.e) + TINY;
    t->at[at] = r;
    t->computed[at] = 1;
}

static void loops(Reading *b, const LangStmt *s, int var) {
    while (var < s->var_count) {
        bool kept = s->rhs->kind == EXPR_REDUCE && s->rhs->red == LANG_RED_SOFTMAX &&
                    s->rhs->vars[0] == var;
        if (!s->vars[var].reduced || kept)
            break;
        var++;
    }
    if (var == s->var_count) {
        one_element(b, s);
        return;
    }
    int64_t low, high;
    range(b, var, &low, &high);
    for (int64_t i = low; i < high; i++) {
        b->v[var] = i;
        loops(b, s, var + 1);
    }
}

/* Rows of no adapter are not touched; the two statements of a site run once for each adapter of a
 * set. */
static bool any_adapter(const Reading *b, int use) {
    for (int32_t r = 0; b->step->ad && r < b->step->rows; r++)
        if (b->step->sets[b->step->ad[r]].count > use)
            return true;
    return false;
}

static const LangStmt *low_of(const Reading *b, int site) {
    for (int i = 0; i < b->p->stmt_count; i++)
        if (b->p->stmts[i].role == LANG_LORA_LOW && b->p->stmts[i].site == site)
            return &b->p->stmts[i];
    return NULL;
}

/* One row's choice: the largest values, the largest first, of equal ones the lower index. What is
 * chosen from was held to its bounds before and is the program's own. */
static void choose(Reading *b, const LangStmt *s) {
    const LangTarget *which = &s->targets[0], *much = &s->targets[1];
    int over = s->rhs->vars[0], count = which->indexes[which->index_count - 1].var;
    int64_t n = (int64_t)b->extents[s->vars[over].dim];
    int64_t wanted = (int64_t)b->extents[s->vars[count].dim];
    for (int64_t i = 0; i < n; i++) {
        b->v[over] = i;
        b->memo[i] = bound(b, s->rhs->a);
    }
    for (int64_t j = 0; j < wanted; j++) {
        int64_t best = -1;
        for (int64_t i = 0; i < n; i++)
            if (!isnan(b->memo[i].v) && (best < 0 || b->memo[i].v > b->memo[best].v))
                best = i;
        b->v[count] = j;
        uint64_t at = offset(b, which->tensor, which->indexes, which->index_count);
        uint64_t value_at = offset(b, much->tensor, much->indexes, much->index_count);
        b->tensors[which->tensor].at[at] = (Bounded){(double)best, 0};
        b->tensors[which->tensor].computed[at] = 1;
        double v = best < 0 ? (double)NAN : b->memo[best].v;
        b->tensors[much->tensor].at[value_at] =
            (Bounded){v, store_unit(b, &b->p->tensors[much->tensor]) * fabs(v) + b->memo[best].e};
        b->tensors[much->tensor].computed[value_at] = 1;
        b->memo[best].v = (double)NAN;
    }
}

static void choices(Reading *b, const LangStmt *s, int var) {
    int count = s->targets[0].indexes[s->targets[0].index_count - 1].var;
    while (var < s->var_count && (s->vars[var].reduced || var == count))
        var++;
    if (var == s->var_count) {
        choose(b, s);
        return;
    }
    int64_t low, high;
    range(b, var, &low, &high);
    for (int64_t i = low; i < high; i++) {
        b->v[var] = i;
        choices(b, s, var + 1);
    }
}

void reading_stmt(Reading *b, const LangStmt *s, int layer) {
    b->layer = layer > 0 ? layer : 0;
    b->memo_expr = NULL;
    if (s->rhs->kind == EXPR_REDUCE && s->rhs->red == LANG_RED_TOPK) {
        b->stmt = s;
        choices(b, s, 0);
        return;
    }
    if (s->role == LANG_LORA_LOW)
        return; /* with the fold */
    const LangStmt *low = s->role == LANG_LORA_FOLD ? low_of(b, s->site) : NULL;
    for (b->use = 0; low && any_adapter(b, b->use); b->use++) {
        b->stmt = low;
        loops(b, low, 0);
        b->stmt = s;
        loops(b, s, 0);
    }
    if (low)
        return;
    b->stmt = s;
    loops(b, s, 0);
}

void reading_check(Reading *b, int tensor, const float *actual_f32, const double *actual_f64,
                   const char *where, ReadingReport *report) {
    BoundTensor *t = &b->tensors[tensor];
    for (uint64_t i = 0; i < t->elems; i++) {
        if (!t->computed[i])
            continue;
        double got = actual_f32 ? (double)actual_f32[i] : actual_f64[i];
        double part = fabs(got - t->at[i].v) / t->at[i].e;
        if (got == t->at[i].v)
            part = 0;
        report->elems++;
        if (!(part <= report->worst))
            report->worst = isnan(part) ? (double)INFINITY : part;
        if (!(part <= 1) && report->broken++ == 0)
            snprintf(report->first, sizeof report->first,
                     "%s: %.*s element %llu is %.9g, expected %.9g within %.3g", where,
                     LG_STR_ARG(b->p->tensors[tensor].name), (unsigned long long)i, got, t->at[i].v,
                     t->at[i].e);
        t->at[i] = (Bounded){got, 0};
        t->computed[i] = 0;
    }
}
