/* Views, buffers, UTF-8 and the hash map. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <stdio.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"

static void views_compare_bytewise(void **state) {
    (void)state;
    assert_true(lg_str_eq(LG_STR("ab"), lg_str("ab")));
    assert_true(lg_str_eq((LgStr){NULL, 0}, LG_STR("")));
    assert_false(lg_str_eq_c(LG_STR("ab"), "abc"));
    assert_true(lg_str_cmp(LG_STR("ab"), LG_STR("abc")) < 0);
    assert_true(lg_str_cmp(LG_STR("b"), LG_STR("abc")) > 0);
    assert_true(lg_str_cmp(LG_STR("\xff"), LG_STR("a")) > 0);
    assert_true(lg_str_starts(LG_STR("model.norm"), "model."));
    assert_false(lg_str_starts(LG_STR("mo"), "model."));
    assert_true(lg_str_ends(LG_STR("x.weight"), ".weight"));
    assert_false(lg_str_ends(LG_STR("t"), ".weight"));
}

static void a_part_is_cut_to_the_whole(void **state) {
    (void)state;
    assert_true(lg_str_eq_c(lg_str_sub(LG_STR("abcd"), 1, 2), "bc"));
    assert_true(lg_str_eq_c(lg_str_sub(LG_STR("abcd"), 2, SIZE_MAX), "cd"));
    assert_int_equal(lg_str_sub(LG_STR("abcd"), 9, 1).len, 0);
    assert_int_equal(lg_str_sub((LgStr){NULL, 0}, 0, 1).len, 0);
}

static void a_buffer_is_always_terminated(void **state) {
    (void)state;
    Buf b;
    buf_init(&b);
    assert_string_equal(b.data, "");
    for (int i = 0; i < 300; i++) {
        buf_putc(&b, 'x');
        assert_int_equal(b.data[b.len], 0);
    }
    buf_reset(&b);
    assert_string_equal(b.data, "");
    buf_printf(&b, "%d %s", 12, "ab");
    buf_puts(&b, "!");
    buf_str(&b, LG_STR("?"));
    assert_string_equal(b.data, "12 ab!?");
    assert_int_equal(buf_view(&b).len, 7);
    buf_clear(&b);
    assert_string_equal(b.data, "");
}

static void a_failed_buffer_ignores_what_follows(void **state) {
    (void)state;
    Buf b;
    buf_init(&b);
    buf_puts(&b, "kept");
    lg_alloc_fail_at(1, 0);
    for (int i = 0; i < 40; i++)
        buf_puts(&b, "much more");
    lg_alloc_fail_at(0, 0);
    assert_true(b.failed);
    size_t len = b.len;
    buf_puts(&b, "x");
    buf_printf(&b, "y");
    assert_int_equal(b.len, len);
    assert_null(buf_take(&b));
    assert_false(b.failed);
}

static void taking_empties_the_buffer(void **state) {
    (void)state;
    Buf b;
    buf_init(&b);
    buf_puts(&b, "mine");
    char *text = buf_take(&b);
    assert_string_equal(text, "mine");
    lg_free(text);
    text = buf_take(&b);
    assert_string_equal(text, "");
    lg_free(text);
    buf_clear(&b);
}

static void json_escape_keeps_text_and_mends_bytes(void **state) {
    (void)state;
    Buf b;
    buf_init(&b);
    buf_json_escape(&b, LG_STR("\"\\\b\f\n\r\t\x01\x7f/\xc3\xa9\xff"));
    assert_string_equal(b.data, "\\\"\\\\\\b\\f\\n\\r\\t\\u0001\\u007f/\xc3\xa9\xef\xbf\xbd");
    buf_reset(&b);
    buf_json_escape(&b, (LgStr){"\0", 1});
    assert_string_equal(b.data, "\\u0000");
    buf_clear(&b);
}

static void printable_shows_controls_and_cuts(void **state) {
    (void)state;
    Buf b;
    buf_init(&b);
    buf_printable(&b, LG_STR("a\n\x1b[0m\xff\xe2\x80\xae"), 100);
    assert_string_equal(b.data, "a\\x0a\\x1b[0m\\xff\\xe2\\x80\\xae");
    buf_reset(&b);
    buf_printable(&b, LG_STR("abcdefgh"), 8);
    assert_string_equal(b.data, "abcdefgh");
    buf_reset(&b);
    buf_printable(&b, LG_STR("abcdefghi"), 8);
    assert_string_equal(b.data, "abcde...");
    buf_reset(&b);
    for (size_t max = 0; max < 30; max++) {
        buf_reset(&b);
        buf_printable(&b, LG_STR("\xe2\x82\xac\x01\xe2\x82\xac\xe2\x82\xac\x02\x03"), max);
        assert_true(b.len <= max);
        assert_true(utf8_valid(buf_view(&b)));
    }
    buf_clear(&b);
}

typedef struct Utf8Case {
    const char *bytes;
    size_t len;
    int want;
    uint32_t code;
} Utf8Case;

static void utf8_decodes_the_shortest_forms_only(void **state) {
    (void)state;
    static const Utf8Case cases[] = {
        {"a", 1, 1, 'a'},
        {"\xc2\x80", 2, 2, 0x80},
        {"\xdf\xbf", 2, 2, 0x7ff},
        {"\xe0\xa0\x80", 3, 3, 0x800},
        {"\xed\x9f\xbf", 3, 3, 0xd7ff},
        {"\xef\xbf\xbf", 3, 3, 0xffff},
        {"\xf0\x90\x80\x80", 4, 4, 0x10000},
        {"\xf4\x8f\xbf\xbf", 4, 4, 0x10ffff},
        {"\x80", 1, 0, 0},             /* no lead */
        {"\xc0\x80", 2, 0, 0},         /* overlong */
        {"\xc1\xbf", 2, 0, 0},         /* overlong */
        {"\xe0\x9f\xbf", 3, 0, 0},     /* overlong */
        {"\xf0\x8f\xbf\xbf", 4, 0, 0}, /* overlong */
        {"\xed\xa0\x80", 3, 0, 0},     /* surrogate */
        {"\xf4\x90\x80\x80", 4, 0, 0}, /* past the end */
        {"\xf5\x80\x80\x80", 4, 0, 0}, /* past the end */
        {"\xe2\x82", 2, 0, 0},         /* truncated */
        {"\xe2\x41\x80", 3, 0, 0},     /* broken off */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t code = 0;
        assert_int_equal(utf8_decode(cases[i].bytes, cases[i].len, &code), cases[i].want);
        assert_int_equal(code, cases[i].code);
    }
    uint32_t code;
    assert_int_equal(utf8_decode("", 0, &code), 0);
}

static void utf8_every_code_point_comes_back(void **state) {
    (void)state;
    for (uint32_t code = 0; code < 0x110100; code++) {
        char bytes[4];
        uint32_t back = 0;
        int len = utf8_encode(code, bytes);
        bool is_code = code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff);
        assert_int_equal(len > 0, is_code);
        if (len) {
            assert_int_equal(utf8_decode(bytes, (size_t)len, &back), len);
            assert_int_equal(back, code);
        }
    }
}

static void utf8_tail_is_what_may_still_become_a_code_point(void **state) {
    (void)state;
    assert_int_equal(utf8_incomplete_tail(LG_STR("ab")), 0);
    assert_int_equal(utf8_incomplete_tail(LG_STR("")), 0);
    assert_int_equal(utf8_incomplete_tail(LG_STR("a\xe2")), 1);
    assert_int_equal(utf8_incomplete_tail(LG_STR("a\xe2\x82")), 2);
    assert_int_equal(utf8_incomplete_tail(LG_STR("a\xe2\x82\xac")), 0);
    assert_int_equal(utf8_incomplete_tail(LG_STR("\xf0\x9f\x98")), 3);
    assert_int_equal(utf8_incomplete_tail(LG_STR("\xe0\x80")), 0); /* never: overlong */
    assert_int_equal(utf8_incomplete_tail(LG_STR("\x80\x80\x80\x80")), 0);
    assert_int_equal(utf8_incomplete_tail(LG_STR("\xff")), 0);
}

static void map_keeps_every_key(void **state) {
    (void)state;
    Map m;
    map_init(&m);
    uint64_t value = 77;
    assert_false(map_get(&m, LG_STR("k0"), &value));
    assert_int_equal(value, 77);
    char key[32];
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 5000; i++) {
            snprintf(key, sizeof key, "k%d", i);
            assert_true(map_set(&m, lg_str(key), (uint64_t)(i * (round + 1))));
        }
    assert_int_equal(m.count, 5000);
    for (int i = 0; i < 5000; i++) {
        snprintf(key, sizeof key, "k%d", i);
        assert_true(map_get(&m, lg_str(key), &value));
        assert_int_equal(value, 2 * i);
    }
    assert_false(map_has(&m, LG_STR("k5000")));
    map_clear(&m);
    assert_false(map_has(&m, LG_STR("k0")));
}

static void map_keys_may_hold_zeros_and_be_empty(void **state) {
    (void)state;
    Map m;
    map_init(&m);
    uint64_t value;
    assert_true(map_set(&m, (LgStr){"a\0b", 3}, 1));
    assert_true(map_set(&m, (LgStr){"a\0c", 3}, 2));
    assert_true(map_set(&m, (LgStr){NULL, 0}, 3));
    assert_true(map_get(&m, (LgStr){"a\0c", 3}, &value));
    assert_int_equal(value, 2);
    assert_true(map_get(&m, LG_STR(""), &value));
    assert_int_equal(value, 3);
    assert_false(map_has(&m, LG_STR("a")));
    map_clear(&m);
}

static void map_survives_failed_allocations(void **state) {
    (void)state;
    for (long n = 1; n < 12; n++) {
        Map m;
        map_init(&m);
        char key[16];
        int set = 0;
        lg_alloc_fail_at(n, 1);
        while (set < 3000) {
            snprintf(key, sizeof key, "%d", set);
            if (!map_set(&m, lg_str(key), (uint64_t)set))
                break;
            set++;
        }
        lg_alloc_fail_at(0, 0);
        assert_true(set < 3000);
        for (int i = 0; i < set; i++) {
            uint64_t value;
            snprintf(key, sizeof key, "%d", i);
            assert_true(map_get(&m, lg_str(key), &value));
            assert_int_equal(value, i);
        }
        map_clear(&m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(views_compare_bytewise),
        cmocka_unit_test(a_part_is_cut_to_the_whole),
        cmocka_unit_test(a_buffer_is_always_terminated),
        cmocka_unit_test(a_failed_buffer_ignores_what_follows),
        cmocka_unit_test(taking_empties_the_buffer),
        cmocka_unit_test(json_escape_keeps_text_and_mends_bytes),
        cmocka_unit_test(printable_shows_controls_and_cuts),
        cmocka_unit_test(utf8_decodes_the_shortest_forms_only),
        cmocka_unit_test(utf8_every_code_point_comes_back),
        cmocka_unit_test(utf8_tail_is_what_may_still_become_a_code_point),
        cmocka_unit_test(map_keeps_every_key),
        cmocka_unit_test(map_keys_may_hold_zeros_and_be_empty),
        cmocka_unit_test(map_survives_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
