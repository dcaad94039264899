// y = W x for one row: 32 outputs a block where K has many chunks (a warp each, added in order), 256 where it has one.
#include "lora.cuh"

LG_KERNEL(LG_THREADS) dense_gemv_bf16(const __grid_constant__ LgcDense p) {
    __shared__ Parts parts;
    LgcDense one = p;
    one.rows = 1;
    lg_dense(one, p.f32 ? LG_DELTA : LG_LOW, Direct(), 1, parts);
}
