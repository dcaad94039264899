// y = bf16(fmaf(scale, delta, y)), delta in f32.
#include "lora.cuh"

LG_KERNEL(LG_THREADS) bf16_scaled_add(const __grid_constant__ LgcScaledAdd p) {
    const int groups = (p.n + 7) / 8;
    const bool wide = lg_wide16(p.y, p.y_stride);
    lg_wait_before();
    lg_let_next();
    for (i64 i = (i64)blockIdx.x * LG_THREADS + threadIdx.x; i < (i64)p.rows * groups; i += (i64)gridDim.x * LG_THREADS) {
        const i64 row = i / groups;
        const int out = (int)(i % groups) * 8, count = p.n - out;
        bf16 *y = (bf16 *)p.y + row * p.y_stride + out;
        const float *delta = (const float *)p.delta + row * p.delta_stride + out;
        Y8 v = lg_unpack(lg_load_y(y, count, wide));
#pragma unroll
        for (int j = 0; j < 8; j++)
            v.v[j] = __fmaf_rn(p.scale, j < count ? delta[j] : 0.0f, v.v[j]);
        lg_store_y(y, count, wide, v);
    }
}
