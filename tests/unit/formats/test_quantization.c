/* f8 checkpoints: quantization_config is held to what is served, scales join their matrices. */
#include "files.h"

#include <math.h>

#include "base/float.h"
#include "formats/checkpoint.h"

#define FP8                                                                                        \
    "{\"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e4m3\", "                    \
    "\"activation_scheme\": \"dynamic\", \"weight_block_size\": [128, 128], "                      \
    "\"modules_to_not_convert\": [\"lm_head\"]}, \"hidden_size\": 256}"
#define COMPRESSED(weights, more)                                                                  \
    "{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": "            \
    "\"float-quantized\", \"quantization_status\": \"compressed\", \"ignore\": [\"lm_head\"], "    \
    "\"kv_cache_scheme\": null, \"global_compression_ratio\": 1.4, \"config_groups\": "            \
    "{\"group_0\": {\"targets\": [\"Linear\"], \"output_activations\": null, "                     \
    "\"input_activations\": {\"num_bits\": 8, \"dynamic\": true, \"strategy\": \"token\"}, "       \
    "\"weights\": {\"num_bits\": 8, \"type\": \"float\", \"symmetric\": true, \"dynamic\": "       \
    "false, \"observer\": \"minmax\", \"observer_kwargs\": {\"a\": 1}, "                           \
    "\"group_size\": null, " weights "}}}" more "}}"

/* model.safetensors, put together tensor by tensor. */
typedef struct Model {
    Buf header, data;
} Model;

static void model_begin(Model *m) {
    buf_init(&m->header);
    buf_init(&m->data);
}

static void add(Model *m, const char *name, const char *dtype, const char *shape, const void *bytes,
                size_t byte_count) {
    buf_printf(&m->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
               m->header.len ? "," : "{", name, dtype, shape, m->data.len,
               m->data.len + byte_count);
    if (bytes)
        buf_append(&m->data, bytes, byte_count);
    else
        put_pattern(&m->data, byte_count);
}

static void model_write(Model *m, Folder *f, const char *config) {
    Buf file;
    buf_init(&file);
    buf_putc(&m->header, '}');
    put_le(&file, m->header.len, 8);
    buf_append(&file, m->header.data, m->header.len);
    buf_append(&file, m->data.data, m->data.len);
    write_file(f, "model.safetensors", file.data, file.len);
    write_text(f, "config.json", config);
    buf_clear(&file);
    buf_clear(&m->header);
    buf_clear(&m->data);
}

static Checkpoint *open_model(Model *m, Folder *f, const char *config) {
    Checkpoint *c = NULL;
    LgError err = {0};
    model_write(m, f, config);
    if (checkpoint_open(f->path, &c, &err) != LG_OK)
        fail_msg("%s", err.message);
    return c;
}

static void refuses(Model *m, Folder *f, const char *config, const char *words) {
    Checkpoint *c = NULL;
    LgError err = {0};
    model_write(m, f, config);
    assert_int_equal(checkpoint_open(f->path, &c, &err), LG_BAD_INPUT);
    assert_null(c);
    assert_mentions(&err, words);
}

static const Tensor *find(Checkpoint *c, const char *name) {
    const Tensor *t = tensor_set_find(checkpoint_tensors(c), lg_str(name));
    assert_non_null(t);
    return t;
}

/* Every element: its code's number times the scale that `want` says. */
static void rows_are_codes_times(const Tensor *t, const float *scale, uint64_t block_rows,
                                 uint64_t block_columns, uint64_t stride) {
    float row[256], plain[256];
    for (uint64_t r = 0; r < t->shape[0]; r++) {
        tensor_row_f32(t, r, row);
        dtype_info(DTYPE_F8_E4M3)->to_f32(t->data + r * t->shape[1], plain, t->shape[1]);
        for (uint64_t k = 0; k < t->shape[1]; k++) {
            float want = plain[k] * scale[r / block_rows * stride + k / block_columns];
            if (row[k] != want && plain[k] == plain[k])
                fail_msg("row %d, column %d: %g, expected %g", (int)r, (int)k, (double)row[k],
                         (double)want);
        }
    }
}

static void blocks_have_a_scale_each(void **state) {
    Folder *f = *state;
    Model m;
    const float scale[4] = {0.5f, 0.03f, -2.0f, 1e-3f};
    model_begin(&m);
    add(&m, "a.weight", "F8_E4M3", "[130,256]", NULL, 130 * 256);
    add(&m, "a.weight_scale_inv", "F32", "[2,2]", scale, sizeof scale);
    add(&m, "norm.weight", "BF16", "[4]", NULL, 8);
    Checkpoint *c = open_model(&m, f, FP8);
    assert_int_equal(tensor_set_count(checkpoint_tensors(c)), 2);
    assert_null(tensor_set_find(checkpoint_tensors(c), LG_STR("a.weight_scale_inv")));
    assert_null(find(c, "norm.weight")->scale);
    rows_are_codes_times(find(c, "a.weight"), scale, 128, 128, 2);
    assert_null(config_get_c(checkpoint_config(c), "quantization_config"));
    assert_int_equal(config_get_c(checkpoint_config(c), "hidden_size")->integer, 256);
    checkpoint_close(c);
}

static void rows_or_the_whole_may_have_one_scale(void **state) {
    Folder *f = *state;
    Model m;
    float by_row[3];
    const uint16_t halves[3] = {0x3f80, 0xbe80, 0x4120}; /* bf16: 1, -0.25, 10 */
    for (int i = 0; i < 3; i++)
        by_row[i] = bf16_to_float(halves[i]);
    model_begin(&m);
    add(&m, "a.weight", "F8_E4M3", "[3,64]", NULL, 192);
    add(&m, "a.weight_scale", "BF16", "[3,1]", halves, sizeof halves);
    add(&m, "b.weight", "F8_E4M3", "[3,32]", NULL, 96);
    add(&m, "b.weight_scale", "F32", "[]", &by_row[2], 4);
    add(&m, "c.weight", "F8_E4M3", "[3,32]", NULL, 96);
    add(&m, "c.weight_scale", "BF16", "[3]", halves, sizeof halves);
    Checkpoint *c =
        open_model(&m, f, COMPRESSED("\"strategy\": \"channel\", \"block_structure\": null", ""));
    assert_int_equal(tensor_set_count(checkpoint_tensors(c)), 3);
    rows_are_codes_times(find(c, "a.weight"), by_row, 1, 64, 1);
    rows_are_codes_times(find(c, "b.weight"), &by_row[2], 3, 32, 0);
    rows_are_codes_times(find(c, "c.weight"), by_row, 1, 32, 1);
    checkpoint_close(c);
}

static void scales_of_something_else_stay(void **state) {
    Folder *f = *state;
    Model m;
    model_begin(&m);
    add(&m, "a.weight", "BF16", "[1,32]", NULL, 64);
    add(&m, "a.weight_scale", "F32", "[1]", NULL, 4);
    add(&m, "a.input_scale", "F32", "[1]", NULL, 4);
    Checkpoint *c = open_model(&m, f, FP8);
    assert_int_equal(tensor_set_count(checkpoint_tensors(c)), 3);
    checkpoint_close(c);
}

static void matrices_that_cannot_be_scaled_are_refused(void **state) {
    Folder *f = *state;
    static const struct {
        const char *name, *dtype, *shape, *scale, *scale_dtype, *scale_shape, *words;
        size_t bytes, scale_bytes;
    } rows[] = {
        {"a.weight", "F8_E4M3", "[2,32]", "b.weight_scale", "F32", "[1]", "has no", 64, 4},
        {"a.bias", "F8_E4M3", "[2,32]", "a.bias_scale", "F32", "[1]", "only matrices", 64, 4},
        {"a.weight", "F8_E4M3", "[64]", "a.weight_scale", "F32", "[1]", "only matrices", 64, 4},
        {"a.weight", "F8_E4M3", "[2,33]", "a.weight_scale", "F32", "[1]", "multiple of 32", 66, 4},
        {"a.weight", "F8_E4M3", "[2,32]", "a.weight_scale", "U8", "[1]", "F32, BF16", 64, 1},
        {"a.weight", "F8_E4M3", "[4,32]", "a.weight_scale", "F32", "[3]", "neither one", 128, 12},
        {"a.weight", "F8_E4M3", "[2,256]", "a.weight_scale", "F32", "[1,4]", "neither one", 512,
         16},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        Model m;
        model_begin(&m);
        add(&m, rows[i].name, rows[i].dtype, rows[i].shape, NULL, rows[i].bytes);
        add(&m, rows[i].scale, rows[i].scale_dtype, rows[i].scale_shape, NULL, rows[i].scale_bytes);
        refuses(&m, f, FP8, rows[i].words);
    }
    const float infinite = INFINITY;
    Model m;
    model_begin(&m);
    add(&m, "a.weight", "F8_E4M3", "[2,32]", NULL, 64);
    add(&m, "a.weight_scale", "F32", "[1]", &infinite, 4);
    refuses(&m, f, FP8, "a scale is infinite");
    model_begin(&m);
    add(&m, "a.weight", "F8_E4M3", "[2,256]", NULL, 512);
    add(&m, "a.weight_scale", "F32", "[1,4]", NULL, 16);
    refuses(&m, f, COMPRESSED("\"strategy\": \"block\", \"block_structure\": [128, 64]", ""),
            "multiple of 128 columns");
}

/* What is not known may change every weight. */
static void other_quantisations_are_refused_by_name(void **state) {
    Folder *f = *state;
    static const struct {
        const char *config, *words;
    } rows[] = {
        {"{\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 4}}", "is \"gptq\""},
        {"{\"quantization_config\": {\"bits\": 4}}", "quant_method is \"\""},
        {"{\"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e5m2\"}}",
         "quantization_config.fmt is \"e5m2\"; \"e4m3\" is served"},
        {"{\"quantization_config\": {\"quant_method\": \"fp8\", \"activation_scheme\": "
         "\"static\"}}",
         "activation_scheme is \"static\"; \"dynamic\""},
        {"{\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [128]}}",
         "no pair of sizes"},
        {"{\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [0, 128]}}",
         "no pair of sizes"},
        {"{\"quantization_config\": {\"quant_method\": \"fp8\", \"rotation\": {\"size\": 8}}}",
         "its key quantization_config.rotation.size is not known"},
        {COMPRESSED("\"strategy\": \"group\"", ""), "weights.strategy is \"group\""},
        {COMPRESSED("\"strategy\": \"channel\", \"actorder\": \"weight\"", ""),
         "weights.actorder is not known"},
        {COMPRESSED("\"strategy\": \"channel\"", ", \"transform_config\": {\"a\": 1}"),
         "transform_config.a is not known"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        Model m;
        Checkpoint *c = NULL;
        LgError err = {0};
        model_begin(&m);
        add(&m, "a.weight", "BF16", "[1,32]", NULL, 64);
        refuses(&m, f, rows[i].config, rows[i].words);
        assert_int_equal(checkpoint_open_config(f->path, &c, &err), LG_BAD_INPUT);
        assert_mentions(&err, rows[i].words);
    }
}

static void every_failed_allocation_is_reported(void **state) {
    Folder *f = *state;
    Model m;
    model_begin(&m);
    add(&m, "a.weight", "F8_E4M3", "[2,128]", NULL, 256);
    add(&m, "a.weight_scale_inv", "F32", "[1,1]", NULL, 4);
    model_write(&m, f, FP8);
    LgStatus status = LG_NO_MEMORY;
    for (long n = 1; status != LG_OK; n++) {
        Checkpoint *c = NULL;
        lg_alloc_fail_at(n, 1);
        status = checkpoint_open(f->path, &c, NULL);
        lg_alloc_fail_at(0, 0);
        assert_true(status == LG_OK || status == LG_NO_MEMORY);
        assert_true(n < 1000);
        checkpoint_close(c);
    }
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_make, folder_remove)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(blocks_have_a_scale_each),
        IN_FOLDER(rows_or_the_whole_may_have_one_scale),
        IN_FOLDER(scales_of_something_else_stay),
        IN_FOLDER(matrices_that_cannot_be_scaled_are_refused),
        IN_FOLDER(other_quantisations_are_refused_by_name),
        IN_FOLDER(every_failed_allocation_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
