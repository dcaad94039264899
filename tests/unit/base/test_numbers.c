/* f16, bf16, numbers as text, the generator and the clock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <locale.h>
#include <math.h>

#include "base/clock.h"
#include "base/float.h"
#include "base/number.h"
#include "base/rng.h"

static void f16_every_value_comes_back(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = f16_to_float((uint16_t)h);
        if (isnan(f)) {
            assert_true((h & 0x7fff) > 0x7c00);
            assert_int_equal(f16_from_float(f), h | 0x200); /* quiet */
        } else {
            assert_int_equal(f16_from_float(f), h);
        }
    }
}

static void f16_known_values(void **state) {
    (void)state;
    assert_true(f16_to_float(0x3c00) == 1.0f);
    assert_true(f16_to_float(0xc000) == -2.0f);
    assert_true(f16_to_float(0x7bff) == 65504.0f);
    assert_true(f16_to_float(0x0001) == 0x1p-24f);
    assert_true(f16_to_float(0x0400) == 0x1p-14f);
    assert_true(isinf(f16_to_float(0x7c00)));
}

/* Between two neighbours the nearer wins, and the even one at half way. */
static void f16_rounds_to_nearest_even(void **state) {
    (void)state;
    for (uint16_t h = 0; h < 0x7bff; h++) {
        double low = (double)f16_to_float(h), high = (double)f16_to_float((uint16_t)(h + 1));
        float middle = (float)((low + high) / 2); /* exact: f32 has more bits */
        assert_int_equal(f16_from_float(middle), h & 1 ? h + 1 : h);
        assert_int_equal(f16_from_float(nextafterf(middle, 0.0f)), h);
        assert_int_equal(f16_from_float(nextafterf(middle, 1e9f)), h + 1);
        assert_int_equal(f16_from_float(-middle), 0x8000 | (h & 1 ? h + 1 : h));
    }
    assert_int_equal(f16_from_float(65519.99f), 0x7bff);
    assert_int_equal(f16_from_float(65520.0f), 0x7c00);
    assert_int_equal(f16_from_float(1e30f), 0x7c00);
    assert_int_equal(f16_from_float(1e-30f), 0);
    assert_int_equal(f16_from_float(-INFINITY), 0xfc00);
}

static void bf16_rounds_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x7f80; h += 7) {
        uint32_t half = h << 16 | 0x8000;
        assert_int_equal(bf16_from_float(float_from_bits(half)), h & 1 ? h + 1 : h);
        assert_int_equal(bf16_from_float(float_from_bits(half - 1)), h);
        assert_int_equal(bf16_from_float(float_from_bits(half + 1)), h + 1);
    }
    assert_true(isnan(bf16_to_float(bf16_from_float(float_from_bits(0x7f800001)))));
    assert_true(isinf(bf16_round(INFINITY)));
    assert_true(isinf(bf16_round(3.4e38f)));
    assert_true(bf16_round(1.0f) == 1.0f);
}

static void a_random_value_depends_on_seed_and_counter_alone(void **state) {
    (void)state;
    assert_int_equal(rng_u64(1, 5), rng_u64(1, 5));
    assert_int_not_equal(rng_u64(1, 5), rng_u64(1, 6));
    assert_int_not_equal(rng_u64(1, 5), rng_u64(2, 5));
    assert_int_not_equal(rng_u64(1, 2), rng_u64(2, 1));
    assert_int_not_equal(rng_u64(0, 0), 0);
}

static void random_units_are_even_and_below_one(void **state) {
    (void)state;
    int bins[16] = {0};
    for (uint64_t i = 0; i < 160000; i++) {
        float u = rng_unit(i % 4, i);
        assert_true(u >= 0.0f && u < 1.0f);
        bins[(int)(u * 16)]++;
    }
    for (int i = 0; i < 16; i++)
        assert_in_range(bins[i], 9500, 10500); /* five standard deviations */
}

static void the_clock_does_not_go_back(void **state) {
    (void)state;
    double before = clock_seconds();
    for (int i = 0; i < 1000; i++) {
        double now = clock_seconds();
        assert_true(now >= before);
        before = now;
    }
}

static void number_text_is(double value, const char *want) {
    char text[NUMBER_TEXT_MAX];
    number_shortest(value, text);
    assert_string_equal(text, want);
    assert_true(number_parse(text, NULL) == value);
}

/* Also where the thread's locale writes a comma, on machines that have such a locale. */
static void numbers_as_text_know_no_locale(void **state) {
    (void)state;
    static const char *const names[] = {"C", "de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        locale_t l = newlocale(LC_ALL_MASK, names[i], (locale_t)0);
        if (!l)
            continue;
        locale_t before = uselocale(l);
        char text[NUMBER_TEXT_MAX], *end;
        number_text_is(0.1, "0.1");
        number_text_is(1e-6, "1e-06");
        number_text_is(-2.5, "-2.5");
        number_text_is(0.1 + 0.2, "0.30000000000000004");
        number_shortest_float(0.1f, text);
        assert_string_equal(text, "0.1");
        number_shortest_float(16777217.0f, text);
        assert_string_equal(text, "16777216");
        assert_int_equal(number_print(text, sizeof text, 'f', 2, 3.14159), 4);
        assert_string_equal(text, "3.14");
        number_print(text, sizeof text, 'e', 1, 12345);
        assert_string_equal(text, "1.2e+04");
        assert_true(number_parse("1.5x", &end) == 1.5 && *end == 'x');
        assert_ptr_equal(uselocale((locale_t)0), l); /* the thread's own is back */
        uselocale(before);
        freelocale(l);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_as_text_know_no_locale),
        cmocka_unit_test(f16_every_value_comes_back),
        cmocka_unit_test(f16_known_values),
        cmocka_unit_test(f16_rounds_to_nearest_even),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(a_random_value_depends_on_seed_and_counter_alone),
        cmocka_unit_test(random_units_are_even_and_below_one),
        cmocka_unit_test(the_clock_does_not_go_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
