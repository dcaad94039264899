/* A program's weights on the device: the plan's weight table, matrices as stored (bf16), as codes
 * with a scale for each run (block formats) or as f32, vectors and tables beside them. */
#ifndef LG_CUDA_WEIGHTS_H
#define LG_CUDA_WEIGHTS_H

#include "backend/cuda/device.h"
#include "ir/bind.h"
#include "ir/plan.h"

typedef struct CudaWeights {
    CudaPtr table; /* [plan->weight_total] LgcWeight */
    CudaPtr memory;
    uint64_t bytes;
    uint8_t *formats; /* [plan->weight_total] LGC_*, on the host */
} CudaWeights;

/* Errors: LG_NO_MEMORY, naming bytes; LG_BAD_INPUT for what cannot be looked up by row. */
LgStatus cuda_weights_load(const CudaDevice *d, const Plan *plan, const Binding *binding,
                           void *stream, CudaWeights *out, LgError *err);
void cuda_weights_clear(const CudaDevice *d, CudaWeights *w);

#endif
