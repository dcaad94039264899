/* What a step of one token reads of a model with experts: pages that the processor has marked as
 * read since the marks were cleared. Of every layer's experts only those that the router chose may
 * have been touched. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "backend/cpu/runner_cpu.h"
#include "ir/plan_text.h"
#include "ir/stage.h"
#include "tests/e2e/random_model.h"

enum { LAYERS = 3, EXPERTS = 24, CHOSEN = 3, HIDDEN = 256, FFN = 512, VOCAB = 64 };

/* Bytes of the mapping around p that were read since clear_marks; false: this kernel does not say.
 */
static bool read_bytes(const void *p, uint64_t *bytes) {
    char line[512];
    bool inside = false, found = false;
    FILE *f = fopen("/proc/self/smaps", "r");
    if (!f)
        return false;
    while (!found && fgets(line, sizeof line, f)) {
        unsigned long long from, to, kb;
        if (sscanf(line, "%llx-%llx ", &from, &to) == 2)
            inside = (uintptr_t)p >= from && (uintptr_t)p < to;
        else if (inside && sscanf(line, "Referenced: %llu kB", &kb) == 1) {
            *bytes = (uint64_t)kb * 1024;
            found = true;
        }
    }
    fclose(f);
    return found;
}

static bool clear_marks(void) {
    FILE *f = fopen("/proc/self/clear_refs", "w");
    if (!f)
        return false;
    bool good = fputs("1", f) >= 0;
    return fclose(f) == 0 && good;
}

/* Sees where the weights lie, and what was chosen. */
typedef struct Look {
    const Plan *plan;
    int pick;
    const void *weights;
    int chosen; /* distinct (layer, expert) */
} Look;

static void look(const LgpStep *step, int32_t launch, int32_t layer) {
    Look *l = step->trace_user;
    const Launch *at = &l->plan->launches[launch];
    (void)layer;
    for (int s = 0; s < at->stage_count; s++)
        if (at->stages[s]->matmul && at->stages[s]->matmul->expert >= 0) {
            const PlanWeight *w = plan_weight(l->plan, at->stages[s]->matmul->w, WEIGHT_MATRIX);
            l->weights = step->weights[w->base].data;
        }
    for (int s = 0; s < at->stage_count; s++)
        if (at->stages[s]->op == STAGE_TOPK) {
            const PlanBuffer *b = plan_buffer(l->plan, at->stages[s]->stmt->targets[0].tensor);
            const int32_t *pick =
                (const int32_t *)(const void *)(step->arena +
                                                b->offset_row * (uint64_t)step->rows_max);
            for (int j = 0; j < CHOSEN; j++) {
                assert_true(pick[j] >= 0 && pick[j] < EXPERTS);
                for (int k = 0; k < j; k++)
                    assert_true(pick[j] != pick[k]);
                l->chosen++;
            }
        }
}

/* Packed bytes of the weights that a step reads whole, and of one expert. */
static uint64_t dense_bytes(const Plan *plan, uint64_t *expert) {
    uint64_t dense = 0;
    *expert = 0;
    for (int i = 0; i < plan->weight_count; i++) {
        const PlanWeight *w = &plan->weights[i];
        uint64_t panels = (w->rows / w->experts + LGP_PANEL - 1) / LGP_PANEL;
        uint64_t bytes = panels * lgp_panel_bytes(LGP_BF16, w->columns);
        if (w->use == WEIGHT_VECTOR)
            bytes = w->rows * w->columns * sizeof(float);
        if (w->use == WEIGHT_TABLE)
            bytes = 0; /* lies in the file */
        if (w->experts > 1)
            *expert += bytes;
        else
            dense += bytes * (uint64_t)(w->in_layer ? LAYERS : 1);
    }
    return dense;
}

static void decode_reads_the_chosen_experts_alone(void **state) {
    (void)state;
    static const RandomShape shape = {.page = "qwen3_moe.lg",
                                      .hidden = HIDDEN,
                                      .kv_heads = 1,
                                      .group = 2,
                                      .head_dim = 32,
                                      .ffn = FFN,
                                      .vocab = VOCAB,
                                      .layers = LAYERS,
                                      .dtype = DTYPE_BF16,
                                      .experts = EXPERTS,
                                      .chosen = CHOSEN};
    RandomModel m;
    LgError err = {0};
    Runner *r = NULL;
    uint64_t ignored = 0;
    if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0 || !clear_marks() ||
        !read_bytes(&shape, &ignored))
        skip(); /* no marks to read here */
    if (random_model_make(&shape, 3, &m, &err) != LG_OK)
        fail_msg("%s", err.message);
    RunnerOptions o = {.program = m.program,
                       .binding = m.binding,
                       .threads = 2,
                       .rows_max = 4,
                       .cache_dir = LG_TEST_CACHE};
    if (runner_open_cpu(&o, &r, &err) != LG_OK)
        fail_msg("%s", err.message);
    assert_int_equal(r->ops->kv_reserve(r, 1, &err), LG_OK);
    Look l = {.plan = runner_cpu_plan(r)};
    uint64_t expert, dense = dense_bytes(l.plan, &expert);
    runner_cpu_trace(r, look, &l);
    double worst = 0, whole = 0;
    for (int32_t pos = 0; pos < 6; pos++) {
        const int32_t token = pos * 7 % VOCAB, slot = 0, last = 0, page = 0;
        float logits[VOCAB];
        Step step = {.rows = 1,
                     .token = &token,
                     .slot = &slot,
                     .pos = &pos,
                     .samples = 1,
                     .last = &last,
                     .slot_count = 1,
                     .pages_per_slot = 1,
                     .pages = &page};
        l.chosen = 0;
        assert_true(clear_marks());
        if (r->ops->step(r, &step, logits, &err) != LG_OK)
            fail_msg("%s", err.message);
        uint64_t read = 0;
        assert_true(read_bytes(l.weights, &read));
        assert_int_equal(l.chosen, LAYERS * CHOSEN);
        double chosen = (double)(dense + expert * (uint64_t)l.chosen);
        worst = (double)read / chosen > worst ? (double)read / chosen : worst;
        whole = (double)(dense + expert * LAYERS * EXPERTS) / chosen;
    }
    print_message("a token's step touches %.3f of the chosen experts' and the dense weights' bytes "
                  "(all experts' would be %.2f)\n",
                  worst, whole);
    assert_true(worst > 0.9 && worst <= 1.1);
    r->ops->close(r);
    random_model_clear(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_reads_the_chosen_experts_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
