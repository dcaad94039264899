/* Feature levels: what is compiled in, what runs here, and forcing a narrower one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/levels.h"
#include "backend/cpu/program.h"

static void generic_level_is_first_and_always_runs(void **state) {
    (void)state;
    const CpuLevel *first = cpu_level_at(0);
    assert_string_equal(first->name, "generic");
    assert_true(cpu_level_runs(first));
    assert_ptr_equal(cpu_level_best(0), first);
    assert_ptr_equal(cpu_level_best(1), first);
}

static void every_level_is_found_by_its_name_and_no_other(void **state) {
    (void)state;
    for (int i = 0; i < cpu_level_count(); i++) {
        const CpuLevel *level = cpu_level_at(i);
        assert_ptr_equal(cpu_level_find(level->name), level);
        if (level->kernels)
            assert_string_equal(level->kernels->level, level->name);
    }
    assert_null(cpu_level_find("avx9000"));
    assert_null(cpu_level_find(""));
}

static void level_without_kernels_never_runs(void **state) {
    (void)state;
    for (int i = 0; i < cpu_level_count(); i++)
        if (!cpu_level_at(i)->kernels) {
            assert_false(cpu_level_runs(cpu_level_at(i)));
            assert_ptr_equal(cpu_level_best(1u << i), cpu_level_at(0));
        }
}

static void best_level_is_that_of_programs(void **state) {
    (void)state;
    const CpuLevel *best = cpu_level_best(CPU_LEVELS_ALL);
    assert_true(cpu_level_runs(best));
    assert_string_equal(best->name, level_best());
    for (int i = 0; i < cpu_level_count(); i++) {
        const CpuLevel *level = cpu_level_at(i);
        if (level->kernels)
            assert_int_equal(cpu_level_runs(level), level_missing(level->name) == NULL);
        if (cpu_level_runs(level))
            assert_ptr_equal(cpu_level_best(1u << i), level);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generic_level_is_first_and_always_runs),
        cmocka_unit_test(every_level_is_found_by_its_name_and_no_other),
        cmocka_unit_test(level_without_kernels_never_runs),
        cmocka_unit_test(best_level_is_that_of_programs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
