/* Which template serves a request, and what it sees besides the messages. */
#include "chat/set.h"
#include "tests/unit/chat/fixtures.h"

static const char config_text[] =
    "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"</s>\"},\"pad_token\":null,"
    "\"chat_template\":\"config {{ bos_token }}{{ eos_token }}{{ pad_token is defined }}\"}";
static const char list_text[] =
    "{\"chat_template\":[{\"name\":\"rag\",\"template\":\"{% nonsense %}\"},"
    "{\"name\":\"default\",\"template\":\"plain {{ tools is none }}\"},"
    "{\"name\":\"tool_use\",\"template\":\"tools {{ tools | length }}\"}]}";

static ChatSet make(ChatFiles files) {
    ChatSet set = {0};
    LgError err = {0};
    if (chat_set_from_files(&files, &set, &err) != LG_OK)
        fail_msg("%s", err.message);
    return set;
}

static void check(const ChatSet *set, bool with_tools, const char *want) {
    json_t *messages = json_pack("[{s:s}]", "role", "user"), *tools = json_pack("[{},{}]");
    LgError err = {0};
    Buf out;
    buf_init(&out);
    if (chat_set_render(set, messages, with_tools ? tools : NULL, true, &out, &err) != LG_OK)
        buf_puts(&out, err.message);
    assert_string_equal(out.data, want);
    buf_clear(&out);
    json_decref(messages);
    json_decref(tools);
}

static void a_string_in_the_config_serves_every_request(void **state) {
    (void)state;
    ChatSet set = make((ChatFiles){.config = LG_STR(config_text)});
    check(&set, false, "config <s></s>False");
    check(&set, true, "config <s></s>False");
    chat_set_clear(&set);
}

static void a_list_has_a_template_for_tools(void **state) {
    (void)state;
    ChatSet set = make((ChatFiles){.config = LG_STR(list_text)});
    check(&set, false, "plain True");
    check(&set, true, "tools 2");
    chat_set_clear(&set);
}

static void jinja_files_take_the_place_of_the_config(void **state) {
    (void)state;
    ChatSet set =
        make((ChatFiles){.config = LG_STR(list_text), .jinja = LG_STR("file {{ tools is none }}")});
    check(&set, false, "file True");
    check(&set, true, "file False");
    chat_set_clear(&set);
    set = make((ChatFiles){.config = LG_STR(config_text),
                           .jinja = LG_STR("file {{ bos_token }}"),
                           .tool_jinja = LG_STR("tool file {{ eos_token }}")});
    check(&set, false, "file <s>");
    check(&set, true, "tool file </s>");
    chat_set_clear(&set);
}

static void templates_see_what_transformers_gives_them(void **state) {
    (void)state;
    ChatSet set = make((ChatFiles){
        .jinja = LG_STR("{{ messages[0].role }} {{ add_generation_prompt }} {{ tools is none }} "
                        "{{ documents is none }} {{ bos_token is defined }}")});
    check(&set, false, "user True True True False");
    chat_set_clear(&set);
}

static void requests_without_a_template_are_refused(void **state) {
    (void)state;
    ChatSet set = make((ChatFiles){.config = LG_STR("{\"chat_template\":null}")});
    check(&set, false, "there is no chat template");
    chat_set_clear(&set);
    set = make((ChatFiles){.tool_jinja = LG_STR("x")});
    check(&set, false, "the only chat template is \"tool_use\", which needs tools");
    check(&set, true, "x");
    chat_set_clear(&set);
}

static void files_that_cannot_be_read_are_named(void **state) {
    (void)state;
    static const struct {
        const char *config, *jinja, *tool_jinja, *part;
    } cases[] = {
        {"{", "", "", "tokenizer_config.json: "},
        {"{\"chat_template\":5}", "", "", "\"chat_template\" is neither a string"},
        {"{\"chat_template\":[{}]}", "", "", "chat_template[0] has no \"name\""},
        {"", "a\n{% include x %}", "", "line 2"},
        {"", "a", "\n\n{{ 1 | nope }}", "template \"tool_use\": chat template: line 3"},
        {"{\"chat_template\":[{\"name\":\"default\",\"template\":\"\"},"
         "{\"name\":\"default\",\"template\":\"\"}]}",
         "", "", "two templates named \"default\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ChatSet set = {0};
        LgError err = {0};
        const ChatFiles files = {lg_str(cases[i].config), lg_str(cases[i].jinja),
                                 lg_str(cases[i].tool_jinja)};
        assert_int_equal(chat_set_from_files(&files, &set, &err), LG_BAD_INPUT);
        if (!strstr(err.message, cases[i].part))
            fail_msg("\"%s\", want \"%s\"", err.message, cases[i].part);
        assert_null(set.plain);
        assert_null(set.tools);
    }
}

static void failed_allocations_leave_nothing(void **state) {
    (void)state;
    const ChatFiles files = {.config = LG_STR(list_text)};
    bool done = false;
    for (long n = 1; !done; n++) {
        ChatSet set = {0};
        LgError err = {0};
        json_t *messages = json_array();
        Buf out;
        buf_init(&out);
        lg_alloc_fail_at(n, (int)(n % 2));
        LgStatus status = chat_set_from_files(&files, &set, &err);
        if (status == LG_OK)
            status = chat_set_add_token(&set, "bos_token", LG_STR("<s>"), &err);
        if (status == LG_OK)
            status = chat_set_render(&set, messages, NULL, false, &out, &err);
        done = lg_alloc_fail_at(0, 0) < n;
        assert_int_equal(status, done ? LG_OK : LG_NO_MEMORY);
        chat_set_clear(&set);
        json_decref(messages);
        buf_clear(&out);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_string_in_the_config_serves_every_request),
        cmocka_unit_test(a_list_has_a_template_for_tools),
        cmocka_unit_test(jinja_files_take_the_place_of_the_config),
        cmocka_unit_test(templates_see_what_transformers_gives_them),
        cmocka_unit_test(requests_without_a_template_are_refused),
        cmocka_unit_test(files_that_cannot_be_read_are_named),
        cmocka_unit_test(failed_allocations_leave_nothing),
    };
    lg_mem_install_hooks();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
