/* The alphabet of byte-level BPE: each of the 256 bytes is written as one printable code point, so
 * that a vocabulary is text. */
#ifndef LG_TEXT_BYTELEVEL_H
#define LG_TEXT_BYTELEVEL_H

#include "base/str.h"

uint32_t bytelevel_code(unsigned char byte);
int bytelevel_byte(uint32_t code); /* -1: the code point stands for no byte */
void bytelevel_write(LgStr bytes, Buf *out);
/* False, with nothing appended, where a code point of token stands for no byte or token is no
 * UTF-8. */
bool bytelevel_read(LgStr token, Buf *out);

#endif
