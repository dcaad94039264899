/* The lexer. Words of the language cannot be names; `max` before a parenthesis is the function,
 * else the reduction. */
#include "lang/lex.h"

#include <math.h>
#include <string.h>

#include "base/number.h"
#include "base/utf8.h"

#define SOURCE_BYTES_MAX (1u << 20)
#define NUMBER_CHARS_MAX 40

typedef struct LexWord {
    const char *text;
    TokKind kind;
    int id;
} LexWord;

static const char *const dtype_names[] = {
    [LANG_F32] = "f32", [LANG_BF16] = "bf16", [LANG_F16] = "f16",
    [LANG_F8] = "f8",   [LANG_I32] = "i32",
};

static const LexWord words[] = {
#define LEX_ROW(id, text) {text, TOK_##id, 0},
    LEX_WORD_MAP(LEX_ROW)
#undef LEX_ROW
#define LEX_ROW(id, name) {#name, TOK_RED, LANG_RED_##id},
        LANG_RED_MAP(LEX_ROW)
#undef LEX_ROW
#define LEX_ROW(id, name, args) {#name, TOK_FN, LANG_FN_##id},
            LANG_FN_MAP(LEX_ROW)
#undef LEX_ROW
                {"f32", TOK_DTYPE, LANG_F32},
    {"bf16", TOK_DTYPE, LANG_BF16},
    {"f16", TOK_DTYPE, LANG_F16},
    {"f8", TOK_DTYPE, LANG_F8},
    {"i32", TOK_DTYPE, LANG_I32},
};

static const LexWord puncts[] = {
#define LEX_ROW(id, text) {text, TOK_##id, 0},
    LEX_PUNCT_MAP(LEX_ROW)
#undef LEX_ROW
};

const char *lex_kind_text(TokKind kind) {
    switch (kind) {
    case TOK_EOF:
        return "the end of the file";
    case TOK_NL:
        return "the end of the line";
    case TOK_NAME:
        return "a name";
    case TOK_NUMBER:
        return "a number";
    case TOK_STRING:
        return "a string";
    case TOK_FN:
        return "a function";
    case TOK_RED:
        return "a reduction";
    case TOK_DTYPE:
        return "a type (f32, bf16, f16, f8, i32)";
#define LEX_CASE(id, text)                                                                         \
    case TOK_##id:                                                                                 \
        return "`" text "`";
        LEX_PUNCT_MAP(LEX_CASE)
        LEX_WORD_MAP(LEX_CASE)
#undef LEX_CASE
    }
    return "a token";
}

const char *lang_dtype_text(LangDType dtype) {
    return dtype_names[dtype];
}

static int column_of(const Lexer *l, const char *at) {
    return (int)(at - l->line_start) + 1;
}

bool lex_open(Lexer *l, Diag *diag) {
    LgStr s = diag->source;
    *l = (Lexer){.diag = diag, .at = s.ptr, .end = s.ptr + s.len, .line_start = s.ptr, .line = 1};
    if (s.len > SOURCE_BYTES_MAX)
        return diag_refuse(diag, 0, 0,
                           "cannot read: the text has %zu bytes. At most %u are accepted.", s.len,
                           SOURCE_BYTES_MAX);
    int line = 1;
    size_t start = 0;
    for (size_t i = 0; i < s.len;) {
        uint32_t code = 0;
        int n = utf8_decode(s.ptr + i, s.len - i, &code);
        if (n == 0 || code == 0)
            return diag_refuse(diag, line, 0,
                               "cannot read: byte %zu of the line is %s. UTF-8 text is accepted.",
                               i - start + 1, n == 0 ? "no UTF-8" : "a NUL");
        i += (size_t)n;
        if (code == '\n') {
            line++;
            start = i;
        }
    }
    return true;
}

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static Token fail(Lexer *l) {
    l->at = l->end;
    return (Token){.kind = TOK_EOF, .line = l->line, .column = 1};
}

static bool paren_follows(const Lexer *l) {
    const char *p = l->at;
    while (p < l->end && (*p == ' ' || *p == '\t'))
        p++;
    return p < l->end && *p == '(';
}

static Token lex_name(Lexer *l, Token t) {
    const char *from = l->at;
    while (l->at < l->end &&
           (is_letter(*l->at) || is_digit(*l->at) || *l->at == '_' || *l->at == '.'))
        l->at++;
    t.text = (LgStr){from, (size_t)(l->at - from)};
    t.kind = TOK_NAME;
    bool is_max = lg_str_eq_c(t.text, "max");
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (!lg_str_eq_c(t.text, words[i].text))
            continue;
        if (is_max && (words[i].kind == TOK_FN) != paren_follows(l))
            continue;
        t.kind = words[i].kind;
        t.id = words[i].id;
        break;
    }
    return t;
}

static const char *skip_digits(const char *p, const char *end) {
    while (p < end && is_digit(*p))
        p++;
    return p;
}

static Token lex_number(Lexer *l, Token t) {
    const char *from = l->at;
    const char *p = skip_digits(from, l->end);
    t.integer = true;
    if (p + 1 < l->end && *p == '.' && is_digit(p[1])) {
        t.integer = false;
        p = skip_digits(p + 1, l->end);
    }
    if (p < l->end && (*p == 'e' || *p == 'E')) {
        const char *digits = p + 1;
        if (digits < l->end && (*digits == '+' || *digits == '-'))
            digits++;
        if (digits < l->end && is_digit(*digits)) {
            t.integer = false;
            p = skip_digits(digits, l->end);
        }
    }
    t.kind = TOK_NUMBER;
    t.text = (LgStr){from, (size_t)(p - from)};
    char copy[NUMBER_CHARS_MAX + 1];
    bool ok = t.text.len <= NUMBER_CHARS_MAX;
    if (ok) {
        memcpy(copy, from, t.text.len);
        copy[t.text.len] = 0;
        t.number = number_parse(copy, NULL);
        ok = isfinite(t.number) && !(p < l->end && (is_letter(*p) || *p == '_' || *p == '.'));
    }
    if (!ok) {
        diag_refuse(l->diag, t.line, t.column,
                    "cannot read this number: it is malformed or out of range. 2, 0.5 and 1e-6 are "
                    "accepted, with at most %d characters.",
                    NUMBER_CHARS_MAX);
        return fail(l);
    }
    l->at = p;
    return t;
}

static Token lex_string(Lexer *l, Token t) {
    const char *from = ++l->at;
    while (l->at < l->end && *l->at != '"' && (unsigned char)*l->at >= 0x20 && *l->at != '\\')
        l->at++;
    if (l->at == l->end || *l->at != '"') {
        diag_refuse(l->diag, t.line, t.column,
                    "cannot read this string: it does not end on its line, or holds a backslash or "
                    "a control character. \"plain text\" is accepted.");
        return fail(l);
    }
    t.kind = TOK_STRING;
    t.text = (LgStr){from, (size_t)(l->at - from)};
    l->at++;
    return t;
}

static Token lex_punct(Lexer *l, Token t) {
    size_t left = (size_t)(l->end - l->at);
    for (size_t i = 0; i < sizeof puncts / sizeof puncts[0]; i++) {
        size_t n = strlen(puncts[i].text);
        if (n <= left && memcmp(l->at, puncts[i].text, n) == 0) {
            t.kind = puncts[i].kind;
            t.text = (LgStr){l->at, n};
            l->at += n;
            return t;
        }
    }
    uint32_t code = 0;
    int n = utf8_decode(l->at, left, &code);
    diag_refuse(
        l->diag, t.line, t.column,
        "cannot read: `%.*s` (U+%04X) is no part of the language. Names, numbers, \"strings\" "
        "and the signs of the grammar are accepted.",
        code < 0x20 || n < 1 ? 1 : n, code < 0x20 ? "?" : l->at, (unsigned)code);
    return fail(l);
}

static void skip_blank(Lexer *l) {
    while (l->at < l->end) {
        char c = *l->at;
        if (c == '#') {
            const char *nl = memchr(l->at, '\n', (size_t)(l->end - l->at));
            l->at = nl ? nl : l->end;
        } else if (c == ' ' || c == '\t' || (c == '\r' && l->at + 1 < l->end && l->at[1] == '\n')) {
            l->at++;
        } else {
            return;
        }
    }
}

Token lex_next(Lexer *l) {
    if (l->diag->status != LG_OK)
        return fail(l);
    skip_blank(l);
    Token t = {.line = l->line, .column = column_of(l, l->at)};
    if (l->at == l->end)
        return t;
    char c = *l->at;
    if (c == '\n') {
        t.kind = TOK_NL;
        t.text = (LgStr){l->at, 1};
        l->at++;
        l->line++;
        l->line_start = l->at;
        return t;
    }
    if (is_letter(c))
        return lex_name(l, t);
    if (is_digit(c))
        return lex_number(l, t);
    if (c == '"')
        return lex_string(l, t);
    return lex_punct(l, t);
}
