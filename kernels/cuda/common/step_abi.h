/* What host and device say to each other about a step of a compiled program: plain C on both sides.
 *
 * Every kernel of a program takes (const LgcStep *step, int layer); the step lies at one address of
 * the device and is written anew before each step, so that launches can be recorded once. */
#ifndef LG_CUDA_STEP_ABI_H
#define LG_CUDA_STEP_ABI_H

#include "lora_abi.h"

#ifdef __CUDACC__
#define LGC_TO(type) type *
#else
#define LGC_TO(type) LgcPtr
#endif

#define LGC_PAGE 64            /* positions of a KV page */
#define LGC_ROW_THREADS 1024   /* of a block of a launch over rows, at most */
#define LGC_TILE_OUTPUTS 16    /* of a block of a product, by 16 rows */
#define LGC_ATTEND_THREADS 256 /* of a block of attention: four quarters of a page */
#define LGC_WIDTH_MAX 256      /* of a head */
#define LGC_PRODUCT_THREADS 256

/* A product of many rows: rows and outputs of a block, K that is copied at once, copies under way.
 */
#define LGC_MANY_ROWS 128
#define LGC_MANY_OUTPUTS 128
#define LGC_MANY_PITCH                                                                             \
    160 /* bytes of 64 elements of a row in shared memory, and what is between                     \
         */
#define LGC_MANY_STAGES 4
#define LGC_MANY_SHARED (LGC_MANY_STAGES * (LGC_MANY_ROWS + LGC_MANY_OUTPUTS) * LGC_MANY_PITCH)
#define LGC_MANY_FROM 64 /* rows of a step from which it pays */

/* How a matrix lies in memory: rows one after the other; of experts one after the other too. */
enum {
    LGC_F32 = 0,
    LGC_BF16 = 1,
    LGC_CODES4 = 2, /* codes 0 to 15, two in a byte: the first in the low half */
    LGC_CODES8 = 3  /* signed codes */
};

typedef struct LgcWeight {
    LGC_TO(const unsigned char) data;
    /* CODES: [rows][columns / run] pairs (scale, least): an element is scale * code + least, but
     * that LGC_CODES4 takes 8 from the code where `centered`. */
    LGC_TO(const float) scales;
    int format, rows, columns; /* rows: of one expert */
    int run;                   /* elements that share a pair */
    int centered;
    int unused;
} LgcWeight;

typedef struct LgcStep {
    LGC_TO(const int) token;
    LGC_TO(const int) slot;
    LGC_TO(const int) pos;
    LGC_TO(const int) last;
    LGC_TO(unsigned char *const) pages; /* [slot, pages_per_slot] */
    LGC_TO(unsigned char) arena;        /* values: buffer b at arena + offset_row * rows_max */
    LGC_TO(const LgcWeight) weights;    /* the plan's weight table */
    LGC_TO(float) out;                  /* [samples, vocab] */
    int rows, samples, rows_max, pages_per_slot;
} LgcStep;

/* Blocks of a product's outputs: of all its experts' rows where a choice picks them, of one. */
LGC_INLINE int lgc_product_blocks(int outputs) {
    return (outputs + LGC_TILE_OUTPUTS - 1) / LGC_TILE_OUTPUTS;
}

#endif
