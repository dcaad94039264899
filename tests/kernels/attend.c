/* attend.h: sequences of several lengths in pages that are scattered and, past what a step may see,
 * full of noise. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/float.h"
#include "harness.h"

#define SLOTS 3

typedef struct Shape {
    int32_t rows, kv_heads, group, width, v_width, window, longest;
    bool kv_bf16, round, capped;
    Regime regime;
} Shape;

typedef struct Fixture {
    Shape s;
    LgpAttend a;
    int32_t pages_per_slot, page_count;
    unsigned char **pages; /* [SLOTS][pages_per_slot] */
    int32_t *slot, *pos;
    float *k, *v; /* [SLOTS][positions][kv_heads][width] */
    int64_t positions;
    Guarded q, o;
} Fixture;

static void cap(float *scores, int32_t count) {
    for (int32_t i = 0; i < count; i++)
        scores[i] = 2.0f * lgp_tanh(scores[i] * 0.5f);
}

static size_t page_bytes(const Shape *s) {
    return (size_t)s->kv_heads * LGP_PAGE * (size_t)(s->width + s->v_width) * (s->kv_bf16 ? 2 : 4) +
           64;
}

static void put(const Shape *s, unsigned char *part, int64_t index, float v) {
    uint16_t h = bf16_from_float(v);
    if (s->kv_bf16)
        memcpy(part + index * 2, &h, 2);
    else
        memcpy(part + index * 4, &v, 4);
}

/* Positions up to the slot's last; beyond, NaN or large noise as the case goes. */
static void fill_slot(Check *c, Fixture *f, int32_t slot, int32_t positions) {
    const Shape *s = &f->s;
    for (int32_t p = 0; p < f->pages_per_slot; p++) {
        unsigned char *page = f->pages[slot * f->pages_per_slot + p];
        memset(page, 0xff, page_bytes(s));
        if (draw(c) & 1)
            for (size_t i = 0; i + 4 <= page_bytes(s); i += 4)
                memcpy(page + i, &(uint32_t){0x7e967e96u}, 4); /* 1e38 */
    }
    for (int32_t p = 0; p < positions; p++) {
        unsigned char *page = f->pages[slot * f->pages_per_slot + p / LGP_PAGE];
        for (int32_t h = 0; h < s->kv_heads; h++) {
            float *k = f->k + ((slot * f->positions + p) * s->kv_heads + h) * s->width;
            float *v = f->v + ((slot * f->positions + p) * s->kv_heads + h) * s->v_width;
            draw_floats(c, REGIME_PLAIN, true, k, (size_t)s->width);
            draw_floats(c, s->regime, true, v, (size_t)s->v_width);
            for (int32_t d = 0; d < s->width; d++)
                put(s, page + f->a.k_offset, ((int64_t)h * s->width + d) * LGP_PAGE + p % LGP_PAGE,
                    k[d]);
            for (int32_t d = 0; d < s->v_width; d++)
                put(s, page + f->a.v_offset,
                    ((int64_t)h * LGP_PAGE + p % LGP_PAGE) * s->v_width + d, v[d]);
        }
    }
}

static void draw_rows(Check *c, Fixture *f) {
    const Shape *s = &f->s;
    int32_t next[SLOTS];
    for (int i = 0; i < SLOTS; i++)
        next[i] = draw_int(c, 0, s->longest);
    for (int32_t r = 0, slot = 0; r < s->rows; r++) {
        if (draw_int(c, 0, 5) == 0)
            slot = draw_int(c, 0, SLOTS - 1);
        f->slot[r] = slot;
        f->pos[r] = next[slot]++;
    }
    for (int32_t slot = 0; slot < SLOTS; slot++)
        fill_slot(c, f, slot, next[slot]);
}

static void fixture_make(Check *c, Fixture *f, const Shape *s) {
    *f = (Fixture){.s = *s};
    f->positions = s->longest + s->rows;
    f->pages_per_slot = (int32_t)(f->positions / LGP_PAGE) + 1;
    f->page_count = SLOTS * f->pages_per_slot;
    f->pages = malloc((size_t)f->page_count * sizeof *f->pages);
    for (int32_t i = 0; i < f->page_count; i++)
        f->pages[i] = malloc(page_bytes(s));
    f->slot = malloc(((size_t)s->rows + 1) * sizeof(int32_t));
    f->pos = malloc(((size_t)s->rows + 1) * sizeof(int32_t));
    size_t at = (size_t)(SLOTS * f->positions * s->kv_heads);
    f->k = malloc(at * (size_t)s->width * sizeof(float));
    f->v = malloc(at * (size_t)s->v_width * sizeof(float));
    int64_t heads = (int64_t)s->kv_heads * s->group;
    f->a = (LgpAttend){.q_stride = heads * s->width + 3,
                       .rows = s->rows,
                       .slot = f->slot,
                       .pos = f->pos,
                       .kv_heads = s->kv_heads,
                       .group = s->group,
                       .width = s->width,
                       .v_width = s->v_width,
                       .pages = f->pages,
                       .pages_per_slot = f->pages_per_slot,
                       .k_offset = 4,
                       .kv_bf16 = s->kv_bf16,
                       .scale = (float)(1.0 / sqrt(s->width)),
                       .window = s->window,
                       .score = s->capped ? cap : NULL,
                       .o_stride = heads * s->v_width + 2,
                       .round_bf16 = s->round};
    f->a.v_offset =
        8 + (uint64_t)s->kv_heads * LGP_PAGE * (uint64_t)s->width * (s->kv_bf16 ? 2 : 4);
    f->q = guarded((size_t)(s->rows * f->a.q_stride) * sizeof(float), true);
    f->o = guarded((size_t)(s->rows * f->a.o_stride) * sizeof(float), true);
    f->a.q = f->q.data;
    f->a.o = f->o.data;
    draw_rows(c, f);
    for (int32_t r = 0; r < s->rows; r++) {
        float *q = (float *)f->q.data + r * f->a.q_stride;
        draw_floats(c, REGIME_PLAIN, true, q, (size_t)(heads * s->width));
        float far = s->regime == REGIME_HUGE ? 256.0f : 1.0f; /* scores far apart */
        for (int64_t i = 0; i < heads * s->width; i++)
            q[i] *= far;
    }
}

static void fixture_free(Fixture *f) {
    for (int32_t i = 0; i < f->page_count; i++)
        free(f->pages[i]);
    free(f->pages);
    free(f->slot);
    free(f->pos);
    free(f->k);
    free(f->v);
    guarded_free(&f->q);
    guarded_free(&f->o);
}

static bool run(Check *c, const LgpAttend *a, int32_t positions, bool backwards) {
    Guarded scratch =
        guarded((size_t)c->k->attend_scratch(a->group, positions) * sizeof(float), true);
    int32_t tasks = c->k->attend_tasks(a);
    for (int32_t t = 0; t < tasks; t++) {
        memset(scratch.data, 0xff, scratch.bytes);
        c->k->attend_task(a, backwards ? tasks - 1 - t : t, scratch.data);
    }
    bool whole = guarded_whole(&scratch);
    guarded_free(&scratch);
    return whole || fail(c, "scratch was written outside");
}

/* Scores of one query in double; *slack: how far a kernel's may be off, relative to the
 * exponentials. */
static double scores_of(const Fixture *f, int32_t r, int32_t head, const float *q, int32_t low,
                        double *p, double *slack) {
    const Shape *s = &f->s;
    double most = -INFINITY, off = 0, sum = 0;
    for (int32_t at = low; at <= f->pos[r]; at++) {
        const float *k = f->k + ((f->slot[r] * f->positions + at) * s->kv_heads + head) * s->width;
        double dot = 0, spread = 0;
        for (int32_t d = 0; d < s->width; d++) {
            dot += (double)q[d] * (double)k[d];
            spread += fabs((double)q[d] * (double)k[d]);
        }
        double error = (double)f->a.scale * (s->width + 3) * U_F32 * spread;
        double score = dot * (double)f->a.scale;
        if (s->capped) {
            error += 12 * U_F32 * 2;
            score = 2 * tanh(score * 0.5);
        }
        p[at] = score;
        off = error > off ? error : off;
        most = score > most ? score : most;
    }
    double far = 0;
    for (int32_t at = low; at <= f->pos[r]; at++) {
        far = most - p[at] > far ? most - p[at] : far;
        p[at] = exp(p[at] - most);
        sum += p[at];
    }
    /* Of score and largest score; their difference is rounded; exp has its bound. Far below,
     * differences count less than they seem. */
    *slack = expm1(2 * off + (far < 104 ? far : 104) * U_F32 + 4 * U_F32);
    return sum;
}

static bool compare(Check *c, const Fixture *f, double *p) {
    const Shape *s = &f->s;
    for (int32_t r = 0; r < s->rows; r++) {
        int32_t low = s->window > 0 && f->pos[r] >= s->window ? f->pos[r] - s->window + 1 : 0;
        int32_t count = f->pos[r] - low + 1, pages = f->pos[r] / LGP_PAGE - low / LGP_PAGE + 1;
        for (int32_t h = 0; h < s->kv_heads * s->group; h++) {
            double slack,
                sum = scores_of(f, r, h / s->group, f->a.q + r * f->a.q_stride + h * s->width, low,
                                p, &slack);
            for (int32_t d = 0; d < s->v_width; d++) {
                double ref = 0, spread = 0, none = 0;
                for (int32_t at = low; at <= f->pos[r]; at++) {
                    double v =
                        (double)
                            f->v[((f->slot[r] * f->positions + at) * s->kv_heads + h / s->group) *
                                     s->v_width +
                                 d];
                    ref += p[at] / sum * v;
                    spread += p[at] / sum * fabs(v);
                    none += fabs(v) * 0x1p-148;
                }
                /* Two slacks (over and under the line), a chain of a page, sums of pages and of the
                 * exponentials, the quotient. */
                int32_t chain = count < LGP_PAGE ? count : LGP_PAGE;
                double error =
                    (2 * slack + (chain + 1 + pages + pages * 4 + 6 + 2) * U_F32) * spread + none +
                    4 * TINY;
                double bound = error + round_error(fabs(ref) + error, s->round);
                double got = (double)f->a.o[r * f->a.o_stride + h * s->v_width + d];
                if (!within(got, ref, bound))
                    return fail_value(c,
                                      (size_t)((r * s->kv_heads * s->group + h) * s->v_width + d),
                                      got, ref, bound);
                if (s->round && !is_bf16(got))
                    return fail(c, "row %d, head %d: %a is no bf16", r, h, got);
            }
        }
    }
    return true;
}

/* Each row alone, and with what comes later in its pages changed to noise; all tasks in reverse. */
static bool same_bits(Check *c, Fixture *f) {
    const Shape *s = &f->s;
    size_t row = (size_t)(s->kv_heads * s->group * s->v_width) * sizeof(float);
    float *o = malloc((size_t)(s->rows * f->a.o_stride) * sizeof(float) + 1);
    LgpAttend again = f->a;
    again.o = o;
    bool good = run(c, &again, (int32_t)f->positions, true);
    for (int32_t r = 0; good && r < s->rows; r++)
        if (memcmp(o + r * f->a.o_stride, f->a.o + r * f->a.o_stride, row) != 0)
            good = fail(c, "row %d differs where tasks run in reverse", r);
    again.rows = 1;
    for (int32_t r = s->rows - 1; good && r >= 0; r--) {
        again.q = f->a.q + r * f->a.q_stride;
        again.slot = f->slot + r;
        again.pos = f->pos + r;
        good = run(c, &again, f->pos[r] + 1, false);
        if (good && memcmp(o, f->a.o + r * f->a.o_stride, row) != 0)
            good = fail(c, "row %d (slot %d, position %d) differs alone", r, f->slot[r], f->pos[r]);
        /* Rows before this one must not see it. */
        unsigned char *page = f->pages[f->slot[r] * f->pages_per_slot + f->pos[r] / LGP_PAGE];
        for (int32_t h = 0; h < s->kv_heads; h++) {
            for (int32_t d = 0; d < s->width; d++)
                put(s, page + f->a.k_offset,
                    ((int64_t)h * s->width + d) * LGP_PAGE + f->pos[r] % LGP_PAGE, NAN);
            for (int32_t d = 0; d < s->v_width; d++)
                put(s, page + f->a.v_offset,
                    ((int64_t)h * LGP_PAGE + f->pos[r] % LGP_PAGE) * s->v_width + d, NAN);
        }
    }
    free(o);
    return good;
}

bool check_attend(Check *c, uint64_t run_seed) {
    int cases = c->quick ? 30 : 200;
    for (int i = 0; i < cases; i++) {
        check_case(c, run_seed, i);
        Shape s = {.rows = DRAW_OF(c, 0, 1, 1, 2, 3, 5, 8, 13, 33, 70)};
        s.kv_heads = DRAW_OF(c, 1, 1, 2, 3);
        s.group = DRAW_OF(c, 1, 2, 3, 4, 5, 7, 13);
        s.width = DRAW_OF(c, 1, 16, 17, 32, 33, 64, 80, 128, 256);
        s.v_width = draw_int(c, 0, 2) ? s.width : DRAW_OF(c, 1, 7, 16, 24, 31, 40, 64, 100);
        s.window = DRAW_OF(c, 0, 0, 1, 5, 63, 64, 65, 130);
        s.longest = DRAW_OF(c, 0, 3, 62, 63, 64, 130, 200);
        s.kv_bf16 = draw_int(c, 0, 2) != 0;
        s.round = draw_int(c, 0, 1);
        s.capped = draw_int(c, 0, 4) == 0;
        s.regime = (Regime)draw_int(c, 0, REGIME_COUNT - 1);
        snprintf(
            c->shape, sizeof c->shape,
            "rows %d, kv heads %d, group %d, width %d, v width %d, window %d, from %d, %s %s%s%s",
            s.rows, s.kv_heads, s.group, s.width, s.v_width, s.window, s.longest,
            s.kv_bf16 ? "bf16" : "f32", regime_name(s.regime), s.round ? ", bf16" : "",
            s.capped ? ", capped" : "");
        Fixture f;
        fixture_make(c, &f, &s);
        double *p = malloc((size_t)f.positions * sizeof *p + sizeof *p);
        bool good =
            run(c, &f.a, (int32_t)f.positions, false) && compare(c, &f, p) && same_bits(c, &f);
        if (good && !(guarded_whole(&f.q) && guarded_whole(&f.o)))
            good = fail(c, "memory outside was written");
        free(p);
        fixture_free(&f);
        if (!good)
            return false;
    }
    return true;
}
