/* Conversations that Hugging Face transformers rendered by the models' own templates. */
#include "tests/unit/chat/fixtures.h"

static size_t check(LgStr source, const char *goldens) {
    json_t *cases = fixture_json(goldens);
    ChatTemplate *t = NULL;
    LgError err = {0};
    size_t count = json_array_size(cases);
    if (chat_template_parse(source, &t, &err) != LG_OK)
        fail_msg("%s", err.message);
    for (size_t i = 0; i < count; i++) {
        json_t *c = json_array_get(cases, i);
        LgStr want = lg_json_string(json_object_get(c, "text"));
        Buf out;
        buf_init(&out);
        if (chat_template_render(t, c, &out, &err) != LG_OK)
            fail_msg("%s", err.message);
        if (!lg_str_eq(buf_view(&out), want))
            fail_msg("case %zu: got\n%s\nwant\n%.*s", i, out.data, LG_STR_ARG(want));
        buf_clear(&out);
    }
    chat_template_destroy(t);
    json_decref(cases);
    return count;
}

static size_t check_file(const char *template, const char *goldens) {
    Buf source;
    LgError err = {0};
    buf_init(&source);
    if (file_read(template, 1 << 20, &source, &err) != LG_OK)
        fail_msg("%s", err.message);
    size_t count = check(buf_view(&source), goldens);
    buf_clear(&source);
    return count;
}

static void tiny_conversations_match(void **state) {
    (void)state;
    assert_true(
        check_file(LG_TEST_DATA "/chat/tiny.jinja", LG_TEST_DATA "/chat/tiny-goldens.json") >= 24);
}

static void smollm2_conversations_match(void **state) {
    (void)state;
    assert_true(check_file(LG_TEST_DATA "/chat/smollm2.jinja",
                           LG_TEST_DATA "/chat/smollm2-goldens.json") >= 12);
}

static void shared_conversations_match_where_present(void **state) {
    (void)state;
    if (file_exists(LG_SHARED_DATA "/smollm2/chat-goldens.json"))
        check_file(LG_TEST_DATA "/chat/smollm2.jinja", LG_SHARED_DATA "/smollm2/chat-goldens.json");
    if (!file_exists(LG_SHARED_DATA "/tiny/tokenizer-goldens/chat.json"))
        return;
    json_t *config = fixture_json(LG_SHARED_DATA "/tiny/tokenizer/tokenizer_config.json");
    check(lg_json_string(json_object_get(config, "chat_template")),
          LG_SHARED_DATA "/tiny/tokenizer-goldens/chat.json");
    json_decref(config);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiny_conversations_match),
        cmocka_unit_test(smollm2_conversations_match),
        cmocka_unit_test(shared_conversations_match_where_present),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
