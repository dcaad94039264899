/* Adapters of experts: by expert, as transformers 4 names them, and on the parameters that hold all
 * of a layer, in both orientations that PEFT has written; what cannot be told is refused. */
#include "tests/unit/lora/fixture.h"

#include "base/file.h"
#include "formats/checkpoint.h"

#define FOLDER LG_TEST_DATA "/tiny"
enum { LAYERS = 4, EXPERTS = 8, WIDTH = 128, FFN = 128, RANK = 4 };

typedef struct Moe {
    Checkpoint *checkpoint;
    TensorSet *tensors; /* of the adapter, expert by expert */
    Arena arena;
    Model m; /* its options alone are used */
    Adapter *each;
} Moe;

static void moe_open(Moe *x) {
    LgError err = {0};
    Buf source, config;
    LangProgram *checked = NULL, *program = NULL;
    Binding *binding = NULL;
    memset(x, 0, sizeof *x);
    arena_init(&x->arena);
    buf_init(&source);
    buf_init(&config);
    if (checkpoint_open(FOLDER "/models/tiny-qwen3-moe", &x->checkpoint, &err) != LG_OK ||
        file_read(LG_SOURCE_DIR "/models/qwen3_moe.lg", 1 << 20, &source, &err) != LG_OK ||
        lang_compile(arena_str(&x->arena, buf_view(&source)), "qwen3_moe.lg",
                     checkpoint_config(x->checkpoint), &x->arena, &checked, &err) != LG_OK ||
        lang_rewrite_lora(checked, &x->arena, &program, &err) != LG_OK ||
        bind_params(program, checkpoint_tensors(x->checkpoint), &x->arena, &binding, &err) != LG_OK)
        fail_msg("%s", err.message);
    x->m.options = (AdapterOptions){.program = program, .binding = binding};
    const char *dir = FOLDER "/adapters/tiny-qwen3-moe/experts-perexpert-r4";
    assert_int_equal(safetensors_open(dir, "adapter_model", &x->tensors, &err), LG_OK);
    if (adapter_load("each", dir, &x->m.options, &x->each, &err) != LG_OK)
        fail_msg("%s", err.message);
    buf_clear(&source);
    buf_clear(&config);
}

static void moe_close(Moe *x) {
    adapter_destroy(x->each);
    tensor_set_close(x->tensors);
    checkpoint_close(x->checkpoint);
    arena_clear(&x->arena);
}

static int site_of(const Moe *x, const char *param) {
    const LangProgram *p = x->m.options.program;
    for (int i = 0; i < p->site_count; i++)
        if (lg_str_eq_c(p->tensors[p->sites[i].param].name, param))
            return i;
    fail_msg("no site %s", param);
    return -1;
}

/* ---- the same adapter on parameters ---- */

static void tensor_values(const Moe *x, int layer, int expert, const char *module, char part,
                          float *out) {
    char name[200];
    snprintf(name, sizeof name, "base_model.model.model.layers.%d.mlp.experts.%d.%s.lora_%c.weight",
             layer, expert, module, part);
    const Tensor *t = tensor_set_find(x->tensors, lg_str(name));
    assert_non_null(t);
    dtype_info(t->dtype)->to_f32(t->data, out, (size_t)tensor_elems(t));
}

/* A [experts][rank][in] and B [experts][out][rank] of a parameter that joins `modules`: their ranks
 * follow each other, and each has only its own rows of B. */
typedef struct Joined {
    int rank, in, out;
    float *a, *b;
} Joined;

static Joined join(const Moe *x, int layer, const char *const *modules, int count, int in,
                   int out) {
    Joined j = {RANK * count, in, out * count, NULL, NULL};
    j.a = lg_calloc((size_t)EXPERTS * (size_t)(j.rank * in), sizeof(float));
    j.b = lg_calloc((size_t)EXPERTS * (size_t)(j.rank * j.out), sizeof(float));
    float *b = lg_alloc_array((size_t)(out * RANK), sizeof *b);
    assert_true(j.a && j.b && b);
    for (int e = 0; e < EXPERTS; e++)
        for (int m = 0; m < count; m++) {
            tensor_values(x, layer, e, modules[m], 'A', j.a + (e * j.rank + m * RANK) * in);
            tensor_values(x, layer, e, modules[m], 'B', b);
            for (int o = 0; o < out; o++)
                memcpy(j.b + (e * j.out + m * out + o) * j.rank + m * RANK, b + o * RANK,
                       RANK * sizeof *b);
        }
    lg_free(b);
    return j;
}

/* What PEFT stores: rows by expert and rank, columns of the other with the expert fastest. swapped:
 * of the transposed weight. */
static void file_add_joined(File *f, const Joined *j, const char *holder, bool swapped) {
    int in = swapped ? j->out : j->in, out = swapped ? j->in : j->out;
    float *a = lg_alloc_array((size_t)(EXPERTS * j->rank * in), sizeof *a);
    float *b = lg_alloc_array((size_t)(EXPERTS * j->rank * out), sizeof *b);
    assert_true(a && b);
    for (int e = 0; e < EXPERTS; e++)
        for (int r = 0; r < j->rank; r++) {
            for (int i = 0; i < in; i++)
                a[(e * j->rank + r) * in + i] = swapped ? j->b[(e * j->out + i) * j->rank + r]
                                                        : j->a[(e * j->rank + r) * j->in + i];
            for (int o = 0; o < out; o++)
                b[(o * j->rank + r) * EXPERTS + e] = swapped ? j->a[(e * j->rank + r) * j->in + o]
                                                             : j->b[(e * j->out + o) * j->rank + r];
        }
    char name[200];
    snprintf(name, sizeof name, "base_model.model.%s.lora_A.weight", holder);
    file_add(f, name, DTYPE_BF16, (uint64_t)(EXPERTS * j->rank), (uint64_t)in, a);
    snprintf(name, sizeof name, "base_model.model.%s.lora_B.weight", holder);
    file_add(f, name, DTYPE_BF16, (uint64_t)out, (uint64_t)(EXPERTS * j->rank), b);
    lg_free(a);
    lg_free(b);
}

typedef enum Parts { GATE_UP = 1, DOWN = 2, BOTH = 3 } Parts;

static void file_add_experts(File *f, const Moe *x, Parts parts, bool swapped) {
    static const char *const gate_up[] = {"gate_proj", "up_proj"}, *const down[] = {"down_proj"};
    for (int layer = 0; layer < LAYERS; layer++) {
        char holder[100];
        if (parts & GATE_UP) {
            Joined j = join(x, layer, gate_up, 2, WIDTH, FFN);
            snprintf(holder, sizeof holder, "model.layers.%d.mlp.experts%s", layer,
                     parts == BOTH ? ".base_layer" : "");
            file_add_joined(f, &j, holder, swapped);
            lg_free(j.a);
            lg_free(j.b);
        }
        if (parts & DOWN) {
            Joined j = join(x, layer, down, 1, FFN, WIDTH);
            snprintf(holder, sizeof holder, "model.layers.%d.mlp.experts", layer);
            file_add_joined(f, &j, holder, swapped);
            lg_free(j.a);
            lg_free(j.b);
        }
    }
}

/* scale * B A, exactly the same numbers. */
static void same_delta(const AdapterSite *want, const AdapterSite *got, int in, int out) {
    for (int o = 0; o < out; o += 7)
        for (int i = 0; i < in; i += 5) {
            double a = 0, b = 0;
            for (int z = 0; z < want->rank; z++)
                a += (double)want->b[o * want->rank + z] * (double)want->a[z * in + i];
            for (int z = 0; z < got->rank; z++)
                b += (double)got->b[o * got->rank + z] * (double)got->a[z * in + i];
            if (a * (double)want->scale != b * (double)got->scale)
                fail_msg("element [%d, %d]: %g, expert by expert %g", o, i, b, a);
        }
}

static void same_adapter(const Moe *x, const Adapter *got, Parts parts) {
    static const struct {
        const char *param;
        Parts part;
    } sites[] = {{"wg", GATE_UP}, {"wu", GATE_UP}, {"wd", DOWN}};
    for (size_t s = 0; s < 3; s++)
        for (int layer = 0; layer < LAYERS; layer++) {
            const AdapterSite *want = site_at(x->each, site_of(x, sites[s].param), layer);
            const AdapterSite *have = site_at(got, site_of(x, sites[s].param), layer);
            assert_non_null(want->experts);
            if (!(sites[s].part & parts)) {
                assert_int_equal(have->rank, 0);
                continue;
            }
            assert_non_null(have->experts);
            for (int e = 0; e < EXPERTS; e++)
                same_delta(&want->experts[e], &have->experts[e], 128, 128);
        }
}

#define DOUBLED                                                                                    \
    ",\"rank_pattern\":{\".*\\\\.gate_up_proj\":8},\"alpha_pattern\":{\".*\\\\.gate_up_proj\":16}"
#define PARAMETERS ",\"target_parameters\":[\"gate_up_proj\",\"down_proj\"]"

static void experts_by_name_have_a_site_each(void **state) {
    (void)state;
    Moe x;
    moe_open(&x);
    for (int layer = 0; layer < LAYERS; layer++) {
        const AdapterSite *s = site_at(x.each, site_of(&x, "wu"), layer);
        assert_int_equal(s->rank, RANK);
        for (int e = 0; e < EXPERTS; e++) {
            assert_int_equal(s->experts[e].rank, RANK);
            assert_true(s->experts[e].scale == 2.0f);
        }
        /* not the first's numbers for all of them */
        assert_memory_not_equal(s->experts[0].a, s->experts[7].a, WIDTH * sizeof(float));
        assert_int_equal(site_at(x.each, site_of(&x, "wq"), layer)->rank, 0);
    }
    const json_t *sites = json_object_get(adapter_report(x.each), "sites");
    assert_int_equal(json_array_size(sites), LAYERS * EXPERTS * 3);
    assert_non_null(json_object_get(json_array_get(sites, 0), "expert"));
    moe_close(&x);
}

static void some_experts_alone_are_served(void **state) {
    (void)state;
    Moe x;
    File f;
    char text[2000];
    moe_open(&x);
    file_init(&f);
    file_add_pair(&f, "model.layers.2.mlp.experts.5.down_proj", DTYPE_BF16, 3, FFN, WIDTH);
    file_add_pair(&f, "model.layers.2.mlp.experts.1.down_proj", DTYPE_BF16, 6, FFN, WIDTH);
    Adapter *a = load_ok(&x.m, file_set(&f),
                         config_text(text, "3", "6", ",\"rank_pattern\":{\"1.down_proj\":6}"));
    const AdapterSite *s = site_at(a, site_of(&x, "wd"), 2);
    assert_int_equal(s->rank, 6); /* the largest of them */
    for (int e = 0; e < EXPERTS; e++)
        assert_int_equal(s->experts[e].rank, e == 5 ? 3 : e == 1 ? 6 : 0);
    assert_true(s->experts[5].scale == 2.0f && s->experts[1].scale == 1.0f);
    assert_int_equal(site_at(a, site_of(&x, "wd"), 1)->rank, 0);
    adapter_destroy(a);
    file_clear(&f);
    moe_close(&x);
}

/* gate_up is not square, so its shape tells; down is, and the version does. */
static void parameters_give_the_same_numbers_in_both_orientations(void **state) {
    (void)state;
    Moe x;
    moe_open(&x);
    for (int swapped = 0; swapped < 2; swapped++) {
        static const char *const versions[] = {",\"peft_version\":\"0.21.0\"",
                                               ",\"peft_version\":\"0.18.1\""};
        File f;
        char text[2000], more[600];
        file_init(&f);
        file_add_experts(&f, &x, BOTH, swapped);
        snprintf(more, sizeof more, DOUBLED PARAMETERS "%s", versions[swapped]);
        Adapter *a = load_ok(&x.m, file_set(&f), config_text(text, "4", "8", more));
        same_adapter(&x, a, BOTH);
        const json_t *site = json_array_get(json_object_get(adapter_report(a), "sites"), 0);
        assert_int_equal(json_integer_value(json_object_get(site, "experts")), EXPERTS);
        char hash[65];
        memcpy(hash, adapter_hash(a), sizeof hash);
        adapter_destroy(a);
        /* The other version means another adapter by the square one. */
        snprintf(more, sizeof more, DOUBLED PARAMETERS "%s", versions[!swapped]);
        Adapter *other = load_ok(&x.m, f.set, config_text(text, "4", "8", more));
        const AdapterSite *down = site_at(other, site_of(&x, "wd"), 0);
        assert_memory_not_equal(down->experts[3].a,
                                site_at(x.each, site_of(&x, "wd"), 0)->experts[3].a,
                                FFN * sizeof(float));
        assert_string_not_equal(adapter_hash(other), hash);
        adapter_destroy(other);
        file_clear(&f);
    }
    moe_close(&x);
}

static void one_parameter_is_found_by_the_config_or_by_its_shape(void **state) {
    (void)state;
    static const struct {
        Parts parts;
        const char *more;
    } rows[] = {
        {GATE_UP, DOUBLED ",\"target_parameters\":[\"mlp.experts.gate_up_proj\"]"},
        {GATE_UP, DOUBLED},
        {DOWN, ",\"target_parameters\":[\"experts.down_proj\"],\"peft_version\":\"0.19.0\""},
        {DOWN, ",\"peft_version\":\"1.0\""},
    };
    Moe x;
    moe_open(&x);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        File f;
        char text[2000];
        file_init(&f);
        file_add_experts(&f, &x, rows[i].parts, false);
        Adapter *a = load_ok(&x.m, file_set(&f), config_text(text, "4", "8", rows[i].more));
        same_adapter(&x, a, rows[i].parts);
        adapter_destroy(a);
        file_clear(&f);
    }
    moe_close(&x);
}

static void what_cannot_be_told_of_parameters_is_refused(void **state) {
    (void)state;
    static const struct {
        Parts parts;
        bool swapped;
        const char *more, *fragment;
    } rows[] = {
        {DOWN, false, "", "is square, and adapter_config.json has no peft_version"},
        {GATE_UP, false, "", "its rank is 8, but adapter_config.json says 4"},
        {GATE_UP, false, DOUBLED ",\"target_parameters\":[\"down_proj\"]", "are expected"},
        {GATE_UP, false, DOUBLED PARAMETERS, "cannot be told"},
        {BOTH, false, DOUBLED PARAMETERS ",\"use_dora\":true", "DoRA on experts is not served"},
    };
    Moe x;
    moe_open(&x);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        File f;
        char text[2000], more[600];
        file_init(&f);
        file_add_experts(&f, &x, rows[i].parts, rows[i].swapped);
        snprintf(more, sizeof more, "%s%s", rows[i].more,
                 rows[i].parts == BOTH ? ",\"peft_version\":\"0.21.0\"" : "");
        load_fails(&x.m, file_set(&f), config_text(text, "4", "8", more), LG_BAD_INPUT,
                   rows[i].fragment);
        file_clear(&f);
    }
    moe_close(&x);
}

typedef struct Extra {
    const char *name;
    uint64_t rows, columns;
} Extra;

static void refused_with(const Moe *x, bool with_experts, const Extra *extra, int count,
                         const char *more, const char *fragment) {
    File f;
    char text[2000];
    file_init(&f);
    if (with_experts)
        file_add_experts(&f, x, DOWN, false);
    for (int i = 0; i < count; i++)
        file_add(&f, extra[i].name, DTYPE_BF16, extra[i].rows, extra[i].columns, NULL);
    load_fails(&x->m, file_set(&f), config_text(text, "4", "8", more), LG_BAD_INPUT, fragment);
    file_clear(&f);
}

static void strange_tensors_of_experts_are_refused(void **state) {
    (void)state;
#define BASE "base_model.model.model.layers.0.mlp.experts"
    static const Extra far[] = {{BASE ".8.up_proj.lora_A.weight", 4, 128}};
    static const Extra nested[] = {{BASE ".base_layer.base_layer.lora_A.weight", 32, 128}};
    static const Extra alone[] = {{BASE ".base_layer.lora_A.weight", 64, 128},
                                  {BASE ".base_layer.lora_B.weight", 256, 64}};
    static const Extra half[] = {{BASE ".lora_A.weight", 32, 128}};
    static const Extra magnitude[] = {{BASE ".3.up_proj.lora_A.weight", 4, 128},
                                      {BASE ".3.up_proj.lora_B.weight", 128, 4},
                                      {BASE ".3.up_proj.lora_magnitude_vector", 128, 0}};
    static const Extra whole[] = {{BASE ".lora_magnitude_vector", 128, 0}};
    static const Extra twice[] = {{BASE ".3.down_proj.lora_A.weight", 4, 128},
                                  {BASE ".3.down_proj.lora_B.weight", 128, 4}};
    static const Extra odd[] = {{BASE ".lora_A.weight", 30, 128}, {BASE ".lora_B.weight", 256, 30}};
    Moe x;
    moe_open(&x);
    refused_with(&x, true, far, 1, ",\"peft_version\":\"0.21\"",
                 "the model has no expert 8; its experts are 0 to 7");
    refused_with(&x, true, nested, 1, ",\"peft_version\":\"0.21\"", "under 2 base_layer");
    refused_with(&x, false, alone, 2, DOUBLED, "no tensor with one base_layer less");
    refused_with(&x, false, half, 1, "", "no lora_B beside it");
    refused_with(&x, false, magnitude, 3, ",\"use_dora\":true", "DoRA on experts is not served");
    refused_with(&x, false, whole, 1, ",\"use_dora\":true", "DoRA on experts is not served");
    refused_with(&x, true, twice, 2, ",\"peft_version\":\"0.21\"", "adapts expert by expert");
    refused_with(&x, false, odd, 2, "", "no rank for each of 8 experts");
    moe_close(&x);
}

/* The router's own adapter names a parameter too, of one matrix. */
static void routers_are_ordinary_modules(void **state) {
    (void)state;
    Moe x;
    Adapter *a = NULL;
    LgError err = {0};
    moe_open(&x);
    if (adapter_load("router", FOLDER "/adapters/tiny-qwen3-moe/router-r4", &x.m.options, &a,
                     &err) != LG_OK)
        fail_msg("%s", err.message);
    for (int layer = 0; layer < LAYERS; layer++)
        assert_int_equal(site_at(a, site_of(&x, "wr"), layer)->rank, 4);
    assert_int_equal(adapted_sites(a), LAYERS);
    adapter_destroy(a);
    moe_close(&x);
}

/* Whichever allocation fails, the load says so and leaves nothing. */
static void failed_allocations_are_reported(void **state) {
    (void)state;
    Moe x;
    File f;
    char text[2000];
    moe_open(&x);
    file_init(&f);
    file_add_experts(&f, &x, BOTH, true);
    const TensorSet *set = file_set(&f);
    LgStr config = config_text(text, "4", "8", DOUBLED PARAMETERS ",\"peft_version\":\"0.18.0\"");
    LgStatus status = LG_NO_MEMORY;
    long n = 1;
    for (; n < 5000 && status != LG_OK; n += n < 40 ? 1 : 13) {
        Adapter *a = NULL;
        LgError err = {0};
        lg_alloc_fail_at(n, 0);
        status = adapter_from_memory(config, set, &x.m.options, &a, &err);
        lg_alloc_fail_at(0, 0);
        if (status != LG_OK && status != LG_NO_MEMORY)
            fail_msg("allocation %ld: %s", n, err.message);
        adapter_destroy(a);
    }
    assert_int_equal(status, LG_OK);
    assert_true(n > 40);
    file_clear(&f);
    moe_close(&x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_by_name_have_a_site_each),
        cmocka_unit_test(some_experts_alone_are_served),
        cmocka_unit_test(parameters_give_the_same_numbers_in_both_orientations),
        cmocka_unit_test(one_parameter_is_found_by_the_config_or_by_its_shape),
        cmocka_unit_test(what_cannot_be_told_of_parameters_is_refused),
        cmocka_unit_test(strange_tensors_of_experts_are_refused),
        cmocka_unit_test(routers_are_ordinary_modules),
        cmocka_unit_test(failed_allocations_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
