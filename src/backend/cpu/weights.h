/* The weight table of a program: matrices packed in the kernels' order, vectors as f32, tables as
 * the file holds them. */
#ifndef LG_CPU_WEIGHTS_H
#define LG_CPU_WEIGHTS_H

#include "backend/cpu/team.h"
#include "base/arena.h"
#include "ir/bind.h"
#include "ir/plan.h"
#include "kernels/cpu/abi.h"

typedef struct WeightMemory {
    LgpWeight *table; /* [plan->weight_total]; in the arena that weights_load was given */
    void *data;       /* packed matrices, vectors */
    uint64_t bytes;
    uint32_t formats; /* of its matrices: bit LGP_* */
    void **repacked;  /* matrices that did not fit their format, each on its own; the list is in the
                         arena */
    int repacked_count;
} WeightMemory;

/* Packs on the whole team. Tables borrow the binding's tensors. Errors: LG_NO_MEMORY, LG_BAD_INPUT
 * (a type or a storage that the CPU has no kernel for). */
LgStatus weights_load(const Plan *plan, const Binding *binding, Team *team, Arena *arena,
                      WeightMemory *out, LgError *err);
void weights_clear(WeightMemory *w);

#endif
