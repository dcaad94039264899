/* What the arrays hold: rounding, layouts, DoRA's norms, copies of base weights, fused modules,
 * limits. */
#include "tests/unit/lora/fixture.h"

#include <math.h>

#define Q1 "model.layers.1.self_attn.q_proj"

static LgStr config(char text[2000]) {
    return config_text(text, "2", "4", "");
}

typedef struct Rig {
    Model m;
    File base, f;
} Rig;

/* Weights of the toy model in f32, by the usual names; head: with an own head. */
static void rig_init(Rig *r, bool head) {
    static const char *const in_layer[] = {
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
    const uint64_t rows[] = {3, 2, 2, 4, 5, 5, 4}, columns[] = {4, 4, 4, 3, 4, 4, 5};
    file_init(&r->base);
    file_init(&r->f);
    file_add(&r->base, "model.embed_tokens.weight", DTYPE_F32, 6, 4, NULL);
    if (head)
        file_add(&r->base, "lm_head.weight", DTYPE_F32, 6, 4, NULL);
    for (int l = 0; l < 2; l++) {
        for (int i = 0; i < 7; i++) {
            char name[100];
            snprintf(name, sizeof name, "model.layers.%d.%s.weight", l, in_layer[i]);
            file_add(&r->base, name, DTYPE_F32, rows[i], columns[i], NULL);
        }
    }
    model_init(&r->m, &toy, file_set(&r->base));
}

static void rig_clear(Rig *r) {
    file_clear(&r->f);
    file_clear(&r->base);
    model_clear(&r->m);
}

static void add_q(File *f, DType type, const float *a, const float *b) {
    file_add(f, "base_model.model." Q1 ".lora_A.weight", type, 2, 4, a);
    file_add(f, "base_model.model." Q1 ".lora_B.weight", type, 3, 2, b);
}

static const float odd[8] = {1.00390625f, 1.01171875f, -1.00390625f, 3.0e-39f,
                             0.1f,        -0.1f,       65504,        1e30f};
static const float plain[8] = {1, 2, 3, 4, 5, 6, 7, 8};

static void f32_is_rounded_once_to_bf16_or_kept(void **state) {
    (void)state;
    for (int store = 0; store < 2; store++) {
        char text[2000];
        Rig r;
        rig_init(&r, false);
        add_q(&r.f, DTYPE_F32, odd, plain);
        r.m.options.store_f32 = store;
        Adapter *a = load_ok(&r.m, file_set(&r.f), config(text));
        const AdapterSite *q = site_at(a, WQ, 1);
        for (int i = 0; i < 8; i++)
            assert_true(q->a[i] == (store ? odd[i] : bf16_round(odd[i])));
        assert_true(store || (q->a[0] == 1.0f && q->a[1] == 1.015625f)); /* ties go to even */
        assert_memory_equal(q->b, plain, 6 * sizeof(float));
        assert_true(adapter_data(a)->store_f32 == (store == 1));
        adapter_destroy(a);
        rig_clear(&r);
    }
}

static void f16_and_bf16_are_widened(void **state) {
    (void)state;
    const float halves[8] = {
        1.0009765625f, 0.333251953125f, 6.103515625e-05f, -2, 5.9604645e-08f, 0, 65504, 1};
    for (int store = 0; store < 2; store++) {
        char text[2000];
        Rig r;
        rig_init(&r, false);
        add_q(&r.f, DTYPE_F16, halves, plain);
        r.m.options.store_f32 = store;
        Adapter *a = load_ok(&r.m, file_set(&r.f), config(text));
        for (int i = 0; i < 8; i++)
            assert_true(site_at(a, WQ, 1)->a[i] == (store ? halves[i] : bf16_round(halves[i])));
        adapter_destroy(a);
        rig_clear(&r);
    }
    char text[2000];
    Rig r;
    rig_init(&r, false);
    add_q(&r.f, DTYPE_BF16, plain, plain);
    Adapter *a = load_ok(&r.m, file_set(&r.f), config(text));
    assert_memory_equal(site_at(a, WQ, 1)->a, plain, sizeof plain);
    adapter_destroy(a);
    rig_clear(&r);
}

static void not_finite_is_refused_with_its_place(void **state) {
    (void)state;
    const float values[] = {NAN, INFINITY, -INFINITY, 3.4e38f};
    for (size_t i = 0; i < 4; i++) {
        for (int in_b = 0; in_b < 2; in_b++) {
            char text[2000];
            float bad[8];
            Rig r;
            rig_init(&r, false);
            memcpy(bad, plain, sizeof bad);
            bad[5] = values[i];
            add_q(&r.f, DTYPE_F32, in_b ? plain : bad, in_b ? bad : plain);
            const TensorSet *set = file_set(&r.f);
            load_fails(&r.m, set, config(text), LG_BAD_INPUT,
                       in_b ? "lora_B.weight\": its element [2, 1]"
                            : "lora_A.weight\": its element [1, 1]");
            load_fails(&r.m, set, config(text), LG_BAD_INPUT, i ? "infinite" : "NaN");
            if (i == 3) { /* too large for bf16 alone */
                r.m.options.store_f32 = true;
                adapter_destroy(load_ok(&r.m, set, config(text)));
            }
            rig_clear(&r);
        }
    }
}

static void embedding_and_tied_head_are_two_sites(void **state) {
    (void)state;
    char text[2000];
    Rig r;
    rig_init(&r, false);
    float a[12], b[8];
    for (int i = 0; i < 12; i++)
        a[i] = (float)i;
    for (int i = 0; i < 8; i++)
        b[i] = (float)-i;
    file_add(&r.f, "base_model.model.model.embed_tokens.lora_embedding_A", DTYPE_BF16, 2, 6, a);
    file_add(&r.f, "base_model.model.model.embed_tokens.lora_embedding_B", DTYPE_BF16, 4, 2, b);
    const TensorSet *set = file_set(&r.f);
    Adapter *loaded = load_ok(&r.m, set, config(text));
    assert_int_equal(adapted_sites(loaded), 1);
    const AdapterSite *e = site_at(loaded, EMB, 0);
    assert_int_equal(e->rank, 2);
    assert_memory_equal(e->a, a, sizeof a);
    assert_memory_equal(e->b, b, sizeof b);
    adapter_destroy(loaded);
    file_clear(&r.f);

    file_init(&r.f);
    file_add(&r.f, "base_model.model.lm_head.lora_A.weight", DTYPE_BF16, 2, 4, b);
    file_add(&r.f, "base_model.model.lm_head.lora_B.weight", DTYPE_BF16, 6, 2, a);
    loaded = load_ok(&r.m, file_set(&r.f), config(text));
    assert_int_equal(adapted_sites(loaded), 1);
    assert_int_equal(site_at(loaded, HEAD, 0)->rank, 2);
    adapter_destroy(loaded);
    rig_clear(&r);
}

/* ---- copies of base weights ---- */

static void base_values(const Rig *r, int param, int layer, float *out) {
    const Tensor *t = r->m.params[param * 2 + layer].tensor;
    for (uint64_t row = 0; row < t->shape[0]; row++)
        tensor_row_f32(t, row, out + row * t->shape[1]);
}

static void copies_of_the_base_are_compared_and_set_aside(void **state) {
    (void)state;
    const DType types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    for (size_t i = 0; i < 3; i++) {
        for (int change = 0; change < 2; change++) {
            char text[2000];
            float embed[24], q[12];
            Rig r;
            rig_init(&r, false);
            base_values(&r, EMB, 0, embed);
            base_values(&r, WQ, 1, q);
            q[11] += change ? 0.01f : 0;
            file_add_pair(&r.f, Q1, DTYPE_BF16, 2, 4, 3);
            file_add(&r.f, "base_model.model.model.embed_tokens.base_layer.weight", types[i], 6, 4,
                     embed);
            file_add(&r.f, "base_model.model.lm_head.base_layer.weight", types[i], 6, 4, embed);
            file_add(&r.f, "base_model.model." Q1 ".base_layer.weight", types[i], 3, 4, q);
            const TensorSet *set = file_set(&r.f);
            if (change) {
                load_fails(&r.m, set, config(text), LG_BAD_INPUT,
                           "q_proj.base_layer.weight\": its element [2, 3] is");
            } else {
                Adapter *a = load_ok(&r.m, set, config(text));
                assert_int_equal(adapted_sites(a), 1);
                assert_true(report_has(a, "disregarded", "lm_head.base_layer.weight"));
                assert_true(report_has(a, "disregarded", "embed_tokens.base_layer.weight"));
                assert_true(report_has(a, "disregarded", "q_proj.base_layer.weight"));
                adapter_destroy(a);
            }
            rig_clear(&r);
        }
    }
}

static void a_copy_of_another_shape_or_type_or_twice_is_refused(void **state) {
    (void)state;
    char text[2000];
    Rig r;
    rig_init(&r, false);
    file_add_pair(&r.f, Q1, DTYPE_BF16, 2, 4, 3);
    file_add(&r.f, Q1 ".base_layer.weight", DTYPE_F32, 3, 3, NULL);
    load_fails(&r.m, file_set(&r.f), config(text), LG_BAD_INPUT, "whose shape is [3, 4]");
    file_clear(&r.f);
    file_init(&r.f);
    float q[12];
    base_values(&r, WQ, 1, q);
    file_add_pair(&r.f, Q1, DTYPE_BF16, 2, 4, 3);
    file_add(&r.f, Q1 ".base_layer.weight", DTYPE_F32, 3, 4, q);
    file_add(&r.f, "base_model.model." Q1 ".base_layer.weight", DTYPE_F32, 3, 4, q);
    load_fails(&r.m, file_set(&r.f), config(text), LG_BAD_INPUT, "a second copy");
    rig_clear(&r);
}

/* ---- DoRA ---- */

static void dora_norms_are_those_of_the_adapted_weight(void **state) {
    (void)state;
    char text[2000];
    Rig r;
    rig_init(&r, false);
    const float m[3] = {0.3f, 1.01f, -2};
    file_add_pair(&r.f, Q1, DTYPE_F32, 2, 4, 3);
    file_add(&r.f, "base_model.model." Q1 ".lora_magnitude_vector", DTYPE_F32, 3, 0, m);
    Adapter *loaded =
        load_ok(&r.m, file_set(&r.f), config_text(text, "2", "3", ",\"use_dora\":true"));
    const AdapterSite *s = site_at(loaded, WQ, 1);
    assert_true(s->scale == 1.5f);
    assert_memory_equal(s->magnitude, m, sizeof m); /* not rounded */
    float w[12];
    base_values(&r, WQ, 1, w);
    for (int o = 0; o < 3; o++) {
        double w2 = 0, wba = 0, ba2 = 0;
        for (int i = 0; i < 4; i++) {
            double ba = 1.5 * ((double)s->b[o * 2] * (double)s->a[i] +
                               (double)s->b[o * 2 + 1] * (double)s->a[4 + i]);
            w2 += (double)w[o * 4 + i] * (double)w[o * 4 + i];
            wba += (double)w[o * 4 + i] * ba;
            ba2 += ba * ba;
        }
        assert_true(fabs((double)s->dora_w2[o] - w2) <= 1e-7 * w2);
        assert_true(fabs((double)s->dora_wba[o] - wba) <= 1e-7 * fabs(wba) + 1e-12);
        assert_true(fabs((double)s->dora_ba2[o] - ba2) <= 1e-7 * ba2 + 1e-12);
    }
    assert_null(site_at(loaded, WQ, 0)->magnitude);
    adapter_destroy(loaded);
    rig_clear(&r);
}

static void dora_needs_a_magnitude_of_each_output(void **state) {
    (void)state;
    char text[2000];
    for (int i = 0; i < 4; i++) {
        static const char *const fragment[] = {"its shape must be [3]", "its shape must be [3]",
                                               "its element [0, 1] is NaN", "its type is"};
        const float nan_at_1[3] = {1, NAN, 1};
        Rig r;
        rig_init(&r, false);
        file_add_pair(&r.f, Q1, DTYPE_F32, 2, 4, 3);
        file_add(&r.f, Q1 ".lora_magnitude_vector", i == 3 ? DTYPE_I16 : DTYPE_F32, i == 0 ? 4 : 3,
                 i == 1 ? 1 : 0, i == 2 ? nan_at_1 : NULL);
        load_fails(&r.m, file_set(&r.f), config_text(text, "2", "3", ",\"use_dora\":true"),
                   LG_BAD_INPUT, fragment[i]);
        rig_clear(&r);
    }
}

static void dora_is_refused_where_a_row_vanishes_and_on_embeddings(void **state) {
    (void)state;
    char text[2000];
    const float zero[6] = {0}, one[3] = {1, 1, 1};
    Model m;
    File f;
    model_init(&m, &toy, NULL);
    m.params[WQ * 2 + 1].constant = 0;
    file_init(&f);
    add_q(&f, DTYPE_F32, plain, zero);
    file_add(&f, Q1 ".lora_magnitude_vector.weight", DTYPE_F32, 3, 0, one);
    load_fails(&m, file_set(&f), config_text(text, "2", "3", ",\"use_dora\":true"), LG_BAD_INPUT,
               "row 0 of the adapted weight has the squared norm 0");
    file_clear(&f);
    file_init(&f);
    file_add(&f, "model.embed_tokens.lora_embedding_A", DTYPE_F32, 2, 6, NULL);
    file_add(&f, "model.embed_tokens.lora_embedding_B", DTYPE_F32, 4, 2, NULL);
    file_add(&f, "model.embed_tokens.lora_magnitude_vector", DTYPE_F32, 4, 0, NULL);
    load_fails(&m, file_set(&f), config_text(text, "2", "3", ",\"use_dora\":true"), LG_BAD_INPUT,
               "DoRA on an embedding");
    file_clear(&f);
    model_clear(&m);
}

/* ---- modules that feed several sites ---- */

/* q (3 rows), k (2) and v (2) become windows of a stored qkv_proj of `stored` rows. */
static void fuse(Model *m, const TensorSet *weights, uint64_t q_from) {
    const int sites[] = {WQ, WK, WV};
    const uint64_t from[] = {q_from, 3, 5};
    for (int i = 0; i < 3; i++) {
        m->tensors[sites[i]].module = LG_STR("model.layers.{l}.self_attn.qkv_proj");
        for (int l = 0; l < 2; l++) {
            ParamBinding *bound = &m->params[sites[i] * 2 + l];
            bound->tensor = tensor_set_at(weights, 0);
            bound->from_row = from[i];
        }
    }
}

static void a_fused_module_feeds_its_windows(void **state) {
    (void)state;
    char text[2000];
    Model m;
    File base, f;
    model_init(&m, &toy, NULL);
    file_init(&base);
    file_init(&f);
    file_add(&base, "qkv", DTYPE_F32, 7, 4, NULL);
    fuse(&m, file_set(&base), 0);
    file_add_pair(&f, "model.layers.1.self_attn.qkv_proj", DTYPE_F32, 2, 4, 7);
    file_add(&f, "model.layers.1.self_attn.qkv_proj.lora_magnitude_vector", DTYPE_F32, 7, 0, plain);
    Adapter *a = load_ok(&m, file_set(&f), config_text(text, "2", "4", ",\"use_dora\":true"));
    assert_int_equal(adapted_sites(a), 3);
    const AdapterSite *q = site_at(a, WQ, 1), *k = site_at(a, WK, 1), *v = site_at(a, WV, 1);
    assert_ptr_equal(q->a, k->a);
    assert_ptr_equal(q->a, v->a);
    assert_ptr_equal(k->b, q->b + 3 * 2);
    assert_ptr_equal(v->b, q->b + 5 * 2);
    assert_true(q->magnitude[0] == 1 && k->magnitude[0] == 4 && v->magnitude[1] == 7);
    float row[4];
    tensor_row_f32(tensor_set_at(base.set, 0), 6, row);
    double w2 = 0;
    for (int i = 0; i < 4; i++)
        w2 += (double)row[i] * (double)row[i];
    assert_true(fabs((double)v->dora_w2[1] - w2) < 1e-6);
    adapter_destroy(a);
    file_clear(&f);
    file_clear(&base);
    model_clear(&m);
}

static void a_fused_module_with_rows_that_no_site_uses_is_refused(void **state) {
    (void)state;
    char text[2000];
    Model m;
    File base, f;
    model_init(&m, &toy, NULL);
    file_init(&base);
    file_init(&f);
    file_add(&base, "qkv", DTYPE_F32, 8, 4, NULL);
    fuse(&m, file_set(&base), 0);
    file_add_pair(&f, "model.layers.1.self_attn.qkv_proj", DTYPE_F32, 2, 4, 8);
    load_fails(&m, file_set(&f), config(text), LG_BAD_INPUT, "only some of the module's 8 outputs");
    file_clear(&f);
    file_clear(&base);
    model_clear(&m);
}

static void params_that_share_a_module_without_sharing_a_tensor_are_refused(void **state) {
    (void)state;
    char text[2000];
    Model m;
    File f;
    model_init(&m, &toy, NULL);
    file_init(&f);
    m.tensors[WK].module = m.tensors[WQ].module;
    file_add_pair(&f, Q1, DTYPE_F32, 2, 4, 3);
    load_fails(&m, file_set(&f), config(text), LG_BAD_INPUT, "param wk has the module name");
    file_clear(&f);
    model_clear(&m);
}

/* ---- ranks and limits ---- */

static void any_rank_is_served(void **state) {
    (void)state;
    const uint64_t ranks[] = {1, 3, 12, 17, 64};
    for (size_t i = 0; i < 5; i++) {
        char text[2000], r_text[16];
        Model m;
        File f;
        model_init(&m, &toy, NULL);
        file_init(&f);
        file_add_pair(&f, Q1, DTYPE_BF16, ranks[i], 4, 3);
        snprintf(r_text, sizeof r_text, "%d", (int)ranks[i]);
        const TensorSet *set = file_set(&f);
        Adapter *a = load_ok(&m, set, config_text(text, r_text, "4", ""));
        const AdapterSite *q = site_at(a, WQ, 1);
        assert_int_equal(q->rank, ranks[i]);
        assert_true(q->scale == (float)(4.0 / (double)ranks[i]));
        float row[64];
        for (uint64_t z = 0; z < ranks[i]; z++) {
            tensor_row_f32(tensor_set_at(set, 0), z, row);
            assert_memory_equal(q->a + z * 4, row, 4 * sizeof(float));
        }
        for (uint64_t o = 0; o < 3; o++) {
            tensor_row_f32(tensor_set_at(set, 1), o, row);
            assert_memory_equal(q->b + o * ranks[i], row, ranks[i] * sizeof(float));
        }
        adapter_destroy(a);
        file_clear(&f);
        model_clear(&m);
    }
}

static void more_bytes_than_allowed_is_a_limit_that_names_them(void **state) {
    (void)state;
    char text[2000], fragment[100];
    Model m;
    File f;
    model_init(&m, &toy, NULL);
    file_init(&f);
    file_add_pair(&f, Q1, DTYPE_BF16, 64, 4, 3);
    const TensorSet *set = file_set(&f);
    LgStr json = config_text(text, "64", "4", "");
    Adapter *a = load_ok(&m, set, json);
    uint64_t bytes = adapter_data(a)->bytes;
    adapter_destroy(a);
    assert_int_equal(bytes, (64 * 4 + 64 * 3) * sizeof(float));
    m.options.bytes_max = bytes;
    adapter_destroy(load_ok(&m, set, json));
    m.options.bytes_max = bytes - 1;
    snprintf(fragment, sizeof fragment, "needs %d bytes (its largest rank is 64); the limit is %d",
             (int)bytes, (int)bytes - 1);
    load_fails(&m, set, json, LG_LIMIT, fragment);
    file_clear(&f);
    model_clear(&m);
}

static void a_rank_of_0_is_refused_even_where_the_config_gives_none(void **state) {
    (void)state;
    char text[2000];
    LgError err;
    Model m;
    model_init(&m, &toy, NULL);
    const char header[] =
        "{\"" Q1 ".lora_A.weight\":{\"dtype\":\"F32\",\"shape\":[0,4],\"data_offsets\":[0,0]},"
        "\"" Q1 ".lora_B.weight\":{\"dtype\":\"F32\",\"shape\":[3,0],\"data_offsets\":[0,0]}}";
    Buf bytes;
    buf_init(&bytes);
    uint64_t length = sizeof header - 1;
    buf_append(&bytes, &length, 8);
    buf_puts(&bytes, header);
    TensorSet *set = NULL;
    assert_int_equal(
        safetensors_parse((const unsigned char *)bytes.data, bytes.len, "m", &set, &err), LG_OK);
    load_fails(&m, set, config_text(text, "", "4", ""), LG_BAD_INPUT, "a rank is at least 1");
    tensor_set_close(set);
    buf_clear(&bytes);
    model_clear(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_is_rounded_once_to_bf16_or_kept),
        cmocka_unit_test(f16_and_bf16_are_widened),
        cmocka_unit_test(not_finite_is_refused_with_its_place),
        cmocka_unit_test(embedding_and_tied_head_are_two_sites),
        cmocka_unit_test(copies_of_the_base_are_compared_and_set_aside),
        cmocka_unit_test(a_copy_of_another_shape_or_type_or_twice_is_refused),
        cmocka_unit_test(dora_norms_are_those_of_the_adapted_weight),
        cmocka_unit_test(dora_needs_a_magnitude_of_each_output),
        cmocka_unit_test(dora_is_refused_where_a_row_vanishes_and_on_embeddings),
        cmocka_unit_test(a_fused_module_feeds_its_windows),
        cmocka_unit_test(a_fused_module_with_rows_that_no_site_uses_is_refused),
        cmocka_unit_test(params_that_share_a_module_without_sharing_a_tensor_are_refused),
        cmocka_unit_test(any_rank_is_served),
        cmocka_unit_test(more_bytes_than_allowed_is_a_limit_that_names_them),
        cmocka_unit_test(a_rank_of_0_is_refused_even_where_the_config_gives_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
