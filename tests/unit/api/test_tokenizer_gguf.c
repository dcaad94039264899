/* A conversation's way to ids: the template and the vocabulary of a GGUF's metadata, together. */
#include "chat/template.h"
#include "formats/gguf.h"
#include "tests/unit/text/fixtures.h"

/* A GGUF without tensors, built key by key. */
static void put_u32(Buf *b, uint32_t v) {
    buf_append(b, &v, sizeof v);
}

static void put_u64(Buf *b, uint64_t v) {
    buf_append(b, &v, sizeof v);
}

static void put_str(Buf *b, const char *s) {
    put_u64(b, strlen(s));
    buf_puts(b, s);
}

enum { KIND_I32 = 5, KIND_STRING = 8, KIND_ARRAY = 9 };

static void put_string_key(Buf *b, const char *key, const char *value) {
    put_str(b, key);
    put_u32(b, KIND_STRING);
    put_str(b, value);
}

static void put_array_key(Buf *b, const char *key, uint32_t kind, uint64_t count) {
    put_str(b, key);
    put_u32(b, KIND_ARRAY);
    put_u32(b, kind);
    put_u64(b, count);
}

static const char *const tokens[] = {"<s>", "h", "i", "hi", "!", "\xc4\xa0"};
static const int32_t types[] = {3, 1, 1, 1, 1, 1};

static void build(Buf *b) {
    buf_puts(b, "GGUF");
    put_u32(b, 3);
    put_u64(b, 0);
    put_u64(b, 6);
    put_string_key(b, "tokenizer.ggml.model", "gpt2");
    put_string_key(b, "tokenizer.ggml.pre", "gpt-2");
    put_string_key(b, "tokenizer.chat_template",
                   "{% for m in messages %}<s>{{ m.content }}{% endfor %}");
    put_array_key(b, "tokenizer.ggml.tokens", KIND_STRING, 6);
    for (size_t i = 0; i < 6; i++)
        put_str(b, tokens[i]);
    put_array_key(b, "tokenizer.ggml.token_type", KIND_I32, 6);
    for (size_t i = 0; i < 6; i++)
        buf_append(b, &types[i], sizeof types[i]);
    put_array_key(b, "tokenizer.ggml.merges", KIND_STRING, 1);
    put_str(b, "h i");
}

static LgStr text_of(const Gguf *g, const char *key) {
    const ConfigValue *v = gguf_get(g, key);
    return v && v->kind == CONFIG_STRING ? v->string : (LgStr){NULL, 0};
}

static Tokenizer *tokenizer_of(const Gguf *g) {
    TokenizerVocab v = {.model = text_of(g, "tokenizer.ggml.model"),
                        .pre = text_of(g, "tokenizer.ggml.pre")};
    v.token_count = gguf_strings(g, "tokenizer.ggml.tokens", &v.tokens);
    v.merge_count = gguf_strings(g, "tokenizer.ggml.merges", &v.merges);
    assert_int_equal(gguf_ints(g, "tokenizer.ggml.token_type", &v.types), v.token_count);
    Tokenizer *t = NULL;
    LgError err = {0};
    if (tokenizer_from_vocab(&v, &t, &err) != LG_OK)
        fail_msg("%s", err.message);
    return t;
}

static TokenIds encode(const Tokenizer *t, LgStr text, bool special_as_text) {
    TokenIds ids = {0};
    LgError err = {0};
    if (tokenizer_encode(t, text, special_as_text, &ids, &err) != LG_OK)
        fail_msg("%s", err.message);
    return ids;
}

static void check_ids(const Tokenizer *t, LgStr text, bool special_as_text, const json_t *want) {
    TokenIds got = encode(t, text, special_as_text);
    bool same = got.count == json_array_size(want);
    for (size_t i = 0; same && i < got.count; i++)
        same = got.ids[i] == json_integer_value(json_array_get(want, i));
    if (!same)
        fail_msg("ids differ for \"%.*s\"", LG_STR_ARG(text));
    token_ids_clear(&got);
}

/* Each conversation's rendering and its ids. */
static size_t check_conversations(LgStr source, const Tokenizer *t, const char *goldens) {
    json_t *cases = fixture_json(goldens);
    ChatTemplate *template = NULL;
    LgError err = {0};
    size_t count = json_array_size(cases);
    if (chat_template_parse(source, &template, &err) != LG_OK)
        fail_msg("%s", err.message);
    for (size_t i = 0; i < count; i++) {
        const json_t *c = json_array_get(cases, i);
        Buf out;
        buf_init(&out);
        if (chat_template_render(template, c, &out, &err) != LG_OK)
            fail_msg("%s", err.message);
        assert_true(lg_str_eq(buf_view(&out), lg_json_string(json_object_get(c, "text"))));
        check_ids(t, buf_view(&out), false, json_object_get(c, "ids"));
        buf_clear(&out);
    }
    chat_template_destroy(template);
    json_decref(cases);
    return count;
}

static void a_gguf_gives_template_and_vocabulary(void **state) {
    (void)state;
    Buf file, text;
    Gguf *g = NULL;
    ChatTemplate *template = NULL;
    LgError err = {0};
    buf_init(&file);
    buf_init(&text);
    build(&file);
    if (gguf_parse((const unsigned char *)file.data, file.len, "built", &g, &err) != LG_OK)
        fail_msg("%s", err.message);
    Tokenizer *t = tokenizer_of(g);
    assert_int_equal(chat_template_parse(text_of(g, "tokenizer.chat_template"), &template, &err),
                     LG_OK);
    json_t *context = json_pack("{s:[{s:s},{s:s}]}", "messages", "content", "hi!", "content", " h");
    assert_int_equal(chat_template_render(template, context, &text, &err), LG_OK);
    assert_string_equal(text.data, "<s>hi!<s> h");
    TokenIds ids = encode(t, buf_view(&text), false);
    const int32_t want[] = {0, 3, 4, 0, 5, 1};
    assert_int_equal(ids.count, 6);
    assert_memory_equal(ids.ids, want, sizeof want);
    token_ids_clear(&ids);
    json_decref(context);
    chat_template_destroy(template);
    tokenizer_destroy(t);
    gguf_close(g);
    buf_clear(&file);
    buf_clear(&text);
}

static LgStr read_text(const char *path, Buf *out) {
    LgError err = {0};
    if (file_read(path, 1 << 20, out, &err) != LG_OK)
        fail_msg("%s", err.message);
    return buf_view(out);
}

static void conversations_become_the_goldens_ids(void **state) {
    (void)state;
    Buf source;
    buf_init(&source);
    Tokenizer *tiny = fixture_tokenizer_json(LG_TEST_DATA "/text/tiny-tokenizer.json");
    Tokenizer *smollm2 = fixture_tokenizer_vocab(LG_TEST_DATA "/text/smollm2-vocab.json");
    LgStr text = read_text(LG_TEST_DATA "/chat/tiny.jinja", &source);
    assert_true(check_conversations(text, tiny, LG_TEST_DATA "/chat/tiny-goldens.json") >= 24);
    buf_reset(&source);
    text = read_text(LG_TEST_DATA "/chat/smollm2.jinja", &source);
    assert_true(check_conversations(text, smollm2, LG_TEST_DATA "/chat/smollm2-goldens.json") >=
                12);
    tokenizer_destroy(tiny);
    tokenizer_destroy(smollm2);
    buf_clear(&source);
}

/* The model itself, where it was downloaded: the metadata as the file has it. */
static void the_models_own_metadata_gives_the_goldens(void **state) {
    (void)state;
    Gguf *g = NULL;
    LgError err = {0};
    if (!file_exists(LG_SMOLLM2))
        return;
    if (gguf_open(LG_SMOLLM2, &g, &err) != LG_OK)
        fail_msg("%s", err.message);
    Tokenizer *t = tokenizer_of(g);
    check_conversations(text_of(g, "tokenizer.chat_template"), t,
                        LG_TEST_DATA "/chat/smollm2-goldens.json");
    json_t *cases = fixture_json(LG_TEST_DATA "/text/smollm2-snippets.json");
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i),
                     *plain = json_object_get(c, "ids_special_as_text");
        check_ids(t, lg_json_string(json_object_get(c, "text")), false, json_object_get(c, "ids"));
        if (plain)
            check_ids(t, lg_json_string(json_object_get(c, "text")), true, plain);
    }
    json_decref(cases);
    tokenizer_destroy(t);
    gguf_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gguf_gives_template_and_vocabulary),
        cmocka_unit_test(conversations_become_the_goldens_ids),
        cmocka_unit_test(the_models_own_metadata_gives_the_goldens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
