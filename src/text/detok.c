/* Ids to text. Both ways of decoding go through one that is fed bytes as they come, so that they
 * cannot differ. */
#include <string.h>

#include "base/utf8.h"
#include "text/tokenizer_impl.h"

#define REPLACEMENT "\xef\xbf\xbd"

void detok_init(Detok *d, const Tokenizer *t, bool skip_special) {
    *d =
        (Detok){.tokenizer = t, .skip_special = skip_special, .strip_left = t->decoder.strip_count};
}

static size_t valid_prefix(LgStr s) {
    size_t i = 0;
    uint32_t code;
    int bytes;
    while ((bytes = utf8_decode(s.ptr + i, s.len - i, &code)) > 0)
        i += (size_t)bytes;
    return i;
}

/* Gives up the first `count` pending bytes. Where tokens stand for single bytes, each of them gets
 * a replacement, as in Hugging Face's decode; else the beginning of a code point gets one. */
static void replace_pending(Detok *d, size_t count, Buf *out) {
    size_t times = d->tokenizer->decoder.bytes ? count : 1;
    for (size_t i = 0; i < times; i++)
        buf_puts(out, REPLACEMENT);
    d->pending_len -= count;
    d->pending[0] = d->pending[count];
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
            replace_pending(d, d->pending_len > 1 ? d->pending_len - 1 : 1, out);
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

/* Takes off what the decoder wants gone in front of the whole text: `from` is where the part of
 * out begins that was appended last. */
static void strip_start(Detok *d, size_t from, Buf *out) {
    LgStr strip = d->tokenizer->decoder.strip;
    LgStr added = lg_str_sub(buf_view(out), from, out->len);
    size_t gone = 0;
    if (out->failed || added.len == 0)
        return;
    while (d->strip_left && added.len - gone >= strip.len &&
           lg_str_eq(lg_str_sub(added, gone, strip.len), strip)) {
        gone += strip.len;
        d->strip_left--;
    }
    if (gone < added.len)
        d->strip_left = 0;
    if (gone) {
        memmove(out->data + from, out->data + from + gone, added.len - gone);
        buf_cut(out, out->len - gone);
    }
}

/* The first token's text without a character that others have as a space. */
static void feed_first(Detok *d, LgStr text, Buf *out) {
    Buf kept;
    buf_init(&kept);
    text_replace(text, d->tokenizer->decoder.first_without, LG_STR(""), &kept);
    if (kept.failed)
        out->failed = true;
    feed(d, buf_view(&kept), out);
    buf_clear(&kept);
}

static void push_token(Detok *d, int32_t id, Buf *out) {
    const Tokenizer *t = d->tokenizer;
    const TokenBytes *b = &t->bytes[id];
    size_t from = out->len;
    bool first = !d->started;
    if (!b->ptr || (d->skip_special && b->special))
        return;
    d->started = true;
    if (t->decoder.bytes && !b->byte && d->pending_len)
        replace_pending(d, d->pending_len, out); /* a run of byte tokens ends within a code point */
    if (first && t->decoder.first_without.len)
        feed_first(d, t->bpe.tokens[id], out);
    else
        feed(d, (LgStr){b->ptr, b->len}, out);
    if (d->strip_left)
        strip_start(d, from, out);
}

LgStatus detok_push(Detok *d, int32_t id, Buf *out, LgError *err) {
    const Tokenizer *t = d->tokenizer;
    if (id < 0)
        return lg_fail(err, LG_BAD_INPUT, 0, "token id %d is negative; ids are 0 to %zu", id,
                       t->bpe.token_count ? t->bpe.token_count - 1 : 0);
    if ((size_t)id < t->bpe.token_count)
        push_token(d, id, out);
    return out->failed ? lg_fail_memory(err) : LG_OK;
}

void detok_finish(Detok *d, Buf *out) {
    if (d->pending_len)
        replace_pending(d, d->pending_len, out);
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
