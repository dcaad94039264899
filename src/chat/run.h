/* One rendering: limits, memory, scopes, and the operations on values that the library shares. */
#ifndef LG_CHAT_RUN_H
#define LG_CHAT_RUN_H

#include "base/arena.h"
#include "chat/library.h"
#include "chat/template.h"
#include "chat/tree.h"

#define TPL_STEPS_MAX 20000000u /* nodes evaluated, items visited, and one per 64 bytes of text */
#define TPL_DEPTH_MAX 600       /* of evaluation: expressions, blocks and macro calls together */
#define TPL_MEMORY_BYTES_MAX ((size_t)512 << 20) /* of values */
#define TPL_OUTPUT_BYTES_MAX                                                                       \
    ((size_t)64 << 20) /* of the rendering, and of each text on the way                            \
                        */
#define TPL_RANGE_MAX 100000

typedef struct TplBinding TplBinding;
typedef struct TplScope TplScope;
struct TplScope {
    TplScope *parent;
    TplBinding *first;
};

typedef enum TplFlow { TPL_FLOW_ON, TPL_FLOW_BREAK, TPL_FLOW_CONTINUE } TplFlow;

struct TplRun {
    Arena arena;
    Buf *out;
    TplScope *scope;
    TplFlow flow;
    uint32_t line;
    uint32_t depth;
    uint64_t steps;
    char *tail; /* the text that the last concatenation made, which the next may grow in place */
    size_t tail_len, tail_cap;
    LgError *err;
};

/* LG_BAD_INPUT with the line. */
LgStatus tpl_fail(TplRun *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
LgStatus tpl_fail_memory(TplRun *r); /* LG_NO_MEMORY, or LG_LIMIT where the arena's limit was met */
LgStatus tpl_step(TplRun *r, size_t steps);
LgStatus tpl_deeper(TplRun *r); /* then, on success, tpl_up */
void tpl_up(TplRun *r);

/* Evaluation. */
LgStatus tpl_eval(TplRun *r, const TplNode *n, TplValue *out);
LgStatus tpl_exec(TplRun *r, const TplList *body);
LgStatus tpl_call_macro(TplRun *r, const TplMacro *macro, const TplArgs *args, TplValue *out);
LgStatus tpl_apply_filter(TplRun *r, const TplFilter *f, TplValue self, const TplArgs *args,
                          TplValue *out);
LgStatus tpl_apply_test(TplRun *r, const TplTest *t, TplValue self, const TplArgs *args, bool *out);
LgStatus tpl_push_scope(TplRun *r, TplScope *parent,
                        TplScope **saved); /* restore by r->scope = saved */
LgStatus tpl_set(TplRun *r, LgStr name, TplValue value);
LgStatus tpl_set_target(TplRun *r, const TplNode *target, TplValue value);
bool tpl_lookup(const TplRun *r, LgStr name, TplValue *out);

/* Values. */
LgStatus tpl_undefined(TplRun *r, LgStr name, const char *owner, TplValue *out);
LgStatus tpl_use_undefined(TplRun *r, TplValue v); /* the error of using it */
LgStatus tpl_new_seq(TplRun *r, TplSeqKind kind, size_t count, TplValue *out);
LgStatus tpl_new_dict(TplRun *r, TplValueKind kind, size_t cap, TplValue *out);
LgStatus tpl_dict_set(TplRun *r, TplDict *d, TplValue key, TplValue value);
LgStatus tpl_dict_find(TplRun *r, const TplDict *d, TplValue key,
                       const TplValue **out); /* NULL: absent */
const TplValue *tpl_dict_find_str(const TplDict *d, LgStr key);
LgStatus tpl_from_json(TplRun *r, const json_t *json, TplValue *out);
LgStatus tpl_new_str(TplRun *r, LgStr text, TplValue *out); /* copies */
LgStatus tpl_take_str(TplRun *r, Buf *buf,
                      TplValue *out); /* copies and clears buf, also on failure */
LgStatus tpl_items(TplRun *r, TplValue v, const TplValue **items,
                   size_t *count); /* what iteration gives; reads a generator up */
LgStatus tpl_length(TplRun *r, TplValue v, size_t *out);
LgStatus tpl_equal(TplRun *r, TplValue a, TplValue b, bool *out);
LgStatus tpl_order(TplRun *r, TplValue a, TplValue b, int *out); /* -1, 0, 1 */
LgStatus tpl_contains(TplRun *r, TplValue container, TplValue item, bool *out);
LgStatus tpl_binary(TplRun *r, TplOp op, TplValue a, TplValue b, TplValue *out);
LgStatus tpl_compare(TplRun *r, TplOp op, TplValue a, TplValue b, bool *out);
LgStatus tpl_attribute(TplRun *r, TplValue v, LgStr name, TplValue *out);
LgStatus tpl_index(TplRun *r, TplValue v, TplValue index, TplValue *out);
LgStatus tpl_slice(TplRun *r, TplValue v, const TplValue bounds[3], TplValue *out);

/* Text. */
LgStatus tpl_print(TplRun *r, TplValue v, Buf *out); /* Python's str */
LgStatus tpl_repr(TplRun *r, TplValue v, Buf *out);
LgStatus tpl_text(TplRun *r, TplValue v, LgStr *out); /* str as a view */
LgStatus tpl_make_safe(TplRun *r, TplValue v,
                       TplValue *out); /* its text escaped, unless it is safe */
void tpl_print_float(double d, Buf *out);
typedef struct TplJson {
    bool ascii, sort;
    LgStr indent; /* ptr NULL: one line */
    LgStr item_separator, key_separator;
} TplJson;
LgStatus tpl_json(TplRun *r, TplValue v, const TplJson *style, size_t depth, Buf *out);
LgStatus tpl_check_text(TplRun *r, const Buf *b); /* allocation and size */

/* Arguments. */
LgStatus tpl_arg_str(TplRun *r, TplValue v, const char *what, LgStr *out);
LgStatus tpl_arg_int(TplRun *r, TplValue v, const char *what, int64_t *out);

#endif
