/* Bytes that are printable Latin-1 stand for themselves; the 68 others take U+0100 and up, in
 * order. */
#include "text/bytelevel.h"

#include "base/utf8.h"

/* The bytes that do not stand for themselves, as ranges; `before` counts those of the ranges above.
 */
static const struct {
    unsigned first, last, before;
} hidden[] = {{0x00, 0x20, 0}, {0x7f, 0xa0, 33}, {0xad, 0xad, 67}};

#define HIDDEN_RANGES (sizeof hidden / sizeof hidden[0])

uint32_t bytelevel_code(unsigned char byte) {
    for (size_t i = 0; i < HIDDEN_RANGES; i++)
        if (byte >= hidden[i].first && byte <= hidden[i].last)
            return 0x100u + hidden[i].before + (byte - hidden[i].first);
    return byte;
}

int bytelevel_byte(uint32_t code) {
    if (code < 0x100)
        return bytelevel_code((unsigned char)code) == code ? (int)code : -1;
    for (size_t i = 0; i < HIDDEN_RANGES; i++) {
        uint32_t first = 0x100u + hidden[i].before;
        if (code >= first && code - first <= hidden[i].last - hidden[i].first)
            return (int)(hidden[i].first + (code - first));
    }
    return -1;
}

void bytelevel_write(LgStr bytes, Buf *out) {
    for (size_t i = 0; i < bytes.len; i++) {
        char code[4];
        int len = utf8_encode(bytelevel_code((unsigned char)bytes.ptr[i]), code);
        buf_append(out, code, (size_t)len);
    }
}

bool bytelevel_read(LgStr token, Buf *out) {
    size_t start = out->len;
    size_t i = 0;
    while (i < token.len) {
        uint32_t code;
        int len = utf8_decode(token.ptr + i, token.len - i, &code);
        int byte = len ? bytelevel_byte(code) : -1;
        if (byte < 0) {
            out->len = start;
            return false;
        }
        buf_putc(out, (char)byte);
        i += (size_t)len;
    }
    return true;
}
