/* Methods of dicts, lists and loops, and the functions that every template has. */
#include <string.h>
#include <time.h>

#include "chat/run.h"

static LgStatus m_get(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    const TplValue *found;
    LG_TRY(tpl_dict_find(r, self.as.dict, argv[0], &found));
    *out = found ? *found : argv[1].kind == TPL_ABSENT ? tpl_none() : argv[1];
    return LG_OK;
}

static LgStatus view(TplRun *r, TplSeqKind kind, TplValue *items, size_t count, TplValue *out) {
    LG_TRY(tpl_new_seq(r, kind, 0, out));
    out->as.seq->items = items;
    out->as.seq->count = count;
    return LG_OK;
}

static LgStatus m_keys(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    (void)argv;
    return view(r, TPL_KEYS, self.as.dict->keys, self.as.dict->count, out);
}

static LgStatus m_values(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    (void)argv;
    return view(r, TPL_VALUES, self.as.dict->values, self.as.dict->count, out);
}

static LgStatus m_items(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    const TplDict *d = self.as.dict;
    TplValue seq;
    (void)argv;
    LG_TRY(tpl_new_seq(r, TPL_ITEMS, d->count, &seq));
    for (size_t i = 0; i < d->count; i++) {
        TplValue *pair = &seq.as.seq->items[i];
        LG_TRY(tpl_new_seq(r, TPL_TUPLE, 2, pair));
        pair->as.seq->items[0] = d->keys[i];
        pair->as.seq->items[1] = d->values[i];
    }
    *out = seq;
    return LG_OK;
}

static LgStatus m_copy(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    (void)r, (void)argv; /* nothing changes a dict or a list: one is as good as two */
    *out = self;
    return LG_OK;
}

static LgStatus m_list_count(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    int64_t count = 0;
    for (size_t i = 0; i < self.as.seq->count; i++) {
        bool same;
        LG_TRY(tpl_equal(r, self.as.seq->items[i], argv[0], &same));
        count += same;
    }
    *out = tpl_int(count);
    return LG_OK;
}

static LgStatus m_list_index(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    for (size_t i = 0; i < self.as.seq->count; i++) {
        bool same;
        LG_TRY(tpl_equal(r, self.as.seq->items[i], argv[0], &same));
        if (same) {
            *out = tpl_int((int64_t)i);
            return LG_OK;
        }
    }
    return tpl_fail(r, "index: the item is not in the list");
}

static LgStatus m_cycle(TplRun *r, TplValue self, const TplArgs *args, TplValue *out) {
    if (!args->count)
        return tpl_fail(r, "loop.cycle: no items are given");
    *out = args->items[self.as.loop->index % args->count];
    return LG_OK;
}

static LgStatus m_changed(TplRun *r, TplValue self, const TplArgs *args, TplValue *out) {
    TplLoop *loop = self.as.loop;
    TplValue now;
    bool same = false;
    LG_TRY(tpl_new_seq(r, TPL_TUPLE, args->count, &now));
    for (size_t i = 0; i < args->count; i++)
        now.as.seq->items[i] = args->items[i];
    if (loop->last_change)
        LG_TRY(tpl_equal(r, *loop->last_change, now, &same));
    if (!loop->last_change)
        loop->last_change = ARENA_NEW(&r->arena, TplValue);
    if (!loop->last_change)
        return tpl_fail_memory(r);
    *loop->last_change = now;
    *out = tpl_bool(!same);
    return LG_OK;
}

const TplMethod tpl_other_methods[] = {
    {TPL_DICT, "get", "key default", 1, m_get, NULL},
    {TPL_DICT, "keys", "", 0, m_keys, NULL},
    {TPL_DICT, "values", "", 0, m_values, NULL},
    {TPL_DICT, "items", "", 0, m_items, NULL},
    {TPL_DICT, "copy", "", 0, m_copy, NULL},
    {TPL_DICT, "clear", "", 0, NULL,
     NULL}, /* those that change a dict or list: sandboxed templates have no use of them */
    {TPL_DICT, "pop", "", 0, NULL, NULL},
    {TPL_DICT, "popitem", "", 0, NULL, NULL},
    {TPL_DICT, "setdefault", "", 0, NULL, NULL},
    {TPL_DICT, "update", "", 0, NULL, NULL},
    {TPL_DICT, "fromkeys", "", 0, NULL, NULL},
    {TPL_SEQ, "count", "value", 1, m_list_count, NULL},
    {TPL_SEQ, "index", "value", 1, m_list_index, NULL},
    {TPL_SEQ, "copy", "", 0, m_copy, NULL},
    {TPL_SEQ, "append", "", 0, NULL, NULL},
    {TPL_SEQ, "extend", "", 0, NULL, NULL},
    {TPL_SEQ, "insert", "", 0, NULL, NULL},
    {TPL_SEQ, "pop", "", 0, NULL, NULL},
    {TPL_SEQ, "remove", "", 0, NULL, NULL},
    {TPL_SEQ, "reverse", "", 0, NULL, NULL},
    {TPL_SEQ, "sort", "", 0, NULL, NULL},
    {TPL_SEQ, "clear", "", 0, NULL, NULL},
    {TPL_LOOP, "cycle", "", 0, NULL, m_cycle},
    {TPL_LOOP, "changed", "", 0, NULL, m_changed},
    {0},
};

static LgStatus g_range(TplRun *r, const TplArgs *args, TplValue *out) {
    TplValue argv[3], seq;
    int64_t start = 0, stop, step = 1;
    LG_TRY(tpl_bind(r, "function", "range", "start stop step", 1, args, argv));
    LG_TRY(tpl_arg_int(r, argv[0], "range: an argument", &stop));
    if (argv[1].kind != TPL_ABSENT) {
        start = stop;
        LG_TRY(tpl_arg_int(r, argv[1], "range: stop", &stop));
    }
    if (argv[2].kind != TPL_ABSENT)
        LG_TRY(tpl_arg_int(r, argv[2], "range: step", &step));
    if (step == 0)
        return tpl_fail(r, "range: step is 0");
    uint64_t distance = 0, stride = step > 0 ? (uint64_t)step : (uint64_t)0 - (uint64_t)step;
    if (step > 0 && stop > start)
        distance = (uint64_t)stop - (uint64_t)start;
    else if (step < 0 && stop < start)
        distance = (uint64_t)start - (uint64_t)stop;
    uint64_t count = distance ? (distance - 1) / stride + 1 : 0;
    if (count > TPL_RANGE_MAX)
        return lg_fail(r->err, LG_LIMIT, r->line,
                       "chat template: line %u: range: %llu numbers, limit %d", r->line,
                       (unsigned long long)count, TPL_RANGE_MAX);
    LG_TRY(tpl_new_seq(r, TPL_RANGE, (size_t)count, &seq));
    for (size_t i = 0; i < count; i++)
        seq.as.seq->items[i] = tpl_int((int64_t)((uint64_t)start + (uint64_t)step * i));
    *out = seq;
    return LG_OK;
}

/* dict(…) and namespace(…): pairs of one dict, if any, then the named arguments. */
static LgStatus make_dict(TplRun *r, TplValueKind kind, const TplArgs *args, TplValue *out) {
    TplValue made;
    LG_TRY(tpl_new_dict(r, kind, args->named_count, &made));
    if (args->count > 1 || (args->count == 1 && args->items[0].kind != TPL_DICT))
        return tpl_fail(r, "dict and namespace take named arguments and at most one dict");
    const TplDict *from = args->count ? args->items[0].as.dict : NULL;
    for (size_t i = 0; from && i < from->count; i++)
        LG_TRY(tpl_dict_set(r, made.as.dict, from->keys[i], from->values[i]));
    for (size_t i = 0; i < args->named_count; i++)
        LG_TRY(tpl_dict_set(r, made.as.dict, tpl_str(args->names[i]), args->named[i]));
    *out = made;
    return LG_OK;
}

static LgStatus g_dict(TplRun *r, const TplArgs *args, TplValue *out) {
    return make_dict(r, TPL_DICT, args, out);
}

static LgStatus g_namespace(TplRun *r, const TplArgs *args, TplValue *out) {
    return make_dict(r, TPL_NAMESPACE, args, out);
}

static LgStatus g_raise_exception(TplRun *r, const TplArgs *args, TplValue *out) {
    TplValue argv[1];
    LgStr message;
    (void)out;
    LG_TRY(tpl_bind(r, "function", "raise_exception", "message", 1, args, argv));
    LG_TRY(tpl_text(r, argv[0], &message));
    Buf shown;
    buf_init(&shown);
    buf_printable(&shown, message, 500);
    LgStatus status = tpl_fail(r, "the template refuses: %s", shown.data);
    buf_clear(&shown);
    return status;
}

static LgStatus g_strftime_now(TplRun *r, const TplArgs *args, TplValue *out) {
    TplValue argv[1];
    LgStr format;
    char text[512];
    struct tm now;
    time_t seconds = time(NULL);
    LG_TRY(tpl_bind(r, "function", "strftime_now", "format", 1, args, argv));
    LG_TRY(tpl_arg_str(r, argv[0], "strftime_now: the format", &format));
    char *terminated = arena_strdup(&r->arena, format);
    if (!terminated)
        return tpl_fail_memory(r);
    if (!localtime_r(&seconds, &now))
        return tpl_fail(r, "strftime_now: the time of the system has no local form");
    size_t len = format.len ? strftime(text, sizeof text, terminated, &now) : 0;
    if (format.len && !len)
        return tpl_fail(r, "strftime_now: the text is empty or has more than %zu bytes",
                        sizeof text - 1);
    return tpl_new_str(r, (LgStr){text, len}, out);
}

static const TplFunction functions[] = {
    {"range", g_range},
    {"dict", g_dict},
    {"namespace", g_namespace},
    {"raise_exception", g_raise_exception},
    {"strftime_now", g_strftime_now},
    {"lipsum", NULL},
    {"cycler", NULL},
    {"joiner", NULL},
};

const TplFunction *tpl_function_find(LgStr name) {
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++)
        if (lg_str_eq_c(name, functions[i].name))
            return &functions[i];
    return NULL;
}

bool tpl_function_is_refused(LgStr name) {
    const TplFunction *f = tpl_function_find(name);
    return f && !f->call;
}

void tpl_function_names(Buf *out) {
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++)
        if (functions[i].call)
            buf_printf(out, "%s%s", out->len ? ", " : "", functions[i].name);
}
