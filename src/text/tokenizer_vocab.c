/* A tokenizer from GGUF's metadata, which names its pre-tokenizer instead of writing it out. */
#include <string.h>

#include "base/mem.h"
#include "text/tokenizer_impl.h"

#define PRE_PATTERNS_MAX 4

#define GPT2 tokenizer_gpt2_pattern
#define NUMBER "\\p{N}"
/* Llama 3's pattern; its descendants differ in how many digits stay together. */
#define LLAMA3(digits)                                                                             \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits                           \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* nfc: as in the tokenizer.json of the models that use the name. */
typedef struct PreRow {
    const char *name;
    bool ignore_merges, nfc;
    const char *patterns[PRE_PATTERNS_MAX]; /* one after the other, matches isolated */
} PreRow;
static const PreRow pre_rows[] = {
    {"default", false, false, {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {"gpt-2", false, false, {GPT2}},
    {"smollm", false, false, {NUMBER, GPT2}},
    {"starcoder", false, false, {NUMBER, GPT2}},
    {"refact", false, false, {NUMBER, GPT2}},
    {"command-r", false, false, {NUMBER, GPT2}},
    {"llama-bpe", true, false, {LLAMA3("\\p{N}{1,3}")}},
    {"llama3", true, false, {LLAMA3("\\p{N}{1,3}")}},
    {"llama-v3", true, false, {LLAMA3("\\p{N}{1,3}")}},
    {"qwen2", false, true, {LLAMA3("\\p{N}")}},
    {"deepseek-r1-qwen", false, true, {LLAMA3("\\p{N}")}},
};

enum { TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER = 4 }; /* of tokenizer.ggml.token_type */

static LgStatus fail_pre(LgStr pre, LgError *err) {
    Buf name, known;
    buf_init(&name);
    buf_init(&known);
    buf_printable(&name, pre, 60);
    for (size_t i = 0; i < sizeof pre_rows / sizeof pre_rows[0]; i++)
        buf_printf(&known, "%s%s", i ? ", " : "", pre_rows[i].name);
    LgStatus status =
        lg_fail(err, LG_BAD_INPUT, 0, "tokenizer.ggml.pre: \"%s\" is not served; served: %s",
                name.data, known.data);
    buf_clear(&name);
    buf_clear(&known);
    return status;
}

static LgStatus set_pre(Tokenizer *t, LgStr pre, LgError *err) {
    const PreRow *row = NULL;
    for (size_t i = 0; i < sizeof pre_rows / sizeof pre_rows[0]; i++)
        if (lg_str_eq_c(pre, pre_rows[i].name) || (pre.len == 0 && i == 0))
            row = &pre_rows[i];
    if (!row)
        return fail_pre(pre, err);
    t->nfc = row->nfc;
    t->bpe.ignore_merges = row->ignore_merges;
    for (size_t i = 0; i < PRE_PATTERNS_MAX && row->patterns[i]; i++) {
        Split split = {.behavior = SPLIT_ISOLATED};
        LG_TRY(pattern_compile(lg_str(row->patterns[i]), &split.pattern, err));
        LG_TRY(tokenizer_add_step(t, split, err));
    }
    return LG_OK;
}

static bool is_added(int32_t type) {
    return type == TYPE_CONTROL || type == TYPE_USER || type == TYPE_UNKNOWN;
}

static LgStatus add_tokens(Tokenizer *t, const TokenizerVocab *vocab, bool *plain, LgError *err) {
    for (size_t i = 0; i < vocab->token_count; i++) {
        int32_t type = vocab->types ? vocab->types[i] : 1;
        LG_TRY(bpe_add_token(&t->bpe, vocab->tokens[i], (int64_t)i, false, err));
        plain[i] = is_added(type);
        AddedToken a = {.text = t->bpe.tokens[i], .id = (int32_t)i, .special = type != TYPE_USER};
        if (is_added(type))
            LG_TRY(tokenizer_add_added(t, a, false, err));
    }
    return LG_OK;
}

static LgStatus add_merges(Tokenizer *t, const TokenizerVocab *vocab, LgError *err) {
    LG_TRY(bpe_reserve_merges(&t->bpe, vocab->merge_count, err));
    for (size_t i = 0; i < vocab->merge_count; i++) {
        LgStr merge = vocab->merges[i];
        const char *space = merge.len > 1 ? memchr(merge.ptr + 1, ' ', merge.len - 1) : NULL;
        if (!space)
            return lg_fail(err, LG_BAD_INPUT, 0, "tokenizer.ggml.merges[%zu] is not \"left right\"",
                           i);
        size_t left = (size_t)(space - merge.ptr);
        LG_TRY(bpe_add_merge(&t->bpe, lg_str_sub(merge, 0, left),
                             lg_str_sub(merge, left + 1, merge.len), (uint32_t)i, err));
    }
    return LG_OK;
}

static LgStatus build(Tokenizer *t, const TokenizerVocab *vocab, bool *plain, LgError *err) {
    LG_TRY(set_pre(t, vocab->pre, err));
    LG_TRY(add_tokens(t, vocab, plain, err));
    LG_TRY(add_merges(t, vocab, err));
    if (vocab->add_bos)
        LG_TRY(tokenizer_add_frame(t, vocab->bos_id, false, err));
    if (vocab->add_eos)
        LG_TRY(tokenizer_add_frame(t, vocab->eos_id, true, err));
    return tokenizer_finish(t, plain, err);
}

LgStatus tokenizer_from_vocab(const TokenizerVocab *vocab, Tokenizer **out, LgError *err) {
    if (!lg_str_eq_c(vocab->model, "gpt2")) {
        Buf name;
        buf_init(&name);
        buf_printable(&name, vocab->model, 60);
        LgStatus status =
            lg_fail(err, LG_BAD_INPUT, 0,
                    "tokenizer.ggml.model: \"%s\" is not served; served: gpt2", name.data);
        buf_clear(&name);
        return status;
    }
    if (vocab->token_count > BPE_IDS_MAX)
        return lg_fail(err, LG_LIMIT, 0, "tokenizer.ggml.tokens: %zu of them, limit %u",
                       vocab->token_count, BPE_IDS_MAX);
    Tokenizer *t = tokenizer_new();
    bool *plain = lg_calloc(vocab->token_count, sizeof *plain);
    LgStatus status = t && plain ? build(t, vocab, plain, err) : lg_fail_memory(err);
    lg_free(plain);
    if (status == LG_OK)
        *out = t;
    else
        tokenizer_destroy(t);
    return status;
}
