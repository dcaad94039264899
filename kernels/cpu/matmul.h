/* y = round(x · Wᵀ + bias): x [rows, k] f32 rows, W packed, y [rows, n].
 *
 * One formula at every row count, so that a row's bits depend on the row alone.  Outputs lie in
 * lanes.  k goes in blocks of 32, a block in runs (one, or two of 16) that have a scale: inside a
 * run p = sum of code * x over rising k, one chain of multiply-adds a lane; over rising runs acc =
 * acc + d p, then, with a minimum, acc = acc + m s (s: the sum of the run's x), each as one
 * multiply-add of the level; where weights are no codes acc = acc + p.  At last acc + bias, and one
 * rounding.
 *
 * d and m are what the file says: an f16, or exactly an f16 times a small integer.
 *
 * Codes of four bits are not shifted down: nibble j of a word is masked and counts 16^j times its
 * value, against x * 16^-j. Both factors are exact while |x| >= 2^-98 (below, x loses bits: an
 * error of at most 2^-121 a product), so that the products are those of the formula.  Codes of f8
 * count 2^-8 of their number, against 2^8 d.
 *
 * Packed order, for each panel of 16 outputs (missing ones are zero):
 *     f32 and f16: [k][16]
 *     bf16: [k][16], outputs 0, 8, 1, 9, … so that a shift and a mask give two vectors
 *     others: the head, then the blocks, each its scales and its codes (LgpLayout has the sizes):
 *         Q4, Q8, Q8M: no head; scales f16 d[16], with a minimum f16 m[16]
 *         K4, K4S, K8, K8S: head, for each 8 blocks: f16 d[16], with a minimum f16 m[16]; scales i8
 *             scale[runs][16], with a minimum i8 min[runs][16]
 *         F8: head, for each 4 blocks: f32 256 d[16]; no scales
 *         codes of 8 bits: [32][16]
 *         codes of 4 bits: u32 [4][16]: nibble j of word (g, output) is the code of k = 8 g + j. */
#ifndef LG_CPU_MATMUL_H
#define LG_CPU_MATMUL_H

#include "kernels/cpu/abi.h"
#include "kernels/cpu/vec.h"

/* Rows of a register tile over unpacked weights, and up to how many rows codes are unpacked in
 * registers. */
#if defined LGP_LEVEL_AVX512
#define LGP_MM_TILE 12
#define LGP_MM_FUSED 8
#elif defined LGP_LEVEL_AVX2
#define LGP_MM_TILE 6
#define LGP_MM_FUSED 4
#else
#define LGP_MM_TILE 3
#define LGP_MM_FUSED 1
#endif
/* The formats that products are compiled for, bit LGP_*: all where nothing is known. */
#ifndef LGP_FORMATS
#define LGP_FORMATS ((1u << LGP_FORMAT_COUNT) - 1)
#endif
#define LGP_MM_ROWS 96 /* most rows of a task */
#define LGP_MM_X_FLOATS                                                                            \
    196608 /* elements of x that a task goes over: they stay in the second cache */

typedef struct LgpMatmul {
    const float *x;
    int64_t x_stride; /* elements */
    int32_t rows;
    const LgpWeight *w; /* MATRIX */
    float *y;
    int64_t y_stride;
    const float *bias; /* [n] or NULL; added before the one rounding */
    /* LgpStep.replaced, and the bias's place in the weight table: rows with one of their own. */
    const void *const *const *replaced;
    int32_t bias_weight;
    int32_t round_bf16;
} LgpMatmul;

/* How a product is cut into tasks: even parts of rows times even parts of panels. */
typedef struct LgpMatmulCut {
    int32_t panels, row_parts, panel_parts;
} LgpMatmulCut;

LGP_INLINE int32_t lgp_mm_rows_max(int32_t k) {
    int32_t rows = LGP_MM_X_FLOATS / (k > 0 ? k : 1) / LGP_MM_TILE * LGP_MM_TILE;
    return rows < 4 * LGP_MM_TILE ? 4 * LGP_MM_TILE : rows > LGP_MM_ROWS ? LGP_MM_ROWS : rows;
}

LGP_INLINE LgpMatmulCut lgp_matmul_cut(const LgpMatmul *m) {
    LgpMatmulCut c;
    int32_t most = lgp_mm_rows_max(m->w->columns);
    c.panels = (m->w->rows + LGP_PANEL - 1) / LGP_PANEL;
    c.row_parts = (m->rows + most - 1) / most;
    int64_t rows = c.row_parts > 0 ? (m->rows + c.row_parts - 1) / c.row_parts : 0;
    int64_t cycles = (rows + 2) * (m->w->columns + 1); /* of a panel, about */
    int64_t group = 12000 / cycles, least = 1;
    if (rows > LGP_MM_FUSED) /* x is prepared once a task, which more panels repay; but many threads
                                want tasks */
        least = (int64_t)c.row_parts * c.panels >= 256 ? 8 : 4;
    group = group < least ? least : group;
    if (group < c.panels / 128)
        group = c.panels / 128;
    int32_t parts = (int32_t)(c.panels / group);
    if (parts > 4)
        parts &= ~3;
    c.panel_parts = parts < 1 ? (c.panels > 0 ? 1 : 0) : parts;
    return c;
}

LGP_INLINE int32_t lgp_matmul_tasks(const LgpMatmul *m) {
    LgpMatmulCut c = lgp_matmul_cut(m);
    return c.row_parts * c.panel_parts;
}

/* What a task covers: rows [row, row_end) of outputs [column, column_end); the last panel may end
 * behind the last output. */
typedef struct LgpMatmulPart {
    int32_t row, row_end, column, column_end;
} LgpMatmulPart;

LGP_INLINE LgpMatmulPart lgp_matmul_part(const LgpMatmul *m, int32_t task) {
    LgpMatmulCut c = lgp_matmul_cut(m);
    int64_t row_part = task / c.panel_parts, panel_part = task % c.panel_parts;
    LgpMatmulPart p;
    p.row = (int32_t)(m->rows * row_part / c.row_parts);
    p.row_end = (int32_t)(m->rows * (row_part + 1) / c.row_parts);
    p.column = (int32_t)(c.panels * panel_part / c.panel_parts) * LGP_PANEL;
    p.column_end = (int32_t)(c.panels * (panel_part + 1) / c.panel_parts) * LGP_PANEL;
    if (p.column_end > m->w->rows)
        p.column_end = m->w->rows;
    return p;
}

/* Floats of scratch that a thread needs for products over k. */
LGP_INLINE int64_t lgp_matmul_scratch(int32_t k) {
    int64_t rows = lgp_mm_rows_max(k), blocks = ((int64_t)k + LGP_BLOCK - 1) / LGP_BLOCK;
    return rows * blocks * LGP_BLOCK     /* scaled x */
           + rows * (2 * blocks + 8)     /* sums of its runs */
           + rows * LGP_PANEL            /* accumulators */
           + LGP_BLOCK * LGP_PANEL + 64; /* a block of weights, and room to align */
}

/* What the inner loops read: rows [0, rows) of x, its block sums, and where results go. */
typedef struct LgpMm {
    const float *x;
    int64_t x_stride;
    const float *sums; /* [blocks][runs][rows], where there is a minimum */
    float *acc;        /* [rows][16] */
    float *tile;       /* [32][16] */
    int32_t rows, k;
} LgpMm;

/* The weights of k = 8 group + j of a block, as the formula's factors (of four bits: code * 16^j
 * but for j = 7). */
LGP_INLINE LgpF16 lgp_mm_weights(int format, const unsigned char *block, int group, int j) {
    const unsigned char *codes = block + lgp_layouts[format].scale_bytes;
    int k = 8 * group + j;
    if (lgp_layouts[format].code_bits == 4)
        return lgp_f16_nibbles(codes + group * 64, j);
    if (format == LGP_F8)
        return lgp_f16_load_e4m3(codes + k * LGP_PANEL);
    if (lgp_layouts[format].code_bits == 8)
        return lgp_f16_load_s8(codes + k * LGP_PANEL);
    if (format == LGP_BF16)
        return lgp_f16_load_bf16(codes + k * LGP_PANEL * 2);
    if (format == LGP_F16)
        return lgp_f16_load_f16(codes + k * LGP_PANEL * 2);
    return lgp_f16_load((const float *)(const void *)codes + k * LGP_PANEL);
}

/* acc = what the formula makes of acc, the run's p and, with a minimum, the sum of its x. */
LGP_INLINE LgpF16 lgp_mm_join(int scaled, int minimum, LgpF16 acc, LgpF16 p, LgpF16 d, LgpF16 m,
                              LgpF16 sum) {
    if (minimum)
        return lgp_f16_fma(m, sum, lgp_f16_fma(d, p, acc));
    if (scaled)
        return lgp_f16_fma(d, p, acc);
    return lgp_f16_add(acc, p);
}

/* d and m of a run of block `at`. */
LGP_INLINE void lgp_mm_scales(int format, const unsigned char *head, const unsigned char *block,
                              int32_t at, int run, LgpF16 *d, LgpF16 *m) {
    const LgpLayout l = lgp_layouts[format];
    *d = *m = lgp_f16_zero();
    if (!l.runs)
        return;
    if (!l.span) {
        *d = lgp_f16_load_f16(block);
        if (l.minimum)
            *m = lgp_f16_load_f16(block + 2 * LGP_PANEL);
        return;
    }
    head += at / l.span * l.head_bytes;
    if (format == LGP_F8) {
        *d = lgp_f16_load((const float *)(const void *)head);
        return;
    }
    *d = lgp_f16_mul(lgp_f16_load_f16(head), lgp_f16_load_s8(block + run * LGP_PANEL));
    if (l.minimum)
        *m = lgp_f16_mul(lgp_f16_load_f16(head + 2 * LGP_PANEL),
                         lgp_f16_load_s8(block + (l.runs + run) * LGP_PANEL));
}

/* How far ahead of their use weights are asked for: some memory latency at the rate that one row
 * needs them. */
LGP_INLINE int32_t lgp_mm_ahead(int format) {
    return lgp_layouts[format].runs ? 2048 : 1024;
}

LGP_INLINE void lgp_mm_fetch(const unsigned char *w, int32_t bytes) {
#pragma GCC unroll 64
    for (int32_t i = 0; i < bytes; i += 64)
        __builtin_prefetch(w + i, 0, 3);
}

/* Few rows: `side` runs side by side from run `at` on, codes unpacked in registers. w: block 0. */
LGP_INLINE void lgp_mm_fused_runs(int format, int rows, int side, const LgpMm *t,
                                  const unsigned char *head, const unsigned char *w, int32_t at,
                                  LgpF16 *acc) {
    const LgpLayout l = lgp_layouts[format];
    const int64_t bytes = (int64_t)lgp_block_bytes(format);
    const int runs = l.runs ? l.runs : 1, groups = LGP_BLOCK / 8 / runs;
    const int32_t block = at / runs;
    LgpF16 p[LGP_MM_FUSED > 4 ? LGP_MM_FUSED : 4];
#pragma GCC unroll 8
    for (int i = 0; i < rows * side; i++)
        p[i] = lgp_f16_zero();
    w += block * bytes;
    lgp_mm_fetch(w + lgp_mm_ahead(format), side * (int32_t)bytes / runs);
#pragma GCC unroll 1
    for (int group = 0; group < groups; group++) {
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
#pragma GCC unroll 4
            for (int i = 0; i < side; i++) {
                const int run = side < runs ? at % runs : i % runs, b = i / runs;
                const int k = (block + b) * LGP_BLOCK + 8 * (run * groups + group) + j;
                LgpF16 weights = lgp_mm_weights(format, w + b * bytes, run * groups + group, j);
#pragma GCC unroll 8
                for (int r = 0; r < rows; r++)
                    p[i * rows + r] = lgp_f16_fma(weights, lgp_f16_set(t->x[r * t->x_stride + k]),
                                                  p[i * rows + r]);
            }
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < side; i++) {
        const int run = side < runs ? at % runs : i % runs, b = i / runs;
        LgpF16 d, m;
        lgp_mm_scales(format, head, w + b * bytes, block + b, run, &d, &m);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            LgpF16 sum = l.minimum ? lgp_f16_set(t->sums[(at + i) * rows + r]) : lgp_f16_zero();
            acc[r] = lgp_mm_join(l.runs, l.minimum, acc[r], p[i * rows + r], d, m, sum);
        }
    }
}

/* The last block of a k that is no multiple of 32 (never a quantised one). */
LGP_INLINE void lgp_mm_tail(int format, int rows, const LgpMm *t, const unsigned char *w,
                            int32_t at, LgpF16 *acc) {
    LgpF16 p[LGP_MM_FUSED];
    int32_t left = t->k - at * LGP_BLOCK;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        p[r] = lgp_f16_zero();
    for (int32_t k = 0; k < left; k++) {
        LgpF16 weights = lgp_mm_weights(format, w, 0, k);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            LgpF16 x = lgp_f16_set(t->x[r * t->x_stride + at * LGP_BLOCK + k]);
            p[r] = lgp_f16_fma(weights, x, p[r]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        acc[r] = lgp_f16_add(acc[r], p[r]);
}

LGP_INLINE void lgp_mm_fused(int format, int rows, int side, const LgpMm *t,
                             const unsigned char *head, const unsigned char *w) {
    const int runs = lgp_layouts[format].runs;
    const int32_t whole = t->k / LGP_BLOCK, all = runs ? whole * runs : whole;
    LgpF16 acc[LGP_MM_FUSED];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        acc[r] = lgp_f16_zero();
    int32_t at = 0;
    for (; at + side <= all; at += side)
        lgp_mm_fused_runs(format, rows, side, t, head, w, at, acc);
    if (side > 1)
        for (; at < all; at++)
            lgp_mm_fused_runs(format, rows, 1, t, head, w, at, acc);
    if (!runs && t->k > whole * LGP_BLOCK)
        lgp_mm_tail(format, rows, t, w + whole * (int64_t)lgp_block_bytes(format), whole, acc);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        lgp_f16_store(t->acc + r * LGP_PANEL, acc[r]);
}

/* What tiles depend on: bits. */
enum { LGP_MM_SCALED = 1, LGP_MM_MINIMUM = 2, LGP_MM_HALF = 4 };

/* Many rows: one register tile of rows over a run of weights that lies unpacked in f32. sums: of
 * these rows. Nothing is stored before all is computed, so that the compiler need not think that
 * stores change what is read. */
LGP_INLINE void lgp_mm_tile(int kind, int rows, const float *x, int64_t x_stride, const float *tile,
                            float *acc, const float *sums, LgpF16 d, LgpF16 m) {
    const int scaled = kind & LGP_MM_SCALED, minimum = kind & LGP_MM_MINIMUM;
    LgpF16 p[LGP_MM_TILE];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
        p[r] = lgp_f16_zero();
    const int length = kind & LGP_MM_HALF ? LGP_BLOCK / 2 : LGP_BLOCK;
#pragma GCC unroll 4
    for (int k = 0; k < length; k++) {
        LgpF16 weights = lgp_f16_load(tile + k * LGP_PANEL);
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++)
            p[r] = lgp_f16_fma(weights, lgp_f16_set(x[r * x_stride + k]), p[r]);
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        LgpF16 sum = minimum ? lgp_f16_set(sums[r]) : lgp_f16_zero();
        p[r] = lgp_mm_join(scaled, minimum, lgp_f16_load(acc + r * LGP_PANEL), p[r], d, m, sum);
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
        lgp_f16_store(acc + r * LGP_PANEL, p[r]);
}

LGP_INLINE void lgp_mm_tail_row(int format, const LgpMm *t, const unsigned char *w, int32_t row,
                                int32_t at) {
    LgpMm part = *t;
    part.x += row * t->x_stride;
    LgpF16 acc = lgp_f16_load(t->acc + row * LGP_PANEL);
    lgp_mm_tail(format, 1, &part, w, at, &acc);
    lgp_f16_store(t->acc + row * LGP_PANEL, acc);
}

/* Calls CALL with a constant number of rows, of those that tiles have: parts of like size of more
 * rows than a fused product takes. */
#define LGP_MM_TILE_LEAST (LGP_MM_FUSED >= 8 ? 6 : LGP_MM_FUSED >= 4 ? 3 : 1)
#define LGP_MM_CASE(n, CALL)                                                                       \
    case n:                                                                                        \
        if (n <= LGP_MM_TILE && n >= LGP_MM_TILE_LEAST)                                            \
            CALL(n <= LGP_MM_TILE ? n : 1);                                                        \
        break;
#define LGP_MM_BY_ROWS(rows, CALL)                                                                 \
    switch (rows) {                                                                                \
        LGP_MM_CASE(1, CALL)                                                                       \
        LGP_MM_CASE(2, CALL)                                                                       \
        LGP_MM_CASE(3, CALL)                                                                       \
        LGP_MM_CASE(4, CALL)                                                                       \
        LGP_MM_CASE(5, CALL)                                                                       \
        LGP_MM_CASE(6, CALL)                                                                       \
        LGP_MM_CASE(7, CALL)                                                                       \
        LGP_MM_CASE(8, CALL)                                                                       \
        LGP_MM_CASE(9, CALL)                                                                       \
        LGP_MM_CASE(10, CALL)                                                                      \
        LGP_MM_CASE(11, CALL)                                                                      \
        LGP_MM_CASE(12, CALL)                                                                      \
    }

/* All rows over one unpacked run. Tiles are of like size, so that the last is not a thin one. */
#define LGP_MM_TILES(name)                                                                         \
    LGP_NOINLINE void lgp_mm_tiles_##name(const LgpMm *t, const float *x, const float *tile,       \
                                          const float *sums, LgpF16 d, LgpF16 m) {                 \
        const int32_t tiles = (t->rows + LGP_MM_TILE - 1) / LGP_MM_TILE;                           \
        const int32_t size = t->rows / tiles, larger = t->rows % tiles;                            \
        const int64_t stride = t->x_stride;                                                        \
        float *acc = t->acc;                                                                       \
        for (int32_t i = 0; i < tiles; i++) {                                                      \
            int32_t rows = size + (i < larger);                                                    \
            LGP_MM_BY_ROWS(rows, LGP_MM_CALL_##name)                                               \
            x += rows * stride;                                                                    \
            sums += rows;                                                                          \
            acc += rows * LGP_PANEL;                                                               \
        }                                                                                          \
    }
#define LGP_MM_CALL(kind, n) lgp_mm_tile(kind, n, x, stride, tile, acc, sums, d, m)
#define LGP_MM_CALL_plain(n) LGP_MM_CALL(0, n)
#define LGP_MM_CALL_scaled(n) LGP_MM_CALL(LGP_MM_SCALED, n)
#define LGP_MM_CALL_minimum(n) LGP_MM_CALL(LGP_MM_SCALED | LGP_MM_MINIMUM, n)
#define LGP_MM_CALL_scaled_half(n) LGP_MM_CALL(LGP_MM_SCALED | LGP_MM_HALF, n)
#define LGP_MM_CALL_minimum_half(n) LGP_MM_CALL(LGP_MM_SCALED | LGP_MM_MINIMUM | LGP_MM_HALF, n)
LGP_MM_TILES(plain)
LGP_MM_TILES(scaled)
LGP_MM_TILES(minimum)
LGP_MM_TILES(scaled_half)
LGP_MM_TILES(minimum_half)
#undef LGP_MM_TILES

LGP_INLINE void lgp_mm_tiles(int format, const LgpMm *t, const float *x, const float *tile,
                             const float *sums, LgpF16 d, LgpF16 m) {
    const LgpLayout l = lgp_layouts[format];
    if (!l.runs)
        lgp_mm_tiles_plain(t, x, tile, sums, d, m);
    else if (l.runs == 1 && !l.minimum)
        lgp_mm_tiles_scaled(t, x, tile, sums, d, m);
    else if (l.runs == 1)
        lgp_mm_tiles_minimum(t, x, tile, sums, d, m);
    else if (!l.minimum)
        lgp_mm_tiles_scaled_half(t, x, tile, sums, d, m);
    else
        lgp_mm_tiles_minimum_half(t, x, tile, sums, d, m);
}

LGP_INLINE void lgp_mm_unpack(int format, const unsigned char *w, float *tile) {
#pragma GCC unroll 1
    for (int group = 0; group < LGP_BLOCK / 8; group++) {
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++)
            lgp_f16_store(tile + (8 * group + j) * LGP_PANEL, lgp_mm_weights(format, w, group, j));
    }
}

LGP_INLINE void lgp_mm_many(int format, const LgpMm *t, const unsigned char *head,
                            const unsigned char *w) {
    const LgpLayout l = lgp_layouts[format];
    const int32_t bytes = (int32_t)lgp_block_bytes(format), whole = t->k / LGP_BLOCK;
    const int runs = l.runs ? l.runs : 1;
    memset(t->acc, 0, (size_t)t->rows * LGP_PANEL * sizeof(float));
    for (int32_t at = 0; at < whole; at++, w += bytes) {
        const float *tile = t->tile;
        if (format == LGP_F32)
            tile = (const float *)(const void *)w;
        else
            lgp_mm_unpack(format, w, t->tile);
        lgp_mm_fetch(w + bytes, bytes);
#pragma GCC unroll 2
        for (int run = 0; run < runs; run++) {
            LgpF16 d, m;
            const int32_t k = run * (LGP_BLOCK / runs);
            lgp_mm_scales(format, head, w, at, run, &d, &m);
            lgp_mm_tiles(format, t, t->x + (int64_t)at * LGP_BLOCK + k, tile + k * LGP_PANEL,
                         t->sums + (int64_t)(at * runs + run) * t->rows, d, m);
        }
    }
    if (l.runs || t->k == whole * LGP_BLOCK)
        return;
    for (int32_t row = 0; row < t->rows; row++)
        lgp_mm_tail_row(format, t, w, row, whole);
}

/* acc of every row for one panel. With few rows several blocks go side by side, since chains of
 * multiply-adds must be many for their latency not to count. */
LGP_INLINE void lgp_mm_panel(int format, const LgpMm *t, const unsigned char *head) {
    const unsigned char *w = head + lgp_head_bytes(format, (uint64_t)t->k);
#if defined LGP_LEVEL_AVX512
    switch (t->rows) {
    case 1:
        lgp_mm_fused(format, 1, 4, t, head, w);
        return;
    case 2:
        lgp_mm_fused(format, 2, 2, t, head, w);
        return;
    case 3:
        lgp_mm_fused(format, 3, 2, t, head, w);
        return;
    case 4:
        lgp_mm_fused(format, 4, 2, t, head, w);
        return;
    case 5:
        lgp_mm_fused(format, 5, 1, t, head, w);
        return;
    case 6:
        lgp_mm_fused(format, 6, 1, t, head, w);
        return;
    case 7:
        lgp_mm_fused(format, 7, 1, t, head, w);
        return;
    case 8:
        lgp_mm_fused(format, 8, 1, t, head, w);
        return;
    default:
        lgp_mm_many(format, t, head, w);
    }
#else
    if (t->rows == 1)
        lgp_mm_fused(format, 1, 2, t, head, w);
#if LGP_MM_FUSED >= 4
    else if (t->rows == 2)
        lgp_mm_fused(format, 2, 2, t, head, w);
    else if (t->rows == 3 &&
             lgp_layouts[format].code_bits != 4) /* its masks leave too few registers */
        lgp_mm_fused(format, 3, 1, t, head, w);
    else if (t->rows == 4 && lgp_layouts[format].code_bits != 4)
        lgp_mm_fused(format, 4, 1, t, head, w);
#endif
    else
        lgp_mm_many(format, t, head, w);
#endif
}

/* One copy of the loops a format: the compiler sees constants. */
#define LGP_MM_PANEL(name, format)                                                                 \
    LGP_NOINLINE void lgp_mm_panel_##name(const LgpMm *t, const unsigned char *w) {                \
        lgp_mm_panel(format, t, w);                                                                \
    }
LGP_MM_PANEL(f32, LGP_F32)
LGP_MM_PANEL(bf16, LGP_BF16)
LGP_MM_PANEL(f16, LGP_F16)
LGP_MM_PANEL(q4, LGP_Q4)
LGP_MM_PANEL(q8, LGP_Q8)
LGP_MM_PANEL(q8m, LGP_Q8M)
LGP_MM_PANEL(k4, LGP_K4)
LGP_MM_PANEL(k4s, LGP_K4S)
LGP_MM_PANEL(k8, LGP_K8)
LGP_MM_PANEL(k8s, LGP_K8S)
LGP_MM_PANEL(f8, LGP_F8)
#undef LGP_MM_PANEL

/* x * 16^-j in a copy where scaled is not NULL, and the sums of x's runs: vectors are added lane by
 * lane, then the lanes by lgp_f8_sum's tree. */
LGP_NOINLINE void lgp_mm_prepare_x(const LgpMm *t, int runs, float *scaled, float *sums) {
    static const float power[8] = {1.0f,     0x1p-4f,  0x1p-8f,  0x1p-12f,
                                   0x1p-16f, 0x1p-20f, 0x1p-24f, 1.0f};
    const LgpF8 factor = lgp_f8_load(power);
    const int32_t blocks = t->k / LGP_BLOCK, rows = t->rows;
    for (int32_t r = 0; r < rows; r++) {
        const float *x = t->x + r * t->x_stride;
        for (int32_t b = 0; b < blocks; b++, x += LGP_BLOCK) {
            LgpF8 v[4];
            for (int i = 0; i < 4; i++)
                v[i] = lgp_f8_load(x + 8 * i);
            for (int i = 0; scaled && i < 4; i++, scaled += 8)
                lgp_f8_store(scaled, lgp_f8_mul(v[i], factor));
            LgpF8 first = lgp_f8_add(v[0], v[1]), last = lgp_f8_add(v[2], v[3]);
            if (runs == 1) {
                sums[b * rows + r] = lgp_f8_sum(lgp_f8_add(first, last));
            } else {
                sums[2 * b * rows + r] = lgp_f8_sum(first);
                sums[(2 * b + 1) * rows + r] = lgp_f8_sum(last);
            }
        }
    }
}

LGP_INLINE LgpF16 lgp_mm_own_bias(const LgpMatmul *m, int32_t row, int32_t n, int32_t outputs,
                                  LgpF16 base) {
    const float *own = (const float *)lgp_replaced(m->replaced, row, m->bias_weight);
    float some[LGP_PANEL] = {0};
    if (!own)
        return base;
    memcpy(some, own + n, (size_t)outputs * sizeof(float));
    return lgp_f16_load(some);
}

/* acc + bias, rounded, for the outputs of a panel that exist. */
LGP_INLINE void lgp_mm_finish(const LgpMatmul *m, const float *acc, int32_t row, int32_t rows,
                              int32_t n) {
    int32_t outputs = m->w->rows - n < LGP_PANEL ? m->w->rows - n : LGP_PANEL;
    float some[LGP_PANEL] = {0};
    if (m->bias)
        memcpy(some, m->bias + n, (size_t)outputs * sizeof(float));
    const LgpF16 bias = lgp_f16_load(some);
    for (int32_t r = 0; r < rows; r++, acc += LGP_PANEL) {
        float *y = m->y + (row + r) * m->y_stride + n;
        LgpF16 v = lgp_f16_load(acc);
        if (m->bias)
            v = lgp_f16_add(v, m->replaced ? lgp_mm_own_bias(m, row + r, n, outputs, bias) : bias);
        v = m->round_bf16 ? lgp_f16_round_bf16(v) : v;
        if (outputs == LGP_PANEL) {
            lgp_f16_store(y, v);
        } else {
            lgp_f16_store(some, v);
            memcpy(y, some, (size_t)outputs * sizeof(float));
        }
    }
}

LGP_NOINLINE void lgp_matmul_task(const LgpMatmul *m, int32_t task, float *scratch) {
#define LGP_MM_ENTRY(format, name) [format] = LGP_FORMATS >> format & 1u ? lgp_mm_panel_##name : 0
    static void (*const panel[LGP_FORMAT_COUNT])(const LgpMm *, const unsigned char *) = {
        LGP_MM_ENTRY(LGP_F32, f32), LGP_MM_ENTRY(LGP_BF16, bf16), LGP_MM_ENTRY(LGP_F16, f16),
        LGP_MM_ENTRY(LGP_Q4, q4),   LGP_MM_ENTRY(LGP_Q8, q8),     LGP_MM_ENTRY(LGP_Q8M, q8m),
        LGP_MM_ENTRY(LGP_K4, k4),   LGP_MM_ENTRY(LGP_K4S, k4s),   LGP_MM_ENTRY(LGP_K8, k8),
        LGP_MM_ENTRY(LGP_K8S, k8s), LGP_MM_ENTRY(LGP_F8, f8)};
#undef LGP_MM_ENTRY
    const LgpLayout l = lgp_layouts[m->w->format];
    LgpMatmulPart part = lgp_matmul_part(m, task);
    int32_t row = part.row, row_end = part.row_end;
    int32_t from = part.column / LGP_PANEL, to = (part.column_end + LGP_PANEL - 1) / LGP_PANEL;
    uint64_t bytes = lgp_panel_bytes(m->w->format, (uint64_t)m->w->columns);
    float *at = (float *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);
    LgpMm t = {.x = m->x + row * m->x_stride,
               .x_stride = m->x_stride,
               .rows = row_end - row,
               .k = m->w->columns};
    t.tile = at;
    t.acc = at + LGP_BLOCK * LGP_PANEL;
    t.sums = t.acc; /* without a minimum nobody reads them */
    lgp_mm_fetch((const unsigned char *)m->w->data + (uint64_t)from * bytes, 2048);
    if (l.minimum) {
        float *scaled = t.acc + (int64_t)t.rows * LGP_PANEL, *sums = scaled + (int64_t)t.rows * t.k;
        lgp_mm_prepare_x(&t, l.runs, l.code_bits == 4 ? scaled : 0, sums);
        t.sums = sums;
        if (l.code_bits == 4) {
            t.x = scaled;
            t.x_stride = t.k;
        }
    }
    for (int32_t p = from; p < to; p++) {
        panel[m->w->format](&t, (const unsigned char *)m->w->data + (uint64_t)p * bytes);
        lgp_mm_finish(m, t.acc, row, t.rows, p * LGP_PANEL);
    }
}

#endif
