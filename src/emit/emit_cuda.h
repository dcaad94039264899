/* A plan as one CUDA C file: a kernel a launch, and one for what is done to the tiles of a launch
 * of products. Kernels take (const LgcStep *step, int layer): kernels/cuda/common/step_abi.h. */
#ifndef LG_EMIT_EMIT_CUDA_H
#define LG_EMIT_EMIT_CUDA_H

#include "stages/stages.h"

/* Errors: LG_BAD_INPUT (a stage that CUDA has no kernel for), LG_NO_MEMORY. */
LgStatus emit_cuda(const Plan *plan, Buf *out, LgError *err);

#define EMIT_CUDA_NAME_MAX 160
/* The name of a launch's kernel, and of the one behind it (tile); false: there is no such kernel.
 */
bool emit_cuda_name(const Plan *plan, int launch, bool tile, char name[EMIT_CUDA_NAME_MAX]);

/* How many blocks a launch has, (x, y), for so many rows of its domain. */
typedef struct EmitCudaGrid {
    uint32_t x, y, threads;
} EmitCudaGrid;
EmitCudaGrid emit_cuda_grid(const Plan *plan, int launch, bool tile, uint32_t rows);
/* Whether a value of the program lies as bf16 (else f32, or int). */
bool emit_cuda_bf16(const Plan *plan, int tensor);
/* Rows are those of the step (0), those that it samples (1), or one (2). */
int emit_cuda_domain(const Plan *plan, int launch);

#endif
