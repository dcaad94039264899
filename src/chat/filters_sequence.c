/* Filters over sequences. Those that give a generator in Python give one here, though its items are
 * made at once. */
#include <string.h>

#include "base/mem.h"
#include "chat/run.h"
#include "chat/strings.h"

static bool given(TplValue v) {
    return v.kind != TPL_ABSENT && v.kind != TPL_NONE;
}

/* "a.b.0": one after the other; the parts of digits are indices. A default stands in for what is
 * undefined. */
static LgStatus get_path(TplRun *r, TplValue v, TplValue path, TplValue fallback, TplValue *out) {
    *out = v;
    if (!given(path))
        return LG_OK;
    if (path.kind != TPL_STR)
        return tpl_index(r, v, path, out);
    LgStr rest = path.as.str;
    for (bool more = true; more;) {
        size_t dot = tpl_find(rest, LG_STR("."), 0);
        more = dot != SIZE_MAX;
        LgStr part = lg_str_sub(rest, 0, dot);
        TplValue key = tpl_str(part);
        if (part.len < 10 && tpl_all_of(part, TPL_DECIMAL)) {
            int64_t number = 0;
            for (size_t i = 0; i < part.len; i++)
                number = number * 10 + (part.ptr[i] - '0');
            key = tpl_int(number);
        }
        LG_TRY(tpl_index(r, *out, key, out));
        if (out->kind == TPL_UNDEFINED && given(fallback))
            *out = fallback;
        rest = more ? lg_str_sub(rest, dot + 1, rest.len) : rest;
    }
    return LG_OK;
}

/* For comparisons that take no notice of case. */
static LgStatus fold(TplRun *r, TplValue v, bool case_sensitive, TplValue *out) {
    Buf text;
    *out = v;
    if (case_sensitive || v.kind != TPL_STR)
        return LG_OK;
    LG_TRY(tpl_step(r, v.as.str.len / 16));
    buf_init(&text);
    tpl_case(v.as.str, TPL_LOWER, &text);
    return tpl_take_str(r, &text, out);
}

static LgStatus f_join(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    const TplValue *items;
    size_t count;
    LgStr between = {"", 0};
    Buf text;
    LG_TRY(tpl_items(r, self, &items, &count));
    if (given(argv[0]))
        LG_TRY(tpl_text(r, argv[0], &between));
    buf_init(&text);
    LgStatus status = LG_OK;
    for (size_t i = 0; i < count && status == LG_OK; i++) {
        TplValue item;
        buf_str(&text, i ? between : (LgStr){"", 0});
        status = tpl_step(r, 1 + between.len / 64);
        if (status == LG_OK)
            status = get_path(r, items[i], argv[1], (TplValue){0}, &item);
        if (status == LG_OK)
            status = tpl_print(r, item, &text);
    }
    if (status == LG_OK)
        return tpl_take_str(r, &text, out);
    buf_clear(&text);
    return status;
}

static LgStatus f_first(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    const TplValue *items;
    size_t count;
    (void)argv;
    size_t read = self.kind == TPL_SEQ ? self.as.seq->read : 0;
    LG_TRY(tpl_items(r, self, &items, &count));
    if (tpl_is_seq(self, TPL_GENERATOR)) /* one item is taken, not all */
        self.as.seq->read = read + (count ? 1 : 0);
    if (!count)
        return tpl_undefined(r, LG_STR("first"), "sequence without items", out);
    *out = items[0];
    return LG_OK;
}

static LgStatus f_last(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    const TplValue *items;
    size_t count;
    (void)argv;
    if (tpl_is_seq(self, TPL_GENERATOR))
        return tpl_fail(r, "last: a generator cannot be read from its end; put |list in front");
    LG_TRY(tpl_items(r, self, &items, &count));
    if (!count)
        return tpl_undefined(r, LG_STR("last"), "sequence without items", out);
    *out = items[count - 1];
    return LG_OK;
}

static LgStatus copy_items(TplRun *r, TplSeqKind kind, const TplValue *items, size_t count,
                           TplValue *out) {
    LG_TRY(tpl_new_seq(r, kind, count, out));
    if (count)
        memcpy(out->as.seq->items, items, count * sizeof *items);
    return LG_OK;
}

static LgStatus f_list(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    const TplValue *items;
    size_t count;
    (void)argv;
    LG_TRY(tpl_items(r, self, &items, &count));
    return copy_items(r, TPL_LIST, items, count, out);
}

static LgStatus f_reverse(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    const TplValue *items;
    size_t count;
    Buf text;
    (void)argv;
    LG_TRY(tpl_items(r, self, &items, &count));
    if (self.kind == TPL_STR) {
        buf_init(&text);
        for (size_t i = count; i > 0; i--)
            buf_str(&text, items[i - 1].as.str);
        return tpl_take_str(r, &text, out);
    }
    TplValue seq;
    LG_TRY(tpl_new_seq(r, tpl_is_seq(self, TPL_GENERATOR) ? TPL_LIST : TPL_GENERATOR, count, &seq));
    for (size_t i = 0; i < count; i++)
        seq.as.seq->items[i] = items[count - 1 - i];
    *out = seq;
    return LG_OK;
}

static LgStatus f_items(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    (void)argv;
    if (self.kind == TPL_UNDEFINED)
        return tpl_new_seq(r, TPL_GENERATOR, 0, out);
    if (self.kind != TPL_DICT)
        return tpl_fail(r, "items: a %s is no mapping", tpl_type_name(self));
    const TplDict *d = self.as.dict;
    TplValue seq;
    LG_TRY(tpl_new_seq(r, TPL_GENERATOR, d->count, &seq));
    for (size_t i = 0; i < d->count; i++) {
        TplValue pair[2] = {d->keys[i], d->values[i]};
        LG_TRY(copy_items(r, TPL_TUPLE, pair, 2, &seq.as.seq->items[i]));
    }
    *out = seq;
    return LG_OK;
}

static LgStatus f_unique(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    const TplValue *items;
    TplValue seen, seq, key;
    size_t count;
    LG_TRY(tpl_items(r, self, &items, &count));
    LG_TRY(tpl_new_seq(r, TPL_GENERATOR, count, &seq));
    LG_TRY(tpl_new_seq(r, TPL_LIST, count, &seen));
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        bool known = false;
        LG_TRY(get_path(r, items[i], argv[1], (TplValue){0}, &key));
        LG_TRY(fold(r, key, tpl_truth(argv[0]), &key));
        for (size_t k = 0; k < kept && !known; k++)
            LG_TRY(tpl_equal(r, seen.as.seq->items[k], key, &known));
        if (known)
            continue;
        seen.as.seq->items[kept] = key;
        seq.as.seq->items[kept++] = items[i];
    }
    seq.as.seq->count = kept;
    *out = seq;
    return LG_OK;
}

/* Sorting: positions by their keys, a stable merge sort, since a comparison may fail. */
typedef struct Sorter {
    TplRun *r;
    const TplValue *keys;
    bool reverse;
} Sorter;

static LgStatus merge(const Sorter *s, size_t *order, size_t *room, const size_t ends[3]) {
    size_t a = ends[0], b = ends[1], n = ends[0];
    while (a < ends[1] || b < ends[2]) {
        int compared = -1;
        if (a < ends[1] && b < ends[2])
            LG_TRY(tpl_order(s->r, s->keys[order[a]], s->keys[order[b]], &compared));
        else if (a == ends[1])
            compared = s->reverse ? -1 : 1;
        else
            compared = s->reverse ? 1 : -1;
        bool left = s->reverse ? compared >= 0 : compared <= 0;
        room[n++] = left ? order[a++] : order[b++];
    }
    memcpy(order + ends[0], room + ends[0], (ends[2] - ends[0]) * sizeof *order);
    return LG_OK;
}

static LgStatus sort_keys(TplRun *r, const TplValue *keys, size_t count, bool reverse,
                          size_t **out) {
    Sorter s = {r, keys, reverse};
    size_t *order = ARENA_ARRAY(&r->arena, size_t, count + 1),
           *room = ARENA_ARRAY(&r->arena, size_t, count + 1);
    if (!order || !room)
        return tpl_fail_memory(r);
    for (size_t i = 0; i < count; i++)
        order[i] = i;
    for (size_t width = 1; width < count; width *= 2) {
        for (size_t start = 0; start < count; start += 2 * width) {
            size_t mid = start + width < count ? start + width : count;
            size_t end = mid + width < count ? mid + width : count;
            const size_t ends[3] = {start, mid, end};
            LG_TRY(merge(&s, order, room, ends));
        }
    }
    *out = order;
    return LG_OK;
}

/* "a,b": a list of the values at each path; one path alone also makes a list, as in Jinja. */
static LgStatus sort_key(TplRun *r, TplValue v, TplValue attribute, bool case_sensitive,
                         TplValue *out) {
    TplValue list, part;
    size_t count = 0;
    LgStr rest = attribute.kind == TPL_STR ? attribute.as.str : (LgStr){"", 0};
    LG_TRY(tpl_new_seq(r, TPL_LIST, rest.len + 1, &list));
    for (bool more = true; more;) {
        size_t comma = tpl_find(rest, LG_STR(","), 0);
        more = comma != SIZE_MAX;
        TplValue path = attribute.kind == TPL_STR ? tpl_str(lg_str_sub(rest, 0, comma)) : attribute;
        LG_TRY(get_path(r, v, path, (TplValue){0}, &part));
        LG_TRY(fold(r, part, case_sensitive, &list.as.seq->items[count++]));
        rest = more ? lg_str_sub(rest, comma + 1, rest.len) : rest;
    }
    list.as.seq->count = count;
    *out = list;
    return LG_OK;
}

static LgStatus f_sort(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    const TplValue *items;
    size_t count, *order = NULL;
    TplValue keys, seq;
    LG_TRY(tpl_items(r, self, &items, &count));
    LG_TRY(tpl_new_seq(r, TPL_LIST, count, &keys));
    for (size_t i = 0; i < count; i++)
        LG_TRY(sort_key(r, items[i], argv[2], tpl_truth(argv[1]), &keys.as.seq->items[i]));
    LG_TRY(sort_keys(r, keys.as.seq->items, count, tpl_truth(argv[0]), &order));
    LG_TRY(tpl_new_seq(r, TPL_LIST, count, &seq));
    for (size_t i = 0; i < count; i++)
        seq.as.seq->items[i] = items[order[i]];
    *out = seq;
    return LG_OK;
}

static LgStatus f_dictsort(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    bool by_value = argv[1].kind == TPL_STR && lg_str_eq_c(argv[1].as.str, "value");
    TplValue keys, seq;
    size_t *order = NULL;
    if (self.kind != TPL_DICT)
        return tpl_fail(r, "dictsort: a %s is no mapping", tpl_type_name(self));
    if (given(argv[1]) && !by_value &&
        !(argv[1].kind == TPL_STR && lg_str_eq_c(argv[1].as.str, "key")))
        return tpl_fail(r, "dictsort: by must be \"key\" or \"value\"");
    const TplDict *d = self.as.dict;
    LG_TRY(tpl_new_seq(r, TPL_LIST, d->count, &keys));
    for (size_t i = 0; i < d->count; i++)
        LG_TRY(fold(r, by_value ? d->values[i] : d->keys[i], tpl_truth(argv[0]),
                    &keys.as.seq->items[i]));
    LG_TRY(sort_keys(r, keys.as.seq->items, d->count, tpl_truth(argv[2]), &order));
    LG_TRY(tpl_new_seq(r, TPL_LIST, d->count, &seq));
    for (size_t i = 0; order && i < d->count; i++) {
        TplValue pair[2] = {d->keys[order[i]], d->values[order[i]]};
        LG_TRY(copy_items(r, TPL_TUPLE, pair, 2, &seq.as.seq->items[i]));
    }
    *out = seq;
    return LG_OK;
}

static LgStatus extreme(TplRun *r, TplValue self, const TplValue *argv, int sign, TplValue *out) {
    const TplValue *items;
    size_t count;
    TplValue best, key;
    LG_TRY(tpl_items(r, self, &items, &count));
    if (!count)
        return tpl_undefined(r, LG_STR("min or max"), "sequence without items", out);
    for (size_t i = 0; i < count; i++) {
        int order = sign;
        LG_TRY(get_path(r, items[i], argv[1], (TplValue){0}, &key));
        LG_TRY(fold(r, key, tpl_truth(argv[0]), &key));
        if (i)
            LG_TRY(tpl_order(r, key, best, &order));
        if (order != sign)
            continue;
        best = key;
        *out = items[i];
    }
    return LG_OK;
}

static LgStatus f_min(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    return extreme(r, self, argv, -1, out);
}

static LgStatus f_max(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    return extreme(r, self, argv, 1, out);
}

static LgStatus f_sum(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    const TplValue *items;
    size_t count;
    TplValue total = argv[1].kind == TPL_ABSENT ? tpl_int(0) : argv[1], item;
    LG_TRY(tpl_items(r, self, &items, &count));
    if (total.kind == TPL_STR)
        return tpl_fail(r, "sum: texts are not added up; join is for that");
    for (size_t i = 0; i < count; i++) {
        LG_TRY(get_path(r, items[i], argv[0], (TplValue){0}, &item));
        LG_TRY(tpl_binary(r, TPL_ADD, total, item, &total));
    }
    *out = total;
    return LG_OK;
}

static TplArgs rest_of(const TplArgs *args, size_t skip) {
    TplArgs rest = *args;
    rest.items += skip;
    rest.count -= skip;
    return rest;
}

/* map(attribute=…, default=…) or map("filter", its arguments). */
static LgStatus f_map(TplRun *r, TplValue self, const TplArgs *args, TplValue *out) {
    TplValue argv[2], seq;
    const TplValue *items;
    const TplFilter *f = NULL;
    size_t count;
    TplArgs rest = {0};
    if (!tpl_truth(self)) /* none included: Jinja looks no further */
        return tpl_new_seq(r, TPL_GENERATOR, 0, out);
    if (args->count) {
        LgStr name;
        LG_TRY(tpl_arg_str(r, args->items[0], "map: the name of a filter", &name));
        f = tpl_filter_find(name);
        if (!f)
            return tpl_fail(r, "map: the filter \"%.*s\" is not served",
                            LG_STR_ARG(lg_str_sub(name, 0, 60)));
        rest = rest_of(args, 1);
    } else {
        LG_TRY(tpl_bind(r, "filter", "map", "attribute default", 1, args, argv));
    }
    LG_TRY(tpl_items(r, self, &items, &count));
    LG_TRY(tpl_new_seq(r, TPL_GENERATOR, count, &seq));
    for (size_t i = 0; i < count; i++) {
        TplValue *to = &seq.as.seq->items[i];
        LG_TRY(f ? tpl_apply_filter(r, f, items[i], &rest, to)
                 : get_path(r, items[i], argv[0], argv[1], to));
    }
    *out = seq;
    return LG_OK;
}

/* select, reject: a test and its arguments; selectattr, rejectattr: a path in front of them. */
static LgStatus choose(TplRun *r, TplValue self, const TplArgs *args, bool attribute, bool wanted,
                       TplValue *out) {
    size_t skip = attribute ? 1 : 0, count, kept = 0;
    const TplValue *items;
    const TplTest *test = NULL;
    TplValue seq, value;
    TplArgs rest = {0};
    if (!tpl_truth(self))
        return tpl_new_seq(r, TPL_GENERATOR, 0, out);
    if (args->count < skip)
        return tpl_fail(r, "selectattr and rejectattr need the name of an attribute");
    if (args->count > skip) {
        LgStr name;
        LG_TRY(tpl_arg_str(r, args->items[skip], "select: the name of a test", &name));
        test = tpl_test_find(name);
        if (!test)
            return tpl_fail(r, "the test \"%.*s\" is not served",
                            LG_STR_ARG(lg_str_sub(name, 0, 60)));
        rest = rest_of(args, skip + 1);
    }
    LG_TRY(tpl_items(r, self, &items, &count));
    LG_TRY(tpl_new_seq(r, TPL_GENERATOR, count, &seq));
    for (size_t i = 0; i < count; i++) {
        bool passes;
        LG_TRY(
            get_path(r, items[i], attribute ? args->items[0] : tpl_none(), (TplValue){0}, &value));
        if (test)
            LG_TRY(tpl_apply_test(r, test, value, &rest, &passes));
        else
            passes = tpl_truth(value);
        if (passes == wanted)
            seq.as.seq->items[kept++] = items[i];
    }
    seq.as.seq->count = kept;
    *out = seq;
    return LG_OK;
}

static LgStatus f_select(TplRun *r, TplValue self, const TplArgs *args, TplValue *out) {
    return choose(r, self, args, false, true, out);
}

static LgStatus f_reject(TplRun *r, TplValue self, const TplArgs *args, TplValue *out) {
    return choose(r, self, args, false, false, out);
}

static LgStatus f_selectattr(TplRun *r, TplValue self, const TplArgs *args, TplValue *out) {
    return choose(r, self, args, true, true, out);
}

static LgStatus f_rejectattr(TplRun *r, TplValue self, const TplArgs *args, TplValue *out) {
    return choose(r, self, args, true, false, out);
}

const TplFilter tpl_sequence_filters[] = {
    {"join", "d attribute", 0, f_join, NULL},
    {"first", "", 0, f_first, NULL},
    {"last", "", 0, f_last, NULL},
    {"list", "", 0, f_list, NULL},
    {"reverse", "", 0, f_reverse, NULL},
    {"items", "", 0, f_items, NULL},
    {"unique", "case_sensitive attribute", 0, f_unique, NULL},
    {"sort", "reverse case_sensitive attribute", 0, f_sort, NULL},
    {"dictsort", "case_sensitive by reverse", 0, f_dictsort, NULL},
    {"min", "case_sensitive attribute", 0, f_min, NULL},
    {"max", "case_sensitive attribute", 0, f_max, NULL},
    {"sum", "attribute start", 0, f_sum, NULL},
    {"map", "", 0, NULL, f_map},
    {"select", "", 0, NULL, f_select},
    {"reject", "", 0, NULL, f_reject},
    {"selectattr", "", 0, NULL, f_selectattr},
    {"rejectattr", "", 0, NULL, f_rejectattr},
    {0},
};
