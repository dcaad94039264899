/* Values of templates, as Python has them where a template can tell the difference. All memory is
 * the arena's of one rendering (constants: of the template); nothing is changed once made but
 * namespaces, generators and loops. */
#ifndef LG_CHAT_VALUE_H
#define LG_CHAT_VALUE_H

#include "base/str.h"

typedef enum TplValueKind {
    TPL_ABSENT, /* an argument that was not given; no template sees it */
    TPL_UNDEFINED,
    TPL_NONE,
    TPL_BOOL,
    TPL_INT,
    TPL_FLOAT,
    TPL_STR,
    TPL_SEQ,
    TPL_DICT,
    TPL_NAMESPACE,
    TPL_LOOP,
    TPL_MACRO,
    TPL_FUNCTION,
    TPL_METHOD
} TplValueKind;

typedef enum TplSeqKind {
    TPL_LIST,
    TPL_TUPLE,
    TPL_RANGE,
    TPL_KEYS, /* views of a dict */
    TPL_VALUES,
    TPL_ITEMS,
    TPL_GENERATOR /* what most filters give: read once, always true, without a length */
} TplSeqKind;

typedef struct TplValue TplValue;

typedef struct TplSeq {
    TplSeqKind kind;
    TplValue *items;
    size_t count;
    size_t read; /* of a generator: how many items are gone */
} TplSeq;

typedef struct TplDict { /* keys in the order of their first occurrence */
    TplValue *keys, *values;
    size_t count, cap;
} TplDict;

typedef struct TplMissing {
    LgStr name;
    const char *owner; /* the type that has no such attribute; NULL: a variable */
} TplMissing;

struct TplNode;
struct TplScope;
typedef struct TplMacro {
    const struct TplNode *node;
    struct TplScope *scope; /* where it was defined */
} TplMacro;

typedef struct TplLoop {
    TplValue *items;
    size_t count, index;
    TplValue *last_change; /* what `changed` was given last; NULL: not called yet */
} TplLoop;

typedef struct TplBound {
    const struct TplMethod *method;
    const TplValue *self;
} TplBound;

struct TplValue {
    TplValueKind kind;
    bool safe; /* of a text: what is added to it by + is escaped for HTML (the filters safe and
                  escape make it) */
    union {
        bool boolean;
        int64_t integer;
        double real;
        LgStr str;
        TplSeq *seq;
        TplDict *dict; /* also of a namespace */
        const TplMissing *missing;
        TplLoop *loop;
        const TplMacro *macro;
        const struct TplFunction *function;
        TplBound bound;
    } as;
};

static inline TplValue tpl_none(void) {
    return (TplValue){.kind = TPL_NONE};
}

static inline TplValue tpl_bool(bool b) {
    return (TplValue){.kind = TPL_BOOL, .as.boolean = b};
}

static inline TplValue tpl_int(int64_t i) {
    return (TplValue){.kind = TPL_INT, .as.integer = i};
}

static inline TplValue tpl_float(double d) {
    return (TplValue){.kind = TPL_FLOAT, .as.real = d};
}

static inline TplValue tpl_str(LgStr s) {
    return (TplValue){.kind = TPL_STR, .as.str = s};
}

static inline bool tpl_is_seq(TplValue v, TplSeqKind kind) {
    return v.kind == TPL_SEQ && v.as.seq->kind == kind;
}

/* Booleans are integers, as in Python. */
static inline bool tpl_is_integer(TplValue v) {
    return v.kind == TPL_INT || v.kind == TPL_BOOL;
}

static inline int64_t tpl_integer(TplValue v) {
    return v.kind == TPL_BOOL ? v.as.boolean : v.as.integer;
}

static inline bool tpl_is_number(TplValue v) {
    return tpl_is_integer(v) || v.kind == TPL_FLOAT;
}

static inline double tpl_real(TplValue v) {
    return v.kind == TPL_FLOAT ? v.as.real : (double)tpl_integer(v);
}

const char *tpl_type_name(TplValue v); /* Python's: "str", "NoneType", … */
bool tpl_truth(TplValue v);

#endif
