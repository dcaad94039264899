/* The dtype table and the conversions to f32, element by element as the formats define them. Block
 * layouts (all values little-endian): Q8_0 = f16 d, 32 × i8 q: q·d.  Q4_0 = f16 d, 16 bytes: (q −
 * 8)·d.  Q4_1 = f16 d, f16 m, 16 bytes: q·d + m. The low halves of the 16 bytes are elements 0 to
 * 15, the high halves 16 to 31. */
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

static void to_f32_Q8_0(const void *src, float *dst, size_t count) {
    const unsigned char *p = src;
    for (; count >= 32; count -= 32, p += 34, dst += 32) {
        float d = f16_to_float(load_u16(p));
        for (int i = 0; i < 32; i++)
            dst[i] = (float)(int8_t)p[2 + i] * d;
    }
}

static void to_f32_Q4_0(const void *src, float *dst, size_t count) {
    const unsigned char *p = src;
    for (; count >= 32; count -= 32, p += 18, dst += 32) {
        float d = f16_to_float(load_u16(p));
        for (int i = 0; i < 16; i++) {
            dst[i] = (float)((p[2 + i] & 15) - 8) * d;
            dst[16 + i] = (float)((p[2 + i] >> 4) - 8) * d;
        }
    }
}

static void to_f32_Q4_1(const void *src, float *dst, size_t count) {
    const unsigned char *p = src;
    for (; count >= 32; count -= 32, p += 20, dst += 32) {
        float d = f16_to_float(load_u16(p));
        float m = f16_to_float(load_u16(p + 2));
        for (int i = 0; i < 16; i++) {
            dst[i] = (float)(p[4 + i] & 15) * d + m;
            dst[16 + i] = (float)(p[4 + i] >> 4) * d + m;
        }
    }
}

/* A row that says "served" and has no conversion does not compile. */
#define CONVERSION_true(dtype) to_f32_##dtype
#define CONVERSION_false(dtype) NULL

static const DTypeInfo dtypes[DTYPE_COUNT] = {
#define DTYPE_ROW(dtype, elems, bytes, is_served)                                                  \
    [DTYPE_##dtype] = {                                                                            \
        .name = #dtype,                                                                            \
        .block_elems = elems,                                                                      \
        .block_bytes = bytes,                                                                      \
        .served = is_served,                                                                       \
        .to_f32 = CONVERSION_##is_served(dtype),                                                   \
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
