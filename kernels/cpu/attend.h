/* Attention over paged keys and values: o[r, h, g] = sum over s of softmax(score(scale q[r, h, g] ·
 * k[s, h]))[s] v[s, h], for positions s of the row's sequence with pos - window < s <= pos.
 *
 * A row's order is fixed by absolute positions: a dot product is one chain over the width (lanes:
 * positions of a page); the largest score is exact in any order; the exponentials are summed in 16
 * lanes by position modulo 16, over the pages from that of the first position, then by a tree;
 * values are summed by one chain over the positions of a page, and pages one after the other; at
 * last one division.  Rows that go through a page together share its loads only.
 *
 * Keys of positions that no row asks for are read but stay in lanes of their own, which are thrown
 * away; their values are not read. */
#ifndef LG_CPU_ATTEND_H
#define LG_CPU_ATTEND_H

#include "kernels/cpu/abi.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/vec.h"

/* Query vectors of a register tile, and of a task where a group has no more. */
#ifdef LGP_LEVEL_AVX2
#define LGP_ATTEND_TILE 6
#else
#define LGP_ATTEND_TILE 3
#endif
#define LGP_ATTEND_QUERIES 12
#define LGP_ATTEND_COLUMNS 64 /* of values that one query goes over at once */
#define LGP_ATTEND_FEW 16     /* below so many tasks, each head of a group is a task of its own */

typedef struct LgpAttend {
    const float *q; /* [rows][kv_heads][group][width] */
    int64_t q_stride;
    int32_t rows;
    const int32_t *slot, *pos;
    int32_t kv_heads, group, width, v_width;
    unsigned char *const *pages; /* [slot][pages_per_slot] */
    int32_t pages_per_slot;
    /* Bytes in a page, the layer's part included.  K: [kv_heads][width][64 positions]. V:
     * [kv_heads][64 positions][v_width]. */
    uint64_t k_offset, v_offset;
    int32_t kv_bf16; /* else f32 */
    float scale;
    int32_t window; /* 0: none; else pos - window < s */
    void (*score)(float *scores,
                  int32_t count); /* NULL, or what the program does to scaled scores */
    float *o;                     /* [rows][kv_heads][group][v_width] */
    int64_t o_stride;
    int32_t round_bf16;
} LgpAttend;

typedef struct LgpAttendCut {
    int32_t rows, row_parts;   /* rows of a part */
    int32_t heads, head_parts; /* of a group */
} LgpAttendCut;

LGP_INLINE int32_t lgp_attend_rows(int32_t group) {
    return group < LGP_ATTEND_QUERIES ? LGP_ATTEND_QUERIES / group : 1;
}

LGP_INLINE LgpAttendCut lgp_attend_cut(const LgpAttend *a) {
    LgpAttendCut c;
    c.rows = lgp_attend_rows(a->group);
    c.row_parts = (a->rows + c.rows - 1) / c.rows;
    c.heads = a->group;
    c.head_parts = 1;
    if ((int64_t)c.row_parts * a->kv_heads < LGP_ATTEND_FEW) {
        c.rows = 1;
        c.row_parts = a->rows;
        if ((int64_t)a->rows * a->kv_heads < LGP_ATTEND_FEW) {
            c.heads = 1;
            c.head_parts = a->group;
        }
    }
    return c;
}

LGP_INLINE int32_t lgp_attend_tasks(const LgpAttend *a) {
    LgpAttendCut c = lgp_attend_cut(a);
    return c.row_parts * a->kv_heads * c.head_parts;
}

/* Floats of scratch that a thread needs where a sequence has `positions` positions. */
LGP_INLINE int64_t lgp_attend_scratch(const int32_t group, int32_t positions) {
    int64_t queries = (int64_t)lgp_attend_rows(group) * group;
    return queries * (((int64_t)positions + LGP_PAGE - 1) / LGP_PAGE * LGP_PAGE + 2 * LGP_PAGE) +
           64;
}

/* One query vector of a task. */
typedef struct LgpQuery {
    const float *q;
    float *o;
    float *scores;      /* of positions from first_page * 64 on */
    int32_t first, end; /* its positions */
    float sum;
} LgpQuery;

/* Queries of one sequence and one kv head. */
typedef struct LgpAttendRun {
    const LgpAttend *a;
    int32_t head, count;
    int32_t first_page, page_end; /* of all its queries together */
    unsigned char *const *pages;  /* of the sequence */
    LgpQuery *queries;
} LgpAttendRun;

LGP_INLINE void lgp_attend_load16(int bf16, const unsigned char *p, LgpF8 *even, LgpF8 *odd) {
    if (bf16) {
        lgp_f8_load_bf16_pair(p, even, odd);
    } else {
        *even = lgp_f8_load((const float *)(const void *)p);
        *odd = lgp_f8_load((const float *)(const void *)p + 8);
    }
}

/* Scaled dot products of n queries with the 64 keys of a page, 16 * wide keys at a time: few
 * queries need more chains. */
LGP_INLINE void lgp_attend_scores(int bf16, int n, int wide, const LgpAttendRun *t,
                                  const LgpQuery *queries, const unsigned char *k, int64_t at) {
    const int32_t width = t->a->width, bytes = bf16 ? 2 : 4;
    const LgpF8 scale = lgp_f8_set(t->a->scale);
    const float *q[LGP_ATTEND_TILE];
#pragma GCC unroll 6
    for (int i = 0; i < n; i++)
        q[i] = queries[i].q;
#pragma GCC unroll 1
    for (int32_t p = 0; p < LGP_PAGE; p += 16 * wide) {
        const unsigned char *key = k + p * bytes;
        LgpF8 acc[LGP_ATTEND_TILE][2];
#pragma GCC unroll 6
        for (int i = 0; i < n * wide; i++)
            acc[i][0] = acc[i][1] = lgp_f8_zero();
        for (int32_t d = 0; d < width; d++, key += LGP_PAGE * bytes) {
#pragma GCC unroll 4
            for (int j = 0; j < wide; j++) {
                LgpF8 lo, hi;
                lgp_attend_load16(bf16, key + 16 * j * bytes, &lo, &hi);
#pragma GCC unroll 6
                for (int i = 0; i < n; i++) {
                    LgpF8 x = lgp_f8_set(q[i][d]);
                    acc[i * wide + j][0] = lgp_f8_fma(x, lo, acc[i * wide + j][0]);
                    acc[i * wide + j][1] = lgp_f8_fma(x, hi, acc[i * wide + j][1]);
                }
            }
        }
#pragma GCC unroll 6
        for (int i = 0; i < n * wide; i++) {
            float *to = queries[i / wide].scores + at + p + 16 * (i % wide);
            if (bf16)
                lgp_f8_zip(acc[i][0], acc[i][1], &acc[i][0], &acc[i][1]);
            lgp_f8_store(to, lgp_f8_mul(acc[i][0], scale));
            lgp_f8_store(to + 8, lgp_f8_mul(acc[i][1], scale));
        }
    }
}

/* Scores of a query become the numerators of its softmax, 0 at positions of its pages that are not
 * its own. */
LGP_NOINLINE void lgp_attend_softmax(const LgpAttendRun *t, LgpQuery *q) {
    int64_t base = (int64_t)t->first_page * LGP_PAGE;
    int64_t from = q->first / LGP_PAGE * LGP_PAGE - base;
    int64_t to = ((int64_t)q->end + LGP_PAGE - 1) / LGP_PAGE * LGP_PAGE - base;
    float *s = q->scores;
    if (t->a->score)
        t->a->score(s + q->first - base, q->end - q->first);
    for (int64_t i = from; i < q->first - base; i++)
        s[i] = -__builtin_inff();
    for (int64_t i = q->end - base; i < to; i++)
        s[i] = -__builtin_inff();
    LgpF8 most = lgp_f8_load(s + from), sum[2] = {lgp_f8_zero(), lgp_f8_zero()};
    for (int64_t i = from + 8; i < to; i += 8)
        most = lgp_f8_max(lgp_f8_load(s + i), most);
    float lanes[8], max;
    lgp_f8_store(lanes, most);
    max = lanes[0];
    for (int i = 1; i < 8; i++)
        max = lanes[i] > max ? lanes[i] : max;
    for (int64_t i = from; i < to; i++)
        s[i] = lgp_exp(s[i] - max);
    for (int64_t i = from; i < to; i += 16) {
        sum[0] = lgp_f8_add(sum[0], lgp_f8_load(s + i));
        sum[1] = lgp_f8_add(sum[1], lgp_f8_load(s + i + 8));
    }
    q->sum = lgp_f8_sum(lgp_f8_add(sum[0], sum[1]));
}

/* acc[i] += p_i[s] v[s, 16 * wide columns] over positions [from, to) of a page, one chain a lane.
 */
LGP_INLINE void lgp_attend_values(int bf16, int n, int wide, const LgpQuery *queries, int64_t at,
                                  const unsigned char *v, int32_t v_bytes, int32_t from, int32_t to,
                                  float (*acc)[LGP_ATTEND_COLUMNS]) {
    LgpF8 sum[LGP_ATTEND_TILE][2];
    const float *p[LGP_ATTEND_TILE];
    const int bytes = bf16 ? 2 : 4;
#pragma GCC unroll 6
    for (int i = 0; i < n * wide; i++) {
        sum[i][0] = lgp_f8_load(acc[i / wide] + 16 * (i % wide));
        sum[i][1] = lgp_f8_load(acc[i / wide] + 16 * (i % wide) + 8);
        p[i / wide] = queries[i / wide].scores + at;
    }
    v += (int64_t)from * v_bytes;
    for (int32_t s = from; s < to; s++, v += v_bytes) {
#pragma GCC unroll 4
        for (int j = 0; j < wide; j++) {
            LgpF8 lo, hi;
            lgp_attend_load16(bf16, v + 16 * j * bytes, &lo, &hi);
#pragma GCC unroll 6
            for (int i = 0; i < n; i++) {
                LgpF8 x = lgp_f8_set(p[i][s]);
                sum[i * wide + j][0] = lgp_f8_fma(x, lo, sum[i * wide + j][0]);
                sum[i * wide + j][1] = lgp_f8_fma(x, hi, sum[i * wide + j][1]);
            }
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < n * wide; i++) {
        lgp_f8_store(acc[i / wide] + 16 * (i % wide), sum[i][0]);
        lgp_f8_store(acc[i / wide] + 16 * (i % wide) + 8, sum[i][1]);
    }
}

/* A query by itself: what its tile does not share. */
LGP_NOINLINE void lgp_attend_alone(int bf16, const LgpQuery *query, int64_t at,
                                   const unsigned char *v, int32_t v_bytes, int32_t from,
                                   int32_t to, float *acc) {
    if (bf16)
        lgp_attend_values(1, 1, 1, query, at, v, v_bytes, from, to,
                          (float(*)[LGP_ATTEND_COLUMNS])acc);
    else
        lgp_attend_values(0, 1, 1, query, at, v, v_bytes, from, to,
                          (float(*)[LGP_ATTEND_COLUMNS])acc);
}

/* The part of a query's positions that lies in a page, from 0 to 64. */
LGP_INLINE void lgp_attend_part(const LgpQuery *q, int32_t page, int32_t *from, int32_t *to) {
    int32_t base = page * LGP_PAGE;
    *from = q->first > base ? q->first - base : 0;
    *to = q->end < base + LGP_PAGE ? q->end - base : LGP_PAGE;
    if (*from > *to)
        *from = *to = 0;
}

/* One page's values for a tile of n queries: what all of them ask for together, what lies before
 * and after alone. */
LGP_INLINE void lgp_attend_page(int bf16, int n, int wide, const LgpAttendRun *t,
                                const LgpQuery *queries, int32_t page, const unsigned char *v,
                                int32_t v_bytes, float (*acc)[LGP_ATTEND_COLUMNS]) {
    int64_t at = (int64_t)(page - t->first_page) * LGP_PAGE;
    int32_t lo = 0, hi = LGP_PAGE;
    for (int i = 0; i < n; i++) {
        int32_t from, to;
        lgp_attend_part(queries + i, page, &from, &to);
        lo = from > lo ? from : lo;
        hi = to < hi ? to : hi;
    }
    if (lo > hi)
        lo = hi;
    for (int i = 0; n > 1 && i < n; i++) {
        int32_t from, to;
        lgp_attend_part(queries + i, page, &from, &to);
        to = to < lo ? to : lo;
        for (int j = 0; from < to && j < wide; j++)
            lgp_attend_alone(bf16, queries + i, at, v + 16 * j * (bf16 ? 2 : 4), v_bytes, from, to,
                             acc[i] + 16 * j);
    }
    if (lo < hi)
        lgp_attend_values(bf16, n, wide, queries, at, v, v_bytes, lo, hi, acc);
    for (int i = 0; n > 1 && i < n; i++) {
        int32_t from, to;
        lgp_attend_part(queries + i, page, &from, &to);
        from = from > hi ? from : hi;
        for (int j = 0; from < to && j < wide; j++)
            lgp_attend_alone(bf16, queries + i, at, v + 16 * j * (bf16 ? 2 : 4), v_bytes, from, to,
                             acc[i] + 16 * j);
    }
}

/* Values of fewer than 16 columns are copied into rows of 16. */
LGP_INLINE const unsigned char *lgp_attend_widen(const LgpAttend *a, const unsigned char *v,
                                                 int32_t from, int32_t to, float *wide) {
    int32_t bytes = a->kv_bf16 ? 2 : 4, row = a->v_width * bytes;
    for (int32_t s = from; s < to; s++) {
        unsigned char *to_row = (unsigned char *)wide + s * 16 * bytes;
        memset(to_row, 0, (size_t)(16 * bytes));
        memcpy(to_row, v + (int64_t)s * row, (size_t)row);
    }
    return (const unsigned char *)wide;
}

/* The 16 * wide columns from `column` on (fewer where v_width is less than 16) of the outputs of a
 * tile. */
LGP_INLINE void lgp_attend_columns(int bf16, int n, int wide, const LgpAttendRun *t,
                                   const LgpQuery *queries, int32_t column) {
    const LgpAttend *a = t->a;
    const int32_t bytes = bf16 ? 2 : 4, columns = a->v_width < 16 ? a->v_width : 16;
    float total[LGP_ATTEND_TILE][LGP_ATTEND_COLUMNS], rows16[LGP_PAGE * 16];
    memset(total, 0, sizeof total);
    for (int32_t page = t->first_page; page < t->page_end; page++) {
        float acc[LGP_ATTEND_TILE][LGP_ATTEND_COLUMNS];
        const unsigned char *v = t->pages[page] + a->v_offset +
                                 (int64_t)t->head * LGP_PAGE * a->v_width * bytes + column * bytes;
        int32_t v_bytes = a->v_width * bytes, from = LGP_PAGE, to = 0;
        for (int i = 0; i < n; i++) {
            int32_t part_from, part_to;
            lgp_attend_part(queries + i, page, &part_from, &part_to);
            from = part_from < part_to && part_from < from ? part_from : from;
            to = part_to > to ? part_to : to;
        }
        if (from >= to)
            continue;
        if (columns < 16) {
            v = lgp_attend_widen(a, v, from, to, rows16);
            v_bytes = 16 * bytes;
        }
        for (int i = 0; i < n; i++)
            memset(acc[i], 0, (size_t)wide * 16 * sizeof(float));
        lgp_attend_page(bf16, n, wide, t, queries, page, v, v_bytes, acc);
        for (int i = 0; i < n; i++)
            for (int h = 0; h < 16 * wide; h += 8)
                lgp_f8_store(total[i] + h,
                             lgp_f8_add(lgp_f8_load(total[i] + h), lgp_f8_load(acc[i] + h)));
    }
    for (int i = 0; i < n * wide; i++) {
        float *from = total[i / wide] + 16 * (i % wide);
        LgpF8 v[2] = {lgp_f8_load(from), lgp_f8_load(from + 8)},
              sum = lgp_f8_set(queries[i / wide].sum);
        if (bf16)
            lgp_f8_zip(v[0], v[1], &v[0], &v[1]);
        for (int h = 0; h < 2; h++) {
            v[h] = lgp_f8_div(v[h], sum);
            v[h] = a->round_bf16 ? lgp_f8_round_bf16(v[h]) : v[h];
            lgp_f8_store(from + 8 * h, v[h]);
        }
        memcpy(queries[i / wide].o + column + 16 * (i % wide), from,
               (size_t)columns * sizeof(float));
    }
}

LGP_INLINE void lgp_attend_tile(int bf16, int n, const LgpAttendRun *t, LgpQuery *queries) {
    const LgpAttend *a = t->a;
    const int wide = n == 1 ? LGP_ATTEND_TILE / 3 * 2 : n == 2 && LGP_ATTEND_TILE > 3 ? 2 : 1;
    for (int32_t page = t->first_page; page < t->page_end; page++) {
        const unsigned char *k =
            t->pages[page] + a->k_offset + (int64_t)t->head * LGP_PAGE * a->width * (bf16 ? 2 : 4);
        lgp_attend_scores(bf16, n, wide, t, queries, k, (int64_t)(page - t->first_page) * LGP_PAGE);
    }
    for (int i = 0; i < n; i++)
        lgp_attend_softmax(t, queries + i);
    /* The last columns may overlap those before them: they are computed twice, to the same bits. */
    int32_t c = 0;
    if (wide > 1)
        for (; c + 16 * wide <= a->v_width; c += 16 * wide)
            lgp_attend_columns(bf16, n, wide, t, queries, c);
    for (; c < a->v_width; c += 16)
        lgp_attend_columns(bf16, n, 1, t, queries,
                           a->v_width >= 16 && c > a->v_width - 16 ? a->v_width - 16 : c);
}

/* Tiles of 6, 3, 2 and 1: each size is a copy of the loops. */
LGP_INLINE int32_t lgp_attend_next(int32_t left) {
    return left >= LGP_ATTEND_TILE ? LGP_ATTEND_TILE : left == 4 ? 2 : left > 3 ? 3 : left;
}

#define LGP_ATTEND_RUN(name, bf16)                                                                 \
    LGP_NOINLINE void lgp_attend_run_##name(const LgpAttendRun *t) {                               \
        for (int32_t i = 0, n; i < t->count; i += n) {                                             \
            n = lgp_attend_next(t->count - i);                                                     \
            if (n == 1)                                                                            \
                lgp_attend_tile(bf16, 1, t, t->queries + i);                                       \
            else if (n == 2)                                                                       \
                lgp_attend_tile(bf16, 2, t, t->queries + i);                                       \
            else if (n == 3)                                                                       \
                lgp_attend_tile(bf16, 3, t, t->queries + i);                                       \
            else                                                                                   \
                lgp_attend_tile(bf16, LGP_ATTEND_TILE, t, t->queries + i);                         \
        }                                                                                          \
    }
LGP_ATTEND_RUN(bf16, 1)
LGP_ATTEND_RUN(f32, 0)
#undef LGP_ATTEND_RUN

/* Rows [row, end) of one sequence, heads [first, first + heads) of a group. */
LGP_NOINLINE void lgp_attend_rows_run(const LgpAttend *a, int32_t row, int32_t end, int32_t head,
                                      int32_t first, int32_t heads, float *scratch) {
    LgpAttendRun t = {.a = a, .head = head, .first_page = INT32_MAX};
    LgpQuery queries[LGP_ATTEND_QUERIES];
    t.pages = a->pages + (int64_t)a->slot[row] * a->pages_per_slot;
    t.queries = queries;
    for (int32_t r = row; r < end; r++) {
        int32_t low = a->window > 0 && a->pos[r] >= a->window ? a->pos[r] - a->window + 1 : 0;
        t.first_page = low / LGP_PAGE < t.first_page ? low / LGP_PAGE : t.first_page;
        t.page_end = a->pos[r] / LGP_PAGE + 1 > t.page_end ? a->pos[r] / LGP_PAGE + 1 : t.page_end;
    }
    int64_t stride = (int64_t)(t.page_end - t.first_page) * LGP_PAGE;
    /* A group of more heads than fit goes in parts. */
    for (int32_t r = row; r < end; r++) {
        int32_t low = a->window > 0 && a->pos[r] >= a->window ? a->pos[r] - a->window + 1 : 0;
        for (int32_t g = 0; g < heads; g++) {
            int64_t h = (int64_t)head * a->group + first + g;
            queries[t.count] = (LgpQuery){.q = a->q + r * a->q_stride + h * a->width,
                                          .o = a->o + r * a->o_stride + h * a->v_width,
                                          .scores = scratch + t.count * stride,
                                          .first = low,
                                          .end = a->pos[r] + 1};
            if (++t.count < LGP_ATTEND_QUERIES && !(r == end - 1 && g == heads - 1))
                continue;
            if (a->kv_bf16)
                lgp_attend_run_bf16(&t);
            else
                lgp_attend_run_f32(&t);
            t.count = 0;
        }
    }
}

LGP_NOINLINE void lgp_attend_task(const LgpAttend *a, int32_t task, float *scratch) {
    LgpAttendCut c = lgp_attend_cut(a);
    int32_t head = task % a->kv_heads, rest = task / a->kv_heads;
    int32_t first = rest % c.head_parts * c.heads, part = rest / c.head_parts;
    int32_t row = part * c.rows, end = row + c.rows < a->rows ? row + c.rows : a->rows;
    scratch = (float *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);
    while (row < end) {
        int32_t next = row + 1;
        while (next < end && a->slot[next] == a->slot[row])
            next++;
        lgp_attend_rows_run(a, row, next, head, first, c.heads, scratch);
        row = next;
    }
}

#endif
