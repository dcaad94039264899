/* How tensor names find their sites, and what is said of those that find none. */
#include "tests/unit/lora/fixture.h"

#define Q1 "layers.1.self_attn.q_proj"

static LgStr config(char text[2000]) {
    return config_text(text, "2", "4", "");
}

/* A rank-2 pair on q_proj of layer 1 under other names. */
static void add_as(File *f, const char *a, const char *b) {
    file_add(f, a, DTYPE_BF16, 2, 4, NULL);
    file_add(f, b, DTYPE_BF16, 3, 2, NULL);
}

static void every_usual_prefix_finds_the_module(void **state) {
    (void)state;
    static const char *const prefixes[] = {
        "base_model.model.model.",
        "base_model.model.",
        "model.",
        "",
        "model.model.",
        "base_model.model.model.model.",
        "base_model.model.language_model.model.",
        "base_model.model.model.language_model.",
        "base_model.language_model.model.",
        "language_model.model.",
        "language_model.",
        "base_model.model.base_model.model.model.",
    };
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        char a[200], b[200], text[2000];
        Model m;
        File f;
        model_init(&m, &toy, NULL);
        file_init(&f);
        snprintf(a, sizeof a, "%s" Q1 ".lora_A.weight", prefixes[i]);
        snprintf(b, sizeof b, "%s" Q1 ".lora_B.weight", prefixes[i]);
        add_as(&f, a, b);
        Adapter *loaded = load_ok(&m, file_set(&f), config(text));
        assert_int_equal(adapted_sites(loaded), 1);
        assert_int_equal(site_at(loaded, WQ, 1)->rank, 2);
        adapter_destroy(loaded);
        file_clear(&f);
        model_clear(&m);
    }
}

static void a_pattern_may_use_the_name_of_the_file_or_of_the_model(void **state) {
    (void)state;
    static const char *const patterns[] = {
        ",\"alpha_pattern\":{\"language_model.model.layers.1.self_attn.q_proj\":6}",
        ",\"alpha_pattern\":{\"^model.layers.1.self_attn.q_proj\":6}",
        ",\"alpha_pattern\":{\"(model).layers.1.self_attn.q_proj\":6}",
    };
    for (size_t i = 0; i < 3; i++) {
        char text[2000];
        Model m;
        File f;
        model_init(&m, &toy, NULL);
        file_init(&f);
        add_as(&f, "base_model.model.language_model.model." Q1 ".lora_A.weight",
               "base_model.model.language_model.model." Q1 ".lora_B.weight");
        Adapter *a = load_ok(&m, file_set(&f), config_text(text, "2", "4", patterns[i]));
        assert_true(site_at(a, WQ, 1)->scale == 3);
        adapter_destroy(a);
        file_clear(&f);
        model_clear(&m);
    }
}

static void any_subset_of_modules_and_layers_is_served(void **state) {
    (void)state;
    char text[2000];
    Model m;
    File f;
    model_init(&m, &toy, NULL);
    file_init(&f);
    file_add_pair(&f, "model.layers.1.mlp.down_proj", DTYPE_BF16, 2, 5, 4);
    file_add_pair(&f, "model.layers.0.mlp.gate_proj", DTYPE_BF16, 2, 4, 5);
    file_add_pair(&f, "lm_head", DTYPE_BF16, 2, 4, 6);
    Adapter *a = load_ok(&m, file_set(&f), config(text));
    assert_int_equal(adapted_sites(a), 3);
    assert_int_equal(site_at(a, WD, 1)->rank, 2);
    assert_int_equal(site_at(a, WG, 0)->rank, 2);
    assert_int_equal(site_at(a, HEAD, 0)->rank, 2);
    assert_int_equal(adapter_data(a)->site_count, PARAM_COUNT);
    assert_int_equal(adapter_data(a)->layer_count, 2);
    adapter_destroy(a);
    file_clear(&f);
    model_clear(&m);
}

typedef struct Stray {
    const char *name;
    uint64_t rows, columns;
    const char *fragment;
} Stray;

/* Each beside a good pair on q_proj of layer 1. */
static const Stray strays[] = {
    {"base_model.model.lm_head.weight", 6, 4, "the base model has no such tensor to replace"},
    {"base_model.model.model.norm.weight", 4, 0, "the model has none of that name"},
    {"base_model.model.model." Q1 ".bias", 3, 0, "the model has none of that name"},
    {"base_model.model.score.modules_to_save.default.weight", 2, 4,
     "the model has none of that name"},
    {"base_model.model.model." Q1 ".lora_B.bias", 3, 0, "does not say lora_bias"},
    {"base_model.model.model." Q1 ".lora_B.default.bias", 3, 0, "does not say lora_bias"},
    {"base_model.model.model." Q1 ".base_layer.bias", 3, 0, "the model has none of that name"},
    {"base_model.model.model.wte.token_adapter.trainable_tokens_delta", 1, 4, "no such module"},
    {"base_model.model.model.layers.1.mlp.experts.7.gate_proj.lora_A.weight", 2, 4,
     "no such module"},
    {"base_model.model.model.layers.1.mlp.experts.base_layer.lora_A.weight", 2, 4,
     "no such module"},
    {"base_model.model.model.layers.1.mlp.gate.lora_A.weight", 2, 4, "no such module"},
    {"base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight", 2, 4,
     "no layer 2; its layers are 0 to 1"},
    {"base_model.model.model.layers.99999999999999999999.mlp.up_proj.lora_A.weight", 2, 4,
     "no layer"},
    {"base_model.model.model.layers.-1.mlp.up_proj.lora_A.weight", 2, 4, "no such module"},
    {"base_model.model.model.layers.01.self_attn.q_proj.lora_A.weight", 2, 4, "no such module"},
    {"base_model.model.model." Q1 ".lora_A", 2, 4, "no tensor of a LoRA adapter"},
    {"base_model.model.model." Q1 ".lora_C.weight", 2, 4, "the model has none of that name"},
    {"base_model.model.model." Q1 ".lora_A.a.b.weight", 2, 4, "no tensor of a LoRA adapter"},
    {"base_model.model.model." Q1 ".ia3_l", 4, 0, "no tensor of a LoRA adapter"},
    {"base_model.model.model." Q1 ".hada_w1_a", 4, 2, "no tensor of a LoRA adapter"},
    {"lora_A.weight", 2, 4, "tensor \"lora_A.weight\""},
    {"model.lora_A.weight", 2, 4, "tensor \"model.lora_A.weight\""},
    {"base_model.model.model." Q1 ".lora_A.default.weight", 2, 4,
     "is the lora_A of the same module"},
    {"model." Q1 ".lora_A.weight", 2, 4, "is the lora_A of the same module"},
    {"base_model.model.model." Q1 ".lora_embedding_A", 2, 4, "a product, not an embedding"},
    {"base_model.model.model.embed_tokens.lora_A.weight", 2, 4, "adapted by lora_embedding_A"},
    {"base_model.model.model.embed_tokens.lora_embedding_A", 2, 6, "no lora_embedding_B beside it"},
    {"base_model.model.model." Q1 ".lora_magnitude_vector", 3, 0, "does not say use_dora"},
};

static void a_tensor_that_acts_nowhere_is_refused_by_name(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof strays / sizeof strays[0]; i++) {
        char text[2000];
        Model m;
        File f;
        model_init(&m, &toy, NULL);
        file_init(&f);
        file_add_pair(&f, "model." Q1, DTYPE_BF16, 2, 4, 3);
        file_add(&f, strays[i].name, DTYPE_BF16, strays[i].rows, strays[i].columns, NULL);
        load_fails(&m, file_set(&f), config(text), LG_BAD_INPUT, strays[i].fragment);
        file_clear(&f);
        model_clear(&m);
    }
}

static void no_match_at_all_shows_names_of_both_sides(void **state) {
    (void)state;
    char text[2000];
    Model m;
    File f;
    model_init(&m, &toy, NULL);
    file_init(&f);
    file_add_pair(&f, "transformer.h.0.attn.c_attn", DTYPE_BF16, 2, 4, 3);
    file_add_pair(&f, "transformer.h.1.attn.c_attn", DTYPE_BF16, 2, 4, 3);
    const TensorSet *set = file_set(&f);
    load_fails(&m, set, config(text), LG_BAD_INPUT, "none of the adapter's 4 tensors");
    load_fails(&m, set, config(text), LG_BAD_INPUT, "transformer.h.0.attn.c_attn.lora_A.weight");
    load_fails(&m, set, config(text), LG_BAD_INPUT, "transformer.h.1.attn.c_attn.lora_B.weight");
    load_fails(&m, set, config(text), LG_BAD_INPUT, "model.layers.{l}.self_attn.q_proj");
    file_clear(&f);
    model_clear(&m);
}

static void keys_of_two_adapters_in_one_file_are_refused(void **state) {
    (void)state;
    char text[2000];
    Model m;
    File f;
    model_init(&m, &toy, NULL);
    file_init(&f);
    add_as(&f, "model." Q1 ".lora_A.one.weight", "model." Q1 ".lora_B.one.weight");
    file_add(&f, "model.layers.0.self_attn.q_proj.lora_A.two.weight", DTYPE_BF16, 2, 4, NULL);
    load_fails(&m, file_set(&f), config(text), LG_BAD_INPUT,
               "names the adapter \"two\", others name \"one\"");
    file_clear(&f);
    model_clear(&m);
}

static void an_adapter_name_may_be_any_word(void **state) {
    (void)state;
    char text[2000];
    Model m;
    File f;
    model_init(&m, &toy, NULL);
    file_init(&f);
    add_as(&f, "model." Q1 ".lora_A.fr-legal.weight", "model." Q1 ".lora_B.fr-legal.weight");
    Adapter *a = load_ok(&m, file_set(&f), config(text));
    assert_int_equal(site_at(a, WQ, 1)->rank, 2);
    adapter_destroy(a);
    file_clear(&f);
    model_clear(&m);
}

static void copies_alone_are_no_adapter(void **state) {
    (void)state;
    char text[2000];
    float half[24];
    for (int i = 0; i < 24; i++)
        half[i] = 0.5f;
    Model m;
    File f;
    model_init(&m, &toy, NULL);
    file_init(&f);
    file_add(&f, "base_model.model.lm_head.base_layer.weight", DTYPE_BF16, 6, 4, half);
    load_fails(&m, file_set(&f), config(text), LG_BAD_INPUT, "only copies of base weights");
    file_clear(&f);
    model_clear(&m);
}

static void names_for_requests_are_checked(void **state) {
    (void)state;
    static const char *const good[] = {"a", "fr-legal", "Ünïcode 2", "...", "a.b", ".hidden"};
    static const char *const bad[] = {"",    ".",    "..",   "a/b",    "/x",    "a:b",
                                      "a=b", "a\\b", "a\nb", "\x1b[m", "a\x7f", "\xff"};
    LgError err;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_int_equal(adapter_name_check(good[i], &err), LG_OK);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(adapter_name_check(bad[i], &err), LG_BAD_INPUT);
    assert_int_equal(adapter_name_check("a/b", &err), LG_BAD_INPUT);
    assert_contains(err.message, "adapter name \"a/b\"");
    char long_name[300];
    memset(long_name, 'a', 299);
    long_name[299] = 0;
    assert_int_equal(adapter_name_check(long_name, &err), LG_BAD_INPUT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_usual_prefix_finds_the_module),
        cmocka_unit_test(a_pattern_may_use_the_name_of_the_file_or_of_the_model),
        cmocka_unit_test(any_subset_of_modules_and_layers_is_served),
        cmocka_unit_test(a_tensor_that_acts_nowhere_is_refused_by_name),
        cmocka_unit_test(no_match_at_all_shows_names_of_both_sides),
        cmocka_unit_test(keys_of_two_adapters_in_one_file_are_refused),
        cmocka_unit_test(an_adapter_name_may_be_any_word),
        cmocka_unit_test(copies_alone_are_no_adapter),
        cmocka_unit_test(names_for_requests_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
