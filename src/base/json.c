/* jansson behind three guards: a depth check before it parses, integers past 64 bits respelled as
 * reals, and a note of failed allocations, which jansson's scanner overlooks in places (a token
 * would be cut short and accepted). */
#include "base/json.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/mem.h"

#define JSON_DEPTH_MAX 128
#define JSON_INT_DIGITS_SAFE 18 /* any integer of so many digits fits 64 bits */

static _Thread_local bool
    json_alloc_failed; /* read by lg_json_parse alone, after it has cleared it */

static void *json_alloc(size_t bytes) {
    void *p = lg_alloc(bytes);
    if (!p)
        json_alloc_failed = true;
    return p;
}

static void hooks_install(void) {
    json_set_alloc_funcs(json_alloc, lg_free);
}

void lg_mem_install_hooks(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, hooks_install);
}

/* The end of the string that begins at text[at] == '"' (one past its closing quote, or the end of
 * the text). */
static size_t string_end(LgStr text, size_t at) {
    for (size_t i = at + 1; i < text.len; i++) {
        if (text.ptr[i] == '\\')
            i++;
        else if (text.ptr[i] == '"')
            return i + 1;
    }
    return text.len;
}

/* The offset of the bracket that goes deeper than JSON_DEPTH_MAX, or text.len. */
static size_t depth_excess(LgStr text) {
    size_t depth = 0;
    size_t i = 0;
    while (i < text.len) {
        char c = text.ptr[i];
        if (c == '"') {
            i = string_end(text, i);
            continue;
        }
        if ((c == '[' || c == '{') && ++depth > JSON_DEPTH_MAX)
            return i;
        if ((c == ']' || c == '}') && depth)
            depth--;
        i++;
    }
    return text.len;
}

static bool is_number_char(char c) {
    return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

/* Whether a number's text is an integer that 64 bits do not hold. */
static bool is_long_integer(LgStr number) {
    char digits[32];
    if (number.len <= JSON_INT_DIGITS_SAFE)
        return false;
    for (size_t i = 0; i < number.len; i++)
        if (number.ptr[i] == '.' || number.ptr[i] == 'e' || number.ptr[i] == 'E')
            return false;
    if (number.len >= sizeof digits)
        return true;
    for (size_t i = 0; i < number.len; i++)
        digits[i] = number.ptr[i];
    digits[number.len] = 0;
    errno = 0;
    (void)strtoll(digits, NULL, 10);
    return errno == ERANGE;
}

/* text with "e0" behind every integer that is too long. */
static void respell_long_integers(LgStr text, Buf *out) {
    size_t i = 0;
    while (i < text.len) {
        size_t end = i + 1;
        bool number = is_number_char(text.ptr[i]);
        if (text.ptr[i] == '"')
            end = string_end(text, i);
        while (number && end < text.len && is_number_char(text.ptr[end]))
            end++;
        LgStr token = lg_str_sub(text, i, end - i);
        buf_str(out, token);
        if (number && is_long_integer(token))
            buf_puts(out, "e0");
        i = end;
    }
}

static json_t *load(LgStr text, json_error_t *e) {
    return json_loadb(text.len ? text.ptr : "", text.len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL,
                      e);
}

/* jansson quotes the input as it is. */
static LgStatus fail_syntax(const json_error_t *e, const char *what, LgError *err) {
    Buf words;
    buf_init(&words);
    buf_printable(&words, lg_str(e->text), sizeof e->text);
    LgStatus status = lg_fail(err, LG_BAD_INPUT, (uint64_t)e->position,
                              "%s: not valid JSON at line %d, column %d (byte %d): %s", what,
                              e->line, e->column, e->position, words.data);
    buf_clear(&words);
    return status;
}

LgStatus lg_json_parse(LgStr text, const char *what, json_t **out, LgError *err) {
    lg_mem_install_hooks();
    size_t deep = depth_excess(text);
    if (deep < text.len)
        return lg_fail(err, LG_BAD_INPUT, deep, "%s: nested deeper than %d levels at byte %zu",
                       what, JSON_DEPTH_MAX, deep);
    json_error_t e;
    json_alloc_failed = false;
    json_t *value = load(text, &e);
    if (!value && json_error_code(&e) == json_error_numeric_overflow) {
        Buf respelled;
        buf_init(&respelled);
        respell_long_integers(text, &respelled);
        if (respelled.failed)
            json_alloc_failed = true;
        else
            value = load(buf_view(&respelled), &e);
        buf_clear(&respelled);
    }
    if (json_alloc_failed) {
        json_decref(value);
        return lg_fail_memory(err);
    }
    if (!value)
        return fail_syntax(&e, what, err);
    *out = value;
    return LG_OK;
}

LgStr lg_json_string(const json_t *value) {
    if (!json_is_string(value))
        return (LgStr){NULL, 0};
    return (LgStr){json_string_value(value), json_string_length(value)};
}
