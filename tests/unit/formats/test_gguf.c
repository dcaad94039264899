/* GGUF: metadata of every type, tensors, and every fault alone with the words of its refusal. */
#include "files.h"

#include "formats/gguf.h"

static LgStatus parse(GgufFile *g, Gguf **out, unsigned char **bytes, LgError *err) {
    gguf_finish(g);
    *bytes = exact_copy(&g->file);
    *out = NULL;
    *err = (LgError){0};
    LgStatus status = gguf_parse(*bytes, g->file.len, "file", out, err);
    assert_int_equal(status == LG_OK, *out != NULL);
    return status;
}

/* Parses and gives the file up. */
static void refuses(GgufFile *g, LgStatus want, const char *words) {
    Gguf *parsed;
    unsigned char *bytes;
    LgError err;
    LgStatus status = parse(g, &parsed, &bytes, &err);
    if (status != want)
        fail_msg("status %d (%s) where \"%s\" is expected", status, err.message, words);
    assert_mentions(&err, words);
    assert_mentions(&err, "file");
    lg_free(bytes);
    gguf_end(g);
}

static void accepts(GgufFile *g) {
    Gguf *parsed;
    unsigned char *bytes;
    LgError err;
    if (parse(g, &parsed, &bytes, &err) != LG_OK)
        fail_msg("%s", err.message);
    gguf_close(parsed);
    lg_free(bytes);
    gguf_end(g);
}

static void reads_scalars_of_every_type(void **state) {
    (void)state;
    GgufFile f;
    Gguf *g;
    unsigned char *bytes;
    LgError err;
    gguf_begin(&f);
    put_int(&f, "u8", U8, 255);
    put_int(&f, "i8", I8, -1);
    put_int(&f, "u16", U16, 65535);
    put_int(&f, "i16", I16, -2);
    put_int(&f, "u32", U32, 4294967295);
    put_int(&f, "i32", I32, -3);
    put_f32(&f, "f32", 1e-5f);
    put_int(&f, "bool", BOOL, 1);
    put_string(&f, "string", "text");
    put_int(&f, "u64", U64, INT64_MAX);
    put_int(&f, "u64.past", U64, -1);
    put_int(&f, "i64", I64, INT64_MIN);
    put_int(&f, "f64", F64, 0x3ff8000000000000); /* 1.5 */
    assert_int_equal(parse(&f, &g, &bytes, &err), LG_OK);
    memset(bytes, 0, f.file.len); /* strings do not depend on the input */
    assert_int_equal(gguf_get(g, "u8")->integer, 255);
    assert_int_equal(gguf_get(g, "i8")->integer, -1);
    assert_int_equal(gguf_get(g, "u16")->integer, 65535);
    assert_int_equal(gguf_get(g, "i16")->integer, -2);
    assert_int_equal(gguf_get(g, "u32")->integer, 4294967295);
    assert_int_equal(gguf_get(g, "i32")->integer, -3);
    assert_int_equal(gguf_get(g, "f32")->kind, CONFIG_REAL);
    assert_true(gguf_get(g, "f32")->real == (double)1e-5f);
    assert_int_equal(gguf_get(g, "bool")->kind, CONFIG_BOOL);
    assert_true(gguf_get(g, "bool")->boolean);
    assert_true(lg_str_eq_c(gguf_get(g, "string")->string, "text"));
    assert_true(gguf_get(g, "u64")->integer == INT64_MAX);
    assert_true(gguf_get(g, "u64.past")->real == 0x1p64);
    assert_true(gguf_get(g, "i64")->integer == INT64_MIN);
    assert_true(gguf_get(g, "f64")->real == 1.5);
    assert_null(gguf_get(g, "absent"));
    assert_int_equal(gguf_key_count(g), 13);
    assert_string_equal(gguf_key(g, 8).ptr, "string");
    gguf_close(g);
    gguf_close(NULL);
    lg_free(bytes);
    gguf_end(&f);
}

static void put_arrays(GgufFile *f) {
    put_array(f, "strings", STRING, 3);
    put_gguf_string(&f->pairs, "one");
    put_gguf_string(&f->pairs, "");
    put_gguf_string(&f->pairs, "three");
    put_array(f, "types", I32, 2);
    put_le(&f->pairs, 3, 4);
    put_le(&f->pairs, (uint64_t)-1, 4);
    put_array(f, "bools", BOOL, 2);
    put_le(&f->pairs, 0x0001, 2);
    put_array(f, "long", U64, 1);
    put_le(&f->pairs, 1ull << 40, 8);
    put_array(f, "scores", F32, 2);
    put_le(&f->pairs, 0x3f800000, 4);
    put_le(&f->pairs, 0xc0000000, 4);
    put_array(f, "empty", U8, 0);
    put_array(f, "nested", ARRAY, 2);
    put_le(&f->pairs, U8, 4);
    put_le(&f->pairs, 3, 8);
    put_le(&f->pairs, 0, 3);
    put_le(&f->pairs, STRING, 4);
    put_le(&f->pairs, 1, 8);
    put_gguf_string(&f->pairs, "x");
    put_int(f, "after", U8, 9);
}

static void reads_arrays(void **state) {
    (void)state;
    GgufFile f;
    Gguf *g;
    unsigned char *bytes;
    LgError err;
    const LgStr *strings;
    const int32_t *ints;
    const float *floats;
    gguf_begin(&f);
    put_arrays(&f);
    assert_int_equal(parse(&f, &g, &bytes, &err), LG_OK);
    memset(bytes, 0, f.file.len);
    assert_int_equal(gguf_strings(g, "strings", &strings), 3);
    assert_true(lg_str_eq_c(strings[0], "one"));
    assert_int_equal(strings[1].len, 0);
    assert_true(lg_str_eq_c(strings[2], "three"));
    assert_int_equal(gguf_ints(g, "types", &ints), 2);
    assert_int_equal(ints[0], 3);
    assert_int_equal(ints[1], -1);
    assert_int_equal(gguf_ints(g, "bools", &ints), 2);
    assert_int_equal(ints[0], 1);
    assert_int_equal(gguf_ints(g, "long", &ints), 0); /* do not fit */
    assert_int_equal(gguf_floats(g, "scores", &floats), 2);
    assert_true(floats[0] == 1.0f && floats[1] == -2.0f);
    assert_int_equal(gguf_ints(g, "empty", &ints), 0);
    assert_int_equal(gguf_strings(g, "types", &strings), 0); /* another type */
    assert_int_equal(gguf_floats(g, "absent", &floats), 0);
    assert_null(gguf_get(g, "types"));
    assert_null(gguf_get(g, "nested"));
    assert_int_equal(gguf_get(g, "after")->integer, 9); /* the nested array was passed over whole */
    gguf_close(g);
    lg_free(bytes);
    gguf_end(&f);
}

static void reads_tensors_outermost_first(void **state) {
    (void)state;
    GgufFile f;
    Gguf *g;
    unsigned char *bytes;
    LgError err;
    gguf_begin(&f);
    put_tensor(&f, "norm", 6, 0, 0, 0, NULL, 24);
    put_tensor(&f, "q4_1", 64, 3, 0, 3, NULL, 3 * 2 * 20);
    put_tensor(&f, "exps", 32, 2, 5, 8, NULL, 10 * 34);
    assert_int_equal(parse(&f, &g, &bytes, &err), LG_OK);
    const TensorSet *set = gguf_tensors(g);
    assert_int_equal(tensor_set_count(set), 3);
    const Tensor *norm = tensor_set_at(set, 0), *q = tensor_set_find(set, LG_STR("q4_1"));
    const Tensor *exps = tensor_set_find(set, LG_STR("exps"));
    assert_int_equal(norm->rank, 1);
    assert_int_equal(norm->shape[0], 6);
    assert_int_equal(norm->dtype, DTYPE_F32);
    assert_int_equal(q->rank, 2);
    assert_int_equal(q->shape[0], 3);
    assert_int_equal(q->shape[1], 64);
    assert_int_equal(q->dtype, DTYPE_Q4_1);
    assert_int_equal(q->bytes, 120);
    assert_ptr_equal(q->data, norm->data + 32); /* aligned */
    assert_int_equal(exps->shape[0], 5);
    assert_int_equal(exps->shape[2], 32);
    assert_int_equal(exps->rope_heads, 0);
    gguf_close(g);
    lg_free(bytes);
    gguf_end(&f);
}

static void reads_the_type_numbers_of_ggml(void **state) {
    (void)state;
    static const struct {
        uint32_t number;
        DType dtype;
        uint64_t elems, bytes;
    } rows[] = {
        {0, DTYPE_F32, 1, 4},       {1, DTYPE_F16, 1, 2},       {2, DTYPE_Q4_0, 32, 18},
        {3, DTYPE_Q4_1, 32, 20},    {6, DTYPE_Q5_0, 32, 22},    {7, DTYPE_Q5_1, 32, 24},
        {8, DTYPE_Q8_0, 32, 34},    {10, DTYPE_Q2_K, 256, 84},  {11, DTYPE_Q3_K, 256, 110},
        {12, DTYPE_Q4_K, 256, 144}, {13, DTYPE_Q5_K, 256, 176}, {14, DTYPE_Q6_K, 256, 210},
        {20, DTYPE_IQ4_NL, 32, 18}, {24, DTYPE_I8, 1, 1},       {25, DTYPE_I16, 1, 2},
        {26, DTYPE_I32, 1, 4},      {27, DTYPE_I64, 1, 8},      {28, DTYPE_F64, 1, 8},
        {30, DTYPE_BF16, 1, 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        GgufFile f;
        Gguf *g;
        unsigned char *bytes;
        LgError err;
        gguf_begin(&f);
        put_tensor(&f, "x", rows[i].elems, 0, 0, rows[i].number, NULL, rows[i].bytes);
        assert_int_equal(parse(&f, &g, &bytes, &err), LG_OK);
        assert_int_equal(tensor_set_at(gguf_tensors(g), 0)->dtype, rows[i].dtype);
        assert_int_equal(tensor_set_at(gguf_tensors(g), 0)->bytes, rows[i].bytes);
        gguf_close(g);
        lg_free(bytes);
        gguf_end(&f);
    }
}

static void version_2_is_read_and_others_are_not(void **state) {
    (void)state;
    static const struct {
        uint32_t version;
        const char *words;
    } rows[] = {{1, "version 1"}, {4, "version 4"}, {0, "version 0"}, {0x03000000, "big-endian"}};
    GgufFile f;
    gguf_begin(&f);
    f.version = 2;
    accepts(&f);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        gguf_begin(&f);
        f.version = rows[i].version;
        refuses(&f, LG_BAD_INPUT, rows[i].words);
    }
}

static void counts_that_the_file_cannot_hold_are_refused(void **state) {
    (void)state;
    GgufFile f;
    gguf_begin(&f);
    f.tensor_count = 2;
    refuses(&f, LG_BAD_INPUT, "claims 2 tensors");
    gguf_begin(&f);
    f.pair_count = 3;
    refuses(&f, LG_BAD_INPUT, "claims 3 metadata keys");
    gguf_begin(&f);
    f.tensor_count = UINT64_MAX;
    refuses(&f, LG_LIMIT, "claims 18446744073709551615 tensors");
    gguf_begin(&f);
    f.pair_count = UINT64_MAX;
    refuses(&f, LG_LIMIT, "claims 18446744073709551615 metadata keys");
    gguf_begin(&f);
    put_array(&f, "a", U8, UINT64_MAX);
    refuses(&f, LG_BAD_INPUT, "claims 18446744073709551615 values");
    gguf_begin(&f);
    put_array(&f, "a", F64, (UINT64_MAX >> 3) + 2); /* times 8 is 8 */
    refuses(&f, LG_BAD_INPUT, "claims 2305843009213693953 values");
    gguf_begin(&f);
    put_key(&f, "a", STRING);
    put_le(&f.pairs, UINT64_MAX - 3, 8);
    refuses(&f, LG_BAD_INPUT, "claims 18446744073709551612 bytes");
}

static void gguf_rejects_duplicate_key(void **state) {
    (void)state;
    GgufFile f;
    gguf_begin(&f);
    put_int(&f, "a.b", U8, 1);
    put_int(&f, "a.b", U8, 1);
    refuses(&f, LG_BAD_INPUT, "\"a.b\": the key occurs twice");
}

static void gguf_rejects_bad_keys(void **state) {
    (void)state;
    static const char *const keys[] = {"", "a b", "a\nb", "caf\xc3\xa9", "\x7f"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        GgufFile f;
        gguf_begin(&f);
        put_int(&f, keys[i], U32, 1);
        refuses(&f, LG_BAD_INPUT, i ? "printable ASCII" : "1 to 65535 bytes");
    }
}

static void gguf_rejects_bad_values(void **state) {
    (void)state;
    GgufFile f;
    gguf_begin(&f);
    put_key(&f, "a", 13);
    put_le(&f.pairs, 0, 8);
    refuses(&f, LG_BAD_INPUT, "unknown type 13");
    gguf_begin(&f);
    put_array(&f, "a", 99, 1);
    refuses(&f, LG_BAD_INPUT, "unknown type 99");
    gguf_begin(&f);
    put_int(&f, "a", BOOL, 2);
    refuses(&f, LG_BAD_INPUT, "bool");
    gguf_begin(&f);
    put_array(&f, "a", ARRAY, 1);
    for (int i = 0; i < 4; i++) {
        put_le(&f.pairs, ARRAY, 4);
        put_le(&f.pairs, 1, 8);
    }
    put_le(&f.pairs, 0, 16);
    refuses(&f, LG_BAD_INPUT, "nested deeper");
}

static const uint64_t dims_32[] = {32, 0, 0, 0};

static void gguf_rejects_duplicate_tensor(void **state) {
    (void)state;
    GgufFile f;
    gguf_begin(&f);
    put_tensor(&f, "x", 8, 0, 0, 0, NULL, 32);
    put_tensor(&f, "x", 8, 0, 0, 0, NULL, 32);
    refuses(&f, LG_BAD_INPUT, "\"x\": the name occurs twice");
}

static void gguf_rejects_bad_names(void **state) {
    (void)state;
    GgufFile f;
    gguf_begin(&f);
    put_tensor(&f, "a\x1b[2J", 8, 0, 0, 0, NULL, 32);
    refuses(&f, LG_BAD_INPUT, "a\\x1b[2J");
    gguf_begin(&f);
    put_tensor(&f, "", 8, 0, 0, 0, NULL, 32);
    refuses(&f, LG_BAD_INPUT, "empty name");
}

static void gguf_rejects_bad_types(void **state) {
    (void)state;
    GgufFile f;
    gguf_begin(&f);
    put_tensor(&f, "x", 256, 0, 0, 16, NULL, 66);
    refuses(&f, LG_BAD_INPUT, "type IQ2_XXS is not supported");
    gguf_begin(&f);
    put_tensor(&f, "x", 32, 0, 0, 4, NULL, 32);
    refuses(&f, LG_BAD_INPUT, "unknown number 4");
}

static void gguf_rejects_bad_shapes(void **state) {
    (void)state;
    static const uint64_t none[4] = {0}, wraps[4] = {1ull << 32, 1ull << 31, 4, 0},
                          wide[4] = {1ull << 63, 0, 0, 0};
    GgufFile f;
    gguf_begin(&f);
    describe(&f, "x", none, 0, 0);
    refuses(&f, LG_BAD_INPUT, "1 to 4 axes");
    gguf_begin(&f);
    put_gguf_string(&f.tensors, "x");
    put_le(&f.tensors, 5, 4);
    for (int i = 0; i < 5; i++)
        put_le(&f.tensors, 1, 8);
    put_le(&f.tensors, 0, 12);
    f.tensor_count = 1;
    refuses(&f, LG_BAD_INPUT, "1 to 4 axes");
    gguf_begin(&f);
    put_gguf_string(&f.tensors, "x");
    put_le(&f.tensors, 1, 4);
    put_le(&f.tensors, 0, 20);
    f.tensor_count = 1;
    refuses(&f, LG_BAD_INPUT, "is 0 or passes 63 bits");
    gguf_begin(&f);
    describe(&f, "x", wide, 24, 0);
    refuses(&f, LG_BAD_INPUT, "is 0 or passes 63 bits");
    gguf_begin(&f);
    describe(&f, "x", wraps, 0, 0);
    refuses(&f, LG_BAD_INPUT, "more than 64 bits");
    gguf_begin(&f);
    put_tensor(&f, "x", 33, 0, 0, 8, NULL, 68);
    refuses(&f, LG_BAD_INPUT, "whole number of blocks");
}

static void gguf_rejects_bad_offsets(void **state) {
    (void)state;
    GgufFile f;
    gguf_begin(&f);
    describe(&f, "x", dims_32, 0, 16);
    put_pattern(&f.data, 144);
    refuses(&f, LG_BAD_INPUT, "no multiple of the alignment");
    gguf_begin(&f);
    describe(&f, "x", dims_32, 0, 0);
    put_pattern(&f.data, 127);
    refuses(&f, LG_BAD_INPUT, "past the end");
    gguf_begin(&f);
    describe(&f, "x", dims_32, 0, UINT64_MAX - 31);
    put_pattern(&f.data, 128);
    refuses(&f, LG_BAD_INPUT, "past the end");
    gguf_begin(&f);
    describe(&f, "x", dims_32, 0, 0);
    describe(&f, "y", dims_32, 0, 96);
    put_pattern(&f.data, 224);
    refuses(&f, LG_BAD_INPUT, "overlaps");
    gguf_begin(&f);
    describe(&f, "x", dims_32, 0, 0);
    describe(&f, "y", dims_32, 0, 160);
    put_pattern(&f.data, 288);
    refuses(&f, LG_BAD_INPUT, "bytes in front");
}

static void tensors_may_be_described_in_any_order(void **state) {
    (void)state;
    GgufFile f;
    gguf_begin(&f);
    describe(&f, "x", dims_32, 0, 128);
    describe(&f, "y", dims_32, 0, 0);
    put_pattern(&f.data, 256);
    accepts(&f);
}

static void alignment_is_read_and_checked(void **state) {
    (void)state;
    static const int64_t wrong[] = {0, 4, 24, 1 << 21, -8};
    GgufFile f;
    gguf_begin(&f);
    f.alignment = 64;
    put_int(&f, "general.alignment", U32, 64);
    put_tensor(&f, "x", 8, 0, 0, 0, NULL, 32);
    put_tensor(&f, "y", 8, 0, 0, 0, NULL, 32);
    accepts(&f);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        gguf_begin(&f);
        put_int(&f, "general.alignment", I64, wrong[i]);
        refuses(&f, LG_BAD_INPUT, "power of two");
    }
    gguf_begin(&f);
    put_string(&f, "general.alignment", "32");
    refuses(&f, LG_BAD_INPUT, "power of two");
}

static void make_whole(GgufFile *f) {
    gguf_begin(f);
    put_arrays(f);
    put_string(f, "general.name", "x");
    put_tensor(f, "a", 8, 2, 0, 0, NULL, 64);
    put_tensor(f, "b", 32, 0, 0, 2, NULL, 18);
    gguf_finish(f);
}

static void every_truncation_is_refused(void **state) {
    (void)state;
    GgufFile f;
    make_whole(&f);
    size_t whole = f.file.len - 14; /* the padding behind the last tensor may be missing */
    for (size_t len = 0; len <= whole; len++) {
        Buf part = {.data = f.file.data, .len = len};
        unsigned char *bytes = exact_copy(&part);
        Gguf *g = NULL;
        LgError err = {0};
        LgStatus status = gguf_parse(bytes, len, "file", &g, &err);
        assert_int_equal(status, len < whole ? LG_BAD_INPUT : LG_OK);
        gguf_close(g);
        lg_free(bytes);
    }
    gguf_end(&f);
}

static void every_failed_allocation_is_reported(void **state) {
    (void)state;
    GgufFile f;
    make_whole(&f);
    LgStatus status = LG_NO_MEMORY;
    for (long n = 1; status != LG_OK; n++) {
        Gguf *g = NULL;
        lg_alloc_fail_at(n, 1);
        status = gguf_parse((unsigned char *)f.file.data, f.file.len, "file", &g, NULL);
        lg_alloc_fail_at(0, 0);
        assert_true(status == LG_OK || status == LG_NO_MEMORY);
        assert_true(n < 500);
        gguf_close(g);
    }
    gguf_end(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_scalars_of_every_type),
        cmocka_unit_test(reads_arrays),
        cmocka_unit_test(reads_tensors_outermost_first),
        cmocka_unit_test(reads_the_type_numbers_of_ggml),
        cmocka_unit_test(version_2_is_read_and_others_are_not),
        cmocka_unit_test(counts_that_the_file_cannot_hold_are_refused),
        cmocka_unit_test(gguf_rejects_duplicate_key),
        cmocka_unit_test(gguf_rejects_bad_keys),
        cmocka_unit_test(gguf_rejects_bad_values),
        cmocka_unit_test(gguf_rejects_duplicate_tensor),
        cmocka_unit_test(gguf_rejects_bad_names),
        cmocka_unit_test(gguf_rejects_bad_types),
        cmocka_unit_test(gguf_rejects_bad_shapes),
        cmocka_unit_test(gguf_rejects_bad_offsets),
        cmocka_unit_test(tensors_may_be_described_in_any_order),
        cmocka_unit_test(alignment_is_read_and_checked),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(every_failed_allocation_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
