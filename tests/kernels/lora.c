/* lora.h: shrink against a double reference; expand and fold against one that starts from the lows
 * that the shrink made; the dense kernels against both, bit for bit. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lora_fixture.h"

static void shrink(Check *c, const LoraFixture *f, const LgpLoraGroup *g, int32_t site,
                   int32_t member, bool split) {
    int32_t place[LGP_LORA_SITES][LGP_LORA_SET];
    lora_fixture_places(f, g, place);
    int32_t rank = g->sites[member][f->call.layer * LGP_LORA_SITES + site].a.rows;
    LgpLoraShrink t = {.call = &f->call,
                       .route = &f->route,
                       .group = g,
                       .site = site,
                       .member = member,
                       .first = g->first,
                       .end = g->first + g->count,
                       .to = rank,
                       .low = f->route.low + g->first * f->route.low_stride + place[site][member]};
    if (!split) {
        c->k->lora_shrink(&t);
        return;
    }
    for (int32_t r = t.first; r < g->first + g->count; r++)
        for (int32_t z = 0; z < rank; z += 5) {
            LgpLoraShrink part = t;
            part.first = r;
            part.end = r + 1;
            part.low = t.low + (r - t.first) * f->route.low_stride;
            part.from = z;
            part.to = z + 5 < rank ? z + 5 : rank;
            c->k->lora_shrink(&part);
        }
}

static void shrink_all(Check *c, const LoraFixture *f, bool split) {
    for (int32_t i = 0; i < f->route.group_count; i++)
        for (int32_t s = 0; s < f->site_count; s++)
            for (int32_t m = 0; m < f->groups[i].members; m++)
                shrink(c, f, &f->groups[i], s, m, split);
}

static void expand_all(Check *c, const LoraFixture *f, bool split) {
    for (int32_t i = 0; i < f->route.group_count; i++) {
        const LgpLoraGroup *g = &f->groups[i];
        int32_t place[LGP_LORA_SITES][LGP_LORA_SET];
        lora_fixture_places(f, g, place);
        for (int32_t s = 0; s < f->site_count; s++) {
            LgpLoraExpand t = {.call = &f->call,
                               .route = &f->route,
                               .group = g,
                               .site = s,
                               .first = g->first,
                               .end = g->first + g->count,
                               .to = f->n[s],
                               .low = f->route.low + g->first * f->route.low_stride};
            for (int32_t m = 0; m < g->members; m++)
                t.place[m] = place[s][m];
            if (!split) {
                c->k->lora_expand_fold(&t);
                continue;
            }
            for (int32_t r = g->count - 1; r >= 0; r--)
                for (int32_t o = 0; o < f->n[s]; o += 32) {
                    LgpLoraExpand part = t;
                    part.first = t.first + r;
                    part.end = part.first + 1;
                    part.low = t.low + r * f->route.low_stride;
                    part.from = o;
                    part.to = o + 32 < f->n[s] ? o + 32 : f->n[s];
                    c->k->lora_expand_fold(&part);
                }
        }
    }
}

/* low = round(sum over k): a chain of k / 16, its products (generic), a tree of five. */
static bool compare_low(Check *c, const LoraFixture *f, const LgpLoraGroup *g, int32_t entry,
                        int32_t site, int32_t member, int32_t place) {
    const AdapterSite *s = lora_fixture_site(f, lora_fixture_adapter(f, g, member), site);
    const float *x = (const float *)f->x.data + f->route.row[entry] * (f->k + 1);
    const float *low = f->route.low + entry * f->route.low_stride + place;
    for (int32_t z = 0; z < s->rank; z++) {
        double ref = 0, spread = 0;
        for (int32_t k = 0; !f->lookup && k < f->k; k++) {
            ref += (double)x[k] * (double)s->a[z * f->k + k];
            spread += fabs((double)x[k] * (double)s->a[z * f->k + k]);
        }
        if (f->lookup)
            ref = (double)s->a[z * f->vocab + f->route.token[entry]];
        double error = ((f->k + 15) / 16 + 1 + 5) * U_F32 * spread + (f->k + 4) * TINY;
        double bound = f->lookup ? 0 : error + round_error(fabs(ref) + error, !f->f32);
        if (!within((double)low[z], ref, bound))
            return fail_value(c, (size_t)z, (double)low[z], ref, bound);
        if (!f->f32 && !is_bf16((double)low[z]))
            return fail(c, "low %d: %a is no bf16", z, (double)low[z]);
    }
    return true;
}

static bool compare_fold(Check *c, const LoraFixture *f, const LgpLoraGroup *g, int32_t entry,
                         int32_t site, const int32_t place[LGP_LORA_SET]) {
    const int32_t row = f->route.row[entry], at = f->call.layer * LGP_LORA_SITES + site;
    const float *y = f->call.y[site] + row * f->call.y_stride[site],
                *y0 = f->y0[site] + row * f->call.y_stride[site];
    const float *const *gains = f->route.gain[entry];
    bool touched = false;
    for (int32_t m = 0; m < g->members; m++)
        touched |= lora_fixture_site(f, lora_fixture_adapter(f, g, m), site)->rank > 0;
    for (int32_t o = 0; o < f->n[site]; o++) {
        double v = (double)y0[o], error = 0;
        for (int32_t m = 0; m < g->members; m++) {
            const AdapterSite *s = lora_fixture_site(f, lora_fixture_adapter(f, g, m), site);
            const float *low = f->route.low + entry * f->route.low_stride + place[m];
            double factor = (double)s->scale * (double)f->route.scale[entry * LGP_LORA_SET + m],
                   delta = 0, spread = 0;
            if (s->rank == 0)
                continue;
            for (int32_t z = 0; z < s->rank; z++) {
                delta += (double)low[z] * (double)s->b[o * s->rank + z];
                spread += fabs((double)low[z] * (double)s->b[o * s->rank + z]);
            }
            if (gains && gains[at]) {
                double gain = (double)gains[at][o],
                       bias = f->call.bias[site] ? (double)f->call.bias[site][o] : 0;
                double part = (gain - 1) * (v - bias);
                error += 4 * U_F32 * fabs(gain - 1) * (fabs(v) + fabs(bias)) +
                         2 * U_F32 * (fabs(v) + fabs(part));
                v += part;
                factor *= gain;
            }
            error += fabs(factor) * ((s->rank + 1) * U_F32 * spread + s->rank * TINY) +
                     4 * U_F32 * fabs(factor * delta) + fabs(delta) * 4 * TINY;
            v += factor * delta;
            error += 2 * U_F32 * fabs(v) + 4 * TINY;
        }
        double bound = touched ? error + round_error(fabs(v) + error, !f->f32) : 0;
        if (!within((double)y[o], v, bound))
            return fail_value(c, (size_t)row * (size_t)f->n[site] + (size_t)o, (double)y[o], v,
                              bound);
        if (!f->f32 && !is_bf16((double)y[o]))
            return fail(c, "row %d, output %d: %a is no bf16", row, o, (double)y[o]);
    }
    return true;
}

static bool compare_all(Check *c, const LoraFixture *f) {
    for (int32_t i = 0; i < f->route.group_count; i++) {
        const LgpLoraGroup *g = &f->groups[i];
        int32_t place[LGP_LORA_SITES][LGP_LORA_SET];
        lora_fixture_places(f, g, place);
        for (int32_t entry = g->first; entry < g->first + g->count; entry++)
            for (int32_t s = 0; s < f->site_count; s++) {
                for (int32_t m = 0; m < g->members; m++)
                    if (!compare_low(c, f, g, entry, s, m, place[s][m]))
                        return false;
                if (!compare_fold(c, f, g, entry, s, place[s]))
                    return false;
            }
    }
    /* Rows without adapters, and what lies between rows, are as they were. */
    for (int32_t r = 0; r < f->rows; r++)
        for (int32_t s = 0; s < f->site_count; s++) {
            int64_t stride = f->call.y_stride[s];
            int32_t from = f->set_count[r] > 0 ? f->n[s] : 0;
            if (memcmp(f->call.y[s] + r * stride + from, f->y0[s] + r * stride + from,
                       (size_t)(stride - from) * sizeof(float)) != 0)
                return fail(c, "row %d was written where it must not be", r);
        }
    return true;
}

/* The dense kernels on rows of one adapter, and gemm against gemv. */
static bool dense_bits(Check *c, LoraFixture *f) {
    if (f->lookup)
        return true;
    const AdapterSite *site = lora_fixture_site(f, 0, 0);
    const LgpLoraSite *p = &f->packed[0][f->call.layer * LGP_LORA_SITES];
    size_t rank = (size_t)site->rank, n = (size_t)f->n[0], rows = (size_t)f->rows;
    float *low = malloc((rows * rank + 1) * sizeof(float)),
          *one = malloc((rank + n + 1) * sizeof(float));
    float *delta = malloc((rows * n + 1) * sizeof(float)),
          *y = malloc((rows * n + 1) * sizeof(float));
    bool good = true;
    LgpLoraProduct t = {.x = f->x.data,
                        .x_stride = f->k + 1,
                        .rows = f->rows,
                        .w = &p->a,
                        .to = site->rank,
                        .y = low,
                        .y_stride = site->rank,
                        .round_bf16 = !f->f32};
    c->k->lora_gemm(&t);
    LgpLoraProduct u = {.x = low,
                        .x_stride = site->rank,
                        .rows = f->rows,
                        .w = &p->b,
                        .to = f->n[0],
                        .y = delta,
                        .y_stride = f->n[0]};
    c->k->lora_gemm(&u);
    for (size_t r = 0; good && rank > 0 && r < rows; r++) {
        LgpLoraProduct v = t, w = u;
        v.x = t.x + r * (size_t)t.x_stride;
        v.y = one;
        c->k->lora_gemv(&v);
        w.x = one;
        w.y = one + rank;
        c->k->lora_gemv(&w);
        if (memcmp(one, low + r * rank, rank * sizeof(float)) != 0 ||
            memcmp(one + rank, delta + r * n, n * sizeof(float)) != 0)
            good = fail(c, "row %zu: gemv and gemm differ", r);
    }
    for (size_t r = 0; r < rows; r++)
        memcpy(y + r * n, f->y0[0] + r * (size_t)f->call.y_stride[0], n * sizeof(float));
    LgpLoraProduct acc = u;
    acc.y = f->y[0].data;
    acc.y_stride = f->call.y_stride[0];
    acc.scale = 0.75f;
    acc.round_bf16 = !f->f32;
    lora_fixture_reset(f);
    c->k->lora_gemm_acc(&acc);
    LgpLoraScaledAdd add = {.y = y,
                            .y_stride = f->n[0],
                            .delta = delta,
                            .delta_stride = f->n[0],
                            .rows = f->rows,
                            .n = f->n[0],
                            .scale = 0.75f,
                            .round_bf16 = !f->f32};
    c->k->lora_scaled_add(&add);
    for (size_t r = 0; good && r < rows; r++)
        if (memcmp(y + r * n, f->call.y[0] + r * (size_t)acc.y_stride, n * sizeof(float)) != 0)
            good = fail(c, "row %zu: expand and fold in one differs from two kernels", r);
    free(low);
    free(one);
    free(delta);
    free(y);
    return good;
}

bool check_lora(Check *c, uint64_t run_seed) {
    int cases = c->quick ? 40 : 300;
    for (int i = 0; i < cases; i++) {
        LoraFixture f;
        check_case(c, run_seed, i);
        lora_fixture_make(c, &f);
        lora_fixture_reset(&f);
        shrink_all(c, &f, false);
        expand_all(c, &f, false);
        bool good = compare_all(c, &f);
        float *kept[LGP_LORA_SITES] = {NULL};
        for (int s = 0; s < LGP_LORA_SITES; s++) {
            kept[s] = malloc(f.y[s].bytes);
            memcpy(kept[s], f.y[s].data, f.y[s].bytes);
        }
        lora_fixture_reset(&f);
        shrink_all(c, &f, true);
        expand_all(c, &f, true);
        for (int s = 0; good && s < f.site_count; s++)
            if (memcmp(kept[s], f.y[s].data, f.y[s].bytes) != 0)
                good =
                    fail(c, "site %d differs where rows, ranks and outputs go in small parts", s);
        good = good && dense_bits(c, &f);
        if (good && !guarded_whole(&f.low))
            good = fail(c, "lows were written outside");
        for (int s = 0; s < LGP_LORA_SITES; s++) {
            if (good && !guarded_whole(&f.y[s]))
                good = fail(c, "y was written outside");
            free(kept[s]);
        }
        lora_fixture_free(&f);
        if (!good)
            return false;
    }
    return true;
}
