/* What the files of the interpreter share. A program becomes one tree a statement; tensors are flat
 * arrays of f32 (already rounded to their store type) or of i32 (inputs and choices). Arithmetic is
 * done in double and, unless the Eval is f64, rounded to f32 after every operation, which for + - *
 * / and sqrt is the same as doing it in f32. */
#ifndef LG_IR_EVAL_INTERNAL_H
#define LG_IR_EVAL_INTERNAL_H

#include "base/arena.h"
#include "ir/eval.h"

typedef enum EvalStore {
    EVAL_STORE_F32,
    EVAL_STORE_BF16,
    EVAL_STORE_F16,
    EVAL_STORE_INT
} EvalStore;

typedef struct EvalTensor {
    EvalStore store;
    bool used; /* false: adapter tensors, and the lows of the rewrite: folds work from the adapter's
                  own numbers */
    bool in_layer;
    bool is_state;
    int rank;
    /* Of this step. States: of one position, indexes 0 and 1 (slot, position) have none. */
    uint64_t extent[LANG_RANK_MAX];
    int64_t stride[LANG_RANK_MAX];
    uint64_t elems;
    uint64_t cap; /* elements allocated */
    float *f;     /* values */
    int32_t *i;   /* choices; inputs borrow the step's in `input` */
    const int32_t *input;
    float **params; /* [layers, or 1]; aliases share */
    float **pages;  /* states: [layers, or 1], each page_cap pages of KV_PAGE_POSITIONS positions */
} EvalTensor;

/* A use of a tensor. */
typedef struct EvalRef {
    int tensor;
    int count;
    const LangIndex *indexes;
    uint32_t deps; /* variables that its address depends on */
} EvalRef;

typedef struct EvalNode EvalNode;
struct EvalNode {
    LangExprKind kind;
    LangFn fn;
    LangRed red;
    double number;
    const double *values;   /* CONST */
    const bool *layer_true; /* IF */
    int var;                /* VAR */
    EvalRef ref;            /* REF */
    EvalNode *a, *b;
    uint32_t deps;
    /* REDUCE */
    int var_count;
    int vars[LANG_VARS_MAX];
    bool dot; /* a sum or mean of a product of two refs whose addresses are affine in vars */
    const EvalRef *dot_a, *dot_b;
    int64_t dot_sa[LANG_VARS_MAX], dot_sb[LANG_VARS_MAX]; /* strides of vars in this step */
    bool dot_paged; /* the last var walks a state's positions */
    /* The last result, good while the variables of deps keep these values. */
    bool cached, forced;
    int64_t key[LANG_VARS_MAX];
    double value;
    double *vector; /* softmax, topk: [extent of vars[0]] */
    uint64_t vector_cap;
    int64_t low, high; /* the range that the vector holds */
};

typedef struct EvalVar {
    int dim;
    EvalNode *upper, *lower; /* lower < index <= upper; NULL: the whole axis */
} EvalVar;

/* What folding an adapter into a site needs to know of the site's statement. */
typedef struct EvalFold {
    int base; /* the statement that made y */
    int site;
    const EvalRef *w;
    const EvalRef *x; /* NULL: a lookup; then row_index is the column of A */
    const LangIndex *row_index;
    const EvalRef *bias; /* NULL: none */
    bool indexed;        /* w is looked up by expert */
    int in_count, out_count, row_count;
    int in[LANG_VARS_MAX], out[LANG_VARS_MAX],
        rows[LANG_VARS_MAX]; /* variables of base, in w's order; rows: the rest */
} EvalFold;

typedef struct EvalStmt {
    const LangStmt *stmt;
    EvalNode *rhs;
    EvalVar vars[LANG_VARS_MAX];
    EvalRef targets[2];
    int loop_count; /* variables of the left side; those with bounds come last */
    int loops[LANG_VARS_MAX];
    EvalNode **reduces;
    int reduce_count;
    EvalNode *bulk; /* the one product of a matmul-like statement: computed in tiles */
    int choice_var; /* topk: the variable that counts the chosen; -1 */
    int row_var;    /* the variable that runs over the step's rows or samples; -1 */
    EvalFold *fold;
} EvalStmt;

struct Eval {
    const LangProgram *p;
    const Binding *binding;
    EvalOptions options;
    Arena arena; /* trees and tables */
    int layers;
    EvalTensor *tensors;
    EvalStmt *stmts;
    int output;
    int dim_rows, dim_samples, dim_positions, dim_slots; /* -1: the program has none */
    /* inputs, -1 where the program does not ask for one */
    int in_token, in_slot, in_pos, in_last, in_ad;
    const AdapterData **adapters;
    /* [adapter_cap]: of an adapter that replaces params their whole values, [tensor * layers +
     * layer], NULL where it does not; NULL: it replaces none */
    float ***replaced;
    int32_t adapter_cap;
    EvalTrace trace;
    void *trace_user;
    double *trace_value;
    uint64_t trace_cap;
    /* pages of the step: its own, or these, handed out one after the other */
    int32_t *own_pages;
    int32_t own_slots, own_pages_per_slot, own_used;
    int32_t page_cap;
    /* scratch of the tiles and folds, grown before a statement runs */
    void *scratch;
    size_t scratch_bytes;
    /* the running step */
    const Step *step;
    LgError *err;
    int layer;
    uint64_t *extents; /* of the dims */
    const int32_t *pages;
    int32_t pages_per_slot;
    const EvalStmt *running;
    int64_t v[LANG_VARS_MAX];
    /* Where a statement is run for some of the rows alone: for those of one set, or (-1) for those
     * whose set replaces nothing that it reads. */
    bool filtered;
    int32_t only_set;
};

static inline double eval_round(const Eval *e, double x) {
    return e->options.f64 ? x : (double)(float)x;
}

/* eval_tree.c */
LgStatus eval_build(Eval *e, LgError *err); /* the trees of all statements */
void eval_prepare(Eval *e, EvalStmt *s);    /* strides of this step, caches emptied */
int64_t eval_index(const Eval *e, const LangIndex *index);
float *eval_ref_at(const Eval *e, const EvalRef *r); /* with e->v set; tensors of floats */
double eval_ref_value(const Eval *e, const EvalRef *r);
int64_t eval_ref_stride(const Eval *e, const EvalRef *r,
                        int var); /* elements; positions of a state are not covered */
void eval_bounds(Eval *e, int var, int64_t *low,
                 int64_t *high); /* [low, high) of a variable of the running statement */

/* eval_node.c */
double eval_node(Eval *e, EvalNode *n);
void eval_vector(Eval *e,
                 EvalNode *n); /* n's body for each value of its variable, into n->vector */

/* eval_step.c */
LgStatus eval_check_step(const Eval *e, const Step *step, LgError *err);
LgStatus eval_make_room(Eval *e, const Step *step, LgError *err);

/* eval_stmt.c */
LgStatus eval_stmt(Eval *e, EvalStmt *s);
void eval_store(Eval *e, const EvalRef *target, double value);
double eval_store_round(EvalStore store, double value);
LgStatus eval_scratch(Eval *e, size_t bytes);

/* eval_tile.c */
LgStatus eval_bulk(Eval *e, EvalStmt *s);

/* eval_replace.c: rows whose adapter replaces params that a statement reads. */
LgStatus eval_replace_install(const Eval *e, const AdapterData *a, float ***out, LgError *err);
void eval_replace_free(const Eval *e, const AdapterData *a, float **values);
LgStatus eval_replaced(Eval *e, EvalStmt *s); /* eval_stmt, row by row with its own params */
bool eval_row_wanted(const Eval *e, const EvalStmt *s);
/* Puts the params of the adapter in that slot in place of the base's, or back, in the layer that
 * runs. */
void eval_swap(Eval *e, int32_t slot);

/* eval_lora.c */
LgStatus eval_fold_build(Eval *e, EvalStmt *s, LgError *err);
LgStatus eval_fold(Eval *e, EvalStmt *s);

#endif
