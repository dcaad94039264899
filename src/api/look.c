/* Looking inside: explain, compile, inspect. */
#include <string.h>

#include "api/internal.h"
#include "backend/cpu/levels.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "emit/cpu_levels.h"
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
    const Tensor *t = b && b->stacked ? b->stacked[0] : b ? b->tensor : NULL;
    uint64_t row = 0;
    if (!t || !dtype_row_bytes(t->dtype, w->columns, &row))
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
    const EmitLevel *level;
    if (o->level)
        LG_TRY(emit_level_find(o->level, &level, err));
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
        status =
            emit_cpu(plan, o->level ? o->level : cpu_level_best(CPU_LEVELS_ALL)->name, out, err);
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

static json_t *tensor_json(const Tensor *t) {
    json_t *o = json_object(), *shape = json_array();
    bool made = shape != NULL;
    for (int d = 0; d < t->rank; d++)
        made = json_array_append_new(shape, json_integer((json_int_t)t->shape[d])) == 0 && made;
    const char *dtype = dtype_info(t->dtype)->name;
    made = json_object_set_new(o, "name", json_stringn(t->name.ptr, t->name.len)) == 0 && made;
    made = json_object_set_new(o, "dtype", json_string(dtype)) == 0 && made;
    made = json_object_set_new(o, "shape", shape) == 0 && made;
    made = json_object_set_new(o, "bytes", json_integer((json_int_t)t->bytes)) == 0 && made;
    if (!made) {
        json_decref(o);
        o = NULL;
    }
    return o;
}

static LgStatus add_tensors(json_t *report, const TensorSet *set, LgError *err) {
    json_t *list = json_array();
    bool made = list != NULL;
    for (size_t i = 0; made && i < tensor_set_count(set); i++)
        made = json_array_append_new(list, tensor_json(tensor_set_at(set, i))) == 0;
    made = json_object_set_new(report, "tensors", list) == 0 && made;
    return made ? LG_OK : lg_fail_memory(err);
}

static LgStatus add_config(json_t *report, const Config *c, LgError *err) {
    Buf text;
    buf_init(&text);
    json_t *values = NULL, *config = json_object();
    for (size_t i = 0; i < config_count(c); i++) {
        buf_putc(&text, i ? ',' : '[');
        config_value_print(config_value(c, i), &text);
    }
    buf_puts(&text, text.len ? "]" : "[]");
    LgStatus status = text.failed || !config
                          ? lg_fail_memory(err)
                          : lg_json_parse(buf_view(&text), "config", &values, err);
    for (size_t i = 0; status == LG_OK && i < config_count(c); i++) {
        buf_reset(&text);
        buf_printable(&text, config_key(c, i), SIZE_MAX);
        if (text.failed || json_object_set(config, text.data, json_array_get(values, i)) != 0)
            status = lg_fail_memory(err);
    }
    if (json_object_set_new(report, "config", config) != 0 && status == LG_OK)
        status = lg_fail_memory(err);
    json_decref(values);
    buf_clear(&text);
    return status;
}

static LgStatus inspect_checkpoint(const char *path, json_t **out, LgError *err) {
    Checkpoint *c;
    LG_TRY(checkpoint_open(path, &c, err));
    json_t *report = json_pack("{s:s, s:s}", "kind", "checkpoint", "format",
                               checkpoint_gguf(c) ? "gguf" : "safetensors");
    LgStatus status = report ? add_config(report, checkpoint_config(c), err) : lg_fail_memory(err);
    if (status == LG_OK)
        status = add_tensors(report, checkpoint_tensors(c), err);
    checkpoint_close(c);
    if (status != LG_OK) {
        json_decref(report);
        return status;
    }
    *out = report;
    return LG_OK;
}

/* An adapter with a model: loaded under a name of its own, reported, unloaded. */
static LgStatus inspect_with_model(LgEngine *e, const char *dir, json_t **out, LgError *err) {
    AdapterOptions options = {.program = engine_model(e->engine)->program,
                              .binding = engine_model(e->engine)->binding,
                              .config = checkpoint_config(engine_model(e->engine)->checkpoint),
                              .store_f32 = engine_store_f32(e->engine)};
    Adapter *a;
    LG_TRY(adapter_load(dir, dir, &options, &a, err));
    json_t *report = adapter_report_copy(a);
    adapter_destroy(a);
    if (!report)
        return lg_fail_memory(err);
    *out = report;
    return LG_OK;
}

static LgStatus folder_has(const char *path, const char *name, bool *out, LgError *err) {
    Buf file;
    buf_init(&file);
    buf_printf(&file, "%s/%s", path, name);
    LgStatus status = file.failed ? lg_fail_memory(err) : LG_OK;
    *out = status == LG_OK && file_exists(file.data);
    buf_clear(&file);
    return status;
}

/* An adapter whose config is missing is still one, to be refused as such. */
static LgStatus is_adapter(const char *path, bool *out, LgError *err) {
    bool config, checkpoint, tensors;
    LG_TRY(folder_has(path, "adapter_config.json", &config, err));
    LG_TRY(folder_has(path, "config.json", &checkpoint, err));
    LG_TRY(folder_has(path, "adapter_model.safetensors", &tensors, err));
    *out = config || (tensors && !checkpoint);
    return LG_OK;
}

LgStatus lg_inspect(const char *path, LgEngine *engine, char **json, LgError *error) {
    API_NEED(path);
    API_NEED(json);
    lg_mem_install_hooks();
    json_t *value = NULL;
    if (engine) {
        LG_TRY(inspect_with_model(engine, path, &value, error));
    } else {
        bool adapter = false;
        LG_TRY(is_adapter(path, &adapter, error));
        LG_TRY(adapter ? adapter_inspect(path, &value, error)
                       : inspect_checkpoint(path, &value, error));
    }
    return api_json_text(value, json, error);
}
