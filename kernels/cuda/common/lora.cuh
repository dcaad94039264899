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
#define LG_STRIP_NARROW 16          // where chunks are many: 2 MMA columns

// ---- operands ----

// A row of k elements, or none.
struct Row {
    const bf16 *p;
    int k;
};
// Whether rows may be read by 8 bytes: of a whole call, so that every warp goes one way.
LG_DEV bool lg_wide8(LgcPtr base, i64 stride, int k) { return ((base | (u64)(stride * 2) | (u64)(k * 2)) & 7) == 0; }

LG_DEV Row lg_row(LgcPtr base, i64 row, i64 stride, int k) { return {(const bf16 *)base + row * stride, k}; }
LG_DEV Row lg_no_row() { return {nullptr, 0}; }

// Elements at .. at + 3, zeros where there are none. at is a multiple of 4. WIDE: so is k.
template <bool WIDE> LG_DEV uint2 lg_load4(const Row &r, int at) {
    uint2 v = {0, 0};
    if (WIDE) {
        if (at < r.k)
            asm volatile("ld.global.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(__cvta_generic_to_global(r.p + at)) : "memory");
        return v;
    }
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

// One chunk: steps [from, to) of rows x_low (g) and x_high (g + 8) against w[j] (column g of column block j), from zero. AHEAD: steps whose operands are on
// their way at once.
template <bool WIDE, int N, int AHEAD> LG_DEV void lg_chunk(float (&c)[N][4], const Row &x_low, const Row &x_high, const Row (&w)[N], int from, int to) {
    const int t4 = threadIdx.x % 4 * 4;
    lg_zero(c);
    for (int s = from; s < to; s += AHEAD) {
        uint2 a[AHEAD], b[AHEAD], v[AHEAD][N];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int at = s + i < to ? (s + i) * 16 + t4 : 1 << 30;
#pragma unroll
            for (int j = 0; j < N; j++)
                v[i][j] = lg_load4<WIDE>(w[j], at);
            a[i] = lg_load4<WIDE>(x_low, at);
            b[i] = lg_load4<WIDE>(x_high, at);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (s + i < to)
#pragma unroll
                for (int j = 0; j < N; j++)
                    lg_mma(c[j], a[i], b[i], v[i][j]);
    }
}

// Results of up to 32 chunks, before they are added in order: 16 rows, 16 outputs.
#define LG_ROUND 32
struct Parts {
    float c[LG_ROUND][16][16];
};
LG_DEV void lg_keep_part(Parts &parts, int chunk, const float (&c)[2][4]) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        *(float2 *)&parts.c[chunk][g][8 * j + 2 * t] = make_float2(c[j][0], c[j][1]);
        *(float2 *)&parts.c[chunk][g + 8][8 * j + 2 * t] = make_float2(c[j][2], c[j][3]);
    }
}
// Adds to the sum of row threadIdx / 16, output threadIdx % 16. Called by LG_THREADS threads, between two barriers.
LG_DEV void lg_add_parts(float &sum, const Parts &parts, int count) {
#pragma unroll 4
    for (int i = 0; i < count; i++)
        sum += parts.c[i][threadIdx.x / 16][threadIdx.x % 16];
}
LG_DEV int lg_round_chunks(int chunks, int base) { return chunks - base < LG_ROUND ? chunks - base : LG_ROUND; }

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

// Rows row0 + g and row0 + g + 8 of x.
LG_DEV Row lg_dense_x(const LgcDense &p, int row) { return row < p.rows ? lg_row(p.x, row, p.x_stride, p.k) : lg_no_row(); }
LG_DEV Row lg_dense_w(const LgcDense &p, int out) { return out < p.n ? lg_row(p.w, out, p.w_stride, p.k) : lg_no_row(); }

LG_DEV bool lg_dense_wide(const LgcDense &p) { return lg_wide8(p.x, p.x_stride, p.k) && lg_wide8(p.w, p.w_stride, p.k); }

// How a warp gets the operands of one chunk of 16 outputs. Direct: from memory into registers.
struct Direct {
    LG_IN void chunk(float (&c)[2][4], const LgcDense &p, int row0, int out0, int from, int to) {
        const int g = threadIdx.x % 32 / 4;
        const Row w[2] = {lg_dense_w(p, out0 + g), lg_dense_w(p, out0 + g + 8)};
        if (lg_dense_wide(p))
            lg_chunk<true, 2, 8>(c, lg_dense_x(p, row0 + g), lg_dense_x(p, row0 + g + 8), w, from, to);
        else
            lg_chunk<false, 2, 1>(c, lg_dense_x(p, row0 + g), lg_dense_x(p, row0 + g + 8), w, from, to);
    }
};

// K is one chunk: a warp has a strip of 32 outputs.
LG_DEV void lg_dense_strip(const LgcDense &p, int what, int row0) {
    const int g = threadIdx.x % 32 / 4, out0 = (blockIdx.x * LG_WARPS + threadIdx.x / 32) * LG_STRIP;
    float c[4][4], total[4][4];
    if (out0 >= p.n)
        return;
    Row w[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        w[j] = lg_dense_w(p, out0 + lg_strip_output(g, j));
    if (lg_dense_wide(p))
        lg_chunk<true, 4, 2>(c, lg_dense_x(p, row0 + g), lg_dense_x(p, row0 + g + 8), w, 0, (p.k + 15) / 16);
    else
        lg_chunk<false, 4, 1>(c, lg_dense_x(p, row0 + g), lg_dense_x(p, row0 + g + 8), w, 0, (p.k + 15) / 16);
    lg_zero(total);
    lg_add(total, c);
    lg_dense_store_strip(p, what, row0, out0, total);
}

// A block: row_tiles times 16 rows. Of one chunk: warps take strips. Of more: 16 outputs, warps take chunks, which are added in order.
template <class Operands> LG_DEV void lg_dense(const LgcDense &p, int what, Operands operands, int row_tiles, Parts &parts) {
    const int chunks = lgc_chunks(p.k), each = lgc_chunk_steps(p.k), steps = (p.k + 15) / 16;
    lg_let_next();
    lg_wait_before();
    for (int tile = 0; tile < row_tiles; tile++) {
        const int row0 = (blockIdx.y * row_tiles + tile) * 16, out0 = blockIdx.x * LG_STRIP_NARROW;
        if (row0 >= p.rows)
            return;
        if (chunks == 1) {
            lg_dense_strip(p, what, row0);
            continue;
        }
        float sum = 0.0f;
        for (int base = 0; base < chunks; base += LG_ROUND) {
            const int count = lg_round_chunks(chunks, base);
            for (int i = threadIdx.x / 32; i < count; i += LG_WARPS) {
                float c[2][4];
                const int from = (base + i) * each;
                operands.chunk(c, p, row0, out0, from, from + each < steps ? from + each : steps);
                lg_keep_part(parts, i, c);
            }
            __syncthreads();
            lg_add_parts(sum, parts, count);
            __syncthreads();
        }
        lg_dense_store(p, what, row0 + threadIdx.x / 16, out0 + threadIdx.x % 16, sum);
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
    bool wide;           // x may be read by 8 bytes
};

LG_DEV int lg_k_padded(int k) { return (k + LGC_K_PAD - 1) / LGC_K_PAD * LGC_K_PAD; }

// One chunk of 8 N ranks from rank0 on. A is fetched before the wait: no kernel of a step writes it.
template <bool WIDE, int N, int AHEAD> LG_DEV void lg_shrink_chunk_of(float (&c)[N][4], const Shrink &s, int rank0, int chunk) {
    const int g = threadIdx.x % 32 / 4, t4 = threadIdx.x % 4 * 4, each = lgc_chunk_steps(s.k), steps = (s.k + 15) / 16;
    const int from = chunk * each, to = from + each < steps ? from + each : steps, padded = lg_k_padded(s.k);
    const bf16 *a = (const bf16 *)s.a + (i64)(rank0 + g) * padded + t4;
    lg_zero(c);
    for (int at = from; at < to; at += AHEAD) {
        uint2 x[AHEAD], y[AHEAD], w[AHEAD][N];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
#pragma unroll
            for (int j = 0; j < N; j++)
                w[i][j] = lg_pool4(a + (i64)j * 8 * padded, (at + i) * 16, at + i < to && rank0 + 8 * j + g < s.ranks);
        lg_wait_before();
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int k = at + i < to ? (at + i) * 16 + t4 : s.k;
            x[i] = lg_load4<WIDE>(s.low, k);
            y[i] = lg_load4<WIDE>(s.high, k);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (at + i < to)
#pragma unroll
                for (int j = 0; j < N; j++)
                    lg_mma(c[j], x[i], y[i], w[i][j]);
    }
}

template <int N, int AHEAD> LG_DEV void lg_shrink_chunk(float (&c)[N][4], const Shrink &s, int rank0, int chunk) {
    if (s.wide)
        lg_shrink_chunk_of<true, N, AHEAD>(c, s, rank0, chunk);
    else
        lg_shrink_chunk_of<false, N, 1>(c, s, rank0, chunk);
}

LG_DEV void lg_store_part(const Shrink &s, const float (&c)[4], int chunk, int rank0) {
    const int g = threadIdx.x % 32 / 4;
    float *to = s.to + chunk * s.part_stride + rank0 + 2 * (threadIdx.x % 4);
    if (s.rows >> g & 1)
        *(float2 *)(to + (i64)g * s.row_stride) = make_float2(c[0], c[1]);
    if (s.rows >> (g + 8) & 1)
        *(float2 *)(to + (i64)(g + 8) * s.row_stride) = make_float2(c[2], c[3]);
}

// Asks for what chunks [from, to) of A and of the rows of x are, before anything waits for any of it.
LG_DEV void lg_fetch_a(const Shrink &s, int from, int to, int thread, int threads) {
    const int bytes = lgc_chunk_steps(s.k) * 32, padded = lg_k_padded(s.k), end = to * bytes < padded * 2 ? to * bytes : padded * 2;
    const int lines = (end - from * bytes + 127) / 128;
    for (int i = thread; i < s.ranks * lines; i += threads)
        lg_fetch((const char *)s.a + (i64)(i / lines) * padded * 2 + from * bytes + i % lines * 128);
}
LG_DEV void lg_fetch_x(const Shrink &s, int from, int to) {
    const int bytes = lgc_chunk_steps(s.k) * 32;
    for (int at = from * bytes + (threadIdx.x % 4 + threadIdx.x / 32 * 4) * 128; at < to * bytes && at < s.k * 2; at += blockDim.x / 32 * 512) {
        if (s.low.p)
            lg_fetch((const char *)s.low.p + at);
        if (s.high.p)
            lg_fetch((const char *)s.high.p + at);
    }
}

// Split: chunks [from, to), each result a part of its own. Called by all warps, which take (chunk, 8 ranks).
LG_DEV void lg_shrink_parts(const Shrink &s, int from, int to) {
    const int tiles = s.ranks / 8;
    lg_fetch_x(s, from, to);
    if ((to - from) * tiles > (int)blockDim.x / 32)
        lg_fetch_a(s, from, to, threadIdx.x, blockDim.x);
    for (int unit = threadIdx.x / 32; unit < (to - from) * tiles; unit += blockDim.x / 32) {
        float c[1][4];
        lg_shrink_chunk<1, 8>(c, s, unit % tiles * 8, from + unit / tiles);
        lg_store_part(s, c[0], from + unit / tiles, unit % tiles * 8);
    }
}
// The same by one warp.
LG_DEV void lg_shrink_part_warp(const Shrink &s, int chunk) {
    for (int rank0 = 0; rank0 < s.ranks; rank0 += 32) {
        float c[4][4];
        lg_shrink_chunk<4, 4>(c, s, rank0, chunk);
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (rank0 + 8 * j < s.ranks)
                lg_store_part(s, c[j], chunk, rank0 + 8 * j);
    }
}

// Whole: all chunks, added in order; one part. Called by all warps of a block of at least 256 threads, which take chunks; of the ranks, units of 16 from
// `slice` on, every slices-th.
LG_DEV void lg_shrink_whole(const Shrink &s, Parts &parts, int slice, int slices) {
    const int chunks = lgc_chunks(s.k), row = threadIdx.x / 16, z = threadIdx.x % 16;
    lg_fetch_x(s, 0, chunks);
    for (int rank0 = slice * 16; rank0 < s.ranks; rank0 += slices * 16) {
        float sum = 0.0f;
        for (int base = 0; base < chunks; base += LG_ROUND) {
            const int count = lg_round_chunks(chunks, base);
            for (int i = threadIdx.x / 32; i < count; i += blockDim.x / 32) {
                float c[2][4];
                lg_shrink_chunk<2, 4>(c, s, rank0, base + i);
                lg_keep_part(parts, i, c);
            }
            __syncthreads();
            if (row < 16)
                lg_add_parts(sum, parts, count);
            __syncthreads();
        }
        if (row < 16 && rank0 + z < s.ranks && s.rows >> row & 1)
            s.to[(i64)row * s.row_stride + rank0 + z] = sum;
    }
}

// ---- expand and fold ----

// Lows of some rows as bf16, [row][pitch], and behind them room for their parts.
#define LG_LOW_BYTES (47 * 1024)
struct Lows {
    __align__(16) bf16 v[LG_LOW_BYTES / 2];
};
LG_DEV int lg_low_pitch(int rank) { return rank + 8; }

// Where lows are: part 0 of row 0, and the way from part to part and from row to row.
struct LowsAt {
    const float *from;
    i64 part_stride;
    int row_stride, parts;
};

// low = bf16(sum of the parts in rising order, from zero) for rows [0, count) (at most 64; those of `rows` alone), ranks [0, rank). Called by all threads;
// barriers inside, the last at its end.
LG_DEV void lg_sum_lows(Lows &lows, const LowsAt &at, int count, int rank, u64 rows) {
    const int pitch = lg_low_pitch(rank), quads = rank / 4, all = count * quads;
    if (at.parts == 1) {
        for (int i = threadIdx.x; i < all; i += blockDim.x) {
            const int row = i / quads, z = i % quads * 4;
            if (!(rows >> row & 1))
                continue;
            const float4 v = *(const float4 *)(at.from + (i64)row * at.row_stride + z);
            *(uint2 *)&lows.v[row * pitch + z] = make_uint2(lg_bf16x2(0.0f + v.x, 0.0f + v.y), lg_bf16x2(0.0f + v.z, 0.0f + v.w));
        }
        __syncthreads();
        return;
    }
    float4 *stage = (float4 *)((char *)lows.v + count * pitch * 2); // a pitch is a multiple of 16 bytes
    const int most = (LG_LOW_BYTES - count * pitch * 2) / 16 / at.parts;
    for (int base = 0; base < all; base += most) {
        const int n = all - base < most ? all - base : most;
        for (int i = threadIdx.x; i < n * at.parts; i += blockDim.x) {
            const int part = i / n, e = base + i % n, row = e / quads;
            lg_copy16(lg_shared(&stage[i]), at.from + part * at.part_stride + (i64)row * at.row_stride + e % quads * 4, rows >> row & 1 ? 16 : 0);
        }
        lg_copy_commit();
        lg_copy_wait<0>();
        __syncthreads();
        for (int i = threadIdx.x; i < 2 * n; i += blockDim.x) {
            const int e = base + i / 2;
            float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll 8
            for (int part = 0; part < at.parts; part++) {
                const float2 v = ((const float2 *)&stage[part * n])[i];
                sum.x += v.x;
                sum.y += v.y;
            }
            *(u32 *)&lows.v[e / quads * pitch + e % quads * 4 + i % 2 * 2] = lg_bf16x2(sum.x, sum.y);
        }
        __syncthreads();
    }
}

LG_DEV uint2 lg_low4(const bf16 *low, int at, bool there) { return there ? *(const uint2 *)(low + at) : make_uint2(0, 0); }

// The rows of B that are a lane's columns: its first.
LG_DEV const bf16 *lg_b_row(LgcPtr b, int rank, int out0) { return (const bf16 *)b + (i64)(out0 + lg_strip_output(threadIdx.x % 32 / 4, 0)) * rank; }

// B of STRIPS strips, which follow each other, for ranks up to 64 / STRIPS: one chunk.
template <int STRIPS> struct Held {
    uint2 v[STRIPS][4 / STRIPS][4];
};
template <int STRIPS> LG_DEV void lg_hold(Held<STRIPS> &h, LgcPtr b, int rank, int n, int out0) {
    const int left = n - out0 - lg_strip_output(threadIdx.x % 32 / 4, 0), t4 = threadIdx.x % 4 * 4;
    const bf16 *row = lg_b_row(b, rank, out0) + t4;
#pragma unroll
    for (int s = 0; s < STRIPS; s++)
#pragma unroll
        for (int i = 0; i < 4 / STRIPS; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                h.v[s][i][j] = lg_pool4(row + (i64)(s * LG_STRIP + 2 * j) * rank, i * 16, i * 16 + t4 < rank && s * LG_STRIP + 2 * j < left);
}

// One row's place in an expand.
struct FoldRow {
    bf16 *y; // at output 0; null: no such row
    float scale;
};

// A row's results of a lane's outputs, from `out` on.
LG_DEV uint4 lg_fold_load(const FoldRow &r, int out, int n, bool wide) { return r.y && out < n ? lg_load_y(r.y + out, n - out, wide) : make_uint4(0, 0, 0, 0); }
LG_DEV void lg_fold_store(const FoldRow &r, int out, int n, bool wide, uint4 before, const float (&total)[4][4], int half) {
    if (!r.y || out >= n)
        return;
    Y8 v = lg_unpack(before);
    lg_fold(v, total, half, r.scale);
    lg_store_y(r.y + out, n - out, wide, v);
}

// 16 rows, whose lows are at row0 and behind it, against the held strips. row[h]: rows g and g + 8 of them.
template <int STRIPS> LG_DEV void lg_fold_rows(const Lows &lows, int row0, const FoldRow (&row)[2], const Held<STRIPS> &held, int rank, int n, int out0, bool wide) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, pitch = lg_low_pitch(rank);
    const bf16 *x = &lows.v[(row0 + g) * pitch + 4 * t];
    uint4 y[STRIPS][2];
    uint2 a[4 / STRIPS][2];
#pragma unroll
    for (int s = 0; s < STRIPS; s++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            y[s][h] = lg_fold_load(row[h], out0 + s * LG_STRIP + 8 * t, n, wide);
#pragma unroll
    for (int i = 0; i < 4 / STRIPS; i++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            a[i][h] = lg_low4(x + 8 * h * pitch, i * 16, row[h].y && i * 16 + 4 * t < rank);
#pragma unroll
    for (int s = 0; s < STRIPS; s++) {
        float c[4][4], total[4][4];
        lg_zero(c);
        lg_zero(total);
#pragma unroll
        for (int i = 0; i < 4 / STRIPS; i++)
            if (i * 16 < rank)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    lg_mma(c[j], a[i][0], a[i][1], held.v[s][i][j]);
        lg_add(total, c);
#pragma unroll
        for (int h = 0; h < 2; h++)
            lg_fold_store(row[h], out0 + s * LG_STRIP + 8 * t, n, wide, y[s][h], total, h);
    }
}

// total = lows of two rows (x: of row g, at 4t; there[h]: whether row g + 8h is) against one strip of B, any rank.
LG_DEV void lg_delta(float (&total)[4][4], const bf16 *x, const bool (&there)[2], LgcPtr b, int rank, int n, int out0) {
    const int t4 = threadIdx.x % 4 * 4, pitch = lg_low_pitch(rank), steps = (rank + 15) / 16;
    const int left = n - out0 - lg_strip_output(threadIdx.x % 32 / 4, 0);
    const bf16 *row = lg_b_row(b, rank, out0) + t4;
    float c[4][4];
    lg_zero(total);
    for (int s = 0; s < steps; s += 4) {
        uint2 w[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                w[i][j] = lg_pool4(row + (i64)2 * j * rank, (s + i) * 16, (s + i) * 16 + t4 < rank && 2 * j < left);
        lg_zero(c);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (s + i < steps) {
                const bool in = (s + i) * 16 + t4 < rank;
                const uint2 a = lg_low4(x, (s + i) * 16, there[0] && in), d = lg_low4(x + 8 * pitch, (s + i) * 16, there[1] && in);
#pragma unroll
                for (int j = 0; j < 4; j++)
                    lg_mma(c[j], a, d, w[i][j]);
            }
        lg_add(total, c);
    }
}

// Blocks of outputs of all sites, one after the other: which site, and its first output.
#define LG_BLOCK_OUTPUTS (LG_WARPS * LG_STRIP * 4)
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
    r.out0 = block * LG_BLOCK_OUTPUTS;
    return r;
}
LG_DEV int lg_output_blocks(const int (&n)[LGC_SITES], int site_count) {
    int blocks = 0;
    for (int s = 0; s < site_count; s++)
        blocks += (n[s] + LG_BLOCK_OUTPUTS - 1) / LG_BLOCK_OUTPUTS;
    return blocks;
}

// One adapter on one block of outputs for rows [0, count), at most 64: their lows, then all strips, B in registers for all rows. row_of(i): the i-th row.
// again: the lows of the call before are those of this one. Ranks to 64 / STRIPS.
template <int STRIPS, class RowOf>
LG_DEV void lg_expand_held(Lows &lows, const LowsAt &at, bool again, LgcPtr b, int rank, int n, int block0, int count, u64 rows, bool wide, RowOf row_of) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, span = LG_STRIP * STRIPS;
    int out0 = block0 + threadIdx.x / 32 * span;
    Held<STRIPS> held;
    FoldRow row[2];
    const auto find = [&](int row0) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int r = row0 + g + 8 * h;
            row[h] = r < count && rows >> r & 1 ? row_of(r) : FoldRow{nullptr, 0.0f};
        }
    };
    lg_hold(held, b, rank, n, out0);
    find(0);
#pragma unroll
    for (int h = 0; h < 2; h++) // 64 outputs a line
        if (row[h].y && t * 64 < span * (4 / STRIPS) && out0 + t * 64 < n)
            lg_fetch(row[h].y + out0 + t * 64);
    lg_wait_before();
    if (!again)
        lg_sum_lows(lows, at, count, rank, rows);
    for (int i = 0; i < 4 / STRIPS && out0 < n; i++, out0 += LG_WARPS * span) {
        if (i > 0)
            lg_hold(held, b, rank, n, out0);
        for (int row0 = 0; row0 < count; row0 += 16) {
            if (i > 0 || row0 > 0)
                find(row0);
            lg_fold_rows(lows, row0, row, held, rank, n, out0, wide);
        }
    }
}

// The same for ranks above 64, 16 rows at most.
template <class RowOf>
LG_DEV void lg_expand_large(Lows &lows, const LowsAt &at, LgcPtr b, int rank, int n, int block0, int count, u64 rows, bool wide, RowOf row_of) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    FoldRow row[2];
    lg_wait_before();
    lg_sum_lows(lows, at, count, rank, rows);
#pragma unroll
    for (int h = 0; h < 2; h++)
        row[h] = g + 8 * h < count && rows >> (g + 8 * h) & 1 ? row_of(g + 8 * h) : FoldRow{nullptr, 0.0f};
    const bool there[2] = {row[0].y != nullptr, row[1].y != nullptr};
    for (int out0 = block0 + threadIdx.x / 32 * LG_STRIP, i = 0; i < 4 && out0 < n; i++, out0 += LG_WARPS * LG_STRIP) {
        float total[4][4];
        lg_delta(total, &lows.v[g * lg_low_pitch(rank) + 4 * t], there, b, rank, n, out0);
#pragma unroll
        for (int h = 0; h < 2; h++)
            lg_fold_store(row[h], out0 + 8 * t, n, wide, lg_fold_load(row[h], out0 + 8 * t, n, wide), total, h);
    }
}

// One adapter, any rank. Called by all threads; the caller puts a barrier before the next lows.
template <class RowOf>
LG_DEV void lg_expand_one(Lows &lows, const LowsAt &at, bool again, LgcPtr b, int rank, int n, int block0, int count, u64 rows, bool wide, RowOf row_of) {
    if (rank <= 16)
        lg_expand_held<4>(lows, at, again, b, rank, n, block0, count, rows, wide, row_of);
    else if (rank <= 32)
        lg_expand_held<2>(lows, at, again, b, rank, n, block0, count, rows, wide, row_of);
    else if (rank <= 64)
        lg_expand_held<1>(lows, at, again, b, rank, n, block0, count, rows, wide, row_of);
    else
        for (int row0 = 0; row0 < count; row0 += 16) {
            const LowsAt some = {at.from + (i64)row0 * at.row_stride, at.part_stride, at.row_stride, at.parts};
            if (row0 > 0)
                __syncthreads();
            lg_expand_large(lows, some, b, rank, n, block0, count - row0 < 16 ? count - row0 : 16, rows >> row0, wide, [&](int i) { return row_of(row0 + i); });
        }
}

// A set of adapters on up to 16 rows: results stay in registers until all are in. member(m, b, rank, at, rows): false where there are no more; rank 0: does
// nothing. row_of(i, m): the i-th row with the scale of a member.
template <class Member, class RowOf>
LG_DEV void lg_expand_set(Lows &lows, int n, int block0, int count, u64 mine, bool wide, Member member, RowOf row_of) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    lg_wait_before();
    for (int i = 0; i < 4; i++) { // strips of this warp; a warp without one takes part in the barriers
        const int out0 = block0 + (i * LG_WARPS + threadIdx.x / 32) * LG_STRIP, out = out0 + 8 * t;
        Y8 v[2];
        u64 folded = 0;
        if (block0 + i * LG_WARPS * LG_STRIP >= n)
            return;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int r = g + 8 * h;
            v[h] = lg_unpack(lg_fold_load(r < count && mine >> r & 1 ? row_of(r, 0) : FoldRow{nullptr, 0.0f}, out, n, wide));
        }
        LgcPtr b;
        int rank;
        LowsAt at;
        u64 rows;
        for (int m = 0; member(m, b, rank, at, rows); m++) {
            if (rank == 0)
                continue;
            const bool there[2] = {(rows >> g & 1) != 0, (rows >> (g + 8) & 1) != 0};
            float total[4][4];
            __syncthreads();
            lg_sum_lows(lows, at, count, rank, rows);
            lg_delta(total, &lows.v[g * lg_low_pitch(rank) + 4 * t], there, b, rank, n, out0);
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (there[h])
                    lg_fold(v[h], total, h, row_of(g + 8 * h, m).scale);
            folded |= rows;
        }
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (folded >> (g + 8 * h) & 1 && out < n)
                lg_store_y(row_of(g + 8 * h, 0).y + out, n - out, wide, v[h]);
    }
}

// Where a site's lows begin in those of its adapter, and all of them.
LG_DEV int lg_rank_before(const LgcRecord &r, int site) {
    int at = 0;
    for (int s = 0; s < site; s++)
        at += r.rank[s];
    return at;
}

#endif
