/* Stored formats against what other people's code makes of the same bytes: blocks drawn at random,
 * with values by the `gguf` package and torch (tools/make_block_goldens.py). */
#include "files.h"

#include <math.h>

#include "formats/safetensors.h"
#include "formats/tensor_set.h"

static TensorSet *goldens;

static int open_goldens(void **state) {
    (void)state;
    FileMap map;
    if (file_map_open(LG_TEST_DATA "/formats/blocks.safetensors", &map, NULL) != LG_OK)
        return -1;
    if (safetensors_parse(map.data, map.size, "blocks", &goldens, NULL) != LG_OK)
        return -1;
    return tensor_set_adopt(goldens, &map, NULL) == LG_OK ? 0 : -1;
}

static int close_goldens(void **state) {
    (void)state;
    tensor_set_close(goldens);
    return 0;
}

static const Tensor *golden(const DTypeInfo *info, const char *what) {
    char name[40];
    int len = snprintf(name, sizeof name, "%s.%s", info->name, what);
    const Tensor *t = tensor_set_find(goldens, (LgStr){name, (size_t)len});
    if (!t)
        fail_msg("no golden %s", name);
    return t;
}

static bool same_value(float x, float y) {
    return x == y || (isnan(x) && isnan(y));
}

static void every_format_converts_as_its_authors_do(void **state) {
    (void)state;
    int formats = 0;
    for (int d = 0; d < DTYPE_COUNT; d++) {
        const DTypeInfo *info = dtype_info((DType)d);
        if (!info->parts && d != DTYPE_F8_E4M3)
            continue;
        const Tensor *stored = golden(info, "stored"), *values = golden(info, "values");
        size_t count = (size_t)tensor_elems(values);
        assert_int_equal(stored->bytes, count / info->block_elems * info->block_bytes);
        float *want = lg_alloc_array(count, sizeof *want),
              *got = lg_alloc_array(count, sizeof *got);
        assert_non_null(want);
        assert_non_null(got);
        tensor_row_f32(values, 0, want);
        info->to_f32(stored->data, got, count);
        for (size_t i = 0; i < count; i++)
            if (!same_value(want[i], got[i]))
                fail_msg("%s element %zu: %.9g, expected %.9g", info->name, i, (double)got[i],
                         (double)want[i]);
        lg_free(want);
        lg_free(got);
        formats++;
    }
    assert_int_equal(formats, 12);
}

/* The kernels' layouts count on these ranges. */
static void codes_scales_and_minimums_stay_in_their_ranges(void **state) {
    (void)state;
    for (int d = 0; d < DTYPE_COUNT; d++) {
        const DTypeInfo *info = dtype_info((DType)d);
        if (!info->parts)
            continue;
        const Tensor *stored = golden(info, "stored");
        BlockParts b = {0};
        for (uint64_t at = 0; at < stored->bytes; at += info->block_bytes) {
            info->parts(stored->data + at, &b);
            assert_true(b.run == 16 || b.run == 32);
            assert_true(b.run <= info->block_elems);
            bool nibbles = d == DTYPE_Q4_1 || d == DTYPE_Q2_K || d == DTYPE_Q3_K || d == DTYPE_Q4_K;
            for (uint32_t i = 0; i < info->block_elems; i++)
                assert_true(!nibbles || (b.code[i] >= 0 && b.code[i] < 16));
        }
    }
}

/* One element of each long format, written out by hand: the last one, whose bits lie at the ends.
 */
static void the_last_element_of_a_long_block_is_found(void **state) {
    (void)state;
    static const struct {
        DType dtype;
        int d, dmin, set[4][2]; /* where f16 1.0 goes; bytes set, at and value */
        float want;
    } rows[] = {
        {DTYPE_Q2_K, 80, 82, {{15, 0x37}, {16 + 63, 0xc0}}, 7 * 3 - 3},
        {DTYPE_Q3_K, 108, -1, {{31, 0x80}, {32 + 63, 0x40}, {96 + 7, 0x50}, {96 + 11, 0x80}}, 5},
        {DTYPE_Q4_K,
         0,
         2,
         {{4 + 11, 0x21}, {4 + 3, 0x40}, {4 + 7, 0xc0}, {143, 0xd0}},
         (1 + 16) * 13 - (2 + 48)},
        {DTYPE_Q5_K, 0, 2, {{4 + 11, 0x21}, {16 + 31, 0x80}, {175, 0x30}}, 19 - 2},
        {DTYPE_Q6_K, 208, -1, {{127, 0x50}, {191, 0x40}, {207, 0xfe}}, -2 * (21 - 32)},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const DTypeInfo *info = dtype_info(rows[i].dtype);
        unsigned char block[210] = {0};
        float out[256];
        block[rows[i].d + 1] = 0x3c;
        if (rows[i].dmin >= 0)
            block[rows[i].dmin + 1] = 0x3c;
        for (int k = 0; k < 4 && rows[i].set[k][1]; k++)
            block[rows[i].set[k][0]] = (unsigned char)rows[i].set[k][1];
        info->to_f32(block, out, 256);
        if (out[255] != rows[i].want)
            fail_msg("%s: %g, expected %g", info->name, (double)out[255], (double)rows[i].want);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_converts_as_its_authors_do),
        cmocka_unit_test(codes_scales_and_minimums_stay_in_their_ranges),
        cmocka_unit_test(the_last_element_of_a_long_block_is_found),
    };
    return cmocka_run_group_tests(tests, open_goldens, close_goldens);
}
