/* Added tokens: those of tokenizer.json, and what tokenizer_config.json says about them. As in
 * Hugging Face's tokenizers the flags of its added_tokens_decoder win, tokens that it alone has are
 * added too, and those that it names (bos_token, …) are special. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "text/tokenizer_json.h"

typedef struct AddedLoad {
    Tokenizer *t;
    const json_t *decoder; /* added_tokens_decoder, or NULL */
    Map places;            /* text -> index in its set * 2 + 1 where it is normalized */
    LgError *err;
} AddedLoad;

static LgStatus add_token(AddedLoad *l, const char *part, LgStr text, json_int_t id,
                          const json_t *flags) {
    AddedToken a = {0};
    bool normalized;
    LG_TRY(json_get_bool(flags, part, "special", false, &a.special, l->err));
    LG_TRY(json_get_bool(flags, part, "single_word", false, &a.single_word, l->err));
    LG_TRY(json_get_bool(flags, part, "lstrip", false, &a.lstrip, l->err));
    LG_TRY(json_get_bool(flags, part, "rstrip", false, &a.rstrip, l->err));
    LG_TRY(json_get_bool(flags, part, "normalized", !a.special, &normalized, l->err));
    if (bpe_id(&l->t->bpe, text) < 0)
        LG_TRY(bpe_add_token(&l->t->bpe, text, id, true, l->err));
    a.id = (int32_t)id;
    a.text = l->t->bpe.tokens[id];
    const AddedSet *set = normalized ? &l->t->added_normal : &l->t->added;
    size_t place = set->count;
    LG_TRY(tokenizer_add_added(l->t, a, normalized, l->err));
    if (set->count > place && !map_set(&l->places, text, place * 2 + normalized))
        return lg_fail_memory(l->err);
    return LG_OK;
}

/* The entry of added_tokens_decoder with this id, where it is of this text. */
static const json_t *decoder_entry(const AddedLoad *l, json_int_t id, LgStr text) {
    char key[32];
    snprintf(key, sizeof key, "%lld", (long long)id);
    const json_t *entry = json_object_get(l->decoder, key);
    return entry && lg_str_eq(lg_json_string(json_object_get(entry, "content")), text) ? entry
                                                                                       : NULL;
}

static LgStatus load_token(AddedLoad *l, const json_t *token, size_t index) {
    char part[64], name[64];
    snprintf(part, sizeof part, "added_tokens[%zu]", index);
    const json_t *id = json_object_get(token, "id");
    LgStr text = lg_json_string(json_object_get(token, "content"));
    if (!json_is_integer(id) || !text.ptr)
        return lg_fail(l->err, LG_BAD_INPUT, 0,
                       "%s: \"id\" is not an integer or \"content\" is not a string", part);
    json_int_t number = json_integer_value(id);
    int32_t known = bpe_id(&l->t->bpe, text);
    if (known >= 0 && known != number)
        return lg_fail(
            l->err, LG_BAD_INPUT, 0, "%s: \"%s\" has the id %lld, and %d in the vocabulary", part,
            json_shown(json_object_get(token, "content"), name), (long long)number, known);
    const json_t *entry = decoder_entry(l, number, text);
    return add_token(l, part, text, number, entry ? entry : token);
}

static LgStatus load_tokens(AddedLoad *l, const json_t *tokens) {
    if (json_absent(tokens))
        return LG_OK;
    if (!json_is_array(tokens))
        return lg_fail(l->err, LG_BAD_INPUT, 0, "added_tokens is not a list");
    for (size_t i = 0; i < json_array_size(tokens); i++)
        LG_TRY(load_token(l, json_array_get(tokens, i), i));
    return LG_OK;
}

/* Tokens that tokenizer.json does not have as added ones. */
static LgStatus load_decoder_tokens(AddedLoad *l) {
    static const char part[] = "tokenizer_config.json: added_tokens_decoder";
    const char *key;
    json_t *entry;
    json_object_foreach((json_t *)l->decoder, key, entry) {
        LgStr text = lg_json_string(json_object_get(entry, "content"));
        char *end;
        long long id = strtoll(key, &end, 10);
        if (!text.ptr || *end || end == key || *key == '-')
            return lg_fail(l->err, LG_BAD_INPUT, 0, "%s: an entry without an id and a \"content\"",
                           part);
        if (map_has(&l->places, text))
            continue;
        int32_t known = bpe_id(&l->t->bpe, text);
        LG_TRY(add_token(l, part, text, known >= 0 ? known : id, entry));
    }
    return LG_OK;
}

/* A token that the config names. One that is not in the vocabulary has no id to give. */
static LgStatus mark_named(AddedLoad *l, const json_t *value) {
    LgStr text = lg_json_string(json_is_object(value) ? json_object_get(value, "content") : value);
    uint64_t place;
    if (!text.ptr || text.len == 0)
        return LG_OK;
    if (map_get(&l->places, text, &place)) {
        AddedSet *set = place & 1 ? &l->t->added_normal : &l->t->added;
        set->items[place / 2].special = true;
        return LG_OK;
    }
    int32_t id = bpe_id(&l->t->bpe, text);
    if (id < 0)
        return LG_OK;
    json_t *flags = json_pack("{s:b}", "special", 1);
    LgStatus status =
        flags ? add_token(l, "tokenizer_config.json", text, id, flags) : lg_fail_memory(l->err);
    json_decref(flags);
    return status;
}

static LgStatus load_config(AddedLoad *l, const json_t *config) {
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    static const char *const lists[] = {"additional_special_tokens", "extra_special_tokens"};
    LG_TRY(load_decoder_tokens(l));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        LG_TRY(mark_named(l, json_object_get(config, names[i])));
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        const json_t *list = json_object_get(config, lists[i]);
        for (size_t k = 0; k < json_array_size(list); k++)
            LG_TRY(mark_named(l, json_array_get(list, k)));
    }
    return LG_OK;
}

LgStatus tokenizer_load_added(Tokenizer *t, const json_t *tokens, const json_t *config,
                              LgError *err) {
    AddedLoad l = {.t = t, .decoder = json_object_get(config, "added_tokens_decoder"), .err = err};
    map_init(&l.places);
    LgStatus status = load_tokens(&l, tokens);
    if (status == LG_OK && config)
        status = load_config(&l, config);
    map_clear(&l.places);
    return status;
}

/* Where tokenizer.json does not say what goes around a text, the config's flags do. */
LgStatus tokenizer_load_config_frame(Tokenizer *t, const json_t *config, LgError *err) {
    static const struct {
        const char *flag, *token;
        bool behind;
    } rows[] = {{"add_bos_token", "bos_token", false}, {"add_eos_token", "eos_token", true}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bool wanted;
        const json_t *token = json_object_get(config, rows[i].token);
        LG_TRY(json_get_bool(config, "tokenizer_config.json", rows[i].flag, false, &wanted, err));
        if (!wanted)
            continue;
        LgStr text =
            lg_json_string(json_is_object(token) ? json_object_get(token, "content") : token);
        int32_t id = text.ptr ? bpe_id(&t->bpe, text) : -1;
        if (id < 0)
            return lg_fail(err, LG_BAD_INPUT, 0,
                           "tokenizer_config.json: %s without a %s that is in the vocabulary",
                           rows[i].flag, rows[i].token);
        LG_TRY(tokenizer_add_frame(t, id, rows[i].behind, err));
    }
    return LG_OK;
}
