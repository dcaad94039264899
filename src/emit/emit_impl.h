/* What the parts of the CPU emitter share. Internal to src/emit. */
#ifndef LG_EMIT_EMIT_IMPL_H
#define LG_EMIT_EMIT_IMPL_H

#include "emit/emit_cpu.h"
#include "ir/stage.h"
#include "stages/match.h"

#define EMIT_HOISTS_MAX 48

typedef struct Emit {
    const Plan *plan;
    const LangProgram *p;
    bool cuda; /* device code: a block a row, its threads share the loops */
    LgError *err;
    Buf *out;
    Buf statics; /* tables of per-layer numbers, in front of the functions */
    int static_count;
    int line;         /* of the next line written to out */
    size_t line_seen; /* bytes of out that `line` has counted */
    int indent;
    const char *file; /* the page's name in #line */
    Arena *arena;
    bool failed; /* a text that is part of others was not written */
} Emit;

/* Ends a buffer whose text has been used. */
void emit_done(Emit *e, Buf *text);

/* A line of the C file (printf-like, without the newline), indented. */
void emit_line(Emit *e, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same as a line that stands for line `source` of the page. */
void emit_code(Emit *e, int source, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Back to lines of the C file itself. */
void emit_own(Emit *e);
/* A line of the page (0: without its number) as a comment, or a part of one. */
void emit_quote(Emit *e, const char *before, int line, LgStr text, const char *after);

/* A C identifier for a tensor or an index; lives in the arena, NULL where memory failed. */
const char *emit_tensor_name(Emit *e, int tensor);
const char *emit_var_name(Emit *e, const LangStmt *s, int var);
/* The name of the step's array for an input, NULL: the step has none of this name. */
const char *emit_input(const Emit *e, int tensor);

/* A subexpression that has a name of its own in front of the loop that uses it. */
typedef struct Hoisted {
    const LangExpr *e;
    int level; /* loops that are open where it is computed */
    const char *name;
} Hoisted;

/* A row of a value (or of a param's table) under a name. */
typedef struct RowRef {
    int tensor;
    const LangIndex *row; /* first index; NULL: the launch's own row */
    const char *name;
    bool table; /* a param's row, expanded into scratch */
    int64_t scratch_at;
} RowRef;

/* The statement being written. */
typedef struct StmtEmit {
    Emit *e;
    const Stage *stage;
    const LangStmt *s;
    int row_var;
    int loop_count;
    int loops[LANG_RANK_MAX * 2]; /* indexes in loop order */
    bool loops_braced;            /* the innermost line of loops opened a brace */
    const char *alone;            /* device code: condition of the one thread that stores; NULL */
    Hoisted hoists[EMIT_HOISTS_MAX];
    int hoist_count;
    const RowRef *refs;
    int ref_count;
    uint32_t flat; /* indexes that read as one, the last of every tensor that has them; bits */
    const char *flat_name;
    /* `hole` reads as `hole_name` (score functions). */
    const LangExpr *hole;
    const char *hole_name;
    LgStatus status;
} StmtEmit;

/* The launch being written. */
typedef struct RowsEmit {
    Emit *e;
    const Launch *l;
    RowRef *refs;
    int ref_count, ref_cap;
    int64_t scratch; /* floats that tables need */
    int64_t choice;  /* floats behind them for what a topk chooses from */
    const Stage *stage;
    LgStatus status;
} RowsEmit;

/* Names for what stages [from, to) of the launch read and write; then their declarations in the
 * loop over rows: weights too, as a row's adapter may have its own. */
void emit_collect_refs(RowsEmit *r, int from, int to);
void emit_declare_weights(RowsEmit *r);
void emit_declare_rows(RowsEmit *r);
bool emit_row_axis(const Emit *e, int tensor); /* it has a row for each row of the launch */
void emit_stmt(RowsEmit *r, const Stage *stage);
void emit_tile_stmt(RowsEmit *r, const Stage *stage);

/* e as C text. Sets x->status on what cannot be written. */
void emit_expr(StmtEmit *x, const LangExpr *e, Buf *out);
/* A lookup or index as an int expression. */
void emit_index(StmtEmit *x, const LangIndex *i, Buf *out);
/* The linear index of ref's indexes from axis `from` on, over a tensor's dims. */
void emit_linear(StmtEmit *x, const LangTensor *t, const LangIndex *indexes, int count, int from,
                 uint64_t scale_all, Buf *out);
LgStatus emit_refuse(StmtEmit *x, const LangExpr *at, const char *why);
void emit_number(double v, Buf *out);
/* A number for each layer: "0.5f", or a table's element. */
void emit_layered(Emit *e, const double *values, const char *name, const char *type, Buf *out);

/* The page's own name, without folders (where a page lies must not change a program), fit for a C
 * string; NULL where memory failed. */
const char *emit_file_name(LgStr path, Arena *arena);
/* Functions of all launches, each by `launch`, behind the tables that they need. */
LgStatus emit_launches(Emit *e, LgStatus (*launch)(Emit *e, int launch));
/* The comment in front of a launch's function: kernel, rule, lines. */
void emit_launch_comment(Emit *e, int launch);
/* Device code: whether a value lies as bf16 (else f32). */
bool emit_held_bf16(const Emit *e, int tensor);
void emit_hoists(StmtEmit *x, int level);
bool emit_hoists_at(const StmtEmit *x, int level);
uint64_t emit_dim_of(const StmtEmit *x, int var);
int emit_open_shared_loops(StmtEmit *x); /* lines opened, each with a brace */

/* Launches: one function each. */
LgStatus emit_rows(Emit *e, int launch);
LgStatus emit_matmul(Emit *e, int launch);
LgStatus emit_attend(Emit *e, int launch);
LgStatus emit_tile(Emit *e, int launch); /* the epilogue of a launch of products */
LgStatus emit_experts(Emit *e, int launch);
/* What the program does to a scaled score, as a function score_N over a run of scores. */
LgStatus emit_score(Emit *e, const Stage *s, int launch);
void emit_choice(RowsEmit *r, const Stage *stage); /* softmax, topk */
int64_t emit_choice_floats(const Emit *e, const Stage *stage);
bool emit_is_choice(const Emit *e, int tensor); /* its elements are indexes, stored as int32_t */
void emit_experts_behind_adapters(Emit *e, int launch);
void emit_lora_experts(Emit *e, const StageMatmul *m); /* what an adapter call of experts adds */

/* Rows of launches and of the output are those that a step has. */
LgStatus emit_check_rows(Emit *e);

/* Parts that all kinds of launches have. */
void emit_launch_begin(Emit *e, int launch);
LgStatus emit_launch_end(Emit *e, int launch);
const char *emit_rows_text(const Emit *e, const Launch *l); /* "step->rows" */
int emit_domain(const Emit *e, const Launch *l); /* 0: rows of the step, 1: sampled ones */
/* One product's description, but for its rows: "PART = (LgpMatmul){…};". */
void emit_matmul_part(Emit *e, const Stage *s, const char *part);
bool emit_rounds(const Emit *e, int tensor); /* its stores round to bf16 */
LgStatus emit_check_type(Emit *e, const LangStmt *s, int tensor);
/* "lgp_row(step, 64, 576, 0)": the place of a value's row. */
void emit_row_place(Emit *e, int tensor, const char *row, Buf *out);
uint64_t emit_row_elems(const Emit *e, int tensor);
const char *emit_layer_index(const Emit *e, const PlanWeight *w, Arena *arena); /* "12 + layer" */
/* Floats of scratch a launch of rows needs. */
int64_t emit_rows_scratch(const Emit *e, const Launch *l);

#endif
