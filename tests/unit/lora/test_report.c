/* What a load says of itself: report, hash, and a folder looked at without a model. */
#include "tests/unit/lora/fixture.h"

#define FOLDER LG_TEST_DATA "/tiny/bad-adapters"
#define Q1 "model.layers.1.self_attn.q_proj"

static void the_report_lists_each_site(void **state) {
    (void)state;
    char text[2000];
    Model m;
    File f;
    model_init(&m, &toy, NULL);
    file_init(&f);
    file_add_pair(&f, "model.layers.1.mlp.down_proj", DTYPE_BF16, 2, 5, 4);
    file_add_pair(&f, Q1, DTYPE_BF16, 2, 4, 3);
    Adapter *a = load_ok(
        &m, file_set(&f),
        config_text(text, "2", "3", ",\"alpha_pattern\":{\"down_proj\":1},\"lora_dropout\":0.1"));
    const json_t *report = adapter_report(a);
    const json_t *sites = json_object_get(report, "sites");
    assert_int_equal(json_array_size(sites), 2);
    const json_t *q = json_array_get(sites, 0), *d = json_array_get(sites, 1);
    assert_string_equal(json_string_value(json_object_get(q, "site")), "wq");
    assert_string_equal(json_string_value(json_object_get(q, "module")), Q1);
    assert_int_equal(json_integer_value(json_object_get(q, "layer")), 1);
    assert_int_equal(json_integer_value(json_object_get(q, "rank")), 2);
    assert_true(json_real_value(json_object_get(q, "scale")) == 1.5);
    assert_true(json_is_false(json_object_get(q, "dora")));
    assert_string_equal(json_string_value(json_object_get(d, "site")), "wd");
    assert_true(json_real_value(json_object_get(d, "scale")) == 0.5);
    const json_t *counts = json_object_get(report, "tensors");
    assert_int_equal(json_integer_value(json_object_get(counts, "tensors")), 4);
    assert_int_equal(json_integer_value(json_object_get(counts, "applied")), 4);
    assert_int_equal(json_integer_value(json_object_get(counts, "disregarded")), 0);
    assert_int_equal(json_integer_value(json_object_get(counts, "modules")), 2);
    assert_string_equal(json_string_value(json_object_get(report, "hash")), adapter_hash(a));
    assert_int_equal(json_integer_value(json_object_get(report, "bytes")), adapter_data(a)->bytes);
    assert_int_equal(json_array_size(json_object_get(report, "disregarded")), 1);
    assert_true(report_has(a, "disregarded", "lora_dropout"));
    assert_true(report_has(a, "disregarded", "a setting of training"));
    adapter_destroy(a);
    file_clear(&f);
    model_clear(&m);
}

/* The hash of a rank-2 pair on q_proj (in `order`: B in front of A), with one element changed by
 * `bump`. */
static void hash_of(char out[65], LgStr config, bool order, float bump, DType type) {
    Model m;
    File f;
    model_init(&m, &toy, NULL);
    file_init(&f);
    float a[8] = {1, 2, 3, 4, 5, 6, 7, 8}, b[6] = {1, 2, 3, 4, 5, 6};
    a[3] += bump;
    for (int i = 0; i < 2; i++) {
        if ((i == 0) == order)
            file_add(&f, Q1 ".lora_B.weight", type, 3, 2, b);
        else
            file_add(&f, Q1 ".lora_A.weight", type, 2, 4, a);
    }
    Adapter *loaded = load_ok(&m, file_set(&f), config);
    strcpy(out, adapter_hash(loaded));
    assert_int_equal(strlen(out), 64);
    adapter_destroy(loaded);
    file_clear(&f);
    model_clear(&m);
}

static void the_hash_is_of_what_changes_numbers(void **state) {
    (void)state;
    char text[2000], want[65], got[65];
    hash_of(want, config_text(text, "2", "4", ""), false, 0, DTYPE_F32);
    static const struct {
        const char *alpha, *more;
        bool order;
        float bump;
        bool same;
    } cases[] = {
        {"4", "", false, 0, true},
        {"4", "", true, 0, true}, /* the order of the file does not matter */
        {"4", ",\"lora_dropout\":0.5,\"target_modules\":[\"q_proj\"]", false, 0, true},
        {"9", ",\"alpha_pattern\":{\"q_proj\":4}", false, 0,
         true}, /* another way to say the same */
        {"5", "", false, 0, false},
        {"4", ",\"use_rslora\":true", false, 0, false},
        {"4", ",\"alpha_pattern\":{\"q_proj\":5}", false, 0, false},
        {"4", "", false, 1, false},
        {"-4", "", false, 0, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        hash_of(got, config_text(text, "2", cases[i].alpha, cases[i].more), cases[i].order,
                cases[i].bump, DTYPE_F32);
        assert_true(!strcmp(want, got) == cases[i].same);
    }
    hash_of(got, config_text(text, "2", "4", ""), false, 0, DTYPE_BF16);
    assert_string_not_equal(want, got);
}

static void a_folder_is_inspected_without_a_model(void **state) {
    (void)state;
    json_t *report = NULL;
    LgError err = {0};
    assert_int_equal(adapter_inspect(FOLDER "/control-ok", &report, &err), LG_OK);
    const json_t *tensors = json_object_get(report, "tensors");
    assert_int_equal(json_array_size(tensors), 4);
    const json_t *t = json_array_get(tensors, 0);
    assert_string_equal(json_string_value(json_object_get(t, "name")),
                        "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight");
    assert_string_equal(json_string_value(json_object_get(t, "kind")), "lora_A");
    assert_string_equal(json_string_value(json_object_get(t, "module")),
                        "model.layers.0.mlp.down_proj");
    assert_string_equal(json_string_value(json_object_get(t, "dtype")), "BF16");
    assert_int_equal(json_integer_value(json_array_get(json_object_get(t, "shape"), 1)), 384);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(report, "config"), "r")),
                     8);
    assert_true(json_is_null(json_object_get(report, "refusal")));
    json_decref(report);

    report = NULL;
    assert_int_equal(adapter_inspect(FOLDER "/peft-type-ia3", &report, &err), LG_OK);
    assert_contains(json_string_value(json_object_get(report, "refusal")), "IA3");
    json_decref(report);

    report = NULL;
    assert_int_equal(adapter_inspect(FOLDER "/truncated-file", &report, &err), LG_BAD_INPUT);
    assert_int_equal(adapter_inspect(FOLDER "/config-list", &report, &err), LG_OK);
    assert_contains(json_string_value(json_object_get(report, "refusal")), "JSON object");
    json_decref(report);
    report = NULL;
    assert_int_equal(adapter_inspect(FOLDER "/not-there", &report, &err), LG_NOT_FOUND);
    assert_null(report);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_report_lists_each_site),
        cmocka_unit_test(the_hash_is_of_what_changes_numbers),
        cmocka_unit_test(a_folder_is_inspected_without_a_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
