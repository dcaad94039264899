/* The CPU runner: a plan, its compiled program, packed weights, and the memory that steps run in.
 */
#include "backend/cpu/runner_cpu.h"

#include <stdio.h>
#include <string.h>

#include "backend/cpu/batch.h"
#include "backend/cpu/kv.h"
#include "backend/cpu/lora_cpu.h"
#include "backend/cpu/profile.h"
#include "backend/cpu/program.h"
#include "backend/cpu/team.h"
#include "backend/cpu/weights.h"
#include "base/hash.h"
#include "base/mem.h"
#include "stages/stages.h"

#define ROWS_MAX_DEFAULT 512
#define ROWS_MAX_LIMIT 65536
#define POSITIONS_MIN 4096 /* scratch is made for so many positions at least */

typedef struct CpuRunner {
    Runner base;
    Arena arena; /* the plan, and the weight table */
    Plan *plan;
    Team *team;
    Program program;
    WeightMemory weights;
    KvMemory kv;
    Batch batch;
    LoraTables *adapters; /* NULL until the first is installed */
    int32_t token_vocab;
    unsigned char *activations;
    int32_t *sorted;
    float *scratch;
    int64_t scratch_floats; /* a thread */
    int32_t scratch_positions;
    bool store_f32;
    bool profiling;
    Profile profile;
    LgpStep step;
} CpuRunner;

/* ---- memory ---- */

/* Scratch for sequences of so many positions. */
static LgStatus reserve_scratch(CpuRunner *c, int32_t positions, LgError *err) {
    if (positions <= c->scratch_positions)
        return LG_OK;
    if (positions < INT32_MAX / 2 && c->scratch_positions && positions < 2 * c->scratch_positions)
        positions = 2 * c->scratch_positions;
    /* Threads do not share cache lines. */
    int64_t floats = (c->program.scratch_floats(positions) + 15) / 16 * 16;
    float *scratch =
        lg_alloc_aligned((size_t)floats * sizeof(float) * (size_t)team_thread_count(c->team) + 64);
    if (!scratch)
        return lg_fail_memory(err);
    if (c->kv.poison)
        memset(scratch, 0xff, (size_t)floats * sizeof(float) * (size_t)team_thread_count(c->team));
    lg_free_aligned(c->scratch);
    c->scratch = scratch;
    c->scratch_floats = floats;
    c->scratch_positions = positions;
    return LG_OK;
}

static LgStatus cpu_kv_reserve(Runner *r, int32_t pages, LgError *err) {
    CpuRunner *c = (CpuRunner *)r;
    if (pages < 0)
        return lg_fail(err, LG_BAD_INPUT, 0, "%d KV pages asked for", pages);
    LG_TRY(kv_memory_reserve(&c->kv, pages, err));
    LG_TRY(batch_reserve(&c->batch, c->kv.count, err));
    int64_t positions = (int64_t)c->kv.count * KV_PAGE_POSITIONS;
    return reserve_scratch(c, positions < INT32_MAX ? (int32_t)positions : INT32_MAX, err);
}

static LgStatus reserve_sorted(CpuRunner *c, LgError *err) {
    const Plan *plan = c->plan;
    if (plan->sort_experts == 0)
        return LG_OK;
    uint64_t rows = (uint64_t)c->base.rows_max;
    if (plan->sort_slots > INT32_MAX / rows)
        return lg_fail(err, LG_LIMIT, 0, "steps of %d rows have more choices of experts than 2^31",
                       c->base.rows_max);
    c->sorted = lg_alloc_array((size_t)(plan->sort_experts + 1 + plan->sort_slots * rows),
                               sizeof *c->sorted);
    return c->sorted ? LG_OK : lg_fail_memory(err);
}

static LgStatus reserve_activations(CpuRunner *c, LgError *err) {
    uint64_t rows = (uint64_t)c->base.rows_max;
    if (c->plan->arena_row_bytes > SIZE_MAX / 2 / rows)
        return lg_fail(err, LG_LIMIT, 0, "steps of %d rows need more memory than can be addressed",
                       c->base.rows_max);
    size_t bytes = (size_t)(c->plan->arena_row_bytes * rows);
    c->activations = lg_alloc_aligned(bytes + 64);
    if (!c->activations)
        return lg_fail(err, LG_NO_MEMORY, 0,
                       "no memory for the values of a step of %d rows (%.1f MB); fewer rows may do",
                       c->base.rows_max, (double)bytes * 1e-6);
    if (c->kv.poison)
        memset(c->activations, 0xff, bytes);
    return LG_OK;
}

/* ---- a step ---- */

static void run_thread(void *user, int32_t thread) {
    CpuRunner *c = user;
    c->program.step(&c->step, thread);
}

static bool adapter_live(const void *user, int32_t slot) {
    const CpuRunner *c = user;
    return c->adapters && lora_tables_live(c->adapters, slot);
}

static LgStatus cpu_step(Runner *r, const Step *step, float *logits, LgError *err) {
    CpuRunner *c = (CpuRunner *)r;
    if (step->rows == 0 && step->samples == 0)
        return LG_OK;
    BatchLimits limits = {
        .rows_max = r->rows_max, .vocab = c->token_vocab, .adapter_live = adapter_live, .user = c};
    LG_TRY(batch_prepare(&c->batch, step, &c->kv, &limits, err));
    LG_TRY(reserve_scratch(c, c->batch.positions, err));
    LgpStep *s = &c->step;
    s->rows = step->rows;
    s->samples = step->samples;
    s->token = step->token;
    s->slot = step->slot;
    s->pos = step->pos;
    s->last = step->last;
    s->pages = c->batch.pages;
    s->pages_per_slot = step->pages_per_slot;
    s->out = logits;
    s->scratch = c->scratch;
    s->scratch_floats = c->scratch_floats;
    if (c->adapters)
        LG_TRY(lora_route_build(c->adapters, step, s->lora_rows, err));
    for (int32_t d = 0; c->adapters && d < 2; d++)
        s->replaced[d] = lora_route(c->adapters, d)->replaced;
    if (c->profiling)
        profile_begin(&c->profile);
    team_run(c->team, run_thread, c);
    return LG_OK;
}

/* ---- adapters ---- */

/* Kernels of the program's level, whatever this processor could do. */
static LgStatus open_adapters(CpuRunner *c, LgError *err) {
    LoraTablesOptions o = {.program = c->plan->program,
                           .plan = c->plan,
                           .store_f32 = c->store_f32,
                           .level = cpu_level_find(c->program.info->level),
                           .threads = team_thread_count(c->team),
                           .rows_max = c->base.rows_max};
    if (!o.level || !o.level->kernels)
        return lg_fail(err, LG_DEVICE, 0, "no adapter kernels for CPU level \"%s\"",
                       c->program.info->level);
    LG_TRY(lora_tables_create(&o, &c->adapters, err));
    c->step.lora = lora_cpu_call;
    c->step.lora_tables = c->adapters;
    return LG_OK;
}

static LgStatus cpu_adapter_install(Runner *r, const AdapterData *adapter, int32_t *slot,
                                    LgError *err) {
    CpuRunner *c = (CpuRunner *)r;
    if (!c->adapters)
        LG_TRY(open_adapters(c, err));
    return lora_tables_install(c->adapters, adapter, slot, err);
}

static void cpu_adapter_remove(Runner *r, int32_t slot) {
    CpuRunner *c = (CpuRunner *)r;
    if (c->adapters)
        lora_tables_remove(c->adapters, slot);
}

static uint64_t cpu_adapter_bytes(const Runner *r, int32_t slot) {
    const CpuRunner *c = (const CpuRunner *)r;
    return c->adapters ? lora_tables_bytes(c->adapters, slot) : 0;
}

/* ---- profile, trace ---- */

static int cpu_launch_times(Runner *r, const LaunchTime **times) {
    CpuRunner *c = (CpuRunner *)r;
    *times = c->profile.times;
    return c->profiling ? c->profile.count : 0;
}

static void cpu_launch_times_clear(Runner *r) {
    profile_clear(&((CpuRunner *)r)->profile);
}

void runner_cpu_trace(Runner *r, CpuTrace trace, void *user) {
    CpuRunner *c = (CpuRunner *)r;
    c->step.trace = trace;
    c->step.trace_user = user;
}

const Plan *runner_cpu_plan(const Runner *r) {
    return ((const CpuRunner *)r)->plan;
}

/* ---- open, close ---- */

static void cpu_close(Runner *r) {
    CpuRunner *c = (CpuRunner *)r;
    if (!c)
        return;
    team_destroy(c->team);
    program_close(&c->program);
    weights_clear(&c->weights);
    kv_memory_clear(&c->kv);
    batch_clear(&c->batch);
    lora_tables_destroy(c->adapters);
    lg_free_aligned(c->activations);
    lg_free(c->sorted);
    lg_free_aligned(c->scratch);
    arena_clear(&c->arena);
    lg_free(c);
}

static const RunnerOps cpu_ops = {.backend = "cpu",
                                  .kv_reserve = cpu_kv_reserve,
                                  .step = cpu_step,
                                  .adapter_install = cpu_adapter_install,
                                  .adapter_remove = cpu_adapter_remove,
                                  .adapter_bytes = cpu_adapter_bytes,
                                  .adapter_copied = true,
                                  .close = cpu_close,
                                  .launch_times = cpu_launch_times,
                                  .launch_times_clear = cpu_launch_times_clear};

static LgStatus make_plan(CpuRunner *c, const RunnerOptions *o, LgError *err) {
    PlanOptions po = {.backend = "cpu",
                      .store_f32 = o->store_f32,
                      .keep_values = o->keep_values,
                      .no_fuse = o->no_fuse};
    LG_TRY(plan_build(o->program, &po, &c->arena, &c->plan, err));
    return batch_vocab(c->plan->program, c->plan->output, &c->token_vocab, &c->base.vocab, err);
}

/* A level that was asked for and cannot run is an error, never another level. */
static LgStatus take_level(const RunnerOptions *o, const char **level, LgError *err) {
    *level = o->level ? o->level : level_best();
    const char *missing = level_missing(*level);
    if (missing)
        return lg_fail(err, LG_BAD_INPUT, 0, "CPU level \"%s\": %s; the best level here is %s",
                       *level, missing, level_best());
    return LG_OK;
}

static LgStatus get_program(CpuRunner *c, const RunnerOptions *o, LgError *err) {
    ProgramRequest request = {.plan = c->plan,
                              .level = o->level,
                              .cache_dir = o->cache_dir,
                              .compiler = o->compiler,
                              .require_cache = o->require_cache,
                              .formats = c->weights.formats};
    if (o->program_file)
        return program_load(&request, o->program_file, &c->program, err);
    LG_TRY(take_level(o, &request.level, err));
    return program_get(&request, &c->program, err);
}

static void describe(CpuRunner *c) {
    Runner *r = &c->base;
    r->ops = &cpu_ops;
    r->provenance = c->plan->provenance;
    r->level = c->program.info->level;
    r->compile_s = c->program.compile_s;
    r->note = c->program.note[0] ? c->program.note : NULL;
    r->kv_page_bytes = c->kv.page_bytes;
    memcpy(r->digest, c->plan->digest, sizeof r->digest);
}

static LgStatus prepare_step(CpuRunner *c, const RunnerOptions *o, LgError *err) {
    c->step = (LgpStep){.abi = LGP_ABI,
                        .thread_count = team_thread_count(c->team),
                        .rows_max = c->base.rows_max,
                        .weights = c->weights.table,
                        .arena = c->activations,
                        .sorted = c->sorted,
                        .team = c->team,
                        .claim = team_claim,
                        .barrier = team_barrier};
    if (!o->profile)
        return LG_OK;
    LG_TRY(profile_init(&c->profile, c->plan, &c->arena, err));
    c->profiling = true;
    c->step.trace = profile_trace;
    c->step.trace_user = &c->profile;
    return LG_OK;
}

static LgStatus open_parts(CpuRunner *c, const RunnerOptions *o, LgError *err) {
    int32_t rows = o->rows_max ? o->rows_max : ROWS_MAX_DEFAULT;
    if (rows < 1 || rows > ROWS_MAX_LIMIT)
        return lg_fail(err, LG_LIMIT, 0, "steps of up to %d rows: 1 to %d are possible", rows,
                       ROWS_MAX_LIMIT);
    c->base.rows_max = rows;
    c->store_f32 = o->store_f32;
    LG_TRY(make_plan(c, o, err));
    LG_TRY(team_create(o->threads, &c->team, err));
    LG_TRY(weights_load(c->plan, o->binding, c->team, &c->arena, &c->weights, err));
    LG_TRY(get_program(c, o, err)); /* its products are those of the weights' formats */
    int layers = o->program->layer_count > 0 ? o->program->layer_count : 1;
    c->kv.page_bytes = c->plan->layer_page_bytes * (uint64_t)layers;
    c->kv.poison = o->poison;
    LG_TRY(reserve_activations(c, err));
    LG_TRY(reserve_sorted(c, err));
    LG_TRY(batch_reserve(&c->batch, 0, err));
    LG_TRY(reserve_scratch(c, POSITIONS_MIN, err));
    LG_TRY(prepare_step(c, o, err));
    describe(c);
    return LG_OK;
}

LgStatus runner_open_cpu(const RunnerOptions *o, Runner **out, LgError *err) {
    CpuRunner *c = lg_calloc(1, sizeof *c);
    if (!c)
        return lg_fail_memory(err);
    arena_init(&c->arena);
    LgStatus status = open_parts(c, o, err);
    if (status == LG_OK)
        *out = &c->base;
    else
        cpu_close(&c->base);
    return status;
}

LgStatus runner_compile_cpu(const RunnerOptions *o, const char *out_path, LgError *err) {
    Arena arena;
    arena_init(&arena);
    Plan *plan;
    PlanOptions po = {.backend = "cpu",
                      .store_f32 = o->store_f32,
                      .keep_values = o->keep_values,
                      .no_fuse = o->no_fuse};
    LgStatus status = plan_build(o->program, &po, &arena, &plan, err);
    if (status == LG_OK) {
        /* Any level may be compiled here; whether it runs is seen where it is loaded. */
        ProgramRequest request = {
            .plan = plan, .level = o->level ? o->level : level_best(), .compiler = o->compiler};
        status = program_write(&request, out_path, err);
    }
    arena_clear(&arena);
    return status;
}
