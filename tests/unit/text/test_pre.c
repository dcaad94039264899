/* The names of tokenizer.ggml.pre against the pre-tokenizers that the models publish
 * (tools/make_pre_cases.py). */
#include "tests/unit/text/fixtures.h"

typedef struct Vocab {
    LgStr tokens[4096], *merges;
    int32_t types[4096];
    Buf merge_texts;
    TokenizerVocab vocab;
} Vocab;

/* The small tokenizer's vocabulary as a GGUF file has it. */
static void read_vocab(const json_t *base, Vocab *v) {
    const json_t *model = json_object_get(base, "model"), *added, *value;
    const char *key;
    size_t at, count = 0;
    json_object_foreach((json_t *)json_object_get(model, "vocab"), key, value) {
        size_t id = (size_t)json_integer_value(value);
        v->tokens[id] = lg_str(key);
        v->types[id] = 1;
        count = id >= count ? id + 1 : count;
    }
    json_array_foreach(json_object_get(base, "added_tokens"), at, added) {
        size_t id = (size_t)json_integer_value(json_object_get(added, "id"));
        v->tokens[id] = lg_json_string(json_object_get(added, "content"));
        v->types[id] = json_is_true(json_object_get(added, "special")) ? 3 : 4;
        count = id >= count ? id + 1 : count;
    }
    const json_t *merges = json_object_get(model, "merges"), *pair;
    size_t merge_count = json_array_size(merges), offset = 0;
    v->merges = calloc(merge_count, sizeof *v->merges);
    buf_init(&v->merge_texts);
    json_array_foreach(merges, at, pair) {
        buf_printf(&v->merge_texts, "%s %s", json_string_value(json_array_get(pair, 0)),
                   json_string_value(json_array_get(pair, 1)));
        v->merges[at].len = v->merge_texts.len - offset;
        offset = v->merge_texts.len;
    }
    offset = 0;
    for (size_t i = 0; i < merge_count; offset += v->merges[i++].len)
        v->merges[i].ptr = v->merge_texts.data + offset;
    v->vocab = (TokenizerVocab){.model = LG_STR("gpt2"),
                                .tokens = v->tokens,
                                .token_count = count,
                                .types = v->types,
                                .merges = v->merges,
                                .merge_count = merge_count};
}

static size_t check_name(Vocab *v, const char *name, const json_t *texts, const json_t *cases) {
    Tokenizer *t = NULL;
    LgError err = {0};
    size_t failed = 0;
    v->vocab.pre = lg_str(name);
    if (tokenizer_from_vocab(&v->vocab, &t, &err) != LG_OK)
        fail_msg("%s: %s", name, err.message);
    for (size_t i = 0; i < json_array_size(texts); i++) {
        TokenIds ids = {0};
        LgStr text = lg_json_string(json_array_get(texts, i));
        const json_t *want = json_array_get(cases, i);
        assert_int_equal(tokenizer_encode(t, text, false, &ids, &err), LG_OK);
        bool same = ids.count == json_array_size(want);
        for (size_t k = 0; same && k < ids.count; k++)
            same = ids.ids[k] == json_integer_value(json_array_get(want, k));
        if (!same)
            printf("%s: \"%.*s\"\n", name, LG_STR_ARG(text));
        failed += !same;
        token_ids_clear(&ids);
    }
    tokenizer_destroy(t);
    return failed;
}

static void every_name_splits_as_the_published_tokenizer(void **state) {
    (void)state;
    static Vocab v;
    json_t *base = fixture_json(LG_TEST_DATA "/text/tiny-tokenizer.json");
    json_t *file = fixture_json(LG_TEST_DATA "/text/pre.json");
    json_t *names = json_object_get(file, "names"), *cases;
    const char *name;
    size_t failed = 0;
    read_vocab(base, &v);
    json_object_foreach(names, name, cases) failed +=
        check_name(&v, name, json_object_get(file, "texts"), cases);
    assert_int_equal(failed, 0);
    assert_true(json_object_size(names) >= 11);
    buf_clear(&v.merge_texts);
    free(v.merges);
    json_decref(base);
    json_decref(file);
}

/* Of one model in different years, or of another with the same tokenizer. */
static void names_of_one_family_are_alike(void **state) {
    (void)state;
    static Vocab v;
    static const struct {
        const char *name, *like;
    } pairs[] = {{"llama3", "llama-bpe"}, {"llama-v3", "llama-bpe"},     {"falcon3", "llama-bpe"},
                 {"glm4", "llama-bpe"},   {"smaug-bpe", "dbrx"},         {"chatglm-bpe", "dbrx"},
                 {"megrez", "qwen2"},     {"deepseek-r1-qwen", "qwen2"}, {"llama4", "gpt-4o"},
                 {"phi-2", "gpt-2"},      {"exaone4", "gpt-2"},          {"mpt", "olmo"},
                 {"starcoder", "smollm"}, {"refact", "smollm"},          {"command-r", "smollm"},
                 {"codeshell", "smollm"}, {"minerva-7b", "smollm"},      {"exaone", "smollm"}};
    json_t *base = fixture_json(LG_TEST_DATA "/text/tiny-tokenizer.json");
    json_t *file = fixture_json(LG_TEST_DATA "/text/pre.json");
    size_t failed = 0;
    read_vocab(base, &v);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        failed += check_name(&v, pairs[i].name, json_object_get(file, "texts"),
                             json_object_get(json_object_get(file, "names"), pairs[i].like));
    assert_int_equal(failed, 0);
    buf_clear(&v.merge_texts);
    free(v.merges);
    json_decref(base);
    json_decref(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_name_splits_as_the_published_tokenizer),
        cmocka_unit_test(names_of_one_family_are_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
