// Attention of one row and the heads that share keys and values, over its pages: a page at a time in rising order, so that the order of sums is that of
// positions. Keys lie [width][position] in a page, values [position][width].
#ifndef LG_STEP_ATTEND_CUH
#define LG_STEP_ATTEND_CUH

template <class Q, class O> struct Attend {
    Q q;
    i64 q_stride;
    O o;
    i64 o_stride;
    const int *slot, *pos;
    float scale;
    int window;             // 0: none
    u64 k_offset, v_offset; // in a page
    bool kv_bf16, round;
    int rows;
};

LG_DEV float lgc_value(bf16 v) { return lg_f32(v); }
LG_DEV float lgc_value(float v) { return v; }

// Running softmax of one head, the same in all lanes of its warp.
struct Running {
    float most, sum;
};

// The page's scores of one head: p becomes exp(s - most); returns what earlier sums are multiplied by.
template <int G, class Score> LG_DEV float lgc_attend_softmax(Running &r, float (*p)[LGC_PAGE], const float (*part)[G][LGC_PAGE], int head, float scale, int from, int to, Score score) {
    const int lane = threadIdx.x % 32;
    float s[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const int at = lane + 32 * j;
        s[j] = ((part[0][head][at] + part[1][head][at]) + (part[2][head][at] + part[3][head][at])) * scale;
        score(&s[j], 1);
        s[j] = at >= from && at < to ? s[j] : -INFINITY;
    }
    const float top = lgp_max(r.most, lgc_warp_max(lgp_max(s[0], s[1])));
#pragma unroll
    for (int j = 0; j < 2; j++) {
        s[j] = s[j] == -INFINITY ? 0.0f : expf(s[j] - top);
        p[head][lane + 32 * j] = s[j];
    }
    const float keep = expf(r.most - top);
    r.sum = fmaf(r.sum, keep, lgc_warp_sum(s[0] + s[1]));
    r.most = top;
    return keep;
}

// G heads of width W, values of width VW. Score(scores, count) is done to scaled scores. Threads: for scores (position, quarter of the width), for values
// (element, slice of the positions).
template <int G, int W, int VW, class T, class Q, class O, class Score> LG_DEV void lgc_attend_as(const Attend<Q, O> &a, const LgcStep *step, Score score) {
    constexpr int SLICES = LGC_ATTEND_THREADS / VW, SLICE = (LGC_PAGE + SLICES - 1) / SLICES, QUARTER = (W + 3) / 4, WARPS = LGC_ATTEND_THREADS / 32;
    __shared__ float q[G][W], part[4][G][LGC_PAGE], p[G][LGC_PAGE], keep[G], sums[G];
    const int row = blockIdx.x, kv = blockIdx.y, tid = threadIdx.x, warp = tid / 32;
    const int pos = a.pos[row], first = a.window > 0 && pos - a.window + 1 > 0 ? pos - a.window + 1 : 0;
    unsigned char *const *pages = step->pages + (i64)a.slot[row] * step->pages_per_slot;
    for (int i = tid; i < G * W; i += LGC_ATTEND_THREADS)
        q[i / W][i % W] = a.q[row * a.q_stride + (i64)kv * G * W + i];
    Running running[(G + WARPS - 1) / WARPS];
    for (int i = 0; i < (G + WARPS - 1) / WARPS; i++)
        running[i] = {-INFINITY, 0.0f};
    float o[G] = {};
    const int at = tid % LGC_PAGE, quarter = tid / LGC_PAGE, d = tid % VW, slice = tid / VW;
    for (int page = first / LGC_PAGE; page <= pos / LGC_PAGE; page++) {
        const T *k = (const T *)(pages[page] + a.k_offset) + (i64)kv * W * LGC_PAGE;
        const T *v = (const T *)(pages[page] + a.v_offset) + (i64)kv * VW * LGC_PAGE;
        const int from = page * LGC_PAGE < first ? first % LGC_PAGE : 0, to = pos - page * LGC_PAGE < LGC_PAGE - 1 ? pos - page * LGC_PAGE + 1 : LGC_PAGE;
        // The page is there whole: all of it is on its way before any of it is looked at, and what is out of sight is left out then.
        T keys[QUARTER], values[SLICE];
        float dot[G] = {};
#pragma unroll
        for (int i = 0; i < QUARTER; i++)
            keys[i] = k[(quarter * QUARTER + i < W ? quarter * QUARTER + i : 0) * LGC_PAGE + at];
#pragma unroll
        for (int i = 0; i < SLICE; i++)
            values[i] = v[(slice * SLICE + i < LGC_PAGE ? slice * SLICE + i : 0) * VW + d];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < QUARTER; i++)
            if (quarter * QUARTER + i < W)
#pragma unroll
                for (int h = 0; h < G; h++)
                    dot[h] = fmaf(q[h][quarter * QUARTER + i], lgc_value(keys[i]), dot[h]);
#pragma unroll
        for (int h = 0; h < G; h++)
            part[quarter][h][at] = dot[h];
        __syncthreads();
        for (int h = warp; h < G; h += WARPS) {
            const float more = lgc_attend_softmax<G>(running[h / WARPS], p, part, h, a.scale, from, to, score);
            if (tid % 32 == 0)
                keep[h] = more;
        }
        __syncthreads();
#pragma unroll
        for (int h = 0; h < G; h++) {
            float add = 0.0f;
#pragma unroll
            for (int i = 0; i < SLICE; i++)
                if (slice * SLICE + i >= from && slice * SLICE + i < to)
                    add = fmaf(p[h][slice * SLICE + i], lgc_value(values[i]), add);
            o[h] = fmaf(o[h], keep[h], add);
        }
    }
    __syncthreads();
    float *const slices = &part[0][0][0]; // [SLICES][G][VW]
#pragma unroll
    for (int h = 0; h < G; h++)
        if (slice < SLICES)
            slices[(slice * G + h) * VW + d] = o[h];
    for (int h = warp; h < G; h += WARPS)
        if (tid % 32 == 0)
            sums[h] = running[h / WARPS].sum;
    __syncthreads();
    for (int i = tid; i < G * VW; i += LGC_ATTEND_THREADS) {
        float r = slices[i];
        for (int j = 1; j < SLICES; j++)
            r += slices[j * G * VW + i];
        r /= sums[i / VW];
        a.o[row * a.o_stride + (i64)kv * G * VW + i] = a.round ? lgp_round_bf16(r) : r;
    }
}

template <int G, int W, int VW, class Q, class O, class Score> LG_DEV void lgc_attend(const Attend<Q, O> &a, const LgcStep *step, Score score) {
    if ((int)blockIdx.x >= a.rows)
        return;
    if (a.kv_bf16)
        lgc_attend_as<G, W, VW, bf16>(a, step, score);
    else
        lgc_attend_as<G, W, VW, float>(a, step, score);
}

#endif
