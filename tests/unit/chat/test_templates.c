/* Templates in the style of published models, for conversations with tools and without, against
 * what jinja2 makes of them (tools/make_chat_templates.py). */
#include "tests/unit/chat/fixtures.h"

static ChatTemplate *read_template(const char *name) {
    Buf path, source;
    LgError err = {0};
    ChatTemplate *t = NULL;
    buf_init(&path);
    buf_init(&source);
    buf_printf(&path, LG_TEST_DATA "/chat/templates/%s.jinja", name);
    if (file_read(path.data, (size_t)1 << 20, &source, &err) != LG_OK ||
        chat_template_parse(buf_view(&source), &t, &err) != LG_OK)
        fail_msg("%s: %s", name, err.message);
    buf_clear(&path);
    buf_clear(&source);
    return t;
}

static bool renders(const ChatTemplate *t, const json_t *context, const json_t *want,
                    const char *template, const char *conversation) {
    LgError err = {0};
    Buf out;
    buf_init(&out);
    LgStatus status = chat_template_render(t, context, &out, &err);
    LgStr text = lg_json_string(want);
    bool same = text.ptr ? status == LG_OK && lg_str_eq(buf_view(&out), text)
                         : status == LG_BAD_INPUT && err.offset > 0;
    if (!same)
        printf("%s, %s:\n  want %.*s\n  got  %s %s\n", template, conversation, LG_STR_ARG(text),
               out.data, err.message);
    buf_clear(&out);
    return same;
}

static void every_template_renders_as_jinja2_does(void **state) {
    (void)state;
    json_t *file = fixture_json(LG_TEST_DATA "/chat/templates.json");
    json_t *contexts = json_object_get(file, "contexts");
    json_t *templates = json_object_get(file, "templates"), *renderings, *want;
    const char *name, *conversation;
    size_t failed = 0, texts = 0;
    json_object_foreach(templates, name, renderings) {
        ChatTemplate *t = read_template(name);
        json_object_foreach(renderings, conversation, want) {
            failed +=
                !renders(t, json_object_get(contexts, conversation), want, name, conversation);
            texts += json_is_string(want);
        }
        chat_template_destroy(t);
    }
    assert_int_equal(failed, 0);
    assert_true(json_object_size(templates) >= 20);
    assert_true(texts >= 250);
    json_decref(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_template_renders_as_jinja2_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
