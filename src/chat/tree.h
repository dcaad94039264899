/* A parsed template. Nodes live in the template's arena and are never changed after parsing. */
#ifndef LG_CHAT_TREE_H
#define LG_CHAT_TREE_H

#include "base/arena.h"
#include "chat/lexer.h"
#include "chat/value.h"

#define TPL_SOURCE_BYTES_MAX ((size_t)1 << 20)
#define TPL_TREE_BYTES_MAX ((size_t)256 << 20)
#define TPL_NESTING_MAX 100 /* of expressions and blocks, in the source */

typedef enum TplKind {
    /* expressions */
    TPL_CONST,
    TPL_NAME,
    TPL_LIST_OF,   /* items */
    TPL_TUPLE_OF,  /* items */
    TPL_DICT_OF,   /* items: key, value, key, value, … */
    TPL_ATTRIBUTE, /* a.name */
    TPL_INDEX,     /* a[b] */
    TPL_SLICE,     /* a[items[0]:items[1]:items[2]], each may be NULL */
    TPL_CALL,      /* a(items, named) */
    TPL_FILTER,    /* a|row(items, named); a NULL: the text of a block */
    TPL_TEST,      /* a is row(items, named) */
    TPL_NOT,
    TPL_NEGATE,
    TPL_PLUS,
    TPL_BINARY,  /* a op b */
    TPL_COMPARE, /* a, then items with their ops: a chain */
    TPL_AND,
    TPL_OR,
    TPL_CONDITION, /* b if a else c (c NULL: undefined) */
    /* statements */
    TPL_DATA, /* name */
    TPL_PRINT,
    TPL_IF,        /* a, body, other */
    TPL_FOR,       /* target b, over a, filter c or NULL, body, other */
    TPL_SET,       /* target b = a */
    TPL_SET_BLOCK, /* target b = the body's text, through the filters of a (or NULL) */
    TPL_MACRO_OF,  /* name, items: parameters, named: the defaults of the last of them; body */
    TPL_GROUP,    /* body, with a scope of its own, where the targets items have the values named */
    TPL_FILTERED, /* the body's text, through the filters of a */
    TPL_BREAK,
    TPL_CONTINUE
} TplKind;

typedef enum TplOp {
    TPL_ADD,
    TPL_SUB,
    TPL_CONCAT,
    TPL_MUL,
    TPL_DIV,
    TPL_FLOORDIV,
    TPL_MOD,
    TPL_POW,
    TPL_EQ,
    TPL_NE,
    TPL_LT,
    TPL_LE,
    TPL_GT,
    TPL_GE,
    TPL_IN,
    TPL_NOT_IN
} TplOp;

typedef struct TplNode TplNode;

typedef struct TplList {
    const TplNode **items;
    size_t count, cap;
} TplList;

struct TplNode {
    TplKind kind;
    TplOp op; /* of a binary; in a chain of comparisons, of each item */
    uint32_t line;
    LgStr name; /* also the keyword of a named argument */
    TplValue value;
    const TplNode *a, *b, *c;
    TplList items, named, body, other;
    union {
        const struct TplFilter *filter;
        const struct TplTest *test;
    } row;
};

struct ChatTemplate {
    Arena arena;
    TplList body;
};

LgStatus tpl_parse(Arena *arena, LgStr source, TplList *out, LgError *err);

#endif
