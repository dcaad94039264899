/* DoRA: c = m / n of each output for the scales that requests ask for. */
#include <math.h>
#include <string.h>

#include "backend/cpu/lora_tables.h"
#include "base/float.h"
#include "base/mem.h"

#define GAINS_KEPT 8 /* request scales of one adapter that are kept */

void lora_gains_free(Gains *g) {
    lg_free(g->memory);
    lg_free(g->by_site);
    memset(g, 0, sizeof *g);
}

bool lora_has_dora(const AdapterSite *site) {
    return site->rank > 0 && site->magnitude;
}

/* c[o] = m / sqrt(w2 + 2 s wba + s² ba2). A weight row that the adapter makes zero has no
 * direction: c = 0 leaves its bias. */
static void gain_fill(const AdapterSite *site, int32_t out, float s, float *c) {
    for (int32_t o = 0; o < out; o++) {
        float square =
            site->dora_w2[o] + (2.0f * s * site->dora_wba[o] + s * s * site->dora_ba2[o]);
        c[o] = square > 0.0f ? site->magnitude[o] / sqrtf(square) : 0.0f;
    }
}

static LgStatus gains_make(const LoraTables *t, const Slot *slot, float scale, Gains *out,
                           LgError *err) {
    int32_t count = t->layer_count * t->site_count;
    size_t floats = 0;
    for (int32_t i = 0; i < count; i++)
        if (lora_has_dora(&slot->dora[i]))
            floats += (size_t)t->shapes[i % t->site_count].out;
    Gains g = {.scale = scale};
    g.memory = lg_alloc_array(floats, sizeof(float));
    g.by_site = lg_calloc((size_t)count, sizeof *g.by_site);
    if (!g.memory || !g.by_site) {
        lora_gains_free(&g);
        return lg_fail_memory(err);
    }
    float *to = g.memory;
    for (int32_t i = 0; i < count; i++) {
        if (!lora_has_dora(&slot->dora[i]))
            continue;
        gain_fill(&slot->dora[i], t->shapes[i % t->site_count].out, scale, to);
        g.by_site[i] = to;
        to += t->shapes[i % t->site_count].out;
    }
    *out = g;
    return LG_OK;
}

/* Room for one more. Scales that this step does not use go, the oldest first, until few are kept; a
 * step with more scales than that has them all. */
static LgStatus gains_reserve(const LoraTables *t, Slot *s, LgError *err) {
    while (s->gain_count >= GAINS_KEPT) {
        int32_t oldest = -1;
        for (int32_t i = 0; i < s->gain_count; i++)
            if (s->gains[i].used != t->step &&
                (oldest < 0 || s->gains[i].used < s->gains[oldest].used))
                oldest = i;
        if (oldest < 0)
            break;
        lora_gains_free(&s->gains[oldest]);
        s->gains[oldest] = s->gains[--s->gain_count];
    }
    if (s->gain_count < s->gain_cap)
        return LG_OK;
    int32_t cap = s->gain_cap ? s->gain_cap * 2 : GAINS_KEPT;
    Gains *grown = lg_realloc(s->gains, (size_t)cap * sizeof *grown);
    if (!grown)
        return lg_fail_memory(err);
    s->gains = grown;
    s->gain_cap = cap;
    return LG_OK;
}

LgStatus lora_gains_get(LoraTables *t, int32_t slot, float scale, const float *const **out,
                        LgError *err) {
    Slot *s = &t->slots[slot];
    int32_t at = 0;
    while (at < s->gain_count && float_bits(s->gains[at].scale) != float_bits(scale))
        at++;
    if (at == s->gain_count) {
        LG_TRY(gains_reserve(t, s, err));
        at = s->gain_count;
        LG_TRY(gains_make(t, s, scale, &s->gains[at], err));
        s->gain_count++;
    }
    s->gains[at].used = t->step;
    *out = s->gains[at].by_site;
    return LG_OK;
}
