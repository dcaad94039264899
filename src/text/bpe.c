/* Merging goes by a heap of candidate pairs over a linked list of symbols, so that a word of n
 * bytes takes n log n: a megabyte without a space is a word too. A candidate that a later merge has
 * made stale is told by what it would make. */
#include "text/bpe.h"

#include <assert.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/bytelevel.h"

#define NO_SYMBOL UINT32_MAX
#define NAME_SHOWN 60 /* bytes of a token's text that a message shows */

struct BpeSymbol {
    int32_t id; /* -1: merged into its left neighbour */
    uint32_t prev, next;
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

void bpe_finish(Bpe *b) {
    for (unsigned i = 0; i < 256; i++) {
        char code[4];
        int len = utf8_encode(bytelevel_code((unsigned char)i), code);
        b->byte_ids[i] = model_id(b, (LgStr){code, (size_t)len});
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

static bool push_pair(const Bpe *b, BpeWork *w, uint32_t at) {
    const BpeSymbol *s = &w->symbols[at];
    const BpeMerge *m = merge_slot(b, s->id, w->symbols[s->next].id);
    return m->left < 0 || heap_push(w, (BpeCandidate){m->rank, at, m->merged});
}

/* The bytes of word as symbols; *count tells how many. Bytes without a token are dropped, or become
 * unk. */
static bool symbols_fill(const Bpe *b, BpeWork *w, LgStr word, uint32_t *count) {
    if (word.len > w->symbol_cap) {
        lg_free(w->symbols);
        w->symbol_cap = 0;
        w->symbols = lg_alloc_array(word.len, sizeof *w->symbols);
        if (!w->symbols)
            return false;
        w->symbol_cap = word.len;
    }
    uint32_t n = 0;
    bool after_unk = false;
    for (size_t i = 0; i < word.len; i++) {
        int32_t id = b->byte_ids[(unsigned char)word.ptr[i]];
        bool unk = id < 0;
        if (unk && (b->unk_id < 0 || (after_unk && b->fuse_unk)))
            continue;
        w->symbols[n] = (BpeSymbol){unk ? b->unk_id : id, n - 1, n + 1};
        after_unk = unk;
        n++;
    }
    if (n) {
        w->symbols[0].prev = NO_SYMBOL;
        w->symbols[n - 1].next = NO_SYMBOL;
    }
    *count = n;
    return true;
}

static bool merge_all(const Bpe *b, BpeWork *w, uint32_t count) {
    BpeSymbol *s = w->symbols;
    w->heap_count = 0;
    for (uint32_t i = 0; i + 1 < count; i++)
        if (!push_pair(b, w, i))
            return false;
    while (w->heap_count) {
        BpeCandidate c = heap_pop(w);
        uint32_t right = s[c.at].next;
        if (s[c.at].id < 0 || right == NO_SYMBOL)
            continue;
        const BpeMerge *m = merge_slot(b, s[c.at].id, s[right].id);
        if (m->left < 0 || m->merged != c.merged)
            continue;
        s[c.at].id = c.merged;
        s[c.at].next = s[right].next;
        s[right].id = -1;
        if (s[right].next != NO_SYMBOL)
            s[s[right].next].prev = c.at;
        if (s[c.at].prev != NO_SYMBOL && !push_pair(b, w, s[c.at].prev))
            return false;
        if (s[c.at].next != NO_SYMBOL && !push_pair(b, w, c.at))
            return false;
    }
    return true;
}

LgStatus bpe_encode_word(const Bpe *b, BpeWork *w, LgStr word, TokenIds *out, LgError *err) {
    uint32_t count;
    if (b->ignore_merges && word.len <= BPE_TOKEN_BYTES_MAX) {
        buf_reset(&w->text);
        bytelevel_write(word, &w->text);
        int32_t id = w->text.failed ? -1 : model_id(b, buf_view(&w->text));
        if (w->text.failed || (id >= 0 && !token_ids_push(out, id)))
            return lg_fail_memory(err);
        if (id >= 0)
            return LG_OK;
    }
    if (!symbols_fill(b, w, word, &count) || !merge_all(b, w, count))
        return lg_fail_memory(err);
    if (!count)
        return LG_OK;
    for (uint32_t i = 0; i != NO_SYMBOL; i = w->symbols[i].next)
        if (!token_ids_push(out, w->symbols[i].id))
            return lg_fail_memory(err);
    return LG_OK;
}
