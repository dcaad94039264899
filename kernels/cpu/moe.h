/* Experts: the router's choice, and products whose weight is looked up by it.
 *
 * A product of experts has `share` results for each row of x, or one: y[r] = round(x[r / share] ·
 * W[choice[r]]ᵀ). Two ways to cut it into tasks, with the same bits, as a row of lgp_matmul_task
 * depends on itself alone:
 *     few rows   slot-major: a product of one row each, in the order of the rows
 *     many rows  sorted by expert: a product of all rows that chose the expert (in parts), whose x
 *                is gathered and whose y is scattered, so that a chosen expert is read once
 * Either way no expert is read that no row chose. */
#ifndef LG_CPU_MOE_H
#define LG_CPU_MOE_H

#include "kernels/cpu/math.h"
#include "kernels/cpu/matmul.h"

#define LGP_MOE_ROWS 48    /* most rows of a gathered product */
#define LGP_MOE_FEW 2      /* up to so many rows of the step a choice is seldom made twice */
#define LGP_MOE_SIBLINGS 4 /* products of one launch */

/* y = softmax x over n elements, n >= 1: the sum goes over rising elements. y may be x. */
LGP_NOINLINE void lgp_softmax(const float *x, float *y, int32_t n) {
    float most = x[0], sum = 0.0f;
    for (int32_t i = 1; i < n; i++)
        most = x[i] > most ? x[i] : most;
    for (int32_t i = 0; i < n; i++)
        y[i] = lgp_exp(x[i] - most);
    for (int32_t i = 0; i < n; i++)
        sum += y[i];
    for (int32_t i = 0; i < n; i++)
        y[i] = y[i] / sum;
}

/* The k largest of n values, the largest first, of equal ones the lower index. NaNs are never
 * chosen; where values run out, which is 0 and much NaN. x is used up. */
LGP_NOINLINE void lgp_topk(float *x, int32_t n, int32_t k, int32_t *which, float *much) {
    const float taken = lgp_from_bits(0x7fc00000u);
    for (int32_t j = 0; j < k; j++) {
        int32_t best = -1;
        float most = taken;
        for (int32_t i = 0; i < n; i++) {
            if (x[i] != x[i] || (best >= 0 && !(x[i] > most)))
                continue;
            best = i;
            most = x[i];
        }
        which[j] = best < 0 ? 0 : best;
        much[j] = most;
        if (best >= 0)
            x[best] = taken;
    }
}

/* One launch's products of experts: `products` of them, of one shape, x and choice. */
typedef struct LgpMoe {
    LgpMatmul part[LGP_MOE_SIBLINGS]; /* x, w (all experts), y and the rest; rows is not used */
    int32_t products;
    const int32_t *choice; /* [rows] */
    int32_t rows, experts;
    int32_t share; /* rows that read one row of x */
    /* Rows by expert, and where each expert's begin; NULL: slot-major. */
    const int32_t *order, *offsets;
} LgpMoe;

/* Where a thread stands in the tasks: they are claimed in rising order. Starts as zeros. */
typedef struct LgpMoeWalk {
    int32_t task, begin, tasks; /* the present one; the first and the number of its product's */
    int32_t expert;
    int32_t first, end; /* rows of its product: places in order, or rows */
    LgpMatmulPart part; /* of the task; rows from `first` on */
} LgpMoeWalk;

/* Sorts rows by expert, keeping their order: offsets [experts + 1], order [rows]. A choice is an
 * expert. */
LGP_NOINLINE void lgp_moe_sort(const int32_t *choice, int32_t rows, int32_t experts,
                               int32_t *offsets, int32_t *order) {
    memset(offsets, 0, ((size_t)experts + 1) * sizeof *offsets);
    for (int32_t r = 0; r < rows; r++)
        offsets[choice[r] + 1]++;
    for (int32_t e = 0; e < experts; e++)
        offsets[e + 1] += offsets[e];
    for (int32_t r = 0; r < rows; r++)
        order[offsets[choice[r]]++] = r;
    for (int32_t e = experts; e > 0; e--)
        offsets[e] = offsets[e - 1];
    offsets[0] = 0;
}

LGP_INLINE int32_t lgp_moe_row(const LgpMoe *m, int32_t place) {
    return m->order ? m->order[place] : place;
}

/* The next product: up to LGP_MOE_ROWS rows of one expert, or one row. */
LGP_INLINE int32_t lgp_moe_next(const LgpMoe *m, LgpMoeWalk *w) {
    w->begin += w->tasks;
    w->tasks = 0;
    w->first = w->end;
    if (w->first >= m->rows)
        return 0;
    if (!m->order) {
        w->expert = m->choice[w->first];
        w->end = w->first + 1;
        return 1;
    }
    while (w->first >= m->offsets[w->expert + 1])
        w->expert++;
    int32_t left = m->offsets[w->expert + 1] - w->first;
    int32_t parts = (left + LGP_MOE_ROWS - 1) / LGP_MOE_ROWS;
    w->end = w->first + (left + parts - 1) / parts;
    return 1;
}

/* The product that the walk stands at, on its own expert. */
LGP_INLINE LgpMatmul lgp_moe_product(const LgpMoe *m, const LgpMoeWalk *w, int32_t product,
                                     LgpWeight *weight) {
    LgpMatmul p = m->part[product];
    *weight = *p.w;
    weight->data = (const unsigned char *)weight->data + (uint64_t)w->expert * weight->row_bytes;
    p.w = weight;
    p.rows = w->end - w->first;
    return p;
}

/* Goes on to the task; 0: there is none of that number. */
LGP_NOINLINE int32_t lgp_moe_seek(const LgpMoe *m, LgpMoeWalk *w, int32_t task) {
    LgpWeight weight;
    while (task >= w->begin + w->tasks) {
        if (!lgp_moe_next(m, w))
            return 0;
        LgpMatmul p = lgp_moe_product(m, w, 0, &weight);
        w->tasks = lgp_matmul_tasks(&p);
    }
    LgpMatmul p = lgp_moe_product(m, w, 0, &weight);
    w->task = task;
    w->part = lgp_matmul_part(&p, task - w->begin);
    return 1;
}

/* The task's row at that place, for what is done to tiles: elements of a row of the step, which has
 * `slots` rows of products. */
LGP_INLINE LgpMatmulPart lgp_moe_part(const LgpMoe *m, const LgpMoeWalk *w, int32_t place,
                                      int32_t slots) {
    int32_t row = lgp_moe_row(m, w->first + place), n = m->part[0].w->rows;
    return (LgpMatmulPart){row / slots, row / slots + 1, row % slots * n + w->part.column,
                           row % slots * n + w->part.column_end};
}

/* Floats of scratch that a thread needs for products of experts of [n, k]. */
LGP_INLINE int64_t lgp_moe_scratch(int32_t n, int32_t k) {
    return (int64_t)LGP_MOE_ROWS * ((int64_t)n + k) + 64 + lgp_matmul_scratch(k);
}

/* One row where it lies. */
LGP_INLINE void lgp_moe_task_direct(const LgpMoe *m, const LgpMoeWalk *w, float *scratch) {
    int32_t row = lgp_moe_row(m, w->first);
    for (int32_t i = 0; i < m->products; i++) {
        LgpWeight weight;
        LgpMatmul p = lgp_moe_product(m, w, i, &weight);
        p.x += row / m->share * p.x_stride;
        p.y += row * p.y_stride;
        lgp_matmul_task(&p, w->task - w->begin, scratch);
    }
}

/* The present task of all products. */
LGP_NOINLINE void lgp_moe_task(const LgpMoe *m, const LgpMoeWalk *w, float *scratch) {
    if (w->end - w->first == 1) {
        lgp_moe_task_direct(m, w, scratch);
        return;
    }
    const LgpMatmulPart part = w->part;
    const int32_t n = m->part[0].w->rows, k = m->part[0].w->columns;
    const size_t bytes = (size_t)(part.column_end - part.column) * sizeof(float);
    float *x = scratch, *y = x + (int64_t)LGP_MOE_ROWS * k, *rest = y + (int64_t)LGP_MOE_ROWS * n;
    for (int32_t r = part.row; r < part.row_end; r++)
        memcpy(x + (int64_t)r * k,
               m->part[0].x + lgp_moe_row(m, w->first + r) / m->share * m->part[0].x_stride,
               (size_t)k * sizeof(float));
    for (int32_t i = 0; i < m->products; i++) {
        LgpWeight weight;
        LgpMatmul p = lgp_moe_product(m, w, i, &weight);
        float *to = p.y + part.column;
        int64_t stride = p.y_stride;
        p.x = x;
        p.x_stride = k;
        p.y = y;
        p.y_stride = n;
        lgp_matmul_task(&p, w->task - w->begin, rest);
        for (int32_t r = part.row; r < part.row_end; r++)
            memcpy(to + lgp_moe_row(m, w->first + r) * stride, y + (int64_t)r * n + part.column,
                   bytes);
    }
}

#endif
