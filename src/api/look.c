/* Looking inside: explain, compile, inspect. */
#include <string.h>

#include "api/internal.h"
#include "base/file.h"
#include "base/mem.h"
#include "emit/emit_cpu.h"

typedef struct WeightSizes {
    const Model *model;
} WeightSizes;

/* Bytes of one layer's weight as it is stored; vectors are held as f32. */
static uint64_t weight_bytes(void *user, const PlanWeight *w) {
    const WeightSizes *sizes = user;
    if (!sizes->model->binding || w->use == WEIGHT_VECTOR)
        return w->rows * w->columns * 4;
    const ParamBinding *b = binding_get(sizes->model->binding, w->tensor, 0);
    uint64_t row = 0;
    if (!b || !b->tensor || !dtype_row_bytes(b->tensor->dtype, w->columns, &row))
        return w->rows * w->columns * 4;
    return w->rows * row;
}

LgStatus lg_explain(LgEngine *engine, int32_t rows, char **json, LgError *error) {
    API_NEED(engine);
    API_NEED(json);
    if (rows < 1)
        return lg_fail(error, LG_BAD_INPUT, 0, "rows is %d; 1 or more is accepted", rows);
    const Model *m = engine_model(engine->engine);
    PlanOptions options = {.backend = engine_runner(engine->engine)->ops->backend,
                           .store_f32 = engine_store_f32(engine->engine)};
    WeightSizes sizes = {.model = m};
    Arena arena;
    Buf out;
    arena_init(&arena);
    buf_init(&out);
    Plan *plan;
    LgStatus status = plan_build(m->program, &options, &arena, &plan, error);
    if (status == LG_OK) {
        plan_explain(plan, (uint64_t)rows, weight_bytes, &sizes, &out);
        char *text = buf_take(&out);
        if (text)
            *json = text;
        else
            status = lg_fail_memory(error);
    }
    buf_clear(&out);
    arena_clear(&arena);
    return status;
}

/* "so" for a file, "c" and "plan" as text. */
static LgStatus compile_model(const Model *m, const LgCompileOptions *o, const char *out_path,
                              Buf *out, LgError *err) {
    if (strcmp(o->emit, "so") == 0) {
        if (!out_path)
            return lg_fail(err, LG_BAD_INPUT, 0,
                           "a shared object needs a file to be written to (-o FILE.so)");
        RunnerOptions r = {.program = m->program,
                           .binding = m->binding,
                           .store_f32 = o->store_f32,
                           .level = o->level,
                           .compiler = o->compiler};
        return runner_compile_cpu(&r, out_path, err);
    }
    bool c = strcmp(o->emit, "c") == 0;
    if (!c && strcmp(o->emit, "plan") != 0)
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "emit \"%s\" is not known; accepted are c, plan and so", o->emit);
    PlanOptions options = {.backend = "cpu", .store_f32 = o->store_f32};
    Arena arena;
    arena_init(&arena);
    Plan *plan;
    LgStatus status = plan_build(m->program, &options, &arena, &plan, err);
    if (status == LG_OK && c)
        status = emit_cpu(plan, o->level ? o->level : "generic", out, err);
    else if (status == LG_OK)
        plan_print(plan, out);
    arena_clear(&arena);
    if (status == LG_OK && out->failed)
        status = lg_fail_memory(err);
    return status;
}

LgStatus lg_compile(const LgCompileOptions *options, const char *out_path, char **text,
                    LgError *error) {
    API_NEED(options);
    API_NEED(options->config);
    API_NEED(text);
    lg_mem_install_hooks();
    LgCompileOptions o = *options;
    o.emit = o.emit ? o.emit : "plan";
    Model m;
    /* A folder that holds tensors is checked whole; a config alone is what it is. */
    LgStatus status = model_open(o.config, o.program, false, &m, error);
    if (status == LG_NOT_FOUND)
        status = model_open(o.config, o.program, true, &m, error);
    if (status != LG_OK)
        return status;
    Buf out;
    buf_init(&out);
    status = compile_model(&m, &o, out_path, &out, error);
    *text = NULL;
    if (status == LG_OK && strcmp(o.emit, "so") != 0) {
        if (out_path)
            status = file_write_atomic(out_path, out.data, out.len, error);
        else if (!(*text = buf_take(&out)))
            status = lg_fail_memory(error);
    }
    buf_clear(&out);
    model_close(&m);
    return status;
}

LgStatus lg_ignored_keys(char **text, LgError *error) {
    API_NEED(text);
    Buf out;
    buf_init(&out);
    lang_print_ignored(&out);
    *text = buf_take(&out);
    return *text ? LG_OK : lg_fail_memory(error);
}

static json_t *tensors_json(const TensorSet *set) {
    json_t *list = json_array();
    for (size_t i = 0; i < tensor_set_count(set); i++) {
        const Tensor *t = tensor_set_at(set, i);
        json_t *shape = json_array();
        for (int d = 0; d < t->rank; d++)
            json_array_append_new(shape, json_integer((json_int_t)t->shape[d]));
        json_array_append_new(list, json_pack("{s:s%, s:s, s:o, s:I}", "name", t->name.ptr,
                                              t->name.len, "dtype", dtype_info(t->dtype)->name,
                                              "shape", shape, "bytes", (json_int_t)t->bytes));
    }
    return list;
}

static json_t *config_json(const Config *c) {
    json_t *o = json_object();
    for (size_t i = 0; i < config_count(c); i++) {
        Buf text, key;
        buf_init(&text);
        buf_init(&key);
        buf_str(&key, config_key(c, i));
        config_value_print(config_value(c, i), &text);
        json_object_set_new(o, key.data, json_loads(text.data, JSON_DECODE_ANY, NULL));
        buf_clear(&key);
        buf_clear(&text);
    }
    return o;
}

static LgStatus inspect_checkpoint(const char *path, json_t **out, LgError *err) {
    Checkpoint *c;
    LG_TRY(checkpoint_open(path, &c, err));
    *out = json_pack("{s:s, s:s, s:o, s:o}", "kind", "checkpoint", "format",
                     checkpoint_gguf(c) ? "gguf" : "safetensors", "config",
                     config_json(checkpoint_config(c)), "tensors",
                     tensors_json(checkpoint_tensors(c)));
    checkpoint_close(c);
    return *out ? LG_OK : lg_fail_memory(err);
}

/* An adapter with a model: loaded under a name of its own, reported, unloaded. */
static LgStatus inspect_with_model(LgEngine *e, const char *dir, json_t **out, LgError *err) {
    AdapterOptions options = {.program = engine_model(e->engine)->program,
                              .binding = engine_model(e->engine)->binding,
                              .store_f32 = engine_store_f32(e->engine)};
    Adapter *a;
    LG_TRY(adapter_load(dir, dir, &options, &a, err));
    json_t *report = json_deep_copy(adapter_report(a));
    adapter_destroy(a);
    if (!report)
        return lg_fail_memory(err);
    *out = report;
    return LG_OK;
}

static bool is_adapter(const char *path) {
    Buf file;
    buf_init(&file);
    buf_printf(&file, "%s/adapter_config.json", path);
    bool found = !file.failed && file_exists(file.data);
    buf_reset(&file);
    buf_printf(&file, "%s/config.json", path);
    bool checkpoint = !file.failed && file_exists(file.data);
    buf_reset(&file);
    buf_printf(&file, "%s/adapter_model.safetensors", path);
    found |= !checkpoint && !file.failed && file_exists(file.data);
    buf_clear(&file);
    return found;
}

LgStatus lg_inspect(const char *path, LgEngine *engine, char **json, LgError *error) {
    API_NEED(path);
    API_NEED(json);
    lg_mem_install_hooks();
    json_t *value = NULL;
    if (engine)
        LG_TRY(inspect_with_model(engine, path, &value, error));
    else if (is_adapter(path))
        LG_TRY(adapter_inspect(path, &value, error));
    else
        LG_TRY(inspect_checkpoint(path, &value, error));
    return api_json_text(value, json, error);
}
