/* A step as the engine says it, checked and turned into what a program reads. Every mistake in a
 * step is an error here, since a program checks nothing. */
#ifndef LG_CPU_BATCH_H
#define LG_CPU_BATCH_H

#include "backend/cpu/kv.h"
#include "ir/step.h"
#include "lang/lang.h"

typedef struct BatchLimits {
    int32_t rows_max;
    int32_t vocab; /* token ids are below it */
    bool (*adapter_live)(const void *user, int32_t slot);
    const void *user;
} BatchLimits;

typedef struct Batch {
    unsigned char **pages; /* [slot_count, pages_per_slot]; NULL where the step reads nothing */
    size_t page_cap;
    int32_t *slot_end; /* [slot_count] work: positions that the step reaches */
    size_t slot_cap;
    int32_t *page_slot; /* [kv pages] work: the slot that writes a page, -1 between checks */
    int32_t page_slot_count;
    int32_t positions; /* of the longest sequence */
} Batch;

/* Room for kv_pages pages, so that steps over them need no allocation unless slots share many. */
LgStatus batch_reserve(Batch *b, int32_t kv_pages, LgError *err);
void batch_clear(Batch *b);

/* How many token ids a program knows, and how many columns its output has. Errors: LG_BAD_INPUT, as
 * a refusal of the source. */
LgStatus batch_vocab(const LangProgram *p, int output, int32_t *tokens, int32_t *columns,
                     LgError *err);

/* Errors: LG_BAD_INPUT or LG_LIMIT, naming row or slot, what was found and what is possible. */
LgStatus batch_prepare(Batch *b, const Step *step, const KvMemory *kv, const BatchLimits *limits,
                       LgError *err);

#endif
