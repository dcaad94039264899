/* Launchers of adapters of experts. Like those of dense sites they say which kernels run in which
 * order, cut into which tasks; the kernels say what a row's result is. */
#include <string.h>

#include "backend/cpu/lora_walk.h"

/* One call of one of the two forms. */
typedef struct MoeLaunch {
    const LoraLaunch *launch;
    const LgpLora *call;
    const LgpLoraRoute *route;
    LoraMoeFn shrink, fold;
    const int32_t *items; /* NULL: unsorted */
} MoeLaunch;

static const LgpLoraSite *site_of(const MoeLaunch *m, int32_t group, int32_t member, int32_t site) {
    const LgpLora *c = m->call;
    return &m->route->groups[group].sites[member][c->layer * m->route->site_count + c->sites[site]];
}

/* Lows have room for the largest rank of a site's experts. */
static int32_t place_lows(const MoeLaunch *m, int32_t group, int32_t site,
                          int32_t place[LGP_LORA_SET]) {
    int32_t at = 0, ranks = 0;
    for (int32_t s = 0; s <= site; s++)
        for (int32_t u = 0; u < m->route->groups[group].members; u++) {
            int32_t rank = site_of(m, group, u, s)->a.rows;
            if (s == site) {
                place[u] = at;
                ranks += rank;
            }
            at += rank;
        }
    return ranks;
}

/* Multiply-adds of A's part, about; 0: no group adapts these sites. */
static int64_t count_work(const MoeLaunch *m, int64_t *fold) {
    int64_t ranks = 0;
    *fold = 0;
    for (int32_t g = 0; g < m->route->group_count; g++)
        for (int32_t s = 0; s < m->call->site_count; s++) {
            int32_t place[LGP_LORA_SET] = {0};
            int64_t n = place_lows(m, g, s, place);
            int64_t items = (int64_t)m->route->groups[g].count * m->call->slots;
            ranks += n * items;
            *fold += n > 0 ? (n + FOLD_WORK) * items * m->call->n[s] : 0;
        }
    return ranks * m->call->k;
}

/* Items of a span times ranks: a row of x is read for as many as there are. */
static void shrink_span(const MoeLaunch *m, Walk *w, const LoraSpan *span) {
    for (int32_t s = 0; s < m->call->site_count; s++) {
        LgpLoraMoe t = {.call = m->call,
                        .route = m->route,
                        .group = &m->route->groups[span->group],
                        .items = m->items,
                        .expert = span->expert,
                        .site = s};
        if (place_lows(m, span->group, s, t.place) == 0)
            continue;
        for (t.member = 0; t.member < t.group->members; t.member++) {
            t.to = site_of(m, span->group, t.member, s)->a.rows;
            for (int32_t i = span->first; t.to > 0 && i < span->end; i += TASK_ROWS) {
                if (!walk_mine(w))
                    continue;
                t.first = i;
                t.end = in_range(i + TASK_ROWS, i, span->end);
                t.low = m->route->low + i * m->route->low_stride;
                m->shrink(&t);
                walk_done(w);
            }
        }
    }
}

static void fold_span(const MoeLaunch *m, Walk *w, const LoraSpan *span) {
    for (int32_t s = 0; s < m->call->site_count; s++) {
        LgpLoraMoe t = {.call = m->call,
                        .route = m->route,
                        .group = &m->route->groups[span->group],
                        .items = m->items,
                        .expert = span->expert,
                        .site = s};
        int32_t ranks = place_lows(m, span->group, s, t.place);
        int32_t n = m->call->n[s], panels = (n + LGP_PANEL - 1) / LGP_PANEL;
        for (int32_t i = span->first; ranks > 0 && i < span->end; i += TASK_ROWS) {
            int32_t end = in_range(i + TASK_ROWS, i + 1, span->end);
            int32_t part = in_range(
                w->task_work / ((int64_t)LGP_PANEL * (end - i) * (ranks + FOLD_WORK)), 1, panels);
            int32_t parts = (panels + part - 1) / part;
            for (int32_t p = 0; p < parts; p++) {
                if (!walk_mine(w))
                    continue;
                t.first = i;
                t.end = end;
                t.from = (int32_t)((int64_t)panels * p / parts) * LGP_PANEL;
                t.to = (int32_t)((int64_t)panels * (p + 1) / parts) * LGP_PANEL;
                t.to = t.to < n ? t.to : n;
                t.low = m->route->low + i * m->route->low_stride;
                m->fold(&t);
                walk_done(w);
            }
        }
    }
}

/* Both parts over the spans. */
static void run_spans(const MoeLaunch *m, const LoraSpan *spans, int32_t count, int64_t shrink,
                      int64_t fold) {
    const LoraLaunch *l = m->launch;
    Walk w = walk_begin(l, shrink);
    for (int32_t i = 0; i < count; i++)
        shrink_span(m, &w, &spans[i]);
    if (l->claim)
        l->barrier(l->team, l->thread);
    w = walk_begin(l, fold);
    for (int32_t i = 0; i < count; i++)
        fold_span(m, &w, &spans[i]);
    if (l->claim)
        l->barrier(l->team, l->thread);
}

static int32_t choice_of(const MoeLaunch *m, int32_t item) {
    int32_t slots = m->call->slots;
    return m->call->choice[m->route->row[item / slots] * slots + item % slots];
}

/* Items of each group by rising expert, in their order; those of no expert are left out. */
static void sort_items(const MoeLaunch *m, LoraMoeWork *work) {
    int32_t at = 0, experts = m->call->experts;
    work->span_count = 0;
    for (int32_t g = 0; g < m->route->group_count; g++) {
        const LgpLoraGroup *group = &m->route->groups[g];
        int32_t first = group->first * m->call->slots, end = first + group->count * m->call->slots;
        int32_t *counts = work->counts;
        memset(counts, 0, ((size_t)experts + 1) * sizeof *counts);
        for (int32_t i = first; i < end; i++)
            if (choice_of(m, i) >= 0 && choice_of(m, i) < experts)
                counts[choice_of(m, i)]++;
        for (int32_t e = 0; e < experts; e++) {
            int32_t n = counts[e];
            counts[e] = at;
            if (n > 0)
                work->spans[work->span_count++] = (LoraSpan){g, e, at, at + n};
            at += n;
        }
        for (int32_t i = first; i < end; i++)
            if (choice_of(m, i) >= 0 && choice_of(m, i) < experts)
                work->items[counts[choice_of(m, i)]++] = i;
    }
}

LgStatus lora_apply_moe_grouped(const LoraLaunch *l, const LgpLora *call, const LgpLoraRoute *route,
                                LoraMoeWork *work, LgError *err) {
    if (!l->kernels->moe_down_shrink_k)
        return lora_missing(err, "lora_apply_moe_grouped", "moe_lora_grouped_down",
                            "moe_lora_grouped_shrink");
    if (!l->kernels->moe_down_expand_fold_k)
        return lora_missing(err, "lora_apply_moe_grouped", "moe_lora_grouped_down",
                            "moe_lora_grouped_expand_fold");
    MoeLaunch m = {.launch = l,
                   .call = call,
                   .route = route,
                   .shrink = (LoraMoeFn)l->kernels->moe_down_shrink_k,
                   .fold = (LoraMoeFn)l->kernels->moe_down_expand_fold_k,
                   .items = work->items};
    int64_t fold, shrink = count_work(&m, &fold);
    if (shrink == 0)
        return LG_OK;
    if (l->thread == 0)
        sort_items(&m, work);
    if (l->claim)
        l->barrier(l->team, l->thread);
    run_spans(&m, work->spans, work->span_count, shrink, fold);
    return LG_OK;
}

LgStatus lora_apply_moe_gather(const LoraLaunch *l, const LgpLora *call, const LgpLoraRoute *route,
                               LgError *err) {
    if (!l->kernels->moe_gather_shrink_k)
        return lora_missing(err, "lora_apply_moe_gather", "moe_lora_gather_bgmv",
                            "moe_lora_gather_shrink");
    if (!l->kernels->moe_gather_expand_fold_k)
        return lora_missing(err, "lora_apply_moe_gather", "moe_lora_gather_bgmv",
                            "moe_lora_gather_expand_fold");
    MoeLaunch m = {.launch = l,
                   .call = call,
                   .route = route,
                   .shrink = (LoraMoeFn)l->kernels->moe_gather_shrink_k,
                   .fold = (LoraMoeFn)l->kernels->moe_gather_expand_fold_k};
    int64_t fold, shrink = count_work(&m, &fold);
    if (shrink == 0)
        return LG_OK;
    Walk w = walk_begin(l, shrink);
    for (int32_t g = 0; g < route->group_count; g++) {
        LoraSpan span = {.group = g, .first = route->groups[g].first * call->slots};
        span.end = span.first + route->groups[g].count * call->slots;
        shrink_span(&m, &w, &span);
    }
    if (l->claim)
        l->barrier(l->team, l->thread);
    w = walk_begin(l, fold);
    for (int32_t g = 0; g < route->group_count; g++) {
        LoraSpan span = {.group = g, .first = route->groups[g].first * call->slots};
        span.end = span.first + route->groups[g].count * call->slots;
        fold_span(&m, &w, &span);
    }
    if (l->claim)
        l->barrier(l->team, l->thread);
    return LG_OK;
}
