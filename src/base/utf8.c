/* UTF-8. */
#include "base/utf8.h"

/* Lead byte: how many bytes follow (−1: no lead byte), and the range of the first that follows,
 * which is where overlong forms, surrogates and codes past U+10FFFF are told apart (Unicode, table
 * 3-7). */
static int lead_follow(unsigned char lead, unsigned char *low, unsigned char *high) {
    *low = 0x80;
    *high = 0xbf;
    if (lead < 0x80)
        return 0;
    if (lead >= 0xc2 && lead <= 0xdf)
        return 1;
    if (lead >= 0xe0 && lead <= 0xef) {
        if (lead == 0xe0)
            *low = 0xa0;
        if (lead == 0xed)
            *high = 0x9f;
        return 2;
    }
    if (lead >= 0xf0 && lead <= 0xf4) {
        if (lead == 0xf0)
            *low = 0x90;
        if (lead == 0xf4)
            *high = 0x8f;
        return 3;
    }
    return -1;
}

/* How many of the bytes at s belong to one code point: `want` is set to how many it needs (0: these
 * bytes never become one). */
static size_t sequence_len(const char *s, size_t len, size_t *want) {
    unsigned char low, high;
    int follow = lead_follow((unsigned char)s[0], &low, &high);
    *want = follow < 0 ? 0 : (size_t)follow + 1;
    size_t have = 1;
    while (have < *want && have < len) {
        unsigned char c = (unsigned char)s[have];
        if (c < low || c > high) {
            *want = 0;
            break;
        }
        low = 0x80;
        high = 0xbf;
        have++;
    }
    return have;
}

int utf8_decode(const char *s, size_t len, uint32_t *code) {
    if (len == 0)
        return 0;
    size_t want;
    size_t have = sequence_len(s, len, &want);
    if (want == 0 || have < want)
        return 0;
    static const unsigned char lead_mask[5] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    uint32_t value = (unsigned char)s[0] & lead_mask[want];
    for (size_t i = 1; i < want; i++)
        value = value << 6 | ((unsigned char)s[i] & 0x3f);
    *code = value;
    return (int)want;
}

int utf8_encode(uint32_t code, char out[4]) {
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xc0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
        return 0;
    if (code < 0x10000) {
        out[0] = (char)(0xe0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3f));
        out[2] = (char)(0x80 | (code & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 0x3f));
    out[2] = (char)(0x80 | (code >> 6 & 0x3f));
    out[3] = (char)(0x80 | (code & 0x3f));
    return 4;
}

bool utf8_valid(LgStr s) {
    size_t i = 0;
    while (i < s.len) {
        uint32_t code;
        int bytes = utf8_decode(s.ptr + i, s.len - i, &code);
        if (!bytes)
            return false;
        i += (size_t)bytes;
    }
    return true;
}

size_t utf8_incomplete_tail(LgStr s) {
    for (size_t tail = 1; tail <= 3 && tail <= s.len; tail++) {
        const char *at = s.ptr + s.len - tail;
        if (((unsigned char)*at & 0xc0) == 0x80)
            continue;
        size_t want;
        size_t have = sequence_len(at, tail, &want);
        return want > tail && have == tail ? tail : 0;
    }
    return 0;
}
