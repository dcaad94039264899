/* What the parts of the CPU's adapter tables share: slots of packed adapters (lora_slots.c), the
 * gains of DoRA by scale (lora_gains.c), the routes of a step (lora_route.c). Internal to
 * src/backend/cpu. */
#ifndef LG_CPU_LORA_TABLES_H
#define LG_CPU_LORA_TABLES_H

#include "backend/cpu/lora_cpu.h"
#include "backend/cpu/lora_replaced.h"

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

void lora_slot_free(Slot *s);
void lora_gains_free(Gains *g);
bool lora_has_dora(const AdapterSite *site);
/* The gains of (slot, scale), made where they are new: [layer * site_count + site]. */
LgStatus lora_gains_get(LoraTables *t, int32_t slot, float scale, const float *const **out,
                        LgError *err);
bool lora_routes_alloc(LoraTables *t, size_t rows);
void lora_routes_free(LoraTables *t);

#endif
