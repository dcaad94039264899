/* The dtype table and the conversions to f32, element by element as the formats define them. */
#include "formats/dtype.h"

#include <assert.h>
#include <string.h>

#include "base/float.h"

static uint16_t load_u16(const unsigned char *p) {
    return (uint16_t)(p[0] | p[1] << 8);
}

static void to_f32_F32(const void *src, float *dst, size_t count) {
    memcpy(dst, src, count * sizeof *dst);
}

static void to_f32_F16(const void *src, float *dst, size_t count) {
    const unsigned char *p = src;
    for (size_t i = 0; i < count; i++)
        dst[i] = f16_to_float(load_u16(p + 2 * i));
}

static void to_f32_BF16(const void *src, float *dst, size_t count) {
    const unsigned char *p = src;
    for (size_t i = 0; i < count; i++)
        dst[i] = bf16_to_float(load_u16(p + 2 * i));
}

/* Four bits of exponent (bias 7), three of mantissa; no infinities, all ones is a NaN.  As an f16
 * with the same bits in place the number is 2^-8 of its value. */
static void to_f32_F8_E4M3(const void *src, float *dst, size_t count) {
    const unsigned char *p = src;
    for (size_t i = 0; i < count; i++) {
        uint16_t half = (uint16_t)((p[i] & 0x80) << 8 | (p[i] & 0x7f) << 7);
        dst[i] = (p[i] & 0x7f) == 0x7f ? float_from_bits(0x7fc00000u) : f16_to_float(half) * 256.0f;
    }
}

/* The block formats: what a block says, multiplied out. */
#define TO_F32_BLOCK(dtype, elems, bytes)                                                          \
    static void to_f32_##dtype(const void *src, float *dst, size_t count) {                        \
        blocks_to_f32(block_parts_##dtype, elems, bytes, src, dst, count);                         \
    }
#define TO_F32_plain(dtype, elems, bytes)
#define TO_F32_none(dtype, elems, bytes)
#define TO_F32_block(dtype, elems, bytes) TO_F32_BLOCK(dtype, elems, bytes)
#define TO_F32(dtype, elems, bytes, kind) TO_F32_##kind(dtype, elems, bytes)
DTYPE_MAP(TO_F32)
#undef TO_F32

/* A row of a kind that is served and has no conversion does not compile. */
#define KIND_plain(dtype) .served = true, .to_f32 = to_f32_##dtype
#define KIND_block(dtype) KIND_plain(dtype), .parts = block_parts_##dtype
#define KIND_none(dtype) .served = false

static const DTypeInfo dtypes[DTYPE_COUNT] = {
#define DTYPE_ROW(dtype, elems, bytes, kind)                                                       \
    [DTYPE_##dtype] = {                                                                            \
        .name = #dtype,                                                                            \
        .block_elems = elems,                                                                      \
        .block_bytes = bytes,                                                                      \
        KIND_##kind(dtype),                                                                        \
    },
    DTYPE_MAP(DTYPE_ROW)
#undef DTYPE_ROW
};

const DTypeInfo *dtype_info(DType t) {
    assert((unsigned)t < DTYPE_COUNT);
    return &dtypes[t];
}

bool dtype_row_bytes(DType t, uint64_t elems, uint64_t *bytes) {
    const DTypeInfo *info = dtype_info(t);
    if (elems % info->block_elems != 0)
        return false;
    uint64_t blocks = elems / info->block_elems;
    if (blocks > UINT64_MAX / info->block_bytes)
        return false;
    *bytes = blocks * info->block_bytes;
    return true;
}
