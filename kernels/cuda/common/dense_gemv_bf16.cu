// y = W x for one row. A warp has 8 outputs of one chunk of K; the chunks of an output are warps of one block, and are added in order.
#include "lora.cuh"

#define GEMV_WARPS 32

LG_KERNEL(32 * GEMV_WARPS) dense_gemv_bf16(const __grid_constant__ LgcDense p) {
    __shared__ float parts[GEMV_WARPS > LGC_CHUNKS ? GEMV_WARPS : LGC_CHUNKS][8];
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int chunks = lgc_chunks(p.k), each = lgc_chunk_steps(p.k), steps = (p.k + 15) / 16;
    const int across = chunks < GEMV_WARPS ? GEMV_WARPS / chunks : 1;
    lg_let_next();
    lg_wait_before();
    for (int i = warp; i < across * chunks; i += GEMV_WARPS) {
        float c[1][4];
        const int chunk = i % chunks, to = (chunk + 1) * each;
        const Row w[1] = {lg_dense_w(p, (blockIdx.x * across + i / chunks) * 8 + g)};
        const Row x = g == 0 ? lg_dense_x(p, 0) : lg_no_row();
        if (lg_dense_wide(p))
            lg_chunk<true, 1, 8>(c, x, lg_no_row(), w, chunk * each, to < steps ? to : steps);
        else
            lg_chunk<false, 1, 1>(c, x, lg_no_row(), w, chunk * each, to < steps ? to : steps);
        if (g == 0) {
            parts[i][2 * t] = c[0][0];
            parts[i][2 * t + 1] = c[0][1];
        }
    }
    __syncthreads();
    if (threadIdx.x < across * 8) {
        float sum = 0.0f;
        for (int i = 0; i < chunks; i++)
            sum += parts[threadIdx.x / 8 * chunks + i][threadIdx.x % 8];
        lg_dense_store(p, p.f32 ? LG_DELTA : LG_LOW, 0, blockIdx.x * across * 8 + threadIdx.x, sum);
    }
}
