/* Attributes, indices and slices, as Jinja's environment looks them up: for a.b the attribute first
 * and then the item, for a["b"] the other way round, and undefined where there is neither. */
#include <string.h>

#include "base/utf8.h"
#include "chat/run.h"

static LgStatus loop_attribute(TplRun *r, TplLoop *l, LgStr name, TplValue *out, bool *found) {
    size_t i = l->index, n = l->count;
    const struct {
        const char *name;
        TplValue value;
    } rows[] = {
        /* depth counts recursive loops, which are not served */
        {"index", tpl_int((int64_t)i + 1)},
        {"index0", tpl_int((int64_t)i)},
        {"first", tpl_bool(i == 0)},
        {"last", tpl_bool(i + 1 == n)},
        {"length", tpl_int((int64_t)n)},
        {"revindex", tpl_int((int64_t)(n - i))},
        {"depth", tpl_int(1)},
        {"revindex0", tpl_int((int64_t)(n - i) - 1)},
        {"depth0", tpl_int(0)},
    };
    *found = true;
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        if (lg_str_eq_c(name, rows[k].name)) {
            *out = rows[k].value;
            return LG_OK;
        }
    }
    bool previous = lg_str_eq_c(name, "previtem"), next = lg_str_eq_c(name, "nextitem");
    *found = previous || next;
    if ((previous && i == 0) || (next && i + 1 >= n))
        return tpl_undefined(r, name, "loop", out);
    if (*found)
        *out = l->items[previous ? i - 1 : i + 1];
    return LG_OK;
}

/* The attribute that the type has: a method, or a namespace's or loop's own. */
static LgStatus own_attribute(TplRun *r, TplValue v, LgStr name, TplValue *out, bool *found) {
    *found = false;
    if (v.kind == TPL_NAMESPACE) {
        const TplValue *value = tpl_dict_find_str(v.as.dict, name);
        *found = value != NULL;
        if (value)
            *out = *value;
        return LG_OK;
    }
    if (v.kind == TPL_LOOP) {
        LG_TRY(loop_attribute(r, v.as.loop, name, out, found));
        if (*found)
            return LG_OK;
    }
    const TplMethod *method =
        v.kind == TPL_SEQ && v.as.seq->kind > TPL_TUPLE ? NULL : tpl_method_find(v.kind, name);
    if (!method)
        return LG_OK;
    TplValue *self = ARENA_NEW(&r->arena, TplValue);
    if (!self)
        return tpl_fail_memory(r);
    *self = v;
    *out = (TplValue){.kind = TPL_METHOD, .as.bound = {method, self}};
    *found = true;
    return LG_OK;
}

LgStatus tpl_attribute(TplRun *r, TplValue v, LgStr name, TplValue *out) {
    bool found;
    if (v.kind == TPL_UNDEFINED)
        return tpl_use_undefined(r, v);
    LG_TRY(own_attribute(r, v, name, out, &found));
    if (found)
        return LG_OK;
    if (v.kind == TPL_DICT) {
        LG_TRY(tpl_step(r, 1 + v.as.dict->count / 8));
        const TplValue *value = tpl_dict_find_str(v.as.dict, name);
        if (value) {
            *out = *value;
            return LG_OK;
        }
    }
    return tpl_undefined(r, name, tpl_type_name(v), out);
}

/* The byte offset of the index-th code point. */
static size_t code_offset(LgStr s, size_t index) {
    size_t at = 0;
    while (at < s.len && index > 0) {
        at++;
        while (at < s.len && ((unsigned char)s.ptr[at] & 0xc0) == 0x80)
            at++;
        index--;
    }
    return at;
}

/* Python's index: from the end where negative. False: outside. */
static bool resolve(int64_t index, size_t count, size_t *out) {
    if (index < 0 && count <= INT64_MAX)
        index += (int64_t)count;
    if (index < 0 || (uint64_t)index >= count)
        return false;
    *out = (size_t)index;
    return true;
}

static LgStatus item(TplRun *r, TplValue v, TplValue index, TplValue *out, bool *found) {
    size_t count, at;
    *found = false;
    if (v.kind == TPL_DICT) {
        const TplValue *value = NULL;
        if (index.kind != TPL_DICT && (index.kind != TPL_SEQ || index.as.seq->kind == TPL_TUPLE))
            LG_TRY(tpl_dict_find(r, v.as.dict, index, &value));
        *found = value != NULL;
        if (value)
            *out = *value;
        return LG_OK;
    }
    bool sequence = v.kind == TPL_STR || (v.kind == TPL_SEQ && v.as.seq->kind <= TPL_RANGE);
    if (!sequence || !tpl_is_integer(index))
        return LG_OK;
    LG_TRY(tpl_length(r, v, &count));
    *found = resolve(tpl_integer(index), count, &at);
    if (!*found)
        return LG_OK;
    if (v.kind == TPL_SEQ) {
        *out = v.as.seq->items[at];
        return LG_OK;
    }
    size_t offset = code_offset(v.as.str, at);
    LgStr rest = lg_str_sub(v.as.str, offset, v.as.str.len);
    *out = tpl_str(lg_str_sub(rest, 0, code_offset(rest, 1)));
    return LG_OK;
}

LgStatus tpl_index(TplRun *r, TplValue v, TplValue index, TplValue *out) {
    bool found;
    if (v.kind == TPL_UNDEFINED)
        return tpl_use_undefined(r, v);
    LG_TRY(item(r, v, index, out, &found));
    if (!found && index.kind == TPL_STR)
        LG_TRY(own_attribute(r, v, index.as.str, out, &found));
    if (found)
        return LG_OK;
    LgStr name;
    LG_TRY(tpl_text(r, index, &name));
    return tpl_undefined(r, name, tpl_type_name(v), out);
}

/* A bound of a slice, into [low, high]. */
static LgStatus bound(TplRun *r, TplValue v, int64_t fallback, const int64_t range[3],
                      int64_t *out) {
    int64_t count = range[0], low = range[1], high = range[2];
    if (v.kind == TPL_NONE || v.kind == TPL_ABSENT) {
        *out = fallback;
        return LG_OK;
    }
    LG_TRY(tpl_arg_int(r, v, "a bound of a slice", out));
    if (*out < 0)
        *out = *out < -count ? low : *out + count;
    if (*out < low)
        *out = low;
    if (*out > high)
        *out = high;
    return LG_OK;
}

/* What a slice takes: the first position, how far to the next, and how many. */
typedef struct SliceRange {
    int64_t start, step;
    size_t count;
} SliceRange;

static LgStatus slice_range(TplRun *r, size_t length, const TplValue bounds[3], SliceRange *out) {
    int64_t count = (int64_t)length, start, stop, step = 1;
    if (bounds[2].kind != TPL_NONE && bounds[2].kind != TPL_ABSENT)
        LG_TRY(tpl_arg_int(r, bounds[2], "the step of a slice", &step));
    if (step == 0)
        return tpl_fail(r, "the step of a slice is 0");
    bool down = step < 0;
    const int64_t range[3] = {count, down ? -1 : 0, down ? count - 1 : count};
    LG_TRY(bound(r, bounds[0], down ? count - 1 : 0, range, &start));
    LG_TRY(bound(r, bounds[1], down ? -1 : count, range, &stop));
    int64_t distance = down ? start - stop : stop - start;
    uint64_t stride = down ? (uint64_t)0 - (uint64_t)step : (uint64_t)step;
    out->start = start;
    out->step = step;
    out->count = distance > 0 ? (size_t)(((uint64_t)distance - 1) / stride + 1) : 0;
    return LG_OK;
}

static LgStatus slice_str(TplRun *r, LgStr s, const SliceRange *range, TplValue *out) {
    if (range->step == 1) {
        size_t from = code_offset(s, (size_t)range->start);
        LgStr rest = lg_str_sub(s, from, s.len);
        *out = tpl_str(lg_str_sub(rest, 0, code_offset(rest, range->count)));
        return LG_OK;
    }
    const TplValue *chars;
    size_t count;
    Buf text;
    LG_TRY(tpl_items(r, tpl_str(s), &chars, &count));
    buf_init(&text);
    int64_t at = range->start;
    for (size_t i = 0; i < range->count; i++, at += i < range->count ? range->step : 0)
        buf_str(&text, chars[at].as.str);
    return tpl_take_str(r, &text, out);
}

LgStatus tpl_slice(TplRun *r, TplValue v, const TplValue bounds[3], TplValue *out) {
    size_t count;
    SliceRange range = {0};
    bool sequence = v.kind == TPL_STR || (v.kind == TPL_SEQ && v.as.seq->kind <= TPL_RANGE);
    if (v.kind == TPL_UNDEFINED)
        return tpl_use_undefined(r, v);
    if (!sequence)
        return tpl_fail(r, "a %s has no slices", tpl_type_name(v));
    LG_TRY(tpl_length(r, v, &count));
    LG_TRY(slice_range(r, count, bounds, &range));
    if (v.kind == TPL_STR)
        return slice_str(r, v.as.str, &range, out);
    LG_TRY(tpl_new_seq(r, v.as.seq->kind, range.count, out));
    int64_t at = range.start;
    for (size_t i = 0; i < range.count; i++, at += i < range.count ? range.step : 0)
        out->as.seq->items[i] = v.as.seq->items[at];
    return LG_OK;
}
