/* Methods of texts. */
#include <string.h>

#include "chat/run.h"
#include "chat/strings.h"

static bool given(TplValue v) {
    return v.kind != TPL_ABSENT && v.kind != TPL_NONE;
}

static LgStatus strip(TplRun *r, TplValue self, const TplValue *argv, const bool sides[2],
                      TplValue *out) {
    LgStr chars = {NULL, 0};
    if (given(argv[0]))
        LG_TRY(tpl_arg_str(r, argv[0], "strip: chars", &chars));
    LG_TRY(tpl_step(r, self.as.str.len / 64));
    *out = tpl_str(tpl_strip(self.as.str, chars, sides[0], sides[1]));
    return LG_OK;
}

static LgStatus m_strip(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    return strip(r, self, argv, (const bool[]){true, true}, out);
}

static LgStatus m_lstrip(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    return strip(r, self, argv, (const bool[]){true, false}, out);
}

static LgStatus m_rstrip(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    return strip(r, self, argv, (const bool[]){false, true}, out);
}

/* A list that grows. */
typedef struct Parts {
    TplRun *r;
    TplValue *items;
    size_t count, cap;
} Parts;

static LgStatus parts_push(Parts *p, LgStr part) {
    LG_TRY(tpl_step(p->r, 1));
    if (p->count == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 16;
        TplValue *items = arena_grow(&p->r->arena, p->items, p->count, cap, sizeof *items);
        if (!items)
            return tpl_fail_memory(p->r);
        p->items = items;
        p->cap = cap;
    }
    p->items[p->count++] = tpl_str(part);
    return LG_OK;
}

static LgStatus parts_done(Parts *p, TplValue *out) {
    LG_TRY(tpl_new_seq(p->r, TPL_LIST, 0, out));
    out->as.seq->items = p->items;
    out->as.seq->count = p->count;
    return LG_OK;
}

static void parts_reverse(Parts *p, size_t from) {
    for (size_t i = from, k = p->count; i + 1 < k; i++) {
        TplValue swap = p->items[i];
        p->items[i] = p->items[--k];
        p->items[k] = swap;
    }
}

static LgStatus split_by(Parts *p, LgStr s, LgStr separator, size_t max) {
    size_t at = 0;
    for (; max > 0; max--) {
        size_t found = tpl_find(s, separator, at);
        if (found == SIZE_MAX)
            break;
        LG_TRY(parts_push(p, lg_str_sub(s, at, found - at)));
        at = found + separator.len;
    }
    return parts_push(p, lg_str_sub(s, at, s.len));
}

static LgStatus split_last(Parts *p, LgStr s, LgStr separator, size_t max) {
    size_t end = s.len;
    for (; max > 0; max--) {
        size_t found = tpl_find_last(s, separator, end);
        if (found == SIZE_MAX)
            break;
        LG_TRY(parts_push(p, lg_str_sub(s, found + separator.len, end - found - separator.len)));
        end = found;
    }
    LG_TRY(parts_push(p, lg_str_sub(s, 0, end)));
    parts_reverse(p, 0);
    return LG_OK;
}

/* Words between white space; what is left when max splits are made keeps its blanks at the far
 * side. */
static LgStatus split_words(Parts *p, LgStr s, size_t max) {
    for (;;) {
        s = tpl_strip(s, (LgStr){NULL, 0}, true, false);
        if (!s.len)
            return LG_OK;
        if (max-- == 0)
            return parts_push(p, s);
        size_t end = 0;
        while (end < s.len && tpl_skip_space(s, end) == end)
            end++;
        LG_TRY(parts_push(p, lg_str_sub(s, 0, end)));
        s = lg_str_sub(s, end, s.len);
    }
}

static LgStatus split_words_last(Parts *p, LgStr s, size_t max) {
    for (;;) {
        s = tpl_strip(s, (LgStr){NULL, 0}, false, true);
        if (!s.len)
            break;
        if (max-- == 0) {
            LG_TRY(parts_push(p, s));
            break;
        }
        size_t start = s.len;
        while (start > 0 && tpl_strip_right((LgStr){s.ptr, start}).len == start)
            start--;
        LG_TRY(parts_push(p, lg_str_sub(s, start, s.len)));
        s.len = start;
    }
    parts_reverse(p, 0);
    return LG_OK;
}

static LgStatus split(TplRun *r, TplValue self, const TplValue *argv, bool last, TplValue *out) {
    Parts parts = {.r = r};
    LgStr separator = {NULL, 0};
    int64_t count = -1;
    if (given(argv[0]))
        LG_TRY(tpl_arg_str(r, argv[0], "split: the separator", &separator));
    if (given(argv[1]))
        LG_TRY(tpl_arg_int(r, argv[1], "split: maxsplit", &count));
    if (separator.ptr && separator.len == 0)
        return tpl_fail(r, "split: an empty separator");
    LG_TRY(tpl_step(r, self.as.str.len / 16));
    size_t max = count < 0 ? SIZE_MAX : (size_t)count;
    if (separator.ptr)
        LG_TRY(last ? split_last(&parts, self.as.str, separator, max)
                    : split_by(&parts, self.as.str, separator, max));
    else
        LG_TRY(last ? split_words_last(&parts, self.as.str, max)
                    : split_words(&parts, self.as.str, max));
    return parts_done(&parts, out);
}

static LgStatus m_split(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    return split(r, self, argv, false, out);
}

static LgStatus m_rsplit(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    return split(r, self, argv, true, out);
}

static LgStatus m_splitlines(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    Parts parts = {.r = r};
    size_t at = 0;
    LgStr line;
    LG_TRY(tpl_step(r, self.as.str.len / 16));
    while (tpl_next_line(self.as.str, &at, tpl_truth(argv[0]), &line))
        LG_TRY(parts_push(&parts, line));
    return parts_done(&parts, out);
}

static LgStatus partition(TplRun *r, TplValue self, const TplValue *argv, bool last,
                          TplValue *out) {
    LgStr separator, s = self.as.str;
    LG_TRY(tpl_arg_str(r, argv[0], "partition: the separator", &separator));
    if (!separator.len)
        return tpl_fail(r, "partition: an empty separator");
    LG_TRY(tpl_step(r, s.len / 16));
    size_t at = last ? tpl_find_last(s, separator, s.len) : tpl_find(s, separator, 0);
    bool found = at != SIZE_MAX;
    LG_TRY(tpl_new_seq(r, TPL_TUPLE, 3, out));
    TplValue *items = out->as.seq->items;
    LgStr empty = {"", 0};
    items[0] = tpl_str(found ? lg_str_sub(s, 0, at) : last ? empty : s);
    items[1] = tpl_str(found ? separator : empty);
    items[2] = tpl_str(found ? lg_str_sub(s, at + separator.len, s.len) : last ? s : empty);
    return LG_OK;
}

static LgStatus m_partition(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    return partition(r, self, argv, false, out);
}

static LgStatus m_rpartition(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    return partition(r, self, argv, true, out);
}

static bool touches(LgStr s, LgStr part, bool end) {
    return s.len >= part.len &&
           lg_str_eq(lg_str_sub(s, end ? s.len - part.len : 0, part.len), part);
}

/* The part may be a tuple: any of them. */
static LgStatus starts_or_ends(TplRun *r, TplValue self, TplValue part, bool end, TplValue *out) {
    const TplValue *items = &part;
    size_t count = 1;
    bool found = false;
    if (tpl_is_seq(part, TPL_TUPLE))
        LG_TRY(tpl_items(r, part, &items, &count));
    for (size_t i = 0; i < count && !found; i++) {
        LgStr text;
        LG_TRY(tpl_arg_str(r, items[i], "startswith, endswith: the text", &text));
        found = touches(self.as.str, text, end);
    }
    *out = tpl_bool(found);
    return LG_OK;
}

static LgStatus m_startswith(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    return starts_or_ends(r, self, argv[0], false, out);
}

static LgStatus m_endswith(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    return starts_or_ends(r, self, argv[0], true, out);
}

static LgStatus remove_part(TplRun *r, TplValue self, TplValue part, bool end, TplValue *out) {
    LgStr text, s = self.as.str;
    LG_TRY(tpl_arg_str(r, part, "removeprefix, removesuffix: the text", &text));
    if (touches(s, text, end))
        s = lg_str_sub(s, end ? 0 : text.len, s.len - text.len);
    *out = tpl_str(s);
    return LG_OK;
}

static LgStatus m_removeprefix(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    return remove_part(r, self, argv[0], false, out);
}

static LgStatus m_removesuffix(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    return remove_part(r, self, argv[0], true, out);
}

static LgStatus through_filter(TplRun *r, const char *name, TplValue self, const TplValue *argv,
                               TplValue *out) {
    return tpl_filter_find(lg_str(name))->call(r, self, argv, out);
}

static LgStatus m_upper(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    return through_filter(r, "upper", self, argv, out);
}

static LgStatus m_lower(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    return through_filter(r, "lower", self, argv, out);
}

static LgStatus m_capitalize(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    return through_filter(r, "capitalize", self, argv, out);
}

static LgStatus m_title(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    Buf text;
    (void)argv;
    LG_TRY(tpl_step(r, self.as.str.len / 16));
    buf_init(&text);
    tpl_title_words(self.as.str, &text);
    return tpl_take_str(r, &text, out);
}

static LgStatus m_replace(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    LgStr text;
    LG_TRY(tpl_arg_str(r, argv[0], "replace: old", &text));
    LG_TRY(tpl_arg_str(r, argv[1], "replace: new", &text));
    return through_filter(r, "replace", self, argv, out);
}

static LgStatus find(TplRun *r, TplValue self, TplValue part, bool last, TplValue *out) {
    LgStr text, s = self.as.str;
    LG_TRY(tpl_arg_str(r, part, "find: the text", &text));
    LG_TRY(tpl_step(r, s.len / 16));
    size_t at = last ? tpl_find_last(s, text, s.len) : tpl_find(s, text, 0);
    *out = tpl_int(at == SIZE_MAX ? -1 : (int64_t)tpl_code_count(lg_str_sub(s, 0, at)));
    return LG_OK;
}

static LgStatus m_find(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    return find(r, self, argv[0], false, out);
}

static LgStatus m_rfind(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    return find(r, self, argv[0], true, out);
}

static LgStatus m_index(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    LG_TRY(find(r, self, argv[0], false, out));
    return out->as.integer < 0 ? tpl_fail(r, "index: the text is not found") : LG_OK;
}

static LgStatus m_count(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    LgStr text, s = self.as.str;
    int64_t count = 0;
    LG_TRY(tpl_arg_str(r, argv[0], "count: the text", &text));
    LG_TRY(tpl_step(r, s.len / 16));
    for (size_t at = tpl_find(s, text, 0); text.len && at != SIZE_MAX;
         at = tpl_find(s, text, at + text.len))
        count++;
    *out = tpl_int(text.len ? count : (int64_t)tpl_code_count(s) + 1);
    return LG_OK;
}

static LgStatus m_join(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    const TplValue *items;
    size_t count;
    Buf text;
    LG_TRY(tpl_items(r, argv[0], &items, &count));
    for (size_t i = 0; i < count; i++)
        if (items[i].kind != TPL_STR)
            return tpl_fail(r, "join: item %zu is a %s, not a str", i, tpl_type_name(items[i]));
    buf_init(&text);
    LgStatus status = LG_OK;
    for (size_t i = 0; i < count && status == LG_OK; i++) {
        buf_str(&text, i ? self.as.str : (LgStr){"", 0});
        buf_str(&text, items[i].as.str);
        status = tpl_check_text(r, &text);
        if (status == LG_OK)
            status = tpl_step(r, 1 + (self.as.str.len + items[i].as.str.len) / 64);
    }
    if (status == LG_OK)
        return tpl_take_str(r, &text, out);
    buf_clear(&text);
    return status;
}

static LgStatus m_isdigit(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    (void)r, (void)argv;
    *out = tpl_bool(tpl_all_of(self.as.str, TPL_DIGIT));
    return LG_OK;
}

static LgStatus m_isdecimal(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    (void)r, (void)argv;
    *out = tpl_bool(tpl_all_of(self.as.str, TPL_DECIMAL));
    return LG_OK;
}

static LgStatus m_isalpha(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    (void)r, (void)argv;
    *out = tpl_bool(tpl_all_of(self.as.str, TPL_ALPHA));
    return LG_OK;
}

static LgStatus m_isalnum(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    (void)r, (void)argv;
    *out = tpl_bool(tpl_all_of(self.as.str, TPL_ALNUM));
    return LG_OK;
}

static LgStatus m_isspace(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    (void)r, (void)argv;
    *out = tpl_bool(tpl_all_of(self.as.str, TPL_SPACE));
    return LG_OK;
}

static LgStatus m_isupper(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    (void)r, (void)argv;
    *out = tpl_bool(tpl_is_cased(self.as.str, TPL_UPPER));
    return LG_OK;
}

static LgStatus m_islower(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    (void)r, (void)argv;
    *out = tpl_bool(tpl_is_cased(self.as.str, TPL_LOWER));
    return LG_OK;
}

/* The field at s.ptr[*at], behind its {: its value as text. Names and positions are served,
 * conversions and widths not. */
static LgStatus format_field(TplRun *r, LgStr s, size_t *at, size_t *next, const TplArgs *args,
                             LgStr *out) {
    size_t close = tpl_find(s, LG_STR("}"), *at);
    if (close == SIZE_MAX)
        return tpl_fail(r, "format: a { without its }");
    LgStr name = lg_str_sub(s, *at, close - *at);
    *at = close + 1;
    bool number = tpl_all_of(name, TPL_DECIMAL) && name.len < 6;
    if (name.len == 0 || number) {
        size_t index = name.len ? 0 : (*next)++;
        for (size_t i = 0; i < name.len; i++)
            index = index * 10 + (size_t)(name.ptr[i] - '0');
        if (index >= args->count)
            return tpl_fail(r, "format: field %zu, %zu arguments", index, args->count);
        return tpl_text(r, args->items[index], out);
    }
    for (size_t i = 0; i < args->named_count; i++)
        if (lg_str_eq(args->names[i], name))
            return tpl_text(r, args->named[i], out);
    return tpl_fail(r,
                    "format: the field {%.*s} is not served; {}, {0} and {name} of an argument are",
                    LG_STR_ARG(lg_str_sub(name, 0, 60)));
}

static LgStatus format(TplRun *r, LgStr s, const TplArgs *args, Buf *out) {
    size_t next = 0, i = 0;
    while (i < s.len) {
        char c = s.ptr[i++];
        bool twice = i < s.len && s.ptr[i] == c;
        if ((c == '{' || c == '}') && !twice) {
            LgStr text = {NULL, 0};
            if (c == '}')
                return tpl_fail(r, "format: a } without its {");
            LG_TRY(format_field(r, s, &i, &next, args, &text));
            buf_str(out, text);
            LG_TRY(tpl_step(r, 1 + text.len / 64));
            LG_TRY(tpl_check_text(r, out));
            continue;
        }
        i += c == '{' || c == '}';
        buf_putc(out, c);
    }
    return LG_OK;
}

static LgStatus m_format(TplRun *r, TplValue self, const TplArgs *args, TplValue *out) {
    Buf text;
    LG_TRY(tpl_step(r, self.as.str.len / 16));
    buf_init(&text);
    LgStatus status = format(r, self.as.str, args, &text);
    if (status == LG_OK)
        return tpl_take_str(r, &text, out);
    buf_clear(&text);
    return status;
}

const TplMethod tpl_string_methods[] = {
    {TPL_STR, "strip", "chars", 0, m_strip, NULL},
    {TPL_STR, "lstrip", "chars", 0, m_lstrip, NULL},
    {TPL_STR, "rstrip", "chars", 0, m_rstrip, NULL},
    {TPL_STR, "split", "sep maxsplit", 0, m_split, NULL},
    {TPL_STR, "rsplit", "sep maxsplit", 0, m_rsplit, NULL},
    {TPL_STR, "splitlines", "keepends", 0, m_splitlines, NULL},
    {TPL_STR, "partition", "sep", 1, m_partition, NULL},
    {TPL_STR, "rpartition", "sep", 1, m_rpartition, NULL},
    {TPL_STR, "startswith", "prefix", 1, m_startswith, NULL},
    {TPL_STR, "endswith", "suffix", 1, m_endswith, NULL},
    {TPL_STR, "removeprefix", "prefix", 1, m_removeprefix, NULL},
    {TPL_STR, "removesuffix", "suffix", 1, m_removesuffix, NULL},
    {TPL_STR, "upper", "", 0, m_upper, NULL},
    {TPL_STR, "lower", "", 0, m_lower, NULL},
    {TPL_STR, "title", "", 0, m_title, NULL},
    {TPL_STR, "capitalize", "", 0, m_capitalize, NULL},
    {TPL_STR, "replace", "old new count", 2, m_replace, NULL},
    {TPL_STR, "find", "sub", 1, m_find, NULL},
    {TPL_STR, "rfind", "sub", 1, m_rfind, NULL},
    {TPL_STR, "index", "sub", 1, m_index, NULL},
    {TPL_STR, "count", "sub", 1, m_count, NULL},
    {TPL_STR, "join", "iterable", 1, m_join, NULL},
    {TPL_STR, "format", "", 0, NULL, m_format},
    {TPL_STR, "isdigit", "", 0, m_isdigit, NULL},
    {TPL_STR, "isdecimal", "", 0, m_isdecimal, NULL},
    {TPL_STR, "isalpha", "", 0, m_isalpha, NULL},
    {TPL_STR, "isalnum", "", 0, m_isalnum, NULL},
    {TPL_STR, "isspace", "", 0, m_isspace, NULL},
    {TPL_STR, "isupper", "", 0, m_isupper, NULL},
    {TPL_STR, "islower", "", 0, m_islower, NULL},
    {0},
};
