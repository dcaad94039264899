/* A check that never failed proves nothing: wrong pages, wrong adapters and swapped weights must be
 * seen by the goldens, with f32 stores by the logits and with bf16 stores by the ids. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>

#include "tests/e2e/golden.h"

#define TINY LG_TEST_DATA "/tiny"
#define MADE LG_TEST_DATA "/made"
#define QWEN3 "tiny-qwen3"
#define F32_LIMIT 2e-3
#define SURE_MARGIN 0.5

static const GoldenCase base = {.name = "mutant",
                                .model = TINY "/models/" QWEN3,
                                .goldens = TINY "/goldens/" QWEN3 "/base",
                                .prompts = TINY "/goldens/prompts.json",
                                .only = {"p64", "pchat"},
                                .quiet = true,
                                .last_limit = F32_LIMIT,
                                .sure_margin = SURE_MARGIN};

static GoldenCount run(const GoldenModel *m, const GoldenCase *c, bool store_f32) {
    LgError err = {0};
    Runner *r = NULL;
    Adapter *adapter = NULL;
    int32_t slot = -1;
    GoldenCount count = {0};
    const RunnerOptions o = {.program = m->program, .binding = m->binding, .store_f32 = store_f32};
    LgStatus status = runner_open_interp(&o, &r, &err);
    if (status == LG_OK && c->adapter) {
        const AdapterOptions ao = {
            .program = m->program, .binding = m->binding, .store_f32 = store_f32};
        status = adapter_load("a", c->adapter, &ao, &adapter, &err);
        if (status == LG_OK)
            status = r->ops->adapter_install(r, adapter_data(adapter), &slot, &err);
    }
    if (status == LG_OK)
        status = golden_run(c, r, slot, store_f32, 64, &count, &err);
    if (r)
        r->ops->close(r);
    adapter_destroy(adapter);
    if (status != LG_OK)
        fail_msg("%s", err.message);
    return count;
}

static void must_be_seen(const GoldenModel *m, const GoldenCase *c, const char *what) {
    GoldenCount f32 = run(m, c, true), bf16 = run(m, c, false);
    if (f32.last_diff <= F32_LIMIT)
        fail_msg("%s: f32 logits are within %g", what, f32.last_diff);
    if (bf16.sure_agree == bf16.sure)
        fail_msg("%s: all %d ids of wide margin agree", what, bf16.sure);
}

static void open_model(GoldenModel *m, const char *find, const char *put) {
    LgError err = {0};
    if (golden_model_open_mutant(base.model, find, put, m, &err) != LG_OK)
        fail_msg("%s", err.message);
}

static void goldens_hold_the_right_page(void **state) {
    (void)state;
    GoldenModel m;
    open_model(&m, NULL, NULL);
    GoldenCount f32 = run(&m, &base, true), bf16 = run(&m, &base, false);
    assert_true(f32.last_diff <= F32_LIMIT && f32.sure_agree == f32.sure);
    assert_int_equal(bf16.sure_agree, bf16.sure);
    golden_model_close(&m);
}

static void goldens_see_a_wrong_page(void **state) {
    (void)state;
    static const char *const mutants[][2] = {
        {"- qn[t,g,m,1,r] * sin(phi[t,r])", "+ qn[t,g,m,1,r] * sin(phi[t,r])"},
        {"+ kn[t,g,0,r]", "+ kn[t,g,1,r]"},
        {"pos[t] * rope_theta ^ (-r / R)", "pos[t] * rope_theta ^ (-r / D)"},
        {"silu(fg[t,f]) * fu[t,f]", "silu(fu[t,f]) * fg[t,f]"},
        {"* rsqrt(D)", "* rsqrt(R)"},
        {"gf[i] * x[t,i] * rsqrt((mean j: x[t,j]^2)", "gf[i] * x[t,i] * rsqrt((sum j: x[t,j]^2)"},
    };
    for (size_t i = 0; i < sizeof mutants / sizeof mutants[0]; i++) {
        GoldenModel m;
        LgError err = {0};
        if (golden_model_open_mutant(base.model, mutants[i][0], mutants[i][1], &m, &err) != LG_OK)
            fail_msg("%s", err.message);
        must_be_seen(&m, &base, mutants[i][1]);
        golden_model_close(&m);
    }
}

static void goldens_see_a_wrong_adapter(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {TINY "/goldens/" QWEN3 "/en-r8-all", TINY "/adapters/" QWEN3 "/cpp-r16-rslora"},
        {TINY "/goldens/" QWEN3 "/cpp-r16-rslora", NULL},
        {TINY "/goldens/" QWEN3 "/base", TINY "/adapters/" QWEN3 "/json-r4-qv"},
    };
    GoldenModel m;
    open_model(&m, NULL, NULL);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        GoldenCase c = base;
        c.goldens = pairs[i][0];
        c.adapter = pairs[i][1];
        must_be_seen(&m, &c, pairs[i][0]);
    }
    golden_model_close(&m);
}

/* One matrix of two layers changes places; the binding's arrays lie in the model's own arena. */
static void goldens_see_swapped_weights(void **state) {
    (void)state;
    static const char *const params[] = {"wq", "wv", "wd"};
    for (size_t k = 0; k < sizeof params / sizeof params[0]; k++) {
        GoldenModel m;
        open_model(&m, NULL, NULL);
        int id = 0;
        while (!lg_str_eq_c(m.program->tensors[id].name, params[k]))
            id++;
        ParamBinding *one = (ParamBinding *)(uintptr_t)binding_get(m.binding, id, 1);
        ParamBinding *two = (ParamBinding *)(uintptr_t)binding_get(m.binding, id, 2);
        ParamBinding kept = *one;
        *one = *two;
        *two = kept;
        must_be_seen(&m, &base, params[k]);
        golden_model_close(&m);
    }
}

/* What is of one architecture alone: windows, kinds of layers, norms, caps, scalings. */
typedef struct PageMutant {
    const char *model, *find, *put;
} PageMutant;

static const PageMutant page_mutants[] = {
    {"mistral", "sliding_window or S", "sliding_window + 1"},
    {"mistral", "sliding_window or S", "sliding_window - 1"},
    {"qwen2-window", "if local[l] == 1 then sliding_window",
     "if local[l] == 0 then sliding_window"},
    {"qwen2-window", ":= v[t,g,d]", ":= v[t,g,d] - bv[g,d]"},
    {"gemma3", "if local[l] == 1 then rope_local", "if local[l] == 0 then rope_local"},
    {"gemma3", "then 1 else rope_scaling.factor or 1", "then 2 else rope_scaling.factor or 1"},
    {"gemma3", "if local[l] == 1 then sliding_window", "if local[l] == 0 then sliding_window"},
    {"gemma3", "(1 + gp[i])", "gp[i]"},
    {"gemma3", "* sqrt(E)", "* sqrt(F)"},
    {"gemma3", "rsqrt(span)", "rsqrt(span + 1)"},
    {"gemma3", "gelu_tanh(fg[t,f])", "silu(fg[t,f])"},
    {"gemma3", "z[n,v] / final_logit_softcapping", "z[n,v] / (1 + final_logit_softcapping)"},
    {"gemma2", "* tanh((sum c,r:", "* tanh(2 * (sum c,r:"},
    {"gemma2", "if local[l] == 1 then sliding_window", "if local[l] == 0 then sliding_window"},
    {"llama-linear", "freq[r] / factor", "freq[r]"},
    {"llama-yarn", "temper ^ 2", "temper"},
    {"llama-yarn", "(end - r) / (end - first)", "(end - r) / (end - first + 1)"},
    {"phi3", "- (1 - second[d])", "+ (1 - second[d])"},
    {"phi3", "max(2 * R - d, 0)", "max(2 * R + 2 - d, 0)"},
    {"phi3", "silu(fg[t,f]) * fu[t,f]", "silu(fu[t,f]) * fg[t,f]"},
    {"olmo2", "mean h,u,a,b: q[t,h,u,a,b]^2", "mean a,b: q[t,g,m,a,b]^2"},
    {"olmo2", "(mean j: fd[t,j]^2)", "(mean j: ao[t,j]^2)"},
};

static void goldens_see_what_is_of_one_architecture(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof page_mutants / sizeof page_mutants[0]; i++) {
        const PageMutant *x = &page_mutants[i];
        char model[600], goldens[600];
        snprintf(model, sizeof model, MADE "/models/%s", x->model);
        snprintf(goldens, sizeof goldens, MADE "/goldens/%s/base", x->model);
        const GoldenCase c = {.name = "mutant",
                              .model = model,
                              .goldens = goldens,
                              .prompts = MADE "/goldens/prompts.json",
                              .only = {"p100"},
                              .quiet = true,
                              .last_limit = F32_LIMIT,
                              .sure_margin = SURE_MARGIN};
        for (int wrong = 0; wrong < 2; wrong++) {
            GoldenModel m;
            LgError err = {0};
            if (golden_model_open_mutant(model, wrong ? x->find : NULL, x->put, &m, &err) != LG_OK)
                fail_msg("%s: %s", x->model, err.message);
            GoldenCount n = run(&m, &c, true);
            if ((n.last_diff > F32_LIMIT) != (wrong == 1))
                fail_msg("%s, %s: last logits are off by %g", x->model, wrong ? x->put : "right",
                         n.last_diff);
            golden_model_close(&m);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goldens_hold_the_right_page),
        cmocka_unit_test(goldens_see_a_wrong_page),
        cmocka_unit_test(goldens_see_what_is_of_one_architecture),
        cmocka_unit_test(goldens_see_a_wrong_adapter),
        cmocka_unit_test(goldens_see_swapped_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
