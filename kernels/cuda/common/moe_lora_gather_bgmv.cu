// Rows as they come, token by token: row = token * top_k + slot, its expert indices[row]. A tile is one row.
#include "lora_moe.cuh"

LG_DEV void find_row(const LgcMoe &p, MoeRows &t, int row) {
    __syncthreads();
    if (threadIdx.x == 0) {
        t.first = row;
        t.count = 1;
        lg_moe_slots(p, t, 0, row, row / p.top_k, ((const int *)p.indices)[row]);
    }
    __syncthreads();
}

LG_KERNEL(LG_THREADS) moe_lora_gather_shrink(const __grid_constant__ LgcMoe p) {
    __shared__ ShrinkParts parts;
    __shared__ MoeRows rows;
    const int chunks = p.split ? lgc_chunks(p.k) : 1;
    lg_wait_before();
    lg_let_next();
    for (int item = blockIdx.x; item < p.rows * chunks; item += gridDim.x) {
        find_row(p, rows, item / chunks);
        lg_moe_shrink(p, rows, item % chunks, parts);
    }
}

LG_KERNEL(LG_THREADS) moe_lora_gather_expand_fold(const __grid_constant__ LgcMoe p) {
    __shared__ Lows lows;
    __shared__ MoeRows rows;
    const int blocks = lg_output_blocks(p.n, p.site_count);
    lg_wait_before();
    lg_let_next();
    for (int item = blockIdx.x; item < p.rows * blocks; item += gridDim.x) {
        find_row(p, rows, item / blocks);
        lg_moe_expand(p, rows, item % blocks, lows);
    }
}
