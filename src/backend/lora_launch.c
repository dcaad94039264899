/* Launchers of adapter products: which kernels, in which order, cut into which tasks. What a row's
 * result is, is the kernels' part. */
#include <assert.h>

#include "backend/lora_kernels.h"

#define SHRINK_ROWS 12    /* rows of a shrink task */
#define SHRINK_RANKS 16   /* ranks of a shrink task */
#define EXPAND_ROWS 12    /* rows of an expand task: long runs of a few rows */
#define EXPAND_WORK 65536 /* multiply-adds of an expand task, about */
#define OWN_WORK                                                                                   \
    ((int64_t)8192) /* multiply-adds that a thread rather does itself than meet the others */

static LgStatus missing(LgError *err, const char *launcher, const char *module,
                        const char *kernel) {
    return lg_fail(err, LG_DEVICE, 0,
                   "%s: kernel %s of module %s is missing on this back end; nothing was launched",
                   launcher, kernel, module);
}

/* ---- dense ---- */

LgStatus lora_apply(const LoraKernels *k, const LoraDense *d, LgError *err) {
    if (!k->gemv_k)
        return missing(err, "lora_apply", "gemv", "dense_gemv_bf16");
    if (!k->gemm_k)
        return missing(err, "lora_apply", "gemm", "dense_gemm_bf16");
    if (!k->scaled_add_k)
        return missing(err, "lora_apply", "residual_add", "bf16_scaled_add");
    if (d->site->a.rows == 0 || d->rows == 0)
        return LG_OK;
    const bool one = d->rows == 1;
    LoraProductFn product = (LoraProductFn)(one            ? k->gemv_k
                                            : k->gemm_tc_k ? k->gemm_tc_k
                                                           : k->gemm_k);
    int32_t out = d->site->b.rows, rank = d->site->a.rows;
    LgpLoraProduct shrink = {.x = d->x,
                             .x_stride = d->x_stride,
                             .rows = d->rows,
                             .w = &d->site->a,
                             .to = rank,
                             .y = d->low,
                             .y_stride = rank,
                             .round_bf16 = d->round_bf16};
    product(&shrink);
    LgpLoraProduct expand = {.x = d->low,
                             .x_stride = rank,
                             .rows = d->rows,
                             .w = &d->site->b,
                             .to = out,
                             .scale = d->scale};
    if (!one && k->gemm_tc_acc_k) {
        expand.y = d->y;
        expand.y_stride = d->y_stride;
        expand.round_bf16 = d->round_bf16;
        ((LoraProductFn)k->gemm_tc_acc_k)(&expand);
        return LG_OK;
    }
    expand.y = d->delta;
    expand.y_stride = out;
    product(&expand);
    LgpLoraScaledAdd add = {.y = d->y,
                            .y_stride = d->y_stride,
                            .delta = d->delta,
                            .delta_stride = out,
                            .rows = d->rows,
                            .n = out,
                            .scale = d->scale,
                            .round_bf16 = d->round_bf16};
    ((LoraScaledAddFn)k->scaled_add_k)(&add);
    return LG_OK;
}

/* ---- routed ---- */

static const LgpLoraSite *site_of(const LgpLora *call, const LgpLoraRoute *route,
                                  const LgpLoraGroup *g, int32_t member, int32_t site) {
    return &g->sites[member][call->layer * route->site_count + call->sites[site]];
}

/* Where each site's and member's lows begin in a row of a group; the row's length is returned. */
static int32_t place_lows(const LgpLora *call, const LgpLoraRoute *route, const LgpLoraGroup *g,
                          int32_t place[LGP_LORA_SITES][LGP_LORA_SET]) {
    int32_t at = 0;
    for (int32_t s = 0; s < call->site_count; s++)
        for (int32_t m = 0; m < g->members; m++) {
            place[s][m] = at;
            at += site_of(call, route, g, m, s)->a.rows;
        }
    assert(at <= route->low_stride);
    return at;
}

/* Tasks in their one order: each thread walks over all of them and stops at those that it has
 * claimed. */
typedef struct Walk {
    const LoraLaunch *launch;
    int32_t next, index;
} Walk;

static Walk walk_begin(const LoraLaunch *l) {
    return (Walk){.launch = l, .next = l->claim ? l->claim(l->team) : 0};
}

static bool walk_mine(Walk *w) {
    if (w->launch->claim && w->index != w->next) {
        w->index++;
        return false;
    }
    w->index++;
    return true;
}

static void walk_done(Walk *w) {
    if (w->launch->claim)
        w->next = w->launch->claim(w->launch->team);
}

static void shrink_part(Walk *w, const LgpLoraShrink *whole) {
    int32_t rank = whole->to;
    for (int32_t z = 0; z < rank; z += SHRINK_RANKS) {
        for (int32_t r = whole->first; r < whole->end; r += SHRINK_ROWS) {
            if (!walk_mine(w))
                continue;
            LgpLoraShrink t = *whole;
            t.from = z;
            t.to = rank - z < SHRINK_RANKS ? rank : z + SHRINK_RANKS;
            t.first = r;
            t.end = whole->end - r < SHRINK_ROWS ? whole->end : r + SHRINK_ROWS;
            t.low = whole->low + (r - whole->first) * whole->route->low_stride;
            ((LoraShrinkFn)w->launch->kernels->bgmv_shrink_k)(&t);
            walk_done(w);
        }
    }
}

static void shrink_all(const LoraLaunch *l, const LgpLora *call, const LgpLoraRoute *route,
                       float *low) {
    Walk w = walk_begin(l);
    for (int32_t i = 0; i < route->group_count; i++) {
        const LgpLoraGroup *g = &route->groups[i];
        int32_t place[LGP_LORA_SITES][LGP_LORA_SET];
        place_lows(call, route, g, place);
        for (int32_t s = 0; s < call->site_count; s++)
            for (int32_t m = 0; m < g->members; m++) {
                LgpLoraShrink t = {.call = call,
                                   .route = route,
                                   .group = g,
                                   .site = s,
                                   .member = m,
                                   .first = g->first,
                                   .end = g->first + g->count,
                                   .to = site_of(call, route, g, m, s)->a.rows,
                                   .low = low + g->first * route->low_stride + place[s][m]};
                shrink_part(&w, &t);
            }
    }
}

/* One site of one group: rows times parts of panels. */
static void expand_site(Walk *w, const LgpLoraExpand *whole, int32_t ranks) {
    int32_t n = whole->call->n[whole->site], panels = (n + LGP_PANEL - 1) / LGP_PANEL;
    for (int32_t r = whole->first; r < whole->end; r += EXPAND_ROWS) {
        int32_t rows = whole->end - r < EXPAND_ROWS ? whole->end - r : EXPAND_ROWS;
        int32_t part = EXPAND_WORK / (LGP_PANEL * rows * (ranks + 8)) + 1;
        int32_t parts = (panels + part - 1) / part;
        for (int32_t i = 0; i < parts; i++) {
            if (!walk_mine(w))
                continue;
            LgpLoraExpand t = *whole;
            t.first = r;
            t.end = r + rows;
            t.from = (int32_t)((int64_t)panels * i / parts) * LGP_PANEL;
            t.to = (int32_t)((int64_t)panels * (i + 1) / parts) * LGP_PANEL;
            t.to = t.to < n ? t.to : n;
            t.low = whole->low + (r - whole->first) * whole->route->low_stride;
            ((LoraExpandFoldFn)w->launch->kernels->bgmv_expand_fold_k)(&t);
            walk_done(w);
        }
    }
}

static void expand_all(const LoraLaunch *l, const LgpLora *call, const LgpLoraRoute *route,
                       const float *low) {
    Walk w = walk_begin(l);
    for (int32_t i = 0; i < route->group_count; i++) {
        const LgpLoraGroup *g = &route->groups[i];
        int32_t place[LGP_LORA_SITES][LGP_LORA_SET];
        place_lows(call, route, g, place);
        for (int32_t s = 0; s < call->site_count; s++) {
            LgpLoraExpand t = {.call = call,
                               .route = route,
                               .group = g,
                               .site = s,
                               .first = g->first,
                               .end = g->first + g->count,
                               .low = low + g->first * route->low_stride};
            int32_t ranks = 0;
            for (int32_t m = 0; m < g->members; m++) {
                t.place[m] = place[s][m];
                ranks += site_of(call, route, g, m, s)->a.rows;
            }
            if (ranks > 0)
                expand_site(&w, &t, ranks);
        }
    }
}

void lora_apply_bgmv(const LoraLaunch *l, const LgpLora *call, const LgpLoraRoute *route) {
    int64_t ranks = 0; /* of all rows together */
    for (int32_t i = 0; i < route->group_count; i++) {
        int32_t place[LGP_LORA_SITES][LGP_LORA_SET];
        ranks +=
            (int64_t)place_lows(call, route, &route->groups[i], place) * route->groups[i].count;
    }
    if (ranks == 0)
        return;
    float *low = route->low;
    if (ranks * (call->x ? call->k : 1) <= OWN_WORK &&
        route->count * route->low_stride <= l->own_floats) {
        LoraLaunch alone = *l;
        alone.claim = NULL;
        low = l->own;
        shrink_all(&alone, call, route, low);
    } else {
        shrink_all(l, call, route, low);
        if (l->claim)
            l->barrier(l->team, l->thread);
    }
    expand_all(l, call, route, low);
    if (l->claim)
        l->barrier(l->team, l->thread);
}

/* ---- experts ---- */

LgStatus lora_apply_moe_grouped(const LoraKernels *k, const LoraMoe *t, LgError *err) {
    if (!k->moe_down_shrink_k)
        return missing(err, "lora_apply_moe_grouped", "moe_lora_grouped_down",
                       "moe_lora_grouped_shrink");
    if (!k->moe_down_expand_fold_k)
        return missing(err, "lora_apply_moe_grouped", "moe_lora_grouped_down",
                       "moe_lora_grouped_expand_fold");
    ((LoraMoeFn)k->moe_down_shrink_k)(t);
    ((LoraMoeFn)k->moe_down_expand_fold_k)(t);
    return LG_OK;
}

LgStatus lora_apply_moe_gather(const LoraKernels *k, const LoraMoe *t, LgError *err) {
    if (!k->moe_gather_shrink_k)
        return missing(err, "lora_apply_moe_gather", "moe_lora_gather_bgmv",
                       "moe_lora_gather_shrink");
    if (!k->moe_gather_expand_fold_k)
        return missing(err, "lora_apply_moe_gather", "moe_lora_gather_bgmv",
                       "moe_lora_gather_expand_fold");
    ((LoraMoeFn)k->moe_gather_shrink_k)(t);
    ((LoraMoeFn)k->moe_gather_expand_fold_k)(t);
    return LG_OK;
}
