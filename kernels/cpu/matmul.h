/* y = round(x · Wᵀ + bias): x [rows, k] f32 rows, W packed, y [rows, n].
 *
 * One formula at every row count, so that a row's bits depend on the row alone.  Outputs lie in
 * lanes.  k goes in blocks of 32, a block in runs (one, or two of 16) that have a scale: inside a
 * run p = sum of code * x over rising k, one chain of multiply-adds a lane; over rising runs acc =
 * acc + d p, then, with a minimum, acc = acc + m s (s: the sum of the run's x), each as one
 * multiply-add of the level; where weights are no codes acc = acc + p.  At last acc + bias, and one
 * rounding.
 *
 * At levels with bf16 products, where x is bf16 already and weights are exact in it, a run's p is a
 * chain of pairs (pairs.h), a last block that is not whole filled with zeros; at the level with
 * tiles, p is one tile product (tiles.h). Which of the forms it is depends on the product and on
 * its weights' format alone.
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
#include "kernels/cpu/matmul_loops.h"
#include "kernels/cpu/pairs.h"
#include "kernels/cpu/tiles.h"
#include "kernels/cpu/vec.h"

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
    int32_t x_bf16; /* x holds bf16 values */
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
    int64_t rows = lgp_mm_rows_max(k) + LGP_TILE_ROWS,
            blocks = ((int64_t)k + LGP_BLOCK - 1) / LGP_BLOCK;
    return rows * blocks * LGP_BLOCK          /* x by blocks */
           + rows * (2 * blocks + 8)          /* sums of its runs */
           + rows * LGP_MM_PANELS * LGP_PANEL /* accumulators */
           + LGP_MM_TILE_FLOATS + 64;         /* weights, and room to align */
}

/* One block of a row of x: its copy (NULL: none), for codes of four bits as the level wants it; the
 * sums of its runs, `stride` apart (NULL: none): vectors are added lane by lane, then the lanes by
 * lgp_f8_sum's tree. */
LGP_INLINE void lgp_mm_x_block(int pairs, const LgpLayout *l, const float *x, float *copy,
                               float *sums, int32_t stride) {
    LgpF8 v[4];
    if (pairs && copy)
        lgp_pair_x(l->code_bits, x, copy);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        v[i] = lgp_f8_load(x + 8 * i);
        if (copy && !pairs)
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
LGP_INLINE void lgp_mm_x_rows(int pairs, const LgpLayout *l, int32_t rows, const LgpMm *t,
                              float *copy, float *sums) {
    const int32_t blocks = t->k / LGP_BLOCK, left = t->k % LGP_BLOCK,
                  size = pairs ? LGP_PAIRS : LGP_BLOCK;
    for (int32_t b = 0; b < blocks; b++) {
        const float *x = t->x + b * LGP_BLOCK;
        float *to = copy ? copy + (int64_t)b * t->rows * size : 0;
        float *sum = sums ? sums + (int64_t)b * l->runs * t->rows : 0;
        for (int32_t r = 0; r < rows; r++, x += t->x_stride)
            lgp_mm_x_block(pairs, l, x, copy ? to + r * size : 0, sums ? sum + r : 0, t->rows);
    }
    for (int32_t r = 0; pairs && left && r < rows; r++) {
        float some[LGP_BLOCK] = {0};
        memcpy(some, t->x + r * t->x_stride + blocks * LGP_BLOCK, (size_t)left * sizeof(float));
        lgp_pair_x(l->code_bits, some, copy + ((int64_t)blocks * t->rows + r) * size);
    }
    for (int32_t r = 0; copy && !pairs && r < rows; r++)
        memcpy(copy + ((int64_t)blocks * t->rows + r) * LGP_BLOCK,
               t->x + r * t->x_stride + blocks * LGP_BLOCK, (size_t)left * sizeof(float));
}

/* Of a tile's rows that count for nothing. */
LGP_INLINE void lgp_mm_x_none(int32_t size, const LgpLayout *l, int32_t rows, const LgpMm *t,
                              float *copy, float *sums) {
    const int32_t blocks = (t->k + LGP_BLOCK - 1) / LGP_BLOCK;
    for (int32_t r = rows; r < t->rows; r++) {
        for (int32_t b = 0; b < blocks; b++)
            memset(copy + ((int64_t)b * t->rows + r) * size, 0, (size_t)size * sizeof(float));
        for (int32_t b = 0; sums && b < blocks * l->runs; b++)
            sums[(int64_t)b * t->rows + r] = 0.0f;
    }
}

/* What the loops need to be made of `rows` rows of x: the sums, and a copy that lies by blocks, of
 * tiles' rows, where it has factors or where x itself would not do. */
LGP_NOINLINE void lgp_mm_prepare_x(int pairs, const LgpLayout *l, int32_t rows, LgpMm *t,
                                   float *copy) {
    const int32_t blocks = (t->k + LGP_BLOCK - 1) / LGP_BLOCK;
    float *sums = l->minimum ? copy + (int64_t)blocks * LGP_BLOCK * t->rows : 0;
    const int32_t size = pairs ? LGP_PAIRS : LGP_BLOCK;
    const int laid = pairs || rows != t->rows || (int64_t)rows * t->k > LGP_MM_PLAIN_FLOATS ||
                     (l->code_bits == 4 && LGP_NIBBLE_FACTORS);
    if (pairs) {
        lgp_mm_x_none(size, l, rows, t, copy, sums);
        lgp_mm_x_rows(1, l, rows, t, copy, sums);
    } else if (!laid) {
        if (sums)
            lgp_mm_x_rows(0, l, rows, t, 0, sums);
    } else {
        lgp_mm_x_none(size, l, rows, t, copy, sums);
        if (sums)
            lgp_mm_x_rows(0, l, rows, t, copy, sums);
        else
            lgp_mm_x_rows(0, l, rows, t, copy, 0);
    }
    if (laid) {
        t->x = copy;
        t->x_stride = size;
        t->x_block = (int64_t)t->rows * size;
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
#ifdef LGP_LEVEL_BF16
#define LGP_MM_PAIR_ENTRY(format, name)                                                            \
    [format] = LGP_FORMATS >> format & 1u ? lgp_mm_unit_pairs_##name : 0
    static void (*const unit_pairs[LGP_FORMAT_COUNT])(const LgpMm *, const LgpMmUnit *) = {
        LGP_MM_PAIR_ENTRY(LGP_BF16, bf16), LGP_MM_PAIR_ENTRY(LGP_Q4, q4),
        LGP_MM_PAIR_ENTRY(LGP_Q8, q8),     LGP_MM_PAIR_ENTRY(LGP_Q8M, q8m),
        LGP_MM_PAIR_ENTRY(LGP_K4, k4),     LGP_MM_PAIR_ENTRY(LGP_K4S, k4s),
        LGP_MM_PAIR_ENTRY(LGP_K8, k8),     LGP_MM_PAIR_ENTRY(LGP_K8S, k8s),
        LGP_MM_PAIR_ENTRY(LGP_F8, f8)};
#undef LGP_MM_PAIR_ENTRY
    const int pairs = m->x_bf16 && lgp_pair_format(m->w->format);
    void (*const go)(const LgpMm *, const LgpMmUnit *) =
        pairs ? unit_pairs[m->w->format] : unit[m->w->format];
#else
    const int pairs = 0;
    void (*const go)(const LgpMm *, const LgpMmUnit *) = unit[m->w->format];
#endif
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
               .k = m->w->columns,
               .panels = panels};
    t.tile = (float *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);
    t.acc = t.tile + LGP_MM_TILE_FLOATS;
    if (pairs)
        lgp_tiles_begin(m->w->format, rows, &t.rows, &t.tile_rows);
    for (int q = 0; q < panels; q++)
        lgp_mm_fetch(w + (uint64_t)q * bytes, 2048);
    lgp_mm_prepare_x(pairs, &lgp_layouts[m->w->format], rows, &t,
                     t.acc + (int64_t)t.rows * panels * LGP_PANEL);
    for (int32_t n = part.column; n < part.column_end; n += panels * LGP_PANEL) {
        LgpMmUnit u;
        for (int q = 0; q < panels; q++) { /* a panel that is none is the one before */
            u.head[q] = w + (n + q * LGP_PANEL < m->w->rows ? (uint64_t)q * bytes : 0);
            u.blocks[q] = u.head[q] + lgp_head_bytes(m->w->format, columns);
        }
        memset(t.acc, 0, (size_t)t.rows * (size_t)panels * LGP_PANEL * sizeof(float));
        go(&t, &u);
        for (int q = 0; q < panels && n + q * LGP_PANEL < m->w->rows; q++)
            lgp_mm_finish(m, t.acc + q * LGP_PANEL, panels, &part, n + q * LGP_PANEL);
        w += (uint64_t)panels * bytes;
    }
    if (pairs)
        lgp_tiles_end();
}

#endif
