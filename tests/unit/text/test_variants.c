/* Parts of tokenizer.json in many settings, against what the tokenizers package makes of them
 * (tools/make_tokenizer_cases.py). */
#include "tests/unit/text/fixtures.h"

static bool has_part(const json_t *merge, const json_t *vocab) {
    LgStr left = lg_json_string(json_array_get(merge, 0)),
          right = lg_json_string(json_array_get(merge, 1));
    Buf joined;
    buf_init(&joined);
    buf_str(&joined, left);
    buf_str(&joined, right);
    bool all = json_object_getn(vocab, left.ptr, left.len) &&
               json_object_getn(vocab, right.ptr, right.len) &&
               json_object_getn(vocab, joined.data, joined.len);
    buf_clear(&joined);
    return all;
}

static void rename_token(json_t *vocab, LgStr from, const char *to) {
    json_t *id = json_incref(json_object_getn(vocab, from.ptr, from.len));
    json_object_deln(vocab, from.ptr, from.len);
    json_object_set_new(vocab, to, id);
}

/* Takes single letters, and what merges need them for, out of the vocabulary. */
static void remove_letters(json_t *model, LgStr letters) {
    json_t *vocab = json_object_get(model, "vocab"), *merges = json_object_get(model, "merges");
    for (size_t i = 0; i < letters.len; i++) {
        char name[32];
        LgStr letter = lg_str_sub(letters, i, 1);
        snprintf(name, sizeof name, "UNUSED%lld",
                 (long long)json_integer_value(json_object_getn(vocab, letter.ptr, 1)));
        rename_token(vocab, letter, name);
    }
    rename_token(vocab, LG_STR("!"), "UNUSED0");
    for (size_t i = json_array_size(merges); i > 0; i--)
        if (!has_part(json_array_get(merges, i - 1), vocab))
            json_array_remove(merges, i - 1);
}

static void merges_as_texts(json_t *model) {
    json_t *merges = json_object_get(model, "merges");
    for (size_t i = 0; i < json_array_size(merges); i++) {
        json_t *pair = json_array_get(merges, i);
        json_array_set_new(merges, i,
                           json_sprintf("%s %s", json_string_value(json_array_get(pair, 0)),
                                        json_string_value(json_array_get(pair, 1))));
    }
}

static Tokenizer *make_variant(const json_t *base, const json_t *change) {
    json_t *t = json_deep_copy(base), *model = json_object_get(t, "model");
    if (json_object_get(change, "set"))
        json_object_update(t, json_object_get(change, "set"));
    if (json_object_get(change, "without"))
        remove_letters(model, lg_json_string(json_object_get(change, "without")));
    if (json_object_get(change, "merges_as_texts"))
        merges_as_texts(model);
    if (json_object_get(change, "model"))
        json_object_update(model, json_object_get(change, "model"));
    if (json_object_get(change, "added"))
        json_array_extend(json_object_get(t, "added_tokens"), json_object_get(change, "added"));
    char *text = json_dumps(t, JSON_COMPACT);
    Tokenizer *made = NULL;
    LgError err = {0};
    if (tokenizer_from_json(lg_str(text), &made, &err) != LG_OK)
        fail_msg("%s: %s", json_string_value(json_object_get(change, "name")), err.message);
    lg_free(text);
    json_decref(t);
    return made;
}

static bool same_ids(const TokenIds *got, const json_t *want) {
    bool same = got->count == json_array_size(want);
    for (size_t i = 0; same && i < got->count; i++)
        same = got->ids[i] == json_integer_value(json_array_get(want, i));
    return same;
}

static size_t check_text(const Tokenizer *t, const char *name, LgStr text, const json_t *want) {
    size_t failed = 0;
    LgError err = {0};
    Buf decoded;
    buf_init(&decoded);
    for (int plain = 0; plain < 2; plain++) {
        TokenIds ids = {0};
        assert_int_equal(tokenizer_encode(t, text, plain, &ids, &err), LG_OK);
        failed += !same_ids(&ids, json_array_get(want, (size_t)plain));
        const json_t *expected = json_array_get(want, 2);
        if (!plain && !json_is_null(expected)) {
            assert_int_equal(tokenizer_decode(t, ids.ids, ids.count, false, &decoded, &err), LG_OK);
            failed += !lg_str_eq(buf_view(&decoded), lg_json_string(expected));
        }
        token_ids_clear(&ids);
    }
    buf_clear(&decoded);
    if (failed)
        printf("%s: \"%.*s\"\n", name, LG_STR_ARG(text));
    return failed;
}

static void every_variant_gives_the_packages_ids(void **state) {
    (void)state;
    json_t *base = fixture_json(LG_TEST_DATA "/text/tiny-tokenizer.json");
    json_t *file = fixture_json(LG_TEST_DATA "/text/variants.json");
    const json_t *texts = json_object_get(file, "texts"),
                 *variants = json_object_get(file, "variants");
    size_t failed = 0;
    for (size_t v = 0; v < json_array_size(variants); v++) {
        const json_t *change = json_array_get(variants, v);
        Tokenizer *t = make_variant(base, change);
        for (size_t i = 0; i < json_array_size(texts); i++)
            failed += check_text(t, json_string_value(json_object_get(change, "name")),
                                 lg_json_string(json_array_get(texts, i)),
                                 json_array_get(json_object_get(change, "cases"), i));
        tokenizer_destroy(t);
    }
    assert_int_equal(failed, 0);
    assert_true(json_array_size(variants) >= 30);
    json_decref(base);
    json_decref(file);
}

/* What a template puts around a text stays away from parts of texts and from renderings. */
static void bare_encoding_adds_nothing_around(void **state) {
    (void)state;
    json_t *base = fixture_json(LG_TEST_DATA "/text/tiny-tokenizer.json");
    json_t *file = fixture_json(LG_TEST_DATA "/text/variants.json");
    const json_t *variants = json_object_get(file, "variants");
    for (size_t v = 0; v < json_array_size(variants); v++) {
        const json_t *change = json_array_get(variants, v);
        if (strcmp(json_string_value(json_object_get(change, "name")), "tokens around") != 0)
            continue;
        Tokenizer *t = make_variant(base, change);
        TokenIds framed = {0}, bare = {0};
        LgError err = {0};
        assert_int_equal(tokenizer_encode(t, LG_STR("a"), false, &framed, &err), LG_OK);
        assert_int_equal(tokenizer_encode_bare(t, LG_STR("a"), false, &bare, &err), LG_OK);
        assert_int_equal(framed.count, 3);
        assert_int_equal(bare.count, 1);
        assert_int_equal(framed.ids[1], bare.ids[0]);
        token_ids_clear(&framed);
        token_ids_clear(&bare);
        tokenizer_destroy(t);
    }
    json_decref(base);
    json_decref(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_variant_gives_the_packages_ids),
        cmocka_unit_test(bare_encoding_adds_nothing_around),
    };
    lg_mem_install_hooks();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
