/* Hostile texts, bounds, and memory that runs out. */
#include "lang_test.h"

#include "base/mem.h"
#include "base/utf8.h"

static LgStatus compile_with(LgStr source, const Config *config, Arena *arena, LgError *err) {
    LangProgram *p = NULL;
    LgStatus status = lang_compile(source, "page.lg", config, arena, &p, err);
    if (status == LG_OK)
        status = lang_rewrite_lora(p, arena, &p, err);
    return status;
}

static void check_refused(LgStr source, const char *message) {
    Arena arena;
    arena_init(&arena);
    Config *config = config_create();
    LgError err;
    assert_int_equal(compile_with(source, config, &arena, &err), LG_BAD_INPUT);
    if (!strstr(err.message, message))
        fail_msg("expected %s, got %s", message, err.message);
    assert_true(utf8_valid(lg_str(err.message)));
    config_destroy(config);
    arena_clear(&arena);
}

static void an_empty_page_has_no_model(void **state) {
    (void)state;
    check_refused((LgStr){NULL, 0}, "page.lg:1: cannot compile: the page names no model");
    check_refused(LG_STR("\n\n# nothing"), "cannot compile: the page names no model");
}

static void bytes_that_are_no_text_are_refused(void **state) {
    (void)state;
    check_refused(LG_STR("dim E = 3\ndim \xff = 2\n"), "page.lg:2: cannot read: byte 5");
    check_refused(LG_STR("# \xc3"), "cannot read: byte 3 of the line is no UTF-8");
    check_refused(LG_STR("dim E\0 = 3\n"), "cannot read: byte 6 of the line is a NUL");
    check_refused(LG_STR("dim \xc3\xa4 = 3\n"), "cannot read: `\xc3\xa4` (U+00E4)");
    check_refused(LG_STR("dim E\x01 = 3\n"), "(U+0001) is no part of the language");
}

static void lines_may_end_in_two_characters_or_none(void **state) {
    (void)state;
    check_refused(LG_STR("model m for \"M\"\r\ndim E = 3\r\nparam w[E] = \"w\""),
                  "page.lg:3: cannot accept w: nothing reads it");
    check_refused(LG_STR("dim E\r= 3\n"), "cannot read: `?` (U+000D)");
}

static Buf repeated(const char *before, const char *part, size_t count, const char *after) {
    Buf b;
    buf_init(&b);
    buf_puts(&b, before);
    for (size_t i = 0; i < count; i++)
        buf_puts(&b, part);
    buf_puts(&b, after);
    assert_false(b.failed);
    return b;
}

static void check_repeated(const char *before, const char *part, size_t count, const char *after,
                           const char *message) {
    Buf b = repeated(before, part, count, after);
    check_refused(buf_view(&b), message);
    buf_clear(&b);
}

static void sizes_are_bounded(void **state) {
    (void)state;
    check_repeated("", "# a long page\n", 80000, "", "At most 1048576 are accepted");
    check_repeated("", "ignore a\n", 9000, "", "the page is too long");
    check_repeated("x[a] = ", "(", 5000, "1", "nested too deeply");
    check_repeated("x[a] = ", "-", 5000, "1", "nested too deeply");
    check_repeated("x[a] = y[", "y[", 5000, "1", "nested too deeply");
    check_repeated("x[a] = ", "exp(", 5000, "1", "nested too deeply");
    check_repeated("const a = ", "if b then 1 else ", 5000, "1", "nested too deeply");
    check_repeated("x[a] = ", "2 ^ ", 5000, "1", "nested too deeply");
    check_repeated("x[a] = ", "2 * ", 5000, "1", "too deep");
    check_repeated("x[", "a,", 50000, "a] = 2", "cannot compile: the page names no model");
}

static void names_are_bounded(void **state) {
    (void)state;
    Buf b;
    buf_init(&b);
    buf_puts(&b, "model m for \"M\"\ndim A0");
    for (int i = 1; i < 5000; i++)
        buf_printf(&b, ", A%d", i);
    check_refused(buf_view(&b), "the page has too many names. At most 4096 are accepted.");
    buf_clear(&b);
}

static void targets_of_many_indexes_are_refused(void **state) {
    (void)state;
    check_refused(LG_STR("model m for \"M\"\ndim E = 2\ninput p[E]: i32\n"), "fixed size");
    check_refused(LG_STR("model m for \"M\"\ndim E = 2\n"
                         "x[a,b,c,d,e,f,g,h,i] = 2\n"),
                  "cannot define x with 9 indexes: a tensor has at most 8");
}

static void long_lines_are_shown_around_the_caret(void **state) {
    (void)state;
    Buf b = repeated("model m for ", "\"\xc3\xa4\xc3\xb6\xc3\xbc\", ", 200, "= 4");
    Arena arena;
    arena_init(&arena);
    Config *config = config_create();
    LgError err;
    assert_int_equal(compile_with(buf_view(&b), config, &arena, &err), LG_BAD_INPUT);
    assert_true(utf8_valid(lg_str(err.message)));
    assert_non_null(strchr(err.message, '^'));
    assert_true(strlen(err.message) < 500);
    config_destroy(config);
    arena_clear(&arena);
    buf_clear(&b);
}

/* A config key may hold anything; a message stays one that a terminal can show. */
static void keys_of_a_config_cannot_spoil_a_message(void **state) {
    (void)state;
    Arena arena;
    arena_init(&arena);
    Config *config = config_create();
    LgError err;
    char key[300];
    memset(key, 'k', sizeof key);
    memcpy(key, "a\x1b[2Jb\n", 7);
    memcpy(key + 66, "\xe2\x82\xac\xe2\x82\xac", 6);
    assert_int_equal(config_set_str(config, "\x07", LG_STR("\x1b\n"), &err), LG_OK);
    for (int i = 0; i < 20; i++) {
        key[299] = (char)('a' + i);
        ConfigValue v = {.kind = CONFIG_INT, .integer = i};
        assert_int_equal(config_set(config, (LgStr){key, sizeof key}, &v, &err), LG_OK);
    }
    LgStr page = LG_STR("model m for \"M\"\ndim T\ninput p[T]: i32\noutput y[t] = p[t]\n");
    assert_int_equal(compile_with(page, config, &arena, &err), LG_BAD_INPUT);
    assert_true(utf8_valid(lg_str(err.message)));
    assert_null(strchr(err.message, 0x1b));
    assert_null(strchr(err.message, 0x07));
    assert_non_null(strstr(err.message, "is not claimed"));
    config_destroy(config);
    arena_clear(&arena);
}

static void every_failed_allocation_is_told(void **state) {
    (void)state;
    Buf source = test_file(LG_SOURCE_DIR "/models/qwen3.lg");
    Config *config = test_config(lg_str(test_qwen3_config));
    for (long n = 1;; n++) {
        Arena arena;
        arena_init(&arena);
        LgError err;
        lg_alloc_fail_at(n, 1);
        LgStatus status = compile_with(buf_view(&source), config, &arena, &err);
        lg_alloc_fail_at(0, 0);
        arena_clear(&arena);
        if (status == LG_OK) {
            assert_true(n > 10);
            break;
        }
        assert_int_equal(status, LG_NO_MEMORY);
        assert_int_equal(err.status, LG_NO_MEMORY);
    }
    config_destroy(config);
    buf_clear(&source);
}

/* An arena with a limit makes every single allocation of the compile fail once. */
static void every_end_of_the_arena_is_told(void **state) {
    (void)state;
    Buf source = test_file(LG_SOURCE_DIR "/models/qwen3.lg");
    Config *config = test_config(lg_str(test_qwen3_config));
    LgStatus status = LG_NO_MEMORY;
    for (size_t limit = 16; status != LG_OK; limit += 112) {
        Arena arena;
        arena_init(&arena);
        arena.limit_bytes = limit;
        LgError err;
        status = compile_with(buf_view(&source), config, &arena, &err);
        arena_clear(&arena);
        assert_true(status == LG_OK || status == LG_NO_MEMORY);
        assert_true(limit < (1u << 24));
    }
    config_destroy(config);
    buf_clear(&source);
}

static void a_refusal_without_memory_is_no_refusal(void **state) {
    (void)state;
    Config *config = test_config(LG_STR("{\"surprise\": [1, 2, 3]}"));
    LgStr page = LG_STR("model m for \"M\"\ndim T\ninput p[T]: i32\noutput y[t] = p[t]\n");
    for (long n = 1;; n++) {
        Arena arena;
        arena_init(&arena);
        LgError err;
        lg_alloc_fail_at(n, 1);
        LgStatus status = compile_with(page, config, &arena, &err);
        lg_alloc_fail_at(0, 0);
        arena_clear(&arena);
        if (status == LG_BAD_INPUT)
            break;
        assert_int_equal(status, LG_NO_MEMORY);
    }
    config_destroy(config);
}

static void an_error_is_not_asked_for_by_everyone(void **state) {
    (void)state;
    Arena arena;
    arena_init(&arena);
    Config *config = config_create();
    LangProgram *p = NULL;
    assert_int_equal(lang_compile(LG_STR("dim ="), "page.lg", config, &arena, &p, NULL),
                     LG_BAD_INPUT);
    assert_null(p);
    config_destroy(config);
    arena_clear(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_page_has_no_model),
        cmocka_unit_test(bytes_that_are_no_text_are_refused),
        cmocka_unit_test(lines_may_end_in_two_characters_or_none),
        cmocka_unit_test(sizes_are_bounded),
        cmocka_unit_test(names_are_bounded),
        cmocka_unit_test(targets_of_many_indexes_are_refused),
        cmocka_unit_test(long_lines_are_shown_around_the_caret),
        cmocka_unit_test(keys_of_a_config_cannot_spoil_a_message),
        cmocka_unit_test(every_failed_allocation_is_told),
        cmocka_unit_test(every_end_of_the_arena_is_told),
        cmocka_unit_test(a_refusal_without_memory_is_no_refusal),
        cmocka_unit_test(an_error_is_not_asked_for_by_everyone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
