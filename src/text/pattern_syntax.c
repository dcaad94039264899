/* Both engines share most of the syntax; the differences that patterns of tokenizers could meet are
 * translated or refused: \s and \w cover other characters, \h and \v mean something else, classes
 * nest and intersect, a bounded quantifier is never possessive. */
#include "text/pattern_syntax.h"

#include <string.h>

#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
/* Outside of classes the fractions and small digits of Latin-1 are word characters too. */
#define WORD_ALONE WORD "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"

/* An escape outside and inside of a class; NULL: refused there. */
typedef struct Escape {
    char letter;
    const char *outside, *inside;
} Escape;
static const Escape escapes[] = {
    {'s', "\\p{White_Space}", "\\p{White_Space}"},
    {'S', "\\P{White_Space}", "\\P{White_Space}"},
    {'w', "[" WORD_ALONE "]", WORD},
    {'W', "[^" WORD_ALONE "]", NULL},
    {'d', "\\p{Nd}", "\\p{Nd}"},
    {'D', "\\P{Nd}", "\\P{Nd}"},
    {'v', "\\x0b", "\\x0b"},
    {'p', "\\p", "\\p"},
    {'P', "\\P", "\\P"},
    {'r', "\\r", "\\r"},
    {'n', "\\n", "\\n"},
    {'t', "\\t", "\\t"},
    {'f', "\\f", "\\f"},
    {'a', "\\a", "\\a"},
    {'e', "\\e", "\\e"},
    {'x', "\\x", "\\x"},
    {'A', "\\A", NULL},
    {'z', "\\z", NULL},
};

static const char *const groups[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"};

typedef struct Reader {
    LgStr in;
    size_t at;
    Buf *out;
    LgError *err;
} Reader;

static LgStatus refuse(const Reader *r, const char *what) {
    return lg_fail(r->err, LG_BAD_INPUT, r->at, "pattern: %s at byte %zu is not served", what,
                   r->at);
}

static char peek(const Reader *r, size_t ahead) {
    return ahead < r->in.len - r->at ? r->in.ptr[r->at + ahead] : 0;
}

static void copy(Reader *r, size_t count) {
    LgStr s = lg_str_sub(r->in, r->at, count);
    buf_str(r->out, s);
    r->at += s.len;
}

/* What is in braces behind \\p or \\x; PCRE2 checks it. */
static void copy_braces(Reader *r) {
    while (r->at < r->in.len && peek(r, 0) != '}')
        copy(r, 1);
    copy(r, 1);
}

static bool is_hex(char c) {
    return c && strchr("0123456789abcdefABCDEF", c);
}

static bool is_alnum(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static LgStatus escape(Reader *r, bool in_class) {
    char letter = peek(r, 1);
    if (letter == 'u') {
        if (!is_hex(peek(r, 2)) || !is_hex(peek(r, 3)) || !is_hex(peek(r, 4)) ||
            !is_hex(peek(r, 5)))
            return refuse(r, "\\u without four hexadecimal digits");
        buf_printf(r->out, "\\x{%.4s}", r->in.ptr + r->at + 2);
        r->at += 6;
        return LG_OK;
    }
    for (size_t i = 0; i < sizeof escapes / sizeof escapes[0]; i++) {
        const char *text = in_class ? escapes[i].inside : escapes[i].outside;
        if (escapes[i].letter != letter)
            continue;
        if (!text)
            break;
        buf_puts(r->out, text);
        r->at += 2;
        if (strchr("pPx", letter) && peek(r, 0) == '{')
            copy_braces(r);
        return LG_OK;
    }
    if (!letter || is_alnum(letter))
        return refuse(r, "a backslash before this character");
    copy(r, 2); /* the bytes behind a lead byte follow as they are */
    return LG_OK;
}

static LgStatus class(Reader *r) {
    copy(r, peek(r, 1) == '^' ? 2 : 1);
    if (peek(r, 0) == ']')
        return refuse(r, "an empty class or one that begins with ]");
    while (r->at < r->in.len && peek(r, 0) != ']') {
        if (peek(r, 0) == '[')
            return refuse(r, "a class in a class");
        if (peek(r, 0) == '&' && peek(r, 1) == '&')
            return refuse(r, "an intersection of classes (&&)");
        if (peek(r, 0) == '\\')
            LG_TRY(escape(r, true));
        else
            copy(r, 1);
    }
    if (r->at == r->in.len)
        return refuse(r, "a class without its ]");
    copy(r, 1);
    return LG_OK;
}

static LgStatus group(Reader *r) {
    LgStr rest = lg_str_sub(r->in, r->at, r->in.len);
    if (peek(r, 1) == '*')
        return refuse(r, "(*");
    if (peek(r, 1) != '?') {
        copy(r, 1);
        return LG_OK;
    }
    if (r->at == 0 && lg_str_starts(rest, "(?i)")) { /* elsewhere its reach over | differs */
        copy(r, strlen("(?i)"));
        return LG_OK;
    }
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        if (lg_str_starts(rest, groups[i])) {
            copy(r, strlen(groups[i]));
            return LG_OK;
        }
    }
    return refuse(r, "a group of this kind ((?: (?= (?! (?<= (?<! (?> (?i: are)");
}

/* {n}, {n,} or {n,m}; anything else in braces is refused, since the engines differ there. */
static LgStatus quantifier(Reader *r) {
    size_t n = 1, digits = 0;
    for (; (peek(r, n) >= '0' && peek(r, n) <= '9') || (digits && peek(r, n) == ','); n++)
        digits++;
    if (!digits || peek(r, n) != '}')
        return refuse(r, "a brace that is no {n}, {n,} or {n,m}");
    char next = peek(r, n + 1);
    if (next == '+' || next == '?')
        return refuse(r, "a + or ? behind {..}");
    copy(r, n + 1);
    return LG_OK;
}

LgStatus pattern_translate(LgStr onig, Buf *pcre, LgError *err) {
    Reader r = {.in = onig, .out = pcre, .err = err};
    while (r.at < onig.len) {
        switch (onig.ptr[r.at]) {
        case '\\':
            LG_TRY(escape(&r, false));
            break;
        case '[':
            LG_TRY(class(&r));
            break;
        case '(':
            LG_TRY(group(&r));
            break;
        case '{':
            LG_TRY(quantifier(&r));
            break;
        default:
            copy(&r, 1);
        }
    }
    return pcre->failed ? lg_fail_memory(err) : LG_OK;
}
