/* Expressions. One function per kind of node behind one switch; depth and steps are counted at the
 * switch. */
#include <string.h>

#include "chat/run.h"

static LgStatus eval_all(TplRun *r, const TplList *list, TplValue **out) {
    *out = ARENA_ARRAY(&r->arena, TplValue, list->count ? list->count : 1);
    if (!*out)
        return tpl_fail_memory(r);
    for (size_t i = 0; i < list->count; i++)
        LG_TRY(tpl_eval(r, list->items[i], &(*out)[i]));
    return LG_OK;
}

static LgStatus eval_arguments(TplRun *r, const TplNode *n, TplArgs *out) {
    TplValue *items, *named;
    LgStr *names = ARENA_ARRAY(&r->arena, LgStr, n->named.count ? n->named.count : 1);
    LG_TRY(eval_all(r, &n->items, &items));
    named = ARENA_ARRAY(&r->arena, TplValue, n->named.count ? n->named.count : 1);
    if (!named || !names)
        return tpl_fail_memory(r);
    for (size_t i = 0; i < n->named.count; i++) {
        names[i] = n->named.items[i]->name;
        LG_TRY(tpl_eval(r, n->named.items[i]->a, &named[i]));
    }
    *out = (TplArgs){items, n->items.count, names, named, n->named.count};
    return LG_OK;
}

static LgStatus eval_seq(TplRun *r, const TplNode *n, TplSeqKind kind, TplValue *out) {
    TplValue seq;
    LG_TRY(tpl_new_seq(r, kind, n->items.count, &seq));
    for (size_t i = 0; i < n->items.count; i++)
        LG_TRY(tpl_eval(r, n->items.items[i], &seq.as.seq->items[i]));
    *out = seq;
    return LG_OK;
}

static LgStatus eval_dict(TplRun *r, const TplNode *n, TplValue *out) {
    TplValue dict, key, value;
    LG_TRY(tpl_new_dict(r, TPL_DICT, n->items.count / 2, &dict));
    for (size_t i = 0; i + 1 < n->items.count; i += 2) {
        LG_TRY(tpl_eval(r, n->items.items[i], &key));
        LG_TRY(tpl_eval(r, n->items.items[i + 1], &value));
        LG_TRY(tpl_dict_set(r, dict.as.dict, key, value));
    }
    *out = dict;
    return LG_OK;
}

static LgStatus eval_slice(TplRun *r, const TplNode *n, TplValue *out) {
    TplValue value, bounds[3];
    LG_TRY(tpl_eval(r, n->a, &value));
    for (size_t i = 0; i < 3; i++) {
        bounds[i] = tpl_none();
        if (n->items.items[i])
            LG_TRY(tpl_eval(r, n->items.items[i], &bounds[i]));
    }
    r->line = n->line;
    return tpl_slice(r, value, bounds, out);
}

static LgStatus call_method(TplRun *r, TplBound b, const TplArgs *args, TplValue *out) {
    TplValue argv[TPL_PARAMETERS_MAX] = {0};
    const TplMethod *m = b.method;
    if (m->open)
        return m->open(r, *b.self, args, out);
    if (!m->call)
        return tpl_fail(r, "the method \"%s\" of a %s may not be called in a template", m->name,
                        tpl_type_name(*b.self));
    LG_TRY(tpl_bind(r, "method", m->name, m->parameters, m->required, args, argv));
    return m->call(r, *b.self, argv, out);
}

static LgStatus eval_call(TplRun *r, const TplNode *n, TplValue *out) {
    TplValue callee;
    TplArgs args = {0};
    LG_TRY(tpl_eval(r, n->a, &callee));
    LG_TRY(eval_arguments(r, n, &args));
    r->line = n->line;
    switch (callee.kind) {
    case TPL_MACRO:
        return tpl_call_macro(r, callee.as.macro, &args, out);
    case TPL_FUNCTION:
        if (!callee.as.function->call)
            return tpl_fail(r, "the function \"%s\" is not served", callee.as.function->name);
        return callee.as.function->call(r, &args, out);
    case TPL_METHOD:
        return call_method(r, callee.as.bound, &args, out);
    case TPL_UNDEFINED:
        return tpl_use_undefined(r, callee);
    default:
        return tpl_fail(r, "a %s cannot be called", tpl_type_name(callee));
    }
}

LgStatus tpl_apply_filter(TplRun *r, const TplFilter *f, TplValue self, const TplArgs *args,
                          TplValue *out) {
    TplValue argv[TPL_PARAMETERS_MAX] = {0};
    LG_TRY(tpl_step(r, 1));
    if (f->open)
        return f->open(r, self, args, out);
    LG_TRY(tpl_bind(r, "filter", f->name, f->parameters, f->required, args, argv));
    return f->call(r, self, argv, out);
}

LgStatus tpl_apply_test(TplRun *r, const TplTest *t, TplValue self, const TplArgs *args,
                        bool *out) {
    LG_TRY(tpl_step(r, 1));
    if (args->named_count || args->count != (size_t)t->argument_count)
        return tpl_fail(r, "the test \"%s\" takes %d argument(s), %zu given", t->name,
                        t->argument_count, args->count + args->named_count);
    return t->call(r, self, args->count ? args->items[0] : (TplValue){0}, out);
}

static LgStatus eval_filter(TplRun *r, const TplNode *n, TplValue *out) {
    TplValue self;
    TplArgs args = {0};
    LG_TRY(tpl_eval(r, n->a, &self));
    LG_TRY(eval_arguments(r, n, &args));
    r->line = n->line;
    if (!n->row.filter)
        return tpl_fail(r, "the filter \"%.*s\" is not served",
                        LG_STR_ARG(lg_str_sub(n->name, 0, 60)));
    return tpl_apply_filter(r, n->row.filter, self, &args, out);
}

static LgStatus eval_test(TplRun *r, const TplNode *n, TplValue *out) {
    TplValue self;
    TplArgs args = {0};
    bool result = false;
    LG_TRY(tpl_eval(r, n->a, &self));
    LG_TRY(eval_arguments(r, n, &args));
    r->line = n->line;
    if (!n->row.test)
        return tpl_fail(r, "the test \"%.*s\" is not served",
                        LG_STR_ARG(lg_str_sub(n->name, 0, 60)));
    LG_TRY(tpl_apply_test(r, n->row.test, self, &args, &result));
    *out = tpl_bool(result);
    return LG_OK;
}

/* a < b < c: each value once, to the first comparison that fails. */
static LgStatus eval_compare(TplRun *r, const TplNode *n, TplValue *out) {
    TplValue left, right;
    bool result = true;
    LG_TRY(tpl_eval(r, n->a, &left));
    for (size_t i = 0; result && i < n->items.count; i++) {
        LG_TRY(tpl_eval(r, n->items.items[i]->a, &right));
        r->line = n->line;
        LG_TRY(tpl_compare(r, n->items.items[i]->op, left, right, &result));
        left = right;
    }
    *out = tpl_bool(result);
    return LG_OK;
}

static LgStatus eval_binary(TplRun *r, const TplNode *n, TplValue *out) {
    TplValue left, right;
    LG_TRY(tpl_eval(r, n->a, &left));
    LG_TRY(tpl_eval(r, n->b, &right));
    r->line = n->line;
    return tpl_binary(r, n->op, left, right, out);
}

static LgStatus eval_sign(TplRun *r, const TplNode *n, TplValue *out) {
    TplValue v;
    LG_TRY(tpl_eval(r, n->a, &v));
    r->line = n->line;
    if (v.kind == TPL_UNDEFINED)
        return tpl_use_undefined(r, v);
    if (!tpl_is_number(v))
        return tpl_fail(r, "a %s has no sign", tpl_type_name(v));
    if (v.kind == TPL_FLOAT)
        *out = tpl_float(n->kind == TPL_NEGATE ? -v.as.real : v.as.real);
    else if (n->kind == TPL_NEGATE)
        return tpl_binary(r, TPL_SUB, tpl_int(0), v, out);
    else
        *out = tpl_int(tpl_integer(v));
    return LG_OK;
}

static LgStatus eval_logic(TplRun *r, const TplNode *n, TplValue *out) {
    TplValue left;
    LG_TRY(tpl_eval(r, n->a, &left));
    if (n->kind == TPL_NOT)
        *out = tpl_bool(!tpl_truth(left));
    else if (tpl_truth(left) == (n->kind == TPL_AND))
        return tpl_eval(r, n->b, out);
    else
        *out = left;
    return LG_OK;
}

static LgStatus eval_condition(TplRun *r, const TplNode *n, TplValue *out) {
    TplValue condition;
    LG_TRY(tpl_eval(r, n->a, &condition));
    if (tpl_truth(condition))
        return tpl_eval(r, n->b, out);
    if (n->c)
        return tpl_eval(r, n->c, out);
    return tpl_undefined(r, LG_STR("the else of a condition"), NULL, out);
}

static LgStatus eval_name(TplRun *r, const TplNode *n, TplValue *out) {
    const TplFunction *f;
    if (tpl_lookup(r, n->name, out))
        return LG_OK;
    f = tpl_function_find(n->name);
    if (!f)
        return tpl_undefined(r, n->name, NULL, out);
    *out = (TplValue){.kind = TPL_FUNCTION, .as.function = f};
    return LG_OK;
}

static LgStatus eval_access(TplRun *r, const TplNode *n, TplValue *out) {
    TplValue value, index;
    LG_TRY(tpl_eval(r, n->a, &value));
    if (n->kind == TPL_INDEX)
        LG_TRY(tpl_eval(r, n->b, &index));
    r->line = n->line;
    return n->kind == TPL_INDEX ? tpl_index(r, value, index, out)
                                : tpl_attribute(r, value, n->name, out);
}

static LgStatus eval_kind(TplRun *r, const TplNode *n, TplValue *out) {
    switch (n->kind) {
    case TPL_CONST:
        *out = n->value;
        return LG_OK;
    case TPL_NAME:
        return eval_name(r, n, out);
    case TPL_LIST_OF:
        return eval_seq(r, n, TPL_LIST, out);
    case TPL_TUPLE_OF:
        return eval_seq(r, n, TPL_TUPLE, out);
    case TPL_DICT_OF:
        return eval_dict(r, n, out);
    case TPL_ATTRIBUTE:
    case TPL_INDEX:
        return eval_access(r, n, out);
    case TPL_SLICE:
        return eval_slice(r, n, out);
    case TPL_CALL:
        return eval_call(r, n, out);
    case TPL_FILTER:
        return eval_filter(r, n, out);
    case TPL_TEST:
        return eval_test(r, n, out);
    case TPL_BINARY:
        return eval_binary(r, n, out);
    case TPL_COMPARE:
        return eval_compare(r, n, out);
    case TPL_NEGATE:
    case TPL_PLUS:
        return eval_sign(r, n, out);
    case TPL_CONDITION:
        return eval_condition(r, n, out);
    default:
        return eval_logic(r, n, out);
    }
}

LgStatus tpl_eval(TplRun *r, const TplNode *n, TplValue *out) {
    LG_TRY(tpl_step(r, 1));
    LG_TRY(tpl_deeper(r));
    r->line = n->line;
    LgStatus status = eval_kind(r, n, out);
    tpl_up(r);
    return status;
}
