// y = round(x Wᵀ + bias) for 16 rows and 16 outputs a block.
//
// Where x is bf16 and W is bf16 or codes, products are those of adapters (lora.cuh): K in chunks, m16n8k16 steps in rising order, chunks added in rising
// order. Codes enter as whole numbers, which bf16 holds; a run's sum is multiplied by its scale in f32. Anything else goes by plain multiply-adds: a warp an
// output, lanes over K. Either way a row's bits are its own, whatever rows are beside it.
#ifndef LG_STEP_MATMUL_CUH
#define LG_STEP_MATMUL_CUH

// A function of its own: what a program has many copies of would be compiled as often.
#define LG_CALL static __device__ __noinline__

template <class X, class Y> struct Product {
    const LgcWeight *w;
    X x;
    i64 x_stride;
    Y y;
    i64 y_stride;
    const float *bias; // NULL: none
    const int *choice; // the expert of each row; NULL: one weight
    int share;         // with a choice: rows that read one row of x
    int rows;
    bool round;        // y is f32 and holds rounded values
};

// ---- codes ----

// Codes at .. at + 3 of a row of codes, as bf16.
LG_DEV uint2 lgc_codes4(const LgcWeight *w, i64 row, int at) {
    float v[4];
    const i64 first = row * w->columns + at;
    if (w->format == LGC_CODES4) {
        const u32 two = *(const uint16_t *)(w->data + first / 2);
        const int less = w->centered ? 8 : 0;
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = (float)((int)(two >> 4 * i & 15) - less);
    } else {
        const u32 four = *(const u32 *)(w->data + first);
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = (float)(signed char)(four >> 8 * i & 255);
    }
    return make_uint2(lg_bf16x2(v[0], v[1]), lg_bf16x2(v[2], v[3]));
}

LG_DEV float2 lgc_pair(const LgcWeight *w, i64 row, int run) { return ((const float2 *)w->scales)[row * (w->columns / w->run) + run]; }

// A run's part of a chunk: c += scale * p + least * sum of x.
LG_DEV void lgc_end_run(float (&c)[2][4], const LgcWeight *w, i64 row0, int out0, int outputs, int run, float (&p)[2][4], float (&ones)[4]) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int out = out0 + 8 * j + 2 * t + e;
            const float2 pair = out < outputs ? lgc_pair(w, row0 + out, run) : make_float2(0.0f, 0.0f);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int i = 2 * half + e;
                c[j][i] = fmaf(pair.x, p[j][i], fmaf(pair.y, ones[i], c[j][i]));
                p[j][i] = 0.0f;
            }
        }
#pragma unroll
    for (int i = 0; i < 4; i++)
        ones[i] = 0.0f;
}

// Steps [from, to) against outputs out0 .. out0 + 15 of the expert that begins at row row0 of W.
LG_DEV void lgc_codes_chunk(float (&c)[2][4], const Row &low, const Row &high, bool wide, const LgcWeight *w, i64 row0, int out0, int from, int to) {
    const int g = threadIdx.x % 32 / 4, t4 = threadIdx.x % 4 * 4, each = w->run / 16;
    float p[2][4], ones[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    lg_zero(c);
    lg_zero(p);
    for (int s = from; s < to; s++) {
        const int at = s * 16 + t4;
        const uint2 a = wide ? lg_load4<true>(low, at) : lg_load4<false>(low, at);
        const uint2 b = wide ? lg_load4<true>(high, at) : lg_load4<false>(high, at);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int out = out0 + 8 * j + g;
            lg_mma(p[j], a, b, out < w->rows && at < w->columns ? lgc_codes4(w, row0 + out, at) : make_uint2(0, 0));
        }
        lg_mma(ones, a, b, make_uint2(0x3f803f80u, 0x3f803f80u));
        if ((s + 1) % each == 0 || s + 1 == to)
            lgc_end_run(c, w, row0, out0, w->rows, s / each, p, ones);
    }
}

template <int TILES> struct ProductRows {
    Row low[TILES], high[TILES], w[2]; // of lane (g, t): rows g and g + 8 of each 16, outputs g and g + 8
};
template <int TILES> LG_DEV void lgc_keep_chunk(float (&part)[16 * TILES][16], const float (&c)[2][4], int tile);

template <int TILES> LG_DEV void lgc_codes_round(float (*parts)[16 * TILES][16], const ProductRows<TILES> &r, bool wide, const LgcWeight *w, i64 w0, int out0, int base, int count, int each, int steps) {
    for (int i = threadIdx.x / 32; i < count; i += LG_WARPS) {
        const int from = (base + i) * each, to = from + each < steps ? from + each : steps;
#pragma unroll
        for (int k = 0; k < TILES; k++) {
            float c[2][4];
            lgc_codes_chunk(c, r.low[k], r.high[k], wide, w, w0, out0, from, to);
            lgc_keep_chunk<TILES>(parts[i], c, k);
        }
    }
}

// ---- plain ----

LG_DEV float lgc_element(const LgcWeight *w, i64 row, int k) {
    const i64 at = row * w->columns + k;
    if (w->format == LGC_F32)
        return ((const float *)w->data)[at];
    if (w->format == LGC_BF16)
        return lg_f32(((const bf16 *)w->data)[at]);
    const float2 pair = lgc_pair(w, row, k / w->run);
    const int code = w->format == LGC_CODES8 ? (int)((const signed char *)w->data)[at] : (int)(w->data[at / 2] >> (at & 1) * 4 & 15) - (w->centered ? 8 : 0);
    return fmaf(pair.x, (float)code, pair.y);
}

// ---- stores ----

template <class X, class Y> LG_DEV void lgc_finish(const Product<X, Y> &p, int row, int out, float sum) {
    if (row >= p.rows || out >= p.w->rows)
        return;
    const float v = p.bias ? sum + p.bias[out] : sum;
    p.y[row * p.y_stride + out] = p.round ? lgp_round_bf16(v) : v;
}

// ---- fetching ahead ----

// Asks for the weights of a block's outputs: before the wait, since no kernel of a step writes them.
LG_DEV void lgc_ahead(const LgcWeight *w, int block) {
    const int left = w->rows - block * LGC_TILE_OUTPUTS, rows = left < LGC_TILE_OUTPUTS ? left : LGC_TILE_OUTPUTS;
    const i64 bytes = w->format == LGC_F32 ? w->columns * 4ll : w->format == LGC_BF16 ? w->columns * 2ll : w->format == LGC_CODES4 ? w->columns / 2 : w->columns;
    if (blockIdx.y == 0)
        lg_fetch_span((u64)w->data + (u64)block * LGC_TILE_OUTPUTS * bytes, rows * bytes, threadIdx.x, blockDim.x);
}

// ---- a block ----

LG_DEV Row lgc_x_row(Bf16Row x, i64 at, int k, bool there) { return there ? Row{x.p + at, k} : lg_no_row(); }

// Weights of four steps and 16 outputs; x is near enough to be read when it is needed.
struct Operands {
    uint2 w[4][2];
};

template <bool WIDE, int TILES> LG_DEV void lgc_load_weights(Operands &o, const ProductRows<TILES> &r, int from, int to) {
    const int t4 = threadIdx.x % 4 * 4;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int at = from + i < to ? (from + i) * 16 + t4 : 1 << 30;
#pragma unroll
        for (int j = 0; j < 2; j++)
            o.w[i][j] = lg_load4<WIDE>(r.w[j], at);
    }
}

// Where a warp stands in its chunks: every LG_WARPS-th of [0, count) of a round.
struct ChunkAt {
    int chunk, from, to;
};
LG_DEV ChunkAt lgc_chunk_at(int chunk, int base, int each, int steps) {
    const int from = (base + chunk) * each;
    return {chunk, from, from + each < steps ? from + each : steps};
}
LG_DEV ChunkAt lgc_next_at(const ChunkAt &p, int base, int each, int steps) {
    if (p.from + 4 < p.to)
        return {p.chunk, p.from + 4, p.to};
    return lgc_chunk_at(p.chunk + LG_WARPS, base, each, steps);
}

template <int TILES> LG_DEV void lgc_keep_chunk(float (&part)[16 * TILES][16], const float (&c)[2][4], int tile) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        *(float2 *)&part[16 * tile + g][8 * j + 2 * t] = make_float2(c[j][0], c[j][1]);
        *(float2 *)&part[16 * tile + g + 8][8 * j + 2 * t] = make_float2(c[j][2], c[j][3]);
    }
}

// Chunks [base, base + count) of a bf16 product: the next operands are on their way while the present ones are multiplied, across the chunks' borders too.
template <bool WIDE, int TILES> LG_DEV void lgc_stream(float (*parts)[16 * TILES][16], const ProductRows<TILES> &r, int base, int count, int each, int steps) {
    const int t4 = threadIdx.x % 4 * 4;
    float c[TILES][2][4];
    Operands o[2];
    ChunkAt at = lgc_chunk_at(threadIdx.x / 32, base, each, steps);
    if (at.chunk >= count)
        return;
#pragma unroll
    for (int k = 0; k < TILES; k++)
        lg_zero(c[k]);
    lgc_load_weights<WIDE>(o[0], r, at.from, at.to);
    while (at.chunk < count) {
#pragma unroll
        for (int turn = 0; turn < 2; turn++) {
            if (at.chunk >= count)
                break;
            const ChunkAt then = lgc_next_at(at, base, each, steps);
            if (then.chunk < count)
                lgc_load_weights<WIDE>(o[1 - turn], r, then.from, then.to);
#pragma unroll
            for (int k = 0; k < TILES; k++) {
                uint2 low[4], high[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int x = at.from + i < at.to ? (at.from + i) * 16 + t4 : 1 << 30;
                    low[i] = lg_load4<WIDE>(r.low[k], x);
                    high[i] = lg_load4<WIDE>(r.high[k], x);
                }
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (at.from + i < at.to)
#pragma unroll
                        for (int j = 0; j < 2; j++)
                            lg_mma(c[k][j], low[i], high[i], o[turn].w[i][j]);
            }
            if (then.chunk != at.chunk)
#pragma unroll
                for (int k = 0; k < TILES; k++) {
                    lgc_keep_chunk<TILES>(parts[at.chunk], c[k], k);
                    lg_zero(c[k]);
                }
            at = then;
        }
    }
}

// 16 TILES rows: the results of a round of chunks lie in shared memory, then they are added in rising order.
template <int TILES, class Y> LG_CALL void lgc_mma_product(const Product<Bf16Row, Y> &p, int out0, int row0, i64 w0, int x_row0, int x_rows, Parts &memory) {
    constexpr int ROUND = LG_ROUND / TILES;
    float(*const parts)[16 * TILES][16] = (float(*)[16 * TILES][16]) & memory;
    const LgcWeight *w = p.w;
    const int k = w->columns, chunks = lgc_chunks(k), each = lgc_chunk_steps(k), steps = (k + 15) / 16, g = threadIdx.x % 32 / 4;
    const bool wide_x = lg_wide8((LgcPtr)p.x.p, p.x_stride, k), wide = wide_x && lg_wide8((LgcPtr)w->data, k, k);
    ProductRows<TILES> r;
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        const int row = 16 * i + g;
        r.low[i] = lgc_x_row(p.x, (i64)(x_row0 + row) * p.x_stride, k, row < x_rows);
        r.high[i] = lgc_x_row(p.x, (i64)(x_row0 + row + 8) * p.x_stride, k, row + 8 < x_rows);
    }
#pragma unroll
    for (int j = 0; j < 2; j++)
        r.w[j] = w->format == LGC_BF16 && out0 + 8 * j + g < w->rows ? lg_row((LgcPtr)w->data, w0 + out0 + 8 * j + g, k, k) : lg_no_row();
    float sum[TILES] = {};
    for (int base = 0; base < chunks; base += ROUND) {
        const int count = chunks - base < ROUND ? chunks - base : ROUND;
        if (w->format != LGC_BF16)
            lgc_codes_round<TILES>(parts, r, wide_x, w, w0, out0, base, count, each, steps);
        else if (wide)
            lgc_stream<true, TILES>(parts, r, base, count, each, steps);
        else
            lgc_stream<false, TILES>(parts, r, base, count, each, steps);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll 4
            for (int j = 0; j < count; j++)
                sum[i] += parts[j][16 * i + threadIdx.x / 16][threadIdx.x % 16];
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < TILES; i++)
        if (16 * i + (int)threadIdx.x / 16 < x_rows)
            lgc_finish(p, row0 + 16 * i + threadIdx.x / 16, out0 + threadIdx.x % 16, sum[i]);
}

template <class X, class Y> LG_CALL void lgc_plain_product(const Product<X, Y> &p, int out0, int row0, i64 w0, int x_row0, int x_rows) {
    const LgcWeight *w = p.w;
    for (int out = out0 + threadIdx.x / 32; out < out0 + LGC_TILE_OUTPUTS && out < w->rows; out += LG_WARPS)
        for (int r = 0; r < x_rows; r++) {
            float sum = 0.0f;
            for (int k = threadIdx.x % 32; k < w->columns; k += 32)
                sum = fmaf((float)p.x[(i64)(x_row0 + r) * p.x_stride + k], lgc_element(w, w0 + out, k), sum);
            sum = lgc_warp_sum(sum);
            if (threadIdx.x % 32 == 0)
                lgc_finish(p, row0 + r, out, sum);
        }
}

template <int TILES, class Y> LG_DEV void lgc_tile_product(const Product<Bf16Row, Y> &p, int out0, int row0, i64 w0, int x_row0, int x_rows, Parts &parts) {
    if (p.w->format == LGC_F32)
        lgc_plain_product(p, out0, row0, w0, x_row0, x_rows);
    else
        lgc_mma_product<TILES>(p, out0, row0, w0, x_row0, x_rows, parts);
}
template <int TILES, class Y> LG_DEV void lgc_tile_product(const Product<float *, Y> &p, int out0, int row0, i64 w0, int x_row0, int x_rows, Parts &) {
    lgc_plain_product(p, out0, row0, w0, x_row0, x_rows);
}

// Block `block` of the product's outputs, rows of blockIdx.y: 16 TILES of them.
template <int TILES, class X, class Y> LG_DEV void lgc_product(const Product<X, Y> &p, int block, Parts &parts) {
    const int row0 = blockIdx.y * 16 * TILES, left = p.rows - row0;
    if (left > 0)
        lgc_tile_product<TILES>(p, block * LGC_TILE_OUTPUTS, row0, 0, row0, left < 16 * TILES ? left : 16 * TILES, parts);
}

// The same of the weights that a row's choice picks: one row.
template <class X, class Y> LG_DEV void lgc_chosen_product(const Product<X, Y> &p, int block, Parts &parts) {
    const int row = blockIdx.y;
    if (row < p.rows)
        lgc_tile_product<1>(p, block * LGC_TILE_OUTPUTS, row, (i64)p.choice[row] * p.w->rows, row / p.share, 1, parts);
}

// ---- many rows ----
// 128 rows and 128 outputs a block, a warp 64 by 32 of them. The order of a sum is that of few rows: chunks from zero, added in rising order.

// What a block copies, as numbers of its own: fields of structures would be read again behind every copy.
struct ManyFrom {
    const bf16 *x, *w; // of the block's first row and output
    i64 x_stride;
    int rows, outputs, k;
};

LG_DEV void lgc_many_fill(u32 to, const ManyFrom &f, int at) {
    const int k = at + threadIdx.x % 8 * 8;
    const u32 first = to + threadIdx.x / 8 * LGC_MANY_PITCH + threadIdx.x % 8 * 16;
#pragma unroll
    for (int i = 0; i < LGC_MANY_ROWS * 8 / LGC_PRODUCT_THREADS; i++) {
        const int row = i * (LGC_PRODUCT_THREADS / 8) + threadIdx.x / 8;
        lg_copy16(first + i * (LGC_PRODUCT_THREADS / 8) * LGC_MANY_PITCH, row < f.rows ? f.x + row * f.x_stride + k : f.x, row < f.rows && k < f.k ? 16 : 0);
    }
#pragma unroll
    for (int i = 0; i < LGC_MANY_OUTPUTS * 8 / LGC_PRODUCT_THREADS; i++) {
        const int row = i * (LGC_PRODUCT_THREADS / 8) + threadIdx.x / 8;
        lg_copy16(first + (LGC_MANY_ROWS + i * (LGC_PRODUCT_THREADS / 8)) * LGC_MANY_PITCH, row < f.outputs ? f.w + (i64)row * f.k + k : f.w, row < f.outputs && k < f.k ? 16 : 0);
    }
}

LG_DEV uint2 lgc_many_read(u32 at) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at) : "memory");
    return v;
}

// Operands of one step of a warp: 64 rows, 32 outputs.
struct Fragments {
    uint2 low[4], high[4], w[4];
};
LG_DEV void lgc_many_fragments(Fragments &f, u32 x, u32 w) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        f.w[j] = lgc_many_read(w + j * 8 * LGC_MANY_PITCH);
        f.low[j] = lgc_many_read(x + j * 16 * LGC_MANY_PITCH);
        f.high[j] = lgc_many_read(x + (j * 16 + 8) * LGC_MANY_PITCH);
    }
}

LG_DEV void lgc_many_store(const Product<Bf16Row, Bf16Row> &p, int row, int out, float a, float b) {
    if (row >= p.rows || out >= p.w->rows)
        return;
    const float *bias = p.bias;
    const bool both = out + 1 < p.w->rows;
    a = bias ? a + bias[out] : a;
    b = bias && both ? b + bias[out + 1] : b;
    bf16 *y = p.y.p + row * p.y_stride + out;
    if (both && ((u64)y & 3) == 0) {
        *(u32 *)y = lg_bf16x2(a, b);
    } else {
        y[0] = lg_bf16(a);
        if (both)
            y[1] = lg_bf16(b);
    }
}
LG_DEV void lgc_many_store(const Product<Bf16Row, float *> &p, int row, int out, float a, float b) {
    lgc_finish(p, row, out, a);
    lgc_finish(p, row, out + 1, b);
}

// W is bf16, and K is a multiple of 8.
template <class Y> LG_CALL void lgc_many_product(const Product<Bf16Row, Y> &p, int block, unsigned char *memory) {
    const int out0 = block * LGC_MANY_OUTPUTS, row0 = blockIdx.x * LGC_MANY_ROWS, k = p.w->columns;
    const int steps = (k + 15) / 16, each = lgc_chunk_steps(k), stages = (steps + 3) / 4, warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const u32 base = lg_shared(memory), size = (LGC_MANY_ROWS + LGC_MANY_OUTPUTS) * LGC_MANY_PITCH;
    const ManyFrom from = {p.x.p + row0 * p.x_stride, (const bf16 *)p.w->data + (i64)out0 * k, p.x_stride, p.rows - row0, p.w->rows - out0, k};
    if (row0 >= p.rows)
        return;
    float c[4][4][4], total[4][4][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        lg_zero(c[i]);
        lg_zero(total[i]);
    }
#pragma unroll
    for (int i = 0; i < LGC_MANY_STAGES - 1; i++) {
        if (i < stages)
            lgc_many_fill(base + i * size, from, i * 64);
        lg_copy_commit();
    }
    int left = each;
    for (int i = 0; i < stages; i++) {
        lg_copy_wait<LGC_MANY_STAGES - 2>();
        __syncthreads();
        const int next = i + LGC_MANY_STAGES - 1;
        if (next < stages)
            lgc_many_fill(base + next % LGC_MANY_STAGES * size, from, next * 64);
        lg_copy_commit();
        const u32 at = base + i % LGC_MANY_STAGES * size + t * 8;
        const u32 x = at + (warp / 4 * 64 + g) * LGC_MANY_PITCH, w = at + (LGC_MANY_ROWS + warp % 4 * 32 + g) * LGC_MANY_PITCH;
        Fragments f[2];
        lgc_many_fragments(f[0], x, w);
#pragma unroll
        for (int s = 0; s < 4; s++) {
            if (s < 3)
                lgc_many_fragments(f[(s + 1) % 2], x + (s + 1) * 32, w + (s + 1) * 32);
            if (i * 4 + s >= steps)
                break;
#pragma unroll
            for (int r = 0; r < 4; r++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    lg_mma(c[r][j], f[s % 2].low[r], f[s % 2].high[r], f[s % 2].w[j]);
            if (--left == 0 || i * 4 + s + 1 == steps) {
                left = each;
#pragma unroll
                for (int r = 0; r < 4; r++) {
                    lg_add(total[r], c[r]);
                    lg_zero(c[r]);
                }
            }
        }
    }
    lg_copy_wait<0>();
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int row = row0 + warp / 4 * 64 + r * 16 + g, out = out0 + warp % 4 * 32 + j * 8 + 2 * t;
            lgc_many_store(p, row, out, total[r][j][0], total[r][j][1]);
            lgc_many_store(p, row + 8, out, total[r][j][2], total[r][j][3]);
        }
}

#endif
