/* PEFT adapters: from files to numbers by site, or a refusal that says why. Load = parse, plan, verify, commit: the result is whole or
 * not there. An Adapter is immutable and may be used by many threads. */
#ifndef LG_LORA_LORA_H
#define LG_LORA_LORA_H

#include <jansson.h>

#include "base/status.h"
#include "ir/adapter.h"
#include "ir/bind.h"

typedef struct Adapter Adapter;

typedef struct AdapterOptions {
    const LangProgram *program; /* after lang_rewrite_lora */
    const Binding *binding;     /* base weights: DoRA's norms, base_layer copies */
    bool store_f32;
    uint64_t bytes_max;         /* 0: no limit; more is LG_LIMIT with the bytes that it would need */
} AdapterOptions;

/* dir: adapter_config.json and adapter_model.safetensors (or shards). Every tensor is applied or the load fails. name is for messages. */
LgStatus adapter_load(const char *name, const char *dir, const AdapterOptions *o, Adapter **out, LgError *err);
void adapter_destroy(Adapter *a);

const AdapterData *adapter_data(const Adapter *a);
/* SHA-256 over the sorted tensors (name, type, shape, bytes) and what of the config changes numbers. */
const char *adapter_hash(const Adapter *a);
/* The load report: {"sites":[{"site","module","layer","rank","scale","dora"}],"disregarded":[{"what","why"}],"notes":[..],…}. Borrowed. */
const json_t *adapter_report(const Adapter *a);

/* What a folder holds, without a model: config keys and tensors, for `inspect`. *out is owned by the caller. */
LgStatus adapter_inspect(const char *dir, json_t **out, LgError *err);

/* A name that a request may use: not empty, none of / : = and no control characters, not "." or "..". */
LgStatus adapter_name_check(const char *name, LgError *err);

#endif
