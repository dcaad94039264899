/* Tags are found first to last; in a tag, its end counts only outside of brackets, so that }} may
 * close two dicts. trim_blocks drops one newline behind a block or comment; lstrip_blocks drops the
 * blanks in front of one that begins its line; a sign at the inner side of a tag overrides both. */
#include "chat/lexer.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "base/utf8.h"

#define BRACKETS_MAX 256
#define NUMBER_BYTES_MAX 64

typedef struct Lexer {
    Arena *arena;
    TplTokens *out;
    LgStr src;
    size_t at;
    uint32_t line;
    size_t line_counted; /* newlines before this offset are in `line` */
    char brackets[BRACKETS_MAX];
    size_t bracket_count;
    LgError *err;
} Lexer;

bool tpl_is_space(uint32_t code) {
    return (code >= 9 && code <= 13) || (code >= 0x1c && code <= 0x20) || code == 0x85 ||
           code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
           code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

size_t tpl_skip_space(LgStr s, size_t at) {
    uint32_t code;
    int bytes;
    while ((bytes = utf8_decode(s.ptr + at, s.len - at, &code)) > 0 && tpl_is_space(code))
        at += (size_t)bytes;
    return at;
}

LgStr tpl_strip_right(LgStr s) {
    while (s.len) {
        size_t start = s.len - 1;
        uint32_t code;
        while (start > 0 && ((unsigned char)s.ptr[start] & 0xc0) == 0x80)
            start--;
        if (!utf8_decode(s.ptr + start, s.len - start, &code) || !tpl_is_space(code))
            break;
        s.len = start;
    }
    return s;
}

LgStatus tpl_fail_at(LgError *err, LgStr source, size_t offset, const char *format, ...) {
    char what[700];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    size_t line = 1, column = 1;
    for (size_t i = 0; i < offset && i < source.len; i++) {
        if (source.ptr[i] == '\n') {
            line++;
            column = 1;
        } else if (((unsigned char)source.ptr[i] & 0xc0) != 0x80) {
            column++;
        }
    }
    return lg_fail(err, LG_BAD_INPUT, line, "chat template: line %zu, column %zu: %s", line, column,
                   what);
}

static bool starts(const Lexer *l, size_t at, const char *text) {
    return at <= l->src.len && lg_str_starts(lg_str_sub(l->src, at, l->src.len), text);
}

static char byte_at(const Lexer *l, size_t at) {
    return at < l->src.len ? l->src.ptr[at] : 0;
}

static TplToken *push(Lexer *l, TplTokenKind kind, size_t offset, LgStr text) {
    TplTokens *t = l->out;
    if (t->count == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 256;
        TplToken *items = arena_grow(l->arena, t->items, t->count, cap, sizeof *items);
        if (!items)
            return NULL;
        t->items = items;
        t->cap = cap;
    }
    for (; l->line_counted < offset; l->line_counted++)
        l->line += l->src.ptr[l->line_counted] == '\n';
    TplToken *token = &t->items[t->count++];
    *token = (TplToken){.kind = kind, .line = l->line, .offset = offset, .text = text};
    return token;
}

static LgStatus push_token(Lexer *l, TplTokenKind kind, size_t offset, LgStr text) {
    return push(l, kind, offset, text) ? LG_OK : lg_fail_memory(l->err);
}

/* \r\n and \r become \n; one newline at the very end is dropped. */
static bool normalize(Arena *arena, LgStr in, LgStr *out) {
    char *text = arena_strdup(arena, in);
    size_t n = 0;
    if (!text)
        return false;
    for (size_t i = 0; i < in.len; i++) {
        char c = in.ptr[i];
        if (c == '\r' && i + 1 < in.len && in.ptr[i + 1] == '\n')
            continue;
        text[n++] = c == '\r' ? '\n' : c;
    }
    if (n && text[n - 1] == '\n')
        n--;
    *out = (LgStr){text, n};
    return true;
}

/* Data in front of a tag whose inner sign is `sign`; a print keeps the blanks of its line.
 * line_start: whether data begins a line. */
static LgStatus push_data(Lexer *l, size_t from, size_t to, char sign, bool print,
                          bool line_start) {
    LgStr text = lg_str_sub(l->src, from, to - from);
    if (sign == '-') {
        text = tpl_strip_right(text);
    } else if (sign != '+' && !print) {
        size_t start = text.len;
        while (start > 0 && text.ptr[start - 1] != '\n')
            start--;
        if ((start > 0 || line_start) && tpl_skip_space(text, start) == text.len)
            text.len = start;
    }
    return text.len ? push_token(l, TPL_TOK_DATA, from, text) : LG_OK;
}

static char sign_at(const Lexer *l, size_t at) {
    char c = byte_at(l, at);
    return c == '-' || c == '+' ? c : 0;
}

/* Behind the end of a block or comment, which had this sign. */
static void skip_after(Lexer *l, char sign) {
    if (sign == '-')
        l->at = tpl_skip_space(l->src, l->at);
    else if (sign != '+' && byte_at(l, l->at) == '\n')
        l->at++;
}

static LgStatus comment(Lexer *l, size_t begin) {
    size_t start = begin + 2 + (sign_at(l, begin + 2) ? 1 : 0);
    size_t end = start;
    while (end < l->src.len && !starts(l, end, "#}"))
        end++;
    if (end >= l->src.len)
        return tpl_fail_at(l->err, l->src, begin, "a comment without its #}");
    char sign = end > start ? sign_at(l, end - 1) : 0;
    l->at = end + 2;
    skip_after(l, sign);
    return LG_OK;
}

/* The offset behind `{% word %}` at `begin`, or 0. *open: the sign behind {%, *close: the one in
 * front of %}. */
static size_t bare_block(const Lexer *l, size_t begin, const char *word, char *open, char *close) {
    *open = sign_at(l, begin + 2);
    size_t at = tpl_skip_space(l->src, begin + 2 + (*open ? 1 : 0));
    if (!starts(l, at, word))
        return 0;
    at = tpl_skip_space(l->src, at + strlen(word));
    *close = sign_at(l, at);
    at += *close ? 1 : 0;
    return starts(l, at, "%}") ? at + 2 : 0;
}

static LgStatus raw_block(Lexer *l, size_t begin, size_t inside, char close) {
    char open, end_close = 0;
    if (close == '-')
        inside = tpl_skip_space(l->src, inside);
    for (size_t at = inside; at < l->src.len; at++) {
        size_t end = starts(l, at, "{%") ? bare_block(l, at, "endraw", &open, &end_close) : 0;
        if (!end)
            continue;
        LG_TRY(push_data(l, inside, at, open, false, l->src.ptr[inside - 1] == '\n'));
        l->at = end;
        skip_after(l, end_close);
        return LG_OK;
    }
    return tpl_fail_at(l->err, l->src, begin, "{%% raw %%} without its {%% endraw %%}");
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_name(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/* A decimal number; a dot in front makes it an index ("x.0.1"), never a float. */
static LgStatus number(Lexer *l) {
    char text[NUMBER_BYTES_MAX];
    size_t n = 0, start = l->at, at = l->at;
    bool real = false, indexed = start > 0 && l->src.ptr[start - 1] == '.';
    for (;; at++) {
        char c = byte_at(l, at);
        bool dot = c == '.' && !real && !indexed && is_digit(byte_at(l, at + 1));
        bool exponent = (c == 'e' || c == 'E') && !indexed &&
                        is_digit(byte_at(l, at + 1 + (sign_at(l, at + 1) ? 1 : 0)));
        if (n + 3 >= sizeof text)
            return tpl_fail_at(l->err, l->src, start, "a number of more than %d digits",
                               NUMBER_BYTES_MAX - 4);
        real = real || dot || exponent;
        if (is_digit(c) || dot || exponent)
            text[n++] = c;
        else if (c != '_')
            break;
        if (exponent && sign_at(l, at + 1))
            text[n++] = l->src.ptr[++at];
        if (exponent)
            indexed = true; /* no second exponent or dot */
    }
    text[n] = 0;
    if (is_name(byte_at(l, at)) || (!real && n > 1 && text[0] == '0' && strspn(text, "0") != n))
        return tpl_fail_at(l->err, l->src, start,
                           "a malformed number; decimal integers and floats are served");
    TplToken *token =
        push(l, real ? TPL_TOK_FLOAT : TPL_TOK_INT, start, lg_str_sub(l->src, start, at - start));
    if (!token)
        return lg_fail_memory(l->err);
    errno = 0;
    if (real)
        token->as.real = number_parse(text, NULL);
    else
        token->as.integer = strtoll(text, NULL, 10);
    if (!real && errno)
        return tpl_fail_at(l->err, l->src, start, "an integer that 64 bits do not hold");
    l->at = at;
    return LG_OK;
}

static int hex_value(char c) {
    if (is_digit(c))
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Python's escapes; in[*i] is the backslash, *i ends behind what was read. -1: refused. */
static int unescape(LgStr in, size_t *i, char out[4]) {
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    static const struct {
        char letter;
        int digits;
    } hexes[] = {{'x', 2}, {'u', 4}, {'U', 8}};
    char c = *i + 1 < in.len ? in.ptr[*i + 1] : 0;
    const char *simple = c ? strchr(from, c) : NULL;
    *i += 2;
    if (c == '\n')
        return 0;
    if (simple) {
        out[0] = to[simple - from];
        return 1;
    }
    uint32_t code = 0;
    for (size_t k = 0; k < 3; k++) {
        if (c != hexes[k].letter)
            continue;
        for (int d = 0; d < hexes[k].digits; d++, ++*i) {
            int value = *i < in.len ? hex_value(in.ptr[*i]) : -1;
            if (value < 0)
                return -1;
            code = code << 4 | (uint32_t)value;
        }
        int bytes = utf8_encode(code, out);
        return bytes ? bytes : -1;
    }
    if (c >= '0' && c <= '7') {
        *i -= 1;
        for (int d = 0; d < 3 && *i < in.len && in.ptr[*i] >= '0' && in.ptr[*i] <= '7'; d++, ++*i)
            code = code * 8 + (uint32_t)(in.ptr[*i] - '0');
        return utf8_encode(code, out);
    }
    if (c == 'N')
        return -1;
    *i -= 1; /* any other: the backslash stays, and so does what follows */
    out[0] = '\\';
    return 1;
}

static LgStatus string(Lexer *l) {
    size_t start = l->at, end = start + 1;
    char quote = l->src.ptr[start];
    while (end < l->src.len && l->src.ptr[end] != quote)
        end += l->src.ptr[end] == '\\' ? 2 : 1;
    if (end >= l->src.len)
        return tpl_fail_at(l->err, l->src, start, "a string without its closing %c", quote);
    LgStr in = lg_str_sub(l->src, start + 1, end - start - 1);
    char *text = arena_strdup(l->arena, in); /* no escape makes text longer */
    size_t n = 0, i = 0;
    if (!text)
        return lg_fail_memory(l->err);
    while (i < in.len) {
        if (in.ptr[i] != '\\') {
            text[n++] = in.ptr[i++];
            continue;
        }
        char code[4];
        size_t at = i;
        int bytes = unescape(in, &i, code);
        if (bytes < 0)
            return tpl_fail_at(l->err, l->src, start + 1 + at,
                               "an escape that is malformed or not served");
        memcpy(text + n, code, (size_t)bytes);
        n += (size_t)bytes;
    }
    l->at = end + 1;
    return push_token(l, TPL_TOK_STRING, start, (LgStr){text, n});
}

static LgStatus bracket(Lexer *l, char c) {
    static const char opening[] = "([{", closing[] = ")]}";
    if (strchr(opening, c)) {
        if (l->bracket_count == BRACKETS_MAX)
            return tpl_fail_at(l->err, l->src, l->at, "more than %d brackets are open",
                               BRACKETS_MAX);
        l->brackets[l->bracket_count++] = c;
        return LG_OK;
    }
    char want = opening[strchr(closing, c) - closing];
    if (l->bracket_count == 0 || l->brackets[l->bracket_count - 1] != want)
        return tpl_fail_at(l->err, l->src, l->at, "an unexpected %c", c);
    l->bracket_count--;
    return LG_OK;
}

static LgStatus operator(Lexer *l) {
    static const char *const operators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                            "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                            ">",  "<",  "=",  ".",  ":",  "|",  ","};
    for (size_t i = 0; i < sizeof operators / sizeof operators[0]; i++) {
        if (!starts(l, l->at, operators[i]))
            continue;
        if (strpbrk(operators[i], "()[]{}"))
            LG_TRY(bracket(l, operators[i][0]));
        size_t start = l->at;
        l->at += strlen(operators[i]);
        return push_token(l, TPL_TOK_OP, start, lg_str_sub(l->src, start, l->at - start));
    }
    Buf shown;
    buf_init(&shown);
    uint32_t code;
    int bytes = utf8_decode(l->src.ptr + l->at, l->src.len - l->at, &code);
    buf_printable(&shown, lg_str_sub(l->src, l->at, bytes ? (size_t)bytes : 1), 20);
    LgStatus status =
        tpl_fail_at(l->err, l->src, l->at, "an unexpected character '%s'", shown.data);
    buf_clear(&shown);
    return status;
}

/* The end of a tag at l->at: how many bytes it has (0: none), and its sign. */
static size_t tag_end(const Lexer *l, bool print, char *sign) {
    const char *end = print ? "}}" : "%}";
    if (l->bracket_count)
        return 0;
    *sign = sign_at(l, l->at);
    if (*sign == '+' && print)
        return 0;
    if (!starts(l, l->at + (*sign ? 1 : 0), end))
        return 0;
    return *sign ? 3 : 2;
}

static LgStatus tag(Lexer *l, size_t begin, bool print) {
    l->bracket_count = 0;
    l->at = begin + 2 + (sign_at(l, begin + 2) ? 1 : 0);
    LG_TRY(push_token(l, print ? TPL_TOK_PRINT_BEGIN : TPL_TOK_BLOCK_BEGIN, begin,
                      lg_str_sub(l->src, begin, 2)));
    for (;;) {
        l->at = tpl_skip_space(l->src, l->at);
        if (l->at >= l->src.len)
            return tpl_fail_at(l->err, l->src, begin, "a tag without its %s", print ? "}}" : "%}");
        char sign = 0, c = l->src.ptr[l->at];
        size_t end = tag_end(l, print, &sign);
        if (end) {
            LG_TRY(push_token(l, print ? TPL_TOK_PRINT_END : TPL_TOK_BLOCK_END, l->at,
                              lg_str_sub(l->src, l->at, end)));
            l->at += end;
            if (!print || sign)
                skip_after(l, sign);
            return LG_OK;
        }
        if (is_digit(c)) {
            LG_TRY(number(l));
        } else if (is_name(c)) {
            size_t start = l->at;
            while (is_name(byte_at(l, l->at)))
                l->at++;
            LG_TRY(push_token(l, TPL_TOK_NAME, start, lg_str_sub(l->src, start, l->at - start)));
        } else if (c == '\'' || c == '"') {
            LG_TRY(string(l));
        } else {
            LG_TRY(operator(l));
        }
    }
}

static size_t next_tag(const Lexer *l) {
    size_t at = l->at;
    while (at < l->src.len &&
           !(l->src.ptr[at] == '{' && strchr("{%#", byte_at(l, at + 1)) && byte_at(l, at + 1)))
        at++;
    return at;
}

LgStatus tpl_lex(Arena *arena, LgStr source, TplTokens *out, LgError *err) {
    Lexer l = {.arena = arena, .out = out, .line = 1, .err = err};
    *out = (TplTokens){0};
    if (!normalize(arena, source, &l.src))
        return lg_fail_memory(err);
    out->source = l.src;
    bool line_start = true;
    while (l.at < l.src.len) {
        size_t begin = next_tag(&l);
        if (begin >= l.src.len) {
            LG_TRY(push_token(&l, TPL_TOK_DATA, l.at, lg_str_sub(l.src, l.at, l.src.len)));
            break;
        }
        char kind = l.src.ptr[begin + 1], open, close;
        LG_TRY(push_data(&l, l.at, begin, sign_at(&l, begin + 2), kind == '{', line_start));
        size_t raw = kind == '%' ? bare_block(&l, begin, "raw", &open, &close) : 0;
        if (raw && close != '+')
            LG_TRY(raw_block(&l, begin, raw, close));
        else if (kind == '#')
            LG_TRY(comment(&l, begin));
        else
            LG_TRY(tag(&l, begin, kind == '{'));
        line_start = l.src.ptr[l.at - 1] == '\n';
    }
    return push_token(&l, TPL_TOK_END, l.src.len, (LgStr){"", 0});
}
