/* Messages and the table of statuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"

static void every_status_has_a_text_and_an_http_code(void **state) {
    (void)state;
#define CHECK_ROW(name, http, text)                                                                \
    assert_string_equal(lg_status_text(LG_##name), text);                                          \
    assert_int_equal(lg_status_http(LG_##name), http);
    LG_STATUS_MAP(CHECK_ROW)
#undef CHECK_ROW
}

static void a_number_that_is_no_status_reads_as_internal(void **state) {
    (void)state;
    assert_string_equal(lg_status_text((LgStatus)99), lg_status_text(LG_INTERNAL));
    assert_int_equal(lg_status_http((LgStatus)-1), 500);
}

static void fail_fills_the_error_and_returns_its_status(void **state) {
    (void)state;
    LgError err = {0};
    assert_int_equal(lg_fail(&err, LG_LIMIT, 7, "rank %d", 96), LG_LIMIT);
    assert_int_equal(err.status, LG_LIMIT);
    assert_int_equal(err.offset, 7);
    assert_string_equal(err.message, "rank 96");
    assert_int_equal(lg_fail(NULL, LG_IO, 0, "unseen"), LG_IO);
}

static void context_goes_in_front(void **state) {
    (void)state;
    LgError err = {0};
    lg_fail(&err, LG_BAD_INPUT, 3, "no axis");
    assert_int_equal(lg_fail_context(&err, LG_INTERNAL, "adapter \"%s\"", "fr"), LG_BAD_INPUT);
    assert_string_equal(err.message, "adapter \"fr\": no axis");
    assert_int_equal(err.offset, 3);
    assert_int_equal(lg_fail_context(NULL, LG_IO, "x"), LG_IO);
}

static void a_message_may_quote_the_error_that_it_replaces(void **state) {
    (void)state;
    LgError err = {0};
    lg_fail(&err, LG_IO, 0, "first");
    lg_fail(&err, LG_IO, 0, "second after %s", err.message);
    assert_string_equal(err.message, "second after first");
}

static void a_long_message_is_cut_between_code_points(void **state) {
    (void)state;
    LgError err = {0};
    char text[1201];
    for (int i = 0; i < 400; i++)
        memcpy(text + 3 * i, "\xe2\x82\xac", 3); /* three bytes each */
    text[1200] = 0;
    lg_fail(&err, LG_IO, 0, "ab%s", text);
    size_t len = strlen(err.message);
    assert_in_range(len, 990, 999);
    assert_int_equal((len - 2) % 3, 0);
    lg_fail_context(&err, LG_IO, "%s", text);
    assert_int_equal(strlen(err.message) % 3, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_a_text_and_an_http_code),
        cmocka_unit_test(a_number_that_is_no_status_reads_as_internal),
        cmocka_unit_test(fail_fills_the_error_and_returns_its_status),
        cmocka_unit_test(context_goes_in_front),
        cmocka_unit_test(a_message_may_quote_the_error_that_it_replaces),
        cmocka_unit_test(a_long_message_is_cut_between_code_points),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
