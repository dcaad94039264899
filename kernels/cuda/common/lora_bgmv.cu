// Routed rows: a tile is rows of one set of adapters. Blocks take (tile, chunk of K) and (tile, 256 outputs) one after the other, so that the grid is the
// same whatever adapters are active.
#include "lora.cuh"

LG_DEV const LgcRecord &record_of(const LgcCall &p, int slot) { return ((const LgcRecord *)p.table)[slot]; }
LG_DEV int tile_count(const LgcCall &p) { return *(const int *)p.route.tile_count; }
LG_DEV bool is_slot(const LgcCall &p, int slot) { return slot >= 0 && slot < p.slots; }
LG_DEV int row_of(const LgcCall &p, int entry) { return ((const int *)p.route.rows)[entry]; }

LG_KERNEL(LG_THREADS) lora_bgmv_shrink(const __grid_constant__ LgcCall p) {
    __shared__ ShrinkParts parts;
    const int g = threadIdx.x % 32 / 4, chunks = p.split ? lgc_chunks(p.k) : 1, subs = p.tile_rows / 16;
    const int items = tile_count(p) * subs * chunks;
    lg_wait_before();
    lg_let_next();
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
        const LgcTile tile = ((const LgcTile *)p.route.tiles)[item / chunks / subs];
        const int row0 = item / chunks % subs * 16, count = tile.count - row0 < 16 ? tile.count - row0 : 16;
        if (count <= 0)
            continue;
        const int entry = tile.first + row0;
        Shrink s;
        s.low = g < count ? lg_row(p.x, row_of(p, entry + g), p.x_stride, p.k) : lg_no_row();
        s.high = g + 8 < count ? lg_row(p.x, row_of(p, entry + g + 8), p.x_stride, p.k) : lg_no_row();
        s.k = p.k;
        s.row_stride = p.low_stride;
        s.part_stride = (i64)p.entries * p.low_stride;
        s.rows = (1u << count) - 1;
        for (int m = 0; m < LGC_SET && is_slot(p, tile.slot[m]); m++) {
            const LgcRecord &r = record_of(p, tile.slot[m]);
            s.a = r.a;
            s.ranks = r.a ? lg_rank_before(r, p.site_count) : 0;
            s.to = (float *)p.low + (i64)entry * p.low_stride + m * (p.low_stride / LGC_SET);
            if (p.split)
                lg_shrink_part(s, item % chunks);
            else
                lg_shrink_whole(s, parts);
        }
    }
}

struct Expand {
    int site, out0, parts;
    bool wide;
    i64 part_stride;
};

LG_DEV bf16 *y_of(const LgcCall &p, const Expand &e, int entry) {
    return (bf16 *)p.y[e.site] + row_of(p, entry) * p.y_stride[e.site] + e.out0 + threadIdx.x % 4 * 8;
}
LG_DEV float scale_of(const LgcCall &p, const LgcRecord &r, int site, int entry, int member) {
    return __fmul_rn(r.scale[site], ((const float *)p.route.scales)[entry * LGC_SET + member]);
}
LG_DEV const float *lows_of(const LgcCall &p, const LgcRecord &r, int site, int entry, int member) {
    return (const float *)p.low + (i64)entry * p.low_stride + member * (p.low_stride / LGC_SET) + lg_rank_before(r, site);
}

// One adapter: B stays in registers for all rows of the tile.
LG_DEV void expand_one(const LgcCall &p, const Expand &e, const LgcTile &tile, Lows &lows) {
    const LgcRecord &r = record_of(p, tile.slot[0]);
    const int rank = r.rank[e.site], n = p.n[e.site], g = threadIdx.x % 32 / 4, left = n - e.out0 - threadIdx.x % 4 * 8;
    const LgcPtr b = r.b[e.site];
    if (!r.a || !b || rank == 0)
        return;
    Held held;
    lg_hold(held, b, rank, n, e.out0);
    int pass = LG_LOW_ELEMENTS / lg_low_pitch(rank) / 16 * 16;
    pass = pass < LGC_TILE_ROWS ? pass : LGC_TILE_ROWS;
    lg_wait_before();
    for (int row0 = 0; row0 < tile.count; row0 += pass) {
        const int rows = tile.count - row0 < pass ? tile.count - row0 : pass, entry0 = tile.first + row0;
        uint4 y[2];
#pragma unroll
        for (int h = 0; h < 2; h++)
            y[h] = g + 8 * h < rows ? lg_load_y(y_of(p, e, entry0 + g + 8 * h), left, e.wide) : make_uint4(0, 0, 0, 0);
        lg_sum_lows(lows, lows_of(p, r, e.site, entry0, 0), e.part_stride, p.low_stride, e.parts, rows, rank, ~0ull);
        __syncthreads();
        for (int m = 0; m < rows; m += 16) {
            float total[4][4];
            uint4 next[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int row = m + 16 + g + 8 * h;
                next[h] = row < rows ? lg_load_y(y_of(p, e, entry0 + row), left, e.wide) : make_uint4(0, 0, 0, 0);
            }
            lg_delta(total, lows, m, rows - m < 16 ? (1u << (rows - m)) - 1 : 0xffffu, held, b, rank, n, e.out0);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int entry = entry0 + m + g + 8 * h;
                if (m + g + 8 * h < rows && left > 0) {
                    Y8 v = lg_unpack(y[h]);
                    lg_fold(v, total, h, scale_of(p, r, e.site, entry, 0));
                    lg_store_y(y_of(p, e, entry), left, e.wide, v);
                }
                y[h] = next[h];
            }
        }
        __syncthreads();
    }
}

// A set: results stay in registers until all its adapters are in.
LG_DEV void expand_set(const LgcCall &p, const Expand &e, const LgcTile &tile, Lows &lows) {
    const int n = p.n[e.site], g = threadIdx.x % 32 / 4, left = n - e.out0 - threadIdx.x % 4 * 8;
    lg_wait_before();
    for (int row0 = 0; row0 < tile.count; row0 += 16) {
        const int rows = tile.count - row0 < 16 ? tile.count - row0 : 16, entry0 = tile.first + row0;
        Y8 v[2];
        bool folded = false;
#pragma unroll
        for (int h = 0; h < 2; h++)
            v[h] = lg_unpack(g + 8 * h < rows ? lg_load_y(y_of(p, e, entry0 + g + 8 * h), left, e.wide) : make_uint4(0, 0, 0, 0));
        for (int m = 0; m < LGC_SET && is_slot(p, tile.slot[m]); m++) {
            const LgcRecord &r = record_of(p, tile.slot[m]);
            const int rank = r.rank[e.site];
            const LgcPtr b = r.b[e.site];
            if (!r.a || !b || rank == 0)
                continue;
            Held held;
            float total[4][4];
            lg_hold(held, b, rank, n, e.out0);
            lg_sum_lows(lows, lows_of(p, r, e.site, entry0, m), e.part_stride, p.low_stride, e.parts, rows, rank, ~0ull);
            __syncthreads();
            lg_delta(total, lows, 0, (1u << rows) - 1, held, b, rank, n, e.out0);
            __syncthreads();
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (g + 8 * h < rows)
                    lg_fold(v[h], total, h, scale_of(p, r, e.site, entry0 + g + 8 * h, m));
            folded = true;
        }
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (folded && g + 8 * h < rows && left > 0)
                lg_store_y(y_of(p, e, entry0 + g + 8 * h), left, e.wide, v[h]);
    }
}

LG_KERNEL(LG_THREADS) lora_bgmv_expand_fold(const __grid_constant__ LgcCall p) {
    __shared__ Lows lows;
    const int blocks = lg_output_blocks(p.n, p.site_count), items = tile_count(p) * blocks;
    lg_let_next();
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
        const LgcTile tile = ((const LgcTile *)p.route.tiles)[item / blocks];
        const Place place = lg_place(p.n, p.site_count, item % blocks);
        Expand e = {place.site, place.out0, p.split ? lgc_chunks(p.k) : 1, lg_wide16(p.y[place.site], p.y_stride[place.site]), (i64)p.entries * p.low_stride};
        if (!is_slot(p, tile.slot[0]))
            continue;
        if (is_slot(p, tile.slot[1]))
            expand_set(p, e, tile, lows);
        else
            expand_one(p, e, tile, lows);
    }
    lg_wait_before(); // blocks without work too: whoever waits for this kernel waits for those before it
}
