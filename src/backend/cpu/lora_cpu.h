/* Adapters on the CPU: packed by slot, routed by step, applied by every thread of the team through
 * LgpStep.lora. */
#ifndef LG_CPU_LORA_CPU_H
#define LG_CPU_LORA_CPU_H

#include "backend/cpu/levels.h"
#include "backend/cpu/lora_launch.h"
#include "ir/plan.h"
#include "ir/step.h"
#include "lang/lang.h"

typedef struct LoraTables LoraTables;

typedef struct LoraTablesOptions {
    const LangProgram *program; /* after lang_rewrite_lora; outlives the tables */
    const Plan *plan; /* of the program; NULL: adapters that replace its weights are refused */
    bool store_f32;
    const CpuLevel *level;
    int32_t threads;  /* of the team */
    int32_t rows_max; /* of a step */
} LoraTablesOptions;

/* Errors: LG_NO_MEMORY; LG_DEVICE: the level lacks a needed kernel. */
LgStatus lora_tables_create(const LoraTablesOptions *o, LoraTables **out, LgError *err);
void lora_tables_destroy(LoraTables *t);

/* Packs the adapter: nothing of it is needed behind the call. Slots
 * of removed adapters are used again. Errors: LG_BAD_INPUT: made for another program or store type,
 * or it replaces what this program shares between rows; LG_NO_MEMORY. Between steps only. */
LgStatus lora_tables_install(LoraTables *t, const AdapterData *adapter, int32_t *slot,
                             LgError *err);
void lora_tables_remove(LoraTables *t, int32_t slot); /* a slot that is not in use is left alone */
bool lora_tables_live(const LoraTables *t, int32_t slot);
uint64_t lora_tables_bytes(const LoraTables *t, int32_t slot); /* packed */

/* Sorts the step's rows by their adapters; lora_rows[d] is what LgpStep.lora_rows wants. The step
 * was checked: its slots are live. Errors: LG_BAD_INPUT for an adapter that must be alone and is
 * not. Memory grows where a step needs more than any before it. Errors:
 * LG_NO_MEMORY. Between steps only. */
LgStatus lora_route_build(LoraTables *t, const Step *step, int32_t lora_rows[2], LgError *err);
const LgpLoraRoute *lora_route(const LoraTables *t, int32_t domain);

/* LgpStep.lora; step->lora_tables is a LoraTables. */
void lora_cpu_call(const LgpStep *step, int32_t thread, const LgpLora *call);

/* The registry of a level for lora_kernels_resolve: registry is its LgpKernelTable. */
LoraHandle lora_cpu_find(const void *registry, const char *module, const char *kernel);

const LoraKernels *lora_tables_kernels(const LoraTables *t);
/* What resolution found, a line a kernel. */
LgStr lora_tables_log(const LoraTables *t);

/* Packs one site's A and B behind each other into dst (bytes: lora_site_bytes); tests and benches
 * use it too. */
uint64_t lora_site_bytes(int32_t rank, int32_t in, int32_t out, bool lookup, bool f32);
void lora_site_pack(const AdapterSite *site, int32_t in, int32_t out, bool lookup, bool f32,
                    void *dst, LgpLoraSite *to);

#endif
