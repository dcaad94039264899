// Rows sorted by expert (and by adapter within one, which is quicker but not needed): a tile is 16 rows that follow each other; an expert's begin where
// expert_offsets says.
#include "lora_moe.cuh"

// The rows [first, first + 16) of the window. The expert of a row: how many experts' rows end at it or before.
LG_DEV void find_rows(const LgcMoe &p, MoeRows &t, int first) {
    const int end = p.first + p.entries < p.rows ? p.first + p.entries : p.rows, i = threadIdx.x / 16, part = threadIdx.x % 16;
    __syncthreads();
    if (threadIdx.x == 0) {
        t.first = first;
        t.count = end - first < 16 ? end - first : 16;
    }
    const bool mine = first + i < end;
    int expert = 0;
    for (int e = 1 + part; mine && e <= p.experts; e += 16)
        expert += ((const int *)p.offsets)[e] <= first + i;
    for (int d = 8; d > 0; d /= 2)
        expert += __shfl_xor_sync(0xffffffffu, expert, d);
    if (mine && part == 0)
        lg_moe_slots(p, t, i, first + i, ((const int *)p.tokens)[first + i], expert);
    __syncthreads();
}

LG_DEV int tiles(const LgcMoe &p) {
    const int rows = p.rows - p.first < p.entries ? p.rows - p.first : p.entries;
    return (rows + 15) / 16;
}

LG_KERNEL(LG_THREADS) moe_lora_grouped_shrink(const __grid_constant__ LgcMoe p) {
    __shared__ ShrinkParts parts;
    __shared__ MoeRows rows;
    const int chunks = p.split ? lgc_chunks(p.k) : 1;
    lg_wait_before();
    lg_let_next();
    for (int item = blockIdx.x; item < tiles(p) * chunks; item += gridDim.x) {
        find_rows(p, rows, p.first + item / chunks * 16);
        lg_moe_shrink(p, rows, item % chunks, parts);
    }
}

LG_KERNEL(LG_THREADS) moe_lora_grouped_expand_fold(const __grid_constant__ LgcMoe p) {
    __shared__ Lows lows;
    __shared__ MoeRows rows;
    const int blocks = lg_output_blocks(p.n, p.site_count);
    lg_wait_before();
    lg_let_next();
    for (int item = blockIdx.x; item < tiles(p) * blocks; item += gridDim.x) {
        find_rows(p, rows, p.first + item / blocks * 16);
        lg_moe_expand(p, rows, item % blocks, lows);
    }
}
