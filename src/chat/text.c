/* Values as text: Python's str and repr, and JSON as json.dumps writes it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "base/number.h"
#include "base/utf8.h"
#include "chat/run.h"
#include "chat/strings.h"

LgStatus tpl_check_text(TplRun *r, const Buf *b) {
    if (b->failed)
        return lg_fail_memory(r->err);
    if (b->len > TPL_OUTPUT_BYTES_MAX)
        return lg_fail(r->err, LG_LIMIT, r->line,
                       "chat template: line %u: a text of more than %zu bytes", r->line,
                       TPL_OUTPUT_BYTES_MAX);
    return LG_OK;
}

/* The shortest digits that read back as d; with an exponent below 1e-4 and from 1e16 on. */
void tpl_print_float(double d, Buf *out) {
    char text[40];
    if (!isfinite(d)) {
        buf_puts(out, isnan(d) ? "nan" : d < 0 ? "-inf" : "inf");
        return;
    }
    int precision = 0;
    do
        number_print(text, sizeof text, 'e', precision, d);
    while (number_parse(text, NULL) != d && ++precision < 17);
    char *e = strchr(text, 'e');
    int exponent = atoi(e + 1);
    if (exponent >= -4 && exponent < 16) {
        int decimals = precision > exponent ? precision - exponent : 0;
        number_print(text, sizeof text, 'f', decimals, d);
        buf_printf(out, "%s%s", text, decimals ? "" : ".0");
        return;
    }
    buf_append(out, text, (size_t)(e - text));
    buf_printf(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
}

static bool is_printable(uint32_t code) {
    utf8proc_category_t c = utf8proc_category((int32_t)code);
    return code == ' ' || !(c == UTF8PROC_CATEGORY_CN || c >= UTF8PROC_CATEGORY_ZS);
}

static void repr_str(LgStr s, Buf *out) {
    bool single = s.len && memchr(s.ptr, '\'', s.len), twice = s.len && memchr(s.ptr, '"', s.len);
    char quote = single && !twice ? '"' : '\'';
    size_t i = 0;
    buf_putc(out, quote);
    while (i < s.len) {
        uint32_t code = 0;
        int bytes = utf8_decode(s.ptr + i, s.len - i, &code);
        const char *name = code && code < 0x80 ? strchr("\nn\rr\tt\\\\", (int)code) : NULL;
        if (code == (uint32_t)(unsigned char)quote || code == '\\')
            buf_printf(out, "\\%c", (int)code);
        else if (name && code < 0x20)
            buf_printf(out, "\\%c", name[1]);
        else if (bytes && is_printable(code))
            buf_append(out, s.ptr + i, (size_t)bytes);
        else
            buf_printf(out,
                       code < 0x100     ? "\\x%02x"
                       : code < 0x10000 ? "\\u%04x"
                                        : "\\U%08x",
                       code);
        i += bytes ? (size_t)bytes : 1;
    }
    buf_putc(out, quote);
}

static LgStatus repr_seq(TplRun *r, const TplSeq *s, Buf *out) {
    static const char *const opens[] = {
        "[", "(", "range(", "dict_keys([", "dict_values([", "dict_items([", "<"};
    static const char *const closes[] = {"]", ")", ")", "])", "])", "])", ">"};
    buf_puts(out, opens[s->kind]);
    if (s->kind == TPL_GENERATOR)
        buf_puts(out, "generator object");
    size_t count = s->kind == TPL_GENERATOR ? 0 : s->count;
    for (size_t i = 0; i < count; i++) {
        if (i)
            buf_puts(out, ", ");
        LG_TRY(tpl_repr(r, s->items[i], out));
    }
    if (s->kind == TPL_TUPLE && count == 1)
        buf_putc(out, ',');
    buf_puts(out, closes[s->kind]);
    return LG_OK;
}

/* range(start, stop), and its step where that is not 1; what it was made with is told from its
 * items. */
static void repr_range(const TplSeq *s, Buf *out) {
    int64_t first = s->count ? tpl_integer(s->items[0]) : 0;
    int64_t step = s->count > 1 ? tpl_integer(s->items[1]) - first : 1;
    int64_t stop = s->count ? tpl_integer(s->items[s->count - 1]) + (step > 0 ? 1 : -1) : first;
    buf_printf(out, "range(%lld, %lld", (long long)first, (long long)stop);
    if (step != 1)
        buf_printf(out, ", %lld", (long long)step);
    buf_putc(out, ')');
}

static LgStatus repr_dict(TplRun *r, const TplDict *d, Buf *out) {
    buf_putc(out, '{');
    for (size_t i = 0; i < d->count; i++) {
        if (i)
            buf_puts(out, ", ");
        LG_TRY(tpl_repr(r, d->keys[i], out));
        buf_puts(out, ": ");
        LG_TRY(tpl_repr(r, d->values[i], out));
    }
    buf_putc(out, '}');
    return LG_OK;
}

static LgStatus repr_nested(TplRun *r, TplValue v, Buf *out) {
    LG_TRY(tpl_deeper(r));
    LgStatus status = LG_OK;
    if (tpl_is_seq(v, TPL_RANGE))
        repr_range(v.as.seq, out);
    else if (v.kind == TPL_SEQ)
        status = repr_seq(r, v.as.seq, out);
    else if (v.kind == TPL_NAMESPACE) {
        buf_puts(out, "<Namespace ");
        status = repr_dict(r, v.as.dict, out);
        buf_putc(out, '>');
    } else
        status = repr_dict(r, v.as.dict, out);
    tpl_up(r);
    return status;
}

LgStatus tpl_repr(TplRun *r, TplValue v, Buf *out) {
    LG_TRY(tpl_step(r, 1 + (v.kind == TPL_STR ? v.as.str.len / 64 : 0)));
    LG_TRY(tpl_check_text(r, out));
    switch (v.kind) {
    case TPL_STR:
        repr_str(v.as.str, out);
        break;
    case TPL_SEQ:
    case TPL_DICT:
    case TPL_NAMESPACE:
        return repr_nested(r, v, out);
    case TPL_UNDEFINED:
        buf_puts(out, "Undefined");
        break;
    default:
        return tpl_print(r, v, out);
    }
    return LG_OK;
}

LgStatus tpl_print(TplRun *r, TplValue v, Buf *out) {
    switch (v.kind) {
    case TPL_ABSENT:
    case TPL_UNDEFINED:
        break;
    case TPL_NONE:
        buf_puts(out, "None");
        break;
    case TPL_BOOL:
        buf_puts(out, v.as.boolean ? "True" : "False");
        break;
    case TPL_INT:
        buf_printf(out, "%lld", (long long)v.as.integer);
        break;
    case TPL_FLOAT:
        tpl_print_float(v.as.real, out);
        break;
    case TPL_STR:
        LG_TRY(tpl_step(r, v.as.str.len / 64));
        buf_str(out, v.as.str);
        break;
    case TPL_LOOP:
        buf_printf(out, "<LoopContext %zu/%zu>", v.as.loop->index + 1, v.as.loop->count);
        break;
    case TPL_MACRO:
        buf_printf(out, "<Macro '%.*s'>", LG_STR_ARG(v.as.macro->node->name));
        break;
    case TPL_FUNCTION:
        buf_printf(out, "<function %s>", v.as.function->name);
        break;
    case TPL_METHOD:
        buf_printf(out, "<method %s>", v.as.bound.method->name);
        break;
    default:
        return tpl_repr(r, v, out);
    }
    return tpl_check_text(r, out);
}

LgStatus tpl_text(TplRun *r, TplValue v, LgStr *out) {
    if (v.kind == TPL_STR) {
        *out = v.as.str;
        return LG_OK;
    }
    Buf text;
    TplValue made;
    buf_init(&text);
    LgStatus status = tpl_print(r, v, &text);
    if (status != LG_OK) {
        buf_clear(&text);
        return status;
    }
    LG_TRY(tpl_take_str(r, &text, &made));
    *out = made.as.str;
    return LG_OK;
}

LgStatus tpl_make_safe(TplRun *r, TplValue v, TplValue *out) {
    LgStr s;
    Buf escaped;
    *out = v;
    if (v.kind == TPL_STR && v.safe)
        return LG_OK;
    LG_TRY(tpl_text(r, v, &s));
    LG_TRY(tpl_step(r, s.len / 16));
    buf_init(&escaped);
    tpl_escape(s, &escaped);
    LG_TRY(tpl_take_str(r, &escaped, out));
    out->safe = true;
    return LG_OK;
}

static void json_code(uint32_t code, Buf *out) {
    if (code >= 0x10000) {
        code -= 0x10000;
        buf_printf(out, "\\u%04x\\u%04x", 0xd800 + (code >> 10), 0xdc00 + (code & 0x3ff));
    } else {
        buf_printf(out, "\\u%04x", code);
    }
}

static void json_str(LgStr s, bool ascii, Buf *out) {
    size_t i = 0;
    buf_putc(out, '"');
    while (i < s.len) {
        uint32_t code = 0xfffd;
        int bytes = utf8_decode(s.ptr + i, s.len - i, &code);
        const char *name =
            code && code < 0x80 ? strchr("\"\"\\\\\bb\ff\nn\rr\tt", (int)code) : NULL;
        if (name && (code < 0x20 || code == '"' || code == '\\'))
            buf_printf(out, "\\%c", name[code < 0x20 ? 1 : 0]);
        else if (code < 0x20 || (ascii && code > 0x7e))
            json_code(code, out);
        else
            buf_append(out, s.ptr + i, bytes ? (size_t)bytes : 1);
        i += bytes ? (size_t)bytes : 1;
    }
    buf_putc(out, '"');
}

static void json_line(const TplJson *style, size_t depth, Buf *out) {
    if (!style->indent.ptr)
        return;
    buf_putc(out, '\n');
    for (size_t i = 0; i < depth; i++)
        buf_str(out, style->indent);
}

static LgStatus json_seq(TplRun *r, const TplSeq *s, const TplJson *style, size_t depth, Buf *out) {
    buf_putc(out, '[');
    for (size_t i = 0; i < s->count; i++) {
        if (i)
            buf_str(out, style->item_separator);
        json_line(style, depth + 1, out);
        LG_TRY(tpl_json(r, s->items[i], style, depth + 1, out));
    }
    if (s->count)
        json_line(style, depth, out);
    buf_putc(out, ']');
    return LG_OK;
}

static LgStatus json_key(TplRun *r, TplValue key, const TplJson *style, Buf *out) {
    if (key.kind == TPL_STR)
        return tpl_json(r, key, style, 0, out);
    if (key.kind != TPL_NONE && !tpl_is_number(key))
        return tpl_fail(r, "tojson: a key must be a str, number, bool or none, not a %s",
                        tpl_type_name(key));
    buf_putc(out, '"');
    LG_TRY(tpl_json(r, key, style, 0, out));
    buf_putc(out, '"');
    return LG_OK;
}

static LgStatus json_sorted(TplRun *r, const TplDict *d, size_t *order) {
    for (size_t i = 0; i < d->count; i++) {
        size_t at = i;
        order[i] = i;
        for (; at > 0; at--) {
            int compared;
            LG_TRY(tpl_order(r, d->keys[order[at - 1]], d->keys[i], &compared));
            if (compared <= 0)
                break;
            order[at] = order[at - 1];
        }
        order[at] = i;
    }
    return LG_OK;
}

static LgStatus json_dict(TplRun *r, const TplDict *d, const TplJson *style, size_t depth,
                          Buf *out) {
    size_t *order = style->sort && d->count ? ARENA_ARRAY(&r->arena, size_t, d->count) : NULL;
    if (style->sort && d->count && !order)
        return tpl_fail_memory(r);
    if (order)
        LG_TRY(json_sorted(r, d, order));
    buf_putc(out, '{');
    for (size_t i = 0; i < d->count; i++) {
        size_t at = order ? order[i] : i;
        if (i)
            buf_str(out, style->item_separator);
        json_line(style, depth + 1, out);
        LG_TRY(json_key(r, d->keys[at], style, out));
        buf_str(out, style->key_separator);
        LG_TRY(tpl_json(r, d->values[at], style, depth + 1, out));
    }
    if (d->count)
        json_line(style, depth, out);
    buf_putc(out, '}');
    return LG_OK;
}

static void json_float(double d, Buf *out) {
    if (isfinite(d))
        tpl_print_float(d, out);
    else
        buf_puts(out, isnan(d) ? "NaN" : d < 0 ? "-Infinity" : "Infinity");
}

LgStatus tpl_json(TplRun *r, TplValue v, const TplJson *style, size_t depth, Buf *out) {
    LgStatus status = LG_OK;
    LG_TRY(tpl_step(r, 1 + depth / 8 + (v.kind == TPL_STR ? v.as.str.len / 64 : 0)));
    LG_TRY(tpl_check_text(r, out));
    switch (v.kind) {
    case TPL_NONE:
        buf_puts(out, "null");
        return LG_OK;
    case TPL_BOOL:
        buf_puts(out, v.as.boolean ? "true" : "false");
        return LG_OK;
    case TPL_INT:
        buf_printf(out, "%lld", (long long)v.as.integer);
        return LG_OK;
    case TPL_FLOAT:
        json_float(v.as.real, out);
        return LG_OK;
    case TPL_STR:
        json_str(v.as.str, style->ascii, out);
        return LG_OK;
    case TPL_SEQ:
        if (v.as.seq->kind > TPL_TUPLE)
            break;
        LG_TRY(tpl_deeper(r));
        status = json_seq(r, v.as.seq, style, depth, out);
        tpl_up(r);
        return status;
    case TPL_DICT:
        LG_TRY(tpl_deeper(r));
        status = json_dict(r, v.as.dict, style, depth, out);
        tpl_up(r);
        return status;
    default:
        break;
    }
    if (v.kind == TPL_UNDEFINED)
        return tpl_use_undefined(r, v);
    return tpl_fail(r, "tojson: a %s has no JSON", tpl_type_name(v));
}
