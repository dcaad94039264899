// y = x Wᵀ for many rows, operands straight from memory.
#include "lora.cuh"

LG_KERNEL_OF(LG_THREADS, 2) dense_gemm_bf16(const __grid_constant__ LgcDense p) {
    __shared__ Parts parts;
    lg_dense(p, p.f32 ? LG_DELTA : LG_LOW, Direct(), 1, parts);
}
