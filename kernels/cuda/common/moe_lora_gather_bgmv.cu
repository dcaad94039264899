// Rows as they come, token by token: row = token * top_k + slot, its expert indices[row]. Each row by itself; A and B that rows share come from the cache.
#include "lora_moe.cuh"

LG_DEV MoeRow row_of(const LgcMoe &p, int row) { return lg_moe_row(p, row, row / p.top_k, ((const int *)p.indices)[row]); }

LG_DEV void set_up(const LgcMoe &p, const MoeRow &t, int row, int m, Shrink &s) {
    const LgcRecord &r = lg_moe_record(p, t.slot[m], t.expert);
    s.low = threadIdx.x % 32 < 4 ? lg_row(p.x, p.x_gather ? t.token : row, p.x_stride, p.k) : lg_no_row();
    s.high = lg_no_row();
    s.a = r.a;
    s.k = p.k;
    s.wide = lg_wide8(p.x, p.x_stride, p.k);
    s.ranks = r.a ? lg_rank_before(r, p.site_count) : 0;
    s.row_stride = p.low_stride;
    s.part_stride = (i64)p.entries * p.low_stride;
    s.rows = 1;
    s.to = lg_moe_low(p, row, m);
}

// Split: `slices` blocks share the chunks of a row, a warp has one at a time. Whole: a block has one row.
LG_KERNEL_OF(LG_THREADS, 2) moe_lora_gather_shrink(const __grid_constant__ LgcMoe p) {
    __shared__ Parts parts;
    const int chunks = lgc_chunks(p.k), warps = blockDim.x / 32, turns = p.split ? p.slices : 1;
    lg_wait_before(); // the router's choice is the step's own
    lg_let_next();
    for (int item = blockIdx.x; item < p.rows * turns; item += gridDim.x) {
        const int row = item / turns;
        const MoeRow t = row_of(p, row);
#pragma unroll
        for (int m = 0; m < LGC_SET; m++) {
            Shrink s;
            if (t.slot[m] < 0)
                break;
            set_up(p, t, row, m, s);
            if (!p.split)
                lg_shrink_whole(s, parts, 0, 1);
            else
                for (int chunk = item % turns * warps + threadIdx.x / 32; chunk < chunks; chunk += turns * warps)
                    lg_shrink_part_warp(s, chunk);
        }
    }
}

LG_KERNEL_OF(LG_THREADS, 2) moe_lora_gather_expand_fold(const __grid_constant__ LgcMoe p) {
    __shared__ Lows lows;
    const int blocks = lg_output_blocks(p.n, p.site_count);
    lg_let_next();
    // Its predecessor is the shrink, which lets it begin when all before that is done: only lows are waited for.
    for (int item = blockIdx.x; item < p.rows * blocks; item += gridDim.x) {
        const int row = item / blocks;
        const MoeRow t = row_of(p, row);
        const Place place = lg_place(p.n, p.site_count, item % blocks);
        const int site = place.site, n = p.n[site];
        const bool wide = lg_wide16(p.y[site], p.y_stride[site]);
        bf16 *const y = (bf16 *)p.y[site] + row * p.y_stride[site];
        if (t.slot[0] < 0)
            continue;
        __syncthreads();
        if (t.slot[1] >= 0) {
            lg_expand_set(
                lows, n, place.out0, 1, 1, wide,
                [&](int m, LgcPtr &b, int &rank, LowsAt &at, u64 &rows) {
                    const int slot = m == 0 ? t.slot[0] : m == 1 ? t.slot[1] : m == 2 ? t.slot[2] : m == 3 ? t.slot[3] : -1;
                    if (slot < 0)
                        return false;
                    const LgcRecord &r = lg_moe_record(p, slot, t.expert);
                    b = r.b[site];
                    rank = r.a && b ? r.rank[site] : 0;
                    at = lg_moe_lows(p, r, site, row, m);
                    rows = 1;
                    return true;
                },
                [&](int, int m) {
                    const int slot = m == 0 ? t.slot[0] : m == 1 ? t.slot[1] : m == 2 ? t.slot[2] : t.slot[3];
                    return FoldRow{y, lg_moe_scale(p, lg_moe_record(p, slot, t.expert), site, m, t.token)};
                });
            continue;
        }
        const LgcRecord &r = lg_moe_record(p, t.slot[0], t.expert);
        if (r.a && r.b[site] && r.rank[site] > 0)
            lg_expand_one(lows, lg_moe_lows(p, r, site, row, 0), false, r.b[site], r.rank[site], n, place.out0, 1, 1, wide,
                          [&](int) { return FoldRow{y, lg_moe_scale(p, r, site, 0, t.token)}; });
    }
    lg_wait_before();
}
