/* A tokenizer from GGUF's metadata: byte-level BPE, whose pre-tokenizer is named instead of written
 * out, or SentencePiece's BPE, where scores stand in for merges. */
#include <string.h>

#include "base/mem.h"
#include "text/tokenizer_impl.h"

enum { TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER = 4, TYPE_BYTE = 6 }; /* of token_type */

static bool is_added(int32_t type) {
    return type == TYPE_CONTROL || type == TYPE_USER || type == TYPE_UNKNOWN;
}

/* Behind the control tokens of Phi-3's turns white space is theirs; nothing in the file says so. */
static bool takes_spaces(const TokenizerVocab *vocab, LgStr text, int32_t type) {
    static const char *const plain[] = {"<unk>", "<s>", "<|endoftext|>"};
    if (!lg_str_eq_c(vocab->model, "llama") || !lg_str_eq_c(vocab->architecture, "phi3") ||
        type != TYPE_CONTROL)
        return false;
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        if (lg_str_eq_c(text, plain[i]))
            return false;
    return true;
}

/* A token of a kind that no merge makes: in SentencePiece's way all but words. */
static bool is_apart(const TokenizerVocab *vocab, LgStr text, int32_t type) {
    if (!lg_str_eq_c(vocab->model, "llama"))
        return false;
    return is_added(type) || type == TYPE_BYTE || (!vocab->types && bpe_byte_token(text) >= 0);
}

static LgStatus add_tokens(Tokenizer *t, const TokenizerVocab *vocab, bool *plain, LgError *err) {
    for (size_t i = 0; i < vocab->token_count; i++) {
        int32_t type = vocab->types ? vocab->types[i] : 1;
        LgStr text = vocab->tokens[i];
        LG_TRY(bpe_add_token(&t->bpe, text, (int64_t)i, is_apart(vocab, text, type), err));
        plain[i] = is_added(type);
        AddedToken a = {.text = t->bpe.tokens[i],
                        .id = (int32_t)i,
                        .special = type != TYPE_USER,
                        .rstrip = takes_spaces(vocab, text, type)};
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

static LgStatus build_byte_level(Tokenizer *t, const TokenizerVocab *vocab, bool *plain,
                                 LgError *err) {
    t->decoder.byte_level = true;
    LG_TRY(tokenizer_set_pre(t, vocab->pre, err));
    LG_TRY(add_tokens(t, vocab, plain, err));
    return add_merges(t, vocab, err);
}

/* Spaces are written as U+2581; where the file wants it, one more goes in front of the text and of
 * each part behind a special token. The name of a pre-tokenizer means nothing here. */
static LgStatus build_pieces(Tokenizer *t, const TokenizerVocab *vocab, bool *plain, LgError *err) {
    static const NormalStep prepend = {.kind = NORMAL_PREPEND, .to = {TOKENIZER_SPACE_MARK, 3}};
    static const NormalStep mark = {
        .kind = NORMAL_REPLACE, .from = {" ", 1}, .to = {TOKENIZER_SPACE_MARK, 3}};
    t->bpe.chars = t->bpe.byte_fallback = t->bpe.fuse_unk = true;
    t->decoder = (Decoder){.bytes = true, .replace_count = 1, .strip = {" ", 1}};
    t->decoder.replaces[0].from = mark.to;
    t->decoder.replaces[0].to = mark.from;
    t->decoder.strip_count = vocab->add_space_prefix;
    if (vocab->add_space_prefix)
        LG_TRY(normalizer_add(&t->normalizer, prepend, err));
    LG_TRY(normalizer_add(&t->normalizer, mark, err));
    LG_TRY(add_tokens(t, vocab, plain, err));
    for (size_t i = 0; i < vocab->token_count; i++) {
        int32_t type = vocab->types ? vocab->types[i] : 1;
        int byte = bpe_byte_token(vocab->tokens[i]);
        if (byte >= 0 && is_apart(vocab, vocab->tokens[i], type) && !is_added(type))
            t->bpe.byte_ids[byte] = (int32_t)i;
        if (type == TYPE_UNKNOWN && t->bpe.unk_id < 0)
            t->bpe.unk_id = (int32_t)i;
    }
    if (!vocab->scores)
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "tokenizer.ggml.scores: the model \"llama\" needs one for each token");
    return bpe_set_scores(&t->bpe, vocab->scores, err);
}

static const struct ModelRow {
    const char *name;
    LgStatus (*build)(Tokenizer *t, const TokenizerVocab *vocab, bool *plain, LgError *err);
} model_rows[] = {{"gpt2", build_byte_level}, {"llama", build_pieces}};

static LgStatus build(Tokenizer *t, const struct ModelRow *row, const TokenizerVocab *vocab,
                      bool *plain, LgError *err) {
    LG_TRY(row->build(t, vocab, plain, err));
    if (vocab->add_bos)
        LG_TRY(tokenizer_add_frame(t, vocab->bos_id, false, err));
    if (vocab->add_eos)
        LG_TRY(tokenizer_add_frame(t, vocab->eos_id, true, err));
    return tokenizer_finish(t, plain, err);
}

static LgStatus fail_model(LgStr model, LgError *err) {
    Buf name;
    buf_init(&name);
    buf_printable(&name, model, 60);
    LgStatus status =
        lg_fail(err, LG_BAD_INPUT, 0,
                "tokenizer.ggml.model: \"%s\" is not served; served: gpt2, llama", name.data);
    buf_clear(&name);
    return status;
}

LgStatus tokenizer_from_vocab(const TokenizerVocab *vocab, Tokenizer **out, LgError *err) {
    const struct ModelRow *row = NULL;
    for (size_t i = 0; i < sizeof model_rows / sizeof model_rows[0]; i++)
        if (lg_str_eq_c(vocab->model, model_rows[i].name))
            row = &model_rows[i];
    if (!row)
        return fail_model(vocab->model, err);
    if (vocab->token_count > BPE_IDS_MAX)
        return lg_fail(err, LG_LIMIT, 0, "tokenizer.ggml.tokens: %zu of them, limit %u",
                       vocab->token_count, BPE_IDS_MAX);
    Tokenizer *t = tokenizer_new();
    bool *plain = lg_calloc(vocab->token_count, sizeof *plain);
    LgStatus status = t && plain ? build(t, row, vocab, plain, err) : lg_fail_memory(err);
    lg_free(plain);
    if (status == LG_OK)
        *out = t;
    else
        tokenizer_destroy(t);
    return status;
}
