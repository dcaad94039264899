/* Texts and files from strangers: long words take time in proportion, patterns are stopped, failed
 * allocations leave nothing. */
#include "base/clock.h"
#include "tests/unit/text/fixtures.h"
#include "text/normalize.h"

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

/* Encodes `unit` written over and over to `bytes` bytes, and decodes it again. */
static void check_long(const Tokenizer *t, const char *unit, size_t bytes) {
    Buf text, back;
    TokenIds ids = {0};
    LgError err = {0};
    buf_init(&text);
    buf_init(&back);
    while (text.len < bytes)
        buf_puts(&text, unit);
    double start = clock_seconds();
    if (tokenizer_encode(t, buf_view(&text), false, &ids, &err) != LG_OK)
        fail_msg("\"%s\": %s", unit, err.message);
    assert_true(clock_seconds() - start <
                20); /* a fraction of a second; a quadratic way takes hours */
    assert_int_equal(tokenizer_decode(t, ids.ids, ids.count, false, &back, &err), LG_OK);
    assert_true(lg_str_eq(buf_view(&text), buf_view(&back)));
    token_ids_clear(&ids);
    buf_clear(&text);
    buf_clear(&back);
}

static void megabyte_words_take_time_in_proportion(void **state) {
    (void)state;
    static const char *const units[] = {"a", "the", "abcdefghij",   " ",           "\n", " \n",
                                        "-", "0",   "\xe4\xb8\xad", "<|im_start|", "'"};
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        check_long(tiny, units[i], 1 << 17);
        check_long(smollm2, units[i], i ? 1 << 17 : 1 << 20);
    }
}

static void text_must_be_utf8(void **state) {
    (void)state;
    TokenIds ids = {0};
    LgError err = {0};
    assert_int_equal(tokenizer_encode(tiny, LG_STR("ab\xff"), false, &ids, &err), LG_BAD_INPUT);
    assert_int_equal(err.offset, 2);
    assert_non_null(strstr(err.message, "the byte 0xff at offset 2 is not UTF-8"));
    assert_int_equal(tokenizer_encode(tiny, LG_STR("\xed\xa0\x80"), false, &ids, &err),
                     LG_BAD_INPUT);
    assert_int_equal(ids.count, 0);
    token_ids_clear(&ids);
}

static void encoding_appends(void **state) {
    (void)state;
    TokenIds ids = {0};
    LgError err = {0};
    assert_true(token_ids_push(&ids, 7));
    assert_int_equal(tokenizer_encode(tiny, LG_STR("a"), false, &ids, &err), LG_OK);
    assert_int_equal(tokenizer_encode(tiny, LG_STR("a\xff"), false, &ids, &err), LG_BAD_INPUT);
    assert_int_equal(tokenizer_encode(tiny, (LgStr){NULL, 0}, false, &ids, &err), LG_OK);
    assert_int_equal(ids.count, 2);
    assert_int_equal(ids.ids[0], 7);
    assert_int_equal(ids.ids[1], 64);
    token_ids_clear(&ids);
}

static void patterns_are_stopped(void **state) {
    (void)state;
    const char *json = "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},"
                       "\"decoder\":{\"type\":\"ByteLevel\"},"
                       "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":"
                       "\"Split\",\"pattern\":{\"Regex\":"
                       "\"(a|aa|a.)+(b|c)\"},\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\","
                       "\"add_prefix_space\":false}]}}";
    Tokenizer *t = NULL;
    TokenIds ids = {0};
    LgError err = {0};
    char text[101];
    memset(text, 'a', 100);
    text[100] = 0;
    assert_int_equal(tokenizer_from_json(lg_str(json), &t, &err), LG_OK);
    assert_int_equal(tokenizer_encode(t, lg_str(text), false, &ids, &err), LG_LIMIT);
    assert_non_null(strstr(err.message, "pre-tokenizer: a pattern took more than"));
    assert_int_equal(ids.count, 0);
    token_ids_clear(&ids);
    tokenizer_destroy(t);
}

/* Each mark sorts before all that came before it. */
static void runs_of_marks_are_ordered_in_time(void **state) {
    (void)state;
    Buf text, buf;
    LgStr normal;
    LgError err = {0};
    buf_init(&text);
    buf_init(&buf);
    buf_puts(&text, "q");
    for (int i = 0; i < 200000; i++)
        buf_puts(&text, i % 2 ? "\xcc\xa3" : "\xcc\x87");
    double start = clock_seconds();
    assert_int_equal(normalize_nfc(buf_view(&text), &buf, &normal, &err), LG_OK);
    assert_true(clock_seconds() - start < 10);
    assert_int_equal(normal.len, text.len);
    assert_memory_equal(normal.ptr, "q\xcc\xa3\xcc\xa3", 5);
    assert_memory_equal(normal.ptr + normal.len - 4, "\xcc\x87\xcc\x87", 4);
    buf_clear(&text);
    buf_clear(&buf);
}

/* The n-th allocation fails, for every n that there is. */
static void failed_allocations_while_encoding_leave_nothing(void **state) {
    (void)state;
    LgStr text = LG_STR("<|im_start|> cafe\xcc\x81 and 12 words of some length \xf0\x9f\x98\x80");
    bool done = false;
    for (long n = 1; !done; n++) {
        TokenIds ids = {0};
        Buf out;
        LgError err = {0};
        buf_init(&out);
        lg_alloc_fail_at(n, (int)(n % 2));
        LgStatus status = tokenizer_encode(tiny, text, false, &ids, &err);
        if (status == LG_OK)
            status = tokenizer_decode(tiny, ids.ids, ids.count, false, &out, &err);
        done = lg_alloc_fail_at(0, 0) < n;
        assert_int_equal(status, done ? LG_OK : LG_NO_MEMORY);
        token_ids_clear(&ids);
        buf_clear(&out);
    }
}

static const char small_file[] =
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\\u0120\":3},\"merges\":["
    "\"a b\"]},"
    "\"normalizer\":{\"type\":\"NFC\"},\"decoder\":{\"type\":\"ByteLevel\"},"
    "\"added_tokens\":[{\"id\":4,\"content\":\"<s>\",\"special\":true},{\"id\":5,\"content\":"
    "\"e\\u0301\",\"normalized\":true}],"
    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{"
    "\"Regex\":\"\\\\s+|x\"},"
    "\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\",\"add_prefix_space\":true}]},"
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<"
    "s>\"}},{\"Sequence\":{\"id\":"
    "\"A\"}}],\"special_tokens\":{\"<s>\":{\"ids\":[4]}}}}";

static void failed_allocations_while_loading_leave_nothing(void **state) {
    (void)state;
    bool done = false;
    for (long n = 1; !done; n++) {
        Tokenizer *t = NULL;
        LgError err = {0};
        lg_alloc_fail_at(n, (int)(n % 2));
        LgStatus status = tokenizer_from_json(LG_STR(small_file), &t, &err);
        done = lg_alloc_fail_at(0, 0) < n;
        assert_int_equal(status, done ? LG_OK : LG_NO_MEMORY);
        assert_true(done == (t != NULL));
        tokenizer_destroy(t);
    }
}

static void failed_allocations_with_a_gguf_vocabulary_leave_nothing(void **state) {
    (void)state;
    const LgStr tokens[] = {LG_STR("a"), LG_STR("b"), LG_STR("ab"), LG_STR("<s>")};
    const LgStr merges[] = {LG_STR("a b")};
    const int32_t types[] = {1, 1, 1, 3};
    const TokenizerVocab v = {.model = LG_STR("gpt2"),
                              .pre = LG_STR("smollm"),
                              .tokens = tokens,
                              .token_count = 4,
                              .types = types,
                              .merges = merges,
                              .merge_count = 1,
                              .add_bos = true,
                              .bos_id = 3};
    bool done = false;
    for (long n = 1; !done; n++) {
        Tokenizer *t = NULL;
        LgError err = {0};
        lg_alloc_fail_at(n, (int)(n % 2));
        LgStatus status = tokenizer_from_vocab(&v, &t, &err);
        done = lg_alloc_fail_at(0, 0) < n;
        assert_int_equal(status, done ? LG_OK : LG_NO_MEMORY);
        tokenizer_destroy(t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(megabyte_words_take_time_in_proportion),
        cmocka_unit_test(text_must_be_utf8),
        cmocka_unit_test(encoding_appends),
        cmocka_unit_test(patterns_are_stopped),
        cmocka_unit_test(runs_of_marks_are_ordered_in_time),
        cmocka_unit_test(failed_allocations_while_encoding_leave_nothing),
        cmocka_unit_test(failed_allocations_while_loading_leave_nothing),
        cmocka_unit_test(failed_allocations_with_a_gguf_vocabulary_leave_nothing),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
