/* tokenizer_config.json beside tokenizer.json: what it adds, and what it has no say in. */
#include "tests/unit/text/fixtures.h"

#define FILE_WITH(post, added)                                                                     \
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"<s>\":1,\"</s>\":2,\" \":3,\"x\":4},"       \
    "\"merges\":[]},\"decoder\":{\"type\":\"Fuse\"},\"post_processor\":" post                      \
    ",\"added_tokens\":[" added "]}"
#define BOS "{\"id\":1,\"content\":\"<s>\",\"special\":true}"
#define TEMPLATE                                                                                   \
    "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"</s>\"}},"           \
    "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"</s>\":{\"ids\":[2]}}}"

static Tokenizer *make(const char *json, const char *config) {
    Tokenizer *t = NULL;
    LgError err = {0};
    if (tokenizer_from_files(lg_str(json), lg_str(config), &t, &err) != LG_OK)
        fail_msg("%s", err.message);
    return t;
}

static void check_ids(const char *json, const char *config, const char *text, const char *want) {
    Tokenizer *t = make(json, config);
    TokenIds ids = {0};
    LgError err = {0};
    Buf got;
    buf_init(&got);
    assert_int_equal(tokenizer_encode(t, lg_str(text), false, &ids, &err), LG_OK);
    for (size_t i = 0; i < ids.count; i++)
        buf_printf(&got, "%s%d", i ? " " : "", ids.ids[i]);
    assert_string_equal(got.data, want);
    buf_clear(&got);
    token_ids_clear(&ids);
    tokenizer_destroy(t);
}

static void the_post_processor_says_what_goes_around_texts(void **state) {
    (void)state;
    const char *config = "{\"add_bos_token\":true,\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"}";
    check_ids(FILE_WITH(TEMPLATE, BOS), config, "a", "2 0");
    check_ids(FILE_WITH("null", BOS), config, "a", "1 0");
    check_ids(FILE_WITH("{\"type\":\"ByteLevel\"}", BOS), config, "a", "1 0");
    check_ids(FILE_WITH("null", BOS), "{\"bos_token\":\"<s>\"}", "a", "0");
    check_ids(
        FILE_WITH("null", BOS),
        "{\"add_bos_token\":false,\"add_eos_token\":true,\"eos_token\":{\"content\":\"</s>\"}}",
        "a", "0 2");
}

static void flags_of_added_tokens_are_the_configs(void **state) {
    (void)state;
    const char *file = FILE_WITH("null", BOS);
    check_ids(file, "", "a<s> a", "0 1 3 0");
    check_ids(file,
              "{\"added_tokens_decoder\":{\"1\":{\"content\":\"<s>\",\"special\":true,"
              "\"rstrip\":true}}}",
              "a<s> a", "0 1 0");
    /* an entry of another text says nothing about this one */
    check_ids(file,
              "{\"added_tokens_decoder\":{\"1\":{\"content\":\"a\",\"rstrip\":true,"
              "\"normalized\":false}}}",
              "a <s> a", "0 1 3 0");
}

static void tokens_that_the_config_alone_has_are_added(void **state) {
    (void)state;
    const char *config =
        "{\"added_tokens_decoder\":{\"7\":{\"content\":\"<new>\",\"special\":true},"
        "\"9\":{\"content\":\"</s>\",\"special\":true}}}";
    check_ids(FILE_WITH("null", BOS), config, "a<new></s>x", "0 7 2 4");
    Tokenizer *t = make(FILE_WITH("null", BOS), config);
    assert_true(tokenizer_is_special(t, 7));
    assert_int_equal(tokenizer_vocab_count(t), 8);
    tokenizer_destroy(t);
}

static void named_tokens_are_special(void **state) {
    (void)state;
    Tokenizer *t = make(FILE_WITH("null", "{\"id\":1,\"content\":\"<s>\",\"special\":false}"),
                        "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"</s>\"},"
                        "\"pad_token\":\"<absent>\",\"additional_special_tokens\":[\"x\"]}");
    assert_true(tokenizer_is_special(t, 1));
    assert_true(tokenizer_is_special(t, 2));
    assert_true(tokenizer_is_special(t, 4));
    assert_false(tokenizer_is_special(t, 0));
    tokenizer_destroy(t);
    check_ids(FILE_WITH("null", ""), "{\"eos_token\":\"</s>\"}", "</s>", "2");
    check_ids(FILE_WITH("null", ""), "", "</s>", "");
}

static void configs_that_contradict_the_vocabulary_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *config, *part;
    } cases[] = {
        {"{", "tokenizer_config.json: not valid JSON"},
        {"{\"add_bos_token\":1}", "\"add_bos_token\" is neither true nor false"},
        {"{\"add_bos_token\":true}", "add_bos_token without a bos_token that is in the vocabulary"},
        {"{\"add_eos_token\":true,\"eos_token\":\"<end>\"}", "add_eos_token without a eos_token"},
        {"{\"added_tokens_decoder\":{\"x\":{\"content\":\"<new>\"}}}",
         "added_tokens_decoder: an entry without an id"},
        {"{\"added_tokens_decoder\":{\"5\":{}}}", "added_tokens_decoder: an entry without an id"},
        {"{\"added_tokens_decoder\":{\"0\":{\"content\":\"<new>\"}}}", "has the id of another"},
        {"{\"added_tokens_decoder\":{\"99999999999999999999\":{\"content\":\"<new>\"}}}",
         "has an id outside"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Tokenizer *t = NULL;
        LgError err = {0};
        LgStatus status =
            tokenizer_from_files(LG_STR(FILE_WITH("null", BOS)), lg_str(cases[i].config), &t, &err);
        if (status == LG_OK || !strstr(err.message, cases[i].part))
            fail_msg("%d \"%s\", want \"%s\"", status, err.message, cases[i].part);
        assert_null(t);
    }
}

static void failed_allocations_leave_nothing(void **state) {
    (void)state;
    const char *config = "{\"add_bos_token\":true,\"bos_token\":\"<s>\",\"added_tokens_decoder\":"
                         "{\"7\":{\"content\":\"<new>\",\"special\":true}},\"eos_token\":\"</s>\"}";
    bool done = false;
    for (long n = 1; !done; n++) {
        Tokenizer *t = NULL;
        LgError err = {0};
        lg_alloc_fail_at(n, (int)(n % 2));
        LgStatus status =
            tokenizer_from_files(LG_STR(FILE_WITH("null", BOS)), lg_str(config), &t, &err);
        done = lg_alloc_fail_at(0, 0) < n;
        assert_int_equal(status, done ? LG_OK : LG_NO_MEMORY);
        tokenizer_destroy(t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_post_processor_says_what_goes_around_texts),
        cmocka_unit_test(flags_of_added_tokens_are_the_configs),
        cmocka_unit_test(tokens_that_the_config_alone_has_are_added),
        cmocka_unit_test(named_tokens_are_special),
        cmocka_unit_test(configs_that_contradict_the_vocabulary_are_refused),
        cmocka_unit_test(failed_allocations_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
