/* Tensors that replace the base's: by which names they are found, that nothing of them is dropped,
 * and what is refused. */
#include "tests/unit/lora/fixture.h"

#define Q1 "model.layers.1.self_attn.q_proj"

typedef struct Rig {
    Model m;
    File f;
    char text[2000];
} Rig;

static void rig_init(Rig *r) {
    model_init(&r->m, &toy, NULL);
    file_init(&r->f);
    file_add_pair(&r->f, Q1, DTYPE_BF16, 2, 4, 3);
}

static void rig_clear(Rig *r) {
    file_clear(&r->f);
    model_clear(&r->m);
}

/* Weights of the toy that a file has, so that something can be replaced. */
static void base_init(File *f) {
    static const struct {
        const char *name;
        uint64_t rows, columns;
    } tensors[] = {
        {"self_attn.q_proj", 3, 4}, {"self_attn.k_proj", 2, 4}, {"self_attn.v_proj", 2, 4},
        {"self_attn.o_proj", 4, 3}, {"mlp.gate_proj", 5, 4},    {"mlp.up_proj", 5, 4},
        {"mlp.down_proj", 4, 5},
    };
    file_init(f);
    file_add(f, "model.embed_tokens.weight", DTYPE_BF16, 6, 4, NULL);
    for (int l = 0; l < 2; l++)
        for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
            char name[200];
            snprintf(name, sizeof name, "model.layers.%d.%s.weight", l, tensors[i].name);
            file_add(f, name, DTYPE_BF16, tensors[i].rows, tensors[i].columns, NULL);
        }
}

/* A model with a checkpoint (the head tied) and one tensor beside a LoRA pair. */
typedef struct Pair {
    File base;
    Rig r;
} Pair;

static void pair_init(Pair *p, const char *name, uint64_t rows, uint64_t columns,
                      const float *values) {
    base_init(&p->base);
    model_init(&p->r.m, &toy, file_set(&p->base));
    file_init(&p->r.f);
    file_add_pair(&p->r.f, Q1, DTYPE_BF16, 2, 4, 3);
    if (name)
        file_add(&p->r.f, name, DTYPE_F32, rows, columns, values);
}

static void pair_clear(Pair *p) {
    rig_clear(&p->r);
    file_clear(&p->base);
}

static const float wide[28] = {1.001f, 2.002f, 3.003f, 4.004f, 5.005f, 6.006f, 7.007f, 8.008f};

static void names_find_their_params(void **state) {
    (void)state;
    static const struct {
        const char *name;
        uint64_t rows, columns;
        int param, layer;
    } cases[] = {
        {"base_model.model.lm_head.weight", 6, 4, HEAD, 0},
        {"lm_head.weight", 6, 4, HEAD, 0},
        {"base_model.model.lm_head.modules_to_save.default.weight", 6, 4, HEAD, 0},
        {"base_model.model.lm_head.modules_to_save.weight", 6, 4, HEAD, 0},
        {"base_model.model.model.embed_tokens.weight", 6, 4, EMB, 0},
        {"base_model.model.model.layers.1.mlp.gate_proj.weight", 5, 4, WG, 1},
        {"base_model.model.model.language_model.layers.0.mlp.down_proj.weight", 4, 5, WD, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Pair p;
        pair_init(&p, cases[i].name, cases[i].rows, cases[i].columns, wide);
        Adapter *a = load_ok(&p.r.m, file_set(&p.r.f), config_text(p.r.text, "2", "4", ""));
        const AdapterData *d = adapter_data(a);
        assert_int_equal(d->replaced_count, 1);
        assert_int_equal(d->replaced[0].tensor, cases[i].param);
        assert_int_equal(d->replaced[0].layer, cases[i].layer);
        assert_int_equal(d->replaced[0].row_count, cases[i].rows);
        assert_int_equal(d->replaced[0].columns, cases[i].columns);
        assert_null(d->replaced[0].rows);
        assert_false(d->replaced[0].bf16);
        /* as stored: never rounded to the type of activations */
        assert_memory_equal(d->replaced[0].data, wide, sizeof(float) * 8);
        adapter_destroy(a);
        pair_clear(&p);
    }
}

static void what_equals_the_base_replaces_nothing(void **state) {
    (void)state;
    Pair p;
    pair_init(&p, NULL, 0, 0, NULL);
    const Tensor *t = tensor_set_find(p.base.set, LG_STR("model.embed_tokens.weight"));
    float values[24];
    for (uint64_t row = 0; row < 6; row++)
        tensor_row_f32(t, row, values + 4 * row);
    file_add(&p.r.f, "base_model.model.model.embed_tokens.weight", DTYPE_BF16, 6, 4, values);
    file_add(&p.r.f, "base_model.model.lm_head.weight", DTYPE_BF16, 6, 4, wide);
    Adapter *a = load_ok(&p.r.m, file_set(&p.r.f), config_text(p.r.text, "2", "4", ""));
    assert_int_equal(adapter_data(a)->replaced_count, 1);
    assert_int_equal(adapter_data(a)->replaced[0].tensor, HEAD);
    assert_true(report_has(a, "disregarded", "model.embed_tokens.weight"));
    const json_t *counts = json_object_get(adapter_report(a), "tensors");
    assert_int_equal(json_integer_value(json_object_get(counts, "applied")), 3);
    assert_int_equal(json_integer_value(json_object_get(counts, "disregarded")), 1);
    adapter_destroy(a);
    pair_clear(&p);
}

/* The config's order is the order of the file's rows; the data rises. */
static void trained_tokens_reach_the_embedding_and_a_tied_head(void **state) {
    (void)state;
    static const char *const lists[] = {
        ",\"trainable_token_indices\":[5,0,2]",
        ",\"trainable_token_indices\":{\"embed_tokens\":[5,0,2],\"other\":[1]}",
    };
    for (int i = 0; i < 2; i++) {
        Pair p;
        pair_init(&p, "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta", 3,
                  4, wide);
        Adapter *a = load_ok(&p.r.m, file_set(&p.r.f), config_text(p.r.text, "2", "4", lists[i]));
        const AdapterData *d = adapter_data(a);
        assert_int_equal(d->replaced_count, 2);
        for (int k = 0; k < 2; k++) {
            const AdapterReplaced *r = &d->replaced[k];
            assert_int_equal(r->tensor, k ? HEAD : EMB);
            assert_int_equal(r->row_count, 3);
            assert_int_equal(r->rows[0], 0);
            assert_int_equal(r->rows[1], 2);
            assert_int_equal(r->rows[2], 5);
            assert_memory_equal(r->data, wide + 4, 4 * sizeof(float));
            assert_memory_equal(r->data + 8, wide, 4 * sizeof(float));
        }
        adapter_destroy(a);
        pair_clear(&p);
    }
}

#define DELTA "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"

static void what_cannot_be_replaced_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *name;
        uint64_t rows, columns;
        const char *more, *fragment;
    } cases[] = {
        {"lm_head.weight", 7, 4, "", "its shape is [7, 4]; the model's head has 24 elements"},
        {"lm_head.weight", 6, 3, "", "rows of 4 are expected"},
        {"lm_head.weight", 24, 0, "", "it has 1 axes; head of the model has 2"},
        {"lm_head.bias", 6, 0, "", "the model has none of that name"},
        {"model.norm.weight", 4, 0, "", "the model has none of that name"},
        {"model.layers.2.mlp.gate_proj.weight", 5, 4, "", "no layer 2; its layers are 0 to 1"},
        {Q1 ".weight", 3, 4, "", "LoRA on, which is not served"},
        {DELTA, 2, 4, "", "trainable_token_indices names 0 tokens for it"},
        {DELTA, 2, 4, ",\"trainable_token_indices\":[1]", "names 1 tokens for it"},
        {DELTA, 2, 4, ",\"trainable_token_indices\":[1,6]", "the token 6; ids are 0 to 5"},
        {DELTA, 2, 4, ",\"trainable_token_indices\":[1,1]", "names the token 1 twice"},
        {DELTA, 2, 4, ",\"trainable_token_indices\":{\"wte\":[1,2]}", "names 0 tokens for it"},
        {DELTA, 2, 3, ",\"trainable_token_indices\":[1,2]", "rows of 4 are expected"},
        {"lm_head.weight", 6, 4, ",\"modules_to_save\":[\"lm_head\",\"score\"]",
         "names \"score\" in modules_to_save"},
        {Q1 ".lora_B.bias", 3, 0, "", "does not say lora_bias"},
        {Q1 ".lora_B.bias", 4, 0, ",\"lora_bias\":true", "its shape must be [3]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Pair p;
        pair_init(&p, cases[i].name, cases[i].rows, cases[i].columns, wide);
        load_fails(&p.r.m, file_set(&p.r.f), config_text(p.r.text, "2", "4", cases[i].more),
                   LG_BAD_INPUT, cases[i].fragment);
        pair_clear(&p);
    }
}

static void two_tensors_for_one_weight_are_refused(void **state) {
    (void)state;
    Pair p;
    pair_init(&p, DELTA, 2, 4, wide);
    file_add(&p.r.f, "lm_head.weight", DTYPE_F32, 6, 4, wide);
    load_fails(&p.r.m, file_set(&p.r.f),
               config_text(p.r.text, "2", "4", ",\"trainable_token_indices\":[1,2]"), LG_BAD_INPUT,
               "another tensor replaces the same weight");
    pair_clear(&p);
}

/* What the base does not have cannot be replaced: constants stand in its place. */
static void a_weight_that_the_base_lacks_is_refused(void **state) {
    (void)state;
    Rig r;
    rig_init(&r);
    file_add(&r.f, "lm_head.weight", DTYPE_F32, 6, 4, wide);
    load_fails(&r.m, file_set(&r.f), config_text(r.text, "2", "4", ""), LG_BAD_INPUT,
               "no such tensor to replace");
    rig_clear(&r);
}

static void infinite_numbers_are_refused(void **state) {
    (void)state;
    float values[24] = {0};
    values[9] = 1.0f / 0.0f;
    Pair p;
    pair_init(&p, "lm_head.weight", 6, 4, values);
    load_fails(&p.r.m, file_set(&p.r.f), config_text(p.r.text, "2", "4", ""), LG_BAD_INPUT,
               "lm_head.weight\": its element [2, 1] is infinite");
    pair_clear(&p);
}

static void a_bias_on_b_is_kept_as_it_is(void **state) {
    (void)state;
    Rig r;
    rig_init(&r);
    file_add(&r.f, Q1 ".lora_B.bias", DTYPE_F32, 3, 0, wide);
    Adapter *a =
        load_ok(&r.m, file_set(&r.f), config_text(r.text, "2", "4", ",\"lora_bias\":true"));
    assert_memory_equal(site_at(a, WQ, 1)->b_bias, wide, 3 * sizeof(float));
    assert_null(adapter_refuses(a, 4, 0.5f));
    adapter_destroy(a);
    rig_clear(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_find_their_params),
        cmocka_unit_test(what_equals_the_base_replaces_nothing),
        cmocka_unit_test(trained_tokens_reach_the_embedding_and_a_tied_head),
        cmocka_unit_test(what_cannot_be_replaced_is_refused),
        cmocka_unit_test(two_tensors_for_one_weight_are_refused),
        cmocka_unit_test(a_weight_that_the_base_lacks_is_refused),
        cmocka_unit_test(infinite_numbers_are_refused),
        cmocka_unit_test(a_bias_on_b_is_kept_as_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
