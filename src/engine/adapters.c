/* Names point to immutable adapter objects; an object is freed when its name and its last sequence
 * are gone. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/internal.h"

static void object_destroy(Engine *e, AdapterObject *o) {
    if (o->slot >= 0)
        e->runner->ops->adapter_remove(e->runner, o->slot);
    adapter_destroy(o->adapter);
    lg_free(o->name);
    lg_free(o);
}

void adapter_object_release(Engine *e, AdapterObject *o) {
    o->users--;
    if (o->users == 0 && !o->named)
        object_destroy(e, o);
}

AdapterObject *adapter_object_find(const Engine *e, const char *name) {
    for (size_t i = 0; i < e->adapter_count; i++)
        if (strcmp(e->adapters[i]->name, name) == 0)
            return e->adapters[i];
    return NULL;
}

LgStatus adapter_not_found(const Engine *e, const char *name, LgError *err) {
    char names[400] = "";
    for (size_t i = 0, at = 0; i < e->adapter_count && at < sizeof names; i++)
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", i ? ", " : "",
                               e->adapters[i]->name);
    return lg_fail(err, LG_NOT_FOUND, 0, "no adapter is named \"%.200s\"; loaded: %s", name,
                   *names ? names : "none");
}

LgStatus engine_adapter_find(const Engine *e, const char *name, const Adapter **out, LgError *err) {
    AdapterObject *o = adapter_object_find(e, name);
    if (!o)
        return adapter_not_found(e, name, err);
    *out = o->adapter;
    return LG_OK;
}

static LgStatus object_create(Engine *e, const char *name, const char *dir, AdapterObject **out,
                              LgError *err) {
    AdapterObject *o = lg_calloc(1, sizeof *o);
    if (!o)
        return lg_fail_memory(err);
    o->slot = -1;
    AdapterOptions options = {
        .program = e->model.program, .binding = e->model.binding, .store_f32 = e->store_f32};
    size_t len = strlen(name) + 1;
    LgStatus status = adapter_load(name, dir, &options, &o->adapter, err);
    if (status == LG_OK) {
        o->name = lg_alloc(len);
        status = o->name ? LG_OK : lg_fail_memory(err);
    }
    if (status == LG_OK) {
        memcpy(o->name, name, len);
        status =
            e->runner->ops->adapter_install(e->runner, adapter_data(o->adapter), &o->slot, err);
    }
    if (status != LG_OK) {
        object_destroy(e, o);
        return status;
    }
    *out = o;
    return LG_OK;
}

LgStatus engine_adapter_load(Engine *e, const char *name, const char *dir, LgError *err) {
    LG_TRY(adapter_name_check(name, err));
    if (strcmp(name, e->runner->provenance.model) == 0)
        return lg_fail(err, LG_CONFLICT, 0, "adapter \"%s\": that is the name of the base model",
                       name);
    if (adapter_object_find(e, name))
        return lg_fail(err, LG_CONFLICT, 0, "adapter \"%s\": the name is taken; unload it first",
                       name);
    if (e->adapter_count == e->adapter_cap) {
        size_t cap = e->adapter_cap ? e->adapter_cap * 2 : 8;
        AdapterObject **list = lg_realloc(e->adapters, cap * sizeof(AdapterObject *));
        if (!list)
            return lg_fail_memory(err);
        e->adapters = list;
        e->adapter_cap = cap;
    }
    AdapterObject *o = NULL;
    LG_TRY(object_create(e, name, dir, &o, err));
    o->named = true;
    e->adapters[e->adapter_count++] = o;
    return LG_OK;
}

LgStatus engine_adapter_unload(Engine *e, const char *name, LgError *err) {
    for (size_t i = 0; i < e->adapter_count; i++) {
        AdapterObject *o = e->adapters[i];
        if (strcmp(o->name, name) != 0)
            continue;
        memmove(&e->adapters[i], &e->adapters[i + 1],
                (e->adapter_count - i - 1) * sizeof(AdapterObject *));
        e->adapter_count--;
        o->named = false;
        if (o->users == 0)
            object_destroy(e, o);
        return LG_OK;
    }
    return adapter_not_found(e, name, err);
}
