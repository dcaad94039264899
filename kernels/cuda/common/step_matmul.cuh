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

#endif
