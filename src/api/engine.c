/* Engines and adapters of the public interface: argument checks, then the engine below. */
#include <string.h>

#include "api/internal.h"
#include "base/json.h"
#include "base/mem.h"

void lg_free_memory(void *p) {
    lg_free(p);
}

const char *lg_version(void) {
    return "0.1.0";
}

void lg_engine_options_init(LgEngineOptions *options) {
    if (options)
        memset(options, 0, sizeof *options);
}

LgStatus lg_engine_open(const LgEngineOptions *options, LgEngine **out, LgError *error) {
    API_NEED(options);
    API_NEED(out);
    lg_mem_install_hooks();
    LgEngine *e = lg_calloc(1, sizeof *e);
    if (!e)
        return lg_fail_memory(error);
    LgStatus status = engine_open(options, &e->engine, error);
    if (status != LG_OK) {
        lg_free(e);
        return status;
    }
    *out = e;
    return LG_OK;
}

void lg_engine_close(LgEngine *engine) {
    if (!engine)
        return;
    for (LgSequence *s = engine->first; s; s = s->next) {
        s->sequence = NULL;
        s->engine = NULL;
    }
    engine_close(engine->engine);
    tokenizer_destroy(engine->tokenizer);
    chat_set_clear(&engine->chat);
    lg_free(engine);
}

LgStatus api_json_text(json_t *value, char **out, LgError *err) {
    Buf printed;
    buf_init(&printed);
    lg_json_print(value, JSON_COMPACT | JSON_REAL_PRECISION(9), &printed);
    char *text = buf_take(&printed);
    json_decref(value);
    if (!text)
        return lg_fail_memory(err);
    *out = text;
    return LG_OK;
}

LgStatus lg_engine_describe(const LgEngine *engine, char **json, LgError *error) {
    API_NEED(engine);
    API_NEED(json);
    const Runner *r = engine_runner(engine->engine);
    const Model *m = engine_model(engine->engine);
    const LgTiming *t = engine_timing(engine->engine);
    json_t *o =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:f, s:f}", "provenance",
                  provenance_text(r->provenance.kind), "model", r->provenance.model, "backend",
                  r->ops->backend, "level", r->level ? r->level : "", "digest", r->digest, "store",
                  engine_store_f32(engine->engine) ? "f32" : "bf16", "vocab", r->vocab, "context",
                  engine_context(engine->engine), "load_s", t->load_s, "compile_s", t->compile_s);
    json_t *disregarded = json_array();
    bool made = disregarded != NULL;
    for (int i = 0; made && m->binding && i < m->binding->disregarded_count; i++) {
        LgStr name = m->binding->disregarded[i];
        made = json_array_append_new(disregarded, json_stringn(name.ptr, name.len)) == 0;
    }
    made = json_object_set_new(o, "disregarded", disregarded) == 0 && made;
    if (r->note)
        made = json_object_set_new(o, "note", json_string(r->note)) == 0 && made;
    if (!made) {
        json_decref(o);
        o = NULL;
    }
    return api_json_text(o, json, error);
}

int32_t lg_engine_vocab(const LgEngine *engine) {
    return engine ? engine_runner(engine->engine)->vocab : 0;
}

int32_t lg_engine_context(const LgEngine *engine) {
    return engine ? engine_context(engine->engine) : 0;
}

LgStatus lg_adapter_load(LgEngine *engine, const char *name, const char *dir, LgError *error) {
    API_NEED(engine);
    API_NEED(name);
    API_NEED(dir);
    return engine_adapter_load(engine->engine, name, dir, error);
}

LgStatus lg_adapter_unload(LgEngine *engine, const char *name, LgError *error) {
    API_NEED(engine);
    API_NEED(name);
    return engine_adapter_unload(engine->engine, name, error);
}

LgStatus lg_adapter_replace(LgEngine *engine, const char *name, const char *dir, LgError *error) {
    API_NEED(engine);
    API_NEED(name);
    API_NEED(dir);
    return engine_adapter_replace(engine->engine, name, dir, error);
}

LgStatus lg_adapter_pin(LgEngine *engine, const char *name, bool pinned, LgError *error) {
    API_NEED(engine);
    API_NEED(name);
    return engine_adapter_pin(engine->engine, name, pinned, error);
}

static json_t *adapter_json(const AdapterInfo *a) {
    json_t *o = json_object();
    bool made = json_object_set_new(o, "name", json_string(a->name)) == 0;
    made = json_object_set_new(o, "dir", json_string_nocheck(a->dir)) == 0 && made;
    made = json_object_set_new(o, "hash", json_string(a->hash)) == 0 && made;
    made =
        json_object_set_new(o, "state", json_string(a->resident ? "memory" : "disk")) == 0 && made;
    made = json_object_set_new(o, "bytes", json_integer((json_int_t)a->bytes)) == 0 && made;
    made = json_object_set_new(o, "sequences", json_integer(a->users)) == 0 && made;
    made = json_object_set_new(o, "pinned", json_boolean(a->pinned)) == 0 && made;
    made = json_object_set_new(o, "named", json_boolean(a->named)) == 0 && made;
    if (made)
        return o;
    json_decref(o);
    return NULL;
}

LgStatus lg_adapter_list(const LgEngine *engine, char **json, LgError *error) {
    API_NEED(engine);
    API_NEED(json);
    json_t *list = json_array();
    AdapterInfo info;
    for (size_t i = 0; list && engine_adapter_at(engine->engine, i, &info); i++)
        if (json_array_append_new(list, adapter_json(&info)) != 0) {
            json_decref(list);
            list = NULL;
        }
    return api_json_text(list, json, error);
}

LgStatus lg_adapter_report(const LgEngine *engine, const char *name, char **json, LgError *error) {
    API_NEED(engine);
    API_NEED(name);
    API_NEED(json);
    const Adapter *a;
    LG_TRY(engine_adapter_find(engine->engine, name, &a, error));
    return api_json_text(adapter_report_copy(a), json, error);
}

void lg_engine_timing(const LgEngine *engine, LgTiming *out) {
    if (engine && out)
        *out = *engine_timing(engine->engine);
}

void lg_engine_default_sampling(const LgEngine *engine, LgSampling *out) {
    if (engine && out)
        *out = engine_model(engine->engine)->sampling;
}
