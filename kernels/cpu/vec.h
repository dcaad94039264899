/* Eight f32 lanes, and sixteen (a panel's outputs), and the few operations that the kernels need,
 * by feature level: AVX2 with FMA where LGP_LEVEL_AVX2 is defined, with LGP_LEVEL_AVX512 too
 * sixteen lanes in one register (LGP_LEVEL_BF16 and LGP_LEVEL_AMX add to it what pairs.h and
 * tiles.h have), otherwise pairs of the compiler's own four-lane vectors. Kernels are written once
 * on these names.  At a level every operation has one meaning: a multiply-add rounds once at AVX2
 * and AVX-512, which give the same bits, and twice at the generic level. */
#ifndef LG_CPU_VEC_H
#define LG_CPU_VEC_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LGP_INLINE static inline __attribute__((always_inline, unused))
#define LGP_NOINLINE static __attribute__((noinline, unused))

LGP_INLINE uint32_t lgp_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

LGP_INLINE float lgp_from_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* To bf16, nearest even; a NaN stays one. */
LGP_INLINE uint16_t lgp_bf16_bits(float f) {
    uint32_t u = lgp_bits(f);
    uint32_t r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return (uint16_t)(f == f ? r : ((u >> 16) | 0x40u));
}

LGP_INLINE float lgp_round_bf16(float f) {
    uint32_t u = lgp_bits(f);
    uint32_t r = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
    return lgp_from_bits(f == f ? r : ((u | 0x400000u) & 0xffff0000u));
}

LGP_INLINE uint16_t lgp_load_u16(const void *p) {
    uint16_t u;
    memcpy(&u, p, sizeof u);
    return u;
}

/* Every f16 is an f32: scaling by a power of two turns f16's subnormals into normal numbers. */
LGP_INLINE float lgp_f16_float(uint16_t h) {
    uint32_t u = (uint32_t)(h & 0x7fffu) << 13;
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    float f = lgp_from_bits(u) * 0x1p112f;
    return lgp_from_bits(((h & 0x7c00u) == 0x7c00u ? (u | 0x7f800000u) : lgp_bits(f)) | sign);
}

/* a * b + c with the rounding of the level. */
LGP_INLINE float lgp_fma(float a, float b, float c) {
#ifdef LGP_LEVEL_AVX2
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

#ifdef LGP_LEVEL_AVX2
#include <immintrin.h>
#if defined LGP_LEVEL_AMX
#define LGP_LEVEL_NAME "amx"
#elif defined LGP_LEVEL_BF16
#define LGP_LEVEL_NAME "avx512bf16"
#elif defined LGP_LEVEL_AVX512
#define LGP_LEVEL_NAME "avx512"
#else
#define LGP_LEVEL_NAME "avx2"
#endif
typedef __m256 LgpF8;
typedef __m256i LgpI8;

LGP_INLINE LgpF8 lgp_f8_zero(void) {
    return _mm256_setzero_ps();
}
LGP_INLINE LgpF8 lgp_f8_set(float f) {
    return _mm256_set1_ps(f);
}
LGP_INLINE LgpF8 lgp_f8_load(const float *p) {
    return _mm256_loadu_ps(p);
}
LGP_INLINE void lgp_f8_store(float *p, LgpF8 v) {
    _mm256_storeu_ps(p, v);
}
LGP_INLINE LgpF8 lgp_f8_add(LgpF8 a, LgpF8 b) {
    return _mm256_add_ps(a, b);
}
LGP_INLINE LgpF8 lgp_f8_sub(LgpF8 a, LgpF8 b) {
    return _mm256_sub_ps(a, b);
}
LGP_INLINE LgpF8 lgp_f8_mul(LgpF8 a, LgpF8 b) {
    return _mm256_mul_ps(a, b);
}
LGP_INLINE LgpF8 lgp_f8_fma(LgpF8 a, LgpF8 b, LgpF8 c) {
    return _mm256_fmadd_ps(a, b, c);
}
LGP_INLINE LgpF8 lgp_f8_div(LgpF8 a, LgpF8 b) {
    return _mm256_div_ps(a, b);
}
/* The larger; b where they compare as neither (a NaN). */
LGP_INLINE LgpF8 lgp_f8_max(LgpF8 a, LgpF8 b) {
    return _mm256_max_ps(a, b);
}
LGP_INLINE LgpI8 lgp_i8_set(uint32_t u) {
    return _mm256_set1_epi32((int32_t)u);
}
LGP_INLINE LgpI8 lgp_i8_load(const void *p) {
    return _mm256_loadu_si256((const __m256i *)p);
}
LGP_INLINE LgpI8 lgp_i8_and(LgpI8 a, LgpI8 b) {
    return _mm256_and_si256(a, b);
}
#define lgp_i8_shl(a, n) _mm256_slli_epi32((a), (n))
#define lgp_i8_shr(a, n) _mm256_srli_epi32((a), (n))
/* Lanes are signed numbers. */
LGP_INLINE LgpF8 lgp_i8_float(LgpI8 a) {
    return _mm256_cvtepi32_ps(a);
}
LGP_INLINE LgpF8 lgp_i8_as_f8(LgpI8 a) {
    return _mm256_castsi256_ps(a);
}
/* Eight signed bytes as numbers. */
LGP_INLINE LgpF8 lgp_f8_load_s8(const void *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
LGP_INLINE LgpF8 lgp_f8_load_f16(const void *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
/* Eight f8 (e4m3), each 2^-8 of its number: as f16 with the same exponent and mantissa. */
LGP_INLINE LgpF8 lgp_f8_load_e4m3(const void *p) {
    __m128i wide = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)p)), 7);
    return _mm256_cvtph_ps(_mm_and_si128(wide, _mm_set1_epi16((int16_t)0xbf80)));
}
/* Lanes at even and at odd places of 16 values → the first eight, the last eight. */
LGP_INLINE void lgp_f8_zip(LgpF8 even, LgpF8 odd, LgpF8 *first, LgpF8 *last) {
    __m256 lo = _mm256_unpacklo_ps(even, odd), hi = _mm256_unpackhi_ps(even, odd);
    *first = _mm256_permute2f128_ps(lo, hi, 0x20);
    *last = _mm256_permute2f128_ps(lo, hi, 0x31);
}
LGP_INLINE LgpF8 lgp_f8_round_bf16(LgpF8 v) {
    __m256i u = _mm256_castps_si256(v);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i nan = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    __m256 pick = _mm256_blendv_ps(_mm256_castsi256_ps(r), _mm256_castsi256_ps(nan),
                                   _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return _mm256_and_ps(pick, _mm256_castsi256_ps(_mm256_set1_epi32((int32_t)0xffff0000u)));
}

#else
#define LGP_LEVEL_NAME "generic"
typedef float LgpV4 __attribute__((vector_size(16)));
typedef int32_t LgpN4 __attribute__((vector_size(16)));
typedef uint32_t LgpU4 __attribute__((vector_size(16)));
typedef struct LgpF8 {
    LgpV4 a, b;
} LgpF8;
typedef struct LgpI8 {
    LgpU4 a, b;
} LgpI8;

LGP_INLINE LgpF8 lgp_f8_set(float f) {
    return (LgpF8){{f, f, f, f}, {f, f, f, f}};
}
LGP_INLINE LgpF8 lgp_f8_zero(void) {
    return lgp_f8_set(0.0f);
}
LGP_INLINE LgpF8 lgp_f8_load(const float *p) {
    LgpF8 v;
    memcpy(&v.a, p, 16);
    memcpy(&v.b, p + 4, 16);
    return v;
}
LGP_INLINE void lgp_f8_store(float *p, LgpF8 v) {
    memcpy(p, &v.a, 16);
    memcpy(p + 4, &v.b, 16);
}
LGP_INLINE LgpF8 lgp_f8_add(LgpF8 x, LgpF8 y) {
    return (LgpF8){x.a + y.a, x.b + y.b};
}
LGP_INLINE LgpF8 lgp_f8_sub(LgpF8 x, LgpF8 y) {
    return (LgpF8){x.a - y.a, x.b - y.b};
}
LGP_INLINE LgpF8 lgp_f8_mul(LgpF8 x, LgpF8 y) {
    return (LgpF8){x.a * y.a, x.b * y.b};
}
LGP_INLINE LgpF8 lgp_f8_fma(LgpF8 x, LgpF8 y, LgpF8 z) {
    return (LgpF8){x.a * y.a + z.a, x.b * y.b + z.b};
}
LGP_INLINE LgpF8 lgp_f8_div(LgpF8 x, LgpF8 y) {
    return (LgpF8){x.a / y.a, x.b / y.b};
}
LGP_INLINE LgpV4 lgp_v4_pick(LgpN4 mask, LgpV4 yes, LgpV4 no) {
    return (LgpV4)((mask & (LgpN4)yes) | (~mask & (LgpN4)no));
}
LGP_INLINE LgpF8 lgp_f8_max(LgpF8 x, LgpF8 y) {
    return (LgpF8){lgp_v4_pick(x.a > y.a, x.a, y.a), lgp_v4_pick(x.b > y.b, x.b, y.b)};
}
LGP_INLINE LgpI8 lgp_i8_set(uint32_t u) {
    return (LgpI8){{u, u, u, u}, {u, u, u, u}};
}
LGP_INLINE LgpI8 lgp_i8_load(const void *p) {
    LgpI8 v;
    memcpy(&v.a, p, 16);
    memcpy(&v.b, (const char *)p + 16, 16);
    return v;
}
LGP_INLINE LgpI8 lgp_i8_and(LgpI8 x, LgpI8 y) {
    return (LgpI8){x.a & y.a, x.b & y.b};
}
#define lgp_i8_shl(x, n) ((LgpI8){(x).a << (n), (x).b << (n)})
#define lgp_i8_shr(x, n) ((LgpI8){(x).a >> (n), (x).b >> (n)})
LGP_INLINE LgpF8 lgp_i8_float(LgpI8 x) {
    return (LgpF8){__builtin_convertvector((LgpN4)x.a, LgpV4),
                   __builtin_convertvector((LgpN4)x.b, LgpV4)};
}
LGP_INLINE LgpF8 lgp_i8_as_f8(LgpI8 x) {
    return (LgpF8){(LgpV4)x.a, (LgpV4)x.b};
}
LGP_INLINE LgpF8 lgp_f8_load_s8(const void *p) {
    const int8_t *c = p;
    LgpN4 a = {c[0], c[1], c[2], c[3]}, b = {c[4], c[5], c[6], c[7]};
    return (LgpF8){__builtin_convertvector(a, LgpV4), __builtin_convertvector(b, LgpV4)};
}
/* As lgp_f16_float, four at once. */
LGP_INLINE LgpV4 lgp_v4_load_f16(const void *p) {
    uint16_t __attribute__((vector_size(8))) half;
    memcpy(&half, p, 8);
    LgpU4 u = __builtin_convertvector(half, LgpU4), size = (u & 0x7fffu) << 13;
    LgpV4 scaled = (LgpV4)size * 0x1p112f;
    LgpV4 f = lgp_v4_pick((u & 0x7c00u) == 0x7c00u, (LgpV4)(size | 0x7f800000u), scaled);
    return (LgpV4)((LgpU4)f | (u & 0x8000u) << 16);
}
LGP_INLINE LgpF8 lgp_f8_load_f16(const void *p) {
    return (LgpF8){lgp_v4_load_f16(p), lgp_v4_load_f16((const char *)p + 8)};
}
LGP_INLINE LgpV4 lgp_v4_load_e4m3(const unsigned char *p) {
    LgpU4 u = {p[0], p[1], p[2], p[3]};
    LgpV4 size = (LgpV4)((u & 0x7fu) << 20) * 0x1p112f;
    return (LgpV4)((LgpU4)size | (u & 0x80u) << 24);
}
LGP_INLINE LgpF8 lgp_f8_load_e4m3(const void *p) {
    return (LgpF8){lgp_v4_load_e4m3(p), lgp_v4_load_e4m3((const unsigned char *)p + 4)};
}
LGP_INLINE void lgp_f8_zip(LgpF8 even, LgpF8 odd, LgpF8 *first, LgpF8 *last) {
    *first = (LgpF8){{even.a[0], odd.a[0], even.a[1], odd.a[1]},
                     {even.a[2], odd.a[2], even.a[3], odd.a[3]}};
    *last = (LgpF8){{even.b[0], odd.b[0], even.b[1], odd.b[1]},
                    {even.b[2], odd.b[2], even.b[3], odd.b[3]}};
}
LGP_INLINE LgpV4 lgp_v4_round_bf16(LgpV4 v) {
    LgpU4 u = (LgpU4)v;
    LgpU4 r = u + 0x7fffu + ((u >> 16) & 1u);
    LgpV4 pick = lgp_v4_pick(v == v, (LgpV4)r, (LgpV4)(u | 0x400000u));
    return (LgpV4)((LgpU4)pick & 0xffff0000u);
}
LGP_INLINE LgpF8 lgp_f8_round_bf16(LgpF8 v) {
    return (LgpF8){lgp_v4_round_bf16(v.a), lgp_v4_round_bf16(v.b)};
}
#endif

/* Sixteen bf16 from memory: those at even places and those at odd ones. */
LGP_INLINE void lgp_f8_load_bf16_pair(const void *p, LgpF8 *even, LgpF8 *odd) {
    LgpI8 u = lgp_i8_load(p);
    *even = lgp_i8_as_f8(lgp_i8_shl(u, 16));
    *odd = lgp_i8_as_f8(lgp_i8_and(u, lgp_i8_set(0xffff0000u)));
}

/* Sixteen lanes: a panel's outputs. */
#ifdef LGP_LEVEL_AVX512
typedef __m512 LgpF16;

LGP_INLINE LgpF16 lgp_f16_zero(void) {
    return _mm512_setzero_ps();
}
LGP_INLINE LgpF16 lgp_f16_set(float f) {
    return _mm512_set1_ps(f);
}
LGP_INLINE LgpF16 lgp_f16_load(const float *p) {
    return _mm512_loadu_ps(p);
}
LGP_INLINE void lgp_f16_store(float *p, LgpF16 v) {
    _mm512_storeu_ps(p, v);
}
LGP_INLINE LgpF16 lgp_f16_add(LgpF16 a, LgpF16 b) {
    return _mm512_add_ps(a, b);
}
LGP_INLINE LgpF16 lgp_f16_sub(LgpF16 a, LgpF16 b) {
    return _mm512_sub_ps(a, b);
}
LGP_INLINE LgpF16 lgp_f16_mul(LgpF16 a, LgpF16 b) {
    return _mm512_mul_ps(a, b);
}
LGP_INLINE LgpF16 lgp_f16_fma(LgpF16 a, LgpF16 b, LgpF16 c) {
    return _mm512_fmadd_ps(a, b, c);
}
/* Sixteen words: the values of their nibbles j. A permutation looks at four bits of each index. */
#define LGP_NIBBLE_FACTORS 0
LGP_INLINE LgpF16 lgp_f16_nibbles(const void *words, int j) {
    const __m512 values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i w = _mm512_loadu_si512(words);
    return _mm512_permutexvar_ps(j ? _mm512_srli_epi32(w, 4 * (j & 7)) : w, values);
}
LGP_INLINE LgpF8 lgp_nibble_factors(LgpF8 v) {
    return v;
}
LGP_INLINE LgpF16 lgp_f16_load_s8(const void *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
LGP_INLINE LgpF16 lgp_f16_load_f16(const void *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
LGP_INLINE LgpF16 lgp_f16_load_e4m3(const void *p) {
    __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p)), 7);
    return _mm512_cvtph_ps(_mm256_and_si256(wide, _mm256_set1_epi16((int16_t)0xbf80)));
}
/* Memory has lanes 0, 8, 1, 9, …: both halves read all of it and keep their own. */
LGP_INLINE LgpF16 lgp_f16_load_bf16(const void *p) {
    __m512i u = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)p));
    u = _mm512_mask_slli_epi32(u, 0x00ff, u, 16);
    return _mm512_castsi512_ps(_mm512_and_si512(u, _mm512_set1_epi32((int32_t)0xffff0000u)));
}
LGP_INLINE LgpF16 lgp_f16_round_bf16(LgpF16 v) {
    __m512i u = _mm512_castps_si512(v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    r = _mm512_mask_or_epi32(r, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), u,
                             _mm512_set1_epi32(0x400000));
    return _mm512_castsi512_ps(_mm512_and_si512(r, _mm512_set1_epi32((int32_t)0xffff0000u)));
}
#else
typedef struct LgpF16 {
    LgpF8 lo, hi;
} LgpF16;

LGP_INLINE LgpF16 lgp_f16_set(float f) {
    return (LgpF16){lgp_f8_set(f), lgp_f8_set(f)};
}
LGP_INLINE LgpF16 lgp_f16_zero(void) {
    return (LgpF16){lgp_f8_zero(), lgp_f8_zero()};
}
LGP_INLINE LgpF16 lgp_f16_load(const float *p) {
    return (LgpF16){lgp_f8_load(p), lgp_f8_load(p + 8)};
}
LGP_INLINE void lgp_f16_store(float *p, LgpF16 v) {
    lgp_f8_store(p, v.lo);
    lgp_f8_store(p + 8, v.hi);
}
LGP_INLINE LgpF16 lgp_f16_add(LgpF16 a, LgpF16 b) {
    return (LgpF16){lgp_f8_add(a.lo, b.lo), lgp_f8_add(a.hi, b.hi)};
}
LGP_INLINE LgpF16 lgp_f16_sub(LgpF16 a, LgpF16 b) {
    return (LgpF16){lgp_f8_sub(a.lo, b.lo), lgp_f8_sub(a.hi, b.hi)};
}
LGP_INLINE LgpF16 lgp_f16_mul(LgpF16 a, LgpF16 b) {
    return (LgpF16){lgp_f8_mul(a.lo, b.lo), lgp_f8_mul(a.hi, b.hi)};
}
LGP_INLINE LgpF16 lgp_f16_fma(LgpF16 a, LgpF16 b, LgpF16 c) {
    return (LgpF16){lgp_f8_fma(a.lo, b.lo, c.lo), lgp_f8_fma(a.hi, b.hi, c.hi)};
}
/* Sixteen words: those of nibble j, still where they stand in the word (16^j times their values),
 * but that the last is shifted down; what they are multiplied with counts 16^-j. */
#define LGP_NIBBLE_FACTORS 1
LGP_INLINE LgpF16 lgp_f16_nibbles(const void *words, int j) {
    LgpI8 a = lgp_i8_load(words), b = lgp_i8_load((const char *)words + 32);
    if (j == 7)
        return (LgpF16){lgp_i8_float(lgp_i8_shr(a, 28)), lgp_i8_float(lgp_i8_shr(b, 28))};
    LgpI8 mask = lgp_i8_set(15u << (4 * (j & 7)));
    return (LgpF16){lgp_i8_float(lgp_i8_and(a, mask)), lgp_i8_float(lgp_i8_and(b, mask))};
}
/* Of eight in turn. */
LGP_INLINE LgpF8 lgp_nibble_factors(LgpF8 v) {
    static const float power[8] = {1.0f,     0x1p-4f,  0x1p-8f,  0x1p-12f,
                                   0x1p-16f, 0x1p-20f, 0x1p-24f, 1.0f};
    return lgp_f8_mul(v, lgp_f8_load(power));
}
LGP_INLINE LgpF16 lgp_f16_load_s8(const void *p) {
    return (LgpF16){lgp_f8_load_s8(p), lgp_f8_load_s8((const char *)p + 8)};
}
LGP_INLINE LgpF16 lgp_f16_load_f16(const void *p) {
    return (LgpF16){lgp_f8_load_f16(p), lgp_f8_load_f16((const char *)p + 16)};
}
LGP_INLINE LgpF16 lgp_f16_load_e4m3(const void *p) {
    return (LgpF16){lgp_f8_load_e4m3(p), lgp_f8_load_e4m3((const char *)p + 8)};
}
LGP_INLINE LgpF16 lgp_f16_load_bf16(const void *p) {
    LgpF16 v;
    lgp_f8_load_bf16_pair(p, &v.lo, &v.hi);
    return v;
}
LGP_INLINE LgpF16 lgp_f16_round_bf16(LgpF16 v) {
    return (LgpF16){lgp_f8_round_bf16(v.lo), lgp_f8_round_bf16(v.hi)};
}
#endif

/* The sum of the lanes: ((0+4)+(2+6)) + ((1+5)+(3+7)). */
LGP_INLINE float lgp_f8_sum(LgpF8 v) {
#ifdef LGP_LEVEL_AVX2
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
#else
    LgpV4 four = v.a + v.b;
    return (four[0] + four[2]) + (four[1] + four[3]);
#endif
}

/* Lanes i and i + 8 first, then as lgp_f8_sum. */
LGP_INLINE float lgp_f16_sum(LgpF16 v) {
#ifdef LGP_LEVEL_AVX512
    return lgp_f8_sum(_mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)));
#else
    return lgp_f8_sum(lgp_f8_add(v.lo, v.hi));
#endif
}

#endif
