/* JSON: what is accepted, and where a refusal says the fault is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rng.h"

static json_t *parse(const char *text) {
    LgError err = {0};
    json_t *value = NULL;
    if (lg_json_parse(lg_str(text), "input", &value, &err) != LG_OK)
        fail_msg("%s", err.message);
    return value;
}

static void refuses(LgStr text, const char *part) {
    LgError err = {0};
    json_t *value = NULL;
    assert_int_equal(lg_json_parse(text, "input", &value, &err), LG_BAD_INPUT);
    assert_null(value);
    if (!strstr(err.message, part) || !strstr(err.message, "input"))
        fail_msg("\"%s\" does not mention \"%s\"", err.message, part);
}

static void reads_values(void **state) {
    (void)state;
    json_t *v = parse("{\"a\": [1, 2.5, \"x\", null, true]}");
    json_t *a = json_object_get(v, "a");
    assert_int_equal(json_array_size(a), 5);
    assert_int_equal(json_integer_value(json_array_get(a, 0)), 1);
    LgStr x = lg_json_string(json_array_get(a, 2));
    assert_true(lg_str_eq_c(x, "x"));
    assert_null(lg_json_string(json_array_get(a, 0)).ptr);
    assert_null(lg_json_string(NULL).ptr);
    json_decref(v);
}

static void says_where_the_fault_is(void **state) {
    (void)state;
    refuses(LG_STR("{\"a\": 1,\n  \"b\": }"), "line 2");
    refuses(LG_STR(""), "byte 0");
    refuses((LgStr){NULL, 0}, "byte 0");
    refuses(LG_STR("{\"a\": NaN}"), "line 1");
    refuses(LG_STR("[1] x"), "end of file");
    refuses(LG_STR("3"), "'['");
    refuses(LG_STR("[\x1b[31m]"), "\\x1b"); /* a terminal is not told what to do */
}

static void refuses_duplicate_keys(void **state) {
    (void)state;
    refuses(LG_STR("{\"r\": 1, \"r\": 2}"), "duplicate");
}

static void refuses_bytes_that_are_not_utf8(void **state) {
    (void)state;
    refuses(LG_STR("[\"\xff\"]"), "0xff");
    refuses(LG_STR("[\"\xed\xa0\x80\"]"), "0xed");
}

static void bounds_the_depth(void **state) {
    (void)state;
    Buf b;
    buf_init(&b);
    for (int i = 0; i < 128; i++)
        buf_putc(&b, '[');
    for (int i = 0; i < 128; i++)
        buf_putc(&b, ']');
    json_decref(parse(b.data));
    buf_reset(&b);
    for (int i = 0; i < 100000; i++)
        buf_putc(&b, '[');
    refuses(buf_view(&b), "deeper");
    buf_clear(&b);
    json_decref(parse("[\"[[[[ \\\" [\", {}]")); /* brackets in strings do not count */
}

static void integers_past_64_bits_become_reals(void **state) {
    (void)state;
    json_t *v = parse(
        "{\"big\": 1000000000000000019884624838656, \"n\": 512, \"edge\": 9223372036854775807,"
        " \"min\": -9223372036854775808, \"past\": 9223372036854775808, \"text\": "
        "\"99999999999999999999\"}");
    assert_true(json_is_real(json_object_get(v, "big")));
    assert_true(json_real_value(json_object_get(v, "big")) == 1e30);
    assert_true(json_is_integer(json_object_get(v, "n"))); /* the others stay integers */
    assert_true(json_integer_value(json_object_get(v, "edge")) == INT64_MAX);
    assert_true(json_integer_value(json_object_get(v, "min")) == INT64_MIN);
    assert_true(json_real_value(json_object_get(v, "past")) == 0x1p63);
    assert_true(lg_str_eq_c(lg_json_string(json_object_get(v, "text")), "99999999999999999999"));
    json_decref(v);
    refuses(LG_STR("[1e999]"), "overflow");
}

static void strings_may_hold_zeros(void **state) {
    (void)state;
    json_t *v = parse("[\"a\\u0000b\"]");
    assert_true(lg_str_eq(lg_json_string(json_array_get(v, 0)), (LgStr){"a\0b", 3}));
    json_decref(v);
    refuses(LG_STR("{\"a\\u0000b\": 1}"), "NUL");
}

/* Parses with the n-th allocation failing; the value is as good as one of a quiet parse, or there
 * is none and memory is the reason. */
static LgStatus parse_failing(LgStr text, long n, bool forever, const json_t *expected) {
    LgError err = {0};
    json_t *value = NULL;
    lg_alloc_fail_at(n, forever);
    LgStatus status = lg_json_parse(text, "input", &value, &err);
    lg_alloc_fail_at(0, 0);
    if (status == LG_OK) {
        assert_true(json_equal(value, expected));
    } else {
        assert_int_equal(status, LG_NO_MEMORY);
        assert_int_equal(err.status, LG_NO_MEMORY);
        assert_null(value);
    }
    json_decref(value);
    return status;
}

/* jansson's scanner would cut a token short and go on. */
static void a_failed_allocation_is_never_a_wrong_value(void **state) {
    (void)state;
    LgStr text = LG_STR("{\"a long key, longer than any small buffer holds\": [1, 22.5, \"a long "
                        "string, likewise longer\","
                        " {\"model_max_length\": 1000000000000000019884624838656}]}");
    json_t *expected = parse(text.ptr);
    for (int forever = 0; forever < 2; forever++) {
        long n = 1;
        while (parse_failing(text, n, forever, expected) != LG_OK)
            assert_true(n++ < 1000);
        assert_true(n > 20);
    }
    json_decref(expected);
}

/* Whatever the length at which a token's buffer would have grown, and whatever follows it. */
static void tokens_of_every_length_survive_a_failed_growth(void **state) {
    (void)state;
    static const char *const forms[][2] = {
        {"[\"", "\"]"},    {"[\"\xe2\x82\xac", "\xe2\x82\xac\"]"},
        {"{\"", "\": 1}"}, {"[1", ".5]"},
        {"[1", ", 2]"},    {"[\"\\u00e9", "\\n\"]"}};
    for (size_t f = 0; f < sizeof forms / sizeof forms[0]; f++)
        for (int len = 1; len < 300; len = len < 70 ? len + 1 : len + 17) {
            Buf b;
            buf_init(&b);
            buf_puts(&b, forms[f][0]);
            for (int i = 0; i < len; i++)
                buf_putc(&b, '1');
            buf_puts(&b, forms[f][1]);
            json_t *expected = parse(b.data);
            long n = 1;
            while (parse_failing(buf_view(&b), n, false, expected) != LG_OK)
                n++;
            json_decref(expected);
            buf_clear(&b);
        }
}

/* A word that means nothing is scanned to its end before it is refused. */
static void faults_are_found_without_memory_too(void **state) {
    (void)state;
    LgStr text =
        LG_STR("[truuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuue]");
    LgStatus status = LG_NO_MEMORY;
    for (long n = 1; status == LG_NO_MEMORY; n++) {
        json_t *value = NULL;
        lg_alloc_fail_at(n, n & 1);
        status = lg_json_parse(text, "input", &value, NULL);
        lg_alloc_fail_at(0, 0);
        assert_null(value);
    }
    assert_int_equal(status, LG_BAD_INPUT);
}

static void files_survive_failed_allocations(void **state) {
    (void)state;
    static const char *const files[] = {LG_TEST_DATA "/tiny/models/tiny-qwen3/config.json",
                                        LG_TEST_DATA
                                        "/tiny/bad-adapters/control-ok/adapter_config.json",
                                        LG_TEST_DATA "/tiny/models/tiny-qwen3/tokenizer.json"};
    for (size_t f = 0; f < sizeof files / sizeof files[0]; f++) {
        Buf text;
        buf_init(&text);
        assert_int_equal(file_read(files[f], 1 << 20, &text, NULL), LG_OK);
        lg_alloc_fail_at(0, 0);
        json_t *expected = parse(text.data);
        long made = lg_alloc_fail_at(0, 0);
        assert_true(made > 50);
        for (long n = 1; n <= made && n <= 200; n++)
            assert_int_equal(parse_failing(buf_view(&text), n, n & 1, expected), LG_NO_MEMORY);
        for (uint64_t i = 0; i < 100; i++) {
            long n = 1 + (long)(rng_u64(f, i) % (uint64_t)made);
            assert_int_equal(parse_failing(buf_view(&text), n, i & 1, expected), LG_NO_MEMORY);
        }
        assert_int_equal(parse_failing(buf_view(&text), made + 1, true, expected), LG_OK);
        json_decref(expected);
        buf_clear(&text);
    }
}

static void printing_is_whole_or_failed(void **state) {
    (void)state;
    const char *text = "{\"a key\":[1,2.5,\"x\\u0000y\",{\"inner\":null}],\"another\":true}";
    json_t *v = parse(text);
    bool failed = true;
    for (long n = 1; failed; n++) {
        Buf out;
        buf_init(&out);
        lg_alloc_fail_at(n, 0);
        lg_json_print(v, JSON_COMPACT, &out);
        lg_alloc_fail_at(0, 0);
        failed = out.failed;
        if (!failed) {
            assert_true(n > 1);
            assert_string_equal(out.data, text);
        }
        buf_clear(&out);
    }
    json_decref(v);
    Buf out;
    buf_init(&out);
    lg_json_print(NULL, JSON_COMPACT, &out);
    assert_true(out.failed);
    buf_clear(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_values),
        cmocka_unit_test(says_where_the_fault_is),
        cmocka_unit_test(refuses_duplicate_keys),
        cmocka_unit_test(refuses_bytes_that_are_not_utf8),
        cmocka_unit_test(bounds_the_depth),
        cmocka_unit_test(integers_past_64_bits_become_reals),
        cmocka_unit_test(strings_may_hold_zeros),
        cmocka_unit_test(a_failed_allocation_is_never_a_wrong_value),
        cmocka_unit_test(tokens_of_every_length_survive_a_failed_growth),
        cmocka_unit_test(faults_are_found_without_memory_too),
        cmocka_unit_test(files_survive_failed_allocations),
        cmocka_unit_test(printing_is_whole_or_failed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
