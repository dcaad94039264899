/* What host and device say to each other about adapter products: plain C on both sides, addresses
 * as 64-bit numbers, strides in elements.
 *
 * Every sum over K has one order, whatever kernel computes it (lora.cuh): chunks of
 * lgc_chunk_steps(K) steps of 16, each from zero, their results added in rising order. */
#ifndef LG_CUDA_LORA_ABI_H
#define LG_CUDA_LORA_ABI_H

#define LGC_SITES 3      /* sibling sites of one x: q, k, v */
#define LGC_SET 4        /* adapters of one row */
#define LGC_TILE_ROWS 64 /* of a tile at most */
#define LGC_RANK_MAX 512 /* of one site */
#define LGC_CHUNKS 64    /* of a K at most */
#define LGC_RANK_PAD 8   /* a site's rank in memory is a multiple of it, filled up with zeros */
#define LGC_K_PAD 16     /* so is a row of A */

typedef unsigned long long LgcPtr;

#ifdef __CUDACC__
#define LGC_INLINE static __device__ __forceinline__
#else
#define LGC_INLINE static inline
#endif

/* Steps of 16 that one chunk has; a function of K alone. 32 chunks, but of 4 to 12 steps; where
 * these are not enough, 64 chunks. */
LGC_INLINE int lgc_chunk_steps(int k) {
    int steps = (k + 15) / 16, each = (steps + 31) / 32, least = (steps + 63) / 64;
    return each < 4 ? 4 : each <= 12 ? each : least < 12 ? 12 : least;
}
LGC_INLINE int lgc_chunks(int k) {
    int steps = (k + 15) / 16, each = lgc_chunk_steps(k);
    return (steps + each - 1) / each;
}

/* gemv, gemm, gemm_tc: y = x wᵀ. gemm_tc_acc: y = bf16(fmaf(scale, x wᵀ, y)). */
typedef struct LgcDense {
    LgcPtr x; /* [rows, k] bf16 */
    LgcPtr w; /* [n, k] bf16 */
    LgcPtr y; /* [rows, n] bf16, or f32 */
    long long x_stride, w_stride, y_stride;
    int rows, n, k;
    int f32; /* y is f32: a delta */
    float scale;
    int unused;
} LgcDense;

typedef struct LgcScaledAdd {
    LgcPtr y;     /* bf16 */
    LgcPtr delta; /* f32 */
    long long y_stride, delta_stride;
    int rows, n;
    float scale;
    int unused;
} LgcScaledAdd;

/* What one adapter does to the sibling sites of one call (and, for experts, to one expert). */
typedef struct LgcRecord {
    LgcPtr a;               /* [sum of the sites' ranks, K padded] bf16; 0: nothing is adapted */
    LgcPtr b[LGC_SITES];    /* [n, rank] bf16; aligned to 16; 0: this site is not adapted */
    float scale[LGC_SITES]; /* of the adapter; a row's own comes on top */
    int rank[LGC_SITES];    /* padded; of a site that is not adapted 0 */
    LgcPtr unused;
} LgcRecord;

/* Rows that have the same set of adapters. */
typedef struct LgcTile {
    int slot[LGC_SET]; /* negative: none, and none behind it */
    int first, count;  /* in the route's list of rows */
    int unused[2];
} LgcTile;

/* A step's adapted rows; at fixed addresses, written anew for each step. */
typedef struct LgcRoute {
    LgcPtr tile_count; /* one int */
    LgcPtr tiles;
    LgcPtr rows;   /* [entries] of x and y */
    LgcPtr scales; /* [entries][LGC_SET] of the requests */
} LgcRoute;

typedef struct LgcCall {
    LgcPtr x; /* [rows, k] bf16 */
    LgcPtr y[LGC_SITES];
    LgcPtr table; /* [slots] LgcRecord */
    /* [parts][entries][low_stride] f32: a quarter of a row for each adapter of a set, in it the
     * sites one after the other */
    LgcPtr low;
    LgcRoute route;
    long long x_stride, y_stride[LGC_SITES];
    int n[LGC_SITES];
    int k, site_count, low_stride; /* a multiple of 4 * LGC_RANK_PAD */
    int entries;                   /* room of low: of one part */
    int split; /* 1: each chunk's result is a part of its own; 0: one part, the finished sums */
    int tile_rows;
    int slots; /* of the table: a slot beyond it is none */
} LgcCall;

/* Rows of experts: the adapters are keyed on (slot of the row's token, expert). */
typedef struct LgcMoe {
    LgcPtr x;
    LgcPtr y[LGC_SITES];
    LgcPtr table;    /* [slots][experts] LgcRecord */
    LgcPtr low;      /* as above, for entries rows from `first` on */
    LgcPtr seq_slot; /* [LGC_SET][tokens]: negative: none, and none behind it */
    LgcPtr scales;   /* [LGC_SET][tokens] */
    LgcPtr tokens;   /* grouped: [rows] the token of a sorted row */
    LgcPtr offsets;  /* grouped: [experts + 1], where each expert's rows begin */
    LgcPtr indices;  /* gather: [rows] the expert of a row */
    LgcPtr fault;    /* one int: 1 + the first row found whose expert or token is out of bounds */
    long long x_stride, y_stride[LGC_SITES];
    int n[LGC_SITES];
    int k, site_count, low_stride, entries, split;
    int rows;     /* sorted rows; gather: tokens * top_k */
    int first;    /* of the window: rows [first, first + entries) */
    int x_gather; /* 1: x has a row for each token; 0: for each row */
    int top_k;    /* gather: row = token * top_k + slot */
    int experts, slots;
    int token_count;
    int slices; /* blocks that share a tile's pairs; gather's shrink: the chunks of a row */
} LgcMoe;

#endif
