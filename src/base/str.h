/* Views and growable buffers. */
#ifndef LG_BASE_STR_H
#define LG_BASE_STR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A borrowed view; not terminated by a zero. */
typedef struct LgStr {
    const char *ptr;
    size_t len;
} LgStr;

#define LG_STR(literal) ((LgStr){(literal), sizeof(literal) - 1})
#define LG_STR_ARG(s) (int)(s).len, (s).ptr /* for "%.*s" */

LgStr lg_str(const char *zero_terminated);
bool lg_str_eq(LgStr a, LgStr b);
bool lg_str_eq_c(LgStr a, const char *b);
bool lg_str_starts(LgStr s, const char *prefix);
bool lg_str_ends(LgStr s, const char *suffix);
int lg_str_cmp(LgStr a, LgStr b); /* bytewise */
LgStr lg_str_sub(LgStr s, size_t from, size_t len);

/* A growable byte buffer. After a failed allocation `failed` is set and every later append is a
 * no-op, so that a writer checks once at its end. data is always zero-terminated (and never NULL
 * after buf_init). */
typedef struct Buf {
    char *data;
    size_t len, cap;
    bool failed;
} Buf;

void buf_init(Buf *b);
void buf_clear(Buf *b);           /* frees and leaves an empty buffer that may be used again */
void buf_reset(Buf *b);           /* keeps the memory */
void buf_cut(Buf *b, size_t len); /* back to its first len bytes, as if nothing had failed */
void buf_append(Buf *b, const void *data, size_t len);
void buf_str(Buf *b, LgStr s);
void buf_puts(Buf *b, const char *s);
void buf_putc(Buf *b, char c);
void buf_printf(Buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
LgStr buf_view(const Buf *b);
char *
buf_take(Buf *b); /* the caller frees with lg_free; the buffer is empty after; NULL where failed */

/* Appends s as the inside of a JSON string (escaped, without the quotes); bytes that are not UTF-8
 * become U+FFFD. */
void buf_json_escape(Buf *b, LgStr s);

/* s with control characters escaped and cut to max bytes, for messages: names in files may hold
 * anything. */
void buf_printable(Buf *b, LgStr s, size_t max);

#endif
