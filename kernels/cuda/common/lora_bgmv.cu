// Routed rows: a tile is rows of one set of adapters. Blocks take (tile, chunk of K) and (tile, 256 outputs) one after the other, so that the grid is the
// same whatever adapters are active.
#include "lora.cuh"

LG_DEV const LgcRecord &record_of(const LgcCall &p, int slot) { return ((const LgcRecord *)p.table)[slot]; }
LG_DEV int tile_count(const LgcCall &p) { return *(const int *)p.route.tile_count; }
LG_DEV bool is_slot(const LgcCall &p, int slot) { return slot >= 0 && slot < p.slots; }
LG_DEV int row_of(const LgcCall &p, int entry) { return ((const int *)p.route.rows)[entry]; }

// What one block does of one tile: chunks [from, to), or a slice of the ranks.
LG_DEV void shrink_tile(const LgcCall &p, const LgcTile &tile, int row0, int from, int to, int slice, int slices, Parts &parts) {
    const int g = threadIdx.x % 32 / 4, count = tile.count - row0 < 16 ? tile.count - row0 : 16, entry = tile.first + row0;
    if (count <= 0)
        return;
    Shrink s;
    s.low = g < count ? lg_row(p.x, row_of(p, entry + g), p.x_stride, p.k) : lg_no_row();
    s.high = g + 8 < count ? lg_row(p.x, row_of(p, entry + g + 8), p.x_stride, p.k) : lg_no_row();
    s.k = p.k;
    s.wide = lg_wide8(p.x, p.x_stride, p.k);
    s.row_stride = p.low_stride;
    s.part_stride = (i64)p.entries * p.low_stride;
    s.rows = (1u << count) - 1;
    for (int m = 0; m < LGC_SET && is_slot(p, tile.slot[m]); m++) {
        const LgcRecord &r = record_of(p, tile.slot[m]);
        s.a = r.a;
        s.ranks = r.a ? lg_rank_before(r, p.site_count) : 0;
        s.to = (float *)p.low + (i64)entry * p.low_stride + m * (p.low_stride / LGC_SET);
        if (p.split)
            lg_shrink_parts(s, from, to);
        else
            lg_shrink_whole(s, parts, slice, slices);
    }
}

// Split: as many chunks of a tile to a block as let the grid have all tiles at once. Whole: 16 rows and a slice of the ranks to a block.
LG_KERNEL_OF(768, 1) lora_bgmv_shrink(const __grid_constant__ LgcCall p) {
    extern __shared__ __align__(16) unsigned char memory[]; // Parts where sums are whole
    const LgcTile *tiles = (const LgcTile *)p.route.tiles;
    const int count = tile_count(p), subs = p.tile_rows / 16, chunks = lgc_chunks(p.k);
    lg_let_next();
    if (p.split) {
        const int each = (count * chunks + gridDim.x - 1) / gridDim.x, groups = each ? (chunks + each - 1) / each : 1;
        for (int item = blockIdx.x; item < count * groups; item += gridDim.x) {
            const int from = item % groups * each;
            shrink_tile(p, tiles[item / groups], 0, from, from + each < chunks ? from + each : chunks, 0, 1, *(Parts *)memory);
        }
    } else {
        const int slices = p.site_count;
        for (int item = blockIdx.x; item < count * subs * slices; item += gridDim.x)
            shrink_tile(p, tiles[item / slices / subs], item / slices % subs * 16, 0, 0, item % slices, slices, *(Parts *)memory);
    }
    lg_wait_before(); // blocks without work too: whoever waits for this kernel waits for those before it
}

// An adapter's lows of one site, from an entry on.
LG_DEV LowsAt lows_at(const LgcCall &p, const LgcRecord &r, int site, int entry, int member) {
    return {(const float *)p.low + (i64)entry * p.low_stride + member * (p.low_stride / LGC_SET) + lg_rank_before(r, site), (i64)p.entries * p.low_stride,
            p.low_stride, p.split ? lgc_chunks(p.k) : 1};
}

LG_DEV FoldRow fold_row(const LgcCall &p, const LgcRecord &r, int site, int entry, int member) {
    return {(bf16 *)p.y[site] + row_of(p, entry) * p.y_stride[site], __fmul_rn(r.scale[site], ((const float *)p.route.scales)[entry * LGC_SET + member])};
}

LG_DEV void expand_set(const LgcCall &p, const LgcTile &tile, const Place &place, bool wide, Lows &lows) {
    for (int row0 = 0; row0 < tile.count; row0 += 16) {
        const int count = tile.count - row0 < 16 ? tile.count - row0 : 16, entry0 = tile.first + row0;
        const u64 all = (1u << count) - 1;
        lg_expand_set(
            lows, p.n[place.site], place.out0, count, all, wide,
            [&](int m, LgcPtr &b, int &rank, LowsAt &at, u64 &rows) {
                if (m == LGC_SET || !is_slot(p, tile.slot[m]))
                    return false;
                const LgcRecord &r = record_of(p, tile.slot[m]);
                b = r.b[place.site];
                rank = r.a && b ? r.rank[place.site] : 0;
                at = lows_at(p, r, place.site, entry0, m);
                rows = all;
                return true;
            },
            [&](int i, int m) { return fold_row(p, record_of(p, tile.slot[m]), place.site, entry0 + i, m); });
    }
}

LG_DEV void fetch_b(const LgcRecord &r, const Place &place, int rank, int n) {
    const int from = place.out0 + LG_BLOCK_OUTPUTS, outputs = n - from < LG_BLOCK_OUTPUTS ? n - from : LG_BLOCK_OUTPUTS;
    if (r.b[place.site])
        lg_fetch_span(r.b[place.site] + (u64)from * rank * 2, (i64)outputs * rank * 2, threadIdx.x, LG_THREADS);
}

// Blocks take items that follow each other, which mostly share their lows.
LG_KERNEL_OF(LG_THREADS, 2) lora_bgmv_expand_fold(const __grid_constant__ LgcCall p) {
    __shared__ Lows lows;
    const int blocks = lg_output_blocks(p.n, p.site_count), items = tile_count(p) * blocks, each = (items + gridDim.x - 1) / gridDim.x;
    const int end = (blockIdx.x + 1) * each < items ? (blockIdx.x + 1) * each : items;
    int last_tile = -1, last_site = -1;
    lg_let_next();
    for (int item = blockIdx.x * each; item < end; item++) {
        const int index = item / blocks;
        const LgcTile tile = ((const LgcTile *)p.route.tiles)[index];
        const Place place = lg_place(p.n, p.site_count, item % blocks);
        const bool wide = lg_wide16(p.y[place.site], p.y_stride[place.site]);
        bool again = index == last_tile && place.site == last_site;
        last_tile = index;
        last_site = place.site;
        if (!is_slot(p, tile.slot[0]))
            continue;
        const LgcRecord &r = record_of(p, tile.slot[0]);
        const int rank = r.rank[place.site];
        if (!again)
            __syncthreads();
        if (item + 1 < end && place.out0 + LG_BLOCK_OUTPUTS < p.n[place.site]) // the next block's B
            fetch_b(r, place, rank, p.n[place.site]);
        if (is_slot(p, tile.slot[1]))
            expand_set(p, tile, place, wide, lows);
        else if (r.a && r.b[place.site] && rank > 0)
            lg_expand_one(lows, lows_at(p, r, place.site, tile.first, 0), again, r.b[place.site], rank, p.n[place.site], place.out0, tile.count, ~0ull, wide,
                          [&](int i) { return fold_row(p, r, place.site, tile.first + i, 0); });
        if (rank > 64 || is_slot(p, tile.slot[1]))
            __syncthreads(); // these read lows anew for every block
    }
    lg_wait_before(); // blocks without work too: whoever waits for this kernel waits for those before it
}
