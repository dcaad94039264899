/* cuda_values MODEL...: a step of each checkpoint on the CPU and on CUDA, value by value behind
 * each launch: the first launches that differ by more than rounding explains, and the largest
 * difference of the logits. Values of a launch that stores bf16 may differ by what its inputs
 * differ. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/runner_cpu.h"
#include "backend/cuda/runner_cuda.h"
#include "base/float.h"
#include "emit/emit_cuda.h"
#include "ir/stage.h"
#include "tests/e2e/golden.h"

#define ROWS 21
#define SHOWN 12

typedef struct Seen {
    const Plan *plan;
    int launches;
    float **values; /* [layer + 1][launch]: the launch's targets, one after the other */
    int rows_max, shown, compared;
    float worst;
} Seen;

static size_t target_floats(const Plan *plan, int launch) {
    size_t n = 0;
    for (int k = 0; k < plan->launches[launch].stage_count; k++) {
        const LangStmt *s = plan->launches[launch].stages[k]->stmt;
        for (int t = 0; t < s->target_count; t++) {
            const PlanBuffer *b = plan_buffer(plan, s->targets[t].tensor);
            n += b ? b->row_elems * ROWS : 0;
        }
    }
    return n;
}

static void take_cpu(const LgpStep *step, int32_t launch, int32_t layer) {
    Seen *s = step->trace_user;
    const Plan *plan = s->plan;
    float *to = malloc(target_floats(plan, launch) * sizeof *to + 4);
    s->values[(layer + 1) * s->launches + launch] = to;
    for (int k = 0; k < plan->launches[launch].stage_count; k++) {
        const LangStmt *stmt = plan->launches[launch].stages[k]->stmt;
        for (int t = 0; t < stmt->target_count; t++) {
            const PlanBuffer *b = plan_buffer(plan, stmt->targets[t].tensor);
            if (!b)
                continue;
            memcpy(to, step->arena + b->offset_row * (uint64_t)step->rows_max,
                   b->row_elems * ROWS * sizeof *to);
            to += b->row_elems * ROWS;
        }
    }
}

static float value_of(const Plan *plan, int tensor, const unsigned char *at, size_t i) {
    float f;
    uint16_t h;
    if (!emit_cuda_bf16(plan, tensor)) {
        memcpy(&f, at + 4 * i, 4);
        return f;
    }
    memcpy(&h, at + 2 * i, 2);
    return bf16_to_float(h);
}

static void compare(void *user, int launch, int layer, const unsigned char *values) {
    Seen *s = user;
    const Plan *plan = s->plan;
    const Launch *l = &plan->launches[launch];
    const float *want = s->values[((l->in_layer ? layer : -1) + 1) * s->launches + launch];
    for (int k = 0; k < l->stage_count; k++) {
        const LangStmt *stmt = l->stages[k]->stmt;
        for (int t = 0; t < stmt->target_count; t++) {
            int tensor = stmt->targets[t].tensor;
            const PlanBuffer *b = plan_buffer(plan, tensor);
            const LangTensor *y = &plan->program->tensors[tensor];
            if (!b)
                continue;
            size_t rows = b->row_dim < 0 ? 1 : emit_cuda_domain(plan, launch) == 1 ? 1 : ROWS;
            const unsigned char *at = values + b->offset_row * (uint64_t)s->rows_max;
            float most = 0, size = 0;
            size_t where = 0;
            for (size_t i = 0; i < b->row_elems * rows && y->index_dim < 0; i++) {
                float d = fabsf(value_of(plan, tensor, at, i) - want[i]);
                size = fabsf(want[i]) > size ? fabsf(want[i]) : size;
                if (!(d <= most)) {
                    most = d;
                    where = i;
                }
            }
            want += b->row_elems * ROWS;
            s->compared++;
            float part = size > 0 ? most / size : most;
            s->worst = part > s->worst || part != part ? part : s->worst;
            if (!(part < 0.02f) && s->shown++ < SHOWN)
                printf("  layer %d, launch %s, %.*s: row %zu, element %zu differs by %g of %g\n",
                       layer, l->name, LG_STR_ARG(y->name), where / b->row_elems,
                       where % b->row_elems, (double)most, (double)size);
        }
    }
}

static int run_model(const char *path, bool store_f32) {
    GoldenModel m;
    Runner *cpu = NULL, *cuda = NULL;
    LgError err = {0};
    int32_t token[ROWS], slot[ROWS], pos[ROWS], pages[4] = {1, 0, 2, 3}, last[1] = {ROWS - 1};
    if (golden_model_open(path, &m, &err) != LG_OK) {
        printf("%s: %s\n", path, err.message);
        return 1;
    }
    RunnerOptions o = {.program = m.program,
                       .binding = m.binding,
                       .store_f32 = store_f32,
                       .keep_values = true,
                       .poison = true,
                       .rows_max = 32,
                       .cache_dir = "/tmp/lg-values"};
    if (runner_open_cpu(&o, &cpu, &err) != LG_OK || runner_open_cuda(&o, &cuda, &err) != LG_OK) {
        printf("FAIL %s: %s\n", path, err.message);
        return 1;
    }
    for (int i = 0; i < ROWS; i++) {
        token[i] = 3 + i * 7 % 90;
        slot[i] = i < 13 ? 0 : 1;
        pos[i] = i < 13 ? i : i - 13;
    }
    Step step = {.rows = ROWS,
                 .token = token,
                 .slot = slot,
                 .pos = pos,
                 .samples = 1,
                 .last = last,
                 .slot_count = 2,
                 .pages_per_slot = 2,
                 .pages = pages};
    const Plan *plan = runner_cuda_plan(cuda);
    Seen seen = {.plan = plan, .launches = plan->launch_count, .rows_max = 32};
    seen.values = calloc((size_t)plan->launch_count * (size_t)(plan->program->layer_count + 2),
                         sizeof *seen.values);
    float *a = malloc((size_t)cpu->vocab * 4), *b = malloc((size_t)cpu->vocab * 4),
          *g = malloc((size_t)cpu->vocab * 4);
    bool good = cpu->ops->kv_reserve(cpu, 4, &err) == LG_OK &&
                cuda->ops->kv_reserve(cuda, 4, &err) == LG_OK;
    runner_cpu_trace(cpu, take_cpu, &seen);
    runner_cuda_trace(cuda, compare, &seen);
    good = good && cpu->ops->step(cpu, &step, a, &err) == LG_OK &&
           cuda->ops->step(cuda, &step, b, &err) == LG_OK;
    runner_cuda_trace(cuda, NULL, NULL);
    good = good && cuda->ops->step(cuda, &step, g, &err) == LG_OK; /* as a graph */
    float most = 0, size = 0;
    for (int i = 0; good && i < cpu->vocab; i++) {
        float d = fabsf(a[i] - b[i]);
        most = d > most || d != d ? d : most;
        size = fabsf(a[i]) > size ? fabsf(a[i]) : size;
    }
    bool same = good && memcmp(b, g, (size_t)cpu->vocab * 4) == 0;
    if (!good)
        printf("FAIL %s: %s\n", path, err.message);
    else
        printf("%s %s %s: %d values compared, worst %.3g; logits differ by %.3g of %.3g; a graph "
               "gives %s\n",
               same && most <= 0.05f * size ? "ok  " : "FAIL", path, store_f32 ? "f32" : "bf16",
               seen.compared, (double)seen.worst, (double)most, (double)size,
               same ? "the same bits" : "OTHER BITS");
    cpu->ops->close(cpu);
    cuda->ops->close(cuda);
    golden_model_close(&m);
    return !(same && most <= 0.05f * size);
}

int main(int argc, char **argv) {
    int failed = 0;
    for (int i = 1; i < argc; i++) {
        failed += run_model(argv[i], true);
        failed += run_model(argv[i], false);
    }
    printf("%d failed\n", failed);
    return failed != 0;
}
