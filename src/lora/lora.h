/* PEFT adapters: from files to numbers by site, or a refusal that says why. Load = parse, plan,
 * verify, commit: the result is whole or not there. An Adapter is immutable and may be used by many
 * threads. */
#ifndef LG_LORA_LORA_H
#define LG_LORA_LORA_H

#include <jansson.h>

#include "base/status.h"
#include "base/str.h"
#include "ir/adapter.h"
#include "ir/bind.h"

typedef struct Adapter Adapter;

typedef struct AdapterOptions {
    const LangProgram *program; /* after lang_rewrite_lora */
    const Binding *binding;     /* base weights: DoRA's norms, base_layer copies */
    const Config
        *config; /* the model's; GGUF adapters of Llama models need its heads. May be NULL */
    bool store_f32;
    uint64_t bytes_max; /* 0: no limit; more is LG_LIMIT with the bytes that it would need (its f32
                           arrays in memory) */
} AdapterOptions;

/* dir: a folder with adapter_config.json and adapter_model.safetensors (or shards), or with
 * adapter_model.gguf, or a .gguf file. Every tensor is applied or
 * the load fails. name is for messages. Where the config has no r (and no rank_pattern for a
 * module), the rank is the tensors'; the report notes it. */
LgStatus adapter_load(const char *name, const char *dir, const AdapterOptions *o, Adapter **out,
                      LgError *err);
void adapter_destroy(Adapter *a);

/* Empty once the numbers were released. */
const AdapterData *adapter_data(const Adapter *a);
/* Gives back the numbers' memory, where a back end has its own copy; what the adapter says of
 * itself stays: hash, report, what it refuses. adapter_report has nothing from then on. */
void adapter_release_numbers(Adapter *a);
/* The report, owned by the caller; NULL where memory failed. */
json_t *adapter_report_copy(const Adapter *a);
/* SHA-256 over the sorted tensors that act (name, type, shape, hash of the bytes) and each module's
 * rank and scale: all that changes numbers. */
const char *adapter_hash(const Adapter *a);
/* The load report:
 * {"sites":[{"site","module","layer","rank","scale","dora"}],"disregarded":[{"what","why"}],"notes":[..],
 * "replaced":[{"param","tensor","layer","rows"}],
 * "tensors":{"modules","tensors","applied","disregarded"},"bytes","hash"}. Sites of experts say
 * which ("expert") or how many ("experts": a parameter that holds all of a layer). disregarded
 * names config keys that cannot matter and copies of base weights; notes tell of alphas of 0 and
 * below, of patterns that decide nothing, of a missing r. Borrowed. */
const json_t *adapter_report(const Adapter *a);

/* Why the adapter cannot be one of `count` of a sequence at this scale; NULL: it can. */
const char *adapter_refuses(const Adapter *a, size_t count, float scale);

/* What a folder holds, without a model, for `inspect`:
 * {"config","tensors":[{"name","dtype","shape","kind","module"}], "disregarded","refusal"};
 * refusal: why the config alone would be refused, or null. *out is owned by the caller. */
LgStatus adapter_inspect(const char *dir, json_t **out, LgError *err);

/* What a file may hold, by the tables that a load goes by: tensor names and config keys, as
 * Markdown (docs/adapters.md has it). */
void adapter_print_served(Buf *out);

/* A name that a request may use: 1 to 200 bytes of UTF-8, none of / \ : = and no control
 * characters, not "." or "..". */
LgStatus adapter_name_check(const char *name, LgError *err);

#endif
