/* Launchers of adapter products: which kernels, in which order, cut into which tasks. What a row's
 * result is, is the kernels' part. */
#include <assert.h>

#include "backend/cpu/lora_walk.h"

/* What a thread rather does itself than meet the others for. */
#define OWN_WORK ((int64_t)8192)

/* ---- dense ---- */

LgStatus lora_apply(const LoraKernels *k, const LoraDense *d, LgError *err) {
    if (!k->gemv_k)
        return lora_missing(err, "lora_apply", "gemv", "dense_gemv_bf16");
    if (!k->gemm_k)
        return lora_missing(err, "lora_apply", "gemm", "dense_gemm_bf16");
    if (!k->scaled_add_k)
        return lora_missing(err, "lora_apply", "residual_add", "bf16_scaled_add");
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
                             .bias = d->site->bias,
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

/* One member of one site of one group: rows times ranks. */
static void shrink_part(Walk *w, const LgpLoraShrink *whole) {
    const int32_t ranks = whole->to, k = whole->call->x ? whole->call->k : 1;
    for (int32_t r = whole->first; r < whole->end; r += TASK_ROWS) {
        int32_t rows = in_range(whole->end - r, 1, TASK_ROWS);
        int32_t part = in_range(w->task_work / ((int64_t)rows * k), 2, TASK_RANKS) / 2 * 2;
        if (w->dealt)
            part = in_range((ranks + w->launch->thread_count - 1) / w->launch->thread_count, 2,
                            TASK_RANKS);
        for (int32_t z = 0; z < ranks; z += part) {
            if (!walk_mine(w))
                continue;
            LgpLoraShrink t = *whole;
            t.from = z;
            t.to = in_range(z + part, 1, ranks);
            t.first = r;
            t.end = r + rows;
            t.low = whole->low + (r - whole->first) * whole->route->low_stride;
            ((LoraShrinkFn)w->launch->kernels->bgmv_shrink_k)(&t);
            walk_done(w);
        }
    }
}

static void shrink_all(const LgpLora *call, const LgpLoraRoute *route, float *low, Walk w) {
    for (int32_t i = 0; i < route->group_count; i++) {
        const LgpLoraGroup *g = &route->groups[i];
        int32_t place[LGP_LORA_SITES][LGP_LORA_SET] = {{0}};
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
    for (int32_t r = whole->first; r < whole->end; r += TASK_ROWS) {
        int32_t rows = in_range(whole->end - r, 1, TASK_ROWS);
        int32_t part =
            in_range(w->task_work / ((int64_t)LGP_PANEL * rows * (ranks + FOLD_WORK)), 1, panels);
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

/* ---- replaced weights ---- */

/* Outputs of all the group's rows, in parts of about the walk's task. */
static void replace_site(const LoraLaunch *l, Walk *w, const LgpLora *call,
                         const LgpLoraRoute *route, const LgpLoraGroup *g, int32_t site) {
    LgpLoraReplace t = {.call = call,
                        .route = route,
                        .whole = site_of(call, route, g, 0, site)->whole,
                        .site = site,
                        .first = g->first,
                        .end = g->first + g->count,
                        .scratch = l->scratch};
    int32_t n = call->n[site], panels = (n + LGP_PANEL - 1) / LGP_PANEL;
    int32_t part = in_range(w->task_work / ((int64_t)LGP_PANEL * g->count * call->k), 1, panels);
    int32_t parts = (panels + part - 1) / part;
    for (int32_t i = 0; i < parts; i++) {
        if (!walk_mine(w))
            continue;
        t.from = (int32_t)((int64_t)panels * i / parts) * LGP_PANEL;
        t.to = (int32_t)((int64_t)panels * (i + 1) / parts) * LGP_PANEL;
        t.to = t.to < n ? t.to : n;
        l->replace(&t);
        walk_done(w);
    }
}

static bool replaces(const LgpLora *call, const LgpLoraRoute *route) {
    for (int32_t i = 0; route->replaced && i < route->group_count; i++)
        for (int32_t s = 0; s < call->site_count; s++)
            if (site_of(call, route, &route->groups[i], 0, s)->whole)
                return true;
    return false;
}

static void expand_all(const LoraLaunch *l, const LgpLora *call, const LgpLoraRoute *route,
                       const float *low, int64_t work) {
    Walk w = walk_begin(l, work);
    for (int32_t i = 0; i < route->group_count; i++) {
        const LgpLoraGroup *g = &route->groups[i];
        int32_t place[LGP_LORA_SITES][LGP_LORA_SET] = {{0}};
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
            if (site_of(call, route, g, 0, s)->whole)
                replace_site(l, &w, call, route, g, s);
            if (ranks > 0)
                expand_site(&w, &t, ranks);
        }
    }
}

/* ---- by tiles of the base's results ---- */

/* A group's rows that lie in [row, row_end): entries [first, end) of the list, where its rows
 * rise. */
static int32_t first_from(const LgpLoraRoute *route, const LgpLoraGroup *g, int32_t row) {
    int32_t low = g->first, high = g->first + g->count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (route->row[middle] < row)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void ask_tile(const LgpLora *call, const LgpLoraRoute *route) {
    for (int32_t i = 0; i < route->group_count; i++) {
        const LgpLoraGroup *g = &route->groups[i];
        for (int32_t m = 0; m < g->members; m++) {
            const LgpLoraMatrix *b = &site_of(call, route, g, m, call->tile_site)->b;
            const int64_t panel = (int64_t)b->columns * LGP_PANEL * (b->f32 ? 4 : 2);
            const char *at = (const char *)b->data + call->from / LGP_PANEL * panel;
            int64_t bytes = (call->to - call->from + LGP_PANEL - 1) / LGP_PANEL * panel;
            for (int64_t k = 0; b->data && k < bytes; k += 64)
                __builtin_prefetch(at + k, 0, 2);
        }
    }
}

static void replace_tile(const LoraLaunch *l, const LgpLora *call, const LgpLoraRoute *route,
                         int32_t first, int32_t end, const LgpRows *whole) {
    LgpLoraReplace t = {.call = call,
                        .route = route,
                        .whole = whole,
                        .site = call->tile_site,
                        .first = first,
                        .end = end,
                        .from = call->from,
                        .to = call->to,
                        .scratch = l->scratch};
    l->replace(&t);
}

static void fold_tile(const LoraLaunch *l, const LgpLora *call, const LgpLoraRoute *route) {
    for (int32_t i = 0; i < route->group_count; i++) {
        const LgpLoraGroup *g = &route->groups[i];
        const int32_t first = first_from(route, g, call->row);
        const int32_t end = first_from(route, g, call->row_end);
        const LgpRows *whole = site_of(call, route, g, 0, call->tile_site)->whole;
        int32_t place[LGP_LORA_SITES][LGP_LORA_SET] = {{0}}, ranks = 0;
        LgpLoraExpand t = {.call = call,
                           .route = route,
                           .group = g,
                           .site = call->tile_site,
                           .from = call->from,
                           .to = call->to};
        if (first == end)
            continue;
        if (whole)
            replace_tile(l, call, route, first, end, whole);
        place_lows(call, route, g, place);
        for (int32_t m = 0; m < g->members; m++) {
            t.place[m] = place[t.site][m];
            ranks += site_of(call, route, g, m, t.site)->a.rows;
        }
        if (ranks == 0)
            continue;
        l->meet(l->team);
        for (int32_t r = first; r < end; r += TASK_ROWS) {
            t.first = r;
            t.end = r + in_range(end - r, 1, TASK_ROWS);
            t.low = route->low + r * route->low_stride;
            ((LoraExpandFoldFn)l->kernels->bgmv_expand_fold_k)(&t);
        }
    }
}

/* ---- a whole call ---- */

/* Ranks of all rows at all sites, and the multiply-adds of B's part. */
static int64_t count_work(const LgpLora *call, const LgpLoraRoute *route, int64_t *expand) {
    int64_t all = 0;
    *expand = 0;
    for (int32_t i = 0; i < route->group_count; i++) {
        const LgpLoraGroup *g = &route->groups[i];
        for (int32_t s = 0; s < call->site_count; s++) {
            int64_t ranks = 0;
            for (int32_t m = 0; m < g->members; m++)
                ranks += site_of(call, route, g, m, s)->a.rows;
            all += ranks * g->count;
            if (ranks > 0)
                *expand += (ranks + FOLD_WORK) * g->count * call->n[s];
        }
    }
    return all;
}

static void apply_whole(const LoraLaunch *l, const LgpLora *call, const LgpLoraRoute *route) {
    int64_t expand, shrink = count_work(call, route, &expand) * (call->x ? call->k : 1);
    if (shrink == 0 && !replaces(call, route))
        return;
    float *low = route->low;
    if (shrink == 0) {
        /* replaced weights alone */
    } else if (shrink <= OWN_WORK && route->count * route->low_stride <= l->own_floats) {
        LoraLaunch alone = *l;
        alone.claim = NULL;
        low = l->own;
        shrink_all(call, route, low, walk_begin(&alone, shrink));
    } else {
        shrink_all(call, route, low, walk_begin(l, shrink));
        if (l->claim)
            l->barrier(l->team, l->thread);
    }
    expand_all(l, call, route, low, expand);
    if (l->claim)
        l->barrier(l->team, l->thread);
}

void lora_apply_bgmv(const LoraLaunch *l, const LgpLora *call, const LgpLoraRoute *route) {
    switch (call->part) {
    case LGP_LORA_SHRINK:
        shrink_all(call, route, route->low, walk_deal(l));
        l->arrive(l->team);
        break;
    case LGP_LORA_ASK:
        ask_tile(call, route);
        break;
    case LGP_LORA_FOLD:
        fold_tile(l, call, route);
        break;
    default:
        apply_whole(l, call, route);
    }
}
