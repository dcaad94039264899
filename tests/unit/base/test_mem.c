/* The heap, its failing allocations, and arenas. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <stdlib.h>

#include "base/arena.h"
#include "base/mem.h"

static void size_zero_gives_a_pointer(void **state) {
    (void)state;
    void *p[] = {lg_alloc(0), lg_calloc(0, 8), lg_realloc(NULL, 0), lg_alloc_array(0, 8)};
    for (size_t i = 0; i < 4; i++) {
        assert_non_null(p[i]);
        lg_free(p[i]);
    }
    void *aligned = lg_alloc_aligned(0);
    assert_non_null(aligned);
    lg_free_aligned(aligned);
}

static void products_that_wrap_are_refused(void **state) {
    (void)state;
    assert_null(lg_alloc_array(SIZE_MAX / 4 + 2, 4));
    assert_null(lg_calloc(SIZE_MAX / 4 + 2, 4));
    assert_null(lg_alloc_aligned(SIZE_MAX));
}

static void aligned_blocks_are_aligned_to_64(void **state) {
    (void)state;
    for (size_t bytes = 1; bytes < 300; bytes += 37) {
        void *p = lg_alloc_aligned(bytes);
        assert_int_equal((uintptr_t)p % 64, 0);
        memset(p, 1, bytes);
        lg_free_aligned(p);
    }
}

static void the_nth_allocation_fails_once(void **state) {
    (void)state;
    lg_alloc_fail_at(2, 0);
    void *a = lg_alloc(1), *b = lg_alloc(1), *c = lg_alloc(1);
    assert_non_null(a);
    assert_null(b);
    assert_non_null(c);
    assert_int_equal(lg_alloc_fail_at(0, 0), 3);
    lg_free(a);
    lg_free(c);
}

static void or_all_from_the_nth_on(void **state) {
    (void)state;
    void *kept = lg_alloc(4);
    lg_alloc_fail_at(1, 1);
    assert_null(lg_calloc(1, 1));
    assert_null(lg_realloc(kept, 100)); /* kept is untouched */
    assert_null(lg_alloc_aligned(1));
    lg_alloc_fail_at(0, 0);
    lg_free(kept);
    void *p = lg_alloc(1);
    assert_non_null(p);
    lg_free(p);
}

static void arena_memory_is_zeroed_and_aligned(void **state) {
    (void)state;
    Arena a;
    arena_init(&a);
    for (size_t bytes = 0; bytes < 5000; bytes = bytes * 3 + 1) {
        unsigned char *p = arena_alloc(&a, bytes);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 16, 0);
        for (size_t i = 0; i < bytes; i++)
            assert_int_equal(p[i], 0);
        memset(p, 0xff, bytes);
    }
    arena_clear(&a);
    assert_int_equal(a.used_bytes, 0);
    arena_clear(&a);
}

static void arena_limit_holds(void **state) {
    (void)state;
    Arena a;
    arena_init(&a);
    a.limit_bytes = 64;
    assert_non_null(arena_alloc(&a, 48));
    assert_null(arena_alloc(&a, 17));
    assert_non_null(arena_alloc(&a, 16));
    assert_null(arena_alloc(&a, 0));
    arena_clear(&a);
}

static void arena_checks_products(void **state) {
    (void)state;
    Arena a;
    arena_init(&a);
    assert_null(arena_array(&a, SIZE_MAX / 2, 3));
    assert_null(arena_alloc(&a, SIZE_MAX - 8));
    arena_clear(&a);
}

static void arena_copies_and_grows(void **state) {
    (void)state;
    Arena a;
    arena_init(&a);
    int *list = ARENA_ARRAY(&a, int, 2);
    list[0] = 5;
    list[1] = 6;
    list = arena_grow(&a, list, 2, 2000, sizeof *list);
    assert_int_equal(list[1], 6);
    assert_int_equal(list[1999], 0);
    LgStr s = arena_str(&a, (LgStr){"a\0b", 3});
    assert_memory_equal(s.ptr, "a\0b", 4);
    assert_string_equal(arena_strdup(&a, LG_STR("xy")), "xy");
    assert_string_equal(arena_printf(&a, "%s-%d", "layer", 12), "layer-12");
    assert_non_null(arena_str(&a, (LgStr){NULL, 0}).ptr);
    arena_clear(&a);
}

static void arena_reports_a_failed_block(void **state) {
    (void)state;
    Arena a;
    arena_init(&a);
    lg_alloc_fail_at(1, 0);
    assert_null(arena_alloc(&a, 10));
    lg_alloc_fail_at(0, 0);
    assert_non_null(arena_alloc(&a, 10));
    arena_clear(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(size_zero_gives_a_pointer),
        cmocka_unit_test(products_that_wrap_are_refused),
        cmocka_unit_test(aligned_blocks_are_aligned_to_64),
        cmocka_unit_test(the_nth_allocation_fails_once),
        cmocka_unit_test(or_all_from_the_nth_on),
        cmocka_unit_test(arena_memory_is_zeroed_and_aligned),
        cmocka_unit_test(arena_limit_holds),
        cmocka_unit_test(arena_checks_products),
        cmocka_unit_test(arena_copies_and_grows),
        cmocka_unit_test(arena_reports_a_failed_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
