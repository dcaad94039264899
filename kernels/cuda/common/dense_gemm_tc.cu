// y = x Wᵀ, and y = bf16(fmaf(scale, x Wᵀ, y)): each warp keeps a queue of operands of its own in shared memory, filled by cp.async, so that it waits for
// nobody and has more on its way than registers could hold.
#include "lora.cuh"

#define STAGES 4
#define STAGE_STEPS 4                     // of K, 128 bytes a row
#define STAGE_ROWS 32                     // 16 of x, 16 of W
#define STAGE_BYTES (STAGE_ROWS * 128)
#define QUEUE_BYTES (STAGES * STAGE_BYTES) // of a warp

// Pieces of 16 bytes change places within their row, so that the 8-byte reads of half a warp touch every bank once.
LG_DEV int piece_at(int row, int piece) { return row * 128 + (piece ^ (row & 3) << 1) * 16; }

struct Queued {
    u32 base; // of this warp's queue

    // Rows of 16-byte pieces only: others are read as Direct reads them.
    LG_IN void fill(const LgcDense &p, int row0, int out0, int step, int to, int stage) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < STAGE_ROWS * 8 / 32; i++) {
            const int at = i * 32 + lane, row = at / 8, piece = at % 8, k = step * 16 + piece * 8;
            const int end = to * 16 < p.k ? to * 16 : p.k;
            int valid = end - k < 0 ? 0 : end - k < 8 ? (end - k) * 2 : 16;
            const bf16 *from = (const bf16 *)p.x;
            if (row < 16) {
                valid = row0 + row < p.rows ? valid : 0;
                if (valid)
                    from += (row0 + row) * p.x_stride + k;
            } else {
                valid = out0 + row - 16 < p.n ? valid : 0;
                if (valid)
                    from = (const bf16 *)p.w + (out0 + row - 16) * p.w_stride + k;
            }
            lg_copy16(base + stage * STAGE_BYTES + piece_at(row, piece), from, valid);
        }
    }

    LG_IN uint2 read(int stage, int row, int step) {
        const int t = threadIdx.x % 4;
        uint2 v;
        asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];"
                     : "=r"(v.x), "=r"(v.y)
                     : "r"(base + stage * STAGE_BYTES + piece_at(row, 2 * step + t / 2) + t % 2 * 8)
                     : "memory");
        return v;
    }

    LG_IN void chunk(float (&c)[2][4], const LgcDense &p, int row0, int out0, int from, int to) {
        const bool pieces = lg_wide16(p.x, p.x_stride) && lg_wide16(p.w, p.w_stride) && p.k % 8 == 0;
        if (!pieces) {
            Direct().chunk(c, p, row0, out0, from, to);
            return;
        }
        const int g = threadIdx.x % 32 / 4, stages = (to - from + STAGE_STEPS - 1) / STAGE_STEPS;
        lg_zero(c);
#pragma unroll
        for (int i = 0; i < STAGES - 1; i++) {
            if (i < stages)
                fill(p, row0, out0, from + i * STAGE_STEPS, to, i);
            lg_copy_commit();
        }
        for (int i = 0; i < stages; i++) {
            const int next = i + STAGES - 1;
            if (next < stages)
                fill(p, row0, out0, from + next * STAGE_STEPS, to, next % STAGES);
            lg_copy_commit();
            lg_copy_wait<STAGES - 1>();
            __syncwarp();
#pragma unroll
            for (int s = 0; s < STAGE_STEPS; s++) {
                if (from + i * STAGE_STEPS + s >= to)
                    break;
                const uint2 low = read(i % STAGES, g, s), high = read(i % STAGES, g + 8, s);
#pragma unroll
                for (int j = 0; j < 2; j++)
                    lg_mma(c[j], low, high, read(i % STAGES, 16 + 8 * j + g, s));
            }
            __syncwarp();
        }
        lg_copy_wait<0>();
        __syncwarp();
    }
};

// Dynamic shared memory: LG_WARPS queues, and behind them the parts.
extern __shared__ __align__(128) unsigned char memory[];

LG_DEV void gemm(const LgcDense &p, int what) {
    Queued queue = {lg_shared(memory) + threadIdx.x / 32 * QUEUE_BYTES};
    lg_dense(p, what, queue, lgc_chunks(p.k) == 1 ? 4 : 1, *(Parts *)(memory + LG_WARPS * QUEUE_BYTES));
}

LG_KERNEL(LG_THREADS) dense_gemm_tc(const __grid_constant__ LgcDense p) { gemm(p, p.f32 ? LG_DELTA : LG_LOW); }

LG_KERNEL(LG_THREADS) dense_gemm_tc_scaled_acc(const __grid_constant__ LgcDense p) { gemm(p, LG_FOLD); }
