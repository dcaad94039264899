/* Reads tokenizer.json. Each part of the file names a type; those that byte-level and
 * SentencePiece-style BPE need are served and the others are refused by name, since leaving one out
 * would give other ids without a word. `truncation` and `padding` are not read: they are settings
 * of a caller, and transformers overrides them too. */
#include <stdio.h>
#include <string.h>

#include "text/tokenizer_json.h"

#define CONFIG "tokenizer_config.json"

const char *json_shown(const json_t *value, char out[64]) {
    Buf buf;
    buf_init(&buf);
    LgStr s = lg_json_string(value);
    if (s.ptr)
        buf_printable(&buf, s, 48);
    else
        buf_puts(&buf, !value ? "(absent)" : json_is_null(value) ? "null" : "(no string)");
    size_t len = buf.len < 63 ? buf.len : 63;
    memcpy(out, buf.data, len);
    out[len] = 0;
    buf_clear(&buf);
    return out;
}

LgStatus json_refuse_type(const char *part, const json_t *type, const char *served, LgError *err) {
    char name[64];
    return lg_fail(err, LG_BAD_INPUT, 0, "%s: the type \"%s\" is not served; served: %s", part,
                   json_shown(type, name), served);
}

bool json_absent(const json_t *value) {
    return !value || json_is_null(value);
}

bool json_type_is(const json_t *object, const char *type) {
    return lg_str_eq_c(lg_json_string(json_object_get(object, "type")), type);
}

LgStatus json_get_bool(const json_t *object, const char *part, const char *key, bool fallback,
                       bool *out, LgError *err) {
    const json_t *value = json_object_get(object, key);
    *out = json_absent(value) ? fallback : json_is_true(value);
    if (!json_absent(value) && !json_is_boolean(value))
        return lg_fail(err, LG_BAD_INPUT, 0, "%s: \"%s\" is neither true nor false", part, key);
    return LG_OK;
}

static LgStatus load_vocab(Tokenizer *t, const json_t *vocab, LgError *err) {
    if (!json_is_object(vocab))
        return lg_fail(err, LG_BAD_INPUT, 0, "model.vocab is not an object of token to id");
    for (void *it = json_object_iter((json_t *)vocab); it;
         it = json_object_iter_next((json_t *)vocab, it)) {
        LgStr text = {json_object_iter_key(it), json_object_iter_key_len(it)};
        const json_t *id = json_object_iter_value(it);
        if (!json_is_integer(id))
            return lg_fail(err, LG_BAD_INPUT, 0, "model.vocab: an id is not an integer of 64 bits");
        LG_TRY(bpe_add_token(&t->bpe, text, json_integer_value(id), false, err));
    }
    return LG_OK;
}

/* "left right", or ["left", "right"]. */
static bool read_merge(const json_t *merge, LgStr *left, LgStr *right) {
    LgStr s = lg_json_string(merge);
    if (json_is_array(merge) && json_array_size(merge) == 2) {
        *left = lg_json_string(json_array_get(merge, 0));
        *right = lg_json_string(json_array_get(merge, 1));
        return left->ptr && right->ptr;
    }
    const char *space = s.ptr ? memchr(s.ptr, ' ', s.len) : NULL;
    if (!space)
        return false;
    *left = lg_str_sub(s, 0, (size_t)(space - s.ptr));
    *right = lg_str_sub(s, left->len + 1, s.len);
    return !memchr(right->ptr, ' ', right->len);
}

static LgStatus load_merges(Tokenizer *t, const json_t *merges, LgError *err) {
    if (!json_is_array(merges))
        return lg_fail(err, LG_BAD_INPUT, 0, "model.merges is not a list");
    size_t count = json_array_size(merges);
    LG_TRY(bpe_reserve_merges(&t->bpe, count, err));
    for (size_t i = 0; i < count; i++) {
        LgStr left, right;
        const json_t *merge = json_array_get(merges, i);
        if (i == 0 && lg_str_starts(lg_json_string(merge), "#version"))
            continue;
        if (!read_merge(merge, &left, &right))
            return lg_fail(err, LG_BAD_INPUT, 0,
                           "model.merges[%zu] is neither \"left right\" nor [\"left\", \"right\"]",
                           i);
        LG_TRY(bpe_add_merge(&t->bpe, left, right, (uint32_t)i, err));
    }
    return LG_OK;
}

static LgStatus load_model(Tokenizer *t, const json_t *model, LgError *err) {
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    char name[64];
    if (!json_is_object(model))
        return lg_fail(err, LG_BAD_INPUT, 0, "model is not an object");
    if (!json_type_is(model, "BPE"))
        return json_refuse_type("model", json_object_get(model, "type"), "BPE", err);
    LG_TRY(json_get_bool(model, "model", "byte_fallback", false, &t->bpe.byte_fallback, err));
    LG_TRY(json_get_bool(model, "model", "fuse_unk", false, &t->bpe.fuse_unk, err));
    LG_TRY(json_get_bool(model, "model", "ignore_merges", false, &t->bpe.ignore_merges, err));
    for (size_t i = 0; i < 2; i++) {
        const json_t *affix = json_object_get(model, affixes[i]);
        if (!json_absent(affix) && !lg_str_eq_c(lg_json_string(affix), ""))
            return lg_fail(err, LG_BAD_INPUT, 0, "model: %s \"%s\" is not served (null is)",
                           affixes[i], json_shown(affix, name));
    }
    const json_t *dropout = json_object_get(model, "dropout");
    if (!json_absent(dropout) && !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return lg_fail(err, LG_BAD_INPUT, 0, "model: dropout is not served (null is)");
    LG_TRY(load_vocab(t, json_object_get(model, "vocab"), err));
    LG_TRY(load_merges(t, json_object_get(model, "merges"), err));
    const json_t *unk = json_object_get(model, "unk_token");
    if (!json_absent(unk)) {
        t->bpe.unk_id = lg_json_string(unk).ptr ? bpe_id(&t->bpe, lg_json_string(unk)) : -1;
        if (t->bpe.unk_id < 0)
            return lg_fail(err, LG_BAD_INPUT, 0,
                           "model: unk_token \"%s\" is no token of the vocabulary",
                           json_shown(unk, name));
    }
    return LG_OK;
}

/* Byte-level from words to text, or nowhere. */
static LgStatus check_alphabet(const Tokenizer *t, LgError *err) {
    if (t->decoder.byte_level != !t->bpe.chars)
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "pre_tokenizer and decoder: ByteLevel in one of them alone is not served");
    for (unsigned i = 0; i < 256 && t->bpe.byte_fallback && !t->bpe.chars; i++)
        if (t->bpe.byte_ids[i] < 0)
            return lg_fail(err, LG_BAD_INPUT, 0,
                           "model: byte_fallback behind a ByteLevel pre_tokenizer is not served "
                           "where a byte is no token (0x%02x)",
                           i);
    return LG_OK;
}

/* config: tokenizer_config.json, or NULL. */
static LgStatus load(Tokenizer *t, const json_t *root, const json_t *config, LgError *err) {
    bool byte_level, framed;
    if (!json_is_object(root))
        return lg_fail(err, LG_BAD_INPUT, 0, "not an object");
    LG_TRY(tokenizer_load_normalizer(t, json_object_get(root, "normalizer"),
                                     err)); /* added tokens are normalized by it */
    LG_TRY(load_model(t, json_object_get(root, "model"), err));
    LG_TRY(tokenizer_load_added(t, json_object_get(root, "added_tokens"), config, err));
    LG_TRY(
        tokenizer_load_pre_tokenizer(t, json_object_get(root, "pre_tokenizer"), &byte_level, err));
    t->bpe.chars = !byte_level;
    LG_TRY(tokenizer_load_decoder(t, json_object_get(root, "decoder"), err));
    LG_TRY(tokenizer_load_post_processor(t, json_object_get(root, "post_processor"), &framed, err));
    if (!framed)
        LG_TRY(tokenizer_load_config_frame(t, config, err));
    LG_TRY(tokenizer_finish(t, NULL, err));
    return check_alphabet(t, err);
}

LgStatus tokenizer_from_files(LgStr json, LgStr config, Tokenizer **out, LgError *err) {
    json_t *root = NULL, *settings = NULL;
    LgStatus status = lg_json_parse(json, "tokenizer.json", &root, err);
    if (status == LG_OK && config.len)
        status = lg_json_parse(config, CONFIG, &settings, err);
    Tokenizer *t = NULL;
    if (status == LG_OK) {
        t = tokenizer_new();
        status = t ? load(t, root, settings, err) : lg_fail_memory(err);
        if (status != LG_OK && !(err && lg_str_starts(lg_str(err->message), CONFIG)))
            status = lg_fail_context(err, status, "tokenizer.json");
    }
    if (status == LG_OK)
        *out = t;
    else
        tokenizer_destroy(t);
    json_decref(root);
    json_decref(settings);
    return status;
}

LgStatus tokenizer_from_json(LgStr json, Tokenizer **out, LgError *err) {
    return tokenizer_from_files(json, LG_STR(""), out, err);
}
