/* Form C from utf8proc's tables. The order of combining marks is made here by a stable merge sort:
 * utf8proc's own ordering takes quadratic time on a long run of marks, and texts come from
 * strangers. */
#include "text/normalize.h"

#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "base/utf8.h"

#define DECOMPOSED_MAX 8 /* canonical decompositions have up to four code points */

typedef struct Codes {
    int32_t *data;
    size_t count, cap;
} Codes;

static bool codes_reserve(Codes *c, size_t more) {
    if (more <= c->cap - c->count)
        return true;
    size_t cap = c->cap * 2 + more + 64;
    int32_t *data = cap > SIZE_MAX / sizeof *data ? NULL : lg_realloc(c->data, cap * sizeof *data);
    if (!data)
        return false;
    c->data = data;
    c->cap = cap;
    return true;
}

static bool decompose(LgStr text, Codes *out) {
    size_t i = 0;
    while (i < text.len) {
        uint32_t code = 0;
        i += (size_t)utf8_decode(text.ptr + i, text.len - i, &code);
        if (!codes_reserve(out, DECOMPOSED_MAX))
            return false;
        int bound = 0;
        utf8proc_ssize_t n =
            utf8proc_decompose_char((int32_t)code, out->data + out->count, DECOMPOSED_MAX,
                                    UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &bound);
        if (n < 0 || n > DECOMPOSED_MAX) { /* a code point that the tables do not know is its own */
            out->data[out->count] = (int32_t)code;
            n = 1;
        }
        out->count += (size_t)n;
    }
    return true;
}

static int combining_class(int32_t code) {
    return (int)utf8proc_get_property(code)->combining_class;
}

/* Stable merge sort by combining class, bottom up; room holds count codes. */
static void sort_marks(int32_t *codes, size_t count, int32_t *room) {
    for (size_t width = 1; width < count; width *= 2) {
        for (size_t start = 0; start < count; start += 2 * width) {
            size_t mid = start + width < count ? start + width : count;
            size_t end = mid + width < count ? mid + width : count;
            size_t a = start, b = mid, n = start;
            while (a < mid || b < end) {
                bool left =
                    b == end || (a < mid && combining_class(codes[a]) <= combining_class(codes[b]));
                room[n++] = left ? codes[a++] : codes[b++];
            }
        }
        memcpy(codes, room, count * sizeof *codes);
    }
}

static bool order_marks(Codes *c) {
    int32_t *room = NULL;
    size_t room_cap = 0;
    size_t i = 0;
    while (i < c->count) {
        size_t end = i;
        bool sorted = true;
        int last = 0;
        for (; end < c->count; end++) {
            int class = combining_class(c->data[end]);
            if (class == 0)
                break;
            sorted = sorted && class >= last;
            last = class;
        }
        size_t run = end - i;
        if (!sorted && run > room_cap) {
            lg_free(room);
            room = lg_alloc_array(run, sizeof *room);
            room_cap = run;
            if (!room)
                return false;
        }
        if (!sorted)
            sort_marks(c->data + i, run, room);
        i = end + 1;
    }
    lg_free(room);
    return true;
}

/* Below U+0300 nothing decomposes into marks or combines with what follows. */
static bool is_plain(LgStr text) {
    for (size_t i = 0; i < text.len; i++)
        if ((unsigned char)text.ptr[i] >= 0xcc)
            return false;
    return true;
}

LgStatus normalize_nfc(LgStr text, Buf *buf, LgStr *out, LgError *err) {
    if (is_plain(text)) {
        *out = text;
        return LG_OK;
    }
    Codes codes = {0};
    LgStatus status = LG_OK;
    buf_reset(buf);
    if (!decompose(text, &codes) || !order_marks(&codes)) {
        status = lg_fail_memory(err);
        goto done;
    }
    utf8proc_ssize_t count = utf8proc_normalize_utf32(codes.data, (utf8proc_ssize_t)codes.count,
                                                      UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    for (utf8proc_ssize_t i = 0; codes.data && i < count; i++) {
        char bytes[4];
        buf_append(buf, bytes, (size_t)utf8_encode((uint32_t)codes.data[i], bytes));
    }
    if (buf->failed)
        status = lg_fail_memory(err);
    else
        *out = buf_view(buf);
done:
    lg_free(codes.data);
    return status;
}

bool unicode_is_space(uint32_t code) {
    return (code >= 9 && code <= 13) || code == 0x20 || code == 0x85 || code == 0xa0 ||
           code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
           code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

bool unicode_is_word(uint32_t code) {
    /* Letters that are symbols by category: circled and squared Latin ones. The joiners count as
     * well. */
    static const struct {
        uint32_t first, last;
    } extra[] = {{0x200c, 0x200d},
                 {0x24b6, 0x24e9},
                 {0x1f130, 0x1f149},
                 {0x1f150, 0x1f169},
                 {0x1f170, 0x1f189}};
    for (size_t i = 0; i < sizeof extra / sizeof extra[0]; i++)
        if (code >= extra[i].first && code <= extra[i].last)
            return true;
    utf8proc_category_t c = utf8proc_category((int32_t)code);
    return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_NL) || c == UTF8PROC_CATEGORY_PC;
}
