/* Adapters as PEFT wrote them, on the models they were made for: which sites, which ranks, which
 * scales, and the numbers. What replaces tensors of the base is told. */
#include "tests/unit/lora/fixture.h"

#include <math.h>

#include "base/clock.h"
#include "base/file.h"
#include "formats/checkpoint.h"

/* ---- a model from disk: its page where there is one, else a program made by hand ---- */

typedef struct Loaded {
    Checkpoint *checkpoint;
    Arena arena;
    Model by_hand;
    AdapterOptions options;
} Loaded;

static uint64_t dim_of(const Loaded *l, const char *key) {
    const ConfigValue *v = config_get_c(checkpoint_config(l->checkpoint), key);
    assert_non_null(v);
    return (uint64_t)v->integer;
}

static void use_program_by_hand(Loaded *l) {
    uint64_t hidden = dim_of(l, "hidden_size"), heads = dim_of(l, "num_attention_heads");
    uint64_t head_dim = hidden / heads;
    ModelDims d = {(int)dim_of(l, "num_hidden_layers"),
                   dim_of(l, "vocab_size"),
                   hidden,
                   heads * head_dim,
                   dim_of(l, "num_key_value_heads") * head_dim,
                   dim_of(l, "intermediate_size")};
    model_init(&l->by_hand, &d, checkpoint_tensors(l->checkpoint));
    l->options = l->by_hand.options;
}

static void use_page(Loaded *l, const char *page) {
    LgError err = {0};
    Buf source;
    LangProgram *checked = NULL, *rewritten = NULL;
    Binding *binding = NULL;
    buf_init(&source);
    assert_int_equal(file_read(page, 1 << 20, &source, &err), LG_OK);
    LgStr text = arena_str(&l->arena, buf_view(&source));
    buf_clear(&source);
    LgStatus status =
        lang_compile(text, page, checkpoint_config(l->checkpoint), &l->arena, &checked, &err);
    if (status == LG_OK)
        status = lang_rewrite_lora(checked, &l->arena, &rewritten, &err);
    if (status == LG_OK)
        status =
            bind_params(rewritten, checkpoint_tensors(l->checkpoint), &l->arena, &binding, &err);
    if (status != LG_OK)
        fail_msg("%s", err.message);
    l->options = (AdapterOptions){.program = rewritten, .binding = binding};
}

static void open_model(Loaded *l, const char *path) {
    LgError err = {0};
    memset(l, 0, sizeof *l);
    arena_init(&l->arena);
    if (checkpoint_open(path, &l->checkpoint, &err) != LG_OK)
        fail_msg("%s", err.message);
    if (strstr(path, "qwen3"))
        use_page(l, LG_SOURCE_DIR "/models/qwen3.lg");
    else if (strstr(path, "llama") || strstr(path, "SmolLM2"))
        use_page(l, LG_SOURCE_DIR "/models/llama.lg");
    else
        use_program_by_hand(l);
}

static void close_model(Loaded *l) {
    model_clear(&l->by_hand);
    arena_clear(&l->arena);
    checkpoint_close(l->checkpoint);
}

/* ---- what each adapter must give ---- */

typedef struct Row {
    const char *model, *adapter;
    const char *params; /* the params adapted, a space behind each */
    int layer;          /* -1: all */
    int rank;
    double scale;
    bool dora;
} Row;

#define ALL "wq wk wv wo wg wu wd "
static const Row rows[] = {
    {"tiny-qwen3", "en-r8-all", ALL, -1, 8, 2, false},
    {"tiny-qwen3", "en-r8-all-fp16", ALL, -1, 8, 2, false},
    {"tiny-qwen3", "en-r8-all-fp32", ALL, -1, 8, 2, false},
    {"tiny-qwen3", "alpha0", ALL, -1, 8, 0, false},
    {"tiny-qwen3", "cpp-r16-rslora", ALL, -1, 16, 8, false},
    {"tiny-qwen3", "dora-r8", ALL, -1, 8, 2, true},
    {"tiny-qwen3", "embed-head", "emb head ", -1, 8, 2, false},
    {"tiny-qwen3", "json-r4-qv", "wq wv ", -1, 4, 2, false},
    {"tiny-qwen3", "layer1-q-only", "wq ", 1, 3, 2, false},
    {"tiny-qwen3", "r1", ALL, -1, 1, 2, false},
    {"tiny-qwen3-hd48", "en-r8-all", ALL, -1, 8, 2, false},
    {"tiny-qwen3-hd48", "cpp-r16", ALL, -1, 16, 2, false},
    {"mid-qwen3", "en-r8-all", ALL, -1, 8, 2, false},
    {"mid-qwen3", "cpp-r16", ALL, -1, 16, 2, false},
    {"tiny-llama", "en-r8-all", ALL, -1, 8, 2, false},
    {"tiny-llama", "cpp-r16", ALL, -1, 16, 2, false},
    {"tiny-mistral", "en-r8-all", ALL, -1, 8, 2, false},
};

/* The root of a set that has the model and the adapter: the repository's, else the larger one;
 * false where neither does. */
static bool find_root(const char *model, const char *adapter, const char **root) {
    static const char *const roots[] = {LG_TEST_DATA "/tiny", LG_SHARED_DATA "/tiny"};
    for (size_t i = 0; i < 2; i++) {
        char a[600], m[600];
        snprintf(a, sizeof a, "%s/adapters/%s/%s/adapter_config.json", roots[i], model, adapter);
        snprintf(m, sizeof m, "%s/models/%s/config.json", roots[i], model);
        if (file_exists(a) && file_exists(m)) {
            *root = roots[i];
            return true;
        }
    }
    return false;
}

/* Opens both; false where they are not there. */
static bool open_pair(const char *model, const char *adapter, bool store_f32, Loaded *l,
                      Adapter **a, LgError *err, LgStatus *status) {
    const char *root;
    char path[600];
    if (!find_root(model, adapter, &root))
        return false;
    snprintf(path, sizeof path, "%s/models/%s", root, model);
    open_model(l, path);
    l->options.store_f32 = store_f32;
    snprintf(path, sizeof path, "%s/adapters/%s/%s", root, model, adapter);
    *a = NULL;
    *status = adapter_load(adapter, path, &l->options, a, err);
    return true;
}

/* The stored tensor of one site, read by its PEFT name from the file itself. */
static void check_array(const char *model, const char *adapter, LgStr module, int layer,
                        const char *tail, const float *got) {
    const char *root;
    char path[600];
    TensorSet *set = NULL;
    LgError err;
    Arena arena;
    arena_init(&arena);
    assert_true(find_root(model, adapter, &root));
    snprintf(path, sizeof path, "%s/adapters/%s/%s", root, model, adapter);
    assert_int_equal(safetensors_open(path, "adapter_model", &set, &err), LG_OK);
    LgStr name = layer_name(&arena, module, layer, tail);
    char key[300];
    snprintf(key, sizeof key, "base_model.model.%.*s", LG_STR_ARG(name));
    const Tensor *t = tensor_set_find(set, lg_str(key));
    if (!t)
        fail_msg("%s has no %s", path, key);
    uint64_t columns = t->shape[t->rank - 1];
    float *row = lg_alloc_array((size_t)columns, sizeof *row);
    assert_non_null(row);
    for (uint64_t r = 0; r < tensor_elems(t) / columns; r++) {
        tensor_row_f32(t, r, row);
        for (uint64_t i = 0; i < columns; i++)
            assert_true(got[r * columns + i] == bf16_round(row[i]));
    }
    lg_free(row);
    tensor_set_close(set);
    arena_clear(&arena);
}

static bool is_adapted(const Row *row, LgStr param, int layer) {
    char word[40];
    snprintf(word, sizeof word, "%.*s ", LG_STR_ARG(param));
    return strstr(row->params, word) && (row->layer < 0 || row->layer == layer);
}

/* n² of the adapter's own scale must be the squared norm of W + s B A. */
static void check_dora(const LangProgram *p, const Binding *binding, const AdapterSite *s,
                       int param, int layer) {
    const LangTensor *t = &p->tensors[param];
    uint64_t in = 1;
    for (int i = t->axis_start[1]; i < t->axis_start[2]; i++)
        in *= p->dims[t->dims[i]].size;
    float *w = lg_alloc_array((size_t)in, sizeof *w);
    assert_non_null(w);
    for (uint64_t o = 0; o < 16; o++) {
        double want = 0;
        binding_row_f32(binding_get(binding, param, layer), p, param, o, w);
        for (uint64_t i = 0; i < in; i++) {
            double ba = 0;
            for (int z = 0; z < s->rank; z++)
                ba += (double)s->b[o * (uint64_t)s->rank + (uint64_t)z] *
                      (double)s->a[(uint64_t)z * in + i];
            double sum = (double)w[i] + (double)s->scale * ba;
            want += sum * sum;
        }
        double got = (double)s->dora_w2[o] + 2 * (double)s->dora_wba[o] + (double)s->dora_ba2[o];
        assert_true(fabs(got - want) <= 1e-6 * want);
        assert_true(s->magnitude[o] > 0);
        /* trained magnitudes stay near the norm of the base row, so a norm of another row or of a
         * column would show */
        assert_true(fabs((double)s->magnitude[o] / sqrt(want) - 1) < 0.25);
    }
    lg_free(w);
}

static void check_site(const Row *row, const Loaded *l, const Adapter *a, int site, int layer) {
    const LangProgram *p = l->options.program;
    const AdapterSite *s = site_at(a, site, layer);
    const LangSite *where = &p->sites[site];
    const LangTensor *param = &p->tensors[where->param];
    if (layer > 0 && !where->in_layer) {
        assert_int_equal(s->rank, 0);
        return;
    }
    if (!is_adapted(row, param->name, layer)) {
        assert_int_equal(s->rank, 0);
        return;
    }
    assert_int_equal(s->rank, row->rank);
    assert_true(s->scale == (float)row->scale);
    check_array(row->model, row->adapter, param->module, layer,
                where->lookup ? ".lora_embedding_A" : ".lora_A.weight", s->a);
    check_array(row->model, row->adapter, param->module, layer,
                where->lookup ? ".lora_embedding_B" : ".lora_B.weight", s->b);
    assert_true((s->magnitude != NULL) == row->dora);
    if (row->dora)
        check_dora(p, l->options.binding, s, where->param, layer);
}

static void each_served_adapter_gives_its_sites_ranks_scales_and_numbers(void **state) {
    (void)state;
    size_t checked = 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        Loaded l;
        Adapter *a;
        LgError err = {0};
        LgStatus status;
        if (!open_pair(rows[i].model, rows[i].adapter, false, &l, &a, &err, &status))
            continue;
        if (status != LG_OK)
            fail_msg("%s", err.message);
        const AdapterData *d = adapter_data(a);
        assert_int_equal(d->site_count, 9);
        for (int site = 0; site < d->site_count; site++)
            for (int layer = 0; layer < d->layer_count; layer++)
                check_site(&rows[i], &l, a, site, layer);
        assert_true(report_has(a, "notes", "alpha is 0 for 28 of 28") ==
                    !strcmp(rows[i].adapter, "alpha0"));
        assert_true(report_has(a, "disregarded", "lm_head.base_layer.weight") ==
                    !strcmp(rows[i].adapter, "embed-head"));
        adapter_destroy(a);
        close_model(&l);
        checked++;
    }
    assert_true(checked >= 11);
}

/* rank_pattern and alpha_pattern of the case: down_proj 4; layer 0's q_proj 2 with alpha 5; gate
 * and up of layers 2 and 3: 6; layer 1's gate_proj alpha 3; v_proj alpha 32; else r 8, alpha 16. */
static void patterns_override_module_by_module(void **state) {
    (void)state;
    Loaded l;
    Adapter *a;
    LgError err = {0};
    LgStatus status;
    assert_true(open_pair("tiny-qwen3", "pattern", false, &l, &a, &err, &status));
    assert_int_equal(status, LG_OK);
    const LangProgram *p = l.options.program;
    for (int site = 0; site < p->site_count; site++) {
        LgStr param = p->tensors[p->sites[site].param].name;
        if (!p->sites[site].in_layer)
            continue;
        for (int layer = 0; layer < 4; layer++) {
            bool gate_up = lg_str_eq_c(param, "wg") || lg_str_eq_c(param, "wu");
            bool q0 = lg_str_eq_c(param, "wq") && layer == 0;
            int rank = lg_str_eq_c(param, "wd") ? 4 : q0 ? 2 : gate_up && layer >= 2 ? 6 : 8;
            double alpha = q0                                       ? 5
                           : lg_str_eq_c(param, "wg") && layer == 1 ? 3
                           : lg_str_eq_c(param, "wv")               ? 32
                                                                    : 16;
            assert_int_equal(site_at(a, site, layer)->rank, rank);
            assert_true(site_at(a, site, layer)->scale == (float)(alpha / rank));
        }
    }
    adapter_destroy(a);
    close_model(&l);
}

/* Layer 1's k_proj is named by two keys of alpha_pattern: 24, the first in the file, counts. */
static void of_overlapping_patterns_the_first_counts(void **state) {
    (void)state;
    Loaded l;
    Adapter *a;
    LgError err = {0};
    LgStatus status;
    assert_true(open_pair("tiny-qwen3", "pattern-overlap", false, &l, &a, &err, &status));
    assert_int_equal(status, LG_OK);
    const LangProgram *p = l.options.program;
    for (int site = 0; site < p->site_count; site++) {
        LgStr param = p->tensors[p->sites[site].param].name;
        for (int layer = 0; layer < 4; layer++) {
            const AdapterSite *s = site_at(a, site, layer);
            if (lg_str_eq_c(param, "wk"))
                assert_true(s->scale == (layer == 1 ? 6.0f : 2.0f));
            else if (lg_str_eq_c(param, "wo"))
                assert_true(s->scale == 2.0f);
            else
                assert_int_equal(s->rank, 0);
        }
    }
    adapter_destroy(a);
    close_model(&l);
}

static void f32_is_kept_where_the_program_stores_f32(void **state) {
    (void)state;
    Loaded l;
    Adapter *a;
    LgError err = {0};
    LgStatus status;
    assert_true(open_pair("tiny-qwen3", "en-r8-all-fp32", true, &l, &a, &err, &status));
    assert_int_equal(status, LG_OK);
    assert_true(adapter_data(a)->store_f32);
    int kept = 0;
    for (int site = 0; site < l.options.program->site_count; site++)
        for (int i = 0; site_at(a, site, 0)->rank && i < 8; i++)
            kept += site_at(a, site, 0)->a[i] != bf16_round(site_at(a, site, 0)->a[i]);
    assert_true(kept > 20);
    adapter_destroy(a);
    close_model(&l);
}

typedef struct Replacing {
    const char *model, *adapter;
    int replaced, rows; /* params; rows of the first, 0: all */
    const char *param;
} Replacing;

static const Replacing replacing[] = {
    {"tiny-qwen3", "chat-tokens", 2, 2, "emb"},
    {"tiny-qwen3", "save-head", 1, 0, "head"},
    {"tiny-qwen3", "save-norm", 9, 0, NULL},
    {"tiny-qwen3", "lora-bias", 0, 0, NULL},
};

static void what_replaces_the_base_is_in_the_data_and_the_report(void **state) {
    (void)state;
    size_t checked = 0;
    for (size_t i = 0; i < sizeof replacing / sizeof replacing[0]; i++) {
        const Replacing *want = &replacing[i];
        Loaded l;
        Adapter *a;
        LgError err = {0};
        LgStatus status;
        if (!open_pair(want->model, want->adapter, false, &l, &a, &err, &status))
            continue;
        if (status != LG_OK)
            fail_msg("%s: %s", want->adapter, err.message);
        const AdapterData *d = adapter_data(a);
        assert_int_equal(d->replaced_count, want->replaced);
        assert_int_equal(json_array_size(json_object_get(adapter_report(a), "replaced")),
                         want->replaced);
        assert_int_equal(report_has(a, "notes", "used alone, at scale 1"), want->replaced > 0);
        assert_int_equal(adapter_refuses(a, 2, 1) != NULL, want->replaced > 0);
        assert_int_equal(adapter_refuses(a, 1, 0.5f) != NULL, want->replaced > 0);
        assert_null(adapter_refuses(a, 1, 1));
        for (int k = 0; k < d->replaced_count; k++) {
            const AdapterReplaced *r = &d->replaced[k];
            LgStr name = l.options.program->tensors[r->tensor].name;
            assert_true(r->bf16);
            assert_int_equal(r->rows ? (int)r->row_count : 0, want->rows);
            assert_true(!want->param || k > 0 || lg_str_eq_c(name, want->param));
            if (r->rows) {
                assert_int_equal(r->rows[0], 2036);
                assert_int_equal(r->rows[1], 2037);
            }
        }
        if (!want->replaced)
            assert_non_null(site_at(a, 1, 0)->b_bias);
        adapter_destroy(a);
        close_model(&l);
        checked++;
    }
    assert_true(checked >= 4);
}

/* An adapter of another model of the family: same names, other dims. */
static void an_adapter_of_another_model_is_refused(void **state) {
    (void)state;
    const char *root;
    char path[600];
    Loaded l;
    LgError err = {0};
    Adapter *a = NULL;
    assert_true(find_root("tiny-qwen3", "en-r8-all", &root));
    snprintf(path, sizeof path, "%s/models/tiny-qwen3", root);
    open_model(&l, path);
    if (find_root("mid-qwen3", "en-r8-all", &root)) {
        snprintf(path, sizeof path, "%s/adapters/mid-qwen3/en-r8-all", root);
        assert_int_equal(adapter_load("mid", path, &l.options, &a, &err), LG_BAD_INPUT);
        assert_contains(err.message, "its shape is");
        assert_null(a);
    }
    close_model(&l);
}

/* ---- the real model ---- */

typedef struct Smol {
    const char *name, *params;
    int rank;
    double scale;
    bool dora;
} Smol;

static const Smol smols[] = {
    {"sql", ALL, 8, 2, false},
    {"extract", ALL, 8, 5.656854249492381, false},
    {"redact", "wq wk wv wo ", 4, 2, false},
    {"triage", "wq wv ", 4, 2, true},
};

static void check_smol(const Smol *want, Loaded *l, const Adapter *a) {
    Row row = {.params = want->params, .layer = -1};
    const LangProgram *p = l->options.program;
    for (int site = 0; site < p->site_count; site++) {
        const LangSite *where = &p->sites[site];
        for (int layer = 0; where->in_layer && layer < 30; layer++) {
            const AdapterSite *s = site_at(a, site, layer);
            bool adapted = is_adapted(&row, p->tensors[where->param].name, layer);
            assert_int_equal(s->rank, adapted ? want->rank : 0);
            assert_true(!adapted || s->scale == (float)want->scale);
            if (adapted && want->dora)
                check_dora(p, l->options.binding, s, where->param, layer);
        }
    }
}

static void adapters_of_a_quantised_model_load_quickly(void **state) {
    (void)state;
    if (!file_exists(LG_SMOLLM2) || !file_is_dir(LG_SHARED_DATA "/smollm2/adapters"))
        skip();
    Loaded l;
    open_model(&l, LG_SMOLLM2);
    for (size_t i = 0; i < sizeof smols / sizeof smols[0]; i++) {
        double best = 1e9;
        for (int again = 0; again < 3; again++) {
            char path[600];
            Adapter *a = NULL;
            LgError err = {0};
            snprintf(path, sizeof path, "%s/smollm2/adapters/%s", LG_SHARED_DATA, smols[i].name);
            double begin = clock_seconds();
            LgStatus status = adapter_load(smols[i].name, path, &l.options, &a, &err);
            double took = clock_seconds() - begin;
            if (status != LG_OK)
                fail_msg("%s", err.message);
            best = took < best ? took : best;
            if (again == 0)
                check_smol(&smols[i], &l, a);
            adapter_destroy(a);
        }
        print_message("%s: %.1f ms\n", smols[i].name, best * 1e3);
        assert_true(best < 2);
    }
    close_model(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_served_adapter_gives_its_sites_ranks_scales_and_numbers),
        cmocka_unit_test(patterns_override_module_by_module),
        cmocka_unit_test(of_overlapping_patterns_the_first_counts),
        cmocka_unit_test(f32_is_kept_where_the_program_stores_f32),
        cmocka_unit_test(what_replaces_the_base_is_in_the_data_and_the_report),
        cmocka_unit_test(an_adapter_of_another_model_is_refused),
        cmocka_unit_test(adapters_of_a_quantised_model_load_quickly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
