/* The CUDA runner: a plan, its compiled program, weights, values, KV pages and adapters on one
 * device. A step is copied up, its launches are replayed as a graph, its logits are copied down. */
#include "backend/cuda/runner_cuda.h"

#include <string.h>

#include "backend/cpu/batch.h"
#include "backend/cuda/adapters.h"
#include "backend/cuda/modules.h"
#include "backend/cuda/weights.h"
#include "backend/runner.h"
#include "base/clock.h"
#include "base/mem.h"
#include "emit/emit_cuda.h"
#include "ir/stage.h"
#include "kernels/cuda/common/step_abi.h"
#include "stages/stages.h"

#define ROWS_MAX_DEFAULT 512
#define ROWS_MAX_LIMIT 65536
#define GRAPHS_KEPT 64 /* shapes of steps */

/* The launches of one shape of steps. */
typedef struct StepGraph {
    int bucket, samples;
    bool adapted;
    uint64_t generation;
    CudaGraph graph;
} StepGraph;

typedef struct CudaRunner {
    Runner base;
    Arena arena; /* the plan */
    Plan *plan;
    CudaDevice *device;
    CudaRegistry *registry;
    void *stream, *module;
    void **kernels; /* [launch][CUDA_KERNELS]; NULL: there is none, or its weights are of another
                       form */
    CudaWeights weights;
    CudaPtr values;
    KvMemory kv; /* addresses on the device */
    CudaPtr *chunks;
    int chunk_count;
    Batch batch;
    CudaAdapters *adapters; /* NULL until the first is installed */
    int32_t token_vocab;
    CudaPtr step; /* LgcStep, then rows of token, slot, pos, last */
    CudaPtr pages, out;
    size_t pages_bytes, out_bytes;
    unsigned char *mirror; /* pinned: what is copied to step */
    size_t mirror_bytes;
    StepGraph graphs[GRAPHS_KEPT];
    int graph_count, graph_next;
    bool graphs_off;
    bool dependent;    /* the next launch may begin before the one before it has ended */
    LaunchTime *times; /* where a profile was asked for; NULL */
    void *clock[2];    /* events on both sides of a launch */
    CudaTrace trace;
    void *trace_user;
    unsigned char *seen; /* the values' memory on the host, for the trace */
} CudaRunner;

static const CudaDriver *driver(const CudaRunner *c) {
    return &c->device->driver;
}

/* ---- memory ---- */

static bool grow_pages(KvMemory *kv, int32_t more) {
    unsigned char **grown = lg_realloc(kv->pages, (size_t)(kv->count + more) * sizeof *kv->pages);
    if (grown)
        kv->pages = grown;
    return grown != NULL;
}

static LgStatus cuda_kv_reserve(Runner *r, int32_t pages, LgError *err) {
    CudaRunner *c = (CudaRunner *)r;
    if (pages < 0)
        return lg_fail(err, LG_BAD_INPUT, 0, "%d KV pages asked for", pages);
    LG_TRY(cuda_device_use(c->device, err));
    int32_t more = pages - c->kv.count;
    if (more > 0) {
        more = more < 8 ? 8 : more;
        CudaPtr *chunks = lg_realloc(c->chunks, (size_t)(c->chunk_count + 1) * sizeof *chunks);
        if (!chunks)
            return lg_fail_memory(err);
        c->chunks = chunks;
        if (!grow_pages(&c->kv, more))
            return lg_fail_memory(err);
        size_t bytes = (size_t)more * (size_t)c->kv.page_bytes;
        CudaPtr chunk;
        LG_TRY(cuda_alloc(c->device, bytes, "KV pages", &chunk, err));
        c->chunks[c->chunk_count++] = chunk;
        CUDA_TRY(driver(c), fill(chunk, c->kv.poison ? 0xff : 0, bytes, c->stream), "KV pages",
                 err);
        for (int32_t i = 0; i < more; i++)
            c->kv.pages[c->kv.count++] =
                (unsigned char *)(uintptr_t)(chunk + (uint64_t)i * c->kv.page_bytes);
    }
    return batch_reserve(&c->batch, c->kv.count, err);
}

/* Memory that only grows, of which a recorded launch knows nothing but through the step. */
static LgStatus reserve(CudaRunner *c, CudaPtr *p, size_t *have, size_t bytes, const char *what,
                        LgError *err) {
    if (bytes <= *have)
        return LG_OK;
    cuda_free(c->device, *p);
    *p = 0;
    *have = 0;
    LG_TRY(cuda_alloc(c->device, bytes, what, p, err));
    *have = bytes;
    return LG_OK;
}

/* ---- a step ---- */

static int power_of_two(int n) {
    int p = 1;
    while (p < n)
        p *= 2;
    return p;
}

/* The step in the mirror, then on the device. */
static LgStatus copy_step(CudaRunner *c, const Step *step, LgError *err) {
    const size_t rows = (size_t)c->base.rows_max, part = rows * sizeof(int32_t);
    const size_t pages = (size_t)step->slot_count * (size_t)step->pages_per_slot;
    LG_TRY(reserve(c, &c->pages, &c->pages_bytes, pages * sizeof(CudaPtr), "page tables", err));
    LG_TRY(reserve(c, &c->out, &c->out_bytes,
                   (size_t)step->samples * (size_t)c->base.vocab * sizeof(float), "logits", err));
    const CudaPtr at = c->step + sizeof(LgcStep);
    LgcStep s = {.token = at,
                 .slot = at + part,
                 .pos = at + 2 * part,
                 .last = at + 3 * part,
                 .pages = c->pages,
                 .arena = c->values,
                 .weights = c->weights.table,
                 .out = c->out,
                 .rows = step->rows,
                 .samples = step->samples,
                 .rows_max = c->base.rows_max,
                 .pages_per_slot = step->pages_per_slot};
    unsigned char *m = c->mirror;
    const size_t used = (size_t)step->rows * sizeof(int32_t);
    memcpy(m, &s, sizeof s);
    memcpy(m + sizeof s, step->token, used);
    memcpy(m + sizeof s + part, step->slot, used);
    memcpy(m + sizeof s + 2 * part, step->pos, used);
    if (step->samples)
        memcpy(m + sizeof s + 3 * part, step->last, (size_t)step->samples * sizeof(int32_t));
    CUDA_TRY(driver(c), copy_up(c->step, m, c->mirror_bytes, c->stream), "copying a step", err);
    CUDA_TRY(driver(c), copy_up(c->pages, c->batch.pages, pages * sizeof(CudaPtr), c->stream),
             "copying page tables", err);
    return LG_OK;
}

static LgStatus launch_one(CudaRunner *c, int launch, EmitCudaKernel kernel, int layer,
                           const StepGraph *g, LgError *err) {
    const int domain = emit_cuda_domain(c->plan, launch);
    const int rows = domain == 0 ? g->bucket : domain == 1 ? g->samples : 1;
    if (rows == 0)
        return LG_OK;
    EmitCudaGrid grid = emit_cuda_grid(c->plan, launch, kernel, (uint32_t)rows);
    CudaLaunchAttribute attribute = {.id = CUDA_ATTRIBUTE_PROGRAMMATIC, .value.flag = 1};
    CudaLaunchConfig config = {.grid = {grid.x, grid.y, 1},
                               .block = {grid.threads, 1, 1},
                               .shared_bytes = grid.shared,
                               .stream = c->stream,
                               .attributes = &attribute,
                               .attribute_count = c->dependent ? 1 : 0};
    void *args[] = {&c->step, &layer};
    CUDA_TRY(driver(c),
             launch(&config, c->kernels[launch * CUDA_KERNELS + (int)kernel], args, NULL),
             c->plan->launches[launch].name, err);
    c->dependent = c->device->major >= 9;
    return LG_OK;
}

static bool has_kernel(const CudaRunner *c, int launch, EmitCudaKernel kernel) {
    return c->kernels[launch * CUDA_KERNELS + (int)kernel] != NULL;
}

static size_t values_bytes(const CudaRunner *c) {
    return (size_t)(c->plan->arena_row_bytes * (uint64_t)c->base.rows_max);
}

static LgStatus show(CudaRunner *c, int launch, int layer, LgError *err) {
    if (!c->trace)
        return LG_OK;
    if (!c->seen)
        c->seen = lg_alloc_aligned(values_bytes(c));
    if (!c->seen)
        return lg_fail_memory(err);
    CUDA_TRY(driver(c), copy_down(c->seen, c->values, values_bytes(c), c->stream), "a trace", err);
    CUDA_TRY(driver(c), stream_wait(c->stream), c->plan->launches[launch].name, err);
    c->trace(c->trace_user, launch, layer, c->seen);
    return LG_OK;
}

static LgStatus launch_parts(CudaRunner *c, int launch, int layer, const StepGraph *g,
                             LgError *err) {
    const int rows = emit_cuda_domain(c->plan, launch) == 0 ? g->bucket : g->samples;
    const bool many = rows >= LGC_MANY_FROM && has_kernel(c, launch, CUDA_MANY);
    const bool more = rows > 16 && has_kernel(c, launch, CUDA_LAUNCH32);
    if (!g->adapted && !many && has_kernel(c, launch, CUDA_FUSED))
        return launch_one(c, launch, more ? CUDA_FUSED32 : CUDA_FUSED, layer, g, err);
    LG_TRY(launch_one(c, launch,
                      many   ? CUDA_MANY
                      : more ? CUDA_LAUNCH32
                             : CUDA_LAUNCH,
                      layer, g, err));
    if (g->adapted)
        LG_TRY(cuda_adapters_apply(c->adapters, launch, layer, g->bucket, err));
    return has_kernel(c, launch, CUDA_TILE) ? launch_one(c, launch, CUDA_TILE, layer, g, err)
                                            : LG_OK;
}

/* A launch of a profile is alone on the device: what it takes by itself. */
static LgStatus launch_timed(CudaRunner *c, int launch, int layer, const StepGraph *g,
                             LgError *err) {
    float ms = 0;
    c->dependent = false;
    CUDA_TRY(driver(c), event_record(c->clock[0], c->stream), "a profile", err);
    LG_TRY(launch_parts(c, launch, layer, g, err));
    CUDA_TRY(driver(c), event_record(c->clock[1], c->stream), "a profile", err);
    CUDA_TRY(driver(c), event_wait(c->clock[1]), "a profile", err);
    CUDA_TRY(driver(c), event_elapsed(&ms, c->clock[0], c->clock[1]), "a profile", err);
    c->times[launch].calls++;
    c->times[launch].seconds += (double)ms * 1e-3;
    return LG_OK;
}

static LgStatus launch_layer(CudaRunner *c, int launch, int layer, const StepGraph *g,
                             LgError *err) {
    if (c->times)
        return launch_timed(c, launch, layer, g, err);
    LG_TRY(launch_parts(c, launch, layer, g, err));
    return show(c, launch, layer, err);
}

static LgStatus launch_all(CudaRunner *c, const StepGraph *g, LgError *err) {
    const Plan *plan = c->plan;
    const int layers = plan->program->layer_count;
    c->dependent = false; /* the first waits for the copies in front of it */
    for (int k = 0; k < plan->launch_count; k++) {
        if (!plan->launches[k].in_layer) {
            LG_TRY(launch_layer(c, k, 0, g, err));
        } else if (k == plan->layer_begin) {
            for (int layer = 0; layer < layers; layer++)
                for (int i = plan->layer_begin; i < plan->layer_end; i++)
                    LG_TRY(launch_layer(c, i, layer, g, err));
        }
    }
    return LG_OK;
}

static LgStatus record(CudaRunner *c, StepGraph *g, LgError *err) {
    LG_TRY(cuda_capture_begin(c->device, c->stream, err));
    LgStatus status = launch_all(c, g, err);
    LgError ignored;
    LgStatus end =
        cuda_capture_end(c->device, c->stream, &g->graph, status == LG_OK ? err : &ignored);
    return status == LG_OK ? end : status;
}

static LgStatus run_launches(CudaRunner *c, int bucket, int samples, bool adapted, LgError *err) {
    const StepGraph want = {.bucket = bucket,
                            .samples = samples,
                            .adapted = adapted,
                            .generation = adapted ? cuda_adapters_generation(c->adapters) : 0};
    if (c->graphs_off || c->trace || c->times)
        return launch_all(c, &want, err);
    StepGraph *g = NULL;
    for (int i = 0; i < c->graph_count && !g; i++)
        if (c->graphs[i].bucket == bucket && c->graphs[i].samples == samples &&
            c->graphs[i].adapted == adapted && c->graphs[i].generation == want.generation)
            g = &c->graphs[i];
    if (!g) {
        if (c->graph_count < GRAPHS_KEPT)
            g = &c->graphs[c->graph_count++];
        else
            g = &c->graphs[c->graph_next++ % GRAPHS_KEPT];
        cuda_graph_clear(c->device, &g->graph);
        *g = want;
        LgStatus status = record(c, g, err);
        if (status != LG_OK) {
            g->bucket = -1;
            return status;
        }
    }
    return cuda_graph_launch(c->device, &g->graph, c->stream, err);
}

static bool adapter_live(const void *user, int32_t slot) {
    return cuda_adapters_live(((const CudaRunner *)user)->adapters, slot);
}

static LgStatus cuda_step(Runner *r, const Step *step, float *logits, LgError *err) {
    CudaRunner *c = (CudaRunner *)r;
    if (step->rows == 0 && step->samples == 0)
        return LG_OK;
    BatchLimits limits = {
        .rows_max = r->rows_max, .vocab = c->token_vocab, .adapter_live = adapter_live, .user = c};
    LG_TRY(batch_prepare(&c->batch, step, &c->kv, &limits, err));
    LG_TRY(cuda_device_use(c->device, err));
    LG_TRY(copy_step(c, step, err));
    const int bucket = power_of_two(step->rows);
    bool adapted = false;
    if (c->adapters)
        LG_TRY(cuda_adapters_route(c->adapters, step, bucket, &adapted, err));
    LG_TRY(run_launches(c, bucket, step->samples ? power_of_two(step->samples) : 0, adapted, err));
    if (step->samples)
        CUDA_TRY(driver(c),
                 copy_down(logits, c->out, (size_t)step->samples * (size_t)r->vocab * sizeof(float),
                           c->stream),
                 "copying logits", err);
    CUDA_TRY(driver(c), stream_wait(c->stream), "a step", err);
    return LG_OK;
}

/* ---- adapters ---- */

static LgStatus open_adapters(CudaRunner *c, LgError *err) {
    CudaAdaptersOptions o = {.device = c->device,
                             .plan = c->plan,
                             .stream = c->stream,
                             .arena = c->values,
                             .rows_max = c->base.rows_max};
    LG_TRY(cuda_lora_kernels(c->registry, &o.kernels, err));
    return cuda_adapters_create(&o, &c->adapters, err);
}

static LgStatus cuda_adapter_install(Runner *r, const AdapterData *adapter, int32_t *slot,
                                     LgError *err) {
    CudaRunner *c = (CudaRunner *)r;
    LG_TRY(cuda_device_use(c->device, err));
    if (!c->adapters)
        LG_TRY(open_adapters(c, err));
    return cuda_adapters_install(c->adapters, adapter, slot, err);
}

static void cuda_adapter_remove(Runner *r, int32_t slot) {
    CudaRunner *c = (CudaRunner *)r;
    if (c->adapters && cuda_device_use(c->device, NULL) == LG_OK)
        cuda_adapters_remove(c->adapters, slot);
}

static uint64_t cuda_adapter_bytes(const Runner *r, int32_t slot) {
    return cuda_adapters_bytes(((const CudaRunner *)r)->adapters, slot);
}

/* ---- open, close ---- */

static void cuda_close(Runner *r) {
    CudaRunner *c = (CudaRunner *)r;
    if (!c)
        return;
    if (c->device && cuda_device_use(c->device, NULL) == LG_OK) {
        driver(c)->context_wait();
        for (int i = 0; i < c->graph_count; i++)
            cuda_graph_clear(c->device, &c->graphs[i].graph);
        cuda_adapters_destroy(c->adapters);
        cuda_weights_clear(c->device, &c->weights);
        for (int i = 0; i < c->chunk_count; i++)
            cuda_free(c->device, c->chunks[i]);
        cuda_free(c->device, c->values);
        cuda_free(c->device, c->step);
        cuda_free(c->device, c->pages);
        cuda_free(c->device, c->out);
        cuda_pinned_free(c->device, c->mirror);
        for (int i = 0; i < 2; i++)
            if (c->clock[i])
                driver(c)->event_destroy(c->clock[i]);
        if (c->module)
            driver(c)->module_unload(c->module);
        if (c->stream)
            driver(c)->stream_destroy(c->stream);
    }
    cuda_registry_destroy(c->registry);
    cuda_device_close(c->device);
    batch_clear(&c->batch);
    lg_free(c->kv.pages);
    lg_free(c->chunks);
    lg_free_aligned(c->seen);
    arena_clear(&c->arena);
    lg_free(c);
}

void runner_cuda_trace(Runner *r, CudaTrace trace, void *user) {
    CudaRunner *c = (CudaRunner *)r;
    c->trace = trace;
    c->trace_user = user;
}

void runner_cuda_graphs(Runner *r, bool on) {
    ((CudaRunner *)r)->graphs_off = !on;
}

const Plan *runner_cuda_plan(const Runner *r) {
    return ((const CudaRunner *)r)->plan;
}

static int cuda_launch_times(Runner *r, const LaunchTime **times) {
    CudaRunner *c = (CudaRunner *)r;
    *times = c->times;
    return c->times ? c->plan->launch_count : 0;
}

static void cuda_launch_times_clear(Runner *r) {
    CudaRunner *c = (CudaRunner *)r;
    for (int k = 0; c->times && k < c->plan->launch_count; k++)
        c->times[k] = (LaunchTime){.name = c->plan->launches[k].name};
}

static LgStatus open_profile(CudaRunner *c, LgError *err) {
    c->times = ARENA_ARRAY(&c->arena, LaunchTime, (size_t)c->plan->launch_count + 1);
    if (!c->times)
        return lg_fail_memory(err);
    cuda_launch_times_clear(&c->base);
    for (int i = 0; i < 2; i++)
        CUDA_TRY(driver(c), event_create(&c->clock[i], 0), "a profile", err);
    return LG_OK;
}

static const RunnerOps cuda_ops = {.backend = "cuda",
                                   .kv_reserve = cuda_kv_reserve,
                                   .step = cuda_step,
                                   .adapter_install = cuda_adapter_install,
                                   .adapter_remove = cuda_adapter_remove,
                                   .adapter_bytes = cuda_adapter_bytes,
                                   .adapter_copied = true,
                                   .close = cuda_close,
                                   .launch_times = cuda_launch_times,
                                   .launch_times_clear = cuda_launch_times_clear};

static LgStatus open_program(CudaRunner *c, const RunnerOptions *o, LgError *err) {
    CudaRegistryOptions ro = {.device = c->device, .cache_dir = o->cache_dir};
    Buf text;
    bool cached = false;
    double from = clock_seconds();
    LG_TRY(cuda_registry_create(&ro, &c->registry, err));
    buf_init(&text);
    LgStatus status = emit_cuda(c->plan, &text, err);
    if (status == LG_OK)
        status = cuda_registry_program(c->registry, c->plan->provenance.model, text.data,
                                       &c->module, &cached, err);
    buf_clear(&text);
    LG_TRY(status);
    if (!cached && o->require_cache)
        return lg_fail(err, LG_NOT_FOUND, 0,
                       "the cache %s holds no program %.16s for %s; without --require-cache it is "
                       "compiled",
                       o->cache_dir ? o->cache_dir : "(none)", c->plan->digest, c->device->arch);
    c->base.compile_s = cached ? 0 : clock_seconds() - from;
    return LG_OK;
}

/* Products of many rows are for bf16 weights. */
static bool all_bf16(const CudaRunner *c, int launch) {
    const Launch *l = &c->plan->launches[launch];
    for (int k = 0; k < l->epilogue; k++) {
        const PlanWeight *w = plan_weight(c->plan, l->stages[k]->matmul->w, WEIGHT_MATRIX);
        const int layers = w->in_layer ? c->plan->program->layer_count : 1;
        for (int layer = 0; layer < layers; layer++)
            if (c->weights.formats[w->base + layer] != LGC_BF16)
                return false;
    }
    return true;
}

static LgStatus find_kernels(CudaRunner *c, LgError *err) {
    const int count = c->plan->launch_count * CUDA_KERNELS;
    c->kernels = ARENA_ARRAY(&c->arena, void *, (size_t)count + 1);
    if (!c->kernels)
        return lg_fail_memory(err);
    for (int i = 0; i < count; i++) {
        const int launch = i / CUDA_KERNELS;
        const EmitCudaKernel kernel = (EmitCudaKernel)(i % CUDA_KERNELS);
        char name[EMIT_CUDA_NAME_MAX];
        c->kernels[i] = NULL;
        if (!emit_cuda_has(c->plan, launch, kernel) ||
            (kernel == CUDA_MANY &&
             (!all_bf16(c, launch) || c->device->block_shared_bytes < LGC_MANY_SHARED)))
            continue;
        emit_cuda_name(c->plan, launch, kernel, name);
        CUDA_TRY(driver(c), module_function(&c->kernels[i], c->module, name), name, err);
        if (kernel == CUDA_MANY)
            CUDA_TRY(driver(c), function_set(c->kernels[i], CUDA_FUNCTION_SHARED, LGC_MANY_SHARED),
                     name, err);
    }
    return LG_OK;
}

static LgStatus open_memory(CudaRunner *c, const RunnerOptions *o, LgError *err) {
    const uint64_t rows = (uint64_t)c->base.rows_max;
    const int layers = o->program->layer_count > 0 ? o->program->layer_count : 1;
    void *mirror = NULL;
    c->kv.page_bytes = c->plan->layer_page_bytes * (uint64_t)layers;
    c->kv.poison = o->poison;
    LG_TRY(cuda_alloc(c->device, (size_t)(c->plan->arena_row_bytes * rows) + 256, "a step's values",
                      &c->values, err));
    CUDA_TRY(
        driver(c),
        fill(c->values, o->poison ? 0xff : 0, (size_t)(c->plan->arena_row_bytes * rows), c->stream),
        "a step's values", err);
    c->mirror_bytes = sizeof(LgcStep) + 4 * (size_t)rows * sizeof(int32_t);
    LG_TRY(cuda_alloc(c->device, c->mirror_bytes, "a step", &c->step, err));
    LG_TRY(cuda_pinned_alloc(c->device, c->mirror_bytes, &mirror, err));
    c->mirror = mirror;
    memset(c->mirror, 0, c->mirror_bytes);
    LG_TRY(batch_reserve(&c->batch, 0, err));
    return cuda_weights_load(c->device, c->plan, o->binding, c->stream, &c->weights, err);
}

static LgStatus open_parts(CudaRunner *c, const RunnerOptions *o, LgError *err) {
    int32_t rows = o->rows_max ? o->rows_max : ROWS_MAX_DEFAULT;
    if (rows < 1 || rows > ROWS_MAX_LIMIT)
        return lg_fail(err, LG_LIMIT, 0, "steps of up to %d rows: 1 to %d are possible", rows,
                       ROWS_MAX_LIMIT);
    PlanOptions po = {.backend = "cuda",
                      .store_f32 = o->store_f32,
                      .keep_values = o->keep_values,
                      .no_fuse = o->no_fuse};
    c->base.rows_max = rows;
    LG_TRY(plan_build(o->program, &po, &c->arena, &c->plan, err));
    LG_TRY(batch_vocab(c->plan->program, c->plan->output, &c->token_vocab, &c->base.vocab, err));
    LG_TRY(cuda_device_open(0, &c->device, err));
    CUDA_TRY(driver(c), stream_create(&c->stream, 1), "making a stream", err);
    LG_TRY(open_program(c, o, err));
    LG_TRY(open_memory(c, o, err));
    LG_TRY(find_kernels(c, err));
    if (o->profile)
        LG_TRY(open_profile(c, err));
    c->base.ops = &cuda_ops;
    c->base.provenance = c->plan->provenance;
    c->base.level = c->device->arch;
    c->base.kv_page_bytes = c->kv.page_bytes;
    memcpy(c->base.digest, c->plan->digest, sizeof c->base.digest);
    return LG_OK;
}

LgStatus runner_open_cuda(const RunnerOptions *o, Runner **out, LgError *err) {
    CudaRunner *c = lg_calloc(1, sizeof *c);
    if (!c)
        return lg_fail_memory(err);
    arena_init(&c->arena);
    LgStatus status = open_parts(c, o, err);
    if (status == LG_OK)
        *out = &c->base;
    else
        cuda_close(&c->base);
    return status;
}
