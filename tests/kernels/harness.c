/* Draws, guard zones and reports. */
#include "harness.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"

#define GUARD 256
#define GUARD_BYTE 0xa5

void check_case(Check *c, uint64_t run_seed, int number) {
    uint64_t seed = run_seed;
    for (const char *p = c->kernel; *p; p++)
        seed = rng_u64(seed, (uint64_t)(unsigned char)*p);
    c->seed = rng_u64(seed, (uint64_t)number);
    c->draws = 0;
    c->cases++;
    c->shape[0] = 0;
}

uint64_t draw(Check *c) {
    return rng_u64(c->seed, c->draws++);
}

int32_t draw_int(Check *c, int32_t from, int32_t to) {
    return from + (int32_t)(draw(c) % (uint64_t)(to - from + 1));
}

int32_t draw_of(Check *c, const int32_t *values, int32_t count) {
    return values[draw_int(c, 0, count - 1)];
}

double draw_unit(Check *c) {
    return (double)(draw(c) >> 11) * 0x1p-52 - 1.0;
}

const char *regime_name(Regime r) {
    static const char *const names[REGIME_COUNT] = {"plain", "tiny", "huge", "cancelling"};
    return names[r];
}

void draw_floats(Check *c, Regime regime, bool bf16, float *out, size_t count) {
    for (size_t i = 0; i < count; i++) {
        double v = draw_unit(c);
        if (regime == REGIME_TINY)
            v *= exp2(draw_int(c, -140, -100));
        if (regime == REGIME_HUGE)
            v *= exp2(draw_int(c, 30, 50));
        if (regime == REGIME_CANCEL && i % 2 == 1)
            v = -(double)out[i - 1] * (1.0 + v * 0x1p-6);
        out[i] = bf16 ? lgp_round_bf16((float)v) : (float)v;
    }
}

Guarded guarded(size_t bytes, bool odd) {
    Guarded g = {.bytes = bytes};
    size_t whole = (bytes + 2 * GUARD + 128 + 63) / 64 * 64;
    g.base = aligned_alloc(64, whole);
    if (!g.base) {
        fprintf(stderr, "out of memory\n");
        exit(2);
    }
    g.data = g.base + GUARD + (odd ? 4 : 0);
    guarded_refill(&g);
    return g;
}

void guarded_refill(Guarded *g) {
    unsigned char *data = g->data;
    memset(data - GUARD, GUARD_BYTE, GUARD);
    memset(data, 0xff, g->bytes);
    memset(data + g->bytes, GUARD_BYTE, GUARD - 8);
}

bool guarded_whole(const Guarded *g) {
    const unsigned char *data = g->data;
    for (int i = 1; i <= GUARD; i++)
        if (data[-i] != GUARD_BYTE)
            return false;
    for (int i = 0; i < GUARD - 8; i++)
        if (data[g->bytes + (size_t)i] != GUARD_BYTE)
            return false;
    return true;
}

void guarded_free(Guarded *g) {
    free(g->base);
    g->base = NULL;
}

bool fail(Check *c, const char *format, ...) {
    c->failures++;
    if (c->quiet)
        return false;
    va_list args;
    va_start(args, format);
    printf("FAILED %s, level %s, %s, seed %016llx: ", c->kernel, c->k->level, c->shape,
           (unsigned long long)c->seed);
    vprintf(format, args);
    printf("\n");
    va_end(args);
    return false;
}

bool fail_value(Check *c, size_t index, double got, double want, double bound) {
    return fail(c, "element %zu is %.9g, the reference %.17g, off by %.3g, bound %.3g", index, got,
                want, fabs(got - want), bound);
}

bool within(double got, double want, double bound) {
    if (isnan(want))
        return isnan(got);
    if (isinf(want))
        return got == want;
    return fabs(got - want) <= bound;
}

bool is_bf16(double v) {
    return (lgp_bits((float)v) & 0xffffu) == 0;
}

double round_error(double ref, bool bf16) {
    return fabs(ref) * (bf16 ? U_BF16 : U_F32) + (bf16 ? 0x1p-134 : TINY / 2);
}
