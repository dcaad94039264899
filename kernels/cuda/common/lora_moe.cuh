// Rows of experts: what the two forms share. A tile is up to 16 rows that follow each other; in it, rows of one (adapter, expert) are done together, pair
// by pair.
#ifndef LG_LORA_MOE_CUH
#define LG_LORA_MOE_CUH

#include "lora.cuh"

struct MoeRows {
    int first, count;
    int token[16], expert[16], slot[LGC_SET][16];
};

LG_DEV void lg_moe_fault(const LgcMoe &p, int row) { atomicCAS((int *)p.fault, 0, row + 1); }

// The slots of a row's token; of a row that is out of bounds none, and the step fails.
LG_DEV void lg_moe_slots(const LgcMoe &p, MoeRows &t, int i, int row, int token, int expert) {
    const bool good = token >= 0 && token < p.token_count && expert >= 0 && expert < p.experts;
    bool live = good;
    if (!good)
        lg_moe_fault(p, row);
    t.token[i] = good ? token : 0;
    t.expert[i] = good ? expert : 0;
    for (int m = 0; m < LGC_SET; m++) {
        const int slot = live ? ((const int *)p.seq_slot)[m * p.token_count + token] : -1;
        live = live && slot >= 0 && slot < p.slots;
        t.slot[m][i] = live ? slot : -1;
    }
}

// The rows of `todo` that have the first one's pair.
struct Pair {
    u32 rows;
    int expert, slot;
};
LG_DEV Pair lg_moe_pair(const MoeRows &t, int m, u32 todo) {
    const int first = __ffs(todo) - 1;
    Pair r = {0, t.expert[first], t.slot[m][first]};
    for (int i = first; i < t.count; i++)
        if (t.expert[i] == r.expert && t.slot[m][i] == r.slot)
            r.rows |= 1u << i;
    return r;
}
LG_DEV u32 lg_moe_adapted(const MoeRows &t, int m) {
    u32 rows = 0;
    for (int i = 0; i < t.count; i++)
        rows |= (u32)(t.slot[m][i] >= 0) << i;
    return rows;
}
LG_DEV const LgcRecord &lg_moe_record(const LgcMoe &p, const Pair &k) { return ((const LgcRecord *)p.table)[(i64)k.slot * p.experts + k.expert]; }

LG_DEV Row lg_moe_x(const LgcMoe &p, const MoeRows &t, u32 rows, int i) {
    return rows >> i & 1 ? lg_row(p.x, p.x_gather ? t.token[i] : t.first + i, p.x_stride, p.k) : lg_no_row();
}

LG_DEV void lg_moe_shrink(const LgcMoe &p, const MoeRows &t, int chunk, ShrinkParts &parts) {
    const int g = threadIdx.x % 32 / 4;
    Shrink s;
    s.k = p.k;
    s.row_stride = p.low_stride;
    s.part_stride = (i64)p.entries * p.low_stride;
    for (int m = 0; m < LGC_SET; m++)
        for (u32 todo = lg_moe_adapted(t, m); todo;) {
            const Pair pair = lg_moe_pair(t, m, todo);
            const LgcRecord &r = lg_moe_record(p, pair);
            todo &= ~pair.rows;
            s.low = lg_moe_x(p, t, pair.rows, g);
            s.high = lg_moe_x(p, t, pair.rows, g + 8);
            s.a = r.a;
            s.ranks = r.a ? lg_rank_before(r, p.site_count) : 0;
            s.rows = pair.rows;
            s.to = (float *)p.low + (i64)(t.first - p.first) * p.low_stride + m * (p.low_stride / LGC_SET);
            if (p.split)
                lg_shrink_part(s, chunk);
            else
                lg_shrink_whole(s, parts);
        }
}

LG_DEV void lg_moe_expand(const LgcMoe &p, const MoeRows &t, int block, Lows &lows) {
    const Place place = lg_place(p.n, p.site_count, block);
    const int site = place.site, n = p.n[site], g = threadIdx.x % 32 / 4, out = place.out0 + threadIdx.x % 4 * 8, left = n - out;
    const bool wide = lg_wide16(p.y[site], p.y_stride[site]);
    bf16 *y[2];
    Y8 v[2];
    u32 folded = 0;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        y[h] = (bf16 *)p.y[site] + (t.first + g + 8 * h) * p.y_stride[site] + out;
        v[h] = lg_unpack(g + 8 * h < t.count ? lg_load_y(y[h], left, wide) : make_uint4(0, 0, 0, 0));
    }
    for (int m = 0; m < LGC_SET; m++)
        for (u32 todo = lg_moe_adapted(t, m); todo;) {
            const Pair pair = lg_moe_pair(t, m, todo);
            const LgcRecord &r = lg_moe_record(p, pair);
            const int rank = r.rank[site];
            todo &= ~pair.rows;
            if (!r.a || !r.b[site] || rank == 0)
                continue;
            Held held;
            float total[4][4];
            lg_hold(held, r.b[site], rank, n, place.out0);
            lg_sum_lows(lows, (const float *)p.low + (i64)(t.first - p.first) * p.low_stride + m * (p.low_stride / LGC_SET) + lg_rank_before(r, site),
                        (i64)p.entries * p.low_stride, p.low_stride, p.split ? lgc_chunks(p.k) : 1, t.count, rank, pair.rows);
            __syncthreads();
            lg_delta(total, lows, 0, pair.rows, held, r.b[site], rank, n, place.out0);
            __syncthreads();
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (pair.rows >> (g + 8 * h) & 1)
                    lg_fold(v[h], total, h, __fmul_rn(r.scale[site], ((const float *)p.scales)[m * p.token_count + t.token[g + 8 * h]]));
            folded |= pair.rows;
        }
#pragma unroll
    for (int h = 0; h < 2; h++)
        if (folded >> (g + 8 * h) & 1 && left > 0)
            lg_store_y(y[h], left, wide, v[h]);
}

#endif
