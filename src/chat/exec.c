/* Statements, scopes and limits; the entry of rendering. A block's text goes to the output in
 * force, which a macro or a block set replaces for as long as it runs. */
#include <stdarg.h>
#include <stdio.h>

#include "base/mem.h"
#include "chat/run.h"

struct TplBinding {
    LgStr name;
    TplValue value;
    TplBinding *next;
};

LgStatus tpl_fail(TplRun *r, const char *format, ...) {
    char what[700];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return lg_fail(r->err, LG_BAD_INPUT, r->line, "chat template: line %u: %s", r->line, what);
}

LgStatus tpl_fail_memory(TplRun *r) {
    if (r->arena.used_bytes > TPL_MEMORY_BYTES_MAX / 2)
        return lg_fail(r->err, LG_LIMIT, r->line,
                       "chat template: line %u: its values take more than %zu bytes", r->line,
                       TPL_MEMORY_BYTES_MAX);
    return lg_fail_memory(r->err);
}

LgStatus tpl_step(TplRun *r, size_t steps) {
    r->steps += steps;
    if (r->steps > TPL_STEPS_MAX)
        return lg_fail(r->err, LG_LIMIT, r->line, "chat template: line %u: more than %u steps",
                       r->line, TPL_STEPS_MAX);
    return LG_OK;
}

LgStatus tpl_deeper(TplRun *r) {
    if (r->depth >= TPL_DEPTH_MAX)
        return lg_fail(r->err, LG_LIMIT, r->line,
                       "chat template: line %u: nested deeper than %d levels", r->line,
                       TPL_DEPTH_MAX);
    r->depth++;
    return LG_OK;
}

void tpl_up(TplRun *r) {
    r->depth--;
}

LgStatus tpl_push_scope(TplRun *r, TplScope *parent, TplScope **saved) {
    TplScope *s = ARENA_NEW(&r->arena, TplScope);
    if (!s)
        return tpl_fail_memory(r);
    s->parent = parent;
    *saved = r->scope;
    r->scope = s;
    return LG_OK;
}

bool tpl_lookup(const TplRun *r, LgStr name, TplValue *out) {
    for (const TplScope *s = r->scope; s; s = s->parent) {
        for (const TplBinding *b = s->first; b; b = b->next) {
            if (lg_str_eq(b->name, name)) {
                *out = b->value;
                return true;
            }
        }
    }
    return false;
}

LgStatus tpl_set(TplRun *r, LgStr name, TplValue value) {
    TplBinding *b = r->scope->first;
    while (b && !lg_str_eq(b->name, name))
        b = b->next;
    if (!b) {
        b = ARENA_NEW(&r->arena, TplBinding);
        if (!b)
            return tpl_fail_memory(r);
        b->name = name;
        b->next = r->scope->first;
        r->scope->first = b;
    }
    b->value = value;
    return LG_OK;
}

LgStatus tpl_set_target(TplRun *r, const TplNode *target, TplValue value) {
    TplValue owner;
    const TplValue *items;
    size_t count;
    switch (target->kind) {
    case TPL_NAME:
        return tpl_set(r, target->name, value);
    case TPL_ATTRIBUTE:
        LG_TRY(tpl_eval(r, target->a, &owner));
        if (owner.kind != TPL_NAMESPACE)
            return tpl_fail(r, "an attribute of a %s cannot be set; one of a namespace() can",
                            tpl_type_name(owner));
        return tpl_dict_set(r, owner.as.dict, tpl_str(target->name), value);
    default:
        LG_TRY(tpl_items(r, value, &items, &count));
        if (count != target->items.count)
            return tpl_fail(r, "%zu values for %zu names", count, target->items.count);
        for (size_t i = 0; i < count; i++)
            LG_TRY(tpl_set_target(r, target->items.items[i], items[i]));
        return LG_OK;
    }
}

/* The text of a body, in the scope in force. */
static LgStatus capture(TplRun *r, const TplList *body, TplValue *out) {
    Buf text, *saved = r->out;
    buf_init(&text);
    r->out = &text;
    LgStatus status = tpl_exec(r, body);
    r->out = saved;
    if (status == LG_OK)
        return tpl_take_str(r, &text, out);
    buf_clear(&text);
    return status;
}

static LgStatus bind_macro(TplRun *r, const TplNode *n, const TplArgs *args) {
    size_t first_default = n->items.count - n->named.count, used = 0;
    if (args->count > n->items.count)
        return tpl_fail(r, "the macro \"%.*s\" takes %zu argument(s), %zu given",
                        LG_STR_ARG(n->name), n->items.count, args->count);
    for (size_t i = 0; i < n->items.count; i++) {
        LgStr name = n->items.items[i]->name;
        TplValue value = {0};
        for (size_t k = 0; k < args->named_count && i >= args->count; k++) {
            if (lg_str_eq(args->names[k], name)) {
                value = args->named[k];
                used++;
            }
        }
        if (i < args->count)
            value = args->items[i];
        else if (value.kind == TPL_ABSENT && i >= first_default)
            LG_TRY(tpl_eval(r, n->named.items[i - first_default], &value));
        else if (value.kind == TPL_ABSENT)
            LG_TRY(tpl_undefined(r, name, NULL, &value));
        LG_TRY(tpl_set(r, name, value));
    }
    if (used != args->named_count)
        return tpl_fail(
            r, "the macro \"%.*s\" got a named argument that it does not have, or has already",
            LG_STR_ARG(n->name));
    return LG_OK;
}

LgStatus tpl_call_macro(TplRun *r, const TplMacro *macro, const TplArgs *args, TplValue *out) {
    TplScope *saved = r->scope;
    LG_TRY(tpl_deeper(r));
    LgStatus status = tpl_push_scope(r, macro->scope, &saved);
    if (status == LG_OK)
        status = bind_macro(r, macro->node, args);
    if (status == LG_OK)
        status = capture(r, &macro->node->body, out);
    r->scope = saved;
    tpl_up(r);
    return status;
}

/* The items that pass the loop's filter. */
static LgStatus loop_items(TplRun *r, const TplNode *n, TplLoop *loop) {
    TplValue over, keep;
    const TplValue *items;
    size_t count;
    LG_TRY(tpl_eval(r, n->a, &over));
    LG_TRY(tpl_items(r, over, &items, &count));
    loop->items = ARENA_ARRAY(&r->arena, TplValue, count ? count : 1);
    if (!loop->items)
        return tpl_fail_memory(r);
    for (size_t i = 0; i < count; i++) {
        if (n->c) {
            TplScope *saved = NULL;
            LG_TRY(tpl_push_scope(r, r->scope, &saved));
            LG_TRY(tpl_set_target(r, n->b, items[i]));
            LG_TRY(tpl_eval(r, n->c, &keep));
            r->scope = saved;
            if (!tpl_truth(keep))
                continue;
        }
        loop->items[loop->count++] = items[i];
    }
    return LG_OK;
}

static LgStatus exec_iteration(TplRun *r, const TplNode *n, TplLoop *loop) {
    TplScope *saved = NULL;
    LG_TRY(tpl_step(r, 1));
    LG_TRY(tpl_push_scope(r, r->scope, &saved));
    LG_TRY(tpl_set_target(r, n->b, loop->items[loop->index]));
    LG_TRY(tpl_set(r, LG_STR("loop"), (TplValue){.kind = TPL_LOOP, .as.loop = loop}));
    LG_TRY(tpl_exec(r, &n->body));
    r->scope = saved;
    return LG_OK;
}

/* On failure scope and depths are left as they are: the rendering ends. */
static LgStatus exec_for(TplRun *r, const TplNode *n) {
    TplLoop *loop = ARENA_NEW(&r->arena, TplLoop);
    TplScope *saved = NULL;
    if (!loop)
        return tpl_fail_memory(r);
    LG_TRY(loop_items(r, n, loop));
    for (; loop->index < loop->count; loop->index++) {
        LG_TRY(exec_iteration(r, n, loop));
        TplFlow flow = r->flow;
        r->flow = TPL_FLOW_ON;
        if (flow == TPL_FLOW_BREAK)
            break;
    }
    if (loop->count || !n->other.count)
        return LG_OK;
    LG_TRY(tpl_push_scope(r, r->scope, &saved));
    LG_TRY(tpl_exec(r, &n->other));
    r->scope = saved;
    return LG_OK;
}

static LgStatus exec_if(TplRun *r, const TplNode *n) {
    for (;;) {
        TplValue condition;
        LG_TRY(tpl_eval(r, n->a, &condition));
        if (tpl_truth(condition))
            return tpl_exec(r, &n->body);
        if (n->other.count != 1 || n->other.items[0]->kind != TPL_IF)
            return tpl_exec(r, &n->other);
        n = n->other.items[0]; /* elif */
    }
}

static LgStatus exec_group(TplRun *r, const TplList *body, TplValue *text) {
    TplScope *saved = NULL;
    LG_TRY(tpl_push_scope(r, r->scope, &saved));
    LG_TRY(text ? capture(r, body, text) : tpl_exec(r, body));
    r->scope = saved;
    return LG_OK;
}

static LgStatus exec_with(TplRun *r, const TplNode *n) {
    TplScope *outside = r->scope, *inside;
    LG_TRY(tpl_push_scope(r, r->scope, &outside));
    inside = r->scope;
    for (size_t i = 0; i < n->items.count; i++) {
        TplValue value;
        r->scope = outside;
        LG_TRY(tpl_eval(r, n->named.items[i], &value));
        r->scope = inside;
        LG_TRY(tpl_set_target(r, n->items.items[i], value));
    }
    LG_TRY(tpl_exec(r, &n->body));
    r->scope = outside;
    return LG_OK;
}

/* The filters of a block set, innermost first. */
static LgStatus filter_text(TplRun *r, const TplNode *n, TplValue *text) {
    if (!n)
        return LG_OK;
    LG_TRY(filter_text(r, n->a, text));
    TplNode call = *n;
    TplNode value = {.kind = TPL_CONST, .line = n->line, .value = *text};
    call.a = &value;
    return tpl_eval(r, &call, text);
}

static LgStatus exec_macro(TplRun *r, const TplNode *n) {
    TplMacro *m = ARENA_NEW(&r->arena, TplMacro);
    if (!m)
        return tpl_fail_memory(r);
    *m = (TplMacro){n, r->scope};
    return tpl_set(r, n->name, (TplValue){.kind = TPL_MACRO, .as.macro = m});
}

static LgStatus exec_node(TplRun *r, const TplNode *n) {
    TplValue value;
    r->line = n->line;
    switch (n->kind) {
    case TPL_DATA:
        buf_str(r->out, n->name);
        LG_TRY(tpl_step(r, n->name.len / 64));
        return tpl_check_text(r, r->out);
    case TPL_PRINT:
        LG_TRY(tpl_eval(r, n->a, &value));
        return tpl_print(r, value, r->out);
    case TPL_IF:
        return exec_if(r, n);
    case TPL_FOR:
        return exec_for(r, n);
    case TPL_SET:
        LG_TRY(tpl_eval(r, n->a, &value));
        return tpl_set_target(r, n->b, value);
    case TPL_SET_BLOCK:
        LG_TRY(exec_group(r, &n->body, &value));
        LG_TRY(filter_text(r, n->a, &value));
        return tpl_set_target(r, n->b, value);
    case TPL_MACRO_OF:
        return exec_macro(r, n);
    case TPL_GROUP:
        return exec_with(r, n);
    case TPL_FILTERED:
        LG_TRY(exec_group(r, &n->body, &value));
        LG_TRY(filter_text(r, n->a, &value));
        return tpl_print(r, value, r->out);
    default:
        r->flow = n->kind == TPL_BREAK ? TPL_FLOW_BREAK : TPL_FLOW_CONTINUE;
        return LG_OK;
    }
}

LgStatus tpl_exec(TplRun *r, const TplList *body) {
    LG_TRY(tpl_deeper(r));
    for (size_t i = 0; i < body->count && r->flow == TPL_FLOW_ON; i++) {
        LG_TRY(tpl_step(r, 1));
        LG_TRY(exec_node(r, body->items[i]));
    }
    tpl_up(r);
    return LG_OK;
}

static LgStatus bind_context(TplRun *r, const json_t *context) {
    TplValue value;
    TplScope *saved = NULL;
    LG_TRY(tpl_push_scope(r, NULL, &saved));
    if (!json_is_object(context))
        return lg_fail(r->err, LG_BAD_INPUT, 0, "chat template: the context is not an object");
    LG_TRY(tpl_from_json(r, context, &value));
    const TplDict *d = value.as.dict;
    for (size_t i = 0; i < d->count; i++)
        LG_TRY(tpl_set(r, d->keys[i].as.str, d->values[i]));
    return LG_OK;
}

LgStatus chat_template_render(const ChatTemplate *t, const json_t *context, Buf *out,
                              LgError *err) {
    TplRun r = {.out = out, .line = 1, .err = err};
    size_t before = out->len;
    TplScope *globals;
    Buf text;
    buf_init(&text);
    arena_init(&r.arena);
    r.arena.limit_bytes = TPL_MEMORY_BYTES_MAX;
    r.out = &text;
    LgStatus status = bind_context(&r, context);
    if (status == LG_OK)
        status = tpl_push_scope(&r, r.scope, &globals);
    if (status == LG_OK)
        status = tpl_exec(&r, &t->body);
    if (status == LG_OK)
        buf_str(out, buf_view(&text));
    if (status == LG_OK && out->failed)
        status = lg_fail_memory(err);
    if (status != LG_OK && !out->failed)
        out->len = before;
    buf_clear(&text);
    arena_clear(&r.arena);
    return status;
}

LgStatus chat_template_parse(LgStr source, ChatTemplate **out, LgError *err) {
    if (source.len > TPL_SOURCE_BYTES_MAX)
        return lg_fail(err, LG_LIMIT, 0, "chat template: %zu bytes, limit %zu", source.len,
                       TPL_SOURCE_BYTES_MAX);
    ChatTemplate *t = lg_calloc(1, sizeof *t);
    if (!t)
        return lg_fail_memory(err);
    arena_init(&t->arena);
    t->arena.limit_bytes = TPL_TREE_BYTES_MAX;
    LgStatus status = tpl_parse(&t->arena, source, &t->body, err);
    if (status == LG_OK)
        *out = t;
    else
        chat_template_destroy(t);
    return status;
}

void chat_template_destroy(ChatTemplate *t) {
    if (!t)
        return;
    arena_clear(&t->arena);
    lg_free(t);
}
