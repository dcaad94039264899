/* Adapters of a compiled CUDA program: slots of packed numbers, a table of records for each adapter
 * call of the program, the route of a step. */
#ifndef LG_CUDA_ADAPTERS_H
#define LG_CUDA_ADAPTERS_H

#include "backend/cuda/lora_cuda.h"
#include "ir/plan.h"
#include "ir/step.h"

typedef struct CudaAdapters CudaAdapters;

typedef struct CudaAdaptersOptions {
    const CudaDevice *device;
    const Plan *plan;
    LoraKernels kernels;
    void *stream;
    CudaPtr arena; /* of the plan's values */
    int rows_max;
} CudaAdaptersOptions;

LgStatus cuda_adapters_create(const CudaAdaptersOptions *o, CudaAdapters **out, LgError *err);
void cuda_adapters_destroy(CudaAdapters *a);

/* Errors: LG_BAD_INPUT: made for another program, or of a form that this back end does not serve
 * yet, naming site and form; LG_LIMIT: no slot is free; LG_NO_MEMORY. */
LgStatus cuda_adapters_install(CudaAdapters *a, const AdapterData *data, int32_t *slot,
                               LgError *err);
void cuda_adapters_remove(CudaAdapters *a, int32_t slot);
bool cuda_adapters_live(const CudaAdapters *a, int32_t slot);
uint64_t cuda_adapters_bytes(const CudaAdapters *a, int32_t slot);
/* Changes when recorded launches no longer hold. */
uint64_t cuda_adapters_generation(const CudaAdapters *a);

/* The route of a step in a bucket of rows; *adapted: whether any row has an adapter. */
LgStatus cuda_adapters_route(CudaAdapters *a, const Step *step, int bucket, bool *adapted,
                             LgError *err);
/* The adapter calls behind a launch of the plan, for that bucket. */
LgStatus cuda_adapters_apply(CudaAdapters *a, int launch, int layer, int bucket, LgError *err);

#endif
