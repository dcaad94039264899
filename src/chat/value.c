/* Making values, looking into them, comparing them. Nested ones are gone through with the depth of
 * the rendering counted: a template can nest a list deeper than the stack. */
#include <jansson.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "chat/run.h"

const char *tpl_type_name(TplValue v) {
    static const char *const kinds[] = {"absent", "Undefined", "NoneType", "bool",  "int",
                                        "float",  "str",       "list",     "dict",  "Namespace",
                                        "loop",   "macro",     "function", "method"};
    static const char *const seqs[] = {"list",        "tuple",      "range",    "dict_keys",
                                       "dict_values", "dict_items", "generator"};
    return v.kind == TPL_SEQ ? seqs[v.as.seq->kind] : kinds[v.kind];
}

bool tpl_truth(TplValue v) {
    switch (v.kind) {
    case TPL_ABSENT:
    case TPL_UNDEFINED:
    case TPL_NONE:
        return false;
    case TPL_BOOL:
        return v.as.boolean;
    case TPL_INT:
        return v.as.integer != 0;
    case TPL_FLOAT:
        return v.as.real != 0;
    case TPL_STR:
        return v.as.str.len != 0;
    case TPL_SEQ:
        return v.as.seq->kind == TPL_GENERATOR || v.as.seq->count != 0;
    case TPL_DICT:
        return v.as.dict->count != 0;
    default:
        return true;
    }
}

LgStatus tpl_undefined(TplRun *r, LgStr name, const char *owner, TplValue *out) {
    TplMissing *m = ARENA_NEW(&r->arena, TplMissing);
    if (!m)
        return tpl_fail_memory(r);
    *m = (TplMissing){name, owner};
    *out = (TplValue){.kind = TPL_UNDEFINED, .as.missing = m};
    return LG_OK;
}

LgStatus tpl_use_undefined(TplRun *r, TplValue v) {
    const TplMissing *m = v.as.missing;
    Buf name;
    buf_init(&name);
    buf_printable(&name, m->name, 60);
    LgStatus status = m->owner
                          ? tpl_fail(r, "a %s has no attribute or item \"%s\"", m->owner, name.data)
                          : tpl_fail(r, "\"%s\" is undefined", name.data);
    buf_clear(&name);
    return status;
}

LgStatus tpl_new_seq(TplRun *r, TplSeqKind kind, size_t count, TplValue *out) {
    if (count > TPL_MEMORY_BYTES_MAX / 2 / sizeof(TplValue))
        return lg_fail(r->err, LG_LIMIT, r->line, "chat template: line %u: a sequence of %zu items",
                       r->line, count);
    LG_TRY(tpl_step(r, 1 + count / 4));
    TplSeq *s = ARENA_NEW(&r->arena, TplSeq);
    if (!s)
        return tpl_fail_memory(r);
    s->kind = kind;
    s->count = count;
    s->items = count ? ARENA_ARRAY(&r->arena, TplValue, count) : NULL;
    if (count && !s->items)
        return tpl_fail_memory(r);
    *out = (TplValue){.kind = TPL_SEQ, .as.seq = s};
    return LG_OK;
}

LgStatus tpl_new_dict(TplRun *r, TplValueKind kind, size_t cap, TplValue *out) {
    TplDict *d = ARENA_NEW(&r->arena, TplDict);
    LG_TRY(tpl_step(r, 1 + cap / 4));
    if (!d)
        return tpl_fail_memory(r);
    d->cap = cap;
    d->keys = cap ? ARENA_ARRAY(&r->arena, TplValue, cap) : NULL;
    d->values = cap ? ARENA_ARRAY(&r->arena, TplValue, cap) : NULL;
    if (cap && (!d->keys || !d->values))
        return tpl_fail_memory(r);
    *out = (TplValue){.kind = kind, .as.dict = d};
    return LG_OK;
}

static bool hashable(TplValue v) {
    if (tpl_is_seq(v, TPL_TUPLE)) {
        for (size_t i = 0; i < v.as.seq->count; i++)
            if (!hashable(v.as.seq->items[i]))
                return false;
        return true;
    }
    return v.kind != TPL_SEQ && v.kind != TPL_DICT;
}

const TplValue *tpl_dict_find_str(const TplDict *d, LgStr key) {
    for (size_t i = 0; i < d->count; i++)
        if (d->keys[i].kind == TPL_STR && lg_str_eq(d->keys[i].as.str, key))
            return &d->values[i];
    return NULL;
}

LgStatus tpl_dict_find(TplRun *r, const TplDict *d, TplValue key, const TplValue **out) {
    *out = NULL;
    LG_TRY(tpl_step(r, 1 + d->count / 8));
    if (!hashable(key))
        return tpl_fail(r, "a %s cannot be a key", tpl_type_name(key));
    if (key.kind == TPL_STR) {
        *out = tpl_dict_find_str(d, key.as.str);
        return LG_OK;
    }
    for (size_t i = 0; i < d->count; i++) {
        bool same;
        LG_TRY(tpl_equal(r, d->keys[i], key, &same));
        if (same) {
            *out = &d->values[i];
            return LG_OK;
        }
    }
    return LG_OK;
}

LgStatus tpl_dict_set(TplRun *r, TplDict *d, TplValue key, TplValue value) {
    const TplValue *old;
    LG_TRY(tpl_dict_find(r, d, key, &old));
    if (old) {
        d->values[old - d->values] = value;
        return LG_OK;
    }
    if (d->count == d->cap) {
        size_t cap = d->cap ? d->cap * 2 : 8;
        TplValue *keys = arena_grow(&r->arena, d->keys, d->count, cap, sizeof *keys);
        TplValue *values = arena_grow(&r->arena, d->values, d->count, cap, sizeof *values);
        if (!keys || !values)
            return tpl_fail_memory(r);
        d->keys = keys;
        d->values = values;
        d->cap = cap;
    }
    d->keys[d->count] = key;
    d->values[d->count++] = value;
    return LG_OK;
}

static LgStatus from_json_object(TplRun *r, const json_t *json, TplValue *out) {
    json_t *object = (json_t *)json; /* jansson's iterators take it so; nothing is changed */
    LG_TRY(tpl_new_dict(r, TPL_DICT, json_object_size(json), out));
    TplDict *d = out->as.dict;
    for (void *it = json_object_iter(object); it; it = json_object_iter_next(object, it)) {
        LgStr key = {json_object_iter_key(it), json_object_iter_key_len(it)};
        d->keys[d->count] = tpl_str(key);
        LG_TRY(tpl_from_json(r, json_object_iter_value(it), &d->values[d->count]));
        d->count++;
    }
    return LG_OK;
}

/* Strings stay views of the JSON, which outlives the rendering. */
LgStatus tpl_from_json(TplRun *r, const json_t *json, TplValue *out) {
    LgStatus status = LG_OK;
    LG_TRY(tpl_step(r, 1));
    switch (json ? json_typeof(json) : JSON_NULL) {
    case JSON_OBJECT:
        LG_TRY(tpl_deeper(r));
        status = from_json_object(r, json, out);
        tpl_up(r);
        return status;
    case JSON_ARRAY:
        LG_TRY(tpl_deeper(r));
        status = tpl_new_seq(r, TPL_LIST, json_array_size(json), out);
        for (size_t i = 0; status == LG_OK && i < out->as.seq->count; i++)
            status = tpl_from_json(r, json_array_get(json, i), &out->as.seq->items[i]);
        tpl_up(r);
        return status;
    case JSON_STRING:
        *out = tpl_str(lg_json_string(json));
        return LG_OK;
    case JSON_INTEGER:
        *out = tpl_int(json_integer_value(json));
        return LG_OK;
    case JSON_REAL:
        *out = tpl_float(json_real_value(json));
        return LG_OK;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = tpl_bool(json_is_true(json));
        return LG_OK;
    default:
        *out = tpl_none();
        return LG_OK;
    }
}

LgStatus tpl_new_str(TplRun *r, LgStr text, TplValue *out) {
    LG_TRY(tpl_step(r, 1 + text.len / 64));
    LgStr copy = arena_str(&r->arena, text);
    if (!copy.ptr)
        return tpl_fail_memory(r);
    *out = tpl_str(copy);
    return LG_OK;
}

LgStatus tpl_take_str(TplRun *r, Buf *buf, TplValue *out) {
    LgStatus status = tpl_check_text(r, buf);
    if (status == LG_OK)
        status = tpl_new_str(r, buf_view(buf), out);
    buf_clear(buf);
    return status;
}

/* The code points of a string, each a string. */
static LgStatus characters(TplRun *r, LgStr s, const TplValue **items, size_t *count) {
    size_t n = 0, i = 0;
    LG_TRY(tpl_step(r, 1 + s.len));
    TplValue *chars = ARENA_ARRAY(&r->arena, TplValue, s.len + 1);
    if (!chars)
        return tpl_fail_memory(r);
    while (i < s.len) {
        uint32_t code;
        int bytes = utf8_decode(s.ptr + i, s.len - i, &code);
        size_t step = bytes ? (size_t)bytes : 1;
        chars[n++] = tpl_str(lg_str_sub(s, i, step));
        i += step;
    }
    *items = chars;
    *count = n;
    return LG_OK;
}

LgStatus tpl_items(TplRun *r, TplValue v, const TplValue **items, size_t *count) {
    switch (v.kind) {
    case TPL_UNDEFINED:
        *items = NULL;
        *count = 0;
        return LG_OK;
    case TPL_STR:
        return characters(r, v.as.str, items, count);
    case TPL_DICT:
        *items = v.as.dict->keys;
        *count = v.as.dict->count;
        return tpl_step(r, 1);
    case TPL_SEQ:
        *items = v.as.seq->count ? v.as.seq->items + v.as.seq->read : NULL;
        *count = v.as.seq->count - v.as.seq->read;
        if (v.as.seq->kind == TPL_GENERATOR)
            v.as.seq->read = v.as.seq->count;
        return tpl_step(r, 1);
    default:
        return tpl_fail(r, "a %s cannot be iterated over", tpl_type_name(v));
    }
}

LgStatus tpl_length(TplRun *r, TplValue v, size_t *out) {
    const TplValue *items;
    switch (v.kind) {
    case TPL_STR:
        *out = 0;
        for (size_t i = 0; i < v.as.str.len; i++)
            *out += ((unsigned char)v.as.str.ptr[i] & 0xc0) != 0x80;
        return tpl_step(r, 1 + v.as.str.len / 64);
    case TPL_SEQ:
        if (v.as.seq->kind == TPL_GENERATOR)
            break;
        return tpl_items(r, v, &items, out);
    case TPL_DICT:
    case TPL_UNDEFINED:
        return tpl_items(r, v, &items, out);
    case TPL_LOOP:
        *out = v.as.loop->count;
        return LG_OK;
    default:
        break;
    }
    return tpl_fail(r, "a %s has no length", tpl_type_name(v));
}

static LgStatus equal_seqs(TplRun *r, const TplSeq *a, const TplSeq *b, bool *out) {
    *out = a == b;
    if (*out || a->kind != b->kind || a->kind == TPL_GENERATOR || a->count != b->count)
        return LG_OK;
    for (size_t i = 0; i < a->count; i++) {
        LG_TRY(tpl_equal(r, a->items[i], b->items[i], out));
        if (!*out)
            return LG_OK;
    }
    *out = true;
    return LG_OK;
}

static LgStatus equal_dicts(TplRun *r, const TplDict *a, const TplDict *b, bool *out) {
    *out = a->count == b->count;
    for (size_t i = 0; *out && i < a->count; i++) {
        const TplValue *other;
        LG_TRY(tpl_dict_find(r, b, a->keys[i], &other));
        *out = other != NULL;
        if (other)
            LG_TRY(tpl_equal(r, a->values[i], *other, out));
    }
    return LG_OK;
}

LgStatus tpl_equal(TplRun *r, TplValue a, TplValue b, bool *out) {
    LgStatus status = LG_OK;
    *out = false;
    LG_TRY(tpl_step(r, 1));
    if (tpl_is_number(a) && tpl_is_number(b)) {
        *out = tpl_is_integer(a) && tpl_is_integer(b) ? tpl_integer(a) == tpl_integer(b)
                                                      : tpl_real(a) == tpl_real(b);
        return LG_OK;
    }
    if (a.kind != b.kind)
        return LG_OK;
    switch (a.kind) {
    case TPL_STR:
        *out = lg_str_eq(a.as.str, b.as.str);
        return LG_OK;
    case TPL_SEQ:
    case TPL_DICT:
        LG_TRY(tpl_deeper(r));
        status = a.kind == TPL_SEQ ? equal_seqs(r, a.as.seq, b.as.seq, out)
                                   : equal_dicts(r, a.as.dict, b.as.dict, out);
        tpl_up(r);
        return status;
    case TPL_NAMESPACE:
        *out = a.as.dict == b.as.dict;
        return LG_OK;
    case TPL_LOOP:
        *out = a.as.loop == b.as.loop;
        return LG_OK;
    case TPL_MACRO:
        *out = a.as.macro == b.as.macro;
        return LG_OK;
    case TPL_FUNCTION:
        *out = a.as.function == b.as.function;
        return LG_OK;
    case TPL_METHOD:
        return LG_OK;
    default: /* none, undefined */
        *out = true;
        return LG_OK;
    }
}

static LgStatus order_seqs(TplRun *r, const TplSeq *a, const TplSeq *b, int *out) {
    size_t count = a->count < b->count ? a->count : b->count;
    for (size_t i = 0; i < count; i++) {
        bool same;
        LG_TRY(tpl_equal(r, a->items[i], b->items[i], &same));
        if (!same)
            return tpl_order(r, a->items[i], b->items[i], out);
    }
    *out = (a->count > b->count) - (a->count < b->count);
    return LG_OK;
}

LgStatus tpl_order(TplRun *r, TplValue a, TplValue b, int *out) {
    LG_TRY(tpl_step(r, 1));
    if (tpl_is_integer(a) && tpl_is_integer(b)) {
        *out = (tpl_integer(a) > tpl_integer(b)) - (tpl_integer(a) < tpl_integer(b));
        return LG_OK;
    }
    if (tpl_is_number(a) && tpl_is_number(b)) {
        *out = (tpl_real(a) > tpl_real(b)) - (tpl_real(a) < tpl_real(b));
        return LG_OK;
    }
    if (a.kind == TPL_STR && b.kind == TPL_STR) {
        int order = lg_str_cmp(a.as.str, b.as.str);
        *out = (order > 0) - (order < 0);
        return LG_OK;
    }
    if (a.kind == TPL_SEQ && b.kind == TPL_SEQ && a.as.seq->kind == b.as.seq->kind &&
        a.as.seq->kind <= TPL_TUPLE) {
        LG_TRY(tpl_deeper(r));
        LgStatus status = order_seqs(r, a.as.seq, b.as.seq, out);
        tpl_up(r);
        return status;
    }
    if (a.kind == TPL_UNDEFINED || b.kind == TPL_UNDEFINED)
        return tpl_use_undefined(r, a.kind == TPL_UNDEFINED ? a : b);
    return tpl_fail(r, "a %s and a %s have no order", tpl_type_name(a), tpl_type_name(b));
}

LgStatus tpl_contains(TplRun *r, TplValue container, TplValue item, bool *out) {
    *out = false;
    if (container.kind == TPL_STR) {
        LgStr s = container.as.str;
        LG_TRY(tpl_step(r, 1 + s.len / 64));
        if (item.kind != TPL_STR)
            return tpl_fail(r, "in: a str can contain a str only, not a %s", tpl_type_name(item));
        *out =
            item.as.str.len == 0 || memmem(s.ptr, s.len, item.as.str.ptr, item.as.str.len) != NULL;
        return LG_OK;
    }
    if (container.kind == TPL_DICT) {
        const TplValue *found;
        LG_TRY(tpl_dict_find(r, container.as.dict, item, &found));
        *out = found != NULL;
        return LG_OK;
    }
    const TplValue *items = NULL;
    size_t count = 0;
    LG_TRY(tpl_items(r, container, &items, &count));
    for (size_t i = 0; items && i < count && !*out; i++)
        LG_TRY(tpl_equal(r, items[i], item, out));
    return LG_OK;
}

LgStatus tpl_arg_str(TplRun *r, TplValue v, const char *what, LgStr *out) {
    if (v.kind != TPL_STR)
        return tpl_fail(r, "%s must be a str, not a %s", what, tpl_type_name(v));
    *out = v.as.str;
    return LG_OK;
}

LgStatus tpl_arg_int(TplRun *r, TplValue v, const char *what, int64_t *out) {
    if (!tpl_is_integer(v))
        return tpl_fail(r, "%s must be an int, not a %s", what, tpl_type_name(v));
    *out = tpl_integer(v);
    return LG_OK;
}
