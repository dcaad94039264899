/* The harness held to its own claim: kernels that are broken on purpose, each of which its check
 * must catch. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

static const LgpKernelTable *const good = &lgp_kernels_generic;

/* ---- matmul ---- */

/* Runs task 0 does the whole product here, so that a mutant may change its operands. */
static void whole_product(const LgpMatmul *m, float *scratch) {
    for (int32_t t = 0; t < good->matmul_tasks(m); t++)
        good->matmul_task(m, t, scratch);
}

static int32_t one_task(const LgpMatmul *m) {
    return m->rows > 0 ? 1 : 0;
}

static void missing_tail(const LgpMatmul *m, int32_t task, float *scratch) {
    (void)task;
    LgpMatmul cut = *m;
    cut.rows -= m->rows % 4 == 3;
    whole_product(&cut, scratch);
}

static void wrong_scale(const LgpMatmul *m, int32_t task, float *scratch) {
    (void)task;
    whole_product(m, scratch);
    m->y[m->w->rows - 1] *= 1.0f + 0x1p-5f;
}

static void neighbour_row(const LgpMatmul *m, int32_t task, float *scratch) {
    (void)task;
    LgpMatmul last = *m;
    whole_product(m, scratch);
    last.rows = 1;
    last.y += (m->rows - 1) * m->y_stride;
    if (m->rows > 1)
        whole_product(&last, scratch);
}

static void no_bias(const LgpMatmul *m, int32_t task, float *scratch) {
    (void)task;
    LgpMatmul bare = *m;
    bare.bias = NULL;
    whole_product(&bare, scratch);
}

static void two_roundings(const LgpMatmul *m, int32_t task, float *scratch) {
    (void)task;
    LgpMatmul bare = *m;
    bare.bias = NULL;
    whole_product(&bare, scratch);
    for (int32_t r = 0; m->bias && r < m->rows; r++)
        for (int32_t o = 0; o < m->w->rows; o++) {
            float *y = m->y + r * m->y_stride + o;
            *y += m->bias[o];
            *y = m->round_bf16 ? lgp_round_bf16(*y) : *y;
        }
}

/* Right within every bound, but rows in company add each output's products in another order: only
 * bits tell. */
static void other_order(const LgpMatmul *m, int32_t task, float *scratch) {
    (void)task;
    whole_product(m, scratch);
    if (m->w->format != LGP_F32 || m->rows < 3)
        return;
    for (int32_t r = 0; r < m->rows; r++)
        for (int32_t o = 0; o < m->w->rows; o++) {
            const float *w =
                (const float *)m->w->data + (int64_t)(o / 16) * m->w->columns * 16 + o % 16;
            float sum = 0;
            for (int32_t k = m->w->columns - 1; k >= 0; k--)
                sum += w[k * 16] * m->x[r * m->x_stride + k];
            sum += m->bias ? m->bias[o] : 0;
            m->y[r * m->y_stride + o] = m->round_bf16 ? lgp_round_bf16(sum) : sum;
        }
}

static void writes_past(const LgpMatmul *m, int32_t task, float *scratch) {
    (void)task;
    whole_product(m, scratch);
    m->y[(m->rows - 1) * m->y_stride + m->w->rows] = 0;
}

/* ---- attention ---- */

static int32_t attend_one(const LgpAttend *a) {
    return a->rows > 0 ? 1 : 0;
}

static void whole_attend(const LgpAttend *a, float *scratch) {
    for (int32_t t = 0; t < good->attend_tasks(a); t++)
        good->attend_task(a, t, scratch);
}

static void no_window(const LgpAttend *a, int32_t task, float *scratch) {
    (void)task;
    LgpAttend wide = *a;
    wide.window = a->window > 0 ? a->window + 1 : 0;
    whole_attend(&wide, scratch);
}

static void late_position(const LgpAttend *a, int32_t task, float *scratch) {
    (void)task;
    int32_t pos = a->pos[0] % LGP_PAGE == LGP_PAGE - 1 ? a->pos[0] : a->pos[0] + 1;
    LgpAttend first = *a;
    whole_attend(a, scratch);
    first.rows = 1;
    first.pos = &pos;
    whole_attend(&first, scratch);
}

static void wrong_head(const LgpAttend *a, int32_t task, float *scratch) {
    (void)task;
    LgpAttend other = *a;
    whole_attend(a, scratch);
    other.kv_heads = 1;
    other.q += a->kv_heads > 1 ? a->group * a->width : 0;
    other.o += a->kv_heads > 1 ? a->group * a->v_width : 0;
    whole_attend(&other, scratch);
}

static void no_score(const LgpAttend *a, int32_t task, float *scratch) {
    (void)task;
    LgpAttend bare = *a;
    bare.score = NULL;
    whole_attend(&bare, scratch);
}

static void rounds_in_company(const LgpAttend *a, int32_t task, float *scratch) {
    (void)task;
    whole_attend(a, scratch);
    float *o = a->o + (a->rows - 1) * a->o_stride;
    if (a->rows > 1 && !a->round_bf16)
        *o = lgp_from_bits(lgp_bits(*o) ^ 1u);
}

/* ---- math ---- */

static void exp_flushes(const float *x, float *y, int64_t count) {
    good->exp(x, y, count);
    for (int64_t i = 0; i < count; i++)
        y[i] = y[i] < 0x1p-126f ? 0 : y[i];
}

static void exp_clamps(const float *x, float *y, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        float v = x[i] > 88.0f ? 88.0f : x[i];
        good->exp(&v, y + i, 1);
    }
}

static void silu_rough(const float *x, float *y, int64_t count) {
    good->silu(x, y, count);
    for (int64_t i = 0; i < count; i++)
        y[i] *= 1.0f + 0x1p-20f;
}

static void row_swaps(const LgpWeight *w, int32_t row, float *out) {
    good->table_row(w, row, out);
    float first = out[0];
    out[0] = out[w->columns - 1];
    out[w->columns - 1] = first;
}

/* ---- adapters ---- */

static void low_unrounded(const LgpLoraShrink *t) {
    LgpLora call = *t->call;
    LgpLoraShrink bare = *t;
    call.store_bf16 = 0;
    bare.call = &call;
    good->lora_shrink(&bare);
}

static void rank_short(const LgpLoraShrink *t) {
    LgpLoraShrink less = *t;
    if (t->to - t->from > 4)
        less.to--;
    good->lora_shrink(&less);
}

static void fold_unscaled(const LgpLoraExpand *t) {
    LgpLoraRoute route = *t->route;
    float ones[512];
    for (int i = 0; i < 512; i++)
        ones[i] = 1;
    LgpLoraExpand bare = *t;
    route.scale = ones;
    bare.route = &route;
    good->lora_expand_fold(&bare);
}

static void fold_twice(const LgpLoraExpand *t) {
    good->lora_expand_fold(t);
    if (t->group->members == 2)
        good->lora_expand_fold(t);
}

static void fold_no_gain(const LgpLoraExpand *t) {
    static const float *const *const none[512];
    LgpLoraRoute route = *t->route;
    LgpLoraExpand bare = *t;
    route.gain = none;
    bare.route = &route;
    good->lora_expand_fold(&bare);
}

/* In company each row gets the adapters of its group's neighbour. */
static void fold_other_low(const LgpLoraExpand *t) {
    LgpLoraExpand bare = *t;
    if (t->end - t->first > 1)
        bare.low += t->route->low_stride;
    bare.end = t->end - t->first > 1 ? t->end - 1 : t->end;
    good->lora_expand_fold(&bare);
}

static void gemv_swaps(const LgpLoraProduct *t) {
    good->lora_gemv(t);
    if (t->to - t->from > 1)
        t->y[0] = t->y[1];
}

static void acc_unrounded(const LgpLoraProduct *t) {
    LgpLoraProduct bare = *t;
    bare.round_bf16 = 0;
    good->lora_gemm_acc(&bare);
}

/* Which check, what is wrong, and how the table is broken. */
/* ---- experts ---- */

static void softmax_plain(const float *x, float *y, int32_t n) {
    float sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += y[i] = lgp_exp(x[i]);
    for (int32_t i = 0; i < n; i++)
        y[i] /= sum;
}

static void topk_last(float *x, int32_t n, int32_t k, int32_t *which, float *much) {
    good->topk(x, n, k, which, much);
    if (k > 1 && much[0] == much[1]) {
        int32_t first = which[0];
        which[0] = which[1];
        which[1] = first;
    }
}

static void next_expert(const LgpMoe *m, const LgpMoeWalk *w, float *scratch) {
    LgpMoeWalk other = *w;
    other.expert = (w->expert + 1) % m->experts;
    good->moe_task(m, &other, scratch);
}

static void first_x(const LgpMoe *m, const LgpMoeWalk *w, float *scratch) {
    LgpMoe other = *m;
    for (int32_t p = 0; p < m->products && w->end - w->first > 1; p++)
        other.part[p].x_stride = 0;
    good->moe_task(&other, w, scratch);
}

static void sort_short(const int32_t *choice, int32_t rows, int32_t experts, int32_t *offsets,
                       int32_t *order) {
    good->moe_sort(choice, rows, experts, offsets, order);
    offsets[experts] = offsets[experts - 1];
}

static void first_choice(const LgpLoraMoe *t) {
    LgpLora call = *t->call;
    LgpLoraMoe other = *t;
    int32_t choice[1024];
    for (int32_t i = 0; i < 1024; i++)
        choice[i] = t->call->choice[0];
    call.choice = choice;
    other.call = &call;
    good->lora_moe_gather_shrink(&other);
}

static void other_pair(const LgpLoraMoe *t) {
    LgpLoraMoe other = *t;
    other.expert = (t->expert + 1) % t->call->experts;
    good->lora_moe_grouped_expand_fold(&other);
}

/* clang-format off */
#define MUTANTS(X)                                                                                 \
    X(check_matmul, "a row in four is left out", t->matmul_tasks = one_task; t->matmul_task = missing_tail)   \
    X(check_matmul, "one output's scale is off by 3 %", t->matmul_tasks = one_task; t->matmul_task = wrong_scale) \
    X(check_matmul, "the last row reads the first", t->matmul_tasks = one_task; t->matmul_task = neighbour_row) \
    X(check_matmul, "the bias is left out", t->matmul_tasks = one_task; t->matmul_task = no_bias)             \
    X(check_matmul, "two roundings", t->matmul_tasks = one_task; t->matmul_task = two_roundings)              \
    X(check_matmul, "company changes the order", t->matmul_tasks = one_task; t->matmul_task = other_order)    \
    X(check_matmul, "writes past a row", t->matmul_tasks = one_task; t->matmul_task = writes_past)            \
    X(check_attend, "the window is one too wide", t->attend_tasks = attend_one; t->attend_task = no_window)   \
    X(check_attend, "reads a later position", t->attend_tasks = attend_one; t->attend_task = late_position)   \
    X(check_attend, "another head's keys", t->attend_tasks = attend_one; t->attend_task = wrong_head)         \
    X(check_attend, "the program's score is left out", t->attend_tasks = attend_one; t->attend_task = no_score) \
    X(check_attend, "company flips a bit", t->attend_tasks = attend_one; t->attend_task = rounds_in_company)  \
    X(check_math, "exp flushes subnormals", t->exp = exp_flushes)                                             \
    X(check_math, "exp never overflows", t->exp = exp_clamps)                                                 \
    X(check_math, "silu is off by 16 units", t->silu = silu_rough)                                            \
    X(check_table_row, "elements change places", t->table_row = row_swaps)                                    \
    X(check_lora, "low is not rounded", t->lora_shrink = low_unrounded)                                       \
    X(check_lora, "the last rank is left out", t->lora_shrink = rank_short)                                   \
    X(check_lora, "the request's scale is left out", t->lora_expand_fold = fold_unscaled)                     \
    X(check_lora, "sets of two are added twice", t->lora_expand_fold = fold_twice)                            \
    X(check_lora, "DoRA's gain is left out", t->lora_expand_fold = fold_no_gain)                              \
    X(check_lora, "a row gets its neighbour's low", t->lora_expand_fold = fold_other_low)                     \
    X(check_lora, "gemv is not gemm", t->lora_gemv = gemv_swaps)                                              \
    X(check_lora_launch, "the fused fold is not rounded", t->lora_gemm_acc = acc_unrounded)                   \
    X(check_lora_launch, "company changes a low", t->lora_expand_fold = fold_other_low)                       \
    X(check_moe, "softmax does not take the largest away", t->softmax = softmax_plain)                        \
    X(check_moe, "of equal ones the last is chosen", t->topk = topk_last)                                     \
    X(check_moe, "a result gets the next expert's", t->moe_task = next_expert)                                \
    X(check_moe, "gathered results read one row of x", t->moe_task = first_x)                                 \
    X(check_moe, "the last expert's rows are not sorted in", t->moe_sort = sort_short)                        \
    X(check_lora_moe, "the expert is looked up for the token's first choice", t->lora_moe_gather_shrink = first_choice) \
    X(check_lora_moe, "grouped rows get the next expert's B", t->lora_moe_grouped_expand_fold = other_pair)
/* clang-format on */

#define MUTANT_ROW(check, what, change) {check, what},

typedef struct Mutant {
    CheckFn check;
    const char *what;
} Mutant;

static const Mutant mutants[] = {MUTANTS(MUTANT_ROW)};

static void break_table(LgpKernelTable *t, int which) {
    int at = 0;
#define MUTANT_BREAK(check, what, change)                                                          \
    if (at++ == which) {                                                                           \
        change;                                                                                    \
    }
    MUTANTS(MUTANT_BREAK)
#undef MUTANT_BREAK
}

static const char *name_of(CheckFn check) {
    for (int i = 0; i < check_row_count; i++)
        if (check_rows[i].run == check)
            return check_rows[i].name;
    return "";
}

int check_mutants(uint64_t run_seed) {
    int missed = 0, count = (int)(sizeof mutants / sizeof *mutants);
    for (int i = 0; i < count; i++) {
        LgpKernelTable table = *good;
        break_table(&table, i);
        Check c = {.k = &table, .kernel = name_of(mutants[i].check), .quiet = true, .quick = true};
        if (!mutants[i].check(&c, run_seed))
            continue;
        printf("FAILED: no check caught this mutant of %s: %s\n", name_of(mutants[i].check),
               mutants[i].what);
        missed++;
    }
    printf("mutants      generic  %6d broken: %d caught\n", count, count - missed);
    return missed;
}
