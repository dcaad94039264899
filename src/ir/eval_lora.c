/* Folding adapters into a site's result, row by row:
 *     low = round(sum k: x[k] * A[z,k]),  delta = sum z: low[z] * B[n,z] (+ B's bias),  y =
 * round(fma(scale, delta, y0)). The adapters of a row's set follow each other on the unrounded y,
 * which is rounded once. The lows are formed here, as each adapter has its own rank. */
#include <math.h>

#include "ir/eval_internal.h"

static const EvalNode *find_product(const EvalNode *n, int param) {
    if (!n)
        return NULL;
    if (n->kind == EXPR_REDUCE && n->dot &&
        (n->dot_a->tensor == param || n->dot_b->tensor == param))
        return n;
    const EvalNode *found = find_product(n->a, param);
    return found ? found : find_product(n->b, param);
}

static const EvalRef *find_bias(const EvalNode *n) {
    if (n->kind == EXPR_REF)
        return &n->ref;
    if (n->kind != EXPR_ADD)
        return NULL;
    const EvalRef *found = find_bias(n->a);
    return found ? found : find_bias(n->b);
}

static bool has_var(const int *vars, int count, int var) {
    for (int i = 0; i < count; i++)
        if (vars[i] == var)
            return true;
    return false;
}

/* w's own indexes: those of the left side are outputs, those of the sum are inputs, a lookup picks
 * an expert or (lookup sites) a row. */
static void sort_indexes(EvalFold *f, const EvalStmt *base, bool lookup) {
    for (int i = 0; i < f->w->count; i++) {
        const LangIndex *index = &f->w->indexes[i];
        if (index->kind != LANG_INDEX_VAR) {
            if (lookup)
                f->row_index = index;
            else
                f->indexed = true;
        } else if (has_var(base->loops, base->loop_count, index->var)) {
            f->out[f->out_count++] = index->var;
        } else {
            f->in[f->in_count++] = index->var;
        }
    }
    for (int i = 0; i < base->loop_count; i++)
        if (!has_var(f->out, f->out_count, base->loops[i]))
            f->rows[f->row_count++] = base->loops[i];
}

LgStatus eval_fold_build(Eval *e, EvalStmt *s, LgError *err) {
    const LangSite *site = &e->p->sites[s->stmt->site];
    EvalFold *f = ARENA_NEW(&e->arena, EvalFold);
    if (!f)
        return lg_fail_memory(err);
    f->site = s->stmt->site;
    f->base = (int)(s - e->stmts);
    while (f->base > 0 && e->p->stmts[f->base].role != LANG_PLAIN)
        f->base--;
    const EvalStmt *base = &e->stmts[f->base];
    if (site->lookup) {
        f->w = base->rhs->kind == EXPR_REF ? &base->rhs->ref : NULL;
    } else {
        const EvalNode *product = find_product(base->rhs, site->param);
        if (product) {
            bool first = product->dot_a->tensor == site->param;
            f->w = first ? product->dot_a : product->dot_b;
            f->x = first ? product->dot_b : product->dot_a;
        }
        f->bias = find_bias(base->rhs);
    }
    if (!f->w)
        return lang_refuse(
            e->p, base->stmt->line, 0, err,
            "cannot interpret: this statement is no product with %.*s and no lookup of "
            "its rows. An adapter site must be one of the two",
            LG_STR_ARG(e->p->tensors[site->param].name));
    sort_indexes(f, base, site->lookup);
    s->fold = f;
    return LG_OK;
}

typedef struct Fold {
    Eval *e;
    const EvalFold *f;
    const EvalStmt *base;
    EvalStore store;
    int64_t in, out;
    float *x;    /* [in] */
    double *low; /* [rank] */
    double *y;   /* [out]: unrounded while the set is applied */
} Fold;

static int64_t extent_of(const Fold *k, const int *vars, int count) {
    int64_t n = 1;
    for (int i = 0; i < count; i++)
        n *= (int64_t)k->e->extents[k->base->vars[vars[i]].dim];
    return n;
}

static void set_vars(const Fold *k, const int *vars, int count, int64_t index) {
    for (int i = count - 1; i >= 0; i--) {
        int64_t extent = (int64_t)k->e->extents[k->base->vars[vars[i]].dim];
        k->e->v[vars[i]] = index % extent;
        index /= extent;
    }
}

static void form_low(const Fold *k, const AdapterSite *site) {
    int64_t column = k->f->row_index ? eval_index(k->e, k->f->row_index) : 0;
    /* A lookup site's A has a column for each row of the table. */
    int64_t columns = k->f->row_index ? (int64_t)k->e->tensors[k->f->w->tensor].extent[0] : k->in;
    for (int32_t z = 0; z < site->rank; z++) {
        const float *a = site->a + z * columns;
        double sum = 0;
        if (k->f->row_index)
            sum = (double)a[column];
        else if (k->e->options.f64)
            for (int64_t i = 0; i < k->in; i++)
                sum += (double)k->x[i] * (double)a[i];
        else {
            float s = 0;
            for (int64_t i = 0; i < k->in; i++)
                s += k->x[i] * a[i];
            sum = (double)s;
        }
        k->low[z] = eval_store_round(k->store, sum);
    }
}

static double bias_at(const Fold *k) {
    return k->f->bias ? eval_ref_value(k->e, k->f->bias) : 0;
}

/* DoRA: y0 + (m/n - 1)(y0 - bias), and the delta times m/n. *gain is m/n. */
static double rescale(const Fold *k, const AdapterSite *site, int64_t out, double request_scale,
                      double y, double *gain) {
    Eval *e = k->e;
    double s = eval_round(e, request_scale);
    double square =
        eval_round(e, (double)site->dora_w2[out] +
                          eval_round(e, eval_round(e, 2 * s * (double)site->dora_wba[out]) +
                                            eval_round(e, s * s * (double)site->dora_ba2[out])));
    *gain = eval_round(e, (double)site->magnitude[out] / eval_round(e, sqrt(square)));
    double off = eval_round(e, y - bias_at(k));
    return eval_round(e, y + eval_round(e, eval_round(e, *gain - 1) * off));
}

static void add_one(const Fold *k, const AdapterSite *site, float request_scale) {
    Eval *e = k->e;
    form_low(k, site);
    double scale = eval_round(e, (double)site->scale * (double)request_scale);
    for (int64_t o = 0; o < k->out; o++) {
        const float *b = site->b + o * site->rank;
        double delta = 0, y = k->y[o], factor = scale;
        for (int32_t z = 0; z < site->rank; z++)
            delta = eval_round(e, delta + eval_round(e, k->low[z] * (double)b[z]));
        if (site->b_bias)
            delta = eval_round(e, delta + (double)site->b_bias[o]);
        if (site->magnitude) {
            double gain;
            set_vars(k, k->f->out, k->f->out_count, o);
            y = rescale(k, site, o, (double)request_scale, y, &gain);
            factor = eval_round(e, gain * scale);
        }
        k->y[o] = e->options.f64 ? fma(factor, delta, y)
                                 : (double)fmaf((float)factor, (float)delta, (float)y);
    }
}

static const AdapterSite *site_of(const Fold *k, int32_t slot) {
    const AdapterData *data = k->e->adapters[slot];
    int layer = k->e->tensors[k->f->w->tensor].in_layer ? k->e->layer : 0;
    const AdapterSite *site = &data->sites[layer * data->site_count + k->f->site];
    if (k->f->indexed && site->rank > 0)
        return &site->experts[eval_index(k->e, &k->f->w->indexes[0])];
    return site;
}

/* x, y and the longest low, once a row. */
static LgStatus load_row(Fold *k, int32_t rank_max) {
    Eval *e = k->e;
    LG_TRY(eval_scratch(e, sizeof(double) * (size_t)(k->out + rank_max) +
                               sizeof(float) * (size_t)k->in));
    k->y = e->scratch;
    k->low = k->y + k->out;
    k->x = (float *)(void *)(k->low + rank_max);
    for (int64_t i = 0; k->f->x && i < k->in; i++) {
        set_vars(k, k->f->in, k->f->in_count, i);
        k->x[i] = *eval_ref_at(e, k->f->x);
    }
    for (int64_t o = 0; o < k->out; o++) {
        set_vars(k, k->f->out, k->f->out_count, o);
        k->y[o] = eval_ref_value(e, &k->base->targets[0]);
    }
    return LG_OK;
}

static LgStatus fold_row(Fold *k) {
    Eval *e = k->e;
    const AdapterSet *set = &e->step->sets[eval_index(e, &e->p->sites[k->f->site].ad)];
    int32_t rank_max = 0;
    for (int32_t u = 0; u < set->count; u++) {
        const AdapterSite *site = site_of(k, set->use[u].slot);
        rank_max = site->rank > rank_max ? site->rank : rank_max;
    }
    if (rank_max == 0)
        return LG_OK;
    LG_TRY(load_row(k, rank_max));
    bool own = set->count == 1 && e->replaced[set->use[0].slot]; /* a bias of its own */
    if (own)
        eval_swap(e, set->use[0].slot);
    for (int32_t u = 0; u < set->count; u++) {
        const AdapterSite *site = site_of(k, set->use[u].slot);
        if (site->rank > 0)
            add_one(k, site, set->use[u].scale);
    }
    if (own)
        eval_swap(e, set->use[0].slot);
    for (int64_t o = 0; o < k->out; o++) {
        set_vars(k, k->f->out, k->f->out_count, o);
        eval_store(e, &k->base->targets[0], k->y[o]);
    }
    return LG_OK;
}

LgStatus eval_fold(Eval *e, EvalStmt *s) {
    Fold k = {.e = e, .f = s->fold, .base = &e->stmts[s->fold->base]};
    k.store = e->tensors[k.base->targets[0].tensor].store;
    k.in = extent_of(&k, k.f->in, k.f->in_count);
    k.out = extent_of(&k, k.f->out, k.f->out_count);
    int64_t rows = extent_of(&k, k.f->rows, k.f->row_count);
    for (int64_t r = 0; r < rows; r++) {
        set_vars(&k, k.f->rows, k.f->row_count, r);
        LG_TRY(fold_row(&k));
    }
    return LG_OK;
}
