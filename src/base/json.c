/* jansson behind three guards: a depth check before it parses, integers past 64 bits respelled as
 * reals, and care for failed allocations. Its scanner overlooks that the buffer of a token did not
 * grow: the token loses bytes, its closing quote among them, and is read past its end. So a parse
 * holds a reserve that the first failed request is served from, and has no input after that. */
#include "base/json.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define JSON_DEPTH_MAX 128
#define JSON_INT_DIGITS_SAFE 18 /* any integer of so many digits fits 64 bits */
#define JSON_SCANNER_MIN 64     /* the scanner's first buffers, and what it saves of a bad byte */

/* jansson's hooks take no context, so that what they need of the parse under way is the thread's.
 * json_load sets it and clears it again; outside a parse it is zero. */
typedef struct ParseMemory {
    void *reserve; /* the largest buffer that the scanner can ask for */
    size_t reserve_bytes;
    bool failed; /* the reserve has been asked: what jansson makes is thrown away */
} ParseMemory;
static _Thread_local ParseMemory parse_memory;

static void *json_alloc(size_t bytes) {
    void *p = lg_alloc(bytes);
    ParseMemory *m = &parse_memory;
    if (p || !m->reserve)
        return p;
    if (!m->failed && bytes <= m->reserve_bytes)
        p = m->reserve;
    m->failed = true;
    return p;
}

static void json_release(void *p) {
    if (!p || p != parse_memory.reserve)
        lg_free(p);
}

static void hooks_install(void) {
    json_set_alloc_funcs(json_alloc, json_release);
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

/* The length of the longest string, number or word: what the scanner keeps at a time. */
static size_t longest_token(LgStr text) {
    size_t longest = 0;
    size_t i = 0;
    while (i < text.len) {
        size_t end = i + 1;
        if (text.ptr[i] == '"')
            end = string_end(text, i);
        while (text.ptr[i] != '"' && end < text.len && !strchr(" \t\r\n[]{},:\"", text.ptr[end]))
            end++;
        longest = end - i > longest ? end - i : longest;
        i = end;
    }
    return longest;
}

/* A byte at a time, so that none is under way when an allocation fails: the scanner's buffer grows
 * by doubling, and no token lasts long enough to ask for a second growth. */
static size_t next_byte(void *to, size_t room, void *data) {
    LgStr *rest = data;
    if (rest->len == 0 || room == 0 || parse_memory.failed)
        return 0;
    *(char *)to = *rest->ptr++;
    rest->len--;
    return 1;
}

static LgStatus load(LgStr text, json_t **out, json_error_t *e, LgError *err) {
    ParseMemory *m = &parse_memory;
    size_t longest = longest_token(text);
    if (longest > (SIZE_MAX - JSON_SCANNER_MIN) / 2)
        return lg_fail_memory(err);
    *m = (ParseMemory){.reserve_bytes = 2 * longest + JSON_SCANNER_MIN};
    m->reserve = lg_alloc(m->reserve_bytes);
    if (!m->reserve)
        return lg_fail_memory(err);
    json_t *value =
        json_load_callback(next_byte, &text, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, e);
    if (m->failed) {
        json_decref(value);
        value = NULL;
    }
    LgStatus status = m->failed ? lg_fail_memory(err) : LG_OK;
    lg_free(m->reserve);
    *m = (ParseMemory){0};
    *out = value;
    return status;
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
    json_t *value;
    LG_TRY(load(text, &value, &e, err));
    if (!value && json_error_code(&e) == json_error_numeric_overflow) {
        Buf respelled;
        buf_init(&respelled);
        respell_long_integers(text, &respelled);
        LgStatus status =
            respelled.failed ? lg_fail_memory(err) : load(buf_view(&respelled), &value, &e, err);
        buf_clear(&respelled);
        if (status != LG_OK)
            return status;
    }
    if (!value)
        return fail_syntax(&e, what, err);
    *out = value;
    return LG_OK;
}

static int append_printed(const char *text, size_t len, void *data) {
    Buf *out = data;
    buf_append(out, text, len);
    return out->failed ? -1 : 0;
}

void lg_json_print(const json_t *value, size_t flags, Buf *out) {
    lg_mem_install_hooks();
    if (json_dump_callback(value, append_printed, out, flags) != 0)
        out->failed = true;
}

LgStr lg_json_string(const json_t *value) {
    if (!json_is_string(value))
        return (LgStr){NULL, 0};
    return (LgStr){json_string_value(value), json_string_length(value)};
}
