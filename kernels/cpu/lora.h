/* Products of adapters: low = round(A x), y = round(y + sum over a row's adapters of scale * B
 * low). Compiled into the host, once a level; programs call it through LgpStep.lora.
 *
 * Orders, the same in every routine and at every row count, so that alone and in company a row has
 * the same bits: by rows (A): element k goes to lane k mod 16, one chain of multiply-adds a lane
 * over rising k; then lanes i and i + 8, then the tree of lgp_f8_sum by panels (B): one chain over
 * rising z an output fold: v = y; for each adapter of the row, in its order, v = scale * delta + v
 * as one multiply-add of the level; one rounding. DoRA: v = (c - 1) (v - bias) + v, then v = (c
 * scale) delta + v. B's bias is what its chains begin with. Outputs whose weights an adapter
 * replaces are computed by the base's formula (matmul.h) in the place of the base's results.
 *
 * Memory of a matrix is that of its true rank, but that rows of A have columns in whole 16, and B's
 * outputs are whole panels, both filled up with zeros.  In a bf16 group of 16, elements i and i + 8
 * are neighbours, as in matmul.h. */
#ifndef LG_CPU_LORA_H
#define LG_CPU_LORA_H

#include "kernels/cpu/matmul.h"

enum {
    LGP_LORA_ROWS = 0 /* A */,
    LGP_LORA_PANELS = 1 /* B */,
    LGP_LORA_COLUMNS = 2 /* A of a lookup: [columns][rows], plain */
};

typedef struct LgpLoraMatrix {
    const void *data;
    int32_t rows, columns; /* y has rows elements, x has columns */
    int32_t order;
    int32_t f32; /* else bf16 */
} LgpLoraMatrix;

/* What one adapter does to one site of one layer. a.rows, the rank, is 0 where it does nothing. */
typedef struct LgpLoraSite LgpLoraSite;
struct LgpLoraSite {
    LgpLoraMatrix a, b;
    float scale;
    const float *bias;    /* of B, whole panels; NULL: none */
    const LgpRows *whole; /* outputs whose weights are others than the base's; NULL: none */
    /* A site of experts: [experts]; a.rows is then the largest of their ranks, and nothing else of
     * the site itself is used. */
    const LgpLoraSite *experts;
};

/* Rows whose adapters are the same ones. */
typedef struct LgpLoraGroup {
    int32_t first, count; /* in the route's list */
    int32_t members;
    const LgpLoraSite *sites[LGP_LORA_SET]; /* of each adapter: [layer * site_count + site] */
} LgpLoraGroup;

/* One domain of a step: its adapted rows, group by group. */
typedef struct LgpLoraRoute {
    int32_t count, group_count, site_count;
    const LgpLoraGroup *groups;
    const int32_t *row;   /* [count] in the domain */
    const int32_t *token; /* [count], for lookups */
    const float *scale;   /* [count][LGP_LORA_SET], of the requests */
    /* [count]: for DoRA c = m / n of each output by [layer * site_count + site]; NULL: none. */
    const float *const *const *gain;
    const void *const *const *replaced; /* LgpStep.replaced of the domain */
    float *low;                         /* [count][low_stride] */
    int64_t low_stride;
} LgpLoraRoute;

/* y[i, from:to) = W x[row[i]] */
typedef struct LgpLoraProduct {
    const float *x;
    int64_t x_stride;
    const int32_t *row; /* NULL: 0, 1, … */
    int32_t rows;
    const LgpLoraMatrix *w;
    const float *bias; /* by panels: what sums begin with, whole panels; NULL: 0 */
    int32_t from, to;  /* by panels: from is a multiple of 16 */
    float *y;
    int64_t y_stride;
    int32_t round_bf16;
    float scale; /* for the accumulating form: y = round(scale * W x + y) */
} LgpLoraProduct;

typedef struct LgpLoraScaledAdd {
    float *y;
    int64_t y_stride;
    const float *delta;
    int64_t delta_stride;
    int32_t rows, n;
    float scale;
    int32_t round_bf16;
} LgpLoraScaledAdd;

/* A's part for rows [first, end) of the route's list, all of one group, ranks [from, to) of one
 * member at one site of the call. low: of list entry `first`, at that member's place. */
typedef struct LgpLoraShrink {
    const LgpLora *call;
    const LgpLoraRoute *route;
    const LgpLoraGroup *group;
    int32_t site, member, first, end, from, to;
    float *low;
} LgpLoraShrink;

/* B's part: the same rows, outputs [from, to) of one site, all members. place: where in a row of
 * low each member's begins. */
typedef struct LgpLoraExpand {
    const LgpLora *call;
    const LgpLoraRoute *route;
    const LgpLoraGroup *group;
    int32_t site, first, end, from, to;
    const float *low; /* row of list entry `first` */
    int32_t place[LGP_LORA_SET];
} LgpLoraExpand;

/* Rows of x against a panel, and rows of W against x, that are in registers together. More would be
 * quicker by themselves, but where multiply-adds come two a clock, processors take their clock down
 * for the base's products too, which are most of a step. */
#define LGP_LORA_TILE 2
#define LGP_LORA_DOTS 2
#define LGP_LORA_AHEAD 1024 /* bytes of a panel that are asked for ahead of their use */

LGP_INLINE int64_t lgp_lora_row_bytes(const LgpLoraMatrix *w) {
    return ((int64_t)w->columns + 15) / 16 * 16 * (w->f32 ? 4 : 2);
}

LGP_INLINE LgpF16 lgp_lora_load16(int f32, const unsigned char *p) {
    return f32 ? lgp_f16_load((const float *)(const void *)p) : lgp_f16_load_bf16(p);
}

/* Dot products of x with m rows of W. ask: the rows behind them are asked for meanwhile. */
LGP_INLINE void lgp_lora_dots(int f32, int m, int ask, const float *x, const unsigned char *w,
                              int64_t w_bytes, int32_t k, float *out) {
    LgpF16 acc[LGP_LORA_DOTS];
    const int bytes = f32 ? 64 : 32;
    int32_t at = 0;
#pragma GCC unroll 2
    for (int z = 0; z < m; z++)
        acc[z] = lgp_f16_zero();
    for (; at + 16 <= k; at += 16, w += bytes) {
        LgpF16 v = lgp_f16_load(x + at);
#pragma GCC unroll 2
        for (int z = 0; z < m; z++) {
            if (ask)
                __builtin_prefetch(w + (m + z) * w_bytes);
            acc[z] = lgp_f16_fma(v, lgp_lora_load16(f32, w + z * w_bytes), acc[z]);
        }
    }
    if (at < k) {
        float end[16] = {0};
        memcpy(end, x + at, (size_t)(k - at) * sizeof(float));
        for (int z = 0; z < m; z++)
            acc[z] = lgp_f16_fma(lgp_f16_load(end), lgp_lora_load16(f32, w + z * w_bytes), acc[z]);
    }
#pragma GCC unroll 2
    for (int z = 0; z < m; z++)
        out[z] = lgp_f16_sum(acc[z]);
}

/* Outputs [from, to) of one row of x. */
LGP_INLINE void lgp_lora_row(int f32, int ask, const float *x, const LgpLoraProduct *t, float *y) {
    const LgpLoraMatrix *w = t->w;
    const int64_t bytes = lgp_lora_row_bytes(w);
    const unsigned char *p = (const unsigned char *)w->data + t->from * bytes;
    int32_t z = t->from;
    for (; z + LGP_LORA_DOTS <= t->to; z += LGP_LORA_DOTS, p += LGP_LORA_DOTS * bytes)
        lgp_lora_dots(f32, LGP_LORA_DOTS, ask, x, p, bytes, w->columns, y + (z - t->from));
    for (; z < t->to; z++, p += bytes)
        lgp_lora_dots(f32, 1, ask, x, p, bytes, w->columns, y + (z - t->from));
    for (z = 0; t->round_bf16 && z < t->to - t->from; z++)
        y[z] = lgp_round_bf16(y[z]);
}

/* The first row finds W where it lies, the others in the cache. */
LGP_INLINE void lgp_lora_by_rows(int f32, const LgpLoraProduct *t) {
    for (int32_t r = 0; r < t->rows; r++) {
        const float *x = t->x + (t->row ? t->row[r] : r) * t->x_stride;
        float *y = t->y + r * t->y_stride;
        if (r == 0)
            lgp_lora_row(f32, 1, x, t, y);
        else
            lgp_lora_row(f32, 0, x, t, y);
    }
}

/* n rows of x (n <= the tile) against one panel: sum[i] of 16 outputs. bias: where sums begin. */
LGP_INLINE void lgp_lora_panel(int f32, int n, int ask, const float *const *x,
                               const unsigned char *w, int32_t k, const float *bias, LgpF16 *sum) {
    const int bytes = f32 ? 64 : 32;
#pragma GCC unroll 2
    for (int i = 0; i < n; i++)
        sum[i] = bias ? lgp_f16_load(bias) : lgp_f16_zero();
    for (int32_t z = 0; z < k; z++, w += bytes) {
        if (ask)
            __builtin_prefetch(w + LGP_LORA_AHEAD);
        LgpF16 b = lgp_lora_load16(f32, w);
#pragma GCC unroll 2
        for (int i = 0; i < n; i++)
            sum[i] = lgp_f16_fma(lgp_f16_set(x[i][z]), b, sum[i]);
    }
}

LGP_INLINE LgpF16 lgp_lora_load_some(const float *p, int32_t count) {
    float some[16] = {0};
    if (count >= 16)
        return lgp_f16_load(p);
    memcpy(some, p, (size_t)count * sizeof(float));
    return lgp_f16_load(some);
}

LGP_INLINE void lgp_lora_store_some(float *p, int32_t count, LgpF16 v, int32_t round_bf16) {
    v = round_bf16 ? lgp_f16_round_bf16(v) : v;
    if (count >= 16) {
        lgp_f16_store(p, v);
    } else {
        float some[16];
        lgp_f16_store(some, v);
        memcpy(p, some, (size_t)count * sizeof(float));
    }
}

#define LGP_LORA_BY_COUNT(count, CALL)                                                             \
    if (count == LGP_LORA_TILE)                                                                    \
        CALL(LGP_LORA_TILE);                                                                       \
    else                                                                                           \
        CALL(1);

/* By panels: stores the products, or (accumulate) folds them into y. */
LGP_INLINE void lgp_lora_panel_tile(int f32, int n, int accumulate, const LgpLoraProduct *t,
                                    const float *const *x, int32_t row) {
    const LgpLoraMatrix *w = t->w;
    const int64_t bytes = (int64_t)w->columns * LGP_PANEL * (f32 ? 4 : 2);
    const LgpF16 scale = lgp_f16_set(t->scale);
    for (int32_t o = t->from; o < t->to; o += LGP_PANEL) {
        LgpF16 sum[LGP_LORA_TILE];
        int32_t count = t->to - o < LGP_PANEL ? t->to - o : LGP_PANEL;
        lgp_lora_panel(f32, n, n == 1, x, (const unsigned char *)w->data + o / LGP_PANEL * bytes,
                       w->columns, t->bias ? t->bias + o : NULL, sum);
#pragma GCC unroll 2
        for (int i = 0; i < n; i++) {
            float *y = t->y + (row + i) * t->y_stride + (o - t->from);
            if (accumulate)
                sum[i] = lgp_f16_fma(scale, sum[i], lgp_lora_load_some(y, count));
            lgp_lora_store_some(y, count, sum[i], t->round_bf16);
        }
    }
}

LGP_INLINE void lgp_lora_by_panels(int f32, int accumulate, const LgpLoraProduct *t) {
    for (int32_t r = 0; r < t->rows;) {
        int32_t n = t->rows - r < LGP_LORA_TILE ? t->rows - r : LGP_LORA_TILE;
        const float *x[LGP_LORA_TILE];
        for (int32_t i = 0; i < n; i++)
            x[i] = t->x + (t->row ? t->row[r + i] : r + i) * t->x_stride;
#define LGP_LORA_CALL(c) lgp_lora_panel_tile(f32, c, accumulate, t, x, r)
        LGP_LORA_BY_COUNT(n, LGP_LORA_CALL)
#undef LGP_LORA_CALL
        r += n;
    }
}

/* ---- what the table of handles points to ---- */

LGP_NOINLINE void lgp_lora_gemm(const LgpLoraProduct *t) {
    if (t->w->order == LGP_LORA_ROWS) {
        if (t->w->f32)
            lgp_lora_by_rows(1, t);
        else
            lgp_lora_by_rows(0, t);
    } else if (t->w->f32) {
        lgp_lora_by_panels(1, 0, t);
    } else {
        lgp_lora_by_panels(0, 0, t);
    }
}

/* One row: the same order, without the tiles of many. */
LGP_NOINLINE void lgp_lora_gemv(const LgpLoraProduct *t) {
    LgpLoraProduct one = *t;
    one.rows = 1;
    lgp_lora_gemm(&one);
}

/* W by panels. */
LGP_NOINLINE void lgp_lora_gemm_acc(const LgpLoraProduct *t) {
    if (t->w->f32)
        lgp_lora_by_panels(1, 1, t);
    else
        lgp_lora_by_panels(0, 1, t);
}

LGP_NOINLINE void lgp_lora_scaled_add(const LgpLoraScaledAdd *t) {
    for (int32_t r = 0; r < t->rows; r++) {
        float *y = t->y + r * t->y_stride;
        const float *delta = t->delta + r * t->delta_stride;
        for (int32_t i = 0; i < t->n; i++) {
            float v = lgp_fma(t->scale, delta[i], y[i]);
            y[i] = t->round_bf16 ? lgp_round_bf16(v) : v;
        }
    }
}

LGP_NOINLINE void lgp_lora_shrink(const LgpLoraShrink *t) {
    const LgpLora *c = t->call;
    const LgpLoraRoute *r = t->route;
    const LgpLoraMatrix *a =
        &t->group->sites[t->member][c->layer * r->site_count + c->sites[t->site]].a;
    if (a->order == LGP_LORA_COLUMNS) {
        for (int32_t i = t->first; i < t->end; i++) {
            int64_t at = (int64_t)r->token[i] * a->rows;
            float *low = t->low + (i - t->first) * r->low_stride;
            for (int32_t z = t->from; z < t->to; z++)
                low[z] = a->f32
                             ? ((const float *)a->data)[at + z]
                             : lgp_from_bits((uint32_t)((const uint16_t *)a->data)[at + z] << 16);
        }
        return;
    }
    LgpLoraProduct p = {.x = c->x,
                        .x_stride = c->x_stride,
                        .row = r->row + t->first,
                        .rows = t->end - t->first,
                        .w = a,
                        .from = t->from,
                        .to = t->to,
                        .y = t->low + t->from,
                        .y_stride = r->low_stride,
                        .round_bf16 = c->store_bf16};
    lgp_lora_gemm(&p);
}

/* v = what DoRA makes of the base result; *c = its factors of the delta. */
LGP_INLINE LgpF16 lgp_lora_regain(LgpF16 v, LgpF16 c, LgpF16 bias) {
    return lgp_f16_fma(lgp_f16_sub(c, lgp_f16_set(1.0f)), lgp_f16_sub(v, bias), v);
}

/* The bias in the base result of a list entry's row; NULL: none. */
LGP_INLINE const float *lgp_lora_base_bias(const LgpLora *c, const LgpLoraRoute *r, int32_t site,
                                           int32_t entry) {
    const void *own =
        c->bias[site] ? lgp_replaced(r->replaced, r->row[entry], c->bias_weight[site]) : NULL;
    return own ? (const float *)own : c->bias[site];
}

/* Where the row of a list entry has its result at one site of the call. */
LGP_INLINE float *lgp_lora_y(const LgpLoraExpand *t, int32_t entry) {
    const LgpLora *c = t->call;
    return c->y[t->site] + t->route->row[entry] * c->y_stride[t->site];
}

/* One adapter without DoRA: results stay in registers from the base's to the rounded. */
LGP_INLINE void lgp_lora_fold_one(int f32, int n, const LgpLoraExpand *t, int32_t row) {
    const LgpLoraRoute *r = t->route;
    const LgpLoraSite *s =
        &t->group->sites[0][t->call->layer * r->site_count + t->call->sites[t->site]];
    const int64_t bytes = (int64_t)s->b.columns * LGP_PANEL * (f32 ? 4 : 2);
    const unsigned char *w = (const unsigned char *)s->b.data + t->from / LGP_PANEL * bytes;
    const int32_t round_bf16 = t->call->store_bf16;
    const float *x[LGP_LORA_TILE];
    float *y[LGP_LORA_TILE];
    LgpF16 scale[LGP_LORA_TILE];
#pragma GCC unroll 2
    for (int i = 0; i < n; i++) {
        const int32_t entry = t->first + row + i;
        x[i] = t->low + (row + i) * r->low_stride + t->place[0];
        y[i] = lgp_lora_y(t, entry);
        scale[i] = lgp_f16_set(s->scale * r->scale[entry * LGP_LORA_SET]);
    }
    for (int32_t o = t->from; o < t->to; o += LGP_PANEL, w += bytes) {
        LgpF16 sum[LGP_LORA_TILE];
        int32_t count = t->to - o < LGP_PANEL ? t->to - o : LGP_PANEL;
        /* B was asked for when A's part was done */
        lgp_lora_panel(f32, n, 0, x, w, s->b.columns, s->bias ? s->bias + o : NULL, sum);
#pragma GCC unroll 2
        for (int i = 0; i < n; i++) {
            LgpF16 v = lgp_f16_fma(scale[i], sum[i], lgp_lora_load_some(y[i] + o, count));
            lgp_lora_store_some(y[i] + o, count, v, round_bf16);
        }
    }
}

/* One adapter's part of unrounded results v. */
LGP_INLINE void lgp_lora_fold_member(int f32, int n, const LgpLoraExpand *t, int32_t row, int32_t m,
                                     int32_t o, float (*v)[LGP_PANEL]) {
    const LgpLora *c = t->call;
    const LgpLoraRoute *r = t->route;
    const int32_t at = c->layer * r->site_count + c->sites[t->site];
    const LgpLoraSite *s = &t->group->sites[m][at];
    const float *x[LGP_LORA_TILE];
    const int64_t bytes = (int64_t)s->b.columns * LGP_PANEL * (f32 ? 4 : 2);
    const int32_t count = t->to - o < LGP_PANEL ? t->to - o : LGP_PANEL;
    LgpF16 sum[LGP_LORA_TILE];
#pragma GCC unroll 2
    for (int i = 0; i < n; i++)
        x[i] = t->low + (row + i) * r->low_stride + t->place[m];
    lgp_lora_panel(f32, n, n == 1, x, (const unsigned char *)s->b.data + o / LGP_PANEL * bytes,
                   s->b.columns, s->bias ? s->bias + o : NULL, sum);
#pragma GCC unroll 2
    for (int i = 0; i < n; i++) {
        const int32_t entry = t->first + row + i;
        const float *gain = r->gain[entry] ? r->gain[entry][at] : NULL;
        LgpF16 scale = lgp_f16_set(s->scale * r->scale[entry * LGP_LORA_SET + m]);
        LgpF16 y = lgp_f16_load(v[i]), factor = scale;
        if (gain) {
            LgpF16 g = lgp_lora_load_some(gain + o, count), bias = lgp_f16_zero();
            const float *base = lgp_lora_base_bias(c, r, t->site, entry);
            if (base)
                bias = lgp_lora_load_some(base + o, count);
            y = lgp_lora_regain(y, g, bias);
            factor = lgp_f16_mul(g, scale);
        }
        lgp_f16_store(v[i], lgp_f16_fma(factor, sum[i], y));
    }
}

LGP_INLINE void lgp_lora_fold_set(int f32, int n, const LgpLoraExpand *t, int32_t row) {
    const int32_t at = t->call->layer * t->route->site_count + t->call->sites[t->site];
    for (int32_t o = t->from; o < t->to; o += LGP_PANEL) {
        float v[LGP_LORA_TILE][LGP_PANEL];
        const int32_t count = t->to - o < LGP_PANEL ? t->to - o : LGP_PANEL;
        for (int i = 0; i < n; i++)
            lgp_f16_store(v[i], lgp_lora_load_some(lgp_lora_y(t, t->first + row + i) + o, count));
        for (int32_t m = 0; m < t->group->members; m++)
            if (t->group->sites[m][at].a.rows > 0)
                lgp_lora_fold_member(f32, n, t, row, m, o, v);
        for (int i = 0; i < n; i++)
            lgp_lora_store_some(lgp_lora_y(t, t->first + row + i) + o, count, lgp_f16_load(v[i]),
                                t->call->store_bf16);
    }
}

LGP_INLINE void lgp_lora_fold(int f32, int plain, const LgpLoraExpand *t) {
    int32_t rows = t->end - t->first, tiles = (rows + LGP_LORA_TILE - 1) / LGP_LORA_TILE;
    for (int32_t i = 0; i < tiles; i++) {
        int32_t row = rows * i / tiles, n = rows * (i + 1) / tiles - row;
#define LGP_LORA_CALL(c)                                                                           \
    plain ? lgp_lora_fold_one(f32, c, t, row) : lgp_lora_fold_set(f32, c, t, row)
        LGP_LORA_BY_COUNT(n, LGP_LORA_CALL)
#undef LGP_LORA_CALL
    }
}

/* Adapters of one program are all bf16, or all f32; where one row of a group has DoRA's factors,
 * all have them. */
LGP_NOINLINE void lgp_lora_expand_fold(const LgpLoraExpand *t) {
    const LgpLoraGroup *g = t->group;
    const LgpLoraRoute *r = t->route;
    int32_t at = t->call->layer * r->site_count + t->call->sites[t->site], f32 = 0;
    int plain = g->members == 1 && !(r->gain[t->first] && r->gain[t->first][at]);
    for (int32_t m = 0; m < g->members; m++)
        f32 |= g->sites[m][at].b.f32;
    if (plain && g->sites[0][at].a.rows == 0)
        return;
    if (f32)
        plain ? lgp_lora_fold(1, 1, t) : lgp_lora_fold(1, 0, t);
    else
        plain ? lgp_lora_fold(0, 1, t) : lgp_lora_fold(0, 0, t);
}

/* Results of replaced weights: outputs [from, to) of list entries [first, end), which share an
 * adapter. scratch: that of a product over the call's k. */
typedef struct LgpLoraReplace {
    const LgpLora *call;
    const LgpLoraRoute *route;
    const LgpRows *whole;
    int32_t site, first, end, from, to;
    float *scratch;
} LgpLoraReplace;

#define LGP_LORA_SOME 16 /* rows whose scattered outputs are computed at once */

/* The product of `rows` rows of x from `row` on with panels [panel, panel_end) of w. */
LGP_INLINE void lgp_lora_replace_run(const LgpLoraReplace *t, int32_t row, int32_t rows,
                                     int32_t panel, int32_t outputs, const float *bias, float *y,
                                     int64_t y_stride) {
    const LgpLora *c = t->call;
    LgpWeight part = t->whole->weight;
    part.data = (const unsigned char *)part.data +
                (uint64_t)panel * lgp_panel_bytes(part.format, (uint64_t)part.columns);
    part.rows = outputs;
    LgpMatmul m = {.x = c->x + row * c->x_stride,
                   .x_stride = c->x_stride,
                   .rows = rows,
                   .w = &part,
                   .y = y,
                   .y_stride = y_stride,
                   .bias = bias,
                   .round_bf16 = c->store_bf16};
    int32_t tasks = lgp_matmul_tasks(&m);
    for (int32_t i = 0; i < tasks; i++)
        lgp_matmul_task(&m, i, t->scratch);
}

/* The listed outputs of one panel that lie in [from, to). */
LGP_INLINE void lgp_lora_replace_panel(const LgpLoraReplace *t, int32_t row, int32_t rows,
                                       int32_t panel, const float *bias) {
    const int32_t *outputs = t->whole->rows + panel * LGP_PANEL;
    const int32_t left = t->whole->count - panel * LGP_PANEL;
    const int32_t count = left < LGP_PANEL ? left : LGP_PANEL;
    float some[LGP_LORA_SOME * LGP_PANEL], own[LGP_PANEL] = {0};
    for (int32_t o = 0; bias && o < count; o++)
        own[o] = bias[outputs[o]];
    lgp_lora_replace_run(t, row, rows, panel, count, bias ? own : NULL, some, LGP_PANEL);
    for (int32_t r = 0; r < rows; r++) {
        float *y = t->call->y[t->site] + (row + r) * t->call->y_stride[t->site];
        for (int32_t o = 0; o < count; o++)
            if (outputs[o] >= t->from && outputs[o] < t->to)
                y[outputs[o]] = some[r * LGP_PANEL + o];
    }
}

/* Rows that follow each other in the step are computed together. */
LGP_NOINLINE void lgp_lora_replace(const LgpLoraReplace *t) {
    const LgpLora *c = t->call;
    const int32_t *row = t->route->row, *listed = t->whole->rows;
    const int32_t most = listed ? LGP_LORA_SOME : LGP_MM_ROWS;
    for (int32_t i = t->first, n; i < t->end; i += n) {
        const float *bias = lgp_lora_base_bias(c, t->route, t->site, i);
        for (n = 1; i + n < t->end && n < most && row[i + n] == row[i] + n;)
            n++;
        if (!listed) {
            lgp_lora_replace_run(
                t, row[i], n, t->from / LGP_PANEL, t->to - t->from, bias ? bias + t->from : NULL,
                c->y[t->site] + row[i] * c->y_stride[t->site] + t->from, c->y_stride[t->site]);
            continue;
        }
        for (int32_t p = 0; p * LGP_PANEL < t->whole->count; p++) {
            int32_t end =
                (p + 1) * LGP_PANEL < t->whole->count ? (p + 1) * LGP_PANEL : t->whole->count;
            if (listed[end - 1] >= t->from && listed[p * LGP_PANEL] < t->to)
                lgp_lora_replace_panel(t, row[i], n, p, bias);
        }
    }
}

#endif
