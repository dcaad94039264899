// y = round(x Wᵀ + bias) for 16 rows and 16 outputs a block.
//
// Where x is bf16 and W is bf16 or codes, products are those of adapters (lora.cuh): K in chunks, m16n8k16 steps in rising order, chunks added in rising
// order. Codes enter as whole numbers, which bf16 holds; a run's sum is multiplied by its scale in f32. Anything else goes by plain multiply-adds: a warp an
// output, lanes over K. Either way a row's bits are its own, whatever rows are beside it.
#ifndef LG_STEP_MATMUL_CUH
#define LG_STEP_MATMUL_CUH

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

template <class Y> LG_DEV void lgc_mma_product(const Product<Bf16Row, Y> &p, int out0, int row0, i64 w0, int x_row0, int x_rows, Parts &parts) {
    const LgcWeight *w = p.w;
    const int k = w->columns, chunks = lgc_chunks(k), each = lgc_chunk_steps(k), steps = (k + 15) / 16, g = threadIdx.x % 32 / 4;
    const Row low = lgc_x_row(p.x, (i64)(x_row0 + g) * p.x_stride, k, g < x_rows), high = lgc_x_row(p.x, (i64)(x_row0 + g + 8) * p.x_stride, k, g + 8 < x_rows);
    const bool wide_x = lg_wide8((LgcPtr)p.x.p, p.x_stride, k), wide = wide_x && lg_wide8((LgcPtr)w->data, k, k);
    float sum = 0.0f;
    for (int base = 0; base < chunks; base += LG_ROUND) {
        const int count = lg_round_chunks(chunks, base);
        for (int i = threadIdx.x / 32; i < count; i += LG_WARPS) {
            float c[2][4];
            const int from = (base + i) * each, to = from + each < steps ? from + each : steps;
            if (w->format == LGC_BF16) {
                const Row at[2] = {out0 + g < w->rows ? lg_row((LgcPtr)w->data, w0 + out0 + g, k, k) : lg_no_row(),
                                   out0 + g + 8 < w->rows ? lg_row((LgcPtr)w->data, w0 + out0 + g + 8, k, k) : lg_no_row()};
                if (wide)
                    lg_chunk<true, 2, 4>(c, low, high, at, from, to);
                else
                    lg_chunk<false, 2, 1>(c, low, high, at, from, to);
            } else {
                lgc_codes_chunk(c, low, high, wide_x, w, w0, out0, from, to);
            }
            lg_keep_part(parts, i, c);
        }
        __syncthreads();
        lg_add_parts(sum, parts, count);
        __syncthreads();
    }
    if ((int)threadIdx.x / 16 < x_rows)
        lgc_finish(p, row0 + threadIdx.x / 16, out0 + threadIdx.x % 16, sum);
}

template <class X, class Y> LG_DEV void lgc_plain_product(const Product<X, Y> &p, int out0, int row0, i64 w0, int x_row0, int x_rows) {
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

template <class Y> LG_DEV void lgc_tile_product(const Product<Bf16Row, Y> &p, int out0, int row0, i64 w0, int x_row0, int x_rows, Parts &parts) {
    if (p.w->format == LGC_F32)
        lgc_plain_product(p, out0, row0, w0, x_row0, x_rows);
    else
        lgc_mma_product(p, out0, row0, w0, x_row0, x_rows, parts);
}
template <class Y> LG_DEV void lgc_tile_product(const Product<float *, Y> &p, int out0, int row0, i64 w0, int x_row0, int x_rows, Parts &) {
    lgc_plain_product(p, out0, row0, w0, x_row0, x_rows);
}

// Block `block` of the product's outputs, rows of blockIdx.y: 16 of them, or with a choice one.
template <class X, class Y> LG_DEV void lgc_product(const Product<X, Y> &p, int block, Parts &parts) {
    const int out0 = block * LGC_TILE_OUTPUTS;
    if (p.choice) {
        const int row = blockIdx.y;
        if (row < p.rows)
            lgc_tile_product(p, out0, row, (i64)p.choice[row] * p.w->rows, row / p.share, 1, parts);
        return;
    }
    const int row0 = blockIdx.y * 16, left = p.rows - row0;
    if (left > 0)
        lgc_tile_product(p, out0, row0, 0, row0, left < 16 ? left : 16, parts);
}

// ---- many rows ----
// 128 rows and 128 outputs a block, a warp 64 by 32 of them. The order of a sum is that of few rows: chunks from zero, added in rising order.

LG_DEV void lgc_many_fill(u32 to, const Product<Bf16Row, Bf16Row> &p, int row0, int out0, int at) {
#pragma unroll
    for (int i = 0; i < (LGC_MANY_ROWS + LGC_MANY_OUTPUTS) * 8 / LGC_PRODUCT_THREADS; i++) {
        const int piece = i * LGC_PRODUCT_THREADS + threadIdx.x, row = piece / 8, k = at + piece % 8 * 8;
        const bool x = row < LGC_MANY_ROWS;
        const int line = x ? row0 + row : out0 + row - LGC_MANY_ROWS;
        const bool there = line < (x ? p.rows : p.w->rows) && k < p.w->columns;
        const bf16 *from = x ? p.x.p : (const bf16 *)p.w->data;
        if (there)
            from += line * (x ? p.x_stride : (i64)p.w->columns) + k;
        lg_copy16(to + row * LGC_MANY_PITCH + piece % 8 * 16, from, there ? 16 : 0);
    }
}

LG_DEV uint2 lgc_many_read(u32 at) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at) : "memory");
    return v;
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
template <class Y> LG_DEV void lgc_many_product(const Product<Bf16Row, Y> &p, int block, unsigned char *memory) {
    const int out0 = block * LGC_MANY_OUTPUTS, row0 = blockIdx.y * LGC_MANY_ROWS, k = p.w->columns;
    const int steps = (k + 15) / 16, each = lgc_chunk_steps(k), stages = (steps + 3) / 4, warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const u32 base = lg_shared(memory), size = (LGC_MANY_ROWS + LGC_MANY_OUTPUTS) * LGC_MANY_PITCH;
    const Product<Bf16Row, Bf16Row> from = {p.w, p.x, p.x_stride, {nullptr}, 0, nullptr, nullptr, 1, p.rows, false};
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
            lgc_many_fill(base + i * size, from, row0, out0, i * 64);
        lg_copy_commit();
    }
    int left = each;
    for (int i = 0; i < stages; i++) {
        lg_copy_wait<LGC_MANY_STAGES - 2>();
        __syncthreads();
        const int next = i + LGC_MANY_STAGES - 1;
        if (next < stages)
            lgc_many_fill(base + next % LGC_MANY_STAGES * size, from, row0, out0, next * 64);
        lg_copy_commit();
        const u32 at = base + i % LGC_MANY_STAGES * size + t * 8;
        const u32 x = at + (warp / 4 * 64 + g) * LGC_MANY_PITCH, w = at + (LGC_MANY_ROWS + warp % 4 * 32 + g) * LGC_MANY_PITCH;
#pragma unroll
        for (int s = 0; s < 4; s++) {
            if (i * 4 + s >= steps)
                break;
            uint2 b[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                b[j] = lgc_many_read(w + j * 8 * LGC_MANY_PITCH + s * 32);
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const uint2 low = lgc_many_read(x + r * 16 * LGC_MANY_PITCH + s * 32), high = lgc_many_read(x + (r * 16 + 8) * LGC_MANY_PITCH + s * 32);
#pragma unroll
                for (int j = 0; j < 4; j++)
                    lg_mma(c[r][j], low, high, b[j]);
            }
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
