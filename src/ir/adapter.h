/* What a loaded adapter does to a program: numbers by (layer, site), whatever file they came from.
 */
#ifndef LG_IR_ADAPTER_H
#define LG_IR_ADAPTER_H

#include <stdbool.h>
#include <stdint.h>

/* delta = scale * (B (A x) + b_bias), rounded as lora.md says. a, b hold f32 values that were
 * already rounded to the store type (bf16 unless the program stores f32).  rank 0: this site is not
 * adapted. */
typedef struct AdapterSite AdapterSite;
struct AdapterSite {
    int32_t rank;
    const float *a;      /* [rank, in] */
    const float *b;      /* [out, rank] */
    const float *b_bias; /* [out]; NULL: none */
    float scale;         /* alpha / r, or alpha / sqrt(r): what the adapter's config says */
    /* DoRA: m and the squared row norms needed to form n at any request scale s: y gains (m/n -
     * 1)(y0 - bias), and the delta is multiplied by m/n, n² = w2 + 2 s wba + s² ba2, all [out], f32
     * (products with the adapter's own scale already in). NULL: not DoRA. */
    const float *magnitude, *dora_w2, *dora_wba, *dora_ba2;
    /* A site whose weight is picked by a choice: what is done to each expert's, [experts], by ranks
     * and scales of their own; then the rank here is the largest of them, and a, b are NULL. NULL:
     * one weight for all rows, or rank 0. */
    const AdapterSite *experts;
};

/* A param that is another for the adapter's rows, whole or in some of its rows. Such an adapter is
 * alone in its set, at scale 1. */
typedef struct AdapterReplaced {
    int tensor;       /* the param */
    int layer;        /* 0 for a param outside the layers */
    uint64_t columns; /* elements a row: of the param's last stored axis */
    uint64_t row_count;
    const int32_t *rows; /* [row_count] rising; NULL: all rows of the param, in order */
    const float *data;   /* [row_count, columns] */
    bool bf16;           /* every element is a bf16 */
} AdapterReplaced;

typedef struct AdapterData {
    int site_count;  /* of the program */
    int layer_count; /* entries a site: 1 for a site outside the layers */
    const AdapterSite
        *sites; /* [layer * site_count + site]; sites outside the layers are at layer 0 */
    const AdapterReplaced *replaced;
    int replaced_count;
    bool store_f32;
    uint64_t bytes;
} AdapterData;

#define ADAPTER_SET_MAX 4
typedef struct AdapterUse {
    int32_t slot; /* from the runner's install */
    float scale;  /* of the request; 1 as trained */
} AdapterUse;
/* Applied in order, deltas summed in f32, one rounding. */
typedef struct AdapterSet {
    int32_t count;
    AdapterUse use[ADAPTER_SET_MAX];
} AdapterSet;

#endif
