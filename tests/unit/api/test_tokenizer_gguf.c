/* A conversation's way to ids: the template and the vocabulary of a GGUF's metadata, together. */
#include "api/internal.h"
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

enum { KIND_U32 = 4, KIND_I32 = 5, KIND_F32 = 6, KIND_BOOL = 7, KIND_STRING = 8, KIND_ARRAY = 9 };

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
    Tokenizer *t = NULL;
    LgError err = {0};
    if (api_gguf_tokenizer(g, &t, &err) != LG_OK)
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

/* A vocabulary of pieces with scores; prefix: 0 or 1, or -1 where the file says nothing. */
static Gguf *open_pieces(Buf *b, const char *architecture, int prefix, int bos) {
    static const struct {
        const char *text;
        int32_t type;
        float score;
    } pieces[] = {{"<unk>", 2, 0},
                  {"<s>", 3, 0},
                  {"</s>", 3, 0},
                  {"<0xC3>", 6, 0},
                  {"<0xA9>", 6, 0},
                  {"h", 1, -5},
                  {"i", 1, -6},
                  {"hi", 1, -2},
                  {"\xe2\x96\x81", 1, -4},
                  {"\xe2\x96\x81h", 1, -1}};
    enum { COUNT = sizeof pieces / sizeof pieces[0] };
    buf_puts(b, "GGUF");
    put_u32(b, 3);
    put_u64(b, 0);
    put_u64(b, 7u + (prefix >= 0) + (bos >= 0));
    put_string_key(b, "general.architecture", architecture);
    put_string_key(b, "tokenizer.ggml.model", "llama");
    put_string_key(b, "tokenizer.chat_template", "{{ bos_token }}plain");
    put_string_key(b, "tokenizer.chat_template.tool_use", "{{ unk_token is defined }}tools");
    put_array_key(b, "tokenizer.ggml.tokens", KIND_STRING, COUNT);
    for (size_t i = 0; i < COUNT; i++)
        put_str(b, pieces[i].text);
    put_array_key(b, "tokenizer.ggml.token_type", KIND_I32, COUNT);
    for (size_t i = 0; i < COUNT; i++)
        buf_append(b, &pieces[i].type, sizeof pieces[i].type);
    put_array_key(b, "tokenizer.ggml.scores", KIND_F32, COUNT);
    for (size_t i = 0; i < COUNT; i++)
        buf_append(b, &pieces[i].score, sizeof pieces[i].score);
    if (prefix >= 0) {
        put_str(b, "tokenizer.ggml.add_space_prefix");
        put_u32(b, KIND_BOOL);
        buf_putc(b, (char)prefix);
    }
    if (bos >= 0) {
        put_str(b, "tokenizer.ggml.bos_token_id");
        put_u32(b, KIND_U32);
        put_u32(b, (uint32_t)bos);
    }
    Gguf *g = NULL;
    LgError err = {0};
    if (gguf_parse((const unsigned char *)b->data, b->len, "built", &g, &err) != LG_OK)
        fail_msg("%s", err.message);
    return g;
}

static void check_pieces(const char *architecture, int prefix, int bos, const char *text,
                         const char *want) {
    Buf file, got;
    buf_init(&file);
    buf_init(&got);
    Gguf *g = open_pieces(&file, architecture, prefix, bos);
    Tokenizer *t = tokenizer_of(g);
    TokenIds ids = encode(t, lg_str(text), false);
    for (size_t i = 0; i < ids.count; i++)
        buf_printf(&got, "%s%d", i ? " " : "", ids.ids[i]);
    assert_string_equal(got.data, want);
    token_ids_clear(&ids);
    tokenizer_destroy(t);
    gguf_close(g);
    buf_clear(&file);
    buf_clear(&got);
}

/* What a file leaves out means what it means to llama.cpp: a token in front, which is the second
 * one, and a space. */
static void a_gguf_gives_pieces_and_scores(void **state) {
    (void)state;
    check_pieces("llama", -1, -1, "hi\xc3\xa9", "1 9 6 3 4");
    check_pieces("llama", 1, 2, "hi", "2 9 6");
    check_pieces("gemma3", 0, -1, "hi hi", "1 7 9 6");
    check_pieces("phi3", 0, -1, "</s>  hi", "1 2 7");
    check_pieces("llama", 0, -1, "</s>  hi", "1 2 8 9 6");
}

static void a_gguf_gives_templates_by_name_and_tokens(void **state) {
    (void)state;
    Buf file, out;
    LgError err = {0};
    ChatSet set = {0};
    json_t *none = json_array();
    buf_init(&file);
    buf_init(&out);
    Gguf *g = open_pieces(&file, "llama", -1, 1);
    assert_int_equal(api_gguf_templates(g, &set, &err), LG_OK);
    assert_int_equal(chat_set_render(&set, none, NULL, false, &out, &err), LG_OK);
    assert_int_equal(chat_set_render(&set, none, none, false, &out, &err), LG_OK);
    assert_string_equal(out.data, "<s>plainFalsetools");
    chat_set_clear(&set);
    json_decref(none);
    gguf_close(g);
    buf_clear(&file);
    buf_clear(&out);
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
        cmocka_unit_test(a_gguf_gives_pieces_and_scores),
        cmocka_unit_test(a_gguf_gives_templates_by_name_and_tokens),
        cmocka_unit_test(conversations_become_the_goldens_ids),
        cmocka_unit_test(the_models_own_metadata_gives_the_goldens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
