// Attention of one row and one head over its pages: a page at a time in rising order, so that the order of sums is that of positions. Keys lie
// [width][position] in a page, values [position][width].
#ifndef LG_STEP_ATTEND_CUH
#define LG_STEP_ATTEND_CUH

template <class Q, class O> struct Attend {
    Q q;
    i64 q_stride;
    O o;
    i64 o_stride;
    const int *slot, *pos;
    int kv_heads, group, width, v_width;
    float scale;
    int window;          // 0: none
    u64 k_offset, v_offset; // in a page
    bool kv_bf16, round;
    int rows;
};

#define LGC_WIDTH_MAX 512

template <class T> LG_DEV float lgc_kv(const T *p, i64 at);
template <> LG_IN float lgc_kv<bf16>(const bf16 *p, i64 at) { return lg_f32(p[at]); }
template <> LG_IN float lgc_kv<float>(const float *p, i64 at) { return p[at]; }

// Score(scores, count) is done to scaled scores.
template <class T, class Q, class O, class Score> LG_DEV void lgc_attend_as(const Attend<Q, O> &a, const LgcStep *step, Score score) {
    __shared__ float q[LGC_WIDTH_MAX], part[LGC_ATTEND_THREADS], p[LGC_PAGE];
    const int row = blockIdx.x, head = blockIdx.y, kv = head / a.group, tid = threadIdx.x;
    const int pos = a.pos[row], first = a.window > 0 && pos - a.window + 1 > 0 ? pos - a.window + 1 : 0;
    unsigned char *const *pages = step->pages + (i64)a.slot[row] * step->pages_per_slot;
    for (int i = tid; i < a.width; i += LGC_ATTEND_THREADS)
        q[i] = a.q[row * a.q_stride + (i64)head * a.width + i];
    float most = -INFINITY, sum = 0.0f, o[LGC_WIDTH_MAX / LGC_ATTEND_THREADS] = {};
    const int at = tid % LGC_PAGE, half = tid / LGC_PAGE, middle = a.width / 2;
    for (int page = first / LGC_PAGE; page <= pos / LGC_PAGE; page++) {
        const T *k = (const T *)(pages[page] + a.k_offset) + (i64)kv * a.width * LGC_PAGE;
        const T *v = (const T *)(pages[page] + a.v_offset) + (i64)kv * a.v_width * LGC_PAGE;
        const int here = page * LGC_PAGE + at;
        const bool seen = here >= first && here <= pos;
        __syncthreads();
        float dot = 0.0f;
        if (seen)
            for (int d = half ? middle : 0; d < (half ? a.width : middle); d++)
                dot = fmaf(q[d], lgc_kv<T>(k, (i64)d * LGC_PAGE + at), dot);
        part[tid] = dot;
        __syncthreads();
        if (half == 0) {
            float s = (part[at] + part[at + LGC_PAGE]) * a.scale;
            score(&s, 1);
            p[at] = seen ? s : -INFINITY;
        }
        __syncthreads();
        float top = most;
        for (int i = 0; i < LGC_PAGE; i++)
            top = lgp_max(top, p[i]);
        __syncthreads();
        if (half == 0)
            p[at] = seen ? expf(p[at] - top) : 0.0f;
        __syncthreads();
        const float keep = expf(most - top);
        float more = 0.0f;
        for (int i = 0; i < LGC_PAGE; i++)
            more += p[i];
        sum = fmaf(sum, keep, more);
        most = top;
        const int from = page * LGC_PAGE < first ? first % LGC_PAGE : 0, to = pos - page * LGC_PAGE < LGC_PAGE - 1 ? pos - page * LGC_PAGE + 1 : LGC_PAGE;
#pragma unroll
        for (int j = 0; j < LGC_WIDTH_MAX / LGC_ATTEND_THREADS; j++) {
            const int d = tid + j * LGC_ATTEND_THREADS;
            if (d >= a.v_width)
                continue;
            float add = 0.0f;
            for (int i = from; i < to; i++)
                add = fmaf(p[i], lgc_kv<T>(v, (i64)i * a.v_width + d), add);
            o[j] = fmaf(o[j], keep, add);
        }
    }
#pragma unroll
    for (int j = 0; j < LGC_WIDTH_MAX / LGC_ATTEND_THREADS; j++) {
        const int d = tid + j * LGC_ATTEND_THREADS;
        if (d < a.v_width) {
            const float r = o[j] / sum;
            a.o[row * a.o_stride + (i64)head * a.v_width + d] = a.round ? lgp_round_bf16(r) : r;
        }
    }
}

template <class Q, class O, class Score> LG_DEV void lgc_attend(const Attend<Q, O> &a, const LgcStep *step, Score score) {
    if ((int)blockIdx.x >= a.rows)
        return;
    if (a.kv_bf16)
        lgc_attend_as<bf16>(a, step, score);
    else
        lgc_attend_as<float>(a, step, score);
}

#endif
