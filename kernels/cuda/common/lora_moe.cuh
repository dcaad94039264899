// Rows of experts: what the two forms share. A row's adapters are keyed on (slot, expert); ids are checked before anything is read by them.
#ifndef LG_LORA_MOE_CUH
#define LG_LORA_MOE_CUH

#include "lora.cuh"

struct MoeRow {
    int token, expert, slot[LGC_SET]; // negative: none
};

// The slots of a row's token; of a row that is out of bounds none, and the step fails.
LG_DEV MoeRow lg_moe_row(const LgcMoe &p, int row, int token, int expert) {
    MoeRow r = {token, expert, {-1, -1, -1, -1}};
    if (token < 0 || token >= p.token_count || expert < 0 || expert >= p.experts) {
        atomicCAS((int *)p.fault, 0, row + 1);
        r.token = r.expert = 0;
        return r;
    }
    bool live = true;
#pragma unroll
    for (int m = 0; m < LGC_SET; m++)
        r.slot[m] = ((const int *)p.seq_slot)[m * p.token_count + token];
#pragma unroll
    for (int m = 0; m < LGC_SET; m++) {
        live = live && r.slot[m] >= 0 && r.slot[m] < p.slots;
        r.slot[m] = live ? r.slot[m] : -1;
    }
    return r;
}

LG_DEV const LgcRecord &lg_moe_record(const LgcMoe &p, int slot, int expert) { return ((const LgcRecord *)p.table)[(i64)slot * p.experts + expert]; }
LG_DEV float *lg_moe_low(const LgcMoe &p, int row, int m) { return (float *)p.low + (i64)(row - p.first) * p.low_stride + m * (p.low_stride / LGC_SET); }
LG_DEV LowsAt lg_moe_lows(const LgcMoe &p, const LgcRecord &r, int site, int row, int m) {
    return {lg_moe_low(p, row, m) + lg_rank_before(r, site), (i64)p.entries * p.low_stride, p.low_stride, p.split ? lgc_chunks(p.k) : 1};
}
LG_DEV float lg_moe_scale(const LgcMoe &p, const LgcRecord &r, int site, int m, int token) {
    return __fmul_rn(r.scale[site], ((const float *)p.scales)[m * p.token_count + token]);
}

#endif
