/* The element types of stored tensors: one table, a row each. */
#ifndef LG_FORMATS_DTYPE_H
#define LG_FORMATS_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

/* Name as printed, elements a block, bytes a block, whether the engine computes from it.
 * Types that are known but not served are here so that a refusal can name them. */
/* clang-format off */
#define DTYPE_MAP(X)                 \
    X(F32,     1,   4, true)         \
    X(F16,     1,   2, true)         \
    X(BF16,    1,   2, true)         \
    X(Q8_0,   32,  34, true)         \
    X(Q4_0,   32,  18, true)         \
    X(Q4_1,   32,  20, true)         \
    X(Q5_0,   32,  22, false)        \
    X(Q5_1,   32,  24, false)        \
    X(Q2_K,  256,  84, false)        \
    X(Q3_K,  256, 110, false)        \
    X(Q4_K,  256, 144, false)        \
    X(Q5_K,  256, 176, false)        \
    X(Q6_K,  256, 210, false)        \
    X(IQ4_NL, 32,  18, false)        \
    X(F64,     1,   8, false)        \
    X(I8,      1,   1, false)        \
    X(U8,      1,   1, false)        \
    X(I16,     1,   2, false)        \
    X(U16,     1,   2, false)        \
    X(I32,     1,   4, false)        \
    X(U32,     1,   4, false)        \
    X(I64,     1,   8, false)        \
    X(U64,     1,   8, false)        \
    X(BOOL,    1,   1, false)        \
    X(F8_E4M3, 1,   1, false)        \
    X(F8_E5M2, 1,   1, false)
/* clang-format on */

typedef enum DType {
#define DTYPE_ENUM(name, elems, bytes, served) DTYPE_##name,
    DTYPE_MAP(DTYPE_ENUM)
#undef DTYPE_ENUM
        DTYPE_COUNT
} DType;

typedef struct DTypeInfo {
    const char *name;
    uint32_t block_elems, block_bytes;
    bool served;
    /* Converts count elements (a multiple of block_elems) to f32, exactly as the format defines;
     * NULL where not served. */
    void (*to_f32)(const void *src, float *dst, size_t count);
} DTypeInfo;

const DTypeInfo *dtype_info(DType t);
/* Bytes of a row of `elems` elements; false where elems is no multiple of the block or the product
 * wraps. */
bool dtype_row_bytes(DType t, uint64_t elems, uint64_t *bytes);

#endif
