/* Every construct against what jinja2 makes of it, set up as transformers sets it up
 * (tools/make_chat_cases.py). */
#include "tests/unit/chat/fixtures.h"

static void every_construct_renders_as_jinja2_does(void **state) {
    (void)state;
    json_t *file = fixture_json(LG_TEST_DATA "/chat/cases.json");
    const json_t *cases = json_object_get(file, "cases"),
                 *context = json_object_get(file, "context");
    size_t failed = 0, texts = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        LgStr source = lg_json_string(json_object_get(c, "source"));
        LgStr want = lg_json_string(json_object_get(c, "text"));
        LgError err = {0};
        Buf out;
        buf_init(&out);
        LgStatus status = render(source, context, &out, &err);
        bool ok = want.ptr ? status == LG_OK && lg_str_eq(buf_view(&out), want) : status != LG_OK;
        texts += want.ptr != NULL;
        if (!ok) {
            printf("%.*s\n  want %.*s\n  got  %s %s\n", LG_STR_ARG(source), LG_STR_ARG(want),
                   out.data, err.message);
            failed++;
        }
        buf_clear(&out);
    }
    json_decref(file);
    assert_int_equal(failed, 0);
    assert_true(texts > 180);
}

/* Where jinja2 fails, so does this; a line is always given, and in the template's own counting. */
static void every_error_names_its_line(void **state) {
    (void)state;
    json_t *file = fixture_json(LG_TEST_DATA "/chat/cases.json");
    const json_t *cases = json_object_get(file, "cases"),
                 *context = json_object_get(file, "context");
    size_t errors = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        if (!json_object_get(c, "error"))
            continue;
        Buf source, out;
        LgError err = {0};
        buf_init(&source);
        buf_init(&out);
        buf_puts(&source, "first\n\nthird ");
        buf_str(&source, lg_json_string(json_object_get(c, "source")));
        LgStatus status = render(buf_view(&source), context, &out, &err);
        if (status == LG_OK || err.offset < 3 || !strstr(err.message, "chat template: line "))
            fail_msg("%s: %d %s", source.data, status, err.message);
        errors++;
        buf_clear(&source);
        buf_clear(&out);
    }
    json_decref(file);
    assert_true(errors > 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_construct_renders_as_jinja2_does),
        cmocka_unit_test(every_error_names_its_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
