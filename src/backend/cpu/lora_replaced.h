/* What an adapter has in the place of a program's weights: vectors and rows of tables by their
 * places in the weight table, matrices by adapter site. */
#ifndef LG_CPU_LORA_REPLACED_H
#define LG_CPU_LORA_REPLACED_H

#include "ir/adapter.h"
#include "ir/plan.h"
#include "kernels/cpu/lora.h"

typedef struct LoraReplaced {
    const void **by_weight; /* [plan->weight_total]; NULL: nothing is replaced */
    LgpRows *rows;          /* of tables and matrices */
    int32_t *ids;
    void *memory;
    uint64_t bytes;
} LoraReplaced;

/* Copies all that the adapter replaces; sites ([layer * site_count + site]) learn of matrices. plan
 * NULL: an adapter that replaces anything is refused. Errors: LG_BAD_INPUT where the program uses a
 * param in a way that an adapter cannot replace; LG_NO_MEMORY. */
LgStatus lora_replaced_build(const Plan *plan, const AdapterData *a, LgpLoraSite *sites,
                             LoraReplaced *out, LgError *err);
void lora_replaced_free(LoraReplaced *r);

#endif
