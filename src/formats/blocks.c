/* GGUF's block formats; all values are little-endian.
 *
 * Blocks of 32, one scale each:
 *     Q8_0   = f16 d, i8 q[32]: d q
 *     Q4_0   = f16 d, nibbles[16]: d (q - 8)           Q4_1 = f16 d, f16 m, nibbles[16]: d q + m
 *     Q5_0   = f16 d, u32 fifth bits, nibbles[16]: d (q - 16)
 *     Q5_1   = f16 d, f16 m, u32 fifth bits, nibbles[16]: d q + m
 *     IQ4_NL = f16 d, nibbles[16]: d table[q]
 * where the low halves of the 16 bytes are elements 0 to 15 and the high halves 16 to 31.
 *
 * Blocks of 256, whose runs have small scales of their own:
 *     Q2_K = u8 (scale | min << 4)[16], crumbs[64], f16 d, f16 dmin: runs of 16
 *     Q3_K = third bits[32], crumbs[64], 6-bit scales[12], f16 d: d (scale - 32) (q - 4), runs of
 * 16 Q4_K = f16 d, f16 dmin, 6-bit scales and mins[12], nibbles[128]: runs of 32 Q5_K = f16 d, f16
 * dmin, the same 12, fifth bits[32], nibbles[128]: runs of 32 Q6_K = nibbles[128], two high
 * bits[64], i8 scale[16], f16 d: d scale (q - 32), runs of 16 where a minimum is subtracted: (d
 * scale) q - dmin min. */
#include "formats/blocks.h"

#include <string.h>

#include "base/float.h"

static uint16_t load_u16(const unsigned char *p) {
    return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t load_u32(const unsigned char *p) {
    return (uint32_t)load_u16(p) | (uint32_t)load_u16(p + 2) << 16;
}

/* ---- blocks of 32 ---- */

static void one_run(BlockParts *out, uint16_t d) {
    out->d = d;
    out->m = 0;
    out->run = 32;
    out->scale[0] = 1;
    out->min[0] = 0;
}

static void one_run_with_minimum(BlockParts *out, uint16_t d, uint16_t m) {
    one_run(out, d);
    out->m = m;
    out->min[0] = 1;
}

static void nibbles(const unsigned char *p, int less, int8_t *code) {
    for (int i = 0; i < 16; i++) {
        code[i] = (int8_t)((p[i] & 15) - less);
        code[16 + i] = (int8_t)((p[i] >> 4) - less);
    }
}

static void nibbles_and_fifth_bits(const unsigned char *p, uint32_t fifth, int less, int8_t *code) {
    nibbles(p, less, code);
    for (int i = 0; i < 32; i++)
        code[i] = (int8_t)(code[i] + (int)((fifth >> i & 1) << 4));
}

void block_parts_Q8_0(const unsigned char *p, BlockParts *out) {
    one_run(out, load_u16(p));
    memcpy(out->code, p + 2, 32);
}

void block_parts_Q4_0(const unsigned char *p, BlockParts *out) {
    one_run(out, load_u16(p));
    nibbles(p + 2, 8, out->code);
}

void block_parts_Q4_1(const unsigned char *p, BlockParts *out) {
    one_run_with_minimum(out, load_u16(p), load_u16(p + 2));
    nibbles(p + 4, 0, out->code);
}

void block_parts_Q5_0(const unsigned char *p, BlockParts *out) {
    one_run(out, load_u16(p));
    nibbles_and_fifth_bits(p + 6, load_u32(p + 2), 16, out->code);
}

void block_parts_Q5_1(const unsigned char *p, BlockParts *out) {
    one_run_with_minimum(out, load_u16(p), load_u16(p + 2));
    nibbles_and_fifth_bits(p + 8, load_u32(p + 4), 0, out->code);
}

void block_parts_IQ4_NL(const unsigned char *p, BlockParts *out) {
    static const int8_t table[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};
    one_run(out, load_u16(p));
    nibbles(p + 2, 0, out->code);
    for (int i = 0; i < 32; i++)
        out->code[i] = table[out->code[i]];
}

/* ---- blocks of 256 ---- */

/* A minimum is subtracted: the sign goes into its f16. */
static uint16_t negative(uint16_t h) {
    return h ^ 0x8000u;
}

/* Two bits each: the four pairs of 32 bytes are four stretches of 32 elements, twice. */
static void crumbs(const unsigned char *p, int8_t *code) {
    for (int half = 0; half < 2; half++, p += 32)
        for (int shift = 0; shift < 8; shift += 2)
            for (int i = 0; i < 32; i++)
                *code++ = (int8_t)(p[i] >> shift & 3);
}

/* Four bits each: low halves of 32 bytes, then the high ones, four times. */
static void long_nibbles(const unsigned char *p, int8_t *code) {
    for (int quarter = 0; quarter < 4; quarter++, p += 32)
        for (int shift = 0; shift < 8; shift += 4)
            for (int i = 0; i < 32; i++)
                *code++ = (int8_t)(p[i] >> shift & 15);
}

void block_parts_Q2_K(const unsigned char *p, BlockParts *out) {
    out->d = load_u16(p + 80);
    out->m = negative(load_u16(p + 82));
    out->run = 16;
    for (int r = 0; r < 16; r++) {
        out->scale[r] = (int8_t)(p[r] & 15);
        out->min[r] = (int8_t)(p[r] >> 4);
    }
    crumbs(p + 16, out->code);
}

/* q - 4 would be signed: the 4 becomes a minimum of -4 scale, which keeps codes in four bits.  Bit
 * r / 2 of the third bits belongs to run r. */
void block_parts_Q3_K(const unsigned char *p, BlockParts *out) {
    const unsigned char *third = p, *scales = p + 96;
    out->d = out->m = load_u16(p + 108);
    out->run = 16;
    for (int r = 0; r < 16; r++) {
        int low = scales[r % 8] >> (r < 8 ? 0 : 4) & 15;
        int high = scales[8 + r % 4] >> (r / 4 * 2) & 3;
        out->scale[r] = (int8_t)((low | high << 4) - 32);
        out->min[r] = (int8_t)(-4 * out->scale[r]);
    }
    crumbs(p + 32, out->code);
    for (int i = 0; i < 256; i++)
        out->code[i] = (int8_t)(out->code[i] | (third[i % 32] >> (i / 32) & 1) << 2);
}

/* Eight scales and eight minimums of six bits: those of runs 0 to 3 lie whole in the low six bits
 * of eight bytes, whose top bits are the high ones of runs 4 to 7. */
static void six_bits(const unsigned char *p, BlockParts *out) {
    for (int r = 0; r < 4; r++) {
        out->scale[r] = (int8_t)(p[r] & 63);
        out->min[r] = (int8_t)(p[4 + r] & 63);
        out->scale[4 + r] = (int8_t)((p[8 + r] & 15) | p[r] >> 6 << 4);
        out->min[4 + r] = (int8_t)(p[8 + r] >> 4 | p[4 + r] >> 6 << 4);
    }
}

static void eight_runs(const unsigned char *p, BlockParts *out) {
    out->d = load_u16(p);
    out->m = negative(load_u16(p + 2));
    out->run = 32;
    six_bits(p + 4, out);
}

void block_parts_Q4_K(const unsigned char *p, BlockParts *out) {
    eight_runs(p, out);
    long_nibbles(p + 16, out->code);
}

void block_parts_Q5_K(const unsigned char *p, BlockParts *out) {
    eight_runs(p, out);
    long_nibbles(p + 48, out->code);
    for (int i = 0; i < 256; i++)
        out->code[i] = (int8_t)(out->code[i] | (p[16 + i % 32] >> (i / 32) & 1) << 4);
}

void block_parts_Q6_K(const unsigned char *p, BlockParts *out) {
    out->d = load_u16(p + 208);
    out->m = 0;
    out->run = 16;
    memcpy(out->scale, p + 192, 16);
    memset(out->min, 0, 16);
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < 128; i++) {
            int low = p[64 * half + i % 64] >> (i < 64 ? 0 : 4) & 15;
            int high = p[128 + 32 * half + i % 32] >> (i / 32 * 2) & 3;
            out->code[128 * half + i] = (int8_t)((low | high << 4) - 32);
        }
}

void blocks_to_f32(BlockPartsFn *parts, uint32_t elems, uint32_t bytes, const void *src, float *dst,
                   uint64_t count) {
    const unsigned char *p = src;
    BlockParts b;
    for (; count >= elems; count -= elems, p += bytes, dst += elems) {
        parts(p, &b);
        float d = f16_to_float(b.d), m = f16_to_float(b.m);
        for (uint32_t i = 0; i < elems; i++) {
            uint32_t r = i / b.run;
            float value = d * (float)b.scale[r] * (float)b.code[i];
            dst[i] = b.min[r] ? value + m * (float)b.min[r] : value;
        }
    }
}
