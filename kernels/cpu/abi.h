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

#define LGP_ABI 4
#define LGP_PAGE 64      /* positions of a KV page */
#define LGP_PANEL 16     /* output rows of a weight panel: lanes of the kernels */
#define LGP_BLOCK 32     /* k elements of a block: one partial sum each */
#define LGP_LORA_SITES 4 /* sites of one lora call */
#define LGP_LORA_SET 4   /* adapters of one row */

/* Formats of packed matrices. Quantised ones stay quantised. */
enum {
    LGP_F32 = 0,
    LGP_BF16 = 1,
    LGP_F16 = 2,
    LGP_Q4 = 3 /* codes 0..15, d and m: Q4_0, Q4_1 */,
    LGP_Q8 = 4 /* Q8_0 */
};

/* Bytes of the packed panel of LGP_PANEL outputs, panels following each other; see matmul.h for the
 * order inside. Quantised matrices have columns in whole blocks. */
static inline uint64_t lgp_panel_bytes(int32_t format, uint64_t columns) {
    uint64_t blocks = (columns + LGP_BLOCK - 1) / LGP_BLOCK;
    switch (format) {
    case LGP_F32:
        return columns * LGP_PANEL * 4;
    case LGP_Q4:
        return blocks * (LGP_PANEL * 4 + LGP_PANEL * LGP_BLOCK / 2);
    case LGP_Q8:
        return blocks * (LGP_PANEL * 2 + LGP_PANEL * LGP_BLOCK);
    default:
        return columns * LGP_PANEL * 2;
    }
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

typedef struct LgpStep LgpStep;

/* One call for all adapted products of sibling sites, after their base results y were stored and
 * rounded: y[r] = round( y[r] + sum over the row's set of scale * B (A x[r]) ). Called by every
 * thread of the team; has its own barriers inside and one at its end. domain 0: rows of the step
 * (T); 1: sampled rows (N; their adapter is that of row last[n]). */
enum { LGP_LORA_WHOLE, LGP_LORA_SHRINK, LGP_LORA_FOLD };

typedef struct LgpLora {
    int32_t layer, domain, site_count;
    int32_t sites[LGP_LORA_SITES];
    const float *x; /* [rows, k]; NULL: a lookup site (column token[r] of A; k is the vocabulary) */
    int64_t x_stride; /* elements */
    int32_t k;
    float *y[LGP_LORA_SITES];
    int64_t y_stride[LGP_LORA_SITES];
    int32_t n[LGP_LORA_SITES];
    int32_t store_bf16;                /* round low and y to bf16 */
    const float *bias[LGP_LORA_SITES]; /* added to the base result; DoRA needs it; NULL: none */
    /* Sites of experts: `slots` results for each row of the domain, each of the expert that choice
     * names for it; `share` of them read one row of x. x and y have rows of results. NULL: one
     * weight, and a result a row. */
    const int32_t *choice; /* [rows * slots] */
    int32_t experts, slots, share;
    /* LGP_LORA_WHOLE, or one call for each part, with a barrier between that the program has
     * anyway: A's needs no base result, so that it fills the end of the base's tasks. Then its
     * tasks are numbered from base_tasks on, and this thread has claimed number `claimed`. */
    int32_t part, base_tasks, claimed;
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
    void (*lora)(const LgpStep *step, int32_t thread, const LgpLora *call);
    void *lora_tables; /* the host's */
    /* For tests and profiles; NULL otherwise. Thread 0 calls it after the barrier that ends a
     * launch; layer is -1 outside the layers. */
    void (*trace)(const LgpStep *step, int32_t launch, int32_t layer);
    void *trace_user;
    int32_t *sorted; /* work of the launches of experts: the most experts of a product and one,
                        then rows_max times the most choices of a row; NULL: there are none */
};

/* What a program file says of itself; the host compares it with the plan before it runs lgp_step.
 */
typedef struct LgpInfo {
    int32_t abi;
    const char *model, *digest, *level, *compiler;
    const char *source_sha256; /* of the emitted C */
} LgpInfo;

/* Exported by every program: const LgpInfo lgp_info; void lgp_step(const LgpStep *, int32_t
 * thread); int64_t lgp_scratch_floats(int32_t positions): scratch a thread needs where a sequence
 * has that many positions. */

#endif
