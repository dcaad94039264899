/* safetensors: what is read, and every fault alone with the words of its refusal. */
#include "files.h"

#include "formats/safetensors.h"

static LgStatus parse_bytes(const Buf *b, TensorSet **set, unsigned char **bytes, LgError *err) {
    *bytes = exact_copy(b);
    return safetensors_parse(*bytes, b->len, "file", set, err);
}

static LgStatus parse_header(const char *header, size_t data_bytes, LgError *err) {
    Buf b;
    TensorSet *set = NULL;
    unsigned char *bytes;
    buf_init(&b);
    make_safetensors(&b, header, data_bytes);
    LgStatus status = parse_bytes(&b, &set, &bytes, err);
    assert_int_equal(status == LG_OK, set != NULL);
    tensor_set_close(set);
    lg_free(bytes);
    buf_clear(&b);
    return status;
}

static void reads_tensors(void **state) {
    (void)state;
    Buf b;
    TensorSet *set = NULL;
    unsigned char *bytes;
    LgError err = {0};
    buf_init(&b);
    make_safetensors(&b,
                     "{\"__metadata__\":{\"format\":\"pt\"},"
                     "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
                     "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                     "\"s\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[16,17]},"
                     "\"z\":{\"dtype\":\"F16\",\"shape\":[0,7],\"data_offsets\":[16,16]}}   ",
                     17);
    assert_int_equal(parse_bytes(&b, &set, &bytes, &err), LG_OK);
    assert_int_equal(tensor_set_count(set), 4);
    const Tensor *t = tensor_set_find(set, LG_STR("b"));
    assert_ptr_equal(t, tensor_set_at(set, 0));
    assert_int_equal(t->dtype, DTYPE_BF16);
    assert_int_equal(t->rank, 2);
    assert_int_equal(t->shape[0], 2);
    assert_int_equal(t->shape[1], 3);
    assert_int_equal(t->bytes, 12);
    assert_int_equal(t->rope_heads, 0);
    assert_ptr_equal(t->data, bytes + b.len - 13);
    assert_int_equal(tensor_elems(tensor_set_find(set, LG_STR("s"))), 1);
    assert_int_equal(tensor_elems(tensor_set_find(set, LG_STR("z"))), 0);
    assert_null(tensor_set_find(set, LG_STR("c")));
    tensor_set_close(set);
    tensor_set_close(NULL);
    lg_free(bytes);
    buf_clear(&b);
}

static void reads_every_dtype_of_the_format(void **state) {
    (void)state;
    static const struct {
        const char *name;
        DType dtype;
        int bytes;
    } rows[] = {
        {"F64", DTYPE_F64, 8},   {"F32", DTYPE_F32, 4},         {"F16", DTYPE_F16, 2},
        {"BF16", DTYPE_BF16, 2}, {"I64", DTYPE_I64, 8},         {"I32", DTYPE_I32, 4},
        {"I16", DTYPE_I16, 2},   {"I8", DTYPE_I8, 1},           {"U64", DTYPE_U64, 8},
        {"U32", DTYPE_U32, 4},   {"U16", DTYPE_U16, 2},         {"U8", DTYPE_U8, 1},
        {"BOOL", DTYPE_BOOL, 1}, {"F8_E4M3", DTYPE_F8_E4M3, 1}, {"F8_E5M2", DTYPE_F8_E5M2, 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char header[120];
        Buf b;
        TensorSet *set = NULL;
        unsigned char *bytes;
        buf_init(&b);
        snprintf(header, sizeof header,
                 "{\"x\":{\"dtype\":\"%s\",\"shape\":[3],\"data_offsets\":[0,%d]}}", rows[i].name,
                 3 * rows[i].bytes);
        make_safetensors(&b, header, (size_t)(3 * rows[i].bytes));
        assert_int_equal(parse_bytes(&b, &set, &bytes, NULL), LG_OK);
        assert_int_equal(tensor_set_at(set, 0)->dtype, rows[i].dtype);
        tensor_set_close(set);
        lg_free(bytes);
        buf_clear(&b);
    }
}

static void reads_a_file_without_tensors(void **state) {
    (void)state;
    LgError err = {0};
    assert_int_equal(parse_header("{}", 0, &err), LG_OK);
    assert_int_equal(parse_header("{\"__metadata__\":{}}", 0, &err), LG_OK);
}

/* The header of one F32 tensor of two elements, with one thing wrong. */
typedef struct Fault {
    const char *header;
    size_t data_bytes;
    const char *words;
} Fault;

#define ONE(dtype, shape, offsets)                                                                 \
    "{\"x\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define ENTRY(name, offsets)                                                                       \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":" offsets "}"

static const Fault faults[] = {
    {ONE("\"F31\"", "[2]", "[0,8]"), 8, "dtype \"F31\" is not known"},
    {ONE("\"Q8_0\"", "[32]", "[0,34]"), 34, "dtype \"Q8_0\" is not known"},
    {ONE("3", "[2]", "[0,8]"), 8, "\"dtype\" is missing"},
    {"{\"x\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "\"dtype\" is missing"},
    {"{\"x\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, "\"shape\" is missing"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "\"data_offsets\" is no pair"},
    {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"y\":1}}", 8,
     "keys other than"},
    {"{\"x\":[1]}", 0, "no object"},
    {ONE("\"F32\"", "2", "[0,8]"), 8, "\"shape\" is missing or no list"},
    {ONE("\"F32\"", "[-2]", "[0,8]"), 8, "no natural number"},
    {ONE("\"F32\"", "[2.0]", "[0,8]"), 8, "no natural number"},
    {ONE("\"F32\"", "[18446744073709551618]", "[0,8]"), 8, "no natural number"},
    {ONE("\"F32\"", "[\"2\"]", "[0,8]"), 8, "no natural number"},
    {ONE("\"F32\"", "[1,1,1,1,2]", "[0,8]"), 8, "more than 4 axes"},
    {ONE("\"F32\"", "[4294967296,4294967296,2]", "[0,8]"), 8, "more than 64 bits"},
    {ONE("\"F32\"", "[4611686018427387905]", "[0,4]"), 4,
     "more than 64 bits"}, /* times 4 is 4 again */
    {ONE("\"F32\"", "[3]", "[0,8]"), 8, "another number of bytes"},
    {ONE("\"F32\"", "[1]", "[0,8]"), 8, "another number of bytes"},
    {ONE("\"F32\"", "[2]", "[0,8,8]"), 8, "no pair"},
    {ONE("\"F32\"", "[2]", "[0,\"8\"]"), 8, "no pair"},
    {ONE("\"F32\"", "[2]", "[-8,0]"), 8, "no pair"},
    {ONE("\"F32\"", "[2]", "[8,0]"), 8, "ends before it begins"},
    {ONE("\"F32\"", "[2]", "[0,8]"), 7, "past the end"},
    {ONE("\"F32\"", "[2]", "[9223372036854775799,9223372036854775807]"), 8, "past the end"},
    {ONE("\"F32\"", "[2]", "[0,8]"), 9, "1 bytes after the last tensor"},
    {"{}", 1, "1 bytes after the last tensor"},
    {ONE("\"F32\"", "[2]", "[1,9]"), 9, "bytes in front of its data"},
    {"{" ENTRY("a", "[0,4]") "," ENTRY("b", "[8,12]") "}", 12, "tensor \"b\": bytes in front"},
    {"{" ENTRY("a", "[0,4]") "," ENTRY("b", "[2,6]") "}", 6, "tensor \"b\": its data overlaps"},
    {"{" ENTRY("a", "[0,4]") "," ENTRY("b", "[0,4]") "}", 4, "its data overlaps"},
    {"{" ENTRY("a", "[0,4]") "," ENTRY("a", "[4,8]") "}", 8, "duplicate"},
    {"{" ENTRY("", "[0,4]") "}", 4, "empty name"},
    {"{" ENTRY("a\\nb", "[0,4]") "}", 4, "a\\x0ab"},
    {"{" ENTRY("a\\u007fb", "[0,4]") "}", 4, "control characters"},
    {"{" ENTRY("a\\u0000b", "[0,4]") "}", 4, "not valid JSON"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "__metadata__"},
    {"{\"__metadata__\":[]}", 0, "__metadata__"},
    {"[]", 0, "does not begin with \"{\""},
    {" {}", 0, "does not begin with \"{\""},
    {"{\"x\"", 0, "not valid JSON"},
    {"{} x", 0, "not valid JSON"},
};

static void each_fault_is_refused_in_words(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        LgError err = {0};
        if (parse_header(faults[i].header, faults[i].data_bytes, &err) != LG_BAD_INPUT)
            fail_msg("not refused: %s", faults[i].header);
        assert_mentions(&err, faults[i].words);
        assert_mentions(&err, "file");
    }
}

static LgStatus parse_raw(const void *data, size_t bytes, LgError *err) {
    Buf b;
    TensorSet *set = NULL;
    unsigned char *copy;
    buf_init(&b);
    buf_append(&b, data, bytes);
    LgStatus status = parse_bytes(&b, &set, &copy, err);
    tensor_set_close(set);
    lg_free(copy);
    buf_clear(&b);
    return status;
}

static void header_lengths_that_lie_are_refused(void **state) {
    (void)state;
    LgError err = {0};
    assert_int_equal(parse_raw("", 0, &err), LG_BAD_INPUT);
    assert_mentions(&err, "0 bytes");
    assert_int_equal(parse_raw("\2\0\0\0\0\0\0", 7, &err), LG_BAD_INPUT);
    assert_int_equal(parse_raw("\0\0\0\0\0\0\0\0", 8, &err), LG_BAD_INPUT);
    assert_int_equal(parse_raw("\3\0\0\0\0\0\0\0{}", 10, &err), LG_BAD_INPUT);
    assert_mentions(&err, "header length is 3");
    assert_int_equal(parse_raw("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, &err), LG_BAD_INPUT);
    assert_mentions(&err, "18446744073709551615");
    assert_int_equal(parse_raw("\1\0\0\0\0\0\0\0{}", 10, &err), LG_BAD_INPUT);
    assert_int_equal(parse_raw("\2\0\0\0\0\0\0\0{}", 10, &err), LG_OK);
}

static void a_header_past_the_limit_of_the_format_is_a_limit(void **state) {
    (void)state;
    LgError err = {0};
    size_t bytes = 100000001 + 8;
    unsigned char *data = lg_calloc(bytes, 1);
    TensorSet *set = NULL;
    for (int i = 0; i < 8; i++)
        data[i] = (unsigned char)(100000001ull >> (8 * i));
    data[8] = '{';
    assert_int_equal(safetensors_parse(data, bytes, "file", &set, &err), LG_LIMIT);
    lg_free(data);
}

static void a_very_long_name_is_a_limit(void **state) {
    (void)state;
    LgError err = {0};
    for (int len = 1024; len <= 1025; len++) {
        Buf b;
        buf_init(&b);
        buf_puts(&b, "{\"");
        for (int i = 0; i < len; i++)
            buf_putc(&b, 'n');
        buf_puts(&b, "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}");
        assert_int_equal(parse_header(b.data, 1, &err), len == 1024 ? LG_OK : LG_LIMIT);
        buf_clear(&b);
    }
    assert_mentions(&err, "1024");
}

static void every_truncation_is_refused(void **state) {
    (void)state;
    Buf b;
    buf_init(&b);
    make_safetensors(&b, "{" ENTRY("a", "[0,4]") "," ENTRY("b", "[4,8]") "}", 8);
    for (size_t len = 0; len < b.len; len++) {
        LgError err = {0};
        assert_int_equal(parse_raw(b.data, len, &err), LG_BAD_INPUT);
        assert_true(err.message[0]);
    }
    buf_clear(&b);
}

static void every_failed_allocation_is_reported(void **state) {
    (void)state;
    Buf b;
    buf_init(&b);
    make_safetensors(
        &b, "{\"__metadata__\":{\"a\":\"b\"}," ENTRY("a", "[0,4]") "," ENTRY("b", "[4,8]") "}", 8);
    LgStatus status = LG_NO_MEMORY;
    for (long n = 1; status != LG_OK; n++) {
        TensorSet *set = NULL;
        LgError err = {0};
        lg_alloc_fail_at(n, 1);
        status = safetensors_parse((const unsigned char *)b.data, b.len, "file", &set, &err);
        lg_alloc_fail_at(0, 0);
        assert_true(status == LG_OK || status == LG_NO_MEMORY);
        tensor_set_close(set);
        assert_true(n < 500);
    }
    buf_clear(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_tensors),
        cmocka_unit_test(reads_every_dtype_of_the_format),
        cmocka_unit_test(reads_a_file_without_tensors),
        cmocka_unit_test(each_fault_is_refused_in_words),
        cmocka_unit_test(header_lengths_that_lie_are_refused),
        cmocka_unit_test(a_header_past_the_limit_of_the_format_is_a_limit),
        cmocka_unit_test(a_very_long_name_is_a_limit),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(every_failed_allocation_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
