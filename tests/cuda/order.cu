// Which sums do the matrix units make? One 16 x 8 result (wgmma: 64 x 8) over K, the same operands in several orders.
#include "lg_cuda.cuh"

// mma.sync, a lane's registers as the instruction's manual lays them out (k = 2t, 2t + 1, 2t + 8, 2t + 9), or as lg_mma has them (k = 4t .. 4t + 3).
LG_DEV void run_mma(const bf16 *x, const bf16 *w, float *out, int steps, int wide) {
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;
    float c[4] = {0, 0, 0, 0};
    for (int s = 0; s < steps; s++) {
        const int k = s * 16, n = steps * 16, p = wide ? 4 * t : 2 * t, q = wide ? 4 * t + 2 : 2 * t + 8;
        const u32 a0 = *(const u32 *)(x + g * n + k + p), a1 = *(const u32 *)(x + (g + 8) * n + k + p);
        const u32 a2 = *(const u32 *)(x + g * n + k + q), a3 = *(const u32 *)(x + (g + 8) * n + k + q);
        lg_mma(c, make_uint2(a0, a2), make_uint2(a1, a3), make_uint2(*(const u32 *)(w + g * n + k + p), *(const u32 *)(w + g * n + k + q)));
    }
    out[g * 8 + 2 * t] = c[0];
    out[g * 8 + 2 * t + 1] = c[1];
    out[(g + 8) * 8 + 2 * t] = c[2];
    out[(g + 8) * 8 + 2 * t + 1] = c[3];
}
LG_KERNEL(32) order_manual(const bf16 *x, const bf16 *w, float *out, int steps) { run_mma(x, w, out, steps, 0); }
LG_KERNEL(32) order_lanes(const bf16 *x, const bf16 *w, float *out, int steps) { run_mma(x, w, out, steps, 1); }

// The operands' places changed: outputs as rows. w has 8 rows; x as columns 0 .. 7 and 8 .. 15 one after the other.
LG_KERNEL(32) order_swapped(const bf16 *x, const bf16 *w, float *out, int steps) {
    const int g = threadIdx.x / 4, t = threadIdx.x % 4, n = steps * 16;
    for (int h = 0; h < 2; h++) {
        float c[4] = {0, 0, 0, 0};
        for (int s = 0; s < steps; s++) {
            const uint2 a = *(const uint2 *)(w + g * n + s * 16 + 4 * t), none = make_uint2(0, 0);
            lg_mma(c, a, none, *(const uint2 *)(x + (h * 8 + g) * n + s * 16 + 4 * t));
        }
        out[(h * 8 + 2 * t) * 8 + g] = c[0];
        out[(h * 8 + 2 * t + 1) * 8 + g] = c[1];
    }
}

// wgmma m64n8k16, both operands in shared memory without swizzling: core matrices of 8 rows of 16 bytes.
#if __CUDA_ARCH__ == 900
LG_DEV u64 descriptor(const void *p, int lead, int stride) {
    return ((u64)lg_shared(p) >> 4 & 0x3fff) | (u64)(lead >> 4 & 0x3fff) << 16 | (u64)(stride >> 4 & 0x3fff) << 32;
}
LG_KERNEL(128) order_wgmma(const bf16 *x, const bf16 *w, float *out, int steps) {
    __shared__ __align__(128) bf16 a[64 * 16], b[8 * 16];
    const int n = steps * 16, warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float c[4] = {0, 0, 0, 0};
    for (int s = 0; s < steps; s++) {
        __syncthreads();
        for (int i = threadIdx.x; i < 64 * 16; i += 128) {
            const int row = i / 16, k = i % 16;
            a[((row / 8 * 2 + k / 8) * 8 + row % 8) * 8 + k % 8] = row < 16 ? x[row * n + s * 16 + k] : 0;
            if (row < 8)
                b[(k / 8 * 8 + row) * 8 + k % 8] = w[row * n + s * 16 + k];
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "l"(descriptor(a, 128, 256)), "l"(descriptor(b, 128, 256)));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
    if (warp == 0) {
        out[g * 8 + 2 * t] = c[0];
        out[g * 8 + 2 * t + 1] = c[1];
        out[(g + 8) * 8 + 2 * t] = c[2];
        out[(g + 8) * 8 + 2 * t + 1] = c[3];
    }
}
#endif
