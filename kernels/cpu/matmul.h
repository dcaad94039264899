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
 * Codes of four bits: at AVX-512 a permutation of the sixteen values looks them up. At other levels
 * they are not shifted down: nibble j of a word is masked and counts 16^j times its value, against
 * x
 * * 16^-j. Both factors are exact while |x| >= 2^-98 (below, x loses bits: an error of at most
 * 2^-121 a product), so that the products are those of the formula.  Codes of f8 count 2^-8 of
 * their number, against 2^8 d.
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

/* A register tile: up to LGP_MM_TILE rows, in steps of LGP_MM_STEP, of LGP_MM_PANELS panels side by
 * side; one panel of fewer rows than LGP_MM_WIDE. Codes of up to LGP_MM_FUSED rows are unpacked in
 * registers. x of more than LGP_MM_PLAIN_FLOATS is laid out by blocks: such loops outrun what the
 * second cache gives from scattered rows. */
#if defined LGP_LEVEL_AVX512
#define LGP_MM_PANELS 2
#define LGP_MM_TILE 12
#define LGP_MM_STEP 2
#define LGP_MM_FUSED 8
#define LGP_MM_WIDE 3
#define LGP_MM_PLAIN_FLOATS 8192
#elif defined LGP_LEVEL_AVX2
#define LGP_MM_PANELS 1
#define LGP_MM_TILE 6
#define LGP_MM_STEP 1
#define LGP_MM_FUSED 4
#define LGP_MM_WIDE 1
#define LGP_MM_PLAIN_FLOATS INT64_MAX
#else
#define LGP_MM_PANELS 1
#define LGP_MM_TILE 3
#define LGP_MM_STEP 1
#define LGP_MM_FUSED 1
#define LGP_MM_WIDE 1
#define LGP_MM_PLAIN_FLOATS INT64_MAX
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

/* How a product is cut into tasks: even parts of rows times even parts of units, the panels that go
 * side by side. */
typedef struct LgpMatmulCut {
    int32_t units, row_parts, unit_parts;
} LgpMatmulCut;

LGP_INLINE int32_t lgp_mm_rows_max(int32_t k) {
    int32_t rows = LGP_MM_X_FLOATS / (k > 0 ? k : 1) / LGP_MM_TILE * LGP_MM_TILE;
    return rows < 4 * LGP_MM_TILE ? 4 * LGP_MM_TILE : rows > LGP_MM_ROWS ? LGP_MM_ROWS : rows;
}

LGP_INLINE LgpMatmulCut lgp_matmul_cut(const LgpMatmul *m) {
    LgpMatmulCut c;
    int32_t most = lgp_mm_rows_max(m->w->columns);
    int32_t panels = (m->w->rows + LGP_PANEL - 1) / LGP_PANEL;
    c.units = (panels + LGP_MM_PANELS - 1) / LGP_MM_PANELS;
    c.row_parts = (m->rows + most - 1) / most;
    int64_t rows = c.row_parts > 0 ? (m->rows + c.row_parts - 1) / c.row_parts : 0;
    /* of a unit, about: what a row costs, and what reading it costs */
    int64_t cycles = (rows + (LGP_MM_PANELS > 1 ? 6 : 2)) * (m->w->columns + 1);
    int64_t group = 12000 / cycles, least = 1;
    if (rows >= 4) /* x is prepared once a task, which more panels repay; but many threads
                                want tasks */
        least =
            (rows > LGP_MM_FUSED && (int64_t)c.row_parts * panels >= 256 ? 8 : 4) / LGP_MM_PANELS;
    group = group < least ? least : group;
    if (group < panels / 128 / LGP_MM_PANELS)
        group = panels / 128 / LGP_MM_PANELS;
    int32_t parts = (int32_t)(c.units / group);
    if (parts > 4)
        parts &= ~3;
    c.unit_parts = parts < 1 ? (c.units > 0 ? 1 : 0) : parts;
    return c;
}

LGP_INLINE int32_t lgp_matmul_tasks(const LgpMatmul *m) {
    LgpMatmulCut c = lgp_matmul_cut(m);
    return c.row_parts * c.unit_parts;
}

/* What a task covers: rows [row, row_end) of outputs [column, column_end); the last panel may end
 * behind the last output. */
typedef struct LgpMatmulPart {
    int32_t row, row_end, column, column_end;
} LgpMatmulPart;

LGP_INLINE LgpMatmulPart lgp_matmul_part(const LgpMatmul *m, int32_t task) {
    LgpMatmulCut c = lgp_matmul_cut(m);
    const int32_t unit = LGP_MM_PANELS * LGP_PANEL;
    int64_t row_part = task / c.unit_parts, unit_part = task % c.unit_parts;
    LgpMatmulPart p;
    p.row = (int32_t)(m->rows * row_part / c.row_parts);
    p.row_end = (int32_t)(m->rows * (row_part + 1) / c.row_parts);
    p.column = (int32_t)(c.units * unit_part / c.unit_parts) * unit;
    p.column_end = (int32_t)(c.units * (unit_part + 1) / c.unit_parts) * unit;
    if (p.column_end > m->w->rows)
        p.column_end = m->w->rows;
    return p;
}

/* A thread's even share of a product's outputs: whole panels. */
LGP_INLINE void lgp_matmul_share(int32_t outputs, int32_t thread, int32_t threads,
                                 LgpMatmulPart *part) {
    const int64_t panels = (outputs + LGP_PANEL - 1) / LGP_PANEL;
    part->column = (int32_t)(panels * thread / threads) * LGP_PANEL;
    part->column_end = (int32_t)(panels * (thread + 1) / threads) * LGP_PANEL;
    if (part->column_end > outputs)
        part->column_end = outputs;
}

/* Names the tile of a product's task to an adapter call. */
LGP_INLINE void lgp_lora_tile(LgpLora *call, const LgpMatmul *m, int32_t task, int32_t site) {
    const LgpMatmulPart p = lgp_matmul_part(m, task);
    call->tile_site = site;
    call->row = p.row;
    call->row_end = p.row_end;
    call->from = p.column;
    call->to = p.column_end;
}

/* Floats of scratch that a thread needs for products over k. */
LGP_INLINE int64_t lgp_matmul_scratch(int32_t k) {
    int64_t rows = lgp_mm_rows_max(k), blocks = ((int64_t)k + LGP_BLOCK - 1) / LGP_BLOCK;
    return rows * blocks * LGP_BLOCK                     /* x by blocks */
           + rows * (2 * blocks + 8)                     /* sums of its runs */
           + rows * LGP_MM_PANELS * LGP_PANEL            /* accumulators */
           + LGP_MM_PANELS * LGP_BLOCK * LGP_PANEL + 64; /* weights, and room to align */
}

/* What the inner loops read: rows [0, rows) of x, the sums of its runs, and where results go. Row r
 * of block b of x: x + b * x_block + r * x_stride. */
typedef struct LgpMm {
    const float *x;
    int64_t x_stride, x_block;
    const float *sums; /* [blocks][runs][rows], where there is a minimum */
    float *acc;        /* [rows][panels][16] */
    float *tile;       /* [panels][32][16] */
    int32_t rows, k;   /* rows: those of tiles, of which the last may count for nothing */
} LgpMm;

/* The panels that go side by side: their heads and their blocks. */
typedef struct LgpMmUnit {
    const unsigned char *head[LGP_MM_PANELS], *blocks[LGP_MM_PANELS];
} LgpMmUnit;

/* The weights of k = 8 group + j of a block, as the formula's factors (of four bits: see
 * lgp_f16_nibbles). */
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

/* What joins depend on: bits. */
enum { LGP_MM_SCALED = 1, LGP_MM_MINIMUM = 2, LGP_MM_HALF = 4 };

LGP_INLINE int lgp_mm_kind(int format) {
    const LgpLayout l = lgp_layouts[format];
    return (l.runs ? LGP_MM_SCALED : 0) | (l.minimum ? LGP_MM_MINIMUM : 0) |
           (l.runs == 2 ? LGP_MM_HALF : 0);
}

/* acc of some rows and panels with a run's p, [panels][rows], which is used up. Nothing is stored
 * before all is computed, so that the compiler need not think that stores change what is read. */
LGP_INLINE void lgp_mm_join_all(int kind, int rows, int panels, float *acc, const float *sums,
                                LgpF16 *p, const LgpF16 *d, const LgpF16 *m) {
    const int scaled = kind & LGP_MM_SCALED, minimum = kind & LGP_MM_MINIMUM;
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        LgpF16 sum = minimum ? lgp_f16_set(sums[r]) : lgp_f16_zero();
#pragma GCC unroll 2
        for (int q = 0; q < panels; q++)
            p[q * rows + r] =
                lgp_mm_join(scaled, minimum, lgp_f16_load(acc + (r * panels + q) * LGP_PANEL),
                            p[q * rows + r], d[q], m[q], sum);
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 2
        for (int q = 0; q < panels; q++)
            lgp_f16_store(acc + (r * panels + q) * LGP_PANEL, p[q * rows + r]);
    }
}

/* p of `side` runs side by side, from a block's run `first` on (0 where there are several): of
 * `rows` rows of x and of panels whose blocks lie at w in format `read`, F32 where they lie
 * unpacked. p: [side][panels][rows]. */
LGP_INLINE void lgp_mm_runs(int read, int runs, int rows, int panels, int side, const LgpMm *t,
                            const float *x, const unsigned char *const *w, int first, LgpF16 *p) {
    const int64_t bytes = (int64_t)lgp_block_bytes(read);
    const int groups = LGP_BLOCK / 8 / runs, each = panels * rows;
#pragma GCC unroll 24
    for (int i = 0; i < each * side; i++)
        p[i] = lgp_f16_zero();
#pragma GCC unroll 1
    for (int group = 0; group < groups; group++) {
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
#pragma GCC unroll 4
            for (int i = 0; i < side; i++) {
                const int b = i / runs, g = (side < runs ? first : i % runs) * groups + group;
                LgpF16 weights[LGP_MM_PANELS];
#pragma GCC unroll 2
                for (int q = 0; q < panels; q++)
                    weights[q] = lgp_mm_weights(read, w[q] + b * bytes, g, j);
#pragma GCC unroll 12
                for (int r = 0; r < rows; r++) {
                    LgpF16 v = lgp_f16_set(x[b * t->x_block + r * t->x_stride + 8 * g + j]);
#pragma GCC unroll 2
                    for (int q = 0; q < panels; q++)
                        p[i * each + q * rows + r] =
                            lgp_f16_fma(weights[q], v, p[i * each + q * rows + r]);
                }
            }
        }
    }
}

#define LGP_MM_P (LGP_MM_PANELS * LGP_MM_TILE > 4 ? LGP_MM_PANELS * LGP_MM_TILE : 4)

/* Asks for what lies ahead of block `at` of each panel; behind a panel's end that of the next
 * unit. */
LGP_INLINE void lgp_mm_fetch_unit(int format, int panels, const LgpMm *t, const LgpMmUnit *u,
                                  int32_t at, int32_t ahead, int32_t bytes) {
    const int64_t panel = (int64_t)lgp_panel_bytes(format, (uint64_t)t->k),
                  head = (int64_t)lgp_head_bytes(format, (uint64_t)t->k);
    int64_t from = at * (int64_t)lgp_block_bytes(format) + ahead;
    if (panels > 1 && from >= panel - head)
        from += (panels - 1) * panel;
#pragma GCC unroll 2
    for (int q = 0; q < panels; q++)
        lgp_mm_fetch(u->blocks[q] + from, bytes);
}

/* Few rows: `side` runs side by side from run `at` on, codes unpacked in registers. */
LGP_INLINE void lgp_mm_fused_runs(int format, int rows, int panels, int side, const LgpMm *t,
                                  const LgpMmUnit *u, int32_t at) {
    const int64_t bytes = (int64_t)lgp_block_bytes(format);
    const int runs = lgp_layouts[format].runs == 2 ? 2 : 1, first = side < runs ? at % runs : 0;
    const int32_t block = at / runs;
    const unsigned char *w[LGP_MM_PANELS];
    LgpF16 p[LGP_MM_P];
#pragma GCC unroll 2
    for (int q = 0; q < panels; q++)
        w[q] = u->blocks[q] + block * bytes;
    lgp_mm_fetch_unit(format, panels, t, u, block,
                      lgp_mm_ahead(format) + first * (int32_t)bytes / runs,
                      side * (int32_t)bytes / runs);
    lgp_mm_runs(format, runs, rows, panels, side, t, t->x + block * t->x_block, w, first, p);
#pragma GCC unroll 4
    for (int i = 0; i < side; i++) {
        const int run = side < runs ? first : i % runs, b = i / runs;
        LgpF16 d[LGP_MM_PANELS], m[LGP_MM_PANELS];
#pragma GCC unroll 2
        for (int q = 0; q < panels; q++)
            lgp_mm_scales(format, u->head[q], w[q] + b * bytes, block + b, run, &d[q], &m[q]);
        lgp_mm_join_all(lgp_mm_kind(format), rows, panels, t->acc,
                        t->sums + (int64_t)(at + i) * t->rows, p + i * panels * rows, d, m);
    }
}

/* The last block of a k that is no multiple of 32 (never a quantised one). */
LGP_INLINE void lgp_mm_tail(int format, int panels, const LgpMm *t, const LgpMmUnit *u) {
    const int32_t whole = t->k / LGP_BLOCK, left = t->k % LGP_BLOCK;
    for (int32_t r = 0; left && r < t->rows; r++) {
        const float *x = t->x + whole * t->x_block + r * t->x_stride;
        for (int q = 0; q < panels; q++) {
            const unsigned char *w = u->blocks[q] + whole * (int64_t)lgp_block_bytes(format);
            float *acc = t->acc + (r * panels + q) * LGP_PANEL;
            LgpF16 p = lgp_f16_zero();
            for (int32_t k = 0; k < left; k++)
                p = lgp_f16_fma(lgp_mm_weights(format, w, 0, k), lgp_f16_set(x[k]), p);
            lgp_f16_store(acc, lgp_f16_add(lgp_f16_load(acc), p));
        }
    }
}

LGP_INLINE void lgp_mm_fused(int format, int rows, int panels, int side, const LgpMm *t,
                             const LgpMmUnit *u) {
    const int runs = lgp_layouts[format].runs;
    const int32_t whole = t->k / LGP_BLOCK, all = runs ? whole * runs : whole;
    int32_t at = 0;
    for (; at + side <= all; at += side)
        lgp_mm_fused_runs(format, rows, panels, side, t, u, at);
    if (side > 1)
        for (; at < all; at++)
            lgp_mm_fused_runs(format, rows, panels, 1, t, u, at);
    if (!runs)
        lgp_mm_tail(format, panels, t, u);
}

/* Many rows: a run of weights that lies unpacked in f32. x and sums: of row 0. */
typedef struct LgpMmRun {
    const float *x, *sums;
    const unsigned char *tile[LGP_MM_PANELS];
    LgpF16 d[LGP_MM_PANELS], m[LGP_MM_PANELS];
} LgpMmRun;

LGP_INLINE void lgp_mm_tile(int kind, int rows, const LgpMm *t, const LgpMmRun *u, int32_t row) {
    LgpF16 p[LGP_MM_P];
    lgp_mm_runs(LGP_F32, kind & LGP_MM_HALF ? 2 : 1, rows, LGP_MM_PANELS, 1, t,
                u->x + row * t->x_stride, u->tile, 0, p);
    lgp_mm_join_all(kind, rows, LGP_MM_PANELS, t->acc + (int64_t)row * LGP_MM_PANELS * LGP_PANEL,
                    u->sums + row, p, u->d, u->m);
}

/* Calls CALL with a constant number of rows, of those that tiles have: parts of like size of more
 * rows than a fused product takes. */
#define LGP_MM_TILE_LEAST (LGP_MM_FUSED >= 8 ? 6 : LGP_MM_FUSED >= 4 ? 3 : 1)
#define LGP_MM_CASE(n, CALL)                                                                       \
    case n:                                                                                        \
        if (n <= LGP_MM_TILE && n >= LGP_MM_TILE_LEAST && n % LGP_MM_STEP == 0)                    \
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
        LGP_MM_CASE(8, CALL)                                                                       \
        LGP_MM_CASE(10, CALL)                                                                      \
        LGP_MM_CASE(12, CALL)                                                                      \
    }

/* All rows over one unpacked run. Tiles are of like size, so that the last is not a thin one. */
#define LGP_MM_TILES(name)                                                                         \
    LGP_NOINLINE void lgp_mm_tiles_##name(const LgpMm *t, const LgpMmRun *u) {                     \
        const int32_t steps = t->rows / LGP_MM_STEP, most = LGP_MM_TILE / LGP_MM_STEP;             \
        const int32_t tiles = (steps + most - 1) / most;                                           \
        int32_t row = 0;                                                                           \
        for (int32_t i = 0; i < tiles; i++) {                                                      \
            int32_t rows = (steps / tiles + (i < steps % tiles)) * LGP_MM_STEP;                    \
            LGP_MM_BY_ROWS(rows, LGP_MM_CALL_##name)                                               \
            row += rows;                                                                           \
        }                                                                                          \
    }
#define LGP_MM_CALL(kind, n) lgp_mm_tile(kind, n, t, u, row)
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

LGP_INLINE void lgp_mm_tiles(int format, const LgpMm *t, const LgpMmRun *u) {
    const LgpLayout l = lgp_layouts[format];
    if (!l.runs)
        lgp_mm_tiles_plain(t, u);
    else if (l.runs == 1 && !l.minimum)
        lgp_mm_tiles_scaled(t, u);
    else if (l.runs == 1)
        lgp_mm_tiles_minimum(t, u);
    else if (!l.minimum)
        lgp_mm_tiles_scaled_half(t, u);
    else
        lgp_mm_tiles_minimum_half(t, u);
}

LGP_INLINE void lgp_mm_unpack(int format, const unsigned char *w, float *tile) {
#pragma GCC unroll 1
    for (int group = 0; group < LGP_BLOCK / 8; group++) {
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++)
            lgp_f16_store(tile + (8 * group + j) * LGP_PANEL, lgp_mm_weights(format, w, group, j));
    }
}

LGP_INLINE void lgp_mm_many(int format, const LgpMm *t, const LgpMmUnit *u) {
    const int32_t bytes = (int32_t)lgp_block_bytes(format), whole = t->k / LGP_BLOCK;
    const int runs = lgp_layouts[format].runs == 2 ? 2 : 1;
    for (int32_t at = 0; at < whole; at++) {
        for (int q = 0; format != LGP_F32 && q < LGP_MM_PANELS; q++)
            lgp_mm_unpack(format, u->blocks[q] + (int64_t)at * bytes,
                          t->tile + q * LGP_BLOCK * LGP_PANEL);
        lgp_mm_fetch_unit(format, LGP_MM_PANELS, t, u, at, bytes, bytes);
#pragma GCC unroll 2
        for (int run = 0; run < runs; run++) {
            const int32_t k = run * (LGP_BLOCK / runs);
            LgpMmRun part = {.x = t->x + at * t->x_block + k,
                             .sums = t->sums + (int64_t)(at * runs + run) * t->rows};
            for (int q = 0; q < LGP_MM_PANELS; q++) {
                const unsigned char *w = u->blocks[q] + (int64_t)at * bytes;
                lgp_mm_scales(format, u->head[q], w, at, run, &part.d[q], &part.m[q]);
                part.tile[q] =
                    format == LGP_F32
                        ? w
                        : (const unsigned char *)(t->tile + (q * LGP_BLOCK + k) * LGP_PANEL);
            }
            lgp_mm_tiles(format, t, &part);
        }
    }
    if (!lgp_layouts[format].runs)
        lgp_mm_tail(format, LGP_MM_PANELS, t, u);
}

/* acc of every row for the panels of a unit. With few rows several runs go side by side, since
 * chains of multiply-adds must be many for their latency not to count. */
LGP_INLINE void lgp_mm_unit(int format, const LgpMm *t, const LgpMmUnit *u) {
    switch (t->rows) {
    case 1:
        lgp_mm_fused(format, 1, 1, LGP_MM_PANELS > 1 ? 4 : 2, t, u);
        return;
#if LGP_MM_FUSED >= 4
    case 2:
        lgp_mm_fused(format, 2, 1, 2, t, u);
        return;
#endif
#if LGP_MM_FUSED == 4
    case 3:
    case 4:
        if (lgp_layouts[format].code_bits == 4) /* its masks leave too few registers */
            break;
        if (t->rows == 3)
            lgp_mm_fused(format, 3, 1, 1, t, u);
        else
            lgp_mm_fused(format, 4, 1, 1, t, u);
        return;
#elif LGP_MM_FUSED == 8
    case 4:
        lgp_mm_fused(format, 4, 2, 1, t, u);
        return;
    case 6:
        lgp_mm_fused(format, 6, 2, 1, t, u);
        return;
    case 8:
        lgp_mm_fused(format, 8, 2, 1, t, u);
        return;
#endif
    default:
        break;
    }
    lgp_mm_many(format, t, u);
}

/* One copy of the loops a format: the compiler sees constants. */
#define LGP_MM_UNIT(name, format)                                                                  \
    LGP_NOINLINE void lgp_mm_unit_##name(const LgpMm *t, const LgpMmUnit *u) {                     \
        lgp_mm_unit(format, t, u);                                                                 \
    }
LGP_MM_UNIT(f32, LGP_F32)
LGP_MM_UNIT(bf16, LGP_BF16)
LGP_MM_UNIT(f16, LGP_F16)
LGP_MM_UNIT(q4, LGP_Q4)
LGP_MM_UNIT(q8, LGP_Q8)
LGP_MM_UNIT(q8m, LGP_Q8M)
LGP_MM_UNIT(k4, LGP_K4)
LGP_MM_UNIT(k4s, LGP_K4S)
LGP_MM_UNIT(k8, LGP_K8)
LGP_MM_UNIT(k8s, LGP_K8S)
LGP_MM_UNIT(f8, LGP_F8)
#undef LGP_MM_UNIT

/* One block of a row of x: its copy (NULL: none), for codes of four bits as the level wants it; the
 * sums of its runs, `stride` apart (NULL: none): vectors are added lane by lane, then the lanes by
 * lgp_f8_sum's tree. */
LGP_INLINE void lgp_mm_x_block(const LgpLayout *l, const float *x, float *copy, float *sums,
                               int32_t stride) {
    LgpF8 v[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        v[i] = lgp_f8_load(x + 8 * i);
        if (copy)
            lgp_f8_store(copy + 8 * i, l->code_bits == 4 ? lgp_nibble_factors(v[i]) : v[i]);
    }
    if (!sums)
        return;
    LgpF8 first = lgp_f8_add(v[0], v[1]), last = lgp_f8_add(v[2], v[3]);
    if (l->runs == 1) {
        sums[0] = lgp_f8_sum(lgp_f8_add(first, last));
    } else {
        sums[0] = lgp_f8_sum(first);
        sums[stride] = lgp_f8_sum(last);
    }
}

/* Block by block, so that copies follow each other. */
LGP_INLINE void lgp_mm_x_rows(const LgpLayout *l, int32_t rows, const LgpMm *t, float *copy,
                              float *sums) {
    const int32_t blocks = t->k / LGP_BLOCK, left = t->k % LGP_BLOCK;
    for (int32_t b = 0; b < blocks; b++) {
        const float *x = t->x + b * LGP_BLOCK;
        float *to = copy ? copy + (int64_t)b * t->rows * LGP_BLOCK : 0;
        float *sum = sums ? sums + (int64_t)b * l->runs * t->rows : 0;
        for (int32_t r = 0; r < rows; r++, x += t->x_stride)
            lgp_mm_x_block(l, x, copy ? to + r * LGP_BLOCK : 0, sums ? sum + r : 0, t->rows);
    }
    for (int32_t r = 0; copy && r < rows; r++)
        memcpy(copy + ((int64_t)blocks * t->rows + r) * LGP_BLOCK,
               t->x + r * t->x_stride + blocks * LGP_BLOCK, (size_t)left * sizeof(float));
}

/* Of a tile's rows that count for nothing. */
LGP_INLINE void lgp_mm_x_none(const LgpLayout *l, int32_t rows, const LgpMm *t, float *copy,
                              float *sums) {
    const int32_t blocks = (t->k + LGP_BLOCK - 1) / LGP_BLOCK;
    for (int32_t r = rows; r < t->rows; r++) {
        for (int32_t b = 0; b < blocks; b++)
            memset(copy + ((int64_t)b * t->rows + r) * LGP_BLOCK, 0, LGP_BLOCK * sizeof(float));
        for (int32_t b = 0; sums && b < blocks * l->runs; b++)
            sums[(int64_t)b * t->rows + r] = 0.0f;
    }
}

/* What the loops need to be made of `rows` rows of x: the sums, and a copy that lies by blocks, of
 * tiles' rows, where it has factors or where x itself would not do. */
LGP_NOINLINE void lgp_mm_prepare_x(const LgpLayout *l, int32_t rows, LgpMm *t, float *copy) {
    const int32_t blocks = (t->k + LGP_BLOCK - 1) / LGP_BLOCK;
    float *sums = l->minimum ? copy + (int64_t)blocks * LGP_BLOCK * t->rows : 0;
    if (rows == t->rows && (int64_t)rows * t->k <= LGP_MM_PLAIN_FLOATS &&
        !(l->code_bits == 4 && LGP_NIBBLE_FACTORS)) {
        if (sums)
            lgp_mm_x_rows(l, rows, t, 0, sums);
    } else {
        lgp_mm_x_none(l, rows, t, copy, sums);
        if (sums)
            lgp_mm_x_rows(l, rows, t, copy, sums);
        else
            lgp_mm_x_rows(l, rows, t, copy, 0);
        t->x = copy;
        t->x_stride = LGP_BLOCK;
        t->x_block = (int64_t)t->rows * LGP_BLOCK;
    }
    t->sums = sums ? sums : t->acc; /* without a minimum nobody reads them */
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

/* acc + bias, rounded, for the outputs of a panel that exist. acc: that panel's of the first row.
 */
LGP_INLINE void lgp_mm_finish(const LgpMatmul *m, const float *acc, int panels,
                              const LgpMatmulPart *part, int32_t n) {
    int32_t outputs = m->w->rows - n < LGP_PANEL ? m->w->rows - n : LGP_PANEL;
    float some[LGP_PANEL] = {0};
    if (m->bias)
        memcpy(some, m->bias + n, (size_t)outputs * sizeof(float));
    const LgpF16 bias = lgp_f16_load(some);
    for (int32_t row = part->row; row < part->row_end; row++, acc += panels * LGP_PANEL) {
        float *y = m->y + row * m->y_stride + n;
        LgpF16 v = lgp_f16_load(acc);
        if (m->bias)
            v = lgp_f16_add(v, m->replaced ? lgp_mm_own_bias(m, row, n, outputs, bias) : bias);
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
#define LGP_MM_ENTRY(format, name) [format] = LGP_FORMATS >> format & 1u ? lgp_mm_unit_##name : 0
    static void (*const unit[LGP_FORMAT_COUNT])(const LgpMm *, const LgpMmUnit *) = {
        LGP_MM_ENTRY(LGP_F32, f32), LGP_MM_ENTRY(LGP_BF16, bf16), LGP_MM_ENTRY(LGP_F16, f16),
        LGP_MM_ENTRY(LGP_Q4, q4),   LGP_MM_ENTRY(LGP_Q8, q8),     LGP_MM_ENTRY(LGP_Q8M, q8m),
        LGP_MM_ENTRY(LGP_K4, k4),   LGP_MM_ENTRY(LGP_K4S, k4s),   LGP_MM_ENTRY(LGP_K8, k8),
        LGP_MM_ENTRY(LGP_K8S, k8s), LGP_MM_ENTRY(LGP_F8, f8)};
#undef LGP_MM_ENTRY
    const LgpMatmulPart part = lgp_matmul_part(m, task);
    const int32_t rows = part.row_end - part.row, step = rows > 1 ? LGP_MM_STEP : 1;
    const int panels = rows < LGP_MM_WIDE ? 1 : LGP_MM_PANELS;
    const uint64_t columns = (uint64_t)m->w->columns;
    const uint64_t bytes = lgp_panel_bytes(m->w->format, columns);
    const unsigned char *w =
        (const unsigned char *)m->w->data + (uint64_t)(part.column / LGP_PANEL) * bytes;
    LgpMm t = {.x = m->x + part.row * m->x_stride,
               .x_stride = m->x_stride,
               .x_block = LGP_BLOCK,
               .rows = (rows + step - 1) / step * step,
               .k = m->w->columns};
    t.tile = (float *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);
    t.acc = t.tile + LGP_MM_PANELS * LGP_BLOCK * LGP_PANEL;
    for (int q = 0; q < panels; q++)
        lgp_mm_fetch(w + (uint64_t)q * bytes, 2048);
    lgp_mm_prepare_x(&lgp_layouts[m->w->format], rows, &t,
                     t.acc + (int64_t)t.rows * panels * LGP_PANEL);
    for (int32_t n = part.column; n < part.column_end; n += panels * LGP_PANEL) {
        LgpMmUnit u;
        for (int q = 0; q < panels; q++) { /* a panel that is none is the one before */
            u.head[q] = w + (n + q * LGP_PANEL < m->w->rows ? (uint64_t)q * bytes : 0);
            u.blocks[q] = u.head[q] + lgp_head_bytes(m->w->format, columns);
        }
        memset(t.acc, 0, (size_t)t.rows * (size_t)panels * LGP_PANEL * sizeof(float));
        unit[m->w->format](&t, &u);
        for (int q = 0; q < panels && n + q * LGP_PANEL < m->w->rows; q++)
            lgp_mm_finish(m, t.acc + q * LGP_PANEL, panels, &part, n + q * LGP_PANEL);
        w += (uint64_t)panels * bytes;
    }
}

#endif
