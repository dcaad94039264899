/* Slots and routes of adapters: which rows go together, in what order, with whose numbers; what is
 * refused; what a failed allocation leaves. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/lora_cpu.h"
#include "base/mem.h"

#define IN 20
#define OUT 18
#define VOCAB 11
#define LAYERS 2
#define SITES 2 /* a product [OUT, IN] in each layer; a lookup [VOCAB, IN] outside */

#define EXPERTS 5
#define SLOTS 2
static LangDim dims[] = {{.size = OUT},     {.size = IN},    {.size = VOCAB},
                         {.size = EXPERTS}, {.size = SLOTS}, {.runtime = true}};
static LangTensor tensors[] = {
    {.rank = 2,
     .dims = {0, 1},
     .axis_count = 2,
     .axis_start = {0, 1, 2},
     .in_layer = true,
     .lora_site = 0},
    {.rank = 2, .dims = {2, 1}, .axis_count = 2, .axis_start = {0, 1, 2}, .lora_site = 1},
    {.rank = 3,
     .dims = {3, 0, 1},
     .axis_count = 3,
     .axis_start = {0, 1, 2, 3},
     .in_layer = true,
     .lora_site = 0},
    {.rank = 3, .dims = {5, 4, 0}, .axis_count = 3, .axis_start = {0, 1, 2, 3}, .in_layer = true},
};
static LangSite sites[] = {{.param = 0, .in_layer = true}, {.param = 1, .lookup = true}};
static LangSite expert_sites[] = {{.param = 2, .y = 3, .in_layer = true},
                                  {.param = 1, .lookup = true}};
static LangProgram program = {.layer_count = LAYERS,
                              .dims = dims,
                              .dim_count = 6,
                              .tensors = tensors,
                              .tensor_count = 4,
                              .sites = sites,
                              .site_count = SITES};

typedef struct Made {
    AdapterSite sites[LAYERS * SITES];
    AdapterData data;
    float numbers[64 * (VOCAB + IN + OUT)];
} Made;

/* Rank in every layer of the product; dora gives it a magnitude of 3 over norms that are 1 + s. */
static void make_adapter(Made *m, int32_t rank, bool dora) {
    static const float three[OUT] = {3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3};
    static const float one[OUT] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    memset(m, 0, sizeof *m);
    for (size_t i = 0; i < sizeof m->numbers / sizeof *m->numbers; i++)
        m->numbers[i] = 0.25f * (float)(i % 7);
    for (int layer = 0; layer < LAYERS; layer++) {
        AdapterSite *s = &m->sites[layer * SITES];
        *s = (AdapterSite){.rank = rank, .a = m->numbers, .b = m->numbers, .scale = 2};
        if (dora) {
            s->magnitude = three;
            s->dora_w2 = s->dora_wba = s->dora_ba2 = one;
        }
    }
    m->data = (AdapterData){.site_count = SITES, .layer_count = LAYERS, .sites = m->sites};
}

static LoraTables *make_tables(void) {
    LoraTablesOptions o = {
        .program = &program, .level = cpu_level_best(CPU_LEVELS_ALL), .threads = 2, .rows_max = 16};
    LoraTables *t = NULL;
    LgError err;
    assert_int_equal(lora_tables_create(&o, &t, &err), LG_OK);
    return t;
}

static const int32_t token[8] = {3, 1, 4, 1, 5, 9, 2, 6}, slot[8],
                     pos[8] = {0, 1, 2, 3, 4, 5, 6, 7};

static Step make_step(const int32_t *ad, const AdapterSet *sets, int32_t set_count,
                      const int32_t *last, int32_t samples) {
    return (Step){.rows = 8,
                  .token = token,
                  .slot = slot,
                  .pos = pos,
                  .ad = ad,
                  .sets = sets,
                  .set_count = set_count,
                  .last = last,
                  .samples = samples};
}

static void slots_are_reused_and_removal_is_idempotent(void **state) {
    (void)state;
    LoraTables *t = make_tables();
    Made a, b;
    int32_t first, second, third;
    make_adapter(&a, 4, false);
    make_adapter(&b, 5, false);
    assert_int_equal(lora_tables_install(t, &a.data, &first, NULL), LG_OK);
    assert_int_equal(lora_tables_install(t, &b.data, &second, NULL), LG_OK);
    assert_int_not_equal(first, second);
    lora_tables_remove(t, first);
    lora_tables_remove(t, first);
    lora_tables_remove(t, -1);
    lora_tables_remove(t, 1000);
    assert_false(lora_tables_live(t, first));
    assert_true(lora_tables_live(t, second));
    assert_int_equal(lora_tables_install(t, &b.data, &third, NULL), LG_OK);
    assert_int_equal(third, first);
    lora_tables_destroy(t);
}

/* A rank costs its own rows, filled up to a vector: nothing is padded to the largest rank. */
static void packed_memory_is_that_of_the_true_rank(void **state) {
    (void)state;
    LoraTables *t = make_tables();
    int32_t at;
    for (int32_t rank = 1; rank <= 33; rank += 8) {
        Made m;
        make_adapter(&m, rank, false);
        assert_int_equal(lora_tables_install(t, &m.data, &at, NULL), LG_OK);
        uint64_t a = (uint64_t)rank * 32 * 2,
                 b = (uint64_t)rank * 32 * 2; /* 20 and 18 to whole 16 */
        assert_true(lora_tables_bytes(t, at) >= LAYERS * (a + b));
        assert_true(lora_tables_bytes(t, at) <= LAYERS * (a + b + 2 * 64));
        lora_tables_remove(t, at);
    }
    lora_tables_destroy(t);
}

static void rows_go_in_groups_of_the_same_adapters_in_row_order(void **state) {
    (void)state;
    LoraTables *t = make_tables();
    Made a, b;
    int32_t sa, sb, rows[2];
    make_adapter(&a, 4, false);
    make_adapter(&b, 5, false);
    assert_int_equal(lora_tables_install(t, &a.data, &sa, NULL), LG_OK);
    assert_int_equal(lora_tables_install(t, &b.data, &sb, NULL), LG_OK);
    /* 1 and 4 differ in the request's scale alone; 2 and 3 in the order of two. */
    const AdapterSet sets[] = {{0},
                               {1, {{sb, 1}}},
                               {2, {{sa, 1}, {sb, 0.5f}}},
                               {2, {{sb, 1}, {sa, 1}}},
                               {1, {{sb, 0.25f}}}};
    const int32_t ad[8] = {1, 0, 2, 1, 3, 4, 2, 0}, last[3] = {7, 5, 3};
    Step step = make_step(ad, sets, 5, last, 3);
    assert_int_equal(lora_route_build(t, &step, rows, NULL), LG_OK);
    assert_int_equal(rows[0], 6);
    assert_int_equal(rows[1], 2);
    const LgpLoraRoute *r = lora_route(t, 0);
    assert_int_equal(r->group_count, 3);
    const int32_t order[] = {0, 3, 5, 2, 6, 4};
    for (int i = 0; i < 6; i++) {
        assert_int_equal(r->row[i], order[i]);
        assert_int_equal(r->token[i], token[order[i]]);
    }
    assert_int_equal(r->groups[0].count, 3);
    assert_int_equal(r->groups[1].members, 2);
    assert_float_equal(r->scale[2 * LGP_LORA_SET], 0.25, 0);
    assert_float_equal(r->scale[3 * LGP_LORA_SET + 1], 0.5, 0);
    assert_int_equal(r->groups[1].sites[0][0].a.rows, 4);
    assert_int_equal(r->groups[2].sites[0][0].a.rows, 5);
    /* The sampled rows have the adapters of the rows that they stand for. */
    const LgpLoraRoute *n = lora_route(t, 1);
    assert_int_equal(n->group_count, 1);
    assert_int_equal(n->row[0], 1);
    assert_int_equal(n->row[1], 2);
    assert_float_equal(n->scale[0], 0.25, 0);
    assert_int_equal(n->token[1], token[3]);
    lora_tables_destroy(t);
}

static void step_without_adapters_has_no_rows(void **state) {
    (void)state;
    LoraTables *t = make_tables();
    const AdapterSet sets[] = {{0}};
    const int32_t ad[8] = {0}, last[1] = {0};
    int32_t rows[2] = {9, 9};
    Step step = make_step(ad, sets, 1, last, 1);
    assert_int_equal(lora_route_build(t, &step, rows, NULL), LG_OK);
    assert_int_equal(rows[0] + rows[1], 0);
    step.ad = NULL;
    step.set_count = 0;
    assert_int_equal(lora_route_build(t, &step, rows, NULL), LG_OK);
    assert_int_equal(rows[0] + rows[1], 0);
    step.rows = 17;
    assert_int_equal(lora_route_build(t, &step, rows, NULL), LG_LIMIT);
    lora_tables_destroy(t);
}

/* n² = 1 + 2 s + s²: c = 3 / (1 + s). */
static void dora_gains_follow_the_scale_of_the_request(void **state) {
    (void)state;
    LoraTables *t = make_tables();
    Made a, b;
    int32_t sa, sb, rows[2];
    make_adapter(&a, 4, true);
    make_adapter(&b, 4, false);
    assert_int_equal(lora_tables_install(t, &a.data, &sa, NULL), LG_OK);
    assert_int_equal(lora_tables_install(t, &b.data, &sb, NULL), LG_OK);
    const AdapterSet sets[] = {
        {0}, {1, {{sa, 1}}}, {1, {{sa, 0.5f}}}, {1, {{sb, 1}}}, {2, {{sa, 1}, {sb, 1}}}};
    int32_t ad[8] = {1, 2, 3, 0, 1, 0, 0, 0};
    Step step = make_step(ad, sets, 5, NULL, 0);
    for (int again = 0; again < 2; again++) {
        assert_int_equal(lora_route_build(t, &step, rows, NULL), LG_OK);
        const LgpLoraRoute *r = lora_route(t, 0);
        assert_int_equal(r->group_count, 2);
        const float expected[] = {1.5f, 2.0f, 1.5f}; /* rows 0, 1, 4 */
        for (int i = 0; i < 3; i++)
            for (int layer = 0; layer < LAYERS; layer++)
                for (int o = 0; o < OUT; o++)
                    assert_float_equal(r->gain[i][layer * SITES][o], expected[i], 1e-6);
        assert_null(r->gain[0][1]); /* the lookup is not adapted */
        assert_null(r->gain[3]);
    }
    ad[5] = 4;
    LgError err;
    assert_int_equal(lora_route_build(t, &step, rows, &err), LG_BAD_INPUT);
    assert_non_null(strstr(err.message, "DoRA"));
    lora_tables_destroy(t);
}

/* Old scales make room; a step with more of them than are kept has them all. */
static void dora_serves_any_number_of_scales(void **state) {
    (void)state;
    LoraTables *t = make_tables();
    Made a;
    int32_t sa, rows[2];
    make_adapter(&a, 2, true);
    assert_int_equal(lora_tables_install(t, &a.data, &sa, NULL), LG_OK);
    AdapterSet sets[17] = {{0}};
    static const int32_t zeros[16] = {0};
    int32_t ad[16];
    for (int round = 0; round < 6; round++) {
        const int32_t count = round % 2 ? 16 : 5;
        for (int i = 0; i < 16; i++) {
            ad[i] = 1 + i % count;
            sets[1 + i] = (AdapterSet){1, {{sa, (float)(round * 7 + i)}}};
        }
        Step step = make_step(ad, sets, 17, NULL, 0);
        step.rows = 16;
        step.token = step.slot = step.pos = zeros;
        assert_int_equal(lora_route_build(t, &step, rows, NULL), LG_OK);
        const LgpLoraRoute *r = lora_route(t, 0);
        for (int i = 0; i < 16; i++)
            assert_float_equal(r->gain[i][0][0], 3 / (1 + sets[ad[r->row[i]]].use[0].scale), 1e-6);
    }
    lora_tables_destroy(t);
}

static void adapters_of_other_programs_are_refused(void **state) {
    (void)state;
    LoraTables *t = make_tables();
    Made a;
    int32_t at = -7;
    LgError err;
    make_adapter(&a, 2, false);
    a.data.site_count = 1;
    assert_int_equal(lora_tables_install(t, &a.data, &at, &err), LG_BAD_INPUT);
    a.data.site_count = SITES;
    a.data.layer_count = 1;
    assert_int_equal(lora_tables_install(t, &a.data, &at, &err), LG_BAD_INPUT);
    a.data.layer_count = LAYERS;
    a.data.store_f32 = true;
    assert_int_equal(lora_tables_install(t, &a.data, &at, &err), LG_BAD_INPUT);
    assert_non_null(strstr(err.message, "f32"));
    lora_tables_destroy(t);
    a.data.store_f32 = false;
    program.sites = expert_sites;
    t = make_tables();
    assert_int_equal(lora_tables_install(t, &a.data, &at, &err), LG_BAD_INPUT);
    assert_non_null(strstr(err.message, "experts"));
    lora_tables_destroy(t);
    program.sites = sites;
    assert_int_equal(at, -7);
}

static void resolution_is_on_record(void **state) {
    (void)state;
    LoraTables *t = make_tables();
    LgStr log = lora_tables_log(t);
    char *text = malloc(log.len + 1);
    memcpy(text, log.ptr, log.len);
    text[log.len] = 0;
    assert_non_null(strstr(text, "module lora_bgmv, kernel lora_bgmv_shrink: found"));
    assert_non_null(strstr(text, "module gemm_tc, kernel dense_gemm_tc: missing, not needed"));
    assert_non_null(strstr(text, "module moe_lora_gather_bgmv"));
    assert_non_null(lora_tables_kernels(t)->moe_down_shrink_k);
    assert_non_null(lora_tables_kernels(t)->moe_gather_expand_fold_k);
    assert_null(lora_tables_kernels(t)->gemm_tc_k);
    free(text);
    lora_tables_destroy(t);
}

/* Whichever allocation fails, the call says so and a later one is served. */
static void failed_allocations_are_reported(void **state) {
    (void)state;
    Made a;
    make_adapter(&a, 3, true);
    for (long n = 1; n < 100; n++) {
        LoraTablesOptions o = {
            .program = &program, .level = cpu_level_at(0), .threads = 1, .rows_max = 16};
        LoraTables *t = NULL;
        int32_t at = -1, rows[2];
        lg_alloc_fail_at(n, 0);
        LgStatus status = lora_tables_create(&o, &t, NULL);
        if (status == LG_OK)
            status = lora_tables_install(t, &a.data, &at, NULL);
        const AdapterSet sets[] = {{0}, {1, {{at, 1}}}};
        const int32_t ad[8] = {1, 1}, last[1] = {1};
        Step step = make_step(ad, sets, 2, last, 1);
        if (status == LG_OK)
            status = lora_route_build(t, &step, rows, NULL);
        lg_alloc_fail_at(0, 0);
        if (status == LG_OK) {
            assert_int_equal(rows[0], 2);
            lora_tables_destroy(t);
            assert_true(n > 10); /* every one of them was tried */
            return;
        }
        assert_int_equal(status, LG_NO_MEMORY);
        if (at >= 0)
            assert_int_equal(lora_route_build(t, &step, rows, NULL), LG_OK);
        lora_tables_destroy(t);
    }
    fail_msg("never served");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_are_reused_and_removal_is_idempotent),
        cmocka_unit_test(packed_memory_is_that_of_the_true_rank),
        cmocka_unit_test(rows_go_in_groups_of_the_same_adapters_in_row_order),
        cmocka_unit_test(step_without_adapters_has_no_rows),
        cmocka_unit_test(dora_gains_follow_the_scale_of_the_request),
        cmocka_unit_test(dora_serves_any_number_of_scales),
        cmocka_unit_test(adapters_of_other_programs_are_refused),
        cmocka_unit_test(resolution_is_on_record),
        cmocka_unit_test(failed_allocations_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
