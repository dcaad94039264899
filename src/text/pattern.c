/* Matching through PCRE2 with steps and memory bounded: both the pattern and the text may come from
 * strangers. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pattern.h"

#include <pcre2.h>

#include "base/mem.h"
#include "text/pattern_syntax.h"

#define MATCH_STEPS_MAX 20000000
#define MATCH_DEPTH_MAX 100000
#define MATCH_HEAP_KIB_MAX (64 * 1024)
#define JIT_STACK_BYTES_MAX (1024 * 1024)

struct Pattern {
    pcre2_code *code;
};

struct PatternWork {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

static const struct {
    const char *name;
    SplitBehavior behavior;
} behaviors[] = {{"Isolated", SPLIT_ISOLATED},
                 {"Removed", SPLIT_REMOVED},
                 {"MergedWithPrevious", SPLIT_MERGED_WITH_PREVIOUS},
                 {"MergedWithNext", SPLIT_MERGED_WITH_NEXT},
                 {"Contiguous", SPLIT_CONTIGUOUS}};

bool split_behavior_parse(LgStr name, SplitBehavior *out) {
    for (size_t i = 0; i < sizeof behaviors / sizeof behaviors[0]; i++) {
        if (lg_str_eq_c(name, behaviors[i].name)) {
            *out = behaviors[i].behavior;
            return true;
        }
    }
    return false;
}

static void *pcre_alloc(size_t bytes, void *unused) {
    (void)unused;
    return lg_alloc(bytes);
}

static void pcre_free(void *p, void *unused) {
    (void)unused;
    lg_free(p);
}

static LgStatus compile(LgStr text, uint32_t options, Pattern **out, LgError *err) {
    LgStatus status = LG_NO_MEMORY;
    pcre2_compile_context *context = NULL;
    Pattern *p = lg_calloc(1, sizeof *p);
    pcre2_general_context *general = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    if (p && general)
        context = pcre2_compile_context_create(general);
    if (!context)
        goto done;
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    int code;
    PCRE2_SIZE offset;
    p->code = pcre2_compile((PCRE2_SPTR)text.ptr, text.len, options, &code, &offset, context);
    if (p->code) {
        /* Where the JIT has no way for this processor or pattern, matching is slower and nothing
         * else. */
        if (pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE) != PCRE2_ERROR_NOMEMORY)
            status = LG_OK;
    } else if (code != PCRE2_ERROR_NOMEMORY && code != PCRE2_ERROR_HEAP_FAILED) {
        PCRE2_UCHAR message[200] = {0};
        pcre2_get_error_message(code, message, sizeof message);
        status = lg_fail(err, LG_BAD_INPUT, offset, "pattern: %s (near byte %zu)",
                         (const char *)message, (size_t)offset);
    }
done:
    if (status == LG_NO_MEMORY)
        lg_fail_memory(err);
    if (status == LG_OK)
        *out = p;
    else
        pattern_destroy(p);
    pcre2_compile_context_free(context);
    pcre2_general_context_free(general);
    return status;
}

LgStatus pattern_compile(LgStr regex, Pattern **out, LgError *err) {
    if (regex.len > PATTERN_BYTES_MAX)
        return lg_fail(err, LG_LIMIT, 0, "pattern: %zu bytes, limit %d", regex.len,
                       PATTERN_BYTES_MAX);
    Buf translated;
    buf_init(&translated);
    LgStatus status = pattern_translate(regex, &translated, err);
    if (status == LG_OK)
        status =
            compile(buf_view(&translated),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, out, err);
    buf_clear(&translated);
    return status;
}

LgStatus pattern_literal(LgStr text, Pattern **out, LgError *err) {
    if (text.len == 0 || text.len > PATTERN_BYTES_MAX)
        return lg_fail(err, LG_BAD_INPUT, 0, "pattern: a string of %zu bytes, 1 to %d are served",
                       text.len, PATTERN_BYTES_MAX);
    return compile(text, PCRE2_UTF | PCRE2_LITERAL, out, err);
}

void pattern_destroy(Pattern *p) {
    if (!p)
        return;
    pcre2_code_free(p->code);
    lg_free(p);
}

PatternWork *pattern_work_create(void) {
    PatternWork *w = lg_calloc(1, sizeof *w);
    pcre2_general_context *general = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    if (w && general) {
        w->data = pcre2_match_data_create(1, general);
        w->context = pcre2_match_context_create(general);
        w->stack = pcre2_jit_stack_create(32 * 1024, JIT_STACK_BYTES_MAX, general);
    }
    pcre2_general_context_free(general);
    if (!w || !w->data || !w->context || !w->stack) {
        pattern_work_destroy(w);
        return NULL;
    }
    pcre2_set_match_limit(w->context, MATCH_STEPS_MAX);
    pcre2_set_depth_limit(w->context, MATCH_DEPTH_MAX);
    pcre2_set_heap_limit(w->context, MATCH_HEAP_KIB_MAX);
    pcre2_jit_stack_assign(w->context, NULL, w->stack);
    return w;
}

void pattern_work_destroy(PatternWork *w) {
    if (!w)
        return;
    pcre2_match_data_free(w->data);
    pcre2_match_context_free(w->context);
    pcre2_jit_stack_free(w->stack);
    lg_free(w);
}

void pieces_clear(Pieces *p) {
    lg_free(p->items);
    *p = (Pieces){0};
}

bool pieces_push(Pieces *p, Piece piece) {
    if (p->count == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 64;
        Piece *items =
            cap > SIZE_MAX / sizeof *items ? NULL : lg_realloc(p->items, cap * sizeof *items);
        if (!items)
            return false;
        p->items = items;
        p->cap = cap;
    }
    p->items[p->count++] = piece;
    return true;
}

/* Matches and gaps go in one after the other, pieces come out. */
typedef struct SplitState {
    const Split *split;
    Pieces *out;
    size_t first; /* out's count at the start: pieces before it belong to other texts */
    bool last_match;
    bool holds; /* MergedWithNext: a match that waits for its right neighbour */
    Piece held;
} SplitState;

static bool split_feed(SplitState *s, Piece piece, bool match) {
    bool last_match = s->last_match;
    bool extend = false;
    match = match != s->split->invert;
    s->last_match = match;
    switch (s->split->behavior) {
    case SPLIT_ISOLATED:
        break;
    case SPLIT_REMOVED:
        if (match)
            return true;
        break;
    case SPLIT_CONTIGUOUS:
        extend = match == last_match;
        break;
    case SPLIT_MERGED_WITH_PREVIOUS:
        extend = match && !last_match;
        break;
    case SPLIT_MERGED_WITH_NEXT:
        if (match) {
            bool ok = !s->holds || pieces_push(s->out, s->held);
            s->held = piece;
            s->holds = true;
            return ok;
        }
        if (s->holds)
            piece = (Piece){s->held.start, piece.start + piece.len - s->held.start};
        s->holds = false;
        break;
    }
    if (extend && s->out->count > s->first) {
        Piece *last = &s->out->items[s->out->count - 1];
        last->len = piece.start + piece.len - last->start;
        return true;
    }
    return pieces_push(s->out, piece);
}

static LgStatus fail_match(int code, LgError *err) {
    if (code == PCRE2_ERROR_NOMEMORY)
        return lg_fail_memory(err);
    return lg_fail(
        err, LG_LIMIT, 0,
        "pre-tokenizer: a pattern took more than %d steps or too much memory on this text",
        MATCH_STEPS_MAX);
}

static size_t char_bytes(LgStr text, size_t at) {
    size_t n = 1;
    while (at + n < text.len && ((unsigned char)text.ptr[at + n] & 0xc0) == 0x80)
        n++;
    return n;
}

/* piece.start is where the subject begins in the whole text; all positions inside are the
 * subject's. */
LgStatus split_piece(const Split *s, PatternWork *w, LgStr text, Piece piece, Pieces *out,
                     LgError *err) {
    LgStr subject = lg_str_sub(text, piece.start, piece.len);
    SplitState state = {.split = s, .out = out, .first = out->count};
    size_t search = 0, done = 0, last_end = SIZE_MAX;
    bool ok = true;
    const PCRE2_SIZE *match = pcre2_get_ovector_pointer(w->data);
    while (ok && search <= subject.len) {
        int rc = pcre2_match(s->pattern->code, (PCRE2_SPTR)subject.ptr, subject.len, search,
                             PCRE2_NO_UTF_CHECK, w->data, w->context);
        if (rc == PCRE2_ERROR_NOMATCH)
            break;
        if (rc < 0)
            return fail_match(rc, err);
        size_t start = match[0], end = match[1];
        if (start == end &&
            end == last_end) { /* an empty match right behind a match does not count */
            search += search < subject.len ? char_bytes(subject, search) : 1;
            continue;
        }
        search = last_end = end;
        if (done < start)
            ok = split_feed(&state, (Piece){piece.start + done, start - done}, false);
        ok = ok && split_feed(&state, (Piece){piece.start + start, end - start}, true);
        done = end;
    }
    if (ok && done < subject.len)
        ok = split_feed(&state, (Piece){piece.start + done, subject.len - done}, false);
    if (ok && state.holds)
        ok = pieces_push(out, state.held);
    return ok ? LG_OK : lg_fail_memory(err);
}
