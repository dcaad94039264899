/* cuda_times MODEL ROWS CONTEXT [ADAPTER COUNT]: the time of a step of ROWS sequences that have
 * CONTEXT positions each (or, PROMPT for ROWS, of one prompt of CONTEXT positions), replayed as a
 * graph; then launch by launch, each alone on the device, with the bytes of weights that it reads.
 * ADAPTER: a PEFT folder, installed COUNT times, rows take them in turns. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/runner_cuda.h"
#include "base/clock.h"
#include "ir/stage.h"
#include "tests/e2e/golden.h"

#define STEPS 40
#define COPY_BYTES_A_SECOND 4.18e12

typedef struct Bench {
    Runner *runner;
    Step step;
    float *logits;
} Bench;

static double weight_bytes(const Plan *plan, const Launch *l) {
    double bytes = 0;
    for (int k = 0; k < l->stage_count; k++) {
        const StageMatmul *m = l->stages[k]->matmul;
        bytes += m ? (double)m->n * (double)m->k * 2 * (double)(m->expert >= 0 ? m->slots : 1) : 0;
    }
    (void)plan;
    return bytes;
}

static void fail(const LgError *err) {
    fprintf(stderr, "cuda_times: %s\n", err->message);
    exit(1);
}

static void print_launches(Bench *b, const Plan *plan) {
    LgError err;
    const LaunchTime *t;
    for (int i = 0; i < 3; i++)
        if (b->runner->ops->step(b->runner, &b->step, b->logits, &err) != LG_OK)
            fail(&err);
    b->runner->ops->launch_times_clear(b->runner);
    for (int i = 0; i < 5; i++)
        if (b->runner->ops->step(b->runner, &b->step, b->logits, &err) != LG_OK)
            fail(&err);
    int count = b->runner->ops->launch_times(b->runner, &t);
    double all = 0;
    printf("%-48s %6s %9s %9s %7s\n", "launch", "calls", "us each", "MB each", "floor");
    for (int k = 0; k < count; k++) {
        double us = t[k].seconds / (double)t[k].calls * 1e6;
        double bytes = weight_bytes(plan, &plan->launches[k]);
        all += t[k].seconds / 5;
        printf("%-48s %6llu %9.2f %9.2f %7.2f\n", t[k].name, (unsigned long long)t[k].calls / 5, us,
               bytes * 1e-6, bytes / COPY_BYTES_A_SECOND / us * 1e6);
    }
    printf("launches one by one: %.3f ms\n", all * 1e3);
}

int main(int argc, char **argv) {
    GoldenModel m;
    LgError err = {0};
    Bench b = {0};
    if (argc < 4) {
        fprintf(stderr, "use: cuda_times MODEL ROWS|prompt CONTEXT [ADAPTER COUNT]\n");
        return 2;
    }
    const bool prompt = strcmp(argv[2], "prompt") == 0;
    const int context = atoi(argv[3]), rows = prompt ? context : atoi(argv[2]);
    const int slots = prompt ? 1 : rows, per_slot = (context + 64) / 64 + 1;
    if (golden_model_open(argv[1], &m, &err) != LG_OK)
        fail(&err);
    int32_t *numbers = calloc((size_t)rows * 5 + (size_t)slots * (size_t)per_slot, sizeof *numbers);
    int32_t *token = numbers, *slot = token + rows, *pos = slot + rows, *last = pos + rows,
            *ad = last + rows, *pages = ad + rows;
    for (int i = 0; i < rows; i++) {
        token[i] = 5 + i * 31 % 400;
        slot[i] = prompt ? 0 : i;
        pos[i] = prompt ? i : context;
        last[i] = i;
    }
    for (int i = 0; i < slots * per_slot; i++)
        pages[i] = i;
    AdapterSet sets[65] = {0};
    b.step = (Step){.rows = rows,
                    .token = token,
                    .slot = slot,
                    .pos = pos,
                    .samples = prompt ? 1 : rows,
                    .last = last,
                    .slot_count = slots,
                    .pages_per_slot = per_slot,
                    .pages = pages};
    for (int profile = 0; profile < 2; profile++) {
        RunnerOptions o = {.program = m.program,
                           .binding = m.binding,
                           .rows_max = rows < 64 ? 64 : rows,
                           .profile = profile,
                           .cache_dir = "/tmp/lg-times"};
        double from = clock_seconds();
        if (runner_open_cuda(&o, &b.runner, &err) != LG_OK)
            fail(&err);
        double opened = clock_seconds() - from;
        Runner *r = b.runner;
        if (r->ops->kv_reserve(r, slots * per_slot, &err) != LG_OK)
            fail(&err);
        b.logits = realloc(b.logits, (size_t)b.step.samples * (size_t)r->vocab * sizeof(float));
        Adapter *adapter = NULL;
        if (argc > 5) {
            AdapterOptions ao = {.program = m.program, .binding = m.binding};
            int count = atoi(argv[5]);
            if (adapter_load("a", argv[4], &ao, &adapter, &err) != LG_OK)
                fail(&err);
            for (int i = 0; i < count; i++) {
                sets[i + 1] = (AdapterSet){.count = 1, .use = {{.scale = 1}}};
                if (r->ops->adapter_install(r, adapter_data(adapter), &sets[i + 1].use[0].slot,
                                            &err) != LG_OK)
                    fail(&err);
            }
            for (int i = 0; i < rows; i++)
                ad[i] = 1 + i % count;
            b.step.ad = ad;
            b.step.sets = sets;
            b.step.set_count = count + 1;
        }
        if (profile) {
            print_launches(&b, runner_cuda_plan(r));
        } else {
            for (int i = 0; i < 5; i++)
                if (r->ops->step(r, &b.step, b.logits, &err) != LG_OK)
                    fail(&err);
            from = clock_seconds();
            int steps = prompt ? 3 : STEPS;
            for (int i = 0; i < steps; i++)
                if (r->ops->step(r, &b.step, b.logits, &err) != LG_OK)
                    fail(&err);
            printf("%s, %d rows, context %d%s: %.3f ms a step; opened in %.2f s (compiled in %.2f "
                   "s)\n",
                   argv[1], rows, context, argc > 5 ? ", adapters" : "",
                   (clock_seconds() - from) / steps * 1e3, opened, r->compile_s);
        }
        adapter_destroy(adapter);
        r->ops->close(r);
    }
    golden_model_close(&m);
    free(numbers);
    free(b.logits);
    return 0;
}
