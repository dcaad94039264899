/* The interpreter as a runner: the meaning of a program behind the interface that the engine
 * drives, for checks and for machines where nothing compiles. */
#include <stdio.h>
#include <string.h>

#include "backend/cpu/batch.h"
#include "backend/runner.h"
#include "base/hash.h"
#include "base/mem.h"
#include "ir/eval.h"
#include "stages/stages.h"

#define ROWS_MAX_DEFAULT 512
#define ADAPTERS_MAX 4096

typedef struct InterpRunner {
    Runner base;
    Arena arena; /* the plan */
    Eval *eval;
    KvMemory kv; /* of no bytes: the interpreter keeps states by sequence; only the steps' page
                    numbers are held to it */
    Batch batch;
    int32_t token_vocab;
    bool live[ADAPTERS_MAX];
} InterpRunner;

static LgStatus interp_kv_reserve(Runner *r, int32_t pages, LgError *err) {
    InterpRunner *i = (InterpRunner *)r;
    if (pages < 0)
        return lg_fail(err, LG_BAD_INPUT, 0, "%d KV pages asked for", pages);
    LG_TRY(kv_memory_reserve(&i->kv, pages, err));
    return batch_reserve(&i->batch, i->kv.count, err);
}

static bool adapter_live(const void *user, int32_t slot) {
    const InterpRunner *i = user;
    return slot >= 0 && slot < ADAPTERS_MAX && i->live[slot];
}

static LgStatus interp_step(Runner *r, const Step *step, float *logits, LgError *err) {
    InterpRunner *i = (InterpRunner *)r;
    if (step->rows == 0 && step->samples == 0)
        return LG_OK;
    BatchLimits limits = {
        .rows_max = r->rows_max, .vocab = i->token_vocab, .adapter_live = adapter_live, .user = i};
    LG_TRY(batch_prepare(&i->batch, step, &i->kv, &limits, err));
    return eval_step(i->eval, step, logits, err);
}

static LgStatus interp_adapter_install(Runner *r, const AdapterData *adapter, int32_t *slot,
                                       LgError *err) {
    InterpRunner *i = (InterpRunner *)r;
    int32_t got;
    LG_TRY(eval_adapter_install(i->eval, adapter, &got, err));
    if (got < 0 || got >= ADAPTERS_MAX) {
        eval_adapter_remove(i->eval, got);
        return lg_fail(err, LG_LIMIT, 0, "more than %d adapters are installed", ADAPTERS_MAX);
    }
    i->live[got] = true;
    *slot = got;
    return LG_OK;
}

static void interp_adapter_remove(Runner *r, int32_t slot) {
    InterpRunner *i = (InterpRunner *)r;
    if (!adapter_live(i, slot))
        return;
    i->live[slot] = false;
    eval_adapter_remove(i->eval, slot);
}

static void interp_close(Runner *r) {
    InterpRunner *i = (InterpRunner *)r;
    if (!i)
        return;
    eval_destroy(i->eval);
    kv_memory_clear(&i->kv);
    batch_clear(&i->batch);
    arena_clear(&i->arena);
    lg_free(i);
}

static const RunnerOps interp_ops = {.backend = "interp",
                                     .kv_reserve = interp_kv_reserve,
                                     .step = interp_step,
                                     .adapter_install = interp_adapter_install,
                                     .adapter_remove = interp_adapter_remove,
                                     .close = interp_close};

/* The plan says what the engine asks of a runner; none of it is executed. */
static LgStatus describe(InterpRunner *i, const RunnerOptions *o, LgError *err) {
    Plan *plan;
    PlanOptions po = {.backend = "interp", .store_f32 = o->store_f32};
    Runner *r = &i->base;
    LG_TRY(plan_build(o->program, &po, &i->arena, &plan, err));
    LG_TRY(batch_vocab(o->program, plan->output, &i->token_vocab, &r->vocab, err));
    int layers = o->program->layer_count > 0 ? o->program->layer_count : 1;
    char text[160];
    int n = snprintf(text, sizeof text, "%s interp", plan->digest);
    sha256_hex(text, (size_t)n, r->digest);
    r->ops = &interp_ops;
    r->provenance = plan->provenance;
    r->kv_page_bytes = plan->layer_page_bytes * (uint64_t)layers;
    r->rows_max = o->rows_max > 0 ? o->rows_max : ROWS_MAX_DEFAULT;
    r->level = "interpreter";
    return LG_OK;
}

LgStatus runner_open_interp(const RunnerOptions *o, Runner **out, LgError *err) {
    InterpRunner *i = lg_calloc(1, sizeof *i);
    if (!i)
        return lg_fail_memory(err);
    arena_init(&i->arena);
    EvalOptions eo = {.store_f32 = o->store_f32};
    LgStatus status = describe(i, o, err);
    if (status == LG_OK)
        status = batch_reserve(&i->batch, 0, err);
    if (status == LG_OK)
        status = eval_create(o->program, o->binding, eo, &i->eval, err);
    if (status == LG_OK)
        *out = &i->base;
    else
        interp_close(&i->base);
    return status;
}
