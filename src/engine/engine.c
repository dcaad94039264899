/* Opening and closing: model, runner and the buffers of a step. */
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/internal.h"

#define ROWS_MAX_DEFAULT 512
#define SAMPLES_MAX 128
#define CONTEXT_DEFAULT 4096
#define KV_BYTES_DEFAULT (4ull << 30)

static LgStatus open_runner(Engine *e, const LgEngineOptions *o, LgError *err) {
    const char *program = o->program;
    bool compiled = program && lg_str_ends(lg_str(program), ".so");
    RunnerOptions r = {.program = e->model.program,
                       .binding = e->model.binding,
                       .store_f32 = o->store_f32,
                       .threads = o->threads,
                       .rows_max = e->rows_max,
                       .level = o->level,
                       .cache_dir = o->cache_dir,
                       .compiler = o->compiler,
                       .program_file = compiled ? program : NULL,
                       .require_cache = o->require_cache};
    const char *backend = o->backend ? o->backend : "cpu";
    if (strcmp(backend, "cpu") == 0)
        return runner_open_cpu(&r, &e->runner, err);
    if (strcmp(backend, "cuda") == 0 && (o->level || o->compiler || compiled))
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "the back end cuda compiles for the device that is there: it takes no "
                       "level, compiler or .so program");
    if (strcmp(backend, "cuda") == 0)
        return runner_open_cuda(&r, &e->runner, err);
    if (strcmp(backend, "interp") == 0 && (o->level || o->compiler || o->require_cache))
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "the back end interp compiles nothing: it takes no level, compiler or "
                       "require_cache");
    if (strcmp(backend, "interp") == 0)
        return runner_open_interp(&r, &e->runner, err);
    return lg_fail(err, LG_BAD_INPUT, 0,
                   "no back end is named \"%s\"; there are cpu, cuda and interp", backend);
}

static LgStatus make_buffers(Engine *e, LgError *err) {
    size_t rows = (size_t)e->rows_max;
    e->samples_max = e->rows_max < SAMPLES_MAX ? e->rows_max : SAMPLES_MAX;
    size_t samples = (size_t)e->samples_max;
    e->token = lg_alloc_array(rows, sizeof *e->token);
    e->slot = lg_alloc_array(rows, sizeof *e->slot);
    e->pos = lg_alloc_array(rows, sizeof *e->pos);
    e->ad = lg_alloc_array(rows, sizeof *e->ad);
    e->last = lg_alloc_array(samples, sizeof *e->last);
    e->sample_of = lg_alloc_array(samples, sizeof(Sequence *));
    e->sample_pos = lg_alloc_array(samples, sizeof *e->sample_pos);
    e->sets = lg_calloc(rows + 1, sizeof *e->sets);
    e->logits = lg_alloc_array(samples * (size_t)e->runner->vocab, sizeof *e->logits);
    bool whole = e->token && e->slot && e->pos && e->ad && e->last && e->sample_of &&
                 e->sample_pos && e->sets && e->logits;
    return whole ? LG_OK : lg_fail_memory(err);
}

static LgStatus open_parts(Engine *e, const LgEngineOptions *o, LgError *err) {
    if (o->rows_max < 0 || o->threads < 0 || o->context_max < 0 || o->threads > 256 ||
        o->rows_max > 65536)
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "options: threads %d, rows_max %d, context_max %d; accepted are 0 (the "
                       "default) to 256 "
                       "threads, 65536 rows and any context",
                       o->threads, o->rows_max, o->context_max);
    bool page = o->program && !lg_str_ends(lg_str(o->program), ".so");
    LG_TRY(model_open(o->model, page ? o->program : NULL, false, &e->model, err));
    e->rows_max = o->rows_max ? o->rows_max : ROWS_MAX_DEFAULT;
    if (e->model.context && o->context_max > e->model.context)
        return lg_fail(err, LG_LIMIT, 0,
                       "context_max is %d; the model has %d positions (max_position_embeddings)",
                       o->context_max, e->model.context);
    e->context = o->context_max     ? o->context_max
                 : e->model.context ? e->model.context
                                    : CONTEXT_DEFAULT;
    LG_TRY(open_runner(e, o, err));
    kv_init(e, o->kv_bytes_max ? o->kv_bytes_max : KV_BYTES_DEFAULT);
    return make_buffers(e, err);
}

LgStatus engine_open(const LgEngineOptions *o, Engine **out, LgError *err) {
    double start = clock_seconds();
    if (!o->model)
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "no model is named; a checkpoint folder or a .gguf file is needed");
    Engine *e = lg_calloc(1, sizeof *e);
    if (!e)
        return lg_fail_memory(err);
    e->store_f32 = o->store_f32;
    e->adapter_bytes_max = o->adapter_bytes_max;
    LgStatus status = open_parts(e, o, err);
    if (status != LG_OK) {
        engine_close(e);
        return status;
    }
    e->timing.compile_s = e->runner->compile_s;
    e->timing.load_s = clock_seconds() - start - e->timing.compile_s;
    *out = e;
    return LG_OK;
}

void engine_close(Engine *e) {
    if (!e)
        return;
    while (e->first)
        sequence_destroy(e->first);
    adapters_close(e);
    kv_clear(e);
    if (e->runner)
        e->runner->ops->close(e->runner);
    model_close(&e->model);
    lg_free(e->token);
    lg_free(e->slot);
    lg_free(e->pos);
    lg_free(e->ad);
    lg_free(e->last);
    lg_free(e->sample_of);
    lg_free(e->sample_pos);
    lg_free(e->sets);
    lg_free(e->logits);
    lg_free(e);
}

const Model *engine_model(const Engine *e) {
    return &e->model;
}
const Runner *engine_runner(const Engine *e) {
    return e->runner;
}
const LgTiming *engine_timing(const Engine *e) {
    return &e->timing;
}
int engine_context(const Engine *e) {
    return e->context;
}
bool engine_store_f32(const Engine *e) {
    return e->store_f32;
}
