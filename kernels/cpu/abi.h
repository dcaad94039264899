/* The calling convention between the host and a compiled CPU program. Included by both: plain C11,
 * no other header of ours.
 *
 * A program is one function that every thread of the team runs: lgp_step(step, thread). Launches
 * follow each other with a barrier between them; inside a launch, tasks are claimed one by one with
 * step->claim. Every value is computed whole by one task from values of its own row alone and in an
 * order that depends on the program only, so that neither threads nor company change a bit. */
#ifndef LG_CPU_ABI_H
#define LG_CPU_ABI_H

#include <stddef.h>
#include <stdint.h>

#define LGP_ABI 7
#define LGP_PAGE 64      /* positions of a KV page */
#define LGP_PANEL 16     /* output rows of a weight panel: lanes of the kernels */
#define LGP_BLOCK 32     /* k elements of a block: one partial sum each */
#define LGP_LORA_SITES 4 /* sites of one lora call */
#define LGP_LORA_SET 4   /* adapters of one row */

/* Formats of packed matrices. Quantised ones stay quantised. Which stored types pack to which:
 * src/backend/cpu/pack.c. */
enum {
    LGP_F32 = 0,
    LGP_BF16 = 1,
    LGP_F16 = 2,
    LGP_Q4 = 3,  /* four bits: d code + m */
    LGP_Q8 = 4,  /* eight bits, signed: d code */
    LGP_Q8M = 5, /* d code + m */
    LGP_K4 = 6,  /* four bits: (d scale) code + m min, by blocks */
    LGP_K4S = 7, /* the same by half blocks */
    LGP_K8 = 8,  /* eight bits: (d scale) code + m min, by blocks */
    LGP_K8S = 9, /* (d scale) code, by half blocks */
    LGP_F8 = 10, /* e4m3: d code */
    LGP_FORMAT_COUNT
};

/* The parts of a packed panel of LGP_PANEL outputs: a head, then blocks of LGP_BLOCK k. */
typedef struct LgpLayout {
    uint8_t code_bits;
    uint8_t runs;        /* of a block, with a scale each; 0: not quantised */
    uint8_t minimum;     /* 1: there is an m */
    uint8_t span;        /* blocks that share an entry of the head; 0: there is no head */
    uint8_t head_bytes;  /* of an entry */
    uint8_t scale_bytes; /* of a block, in front of its codes */
} LgpLayout;

/* clang-format off */
static const LgpLayout lgp_layouts[LGP_FORMAT_COUNT] = {
    [LGP_F32]  = {32, 0, 0, 0,  0,  0},
    [LGP_BF16] = {16, 0, 0, 0,  0,  0},
    [LGP_F16]  = {16, 0, 0, 0,  0,  0},
    [LGP_Q4]   = { 4, 1, 1, 0,  0, 64},
    [LGP_Q8]   = { 8, 1, 0, 0,  0, 32},
    [LGP_Q8M]  = { 8, 1, 1, 0,  0, 64},
    [LGP_K4]   = { 4, 1, 1, 8, 64, 32},
    [LGP_K4S]  = { 4, 2, 1, 8, 64, 64},
    [LGP_K8]   = { 8, 1, 1, 8, 64, 32},
    [LGP_K8S]  = { 8, 2, 0, 8, 32, 32},
    [LGP_F8]   = { 8, 1, 0, 4, 64,  0},
};
/* clang-format on */

static inline uint64_t lgp_head_bytes(int32_t format, uint64_t columns) {
    const LgpLayout *l = &lgp_layouts[format];
    uint64_t blocks = (columns + LGP_BLOCK - 1) / LGP_BLOCK;
    return l->span ? (blocks + l->span - 1) / l->span * l->head_bytes : 0;
}

static inline uint64_t lgp_block_bytes(int32_t format) {
    return lgp_layouts[format].scale_bytes +
           (uint64_t)lgp_layouts[format].code_bits * LGP_PANEL * LGP_BLOCK / 8;
}

/* Bytes of a packed panel, panels following each other; see matmul.h for the order inside.
 * Quantised matrices have columns in whole blocks. */
static inline uint64_t lgp_panel_bytes(int32_t format, uint64_t columns) {
    if (lgp_layouts[format].runs)
        return lgp_head_bytes(format, columns) +
               (columns + LGP_BLOCK - 1) / LGP_BLOCK * lgp_block_bytes(format);
    return columns * LGP_PANEL * lgp_layouts[format].code_bits / 8;
}

/* One entry of the weight table; see matmul.h for the packed layouts. */
typedef struct LgpWeight {
    const void *data; /* MATRIX: packed panels. VECTOR: f32. TABLE: rows as stored in the file */
    int32_t format;   /* MATRIX: LGP_* */
    int32_t rows, columns;
    uint64_t row_bytes; /* TABLE: bytes from row to row. MATRIX of experts: from one's panels to the
                           next one's; rows and columns are those of one */
    /* TABLE: the host's conversion of stored elements, whole blocks, to f32: lookups have every
     * format that the host reads, and no copy of how. */
    void (*to_f32)(const void *src, float *dst, size_t count);
} LgpWeight;

/* Rows of a table or a matrix that an adapter has in the place of the base's. */
typedef struct LgpRows {
    LgpWeight weight;    /* of these rows alone */
    const int32_t *rows; /* rising; NULL: all of them */
    int32_t count;
} LgpRows;

typedef struct LgpStep LgpStep;

/* All adapted products of sibling sites, over base results y that were stored and rounded:
 * y[r] = round( y[r] + sum over the row's set of scale * B (A x[r]) ). domain 0: rows of the step
 * (T); 1: sampled rows (N; their adapter is that of row last[n]).
 *
 * WHOLE: one call by every thread of the team, behind the base's; it has its own barriers inside
 * and one at its end.  Or in parts, without a barrier: every thread calls SHRINK, A's part, before
 * the base's tasks, and with each task FOLD for the tile of results that it has just stored: while
 * they are near, and without waiting for those of others.  ASK, before the task, fetches what FOLD
 * will read. */
enum { LGP_LORA_WHOLE, LGP_LORA_SHRINK, LGP_LORA_ASK, LGP_LORA_FOLD };

typedef struct LgpLora {
    int32_t layer, domain, site_count;
    int32_t sites[LGP_LORA_SITES];
    const float *x; /* [rows, k]; NULL: a lookup site (column token[r] of A; k is the vocabulary) */
    int64_t x_stride; /* elements */
    int32_t k;
    float *y[LGP_LORA_SITES];
    int64_t y_stride[LGP_LORA_SITES];
    int32_t n[LGP_LORA_SITES];
    int32_t store_bf16;                  /* round low and y to bf16 */
    const float *bias[LGP_LORA_SITES];   /* added to the base result; DoRA needs it; NULL: none */
    int32_t bias_weight[LGP_LORA_SITES]; /* its place in the weight table */
    /* Sites of experts: `slots` results for each row of the domain, each of the expert that choice
     * names for it; `share` of them read one row of x. x and y have rows of results. NULL: one
     * weight, and a result a row. */
    const int32_t *choice; /* [rows * slots] */
    int32_t experts, slots, share;
    int32_t part;
    /* ASK, FOLD: the tile: rows [row, row_end) of outputs [from, to) of one site of the call; from
     * is where a panel begins. */
    int32_t tile_site, row, row_end, from, to;
} LgpLora;

struct LgpStep {
    int32_t abi;
    int32_t thread_count;
    int32_t rows, samples; /* T, N */
    int32_t rows_max;
    const int32_t *token, *slot, *pos, *last;
    const LgpWeight *weights;    /* the plan's weight table */
    unsigned char *arena;        /* activations: buffer b is at arena + offset_row * rows_max */
    unsigned char *const *pages; /* [slot, pages_per_slot]: memory of each KV page */
    int32_t pages_per_slot;
    float *out; /* [samples, vocab] */
    void *team;
    int32_t (*claim)(void *team); /* the next task number of this launch, from 0 */
    void (*barrier)(void *team, int32_t thread);
    float *scratch; /* scratch_floats for each thread: thread t at scratch + t * scratch_floats */
    int64_t scratch_floats;
    int32_t lora_rows[2]; /* rows with an adapter, by domain: 0 skips every lora call */
    /* By domain, what the adapter of each row has in the place of weights, by their places in the
     * weight table (VECTOR: f32, TABLE: LgpRows; NULL: nothing). Where none of a step's adapters
     * replaces anything, replaced[domain] is NULL. Replaced matrices are the lora calls' part. */
    const void *const *const *replaced[2];
    void (*lora)(const LgpStep *step, int32_t thread, const LgpLora *call);
    void *lora_tables; /* the host's */
    /* For tests and profiles; NULL otherwise. Thread 0 calls it after the barrier that ends a
     * launch; layer is -1 outside the layers. */
    void (*trace)(const LgpStep *step, int32_t launch, int32_t layer);
    void *trace_user;
    int32_t *sorted; /* work of the launches of experts: the most experts of a product and one,
                        then rows_max times the most choices of a row; NULL: there are none */
};

/* What the adapter of a row has in the place of a weight; NULL: nothing. */
static inline const void *lgp_replaced(const void *const *const *replaced, int32_t row,
                                       int32_t weight) {
    return replaced && replaced[row] ? replaced[row][weight] : NULL;
}

/* What a program file says of itself; the host compares it with the plan before it runs lgp_step.
 */
typedef struct LgpInfo {
    int32_t abi;
    const char *model, *digest, *level, *compiler;
    const char *source_sha256; /* of the emitted C */
    uint32_t formats;          /* of matrices that it has products for: bit LGP_*. */
} LgpInfo;

/* Exported by every program: const LgpInfo lgp_info; void lgp_step(const LgpStep *, int32_t
 * thread); int64_t lgp_scratch_floats(int32_t positions): scratch a thread needs where a sequence
 * has that many positions. */

#endif
