/* config.json into flat keys: the spellings of transformers 4 and 5 end at the same keys. */
#include "files.h"

#include <dirent.h>

#include "formats/checkpoint.h"

static Config *parse(const char *json) {
    LgError err = {0};
    Config *c = config_create();
    if (hf_config_parse(lg_str(json), "config.json", c, &err) != LG_OK)
        fail_msg("%s", err.message);
    return c;
}

static void refuses(const char *json, LgStatus want, const char *words) {
    LgError err = {0};
    Config *c = config_create();
    assert_int_equal(hf_config_parse(lg_str(json), "config.json", c, &err), want);
    assert_mentions(&err, words);
    assert_mentions(&err, "config.json");
    config_destroy(c);
}

static void prints(const Config *c, const char *key, const char *want) {
    Buf b;
    const ConfigValue *v = config_get_c(c, key);
    buf_init(&b);
    if (!v)
        fail_msg("\"%s\" is absent", key);
    config_value_print(v, &b);
    assert_string_equal(b.data, want);
    buf_clear(&b);
}

static void values_keep_their_kind(void **state) {
    (void)state;
    Config *c =
        parse("{\"hidden_size\": 512, \"rms_norm_eps\": 1e-06, \"tie_word_embeddings\": true,"
              " \"model_type\": \"qwen3\", \"sliding_window\": null, \"mlp_only_layers\": [],"
              " \"layer_types\": [\"full_attention\", \"x\"], \"odd\": [1, [2.5, {\"b\": 1, \"a\": "
              "2}]]}");
    assert_int_equal(config_get_c(c, "hidden_size")->kind, CONFIG_INT);
    prints(c, "hidden_size", "512");
    prints(c, "rms_norm_eps", "1e-06");
    prints(c, "tie_word_embeddings", "true");
    prints(c, "model_type", "\"qwen3\"");
    prints(c, "mlp_only_layers", "[]");
    prints(c, "layer_types", "[\"full_attention\", \"x\"]");
    prints(c, "odd", "[1, [2.5, \"{\\\"a\\\":2,\\\"b\\\":1}\"]]");
    assert_null(config_get_c(c, "sliding_window"));
    assert_null(config_get_c(c, "head_dim")); /* nothing is made up */
    config_destroy(c);
}

static void nested_keys_are_dotted(void **state) {
    (void)state;
    Config *c =
        parse("{\"quantization_config\": {\"bits\": 4, \"a\": {\"b\": true}}, \"none\": {}}");
    prints(c, "quantization_config.bits", "4");
    prints(c, "quantization_config.a.b", "true");
    assert_non_null(config_get_c(c, "quantization_config"));
    assert_null(config_get_c(c, "none"));
    assert_int_equal(config_count(c), 2); /* the leaves alone have to be claimed */
    config_destroy(c);
}

static void aliases_give_one_name(void **state) {
    (void)state;
    Config *c = parse("{\"dtype\": \"bfloat16\", \"num_local_experts\": 8,"
                      " \"rope_parameters\": {\"rope_theta\": 1000000.0, \"rope_type\": "
                      "\"llama3\", \"factor\": 8.0,"
                      " \"partial_rotary_factor\": 0.5}}");
    prints(c, "torch_dtype", "\"bfloat16\"");
    prints(c, "num_experts", "8");
    prints(c, "rope_theta", "1e+06");
    prints(c, "rope_scaling.rope_type", "\"llama3\"");
    prints(c, "rope_scaling.factor", "8.0");
    prints(c, "partial_rotary_factor", "0.5");
    assert_null(config_get_c(c, "rope_parameters"));
    assert_null(config_get_c(c, "dtype"));
    config_destroy(c);
    c = parse("{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}, \"rope_theta\": 10000}");
    prints(c, "rope_scaling.rope_type", "\"linear\"");
    assert_null(config_get_c(c, "rope_scaling.type"));
    config_destroy(c);
}

static void rope_of_two_kinds_of_layers_has_a_name_each(void **state) {
    (void)state;
    Config *c =
        parse("{\"rope_parameters\": {"
              "\"full_attention\": {\"rope_type\": \"linear\", \"factor\": 8.0, \"rope_theta\": "
              "1000000.0},"
              "\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0}}}");
    prints(c, "rope_theta", "1e+06");
    prints(c, "rope_local_base_freq", "1e+04");
    prints(c, "rope_scaling.rope_type", "\"linear\"");
    prints(c, "rope_scaling.factor", "8.0");
    assert_int_equal(config_count(c), 4);
    config_destroy(c);
}

static void default_rope_counts_as_absent(void **state) {
    (void)state;
    static const char *const forms[] = {
        "{\"rope_scaling\": null}",
        "{\"rope_scaling\": {\"type\": \"default\"}}",
        "{\"rope_scaling\": {\"rope_type\": \"default\", \"type\": \"default\"}}",
        "{\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 1.0}}",
        "{\"rope_parameters\": null, \"rope_scaling\": null}",
        "{\"rope_scaling\": {}}",
    };
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        Config *c = parse(forms[i]);
        assert_null(config_get_c(c, "rope_scaling"));
        assert_null(config_get_c(c, "rope_scaling.rope_type"));
        config_destroy(c);
    }
    Config *c = parse("{\"rope_scaling\": {\"type\": \"yarn\"}}");
    assert_non_null(config_get_c(c, "rope_scaling"));
    config_destroy(c);
    /* What stands beside "default" is not lost: a program has to say that it may be. */
    c = parse("{\"rope_scaling\": {\"type\": \"default\", \"mrope_section\": [16, 24, 24]}}");
    assert_non_null(config_get_c(c, "rope_scaling.mrope_section"));
    config_destroy(c);
}

static void two_spellings_must_agree(void **state) {
    (void)state;
    Config *c = parse(
        "{\"rope_theta\": 10000, \"rope_parameters\": {\"rope_theta\": 10000.0}, \"dtype\": null,"
        " \"torch_dtype\": \"float32\"}");
    prints(c, "rope_theta", "10000");
    prints(c, "torch_dtype", "\"float32\"");
    config_destroy(c);
    c = parse("{\"torch_dtype\": \"float32\", \"dtype\": null}");
    prints(c, "torch_dtype", "\"float32\"");
    config_destroy(c);
    refuses("{\"rope_theta\": 10000, \"rope_parameters\": {\"rope_theta\": 20000}}", LG_BAD_INPUT,
            "\"rope_theta\" is given twice");
    refuses("{\"num_experts\": 8, \"num_local_experts\": 16}", LG_BAD_INPUT,
            "\"num_experts\" is given twice");
    refuses("{\"rope_scaling\": {\"type\": \"yarn\", \"rope_type\": \"linear\"}}", LG_BAD_INPUT,
            "given twice");
    refuses("{\"a\": {\"b\": 1}, \"a.b\": 2}", LG_BAD_INPUT, "given twice");
}

static void long_integers_are_reals(void **state) {
    (void)state;
    Config *c =
        parse("{\"model_max_length\": 1000000000000000019884624838656, \"hidden_size\": 64}");
    prints(c, "model_max_length", "1e+30");
    assert_int_equal(config_get_c(c, "hidden_size")->kind, CONFIG_INT);
    config_destroy(c);
}

static void malformed_configs_are_refused(void **state) {
    (void)state;
    refuses("[]", LG_BAD_INPUT, "object is expected");
    refuses("{\"a\": 1, \"a\": 1}", LG_BAD_INPUT, "duplicate");
    refuses("{\"a\": ", LG_BAD_INPUT, "line 1");
    refuses("", LG_BAD_INPUT, "byte 0");
    refuses("{\"a\": NaN}", LG_BAD_INPUT, "line 1");
    Buf b;
    buf_init(&b);
    for (int i = 0; i < 100000; i++)
        buf_puts(&b, "{\"a\":");
    refuses(b.data, LG_BAD_INPUT, "deeper");
    buf_reset(&b);
    for (int i = 0; i < 4097; i++)
        buf_printf(&b, "%s\"k%d\":%d", i ? "," : "{", i, i);
    buf_puts(&b, "}");
    refuses(b.data, LG_LIMIT, "4096 keys");
    buf_clear(&b);
}

static void every_failed_allocation_is_reported(void **state) {
    (void)state;
    LgStr json = LG_STR(
        "{\"rope_parameters\": {\"rope_theta\": 1, \"rope_type\": \"default\"},"
        " \"layer_types\": [\"a\", {\"b\": 1}], \"model_max_length\": 100000000000000000000}");
    for (int forever = 0; forever < 2; forever++) {
        LgStatus status = LG_NO_MEMORY;
        for (long n = 1; status != LG_OK; n++) {
            Config *c = config_create();
            lg_alloc_fail_at(n, forever);
            status = hf_config_parse(json, "config.json", c, NULL);
            lg_alloc_fail_at(0, 0);
            assert_true(status == LG_OK || status == LG_NO_MEMORY);
            assert_true(n < 1000);
            config_destroy(c);
        }
    }
}

/* Keys that say nothing about the model, or that transformers 4 did not write. */
static bool may_differ(LgStr key) {
    static const char *const names[] = {"transformers_version", "torch_dtype", "layer_types",
                                        "max_window_layers"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (lg_str_eq_c(key, names[i]))
            return true;
    return false;
}

static void assert_within(const Config *a, const Config *b) {
    for (size_t i = 0; i < config_count(a); i++) {
        LgStr key = config_key(a, i);
        const ConfigValue *v = config_get(a, key);
        if (!v || may_differ(key))
            continue;
        const ConfigValue *other = config_get(b, key);
        if (!other || !config_value_eq(v, other))
            fail_msg("\"%.*s\" differs", LG_STR_ARG(key));
    }
}

static void both_generations_of_a_config_give_the_same_keys(void **state) {
    (void)state;
    DIR *models = opendir(LG_SHARED_DATA "/tiny/models");
    if (!models)
        skip();
    int compared = 0;
    for (struct dirent *entry = readdir(models); entry; entry = readdir(models)) {
        if (entry->d_name[0] == '.')
            continue;
        char path[700];
        Checkpoint *five = NULL, *four = NULL;
        snprintf(path, sizeof path, LG_SHARED_DATA "/tiny/models/%s/config.json", entry->d_name);
        assert_int_equal(checkpoint_open_config(path, &five, NULL), LG_OK);
        snprintf(path, sizeof path, LG_SHARED_DATA "/tiny/models/%s/config.v4.json", entry->d_name);
        assert_int_equal(checkpoint_open_config(path, &four, NULL), LG_OK);
        assert_within(checkpoint_config(five), checkpoint_config(four));
        assert_within(checkpoint_config(four), checkpoint_config(five));
        checkpoint_close(five);
        checkpoint_close(four);
        compared++;
    }
    closedir(models);
    assert_true(compared >= 7);
}

/* The same on configs that are part of the fuzzing seeds, and so always there. */
static void both_generations_in_the_seeds_too(void **state) {
    (void)state;
    static const char *const names[] = {"tiny-llama", "tiny-qwen3-moe"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[700];
        Checkpoint *five = NULL, *four = NULL;
        snprintf(path, sizeof path, LG_SOURCE_DIR "/fuzz/seeds/json_config/%s", names[i]);
        assert_int_equal(checkpoint_open_config(path, &five, NULL), LG_OK);
        strcat(path, ".v4");
        assert_int_equal(checkpoint_open_config(path, &four, NULL), LG_OK);
        assert_within(checkpoint_config(five), checkpoint_config(four));
        assert_within(checkpoint_config(four), checkpoint_config(five));
        assert_null(checkpoint_tensors(five));
        checkpoint_close(five);
        checkpoint_close(four);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_keep_their_kind),
        cmocka_unit_test(nested_keys_are_dotted),
        cmocka_unit_test(aliases_give_one_name),
        cmocka_unit_test(rope_of_two_kinds_of_layers_has_a_name_each),
        cmocka_unit_test(default_rope_counts_as_absent),
        cmocka_unit_test(two_spellings_must_agree),
        cmocka_unit_test(long_integers_are_reals),
        cmocka_unit_test(malformed_configs_are_refused),
        cmocka_unit_test(every_failed_allocation_is_reported),
        cmocka_unit_test(both_generations_of_a_config_give_the_same_keys),
        cmocka_unit_test(both_generations_in_the_seeds_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
