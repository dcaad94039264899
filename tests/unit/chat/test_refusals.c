/* What is outside of the subset or wrong: the message says where, what, and what would be accepted.
 */
#include "tests/unit/chat/fixtures.h"

#define NONE "{}"

static void statements_outside_the_subset_are_refused_at_parse(void **state) {
    (void)state;
    check_refusal("a\n  {% include 'x' %}", NONE, LG_BAD_INPUT, 2,
                  "line 2, column 6: expected a statement (served: if, for,");
    check_refusal("{% extends 'x' %}", NONE, LG_BAD_INPUT, 1, "found extends");
    check_refusal("{% call m() %}{% endcall %}", NONE, LG_BAD_INPUT, 1, "found call");
    check_refusal("{% for x in y recursive %}{% endfor %}", NONE, LG_BAD_INPUT, 1,
                  "recursive loops are not served");
    check_refusal("{{ f(*a) }}", NONE, LG_BAD_INPUT, 1, "* and ** in a call are not served");
    check_refusal("{{ a[1, 2] }}", NONE, LG_BAD_INPUT, 1, "a tuple as an index is not served");
}

static void unknown_names_are_refused_with_the_list_of_known_ones(void **state) {
    (void)state;
    check_refusal("\n\n{{ 1 | wordcount }}", NONE, LG_BAD_INPUT, 3,
                  "column 8: the filter \"wordcount\" is not served; served: trim, upper,");
    check_refusal("{{ 1 is escaped }}", NONE, LG_BAD_INPUT, 1,
                  "the test \"escaped\" is not served; served: defined,");
    check_refusal("{{ 'a'.encode() }}", NONE, LG_BAD_INPUT, 1,
                  "the method \"encode\" is not served; served: strip,");
    check_refusal("{{ lipsum() }}", NONE, LG_BAD_INPUT, 1,
                  "the function \"lipsum\" is not served; served: range,");
    check_refusal("{% if true %}{{ 1 | wordcount }}{% endif %}", NONE, LG_BAD_INPUT, 1,
                  "the filter \"wordcount\" is not served");
}

static void syntax_errors_say_what_was_expected(void **state) {
    (void)state;
    check_refusal("x\n{{ 1 + }}", NONE, LG_BAD_INPUT, 2,
                  "line 2, column 8: expected an expression, found }}");
    check_refusal("{% if a %}\n\n{% endfor %}", NONE, LG_BAD_INPUT, 3, "found endfor");
    check_refusal("{% if a %}", NONE, LG_BAD_INPUT, 1, "found the end of the template");
    check_refusal("{{ 'abc }}", NONE, LG_BAD_INPUT, 1, "column 4: a string without its closing '");
    check_refusal("\xc3\xa9\xc3\xa9{{ ? }}", NONE, LG_BAD_INPUT, 1,
                  "column 6: an unexpected character '?'");
    check_refusal("{{ 99999999999999999999 }}", NONE, LG_BAD_INPUT, 1,
                  "an integer that 64 bits do not hold");
    check_refusal("{{ '\\N{DASH}' }}", NONE, LG_BAD_INPUT, 1,
                  "column 5: an escape that is malformed or not served");
    check_refusal("{{ '\\ud800' }}", NONE, LG_BAD_INPUT, 1, "an escape that is malformed");
    check_refusal("{% break %}", NONE, LG_BAD_INPUT, 1, "break and continue stand in a for loop");
    check_refusal("{% for true in l %}{% endfor %}", NONE, LG_BAD_INPUT, 1,
                  "\"true\" cannot be assigned to");
}

static void wrong_use_of_values_names_the_line(void **state) {
    (void)state;
    check_refusal("a\n{{ missing.name }}", NONE, LG_BAD_INPUT, 2,
                  "line 2: \"missing\" is undefined");
    check_refusal("{{ m.a.b }}", "{\"m\":{}}", LG_BAD_INPUT, 1,
                  "a dict has no attribute or item \"a\"");
    check_refusal("{{ 1 +\n 'a' }}", NONE, LG_BAD_INPUT, 1, "+ does not go with a int and a str");
    check_refusal("{{ raise_exception('roles must alternate') }}", NONE, LG_BAD_INPUT, 1,
                  "the template refuses: roles must alternate");
    check_refusal("{{ 9223372036854775807 + 1 }}", NONE, LG_BAD_INPUT, 1, "no integer of 64 bits");
    check_refusal("{{ 2 ** 64 }}", NONE, LG_BAD_INPUT, 1, "no integer of 64 bits");
    check_refusal("{{ '%s' % 1 }}", NONE, LG_BAD_INPUT, 1, "% for formatting is not served");
    check_refusal("{{ 'a' | replace }}", NONE, LG_BAD_INPUT, 1,
                  "the filter \"replace\" lacks its argument \"old\"");
    check_refusal("{{ 'a' | trim(x=1) }}", NONE, LG_BAD_INPUT, 1,
                  "takes these arguments only: chars");
    check_refusal("{% set a.b = 1 %}", "{\"a\":{}}", LG_BAD_INPUT, 1, "one of a namespace() can");
    check_refusal("{{ l.append(1) }}", "{\"l\":[]}", LG_BAD_INPUT, 1,
                  "may not be called in a template");
}

static void source_must_be_utf8(void **state) {
    (void)state;
    check_refusal("a\xff", NONE, LG_BAD_INPUT, 0, "its text is not UTF-8");
}

static void context_must_be_an_object(void **state) {
    (void)state;
    check_refusal("x", "[1]", LG_BAD_INPUT, 0, "the context is not an object");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statements_outside_the_subset_are_refused_at_parse),
        cmocka_unit_test(unknown_names_are_refused_with_the_list_of_known_ones),
        cmocka_unit_test(syntax_errors_say_what_was_expected),
        cmocka_unit_test(wrong_use_of_values_names_the_line),
        cmocka_unit_test(source_must_be_utf8),
        cmocka_unit_test(context_must_be_an_object),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
