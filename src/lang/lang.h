/* The .lg language: source text and a model's config in, a checked program out. Knows nothing of
 * checkpoints' tensors, of kernels or of layout.  Everything of a program lives in the arena that
 * it was made in. */
#ifndef LG_LANG_LANG_H
#define LG_LANG_LANG_H

#include "base/arena.h"
#include "base/config.h"
#include "base/status.h"

#define LANG_RANK_MAX 8
#define LANG_VARS_MAX 16

typedef enum LangDType { LANG_F32, LANG_BF16, LANG_F16, LANG_F8, LANG_I32 } LangDType;

typedef struct LangDim {
    LgStr name;
    int line;
    bool runtime;  /* T, N, B, S, A: known at run time only */
    uint64_t size; /* 0 where runtime */
} LangDim;

/* A number known at compile time that differs between layers (those that do not are folded to
 * EXPR_NUMBER). INFINITY stands for a run-time dim (a window that never ends). */
typedef struct LangConst {
    LgStr name;
    int line;
    const double *values; /* [layer_count] */
} LangConst;

typedef enum LangTensorKind {
    LANG_INPUT,  /* per-step integers */
    LANG_PARAM,  /* a checkpoint tensor */
    LANG_STATE,  /* survives the step */
    LANG_VALUE,  /* computed in the step */
    LANG_OUTPUT, /* a value that the step returns */
    LANG_ADAPTER /* made by the LoRA rewrite: W.A[A,z,in], W.B[A,out..,z], W.scale[A] */
} LangTensorKind;

typedef enum LangSourceKind {
    LANG_SOURCE_TENSOR,
    LANG_SOURCE_PARAM,
    LANG_SOURCE_NUMBER
} LangSourceKind;

/* One place a param may come from; the first that exists binds. */
typedef struct LangSource {
    LangSourceKind kind;
    LgStr name;    /* TENSOR: with {l} and {X} still in it */
    int param;     /* PARAM: that param's tensor (a tied head) */
    double number; /* NUMBER: every element */
    bool windowed; /* `from`: rows [from_row, from_row + rows) of a longer stored axis */
    uint64_t from_row;
} LangSource;

typedef struct LangTensor {
    LgStr name;
    int line;
    LangTensorKind kind;
    bool in_layer; /* declared or assigned inside the layer block: one for each layer */
    /* dtype_written false: the store type of the compile (bf16, or f32 under --store f32). */
    LangDType dtype;
    bool dtype_written;
    /* dims in order of the indexes; stored axis a joins dims [axis_start[a], axis_start[a+1]).
     * Values: one dim an axis. */
    int rank;
    int dims[LANG_RANK_MAX];
    int axis_count;
    int axis_start[LANG_RANK_MAX + 1];
    int index_dim; /* may be looked up inside an axis of this dim (inputs `index D`, a topk's
                      choice); -1: no */
    /* params */
    const LangSource *sources;
    int source_count;
    int stack_dim; /* "{X}": per-expert tensors stacked over dims[0]; -1: no */
    /* The module that adapters name, with {l} in it ("model.layers.{l}.self_attn.q_proj"): the
     * first tensor source without ".weight"; of a tied param the branch not taken ("lm_head").
     * Empty where there is none. */
    LgStr module;
    int lora_site; /* index into sites, or -1 */
} LangTensor;

typedef enum LangIndexKind { LANG_INDEX_VAR, LANG_INDEX_INT, LANG_INDEX_LOOKUP } LangIndexKind;

typedef struct LangIndex LangIndex;
struct LangIndex {
    LangIndexKind kind;
    int dim;       /* the dim of the axis that it indexes */
    int var;       /* VAR: into the statement's vars */
    int64_t value; /* INT */
    int tensor;    /* LOOKUP: tensor[indexes…] */
    int count;
    const LangIndex *indexes;
};

typedef enum LangExprKind {
    EXPR_NUMBER, /* literals, dim sizes, config keys, consts of one value: all folded */
    EXPR_CONST,  /* a per-layer const */
    EXPR_VAR,    /* an index used as a number */
    EXPR_REF,    /* tensor[indexes] */
    EXPR_NEG,
    EXPR_ADD,
    EXPR_SUB,
    EXPR_MUL,
    EXPR_DIV,
    EXPR_POW,
    EXPR_CALL,
    EXPR_REDUCE,
    EXPR_IF /* on a condition that differs between layers (others are folded) */
} LangExprKind;

/* Name, number of arguments. */
/* clang-format off */
#define LANG_FN_MAP(X)                                                                                     \
    X(EXP, exp, 1) X(LOG, log, 1) X(SQRT, sqrt, 1) X(RSQRT, rsqrt, 1) X(SIN, sin, 1) X(COS, cos, 1)        \
    X(SILU, silu, 1) X(SIGMOID, sigmoid, 1) X(TANH, tanh, 1) X(GELU, gelu, 1) X(GELU_TANH, gelu_tanh, 1)   \
    X(MIN, min, 2) X(MAX, max, 2) X(ABS, abs, 1) X(FLOOR, floor, 1) X(CEIL, ceil, 1)
#define LANG_RED_MAP(X) X(SUM, sum) X(MEAN, mean) X(MAX, max) X(SOFTMAX, softmax) X(TOPK, topk) X(ARGMAX, argmax)
/* clang-format on */
typedef enum LangFn {
#define LANG_FN_ENUM(id, name, args) LANG_FN_##id,
    LANG_FN_MAP(LANG_FN_ENUM)
#undef LANG_FN_ENUM
        LANG_FN_COUNT
} LangFn;
typedef enum LangRed {
#define LANG_RED_ENUM(id, name) LANG_RED_##id,
    LANG_RED_MAP(LANG_RED_ENUM)
#undef LANG_RED_ENUM
        LANG_RED_COUNT
} LangRed;

typedef struct LangExpr LangExpr;
struct LangExpr {
    LangExprKind kind;
    int line, column;
    double number;            /* NUMBER */
    int constant;             /* CONST */
    int var;                  /* VAR */
    int tensor;               /* REF */
    int index_count;          /* REF */
    const LangIndex *indexes; /* REF */
    LangFn fn;                /* CALL */
    LangRed red; /* REDUCE: over vars, of a; `softmax` keeps its var, the others drop it */
    int var_count;
    int vars[LANG_VARS_MAX];
    const LangExpr *a, *b;  /* operands; IF: a where layer_true, else b */
    const bool *layer_true; /* IF: [layer_count] */
};

/* lower < index <= upper, where written: the ragged axis of causal and windowed attention. */
typedef struct LangVar {
    LgStr name;
    int dim;
    bool reduced;          /* bound by a reduction; else free (on the left) */
    const LangExpr *upper; /* NULL: the whole axis */
    const LangExpr *lower; /* NULL: from 0 */
} LangVar;

typedef enum LangStmtOp { LANG_ASSIGN, LANG_ADD_TO, LANG_WRITE } LangStmtOp;
typedef enum LangRole {
    LANG_PLAIN,
    LANG_LORA_LOW,
    LANG_LORA_FOLD
} LangRole; /* the last two: from the LoRA rewrite */

typedef struct LangTarget {
    int tensor;
    int index_count;
    const LangIndex *indexes;
} LangTarget;

typedef struct LangStmt {
    int line;
    LgStr text; /* the source line, trimmed; of rewritten statements the text that the rewrite wrote
                 */
    bool in_layer;
    LangStmtOp op;
    LangRole role;
    int site; /* LORA roles: into sites */
    int target_count;
    LangTarget targets[2];
    const LangExpr *rhs;
    int var_count;
    LangVar vars[LANG_VARS_MAX];
} LangStmt;

/* A place where adapters act: y = … sum …: x * W, or a lookup of W's rows (embedding). */
typedef struct LangSite {
    int param;
    int stmt; /* index of the statement that it follows */
    bool in_layer;
    bool lookup;  /* x is a row of W, found by a lookup, not a product */
    int x;        /* input tensor of the product (lookup: the index tensor) */
    int y;        /* its target */
    LangIndex ad; /* the lookup of the row's adapter: ad[t], or ad[last[n]] */
} LangSite;

typedef struct LangProgram {
    LgStr name;   /* of `model` */
    LgStr file;   /* as given to lang_compile */
    LgStr source; /* the text */
    int layer_count;
    int layer_dim; /* -1: no layer block */
    LangDim *dims;
    int dim_count;
    LangConst *consts;
    int const_count;
    LangTensor *tensors;
    int tensor_count;
    LangStmt *stmts; /* in order; those of the layer block are [layer_begin, layer_end) and run
                        layer_count times */
    int stmt_count;
    int layer_begin, layer_end;
    LangSite *sites;
    int site_count;
    int lora_input; /* the tensor of `lora NAME on …`; -1: none */
} LangProgram;

/* Which `architectures` a source serves, without a config: for picking a page. names lives in the
 * arena. */
LgStatus lang_models(LgStr source, const char *file, Arena *arena, LgStr *model,
                     const LgStr **names, int *count, LgError *err);

/* Parses and checks. Every refusal reads `FILE:LINE: cannot WHAT: WHY. WHAT WOULD BE ACCEPTED.`
 * followed by the source line and a caret; err->offset is the line. The LoRA rewrite is not yet
 * applied (lang_rewrite_lora).
 *
 * Keys of the config: null is absent and need not be claimed.  `== false` holds for an absent key
 * as well, and so does a bare condition fail; `== null` holds for absence alone.  A nested object
 * is its dotted keys, and absent where those are (`rope_type: default` is). */
LgStatus lang_compile(LgStr source, const char *file, const Config *config, Arena *arena,
                      LangProgram **out, LgError *err);

/* Adds the two statements of each site behind its own; the result is a new program in the arena.
 * Sites that the program lists but that are no whole statement were refused by lang_compile. */
LgStatus lang_rewrite_lora(const LangProgram *p, Arena *arena, LangProgram **out, LgError *err);

/* The checked program as text (statements, with dims resolved): for --explain and tests. */
void lang_print(const LangProgram *p, Buf *out);

/* A refusal of a later level (lifting, binding) in the same shape: message is printf-like, `line`
 * into p's source, column 1-based or 0. */
LgStatus lang_refuse(const LangProgram *p, int line, int column, LgError *err, const char *format,
                     ...) __attribute__((format(printf, 5, 6)));

/* The keys that the engine ignores because they cannot matter, one a line: --explain-ignored. */
void lang_print_ignored(Buf *out);

#endif
