/* Merging goes by a heap of candidate pairs over a linked list of symbols, so that a word of n
 * bytes takes n log n: a megabyte without a space is a word too. A candidate that a later merge has
 * made stale is told by what it would make. */
#include "text/bpe.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/bytelevel.h"

#define NO_SYMBOL UINT32_MAX
#define MERGED (-1)   /* into its left neighbour */
#define NO_TOKEN (-2) /* a character that is no token, which may become a part of one */
#define NAME_SHOWN 60 /* bytes of a token's text that a message shows */

struct BpeSymbol {
    int32_t id;
    uint32_t prev, next;
    uint32_t start; /* in the word */
};

struct BpeCandidate {
    uint32_t rank;
    uint32_t at; /* the left symbol */
    int32_t merged;
};

void bpe_init(Bpe *b) {
    *b = (Bpe){.unk_id = -1};
    arena_init(&b->arena);
    map_init(&b->ids);
    for (size_t i = 0; i < 256; i++)
        b->byte_ids[i] = -1;
}

void bpe_clear(Bpe *b) {
    arena_clear(&b->arena);
    map_clear(&b->ids);
    lg_free(b->tokens);
    lg_free(b->merges);
    lg_free(b->ranks);
    bpe_init(b);
}

static LgStatus fail_token(LgError *err, LgStatus status, LgStr text, const char *what,
                           int64_t id) {
    Buf shown;
    buf_init(&shown);
    buf_printable(&shown, text, NAME_SHOWN);
    status = lg_fail(err, status, 0, "vocabulary: token \"%s\" (id %lld) %s", shown.data,
                     (long long)id, what);
    buf_clear(&shown);
    return status;
}

static bool tokens_reserve(Bpe *b, size_t count) {
    if (count <= b->token_cap)
        return true;
    size_t cap = b->token_cap * 2 > count ? b->token_cap * 2 : count + 64;
    LgStr *tokens =
        lg_realloc(b->tokens, cap * sizeof *tokens); /* ids are bounded: the product fits */
    if (!tokens)
        return false;
    for (size_t i = b->token_cap; i < cap; i++)
        tokens[i] = (LgStr){NULL, 0};
    b->tokens = tokens;
    b->token_cap = cap;
    return true;
}

LgStatus bpe_add_token(Bpe *b, LgStr text, int64_t id, bool added, LgError *err) {
    if (id < 0 || id >= BPE_IDS_MAX)
        return fail_token(err, LG_LIMIT, text, "has an id outside 0 to 4194303", id);
    if (text.len > BPE_TOKEN_BYTES_MAX)
        return fail_token(err, LG_LIMIT, text, "is longer than 65536 bytes", id);
    if (!tokens_reserve(b, (size_t)id + 1))
        return lg_fail_memory(err);
    if (b->tokens[id].ptr)
        return fail_token(err, LG_BAD_INPUT, text, "has the id of another token", id);
    LgStr copy = arena_str(&b->arena, text);
    if (!copy.ptr)
        return lg_fail_memory(err);
    if (!map_has(&b->ids, text) && !map_set(&b->ids, text, (uint64_t)id | (added ? BPE_ADDED : 0)))
        return lg_fail_memory(err);
    b->tokens[id] = copy;
    if (b->token_count <= (size_t)id)
        b->token_count = (size_t)id + 1;
    return LG_OK;
}

int32_t bpe_id(const Bpe *b, LgStr text) {
    uint64_t id;
    return map_get(&b->ids, text, &id) ? (int32_t)(id & ~BPE_ADDED) : -1;
}

static int32_t model_id(const Bpe *b, LgStr text) {
    uint64_t id;
    return map_get(&b->ids, text, &id) && !(id & BPE_ADDED) ? (int32_t)id : -1;
}

LgStatus bpe_reserve_merges(Bpe *b, size_t count, LgError *err) {
    assert(!b->merges);
    size_t cap = 16;
    if (count > UINT32_MAX / 4)
        return lg_fail(err, LG_LIMIT, 0, "merges: %zu of them, limit %u", count, UINT32_MAX / 4);
    while (cap < count * 2)
        cap *= 2;
    b->merges = lg_alloc_array(cap, sizeof *b->merges);
    if (!b->merges)
        return lg_fail_memory(err);
    for (size_t i = 0; i < cap; i++)
        b->merges[i].left = -1;
    b->merge_cap = cap;
    return LG_OK;
}

/* The entry of a pair, or the free one where it belongs. */
static BpeMerge *merge_slot(const Bpe *b, int32_t left, int32_t right) {
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t i = (size_t)((key * 0x9e3779b97f4a7c15u) >> 20) & (b->merge_cap - 1);
    while (b->merges[i].left >= 0 && (b->merges[i].left != left || b->merges[i].right != right))
        i = (i + 1) & (b->merge_cap - 1);
    return &b->merges[i];
}

LgStatus bpe_add_merge(Bpe *b, LgStr left, LgStr right, uint32_t rank, LgError *err) {
    LgStatus status = LG_OK;
    Buf joined, shown;
    buf_init(&joined);
    buf_init(&shown);
    buf_str(&joined, left);
    buf_str(&joined, right);
    BpeMerge m = {model_id(b, left), model_id(b, right), rank, model_id(b, buf_view(&joined))};
    LgStr missing = m.left < 0 ? left : m.right < 0 ? right : buf_view(&joined);
    if (joined.failed) {
        status = lg_fail_memory(err);
    } else if (m.left < 0 || m.right < 0 || m.merged < 0) {
        buf_printable(&shown, missing, NAME_SHOWN);
        status = lg_fail(err, LG_BAD_INPUT, 0, "merges[%u]: \"%s\" is no token of the vocabulary",
                         rank, shown.data);
    } else {
        *merge_slot(b, m.left, m.right) = m;
    }
    buf_clear(&joined);
    buf_clear(&shown);
    return status;
}

typedef struct Score {
    float score;
    int32_t id;
} Score;

static int compare_scores(const void *a, const void *b) {
    float x = ((const Score *)a)->score, y = ((const Score *)b)->score;
    return x > y ? -1 : x < y;
}

LgStatus bpe_set_scores(Bpe *b, const float *scores, LgError *err) {
    size_t count = b->token_count;
    Score *sorted = lg_alloc_array(count ? count : 1, sizeof *sorted);
    uint32_t *ranks = lg_alloc_array(count ? count : 1, sizeof *ranks);
    LgStatus status = sorted && ranks ? LG_OK : lg_fail_memory(err);
    for (size_t i = 0; i < count && status == LG_OK; i++) {
        sorted[i] = (Score){scores[i], (int32_t)i};
        if (isnan(scores[i]))
            status = lg_fail(err, LG_BAD_INPUT, 0, "the score of token %zu is no number", i);
        else if (b->tokens[i].len > BPE_PIECE_BYTES_MAX && model_id(b, b->tokens[i]) == (int32_t)i)
            status = fail_token(err, LG_LIMIT, b->tokens[i],
                                "is longer than 1024 bytes, which no token with a score may be",
                                (int64_t)i);
    }
    if (status == LG_OK) {
        uint32_t rank = 0;
        qsort(sorted, count, sizeof *sorted, compare_scores);
        for (size_t i = 0; i < count; i++) {
            int32_t id = sorted[i].id;
            LgStr text = b->tokens[id];
            if (i && sorted[i].score < sorted[i - 1].score)
                rank++;
            ranks[id] = text.ptr && model_id(b, text) == id ? rank : BPE_NO_RANK;
            if (ranks[id] != BPE_NO_RANK && text.len > b->piece_bytes_max)
                b->piece_bytes_max = text.len;
        }
        lg_free(b->ranks);
        b->ranks = ranks;
        ranks = NULL;
    }
    lg_free(sorted);
    lg_free(ranks);
    return status;
}

static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

int bpe_byte_token(LgStr text) {
    if (text.len != 6 || !lg_str_starts(text, "<0x") || text.ptr[5] != '>')
        return -1;
    int high = hex_digit(text.ptr[3]), low = hex_digit(text.ptr[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* Fallback tokens that the vocabulary's maker has set by their types stay as they are. */
void bpe_finish(Bpe *b) {
    for (unsigned i = 0; i < 256; i++) {
        char text[8];
        int len = b->chars ? snprintf(text, sizeof text, "<0x%02X>", i)
                           : utf8_encode(bytelevel_code((unsigned char)i), text);
        if (b->byte_ids[i] < 0 && (!b->chars || b->byte_fallback))
            b->byte_ids[i] = model_id(b, (LgStr){text, (size_t)len});
    }
}

void bpe_work_init(BpeWork *w) {
    *w = (BpeWork){0};
    buf_init(&w->text);
}

void bpe_work_clear(BpeWork *w) {
    lg_free(w->symbols);
    lg_free(w->heap);
    buf_clear(&w->text);
    bpe_work_init(w);
}

static bool comes_first(BpeCandidate a, BpeCandidate b) {
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

static bool heap_push(BpeWork *w, BpeCandidate c) {
    if (w->heap_count == w->heap_cap) {
        size_t cap = w->heap_cap ? w->heap_cap * 2 : 64;
        BpeCandidate *heap =
            cap > SIZE_MAX / sizeof *heap ? NULL : lg_realloc(w->heap, cap * sizeof *heap);
        if (!heap)
            return false;
        w->heap = heap;
        w->heap_cap = cap;
    }
    size_t i = w->heap_count++;
    for (; i > 0 && comes_first(c, w->heap[(i - 1) / 2]); i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = c;
    return true;
}

static BpeCandidate heap_pop(BpeWork *w) {
    BpeCandidate top = w->heap[0];
    BpeCandidate last = w->heap[--w->heap_count];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= w->heap_count)
            break;
        if (child + 1 < w->heap_count && comes_first(w->heap[child + 1], w->heap[child]))
            child++;
        if (!comes_first(w->heap[child], last))
            break;
        w->heap[i] = w->heap[child];
        i = child;
    }
    w->heap[i] = last;
    return top;
}

static uint32_t symbol_end(const BpeWork *w, uint32_t at) {
    uint32_t next = w->symbols[at].next;
    return next == NO_SYMBOL ? (uint32_t)w->word.len : w->symbols[next].start;
}

/* What the symbol and the one behind it make. */
static bool find_pair(const Bpe *b, const BpeWork *w, uint32_t at, BpeCandidate *out) {
    const BpeSymbol *s = &w->symbols[at];
    if (b->ranks) {
        LgStr text = {w->word.ptr + s->start, symbol_end(w, s->next) - s->start};
        int32_t id = text.len <= b->piece_bytes_max ? model_id(b, text) : -1;
        if (id < 0)
            return false;
        *out = (BpeCandidate){b->ranks[id], at, id};
        return true;
    }
    if (!b->merges)
        return false;
    const BpeMerge *m = merge_slot(b, s->id, w->symbols[s->next].id);
    *out = (BpeCandidate){m->rank, at, m->merged};
    return m->left >= 0;
}

static bool push_pair(const Bpe *b, BpeWork *w, uint32_t at) {
    BpeCandidate c;
    return !find_pair(b, w, at, &c) || heap_push(w, c);
}

static void push_symbol(BpeWork *w, int32_t id, size_t start) {
    uint32_t n = (uint32_t)w->symbol_count++;
    w->symbols[n] = (BpeSymbol){id, n - 1, n + 1, (uint32_t)start};
}

/* The bytes at start as tokens of their own; false, with nothing done, where one has none. */
static bool push_bytes(const Bpe *b, BpeWork *w, size_t start, size_t len) {
    for (size_t i = start; i < start + len; i++)
        if (b->byte_ids[(unsigned char)w->word.ptr[i]] < 0)
            return false;
    for (size_t i = start; i < start + len; i++)
        push_symbol(w, b->byte_ids[(unsigned char)w->word.ptr[i]], i);
    return true;
}

/* The token of the byte or character at `at`, -1 where there is none, and how long it is. */
static int32_t unit_at(const Bpe *b, LgStr word, size_t at, size_t *len) {
    uint32_t code;
    *len = 1;
    if (!b->chars)
        return b->byte_ids[(unsigned char)word.ptr[at]];
    int bytes = utf8_decode(word.ptr + at, word.len - at, &code);
    *len = bytes > 0 ? (size_t)bytes : 1;
    return model_id(b, lg_str_sub(word, at, *len));
}

/* The word in its smallest tokens. What has none becomes unk or is dropped; several in a row are
 * one where fuse_unk is set, and an unk stands in front of the next token that is no fallback byte:
 * both as in the tokenizers package. */
static void fill_symbols(const Bpe *b, BpeWork *w) {
    bool unk = false;
    size_t unk_start = 0, len = 0;
    for (size_t i = 0; i < w->word.len; i += len) {
        int32_t id = unit_at(b, w->word, i, &len);
        if (id < 0 && b->ranks) {
            push_symbol(w, NO_TOKEN, i);
        } else if (id >= 0) {
            if (unk)
                push_symbol(w, b->unk_id, unk_start);
            unk = false;
            push_symbol(w, id, i);
        } else if (!(b->chars && b->byte_fallback && push_bytes(b, w, i, len)) && b->unk_id >= 0) {
            if (unk && !b->fuse_unk)
                push_symbol(w, b->unk_id, unk_start);
            unk_start = unk && b->fuse_unk ? unk_start : i;
            unk = true;
        }
    }
    if (unk)
        push_symbol(w, b->unk_id, unk_start);
    if (w->symbol_count) {
        w->symbols[0].prev = NO_SYMBOL;
        w->symbols[w->symbol_count - 1].next = NO_SYMBOL;
    }
}

/* At most one symbol for each byte: an unk stands for one at least. */
static bool start_word(const Bpe *b, BpeWork *w, LgStr word) {
    if (word.len > w->symbol_cap) {
        lg_free(w->symbols);
        w->symbol_cap = 0;
        w->symbols = lg_alloc_array(word.len, sizeof *w->symbols);
        if (!w->symbols)
            return false;
        w->symbol_cap = word.len;
    }
    w->word = word;
    w->symbol_count = 0;
    fill_symbols(b, w);
    return true;
}

static bool merge_all(const Bpe *b, BpeWork *w) {
    BpeSymbol *s = w->symbols;
    w->heap_count = 0;
    for (uint32_t i = 0; i + 1 < w->symbol_count; i++)
        if (!push_pair(b, w, i))
            return false;
    while (w->heap_count) {
        BpeCandidate c = heap_pop(w), now;
        uint32_t right = s[c.at].next;
        if (s[c.at].id == MERGED || right == NO_SYMBOL)
            continue;
        if (!find_pair(b, w, c.at, &now) || now.merged != c.merged)
            continue;
        s[c.at].id = c.merged;
        s[c.at].next = s[right].next;
        s[right].id = MERGED;
        if (s[right].next != NO_SYMBOL)
            s[s[right].next].prev = c.at;
        if (s[c.at].prev != NO_SYMBOL && !push_pair(b, w, s[c.at].prev))
            return false;
        if (s[c.at].next != NO_SYMBOL && !push_pair(b, w, c.at))
            return false;
    }
    return true;
}

/* A character that became part of no token: its bytes, or unk. */
static bool put_leftover(const Bpe *b, const BpeWork *w, uint32_t at, bool after_unk, TokenIds *out,
                         bool *unk) {
    uint32_t start = w->symbols[at].start, end = symbol_end(w, at);
    bool bytes = b->byte_fallback;
    for (uint32_t i = start; i < end && bytes; i++)
        bytes = b->byte_ids[(unsigned char)w->word.ptr[i]] >= 0;
    *unk = !bytes;
    if (!bytes)
        return b->unk_id < 0 || (after_unk && b->fuse_unk) || token_ids_push(out, b->unk_id);
    for (uint32_t i = start; i < end; i++)
        if (!token_ids_push(out, b->byte_ids[(unsigned char)w->word.ptr[i]]))
            return false;
    return true;
}

/* *done: the word is one token, whatever the merges say. */
static LgStatus put_whole_word(const Bpe *b, BpeWork *w, LgStr word, TokenIds *out, bool *done,
                               LgError *err) {
    LgStr text = word;
    *done = false;
    if (!b->ignore_merges || word.len > BPE_TOKEN_BYTES_MAX)
        return LG_OK;
    if (!b->chars) {
        buf_reset(&w->text);
        bytelevel_write(word, &w->text);
        text = buf_view(&w->text);
    }
    int32_t id = w->text.failed ? -1 : model_id(b, text);
    *done = id >= 0;
    return w->text.failed || (*done && !token_ids_push(out, id)) ? lg_fail_memory(err) : LG_OK;
}

LgStatus bpe_encode_word(const Bpe *b, BpeWork *w, LgStr word, TokenIds *out, LgError *err) {
    bool done, unk = false;
    LG_TRY(put_whole_word(b, w, word, out, &done, err));
    if (done)
        return LG_OK;
    if (!start_word(b, w, word) || !merge_all(b, w))
        return lg_fail_memory(err);
    for (uint32_t i = w->symbol_count ? 0 : NO_SYMBOL; i != NO_SYMBOL; i = w->symbols[i].next) {
        bool token = w->symbols[i].id != NO_TOKEN;
        if (token ? !token_ids_push(out, w->symbols[i].id) : !put_leftover(b, w, i, unk, out, &unk))
            return lg_fail_memory(err);
        unk = unk && !token;
    }
    return LG_OK;
}
