/* Elementary functions on f32, without branches, so that the compiler makes vectors of loops over
 * them; and rows of stored tables.
 *
 * Error bounds over all finite inputs, against the exact value (u = 2^-24 relative, plus half the
 * smallest subnormal; the kernel checks hold every function to them): exp 2 u (overflow gives
 * infinity, underflow subnormals and 0)      sigmoid 4 u      silu 5 u      tanh 4 u      gelu 8 u
 *     gelu_tanh 8 u + 6 |v| t u, where v is the argument of its sigmoid and t = 1 - sigmoid: what
 * the rounding of v makes of it. Each step adds at most the roundings that it does: exp 0.6 for its
 * polynomial and 1 for its last sum, a sum, quotient or product 1 each. A NaN gives a NaN. */
#ifndef LG_CPU_MATH_H
#define LG_CPU_MATH_H

#include "kernels/cpu/abi.h"
#include "kernels/cpu/vec.h"

/* e^(x + rest), |rest| <= 0.03: rest is what x lost when it was rounded. */
LGP_INLINE float lgp_exp_sum(float x, float rest) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    x = x < -104.0f ? -104.0f : x;
    x = x > 89.0f ? 89.0f : x;
    float shifted = lgp_fma(x, 1.44269504f, magic);
    float n = shifted - magic;
    int32_t power = (int32_t)(lgp_bits(shifted) - 0x4b400000u);
    float r = lgp_fma(n, -0.693359375f, x); /* exact: ln 2 in two parts, the first of few bits */
    r = lgp_fma(n, 2.12194440e-4f, r) + rest;
    float q = 0.00139325536f;
    q = lgp_fma(q, r, 0.00836827877f);
    q = lgp_fma(q, r, 0.0416665131f);
    q = lgp_fma(q, r, 0.166665438f);
    q = lgp_fma(q, r, 0.5f);
    float p = 1.0f + lgp_fma(r * r, q, r);
    /* 2^power in two factors, so that results below the normal numbers round once. */
    int32_t half = power >> 1;
    float first = lgp_from_bits(((uint32_t)half + 127u) << 23);
    float second = lgp_from_bits(((uint32_t)(power - half) + 127u) << 23);
    return p * first * second;
}

LGP_INLINE float lgp_exp(float x) {
    return lgp_exp_sum(x, 0.0f);
}

/* a where which is 1, b where it is 0. In bits: a conditional would come back as a branch, and
 * loops would be no vectors. */
LGP_INLINE float lgp_pick(int which, float a, float b) {
    uint32_t mask = 0u - (uint32_t)which;
    return lgp_from_bits((lgp_bits(a) & mask) | (lgp_bits(b) & ~mask));
}

LGP_INLINE float lgp_abs(float x) {
    return lgp_from_bits(lgp_bits(x) & 0x7fffffffu);
}

LGP_INLINE float lgp_sigmoid(float x) {
    float t = lgp_exp(-lgp_abs(x));
    return lgp_pick(x >= 0.0f, 1.0f, t) / (1.0f + t);
}

LGP_INLINE float lgp_silu(float x) {
    return x * lgp_sigmoid(x);
}

LGP_INLINE float lgp_tanh(float x) {
    float a = lgp_abs(x), y = x * x;
    float p = 0.00226950168f;
    p = lgp_fma(p, y, -0.00832318706f);
    p = lgp_fma(p, y, 0.0217625029f);
    p = lgp_fma(p, y, -0.0539584616f);
    p = lgp_fma(p, y, 0.133333001f);
    p = lgp_fma(p, y, -0.333333331f);
    float small = lgp_fma(x * y, p, x);
    float t = lgp_exp(-2.0f * a);
    float large = 1.0f - 2.0f * t / (1.0f + t);
    large = lgp_from_bits(lgp_bits(large) | (lgp_bits(x) & 0x80000000u));
    return lgp_pick(a < 0.625f, small, large);
}

/* x Φ(x). With a = |x|, Φ(-a) = exp(-a²/2) R(a); R (a + 4) / 4 is a polynomial of (a - 4) / (a +
 * 4). */
LGP_INLINE float lgp_gelu(float x) {
    float a = lgp_abs(x);
    a = lgp_pick(a > 15.0f, 15.0f, a);
    float inv = 1.0f / (a + 4.0f);
    float t = (a - 4.0f) * inv;
    float p = -1.31614124e-5f;
    p = lgp_fma(p, t, -5.86554403e-5f);
    p = lgp_fma(p, t, 4.23388646e-5f);
    p = lgp_fma(p, t, 0.000411573903f);
    p = lgp_fma(p, t, -0.000872018883f);
    p = lgp_fma(p, t, -0.00188631704f);
    p = lgp_fma(p, t, 0.0150993235f);
    p = lgp_fma(p, t, -0.0466303269f);
    p = lgp_fma(p, t, 0.0967843456f);
    p = lgp_fma(p, t, -0.151974164f);
    p = lgp_fma(p, t, 0.188821283f);
    /* a² in two parts: the square of its first 12 bits is exact. */
    float head = lgp_from_bits((lgp_bits(a) + 0x800u) & 0xfffff000u);
    float e = lgp_exp_sum(-0.5f * head * head, -0.5f * (a - head) * (a + head));
    float tail = e * (p * (4.0f * inv));
    return x * lgp_pick(x >= 0.0f, 1.0f - tail, tail);
}

/* x sigmoid(2 sqrt(2/π) (x + 0.044715 x³)), which is the usual formula with tanh. */
LGP_INLINE float lgp_gelu_tanh(float x) {
    float v = 1.59576912f * x * lgp_fma(0.044715f * x, x, 1.0f);
    return x * lgp_sigmoid(v);
}

LGP_INLINE float lgp_rsqrt(float x) {
    return 1.0f / __builtin_sqrtf(x);
}

/* Row `row` of a table, w->columns elements as f32. */
LGP_INLINE void lgp_table_row(const LgpWeight *w, int32_t row, float *out) {
    w->to_f32((const unsigned char *)w->data + (uint64_t)row * w->row_bytes, out,
              (size_t)w->columns);
}

/* A vector as a row sees it. */
LGP_INLINE const float *lgp_vector(const LgpStep *step, int32_t domain, int32_t row,
                                   int32_t weight) {
    const void *own = lgp_replaced(step->replaced[domain], row, weight);
    return (const float *)(own ? own : step->weights[weight].data);
}

/* The place of row `row` among rows that are replaced; -1: it is not. */
LGP_INLINE int32_t lgp_find_row(const LgpRows *r, int32_t row) {
    int32_t low = 0, high = r->count;
    if (!r->rows)
        return row;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (r->rows[middle] < row)
            low = middle + 1;
        else
            high = middle;
    }
    return low < r->count && r->rows[low] == row ? low : -1;
}

/* Row `index` of a table as a row of the step sees it. */
LGP_INLINE void lgp_lookup(const LgpStep *step, int32_t domain, int32_t row, int32_t weight,
                           int32_t index, float *out) {
    const LgpRows *own = (const LgpRows *)lgp_replaced(step->replaced[domain], row, weight);
    int32_t at = own ? lgp_find_row(own, index) : -1;
    if (at >= 0)
        lgp_table_row(&own->weight, at, out);
    else
        lgp_table_row(&step->weights[weight], index, out);
}

#endif
