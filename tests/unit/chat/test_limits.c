/* Templates and contexts come from strangers: time, depth, memory and output are bounded, and
 * failed allocations leave nothing. */
#include "tests/unit/chat/fixtures.h"

#define NONE "{}"

static void repeat(Buf *b, const char *text, size_t times) {
    for (size_t i = 0; i < times; i++)
        buf_puts(b, text);
}

static void endless_work_is_ended(void **state) {
    (void)state;
    check_refusal(
        "{% set l = range(99999) %}{% for a in range(999) %}{{ '' if -1 in l }}{% endfor %}", NONE,
        LG_LIMIT, 1, "more than 20000000 steps");
    check_refusal("{% macro m() %}{{ m() }}{% endmacro %}\n{{ m() }}", NONE, LG_LIMIT, 1,
                  "nested deeper than 600 levels");
    check_refusal("{{ range(1000000) }}", NONE, LG_LIMIT, 1,
                  "range: 1000000 numbers, limit 100000");
}

static void large_texts_are_refused(void **state) {
    (void)state;
    check_refusal("{{ 'ab' * 99999999 }}", NONE, LG_LIMIT, 1, "a repetition of more than");
    check_refusal("{% set s = 'a' * 60000000 %}{{ s }}{{ s }}", NONE, LG_LIMIT, 1,
                  "a text of more than");
    check_refusal("{% set s = 'a' * 60000000 %}{% set t = s ~ s %}", NONE, LG_LIMIT, 1,
                  "a text of more than");
    check_refusal("{{ ('a' * 100000) | replace('a', 'b' * 100000) }}", NONE, LG_LIMIT, 1,
                  "replace: the text could pass");
    check_refusal("{% set ns = namespace(l=[1]) %}{% for i in range(40) %}{% set ns.l = ns.l + "
                  "ns.l %}{% endfor %}",
                  NONE, LG_LIMIT, 1, "");
    check_refusal("{{ [1] * 60000000 }}", NONE, LG_LIMIT, 1, "a sequence of");
}

static void deep_nesting_is_refused(void **state) {
    (void)state;
    Buf source;
    buf_init(&source);
    buf_puts(&source, "{{ ");
    repeat(&source, "(", 200);
    repeat(&source, ")", 200);
    buf_puts(&source, " }}");
    check_refusal(source.data, NONE, LG_LIMIT, 1, "nested deeper than 100 levels");
    buf_reset(&source);
    repeat(&source, "{% if a %}", 500);
    check_refusal(source.data, NONE, LG_LIMIT, 1, "nested deeper than 100 levels");
    buf_reset(&source);
    buf_puts(&source, "{{ ");
    repeat(&source, "- ", 500);
    buf_puts(&source, "1 }}");
    check_refusal(source.data, NONE, LG_LIMIT, 1, "nested deeper than 100 levels");
    buf_clear(&source);
}

/* Long chains of operators are flat in the source but deep in the tree. */
static void long_chains_are_bounded(void **state) {
    (void)state;
    Buf source;
    buf_init(&source);
    buf_puts(&source, "{{ 0");
    repeat(&source, " + 1", 500);
    buf_puts(&source, " }}");
    check_render(source.data, NONE, "500");
    buf_reset(&source);
    buf_puts(&source, "{{ 0");
    repeat(&source, " + 1", 5000);
    buf_puts(&source, " }}");
    check_refusal(source.data, NONE, LG_LIMIT, 1, "nested deeper than 600 levels");
    buf_reset(&source);
    buf_puts(&source, "{% if a == 0 %}0");
    for (int i = 1; i < 3000; i++)
        buf_printf(&source, "{%% elif a == %d %%}%d", i, i);
    buf_puts(&source, "{% endif %}");
    check_render(source.data, "{\"a\":2999}", "2999");
    buf_clear(&source);
}

/* A value nested deeper than the stack is told, not followed. */
static void deep_values_are_bounded(void **state) {
    (void)state;
    const char *nest = "{%% set ns = namespace(l=[], m=[]) %%}{%% for i in range(5000) %%}{%% set "
                       "ns.l = [ns.l] %%}"
                       "{%% set ns.m = [ns.m] %%}{%% endfor %%}{{ %s }}";
    static const char *const uses[] = {"ns.l", "ns.l | tojson", "ns.l == ns.m", "ns.l < ns.m",
                                       "ns.l in [ns.m]"};
    for (size_t i = 0; i < sizeof uses / sizeof uses[0]; i++) {
        char source[400];
        snprintf(source, sizeof source, nest, uses[i]);
        check_refusal(source, NONE, LG_LIMIT, 1, "nested deeper than 600 levels");
    }
}

static void building_a_text_bit_by_bit_is_not_quadratic(void **state) {
    (void)state;
    const char *source = "{% set ns = namespace(s='') %}{% for i in range(90000) %}"
                         "{% set ns.s = ns.s ~ 'some thirty bytes of text, more or less' %}{% "
                         "endfor %}{{ ns.s | length }}";
    check_render(source, NONE, "3510000");
}

static void source_size_is_bounded(void **state) {
    (void)state;
    Buf source;
    ChatTemplate *t = NULL;
    LgError err = {0};
    buf_init(&source);
    repeat(&source, "0123456789abcdef", 65537);
    assert_int_equal(chat_template_parse(buf_view(&source), &t, &err), LG_LIMIT);
    assert_non_null(strstr(err.message, "limit 1048576"));
    buf_clear(&source);
}

/* The n-th allocation fails, for every n that there is. */
static void failed_allocations_leave_nothing(void **state) {
    (void)state;
    const char *source =
        "{% macro m(a, b=[1]) %}{{ a ~ b }}{% endmacro %}{% set x %}block{{ n }}{% endset %}{% for "
        "k, v in "
        "d | dictsort %}{{ loop.index }}{{ m(k, v) }}{{ v | tojson(indent=2) }}{% endfor %}{{ x | "
        "upper "
        "| replace('B', 'cc') }}{{ l | map('string') | join(',') }}{{ 'a b'.split()[0] }}{{ "
        "s[::-1] }}"
        "{{ {'a': (1, 2)} }}{{ l | sort | list | unique | list }}{{ '{}'.format(n) }}";
    json_t *context = context_of(
        "{\"n\":1,\"d\":{\"b\":[1,{\"x\":null}],\"a\":\"t\"},\"l\":[3,1,2],\"s\":\"abc\"}");
    bool done = false;
    for (long n = 1; !done; n++) {
        Buf out;
        LgError err = {0};
        buf_init(&out);
        lg_alloc_fail_at(n, (int)(n % 2));
        LgStatus status = render(lg_str(source), context, &out, &err);
        long made = lg_alloc_fail_at(0, 0);
        done = made < n;
        assert_int_equal(status, done ? LG_OK : LG_NO_MEMORY);
        if (!done)
            assert_int_equal(out.len, 0);
        buf_clear(&out);
    }
    json_decref(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(endless_work_is_ended),
        cmocka_unit_test(large_texts_are_refused),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(long_chains_are_bounded),
        cmocka_unit_test(deep_values_are_bounded),
        cmocka_unit_test(building_a_text_bit_by_bit_is_not_quadratic),
        cmocka_unit_test(source_size_is_bounded),
        cmocka_unit_test(failed_allocations_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
