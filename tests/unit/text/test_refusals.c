/* Files that are broken, or that ask for what is not served: the message names the part and what
 * would be accepted. */
#include "tests/unit/text/fixtures.h"

#define LAST "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"
#define VOCAB "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2}"

/* A small valid file, where one part after the other is replaced. */
typedef struct File {
    const char *normalizer, *pre, *decoder, *post, *added, *model;
} File;
static const File good = {"null", LAST, "{\"type\":\"ByteLevel\"}",
                          "null", "[]", "{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"a b\"]}"};

static LgStatus load(File f, Tokenizer **out, LgError *err) {
    Buf text;
    buf_init(&text);
    buf_printf(&text,
               "{\"normalizer\":%s,\"pre_tokenizer\":%s,\"decoder\":%s,\"post_processor\":%s,"
               "\"added_tokens\":%s,",
               f.normalizer, f.pre, f.decoder, f.post, f.added);
    buf_printf(&text, "\"model\":%s}", f.model);
    LgStatus status = tokenizer_from_json(buf_view(&text), out, err);
    buf_clear(&text);
    return status;
}

static void check(File f, LgStatus status, const char *part) {
    Tokenizer *t = NULL;
    LgError err = {0};
    LgStatus got = load(f, &t, &err);
    if (got != status || !strstr(err.message, part) ||
        !lg_str_starts(lg_str(err.message), "tokenizer.json: "))
        fail_msg("status %d \"%s\", want %d \"%s\"", got, err.message, status, part);
    assert_null(t);
}

static void the_good_file_loads(void **state) {
    (void)state;
    Tokenizer *t = NULL;
    LgError err = {0};
    TokenIds ids = {0};
    assert_int_equal(load(good, &t, &err), LG_OK);
    assert_int_equal(tokenizer_vocab_count(t), 3);
    assert_int_equal(tokenizer_id(t, LG_STR("ab")), 2);
    assert_int_equal(tokenizer_id(t, LG_STR("ba")), -1);
    assert_false(tokenizer_is_special(t, 0));
    assert_false(tokenizer_is_special(t, -1));
    assert_false(tokenizer_is_special(t, 99));
    assert_int_equal(tokenizer_encode(t, LG_STR("abba"), false, &ids, &err), LG_OK);
    assert_int_equal(ids.count, 3);
    token_ids_clear(&ids);
    tokenizer_destroy(t);
}

static void types_that_are_not_served_are_named(void **state) {
    (void)state;
    File f = good;
    f.normalizer = "{\"type\":\"NFKC\"}";
    check(f, LG_BAD_INPUT,
          "normalizer: the type \"NFKC\" is not served; served: NFC, Prepend, Replace, Sequence, "
          "null");
    f = good;
    f.pre = "{\"type\":\"Whitespace\"}";
    check(f, LG_BAD_INPUT,
          "pre_tokenizer: the type \"Whitespace\" is not served; served: ByteLevel, Split, Digits, "
          "Metaspace, Sequence, null");
    f.pre = "{\"type\":\"Sequence\",\"pretokenizers\":[" LAST ",{\"type\":\"Digits\"}]}";
    check(f, LG_BAD_INPUT, "a step behind ByteLevel is not served");
    f = good;
    f.decoder = "null";
    check(f, LG_BAD_INPUT, "decoder: the type \"null\" is not served; served: ByteLevel, Replace,");
    f.decoder = "{\"type\":\"WordPiece\"}";
    check(f, LG_BAD_INPUT, "decoder: the type \"WordPiece\" is not served");
    f = good;
    f.post = "{\"type\":\"RobertaProcessing\"}";
    check(f, LG_BAD_INPUT, "post_processor: the type \"RobertaProcessing\" is not served");
    f = good;
    f.model = "{\"type\":\"Unigram\"}";
    check(f, LG_BAD_INPUT, "model: the type \"Unigram\" is not served; served: BPE");
}

/* A vocabulary is in the byte alphabet for the words and for decoding, or for neither. */
static void byte_level_is_whole_or_absent(void **state) {
    (void)state;
    File f = good;
    f.pre = "null";
    check(f, LG_BAD_INPUT, "ByteLevel in one of them alone is not served");
    f.pre = "{\"type\":\"Digits\",\"individual_digits\":true}";
    check(f, LG_BAD_INPUT, "ByteLevel in one of them alone is not served");
    f = good;
    f.decoder = "{\"type\":\"Fuse\"}";
    check(f, LG_BAD_INPUT, "ByteLevel in one of them alone is not served");
    f = good;
    f.model = "{\"type\":\"BPE\",\"byte_fallback\":true," VOCAB ",\"merges\":[\"a b\"]}";
    check(f, LG_BAD_INPUT, "byte_fallback behind a ByteLevel pre_tokenizer is not served");
}

static void decoders_stand_in_their_order(void **state) {
    (void)state;
#define REPLACE "{\"type\":\"Replace\",\"pattern\":{\"String\":\"_\"},\"content\":\" \"}"
#define BYTES "{\"type\":\"ByteFallback\"}"
#define FUSE "{\"type\":\"Fuse\"}"
#define STRIP(content, start, stop)                                                                \
    "{\"type\":\"Strip\",\"content\":\"" content "\",\"start\":" start ",\"stop\":" stop "}"
    static const struct {
        const char *decoders, *part;
    } cases[] = {
        {BYTES "," REPLACE, "Replace at this place"},
        {FUSE "," BYTES, "ByteFallback at this place"},
        {BYTES "," BYTES, "ByteFallback at this place"},
        {REPLACE "," STRIP(" ", "1", "0"), "Strip at this place"},
        {FUSE "," STRIP(" ", "1", "0") "," STRIP(" ", "1", "0"), "Strip at this place"},
        {FUSE "," STRIP(" ", "1", "1"), "Strip at the end of a text"},
        {FUSE "," STRIP("  ", "1", "0"), "a \"content\" of one character"},
        {FUSE "," STRIP(" ", "-1", "0"), "a \"start\" of 0 to 1000"},
        {FUSE ",{\"type\":\"ByteLevel\"}", "ByteLevel at this place"},
        {REPLACE ",{\"type\":\"ByteLevel\"}", "ByteLevel at this place"},
        {REPLACE ",{\"type\":\"Metaspace\",\"replacement\":\"_\"}", "Metaspace at this place"},
        {"{\"type\":\"Metaspace\",\"replacement\":\"\"}", "\"replacement\" is not one character"},
        {"{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"_\"},\"content\":\" \"}",
         "decoder: a Replace whose pattern is no \"String\""},
        {"{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\" \"}",
         "a Replace with an empty pattern"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char decoder[400];
        File f = good;
        f.pre = "null";
        snprintf(decoder, sizeof decoder, "{\"type\":\"Sequence\",\"decoders\":[%s]}",
                 cases[i].decoders);
        f.decoder = decoder;
        check(f, LG_BAD_INPUT, cases[i].part);
    }
}

static void normalizers_and_metaspace_are_checked(void **state) {
    (void)state;
    static const struct {
        const char *normalizer, *pre, *part;
        LgStatus status;
    } cases[] = {
        {"{\"type\":\"Prepend\"}", "null", "a Prepend without its text", LG_BAD_INPUT},
        {"{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a\"},\"content\":\"b\"}", "null",
         "normalizer: a Replace whose pattern is no \"String\"", LG_BAD_INPUT},
        {"{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"b\"}", "null",
         "Replace has an empty pattern", LG_BAD_INPUT},
        {"null", "{\"type\":\"Metaspace\",\"replacement\":\"__\"}",
         "\"replacement\" is not one character", LG_BAD_INPUT},
        {"null", "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"sometimes\"}",
         "prepend_scheme \"sometimes\" is not served; served: always, first, never", LG_BAD_INPUT},
        {"null",
         "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"first\","
         "\"add_prefix_space\":false}",
         "add_prefix_space false and another prepend_scheme", LG_BAD_INPUT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        File f = good;
        f.normalizer = cases[i].normalizer;
        f.pre = cases[i].pre;
        f.decoder = "{\"type\":\"Fuse\"}";
        check(f, cases[i].status, cases[i].part);
    }
    char many[1200] = "", whole[1400];
    File f = good;
    for (int i = 0; i < 17; i++)
        strcat(many, i ? ",{\"type\":\"Prepend\",\"prepend\":\"x\"}"
                       : "{\"type\":\"Prepend\",\"prepend\":\"x\"}");
    snprintf(whole, sizeof whole, "{\"type\":\"Sequence\",\"normalizers\":[%s]}", many);
    f.normalizer = whole;
    check(f, LG_LIMIT, "normalizer: more than 16 steps");
}

static void model_flags_that_are_not_served_are_named(void **state) {
    (void)state;
    static const struct {
        const char *flag, *part;
    } cases[] = {
        {"\"byte_fallback\":1", "\"byte_fallback\" is neither true nor false"},
        {"\"continuing_subword_prefix\":\"##\"", "continuing_subword_prefix \"##\" is not served"},
        {"\"end_of_word_suffix\":\"</w>\"", "end_of_word_suffix \"</w>\" is not served"},
        {"\"dropout\":0.1", "dropout is not served"},
        {"\"unk_token\":\"<unk>\"", "unk_token \"<unk>\" is no token of the vocabulary"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char model[300];
        File f = good;
        snprintf(model, sizeof model, "{\"type\":\"BPE\",%s," VOCAB ",\"merges\":[]}",
                 cases[i].flag);
        f.model = model;
        check(f, LG_BAD_INPUT, cases[i].part);
    }
}

static void broken_vocabularies_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *model, *part;
        LgStatus status;
    } cases[] = {
        {"{\"type\":\"BPE\",\"vocab\":[],\"merges\":[]}", "model.vocab is not an object",
         LG_BAD_INPUT},
        {"{\"type\":\"BPE\",\"vocab\":{\"a\":\"0\"},\"merges\":[]}", "an id is not an integer",
         LG_BAD_INPUT},
        {"{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}",
         "token \"a\" (id -1) has an id outside 0 to 4194303", LG_LIMIT},
        {"{\"type\":\"BPE\",\"vocab\":{\"a\":4194304},\"merges\":[]}", "has an id outside",
         LG_LIMIT},
        {"{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}",
         "token \"b\" (id 0) has the id of another token", LG_BAD_INPUT},
        {"{\"type\":\"BPE\"," VOCAB "}", "model.merges is not a list", LG_BAD_INPUT},
        {"{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"ab\"]}", "model.merges[0] is neither",
         LG_BAD_INPUT},
        {"{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"a b\",\"a b b\"]}",
         "model.merges[1] is neither", LG_BAD_INPUT},
        {"{\"type\":\"BPE\"," VOCAB ",\"merges\":[[\"a\",\"b\",\"c\"]]}",
         "model.merges[0] is neither", LG_BAD_INPUT},
        {"{\"type\":\"BPE\"," VOCAB ",\"merges\":[[\"a\",1]]}", "model.merges[0] is neither",
         LG_BAD_INPUT},
        {"{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"b a\"]}",
         "merges[0]: \"ba\" is no token of the vocabulary", LG_BAD_INPUT},
        {"{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"a \\u001b\"]}", "\"\\x1b\" is no token",
         LG_BAD_INPUT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        File f = good;
        f.model = cases[i].model;
        check(f, cases[i].status, cases[i].part);
    }
}

static void broken_added_tokens_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *added, *part;
    } cases[] = {
        {"{}", "added_tokens is not a list"},
        {"[{\"content\":\"x\"}]", "added_tokens[0]: \"id\" is not an integer"},
        {"[{\"id\":5,\"content\":\"x\",\"special\":\"yes\"}]",
         "\"special\" is neither true nor false"},
        {"[{\"id\":5,\"content\":\"ab\"}]", "\"ab\" has the id 5, and 2 in the vocabulary"},
        {"[{\"id\":1,\"content\":\"x\"}]", "token \"x\" (id 1) has the id of another token"},
        {"[{\"id\":5,\"content\":\"x\"},{\"id\":5,\"content\":\"x\"}]",
         "5 and 5 have the same text \"x\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        File f = good;
        f.added = cases[i].added;
        check(f, LG_BAD_INPUT, cases[i].part);
    }
}

static void patterns_that_would_mean_something_else_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *part;
    } cases[] = {
        {"[a[b]]", "a class in a class at byte 2"},
        {"[a&&b]", "an intersection of classes"},
        {"[]a]", "begins with ]"},
        {"[a", "a class without its ]"},
        {"\\\\h", "a backslash before this character at byte 0"},
        {"a\\\\b", "a backslash before this character at byte 1"},
        {"(a)\\\\1", "a backslash before this character"},
        {"a{1,2}+", "a + or ? behind {..}"},
        {"a{,2}", "a brace that is no"},
        {"(?m:a)", "a group of this kind"},
        {"(?<n>a)", "a group of this kind"},
        {"a(?i)b", "a group of this kind"},
        {"(*UTF)a", "(* at byte 0"},
        {"(a", "pattern: missing closing parenthesis"},
        {"\\\\p{Nonsense}", "pattern: unknown property"},
        {"\\\\u12", "\\u without four hexadecimal digits"},
        {"[\\\\W]", "a backslash before this character"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char pre[300];
        File f = good;
        snprintf(pre, sizeof pre,
                 "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{"
                 "\"Regex\":\"%s\"},"
                 "\"behavior\":\"Isolated\"}," LAST "]}",
                 cases[i].pattern);
        f.pre = pre;
        check(f, LG_BAD_INPUT, cases[i].part);
    }
    File f = good;
    f.pre = "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Merged\"}";
    check(f, LG_BAD_INPUT,
          "the Split behavior \"Merged\" is not served; served: Isolated, Removed,");
    f.pre = "{\"type\":\"Split\",\"pattern\":\"a\",\"behavior\":\"Isolated\"}";
    check(f, LG_BAD_INPUT, "neither \"Regex\" nor \"String\"");
}

static void templates_that_are_not_simple_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *single, *part;
    } cases[] = {
        {"{}", "\"single\" is not a list"},
        {"[]", "a template with 0 texts is not served"},
        {"[{\"Sequence\":{\"id\":\"A\"}},{\"Sequence\":{\"id\":\"A\"}}]",
         "a template with 2 texts is not served"},
        {"[{\"Sequence\":{\"id\":\"B\"}}]", "single[0] is neither a SpecialToken nor Sequence A"},
        {"[{\"SpecialToken\":{\"id\":\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}}]",
         "the template's token \"<s>\" is not in special_tokens"},
        {"[{\"SpecialToken\":{\"id\":\"x\"}},{\"Sequence\":{\"id\":\"A\"}}]",
         "has the id 77, which is no token"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char post[400];
        File f = good;
        snprintf(post, sizeof post,
                 "{\"type\":\"TemplateProcessing\",\"single\":%s,\"special_tokens\":{\"x\":{"
                 "\"ids\":[77]}}}",
                 cases[i].single);
        f.post = post;
        check(f, LG_BAD_INPUT, cases[i].part);
    }
}

static void text_that_is_no_json_is_refused(void **state) {
    (void)state;
    static const char *const texts[] = {"", "[]", "{", "{\"model\":{}}", "null", "\xff"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        Tokenizer *t = NULL;
        LgError err = {0};
        assert_int_equal(tokenizer_from_json(lg_str(texts[i]), &t, &err), LG_BAD_INPUT);
        assert_true(lg_str_starts(lg_str(err.message), "tokenizer.json: "));
        assert_null(t);
    }
}

static void check_vocab(TokenizerVocab v, LgStatus status, const char *part) {
    Tokenizer *t = NULL;
    LgError err = {0};
    LgStatus got = tokenizer_from_vocab(&v, &t, &err);
    if (got != status || !strstr(err.message, part))
        fail_msg("status %d \"%s\", want %d \"%s\"", got, err.message, status, part);
    assert_null(t);
}

static void gguf_vocabularies_that_are_not_served_are_named(void **state) {
    (void)state;
    const LgStr tokens[] = {LG_STR("a"), LG_STR("b"), LG_STR("ab"), LG_STR("a")};
    const LgStr merges[] = {LG_STR("a b"), LG_STR("b a")};
    const int32_t types[] = {1, 1, 3, 1};
    const TokenizerVocab ok = {.model = LG_STR("gpt2"),
                               .pre = LG_STR("gpt-2"),
                               .tokens = tokens,
                               .token_count = 4,
                               .types = types,
                               .merges = merges,
                               .merge_count = 1};
    Tokenizer *t = NULL;
    LgError err = {0};
    assert_int_equal(tokenizer_from_vocab(&ok, &t, &err), LG_OK);
    assert_true(tokenizer_is_special(t, 2));
    assert_int_equal(tokenizer_id(t, LG_STR("a")), 0); /* the first of two */
    tokenizer_destroy(t);
    t = NULL;
    TokenizerVocab v = ok;
    v.model = LG_STR("t5");
    check_vocab(v, LG_BAD_INPUT, "tokenizer.ggml.model: \"t5\" is not served; served: gpt2, llama");
    v = ok;
    v.pre = LG_STR("klingon\n");
    check_vocab(
        v, LG_BAD_INPUT,
        "tokenizer.ggml.pre: \"klingon\\x0a\" is not served; served: default, gpt-2, phi-2,");
    v = ok;
    v.merge_count = 2;
    check_vocab(v, LG_BAD_INPUT, "merges[1]: \"ba\" is no token");
    v = ok;
    v.merges = tokens;
    check_vocab(v, LG_BAD_INPUT, "tokenizer.ggml.merges[0] is not \"left right\"");
    v = ok;
    const LgStr part[] = {LG_STR("a"), LG_STR("b"), LG_STR("\x96"), LG_STR("ab")};
    v.tokens = part; /* found in a text, it would cut a character in two */
    check_vocab(v, LG_BAD_INPUT, "added token 2: its text is not UTF-8");
    v = ok;
    v.add_bos = true;
    v.bos_id = 4;
    check_vocab(v, LG_BAD_INPUT, "has the id 4, which is no token");
}

static void gguf_bos_and_eos_go_around_texts(void **state) {
    (void)state;
    const LgStr tokens[] = {LG_STR("a"), LG_STR("<s>"), LG_STR("</s>")};
    const int32_t types[] = {1, 3, 3};
    const TokenizerVocab v = {.model = LG_STR("gpt2"),
                              .pre = LG_STR(""),
                              .tokens = tokens,
                              .token_count = 3,
                              .types = types,
                              .add_bos = true,
                              .add_eos = true,
                              .bos_id = 1,
                              .eos_id = 2};
    Tokenizer *t = NULL;
    LgError err = {0};
    TokenIds ids = {0};
    assert_int_equal(tokenizer_from_vocab(&v, &t, &err), LG_OK);
    assert_int_equal(tokenizer_encode(t, LG_STR("a"), false, &ids, &err), LG_OK);
    assert_int_equal(ids.count, 3);
    assert_int_equal(ids.ids[0], 1);
    assert_int_equal(ids.ids[2], 2);
    assert_int_equal(tokenizer_encode_bare(t, LG_STR("a"), false, &ids, &err), LG_OK);
    assert_int_equal(ids.count, 4);
    token_ids_clear(&ids);
    tokenizer_destroy(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_good_file_loads),
        cmocka_unit_test(types_that_are_not_served_are_named),
        cmocka_unit_test(byte_level_is_whole_or_absent),
        cmocka_unit_test(decoders_stand_in_their_order),
        cmocka_unit_test(normalizers_and_metaspace_are_checked),
        cmocka_unit_test(model_flags_that_are_not_served_are_named),
        cmocka_unit_test(broken_vocabularies_are_refused),
        cmocka_unit_test(broken_added_tokens_are_refused),
        cmocka_unit_test(patterns_that_would_mean_something_else_are_refused),
        cmocka_unit_test(templates_that_are_not_simple_are_refused),
        cmocka_unit_test(text_that_is_no_json_is_refused),
        cmocka_unit_test(gguf_vocabularies_that_are_not_served_are_named),
        cmocka_unit_test(gguf_bos_and_eos_go_around_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
