/* Drawing adapters and rows, and grouping rows by their sets. */
#include "lora_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float *floats(size_t count) {
    float *p = malloc((count + 1) * sizeof *p);
    if (!p)
        abort();
    return p;
}

static void draw_site(Check *c, LoraFixture *f, int32_t adapter, int32_t at) {
    AdapterSite *s = &f->sites[adapter][at];
    int32_t n = f->n[at % LGP_LORA_SITES], in = f->lookup ? f->vocab : f->k;
    *s = (AdapterSite){.rank = DRAW_OF(c, 0, 1, 2, 3, 4, 5, 8, 12, 16, 17, 33, 64),
                       .scale = (float)draw_unit(c) * 2};
    if (c->quick && s->rank > 17)
        s->rank = 9;
    float *a = floats((size_t)s->rank * (size_t)in), *b = floats((size_t)n * (size_t)s->rank);
    draw_floats(c, REGIME_PLAIN, !f->f32, a, (size_t)s->rank * (size_t)in);
    draw_floats(c, f->regime == REGIME_HUGE ? REGIME_PLAIN : f->regime, !f->f32, b,
                (size_t)n * (size_t)s->rank);
    s->a = a;
    s->b = b;
    uint64_t bytes = lora_site_bytes(s->rank, in, n, f->lookup, f->f32);
    f->memory[adapter][at] = aligned_alloc(64, (bytes + 64) / 64 * 64);
    memset(f->memory[adapter][at], 0xff, (bytes + 64) / 64 * 64);
    lora_site_pack(s, in, n, f->lookup, f->f32, f->memory[adapter][at], &f->packed[adapter][at]);
}

static void draw_sets(Check *c, LoraFixture *f) {
    bool alike = draw_int(c, 0, 3) == 0; /* one adapter for all rows */
    for (int32_t r = 0; r < f->rows; r++) {
        f->set_count[r] = DRAW_OF(c, 0, 1, 1, 1, 1, 2, 3, 4);
        int32_t first = f->dora && f->set_count[r] > 1 ? 1 : 0;
        if (f->adapters <= first)
            f->set_count[r] = 0;
        for (int32_t m = 0; m < f->set_count[r]; m++)
            f->sets[r][m] = draw_int(c, first, f->adapters - 1);
        for (int m = 0; m < LGP_LORA_SET; m++)
            f->scale[r * LGP_LORA_SET + m] = draw_int(c, 0, 2) ? 1.0f : (float)draw_unit(c);
        f->token[r] = draw_int(c, 0, f->vocab - 1);
        if (alike) {
            f->set_count[r] = 1;
            f->sets[r][0] = f->adapters - 1;
            f->scale[r * LGP_LORA_SET] = 0.5f;
        }
    }
}

void lora_fixture_make(Check *c, LoraFixture *f) {
    memset(f, 0, sizeof *f);
    f->regime = (Regime)draw_int(c, 0, REGIME_COUNT - 1);
    f->rows = DRAW_OF(c, 1, 1, 2, 3, 4, 5, 7, 8, 13, 29);
    if (!c->quick && draw_int(c, 0, 9) == 0)
        f->rows = 120;
    f->k = DRAW_OF(c, 1, 8, 15, 16, 17, 33, 64, 101, 160);
    f->vocab = 19;
    f->f32 = draw_int(c, 0, 2) == 0;
    f->lookup = draw_int(c, 0, 7) == 0;
    f->dora = draw_int(c, 0, 2) == 0;
    f->site_count = f->lookup ? 1 : draw_int(c, 1, LGP_LORA_SITES);
    f->adapters = draw_int(c, 1, LORA_ADAPTERS);
    for (int s = 0; s < LGP_LORA_SITES; s++)
        f->n[s] = DRAW_OF(c, 1, 7, 16, 17, 40, 95, 160);
    for (int32_t a = 0; a < f->adapters; a++)
        for (int32_t at = 0; at < LORA_LAYERS * LGP_LORA_SITES; at++)
            draw_site(c, f, a, at);
    size_t rows = (size_t)f->rows;
    int64_t stride = 0;
    for (int32_t a = 0; a < f->adapters; a++)
        for (int32_t at = 0; at < LORA_LAYERS * LGP_LORA_SITES; at++)
            stride = f->sites[a][at].rank > stride ? f->sites[a][at].rank : stride;
    f->route.low_stride = stride * LGP_LORA_SITES * LGP_LORA_SET + 1;
    f->x = guarded(rows * (size_t)(f->k + 1) * sizeof(float), true);
    f->low = guarded(rows * (size_t)f->route.low_stride * sizeof(float), true);
    for (size_t r = 0; r < rows; r++)
        draw_floats(c, f->regime, !f->f32, (float *)f->x.data + r * (size_t)(f->k + 1),
                    (size_t)f->k);
    f->call = (LgpLora){.layer = draw_int(c, 0, LORA_LAYERS - 1),
                        .site_count = f->site_count,
                        .x = f->lookup ? NULL : f->x.data,
                        .x_stride = f->k + 1,
                        .k = f->lookup ? f->vocab : f->k,
                        .store_bf16 = !f->f32};
    for (int s = 0; s < LGP_LORA_SITES; s++) {
        size_t count = rows * (size_t)(f->n[s] + s);
        f->y[s] = guarded(count * sizeof(float), true);
        f->y0[s] = floats(count);
        memset(f->y0[s], 0xff, count * sizeof(float));
        for (size_t r = 0; r < rows; r++)
            draw_floats(c, f->regime, !f->f32, f->y0[s] + r * (size_t)(f->n[s] + s),
                        (size_t)f->n[s]);
        f->bias[s] = floats((size_t)f->n[s]);
        draw_floats(c, REGIME_PLAIN, false, f->bias[s], (size_t)f->n[s]);
        f->call.sites[s] = s;
        f->call.y[s] = f->y[s].data;
        f->call.y_stride[s] = f->n[s] + s;
        f->call.n[s] = f->n[s];
        f->call.bias[s] = draw_int(c, 0, 1) ? f->bias[s] : NULL;
    }
    for (int at = 0; f->dora && at < LORA_LAYERS * LGP_LORA_SITES; at++) {
        f->gains[at] = floats((size_t)f->n[at % LGP_LORA_SITES]);
        draw_floats(c, REGIME_PLAIN, false, f->gains[at], (size_t)f->n[at % LGP_LORA_SITES]);
        f->gain_table[at] = draw_int(c, 0, 3) ? f->gains[at] : NULL;
    }
    f->groups = malloc((rows + 1) * sizeof *f->groups);
    f->row = malloc((rows + 1) * sizeof *f->row);
    f->token = malloc(2 * (rows + 1) * sizeof *f->token);
    f->scale = malloc(2 * (rows + 1) * LGP_LORA_SET * sizeof *f->scale);
    f->gain = malloc((rows + 1) * sizeof *f->gain);
    f->sets = malloc((rows + 1) * sizeof *f->sets);
    f->set_count = malloc((rows + 1) * sizeof *f->set_count);
    draw_sets(c, f);
    lora_fixture_route(f, 0, f->rows);
    snprintf(c->shape, sizeof c->shape,
             "rows %d, k %d, sites %d (n %d %d %d %d), adapters %d, layer %d, %s%s%s, %s", f->rows,
             f->k, f->site_count, f->n[0], f->n[1], f->n[2], f->n[3], f->adapters, f->call.layer,
             f->f32 ? "f32" : "bf16", f->lookup ? ", lookup" : "", f->dora ? ", dora" : "",
             regime_name(f->regime));
}

void lora_fixture_free(LoraFixture *f) {
    for (int a = 0; a < LORA_ADAPTERS; a++)
        for (int at = 0; at < LORA_LAYERS * LGP_LORA_SITES; at++) {
            free((void *)f->sites[a][at].a);
            free((void *)f->sites[a][at].b);
            free(f->memory[a][at]);
        }
    for (int at = 0; at < LORA_LAYERS * LGP_LORA_SITES; at++)
        free(f->gains[at]);
    for (int s = 0; s < LGP_LORA_SITES; s++) {
        guarded_free(&f->y[s]);
        free(f->y0[s]);
        free(f->bias[s]);
    }
    guarded_free(&f->x);
    guarded_free(&f->low);
    free(f->groups);
    free(f->row);
    free(f->token);
    free(f->scale);
    free(f->gain);
    free(f->sets);
    free(f->set_count);
}

void lora_fixture_reset(LoraFixture *f) {
    for (int s = 0; s < LGP_LORA_SITES; s++)
        memcpy(f->y[s].data, f->y0[s], f->y[s].bytes);
    guarded_refill(&f->low);
}

static bool same_set(const LoraFixture *f, int32_t a, int32_t b) {
    return f->set_count[a] == f->set_count[b] &&
           memcmp(f->sets[a], f->sets[b], (size_t)f->set_count[a] * sizeof(int32_t)) == 0;
}

/* The drawn scales and tokens lie in the first half of their arrays, by row; the route's in the
 * second, by list entry. */
void lora_fixture_route(LoraFixture *f, int32_t from, int32_t to) {
    int32_t count = 0, group_count = 0, *token = f->token + f->rows;
    float *scale = f->scale + f->rows * LGP_LORA_SET;
    for (int32_t r = from; r < to; r++) {
        bool first = f->set_count[r] > 0;
        for (int32_t other = from; first && other < r; other++)
            first = !same_set(f, other, r);
        if (!first)
            continue;
        LgpLoraGroup *g = &f->groups[group_count++];
        *g = (LgpLoraGroup){.first = count, .members = f->set_count[r]};
        for (int32_t m = 0; m < g->members; m++)
            g->sites[m] = f->packed[f->sets[r][m]];
        for (int32_t other = r; other < to; other++) {
            if (!same_set(f, other, r))
                continue;
            f->row[count] = other;
            token[count] = f->token[other];
            memcpy(scale + count * LGP_LORA_SET, f->scale + other * LGP_LORA_SET,
                   LGP_LORA_SET * sizeof(float));
            f->gain[count] =
                f->dora && g->members == 1 && f->sets[r][0] == 0 ? f->gain_table : NULL;
            count++;
            g->count++;
        }
    }
    f->route.count = count;
    f->route.group_count = group_count;
    f->route.site_count = LGP_LORA_SITES;
    f->route.groups = f->groups;
    f->route.row = f->row;
    f->route.token = token;
    f->route.scale = scale;
    f->route.gain = (const float *const *const *)f->gain;
    f->route.low = f->low.data;
}

void lora_fixture_places(const LoraFixture *f, const LgpLoraGroup *g,
                         int32_t place[LGP_LORA_SITES][LGP_LORA_SET]) {
    int32_t at = 0;
    for (int32_t s = 0; s < f->site_count; s++)
        for (int32_t m = 0; m < g->members; m++) {
            place[s][m] = at;
            at += g->sites[m][f->call.layer * LGP_LORA_SITES + s].a.rows;
        }
}

const AdapterSite *lora_fixture_site(const LoraFixture *f, int32_t adapter, int32_t site) {
    return &f->sites[adapter][f->call.layer * LGP_LORA_SITES + site];
}

int32_t lora_fixture_adapter(const LoraFixture *f, const LgpLoraGroup *g, int32_t member) {
    for (int32_t a = 0; a < f->adapters; a++)
        if (g->sites[member] == f->packed[a])
            return a;
    return -1;
}
