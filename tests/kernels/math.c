/* math.h: every function over floats of all exponents against the double library, within the bounds
 * that the header states; and rows of stored tables against the formats' own conversions. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/float.h"
#include "formats/dtype.h"
#include "harness.h"

#define CHUNK 4096

static double ref_exp(double x) {
    return exp(x);
}
static double ref_sigmoid(double x) {
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}
static double ref_silu(double x) {
    return x * ref_sigmoid(x);
}
static double ref_tanh(double x) {
    return tanh(x);
}
static double ref_gelu(double x) {
    return 0.5 * x * erfc(-x / sqrt(2));
}
static double gelu_arg(double x) {
    return 2 * sqrt(2 / acos(-1.0)) * (x + 0.044715 * x * x * x);
}
static double ref_gelu_tanh(double x) {
    return x * ref_sigmoid(gelu_arg(x));
}
static double ref_rsqrt(double x) {
    return 1 / sqrt(x);
}
static double ref_round_bf16(double x) {
    return (double)bf16_round((float)x);
}

/* The rounding of the sigmoid's argument v, seen through the function. */
static double gelu_tanh_extra(double x) {
    double v = gelu_arg(x);
    return 6 * fabs(v) * ref_sigmoid(-v);
}

/* Name, units of 2^-24 relative, how many of the smallest subnormal (times 1 + |x|), more units. */
static const struct {
    const char *name;
    double (*ref)(double);
    double units, tiny;
    double (*extra)(double);
} functions[] = {
    {"exp", ref_exp, 2, 0.5, NULL},   {"sigmoid", ref_sigmoid, 4, 1, NULL},
    {"silu", ref_silu, 5, 1, NULL},   {"tanh", ref_tanh, 4, 1, NULL},
    {"gelu", ref_gelu, 8, 1, NULL},   {"gelu_tanh", ref_gelu_tanh, 8, 1, gelu_tanh_extra},
    {"rsqrt", ref_rsqrt, 3, 0, NULL}, {"round_bf16", ref_round_bf16, 0, 0, NULL},
};

static void (*function_of(const LgpKernelTable *k, const char *name))(const float *, float *,
                                                                      int64_t) {
#define PICK(id)                                                                                   \
    if (strcmp(name, #id) == 0)                                                                    \
        return k->id;
    LGP_MATH_MAP(PICK)
#undef PICK
    return NULL;
}

static bool check_value(Check *c, int f, float x, float got) {
    double ref = functions[f].ref((double)x), largest = 3.4028234663852886e38;
    double units = functions[f].units + (functions[f].extra ? functions[f].extra((double)x) : 0);
    double bound = units * U_F32 * fabs(ref) + functions[f].tiny * (1 + fabs((double)x)) * TINY;
    if (isinf(x) && strcmp(functions[f].name, "exp") != 0)
        return true; /* a sigmoid's limits: not asked for */
    if (isinf(got) && fabs(ref) * (1 + units * U_F32) > largest && (ref > 0) == (got > 0))
        return true;
    if (within((double)got, ref, bound))
        return true;
    snprintf(c->shape, sizeof c->shape, "x = %.9g (%a)", (double)x, (double)x);
    return fail_value(c, 0, (double)got, ref, bound);
}

static bool check_function(Check *c, int f, uint32_t step) {
    static const uint32_t special[] = {0,           0x80000000u, 1,           0x80000001u,
                                       0x7f7fffffu, 0xff7fffffu, 0x7f800000u, 0xff800000u,
                                       0x42b17218u, 0x42b17219u, 0xc2cff1b5u, 0xc2aeac50u,
                                       0x3f200000u, 0x3f1fffffu, 0x41700000u, 0xc1700000u};
    void (*run)(const float *, float *, int64_t) = function_of(c->k, functions[f].name);
    float x[CHUNK], y[CHUNK], again[CHUNK];
    uint64_t at = 0;
    while (at < 0x100000000ull) {
        int n = 0;
        for (; n < (int)(sizeof special / sizeof *special) && at == 0; n++)
            x[n] = float_from_bits(special[n]);
        for (; n < CHUNK && at < 0x100000000ull; n++, at += step)
            x[n] = float_from_bits((uint32_t)(at + draw(c) % step));
        run(x, y, n);
        for (int i = 0; i < n; i++) { /* one by one: no dependence on the place in a vector */
            if (i % 61 == 0) {
                run(x + i, again, 1);
                if (memcmp(again, y + i, sizeof(float)) != 0 && !isnan(x[i]))
                    return fail(c, "%s differs alone at %a", functions[f].name, (double)x[i]);
            }
            if (isnan(x[i]) ? !isnan(y[i]) : !check_value(c, f, x[i], y[i]))
                return isnan(x[i]) ? fail(c, "%s of a NaN is %g", functions[f].name, (double)y[i])
                                   : false;
        }
    }
    return true;
}

bool check_math(Check *c, uint64_t run_seed) {
    for (int f = 0; f < (int)(sizeof functions / sizeof *functions); f++) {
        c->kernel = functions[f].name;
        check_case(c, run_seed, f);
        if (!check_function(c, f, c->quick ? 40961 : 1531))
            return false;
    }
    c->kernel = "math";
    return true;
}

bool check_table_row(Check *c, uint64_t run_seed) {
    for (int i = 0; i < 10 * DTYPE_COUNT; i++) {
        check_case(c, run_seed, i);
        DType type = (DType)(i % DTYPE_COUNT);
        const DTypeInfo *info = dtype_info(type);
        if (!info->served)
            continue;
        int32_t columns = info->block_elems > 1 ? (int32_t)info->block_elems * DRAW_OF(c, 1, 2, 7)
                                                : DRAW_OF(c, 1, 3, 8, 33),
                rows = 5;
        uint64_t row_bytes = 0;
        dtype_row_bytes(type, (uint64_t)columns, &row_bytes);
        uint64_t stride = row_bytes + (i & 1 ? info->block_bytes : 0);
        snprintf(c->shape, sizeof c->shape, "%s, %d columns", info->name, columns);
        unsigned char *stored = malloc(stride * (uint64_t)rows);
        float *ref = malloc((size_t)columns * sizeof(float));
        Guarded out = guarded((size_t)columns * sizeof(float), true);
        for (uint64_t b = 0; b < stride * (uint64_t)rows; b++)
            stored[b] = (unsigned char)draw(c); /* any bits, infinities and NaN too */
        LgpWeight w = {.data = stored,
                       .to_f32 = info->to_f32,
                       .rows = rows,
                       .columns = columns,
                       .row_bytes = stride};
        bool good = true;
        for (int32_t r = 0; good && r < rows; r++) {
            info->to_f32(stored + (uint64_t)r * stride, ref, (size_t)columns);
            c->k->table_row(&w, r, out.data);
            for (int32_t k = 0; good && k < columns; k++)
                if (!within((double)((float *)out.data)[k], (double)ref[k], 0))
                    good =
                        fail_value(c, (size_t)k, (double)((float *)out.data)[k], (double)ref[k], 0);
        }
        good = good && (guarded_whole(&out) || fail(c, "memory outside was written"));
        guarded_free(&out);
        free(stored);
        free(ref);
        if (!good)
            return false;
    }
    return true;
}
