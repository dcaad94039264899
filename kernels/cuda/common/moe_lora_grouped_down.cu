// Rows sorted by expert (and by adapter within one, which is quicker but not needed): a tile is 16 rows that follow each other; an expert's begin where
// expert_offsets says. Rows of one (adapter, expert) are done together, pair by pair; `slices` blocks share the pairs of a tile.
#include "lora_moe.cuh"

struct MoeRows {
    int first, count;
    u32 mine;   // rows of this block's slice
    MoeRow row[16];
    u32 same[LGC_SET][16]; // for each member: the rows that have this row's pair
};

// The rows [first, first + 16) of the window. The expert of a row: how many experts' rows end at it or before.
LG_DEV void find_rows(const LgcMoe &p, MoeRows &t, int first, int slice) {
    const int end = p.first + p.entries < p.rows ? p.first + p.entries : p.rows, i = threadIdx.x / 16, part = threadIdx.x % 16;
    const int count = end - first < 16 ? end - first : 16;
    __syncthreads();
    const bool mine = i < count;
    const int token = mine ? ((const int *)p.tokens)[first + i] : 0;
    int expert = 0;
    for (int e = 1 + part; mine && e <= p.experts; e += 16)
        expert += ((const int *)p.offsets)[e] <= first + i;
    for (int d = 8; d > 0; d /= 2)
        expert += __shfl_xor_sync(0xffffffffu, expert, d);
    if (mine && part == 0)
        t.row[i] = lg_moe_row(p, first + i, token, expert);
    __syncthreads();
    if (threadIdx.x < 16 * LGC_SET) {
        const int m = threadIdx.x / 16, r = threadIdx.x % 16;
        u32 same = 0;
        for (int o = 0; r < count && t.row[r].slot[m] >= 0 && o < count; o++)
            same |= (u32)(t.row[o].expert == t.row[r].expert && t.row[o].slot[m] == t.row[r].slot[m]) << o;
        t.same[m][r] = same;
    }
    __syncthreads();
    if (threadIdx.x == 0) { // whole pairs of the first member, in turn
        int pair = 0;
        t.first = first;
        t.count = count;
        t.mine = 0;
        for (int r = 0; r < count; r++)
            if (t.same[0][r] && __ffs(t.same[0][r]) - 1 == r && pair++ % p.slices == slice)
                t.mine |= t.same[0][r];
    }
    __syncthreads();
}

// The pairs of one member among the block's rows, one after the other. Rows: those of the pair.
struct Pairs {
    u32 todo;
    LG_IN Pairs(const MoeRows &t, int m) {
        todo = 0;
        for (int r = 0; r < t.count; r++)
            todo |= (u32)(t.row[r].slot[m] >= 0) << r;
        todo &= t.mine;
    }
    LG_IN u32 next(const MoeRows &t, int m, int &first) {
        first = __ffs(todo) - 1;
        const u32 rows = t.same[m][first] & t.mine;
        todo &= ~rows;
        return rows;
    }
};

LG_DEV int tiles(const LgcMoe &p) {
    const int rows = p.rows - p.first < p.entries ? p.rows - p.first : p.entries;
    return (rows + 15) / 16;
}

LG_DEV Row x_of(const LgcMoe &p, const MoeRows &t, u32 rows, int i) {
    return rows >> i & 1 ? lg_row(p.x, p.x_gather ? t.row[i].token : t.first + i, p.x_stride, p.k) : lg_no_row();
}

// Each warp asks for the weights of a pair of its own before the pairs are done one after the other: A, or B of a block of outputs.
LG_DEV void fetch_pairs(const LgcMoe &p, const MoeRows &t, const Place *place) {
    int pair = 0, first;
    for (Pairs pairs(t, 0); pairs.todo; pair++) {
        const u32 rows = pairs.next(t, 0, first);
        if (pair % (blockDim.x / 32) != threadIdx.x / 32)
            continue;
        const LgcRecord &r = lg_moe_record(p, t.row[first].slot[0], t.row[first].expert);
        if (!place) {
            lg_fetch_span(r.a, r.a ? (i64)lg_rank_before(r, p.site_count) * lg_k_padded(p.k) * 2 : 0, threadIdx.x % 32, 32);
        } else {
            const int n = p.n[place->site], outputs = n - place->out0 < LG_BLOCK_OUTPUTS ? n - place->out0 : LG_BLOCK_OUTPUTS, rank = r.rank[place->site];
            lg_fetch_span(r.b[place->site] + (u64)place->out0 * rank * 2, r.b[place->site] ? (i64)outputs * rank * 2 : 0, threadIdx.x % 32, 32);
            if (threadIdx.x % 2 == 0 && rows >> (threadIdx.x % 32 / 2) & 1) // and the rows' results
                lg_fetch_span(p.y[place->site] + ((t.first + threadIdx.x % 32 / 2) * p.y_stride[place->site] + place->out0) * 2, (i64)outputs * 2, 0, 1);
        }
    }
}

LG_KERNEL_OF(768, 1) moe_lora_grouped_shrink(const __grid_constant__ LgcMoe p) {
    __shared__ Parts parts;
    __shared__ MoeRows t;
    const int chunks = p.split ? lgc_chunks(p.k) : 1, g = threadIdx.x % 32 / 4;
    lg_wait_before();
    lg_let_next();
    for (int item = blockIdx.x; item < tiles(p) * p.slices * chunks; item += gridDim.x) {
        find_rows(p, t, p.first + item / chunks / p.slices * 16, item / chunks % p.slices);
        int pair = 0;
        if (!p.split)
            fetch_pairs(p, t, nullptr);
        for (int m = 0; m < LGC_SET; m++)
            for (Pairs pairs(t, m); pairs.todo; pair++) {
                int first;
                Shrink s;
                s.rows = pairs.next(t, m, first);
                if (p.split && pair % (blockDim.x / 32) != threadIdx.x / 32) // a warp has a pair
                    continue;
                const LgcRecord &r = lg_moe_record(p, t.row[first].slot[m], t.row[first].expert);
                s.low = x_of(p, t, s.rows, g);
                s.high = x_of(p, t, s.rows, g + 8);
                s.a = r.a;
                s.k = p.k;
                s.wide = lg_wide8(p.x, p.x_stride, p.k);
                s.ranks = r.a ? lg_rank_before(r, p.site_count) : 0;
                s.row_stride = p.low_stride;
                s.part_stride = (i64)p.entries * p.low_stride;
                s.to = lg_moe_low(p, t.first, m);
                if (p.split)
                    lg_shrink_part_warp(s, item % chunks);
                else
                    lg_shrink_whole(s, parts, 0, 1);
            }
    }
}

// The rows of one slice have no second adapters: pairs share no row, each is folded by itself.
LG_DEV void expand_pairs(const LgcMoe &p, const MoeRows &t, const Place &place, bool wide, Lows &lows) {
    const int site = place.site;
    for (Pairs pairs(t, 0); pairs.todo;) {
        int first;
        const u32 rows = pairs.next(t, 0, first);
        const LgcRecord &r = lg_moe_record(p, t.row[first].slot[0], t.row[first].expert);
        if (!r.a || !r.b[site] || r.rank[site] == 0)
            continue;
        lg_expand_one(lows, lg_moe_lows(p, r, site, t.first, 0), false, r.b[site], r.rank[site], p.n[site], place.out0, t.count, rows, wide, [&](int i) {
            return FoldRow{(bf16 *)p.y[site] + (t.first + i) * p.y_stride[site], lg_moe_scale(p, r, site, 0, t.row[i].token)};
        });
        __syncthreads();
    }
}

// Sets: the pairs of the first members, then those of the second, …
LG_DEV void expand_sets(const LgcMoe &p, const MoeRows &t, const Place &place, bool wide, Lows &lows) {
    const int site = place.site;
    int m = 0, first = 0;
    Pairs pairs(t, 0);
    lg_expand_set(
        lows, p.n[site], place.out0, t.count, t.mine, wide,
        [&](int turn, LgcPtr &b, int &rank, LowsAt &at, u64 &rows) {
            if (turn == 0) {
                m = 0;
                pairs = Pairs(t, 0);
            }
            while (!pairs.todo && ++m < LGC_SET)
                pairs = Pairs(t, m);
            if (m >= LGC_SET)
                return false;
            rows = pairs.next(t, m, first);
            const LgcRecord &r = lg_moe_record(p, t.row[first].slot[m], t.row[first].expert);
            b = r.b[site];
            rank = r.a && b ? r.rank[site] : 0;
            at = lg_moe_lows(p, r, site, t.first, m);
            return true;
        },
        [&](int i, int) {
            const int slot = t.row[i].slot[m < LGC_SET ? m : 0];
            return FoldRow{(bf16 *)p.y[site] + (t.first + i) * p.y_stride[site],
                           slot >= 0 ? lg_moe_scale(p, lg_moe_record(p, slot, t.row[i].expert), site, m < LGC_SET ? m : 0, t.row[i].token) : 0.0f};
        });
    __syncthreads();
}

LG_DEV void expand(const LgcMoe &p, const MoeRows &t, int block, Lows &lows) {
    const Place place = lg_place(p.n, p.site_count, block);
    const bool wide = lg_wide16(p.y[place.site], p.y_stride[place.site]);
    bool sets = false;
    fetch_pairs(p, t, &place);
    for (int i = 0; i < t.count; i++)
        sets = sets || t.row[i].slot[1] >= 0;
    if (sets)
        expand_sets(p, t, place, wide, lows);
    else
        expand_pairs(p, t, place, wide, lows);
}

LG_KERNEL_OF(LG_THREADS, 2) moe_lora_grouped_expand_fold(const __grid_constant__ LgcMoe p) {
    __shared__ Lows lows;
    __shared__ MoeRows t;
    const int blocks = lg_output_blocks(p.n, p.site_count);
    lg_let_next();
    // Its predecessor is the shrink, which lets it begin when all before that is done: only lows are waited for.
    for (int item = blockIdx.x; item < tiles(p) * p.slices * blocks; item += gridDim.x) {
        find_rows(p, t, p.first + item / blocks / p.slices * 16, item / blocks % p.slices);
        expand(p, t, item % blocks, lows);
    }
    lg_wait_before();
}
