/* Launchers of adapter products: which kernels, in which order, cut into which tasks. What a row's
 * result is, is the kernels' part. */
#include <assert.h>

#include "backend/lora_walk.h"

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

static void shrink_all(const LoraLaunch *l, const LgpLora *call, const LgpLoraRoute *route,
                       float *low, int64_t work) {
    Walk w = work <= WORK_DEALT * l->thread_count ? walk_deal(l) : walk_begin(l, work);
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

static void expand_share(const LoraLaunch *l, const LgpLoraExpand *whole) {
    LgpLoraExpand t = *whole;
    lgp_share(t.call->n[t.site], l->thread, l->thread_count, &t.from, &t.to);
    for (int32_t r = whole->first; t.from < t.to && r < whole->end; r += TASK_ROWS) {
        t.first = r;
        t.end = r + in_range(whole->end - r, 1, TASK_ROWS);
        t.low = whole->low + (r - whole->first) * whole->route->low_stride;
        ((LoraExpandFoldFn)l->kernels->bgmv_expand_fold_k)(&t);
    }
}

/* ---- replaced weights ---- */

/* Outputs of all the group's rows: of a walk, in parts of about its tasks' work; else this thread's
 * share. */
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
    if (call->part == LGP_LORA_FOLD) {
        lgp_share(n, l->thread, l->thread_count, &t.from, &t.to);
        if (t.from < t.to)
            l->replace(&t);
        return;
    }
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

/* Asks for what this thread will fold, while the others end the base's tasks: up to what stays in
 * the second cache beside them. */
#define ASK_BYTES ((int64_t)128 << 10)

static void ask_share(const LoraLaunch *l, const LgpLora *call, const LgpLoraRoute *route) {
    int64_t left = ASK_BYTES;
    for (int32_t i = 0; i < route->group_count; i++)
        for (int32_t s = 0; s < call->site_count; s++)
            for (int32_t m = 0; m < route->groups[i].members; m++) {
                const LgpLoraMatrix *b = &site_of(call, route, &route->groups[i], m, s)->b;
                const int64_t panel = (int64_t)b->columns * LGP_PANEL * (b->f32 ? 4 : 2);
                int32_t from, to;
                lgp_share(call->n[s], l->thread, l->thread_count, &from, &to);
                const char *at = (const char *)b->data + from / LGP_PANEL * panel;
                int64_t bytes = (to - from + LGP_PANEL - 1) / LGP_PANEL * panel;
                if (!b->data || bytes > left)
                    continue;
                left -= bytes;
                for (int64_t k = 0; k < bytes; k += 64)
                    __builtin_prefetch(at + k, 0, 2);
            }
}

static void expand_all(const LoraLaunch *l, const LgpLora *call, const LgpLoraRoute *route,
                       const float *low, int64_t work) {
    Walk w = call->part == LGP_LORA_FOLD ? walk_deal(l) : walk_begin(l, work);
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
            if (ranks > 0 && call->part == LGP_LORA_FOLD)
                expand_share(l, &t);
            else if (ranks > 0)
                expand_site(&w, &t, ranks);
        }
    }
}

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

void lora_apply_bgmv(const LoraLaunch *l, const LgpLora *call, const LgpLoraRoute *route) {
    int64_t expand, shrink = count_work(call, route, &expand) * (call->x ? call->k : 1);
    if (shrink == 0 && (call->part == LGP_LORA_SHRINK || !replaces(call, route)))
        return;
    float *low = route->low;
    if (call->part == LGP_LORA_SHRINK) {
        LoraLaunch early = *l;
        early.base_tasks = call->base_tasks;
        early.claimed = &call->claimed;
        shrink_all(&early, call, route, low, shrink);
        ask_share(l, call, route);
        return;
    }
    if (call->part == LGP_LORA_FOLD) {
        expand_all(l, call, route, low, expand);
        return;
    }
    if (shrink == 0) {
        /* replaced weights alone */
    } else if (shrink <= OWN_WORK && route->count * route->low_stride <= l->own_floats) {
        LoraLaunch alone = *l;
        alone.claim = NULL;
        low = l->own;
        shrink_all(&alone, call, route, low, shrink);
    } else {
        shrink_all(l, call, route, low, shrink);
        if (l->claim)
            l->barrier(l->team, l->thread);
    }
    expand_all(l, call, route, low, expand);
    if (l->claim)
        l->barrier(l->team, l->thread);
}
