// The words that emitted programs are written in: rows of values, loops over them by the threads of a block, sums in one fixed order, tables, pages.
#ifndef LG_STEP_CUH
#define LG_STEP_CUH

#include "lora.cuh"
#include "step_abi.h"

typedef int int32_t;
typedef long long int64_t;
typedef unsigned short uint16_t;
typedef unsigned long long uint64_t;

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif

#define LGP_PAGE LGC_PAGE
#define LGP_FOR(index, size) for (int32_t index = 0; index < (size); index++)

// ---- rows of values ----

// A row of bf16 that reads and takes f32.
struct Bf16Row {
    bf16 *p;
    struct Element {
        bf16 *p;
        LG_IN operator float() const { return lg_f32(*p); }
        LG_IN void operator=(float v) const { *p = lg_bf16(v); }
        LG_IN void operator=(const Element &e) const { *p = *e.p; }
    };
    LG_IN Element operator[](i64 i) const { return {p + i}; }
    LG_IN Bf16Row operator+(i64 i) const { return {p + i}; }
};
template <class T> struct RowOf {
    typedef T *type;
};
template <> struct RowOf<bf16> {
    typedef Bf16Row type;
};

// Row `row` of a value that lies `offset` bytes a row into the arena, `elems` elements a row.
template <class T> LG_DEV typename RowOf<T>::type lgc_row(const LgcStep *step, u64 offset, i64 elems, i64 row) {
    return {(T *)(step->arena + offset * (u64)step->rows_max) + row * elems};
}
LG_DEV float *lgc_out(const LgcStep *step, i64 elems, i64 row) { return step->out + row * elems; }

// A state's part of a page, as whatever it holds.
struct PageAt {
    void *p;
    template <class T> LG_IN operator T *() const { return (T *)p; }
};

// A row of a table: its elements as f32.
struct TableRow {
    const unsigned char *p;
    int format;
    LG_IN float operator[](i64 i) const { return format == LGC_BF16 ? lg_f32(((const bf16 *)p)[i]) : ((const float *)p)[i]; }
};
LG_DEV TableRow lgc_lookup(const LgcStep *step, int at, i64 row) {
    const LgcWeight *w = &step->weights[at];
    return {w->data + row * w->columns * (w->format == LGC_BF16 ? 2 : 4), w->format};
}

LG_DEV const float *lgp_vector(const LgcStep *step, int, int, int at) { return (const float *)step->weights[at].data; }

// ---- functions ----

LG_DEV float lgp_round_bf16(float v) { return lg_f32(lg_bf16(v)); }
LG_DEV uint16_t lgp_bf16_bits(float v) { return lg_bf16(v); }
LG_DEV float lgp_exp(float x) { return expf(x); }
LG_DEV float lgp_rsqrt(float x) { return 1.0f / sqrtf(x); }
LG_DEV float lgp_sigmoid(float x) {
    const float t = expf(-fabsf(x));
    return (x >= 0.0f ? 1.0f : t) / (1.0f + t);
}
LG_DEV float lgp_silu(float x) { return x * lgp_sigmoid(x); }
LG_DEV float lgp_tanh(float x) { return tanhf(x); }
LG_DEV float lgp_gelu(float x) { return x * normcdff(x); }
LG_DEV float lgp_gelu_tanh(float x) { return x * lgp_sigmoid(1.59576912f * x * fmaf(0.044715f * x, x, 1.0f)); }
LG_DEV float lgp_min(float a, float b) { return a < b ? a : b; }
LG_DEV float lgp_max(float a, float b) { return a > b ? a : b; }
LG_DEV float lgp_square(float a) { return a * a; }

// ---- sums of a block and of a warp ----
// Each thread goes over its elements in rising order; lanes and then warps are added as a tree: a row's sum has one order.

LG_DEV float lgc_warp_sum(float v) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}
LG_DEV float lgc_warp_max(float v) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2)
        v = lgp_max(v, __shfl_xor_sync(0xffffffffu, v, d));
    return v;
}
template <bool MAX> LG_DEV float lgc_block(float v) {
    __shared__ float parts[32];
    const int warps = blockDim.x / 32;
    v = MAX ? lgc_warp_max(v) : lgc_warp_sum(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        parts[threadIdx.x / 32] = v;
    __syncthreads();
    v = parts[0];
    for (int w = 1; w < warps; w++)
        v = MAX ? lgp_max(v, parts[w]) : v + parts[w];
    return v;
}

#define LGP_SUM(to, index, size, body)                                                        \
    float to = 0.0f;                                                                          \
    for (int32_t index = threadIdx.x; index < (size); index += blockDim.x)                    \
        to += (body);                                                                         \
    to = lgc_block<false>(to)
#define LGP_MAX(to, index, size, body)                                                        \
    float to = -INFINITY;                                                                     \
    for (int32_t index = threadIdx.x; index < (size); index += blockDim.x)                    \
        to = lgp_max(to, (body));                                                             \
    to = lgc_block<true>(to)
#define LGP_MEAN(to, index, size, body) \
    LGP_SUM(to, index, size, body);     \
    to /= (float)(size)
#define LGP_WARP_SUM(to, index, size, body)                                                   \
    float to = 0.0f;                                                                          \
    for (int32_t index = threadIdx.x % 32; index < (size); index += 32)                       \
        to += (body);                                                                         \
    to = lgc_warp_sum(to)
#define LGP_WARP_MAX(to, index, size, body)                                                   \
    float to = -INFINITY;                                                                     \
    for (int32_t index = threadIdx.x % 32; index < (size); index += 32)                       \
        to = lgp_max(to, (body));                                                             \
    to = lgc_warp_max(to)
#define LGP_WARP_MEAN(to, index, size, body) \
    LGP_WARP_SUM(to, index, size, body);     \
    to /= (float)(size)

// ---- choices ----

// x = softmax x over n elements, the sum over rising ones.
LG_DEV void lgp_softmax(float *x, int n) {
    float most = x[0], sum = 0.0f;
    for (int i = 1; i < n; i++)
        most = x[i] > most ? x[i] : most;
    for (int i = 0; i < n; i++) {
        x[i] = lgp_exp(x[i] - most);
        sum += x[i];
    }
    for (int i = 0; i < n; i++)
        x[i] = x[i] / sum;
}

// The k largest of n values, the largest first, of equal ones the lower index; NaNs are never chosen. x is used up.
template <class Much> LG_DEV void lgp_topk(float *x, int n, int k, int *which, Much much) {
    for (int j = 0; j < k; j++) {
        int best = -1;
        float most = NAN;
        for (int i = 0; i < n; i++) {
            if (x[i] != x[i] || (best >= 0 && !(x[i] > most)))
                continue;
            best = i;
            most = x[i];
        }
        which[j] = best < 0 ? 0 : best;
        much[j] = most;
        if (best >= 0)
            x[best] = NAN;
    }
}

#include "step_matmul.cuh"
#include "step_attend.cuh"

#endif
