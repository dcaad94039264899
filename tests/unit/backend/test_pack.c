/* Packing: which row of a bound param goes where. The values themselves are the kernel checks' part
 * (tests/kernels). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/pack.h"
#include "base/float.h"

#define COLUMNS 3

/* A tensor of f32 rows whose elements say where they come from: 10 * row + column, from `first` on.
 */
static Tensor rows_tensor(float *store, uint64_t rows, float first) {
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t k = 0; k < COLUMNS; k++)
            store[r * COLUMNS + k] = first + (float)(10 * r + k);
    return (Tensor){.dtype = DTYPE_F32,
                    .rank = 2,
                    .shape = {rows, COLUMNS},
                    .data = (const unsigned char *)store,
                    .bytes = rows * COLUMNS * sizeof(float)};
}

static float packed(const float *panels, uint64_t row, uint64_t column) {
    return panels[(row / LGP_PANEL * COLUMNS + column) * LGP_PANEL + row % LGP_PANEL];
}

static float *pack(const ParamBinding *b, uint64_t rows) {
    int format = pack_format(b);
    float *out = malloc(pack_matrix_bytes(format, rows, COLUMNS));
    memset(out, 0xff, pack_matrix_bytes(format, rows, COLUMNS));
    assert_int_equal(format, LGP_F32);
    for (uint64_t p = pack_panel_count(rows); p > 0; p--) /* panels in any order */
        assert_true(pack_matrix_panels(b, format, rows, COLUMNS, p - 1, p, out));
    return out;
}

static void rows_become_lanes_and_missing_ones_zeros(void **state) {
    (void)state;
    float store[19 * COLUMNS];
    Tensor t = rows_tensor(store, 19, 1);
    float *out = pack(&(ParamBinding){.tensor = &t}, 19);
    for (uint64_t r = 0; r < 32; r++)
        for (uint64_t k = 0; k < COLUMNS; k++)
            assert_float_equal(packed(out, r, k), r < 19 ? 1 + (float)(10 * r + k) : 0, 0);
    free(out);
}

static void window_takes_its_rows(void **state) {
    (void)state;
    float store[40 * COLUMNS];
    Tensor t = rows_tensor(store, 40, 0);
    float *out = pack(&(ParamBinding){.tensor = &t, .from_row = 7}, 18);
    for (uint64_t r = 0; r < 18; r++)
        assert_float_equal(packed(out, r, 1), (float)(10 * (r + 7) + 1), 0);
    free(out);
}

static void window_of_a_stacked_axis_takes_its_rows_of_each(void **state) {
    (void)state;
    float store[3 * 8 * COLUMNS];
    Tensor t = rows_tensor(store, 24, 0);
    t.rank = 3;
    t.shape[0] = 3;
    t.shape[1] = 8;
    t.shape[2] = COLUMNS;
    float *out = pack(&(ParamBinding){.tensor = &t, .from_row = 4}, 3 * 4);
    for (uint64_t e = 0; e < 3; e++)
        for (uint64_t r = 0; r < 4; r++)
            assert_float_equal(packed(out, e * 4 + r, 0), (float)(10 * (e * 8 + 4 + r)), 0);
    free(out);
}

static void stack_follows_its_tensors(void **state) {
    (void)state;
    float a[5 * COLUMNS], b[5 * COLUMNS];
    Tensor ta = rows_tensor(a, 5, 0), tb = rows_tensor(b, 5, 1000);
    const Tensor *stacked[] = {&ta, &tb};
    float *out = pack(&(ParamBinding){.stacked = stacked}, 10);
    assert_float_equal(packed(out, 4, 2), 42, 0);
    assert_float_equal(packed(out, 5, 2), 1002, 0);
    free(out);
}

static void constant_fills_its_rows_only(void **state) {
    (void)state;
    float *out = pack(&(ParamBinding){.constant = 2.5}, 17);
    assert_float_equal(packed(out, 16, 2), 2.5, 0);
    assert_float_equal(packed(out, 17, 2), 0, 0);
    free(out);
}

static void gguf_rows_of_q_and_k_are_put_back(void **state) {
    (void)state;
    float store[8 * COLUMNS];
    Tensor t = rows_tensor(store, 8, 0);
    t.rope_heads = 2; /* heads of 4: logical rows 0 1 2 3 are stored at 0 2 1 3 */
    float *out = pack(&(ParamBinding){.tensor = &t}, 8);
    const float expected[] = {0, 20, 10, 30, 40, 60, 50, 70};
    for (uint64_t r = 0; r < 8; r++)
        assert_float_equal(packed(out, r, 0), expected[r], 0);
    free(out);
}

/* -8 d is no f16: the same values fit the eight-bit format. */
static void q4_0_scale_past_f16_is_reported_and_fits_q8(void **state) {
    (void)state;
    unsigned char block[18];
    uint16_t d = f16_from_float(9000);
    memset(block, 0x2f, sizeof block); /* codes 15 and 2 */
    memcpy(block, &d, 2);
    Tensor t = {
        .dtype = DTYPE_Q4_0, .rank = 2, .shape = {1, 32}, .data = block, .bytes = sizeof block};
    ParamBinding b = {.tensor = &t};
    assert_int_equal(pack_format(&b), LGP_Q4);
    unsigned char *out = malloc(pack_matrix_bytes(LGP_Q8, 1, 32));
    assert_false(pack_matrix_panels(&b, LGP_Q4, 1, 32, 0, 1, out));
    assert_true(pack_matrix_panels(&b, LGP_Q8, 1, 32, 0, 1, out));
    assert_int_equal((signed char)out[2 * LGP_PANEL], 7);
    assert_int_equal((signed char)out[2 * LGP_PANEL + 16 * LGP_PANEL], -6);
    d = f16_from_float(8188);
    memcpy(block, &d, 2);
    assert_true(pack_matrix_panels(&b, LGP_Q4, 1, 32, 0, 1, out));
    free(out);
}

static void sizes_that_do_not_fit_are_zero(void **state) {
    (void)state;
    assert_int_equal(pack_matrix_bytes(LGP_F32, UINT64_MAX, 1 << 20), 0);
    assert_int_equal(pack_matrix_bytes(LGP_F32, 1, UINT64_MAX), 0);
    assert_int_equal(pack_matrix_bytes(LGP_Q4, UINT64_MAX - 3, 4096), 0);
    assert_int_equal(pack_matrix_bytes(LGP_BF16, 17, 10), 2 * 16 * 10 * 2);
    assert_int_equal(pack_panel_count(UINT64_MAX), UINT64_MAX / 16 + 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_become_lanes_and_missing_ones_zeros),
        cmocka_unit_test(window_takes_its_rows),
        cmocka_unit_test(window_of_a_stacked_axis_takes_its_rows_of_each),
        cmocka_unit_test(stack_follows_its_tensors),
        cmocka_unit_test(constant_fills_its_rows_only),
        cmocka_unit_test(gguf_rows_of_q_and_k_are_put_back),
        cmocka_unit_test(q4_0_scale_past_f16_is_reported_and_fits_q8),
        cmocka_unit_test(sizes_that_do_not_fit_are_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
