/* A plan as one CUDA C file: a kernel a launch, and one for what is done to the tiles of a launch
 * of products. Kernels take (const LgcStep *step, int layer): kernels/cuda/common/step_abi.h. */
#ifndef LG_EMIT_EMIT_CUDA_H
#define LG_EMIT_EMIT_CUDA_H

#include "stages/stages.h"

/* Errors: LG_BAD_INPUT (a stage that CUDA has no kernel for), LG_NO_MEMORY. */
LgStatus emit_cuda(const Plan *plan, Buf *out, LgError *err);

/* A launch has up to six kernels. Of a launch of products: LAUNCH, for up to 16 rows, LAUNCH32, for
 * more, or MANY, for many; TILE, what is done to their results, behind adapters; FUSED and FUSED32,
 * products and that in one, where no row has an adapter. Whichever run, results have the same bits.
 */
typedef enum EmitCudaKernel {
    CUDA_LAUNCH,
    CUDA_LAUNCH32,
    CUDA_TILE,
    CUDA_FUSED,
    CUDA_FUSED32,
    CUDA_MANY,
    CUDA_KERNELS
} EmitCudaKernel;

#define EMIT_CUDA_NAME_MAX 160
bool emit_cuda_has(const Plan *plan, int launch, EmitCudaKernel kernel);
void emit_cuda_name(const Plan *plan, int launch, EmitCudaKernel kernel,
                    char name[EMIT_CUDA_NAME_MAX]);

/* Blocks (x, y) for so many rows of the launch's domain, threads of a block, and the shared memory
 * that it asks for. */
typedef struct EmitCudaGrid {
    uint32_t x, y, threads, shared;
} EmitCudaGrid;
EmitCudaGrid emit_cuda_grid(const Plan *plan, int launch, EmitCudaKernel kernel, uint32_t rows);

/* Whether a value of the program lies as bf16 (else f32, or int). */
bool emit_cuda_bf16(const Plan *plan, int tensor);
/* Rows are those of the step (0), those that it samples (1), or one (2). */
int emit_cuda_domain(const Plan *plan, int launch);

#endif
