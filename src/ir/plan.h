/* Stages as data, and the plan that an emitter turns into a program: launches, weights, buffers,
 * state layout. A plan lives in the arena of its compile. */
#ifndef LG_IR_PLAN_H
#define LG_IR_PLAN_H

#include "ir/provenance.h"
#include "lang/lang.h"

/* The closed list of stages: name. */
/* clang-format off */
#define STAGE_OP_MAP(X) X(GATHER) X(MAP) X(REDUCE) X(MATMUL) X(SOFTMAX) X(TOPK) X(SCATTER) X(ATTEND)
/* clang-format on */
typedef enum StageOp {
#define STAGE_OP_ENUM(name) STAGE_##name,
    STAGE_OP_MAP(STAGE_OP_ENUM)
#undef STAGE_OP_ENUM
        STAGE_OP_COUNT
} StageOp;

/* Whether a fusion changes bits: exact (a test compares them), reference (it defines the numbers),
 * differs (bounded). */
typedef enum Numerics { NUMERICS_EXACT, NUMERICS_REFERENCE, NUMERICS_DIFFERS } Numerics;

/* How a launch uses a param: what the back end must prepare at load. */
typedef enum WeightUse {
    WEIGHT_MATRIX, /* [rows, columns] of a MATMUL, packed in the kernels' order */
    WEIGHT_VECTOR, /* its elements as f32, in index order (norm weights, biases) */
    WEIGHT_TABLE   /* rows looked up by an index (embedding), in the stored format */
} WeightUse;

typedef struct PlanWeight {
    int tensor; /* the param */
    WeightUse use;
    bool in_layer;
    uint64_t rows, columns; /* MATRIX, TABLE: columns is the last stored axis; VECTOR: rows = 1,
                               columns = elements */
    uint64_t experts; /* MATRIX: it is so many of [rows / experts, columns], packed one by one,
                         of which each row of a step reads some; 1 otherwise */
    int base; /* its entries in the program's weight table are base + layer (base alone outside the
                 layers) */
} PlanWeight;

/* Where a value lives: offset_row is in bytes a row of the activation arena, so that the address of
 * a buffer is arena + offset_row * rows_max. On the CPU every value is held as f32 (already rounded
 * to its store type). */
typedef struct PlanBuffer {
    int tensor;
    int row_dim;         /* the run-time dim of its first index; -1: none (one row) */
    uint64_t row_elems;  /* f32 elements a row */
    uint64_t offset_row; /* multiple of 64 */
} PlanBuffer;

typedef enum StateLayout {
    STATE_ROW,       /* [.., position, last dim]: read as values (V) */
    STATE_TRANSPOSED /* [.., last dims, position]: read as keys: lanes over positions */
} StateLayout;

typedef struct PlanState {
    int tensor;
    StateLayout layout;
    uint64_t heads;       /* product of dims between S and the contracted ones */
    uint64_t width;       /* elements a position and head */
    uint64_t offset_page; /* bytes inside a layer's part of a page */
    uint64_t page_bytes;  /* bytes of 64 positions */
} PlanState;

typedef struct Stage Stage;   /* ir/stage.h */
typedef struct Launch Launch; /* ir/stage.h */

typedef struct Plan {
    const LangProgram *program;
    Provenance provenance;
    const char *backend;
    bool store_f32;
    PlanWeight *weights;
    int weight_count;
    int weight_total; /* entries of the weight table */
    PlanBuffer *buffers;
    int buffer_count;
    uint64_t arena_row_bytes; /* activation bytes a row */
    PlanState *states;
    int state_count;
    uint64_t layer_page_bytes; /* of all states of one layer; a page is layer_count times that */
    Launch *launches;          /* in order; those of the layer block are [layer_begin, layer_end) */
    int launch_count;
    int layer_begin, layer_end;
    int output;        /* the tensor that the step returns */
    int before_output; /* the value that lies in the output's place until the output's statement
                          changes it there, element by element; -1: none */
    /* Indexed products: most choices of a row, and most experts; 0: there are none. */
    uint64_t sort_slots, sort_experts;
    char digest[65];
} Plan;

#endif
