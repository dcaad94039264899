/* Random adapters of sibling sites, on host and device, and what they do to a row in double. */
#ifndef LG_CUDA_CHECK_ADAPTERS_H
#define LG_CUDA_CHECK_ADAPTERS_H

#include "gpu.h"

/* One record with what it points to. rank 0 at all sites: its address of A is 0. */
typedef struct Adapter {
    int rank[LGC_SITES];    /* true */
    uint16_t *a;            /* stacked, padded */
    uint16_t *b[LGC_SITES]; /* padded */
    float scale[LGC_SITES];
    Dev dev_a, dev_b[LGC_SITES];
} Adapter;

typedef struct Sites {
    int k, count, n[LGC_SITES];
    int rank_max; /* of one site */
} Sites;

void adapter_draw(Gpu *g, const Sites *s, int regime, Adapter *out);
void adapter_free(Gpu *g, Adapter *a);
void adapter_record(const Adapter *a, const Sites *s, LgcRecord *out);
int adapter_ranks(const Adapter *a, int sites); /* padded, of the sites before `sites` */

/* Of one row x: low = sum_k x a in double with its magnitude, for padded rank z of a site. */
double low_ref(const Adapter *a, const Sites *s, const uint16_t *x, int site, int z,
               double *magnitude);
/* Of one row of lows (bf16): delta of output o. */
double delta_ref(const Adapter *a, const uint16_t *low, int site, int o, double *magnitude);

/* The same row alone, by lora_apply, in place on y (host) [n] of one site. rows: how often the row
 * is repeated, which takes other kernels. */
void apply_alone(Gpu *g, const LoraKernels *k, const Adapter *a, const Sites *s, int site,
                 const uint16_t *x, float scale, int rows, uint16_t *y);

#endif
