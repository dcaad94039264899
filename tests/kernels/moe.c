/* moe.h: softmax within its arithmetic, topk exactly, and products of experts with the bits of one
 * row's product alone, in both forms; memory of experts that no row chose cannot be read meanwhile.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/cpu/pack.h"
#include "harness.h"

/* ---- softmax ---- */

static bool softmax_case(Check *c) {
    float x[200], y[200];
    double part[200], error[200], sum = 0, sum_error = 0, most = -INFINITY;
    int32_t n = DRAW_OF(c, 1, 2, 8, 15, 60, 128, 200);
    Regime regime = (Regime)draw_int(c, 0, REGIME_COUNT - 1);
    snprintf(c->shape, sizeof c->shape, "softmax n %d, %s", n, regime_name(regime));
    draw_floats(c, regime, false, x, (size_t)n);
    for (int32_t i = 0; i < n; i++)
        most = fmax(most, (double)x[i]);
    for (int32_t i = 0; i < n; i++) {
        double off = (double)x[i] - most;
        part[i] = exp(off);
        /* the difference's rounding, and exp's 2 units */
        error[i] = TINY;
        if (part[i] > 0)
            error[i] += part[i] * (expm1(fabs(off) * U_F32) + 2 * U_F32);
        sum += part[i];
        sum_error += error[i];
    }
    sum_error += n * U_F32 * (sum + sum_error);
    c->k->softmax(x, y, n);
    for (int32_t i = 0; i < n; i++) {
        double ref = part[i] / sum;
        double bound = (error[i] + ref * sum_error) / (sum - sum_error);
        bound += U_F32 * (ref + bound) + TINY;
        if (!within((double)y[i], ref, bound))
            return fail_value(c, (size_t)i, (double)y[i], ref, bound);
    }
    return true;
}

/* ---- topk ---- */

static bool topk_case(Check *c) {
    float x[300], used[300], much[16];
    int32_t which[16], n = DRAW_OF(c, 1, 2, 8, 17, 64, 128, 300),
                       k = draw_int(c, 1, n < 16 ? n : 16);
    snprintf(c->shape, sizeof c->shape, "topk %d of %d", k, n);
    for (int32_t i = 0; i < n; i++) { /* many ties; sometimes no number, or nothing else */
        x[i] = (float)draw_int(c, 0, 6) * 0.25f;
        if (draw_int(c, 0, 20) == 0)
            x[i] = NAN;
        if (draw_int(c, 0, 20) == 0)
            x[i] = draw_int(c, 0, 1) ? INFINITY : -INFINITY;
    }
    memcpy(used, x, sizeof x);
    c->k->topk(used, n, k, which, much);
    bool taken[300] = {false};
    for (int32_t j = 0; j < k; j++) {
        int32_t best = -1;
        for (int32_t i = 0; i < n; i++)
            if (!taken[i] && !isnan(x[i]) && (best < 0 || x[i] > x[best]))
                best = i;
        if (which[j] != (best < 0 ? 0 : best))
            return fail(c, "choice %d is %d, not %d", j, which[j], best);
        if (best < 0 ? !isnan(much[j]) : much[j] != x[best])
            return fail(c, "choice %d has the value %g", j, (double)much[j]);
        if (best >= 0)
            taken[best] = true;
    }
    return true;
}

/* ---- products ---- */

enum { THREADS = 3 };

typedef struct Experts {
    int32_t rows, slots, share, experts, n, k, products; /* rows of the step */
    int32_t format;
    uint64_t stride; /* bytes from expert to expert: whole pages */
    unsigned char *memory[LGP_MOE_SIBLINGS];
    LgpWeight w[LGP_MOE_SIBLINGS];
    Guarded x, y[LGP_MOE_SIBLINGS];
    int32_t *choice, *order, *offsets;
    LgpMoe moe;
} Experts;

/* Packed weights of any bytes will do but for the scales, which are small numbers. */
static void draw_panels(Check *c, int32_t format, int32_t n, int32_t k, unsigned char *to) {
    uint64_t bytes = pack_matrix_bytes(format, (uint64_t)n, (uint64_t)k);
    if (format == LGP_F32 || format == LGP_BF16) {
        float *rows = malloc((size_t)n * (size_t)k * sizeof *rows);
        for (int32_t i = 0; i < n * k; i++)
            rows[i] = (float)draw_unit(c);
        pack_f32_panels(rows, (uint64_t)k, format, (uint64_t)n, (uint64_t)k, 0,
                        pack_panel_count((uint64_t)n), to);
        free(rows);
        return;
    }
    uint64_t block = lgp_panel_bytes(format, LGP_BLOCK), scales = format == LGP_Q4 ? 64 : 32;
    for (uint64_t i = 0; i < bytes; i++)
        to[i] = i % block < scales ? (i % 2 ? (unsigned char)draw_int(c, 0x28, 0x37) : 0)
                                   : (unsigned char)draw(c);
}

static void experts_make(Check *c, Experts *e) {
    static const int32_t formats[] = {LGP_F32, LGP_BF16, LGP_Q8, LGP_Q4};
    memset(e, 0, sizeof *e);
    e->format = draw_of(c, formats, 4);
    e->experts = DRAW_OF(c, 1, 2, 5, 17);
    e->slots = draw_int(c, 1, e->experts < 4 ? e->experts : 4);
    e->rows = DRAW_OF(c, 1, 2, 3, 7, 40);
    if (!c->quick && draw_int(c, 0, 9) == 0)
        e->rows = 200; /* more of one expert than one gathered product has */
    e->share = draw_int(c, 0, 1) ? e->slots : 1;
    e->n = DRAW_OF(c, 1, 15, 16, 40, 161);
    e->k = e->format == LGP_Q8 || e->format == LGP_Q4 ? DRAW_OF(c, 32, 96)
                                                      : DRAW_OF(c, 1, 31, 32, 52, 100);
    e->products = draw_int(c, 1, 2);
    int32_t results = e->rows * e->slots, x_rows = results / e->share;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t bytes = pack_matrix_bytes(e->format, (uint64_t)e->n, (uint64_t)e->k);
    e->stride = (bytes + page - 1) / page * page;
    e->x = guarded((size_t)x_rows * (size_t)(e->k + 1) * sizeof(float), true);
    for (int32_t r = 0; r < x_rows; r++)
        draw_floats(c, REGIME_PLAIN, true, (float *)e->x.data + r * (e->k + 1), (size_t)e->k);
    e->choice = malloc((size_t)results * sizeof(int32_t));
    e->order = malloc((size_t)results * sizeof(int32_t));
    e->offsets = malloc((size_t)(e->experts + 1) * sizeof(int32_t));
    int32_t most = draw_int(c, 0, e->experts - 1); /* experts behind it stay unchosen */
    for (int32_t i = 0; i < results; i++)
        e->choice[i] = draw_int(c, 0, most);
    e->moe = (LgpMoe){.products = e->products,
                      .choice = e->choice,
                      .rows = results,
                      .experts = e->experts,
                      .share = e->share};
    for (int32_t p = 0; p < e->products; p++) {
        e->memory[p] = mmap(NULL, (size_t)(e->stride * (uint64_t)e->experts),
                            PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (e->memory[p] == MAP_FAILED)
            abort();
        for (int32_t x = 0; x < e->experts; x++)
            draw_panels(c, e->format, e->n, e->k, e->memory[p] + (uint64_t)x * e->stride);
        e->w[p] = (LgpWeight){.data = e->memory[p],
                              .format = e->format,
                              .rows = e->n,
                              .columns = e->k,
                              .row_bytes = e->stride};
        e->y[p] = guarded((size_t)results * (size_t)(e->n + 1) * sizeof(float), true);
        e->moe.part[p] = (LgpMatmul){.x = e->x.data,
                                     .x_stride = e->k + 1,
                                     .w = &e->w[p],
                                     .y = e->y[p].data,
                                     .y_stride = e->n + 1,
                                     .round_bf16 = draw_int(c, 0, 1),
                                     .x_bf16 = draw_int(c, 0, 1)};
    }
    snprintf(c->shape, sizeof c->shape,
             "experts %d of %d, rows %d, n %d, k %d, format %d, share %d, products %d", e->slots,
             e->experts, e->rows, e->n, e->k, e->format, e->share, e->products);
}

static void experts_free(Experts *e) {
    for (int32_t p = 0; p < e->products; p++) {
        munmap(e->memory[p], (size_t)(e->stride * (uint64_t)e->experts));
        guarded_free(&e->y[p]);
    }
    guarded_free(&e->x);
    free(e->choice);
    free(e->order);
    free(e->offsets);
}

/* Experts that no row chose are taken away, or given back. Prefetches do not fault. */
static void protect(const Experts *e, bool away) {
    for (int32_t x = 0; x < e->experts; x++) {
        bool chosen = false;
        for (int32_t i = 0; i < e->moe.rows; i++)
            chosen |= e->choice[i] == x;
        for (int32_t p = 0; p < e->products && !chosen; p++)
            mprotect(e->memory[p] + (uint64_t)x * e->stride, (size_t)e->stride,
                     away ? PROT_NONE : PROT_READ | PROT_WRITE);
    }
}

/* Tasks dealt to a few walks; each sees its own in rising order. */
static void run(Check *c, const Experts *e, const LgpMoe *m) {
    LgpMoeWalk walk[THREADS] = {{0}};
    float *scratch = malloc((size_t)c->k->moe_scratch(e->n, e->k) * sizeof(float));
    bool more = true;
    for (int32_t task = 0; more; task++) {
        LgpMoeWalk *w = &walk[draw_int(c, 0, THREADS - 1)];
        more = c->k->moe_seek(m, w, task) != 0;
        if (more)
            c->k->moe_task(m, w, scratch);
    }
    free(scratch);
}

/* Each result by a product of its own. */
static bool compare(Check *c, const Experts *e, const char *form) {
    float *scratch = malloc((size_t)c->k->matmul_scratch(e->k) * sizeof(float));
    float *want = malloc((size_t)e->n * sizeof(float));
    bool good = true;
    for (int32_t p = 0; p < e->products && good; p++)
        for (int32_t r = 0; r < e->moe.rows && good; r++) {
            LgpWeight w = e->w[p];
            w.data = e->memory[p] + (uint64_t)e->choice[r] * e->stride;
            LgpMatmul one = e->moe.part[p];
            one.w = &w;
            one.rows = 1;
            one.x += r / e->share * one.x_stride;
            one.y = want;
            for (int32_t t = 0; t < c->k->matmul_tasks(&one); t++)
                c->k->matmul_task(&one, t, scratch);
            const float *got = e->moe.part[p].y + r * e->moe.part[p].y_stride;
            if (memcmp(got, want, (size_t)e->n * sizeof(float)) != 0)
                good = fail(c, "%s: product %d, result %d is not that of its expert alone", form, p,
                            r);
        }
    for (int32_t p = 0; p < e->products && good; p++)
        if (!guarded_whole(&e->y[p]))
            good = fail(c, "%s wrote outside its results", form);
    free(scratch);
    free(want);
    return good;
}

static bool sorted_well(Check *c, const Experts *e) {
    for (int32_t x = 0, at = 0; x < e->experts; x++) {
        if (e->offsets[x] != at)
            return fail(c, "expert %d begins at %d, not %d", x, e->offsets[x], at);
        for (int32_t r = 0; r < e->moe.rows; r++)
            if (e->choice[r] == x && e->order[at++] != r)
                return fail(c, "place %d of expert %d holds another row than %d", at - 1, x, r);
    }
    return e->offsets[e->experts] == e->moe.rows || fail(c, "the last expert ends too soon");
}

static bool products_case(Check *c) {
    Experts e;
    experts_make(c, &e);
    if (!c->quiet) /* a mutant's crash would be no answer */
        protect(&e, true);
    run(c, &e, &e.moe);
    bool good = compare(c, &e, "slot-major");
    c->k->moe_sort(e.choice, e.moe.rows, e.experts, e.offsets, e.order);
    good = good && sorted_well(c, &e);
    for (int32_t p = 0; p < e.products; p++)
        guarded_refill(&e.y[p]);
    LgpMoe sorted = e.moe;
    sorted.order = e.order;
    sorted.offsets = e.offsets;
    if (good) {
        run(c, &e, &sorted);
        good = compare(c, &e, "sorted");
    }
    protect(&e, false);
    experts_free(&e);
    return good;
}

bool check_moe(Check *c, uint64_t run_seed) {
    int cases = c->quick ? 40 : 400;
    for (int i = 0; i < cases; i++) {
        check_case(c, run_seed, i);
        if (!softmax_case(c) || !topk_case(c) || !products_case(c))
            return false;
    }
    return true;
}
