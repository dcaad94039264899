/* bf16 and f16 bit formats. */
#ifndef LG_BASE_FLOAT_H
#define LG_BASE_FLOAT_H

#include <stdint.h>
#include <string.h>

static inline uint32_t float_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float float_from_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline float bf16_to_float(uint16_t h) {
    return float_from_bits((uint32_t)h << 16);
}

/* To nearest even; a NaN stays a (quiet) NaN. */
static inline uint16_t bf16_from_float(float f) {
    uint32_t u = float_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static inline float bf16_round(float f) {
    return bf16_to_float(bf16_from_float(f));
}

float f16_to_float(uint16_t h);
uint16_t f16_from_float(float f); /* to nearest even */

#endif
