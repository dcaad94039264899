/* Slots: what an adapter says, packed in the kernels' order. */
#include <string.h>

#include "backend/cpu/lora_tables.h"
#include "backend/cpu/pack.h"
#include "base/float.h"
#include "base/mem.h"

#define ALIGN 64u

void lora_slot_free(Slot *s) {
    for (int32_t i = 0; i < s->gain_count; i++)
        lora_gains_free(&s->gains[i]);
    lg_free(s->gains);
    lg_free(s->sites);
    lg_free(s->experts);
    lg_free(s->dora);
    lg_free(s->dora_numbers);
    lg_free_aligned(s->packed);
    lora_replaced_free(&s->replaced);
    memset(s, 0, sizeof *s);
}

/* ---- packing ---- */

static uint64_t align_up(uint64_t n, uint64_t to) {
    return (n + to - 1) / to * to;
}

static uint64_t a_bytes(int32_t rank, int32_t in, bool lookup, bool f32) {
    uint64_t columns = lookup ? (uint64_t)in : align_up((uint64_t)in, 16);
    return align_up((uint64_t)rank * columns * (f32 ? 4 : 2), ALIGN);
}

static uint64_t bias_bytes(const AdapterSite *site, int32_t out) {
    return site->rank && site->b_bias ? align_up((uint64_t)out * sizeof(float), ALIGN) : 0;
}

uint64_t lora_site_bytes(int32_t rank, int32_t in, int32_t out, bool lookup, bool f32) {
    uint64_t b = align_up((uint64_t)out, LGP_PANEL) * (uint64_t)rank * (f32 ? 4 : 2);
    return rank ? a_bytes(rank, in, lookup, f32) + align_up(b, ALIGN) : 0;
}

static void store(void *dst, uint64_t index, float v, bool f32) {
    if (f32)
        ((float *)dst)[index] = v;
    else
        ((uint16_t *)dst)[index] = bf16_from_float(v);
}

/* Rows of A, columns filled up to whole groups of 16 (bf16: elements i and i + 8 of a group side by
 * side). */
static void pack_a_rows(const AdapterSite *site, int32_t in, bool f32, void *dst) {
    uint64_t stride = align_up((uint64_t)in, 16);
    for (int32_t z = 0; z < site->rank; z++)
        for (uint64_t k = 0; k < stride; k++) {
            uint64_t i = k % 16, place = f32 ? i : i < 8 ? 2 * i : 2 * (i - 8) + 1;
            float v = k < (uint64_t)in ? site->a[(uint64_t)z * (uint64_t)in + k] : 0.0f;
            store(dst, (uint64_t)z * stride + k - i + place, v, f32);
        }
}

static void pack_a_columns(const AdapterSite *site, int32_t in, bool f32, void *dst) {
    for (int32_t k = 0; k < in; k++)
        for (int32_t z = 0; z < site->rank; z++)
            store(dst, (uint64_t)k * (uint64_t)site->rank + (uint64_t)z,
                  site->a[(uint64_t)z * (uint64_t)in + (uint64_t)k], f32);
}

void lora_site_pack(const AdapterSite *site, int32_t in, int32_t out, bool lookup, bool f32,
                    void *dst, LgpLoraSite *to) {
    *to = (LgpLoraSite){.scale = site->scale};
    if (site->rank == 0)
        return;
    unsigned char *b = (unsigned char *)dst + a_bytes(site->rank, in, lookup, f32);
    if (lookup)
        pack_a_columns(site, in, f32, dst);
    else
        pack_a_rows(site, in, f32, dst);
    pack_f32_panels(site->b, (uint64_t)site->rank, f32 ? LGP_F32 : LGP_BF16, (uint64_t)out,
                    (uint64_t)site->rank, 0, pack_panel_count((uint64_t)out), b);
    to->a = (LgpLoraMatrix){.data = dst,
                            .rows = site->rank,
                            .columns = in,
                            .order = lookup ? LGP_LORA_COLUMNS : LGP_LORA_ROWS,
                            .f32 = f32};
    to->b = (LgpLoraMatrix){
        .data = b, .rows = out, .columns = site->rank, .order = LGP_LORA_PANELS, .f32 = f32};
}

/* ---- slots ---- */

static bool moe_kernels(const LoraTables *t) {
    const LoraKernels *k = &t->kernels;
    return k->moe_down_shrink_k && k->moe_down_expand_fold_k && k->moe_gather_shrink_k &&
           k->moe_gather_expand_fold_k;
}

static LgStatus check_adapter(const LoraTables *t, const AdapterData *a, LgError *err) {
    if (a->site_count != t->site_count || a->layer_count != t->layer_count)
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "adapter: made for %d sites in %d layers, this program has %d in %d",
                       a->site_count, a->layer_count, t->site_count, t->layer_count);
    if (a->store_f32 != t->o.store_f32)
        return lg_fail(err, LG_BAD_INPUT, 0, "adapter: rounded to %s, this program stores %s",
                       a->store_f32 ? "f32" : "bf16", t->o.store_f32 ? "f32" : "bf16");
    for (int i = 0; i < a->layer_count * a->site_count; i++) {
        int s = i % a->site_count;
        bool experts = t->shapes[s].experts > 0;
        LgStr name = t->o.program->tensors[t->o.program->sites[s].param].name;
        if (a->sites[i].rank == 0)
            continue;
        if (experts != (a->sites[i].experts != NULL))
            return lg_fail(err, LG_BAD_INPUT, 0,
                           "adapter: layer %d adapts %.*s as %s, in this program it is %s",
                           i / a->site_count, LG_STR_ARG(name), experts ? "one weight" : "experts",
                           experts ? "experts" : "one weight");
        if (experts && !moe_kernels(t))
            return lg_fail(err, LG_DEVICE, 0,
                           "adapter: layer %d adapts the experts' %.*s, and the modules "
                           "moe_lora_grouped_down and moe_lora_gather_bgmv are not whole here",
                           i / a->site_count, LG_STR_ARG(name));
    }
    return LG_OK;
}

static LgStatus free_slot(LoraTables *t, int32_t *slot, LgError *err) {
    int32_t at = 0;
    while (at < t->slot_count && t->slots[at].live)
        at++;
    if (at == t->slot_count) {
        int32_t count = t->slot_count ? t->slot_count * 2 : 8;
        Slot *grown = lg_realloc(t->slots, (size_t)count * sizeof *grown);
        if (!grown)
            return lg_fail_memory(err);
        memset(grown + t->slot_count, 0, (size_t)(count - t->slot_count) * sizeof *grown);
        t->slots = grown;
        t->slot_count = count;
    }
    *slot = at;
    return LG_OK;
}

/* A site's numbers, or those of its experts one by one. */
static int32_t part_count(const AdapterSite *site, const SiteShape *shape) {
    return site->rank == 0 ? 0 : site->experts ? shape->experts : 1;
}

static const AdapterSite *part_at(const AdapterSite *site, int32_t part) {
    return site->experts ? &site->experts[part] : site;
}

static uint64_t part_bytes(const AdapterSite *part, const SiteShape *shape, bool f32) {
    return lora_site_bytes(part->rank, shape->in, shape->out, shape->lookup, f32) +
           bias_bytes(part, shape->out);
}

/* What the adapter takes, and how many experts' sites it has. */
static uint64_t adapter_bytes(const LoraTables *t, const AdapterData *a, size_t *experts) {
    uint64_t bytes = 0;
    *experts = 0;
    for (int i = 0; i < a->layer_count * a->site_count; i++) {
        const SiteShape *shape = &t->shapes[i % a->site_count];
        int32_t parts = part_count(&a->sites[i], shape);
        for (int32_t x = 0; x < parts; x++)
            bytes += part_bytes(part_at(&a->sites[i], x), shape, a->store_f32);
        *experts += a->sites[i].experts ? (size_t)parts : 0;
    }
    return bytes;
}

static unsigned char *pack_part(const AdapterSite *part, const SiteShape *shape, bool f32,
                                unsigned char *to, LgpLoraSite *out) {
    uint64_t bias = bias_bytes(part, shape->out), all = part_bytes(part, shape, f32);
    lora_site_pack(part, shape->in, shape->out, shape->lookup, f32, to, out);
    if (bias) {
        float *own = (float *)(void *)(to + (all - bias));
        memset(own, 0, (size_t)bias);
        memcpy(own, part->b_bias, (size_t)shape->out * sizeof *own);
        out->bias = own;
    }
    return to + all;
}

static void pack_adapter(const LoraTables *t, const AdapterData *a, Slot *s) {
    unsigned char *to = s->packed;
    LgpLoraSite *experts = s->experts;
    for (int32_t i = 0; i < a->layer_count * a->site_count; i++) {
        const AdapterSite *site = &a->sites[i];
        const SiteShape *shape = &t->shapes[i % t->site_count];
        s->rank_max = site->rank > s->rank_max ? site->rank : s->rank_max;
        if (!site->experts || site->rank == 0) {
            to = pack_part(site, shape, a->store_f32, to, &s->sites[i]);
            continue;
        }
        s->sites[i] = (LgpLoraSite){.a = {.rows = site->rank}, .experts = experts};
        for (int32_t x = 0; x < shape->experts; x++)
            to = pack_part(&site->experts[x], shape, a->store_f32, to, experts++);
    }
}

static const float *copy_floats(float **to, const float *from, int32_t count) {
    float *copy = *to;
    memcpy(copy, from, (size_t)count * sizeof *copy);
    *to += count;
    return copy;
}

/* DoRA's numbers are read again for each scale. */
static LgStatus keep_dora(const LoraTables *t, const AdapterData *a, Slot *s, LgError *err) {
    int32_t count = a->layer_count * a->site_count;
    size_t floats = 0;
    for (int32_t i = 0; i < count; i++)
        floats += lora_has_dora(&a->sites[i]) ? 4 * (size_t)t->shapes[i % t->site_count].out : 0;
    if (floats == 0)
        return LG_OK;
    s->bytes += floats * sizeof(float);
    float *to = s->dora_numbers = lg_alloc_array(floats, sizeof *to);
    s->dora = lg_calloc((size_t)count, sizeof *s->dora);
    if (!to || !s->dora)
        return lg_fail_memory(err);
    for (int32_t i = 0; i < count; i++) {
        const AdapterSite *site = &a->sites[i];
        int32_t out = t->shapes[i % t->site_count].out;
        if (!lora_has_dora(site))
            continue;
        s->dora[i] = (AdapterSite){.rank = site->rank,
                                   .magnitude = copy_floats(&to, site->magnitude, out),
                                   .dora_w2 = copy_floats(&to, site->dora_w2, out),
                                   .dora_wba = copy_floats(&to, site->dora_wba, out),
                                   .dora_ba2 = copy_floats(&to, site->dora_ba2, out)};
    }
    return LG_OK;
}

LgStatus lora_tables_install(LoraTables *t, const AdapterData *adapter, int32_t *slot,
                             LgError *err) {
    int32_t at = 0, count = adapter->layer_count * adapter->site_count;
    size_t experts;
    LG_TRY(check_adapter(t, adapter, err));
    LG_TRY(free_slot(t, &at, err));
    Slot s = {.bytes = adapter_bytes(t, adapter, &experts)};
    s.sites = lg_calloc((size_t)count, sizeof *s.sites);
    s.experts = experts ? lg_calloc(experts, sizeof *s.experts) : NULL;
    s.packed = lg_alloc_large(s.bytes);
    LgStatus status = s.sites && s.packed && (!experts || s.experts) ? LG_OK : lg_fail_memory(err);
    if (status == LG_OK) {
        pack_adapter(t, adapter, &s);
        status = keep_dora(t, adapter, &s, err);
    }
    if (status == LG_OK)
        status = lora_replaced_build(t->o.plan, adapter, s.sites, &s.replaced, err);
    if (status != LG_OK) {
        lora_slot_free(&s);
        return status;
    }
    s.live = true;
    t->slots[at] = s;
    *slot = at;
    return LG_OK;
}

void lora_tables_remove(LoraTables *t, int32_t slot) {
    if (lora_tables_live(t, slot))
        lora_slot_free(&t->slots[slot]);
}

bool lora_tables_live(const LoraTables *t, int32_t slot) {
    return slot >= 0 && slot < t->slot_count && t->slots[slot].live;
}

uint64_t lora_tables_bytes(const LoraTables *t, int32_t slot) {
    if (!lora_tables_live(t, slot))
        return 0;
    return t->slots[slot].bytes + t->slots[slot].replaced.bytes;
}
