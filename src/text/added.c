/* The leftmost token wins, and among those that begin at one place the longest. */
#include "text/added.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/normalize.h"

void added_set_clear(AddedSet *s) {
    lg_free(s->items);
    *s = (AddedSet){0};
}

LgStatus added_set_add(AddedSet *s, AddedToken token, LgError *err) {
    if (token.text.len == 0)
        return LG_OK; /* it can be decoded, never found */
    if (token.text.len > ADDED_BYTES_MAX)
        return lg_fail(err, LG_LIMIT, 0, "added token %d: its text has %zu bytes, limit %d",
                       token.id, token.text.len, ADDED_BYTES_MAX);
    if (!utf8_valid(token.text)) /* it would cut characters of the text in two */
        return lg_fail(err, LG_BAD_INPUT, 0, "added token %d: its text is not UTF-8", token.id);
    if (s->count == ADDED_TOKENS_MAX)
        return lg_fail(err, LG_LIMIT, 0, "added tokens: more than %d", ADDED_TOKENS_MAX);
    if (s->count == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 32;
        AddedToken *items = lg_realloc(s->items, cap * sizeof *items);
        if (!items)
            return lg_fail_memory(err);
        s->items = items;
        s->cap = cap;
    }
    s->items[s->count++] = token;
    s->first[(unsigned char)token.text.ptr[0]] = true;
    return LG_OK;
}

static int compare_text(const void *a, const void *b) {
    return lg_str_cmp(((const AddedToken *)a)->text, ((const AddedToken *)b)->text);
}

LgStatus added_set_finish(AddedSet *s, LgError *err) {
    if (s->count)
        qsort(s->items, s->count, sizeof *s->items, compare_text);
    for (size_t i = 1; i < s->count; i++) {
        if (!lg_str_eq(s->items[i - 1].text, s->items[i].text))
            continue;
        Buf shown;
        buf_init(&shown);
        buf_printable(&shown, s->items[i].text, 60);
        LgStatus status =
            lg_fail(err, LG_BAD_INPUT, 0, "added tokens: %d and %d have the same text \"%s\"",
                    s->items[i - 1].id, s->items[i].id, shown.data);
        buf_clear(&shown);
        return status;
    }
    return LG_OK;
}

/* Of the items in [low, high), all alike before `depth`: the first whose byte there is `byte` or
 * more. */
static size_t lower_bound(const AddedSet *s, size_t low, size_t high, size_t depth, int byte) {
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        LgStr text = s->items[mid].text;
        int at = depth < text.len ? (unsigned char)text.ptr[depth] : -1;
        if (at < byte)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* The longest token at the beginning of text, or NULL. */
static const AddedToken *match_at(const AddedSet *s, LgStr text) {
    const AddedToken *best = NULL;
    size_t low = 0, high = s->count;
    for (size_t depth = 0; depth < text.len && low < high; depth++) {
        int byte = (unsigned char)text.ptr[depth];
        low = lower_bound(s, low, high, depth, byte);
        high = lower_bound(s, low, high, depth, byte + 1);
        if (low < high && s->items[low].text.len == depth + 1)
            best = &s->items[low];
    }
    return best;
}

/* The bytes of the code point that ends at text[end] (valid UTF-8, end > 0), and the code point. */
static size_t code_before(LgStr text, size_t end, uint32_t *code) {
    size_t start = end - 1;
    while (start > 0 && ((unsigned char)text.ptr[start] & 0xc0) == 0x80)
        start--;
    return (size_t)utf8_decode(text.ptr + start, end - start, code);
}

static bool word_before(LgStr text, size_t at) {
    uint32_t code = 0;
    return at > 0 && code_before(text, at, &code) && unicode_is_word(code);
}

static bool word_after(LgStr text, size_t at) {
    uint32_t code = 0;
    return utf8_decode(text.ptr + at, text.len - at, &code) && unicode_is_word(code);
}

static size_t spaces_before(LgStr text, size_t low, size_t at) {
    uint32_t code = 0;
    while (at > low) {
        size_t bytes = code_before(text, at, &code);
        if (bytes == 0 || !unicode_is_space(code))
            break;
        at -= bytes;
    }
    return at > low ? at : low;
}

static size_t spaces_after(LgStr text, size_t at) {
    uint32_t code = 0;
    int bytes;
    while ((bytes = utf8_decode(text.ptr + at, text.len - at, &code)) > 0 && unicode_is_space(code))
        at += (size_t)bytes;
    return at;
}

void added_scan_init(AddedScan *scan, const AddedSet *set, LgStr text, bool special_as_text) {
    *scan = (AddedScan){.set = set, .text = text, .special_as_text = special_as_text};
}

/* Where the next byte that begins a token is, or the end. */
static size_t next_candidate(const AddedScan *scan) {
    size_t at = scan->search;
    if (scan->set->count == 0)
        return scan->text.len;
    while (at < scan->text.len && !scan->set->first[(unsigned char)scan->text.ptr[at]])
        at++;
    return at;
}

/* The next token that counts, as the range [*start, *end) of the text with the spaces it takes. */
static const AddedToken *next_token(AddedScan *scan, size_t *start, size_t *end) {
    LgStr text = scan->text;
    for (;;) {
        size_t at = next_candidate(scan);
        if (at >= text.len)
            return NULL;
        const AddedToken *token = match_at(scan->set, lg_str_sub(text, at, text.len));
        scan->search = at + (token ? token->text.len : 1);
        /* A special token that is to be text is passed over whole, and so is one inside of a word.
         */
        if (!token || (scan->special_as_text && token->special))
            continue;
        if (token->single_word && (word_before(text, at) || word_after(text, scan->search)))
            continue;
        *start = token->lstrip ? spaces_before(text, scan->done, at) : at;
        *end = token->rstrip ? spaces_after(text, scan->search) : scan->search;
        return token;
    }
}

bool added_scan_next(AddedScan *scan, AddedPart *out) {
    LgStr text = scan->text;
    if (scan->holds) {
        scan->holds = false;
        *out = scan->held;
        return true;
    }
    if (scan->done >= text.len)
        return false;
    size_t start = 0, end = 0;
    const AddedToken *token = next_token(scan, &start, &end);
    if (!token) {
        *out = (AddedPart){lg_str_sub(text, scan->done, text.len), -1};
        scan->done = text.len;
        return true;
    }
    /* Spaces that the token before took do not keep a token from beginning in them. */
    AddedPart part = {lg_str_sub(text, start, end > start ? end - start : 0), token->id};
    AddedPart gap = {lg_str_sub(text, scan->done, start > scan->done ? start - scan->done : 0), -1};
    scan->done = end;
    *out = gap.text.len ? gap : part;
    if (gap.text.len) {
        scan->holds = true;
        scan->held = part;
    }
    return true;
}
