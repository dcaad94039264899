/* The syntax tree: what the grammar reads, before any name has a meaning. Lives in an arena; names
 * are views into the source. */
#ifndef LG_LANG_AST_H
#define LG_LANG_AST_H

#include "base/config.h"
#include "lang/diag.h"
#include "lang/lang.h"

/* Growing lists of an arena: struct { T *items; int count, cap; }.  Evaluates to false where memory
 * ran out. */
void *ast_list_grow(Arena *arena, const void *items, int count, int *cap, size_t elem_bytes);
#define AST_LIST_ROOM(arena, list)                                                                 \
    ((list).count < (list).cap ||                                                                  \
     ((list).items = ast_list_grow((arena), (list).items, (list).count, &(list).cap,               \
                                   sizeof *(list).items)) != NULL)

typedef struct AstName {
    LgStr text;
    int line, column;
} AstName;
typedef struct AstNames {
    AstName *items;
    int count, cap;
} AstNames;

/* NAME, NAME[index, …], or an INT (name empty). Also every reference in an expression. */
typedef struct AstIndex AstIndex;
typedef struct AstIndexes {
    AstIndex *items;
    int count, cap;
} AstIndexes;
struct AstIndex {
    AstName name;
    int64_t value;
    bool bracketed;
    AstIndexes indexes;
    AstName in; /* of a target: `r in R`; text empty: none */
};

typedef enum AstCompare { AST_TRUE, AST_EQ, AST_NE, AST_LT, AST_LE, AST_GT, AST_GE } AstCompare;

typedef struct AstExpr AstExpr;
typedef struct AstCond {
    AstIndex ref;
    AstCompare op;         /* AST_TRUE: the bare reference */
    ConfigValue value;     /* EQ, NE */
    const AstExpr *number; /* by size; else NULL */
} AstCond;

typedef enum AstExprKind {
    AST_NUMBER,
    AST_REF,
    AST_NEG,
    AST_ADD,
    AST_SUB,
    AST_MUL,
    AST_DIV,
    AST_POW,
    AST_CALL,
    AST_REDUCE, /* args[0] is the body */
    AST_IF,     /* args: then, else */
    AST_OR      /* dims and consts: args[1] where a key of args[0] is absent */
} AstExprKind;

typedef struct AstBind {
    AstName name;
    const AstExpr *lower; /* may be NULL */
    const AstExpr *upper; /* an AST_REF; may be NULL */
} AstBind;
typedef struct AstBinds {
    AstBind *items;
    int count, cap;
} AstBinds;

#define AST_ARGS_MAX 2
struct AstExpr {
    AstExprKind kind;
    int line, column;
    int height; /* bounded, so that walks may recurse */
    double number;
    AstIndex ref;
    LangFn fn;
    LangRed red;
    AstBinds binds;
    const AstCond *cond;
    bool parens; /* IF: of a statement, in parentheses; else of a const */
    const AstExpr *args[AST_ARGS_MAX];
    int arg_count;
};

typedef struct AstDim {
    AstName name;
    const AstExpr *size; /* NULL: run time */
} AstDim;
typedef struct AstDims {
    AstDim *items;
    int count, cap;
} AstDims;

typedef struct AstAxis {
    AstName name;
    bool joined; /* "*" before it */
} AstAxis;
typedef struct AstAxes {
    AstAxis *items;
    int count, cap;
} AstAxes;

typedef struct AstSrc {
    LangSourceKind kind;
    AstName name; /* TENSOR: the string; PARAM: the name */
    double number;
    const AstExpr *from; /* TENSOR; may be NULL */
} AstSrc;
typedef struct AstSrcs {
    AstSrc *items;
    int count, cap;
} AstSrcs;

typedef struct AstValues {
    ConfigValue *items;
    int count, cap;
} AstValues;

typedef enum AstDeclKind {
    AST_MODEL,
    AST_DIM,
    AST_REQUIRE,
    AST_IGNORE,
    AST_INPUT,
    AST_PARAM,
    AST_STATE,
    AST_LORA,
    AST_CONST,
    AST_LAYER,
    AST_STMT
} AstDeclKind;

typedef struct AstTarget {
    AstName name;
    AstIndexes indexes;
} AstTarget;

typedef struct AstDecl AstDecl;
typedef struct AstDecls {
    AstDecl *items;
    int count, cap;
} AstDecls;

struct AstDecl {
    AstDeclKind kind;
    int line, column;
    LgStr text;     /* the line without comment and outer spaces */
    AstName name;   /* what is declared; LORA: the input; LAYER: the index */
    AstNames names; /* MODEL: architectures; IGNORE, LORA: what follows */
    AstDims dims;   /* DIM */
    AstCompare op;  /* REQUIRE */
    AstValues values;
    AstAxes axes; /* INPUT, PARAM, STATE */
    bool dtype_written;
    LangDType dtype;
    AstName index_dim; /* INPUT: `index D`; CONST, REQUIRE: the layer index; LAYER: its dim */
    const AstCond *condition; /* PARAM: `if … then srcs[0] else srcs[1]`; NULL: srcs in order */
    AstSrcs sources;
    const AstExpr *expr; /* CONST, STMT */
    AstDecls body;       /* LAYER */
    bool output;         /* STMT */
    LangStmtOp stmt_op;
    int target_count;
    AstTarget targets[2];
};

typedef struct AstFile {
    AstDecls decls;
} AstFile;

/* Parses diag->source, which must outlive the tree. False: diag holds the refusal. */
bool ast_parse(Diag *diag, Arena *arena, AstFile *out);

/* The tree as text that parses to the same tree; declarations in canonical spacing, comments gone.
 */
void ast_print(const AstFile *file, Buf *out);
bool ast_equal(const AstFile *a, const AstFile *b);

/* The shortest digits that read back as the same double. */
void lang_number_print(double value, Buf *out);
const char *lang_fn_text(LangFn fn);
const char *lang_red_text(LangRed red);
int lang_fn_args(LangFn fn);

#endif
