/* Views and growable buffers. */
#include "base/str.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

LgStr lg_str(const char *zero_terminated) {
    return (LgStr){zero_terminated, zero_terminated ? strlen(zero_terminated) : 0};
}

bool lg_str_eq(LgStr a, LgStr b) {
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

bool lg_str_eq_c(LgStr a, const char *b) {
    return lg_str_eq(a, lg_str(b));
}

bool lg_str_starts(LgStr s, const char *prefix) {
    size_t len = strlen(prefix);
    return s.len >= len && lg_str_eq((LgStr){s.ptr, len}, (LgStr){prefix, len});
}

bool lg_str_ends(LgStr s, const char *suffix) {
    size_t len = strlen(suffix);
    return s.len >= len && lg_str_eq(lg_str_sub(s, s.len - len, len), (LgStr){suffix, len});
}

int lg_str_cmp(LgStr a, LgStr b) {
    size_t len = a.len < b.len ? a.len : b.len;
    int order = len ? memcmp(a.ptr, b.ptr, len) : 0;
    if (order == 0)
        order = (a.len > b.len) - (a.len < b.len);
    return order;
}

LgStr lg_str_sub(LgStr s, size_t from, size_t len) {
    if (from > s.len)
        from = s.len;
    if (len > s.len - from)
        len = s.len - from;
    return (LgStr){from ? s.ptr + from : s.ptr, len}; /* an empty view may have no ptr */
}

/* cap counts the bytes before the closing zero; 0 means that data is the shared empty string, which
 * is never written. */
void buf_init(Buf *b) {
    *b = (Buf){.data = (char *)""};
}

void buf_clear(Buf *b) {
    if (b->cap)
        lg_free(b->data);
    buf_init(b);
}

void buf_reset(Buf *b) {
    buf_cut(b, 0);
}

void buf_cut(Buf *b, size_t len) {
    b->len = len < b->len ? len : b->len;
    b->failed = false;
    if (b->cap)
        b->data[b->len] = 0;
}

static bool buf_reserve(Buf *b, size_t more) {
    if (b->failed)
        return false;
    if (more <= b->cap - b->len)
        return true;
    if (more > SIZE_MAX / 4 || b->len > SIZE_MAX / 4) {
        b->failed = true;
        return false;
    }
    size_t cap = b->cap ? b->cap * 2 : 63;
    if (cap < b->len + more)
        cap = b->len + more;
    char *data = lg_realloc(b->cap ? b->data : NULL, cap + 1);
    if (!data) {
        b->failed = true;
        return false;
    }
    b->data = data;
    b->cap = cap;
    b->data[b->len] = 0;
    return true;
}

void buf_append(Buf *b, const void *data, size_t len) {
    if (len == 0 || !buf_reserve(b, len))
        return;
    memcpy(b->data + b->len, data, len);
    b->len += len;
    b->data[b->len] = 0;
}

void buf_str(Buf *b, LgStr s) {
    buf_append(b, s.ptr, s.len);
}

void buf_puts(Buf *b, const char *s) {
    buf_append(b, s, strlen(s));
}

void buf_putc(Buf *b, char c) {
    buf_append(b, &c, 1);
}

void buf_printf(Buf *b, const char *format, ...) {
    va_list args;
    va_start(args, format);
    va_list again;
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (len < 0) {
        b->failed = true;
    } else if (len > 0 && buf_reserve(b, (size_t)len)) {
        vsnprintf(b->data + b->len, (size_t)len + 1, format, again);
        b->len += (size_t)len;
    }
    va_end(again);
}

LgStr buf_view(const Buf *b) {
    return (LgStr){b->data, b->len};
}

char *buf_take(Buf *b) {
    char *data = NULL;
    if (b->failed) {
        buf_clear(b);
        return NULL;
    }
    if (b->cap) {
        data = b->data;
    } else {
        data = lg_alloc(1);
        if (data)
            data[0] = 0;
    }
    buf_init(b);
    return data;
}

void buf_json_escape(Buf *b, LgStr s) {
    size_t i = 0;
    while (i < s.len) {
        unsigned char c = (unsigned char)s.ptr[i];
        if (c < 0x80) {
            const char *pair = strchr("\"\"\\\\\bb\ff\nn\rr\tt", c);
            if (c == '"' || c == '\\')
                buf_printf(b, "\\%c", c);
            else if (c && c < 0x20 && pair)
                buf_printf(b, "\\%c", pair[1]);
            else if (c < 0x20 || c == 0x7f)
                buf_printf(b, "\\u%04x", c);
            else
                buf_putc(b, (char)c);
            i++;
            continue;
        }
        uint32_t code;
        int bytes = utf8_decode(s.ptr + i, s.len - i, &code);
        if (bytes)
            buf_append(b, s.ptr + i, (size_t)bytes);
        else
            buf_puts(b, "\xef\xbf\xbd");
        i += bytes ? (size_t)bytes : 1;
    }
}

/* Controls, and the characters that reorder or break lines: a terminal or a log viewer must show a
 * name as it is. */
static bool code_is_printable(uint32_t code) {
    return !(code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x200e && code <= 0x200f) ||
             (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069));
}

/* How many bytes of s the next shown unit takes, and how many it makes. */
static size_t printable_step(LgStr s, size_t at, size_t *made) {
    uint32_t code = 0;
    int bytes = utf8_decode(s.ptr + at, s.len - at, &code);
    size_t step = bytes ? (size_t)bytes : 1;
    *made = bytes && code_is_printable(code) ? step : 4 * step;
    return step;
}

static bool printable_fits(LgStr s, size_t max) {
    size_t made;
    for (size_t i = 0; i < s.len; max -= made) {
        i += printable_step(s, i, &made);
        if (made > max)
            return false;
    }
    return true;
}

void buf_printable(Buf *b, LgStr s, size_t max) {
    bool whole = printable_fits(s, max);
    size_t dots = max < 3 ? max : 3;
    size_t room = whole ? max : max - dots;
    size_t i = 0;
    while (i < s.len && !b->failed) {
        size_t made;
        size_t step = printable_step(s, i, &made);
        if (made > room)
            break;
        if (made == step)
            buf_append(b, s.ptr + i, step);
        else
            for (size_t k = 0; k < step; k++)
                buf_printf(b, "\\x%02x", (unsigned)(unsigned char)s.ptr[i + k]);
        room -= made;
        i += step;
    }
    if (!whole)
        buf_append(b, "...", dots);
}
