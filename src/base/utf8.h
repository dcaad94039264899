/* UTF-8. */
#ifndef LG_BASE_UTF8_H
#define LG_BASE_UTF8_H

#include "base/str.h"

/* Reads one code point at s[0..len); returns its bytes (1 to 4), or 0 where the bytes are no UTF-8
 * (overlong, surrogate, past U+10FFFF and truncated included). */
int utf8_decode(const char *s, size_t len, uint32_t *code);
int utf8_encode(uint32_t code,
                char out[4]); /* bytes written; 0 for surrogates and codes past U+10FFFF */
bool utf8_valid(LgStr s);
/* Bytes at the end of s that begin a code point which is not complete yet (0 to 3). */
size_t utf8_incomplete_tail(LgStr s);

#endif
