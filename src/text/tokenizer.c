/* From text to ids: added tokens are found first, what lies between is normalized, cut into words
 * and merged. */
#include "text/tokenizer.h"

#include <assert.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/bytelevel.h"
#include "text/normalize.h"
#include "text/tokenizer_impl.h"

#define DECODED_BYTES_MAX (1 << 20) /* of one token */

const char tokenizer_gpt2_pattern[] =
    "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

Tokenizer *tokenizer_new(void) {
    Tokenizer *t = lg_calloc(1, sizeof *t);
    if (t)
        bpe_init(&t->bpe);
    return t;
}

void tokenizer_destroy(Tokenizer *t) {
    if (!t)
        return;
    for (size_t i = 0; i < t->step_count; i++)
        pattern_destroy(t->steps[i].split.pattern);
    added_set_clear(&t->added);
    added_set_clear(&t->added_normal);
    lg_free(t->bytes);
    bpe_clear(&t->bpe);
    lg_free(t);
}

LgStatus tokenizer_add_step(Tokenizer *t, PreStep step, LgError *err) {
    if (t->step_count == TOKENIZER_STEPS_MAX) {
        pattern_destroy(step.split.pattern);
        return lg_fail(err, LG_LIMIT, 0, "pre_tokenizer: more than %d steps", TOKENIZER_STEPS_MAX);
    }
    t->steps[t->step_count++] = step;
    return LG_OK;
}

LgStatus tokenizer_add_pattern(Tokenizer *t, LgStr regex, SplitBehavior behavior, LgError *err) {
    PreStep step = {.kind = PRE_SPLIT, .split = {.behavior = behavior}};
    LG_TRY(pattern_compile(regex, &step.split.pattern, err));
    return tokenizer_add_step(t, step, err);
}

LgStatus tokenizer_keep(Tokenizer *t, LgStr text, LgStr *out, LgError *err) {
    *out = arena_str(&t->bpe.arena, text);
    return out->ptr ? LG_OK : lg_fail_memory(err);
}

LgStatus tokenizer_add_added(Tokenizer *t, AddedToken token, bool normalized, LgError *err) {
    if (!normalized)
        return added_set_add(&t->added, token, err);
    Buf rooms[2];
    buf_init(&rooms[0]);
    buf_init(&rooms[1]);
    LgStr text = token.text;
    LgStatus status = normalizer_apply(&t->normalizer, token.text, rooms, &text, err);
    if (status == LG_OK && text.ptr != token.text.ptr)
        status = tokenizer_keep(t, text, &token.text, err);
    if (status == LG_OK)
        status = added_set_add(&t->added_normal, token, err);
    buf_clear(&rooms[0]);
    buf_clear(&rooms[1]);
    return status;
}

LgStatus tokenizer_add_frame(Tokenizer *t, int64_t id, bool behind, LgError *err) {
    int32_t *ids = behind ? t->suffix : t->prefix;
    size_t *count = behind ? &t->suffix_count : &t->prefix_count;
    if (id < 0 || (uint64_t)id >= t->bpe.token_count || !t->bpe.tokens[id].ptr)
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "a token to put around texts has the id %lld, which is no token",
                       (long long)id);
    if (*count == TOKENIZER_FRAME_MAX)
        return lg_fail(err, LG_LIMIT, 0, "more than %d tokens to put around texts",
                       TOKENIZER_FRAME_MAX);
    ids[(*count)++] = (int32_t)id;
    return LG_OK;
}

/* A token's text through the decoder, as far as that looks at single tokens. rooms[0] holds what
 * comes out where it is another text. */
static LgStr decode_token(const Tokenizer *t, LgStr text, Buf rooms[2], bool *byte) {
    const Decoder *d = &t->decoder;
    buf_reset(&rooms[0]);
    if (d->byte_level)
        return bytelevel_read(text, &rooms[0]) ? buf_view(&rooms[0]) : text;
    if (d->bytes && bpe_byte_token(text) >= 0) {
        *byte = true;
        buf_putc(&rooms[0], (char)bpe_byte_token(text));
        return buf_view(&rooms[0]);
    }
    buf_str(&rooms[0], text);
    for (size_t i = 0; i < d->replace_count; i++) {
        buf_reset(&rooms[1]);
        text_replace(buf_view(&rooms[0]), d->replaces[i].from, d->replaces[i].to, &rooms[1]);
        Buf swap = rooms[0];
        rooms[0] = rooms[1];
        rooms[1] = swap;
    }
    return buf_view(&rooms[0]);
}

static LgStatus fill_bytes(Tokenizer *t, const bool *plain, LgError *err) {
    Buf rooms[2];
    buf_init(&rooms[0]);
    buf_init(&rooms[1]);
    LgStatus status = LG_OK;
    t->bytes = lg_calloc(t->bpe.token_count, sizeof *t->bytes);
    if (!t->bytes)
        status = lg_fail_memory(err);
    for (size_t id = 0; id < t->bpe.token_count && status == LG_OK; id++) {
        LgStr stored = t->bpe.tokens[id], text = stored;
        if (!stored.ptr)
            continue;
        if (!plain || !plain[id])
            text = decode_token(t, stored, rooms, &t->bytes[id].byte);
        if (rooms[0].failed || rooms[1].failed)
            status = lg_fail_memory(err);
        else if (lg_str_eq(text, stored))
            text = stored;
        else if (text.len > DECODED_BYTES_MAX)
            status = lg_fail(err, LG_LIMIT, 0, "token %zu decodes to %zu bytes, limit %d", id,
                             text.len, DECODED_BYTES_MAX);
        else
            status = tokenizer_keep(t, text, &text, err);
        t->bytes[id].ptr = text.ptr;
        t->bytes[id].len = (uint32_t)text.len;
    }
    buf_clear(&rooms[0]);
    buf_clear(&rooms[1]);
    return status;
}

static void mark_special(Tokenizer *t, const AddedSet *set) {
    for (size_t i = 0; i < set->count; i++)
        if (set->items[i].special)
            t->bytes[set->items[i].id].special = true;
}

LgStatus tokenizer_finish(Tokenizer *t, const bool *plain, LgError *err) {
    bpe_finish(&t->bpe);
    LG_TRY(added_set_finish(&t->added, err));
    LG_TRY(added_set_finish(&t->added_normal, err));
    LG_TRY(fill_bytes(t, plain, err));
    mark_special(t, &t->added);
    mark_special(t, &t->added_normal);
    return LG_OK;
}

size_t tokenizer_vocab_count(const Tokenizer *t) {
    return t->bpe.token_count;
}

int32_t tokenizer_id(const Tokenizer *t, LgStr token) {
    return bpe_id(&t->bpe, token);
}

bool tokenizer_is_special(const Tokenizer *t, int32_t id) {
    return id >= 0 && (size_t)id < t->bpe.token_count && t->bytes[id].special;
}

void token_ids_clear(TokenIds *ids) {
    lg_free(ids->ids);
    *ids = (TokenIds){0};
}

bool token_ids_push(TokenIds *ids, int32_t id) {
    if (ids->count == ids->cap) {
        size_t cap = ids->cap ? ids->cap * 2 : 64;
        int32_t *grown =
            cap > SIZE_MAX / sizeof *grown ? NULL : lg_realloc(ids->ids, cap * sizeof *grown);
        if (!grown)
            return false;
        ids->ids = grown;
        ids->cap = cap;
    }
    ids->ids[ids->count++] = id;
    return true;
}

/* One call of encode: what its parts share. */
typedef struct Encoding {
    const Tokenizer *tokenizer;
    bool special_as_text;
    PatternWork *patterns; /* NULL: there is no pattern to match */
    BpeWork words;
    Buf normal[2], changed[2];
    Pieces pieces, next;
    size_t origin; /* a piece that starts here begins the whole text; SIZE_MAX: none does */
    TokenIds *out;
    LgError *err;
} Encoding;

/* One piece as the step makes it, at the end of out. */
static void change_piece(const PreStep *step, LgStr piece, bool first, Buf *out) {
    bool has = piece.len >= step->to.len && lg_str_eq(lg_str_sub(piece, 0, step->to.len), step->to);
    if (step->kind == PRE_REPLACE) {
        text_replace(piece, step->from, step->to, out);
        return;
    }
    if (piece.len && !has && (step->kind == PRE_PREFIX || first))
        buf_str(out, step->to);
    buf_str(out, piece);
}

/* Replaces *text by one where every piece is as the step makes it, and the pieces accordingly. */
static LgStatus change_pieces(Encoding *e, const PreStep *step, LgStr *text) {
    Buf *room = text->ptr == e->changed[0].data ? &e->changed[1] : &e->changed[0];
    size_t origin = SIZE_MAX;
    buf_reset(room);
    for (size_t i = 0; i < e->pieces.count; i++) {
        Piece *p = &e->pieces.items[i];
        size_t start = room->len;
        bool first = p->start == e->origin;
        if (first)
            origin = start;
        change_piece(step, lg_str_sub(*text, p->start, p->len), first, room);
        *p = (Piece){start, room->len - start};
        if (room->len > NORMALIZER_TEXT_MAX)
            return lg_fail(e->err, LG_LIMIT, 0, "text: more than %zu bytes in the pre-tokenizer",
                           NORMALIZER_TEXT_MAX);
    }
    e->origin = origin;
    *text = buf_view(room);
    return room->failed ? lg_fail_memory(e->err) : LG_OK;
}

static LgStatus split_pieces(Encoding *e, const Split *split, LgStr text) {
    e->next.count = 0;
    for (size_t i = 0; i < e->pieces.count; i++)
        if (e->pieces.items[i].len)
            LG_TRY(split_piece(split, e->patterns, text, e->pieces.items[i], &e->next, e->err));
    Pieces swap = e->pieces;
    e->pieces = e->next;
    e->next = swap;
    return LG_OK;
}

/* Text without added tokens, normalized. first: the whole text begins with it. */
static LgStatus encode_plain(Encoding *e, LgStr text, bool first) {
    const Tokenizer *t = e->tokenizer;
    e->pieces.count = 0;
    e->origin = first ? 0 : SIZE_MAX;
    if (!pieces_push(&e->pieces, (Piece){0, text.len}))
        return lg_fail_memory(e->err);
    for (size_t i = 0; i < t->step_count; i++) {
        if (t->steps[i].kind == PRE_SPLIT)
            LG_TRY(split_pieces(e, &t->steps[i].split, text));
        else
            LG_TRY(change_pieces(e, &t->steps[i], &text));
    }
    for (size_t i = 0; i < e->pieces.count; i++) {
        LgStr word = lg_str_sub(text, e->pieces.items[i].start, e->pieces.items[i].len);
        if (word.len)
            LG_TRY(bpe_encode_word(&t->bpe, &e->words, word, e->out, e->err));
    }
    return LG_OK;
}

static LgStatus encode_token(Encoding *e, int32_t id) {
    return token_ids_push(e->out, id) ? LG_OK : lg_fail_memory(e->err);
}

/* Text between the added tokens that are looked for in the text as it is. */
static LgStatus encode_gap(Encoding *e, LgStr text, bool first) {
    AddedScan scan;
    AddedPart part;
    LG_TRY(normalizer_apply(&e->tokenizer->normalizer, text, e->normal, &text, e->err));
    added_scan_init(&scan, &e->tokenizer->added_normal, text, e->special_as_text);
    while (added_scan_next(&scan, &part))
        LG_TRY(part.id >= 0 ? encode_token(e, part.id)
                            : encode_plain(e, part.text, first && part.text.ptr == text.ptr));
    return LG_OK;
}

static LgStatus encode_text(Encoding *e, LgStr text) {
    AddedScan scan;
    AddedPart part;
    added_scan_init(&scan, &e->tokenizer->added, text, e->special_as_text);
    while (added_scan_next(&scan, &part))
        LG_TRY(part.id >= 0 ? encode_token(e, part.id)
                            : encode_gap(e, part.text, part.text.ptr == text.ptr));
    return LG_OK;
}

static LgStatus check_text(LgStr text, LgError *err) {
    if (text.len > TOKENIZER_TEXT_MAX)
        return lg_fail(err, LG_LIMIT, 0, "text: %zu bytes, limit %zu", text.len,
                       TOKENIZER_TEXT_MAX);
    size_t i = 0;
    while (i < text.len) {
        uint32_t code;
        int bytes = utf8_decode(text.ptr + i, text.len - i, &code);
        if (!bytes)
            return lg_fail(err, LG_BAD_INPUT, i, "text: the byte 0x%02x at offset %zu is not UTF-8",
                           (unsigned)(unsigned char)text.ptr[i], i);
        i += (size_t)bytes;
    }
    return LG_OK;
}

static bool needs_patterns(const Tokenizer *t) {
    for (size_t i = 0; i < t->step_count; i++)
        if (t->steps[i].kind == PRE_SPLIT)
            return true;
    return false;
}

LgStatus tokenizer_encode_bare(const Tokenizer *t, LgStr text, bool special_as_text, TokenIds *out,
                               LgError *err) {
    LG_TRY(check_text(text, err));
    Encoding e = {.tokenizer = t, .special_as_text = special_as_text, .out = out, .err = err};
    size_t before = out->count;
    LgStatus status = LG_OK;
    bpe_work_init(&e.words);
    for (size_t i = 0; i < 2; i++) {
        buf_init(&e.normal[i]);
        buf_init(&e.changed[i]);
    }
    if (text.len && needs_patterns(t)) {
        e.patterns = pattern_work_create();
        if (!e.patterns)
            status = lg_fail_memory(err);
    }
    if (status == LG_OK)
        status = encode_text(&e, text);
    if (status != LG_OK)
        out->count = before;
    pattern_work_destroy(e.patterns);
    pieces_clear(&e.pieces);
    pieces_clear(&e.next);
    for (size_t i = 0; i < 2; i++) {
        buf_clear(&e.normal[i]);
        buf_clear(&e.changed[i]);
    }
    bpe_work_clear(&e.words);
    return status;
}

static bool push_all(TokenIds *out, const int32_t *ids, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!token_ids_push(out, ids[i]))
            return false;
    return true;
}

LgStatus tokenizer_encode(const Tokenizer *t, LgStr text, bool special_as_text, TokenIds *out,
                          LgError *err) {
    size_t before = out->count;
    LgStatus status = LG_OK;
    if (!push_all(out, t->prefix, t->prefix_count))
        status = lg_fail_memory(err);
    if (status == LG_OK)
        status = tokenizer_encode_bare(t, text, special_as_text, out, err);
    if (status == LG_OK && !push_all(out, t->suffix, t->suffix_count))
        status = lg_fail_memory(err);
    if (status != LG_OK)
        out->count = before;
    return status;
}
