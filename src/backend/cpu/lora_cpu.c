/* Slots hold packed adapters; a route groups a step's rows by the adapters that they have. */
#include "backend/cpu/lora_cpu.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "backend/cpu/lora_replaced.h"
#include "backend/cpu/pack.h"
#include "base/float.h"
#include "base/mem.h"

#define OWN_FLOATS ((int64_t)8192) /* lows that a thread computes for itself */
#define GAINS_KEPT 8               /* request scales of one DoRA adapter that are kept */
#define ALIGN 64u

/* DoRA's c = m / n for one request scale. */
typedef struct Gains {
    float scale;
    uint64_t used; /* the step that used it last */
    float *memory;
    const float **by_site; /* [layer * site_count + site] */
} Gains;

typedef struct Slot {
    bool live;
    LgpLoraSite *sites;   /* [layer * site_count + site] */
    LgpLoraSite *experts; /* of all adapted sites of experts; NULL: there are none */
    void *packed;
    uint64_t bytes;
    int32_t rank_max;
    AdapterSite *dora; /* [layer * site_count + site], of which DoRA's numbers are used; NULL */
    float *dora_numbers;
    LoraReplaced replaced;
    Gains *gains;
    int32_t gain_count, gain_cap;
} Slot;

/* A route and the memory behind its pointers. */
typedef struct RouteMemory {
    LgpLoraRoute route;
    LgpLoraGroup *groups;
    int32_t *group_slots; /* [group][LGP_LORA_SET] */
    int32_t *row, *token, *group_of;
    float *scale;
    const float *const **gain;
    const void *const **replaced; /* [rows] */
    float *low;
    int64_t low_cap;
} RouteMemory;

typedef struct SiteShape {
    int32_t in, out; /* of one expert */
    bool lookup;
    int32_t experts; /* 0: one weight */
    int32_t slots;   /* experts that a row chooses */
} SiteShape;

struct LoraTables {
    LoraTablesOptions o;
    LoraKernels kernels;
    Buf log;
    int32_t site_count, layer_count;
    SiteShape *shapes; /* [site_count] */
    Slot *slots;
    int32_t slot_count;
    RouteMemory routes[2];
    int32_t *set_group; /* [set_cap] group of each of the step's sets, or -1 */
    int32_t set_cap;
    int32_t slots_max, experts_max; /* of sites of experts; 1, 0: there are none */
    LoraMoeWork moe;
    int64_t moe_cap; /* items */
    float *own;      /* [threads][OWN_FLOATS] */
    uint64_t step;
};

/* ---- kernels ---- */

LoraHandle lora_cpu_find(const void *registry, const char *module, const char *kernel) {
    const LgpKernelTable *t = registry;
    const struct {
        const char *module, *kernel;
        LoraHandle handle;
    } rows[] = {
        {"gemv", "dense_gemv_bf16", (LoraHandle)t->lora_gemv},
        {"gemm", "dense_gemm_bf16", (LoraHandle)t->lora_gemm},
        {"gemm_tc", "dense_gemm_tc_scaled_acc", (LoraHandle)t->lora_gemm_acc},
        {"residual_add", "bf16_scaled_add", (LoraHandle)t->lora_scaled_add},
        {"lora_bgmv", "lora_bgmv_shrink", (LoraHandle)t->lora_shrink},
        {"lora_bgmv", "lora_bgmv_expand_fold", (LoraHandle)t->lora_expand_fold},
        {"moe_lora_grouped_down", "moe_lora_grouped_shrink",
         (LoraHandle)t->lora_moe_grouped_shrink},
        {"moe_lora_grouped_down", "moe_lora_grouped_expand_fold",
         (LoraHandle)t->lora_moe_grouped_expand_fold},
        {"moe_lora_gather_bgmv", "moe_lora_gather_shrink", (LoraHandle)t->lora_moe_gather_shrink},
        {"moe_lora_gather_bgmv", "moe_lora_gather_expand_fold",
         (LoraHandle)t->lora_moe_gather_expand_fold},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].module, module) == 0 && strcmp(rows[i].kernel, kernel) == 0)
            return rows[i].handle;
    return NULL;
}

const LoraKernels *lora_tables_kernels(const LoraTables *t) {
    return &t->kernels;
}

LgStr lora_tables_log(const LoraTables *t) {
    return buf_view(&t->log);
}

/* ---- creating ---- */

static uint64_t axis_size(const LangProgram *p, const LangTensor *t, int axis) {
    uint64_t size = 1;
    for (int i = t->axis_start[axis]; i < t->axis_start[axis + 1]; i++)
        size *= p->dims[t->dims[i]].size;
    return size;
}

/* Results that one row of the step has at a site. */
static uint64_t row_elems(const LangProgram *p, const LangTensor *y) {
    uint64_t n = 1;
    for (int i = 0; i < y->rank; i++)
        if (!p->dims[y->dims[i]].runtime)
            n *= p->dims[y->dims[i]].size;
    return n;
}

static void site_shapes(LoraTables *t) {
    const LangProgram *p = t->o.program;
    t->slots_max = 1;
    for (int s = 0; s < p->site_count; s++) {
        const LangTensor *w = &p->tensors[p->sites[s].param];
        uint64_t rows = 1, columns = axis_size(p, w, w->axis_count - 1);
        bool experts = w->axis_count > 2;
        for (int a = experts ? 1 : 0; a < w->axis_count - 1; a++)
            rows *= axis_size(p, w, a);
        bool lookup = p->sites[s].lookup;
        SiteShape *shape = &t->shapes[s];
        *shape = (SiteShape){.in = (int32_t)(lookup ? rows : columns),
                             .out = (int32_t)(lookup ? columns : rows),
                             .lookup = lookup,
                             .slots = 1};
        if (!experts)
            continue;
        shape->experts = (int32_t)axis_size(p, w, 0);
        shape->slots = (int32_t)(row_elems(p, &p->tensors[p->sites[s].y]) / rows);
        t->slots_max = shape->slots > t->slots_max ? shape->slots : t->slots_max;
        t->experts_max = shape->experts > t->experts_max ? shape->experts : t->experts_max;
    }
}

static bool route_alloc(RouteMemory *m, size_t rows) {
    m->groups = lg_alloc_array(rows, sizeof *m->groups);
    m->group_slots = lg_alloc_array(rows * LGP_LORA_SET, sizeof *m->group_slots);
    m->row = lg_alloc_array(rows, sizeof *m->row);
    m->token = lg_alloc_array(rows, sizeof *m->token);
    m->group_of = lg_alloc_array(rows, sizeof *m->group_of);
    m->scale = lg_alloc_array(rows * LGP_LORA_SET, sizeof *m->scale);
    m->gain = lg_alloc_array(rows, sizeof *m->gain);
    m->replaced = lg_alloc_array(rows, sizeof *m->replaced);
    return m->groups && m->group_slots && m->row && m->token && m->group_of && m->scale &&
           m->gain && m->replaced;
}

static void route_free(RouteMemory *m) {
    lg_free(m->groups);
    lg_free(m->group_slots);
    lg_free(m->row);
    lg_free(m->token);
    lg_free(m->group_of);
    lg_free(m->scale);
    lg_free(m->gain);
    lg_free(m->replaced);
    lg_free_aligned(m->low);
}

LgStatus lora_tables_create(const LoraTablesOptions *o, LoraTables **out, LgError *err) {
    LoraTables *t = lg_calloc(1, sizeof *t);
    if (!t)
        return lg_fail_memory(err);
    buf_init(&t->log);
    t->o = *o;
    t->site_count = o->program->site_count;
    t->layer_count = o->program->layer_count > 0 ? o->program->layer_count : 1;
    size_t rows = (size_t)(o->rows_max > 0 ? o->rows_max : 1);
    t->shapes = lg_alloc_array((size_t)t->site_count, sizeof *t->shapes);
    t->own = lg_alloc_aligned((size_t)o->threads * (size_t)OWN_FLOATS * sizeof(float));
    bool whole =
        t->shapes && t->own && route_alloc(&t->routes[0], rows) && route_alloc(&t->routes[1], rows);
    LgStatus status = whole ? LG_OK : lg_fail_memory(err);
    if (status == LG_OK)
        status = lora_kernels_resolve(lora_cpu_find, o->level->kernels, o->level->name, &t->kernels,
                                      &t->log, err);
    if (status == LG_OK && t->log.failed)
        status = lg_fail_memory(err);
    if (status != LG_OK) {
        lora_tables_destroy(t);
        return status;
    }
    site_shapes(t);
    *out = t;
    return LG_OK;
}

static void gains_free(Gains *g) {
    lg_free(g->memory);
    lg_free(g->by_site);
    memset(g, 0, sizeof *g);
}

static void slot_free(Slot *s) {
    for (int32_t i = 0; i < s->gain_count; i++)
        gains_free(&s->gains[i]);
    lg_free(s->gains);
    lg_free(s->sites);
    lg_free(s->experts);
    lg_free(s->dora);
    lg_free(s->dora_numbers);
    lg_free_aligned(s->packed);
    lora_replaced_free(&s->replaced);
    memset(s, 0, sizeof *s);
}

void lora_tables_destroy(LoraTables *t) {
    if (!t)
        return;
    for (int32_t i = 0; i < t->slot_count; i++)
        slot_free(&t->slots[i]);
    lg_free(t->slots);
    route_free(&t->routes[0]);
    route_free(&t->routes[1]);
    lg_free(t->set_group);
    lg_free(t->shapes);
    lg_free(t->moe.items);
    lg_free(t->moe.spans);
    lg_free(t->moe.counts);
    lg_free_aligned(t->own);
    buf_clear(&t->log);
    lg_free(t);
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

static bool has_dora(const AdapterSite *site) {
    return site->rank > 0 && site->magnitude;
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
        floats += has_dora(&a->sites[i]) ? 4 * (size_t)t->shapes[i % t->site_count].out : 0;
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
        if (!has_dora(site))
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
        slot_free(&s);
        return status;
    }
    s.live = true;
    t->slots[at] = s;
    *slot = at;
    return LG_OK;
}

void lora_tables_remove(LoraTables *t, int32_t slot) {
    if (lora_tables_live(t, slot))
        slot_free(&t->slots[slot]);
}

bool lora_tables_live(const LoraTables *t, int32_t slot) {
    return slot >= 0 && slot < t->slot_count && t->slots[slot].live;
}

uint64_t lora_tables_bytes(const LoraTables *t, int32_t slot) {
    if (!lora_tables_live(t, slot))
        return 0;
    return t->slots[slot].bytes + t->slots[slot].replaced.bytes;
}

/* ---- DoRA ---- */

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
        if (has_dora(&slot->dora[i]))
            floats += (size_t)t->shapes[i % t->site_count].out;
    Gains g = {.scale = scale};
    g.memory = lg_alloc_array(floats, sizeof(float));
    g.by_site = lg_calloc((size_t)count, sizeof *g.by_site);
    if (!g.memory || !g.by_site) {
        gains_free(&g);
        return lg_fail_memory(err);
    }
    float *to = g.memory;
    for (int32_t i = 0; i < count; i++) {
        if (!has_dora(&slot->dora[i]))
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
        gains_free(&s->gains[oldest]);
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

/* The gains of (slot, scale), made where they are new. */
static LgStatus gains_get(LoraTables *t, int32_t slot, float scale, const float *const **out,
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

/* ---- routes ---- */

static int32_t find_group(const LoraTables *t, RouteMemory *m, const AdapterSet *set) {
    LgpLoraRoute *r = &m->route;
    for (int32_t g = 0; g < r->group_count; g++) {
        bool same = m->groups[g].members == set->count;
        for (int32_t u = 0; same && u < set->count; u++)
            same = m->group_slots[g * LGP_LORA_SET + u] == set->use[u].slot;
        if (same)
            return g;
    }
    LgpLoraGroup *group = &m->groups[r->group_count];
    *group = (LgpLoraGroup){.members = set->count};
    int64_t stride = 0;
    for (int32_t u = 0; u < set->count; u++) {
        const Slot *slot = &t->slots[set->use[u].slot];
        m->group_slots[r->group_count * LGP_LORA_SET + u] = set->use[u].slot;
        group->sites[u] = slot->sites;
        stride += (int64_t)slot->rank_max * LGP_LORA_SITES;
    }
    r->low_stride = stride > r->low_stride ? stride : r->low_stride;
    return r->group_count++;
}

/* The numbers of one row, at its place in the list. */
static LgStatus route_row(LoraTables *t, RouteMemory *m, const AdapterSet *set, int32_t at,
                          LgError *err) {
    m->gain[at] = NULL;
    for (int32_t u = 0; u < LGP_LORA_SET; u++)
        m->scale[at * LGP_LORA_SET + u] = u < set->count ? set->use[u].scale : 0.0f;
    for (int32_t u = 0; u < set->count; u++) {
        const Slot *s = &t->slots[set->use[u].slot];
        if (s->replaced.by_weight && (set->count > 1 || set->use[u].scale != 1.0f))
            return lg_fail(err, LG_BAD_INPUT, 0,
                           "an adapter that replaces tensors of the base is applied alone, at "
                           "scale 1; here it is one of %d, at %g",
                           set->count, (double)set->use[u].scale);
        if (s->dora && set->count > 1)
            return lg_fail(err, LG_BAD_INPUT, 0,
                           "a DoRA adapter is applied alone, not in a set of %d", set->count);
    }
    if (set->count == 1 && t->slots[set->use[0].slot].dora)
        return gains_get(t, set->use[0].slot, set->use[0].scale, &m->gain[at], err);
    return LG_OK;
}

/* Room to sort so many results by their experts. */
static LgStatus reserve_items(LoraTables *t, int64_t items, LgError *err) {
    if (items <= t->moe_cap)
        return LG_OK;
    lg_free(t->moe.items);
    lg_free(t->moe.spans);
    lg_free(t->moe.counts);
    t->moe_cap = 0;
    t->moe.items = lg_alloc_array((size_t)items, sizeof *t->moe.items);
    t->moe.spans = lg_alloc_array((size_t)items, sizeof *t->moe.spans);
    t->moe.counts = lg_alloc_array((size_t)t->experts_max + 1, sizeof *t->moe.counts);
    if (!t->moe.items || !t->moe.spans || !t->moe.counts)
        return lg_fail_memory(err);
    t->moe_cap = items;
    return LG_OK;
}

static const void *const *replaced_of(const LoraTables *t, const AdapterSet *set) {
    return (const void *const *)t->slots[set->use[0].slot].replaced.by_weight;
}

static LgStatus route_domain(LoraTables *t, const Step *step, int domain, LgError *err) {
    RouteMemory *m = &t->routes[domain];
    int32_t rows = domain == 0 ? step->rows : step->samples;
    m->route = (LgpLoraRoute){.site_count = t->site_count,
                              .groups = m->groups,
                              .row = m->row,
                              .token = m->token,
                              .scale = m->scale,
                              .gain = (const float *const *const *)m->gain};
    if (!step->ad || step->set_count == 0)
        return LG_OK;
    for (int32_t s = 0; s < step->set_count; s++)
        t->set_group[s] = -1;
    for (int32_t r = 0; r < rows; r++) { /* groups and their sizes */
        int32_t set = step->ad[domain == 0 ? r : step->last[r]];
        m->group_of[r] = -1;
        m->replaced[r] = NULL;
        if (step->sets[set].count == 0)
            continue;
        if (t->set_group[set] < 0)
            t->set_group[set] = find_group(t, m, &step->sets[set]);
        m->group_of[r] = t->set_group[set];
        m->groups[m->group_of[r]].count++;
        m->route.count++;
        m->replaced[r] = replaced_of(t, &step->sets[set]);
        if (m->replaced[r])
            m->route.replaced = (const void *const *const *)m->replaced;
    }
    for (int32_t g = 0, first = 0; g < m->route.group_count; g++) {
        m->groups[g].first = first;
        first += m->groups[g].count;
        m->groups[g].count = 0;
    }
    for (int32_t r = 0; r < rows; r++) {
        if (m->group_of[r] < 0)
            continue;
        LgpLoraGroup *group = &m->groups[m->group_of[r]];
        int32_t at = group->first + group->count++, source = domain == 0 ? r : step->last[r];
        m->row[at] = r;
        m->token[at] = step->token[source];
        LG_TRY(route_row(t, m, &step->sets[step->ad[source]], at, err));
    }
    bool experts = false;
    for (int32_t i = 0; i < step->set_count && !experts; i++)
        for (int32_t u = 0; u < step->sets[i].count; u++)
            experts |= t->slots[step->sets[i].use[u].slot].experts != NULL;
    int64_t items = (int64_t)m->route.count * (experts ? t->slots_max : 1);
    if (experts)
        LG_TRY(reserve_items(t, items, err));
    int64_t floats = items * m->route.low_stride;
    if (floats > m->low_cap) {
        lg_free_aligned(m->low);
        m->low_cap = 0;
        m->low = lg_alloc_aligned((size_t)floats * sizeof(float));
        if (!m->low)
            return lg_fail_memory(err);
        m->low_cap = floats;
    }
    m->route.low = m->low;
    return LG_OK;
}

LgStatus lora_route_build(LoraTables *t, const Step *step, int32_t lora_rows[2], LgError *err) {
    if (step->rows > t->o.rows_max || step->samples > t->o.rows_max)
        return lg_fail(err, LG_LIMIT, 0, "a step of %d rows and %d samples, the limit is %d",
                       step->rows, step->samples, t->o.rows_max);
    if (step->set_count > t->set_cap) {
        int32_t *grown = lg_realloc(t->set_group, (size_t)step->set_count * sizeof *grown);
        if (!grown)
            return lg_fail_memory(err);
        t->set_group = grown;
        t->set_cap = step->set_count;
    }
    t->step++;
    for (int d = 0; d < 2; d++) {
        LG_TRY(route_domain(t, step, d, err));
        lora_rows[d] = t->routes[d].route.count;
    }
    return LG_OK;
}

const LgpLoraRoute *lora_route(const LoraTables *t, int32_t domain) {
    return &t->routes[domain].route;
}

/* Where rows share adapters, their experts' numbers are worth meeting for. The handles are there:
 * installing an adapter of experts has seen to that. */
#define GROUPED_ROWS 2

static void call_experts(LoraTables *t, const LoraLaunch *launch, const LgpLora *call) {
    const LgpLoraRoute *route = &t->routes[call->domain].route;
    if (route->count > route->group_count * GROUPED_ROWS)
        (void)lora_apply_moe_grouped(launch, call, route, &t->moe, NULL);
    else
        (void)lora_apply_moe_gather(launch, call, route, NULL);
}

void lora_cpu_call(const LgpStep *step, int32_t thread, const LgpLora *call) {
    LoraTables *t = step->lora_tables;
    assert(thread < t->o.threads);
    LoraLaunch launch = {.kernels = &t->kernels,
                         .thread = thread,
                         .thread_count = step->thread_count,
                         .team = step->team,
                         .claim = step->claim,
                         .barrier = step->barrier,
                         .replace = t->o.level->kernels->lora_replace,
                         .scratch = step->scratch + thread * step->scratch_floats,
                         .own = t->own + thread * OWN_FLOATS,
                         .own_floats = OWN_FLOATS};
    if (call->choice)
        call_experts(t, &launch, call);
    else
        lora_apply_bgmv(&launch, call, &t->routes[call->domain].route);
}
