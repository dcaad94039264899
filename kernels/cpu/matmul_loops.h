/* The inner loops of matmul.h: all k of a few panels, for the rows of a task. One copy a format. */
#ifndef LG_CPU_MATMUL_LOOPS_H
#define LG_CPU_MATMUL_LOOPS_H

#include "kernels/cpu/abi.h"
#include "kernels/cpu/pairs.h"
#include "kernels/cpu/tiles.h"
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
#ifdef LGP_LEVEL_AMX
#define LGP_MM_TILE_FLOATS (LGP_TILE_STRIP * LGP_MM_PANELS * LGP_PAIRS * LGP_PANEL)
#else
#define LGP_MM_TILE_FLOATS (LGP_MM_PANELS * LGP_BLOCK * LGP_PANEL)
#endif

/* What the inner loops read: rows [0, rows) of x, the sums of its runs, and where results go. Row r
 * of block b of x: x + b * x_block + r * x_stride. */
typedef struct LgpMm {
    const float *x;
    int64_t x_stride, x_block;
    const float *sums; /* [blocks][runs][rows], where there is a minimum */
    float *acc;        /* [rows][panels][16] */
    float *tile;       /* [panels][32][16]; pairs: [panels][16][16]; tiles.h has more of them */
    int32_t rows, k;   /* rows: those of tiles, of which the last may count for nothing */
    int32_t tile_rows, panels; /* for tiles.h: rows of a tile; how many panels there are */
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
enum { LGP_MM_SCALED = 1, LGP_MM_MINIMUM = 2, LGP_MM_HALF = 4, LGP_MM_PAIRS = 8 };

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

/* Weights of step j of a group: of one k, or of a pair; F32 where they lie unpacked. */
LGP_INLINE LgpF16 lgp_mm_step(int pairs, int read, const unsigned char *block, int group, int j) {
    if (!pairs)
        return lgp_mm_weights(read, block, group, j);
    if (read == LGP_F32)
        return lgp_f16_load((const float *)(const void *)block + (4 * group + j) * LGP_PANEL);
    return lgp_pair_weights(read, block, group, j);
}

/* p of `side` runs side by side, from a block's run `first` on (0 where there are several): of
 * `rows` rows of x and of panels whose blocks lie at w in format `read`, F32 where they lie
 * unpacked. p: [side][panels][rows]. */
LGP_INLINE void lgp_mm_runs(int pairs, int read, int runs, int rows, int panels, int side,
                            const LgpMm *t, const float *x, const unsigned char *const *w,
                            int first, LgpF16 *p) {
    const int64_t bytes = (int64_t)lgp_block_bytes(read);
    const int groups = LGP_BLOCK / 8 / runs, each = panels * rows, steps = pairs ? 4 : 8;
#pragma GCC unroll 24
    for (int i = 0; i < each * side; i++)
        p[i] = lgp_f16_zero();
#pragma GCC unroll 1
    for (int group = 0; group < groups; group++) {
#pragma GCC unroll 8
        for (int j = 0; j < steps; j++) {
#pragma GCC unroll 4
            for (int i = 0; i < side; i++) {
                const int b = i / runs, g = (side < runs ? first : i % runs) * groups + group;
                LgpF16 weights[LGP_MM_PANELS];
#pragma GCC unroll 2
                for (int q = 0; q < panels; q++)
                    weights[q] = lgp_mm_step(pairs, read, w[q] + b * bytes, g, j);
#pragma GCC unroll 12
                for (int r = 0; r < rows; r++) {
                    LgpF16 v = lgp_f16_set(x[b * t->x_block + r * t->x_stride + steps * g + j]);
#pragma GCC unroll 2
                    for (int q = 0; q < panels; q++)
                        p[i * each + q * rows + r] =
                            pairs ? lgp_pair_dot(weights[q], v, p[i * each + q * rows + r])
                                  : lgp_f16_fma(weights[q], v, p[i * each + q * rows + r]);
                }
            }
        }
    }
}

#define LGP_MM_P (LGP_MM_PANELS * LGP_MM_TILE > 4 ? LGP_MM_PANELS * LGP_MM_TILE : 4)

/* Asks for what lies ahead of block `at` of each panel; behind a panel's end that of the next
 * unit. */
LGP_INLINE void lgp_mm_fetch_panel(int format, int panels, int q, const LgpMm *t,
                                   const LgpMmUnit *u, int32_t at, int32_t ahead, int32_t bytes) {
    const int64_t panel = (int64_t)lgp_panel_bytes(format, (uint64_t)t->k),
                  head = (int64_t)lgp_head_bytes(format, (uint64_t)t->k);
    int64_t from = at * (int64_t)lgp_block_bytes(format) + ahead;
    if (panels > 1 && from >= panel - head)
        from += (panels - 1) * panel;
    lgp_mm_fetch(u->blocks[q] + from, bytes);
}

/* Runs of one row that go side by side: what is asked for at once is at most 20 lines, since a
 * processor that has more misses under way than it can hold (about 24 lines on Zen 4) waits for
 * them. One chain of multiply-adds a run keeps up with memory where elements are wide. */
LGP_INLINE int lgp_mm_side(int format) {
    const int bytes = (int)lgp_block_bytes(format);
    return bytes > 640 ? 1 : bytes > 320 || LGP_MM_PANELS == 1 ? 2 : 4;
}

/* Few rows: `side` runs side by side from run `at` on, codes unpacked in registers. */
LGP_INLINE void lgp_mm_fused_runs(int pairs, int format, int rows, int panels, int side,
                                  const LgpMm *t, const LgpMmUnit *u, int32_t at) {
    const int64_t bytes = (int64_t)lgp_block_bytes(format);
    const int runs = lgp_layouts[format].runs == 2 ? 2 : 1, first = side < runs ? at % runs : 0;
    const int32_t block = at / runs;
    const unsigned char *w[LGP_MM_PANELS];
    LgpF16 p[LGP_MM_P];
#pragma GCC unroll 2
    for (int q = 0; q < panels; q++)
        w[q] = u->blocks[q] + block * bytes;
    const int32_t ahead = lgp_mm_ahead(format) + first * (int32_t)bytes / runs,
                  more = side * (int32_t)bytes / runs;
    lgp_mm_fetch_panel(format, panels, 0, t, u, block, ahead, more);
    lgp_mm_runs(pairs, format, runs, rows, panels, side, t, t->x + block * t->x_block, w, first, p);
    if (panels > 1)
        lgp_mm_fetch_panel(format, panels, 1, t, u, block, ahead, more);
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

/* The last block of a k that is no multiple of 32 (never a quantised one), with zeros behind it. */
LGP_INLINE void lgp_mm_fill(int format, const LgpMm *t, const unsigned char *blocks,
                            unsigned char *block) {
    const size_t bytes = (size_t)lgp_block_bytes(format);
    memset(block, 0, bytes);
    memcpy(block, blocks + (size_t)(t->k / LGP_BLOCK) * bytes,
           (size_t)(t->k % LGP_BLOCK) * (bytes / LGP_BLOCK));
}

LGP_INLINE void lgp_mm_tail_pairs(int format, int panels, const LgpMm *t, const LgpMmUnit *u) {
    unsigned char block[LGP_BLOCK * LGP_PANEL * 4];
    for (int q = 0; t->k % LGP_BLOCK && q < panels; q++) {
        lgp_mm_fill(format, t, u->blocks[q], block);
        for (int32_t r = 0; r < t->rows; r++) {
            const float *x = t->x + t->k / LGP_BLOCK * t->x_block + r * t->x_stride;
            float *acc = t->acc + (r * panels + q) * LGP_PANEL;
            LgpF16 p = lgp_f16_zero();
#pragma GCC unroll 1
            for (int group = 0; group < LGP_BLOCK / 8; group++)
#pragma GCC unroll 4
                for (int j = 0; j < 4; j++)
                    p = lgp_pair_dot(lgp_pair_weights(format, block, group, j),
                                     lgp_f16_set(x[4 * group + j]), p);
            lgp_f16_store(acc, lgp_f16_add(lgp_f16_load(acc), p));
        }
    }
}

/* The last block of a k that is no multiple of 32. */
LGP_INLINE void lgp_mm_tail(int pairs, int format, int panels, const LgpMm *t, const LgpMmUnit *u) {
    const int32_t whole = t->k / LGP_BLOCK, left = t->k % LGP_BLOCK;
    if (pairs) {
        lgp_mm_tail_pairs(format, panels, t, u);
        return;
    }
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

LGP_INLINE void lgp_mm_fused(int pairs, int format, int rows, int panels, int side, const LgpMm *t,
                             const LgpMmUnit *u) {
    const int runs = lgp_layouts[format].runs;
    const int32_t whole = t->k / LGP_BLOCK, all = runs ? whole * runs : whole;
    int32_t at = 0;
    for (; at + side <= all; at += side)
        lgp_mm_fused_runs(pairs, format, rows, panels, side, t, u, at);
    if (side > 1)
        for (; at < all; at++)
            lgp_mm_fused_runs(pairs, format, rows, panels, 1, t, u, at);
    if (!runs)
        lgp_mm_tail(pairs, format, panels, t, u);
}

/* Many rows: a run of weights that lies unpacked in f32. x and sums: of row 0. */
typedef struct LgpMmRun {
    const float *x, *sums;
    const unsigned char *tile[LGP_MM_PANELS];
    LgpF16 d[LGP_MM_PANELS], m[LGP_MM_PANELS];
} LgpMmRun;

LGP_INLINE void lgp_mm_tile(int kind, int rows, const LgpMm *t, const LgpMmRun *u, int32_t row) {
    LgpF16 p[LGP_MM_P];
    lgp_mm_runs(kind & LGP_MM_PAIRS, LGP_F32, kind & LGP_MM_HALF ? 2 : 1, rows, LGP_MM_PANELS, 1, t,
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
#if defined LGP_LEVEL_BF16 && !defined LGP_LEVEL_AMX
#define LGP_MM_PAIRS_CALL(kind, n) LGP_MM_CALL(LGP_MM_PAIRS | (kind), n)
#define LGP_MM_CALL_pairs_plain(n) LGP_MM_PAIRS_CALL(0, n)
#define LGP_MM_CALL_pairs_scaled(n) LGP_MM_PAIRS_CALL(LGP_MM_SCALED, n)
#define LGP_MM_CALL_pairs_minimum(n) LGP_MM_PAIRS_CALL(LGP_MM_SCALED | LGP_MM_MINIMUM, n)
#define LGP_MM_CALL_pairs_scaled_half(n) LGP_MM_PAIRS_CALL(LGP_MM_SCALED | LGP_MM_HALF, n)
#define LGP_MM_CALL_pairs_minimum_half(n)                                                          \
    LGP_MM_PAIRS_CALL(LGP_MM_SCALED | LGP_MM_MINIMUM | LGP_MM_HALF, n)
LGP_MM_TILES(pairs_plain)
LGP_MM_TILES(pairs_scaled)
LGP_MM_TILES(pairs_minimum)
LGP_MM_TILES(pairs_scaled_half)
LGP_MM_TILES(pairs_minimum_half)
#define LGP_MM_TILES_OF(pairs, name)                                                               \
    ((pairs) ? lgp_mm_tiles_pairs_##name(t, u) : lgp_mm_tiles_##name(t, u))
#else
#define LGP_MM_TILES_OF(pairs, name) ((void)(pairs), lgp_mm_tiles_##name(t, u))
#endif
#undef LGP_MM_TILES

LGP_INLINE void lgp_mm_tiles(int pairs, int format, const LgpMm *t, const LgpMmRun *u) {
    const LgpLayout l = lgp_layouts[format];
    if (!l.runs)
        LGP_MM_TILES_OF(pairs, plain);
    else if (l.runs == 1 && !l.minimum)
        LGP_MM_TILES_OF(pairs, scaled);
    else if (l.runs == 1)
        LGP_MM_TILES_OF(pairs, minimum);
    else if (!l.minimum)
        LGP_MM_TILES_OF(pairs, scaled_half);
    else
        LGP_MM_TILES_OF(pairs, minimum_half);
}

LGP_INLINE void lgp_mm_unpack(int pairs, int format, const unsigned char *w, float *tile) {
    const int steps = pairs ? 4 : 8;
#pragma GCC unroll 1
    for (int group = 0; group < LGP_BLOCK / 8; group++) {
#pragma GCC unroll 8
        for (int j = 0; j < steps; j++)
            lgp_f16_store(tile + (steps * group + j) * LGP_PANEL,
                          lgp_mm_step(pairs, format, w, group, j));
    }
}

LGP_INLINE void lgp_mm_many(int pairs, int format, const LgpMm *t, const LgpMmUnit *u) {
    const int32_t bytes = (int32_t)lgp_block_bytes(format), whole = t->k / LGP_BLOCK;
    const int runs = lgp_layouts[format].runs == 2 ? 2 : 1;
    for (int32_t at = 0; at < whole; at++) {
        for (int q = 0; format != LGP_F32 && q < LGP_MM_PANELS; q++)
            lgp_mm_unpack(pairs, format, u->blocks[q] + (int64_t)at * bytes,
                          t->tile + q * LGP_BLOCK * LGP_PANEL);
        lgp_mm_fetch_panel(format, LGP_MM_PANELS, 0, t, u, at, bytes, bytes);
#pragma GCC unroll 2
        for (int run = 0; run < runs; run++) {
            const int32_t k = run * ((pairs ? LGP_PAIRS : LGP_BLOCK) / runs);
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
            lgp_mm_tiles(pairs, format, t, &part);
        }
        if (LGP_MM_PANELS > 1)
            lgp_mm_fetch_panel(format, LGP_MM_PANELS, LGP_MM_PANELS - 1, t, u, at, bytes, bytes);
    }
    if (!lgp_layouts[format].runs)
        lgp_mm_tail(pairs, format, LGP_MM_PANELS, t, u);
}

#ifdef LGP_LEVEL_AMX
/* All blocks of two panels (or of one, of few rows): strips of blocks are unpacked for all rows;
 * two tiles of rows go side by side. */
LGP_INLINE void lgp_mm_strips(int format, int panels, const LgpMm *t, const LgpMmUnit *u) {
    const int64_t bytes = (int64_t)lgp_block_bytes(format);
    const int runs = lgp_layouts[format].runs == 2 ? 2 : 1, scaled = lgp_layouts[format].runs > 0;
    const int32_t whole = t->k / LGP_BLOCK, blocks = (t->k + LGP_BLOCK - 1) / LGP_BLOCK,
                  tiles = t->rows / t->tile_rows;
    unsigned char last[LGP_BLOCK * LGP_PANEL * 2];
    for (int32_t from = 0; from < blocks; from += LGP_TILE_STRIP) {
        const int32_t end = from + LGP_TILE_STRIP < blocks ? from + LGP_TILE_STRIP : blocks;
        for (int32_t b = from; b < end; b++) {
            for (int q = 0; q < panels; q++) {
                const unsigned char *w = u->blocks[q] + b * bytes;
                if (b >= whole)
                    lgp_mm_fill(format, t, u->blocks[q], last);
                lgp_mm_unpack(1, format, b < whole ? w : last,
                              t->tile + ((b - from) * panels + q) * LGP_PAIRS * LGP_PANEL);
            }
            for (int q = 0; q < panels; q++)
                lgp_mm_fetch_panel(format, panels, q, t, u, b, lgp_mm_ahead(format),
                                   (int32_t)bytes);
        }
        for (int32_t i = 0; i < tiles; i += 2) {
            LgpTiles s = {.x = t->x + from * t->x_block + i * t->tile_rows * LGP_PAIRS,
                          .x_block = t->x_block,
                          .w = t->tile,
                          .acc = t->acc + (int64_t)i * t->tile_rows * panels * LGP_PANEL,
                          .rows = t->tile_rows,
                          .two = i + 1 < tiles};
            if (!scaled) {
                lgp_tiles_add(panels, end - from, &s);
                continue;
            }
            for (int32_t b = from; b < end; b++) {
                for (int run = 0; run < runs; run++) {
                    float p[4 * LGP_TILE_ROWS * LGP_PANEL] __attribute__((aligned(64)));
                    LgpF16 d[LGP_MM_PANELS], m[LGP_MM_PANELS];
                    for (int q = 0; q < panels; q++)
                        lgp_mm_scales(format, u->head[q], u->blocks[q] + b * bytes, b, run, &d[q],
                                      &m[q]);
                    lgp_tiles_run(panels, runs, b - from, run, &s, p);
                    const float *sums =
                        t->sums + (int64_t)(b * runs + run) * t->rows + i * t->tile_rows;
                    const int32_t rows = s.rows * (s.two ? 2 : 1);
                    for (int32_t r = 0; r < rows; r++)
#pragma GCC unroll 2
                        for (int q = 0; q < panels; q++) {
                            float *acc = s.acc + (r * panels + q) * LGP_PANEL;
                            const LgpF16 own = lgp_f16_load(p + (r * panels + q) * LGP_PANEL);
                            lgp_f16_store(acc, lgp_mm_join(1, lgp_layouts[format].minimum,
                                                           lgp_f16_load(acc), own, d[q], m[q],
                                                           lgp_f16_set(sums[r])));
                        }
                }
            }
        }
    }
}

LGP_INLINE void lgp_mm_by_tiles(int format, const LgpMm *t, const LgpMmUnit *u) {
    if (t->panels == 1)
        lgp_mm_strips(format, 1, t, u);
    else
        lgp_mm_strips(format, LGP_MM_PANELS, t, u);
}
#endif

/* acc of every row for the panels of a unit. With few rows several runs go side by side, since
 * chains of multiply-adds must be many for their latency not to count. */
LGP_INLINE void lgp_mm_unit(int pairs, int format, const LgpMm *t, const LgpMmUnit *u) {
#ifdef LGP_LEVEL_AMX
    if (pairs) {
        lgp_mm_by_tiles(format, t, u);
        return;
    }
#endif
    switch (t->rows) {
    case 1:
        lgp_mm_fused(pairs, format, 1, 1, lgp_mm_side(format), t, u);
        return;
#if LGP_MM_FUSED >= 4
    case 2:
        lgp_mm_fused(pairs, format, 2, 1,
                     lgp_layouts[format].code_bits > 8             ? 1
                     : pairs && lgp_layouts[format].code_bits != 8 ? 4
                                                                   : 2,
                     t, u);
        return;
#endif
#if LGP_MM_FUSED == 4
    case 3:
    case 4:
        if (lgp_layouts[format].code_bits == 4) /* its masks leave too few registers */
            break;
        if (t->rows == 3)
            lgp_mm_fused(pairs, format, 3, 1, 1, t, u);
        else
            lgp_mm_fused(pairs, format, 4, 1, 1, t, u);
        return;
#elif LGP_MM_FUSED == 8
    case 4:
        lgp_mm_fused(pairs, format, 4, 2, 1, t, u);
        return;
    case 6:
        lgp_mm_fused(pairs, format, 6, 2, 1, t, u);
        return;
    case 8:
        lgp_mm_fused(pairs, format, 8, 2, 1, t, u);
        return;
#endif
    default:
        break;
    }
    lgp_mm_many(pairs, format, t, u);
}

/* One copy of the loops a format: the compiler sees constants. */
#define LGP_MM_UNIT(name, format)                                                                  \
    LGP_NOINLINE void lgp_mm_unit_##name(const LgpMm *t, const LgpMmUnit *u) {                     \
        lgp_mm_unit(0, format, t, u);                                                              \
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
#ifdef LGP_LEVEL_BF16
#define LGP_MM_UNIT(name, format)                                                                  \
    LGP_NOINLINE void lgp_mm_unit_pairs_##name(const LgpMm *t, const LgpMmUnit *u) {               \
        lgp_mm_unit(1, format, t, u);                                                              \
    }
LGP_MM_UNIT(bf16, LGP_BF16)
LGP_MM_UNIT(q4, LGP_Q4)
LGP_MM_UNIT(q8, LGP_Q8)
LGP_MM_UNIT(q8m, LGP_Q8M)
LGP_MM_UNIT(k4, LGP_K4)
LGP_MM_UNIT(k4s, LGP_K4S)
LGP_MM_UNIT(k8, LGP_K8)
LGP_MM_UNIT(k8s, LGP_K8S)
LGP_MM_UNIT(f8, LGP_F8)
#undef LGP_MM_UNIT
#endif

#endif
