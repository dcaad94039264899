/* Matmul-like statements in tiles. Every value is still one sum in index order, in the precision of
 * the Eval; a tile merely forms many such sums side by side, so that a prompt does not take all
 * night. */
#include <string.h>

#include "ir/eval_internal.h"

#define LANES 8       /* rows side by side */
#define OUTS 4        /* outputs a pass of the lanes */
#define SINGLE_OUTS 8 /* outputs side by side for a lone row */
#define TILES_MAX 8   /* row tiles that share a read of the weights */

typedef float F32x4 __attribute__((vector_size(16)));

typedef struct Bulk {
    Eval *e;
    EvalStmt *s;
    const EvalRef *x, *w;
    int batch_count, row_count, out_count; /* variables */
    int batch[LANG_VARS_MAX], row[LANG_VARS_MAX], out[LANG_VARS_MAX];
    int64_t rows, outs, k;
    bool w_contiguous;
    bool plain; /* the statement is the sum alone */
    EvalStore store;
    /* scratch */
    float *packed;            /* TILES_MAX tiles of [k, LANES]; a lone row: [k] */
    const float **x_at;       /* [rows] */
    const float **w_at;       /* [outs] */
    int64_t *x_step, *w_step; /* [k] offsets of the sum's elements */
    int64_t *row_to, *out_to; /* offsets into the target */
    float *w_rows;            /* gathered rows of w: [SINGLE_OUTS, k] */
} Bulk;

static void tile_f32(const float *packed, const float *const w[OUTS], int64_t k,
                     double sums[OUTS][LANES]) {
    F32x4 s0a = {0}, s0b = {0}, s1a = {0}, s1b = {0}, s2a = {0}, s2b = {0}, s3a = {0}, s3b = {0};
    for (int64_t i = 0; i < k; i++) {
        F32x4 xa, xb;
        memcpy(&xa, packed + i * LANES, sizeof xa);
        memcpy(&xb, packed + i * LANES + 4, sizeof xb);
        s0a += xa * w[0][i];
        s0b += xb * w[0][i];
        s1a += xa * w[1][i];
        s1b += xb * w[1][i];
        s2a += xa * w[2][i];
        s2b += xb * w[2][i];
        s3a += xa * w[3][i];
        s3b += xb * w[3][i];
    }
    const F32x4 all[2 * OUTS] = {s0a, s0b, s1a, s1b, s2a, s2b, s3a, s3b};
    float flat[OUTS][LANES];
    memcpy(flat, all, sizeof flat);
    for (int o = 0; o < OUTS; o++)
        for (int r = 0; r < LANES; r++)
            sums[o][r] = (double)flat[o][r];
}

static void tile_f64(const float *packed, const float *const w[OUTS], int64_t k,
                     double sums[OUTS][LANES]) {
    memset(sums, 0, sizeof(double) * OUTS * LANES);
    for (int64_t i = 0; i < k; i++)
        for (int o = 0; o < OUTS; o++)
            for (int r = 0; r < LANES; r++)
                sums[o][r] += (double)packed[i * LANES + r] * (double)w[o][i];
}

static void single_f32(const float *x, const float *const w[SINGLE_OUTS], int64_t k,
                       double sums[SINGLE_OUTS]) {
    float s[SINGLE_OUTS] = {0};
    for (int64_t i = 0; i < k; i++)
        for (int o = 0; o < SINGLE_OUTS; o++)
            s[o] += x[i] * w[o][i];
    for (int o = 0; o < SINGLE_OUTS; o++)
        sums[o] = (double)s[o];
}

static void single_f64(const float *x, const float *const w[SINGLE_OUTS], int64_t k,
                       double sums[SINGLE_OUTS]) {
    memset(sums, 0, sizeof(double) * SINGLE_OUTS);
    for (int64_t i = 0; i < k; i++)
        for (int o = 0; o < SINGLE_OUTS; o++)
            sums[o] += (double)x[i] * (double)w[o][i];
}

static int64_t extent_of(const Bulk *b, const int *vars, int count) {
    int64_t n = 1;
    for (int i = 0; i < count; i++)
        n *= (int64_t)b->e->extents[b->s->vars[vars[i]].dim];
    return n;
}

/* Sets vars to the index-th combination, the last of them fastest. */
static void set_vars(const Bulk *b, const int *vars, int count, int64_t index) {
    for (int i = count - 1; i >= 0; i--) {
        int64_t extent = (int64_t)b->e->extents[b->s->vars[vars[i]].dim];
        b->e->v[vars[i]] = index % extent;
        index /= extent;
    }
}

/* A variable that moves both operands is a batch; one that moves w alone an output; the others are
 * rows. */
static void sort_vars(Bulk *b) {
    for (int i = 0; i < b->s->loop_count; i++) {
        int var = b->s->loops[i];
        bool in_x = b->x->deps >> var & 1u, in_w = b->w->deps >> var & 1u;
        if (in_x && in_w)
            b->batch[b->batch_count++] = var;
        else if (in_w)
            b->out[b->out_count++] = var;
        else
            b->row[b->row_count++] = var;
    }
    b->rows = extent_of(b, b->row, b->row_count);
    b->outs = extent_of(b, b->out, b->out_count);
    b->k = extent_of(b, b->s->bulk->vars, b->s->bulk->var_count);
}

static LgStatus take_scratch(Bulk *b) {
    size_t k = (size_t)b->k, rows = (size_t)b->rows, outs = (size_t)b->outs;
    size_t wide = 2 * k + 2 * rows + 2 * outs; /* pointers and offsets */
    size_t floats = k * (LANES * TILES_MAX + SINGLE_OUTS);
    LG_TRY(eval_scratch(b->e, wide * sizeof(int64_t) + floats * sizeof(float)));
    int64_t *at = b->e->scratch;
    b->x_step = at;
    b->w_step = at + k;
    b->row_to = at + 2 * k;
    b->out_to = b->row_to + rows;
    b->x_at = (const float **)(void *)(b->out_to + outs);
    b->w_at = b->x_at + rows;
    b->packed = (float *)(void *)(b->w_at + outs);
    b->w_rows = b->packed + k * LANES * TILES_MAX;
    return LG_OK;
}

static int64_t target_offset(const Bulk *b, const int *vars, int count) {
    int64_t at = 0;
    for (int i = 0; i < count; i++)
        at += b->e->v[vars[i]] * eval_ref_stride(b->e, &b->s->targets[0], vars[i]);
    return at;
}

static void fill_steps(Bulk *b) {
    const EvalNode *n = b->s->bulk;
    b->w_contiguous = true;
    for (int64_t i = 0; i < b->k; i++) {
        set_vars(b, n->vars, n->var_count, i);
        b->x_step[i] = b->w_step[i] = 0;
        for (int v = 0; v < n->var_count; v++) {
            int64_t at = b->e->v[n->vars[v]];
            bool swapped = b->x != n->dot_a;
            b->x_step[i] += at * (swapped ? n->dot_sb[v] : n->dot_sa[v]);
            b->w_step[i] += at * (swapped ? n->dot_sa[v] : n->dot_sb[v]);
        }
        if (b->w_step[i] != i)
            b->w_contiguous = false;
    }
    for (int v = 0; v < n->var_count; v++)
        b->e->v[n->vars[v]] = 0;
}

static void fill_addresses(Bulk *b) {
    for (int64_t r = 0; r < b->rows; r++) {
        set_vars(b, b->row, b->row_count, r);
        b->x_at[r] = eval_ref_at(b->e, b->x);
        b->row_to[r] = target_offset(b, b->row, b->row_count);
    }
    for (int64_t o = 0; o < b->outs; o++) {
        set_vars(b, b->out, b->out_count, o);
        b->w_at[o] = eval_ref_at(b->e, b->w);
        b->out_to[o] = target_offset(b, b->out, b->out_count);
    }
}

/* The sum is known; what is around it is evaluated with it in place. */
static void finish(Bulk *b, float *to, int64_t row, int64_t out, double sum) {
    if (b->e->filtered) {
        set_vars(b, b->row, b->row_count, row);
        if (!eval_row_wanted(b->e, b->s))
            return;
    }
    if (!b->plain) {
        set_vars(b, b->row, b->row_count, row);
        set_vars(b, b->out, b->out_count, out);
        b->s->bulk->value = sum;
        sum = eval_node(b->e, b->s->rhs);
    }
    float *at = &to[b->row_to[row] + b->out_to[out]];
    if (b->s->stmt->op == LANG_ADD_TO)
        sum = eval_round(b->e, (double)*at + sum);
    *at = (float)eval_store_round(b->store, sum);
}

/* Up to `count` rows of w from output `first`, each contiguous; past the end the last one is
 * repeated. */
static void weight_rows(Bulk *b, int64_t first, int count, const float **rows) {
    for (int o = 0; o < count; o++) {
        int64_t out = first + o < b->outs ? first + o : b->outs - 1;
        rows[o] = b->w_at[out];
        if (b->w_contiguous)
            continue;
        float *gathered = b->w_rows + (int64_t)o * b->k;
        for (int64_t i = 0; i < b->k; i++)
            gathered[i] = b->w_at[out][b->w_step[i]];
        rows[o] = gathered;
    }
}

static void single_row(Bulk *b, float *to, int64_t row) {
    for (int64_t i = 0; i < b->k; i++)
        b->packed[i] = b->x_at[row][b->x_step[i]];
    for (int64_t first = 0; first < b->outs; first += SINGLE_OUTS) {
        const float *w[SINGLE_OUTS];
        double sums[SINGLE_OUTS];
        weight_rows(b, first, SINGLE_OUTS, w);
        (b->e->options.f64 ? single_f64 : single_f32)(b->packed, w, b->k, sums);
        for (int o = 0; o < SINGLE_OUTS && first + o < b->outs; o++)
            finish(b, to, row, first + o, sums[o]);
    }
}

static void row_tiles(Bulk *b, float *to, int64_t first_row, int64_t rows) {
    int tiles = (int)((rows + LANES - 1) / LANES);
    for (int64_t r = 0; r < tiles * LANES; r++) {
        float *lane = b->packed + r / LANES * LANES * b->k + r % LANES;
        const float *x = b->x_at[first_row + (r < rows ? r : 0)];
        for (int64_t i = 0; i < b->k; i++)
            lane[i * LANES] = x[b->x_step[i]];
    }
    for (int64_t first = 0; first < b->outs; first += OUTS) {
        const float *w[OUTS];
        double sums[OUTS][LANES];
        weight_rows(b, first, OUTS, w);
        for (int t = 0; t < tiles; t++) {
            (b->e->options.f64 ? tile_f64 : tile_f32)(b->packed + t * LANES * b->k, w, b->k, sums);
            for (int o = 0; o < OUTS && first + o < b->outs; o++)
                for (int64_t r = t * LANES; r < rows && r < (t + 1) * LANES; r++)
                    finish(b, to, first_row + r, first + o, sums[o][r - t * LANES]);
        }
    }
}

static void one_batch(Bulk *b, float *to) {
    fill_addresses(b);
    if (b->rows < LANES / 2) {
        for (int64_t r = 0; r < b->rows; r++)
            single_row(b, to, r);
        return;
    }
    for (int64_t r = 0; r < b->rows; r += LANES * TILES_MAX) {
        int64_t left = b->rows - r;
        row_tiles(b, to, r, left < LANES * TILES_MAX ? left : LANES * TILES_MAX);
    }
}

LgStatus eval_bulk(Eval *e, EvalStmt *s) {
    const EvalNode *n = s->bulk;
    Bulk b = {.e = e, .s = s, .x = n->dot_a, .w = n->dot_b, .plain = s->rhs == n};
    if (e->tensors[n->dot_a->tensor].params) {
        b.x = n->dot_b;
        b.w = n->dot_a;
    }
    const EvalTensor *target = &e->tensors[s->targets[0].tensor];
    b.store = target->store;
    sort_vars(&b);
    int64_t batches = extent_of(&b, b.batch, b.batch_count);
    if (b.rows == 0 || b.outs == 0 || batches == 0)
        return LG_OK;
    LG_TRY(take_scratch(&b));
    fill_steps(&b);
    int64_t fixed = 0; /* literal indexes of the target */
    for (int i = 0; i < s->targets[0].count; i++)
        if (s->targets[0].indexes[i].kind == LANG_INDEX_INT)
            fixed += s->targets[0].indexes[i].value * target->stride[i];
    s->bulk->forced = true;
    for (int64_t i = 0; i < batches; i++) {
        set_vars(&b, b.batch, b.batch_count, i);
        one_batch(&b, target->f + fixed + target_offset(&b, b.batch, b.batch_count));
    }
    s->bulk->forced = false;
    return LG_OK;
}
