/* Ids to text. Both ways of decoding go through one that is fed bytes as they come, so that they
 * cannot differ. */
#include "base/utf8.h"
#include "text/tokenizer_impl.h"

#define REPLACEMENT "\xef\xbf\xbd"

void detok_init(Detok *d, const Tokenizer *t, bool skip_special) {
    *d = (Detok){.tokenizer = t, .skip_special = skip_special};
}

static size_t valid_prefix(LgStr s) {
    size_t i = 0;
    uint32_t code;
    int bytes;
    while ((bytes = utf8_decode(s.ptr + i, s.len - i, &code)) > 0)
        i += (size_t)bytes;
    return i;
}

/* pending: the beginning of a code point, and one byte more. */
static void settle(Detok *d, Buf *out) {
    uint32_t code;
    while (d->pending_len) {
        if (utf8_decode(d->pending, d->pending_len, &code)) {
            buf_append(out, d->pending, d->pending_len);
            d->pending_len = 0;
        } else if (utf8_incomplete_tail((LgStr){d->pending, d->pending_len}) == d->pending_len) {
            return;
        } else { /* the beginning is lost; the last byte may begin anew */
            buf_puts(out, REPLACEMENT);
            d->pending[0] = d->pending[d->pending_len - 1];
            d->pending_len = d->pending_len > 1 ? 1 : 0;
        }
    }
}

static void feed(Detok *d, LgStr bytes, Buf *out) {
    size_t i = 0;
    while (i < bytes.len) {
        if (d->pending_len == 0) {
            LgStr rest = lg_str_sub(bytes, i, bytes.len);
            size_t valid = valid_prefix(rest);
            buf_append(out, rest.ptr, valid);
            i += valid;
            if (i == bytes.len)
                return;
        }
        d->pending[d->pending_len++] = bytes.ptr[i++];
        settle(d, out);
    }
}

LgStatus detok_push(Detok *d, int32_t id, Buf *out, LgError *err) {
    const Tokenizer *t = d->tokenizer;
    if (id < 0)
        return lg_fail(err, LG_BAD_INPUT, 0, "token id %d is negative; ids are 0 to %zu", id,
                       t->bpe.token_count ? t->bpe.token_count - 1 : 0);
    if ((size_t)id < t->bpe.token_count) {
        const TokenBytes *b = &t->bytes[id];
        if (b->ptr && !(d->skip_special && b->special))
            feed(d, (LgStr){b->ptr, b->len}, out);
    }
    return out->failed ? lg_fail_memory(err) : LG_OK;
}

void detok_finish(Detok *d, Buf *out) {
    if (d->pending_len)
        buf_puts(out, REPLACEMENT);
    d->pending_len = 0;
}

LgStatus tokenizer_decode(const Tokenizer *t, const int32_t *ids, size_t count, bool skip_special,
                          Buf *out, LgError *err) {
    Detok d;
    detok_init(&d, t, skip_special);
    for (size_t i = 0; i < count; i++)
        LG_TRY(detok_push(&d, ids[i], out, err));
    detok_finish(&d, out);
    return out->failed ? lg_fail_memory(err) : LG_OK;
}
