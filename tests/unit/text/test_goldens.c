/* Texts and ids that Hugging Face's tokenizers computed, for a tokenizer.json and for a vocabulary
 * from GGUF metadata. */
#include "tests/unit/text/fixtures.h"

static Tokenizer *tiny, *smollm2;

static int setup(void **state) {
    (void)state;
    tiny = fixture_tokenizer_json(LG_TEST_DATA "/text/tiny-tokenizer.json");
    smollm2 = fixture_tokenizer_vocab(LG_TEST_DATA "/text/smollm2-vocab.json");
    return 0;
}

static int teardown(void **state) {
    (void)state;
    tokenizer_destroy(tiny);
    tokenizer_destroy(smollm2);
    return 0;
}

static void check_ids(const Tokenizer *t, LgStr text, bool special_as_text, const json_t *want) {
    TokenIds got = {0};
    LgError err = {0};
    if (tokenizer_encode(t, text, special_as_text, &got, &err) != LG_OK)
        fail_msg("%s", err.message);
    bool same = got.count == json_array_size(want);
    for (size_t i = 0; same && i < got.count; i++)
        same = got.ids[i] == json_integer_value(json_array_get(want, i));
    if (!same) {
        for (size_t i = 0; i < got.count; i++)
            printf("%d ", got.ids[i]);
        fail_msg("ids differ for \"%.*s\"", LG_STR_ARG(text));
    }
    token_ids_clear(&got);
}

static TokenIds golden_ids(const json_t *list) {
    TokenIds ids = {0};
    for (size_t i = 0; i < json_array_size(list); i++)
        assert_true(token_ids_push(&ids, (int32_t)json_integer_value(json_array_get(list, i))));
    return ids;
}

static void assert_text(LgStr got, LgStr want) {
    if (!lg_str_eq(got, want))
        fail_msg("got \"%.*s\", want \"%.*s\"", LG_STR_ARG(got), LG_STR_ARG(want));
}

static void check_decode(const Tokenizer *t, const json_t *list, bool skip_special, LgStr want) {
    TokenIds ids = golden_ids(list);
    LgError err = {0};
    Buf whole, pieces;
    buf_init(&whole);
    buf_init(&pieces);
    assert_int_equal(tokenizer_decode(t, ids.ids, ids.count, skip_special, &whole, &err), LG_OK);
    assert_text(buf_view(&whole), want);
    Detok d;
    detok_init(&d, t, skip_special);
    for (size_t i = 0; i < ids.count; i++) {
        assert_int_equal(detok_push(&d, ids.ids[i], &pieces, &err), LG_OK);
        assert_memory_equal(pieces.data, whole.data, pieces.len); /* nothing is taken back */
    }
    detok_finish(&d, &pieces);
    assert_text(buf_view(&pieces), want);
    buf_clear(&whole);
    buf_clear(&pieces);
    token_ids_clear(&ids);
}

static size_t check_snippets(const Tokenizer *t, const char *path) {
    json_t *cases = fixture_json(path);
    size_t count = json_array_size(cases);
    for (size_t i = 0; i < count; i++) {
        const json_t *c = json_array_get(cases, i);
        LgStr text = lg_json_string(json_object_get(c, "text"));
        check_ids(t, text, false, json_object_get(c, "ids"));
        if (json_object_get(c, "ids_special_as_text"))
            check_ids(t, text, true, json_object_get(c, "ids_special_as_text"));
        check_decode(t, json_object_get(c, "ids"), false,
                     lg_json_string(json_object_get(c, "decoded")));
        check_decode(t, json_object_get(c, "ids"), true,
                     lg_json_string(json_object_get(c, "decoded_skip_special")));
    }
    json_decref(cases);
    return count;
}

static void tokenizer_json_matches_every_snippet(void **state) {
    (void)state;
    assert_true(check_snippets(tiny, LG_TEST_DATA "/text/tiny-snippets.json") >= 100);
}

static void gguf_vocabulary_matches_every_snippet(void **state) {
    (void)state;
    assert_true(check_snippets(smollm2, LG_TEST_DATA "/text/smollm2-snippets.json") >= 160);
}

/* The larger set may hold more cases, or a tokenizer beside each model. */
static void shared_snippets_match_where_present(void **state) {
    (void)state;
    if (file_exists(LG_SHARED_DATA "/tiny/tokenizer-goldens/snippets.json"))
        check_snippets(tiny, LG_SHARED_DATA "/tiny/tokenizer-goldens/snippets.json");
    if (file_exists(LG_SHARED_DATA "/smollm2/tokenizer-goldens.json"))
        check_snippets(smollm2, LG_SHARED_DATA "/smollm2/tokenizer-goldens.json");
}

static void chat_renderings_have_their_ids(void **state) {
    (void)state;
    const struct {
        const Tokenizer *t;
        const char *path;
    } sets[] = {{tiny, LG_TEST_DATA "/chat/tiny-goldens.json"},
                {smollm2, LG_TEST_DATA "/chat/smollm2-goldens.json"}};
    for (size_t s = 0; s < 2; s++) {
        json_t *cases = fixture_json(sets[s].path);
        assert_true(json_array_size(cases) >= 12);
        for (size_t i = 0; i < json_array_size(cases); i++) {
            const json_t *c = json_array_get(cases, i);
            check_ids(sets[s].t, lg_json_string(json_object_get(c, "text")), false,
                      json_object_get(c, "ids"));
        }
        json_decref(cases);
    }
}

static void bytes_that_are_no_token_are_lost(void **state) {
    (void)state;
    json_t *none = json_array(), *three = json_pack("[i,i]", 81, 82);
    check_ids(smollm2, LG_STR("\x04"), false, none);
    check_ids(smollm2, LG_STR("\x04\x13"), false, none);
    check_ids(smollm2, LG_STR("a1\x04"), true,
              json_array_set_new(three, 1, json_integer(33)) == 0 ? three : NULL);
    json_decref(none);
    json_decref(three);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokenizer_json_matches_every_snippet),
        cmocka_unit_test(gguf_vocabulary_matches_every_snippet),
        cmocka_unit_test(shared_snippets_match_where_present),
        cmocka_unit_test(chat_renderings_have_their_ids),
        cmocka_unit_test(bytes_that_are_no_token_are_lost),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
