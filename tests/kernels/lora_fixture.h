/* Random adapters, rows and routes for the checks of kernels/cpu/lora.h and of the launchers. */
#ifndef LG_KERNELS_LORA_FIXTURE_H
#define LG_KERNELS_LORA_FIXTURE_H

#include "backend/cpu/lora_cpu.h"
#include "harness.h"

#define LORA_ADAPTERS 5
#define LORA_LAYERS 2

typedef struct LoraFixture {
    int32_t rows, k, site_count, adapters, vocab;
    int32_t n[LGP_LORA_SITES];
    bool f32, lookup, dora; /* dora: adapter 0 is one, and is in no set of several */
    Regime regime;
    AdapterSite sites[LORA_ADAPTERS][LORA_LAYERS * LGP_LORA_SITES];
    LgpLoraSite packed[LORA_ADAPTERS][LORA_LAYERS * LGP_LORA_SITES];
    void *memory[LORA_ADAPTERS][LORA_LAYERS * LGP_LORA_SITES];
    float *gains[LORA_LAYERS * LGP_LORA_SITES]; /* adapter 0's c */
    const float *gain_table[LORA_LAYERS * LGP_LORA_SITES];
    Guarded x, y[LGP_LORA_SITES];
    float *y0[LGP_LORA_SITES];
    float *bias[LGP_LORA_SITES];
    LgpLora call;
    /* The route and its memory. */
    LgpLoraRoute route;
    LgpLoraGroup *groups;
    int32_t *row, *token;
    float *scale;
    const float *const **gain;
    Guarded low;
    int32_t (*sets)[LGP_LORA_SET];
    int32_t *set_count; /* [rows] members of each row */
} LoraFixture;

void lora_fixture_make(Check *c, LoraFixture *f);
void lora_fixture_free(LoraFixture *f);
void lora_fixture_reset(LoraFixture *f); /* y to the base results, low to NaN */
/* The route of rows [from, to) alone. */
void lora_fixture_route(LoraFixture *f, int32_t from, int32_t to);
/* Where each site's and member's lows begin in a row of a group. */
void lora_fixture_places(const LoraFixture *f, const LgpLoraGroup *g,
                         int32_t place[LGP_LORA_SITES][LGP_LORA_SET]);
const AdapterSite *lora_fixture_site(const LoraFixture *f, int32_t adapter, int32_t site);
/* The adapter of a group's member. */
int32_t lora_fixture_adapter(const LoraFixture *f, const LgpLoraGroup *g, int32_t member);

#endif
