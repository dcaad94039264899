/* IEEE 754 binary16, by integer arithmetic: the same bits on every machine. */
#include "base/float.h"

float f16_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = h >> 10 & 0x1fu;
    uint32_t fraction = h & 0x3ffu;
    if (exponent == 0x1f)
        return float_from_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent)
        return float_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    float magnitude = (float)fraction * 0x1p-24f; /* subnormal or zero: exact in f32 */
    return float_from_bits(sign | float_bits(magnitude));
}

/* value / 2^shift to nearest even. */
static uint32_t shift_round(uint32_t value, unsigned shift) {
    uint32_t half = 1u << (shift - 1);
    uint32_t rest = value & ((half << 1) - 1);
    uint32_t up = rest > half || (rest == half && (value >> shift & 1u));
    return (value >> shift) + up;
}

uint16_t f16_from_float(float f) {
    uint32_t bits = float_bits(f);
    uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) /* NaN: quiet, with the top of its payload */
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x1ffu));
    if (magnitude >= 0x477ff000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude >= 0x38800000u) /* 2^-14: normal */
        return (uint16_t)(sign | shift_round(magnitude - 0x38000000u, 13));
    uint32_t exponent = magnitude >> 23;
    if (exponent < 102) /* below 2^-25: zero */
        return (uint16_t)sign;
    uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
    return (uint16_t)(sign | shift_round(significand, 126 - exponent));
}
