/* The element types of stored tensors: one table, a row each. */
#ifndef LG_FORMATS_DTYPE_H
#define LG_FORMATS_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"
#include "formats/blocks.h"

/* Name as printed, elements a block, bytes a block, kind: "plain" and "block" (blocks.h) have a
 * conversion to f32 and are served; "none" is known so that a refusal can name it. */
/* clang-format off */
#define DTYPE_MAP(X)                 \
    X(F32,     1,   4, plain)        \
    X(F16,     1,   2, plain)        \
    X(BF16,    1,   2, plain)        \
    X(F8_E4M3, 1,   1, plain)        \
    X(Q8_0,   32,  34, block)        \
    X(Q4_0,   32,  18, block)        \
    X(Q4_1,   32,  20, block)        \
    X(Q5_0,   32,  22, block)        \
    X(Q5_1,   32,  24, block)        \
    X(IQ4_NL, 32,  18, block)        \
    X(Q2_K,  256,  84, block)        \
    X(Q3_K,  256, 110, block)        \
    X(Q4_K,  256, 144, block)        \
    X(Q5_K,  256, 176, block)        \
    X(Q6_K,  256, 210, block)        \
    X(F64,     1,   8, none)         \
    X(I8,      1,   1, none)         \
    X(U8,      1,   1, none)         \
    X(I16,     1,   2, none)         \
    X(U16,     1,   2, none)         \
    X(I32,     1,   4, none)         \
    X(U32,     1,   4, none)         \
    X(I64,     1,   8, none)         \
    X(U64,     1,   8, none)         \
    X(BOOL,    1,   1, none)         \
    X(F8_E5M2, 1,   1, none)
/* clang-format on */

typedef enum DType {
#define DTYPE_ENUM(name, elems, bytes, kind) DTYPE_##name,
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
    BlockPartsFn *parts; /* of a block format; NULL otherwise */
} DTypeInfo;

const DTypeInfo *dtype_info(DType t);
/* Bytes of a row of `elems` elements; false where elems is no multiple of the block or the product
 * wraps. */
bool dtype_row_bytes(DType t, uint64_t elems, uint64_t *bytes);

#endif
