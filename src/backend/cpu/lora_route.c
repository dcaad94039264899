/* A route groups a step's rows by the adapters that they have. */
#include "backend/cpu/lora_tables.h"
#include "base/mem.h"

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

bool lora_routes_alloc(LoraTables *t, size_t rows) {
    return route_alloc(&t->routes[0], rows) && route_alloc(&t->routes[1], rows);
}

void lora_routes_free(LoraTables *t) {
    route_free(&t->routes[0]);
    route_free(&t->routes[1]);
    lg_free(t->set_group);
}

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
        return lora_gains_get(t, set->use[0].slot, set->use[0].scale, &m->gain[at], err);
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
