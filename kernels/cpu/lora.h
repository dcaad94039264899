/* Products of adapters: low = round(A x), y = round(y + sum over a row's adapters of scale * B
 * low). Compiled into the host, once a level; programs call it through LgpStep.lora.
 *
 * Orders, the same in every routine and at every row count, so that alone and in company a row has
 * the same bits: by rows (A): element k goes to lane k mod 16, one chain of multiply-adds a lane
 * over rising k; then lanes i and i + 8, then the tree of lgp_f8_sum by panels (B): one chain over
 * rising z an output fold: v = y; for each adapter of the row, in its order, v = scale * delta + v
 * as one multiply-add of the level; one rounding. DoRA: v = (c - 1) (v - bias) + v, then v = (c
 * scale) delta + v.
 *
 * Memory of a matrix is that of its true rank, but that rows of A have columns in whole 16, and B's
 * outputs are whole panels, both filled up with zeros.  In a bf16 group of 16, elements i and i + 8
 * are neighbours, as in matmul.h. */
#ifndef LG_CPU_LORA_H
#define LG_CPU_LORA_H

#include "kernels/cpu/abi.h"
#include "kernels/cpu/vec.h"

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
typedef struct LgpLoraSite {
    LgpLoraMatrix a, b;
    float scale;
} LgpLoraSite;

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
    float *low; /* [count][low_stride] */
    int64_t low_stride;
} LgpLoraRoute;

/* y[i, from:to) = W x[row[i]] */
typedef struct LgpLoraProduct {
    const float *x;
    int64_t x_stride;
    const int32_t *row; /* NULL: 0, 1, … */
    int32_t rows;
    const LgpLoraMatrix *w;
    int32_t from, to; /* by panels: from is a multiple of 16 */
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

#ifdef LGP_LEVEL_AVX2
#define LGP_LORA_TILE 6
#else
#define LGP_LORA_TILE 3
#endif

LGP_INLINE int64_t lgp_lora_row_bytes(const LgpLoraMatrix *w) {
    return ((int64_t)w->columns + 15) / 16 * 16 * (w->f32 ? 4 : 2);
}

LGP_INLINE void lgp_lora_load16(int f32, const unsigned char *p, LgpF8 *lo, LgpF8 *hi) {
    if (f32) {
        *lo = lgp_f8_load((const float *)(const void *)p);
        *hi = lgp_f8_load((const float *)(const void *)p + 8);
    } else {
        lgp_f8_load_bf16_pair(p, lo, hi);
    }
}

/* Dot products of n rows of x with m rows of W (n m <= 6). */
LGP_INLINE void lgp_lora_dots(int f32, int n, int m, const float *const *x, const unsigned char *w,
                              int64_t w_bytes, int32_t k, float (*out)[4]) {
    LgpF8 acc[12][2];
    const int bytes = f32 ? 64 : 32;
    int32_t at = 0;
#pragma GCC unroll 12
    for (int i = 0; i < n * m; i++)
        acc[i][0] = acc[i][1] = lgp_f8_zero();
    for (; at + 16 <= k; at += 16, w += bytes) {
        LgpF8 v[3][2];
#pragma GCC unroll 3
        for (int i = 0; i < n; i++) {
            v[i][0] = lgp_f8_load(x[i] + at);
            v[i][1] = lgp_f8_load(x[i] + at + 8);
        }
#pragma GCC unroll 4
        for (int z = 0; z < m; z++) {
            LgpF8 lo, hi;
            lgp_lora_load16(f32, w + z * w_bytes, &lo, &hi);
#pragma GCC unroll 3
            for (int i = 0; i < n; i++) {
                acc[i * m + z][0] = lgp_f8_fma(v[i][0], lo, acc[i * m + z][0]);
                acc[i * m + z][1] = lgp_f8_fma(v[i][1], hi, acc[i * m + z][1]);
            }
        }
    }
    for (int i = 0; i < n && at < k; i++) {
        float end[16] = {0};
        memcpy(end, x[i] + at, (size_t)(k - at) * sizeof(float));
        for (int z = 0; z < m; z++) {
            LgpF8 lo, hi;
            lgp_lora_load16(f32, w + z * w_bytes, &lo, &hi);
            acc[i * m + z][0] = lgp_f8_fma(lgp_f8_load(end), lo, acc[i * m + z][0]);
            acc[i * m + z][1] = lgp_f8_fma(lgp_f8_load(end + 8), hi, acc[i * m + z][1]);
        }
    }
#pragma GCC unroll 3
    for (int i = 0; i < n; i++)
#pragma GCC unroll 4
        for (int z = 0; z < m; z++)
            out[i][z] = lgp_f8_sum(lgp_f8_add(acc[i * m + z][0], acc[i * m + z][1]));
}

/* n rows of x against outputs [from, to): y[i][z]. */
LGP_INLINE void lgp_lora_rows_tile(int f32, int n, const float *const *x, const LgpLoraMatrix *w,
                                   int32_t from, int32_t to, float *const *y, int32_t round_bf16) {
    const int64_t bytes = lgp_lora_row_bytes(w);
    const unsigned char *p = (const unsigned char *)w->data + from * bytes;
    float out[3][4];
    for (int32_t z = from; z < to;) {
        int32_t m = 1;
        if (n == 1 && z + 4 <= to) {
            m = 4;
            lgp_lora_dots(f32, n, 4, x, p, bytes, w->columns, out);
        } else if (n > 1 && z + 2 <= to) {
            m = 2;
            lgp_lora_dots(f32, n, 2, x, p, bytes, w->columns, out);
        } else {
            lgp_lora_dots(f32, n, 1, x, p, bytes, w->columns, out);
        }
        for (int i = 0; i < n; i++)
            for (int32_t j = 0; j < m; j++)
                y[i][z - from + j] = round_bf16 ? lgp_round_bf16(out[i][j]) : out[i][j];
        z += m;
        p += m * bytes;
    }
}

LGP_INLINE void lgp_lora_by_rows(int f32, const LgpLoraProduct *t) {
    for (int32_t r = 0; r < t->rows;) {
        int32_t n = t->rows - r < 3 ? t->rows - r : 3;
        const float *x[3];
        float *y[3];
        for (int32_t i = 0; i < n; i++) {
            x[i] = t->x + (t->row ? t->row[r + i] : r + i) * t->x_stride;
            y[i] = t->y + (r + i) * t->y_stride;
        }
        if (n == 3)
            lgp_lora_rows_tile(f32, 3, x, t->w, t->from, t->to, y, t->round_bf16);
        else if (n == 2)
            lgp_lora_rows_tile(f32, 2, x, t->w, t->from, t->to, y, t->round_bf16);
        else
            lgp_lora_rows_tile(f32, 1, x, t->w, t->from, t->to, y, t->round_bf16);
        r += n;
    }
}

/* n rows of x (n <= the tile) against one panel: sum[i] of 16 outputs. */
LGP_INLINE void lgp_lora_panel(int f32, int n, const float *const *x, const unsigned char *w,
                               int32_t k, LgpF8 (*sum)[2]) {
    const int bytes = f32 ? 64 : 32;
#pragma GCC unroll 6
    for (int i = 0; i < n; i++)
        sum[i][0] = sum[i][1] = lgp_f8_zero();
    for (int32_t z = 0; z < k; z++, w += bytes) {
        LgpF8 lo, hi;
        lgp_lora_load16(f32, w, &lo, &hi);
#pragma GCC unroll 6
        for (int i = 0; i < n; i++) {
            LgpF8 v = lgp_f8_set(x[i][z]);
            sum[i][0] = lgp_f8_fma(v, lo, sum[i][0]);
            sum[i][1] = lgp_f8_fma(v, hi, sum[i][1]);
        }
    }
}

LGP_INLINE void lgp_lora_load_some(const float *p, int32_t count, LgpF8 v[2]) {
    float some[16] = {0};
    const float *from = p;
    if (count < 16) {
        memcpy(some, p, (size_t)count * sizeof(float));
        from = some;
    }
    v[0] = lgp_f8_load(from);
    v[1] = lgp_f8_load(from + 8);
}

LGP_INLINE void lgp_lora_store_some(float *p, int32_t count, const LgpF8 v[2], int32_t round_bf16) {
    LgpF8 a = round_bf16 ? lgp_f8_round_bf16(v[0]) : v[0],
          b = round_bf16 ? lgp_f8_round_bf16(v[1]) : v[1];
    if (count >= 16) {
        lgp_f8_store(p, a);
        lgp_f8_store(p + 8, b);
    } else {
        float some[16];
        lgp_f8_store(some, a);
        lgp_f8_store(some + 8, b);
        memcpy(p, some, (size_t)count * sizeof(float));
    }
}

#define LGP_LORA_CASE(n, CALL)                                                                     \
    case n:                                                                                        \
        if (n <= LGP_LORA_TILE)                                                                    \
            CALL(n <= LGP_LORA_TILE ? n : 1);                                                      \
        break;
#define LGP_LORA_BY_COUNT(count, CALL)                                                             \
    switch (count) {                                                                               \
        LGP_LORA_CASE(1, CALL)                                                                     \
        LGP_LORA_CASE(2, CALL)                                                                     \
        LGP_LORA_CASE(3, CALL)                                                                     \
        LGP_LORA_CASE(4, CALL)                                                                     \
        LGP_LORA_CASE(5, CALL)                                                                     \
        LGP_LORA_CASE(6, CALL)                                                                     \
    }

/* By panels: stores the products, or (accumulate) folds them into y. */
LGP_INLINE void lgp_lora_panel_tile(int f32, int n, int accumulate, const LgpLoraProduct *t,
                                    const float *const *x, int32_t row) {
    const LgpLoraMatrix *w = t->w;
    const int64_t bytes = (int64_t)w->columns * LGP_PANEL * (f32 ? 4 : 2);
    const LgpF8 scale = lgp_f8_set(t->scale);
    for (int32_t o = t->from; o < t->to; o += LGP_PANEL) {
        LgpF8 sum[LGP_LORA_TILE][2];
        int32_t count = t->to - o < LGP_PANEL ? t->to - o : LGP_PANEL;
        lgp_lora_panel(f32, n, x, (const unsigned char *)w->data + o / LGP_PANEL * bytes,
                       w->columns, sum);
#pragma GCC unroll 6
        for (int i = 0; i < n; i++) {
            float *y = t->y + (row + i) * t->y_stride + (o - t->from);
            if (accumulate) {
                LgpF8 v[2];
                lgp_lora_load_some(y, count, v);
                sum[i][0] = lgp_f8_fma(scale, sum[i][0], v[0]);
                sum[i][1] = lgp_f8_fma(scale, sum[i][1], v[1]);
            }
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
LGP_INLINE LgpF8 lgp_lora_regain(LgpF8 v, LgpF8 c, LgpF8 bias) {
    return lgp_f8_fma(lgp_f8_sub(c, lgp_f8_set(1.0f)), lgp_f8_sub(v, bias), v);
}

LGP_INLINE void lgp_lora_fold_tile(int f32, int n, const LgpLoraExpand *t, int32_t row) {
    const LgpLora *c = t->call;
    const LgpLoraRoute *r = t->route;
    const int32_t at = c->layer * r->site_count + c->sites[t->site];
    const float *bias_all = c->bias[t->site];
    for (int32_t o = t->from; o < t->to; o += LGP_PANEL) {
        LgpF8 sum[LGP_LORA_TILE][2];
        float v[LGP_LORA_TILE][16];
        int32_t count = t->to - o < LGP_PANEL ? t->to - o : LGP_PANEL;
        for (int i = 0; i < n; i++) {
            LgpF8 y[2];
            lgp_lora_load_some(
                c->y[t->site] + r->row[t->first + row + i] * c->y_stride[t->site] + o, count, y);
            lgp_f8_store(v[i], y[0]);
            lgp_f8_store(v[i] + 8, y[1]);
        }
        for (int32_t m = 0; m < t->group->members; m++) {
            const LgpLoraSite *s = &t->group->sites[m][at];
            const float *x[LGP_LORA_TILE];
            const int64_t bytes = (int64_t)s->b.columns * LGP_PANEL * (f32 ? 4 : 2);
            if (s->a.rows == 0)
                continue;
#pragma GCC unroll 6
            for (int i = 0; i < n; i++)
                x[i] = t->low + (row + i) * r->low_stride + t->place[m];
            lgp_lora_panel(f32, n, x, (const unsigned char *)s->b.data + o / LGP_PANEL * bytes,
                           s->b.columns, sum);
#pragma GCC unroll 6
            for (int i = 0; i < n; i++) {
                const int32_t entry = t->first + row + i;
                const float *gain = r->gain[entry] ? r->gain[entry][at] : NULL;
                LgpF8 scale = lgp_f8_set(s->scale * r->scale[entry * LGP_LORA_SET + m]);
                LgpF8 y[2] = {lgp_f8_load(v[i]), lgp_f8_load(v[i] + 8)}, factor[2] = {scale, scale};
                if (gain) {
                    LgpF8 g[2], bias[2] = {lgp_f8_zero(), lgp_f8_zero()};
                    lgp_lora_load_some(gain + o, count, g);
                    if (bias_all)
                        lgp_lora_load_some(bias_all + o, count, bias);
                    for (int h = 0; h < 2; h++) {
                        y[h] = lgp_lora_regain(y[h], g[h], bias[h]);
                        factor[h] = lgp_f8_mul(g[h], scale);
                    }
                }
                lgp_f8_store(v[i], lgp_f8_fma(factor[0], sum[i][0], y[0]));
                lgp_f8_store(v[i] + 8, lgp_f8_fma(factor[1], sum[i][1], y[1]));
            }
        }
        for (int i = 0; i < n; i++) {
            LgpF8 y[2] = {lgp_f8_load(v[i]), lgp_f8_load(v[i] + 8)};
            lgp_lora_store_some(c->y[t->site] + r->row[t->first + row + i] * c->y_stride[t->site] +
                                    o,
                                count, y, c->store_bf16);
        }
    }
}

LGP_INLINE void lgp_lora_fold(int f32, const LgpLoraExpand *t) {
    int32_t rows = t->end - t->first, tiles = (rows + LGP_LORA_TILE - 1) / LGP_LORA_TILE;
    for (int32_t i = 0; i < tiles; i++) {
        int32_t row = rows * i / tiles, n = rows * (i + 1) / tiles - row;
#define LGP_LORA_CALL(c) lgp_lora_fold_tile(f32, c, t, row)
        LGP_LORA_BY_COUNT(n, LGP_LORA_CALL)
#undef LGP_LORA_CALL
    }
}

/* Adapters of one program are all bf16, or all f32. */
LGP_NOINLINE void lgp_lora_expand_fold(const LgpLoraExpand *t) {
    const LgpLoraGroup *g = t->group;
    int32_t at = t->call->layer * t->route->site_count + t->call->sites[t->site], f32 = 0;
    for (int32_t m = 0; m < g->members; m++)
        f32 |= g->sites[m][at].b.f32;
    if (f32)
        lgp_lora_fold(1, t);
    else
        lgp_lora_fold(0, t);
}

#endif
