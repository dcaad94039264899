/* Adapters in the interpreter: the formula, what is rounded where, and which rows are touched. */
#include "tests/unit/ir/fixture.h"

enum { V = 3, E = 4, O = 2, R = 2 };

#define PAGE                                                                                       \
    "model tiny for \"TinyForCausalLM\"\n"                                                         \
    "dim V = vocab_size\n"                                                                         \
    "dim E = hidden_size\n"                                                                        \
    "dim O = 2\n"                                                                                  \
    "dim T, N, B, S, A\n"                                                                          \
    "input token[T]: index V\n"                                                                    \
    "input last[N]: index T\n"                                                                     \
    "input ad[T]: index A\n"                                                                       \
    "param emb[V, E] = \"emb.weight\"\n"                                                           \
    "param w[O, E] = \"w.weight\"\n"                                                               \
    "param b[O] = \"w.bias\"\n"                                                                    \
    "param head[V, O] = \"head.weight\"\n"                                                         \
    "lora ad on emb, w, head\n"                                                                    \
    "x[t,i] = emb[token[t],i]\n"                                                                   \
    "y[t,o] = (sum i: x[t,i] * w[o,i]) + b[o]\n"                                                   \
    "output logits[n,v]: f32 = sum o: y[last[n],o] * head[v,o]\n"

static const float emb[V * E] = {1, 2, 3, 4, 0.5f, -1, 0.25f, 2, -3, 1, 1, 0.125f};
static const float w[O * E] = {1, 0.5f, -1, 2, 0.25f, 1, 1, -0.5f};
static const float bias[O] = {0.5f, -1.5f};
static const float head[V * O] = {1, 0, 0, 1, 1, 1};

/* One adapter on w; sites without a rank are not adapted. */
typedef struct TestAdapter {
    AdapterSite sites[3];
    AdapterData data;
    float a[R * E], b[O * R];
    float magnitude[O], w2[O], wba[O], ba2[O];
} TestAdapter;

static int site_of(const Fixture *f, const char *param) {
    for (int i = 0; i < f->program->site_count; i++)
        if (lg_str_eq_c(f->program->tensors[f->program->sites[i].param].name, param))
            return i;
    fail_msg("no site %s", param);
    return -1;
}

static void adapter_make(TestAdapter *t, const Fixture *f, float seed, float scale,
                         bool store_f32) {
    *t = (TestAdapter){0};
    for (int i = 0; i < R * E; i++)
        t->a[i] = bf16_round(seed * (float)(i - 3) * 0.3f);
    for (int i = 0; i < O * R; i++)
        t->b[i] = bf16_round(0.7f - seed * (float)i * 0.21f);
    AdapterSite *s = &t->sites[site_of(f, "w")];
    *s = (AdapterSite){.rank = R, .a = t->a, .b = t->b, .scale = scale};
    t->data =
        (AdapterData){.site_count = 3, .layer_count = 1, .sites = t->sites, .store_f32 = store_f32};
}

static void open_page(Fixture *f, EvalOptions options) {
    const FixtureTensor all[] = {
        {.name = "emb.weight", .rank = 2, .shape = {V, E}, .values = emb},
        {.name = "w.weight", .rank = 2, .shape = {O, E}, .values = w},
        {.name = "w.bias", .rank = 1, .shape = {O}, .values = bias},
        {.name = "head.weight", .rank = 2, .shape = {V, O}, .values = head}};
    fixture_init(f);
    fixture_int(f, "vocab_size", V);
    fixture_int(f, "hidden_size", E);
    fixture_checkpoint(f, all, 4);
    fixture_compile(f, PAGE);
    fixture_bind(f);
    fixture_eval(f, options);
}

static int32_t install(Fixture *f, const TestAdapter *t) {
    LgError err = {0};
    int32_t slot = -1;
    assert_int_equal(eval_adapter_install(f->eval, &t->data, &slot, &err), LG_OK);
    return slot;
}

/* Three rows, tokens 0, 1, 2, each with its own set; the final y's of all rows. */
static void run(Fixture *f, const AdapterSet *sets, int32_t set_count, const int32_t ad[3],
                const char *name, FixtureTrace *t) {
    static const int32_t tokens[3] = {0, 1, 2};
    Step step = {.rows = 3,
                 .token = tokens,
                 .ad = ad,
                 .sets = sets,
                 .set_count = set_count,
                 .samples = 3,
                 .last = tokens};
    *t = (FixtureTrace){.name = name, .layer = -2};
    fixture_step_traced(f, &step, t);
}

static float base_y(int row, int o) {
    float sum = 0;
    for (int i = 0; i < E; i++)
        sum += emb[row * E + i] * w[o * E + i];
    return sum + bias[o];
}

/* By lora.md: low rounded, delta not, one fused multiply-add for each adapter, one rounding at the
 * end. */
static float fold(const TestAdapter *t, int row, int o, float y, float request_scale, bool bf16) {
    float delta = 0;
    for (int z = 0; z < R; z++) {
        float low = 0;
        for (int i = 0; i < E; i++)
            low += emb[row * E + i] * t->a[z * E + i];
        delta += (bf16 ? bf16_round(low) : low) * t->b[o * R + z];
    }
    const AdapterSite *s = NULL;
    for (int i = 0; i < 3; i++)
        if (t->sites[i].rank)
            s = &t->sites[i];
    return fmaf(s->scale * request_scale, delta, y);
}

static void lora_folds_one_adapter_into_its_rows_alone(void **state) {
    (void)state;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        Fixture f;
        TestAdapter t;
        FixtureTrace y;
        open_page(&f, (EvalOptions){.store_f32 = !bf16});
        adapter_make(&t, &f, 1.0f, 0.75f, !bf16);
        const AdapterSet sets[2] = {{0}, {.count = 1, .use = {{install(&f, &t), 1.0f}}}};
        const int32_t ad[3] = {1, 0, 1};
        run(&f, sets, 2, ad, "y", &y);
        for (int row = 0; row < 3; row++)
            for (int o = 0; o < O; o++) {
                float want = bf16 ? bf16_round(base_y(row, o)) : base_y(row, o);
                if (ad[row])
                    want = fold(&t, row, o, want, 1, bf16);
                want = bf16 ? bf16_round(want) : want;
                assert_true(y.values[row * O + o] == (double)want);
            }
        fixture_clear(&f);
    }
}

static void lora_adds_a_set_in_order_and_rounds_once(void **state) {
    (void)state;
    Fixture f;
    TestAdapter one, two;
    FixtureTrace y, back;
    open_page(&f, (EvalOptions){0});
    adapter_make(&one, &f, 1.0f, 0.75f, false);
    adapter_make(&two, &f, -0.4f, 1.5f, false);
    int32_t a = install(&f, &one), b = install(&f, &two);
    assert_int_not_equal(a, b);
    const AdapterSet sets[3] = {
        {0}, {.count = 2, .use = {{a, 0.5f}, {b, 2}}}, {.count = 2, .use = {{b, 2}, {a, 0.5f}}}};
    const int32_t ad[3] = {1, 1, 1}, turned[3] = {2, 2, 2};
    run(&f, sets, 3, ad, "y", &y);
    run(&f, sets, 3, turned, "y", &back);
    for (int row = 0; row < 3; row++)
        for (int o = 0; o < O; o++) {
            float y0 = bf16_round(base_y(row, o));
            float want = fold(&two, row, o, fold(&one, row, o, y0, 0.5f, true), 2, true);
            assert_true(y.values[row * O + o] == (double)bf16_round(want));
            want = fold(&one, row, o, fold(&two, row, o, y0, 2, true), 0.5f, true);
            assert_true(back.values[row * O + o] == (double)bf16_round(want));
        }
    fixture_clear(&f);
}

static void lora_scales_rows_for_dora(void **state) {
    (void)state;
    Fixture f;
    TestAdapter t;
    FixtureTrace y;
    open_page(&f, (EvalOptions){.f64 = true, .store_f32 = true});
    adapter_make(&t, &f, 1.0f, 0.75f, true);
    AdapterSite *s = &t.sites[site_of(&f, "w")];
    for (int o = 0; o < O; o++) {
        t.magnitude[o] = 1.25f + (float)o;
        for (int i = 0; i < E; i++) {
            float ba = 0;
            for (int z = 0; z < R; z++)
                ba += t.b[o * R + z] * t.a[z * E + i];
            ba *= s->scale;
            t.w2[o] += w[o * E + i] * w[o * E + i];
            t.wba[o] += w[o * E + i] * ba;
            t.ba2[o] += ba * ba;
        }
    }
    s->magnitude = t.magnitude;
    s->dora_w2 = t.w2;
    s->dora_wba = t.wba;
    s->dora_ba2 = t.ba2;
    int32_t slot = install(&f, &t);
    for (int half = 0; half < 2; half++) {
        float request = half ? 0.5f : 1;
        const AdapterSet sets[2] = {{0}, {.count = 1, .use = {{slot, request}}}};
        const int32_t ad[3] = {1, 1, 0};
        run(&f, sets, 2, ad, "y", &y);
        for (int row = 0; row < 2; row++)
            for (int o = 0; o < O; o++) {
                /* y = m/n (W x + s B A x) + b, n the norm of W's row with the delta in it. */
                double norm = 0, product = 0;
                for (int i = 0; i < E; i++) {
                    double ba = 0;
                    for (int z = 0; z < R; z++)
                        ba += (double)t.b[o * R + z] * (double)t.a[z * E + i];
                    double whole = (double)w[o * E + i] + (double)(s->scale * request) * ba;
                    norm += whole * whole;
                    product += whole * (double)emb[row * E + i];
                }
                double want = (double)t.magnitude[o] / sqrt(norm) * product + (double)bias[o];
                assert_near(y.values[row * O + o], want, 1e-5);
            }
        assert_near(y.values[2 * O], base_y(2, 0), 1e-6);
    }
    fixture_clear(&f);
}

static void lora_reaches_looked_up_rows(void **state) {
    (void)state;
    Fixture f;
    TestAdapter t = {0};
    FixtureTrace x;
    open_page(&f, (EvalOptions){0});
    static const float a[R * V] = {0.5f, -1, 2, 0.25f, 1, -0.75f};
    static const float b[E * R] = {1, 0.5f, -1, 2, 0.125f, 0, 3, -0.5f};
    t.sites[site_of(&f, "emb")] = (AdapterSite){.rank = R, .a = a, .b = b, .scale = 1.5f};
    t.data = (AdapterData){.site_count = 3, .layer_count = 1, .sites = t.sites};
    const AdapterSet sets[2] = {{0}, {.count = 1, .use = {{install(&f, &t), 1}}}};
    const int32_t ad[3] = {0, 1, 1};
    run(&f, sets, 2, ad, "x", &x);
    for (int i = 0; i < E; i++) {
        assert_true(x.values[i] == (double)emb[i]);
        float delta = a[1] * b[i * R] + a[V + 1] * b[i * R + 1];
        assert_true(x.values[E + i] == (double)bf16_round(fmaf(1.5f, delta, emb[E + i])));
    }
    fixture_clear(&f);
}

/* The rows of the logits are samples: their adapter is that of the row that each was taken from. */
static void lora_follows_samples_to_their_rows(void **state) {
    (void)state;
    Fixture f;
    TestAdapter t = {0};
    open_page(&f, (EvalOptions){.store_f32 = true});
    static const float a[O] = {1, 2}, b[V] = {0.5f, -1, 4};
    t.sites[site_of(&f, "head")] = (AdapterSite){.rank = 1, .a = a, .b = b, .scale = 1};
    t.data = (AdapterData){.site_count = 3, .layer_count = 1, .sites = t.sites, .store_f32 = true};
    const AdapterSet sets[2] = {{0}, {.count = 1, .use = {{install(&f, &t), 1}}}};
    const int32_t tokens[3] = {0, 1, 2}, ad[3] = {0, 0, 1}, last[2] = {2, 0};
    float logits[2 * V];
    Step step = {.rows = 3,
                 .token = tokens,
                 .ad = ad,
                 .sets = sets,
                 .set_count = 2,
                 .samples = 2,
                 .last = last};
    fixture_step(&f, &step, logits);
    for (int v = 0; v < V; v++) {
        float with = base_y(2, 0) * head[v * O] + base_y(2, 1) * head[v * O + 1];
        float low = base_y(2, 0) * a[0] + base_y(2, 1) * a[1];
        float without = base_y(0, 0) * head[v * O] + base_y(0, 1) * head[v * O + 1];
        assert_true(logits[v] == fmaf(1, low * b[v], with));
        assert_true(logits[V + v] == without);
    }
    fixture_clear(&f);
}

static LgStatus step_with(Fixture *f, const AdapterSet *sets, int32_t count, LgError *err) {
    const int32_t zero[1] = {0}, one[1] = {1};
    Step step = {.rows = 1,
                 .token = zero,
                 .ad = one,
                 .sets = sets,
                 .set_count = count,
                 .samples = 1,
                 .last = zero};
    float logits[V];
    return eval_step(f->eval, &step, logits, err);
}

static void lora_refuses_slots_where_nothing_is(void **state) {
    (void)state;
    Fixture f;
    TestAdapter t;
    LgError err = {0};
    open_page(&f, (EvalOptions){0});
    adapter_make(&t, &f, 1, 1, false);
    int32_t slot = install(&f, &t);
    AdapterSet sets[2] = {{0}, {.count = 1, .use = {{slot, 1}}}};
    assert_int_equal(step_with(&f, sets, 2, &err), LG_OK);
    assert_int_equal(step_with(&f, sets, 1, &err), LG_BAD_INPUT); /* the row's set is not there */
    eval_adapter_remove(f.eval, slot);
    assert_int_equal(step_with(&f, sets, 2, &err), LG_BAD_INPUT);
    assert_non_null(strstr(err.message, "none is installed"));
    assert_int_equal(install(&f, &t), slot); /* a freed slot is used again */
    fixture_clear(&f);
}

static void lora_refuses_adapters_of_other_programs(void **state) {
    (void)state;
    Fixture f;
    TestAdapter t;
    LgError err = {0};
    int32_t slot;
    open_page(&f, (EvalOptions){0});
    adapter_make(&t, &f, 1, 1, true);
    assert_int_equal(eval_adapter_install(f.eval, &t.data, &slot, &err), LG_BAD_INPUT);
    assert_non_null(strstr(err.message, "rounded to f32"));
    t.data.store_f32 = false;
    t.data.site_count = 2;
    assert_int_equal(eval_adapter_install(f.eval, &t.data, &slot, &err), LG_BAD_INPUT);
    fixture_clear(&f);
}

static void lora_refuses_dora_in_company(void **state) {
    (void)state;
    Fixture f;
    TestAdapter t, plain;
    LgError err = {0};
    open_page(&f, (EvalOptions){0});
    adapter_make(&plain, &f, 1, 1, false);
    adapter_make(&t, &f, 1, 1, false);
    AdapterSite *s = &t.sites[site_of(&f, "w")];
    s->magnitude = s->dora_w2 = s->dora_wba = s->dora_ba2 = t.magnitude;
    int32_t dora = install(&f, &t), other = install(&f, &plain);
    const AdapterSet sets[2] = {{0}, {.count = 2, .use = {{dora, 1}, {other, 1}}}};
    assert_int_equal(step_with(&f, sets, 2, &err), LG_BAD_INPUT);
    assert_non_null(strstr(err.message, "DoRA"));
    fixture_clear(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lora_folds_one_adapter_into_its_rows_alone),
        cmocka_unit_test(lora_adds_a_set_in_order_and_rounds_once),
        cmocka_unit_test(lora_scales_rows_for_dora),
        cmocka_unit_test(lora_reaches_looked_up_rows),
        cmocka_unit_test(lora_follows_samples_to_their_rows),
        cmocka_unit_test(lora_refuses_slots_where_nothing_is),
        cmocka_unit_test(lora_refuses_adapters_of_other_programs),
        cmocka_unit_test(lora_refuses_dora_in_company),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
