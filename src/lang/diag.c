/* Formats refusals. Long source lines are shown in part, around the caret, so that the message fits
 * an LgError. */
#include "lang/diag.h"

#include <stdio.h>
#include <string.h>

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

static bool continues_code_point(char c) {
    return ((unsigned char)c & 0xc0u) == 0x80u;
}

/* The line, and under it a caret that counts code points, not bytes. */
static void excerpt_append(LgStr source, int line, int column, Buf *out) {
    LgStr text = source_line(source, line);
    size_t caret = column > 0 ? (size_t)column - 1 : 0;
    size_t from = 0;
    if (caret > EXCERPT_MAX - 20)
        from = caret - (EXCERPT_MAX / 2);
    if (from > text.len)
        from = text.len;
    while (from < text.len && continues_code_point(text.ptr[from]))
        from++;
    size_t end = text.len - from > EXCERPT_MAX ? from + EXCERPT_MAX : text.len;
    while (end > from && end < text.len && continues_code_point(text.ptr[end]))
        end--;
    buf_putc(out, '\n');
    for (size_t i = from; i < end; i++)
        buf_putc(out, (unsigned char)text.ptr[i] < 0x20 ? ' ' : text.ptr[i]);
    if (column <= 0)
        return;
    buf_putc(out, '\n');
    for (size_t i = from; i < end && i < caret; i++)
        if (!continues_code_point(text.ptr[i]))
            buf_putc(out, ' ');
    buf_putc(out, '^');
}

bool diag_refuse_v(Diag *d, int line, int column, const char *format, va_list args) {
    if (d->status != LG_OK)
        return false;
    d->status = LG_BAD_INPUT;
    if (!d->err)
        return false;
    char why[640];
    vsnprintf(why, sizeof why, format, args);
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
    size_t max = sizeof t.text - 4;
    size_t n = s.len;
    bool cut = n > max;
    if (cut) {
        n = max;
        while (n > 0 && continues_code_point(s.ptr[n]))
            n--;
    }
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s.ptr[i];
        t.text[i] = c < 0x20 || c == 0x7f ? '?' : s.ptr[i];
    }
    memcpy(t.text + n, cut ? "..." : "", cut ? 4 : 1);
    return t;
}
