/* One step's batch: ragged rows of many sequences. What every program, compiled or interpreted, is
 * called with. */
#ifndef LG_IR_STEP_H
#define LG_IR_STEP_H

#include "ir/adapter.h"

#define KV_PAGE_POSITIONS 64

typedef struct Step {
    int32_t rows;         /* T */
    const int32_t *token; /* [rows] */
    const int32_t *slot;  /* [rows] which sequence */
    const int32_t *pos;   /* [rows] where in it; (slot, pos) is unique in a step; rows of one slot
                             come in rising order */
    const int32_t *ad;    /* [rows] into sets; 0 is none */
    int32_t set_count;    /* sets[0] is the empty set */
    const AdapterSet *sets;
    int32_t samples;     /* N */
    const int32_t *last; /* [samples] rows that want logits */
    int32_t slot_count, pages_per_slot;
    const int32_t
        *pages; /* [slot_count, pages_per_slot] page of (slot, pos / KV_PAGE_POSITIONS); -1: none */
} Step;

#endif
