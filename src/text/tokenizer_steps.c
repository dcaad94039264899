/* The parts of tokenizer.json around the model: what happens to a text before words are merged,
 * what is put around it, and how ids become text again. */
#include <string.h>

#include "base/utf8.h"
#include "text/tokenizer_json.h"

#define SEQUENCE_DEPTH_MAX 8

/* A string of exactly one character. */
static bool get_character(const json_t *object, const char *key, LgStr *out) {
    uint32_t code;
    *out = lg_json_string(json_object_get(object, key));
    return out->ptr && out->len && utf8_decode(out->ptr, out->len, &code) == (int)out->len;
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

/* Replace's two texts, which outlive the file. */
static LgStatus get_replace(Tokenizer *t, const json_t *part, const char *name, LgStr *from,
                            LgStr *to, LgError *err) {
    LgStr pattern = lg_json_string(json_object_get(json_object_get(part, "pattern"), "String"));
    LgStr content = lg_json_string(json_object_get(part, "content"));
    if (!pattern.ptr || !content.ptr)
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "%s: a Replace whose pattern is no \"String\" or whose content is none is "
                       "not served",
                       name);
    LG_TRY(tokenizer_keep(t, pattern, from, err));
    return tokenizer_keep(t, content, to, err);
}

static LgStatus normalize_step(Tokenizer *t, const json_t *part, int depth, LgError *err) {
    NormalStep step = {.kind = NORMAL_NFC};
    if (json_absent(part))
        return LG_OK;
    if (json_type_is(part, "Prepend")) {
        LgStr text = lg_json_string(json_object_get(part, "prepend"));
        step.kind = NORMAL_PREPEND;
        if (!text.ptr)
            return lg_fail(err, LG_BAD_INPUT, 0,
                           "normalizer: a Prepend without its text \"prepend\"");
        LG_TRY(tokenizer_keep(t, text, &step.to, err));
    } else if (json_type_is(part, "Replace")) {
        step.kind = NORMAL_REPLACE;
        LG_TRY(get_replace(t, part, "normalizer", &step.from, &step.to, err));
    } else if (json_type_is(part, "Sequence")) {
        const json_t *items;
        LG_TRY(sequence_items(part, "normalizer", "normalizers", depth, &items, err));
        for (size_t i = 0; i < json_array_size(items); i++)
            LG_TRY(normalize_step(t, json_array_get(items, i), depth + 1, err));
        return LG_OK;
    } else if (!json_type_is(part, "NFC")) {
        return json_refuse_type("normalizer", json_object_get(part, "type"),
                                "NFC, Prepend, Replace, Sequence, null", err);
    }
    return normalizer_add(&t->normalizer, step, err);
}

LgStatus tokenizer_load_normalizer(Tokenizer *t, const json_t *part, LgError *err) {
    return normalize_step(t, part, 0, err);
}

static LgStatus add_pattern(Tokenizer *t, LgStr text, bool literal, Split split, LgError *err) {
    LgStatus status = literal ? pattern_literal(text, &split.pattern, err)
                              : pattern_compile(text, &split.pattern, err);
    if (status != LG_OK)
        return lg_fail_context(err, status, "pre_tokenizer");
    return tokenizer_add_step(t, (PreStep){.kind = PRE_SPLIT, .split = split}, err);
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
            json_shown(behavior, name));
    LG_TRY(json_get_bool(part, "pre_tokenizer", "invert", false, &split.invert, err));
    return add_pattern(t, regex.ptr ? regex : literal, !regex.ptr, split, err);
}

static LgStatus load_digits(Tokenizer *t, const json_t *part, LgError *err) {
    bool individual;
    LG_TRY(json_get_bool(part, "pre_tokenizer", "individual_digits", false, &individual, err));
    Split split = {.behavior = individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS};
    return add_pattern(t, LG_STR("\\p{N}"), false, split, err);
}

static LgStatus load_byte_level(Tokenizer *t, const json_t *part, LgError *err) {
    bool space, regex;
    LG_TRY(json_get_bool(part, "pre_tokenizer", "add_prefix_space", true, &space, err));
    LG_TRY(json_get_bool(part, "pre_tokenizer", "use_regex", true, &regex, err));
    if (space)
        LG_TRY(tokenizer_add_step(t, (PreStep){.kind = PRE_PREFIX, .to = LG_STR(" ")}, err));
    if (regex)
        LG_TRY(add_pattern(t, lg_str(tokenizer_gpt2_pattern), false,
                           (Split){.behavior = SPLIT_ISOLATED}, err));
    return LG_OK;
}

/* Where the character that stands for a space is put in front: *everywhere, *first, or nowhere.
 * Older files have a flag in place of the scheme. */
static LgStatus metaspace_scheme(const json_t *part, const char *name, bool *everywhere,
                                 bool *first, LgError *err) {
    char text[64];
    bool prefix;
    const json_t *scheme = json_object_get(part, "prepend_scheme");
    LgStr s = lg_json_string(scheme);
    LG_TRY(json_get_bool(part, name, "add_prefix_space", true, &prefix, err));
    *everywhere = json_absent(scheme) ? prefix : lg_str_eq_c(s, "always");
    *first = lg_str_eq_c(s, "first");
    if (!json_absent(scheme) && !*everywhere && !*first && !lg_str_eq_c(s, "never"))
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "%s: Metaspace's prepend_scheme \"%s\" is not served; served: always, "
                       "first, never",
                       name, json_shown(scheme, text));
    if (!prefix && (*everywhere || *first))
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "%s: Metaspace has add_prefix_space false and another prepend_scheme", name);
    return LG_OK;
}

static LgStatus load_metaspace(Tokenizer *t, const json_t *part, LgError *err) {
    bool everywhere, first, split;
    LgStr mark;
    if (!get_character(part, "replacement", &mark))
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "pre_tokenizer: Metaspace's \"replacement\" is not one character");
    LG_TRY(metaspace_scheme(part, "pre_tokenizer", &everywhere, &first, err));
    LG_TRY(json_get_bool(part, "pre_tokenizer", "split", true, &split, err));
    PreStep step = {.kind = PRE_REPLACE, .from = LG_STR(" ")};
    LG_TRY(tokenizer_keep(t, mark, &step.to, err));
    LG_TRY(tokenizer_add_step(t, step, err));
    step.kind = everywhere ? PRE_PREFIX : PRE_FIRST_PREFIX;
    if (everywhere || first)
        LG_TRY(tokenizer_add_step(t, step, err));
    return split ? add_pattern(t, mark, true, (Split){.behavior = SPLIT_MERGED_WITH_NEXT}, err)
                 : LG_OK;
}

typedef LgStatus (*LoadStep)(Tokenizer *t, const json_t *part, LgError *err);
static const struct {
    const char *type;
    LoadStep load;
} step_types[] = {{"ByteLevel", load_byte_level},
                  {"Split", load_split},
                  {"Digits", load_digits},
                  {"Metaspace", load_metaspace}};

/* Behind ByteLevel text is in the byte alphabet, where another step would see other characters. */
static LgStatus pre_step(Tokenizer *t, const json_t *part, int depth, bool *byte_level,
                         LgError *err) {
    if (*byte_level)
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "pre_tokenizer: a step behind ByteLevel is not served (ByteLevel last is)");
    for (size_t i = 0; i < sizeof step_types / sizeof step_types[0]; i++) {
        if (!json_type_is(part, step_types[i].type))
            continue;
        *byte_level = i == 0;
        return step_types[i].load(t, part, err);
    }
    if (!json_type_is(part, "Sequence"))
        return json_refuse_type("pre_tokenizer", json_object_get(part, "type"),
                                "ByteLevel, Split, Digits, Metaspace, Sequence, null", err);
    const json_t *items;
    LG_TRY(sequence_items(part, "pre_tokenizer", "pretokenizers", depth, &items, err));
    for (size_t i = 0; i < json_array_size(items); i++)
        LG_TRY(pre_step(t, json_array_get(items, i), depth + 1, byte_level, err));
    return LG_OK;
}

LgStatus tokenizer_load_pre_tokenizer(Tokenizer *t, const json_t *part, bool *byte_level,
                                      LgError *err) {
    *byte_level = false;
    return json_absent(part) ? LG_OK : pre_step(t, part, 0, byte_level, err);
}

/* Decoders take each other's output. What is served is Replace, ByteFallback, Fuse and Strip in
 * this order, each of which may be absent, or ByteLevel or Metaspace alone: in other orders they
 * would see other texts. */
typedef enum DecoderStage { DECODE_REPLACE, DECODE_BYTES, DECODE_FUSE, DECODE_END } DecoderStage;

static LgStatus decode_replace(Tokenizer *t, const json_t *part, LgError *err) {
    Decoder *d = &t->decoder;
    if (d->replace_count == DECODER_REPLACES_MAX)
        return lg_fail(err, LG_LIMIT, 0, "decoder: more than %d Replace", DECODER_REPLACES_MAX);
    LgStr from, to;
    LG_TRY(get_replace(t, part, "decoder", &from, &to, err));
    if (from.len == 0 || to.len > NORMALIZER_AFFIX_MAX)
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "decoder: a Replace with an empty pattern, or with a content of more than "
                       "%d bytes",
                       NORMALIZER_AFFIX_MAX);
    d->replaces[d->replace_count].from = from;
    d->replaces[d->replace_count++].to = to;
    return LG_OK;
}

static LgStatus decode_strip(Tokenizer *t, const json_t *part, LgError *err) {
    LgStr content;
    json_t *start = json_object_get(part, "start"), *stop = json_object_get(part, "stop");
    if (!get_character(part, "content", &content) || !json_is_integer(start) ||
        json_integer_value(start) < 0 || json_integer_value(start) > 1000)
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "decoder: Strip needs a \"content\" of one character and a \"start\" of 0 "
                       "to 1000");
    if (json_integer_value(stop) != 0)
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "decoder: Strip at the end of a text (\"stop\") is not served (0 is)");
    t->decoder.strip_count = (uint32_t)json_integer_value(start);
    return tokenizer_keep(t, content, &t->decoder.strip, err);
}

static LgStatus decode_metaspace(Tokenizer *t, const json_t *part, LgError *err) {
    Decoder *d = &t->decoder;
    bool everywhere, first;
    LgStr mark;
    if (!get_character(part, "replacement", &mark))
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "decoder: Metaspace's \"replacement\" is not one character");
    LG_TRY(metaspace_scheme(part, "decoder", &everywhere, &first, err));
    LG_TRY(tokenizer_keep(t, mark, &d->replaces[0].from, err));
    d->replaces[0].to = LG_STR(" ");
    d->replace_count = 1;
    if (everywhere || first)
        d->first_without = d->replaces[0].from;
    return LG_OK;
}

static LgStatus decode_byte_level(Tokenizer *t, const json_t *part, LgError *err) {
    (void)part, (void)err;
    t->decoder.byte_level = true;
    return LG_OK;
}

static LgStatus decode_byte_fallback(Tokenizer *t, const json_t *part, LgError *err) {
    (void)part, (void)err;
    t->decoder.bytes = true;
    return LG_OK;
}

static LgStatus decode_fuse(Tokenizer *t, const json_t *part, LgError *err) {
    (void)t, (void)part, (void)err; /* the text is one in any case */
    return LG_OK;
}

/* A decoder may follow where the stage is from `first` to `last`, and makes it `next`. */
static const struct DecoderRow {
    const char *type;
    LoadStep load;
    DecoderStage first, last, next;
    bool alone; /* nothing was there before */
} decoder_rows[] = {
    {"ByteLevel", decode_byte_level, DECODE_REPLACE, DECODE_REPLACE, DECODE_END, true},
    {"Metaspace", decode_metaspace, DECODE_REPLACE, DECODE_REPLACE, DECODE_FUSE, true},
    {"Replace", decode_replace, DECODE_REPLACE, DECODE_REPLACE, DECODE_REPLACE, false},
    {"ByteFallback", decode_byte_fallback, DECODE_REPLACE, DECODE_REPLACE, DECODE_BYTES, false},
    {"Fuse", decode_fuse, DECODE_REPLACE, DECODE_BYTES, DECODE_FUSE, false},
    {"Strip", decode_strip, DECODE_FUSE, DECODE_FUSE, DECODE_END, false},
};

static LgStatus decode_step(Tokenizer *t, const json_t *part, int depth, DecoderStage *stage,
                            LgError *err) {
    for (size_t i = 0; i < sizeof decoder_rows / sizeof decoder_rows[0]; i++) {
        const struct DecoderRow *row = &decoder_rows[i];
        if (!json_type_is(part, row->type))
            continue;
        if (*stage < row->first || *stage > row->last || (row->alone && t->decoder.replace_count))
            return lg_fail(err, LG_BAD_INPUT, 0,
                           "decoder: %s at this place is not served (Replace, ByteFallback, Fuse, "
                           "Strip in this order are, and ByteLevel or Metaspace alone)",
                           row->type);
        *stage = row->next;
        return row->load(t, part, err);
    }
    if (!json_type_is(part, "Sequence"))
        return json_refuse_type("decoder", json_absent(part) ? part : json_object_get(part, "type"),
                                "ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace, "
                                "Sequence",
                                err);
    const json_t *items;
    LG_TRY(sequence_items(part, "decoder", "decoders", depth, &items, err));
    for (size_t i = 0; i < json_array_size(items); i++)
        LG_TRY(decode_step(t, json_array_get(items, i), depth + 1, stage, err));
    return LG_OK;
}

LgStatus tokenizer_load_decoder(Tokenizer *t, const json_t *part, LgError *err) {
    DecoderStage stage = DECODE_REPLACE;
    return decode_step(t, part, 0, &stage, err);
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
                       json_shown(id, name));
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

static LgStatus post_step(Tokenizer *t, const json_t *part, int depth, bool *framed, LgError *err) {
    if (json_absent(part) || json_type_is(part, "ByteLevel")) /* ByteLevel changes offsets only */
        return LG_OK;
    if (json_type_is(part, "TemplateProcessing")) {
        *framed = true;
        return load_template(t, part, err);
    }
    if (!json_type_is(part, "Sequence"))
        return json_refuse_type("post_processor", json_object_get(part, "type"),
                                "ByteLevel, TemplateProcessing, Sequence, null", err);
    const json_t *items;
    LG_TRY(sequence_items(part, "post_processor", "processors", depth, &items, err));
    for (size_t i = 0; i < json_array_size(items); i++)
        LG_TRY(post_step(t, json_array_get(items, i), depth + 1, framed, err));
    return LG_OK;
}

LgStatus tokenizer_load_post_processor(Tokenizer *t, const json_t *part, bool *framed,
                                       LgError *err) {
    *framed = false;
    return post_step(t, part, 0, framed, err);
}
