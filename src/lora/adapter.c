/* The life of an adapter: folder → config and tensors → plan → numbers. The object is made last,
 * whole. */
#include "lora/lora.h"

#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "formats/gguf_model.h"
#include "formats/safetensors.h"
#include "lora/peft.h"

#define CONFIG_BYTES_MAX (8u << 20)
#define NAME_BYTES_MAX 200

struct Adapter {
    AdapterData data;
    AdapterSite *sites;
    AdapterSite *experts; /* of all sites of experts; NULL: none is adapted */
    AdapterReplaced *replaced;
    int32_t *rows; /* of what is replaced in rows */
    float *numbers;
    json_t *report;
    char *report_text; /* instead of the report once the numbers are released: a tenth of it */
    char hash[65];
    bool dora, replaces;
};

static void free_numbers(Adapter *a) {
    lg_free_aligned(a->numbers);
    lg_free(a->sites);
    lg_free(a->experts);
    lg_free(a->replaced);
    lg_free(a->rows);
    a->numbers = NULL;
    a->sites = a->experts = NULL;
    a->replaced = NULL;
    a->rows = NULL;
    a->data = (AdapterData){.store_f32 = a->data.store_f32};
}

void adapter_destroy(Adapter *a) {
    if (!a)
        return;
    json_decref(a->report);
    lg_free(a->report_text);
    free_numbers(a);
    lg_free(a);
}

void adapter_release_numbers(Adapter *a) {
    Buf text;
    buf_init(&text);
    free_numbers(a);
    if (a->report)
        lg_json_print(a->report, JSON_COMPACT, &text);
    char *kept = a->report && !text.failed ? lg_alloc(text.len + 1) : NULL;
    if (kept) { /* else it stays as it is, which takes more memory */
        memcpy(kept, text.data, text.len + 1);
        a->report_text = kept;
        json_decref(a->report);
        a->report = NULL;
    }
    buf_clear(&text);
}

json_t *adapter_report_copy(const Adapter *a) {
    json_t *copy = NULL;
    if (a->report)
        return json_deep_copy(a->report);
    return lg_json_parse(lg_str(a->report_text), "report", &copy, NULL) == LG_OK ? copy : NULL;
}

const AdapterData *adapter_data(const Adapter *a) {
    return &a->data;
}

const char *adapter_hash(const Adapter *a) {
    return a->hash;
}

const json_t *adapter_report(const Adapter *a) {
    return a->report;
}

const char *adapter_refuses(const Adapter *a, size_t count, float scale) {
    if (a->dora && count > 1)
        return "it uses DoRA, which is not served in a set of several adapters; use it alone";
    if (a->replaces && count > 1)
        return "it replaces tensors of the base, which is not served in a set of several "
               "adapters; use it alone";
    if (a->replaces && scale != 1)
        return "it replaces tensors of the base, which is served at scale 1 only";
    return NULL;
}

LgStatus adapter_name_check(const char *name, LgError *err) {
    LgStr s = lg_str(name);
    Buf shown;
    buf_init(&shown);
    buf_printable(&shown, s, 80);
    const char *fault = NULL;
    if (s.len == 0)
        fault = "it is empty";
    else if (s.len > NAME_BYTES_MAX)
        fault = "it has more than 200 bytes";
    else if (lg_str_eq_c(s, ".") || lg_str_eq_c(s, ".."))
        fault = "\".\" and \"..\" are names of folders";
    else if (strpbrk(name, "/\\:="))
        fault = "it has one of / \\ : =";
    else if (!utf8_valid(s))
        fault = "it is not valid UTF-8";
    for (size_t i = 0; !fault && i < s.len; i++)
        if ((unsigned char)s.ptr[i] < 0x20 || s.ptr[i] == 0x7f)
            fault = "it has a control character";
    LgStatus status = LG_OK;
    if (fault)
        status = lg_fail(err, LG_BAD_INPUT, 0, "adapter name \"%s\": %s", shown.data, fault);
    buf_clear(&shown);
    return status;
}

/* ---- plan to object ---- */

/* Room for what is done to each expert, and where each site's begins. */
static LgStatus reserve_experts(const LangProgram *p, size_t layers, Adapter *a, Arena *arena,
                                PeftSites *sites, LgError *err) {
    size_t count = 0;
    for (int pass = 0; pass < 2; pass++) {
        count = 0;
        for (size_t layer = 0; layer < layers; layer++)
            for (int s = 0; s < p->site_count; s++) {
                size_t experts = (size_t)lora_site_experts(p, s);
                if (pass && experts)
                    sites->experts[layer * (size_t)p->site_count + (size_t)s] = a->experts + count;
                count += experts;
            }
        if (pass == 0) {
            a->experts = lg_calloc(count, sizeof *a->experts);
            sites->experts = ARENA_ARRAY(arena, AdapterSite *, layers * (size_t)p->site_count + 1);
            if (!a->experts || !sites->experts)
                return lg_fail_memory(err);
        }
    }
    return LG_OK;
}

static LgStatus reserve_replaced(const PeftPlan *plan, Adapter *a, LgError *err) {
    size_t rows = 0;
    for (size_t i = 0; i < plan->replaced_count; i++)
        rows += plan->replaced[i].tokens ? (size_t)plan->replaced[i].rows : 0;
    a->replaced = lg_calloc(plan->replaced_count, sizeof *a->replaced);
    a->rows = lg_alloc_array(rows, sizeof *a->rows);
    return a->replaced && a->rows ? LG_OK : lg_fail_memory(err);
}

static LgStatus commit(PeftPlan *plan, const PeftConfig *config, const AdapterOptions *o,
                       Arena *arena, json_t **disregarded, Adapter **out, LgError *err) {
    const LangProgram *p = o->program;
    int layers = p->layer_count > 0 ? p->layer_count : 1;
    size_t site_count = (size_t)p->site_count * (size_t)layers;
    Adapter *a = lg_calloc(1, sizeof *a);
    if (!a)
        return lg_fail_memory(err);
    LgStatus status = peft_drop_copies(plan, o, *disregarded, err);
    a->sites = lg_calloc(site_count, sizeof *a->sites);
    a->numbers = lg_alloc_aligned((size_t)plan->bytes);
    if (status == LG_OK && (!a->sites || !a->numbers))
        status = lg_fail_memory(err);
    if (status == LG_OK)
        status = reserve_replaced(plan, a, err);
    PeftSites sites = {.sites = a->sites};
    if (status == LG_OK && plan->experts)
        status = reserve_experts(p, (size_t)layers, a, arena, &sites, err);
    if (status == LG_OK)
        status = peft_check_copies(plan, o, err);
    if (status == LG_OK)
        status = peft_numbers(plan, o, a->numbers, &sites, err);
    if (status == LG_OK)
        status = peft_replace(plan, a->numbers + peft_site_floats(plan), a->rows, a->replaced, err);
    if (status == LG_OK)
        status = peft_hash(plan, arena, a->hash, err);
    if (status == LG_OK) {
        json_t *taken = *disregarded;
        *disregarded = NULL;
        status = peft_report(plan, config, p, a->hash, taken, &a->report, err);
    }
    if (status != LG_OK) {
        adapter_destroy(a);
        return status;
    }
    a->data = (AdapterData){.site_count = p->site_count,
                            .layer_count = layers,
                            .sites = a->sites,
                            .replaced = a->replaced,
                            .replaced_count = (int)plan->replaced_count,
                            .store_f32 = o->store_f32,
                            .bytes = plan->bytes};
    a->dora = config->dora;
    a->replaces = plan->replaced_count > 0;
    *out = a;
    return LG_OK;
}

LgStatus adapter_from_json(const json_t *json, const TensorSet *tensors, const AdapterOptions *o,
                           Adapter **out, LgError *err) {
    Arena arena;
    arena_init(&arena);
    PeftConfig config = {0};
    LoraModules modules = {0};
    PeftPlan plan;
    json_t *disregarded = json_array();
    LgStatus status = disregarded ? peft_config_parse(json, &arena, disregarded, &config, err)
                                  : lg_fail_memory(err);
    if (status == LG_OK)
        status = lora_modules_build(o->program, o->binding, &arena, &modules, err);
    if (status == LG_OK)
        status = peft_plan(tensors, &config, &modules, o, &arena, &plan, err);
    if (status == LG_OK)
        status = commit(&plan, &config, o, &arena, &disregarded, out, err);
    json_decref(disregarded);
    lora_modules_clear(&modules);
    peft_config_clear(&config);
    arena_clear(&arena);
    return status;
}

LgStatus adapter_from_memory(LgStr config, const TensorSet *tensors, const AdapterOptions *o,
                             Adapter **out, LgError *err) {
    json_t *json = NULL;
    LG_TRY(lg_json_parse(config, "adapter_config.json", &json, err));
    LgStatus status = adapter_from_json(json, tensors, o, out, err);
    json_decref(json);
    return status;
}

/* ---- folder to config and tensors ---- */

static LgStatus folder_has(const char *dir, const char *name, bool *out, LgError *err) {
    Buf path;
    buf_init(&path);
    buf_printf(&path, "%s/%s", dir, name);
    LgStatus status = path.failed ? lg_fail_memory(err) : LG_OK;
    *out = status == LG_OK && file_exists(path.data);
    buf_clear(&path);
    return status;
}

static LgStatus read_config(const char *dir, json_t **out, LgError *err) {
    Buf path, text;
    buf_init(&path);
    buf_init(&text);
    LgStatus status = file_inside(dir, LG_STR("adapter_config.json"), &path, err);
    if (status == LG_NOT_FOUND)
        status =
            lg_fail(err, status, 0,
                    "the folder \"%s\" has no adapter_config.json; an adapter is a folder with "
                    "adapter_config.json and adapter_model.safetensors",
                    dir);
    if (status == LG_OK)
        status = file_read(path.data, CONFIG_BYTES_MAX, &text, err);
    if (status == LG_OK)
        status = lg_json_parse(buf_view(&text), "adapter_config.json", out, err);
    buf_clear(&path);
    buf_clear(&text);
    return status;
}

/* Weights that PEFT reads and this does not, and what to do about it. */
static const struct {
    const char *name, *advice;
} other_files[] = {
    {"adapter_model.bin",
     "pickles can run code when they are read, so they are refused. Convert it once: python3 -c "
     "'import torch, safetensors.torch as s; s.save_file(torch.load(\"adapter_model.bin\", "
     "weights_only=True), \"adapter_model.safetensors\")'"},
    {"adapter_model.pt",
     "pickles can run code when they are read, so they are refused. Convert it once: python3 -c "
     "'import torch, safetensors.torch as s; s.save_file(torch.load(\"adapter_model.pt\", "
     "weights_only=True), \"adapter_model.safetensors\")'"},
    {"adapter_model.gguf", "beside adapter_config.json adapter_model.safetensors is read; a GGUF "
                           "adapter is served by its "
                           "path, or in a folder without adapter_config.json"},
};

static LgStatus open_tensors(const char *dir, TensorSet **out, LgError *err) {
    bool found = false;
    LgStatus status = safetensors_open(dir, "adapter_model", out, err);
    for (size_t i = 0; status == LG_NOT_FOUND && i < sizeof other_files / sizeof other_files[0];
         i++) {
        LG_TRY(folder_has(dir, other_files[i].name, &found, err));
        if (found)
            status =
                lg_fail(err, LG_BAD_INPUT, 0, "%s: %s", other_files[i].name, other_files[i].advice);
    }
    return status;
}

static LgStatus check_folder(const char *dir, LgError *err) {
    if (file_is_dir(dir))
        return LG_OK;
    if (file_exists(dir))
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "\"%s\" is no folder; an adapter is a folder with adapter_config.json and "
                       "adapter_model.safetensors",
                       dir);
    return lg_fail(err, LG_NOT_FOUND, 0, "there is no folder \"%s\"", dir);
}

/* What a load reads: it lives until the numbers are made. */
typedef struct Source {
    json_t *config;
    TensorSet *tensors;
    Gguf *gguf;
} Source;

static void source_close(Source *s) {
    tensor_set_close(s->tensors);
    gguf_close(s->gguf);
    json_decref(s->config);
}

/* A GGUF says alpha, and the tensors all else. */
static LgStatus open_gguf(const char *path, const Config *config, Source *out, LgError *err) {
    double alpha = 0;
    LG_TRY(gguf_open(path, &out->gguf, err));
    LG_TRY(gguf_adapter_tensors(out->gguf, path, config, &out->tensors, &alpha, err));
    out->config = json_object();
    bool failed = json_object_set_new(out->config, "peft_type", json_string("LORA")) != 0;
    failed |= json_object_set_new(out->config, "lora_alpha", json_real(alpha)) != 0;
    return failed ? lg_fail(err, LG_BAD_INPUT, 0, "%s: adapter.lora.alpha is no number", path)
                  : LG_OK;
}

static LgStatus open_source(const char *dir, const Config *config, Source *out, LgError *err) {
    bool found = false, peft = false;
    if (file_exists(dir) && !file_is_dir(dir) && lg_str_ends(lg_str(dir), ".gguf"))
        return open_gguf(dir, config, out, err);
    LG_TRY(check_folder(dir, err));
    LG_TRY(folder_has(dir, "adapter_model.gguf", &found, err));
    LG_TRY(folder_has(dir, "adapter_config.json", &peft, err));
    if (found && !peft) {
        Buf path;
        buf_init(&path);
        LgStatus status = file_inside(dir, LG_STR("adapter_model.gguf"), &path, err);
        if (status == LG_OK)
            status = open_gguf(path.data, config, out, err);
        buf_clear(&path);
        return status;
    }
    LG_TRY(read_config(dir, &out->config, err));
    return open_tensors(dir, &out->tensors, err);
}

LgStatus adapter_load(const char *name, const char *dir, const AdapterOptions *o, Adapter **out,
                      LgError *err) {
    Source source = {0};
    LgStatus status = open_source(dir, o->config, &source, err);
    if (status == LG_OK)
        status = adapter_from_json(source.config, source.tensors, o, out, err);
    source_close(&source);
    if (status == LG_OK)
        return LG_OK;
    Buf shown;
    buf_init(&shown);
    buf_printable(&shown, lg_str(name), 80);
    (void)lg_fail_context(err, status, "adapter \"%s\"", shown.data);
    buf_clear(&shown);
    return status;
}

/* ---- inspect ---- */

void adapter_print_served(Buf *out) {
    peft_print_keys(out);
    buf_putc(out, '\n');
    peft_print_config(out);
}

static json_t *tensor_json(const Tensor *t) {
    PeftKey key = peft_key_parse(t->name);
    json_t *item = json_object(), *shape = json_array();
    bool failed = !shape;
    for (int i = 0; i < t->rank; i++)
        failed |= json_array_append_new(shape, json_integer((json_int_t)t->shape[i])) != 0;
    failed |= json_object_set_new(item, "name", json_stringn(t->name.ptr, t->name.len)) != 0;
    failed |= json_object_set_new(item, "dtype", json_string(dtype_info(t->dtype)->name)) != 0;
    failed |= json_object_set_new(item, "shape", shape) != 0;
    failed |= json_object_set_new(item, "kind", json_string(peft_kind_name(key.kind))) != 0;
    if (key.module.ptr)
        failed |=
            json_object_set_new(item, "module", json_stringn(key.module.ptr, key.module.len)) != 0;
    if (failed) {
        json_decref(item);
        return NULL;
    }
    return item;
}

/* "refusal": why the config alone is refused by a load, or null. */
static LgStatus add_refusal(json_t *report, const json_t *config, LgError *err) {
    Arena arena;
    arena_init(&arena);
    PeftConfig parsed = {0};
    LgError fault = {0};
    json_t *disregarded = json_array();
    LgStatus status = disregarded ? peft_config_parse(config, &arena, disregarded, &parsed, &fault)
                                  : lg_fail_memory(&fault);
    json_t *why = status == LG_OK ? json_null() : json_string(fault.message);
    bool failed = status == LG_NO_MEMORY;
    failed |= json_object_set_new(report, "disregarded", disregarded) != 0;
    failed |= json_object_set_new(report, "refusal", why) != 0;
    peft_config_clear(&parsed);
    arena_clear(&arena);
    return failed ? lg_fail_memory(err) : LG_OK;
}

static LgStatus inspect(json_t *config, const TensorSet *tensors, json_t **out, LgError *err) {
    json_t *report = json_object(), *list = json_array();
    bool failed = !list;
    for (size_t i = 0; !failed && i < tensor_set_count(tensors); i++)
        failed = json_array_append_new(list, tensor_json(tensor_set_at(tensors, i))) != 0;
    failed |= json_object_set(report, "config", config) != 0;
    failed |= json_object_set_new(report, "tensors", list) != 0;
    LgStatus status = failed ? lg_fail_memory(err) : add_refusal(report, config, err);
    if (status != LG_OK) {
        json_decref(report);
        return status;
    }
    *out = report;
    return LG_OK;
}

LgStatus adapter_inspect(const char *dir, json_t **out, LgError *err) {
    Source source = {0};
    LgStatus status = open_source(dir, NULL, &source, err);
    if (status == LG_OK)
        status = inspect(source.config, source.tensors, out, err);
    source_close(&source);
    return status;
}
