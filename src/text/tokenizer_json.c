/* Reads tokenizer.json. Each part of the file names a type; those that byte-level BPE needs are
 * served and the others are refused by name, since leaving one out would give other ids without a
 * word. `truncation` and `padding` are not read: they are settings of a caller, and transformers
 * overrides them too. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "text/tokenizer_impl.h"

#define SEQUENCE_DEPTH_MAX 8

/* %s in messages: a value of the file, or what stands for it. */
static const char *shown(const json_t *value, char out[64]) {
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

static LgStatus refuse_type(const char *part, const json_t *type, const char *served,
                            LgError *err) {
    char name[64];
    return lg_fail(err, LG_BAD_INPUT, 0, "%s: the type \"%s\" is not served; served: %s", part,
                   shown(type, name), served);
}

static bool absent(const json_t *value) {
    return !value || json_is_null(value);
}

static bool type_is(const json_t *object, const char *type) {
    return lg_str_eq_c(lg_json_string(json_object_get(object, "type")), type);
}

static LgStatus get_bool(const json_t *object, const char *part, const char *key, bool fallback,
                         bool *out, LgError *err) {
    const json_t *value = json_object_get(object, key);
    *out = absent(value) ? fallback : json_is_true(value);
    if (!absent(value) && !json_is_boolean(value))
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
    if (!type_is(model, "BPE"))
        return refuse_type("model", json_object_get(model, "type"), "BPE", err);
    bool byte_fallback;
    LG_TRY(get_bool(model, "model", "byte_fallback", false, &byte_fallback, err));
    LG_TRY(get_bool(model, "model", "fuse_unk", false, &t->bpe.fuse_unk, err));
    LG_TRY(get_bool(model, "model", "ignore_merges", false, &t->bpe.ignore_merges, err));
    if (byte_fallback)
        return lg_fail(
            err, LG_BAD_INPUT, 0,
            "model: byte_fallback is not served (byte-level BPE is, where each byte is a token)");
    for (size_t i = 0; i < 2; i++) {
        const json_t *affix = json_object_get(model, affixes[i]);
        if (!absent(affix) && !lg_str_eq_c(lg_json_string(affix), ""))
            return lg_fail(err, LG_BAD_INPUT, 0, "model: %s \"%s\" is not served (null is)",
                           affixes[i], shown(affix, name));
    }
    const json_t *dropout = json_object_get(model, "dropout");
    if (!absent(dropout) && !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return lg_fail(err, LG_BAD_INPUT, 0, "model: dropout is not served (null is)");
    LG_TRY(load_vocab(t, json_object_get(model, "vocab"), err));
    LG_TRY(load_merges(t, json_object_get(model, "merges"), err));
    const json_t *unk = json_object_get(model, "unk_token");
    if (!absent(unk)) {
        t->bpe.unk_id = lg_json_string(unk).ptr ? bpe_id(&t->bpe, lg_json_string(unk)) : -1;
        if (t->bpe.unk_id < 0)
            return lg_fail(err, LG_BAD_INPUT, 0,
                           "model: unk_token \"%s\" is no token of the vocabulary",
                           shown(unk, name));
    }
    return LG_OK;
}

static LgStatus load_added_token(Tokenizer *t, const json_t *token, size_t index, LgError *err) {
    char part[64], name[64];
    snprintf(part, sizeof part, "added_tokens[%zu]", index);
    const json_t *id = json_object_get(token, "id");
    LgStr text = lg_json_string(json_object_get(token, "content"));
    if (!json_is_integer(id) || !text.ptr)
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "%s: \"id\" is not an integer or \"content\" is not a string", part);
    AddedToken a = {0};
    bool normalized;
    LG_TRY(get_bool(token, part, "special", false, &a.special, err));
    LG_TRY(get_bool(token, part, "single_word", false, &a.single_word, err));
    LG_TRY(get_bool(token, part, "lstrip", false, &a.lstrip, err));
    LG_TRY(get_bool(token, part, "rstrip", false, &a.rstrip, err));
    LG_TRY(get_bool(token, part, "normalized", !a.special, &normalized, err));
    json_int_t number = json_integer_value(id);
    int32_t known = bpe_id(&t->bpe, text);
    if (known >= 0 && known != number)
        return lg_fail(err, LG_BAD_INPUT, 0, "%s: \"%s\" has the id %lld, and %d in the vocabulary",
                       part, shown(json_object_get(token, "content"), name), (long long)number,
                       known);
    if (known < 0)
        LG_TRY(bpe_add_token(&t->bpe, text, number, true, err));
    a.id = (int32_t)number;
    a.text = t->bpe.tokens[number];
    return tokenizer_add_added(t, a, normalized, err);
}

static LgStatus load_added(Tokenizer *t, const json_t *tokens, LgError *err) {
    if (absent(tokens))
        return LG_OK;
    if (!json_is_array(tokens))
        return lg_fail(err, LG_BAD_INPUT, 0, "added_tokens is not a list");
    for (size_t i = 0; i < json_array_size(tokens); i++)
        LG_TRY(load_added_token(t, json_array_get(tokens, i), i, err));
    return LG_OK;
}

static LgStatus sequence_items(const json_t *part, const char *name, const char *key, int depth,
                               const json_t **items, LgError *err) {
    *items = json_object_get(part, key);
    if (!json_is_array(*items))
        return lg_fail(err, LG_BAD_INPUT, 0, "%s: a Sequence without its list \"%s\"", name, key);
    if (depth >= SEQUENCE_DEPTH_MAX)
        return lg_fail(err, LG_LIMIT, 0, "%s: Sequences nested deeper than %d", name,
                       SEQUENCE_DEPTH_MAX);
    return LG_OK;
}

static LgStatus load_normalizer(Tokenizer *t, const json_t *part, int depth, LgError *err) {
    if (absent(part))
        return LG_OK;
    if (type_is(part, "NFC")) {
        t->nfc = true;
        return LG_OK;
    }
    if (!type_is(part, "Sequence"))
        return refuse_type("normalizer", json_object_get(part, "type"), "NFC, Sequence, null", err);
    const json_t *items;
    LG_TRY(sequence_items(part, "normalizer", "normalizers", depth, &items, err));
    for (size_t i = 0; i < json_array_size(items); i++)
        LG_TRY(load_normalizer(t, json_array_get(items, i), depth + 1, err));
    return LG_OK;
}

static LgStatus add_pattern(Tokenizer *t, LgStr text, bool literal, Split split, LgError *err) {
    LgStatus status = literal ? pattern_literal(text, &split.pattern, err)
                              : pattern_compile(text, &split.pattern, err);
    if (status != LG_OK)
        return lg_fail_context(err, status, "pre_tokenizer");
    return tokenizer_add_step(t, split, err);
}

static LgStatus load_split(Tokenizer *t, const json_t *part, LgError *err) {
    char name[64];
    Split split = {0};
    const json_t *pattern = json_object_get(part, "pattern");
    const json_t *behavior = json_object_get(part, "behavior");
    LgStr regex = lg_json_string(json_object_get(pattern, "Regex"));
    LgStr literal = lg_json_string(json_object_get(pattern, "String"));
    if (!regex.ptr && !literal.ptr)
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "pre_tokenizer: a Split whose pattern has neither \"Regex\" nor \"String\"");
    LgStr wanted = lg_json_string(behavior);
    if (!split_behavior_parse(wanted, &split.behavior))
        return lg_fail(
            err, LG_BAD_INPUT, 0,
            "pre_tokenizer: the Split behavior \"%s\" is not served; served: Isolated, Removed, "
            "MergedWithPrevious, MergedWithNext, Contiguous",
            shown(behavior, name));
    LG_TRY(get_bool(part, "pre_tokenizer", "invert", false, &split.invert, err));
    return add_pattern(t, regex.ptr ? regex : literal, !regex.ptr, split, err);
}

static LgStatus load_digits(Tokenizer *t, const json_t *part, LgError *err) {
    bool individual;
    LG_TRY(get_bool(part, "pre_tokenizer", "individual_digits", false, &individual, err));
    Split split = {.behavior = individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS};
    return add_pattern(t, LG_STR("\\p{N}"), false, split, err);
}

static LgStatus load_byte_level(Tokenizer *t, const json_t *part, LgError *err) {
    bool space, regex;
    LG_TRY(get_bool(part, "pre_tokenizer", "add_prefix_space", true, &space, err));
    LG_TRY(get_bool(part, "pre_tokenizer", "use_regex", true, &regex, err));
    if (space)
        LG_TRY(tokenizer_add_step(t, (Split){0}, err));
    if (regex)
        LG_TRY(add_pattern(t, lg_str(tokenizer_gpt2_pattern), false,
                           (Split){.behavior = SPLIT_ISOLATED}, err));
    return LG_OK;
}

typedef LgStatus (*LoadStep)(Tokenizer *t, const json_t *part, LgError *err);
static const struct {
    const char *type;
    LoadStep load;
} step_types[] = {{"ByteLevel", load_byte_level}, {"Split", load_split}, {"Digits", load_digits}};

/* *done: ByteLevel was there. Behind it text is in the byte alphabet, where another step would see
 * other characters. */
static LgStatus load_pre_tokenizer(Tokenizer *t, const json_t *part, int depth, bool *done,
                                   LgError *err) {
    if (*done)
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "pre_tokenizer: a step behind ByteLevel is not served (ByteLevel last is)");
    for (size_t i = 0; i < sizeof step_types / sizeof step_types[0]; i++) {
        if (!type_is(part, step_types[i].type))
            continue;
        *done = i == 0;
        return step_types[i].load(t, part, err);
    }
    if (!type_is(part, "Sequence"))
        return refuse_type("pre_tokenizer", json_object_get(part, "type"),
                           "ByteLevel, Split, Digits, Sequence", err);
    const json_t *items;
    LG_TRY(sequence_items(part, "pre_tokenizer", "pretokenizers", depth, &items, err));
    for (size_t i = 0; i < json_array_size(items); i++)
        LG_TRY(load_pre_tokenizer(t, json_array_get(items, i), depth + 1, done, err));
    return LG_OK;
}

static LgStatus check_decoder(const json_t *part, int depth, LgError *err) {
    if (type_is(part, "ByteLevel"))
        return LG_OK;
    const json_t *items;
    if (!type_is(part, "Sequence"))
        return refuse_type("decoder", absent(part) ? part : json_object_get(part, "type"),
                           "ByteLevel", err);
    LG_TRY(sequence_items(part, "decoder", "decoders", depth, &items, err));
    if (json_array_size(items) != 1)
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "decoder: a Sequence of %zu decoders is not served (ByteLevel alone is)",
                       json_array_size(items));
    return check_decoder(json_array_get(items, 0), depth + 1, err);
}

/* The ids of a special token that a template names. */
static LgStatus template_token(Tokenizer *t, const json_t *part, const json_t *token, bool behind,
                               LgError *err) {
    char name[64];
    const json_t *id = json_object_get(token, "id");
    LgStr key = lg_json_string(id);
    const json_t *known = json_object_get(part, "special_tokens");
    const json_t *ids =
        json_object_get(key.ptr ? json_object_getn(known, key.ptr, key.len) : NULL, "ids");
    if (!json_is_array(ids))
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "post_processor: the template's token \"%s\" is not in special_tokens",
                       shown(id, name));
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *number = json_array_get(ids, i);
        LG_TRY(tokenizer_add_frame(t, json_is_integer(number) ? json_integer_value(number) : -1,
                                   behind, err));
    }
    return LG_OK;
}

static LgStatus load_template(Tokenizer *t, const json_t *part, LgError *err) {
    const json_t *single = json_object_get(part, "single");
    size_t texts = 0;
    if (!json_is_array(single))
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "post_processor: TemplateProcessing whose \"single\" is not a list");
    if (t->prefix_count || t->suffix_count)
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "post_processor: a second TemplateProcessing is not served");
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *item = json_array_get(single, i);
        const json_t *token = json_object_get(item, "SpecialToken");
        const json_t *sequence = json_object_get(item, "Sequence");
        if (token)
            LG_TRY(template_token(t, part, token, texts > 0, err));
        else if (lg_str_eq_c(lg_json_string(json_object_get(sequence, "id")), "A"))
            texts++;
        else
            return lg_fail(err, LG_BAD_INPUT, 0,
                           "post_processor: single[%zu] is neither a SpecialToken nor Sequence A",
                           i);
    }
    if (texts != 1)
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "post_processor: a template with %zu texts is not served (one is)", texts);
    return LG_OK;
}

static LgStatus load_post_processor(Tokenizer *t, const json_t *part, int depth, LgError *err) {
    if (absent(part) || type_is(part, "ByteLevel")) /* ByteLevel changes offsets only */
        return LG_OK;
    if (type_is(part, "TemplateProcessing"))
        return load_template(t, part, err);
    if (!type_is(part, "Sequence"))
        return refuse_type("post_processor", json_object_get(part, "type"),
                           "ByteLevel, TemplateProcessing, Sequence, null", err);
    const json_t *items;
    LG_TRY(sequence_items(part, "post_processor", "processors", depth, &items, err));
    for (size_t i = 0; i < json_array_size(items); i++)
        LG_TRY(load_post_processor(t, json_array_get(items, i), depth + 1, err));
    return LG_OK;
}

static LgStatus load(Tokenizer *t, const json_t *root, LgError *err) {
    bool byte_level = false;
    if (!json_is_object(root))
        return lg_fail(err, LG_BAD_INPUT, 0, "not an object");
    LG_TRY(load_normalizer(t, json_object_get(root, "normalizer"), 0,
                           err)); /* added tokens are normalized by it */
    LG_TRY(load_model(t, json_object_get(root, "model"), err));
    LG_TRY(load_added(t, json_object_get(root, "added_tokens"), err));
    LG_TRY(load_pre_tokenizer(t, json_object_get(root, "pre_tokenizer"), 0, &byte_level, err));
    if (!byte_level)
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "pre_tokenizer: without ByteLevel; byte-level BPE is served alone");
    LG_TRY(check_decoder(json_object_get(root, "decoder"), 0, err));
    LG_TRY(load_post_processor(t, json_object_get(root, "post_processor"), 0, err));
    return tokenizer_finish(t, NULL, err);
}

LgStatus tokenizer_from_json(LgStr json, Tokenizer **out, LgError *err) {
    json_t *root = NULL;
    LG_TRY(lg_json_parse(json, "tokenizer.json", &root, err));
    Tokenizer *t = tokenizer_new();
    LgStatus status = t ? load(t, root, err) : lg_fail_memory(err);
    if (status == LG_OK)
        *out = t;
    else
        tokenizer_destroy(t);
    json_decref(root);
    return status == LG_OK ? LG_OK : lg_fail_context(err, status, "tokenizer.json");
}
