// Products of adapters: the one order of sums, and what the kernels are made of.
//
// delta = sum_k x[k] w[k]: K in chunks (lora_abi.h), inside a chunk m16n8k16 steps in rising order from zero, chunks added in f32 in rising order from zero.
// Which kernel, how many rows, which warp: none of it changes a bit. Rows are the MMA's rows, outputs its columns.
// low = bf16(sum); y = bf16(fmaf(scale, delta, y)).
#ifndef LG_LORA_CUH
#define LG_LORA_CUH

#include "lg_cuda.cuh"
#include "lora_abi.h"

#define LG_WARPS 8                  // of a block
#define LG_THREADS (32 * LG_WARPS)
#define LG_STRIP 32                 // outputs of a warp: 4 MMA columns of 8
#define LG_AHEAD 4                  // steps whose operands are in registers at once

// ---- operands ----

// A row of k elements, or none; `wide`: 8-byte loads are aligned.
struct Row {
    const bf16 *p;
    int k;
    bool wide;
};

LG_DEV Row lg_row(LgcPtr base, i64 row, i64 stride, int k) {
    return {(const bf16 *)base + row * stride, k, ((base | (u64)(stride * 2)) & 7) == 0};
}
LG_DEV Row lg_no_row() { return {nullptr, 0, true}; }

// Elements at .. at + 3, zeros where there are none.
LG_DEV uint2 lg_load4(const Row &r, int at) {
    if (r.wide && at + 4 <= r.k)
        return *(const uint2 *)(r.p + at);
    uint2 v = {0, 0};
    if (at < r.k)
        v.x = r.p[at];
    if (at + 1 < r.k)
        v.x |= (u32)r.p[at + 1] << 16;
    if (at + 2 < r.k)
        v.y = r.p[at + 2];
    if (at + 3 < r.k)
        v.y |= (u32)r.p[at + 3] << 16;
    return v;
}
LG_DEV uint2 lg_weight4(const Row &r, int at) {
    if (r.wide && at + 4 <= r.k) {
        uint2 v;
        asm volatile("ld.global.nc.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(__cvta_generic_to_global(r.p + at)));
        return v;
    }
    return lg_load4(r, at);
}

// The same of an adapter's own memory, whose rows are padded and aligned: elements at .. at + 3 of a row that has them.
LG_DEV uint2 lg_pool4(const bf16 *row, int at, bool there) {
    uint2 v = {0, 0};
    if (there)
        asm volatile("ld.global.nc.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(__cvta_generic_to_global(row + at)));
    return v;
}

template <int N> LG_DEV void lg_zero(float (&c)[N][4]) {
#pragma unroll
    for (int j = 0; j < N; j++)
        c[j][0] = c[j][1] = c[j][2] = c[j][3] = 0.0f;
}

// One chunk: steps [from, to) of rows x_low (g) and x_high (g + 8) against w[j] (column g of column block j), from zero.
template <int N> LG_DEV void lg_chunk(float (&c)[N][4], const Row &x_low, const Row &x_high, const Row (&w)[N], int from, int to) {
    const int t4 = threadIdx.x % 4 * 4;
    lg_zero(c);
    for (int s = from; s < to; s += LG_AHEAD) {
        uint2 a[LG_AHEAD], b[LG_AHEAD], v[LG_AHEAD][N];
#pragma unroll
        for (int i = 0; i < LG_AHEAD; i++) {
            const int at = s + i < to ? (s + i) * 16 + t4 : 1 << 30;
#pragma unroll
            for (int j = 0; j < N; j++)
                v[i][j] = lg_weight4(w[j], at);
            a[i] = lg_load4(x_low, at);
            b[i] = lg_load4(x_high, at);
        }
#pragma unroll
        for (int i = 0; i < LG_AHEAD; i++)
            if (s + i < to)
#pragma unroll
                for (int j = 0; j < N; j++)
                    lg_mma(c[j], a[i], b[i], v[i][j]);
    }
}

// ---- outputs of a strip: lane (g, t) has 8 that follow each other, from 8t on ----
// Column g of block j is output 8 (g / 2) + 2 j + g % 2, so that columns 2t and 2t + 1 of the four blocks are outputs 8t .. 8t + 7.

LG_DEV int lg_strip_output(int g, int j) { return 8 * (g / 2) + 2 * j + g % 2; }

// Eight results as they are stored.
struct Y8 {
    float v[8];
};
LG_DEV Y8 lg_unpack(uint4 q) {
    return {{lg_low(q.x), lg_high(q.x), lg_low(q.y), lg_high(q.y), lg_low(q.z), lg_high(q.z), lg_low(q.w), lg_high(q.w)}};
}

// y[0 .. count) of bf16, zeros behind them; `wide`: 16-byte accesses are aligned.
LG_DEV uint4 lg_load_y(const bf16 *y, int count, bool wide) {
    if (wide && count >= 8)
        return *(const uint4 *)y;
    u32 v[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = i < count ? y[i] : 0;
    return make_uint4(v[0] | v[1] << 16, v[2] | v[3] << 16, v[4] | v[5] << 16, v[6] | v[7] << 16);
}
LG_DEV void lg_store_y(bf16 *y, int count, bool wide, const Y8 &r) {
    if (wide && count >= 8) {
        *(uint4 *)y = make_uint4(lg_bf16x2(r.v[0], r.v[1]), lg_bf16x2(r.v[2], r.v[3]), lg_bf16x2(r.v[4], r.v[5]), lg_bf16x2(r.v[6], r.v[7]));
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i < count)
                y[i] = lg_bf16(r.v[i]);
    }
}
LG_DEV bool lg_wide16(LgcPtr base, i64 stride) { return ((base | (u64)(stride * 2)) & 15) == 0; }

// The one fold: v becomes fmaf(scale, delta, v). half 0: row g, 1: row g + 8.
LG_DEV void lg_fold(Y8 &y, const float (&total)[4][4], int half, float scale) {
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            y.v[2 * j + e] = __fmaf_rn(scale, total[j][2 * half + e], y.v[2 * j + e]);
}

// ---- dense: y = x wᵀ for 16 rows ----

// Results of LG_WARPS chunks, before they are added in order.
struct Parts {
    float c[LG_WARPS][16][LG_STRIP];
};

LG_DEV void lg_keep_part(float (&to)[16][LG_STRIP], const float (&c)[4][4]) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        *(float2 *)&to[g][8 * t + 2 * j] = make_float2(c[j][0], c[j][1]);
        *(float2 *)&to[g + 8][8 * t + 2 * j] = make_float2(c[j][2], c[j][3]);
    }
}

enum { LG_LOW, LG_DELTA, LG_FOLD };

LG_DEV void lg_dense_store(const LgcDense &p, int what, int row, int out, float sum) {
    if (row >= p.rows || out >= p.n)
        return;
    const i64 at = row * p.y_stride + out;
    if (what == LG_FOLD)
        ((bf16 *)p.y)[at] = lg_bf16(__fmaf_rn(p.scale, sum, lg_f32(((const bf16 *)p.y)[at])));
    else if (what == LG_DELTA)
        ((float *)p.y)[at] = sum;
    else
        ((bf16 *)p.y)[at] = lg_bf16(sum);
}

// What a lane has of a finished strip.
LG_DEV void lg_dense_store_strip(const LgcDense &p, int what, int row0, int out0, const float (&c)[4][4]) {
    const int g = threadIdx.x % 32 / 4, out = out0 + threadIdx.x % 4 * 8;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = row0 + g + 8 * half, count = p.n - out;
        if (row >= p.rows || count <= 0)
            continue;
        const i64 at = row * p.y_stride + out;
        if (what == LG_DELTA) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (i < count)
                    ((float *)p.y)[at + i] = c[i / 2][2 * half + i % 2];
        } else {
            const bool wide = lg_wide16(p.y, p.y_stride);
            Y8 y;
            if (what == LG_FOLD) {
                y = lg_unpack(lg_load_y((const bf16 *)p.y + at, count, wide));
                lg_fold(y, c, half, p.scale);
            } else {
#pragma unroll
                for (int i = 0; i < 8; i++)
                    y.v[i] = c[i / 2][2 * half + i % 2];
            }
            lg_store_y((bf16 *)p.y + at, count, wide, y);
        }
    }
}

// 0 + c, as every sum of chunks begins: -0 becomes 0.
template <int N> LG_DEV void lg_add(float (&total)[N][4], const float (&c)[N][4]) {
#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            total[j][i] += c[j][i];
}

// How a warp gets its operands: Direct: from memory into registers.
struct Direct {
    LG_IN void chunk(float (&c)[4][4], const LgcDense &p, int row0, int out0, int from, int to) {
        const int g = threadIdx.x % 32 / 4;
        const Row low = row0 + g < p.rows ? lg_row(p.x, row0 + g, p.x_stride, p.k) : lg_no_row();
        const Row high = row0 + g + 8 < p.rows ? lg_row(p.x, row0 + g + 8, p.x_stride, p.k) : lg_no_row();
        Row w[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int out = out0 + lg_strip_output(g, j);
            w[j] = out < p.n ? lg_row(p.w, out, p.w_stride, p.k) : lg_no_row();
        }
        lg_chunk<4>(c, low, high, w, from, to);
    }
};

// A block: 16 * row_tiles rows. Of one chunk: warps take strips. Of more: one strip, warps take chunks, which are added in order.
template <class Operands> LG_DEV void lg_dense(const LgcDense &p, int what, Operands operands, int row_tiles, Parts &parts) {
    const int warp = threadIdx.x / 32, chunks = lgc_chunks(p.k), each = lgc_chunk_steps(p.k), steps = (p.k + 15) / 16;
    float c[4][4];
    lg_wait_before();
    lg_let_next();
    for (int tile = 0; tile < row_tiles; tile++) {
        const int row0 = (blockIdx.y * row_tiles + tile) * 16;
        if (row0 >= p.rows)
            return;
        if (chunks == 1) {
            float total[4][4];
            const int out0 = (blockIdx.x * LG_WARPS + warp) * LG_STRIP;
            if (out0 >= p.n)
                return;
            operands.chunk(c, p, row0, out0, 0, steps);
            lg_zero(total);
            lg_add(total, c);
            lg_dense_store_strip(p, what, row0, out0, total);
            continue;
        }
        const int out0 = blockIdx.x * LG_STRIP;
        float sum[2] = {0.0f, 0.0f};
        for (int first = 0; first < chunks; first += LG_WARPS) {
            const int mine = first + warp;
            if (mine < chunks) {
                const int to = (mine + 1) * each;
                operands.chunk(c, p, row0, out0, mine * each, to < steps ? to : steps);
                lg_keep_part(parts.c[warp], c);
            }
            __syncthreads();
            for (int i = 0; i < LG_WARPS && first + i < chunks; i++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    sum[h] += ((const float *)parts.c[i])[threadIdx.x + h * LG_THREADS];
            __syncthreads();
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int at = threadIdx.x + h * LG_THREADS;
            lg_dense_store(p, what, row0 + at / LG_STRIP, out0 + at % LG_STRIP, sum[h]);
        }
    }
}

// ---- shrink ----

// What a shrink of 16 rows needs: rows of x by lane, the stacked A, where lows go.
struct Shrink {
    Row low, high;       // x of rows g and g + 8
    LgcPtr a;            // [ranks, k padded]
    int k, ranks;
    float *to;           // low of row 0 of the 16, at this adapter's place, of part 0
    i64 part_stride;     // from part to part
    int row_stride;
    u32 rows;            // bit i: row i is of this adapter
};

LG_DEV int lg_k_padded(int k) { return (k + LGC_K_PAD - 1) / LGC_K_PAD * LGC_K_PAD; }

// One chunk of 8 N ranks from rank0 on.
template <int N> LG_DEV void lg_shrink_chunk(float (&c)[N][4], const Shrink &s, int rank0, int chunk) {
    const int g = threadIdx.x % 32 / 4, t4 = threadIdx.x % 4 * 4, each = lgc_chunk_steps(s.k), steps = (s.k + 15) / 16;
    const int from = chunk * each, to = from + each < steps ? from + each : steps, padded = lg_k_padded(s.k);
    const bf16 *a = (const bf16 *)s.a + (i64)(rank0 + g) * padded + t4;
    lg_zero(c);
    for (int at = from; at < to; at += LG_AHEAD) {
        uint2 x[LG_AHEAD], y[LG_AHEAD], w[LG_AHEAD][N];
#pragma unroll
        for (int i = 0; i < LG_AHEAD; i++) {
#pragma unroll
            for (int j = 0; j < N; j++)
                w[i][j] = lg_pool4(a + (i64)j * 8 * padded, (at + i) * 16, at + i < to && rank0 + 8 * j + g < s.ranks);
            const int k = at + i < to ? (at + i) * 16 + t4 : s.k;
            x[i] = lg_load4(s.low, k);
            y[i] = lg_load4(s.high, k);
        }
#pragma unroll
        for (int i = 0; i < LG_AHEAD; i++)
            if (at + i < to)
#pragma unroll
                for (int j = 0; j < N; j++)
                    lg_mma(c[j], x[i], y[i], w[i][j]);
    }
}

// Split: one chunk, each result a part of its own. Called by all warps; each takes some ranks.
LG_DEV void lg_shrink_part(const Shrink &s, int chunk) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (int rank0 = threadIdx.x / 32 * 8; rank0 < s.ranks; rank0 += blockDim.x / 32 * 8) {
        float c[1][4];
        lg_shrink_chunk<1>(c, s, rank0, chunk);
        float *to = s.to + chunk * s.part_stride + rank0 + 2 * t;
        if (s.rows >> g & 1)
            *(float2 *)(to + (i64)g * s.row_stride) = make_float2(c[0][0], c[0][1]);
        if (s.rows >> (g + 8) & 1)
            *(float2 *)(to + (i64)(g + 8) * s.row_stride) = make_float2(c[0][2], c[0][3]);
    }
}

#define LG_RANK_BLOCK 64
struct ShrinkParts {
    float c[LG_WARPS][16][LG_RANK_BLOCK];
};

// Whole: all chunks, added in order; one part. Called by all LG_WARPS warps, which take chunks.
LG_DEV void lg_shrink_whole(const Shrink &s, ShrinkParts &parts) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, chunks = lgc_chunks(s.k);
    for (int block = 0; block < s.ranks; block += LG_RANK_BLOCK) {
        const int ranks = s.ranks - block < LG_RANK_BLOCK ? s.ranks - block : LG_RANK_BLOCK;
        float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        for (int first = 0; first < chunks; first += LG_WARPS) {
            for (int r = 0; first + warp < chunks && r < ranks; r += 16) {
                float c[2][4];
                lg_shrink_chunk<2>(c, s, block + r, first + warp);
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    *(float2 *)&parts.c[warp][g][r + 8 * j + 2 * t] = make_float2(c[j][0], c[j][1]);
                    *(float2 *)&parts.c[warp][g + 8][r + 8 * j + 2 * t] = make_float2(c[j][2], c[j][3]);
                }
            }
            __syncthreads();
#pragma unroll
            for (int h = 0; h < 4; h++) {
                const int at = threadIdx.x + h * LG_THREADS;
                if (at % LG_RANK_BLOCK < ranks)
                    for (int i = 0; i < LG_WARPS && first + i < chunks; i++)
                        sum[h] += parts.c[i][at / LG_RANK_BLOCK][at % LG_RANK_BLOCK];
            }
            __syncthreads();
        }
#pragma unroll
        for (int h = 0; h < 4; h++) {
            const int at = threadIdx.x + h * LG_THREADS, row = at / LG_RANK_BLOCK, z = at % LG_RANK_BLOCK;
            if (z < ranks && s.rows >> row & 1)
                s.to[(i64)row * s.row_stride + block + z] = sum[h];
        }
    }
}

// ---- expand and fold ----

// Lows of some rows as bf16, [row][pitch].
#define LG_LOW_ELEMENTS (16 * (LGC_RANK_MAX + 8))
struct Lows {
    __align__(16) bf16 v[LG_LOW_ELEMENTS];
};
LG_DEV int lg_low_pitch(int rank) { return rank + 8; }

// low = bf16(sum of the parts in rising order) for rows [0, count) (at most 64; those of `rows` alone), ranks [0, rank). from: part 0 of row 0. Called by
// all threads.
LG_DEV void lg_sum_lows(Lows &lows, const float *from, i64 part_stride, int row_stride, int parts, int count, int rank, u64 rows) {
    const int pitch = lg_low_pitch(rank), pairs = rank / 2;
    for (int at = threadIdx.x; at < count * pairs; at += blockDim.x) {
        const int row = at / pairs, z = at % pairs * 2;
        if (!(rows >> row & 1))
            continue;
        const float *p = from + (i64)row * row_stride + z;
        float a = 0.0f, b = 0.0f;
        for (int i = 0; i < parts; i += 8) {
            float2 v[8];
#pragma unroll
            for (int u = 0; u < 8; u++)
                v[u] = i + u < parts ? *(const float2 *)(p + (i + u) * part_stride) : make_float2(0.0f, 0.0f);
#pragma unroll
            for (int u = 0; u < 8; u++)
                if (i + u < parts) {
                    a += v[u].x;
                    b += v[u].y;
                }
        }
        *(u32 *)&lows.v[row * pitch + z] = lg_bf16x2(a, b);
    }
}

// B of one strip for four steps: a whole chunk where the rank is at most 64.
struct Held {
    uint2 v[4][4];
};
// The rows of B that are a lane's columns: how many outputs are there, and its first.
LG_DEV const bf16 *lg_b_row(LgcPtr b, int rank, int out0) { return (const bf16 *)b + (i64)(out0 + lg_strip_output(threadIdx.x % 32 / 4, 0)) * rank; }
LG_DEV void lg_hold(Held &h, LgcPtr b, int rank, int n, int out0) {
    const int left = n - out0 - lg_strip_output(threadIdx.x % 32 / 4, 0), t4 = threadIdx.x % 4 * 4;
    const bf16 *row = lg_b_row(b, rank, out0) + t4;
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            h.v[i][j] = lg_pool4(row + 2 * j * rank, i * 16, i * 16 + t4 < rank && 2 * j < left);
}

LG_DEV uint2 lg_low4(const bf16 *low, int at, bool there) { return there ? *(const uint2 *)(low + at) : make_uint2(0, 0); }

// total = lows of rows row0 + g and row0 + g + 8 (rows not in `rows` are zeros) against a strip of B; held: its first chunk.
LG_DEV void lg_delta(float (&total)[4][4], const Lows &lows, int row0, u32 rows, const Held &held, LgcPtr b, int rank, int n, int out0) {
    const int g = threadIdx.x % 32 / 4, t4 = threadIdx.x % 4 * 4, pitch = lg_low_pitch(rank), steps = (rank + 15) / 16;
    const bool low = rows >> g & 1, high = rows >> (g + 8) & 1;
    const bf16 *x = &lows.v[(row0 + g) * pitch + t4];
    float c[4][4];
    lg_zero(total);
    lg_zero(c);
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (i < steps) {
            const bool there = i * 16 + t4 < rank;
            const uint2 a = lg_low4(x, i * 16, low && there), d = lg_low4(x + 8 * pitch, i * 16, high && there);
#pragma unroll
            for (int j = 0; j < 4; j++)
                lg_mma(c[j], a, d, held.v[i][j]);
        }
    lg_add(total, c);
    if (steps <= 4)
        return;
    const int left = n - out0 - lg_strip_output(g, 0);
    const bf16 *row = lg_b_row(b, rank, out0) + t4;
    for (int s = 4; s < steps; s++) {
        const bool there = s * 16 + t4 < rank;
        const uint2 a = lg_low4(x, s * 16, low && there), d = lg_low4(x + 8 * pitch, s * 16, high && there);
        if (s % 4 == 0)
            lg_zero(c);
#pragma unroll
        for (int j = 0; j < 4; j++)
            lg_mma(c[j], a, d, lg_pool4(row + 2 * j * rank, s * 16, there && 2 * j < left));
        if (s % 4 == 3 || s + 1 == steps)
            lg_add(total, c);
    }
}

// Blocks of outputs of all sites, one after the other: which site and strip this warp has.
#define LG_BLOCK_OUTPUTS (LG_WARPS * LG_STRIP)
struct Place {
    int site, out0;
};
LG_DEV Place lg_place(const int (&n)[LGC_SITES], int site_count, int block) {
    Place r = {0, 0};
    for (; r.site < site_count; r.site++) {
        const int blocks = (n[r.site] + LG_BLOCK_OUTPUTS - 1) / LG_BLOCK_OUTPUTS;
        if (block < blocks)
            break;
        block -= blocks;
    }
    r.out0 = block * LG_BLOCK_OUTPUTS + threadIdx.x / 32 * LG_STRIP;
    return r;
}
LG_DEV int lg_output_blocks(const int (&n)[LGC_SITES], int site_count) {
    int blocks = 0;
    for (int s = 0; s < site_count; s++)
        blocks += (n[s] + LG_BLOCK_OUTPUTS - 1) / LG_BLOCK_OUTPUTS;
    return blocks;
}
// Where a site's lows begin in those of its adapter, and all of them.
LG_DEV int lg_rank_before(const LgcRecord &r, int site) {
    int at = 0;
    for (int s = 0; s < site; s++)
        at += r.rank[s];
    return at;
}

#endif
