/* Adapters of experts: the products of lora.h, keyed on (adapter, expert), so that rows of many
 * adapters and of many experts are in one call.
 *
 * A step's route lists tokens; a token has `slots` results, each of an expert of its own. They are
 * numbered token by token: item = entry of the route * slots + slot. Grouped kernels take items of
 * one group and one expert, which share A and B; gather kernels take items in any order and look
 * each one's expert up. Both compute what lora.h computes for a row alone, in the same order. A
 * pair that is not adapted leaves its rows as they are. */
#ifndef LG_CPU_LORA_MOE_H
#define LG_CPU_LORA_MOE_H

#include "kernels/cpu/lora.h"

#define LGP_LORA_MOE_ROWS 16 /* items that are gathered at once */

typedef struct LgpLoraMoe {
    const LgpLora *call;
    const LgpLoraRoute *route;   /* of the tokens */
    const LgpLoraGroup *group;   /* of all items */
    const int32_t *items;        /* NULL: item i is i */
    int32_t expert;              /* grouped: of all items */
    int32_t site, member;        /* of the call; of the group (shrink) */
    int32_t first, end;          /* places in items */
    int32_t from, to;            /* ranks (shrink), outputs (expand) */
    float *low;                  /* of place `first` */
    int32_t place[LGP_LORA_SET]; /* where in a row of low each member's begins */
} LgpLoraMoe;

/* A few items of one expert as a route of their own, with one site. */
typedef struct LgpLoraMoeRows {
    LgpLora call;
    LgpLoraRoute route;
    LgpLoraGroup group;
    LgpLoraSite sites[LGP_LORA_SET];
    int32_t row[LGP_LORA_MOE_ROWS]; /* of results */
    float scale[LGP_LORA_MOE_ROWS * LGP_LORA_SET];
    const float *const *gain[LGP_LORA_MOE_ROWS];
} LgpLoraMoeRows;

LGP_INLINE int32_t lgp_lora_moe_row(const LgpLoraMoe *t, int32_t item) {
    return t->route->row[item / t->call->slots] * t->call->slots + item % t->call->slots;
}

/* The sum of the members' ranks for that expert; 0: nothing is done to its rows. */
LGP_INLINE int32_t lgp_lora_moe_sites(const LgpLoraMoe *t, int32_t expert, LgpLoraMoeRows *r) {
    const LgpLora *c = t->call;
    int32_t ranks = 0;
    r->call = *c;
    r->call.layer = 0;
    r->call.sites[0] = 0;
    r->call.y[0] = c->y[t->site];
    r->call.y_stride[0] = c->y_stride[t->site];
    r->call.n[0] = c->n[t->site];
    r->call.bias[0] = NULL;
    r->group = (LgpLoraGroup){.members = t->group->members};
    for (int32_t m = 0; m < t->group->members; m++) {
        const LgpLoraSite *s =
            &t->group->sites[m][c->layer * t->route->site_count + c->sites[t->site]];
        r->sites[m] = s->experts && expert >= 0 && expert < c->experts ? s->experts[expert]
                                                                       : (LgpLoraSite){.scale = 0};
        r->group.sites[m] = &r->sites[m];
        ranks += r->sites[m].a.rows;
    }
    r->route = (LgpLoraRoute){.site_count = 1,
                              .row = r->row,
                              .scale = r->scale,
                              .gain = (const float *const *const *)r->gain,
                              .low_stride = t->route->low_stride};
    return ranks;
}

LGP_INLINE void lgp_lora_moe_rows(const LgpLoraMoe *t, int32_t first, int32_t count, int32_t share,
                                  LgpLoraMoeRows *r) {
    r->route.count = r->group.count = count;
    for (int32_t i = 0; i < count; i++) {
        int32_t item = t->items ? t->items[first + i] : first + i;
        r->row[i] = lgp_lora_moe_row(t, item) / share;
        r->gain[i] = NULL;
        memcpy(&r->scale[i * LGP_LORA_SET], &t->route->scale[item / t->call->slots * LGP_LORA_SET],
               LGP_LORA_SET * sizeof(float));
    }
}

LGP_INLINE void lgp_lora_moe_shrink_some(const LgpLoraMoe *t, int32_t first, int32_t count,
                                         int32_t expert) {
    LgpLoraMoeRows r;
    lgp_lora_moe_sites(t, expert, &r);
    int32_t rank = r.sites[t->member].a.rows;
    if (t->from >= rank)
        return;
    lgp_lora_moe_rows(t, first, count, t->call->share, &r);
    LgpLoraShrink s = {.call = &r.call,
                       .route = &r.route,
                       .group = &r.group,
                       .member = t->member,
                       .end = count,
                       .from = t->from,
                       .to = t->to < rank ? t->to : rank,
                       .low = t->low + (first - t->first) * t->route->low_stride +
                              t->place[t->member]};
    lgp_lora_shrink(&s);
}

LGP_INLINE void lgp_lora_moe_fold_some(const LgpLoraMoe *t, int32_t first, int32_t count,
                                       int32_t expert) {
    LgpLoraMoeRows r;
    if (lgp_lora_moe_sites(t, expert, &r) == 0)
        return;
    lgp_lora_moe_rows(t, first, count, 1, &r);
    LgpLoraExpand e = {.call = &r.call,
                       .route = &r.route,
                       .group = &r.group,
                       .end = count,
                       .from = t->from,
                       .to = t->to,
                       .low = t->low + (first - t->first) * t->route->low_stride};
    memcpy(e.place, t->place, sizeof e.place);
    lgp_lora_expand_fold(&e);
}

/* ---- what the table of handles points to ---- */

#define LGP_LORA_MOE(form, part, some)                                                             \
    LGP_NOINLINE void lgp_lora_moe_##form##_##part(const LgpLoraMoe *t) {                          \
        for (int32_t at = t->first; at < t->end;) {                                                \
            int32_t left = t->end - at, most = LGP_LORA_MOE_##form;                                \
            int32_t count = left < most ? left : most;                                             \
            some(t, at, count, LGP_LORA_MOE_EXPERT_##form);                                        \
            at += count;                                                                           \
        }                                                                                          \
    }
#define LGP_LORA_MOE_grouped LGP_LORA_MOE_ROWS
#define LGP_LORA_MOE_gather 1
#define LGP_LORA_MOE_EXPERT_grouped t->expert
#define LGP_LORA_MOE_EXPERT_gather                                                                 \
    t->call->choice[lgp_lora_moe_row(t, t->items ? t->items[at] : at)]
LGP_LORA_MOE(grouped, shrink, lgp_lora_moe_shrink_some)
LGP_LORA_MOE(grouped, expand_fold, lgp_lora_moe_fold_some)
LGP_LORA_MOE(gather, shrink, lgp_lora_moe_shrink_some)
LGP_LORA_MOE(gather, expand_fold, lgp_lora_moe_fold_some)
#undef LGP_LORA_MOE

#endif
