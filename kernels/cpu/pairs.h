/* Products of pairs of bf16 (levels with AVX512-BF16), for weights whose codes are exact in bf16
 * and rows of x that hold bf16 values already, so that nothing is rounded that was not before.
 *
 * One step of lgp_pair_dot adds two products to a lane, as Intel defines VDPBF16PS: first that of
 * the upper halves, then that of the lower ones, each as a multiply-add that rounds once, to
 * nearest even; inputs below 2^-126 count as zero, and so does what comes out below it. So a chain
 * of n inputs has the n roundings that it has in f32, and loses in addition at most 2^-126 a step
 * and 2^-126 times the other factor an input.
 *
 * Pairs of a block, 16 of them: inputs 8 g + 2 j and 8 g + 2 j + 1 (g and j below 4); of codes of
 * four bits 8 g + j and 8 g + j + 4, which are the same nibble of a word's two halves. */
#ifndef LG_CPU_PAIRS_H
#define LG_CPU_PAIRS_H

#include "kernels/cpu/abi.h"
#include "kernels/cpu/vec.h"

#define LGP_PAIRS (LGP_BLOCK / 2)

/* Formats whose weights are exact in bf16. */
LGP_INLINE int lgp_pair_format(int format) {
#ifdef LGP_LEVEL_BF16
    return format != LGP_F32 && format != LGP_F16;
#else
    (void)format;
    return 0;
#endif
}

#ifdef LGP_LEVEL_BF16
LGP_INLINE LgpF16 lgp_pair_dot(LgpF16 weights, LgpF16 x, LgpF16 p) {
    return _mm512_dpbf16_ps(p, (__m512bh)weights, (__m512bh)x);
}

/* Two vectors of numbers that are exact in bf16: a lane has the pair of its own. */
LGP_INLINE LgpF16 lgp_pair_of(LgpF16 low, LgpF16 high) {
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(low), 16),
                                               _mm512_castps_si512(high)));
}

/* Words of nibbles: lane by lane bf16 numbers of nibble j of both halves. A permutation of 32 words
 * looks at five bits of each index: the sixteen values are there twice. */
LGP_INLINE LgpF16 lgp_pair_nibbles(const void *words, int j) {
    static const uint16_t values[32] __attribute__((aligned(64))) = {
        0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120,
        0x4130, 0x4140, 0x4150, 0x4160, 0x4170, 0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0,
        0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170};
    __m512i w = _mm512_loadu_si512(words);
    w = j ? _mm512_srli_epi16(w, 4 * (j & 3)) : w;
    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(w, _mm512_load_si512(values)));
}

/* Packed bf16 of two k, outputs 0, 8, 1, 9, …: output o's pair to lane o. */
LGP_INLINE LgpF16 lgp_pair_bf16(const void *p) {
    static const uint16_t place[32]
        __attribute__((aligned(64))) = {0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30,
                                        1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31};
    return _mm512_castsi512_ps(
        _mm512_permutexvar_epi16(_mm512_load_si512(place), _mm512_loadu_si512(p)));
}

/* Pair 4 group + j of a block. */
LGP_INLINE LgpF16 lgp_pair_weights(int format, const unsigned char *block, int group, int j) {
    const unsigned char *codes = block + lgp_layouts[format].scale_bytes;
    const int k = 8 * group + 2 * j;
    if (lgp_layouts[format].code_bits == 4)
        return lgp_pair_nibbles(codes + group * 64, j);
    if (format == LGP_BF16)
        return lgp_pair_bf16(codes + k * LGP_PANEL * 2);
    codes += k * LGP_PANEL;
    if (format == LGP_F8)
        return lgp_pair_of(lgp_f16_load_e4m3(codes), lgp_f16_load_e4m3(codes + LGP_PANEL));
    return lgp_pair_of(lgp_f16_load_s8(codes), lgp_f16_load_s8(codes + LGP_PANEL));
}

/* A block of a row of x to its pairs, in the order that weights of so many bits have. */
LGP_INLINE void lgp_pair_x(int code_bits, const float *x, float *pairs) {
    static const uint16_t place[32] __attribute__((aligned(64))) = {
        0,  4,  1,  5,  2,  6,  3,  7,  8,  12, 9,  13, 10, 14, 11, 15,
        16, 20, 17, 21, 18, 22, 19, 23, 24, 28, 25, 29, 26, 30, 27, 31};
    __m512i v = (__m512i)_mm512_cvtne2ps_pbh(lgp_f16_load(x + 16), lgp_f16_load(x));
    if (code_bits == 4)
        v = _mm512_permutexvar_epi16(_mm512_load_si512(place), v);
    _mm512_storeu_si512(pairs, v);
}
#else
LGP_INLINE LgpF16 lgp_pair_dot(LgpF16 weights, LgpF16 x, LgpF16 p) {
    return lgp_f16_fma(weights, x, p);
}
LGP_INLINE LgpF16 lgp_pair_weights(int format, const unsigned char *block, int group, int j) {
    (void)format, (void)block, (void)group, (void)j;
    return lgp_f16_zero();
}
LGP_INLINE void lgp_pair_x(int code_bits, const float *x, float *pairs) {
    (void)code_bits, (void)x, (void)pairs;
}
#endif

#endif
