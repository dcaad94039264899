/* Block formats taken apart: what a block says, whatever order its bits lie in. Conversion to f32
 * and packing for the kernels both start from here. */
#ifndef LG_FORMATS_BLOCKS_H
#define LG_FORMATS_BLOCKS_H

#include <stdint.h>

#define BLOCK_ELEMS_MAX 256
#define BLOCK_RUN_MIN 16
#define BLOCK_RUNS_MAX (BLOCK_ELEMS_MAX / BLOCK_RUN_MIN)

/* Element i of run r: (d scale[r]) code[i] + m min[r]. The products are exact in f32, so that the
 * sum is the only rounding; formats without a minimum have m = 0 and min 0. */
typedef struct BlockParts {
    uint16_t d, m; /* f16 */
    uint16_t run;  /* elements that share scale and min: 16 or 32 */
    int8_t scale[BLOCK_RUNS_MAX], min[BLOCK_RUNS_MAX];
    int8_t code[BLOCK_ELEMS_MAX];
} BlockParts;

typedef void BlockPartsFn(const unsigned char *block, BlockParts *out);

BlockPartsFn block_parts_Q8_0, block_parts_Q4_0, block_parts_Q4_1, block_parts_Q5_0,
    block_parts_Q5_1, block_parts_Q2_K, block_parts_Q3_K, block_parts_Q4_K, block_parts_Q5_K,
    block_parts_Q6_K, block_parts_IQ4_NL;

/* count: whole blocks of `elems` elements in `bytes` bytes each. */
void blocks_to_f32(BlockPartsFn *parts, uint32_t elems, uint32_t bytes, const void *src, float *dst,
                   uint64_t count);

#endif
