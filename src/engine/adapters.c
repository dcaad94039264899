/* Names point to immutable adapter objects; an object is freed when its name and its last sequence
 * are gone. Where memory for adapters is limited, the numbers of those that were used longest ago
 * go, and are read again from their folders when a sequence asks for them: a hash says whether they
 * are still the same. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/internal.h"

/* ---- objects ---- */

static void object_destroy(Engine *e, AdapterObject *o) {
    if (o->slot >= 0)
        e->runner->ops->adapter_remove(e->runner, o->slot);
    adapter_destroy(o->adapter);
    lg_free(o->name);
    lg_free(o->dir);
    lg_free(o);
}

/* Out of the list, and freed. */
static void object_drop(Engine *e, AdapterObject *o) {
    size_t at = 0;
    while (e->adapters[at] != o)
        at++;
    memmove(&e->adapters[at], &e->adapters[at + 1],
            (e->adapter_count - at - 1) * sizeof(AdapterObject *));
    e->adapter_count--;
    object_destroy(e, o);
}

void adapter_object_release(Engine *e, AdapterObject *o) {
    o->users--;
    if (o->users == 0 && !o->named)
        object_drop(e, o);
}

static void object_unname(Engine *e, AdapterObject *o) {
    o->named = false;
    o->pinned = false;
    if (o->users == 0)
        object_drop(e, o);
}

void adapters_close(Engine *e) {
    for (size_t i = 0; i < e->adapter_count; i++)
        object_destroy(e, e->adapters[i]);
    lg_free(e->adapters);
    e->adapters = NULL;
    e->adapter_count = 0;
}

AdapterObject *adapter_object_find(const Engine *e, const char *name) {
    for (size_t i = 0; i < e->adapter_count; i++)
        if (e->adapters[i]->named && strcmp(e->adapters[i]->name, name) == 0)
            return e->adapters[i];
    return NULL;
}

LgStatus adapter_not_found(const Engine *e, const char *name, LgError *err) {
    char names[400] = "";
    for (size_t i = 0, at = 0; i < e->adapter_count && at < sizeof names; i++)
        if (e->adapters[i]->named)
            at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", at ? ", " : "",
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

/* ---- numbers in memory ---- */

static uint64_t object_bytes(const Engine *e, const AdapterObject *o) {
    return o->slot >= 0 ? e->runner->ops->adapter_bytes(e->runner, o->slot) : 0;
}

static void move_to_disk(Engine *e, AdapterObject *o) {
    e->runner->ops->adapter_remove(e->runner, o->slot);
    o->slot = -1;
    adapter_release_numbers(o->adapter);
}

/* What was used longest ago goes first, until the rest fits; `keep`, pinned ones and those that
 * sequences use stay. False: they do not fit even so. */
static bool make_room(Engine *e, const AdapterObject *keep) {
    for (;;) {
        AdapterObject *oldest = NULL;
        uint64_t bytes = keep ? object_bytes(e, keep) : 0;
        for (size_t i = 0; i < e->adapter_count; i++) {
            AdapterObject *o = e->adapters[i];
            if (o == keep || o->slot < 0)
                continue;
            bytes += object_bytes(e, o);
            if (!o->users && !o->pinned && (!oldest || o->used < oldest->used))
                oldest = o;
        }
        if (!e->adapter_bytes_max || bytes <= e->adapter_bytes_max)
            return true;
        if (!oldest)
            return false;
        move_to_disk(e, oldest);
    }
}

/* Its numbers go to the runner, and others may go to disk for them. */
static LgStatus install(Engine *e, AdapterObject *o, Adapter *fresh, LgError *err) {
    LG_TRY(e->runner->ops->adapter_install(e->runner, adapter_data(fresh), &o->slot, err));
    if (!make_room(e, o)) {
        LgStatus status =
            lg_fail(err, LG_LIMIT, 0,
                    "adapter \"%s\" needs %llu bytes; adapters may have %llu, and what "
                    "is pinned or in use leaves no such room",
                    o->name, (unsigned long long)object_bytes(e, o),
                    (unsigned long long)e->adapter_bytes_max);
        e->runner->ops->adapter_remove(e->runner, o->slot);
        o->slot = -1;
        return status;
    }
    if (e->runner->ops->adapter_copied)
        adapter_release_numbers(fresh);
    o->used = ++e->adapter_uses;
    return LG_OK;
}

static LgStatus read_folder(const Engine *e, const AdapterObject *o, Adapter **out, LgError *err) {
    AdapterOptions options = {.program = e->model.program,
                              .binding = e->model.binding,
                              .config = checkpoint_config(e->model.checkpoint),
                              .store_f32 = e->store_f32};
    return adapter_load(o->name, o->dir, &options, out, err);
}

static LgStatus bring_back(Engine *e, AdapterObject *o, LgError *err) {
    Adapter *fresh = NULL;
    LG_TRY(read_folder(e, o, &fresh, err));
    LgStatus status = LG_OK;
    if (strcmp(adapter_hash(fresh), adapter_hash(o->adapter)) != 0)
        status = lg_fail(err, LG_CONFLICT, 0,
                         "adapter \"%s\": its folder holds another adapter than it did when it was "
                         "loaded; replace it to use that one",
                         o->name);
    if (status == LG_OK)
        status = install(e, o, fresh, err);
    if (status != LG_OK) {
        adapter_destroy(fresh);
        return status;
    }
    adapter_destroy(o->adapter);
    o->adapter = fresh;
    return LG_OK;
}

LgStatus adapter_object_acquire(Engine *e, AdapterObject *o, LgError *err) {
    if (o->slot < 0)
        LG_TRY(bring_back(e, o, err));
    o->used = ++e->adapter_uses;
    o->users++;
    return LG_OK;
}

/* ---- names ---- */

static char *copy_text(const char *text) {
    size_t bytes = strlen(text) + 1;
    char *copy = lg_alloc(bytes);
    if (copy)
        memcpy(copy, text, bytes);
    return copy;
}

static LgStatus object_create(Engine *e, const char *name, const char *dir, AdapterObject **out,
                              LgError *err) {
    AdapterObject *o = lg_calloc(1, sizeof *o);
    if (!o)
        return lg_fail_memory(err);
    o->slot = -1;
    o->name = copy_text(name);
    o->dir = copy_text(dir);
    LgStatus status = o->name && o->dir ? LG_OK : lg_fail_memory(err);
    if (status == LG_OK)
        status = read_folder(e, o, &o->adapter, err);
    if (status == LG_OK)
        status = install(e, o, o->adapter, err);
    if (status != LG_OK) {
        object_destroy(e, o);
        return status;
    }
    *out = o;
    return LG_OK;
}

/* A new object behind the others; the name is its own from now on. */
static LgStatus object_add(Engine *e, const char *name, const char *dir, LgError *err) {
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

LgStatus engine_adapter_load(Engine *e, const char *name, const char *dir, LgError *err) {
    LG_TRY(adapter_name_check(name, err));
    if (strcmp(name, e->runner->provenance.model) == 0)
        return lg_fail(err, LG_CONFLICT, 0, "adapter \"%s\": that is the name of the base model",
                       name);
    if (adapter_object_find(e, name))
        return lg_fail(err, LG_CONFLICT, 0,
                       "adapter \"%s\": the name is taken; unload or replace it", name);
    return object_add(e, name, dir, err);
}

LgStatus engine_adapter_replace(Engine *e, const char *name, const char *dir, LgError *err) {
    AdapterObject *old = adapter_object_find(e, name);
    if (!old)
        return adapter_not_found(e, name, err);
    bool pinned = old->pinned;
    LG_TRY(object_add(e, name, dir, err));
    e->adapters[e->adapter_count - 1]->pinned = pinned;
    object_unname(e, old);
    return LG_OK;
}

LgStatus engine_adapter_unload(Engine *e, const char *name, LgError *err) {
    AdapterObject *o = adapter_object_find(e, name);
    if (!o)
        return adapter_not_found(e, name, err);
    object_unname(e, o);
    return LG_OK;
}

LgStatus engine_adapter_pin(Engine *e, const char *name, bool pinned, LgError *err) {
    AdapterObject *o = adapter_object_find(e, name);
    if (!o)
        return adapter_not_found(e, name, err);
    if (pinned && o->slot < 0)
        LG_TRY(bring_back(e, o, err));
    o->pinned = pinned;
    return LG_OK;
}

bool engine_adapter_at(const Engine *e, size_t index, AdapterInfo *out) {
    if (index >= e->adapter_count)
        return false;
    const AdapterObject *o = e->adapters[index];
    *out = (AdapterInfo){.name = o->name,
                         .dir = o->dir,
                         .hash = adapter_hash(o->adapter),
                         .bytes = object_bytes(e, o),
                         .users = o->users,
                         .named = o->named,
                         .resident = o->slot >= 0,
                         .pinned = o->pinned};
    return true;
}
