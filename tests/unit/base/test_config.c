/* Flat configuration keys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>

#include "base/config.h"
#include "base/mem.h"

static void set_ok(LgStatus status) {
    assert_int_equal(status, LG_OK);
}

static void prints(const ConfigValue *v, const char *want) {
    Buf b;
    buf_init(&b);
    config_value_print(v, &b);
    assert_string_equal(b.data, want);
    buf_clear(&b);
}

static void values_come_back_by_kind(void **state) {
    (void)state;
    Config *c = config_create();
    set_ok(config_set_int(c, "hidden_size", 512, NULL));
    set_ok(config_set_real(c, "rope_theta", 1e6, NULL));
    set_ok(config_set_bool(c, "tie", true, NULL));
    set_ok(config_set_str(c, "model_type", LG_STR("qwen3"), NULL));
    assert_int_equal(config_get_c(c, "hidden_size")->integer, 512);
    assert_true(config_get_c(c, "hidden_size")->real == 512.0);
    assert_true(config_get_c(c, "rope_theta")->real == 1e6);
    assert_true(config_get_c(c, "tie")->boolean);
    assert_true(lg_str_eq_c(config_get(c, LG_STR("model_type"))->string, "qwen3"));
    assert_null(config_get_c(c, "absent"));
    config_destroy(c);
    config_destroy(NULL);
}

static void lists_are_copied_deeply(void **state) {
    (void)state;
    Config *c = config_create();
    char text[] = "abc";
    ConfigValue inner[] = {{.kind = CONFIG_STRING, .string = {text, 3}},
                           {.kind = CONFIG_INT, .integer = 2}};
    ConfigValue outer = {.kind = CONFIG_LIST, .items = inner, .count = 2};
    ConfigValue list = {.kind = CONFIG_LIST, .items = &outer, .count = 1};
    set_ok(config_set(c, LG_STR("x"), &list, NULL));
    memset(text, '?', 3);
    memset(inner, 0, sizeof inner);
    prints(config_get_c(c, "x"), "[[\"abc\", 2]]");
    config_destroy(c);
}

static void keys_keep_their_order(void **state) {
    (void)state;
    Config *c = config_create();
    char key[16];
    for (int i = 0; i < 200; i++) {
        snprintf(key, sizeof key, "key%d", i);
        set_ok(config_set_int(c, key, i, NULL));
    }
    set_ok(config_set_int(c, "key7", 700, NULL));
    config_remove(c, "key3");
    config_remove(c, "key3");
    config_remove(c, "never");
    assert_int_equal(config_count(c), 199);
    assert_true(lg_str_eq_c(config_key(c, 3), "key4"));
    assert_true(lg_str_eq_c(config_key(c, 6), "key7"));
    assert_int_equal(config_value(c, 6)->integer, 700);
    assert_null(config_get_c(c, "key3"));
    set_ok(config_set_int(c, "key3", 3, NULL)); /* comes back at the end */
    assert_true(lg_str_eq_c(config_key(c, 199), "key3"));
    config_destroy(c);
}

static void null_reads_as_absent_but_is_counted(void **state) {
    (void)state;
    Config *c = config_create();
    ConfigValue null = {.kind = CONFIG_NULL};
    set_ok(config_set(c, LG_STR("sliding_window"), &null, NULL));
    assert_null(config_get_c(c, "sliding_window"));
    assert_int_equal(config_count(c), 1);
    config_destroy(c);
}

static void an_object_is_there_while_a_key_of_it_is(void **state) {
    (void)state;
    Config *c = config_create();
    ConfigValue null = {.kind = CONFIG_NULL};
    set_ok(config_set(c, LG_STR("rope_scaling"), &null, NULL));
    set_ok(config_set(c, LG_STR("rope_scaling.type"), &null, NULL));
    set_ok(config_set_int(c, "rope_scaling2.x", 1, NULL));
    assert_null(config_get_c(c, "rope_scaling"));
    set_ok(config_set_real(c, "rope_scaling.factor", 8, NULL));
    assert_non_null(config_get_c(c, "rope_scaling"));
    assert_int_equal(config_get_c(c, "rope_scaling")->kind, CONFIG_STRING);
    assert_null(config_get_c(c, "rope"));
    assert_int_equal(config_count(c), 4);
    config_remove(c, "rope_scaling.factor");
    assert_null(config_get_c(c, "rope_scaling"));
    config_destroy(c);
}

static void numbers_compare_by_value(void **state) {
    (void)state;
    ConfigValue one = {.kind = CONFIG_INT, .integer = 1},
                one_real = {.kind = CONFIG_REAL, .real = 1.0};
    ConfigValue yes = {.kind = CONFIG_BOOL, .boolean = true},
                two = {.kind = CONFIG_INT, .integer = 2};
    ConfigValue a = {.kind = CONFIG_STRING, .string = LG_STR("a")},
                b = {.kind = CONFIG_STRING, .string = LG_STR("b")};
    ConfigValue none = {.kind = CONFIG_NULL}, empty = {.kind = CONFIG_LIST};
    ConfigValue list = {.kind = CONFIG_LIST, .items = &one, .count = 1};
    ConfigValue list_real = {.kind = CONFIG_LIST, .items = &one_real, .count = 1};
    ConfigValue list_two = {.kind = CONFIG_LIST, .items = &two, .count = 1};
    assert_true(config_value_eq(&one, &one_real));
    assert_false(config_value_eq(&one, &two));
    assert_false(config_value_eq(&one, &yes));
    assert_true(config_value_eq(&a, &a));
    assert_false(config_value_eq(&a, &b));
    assert_true(config_value_eq(&none, &none));
    assert_false(config_value_eq(&none, &empty));
    assert_true(config_value_eq(&list, &list_real));
    assert_false(config_value_eq(&list, &list_two));
    assert_false(config_value_eq(&list, &empty));
}

static void values_print_as_json(void **state) {
    (void)state;
    ConfigValue v = {.kind = CONFIG_REAL, .real = 1e-5};
    prints(&v, "1e-05");
    v.real = 0.1;
    prints(&v, "0.1");
    v.real = 3;
    prints(&v, "3.0");
    v.real = (double)1e-5f; /* every digit that it needs */
    prints(&v, "9.999999747378752e-06");
    v.real = (double)INFINITY;
    prints(&v, "null");
    ConfigValue items[] = {{.kind = CONFIG_NULL},
                           {.kind = CONFIG_BOOL, .boolean = true},
                           {.kind = CONFIG_STRING, .string = LG_STR("a\"")}};
    ConfigValue list = {.kind = CONFIG_LIST, .items = items, .count = 3};
    prints(&list, "[null, true, \"a\\\"\"]");
}

static void failed_allocations_leave_it_whole(void **state) {
    (void)state;
    LgStatus status = LG_NO_MEMORY;
    for (long n = 1; status != LG_OK; n++) {
        lg_alloc_fail_at(n, 1);
        Config *c = config_create();
        status = c ? LG_OK : LG_NO_MEMORY;
        char key[16];
        int set = 0;
        while (c && set < 80 && status == LG_OK) {
            snprintf(key, sizeof key, "key%d", set);
            status = config_set_str(c, key, LG_STR("value"), NULL);
            set += status == LG_OK;
        }
        lg_alloc_fail_at(0, 0);
        if (c)
            assert_int_equal(config_count(c), set);
        config_destroy(c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_come_back_by_kind),
        cmocka_unit_test(lists_are_copied_deeply),
        cmocka_unit_test(keys_keep_their_order),
        cmocka_unit_test(null_reads_as_absent_but_is_counted),
        cmocka_unit_test(an_object_is_there_while_a_key_of_it_is),
        cmocka_unit_test(numbers_compare_by_value),
        cmocka_unit_test(values_print_as_json),
        cmocka_unit_test(failed_allocations_leave_it_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
