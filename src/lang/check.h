/* What the parts of the checker share: one compile's context. The checker gives every name its
 * meaning, folds what the config knows, and proves what the language promises; all its memory is
 * the arena's. */
#ifndef LG_LANG_CHECK_H
#define LG_LANG_CHECK_H

#include "lang/ast.h"

#define CHECK_NAMES_MAX 4096
#define CHECK_LAYERS_MAX 1024
#define CHECK_STMTS_MAX 4096
#define CHECK_DIM_MAX 2147483647.0
#define CHECK_ELEMS_MAX ((uint64_t)1 << 48)
#define CHECK_PARTS_MAX 256

typedef enum SymbolKind { SYMBOL_DIM, SYMBOL_CONST, SYMBOL_TENSOR } SymbolKind;
typedef struct Symbol {
    LgStr name;
    SymbolKind kind;
    int id; /* into dims, consts, tensors */
    int line;
} Symbol;

/* A const of the page: one number, or values for each layer. */
typedef struct CheckConst {
    LgStr name;
    int line;
    double number;
    const double *values; /* NULL: number holds for every layer */
    int program_const;    /* into the program's consts; -1: not listed yet */
} CheckConst;

/* The ragged bound that an axis was written with, in the vars of the writing statement. */
typedef struct Ragged {
    const LangExpr *upper; /* NULL: the whole axis */
    const LangExpr *lower;
} Ragged;

typedef struct Part {
    int64_t at[LANG_RANK_MAX]; /* the literal of the axis, -1: the whole axis */
} Part;
typedef struct Parts {
    Part *items;
    int count, cap;
} Parts;

/* What the checker knows of a tensor beyond LangTensor. */
typedef struct TensorInfo {
    int column;
    bool read;
    bool complete; /* may be read: whole, or (state) written in this step */
    int stmt;      /* of its first definition or write; -1: none */
    Parts parts;
    Ragged ragged[LANG_RANK_MAX];
    const LangIndex *targets; /* indexes of the first definition */
    const LangIndex *row;     /* which row of the step its elements belong to, in the defining
                                 statement's vars; NULL: none */
} TensorInfo;

typedef struct CheckDims {
    LangDim *items;
    int count, cap;
} CheckDims;
typedef struct CheckConsts {
    CheckConst *items;
    int count, cap;
} CheckConsts;
typedef struct CheckLayerConsts {
    LangConst *items;
    int count, cap;
} CheckLayerConsts;
typedef struct CheckTensors {
    LangTensor *items;
    int count, cap;
} CheckTensors;
typedef struct CheckInfos {
    TensorInfo *items;
    int count, cap;
} CheckInfos;
typedef struct CheckStmts {
    LangStmt *items;
    int count, cap;
} CheckStmts;
typedef struct CheckSites {
    LangSite *items;
    int count, cap;
} CheckSites;

/* What a dim counts, where it is more than the width of tensors. */
typedef enum DimRole {
    ROLE_NONE,
    ROLE_ROWS,      /* first axis of an input */
    ROLE_SLOTS,     /* first axis of a state */
    ROLE_POSITIONS, /* second axis of a state */
    ROLE_ADAPTERS,  /* what `lora` chooses from */
    ROLE_LAYERS
} DimRole;

typedef struct Check {
    Diag diag;
    Arena *arena;
    const Config *config;
    const AstFile *ast;
    CheckDims dims;
    CheckConsts consts;
    CheckLayerConsts layer_consts;
    CheckTensors tensors;
    CheckInfos infos; /* beside tensors */
    CheckStmts stmts;
    CheckSites sites;
    Symbol *symbols; /* open addressing, by name */
    int symbol_cap, symbol_count;
    bool *claimed;  /* beside the config's keys */
    DimRole *roles; /* beside dims, once the declarations are read */
    const AstDecl *model;
    const AstDecl *layer; /* NULL: no layer block */
    const AstDecl *lora;
    int layer_dim, layer_count; /* -1, 0: not known yet */
    int layer_begin, layer_end;
    bool in_layer; /* the scope of the declaration or statement at hand */
    int output_count;
    int lora_input;
} Check;

/* names.c */
const Symbol *check_find(const Check *c, LgStr name);
/* Refuses a name that is taken, or that no page may define. */
bool check_define(Check *c, AstName name, SymbolKind kind, int id);
/* The dim of that name, or -1 with a refusal. */
int check_dim(Check *c, AstName name);
LgStr check_dim_name(const Check *c, int dim);
/* Adds an empty tensor under its name; -1: refused. */
int check_tensor_add(Check *c, AstName name, LangTensorKind kind);

/* fold.c: what is known at compile time. */
/* The config's value, NULL where absent or as good as absent; marks the key as claimed. */
const ConfigValue *check_key(Check *c, LgStr key);
typedef struct Fold {
    int layer;    /* -1: the layer's index is not in scope */
    LgStr index;  /* its name */
    bool varies;  /* out: the layer's index was read */
    bool exact;   /* a dim: divisions must be exact */
    bool untaken; /* in a branch that the config does not take, where keys may be absent */
    LgStr absent; /* out, with FOLD_ABSENT: the key that the config lacks */
    AstName at;   /* and where */
} Fold;
typedef enum FoldResult { FOLD_OK, FOLD_ABSENT, FOLD_FAILED } FoldResult;
FoldResult fold_number(Check *c, Fold *f, const AstExpr *e, double *out);
/* A number that must be there: FOLD_ABSENT is refused. */
bool fold_required(Check *c, Fold *f, const AstExpr *e, double *out);
bool fold_cond(Check *c, Fold *f, const AstCond *cond, bool *out);
/* A bare name or list[l] as a number. */
FoldResult fold_ref(Check *c, Fold *f, const AstIndex *ref, double *out);
/* The value of a name or of list[l], as the config has it. */
FoldResult fold_value(Check *c, Fold *f, const AstIndex *ref, ConfigValue *out);
/* A key is claimed by being named, in a branch that is not taken too. */
void fold_claim(Check *c, const AstExpr *e);
void fold_claim_cond(Check *c, const AstCond *cond);
bool fold_refuse_absent(Check *c, const Fold *f);
/* Compares as `require` and `if` do: null counts as false. */
bool fold_compare(const ConfigValue *found, const ConfigValue *wanted);

/* decl.c */
bool check_decls(Check *c);
bool check_claims(Check *c); /* claims.c */

/* roles.c: a dim counts one thing. */
bool check_roles(Check *c);
/* Whether the values of a tensor of indexes are numbers that mean something: positions do, ids do
 * not. */
bool role_is_number(const Check *c, int dim);

/* params.c */
bool check_param(Check *c, const AstDecl *d);
bool check_windows(
    Check *c); /* a stored tensor bound twice, or cut into windows that do not tile */
bool check_axes(Check *c, const AstAxes *axes, bool joins, LangTensor *t);

/* stmt.c */
bool check_stmt(Check *c, const AstDecl *d);
bool check_complete(Check *c, bool in_layer); /* at the end of a scope */

/* parts.c */
bool parts_add(Check *c, int tensor, const LangTarget *target, AstName at);

/* sites.c */
bool check_sites(Check *c);
const LangIndex *site_row(Check *c, const LangStmt *stmt);

/* expr.c: a statement in the making. */
typedef struct StmtCtx {
    Check *c;
    const AstDecl *ast;
    LangStmt *out;
    int scope[LANG_VARS_MAX]; /* vars that a name may mean here */
    int scope_count;
    bool untaken;  /* inside a branch that the config does not take */
    int forbidden; /* the target of `+=`, which its right side may not read; -1: none */
} StmtCtx;
const LangExpr *expr_build(StmtCtx *s, const AstExpr *e);
bool expr_index(StmtCtx *s, const AstIndex *ast, int dim, LgStr owner, LangIndex *out);
int expr_var_find(const StmtCtx *s, LgStr name);
int expr_var_add(StmtCtx *s, AstName name, int dim, bool reduced);
bool expr_var_unify(StmtCtx *s, int var, int dim, AstName at, LgStr owner);
bool index_equal(const LangIndex *a, const LangIndex *b);

/* bounds.c: ragged axes, run-time axes, and what each reduction reduces. */
bool bounds_check(StmtCtx *s);
bool expr_uses(const LangExpr *e, int var);

#endif
