/* adapter_config.json: what changes numbers, what cannot, and what is refused by name. */
#include "base/file.h"
#include "tests/unit/lora/fixture.h"

typedef struct Rig {
    Model m;
    File f;
    const TensorSet *set;
} Rig;

/* The toy model and a rank-2 pair on q_proj of layer 1. */
static void rig_init(Rig *r) {
    model_init(&r->m, &toy, NULL);
    file_init(&r->f);
    file_add_pair(&r->f, "model.layers.1.self_attn.q_proj", DTYPE_BF16, 2, 4, 3);
    r->set = file_set(&r->f);
}

static void rig_clear(Rig *r) {
    file_clear(&r->f);
    model_clear(&r->m);
}

static float scale_of(Rig *r, const char *rank, const char *alpha, const char *more) {
    char text[2000];
    Adapter *a = load_ok(&r->m, r->set, config_text(text, rank, alpha, more));
    assert_int_equal(adapted_sites(a), 1);
    assert_int_equal(site_at(a, WQ, 1)->rank, 2);
    float scale = site_at(a, WQ, 1)->scale;
    adapter_destroy(a);
    return scale;
}

static void scale_is_alpha_over_r_or_over_its_root(void **state) {
    (void)state;
    Rig r;
    rig_init(&r);
    assert_true(scale_of(&r, "2", "3", "") == 1.5f);
    assert_true(scale_of(&r, "2.0", "3.0", "") == 1.5f);
    assert_true(scale_of(&r, "2", "1", "") == 0.5f);
    assert_true(scale_of(&r, "2", "0.1", "") == (float)(0.1 / 2));
    assert_true(scale_of(&r, "2", "-3", "") == -1.5f);
    assert_true(scale_of(&r, "2", "3", ",\"use_rslora\":true") == (float)(3 / 1.4142135623730951));
    assert_true(scale_of(&r, "2", "3", ",\"use_rslora\":false") == 1.5f);
    assert_true(scale_of(&r, "2", "3", ",\"use_rslora\":null") == 1.5f);
    assert_true(scale_of(&r, "", "3", "") == 1.5f);
    assert_true(scale_of(&r, "null", "3", "") == 1.5f);
    assert_true(scale_of(&r, "8", "3", ",\"rank_pattern\":{\"q_proj\":2}") == 1.5f);
    assert_true(scale_of(&r, "2", "3",
                         ",\"alpha_pattern\":{\"q_proj\":5,\"layers.1.self_attn.q_proj\":7}") ==
                2.5f);
    assert_true(scale_of(&r, "2", "3",
                         ",\"alpha_pattern\":{\"k_proj\":5,\"layers.1.self_attn.q_proj\":7}") ==
                3.5f);
    assert_true(scale_of(&r, "2", "3", ",\"alpha_pattern\":{\"q_proj\":0}") == 0);
    assert_true(
        scale_of(&r, "2", "3", ",\"use_rslora\":true,\"alpha_pattern\":{\"q_(a|proj)\":5}") ==
        (float)(5 / 1.4142135623730951));
    rig_clear(&r);
}

static void alpha_zero_is_kept_and_noted(void **state) {
    (void)state;
    Rig r;
    char text[2000];
    rig_init(&r);
    Adapter *a = load_ok(&r.m, r.set, config_text(text, "2", "0", ""));
    assert_true(site_at(a, WQ, 1)->scale == 0 && site_at(a, WQ, 1)->rank == 2);
    assert_true(report_has(a, "notes", "alpha is 0 for 1 of 1 modules"));
    adapter_destroy(a);
    rig_clear(&r);
}

typedef struct Refusal {
    const char *r, *alpha, *more, *fragment;
} Refusal;

static const Refusal refusals[] = {
    {"2", "", "", "\"lora_alpha\" is missing"},
    {"2", "null", "", "\"lora_alpha\" is missing"},
    {"2", "true", "", "\"lora_alpha\" is true"},
    {"2", "[3]", "", "\"lora_alpha\" is [3]"},
    {"2", "1e999", "", "not valid JSON"},
    {"2", "1e300", "", "too large"},
    {"2", "Infinity", "", "not valid JSON"},
    {"0", "3", "", "\"r\" is 0"},
    {"\"2\"", "3", "", "\"r\" is \"2\""},
    {"2.5", "3", "", "\"r\" is 2.5"},
    {"true", "3", "", "\"r\" is true"},
    {"3", "3", "", "its rank is 2, but adapter_config.json says 3 (r)"},
    {"2", "3", ",\"rank_pattern\":{\"q_proj\":3}", "says 3 (rank_pattern)"},
    {"", "3", ",\"rank_pattern\":{\"q_proj\":3}", "says 3 (rank_pattern)"},
    {"2", "3", ",\"rank_pattern\":{\"k_proj\":0}", "rank_pattern key \"k_proj\": a rank is"},
    {"2", "3", ",\"rank_pattern\":{\"k_proj\":\"2\"}", "must be a finite number"},
    {"2", "3", ",\"rank_pattern\":[2]", "rank_pattern must be an object"},
    {"2", "3", ",\"alpha_pattern\":{\"(\":2}", "alpha_pattern key \"(\": not a valid"},
    {"2", "3", ",\"alpha_pattern\":{\"\":2}", "1 to 4096 bytes"},
    {"2", "3", ",\"alpha_pattern\":{\"(.|.)*(.|.)*(.|.)*q_pro[kx]\":2}", "too many steps"},
    {"2", "3", ",\"peft_type\":\"LOHA\"", "duplicate"},
    {"2", "3", ",\"use_rslora\":1", "\"use_rslora\" is 1; it must be true or false"},
    {"2", "3", ",\"use_dora\":\"yes\"", "\"use_dora\" is \"yes\""},
    {"2", "3", ",\"use_dora\":true", "no lora_magnitude_vector"},
    {"2", "3", ",\"lora_bias\":true", "the module has no lora_B.bias"},
    {"2", "3", ",\"lora_bias\":1", "\"lora_bias\" is 1"},
    {"2", "3", ",\"bias\":\"some\"", "\"bias\" is \"some\""},
    {"2", "3", ",\"fan_in_fan_out\":true", "\"fan_in_fan_out\" is true"},
    {"2", "3", ",\"modules_to_save\":[\"lm_head\"]", "names \"lm_head\" in modules_to_save, but"},
    {"2", "3", ",\"modules_to_save\":\"lm_head\"", "it must be a list of names"},
    {"2", "3", ",\"trainable_token_indices\":[1]", "the file has no trainable_tokens_delta"},
    {"2", "3", ",\"trainable_token_indices\":{\"embed_tokens\":[1]}", "trainable_token_indices"},
    {"2", "3", ",\"trainable_token_indices\":[-1]", "it must be a list of token ids"},
    {"2", "3", ",\"trainable_token_indices\":{\"embed_tokens\":1}", "such lists by module"},
    {"2", "3", ",\"target_parameters\":\"gate.weight\"", "\"target_parameters\" is"},
    {"2", "3", ",\"target_parameters\":[7]", "it must be a list of names"},
    {"2", "3", ",\"layer_replication\":[[0,2]]", "\"layer_replication\" is [[0,2]]"},
    {"2", "3", ",\"init_lora_weights\":\"pissa\"", "\"init_lora_weights\" is \"pissa\""},
    {"2", "3", ",\"init_lora_weights\":\"pissa_niter_16\"", "\"init_lora_weights\" is"},
    {"2", "3", ",\"init_lora_weights\":\"olora\"", "\"init_lora_weights\" is"},
    {"2", "3", ",\"init_lora_weights\":\"corda\"", "\"init_lora_weights\" is"},
    {"2", "3", ",\"init_lora_weights\":\"loftq\"", "\"init_lora_weights\" is"},
    {"2", "3", ",\"loftq_config\":{\"loftq_bits\":4}", "\"loftq_config\" is"},
    {"2", "3", ",\"use_qalora\":true", "\"use_qalora\" is true"},
    {"2", "3", ",\"alora_invocation_tokens\":[7]", "\"alora_invocation_tokens\" is [7]"},
    {"2", "3", ",\"ensure_weight_tying\":true", "\"ensure_weight_tying\" is true"},
    {"2", "3", ",\"new_in_1_0\":0.5", "\"new_in_1_0\" is 0.5; this key is not known"},
    {"2", "3", ",\"new_in_1_0\":true", "this key is not known"},
    {"2", "3", ",\"velora_config\":{\"a\":1}", "\"velora_config\" is {\"a\":1}"},
};

static void what_is_not_served_is_refused_by_name(void **state) {
    (void)state;
    Rig r;
    char text[2000];
    rig_init(&r);
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++)
        load_fails(&r.m, r.set,
                   config_text(text, refusals[i].r, refusals[i].alpha, refusals[i].more),
                   LG_BAD_INPUT, refusals[i].fragment);
    load_fails(&r.m, r.set, LG_STR("{\"r\":2,\"lora_alpha\":3}"), LG_BAD_INPUT,
               "\"peft_type\" is missing");
    load_fails(&r.m, r.set, LG_STR("{\"peft_type\":\"LOHA\",\"r\":2,\"lora_alpha\":3}"),
               LG_BAD_INPUT, "\"peft_type\" is \"LOHA\"");
    load_fails(&r.m, r.set, LG_STR("7"), LG_BAD_INPUT, "JSON");
    rig_clear(&r);
}

static void keys_without_a_value_are_ignored(void **state) {
    (void)state;
    Rig r;
    rig_init(&r);
    assert_true(
        scale_of(&r, "2", "3",
                 ",\"a\":null,\"b\":false,\"c\":[],\"d\":{},\"e\":\"\",\"modules_to_save\":null,"
                 "\"target_parameters\":[],\"loftq_config\":{},\"fan_in_fan_out\":false,"
                 "\"bias\":\"none\",\"init_lora_weights\":\"gaussian\"") == 1.5f);
    assert_true(scale_of(&r, "2", "3", ",\"bias\":null,\"init_lora_weights\":false") == 1.5f);
    /* a base without biases has none to replace */
    assert_true(scale_of(&r, "2", "3", ",\"bias\":\"lora_only\"") == 1.5f);
    assert_true(scale_of(&r, "2", "3", ",\"bias\":\"all\"") == 1.5f);
    rig_clear(&r);
}

static void inert_keys_are_named_in_the_report(void **state) {
    (void)state;
    static const char *const inert[] = {
        "\"base_model_name_or_path\":\"x\"",
        "\"inference_mode\":true",
        "\"revision\":\"main\"",
        "\"task_type\":\"CAUSAL_LM\"",
        "\"lora_dropout\":0.0",
        "\"target_modules\":\"all-linear\"",
        "\"layers_to_transform\":[0]",
        "\"layers_pattern\":\"h\"",
        "\"megatron_core\":\"m\"",
        "\"megatron_config\":{\"a\":1}",
        "\"exclude_modules\":[\"x\"]",
        "\"runtime_config\":{\"ephemeral_gpu_offload\":false}",
        "\"auto_mapping\":{\"a\":\"b\"}",
        "\"qalora_group_size\":16",
        "\"eva_config\":{\"rho\":2.0}",
    };
    Rig r;
    rig_init(&r);
    for (size_t i = 0; i < sizeof inert / sizeof inert[0]; i++) {
        char text[2000], more[200], key[64];
        snprintf(more, sizeof more, ",%s", inert[i]);
        sscanf(inert[i], "\"%63[^\"]", key);
        Adapter *a = load_ok(&r.m, r.set, config_text(text, "2", "3", more));
        assert_true(report_has(a, "disregarded", key));
        adapter_destroy(a);
    }
    rig_clear(&r);
}

static void a_pattern_that_decides_nothing_is_noted(void **state) {
    (void)state;
    Rig r;
    char text[2000];
    rig_init(&r);
    Adapter *a = load_ok(
        &r.m, r.set, config_text(text, "2", "3", ",\"alpha_pattern\":{\"q_proj\":5,\"k_proj\":7}"));
    assert_true(
        report_has(a, "notes", "alpha_pattern key \"k_proj\" decides for no adapted module"));
    assert_false(report_has(a, "notes", "q_proj"));
    adapter_destroy(a);
    rig_clear(&r);
}

/* The guide's tables are those that a load goes by. */
static void the_guide_has_the_tables(void **state) {
    (void)state;
    Buf want, guide;
    LgError err = {0};
    buf_init(&want);
    buf_init(&guide);
    adapter_print_served(&want);
    if (file_read(LG_TEST_DATA "/../../docs/adapters.md", 1u << 20, &guide, &err) != LG_OK)
        fail_msg("%s", err.message);
    if (!strstr(guide.data, want.data))
        fail_msg("docs/adapters.md does not hold the tables of adapter_print_served");
    buf_clear(&want);
    buf_clear(&guide);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scale_is_alpha_over_r_or_over_its_root),
        cmocka_unit_test(alpha_zero_is_kept_and_noted),
        cmocka_unit_test(what_is_not_served_is_refused_by_name),
        cmocka_unit_test(the_guide_has_the_tables),
        cmocka_unit_test(keys_without_a_value_are_ignored),
        cmocka_unit_test(inert_keys_are_named_in_the_report),
        cmocka_unit_test(a_pattern_that_decides_nothing_is_noted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
