/* Stages and launches as data. A stage is what one statement lifts to (ATTEND: a pair of
 * statements); a launch is one stage, or several that a fusion rule joined. Statements stay
 * attached, so that an emitter writes their arithmetic from the tree. */
#ifndef LG_IR_STAGE_H
#define LG_IR_STAGE_H

#include "ir/plan.h"

#define STAGE_LORA_SITES_MAX 4 /* sites of one adapter call */

/* y[row, n] = sum over k of x[row, k] * w[n, k] (+ bias[n]). */
typedef struct StageMatmul {
    int x, w;
    int bias; /* param; -1: none */
    uint64_t n, k;
    int expert;       /* indexed: the tensor that picks w's first axis for each row; -1: plain */
    uint64_t experts; /* size of that axis; 1 where plain */
    uint64_t slots;   /* indexed: products for each row, one a choice; 1 where plain */
    uint64_t share;   /* products that read one row of x: slots, or 1 where x has a row for each */
} StageMatmul;

/* p = softmax s in (pos - window, pos]: f(scale * q·k), o = sum s: p * v, over pages. Index order
 * of q and o: row, heads, group, width. */
typedef struct StageAttend {
    int q, k, v, o; /* tensors; k and v are states */
    int slot, pos;  /* the inputs that name a row's sequence and position */
    uint64_t kv_heads, group, width, v_width;
    const double *scale;       /* [layer_count], or one number outside the layers */
    const double *window;      /* the same; 0: none */
    const LangExpr *score;     /* what else is done to a scaled score; NULL: nothing */
    const LangExpr *score_arg; /* the node of `score` that stands for the scaled score */
    const LangStmt *softmax;   /* the statement of p; the stage's own is that of o */
    int softmax_index;
} StageAttend;

struct Stage {
    StageOp op;
    bool maps;            /* REDUCE, GATHER: elementwise arithmetic around it */
    const LangStmt *stmt; /* of the program, or rewritten by a pass: then the program's statement of
                             the same line is meant */
    int stmt_index;       /* into program->stmts; -1: a table that a pass took out of the layers */
    bool in_layer;
    int row_dim;   /* the run-time dim of its rows; -1: one row */
    int row_var;   /* the index that runs over it; -1 */
    int site;      /* adapters act on its target: into program->sites; -1 */
    int low, fold; /* then the two statements of the rewrite */
    const StageMatmul *matmul;
    const StageAttend *attend;
};

typedef enum LaunchKind {
    LAUNCH_ROWS,   /* statements in order, row by row */
    LAUNCH_MATMUL, /* products of one input */
    LAUNCH_ATTEND
} LaunchKind;

/* One adapter call behind a launch: sibling sites with one input. */
typedef struct LaunchLora {
    int count;
    int stages[STAGE_LORA_SITES_MAX]; /* into the launch's stages */
} LaunchLora;

struct Launch {
    LaunchKind kind;
    const Stage **stages;
    int stage_count;
    /* MATMUL: stages from here on are done to each tile of the products, behind adapters; else
     * stage_count. */
    int epilogue;
    bool in_layer;
    int row_dim;
    const char *name;   /* carries the source lines: "qwen3_57_59_q_k_v" */
    const char *kernel; /* the template that it instantiates */
    const char *rule;   /* the fusion rule that made it; "alone" */
    Numerics numerics;
    Citation cite;
    LaunchLora *loras;
    int lora_count;
};

/* "GATHER", "MAP", … */
const char *stage_op_name(StageOp op);
const char *numerics_name(Numerics n);

#endif
