/* matmul.h and pack.c together: stored rows are drawn, packed as at load, multiplied, and compared
 * with what the format's own conversion to f32 makes of the stored rows. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/pack.h"
#include "base/float.h"
#include "harness.h"

typedef struct Shape {
    DType dtype;
    int format;
    Regime regime;
    int32_t rows, n, k;
    int64_t x_stride, y_stride;
    bool bias, round;
} Shape;

/* What is stored, packed, and as numbers: value = scale * code + offset a weight, scale 1 where it
 * is no quantised format. */
typedef struct Weights {
    unsigned char *stored, *packed;
    float *value;  /* [n, k] */
    float *spread; /* [n, k]: |scale code| + |offset|: what the kernel's terms add up to, whatever
                      cancels */
    float *step;   /* [n, k]: |scale|, for quantised formats */
    LgpWeight w;
} Weights;

static void weights_free(Weights *w) {
    free(w->stored);
    free(w->packed);
    free(w->value);
    free(w->spread);
    free(w->step);
}

/* Where a block has its f16 numbers: the scale, and what goes with codes alone. -1: nowhere. */
static const struct {
    DType dtype;
    int d, m;
} halves[] = {
    {DTYPE_Q8_0, 0, -1}, {DTYPE_Q4_0, 0, -1},   {DTYPE_Q4_1, 0, 2},    {DTYPE_Q5_0, 0, -1},
    {DTYPE_Q5_1, 0, 2},  {DTYPE_Q2_K, 80, 82},  {DTYPE_Q3_K, 108, -1}, {DTYPE_Q4_K, 0, 2},
    {DTYPE_Q5_K, 0, 2},  {DTYPE_Q6_K, 208, -1}, {DTYPE_IQ4_NL, 0, -1},
};

static void draw_plain(Check *c, const Shape *s, unsigned char *row) {
    for (int32_t k = 0; k < s->k; k++) {
        float v = (float)draw_unit(c);
        uint16_t h = s->dtype == DTYPE_BF16 ? bf16_from_float(v) : f16_from_float(v);
        if (s->dtype == DTYPE_F32)
            memcpy(row + 4 * k, &v, 4);
        else if (s->dtype != DTYPE_F8_E4M3)
            memcpy(row + 2 * k, &h, 2);
        else
            do /* any number */
                row[k] = (unsigned char)draw(c);
            while ((row[k] & 0x7f) == 0x7f);
    }
}

/* Draws stored rows. A scale's exponent varies, so that a wrong block shows. */
static void draw_stored(Check *c, const Shape *s, unsigned char *stored, uint64_t row_bytes) {
    const DTypeInfo *info = dtype_info(s->dtype);
    size_t place = 0;
    while (info->parts && halves[place].dtype != s->dtype)
        place++;
    for (int32_t r = 0; r < s->n; r++) {
        unsigned char *row = stored + (uint64_t)r * row_bytes;
        if (!info->parts) {
            draw_plain(c, s, row);
            continue;
        }
        for (int32_t b = 0; b < s->k / (int32_t)info->block_elems; b++, row += info->block_bytes) {
            for (uint32_t i = 0; i < info->block_bytes; i++)
                row[i] = (unsigned char)draw(c);
            uint16_t d = f16_from_float((float)(draw_unit(c) * exp2(draw_int(c, -12, 0))));
            uint16_t m = f16_from_float((float)draw_unit(c));
            memcpy(row + halves[place].d, &d, 2);
            if (halves[place].m >= 0)
                memcpy(row + halves[place].m, &m, 2);
        }
    }
}

/* f8: one scale, one a row, or one for each 32 rows of each 128 columns. */
static float *draw_scales(Check *c, const Shape *s, Tensor *t) {
    int kind = draw_int(c, 0, 2);
    uint64_t columns = ((uint64_t)s->k + 127) / 128;
    uint64_t count = kind == 0   ? 1
                     : kind == 1 ? (uint64_t)s->n
                                 : ((uint64_t)s->n + 31) / 32 * columns;
    float *scale = malloc(count * sizeof *scale);
    for (uint64_t i = 0; i < count; i++)
        scale[i] = (float)(draw_unit(c) * exp2(draw_int(c, -12, 0)));
    t->scale = scale;
    t->scale_rows = kind == 2 ? 32 : 1;
    t->scale_stride = kind == 2 ? columns : (uint64_t)kind;
    t->scale_columns = kind == 2 ? 128 : (uint64_t)s->k;
    return scale;
}

/* Of one row in blocks: the formula's d and m of every element. */
static void spread_row(const Shape *s, Weights *w, const unsigned char *row, int32_t r) {
    const DTypeInfo *info = dtype_info(s->dtype);
    for (int32_t k = 0; k < s->k; k++) {
        size_t at = (size_t)r * (size_t)s->k + (size_t)k;
        uint32_t in_block = (uint32_t)k % info->block_elems;
        BlockParts b;
        info->parts(row + (uint32_t)k / info->block_elems * info->block_bytes, &b);
        float d = f16_to_float(b.d) * (float)b.scale[in_block / b.run];
        float offset = f16_to_float(b.m) * (float)b.min[in_block / b.run];
        if (s->dtype == DTYPE_Q4_0 && s->format == LGP_Q4)
            offset = -8.0f * d;
        w->step[at] = fabsf(d);
        w->spread[at] = fabsf(w->value[at] - offset) + fabsf(offset);
    }
}

static void spread_of(const Shape *s, Weights *w, const unsigned char *stored, uint64_t row_bytes) {
    for (int32_t r = 0; r < s->n; r++) {
        if (dtype_info(s->dtype)->parts) {
            spread_row(s, w, stored + (uint64_t)r * row_bytes, r);
            continue;
        }
        for (size_t at = (size_t)r * (size_t)s->k; at < (size_t)(r + 1) * (size_t)s->k; at++) {
            w->step[at] = 0;
            w->spread[at] = fabsf(w->value[at]);
        }
    }
}

static bool weights_make(Check *c, const Shape *s, Weights *w) {
    uint64_t row_bytes = 0;
    size_t elems = (size_t)s->n * (size_t)s->k;
    if (!dtype_row_bytes(s->dtype, (uint64_t)s->k, &row_bytes))
        return fail(c, "no whole blocks");
    w->stored = malloc((size_t)s->n * row_bytes + 1);
    w->value = malloc(elems * sizeof(float) + 1);
    w->spread = malloc(elems * sizeof(float) + 1);
    w->step = malloc(elems * sizeof(float) + 1);
    size_t bytes = pack_matrix_bytes(s->format, (uint64_t)s->n, (uint64_t)s->k);
    w->packed = aligned_alloc(64, (bytes + 127) / 64 * 64);
    draw_stored(c, s, w->stored, row_bytes);
    Tensor t = {.dtype = s->dtype,
                .rank = 2,
                .shape = {(uint64_t)s->n, (uint64_t)s->k},
                .data = w->stored,
                .bytes = (uint64_t)s->n * row_bytes};
    float *scale = s->dtype == DTYPE_F8_E4M3 && s->k > 0 ? draw_scales(c, s, &t) : NULL;
    for (int32_t r = 0; r < s->n && s->k > 0; r++)
        tensor_row_f32(&t, (uint64_t)r, w->value + (size_t)r * (size_t)s->k);
    spread_of(s, w, w->stored, row_bytes);
    ParamBinding b = {.tensor = &t};
    memset(w->packed, 0xff, bytes);
    uint64_t panels = pack_panel_count((uint64_t)s->n), cut = panels / 2;
    bool fits = s->k == 0 || (pack_matrix_panels(&b, s->format, (uint64_t)s->n, (uint64_t)s->k, cut,
                                                 panels, w->packed) &&
                              pack_matrix_panels(&b, s->format, (uint64_t)s->n, (uint64_t)s->k, 0,
                                                 cut, w->packed));
    free(scale);
    if (!fits)
        return fail(c, "not packed");
    w->w = (LgpWeight){.data = w->packed, .format = s->format, .rows = s->n, .columns = s->k};
    return true;
}

/* Runs all tasks, the last first where `backwards`; scratch is NaN before every one. */
static bool run(Check *c, const LgpMatmul *m, bool backwards) {
    Guarded scratch = guarded((size_t)c->k->matmul_scratch(m->w->columns) * sizeof(float), true);
    int32_t tasks = c->k->matmul_tasks(m);
    for (int32_t t = 0; t < tasks; t++) {
        memset(scratch.data, 0xff, scratch.bytes);
        c->k->matmul_task(m, backwards ? tasks - 1 - t : t, scratch.data);
    }
    bool whole = guarded_whole(&scratch);
    guarded_free(&scratch);
    return whole || fail(c, "scratch was written outside");
}

/* What products of bf16 lose at an input beyond the roundings that f32 has (pairs.h, tiles.h): x
 * and the weight count as zero below 2^-126, and so do sums: one for each input, and two a block
 * and one for a block that is not whole of tiles. Sums are in units of the scale. */
static double flushed(const Shape *s, const Weights *w, size_t at, double x) {
    bool scaled = lgp_layouts[s->format].runs > 0;
    double sums = 4 * (scaled ? (double)w->step[at] : 1.0);
    return s->round ? 0x1p-126 * ((double)w->spread[at] + fabs(x) + sums) : 0;
}

/* A chain of at most 32 steps, its products rounded too at the generic level; two joins a run; the
 * run's sum of x, the bias; f8's stored numbers times their scales. A chain of pairs rounds as
 * often, a tile's two sums and what joins them less. */
static double bound_of(const Check *c, const Shape *s, const Weights *w, const float *x, int32_t o,
                       double ref, double bias) {
    double spread = 0, lost = 0;
    const LgpLayout *l = &lgp_layouts[s->format];
    for (int32_t k = 0; k < s->k; k++) {
        size_t at = (size_t)o * (size_t)s->k + (size_t)k;
        spread += (double)w->spread[at] * fabs((double)x[k]);
        lost += l->code_bits == 4 ? (double)w->step[at] * 0x1p-121 : 0;
        lost += c->k->bf16_products ? flushed(s, w, at, (double)x[k]) : 0;
    }
    int32_t runs = (s->k + LGP_BLOCK - 1) / LGP_BLOCK * (l->runs > 1 ? l->runs : 1),
            chain = s->k < LGP_BLOCK ? s->k : LGP_BLOCK;
    double error = (chain + 1 + 4 * runs + 7) * U_F32 * (spread + fabs(bias)) + lost +
                   (2 * s->k + 4) * TINY * 256;
    return error + round_error(fabs(ref) + error, s->round);
}

static bool compare(Check *c, const Shape *s, const Weights *w, const LgpMatmul *m) {
    for (int32_t r = 0; r < s->rows; r++) {
        const float *x = m->x + r * s->x_stride;
        for (int32_t o = 0; o < s->n; o++) {
            double ref = 0, bias = m->bias ? (double)m->bias[o] : 0;
            for (int32_t k = 0; k < s->k; k++)
                ref += (double)w->value[(size_t)o * (size_t)s->k + (size_t)k] * (double)x[k];
            ref += bias;
            double bound = bound_of(c, s, w, x, o, ref, bias),
                   got = (double)m->y[r * s->y_stride + o];
            if (!within(got, ref, bound))
                return fail_value(c, (size_t)r * (size_t)s->n + (size_t)o, got, ref, bound);
            if (s->round && !is_bf16(got))
                return fail(c, "row %d, output %d: %a is no bf16", r, o, got);
        }
        for (int64_t i = s->n; i < s->y_stride && r + 1 < s->rows; i++)
            if (lgp_bits(m->y[r * s->y_stride + i]) != 0xffffffffu)
                return fail(c, "row %d was written beyond its outputs", r);
    }
    return true;
}

/* Rows alone, and all rows in reverse company, and tasks in reverse order: the same bits. */
static bool same_bits(Check *c, const Shape *s, const LgpMatmul *m) {
    size_t floats = (size_t)s->rows * (size_t)s->y_stride;
    float *y = malloc((floats + 1) * sizeof(float)),
          *x = malloc(((size_t)s->rows * (size_t)s->k + 1) * sizeof(float));
    bool good = true;
    for (int32_t r = 0; r < s->rows; r++)
        memcpy(x + (size_t)r * (size_t)s->k, m->x + (s->rows - 1 - r) * s->x_stride,
               (size_t)s->k * sizeof(float));
    LgpMatmul again = *m, one = *m;
    again.y = y;
    memset(y, 0xff, floats * sizeof(float));
    good = run(c, &again, true);
    for (int32_t r = 0; good && r < s->rows; r++)
        if (memcmp(y + r * s->y_stride, m->y + r * s->y_stride, (size_t)s->n * sizeof(float)) != 0)
            good = fail(c, "row %d differs where tasks run in reverse", r);
    again.x = x;
    again.x_stride = s->k;
    good = good && run(c, &again, false);
    for (int32_t r = 0; good && r < s->rows; r++)
        if (memcmp(y + r * s->y_stride, m->y + (s->rows - 1 - r) * s->y_stride,
                   (size_t)s->n * sizeof(float)) != 0)
            good = fail(c, "row %d differs in other company", s->rows - 1 - r);
    one.rows = 1;
    one.y = y;
    for (int32_t r = 0; good && r<s->rows; r += s->rows> 16 ? 7 : 1) {
        one.x = m->x + r * s->x_stride;
        good = run(c, &one, false);
        if (good && memcmp(y, m->y + r * s->y_stride, (size_t)s->n * sizeof(float)) != 0)
            good = fail(c, "row %d differs alone", r);
    }
    free(y);
    free(x);
    return good;
}

/* AVX-512 has the bits of AVX2, but for codes of four bits where x is so small that AVX2's factors
 * of it are inexact. */
static bool twin_bits(Check *c, const Shape *s, const LgpMatmul *m) {
    bool good = true;
#ifdef LGP_HAS_AVX2
    bool exact = lgp_layouts[s->format].code_bits != 4 || s->regime != REGIME_TINY;
    if (c->k != &lgp_kernels_avx512 || !exact)
        return true;
    Check twin = *c;
    LgpMatmul other = *m;
    size_t floats = (size_t)s->rows * (size_t)s->y_stride;
    twin.k = &lgp_kernels_avx2;
    other.y = malloc((floats + 1) * sizeof(float));
    memset(other.y, 0xff, floats * sizeof(float));
    good = run(&twin, &other, false);
    if (good && s->rows > 0 &&
        memcmp(other.y, m->y, (floats - (size_t)(s->y_stride - s->n)) * sizeof(float)) != 0)
        good = fail(c, "bits are not those of avx2");
    free(other.y);
#else
    (void)c, (void)s, (void)m;
#endif
    return good;
}

static bool one_case(Check *c, const Shape *s) {
    Weights w = {0};
    snprintf(c->shape, sizeof c->shape, "%s as %d, rows %d, n %d, k %d, strides %lld %lld, %s%s%s",
             dtype_info(s->dtype)->name, s->format, s->rows, s->n, s->k, (long long)s->x_stride,
             (long long)s->y_stride, regime_name(s->regime), s->bias ? ", bias" : "",
             s->round ? ", bf16" : "");
    Guarded x = guarded(((size_t)s->rows * (size_t)s->x_stride) * sizeof(float), true);
    Guarded y = guarded(((size_t)s->rows * (size_t)s->y_stride) * sizeof(float), true);
    Guarded bias = guarded((size_t)s->n * sizeof(float), true);
    bool good = weights_make(c, s, &w);
    for (int32_t r = 0; r < s->rows; r++) /* what lies between rows stays NaN */
        draw_floats(c, s->regime, s->round, (float *)x.data + r * s->x_stride, (size_t)s->k);
    draw_floats(c, s->regime, false, bias.data, (size_t)s->n);
    LgpMatmul m = {.x = x.data,
                   .x_stride = s->x_stride,
                   .rows = s->rows,
                   .w = &w.w,
                   .y = y.data,
                   .y_stride = s->y_stride,
                   .bias = s->bias ? bias.data : NULL,
                   .round_bf16 = s->round,
                   .x_bf16 = s->round};
    good = good && run(c, &m, false) && compare(c, s, &w, &m) && same_bits(c, s, &m) &&
           twin_bits(c, s, &m);
    if (good && !(guarded_whole(&x) && guarded_whole(&y) && guarded_whole(&bias)))
        good = fail(c, "memory outside was written");
    guarded_free(&x);
    guarded_free(&y);
    guarded_free(&bias);
    weights_free(&w);
    return good;
}

/* Stored type, what it packs to. */
static const struct {
    DType dtype;
    int format;
} kinds[] = {
    {DTYPE_F32, LGP_F32},  {DTYPE_BF16, LGP_BF16}, {DTYPE_F16, LGP_F16},  {DTYPE_Q8_0, LGP_Q8},
    {DTYPE_Q4_0, LGP_Q4},  {DTYPE_Q4_1, LGP_Q4},   {DTYPE_Q4_0, LGP_Q8},  {DTYPE_Q5_0, LGP_Q8},
    {DTYPE_Q5_1, LGP_Q8M}, {DTYPE_IQ4_NL, LGP_Q8}, {DTYPE_Q2_K, LGP_K4S}, {DTYPE_Q3_K, LGP_K4S},
    {DTYPE_Q4_K, LGP_K4},  {DTYPE_Q5_K, LGP_K8},   {DTYPE_Q6_K, LGP_K8S}, {DTYPE_F8_E4M3, LGP_F8}};

bool check_matmul(Check *c, uint64_t run_seed) {
    int cases = (int)(sizeof kinds / sizeof *kinds) * (c->quick ? 6 : 60);
    for (int i = 0; i < cases; i++) {
        check_case(c, run_seed, i);
        int kind = i % (int)(sizeof kinds / sizeof *kinds);
        Shape s = {.dtype = kinds[kind].dtype, .format = kinds[kind].format};
        int32_t block = (int32_t)dtype_info(s.dtype)->block_elems;
        bool large = i / 16 % 9 == 0 && !c->quick;
        s.regime = (Regime)draw_int(c, 0, REGIME_COUNT - 1);
        s.rows = large ? DRAW_OF(c, 97, 128, 200)
                       : DRAW_OF(c, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 17, 25);
        s.n = DRAW_OF(c, 1, 7, 15, 16, 17, 31, 48, 67, 144, 259);
        s.k = block > LGP_BLOCK ? block * DRAW_OF(c, 1, 2, 3)
              : lgp_layouts[s.format].runs
                  ? LGP_BLOCK * DRAW_OF(c, 1, 2, 3, 5, 8, 17)
                  : DRAW_OF(c, 0, 1, 7, 8, 15, 31, 32, 33, 63, 64, 65, 97, 160, 257);
        s.x_stride = s.k + DRAW_OF(c, 0, 1, 5);
        s.y_stride = s.n + DRAW_OF(c, 0, 1, 3);
        s.bias = draw_int(c, 0, 1);
        s.round = draw_int(c, 0, 1);
        if (!one_case(c, &s))
            return false;
    }
    return true;
}
