/* Filters that make one value from one: texts, numbers, JSON. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "chat/run.h"
#include "chat/strings.h"

static bool given(TplValue v) {
    return v.kind != TPL_ABSENT && v.kind != TPL_NONE;
}

static LgStatus f_trim(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    LgStr s, chars = {NULL, 0};
    LG_TRY(tpl_text(r, self, &s));
    if (given(argv[0]))
        LG_TRY(tpl_arg_str(r, argv[0], "trim: chars", &chars));
    *out = tpl_str(tpl_strip(s, chars, true, true));
    return LG_OK;
}

typedef void (*TextChange)(LgStr s, Buf *out);

static LgStatus change(TplRun *r, TplValue self, TextChange apply, TplValue *out) {
    LgStr s;
    Buf text;
    LG_TRY(tpl_text(r, self, &s));
    LG_TRY(tpl_step(r, s.len / 16));
    buf_init(&text);
    apply(s, &text);
    return tpl_take_str(r, &text, out);
}

static void to_upper(LgStr s, Buf *out) {
    tpl_case(s, TPL_UPPER, out);
}

static void to_lower(LgStr s, Buf *out) {
    tpl_case(s, TPL_LOWER, out);
}

static LgStatus f_upper(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    (void)argv;
    return change(r, self, to_upper, out);
}

static LgStatus f_lower(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    (void)argv;
    return change(r, self, to_lower, out);
}

static LgStatus f_title(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    (void)argv;
    return change(r, self, tpl_title_blanks, out);
}

static LgStatus f_capitalize(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    (void)argv;
    return change(r, self, tpl_capitalize, out);
}

static LgStatus f_string(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    (void)argv;
    LgStr s;
    LG_TRY(tpl_text(r, self, &s));
    *out = tpl_str(s);
    out->safe = self.kind == TPL_STR && self.safe;
    return LG_OK;
}

static LgStatus f_replace(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    LgStr s, old, new;
    int64_t count = -1;
    Buf text;
    LG_TRY(tpl_text(r, self, &s));
    LG_TRY(tpl_text(r, argv[0], &old));
    LG_TRY(tpl_text(r, argv[1], &new));
    if (given(argv[2]))
        LG_TRY(tpl_arg_int(r, argv[2], "replace: count", &count));
    LG_TRY(tpl_step(r, s.len / 16));
    if (s.len && new.len > TPL_OUTPUT_BYTES_MAX / (s.len + 1)) /* the most that it can grow to */
        return lg_fail(r->err, LG_LIMIT, r->line,
                       "chat template: line %u: replace: the text could pass %zu bytes", r->line,
                       TPL_OUTPUT_BYTES_MAX);
    buf_init(&text);
    tpl_replace(s, old, new, count < 0 ? SIZE_MAX : (size_t)count, &text);
    return tpl_take_str(r, &text, out);
}

static LgStatus f_indent(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    LgStr s, indent = LG_STR("    ");
    TplValue spaces;
    Buf text;
    LG_TRY(tpl_arg_str(r, self, "indent: the text", &s));
    if (tpl_is_integer(argv[0])) {
        LG_TRY(tpl_binary(r, TPL_MUL, tpl_str(LG_STR(" ")), argv[0], &spaces));
        indent = spaces.as.str;
    } else if (given(argv[0])) {
        LG_TRY(tpl_arg_str(r, argv[0], "indent: width", &indent));
    }
    if (indent.len > TPL_OUTPUT_BYTES_MAX / (s.len + 1))
        return lg_fail(r->err, LG_LIMIT, r->line,
                       "chat template: line %u: indent: the text could pass %zu bytes", r->line,
                       TPL_OUTPUT_BYTES_MAX);
    LG_TRY(tpl_step(r, s.len / 16));
    buf_init(&text);
    tpl_indent(s, indent, tpl_truth(argv[1]), tpl_truth(argv[2]), &text);
    return tpl_take_str(r, &text, out);
}

static LgStatus f_safe(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    LG_TRY(f_string(r, self, argv, out));
    out->safe = true;
    return LG_OK;
}

static LgStatus f_escape(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    (void)argv;
    return tpl_make_safe(r, self, out);
}

static LgStatus f_length(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    size_t n;
    (void)argv;
    LG_TRY(tpl_length(r, self, &n));
    *out = tpl_int((int64_t)n);
    return LG_OK;
}

static LgStatus f_default(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    (void)r;
    bool use = self.kind == TPL_UNDEFINED || (tpl_truth(argv[1]) && !tpl_truth(self));
    *out = !use ? self : argv[0].kind == TPL_ABSENT ? tpl_str(LG_STR("")) : argv[0];
    return LG_OK;
}

/* A number in a text, as Python's float() and int() read it: blanks around it, underscores between
 * digits. */
static bool number_text(LgStr s, char out[64]) {
    size_t n = 0;
    s = tpl_strip(s, (LgStr){NULL, 0}, true, true);
    for (size_t i = 0; i < s.len; i++) {
        bool between = i > 0 && i + 1 < s.len && strchr("0123456789", s.ptr[i - 1]) &&
                       strchr("0123456789", s.ptr[i + 1]);
        if (s.ptr[i] == '_' && between)
            continue;
        if (n + 1 >= 64 || !s.ptr[i] || !strchr("+-.0123456789abcdefABCDEFxXoOeE", s.ptr[i]))
            return false;
        out[n++] = s.ptr[i];
    }
    out[n] = 0;
    return n > 0;
}

static bool text_to_int(const char *text, int base, int64_t *out) {
    char *end;
    long long value = strtoll(text, &end, base);
    *out = value;
    return *end == 0 && end != text && value != INT64_MIN && value != INT64_MAX;
}

static bool text_to_real(const char *text, double *out) {
    char *end;
    *out = number_parse(text, &end);
    return *end == 0 && end != text && !strpbrk(text, "xX") && isfinite(*out);
}

static bool real_to_int(double d, int64_t *out) {
    if (!(d > -9.2e18 && d < 9.2e18))
        return false;
    *out = (int64_t)d;
    return true;
}

static LgStatus f_int(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    int64_t value = 0, base = 10;
    char text[64];
    double real;
    bool ok = false;
    if (given(argv[1]))
        LG_TRY(tpl_arg_int(r, argv[1], "int: base", &base));
    if (base < 2 || base > 36)
        return tpl_fail(r, "int: base must be 2 to 36");
    if (tpl_is_integer(self)) {
        value = tpl_integer(self);
        ok = true;
    } else if (self.kind == TPL_FLOAT) {
        ok = real_to_int(self.as.real, &value);
    } else if (self.kind == TPL_STR && number_text(self.as.str, text)) {
        ok = text_to_int(text, (int)base, &value) ||
             (text_to_real(text, &real) && real_to_int(real, &value));
    } else if (self.kind == TPL_UNDEFINED) {
        return tpl_use_undefined(r, self);
    }
    *out = ok ? tpl_int(value) : argv[0].kind == TPL_ABSENT ? tpl_int(0) : argv[0];
    return LG_OK;
}

static LgStatus f_float(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    char text[64];
    double value = 0;
    bool ok = false;
    if (tpl_is_number(self)) {
        value = tpl_real(self);
        ok = true;
    } else if (self.kind == TPL_STR && number_text(self.as.str, text)) {
        ok = text_to_real(text, &value);
    } else if (self.kind == TPL_UNDEFINED) {
        return tpl_use_undefined(r, self);
    }
    *out = ok ? tpl_float(value) : argv[0].kind == TPL_ABSENT ? tpl_float(0) : argv[0];
    return LG_OK;
}

static LgStatus f_abs(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    (void)argv;
    if (self.kind == TPL_FLOAT) {
        *out = tpl_float(fabs(self.as.real));
        return LG_OK;
    }
    if (!tpl_is_integer(self))
        return tpl_fail(r, "abs: a %s is no number", tpl_type_name(self));
    if (tpl_integer(self) < 0)
        return tpl_binary(r, TPL_SUB, tpl_int(0), self, out);
    *out = tpl_int(tpl_integer(self));
    return LG_OK;
}

/* Half to even on the decimal form, as Python's round: the C library prints exactly. */
static double round_decimals(double d, int64_t precision) {
    char text[400];
    if (precision < 0) {
        double unit = pow(10, (double)-precision);
        return rint(d / unit) * unit;
    }
    if (precision > 17 || !isfinite(d) || fabs(d) > 1e17)
        return d;
    number_print(text, sizeof text, 'f', (int)precision, d);
    return number_parse(text, NULL);
}

static LgStatus f_round(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    int64_t precision = 0;
    LgStr method = LG_STR("common");
    if (given(argv[0]))
        LG_TRY(tpl_arg_int(r, argv[0], "round: precision", &precision));
    if (given(argv[1]))
        LG_TRY(tpl_arg_str(r, argv[1], "round: method", &method));
    if (!tpl_is_number(self))
        return tpl_fail(r, "round: a %s is no number", tpl_type_name(self));
    if (precision < -300 || precision > 300)
        return tpl_fail(r, "round: a precision beyond 300");
    bool up = lg_str_eq_c(method, "ceil"), down = lg_str_eq_c(method, "floor");
    double d = tpl_real(self), scale = pow(10, (double)precision);
    if (up || down)
        *out = tpl_float((up ? ceil(d * scale) : floor(d * scale)) / scale);
    else if (!lg_str_eq_c(method, "common"))
        return tpl_fail(r, "round: the method must be common, ceil or floor");
    else if (tpl_is_integer(self) && precision >= 0)
        *out = tpl_int(tpl_integer(self));
    else if (tpl_is_integer(self))
        *out = tpl_int((int64_t)round_decimals(d, precision < -18 ? -18 : precision));
    else
        *out = tpl_float(round_decimals(d, precision));
    return LG_OK;
}

static LgStatus json_indent(TplRun *r, TplValue v, LgStr *out) {
    static const char spaces[] = "                                                                ";
    int64_t width;
    if (!given(v))
        return LG_OK;
    if (v.kind == TPL_STR) {
        *out = v.as.str;
        return LG_OK;
    }
    LG_TRY(tpl_arg_int(r, v, "tojson: indent", &width));
    if (width > (int64_t)sizeof spaces - 1)
        return tpl_fail(r, "tojson: indent is %lld, limit %zu", (long long)width,
                        sizeof spaces - 1);
    *out = (LgStr){spaces, width > 0 ? (size_t)width : 0};
    return LG_OK;
}

/* Parameters and defaults as transformers gives this filter, not as Jinja has it. */
static LgStatus f_tojson(TplRun *r, TplValue self, const TplValue *argv, TplValue *out) {
    TplJson style = {.ascii = tpl_truth(argv[0]), .sort = tpl_truth(argv[3])};
    Buf text;
    LG_TRY(json_indent(r, argv[1], &style.indent));
    style.item_separator = style.indent.ptr ? LG_STR(",") : LG_STR(", ");
    style.key_separator = LG_STR(": ");
    if (given(argv[2])) {
        const TplValue *items;
        size_t count;
        LG_TRY(tpl_items(r, argv[2], &items, &count));
        if (count != 2)
            return tpl_fail(r, "tojson: separators must be two texts");
        LG_TRY(tpl_arg_str(r, items[0], "tojson: a separator", &style.item_separator));
        LG_TRY(tpl_arg_str(r, items[1], "tojson: a separator", &style.key_separator));
    }
    buf_init(&text);
    LgStatus status = tpl_json(r, self, &style, 0, &text);
    if (status == LG_OK)
        return tpl_take_str(r, &text, out);
    buf_clear(&text);
    return status;
}

const TplFilter tpl_text_filters[] = {
    {"trim", "chars", 0, f_trim, NULL},
    {"upper", "", 0, f_upper, NULL},
    {"lower", "", 0, f_lower, NULL},
    {"title", "", 0, f_title, NULL},
    {"capitalize", "", 0, f_capitalize, NULL},
    {"string", "", 0, f_string, NULL},
    {"replace", "old new count", 2, f_replace, NULL},
    {"indent", "width first blank", 0, f_indent, NULL},
    {"safe", "", 0, f_safe, NULL},
    {"escape", "", 0, f_escape, NULL},
    {"e", "", 0, f_escape, NULL},
    {"length", "", 0, f_length, NULL},
    {"count", "", 0, f_length, NULL},
    {"default", "default_value boolean", 0, f_default, NULL},
    {"d", "default_value boolean", 0, f_default, NULL},
    {"int", "default base", 0, f_int, NULL},
    {"float", "default", 0, f_float, NULL},
    {"abs", "", 0, f_abs, NULL},
    {"round", "precision method", 0, f_round, NULL},
    {"tojson", "ensure_ascii indent separators sort_keys", 0, f_tojson, NULL},
    {0},
};
