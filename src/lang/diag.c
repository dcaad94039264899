/* Formats refusals. Long source lines are shown in part, around the caret, so that the message fits
 * an LgError. */
#include "lang/diag.h"

#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

#define EXCERPT_MAX 140

static LgStr source_line(LgStr source, int line) {
    size_t at = 0;
    for (int n = 1; n < line && at < source.len; n++) {
        const char *nl = memchr(source.ptr + at, '\n', source.len - at);
        at = nl ? (size_t)(nl - source.ptr) + 1 : source.len;
    }
    const char *nl = at < source.len ? memchr(source.ptr + at, '\n', source.len - at) : NULL;
    size_t end = nl ? (size_t)(nl - source.ptr) : source.len;
    if (end > at && source.ptr[end - 1] == '\r')
        end--;
    return (LgStr){source.ptr + at, end - at};
}

/* Bytes of the code point at `at`, and whether it may be shown: no control character, and UTF-8. */
static int code_bytes(LgStr s, size_t at, bool *shown) {
    uint32_t code = 0;
    int n = utf8_decode(s.ptr + at, s.len - at, &code);
    *shown = n > 0 && code >= 0x20 && code != 0x7f;
    return n > 0 ? n : 1;
}

/* Where the shown part begins: at the line's start, or so far that the caret is in sight. */
static size_t excerpt_from(LgStr text, size_t caret) {
    size_t from = 0;
    bool shown;
    while (caret > EXCERPT_MAX - 20 && from < text.len && from < caret - EXCERPT_MAX / 2)
        from += (size_t)code_bytes(text, from, &shown);
    return from;
}

/* The line, and under it a caret that counts code points, not bytes. */
static void excerpt_append(LgStr source, int line, int column, Buf *out) {
    LgStr text = source_line(source, line);
    size_t caret = column > 0 ? (size_t)column - 1 : 0;
    size_t from = excerpt_from(text, caret);
    int before = 0;
    buf_putc(out, '\n');
    for (size_t i = from; i < text.len && i - from < EXCERPT_MAX;) {
        bool shown;
        int n = code_bytes(text, i, &shown);
        bool blank = text.ptr[i] == '\t';
        if (shown)
            buf_append(out, text.ptr + i, (size_t)n);
        else
            buf_putc(out, blank ? ' ' : '?');
        before += i < caret;
        i += (size_t)n;
    }
    if (column > 0)
        buf_printf(out, "\n%*s^", before, "");
}

bool diag_refuse_v(Diag *d, int line, int column, const char *format, va_list args) {
    if (d->status != LG_OK)
        return false;
    d->status = LG_BAD_INPUT;
    if (!d->err)
        return false;
    char why[600];
    vsnprintf(why, sizeof why, format, args);
    size_t length = strlen(why);
    why[length - utf8_incomplete_tail((LgStr){why, length})] = 0;
    Buf text;
    buf_init(&text);
    if (line > 0)
        excerpt_append(d->source, line, column, &text);
    if (text.failed) {
        buf_clear(&text);
        return d->status = LG_OK, diag_memory(d);
    }
    DiagText file = diag_text(d->file);
    uint64_t offset = line > 0 ? (uint64_t)line : 0;
    if (line > 0)
        lg_fail(d->err, d->status, offset, "%s:%d: %s%s", file.text, line, why, text.data);
    else
        lg_fail(d->err, d->status, offset, "%s: %s", file.text, why);
    buf_clear(&text);
    return false;
}

bool diag_refuse(Diag *d, int line, int column, const char *format, ...) {
    va_list args;
    va_start(args, format);
    diag_refuse_v(d, line, column, format, args);
    va_end(args);
    return false;
}

bool diag_memory(Diag *d) {
    if (d->status == LG_OK)
        d->status = lg_fail_memory(d->err);
    return false;
}

DiagText diag_text(LgStr s) {
    DiagText t;
    size_t used = 0;
    size_t i = 0;
    while (i < s.len) {
        bool shown;
        int n = code_bytes(s, i, &shown);
        if (used + (size_t)n + 4 > sizeof t.text)
            break;
        memcpy(t.text + used, shown ? s.ptr + i : "?", shown ? (size_t)n : 1);
        used += shown ? (size_t)n : 1;
        i += (size_t)n;
    }
    memcpy(t.text + used, i < s.len ? "..." : "", i < s.len ? 4 : 1);
    return t;
}
