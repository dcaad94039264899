/* Element types and tensors: exact conversion to f32, sizes that cannot wrap, the order of q's and
 * k's rows. */
#include "files.h"

#include "base/float.h"
#include "formats/dtype.h"
#include "formats/tensor.h"
#include "formats/tensor_set.h"

static void every_served_type_converts(void **state) {
    (void)state;
    for (int t = 0; t < DTYPE_COUNT; t++) {
        const DTypeInfo *info = dtype_info((DType)t);
        assert_non_null(info->name);
        assert_true(info->block_bytes > 0 && info->block_elems > 0);
        assert_int_equal(info->served, info->to_f32 != NULL);
    }
    assert_string_equal(dtype_info(DTYPE_Q4_1)->name, "Q4_1");
    assert_false(dtype_info(DTYPE_F64)->served);
}

static void plain_types_widen_exactly(void **state) {
    (void)state;
    float out[3];
    const float f[3] = {1.5f, -0.0f, 3e38f};
    dtype_info(DTYPE_F32)->to_f32(f, out, 3);
    assert_memory_equal(out, f, sizeof f);
    const unsigned char h[] = {0x00, 0x3c, 0x01, 0x00, 0xff, 0xfb};
    dtype_info(DTYPE_F16)->to_f32(h, out, 3);
    assert_true(out[0] == 1.0f && out[1] == 0x1p-24f && out[2] == -65504.0f);
    const unsigned char b[] = {0x80, 0x3f, 0x00, 0xc0, 0x01, 0x00};
    dtype_info(DTYPE_BF16)->to_f32(b, out, 3);
    assert_true(out[0] == 1.0f && out[1] == -2.0f && out[2] == float_from_bits(0x00010000));
}

static void put_f16(unsigned char *p, float f) {
    uint16_t h = f16_from_float(f);
    p[0] = (unsigned char)h;
    p[1] = (unsigned char)(h >> 8);
}

static void q8_0_is_scale_times_byte(void **state) {
    (void)state;
    unsigned char blocks[2 * 34];
    float out[64];
    for (int b = 0; b < 2; b++) {
        put_f16(blocks + 34 * b, b ? -0.25f : 0.5f);
        for (int i = 0; i < 32; i++)
            blocks[34 * b + 2 + i] = (unsigned char)(i * 8 - 128);
    }
    dtype_info(DTYPE_Q8_0)->to_f32(blocks, out, 64);
    for (int i = 0; i < 32; i++) {
        assert_true(out[i] == 0.5f * (float)(i * 8 - 128));
        assert_true(out[32 + i] == -0.25f * (float)(i * 8 - 128));
    }
}

/* Low nibbles first: element i and element i + 16 share byte i. */
static void q4_0_is_scale_times_nibble_less_8(void **state) {
    (void)state;
    unsigned char block[18];
    float out[32];
    put_f16(block, 2.0f);
    for (int i = 0; i < 16; i++)
        block[2 + i] = (unsigned char)(i | (15 - i) << 4);
    dtype_info(DTYPE_Q4_0)->to_f32(block, out, 32);
    for (int i = 0; i < 16; i++) {
        assert_true(out[i] == 2.0f * (float)(i - 8));
        assert_true(out[16 + i] == 2.0f * (float)(15 - i - 8));
    }
}

static void q4_1_is_scale_times_nibble_plus_minimum(void **state) {
    (void)state;
    unsigned char block[20];
    float out[32];
    put_f16(block, 0.125f);
    put_f16(block + 2, -3.0f);
    for (int i = 0; i < 16; i++)
        block[4 + i] = (unsigned char)(i | (15 - i) << 4);
    dtype_info(DTYPE_Q4_1)->to_f32(block, out, 32);
    for (int i = 0; i < 16; i++) {
        assert_true(out[i] == 0.125f * (float)i - 3.0f);
        assert_true(out[16 + i] == 0.125f * (float)(15 - i) - 3.0f);
    }
}

static void row_bytes_count_blocks(void **state) {
    (void)state;
    uint64_t bytes = 0;
    assert_true(dtype_row_bytes(DTYPE_Q4_1, 576, &bytes));
    assert_int_equal(bytes, 18 * 20);
    assert_true(dtype_row_bytes(DTYPE_F16, 0, &bytes));
    assert_int_equal(bytes, 0);
    assert_false(dtype_row_bytes(DTYPE_Q4_1, 575, &bytes));
    assert_false(dtype_row_bytes(DTYPE_F64, UINT64_MAX / 4, &bytes));
    assert_true(dtype_row_bytes(DTYPE_U8, UINT64_MAX, &bytes));
}

static void shapes_that_wrap_are_refused(void **state) {
    (void)state;
    uint64_t elems = 0, bytes = 0;
    const uint64_t fine[] = {3, 5, 64}, wraps[] = {1u << 31, 1u << 31, 8},
                   bytes_wrap[] = {1ull << 40, 1ull << 22};
    const uint64_t none[] = {0, UINT64_MAX, 64};
    assert_true(tensor_shape_bytes(DTYPE_Q8_0, 3, fine, &elems, &bytes));
    assert_int_equal(elems, 960);
    assert_int_equal(bytes, 15 * 2 * 34);
    assert_false(tensor_shape_bytes(DTYPE_U8, 3, wraps, &elems, &bytes));
    assert_false(tensor_shape_bytes(DTYPE_F32, 2, bytes_wrap, &elems, &bytes));
    assert_true(tensor_shape_bytes(DTYPE_F32, 3, none, &elems, &bytes));
    assert_int_equal(elems, 0);
    assert_true(tensor_shape_bytes(DTYPE_F32, 0, NULL, &elems, &bytes));
    assert_int_equal(elems, 1);
    assert_int_equal(bytes, 4);
}

static void a_row_is_the_last_axis(void **state) {
    (void)state;
    float data[12], row[3];
    for (int i = 0; i < 12; i++)
        data[i] = (float)i;
    Tensor t = {.dtype = DTYPE_F32,
                .rank = 3,
                .shape = {2, 2, 3},
                .data = (const unsigned char *)data,
                .bytes = 48};
    assert_int_equal(tensor_elems(&t), 12);
    tensor_row_f32(&t, 3, row);
    assert_true(row[0] == 9.0f && row[2] == 11.0f);
    assert_ptr_equal(tensor_row(&t, 2), data + 6);
    Tensor scalar = {.dtype = DTYPE_F32, .data = (const unsigned char *)data};
    tensor_row_f32(&scalar, 0, row);
    assert_true(row[0] == 0.0f);
}

/* Stored row 2i of a head is logical row i, stored row 2i + 1 is logical row i + half. */
static void interleaved_heads_are_put_back(void **state) {
    (void)state;
    float data[12 * 2], row[2], bias[12];
    for (int i = 0; i < 24; i++)
        data[i] = (float)i;
    Tensor t = {.dtype = DTYPE_F32,
                .rank = 2,
                .shape = {12, 2},
                .data = (const unsigned char *)data,
                .rope_heads = 2};
    static const int stored[12] = {0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11}; /* heads of 6 rows */
    for (uint64_t r = 0; r < 12; r++) {
        tensor_row_f32(&t, r, row);
        assert_true(row[0] == (float)(2 * stored[r]));
        assert_ptr_equal(tensor_row(&t, r), data + 2 * stored[r]);
    }
    Tensor v = {.dtype = DTYPE_F32,
                .rank = 1,
                .shape = {12},
                .data = (const unsigned char *)data,
                .rope_heads = 2};
    tensor_row_f32(&v, 0, bias); /* a bias is one row, and its elements move */
    for (int r = 0; r < 12; r++)
        assert_true(bias[r] == (float)stored[r]);
}

static void rows_need_no_alignment(void **state) {
    (void)state;
    unsigned char bytes[1 + 8] = {0};
    float out[2], want[2] = {1.25f, -7.0f};
    memcpy(bytes + 1, want, 8);
    Tensor t = {.dtype = DTYPE_F32, .rank = 1, .shape = {2}, .data = bytes + 1, .bytes = 8};
    tensor_row_f32(&t, 0, out);
    assert_memory_equal(out, want, 8);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_served_type_converts),
        cmocka_unit_test(plain_types_widen_exactly),
        cmocka_unit_test(q8_0_is_scale_times_byte),
        cmocka_unit_test(q4_0_is_scale_times_nibble_less_8),
        cmocka_unit_test(q4_1_is_scale_times_nibble_plus_minimum),
        cmocka_unit_test(row_bytes_count_blocks),
        cmocka_unit_test(shapes_that_wrap_are_refused),
        cmocka_unit_test(a_row_is_the_last_axis),
        cmocka_unit_test(interleaved_heads_are_put_back),
        cmocka_unit_test(rows_need_no_alignment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
