/* The engine's own structures; for src/engine alone. */
#ifndef LG_ENGINE_INTERNAL_H
#define LG_ENGINE_INTERNAL_H

#include "base/hash.h"
#include "engine/engine.h"

/* A loaded adapter. named: while a name points to it; users: sequences that use it. Freed when
 * neither is left. */
_Static_assert(LG_ADAPTERS_MAX == ADAPTER_SET_MAX, "the public limit is the step's");

typedef struct AdapterObject {
    Adapter *adapter;
    int32_t slot; /* of the runner; -1: its numbers are on disk only */
    int32_t users;
    bool named, pinned;
    uint64_t used; /* the load or sequence that used it last, by the engine's count */
    char *name, *dir;
} AdapterObject;

/* KV pages: ids handed out from a free list; the runner owns the memory. */
typedef struct KvPages {
    int32_t *free_ids;
    int32_t free_count, total, total_max;
} KvPages;

typedef enum SequenceState { SEQUENCE_WAITING, SEQUENCE_RUNNING, SEQUENCE_FINISHED } SequenceState;

struct Sequence {
    Engine *engine;
    Sequence *next; /* of the engine's list, oldest first */
    SequenceState state;
    LgFinish finish;
    int32_t *ids;                     /* prompt, then new ones */
    size_t prompt_count, count, done; /* done: positions whose KV is written */
    size_t done_before;               /* the step under way */
    size_t count_max;
    AdapterObject *objects[ADAPTER_SET_MAX];
    AdapterSet set;
    bool stop_at_end;
    LgSampling sampling;
    int32_t slot; /* row of the page table; -1: none */
    int32_t page_count;
    Sha256 *digest;
    char digest_hex[65];
    char error[200]; /* why it failed; empty: it has not */
    double created_s, first_token_s;
    /* evaluation: logits of every position go to `seen` and nothing is sampled */
    LogitsSeen seen;
    void *seen_user;
};

struct Engine {
    Model model;
    Runner *runner;
    LgTiming timing;
    bool store_f32;
    int context, rows_max;
    AdapterObject **adapters; /* all objects, oldest first */
    size_t adapter_count, adapter_cap;
    uint64_t adapter_bytes_max, adapter_uses; /* memory for their numbers, 0: no limit; a count */
    Sequence *first;
    /* page table [slot_count, pages_per_slot]; free slots have slot_used false */
    KvPages kv;
    int32_t *page_table;
    bool *slot_used;
    int32_t slot_count, pages_per_slot;
    /* the step's batch, allocated once */
    int32_t *token, *slot, *pos, *ad, *last;
    Sequence **sample_of; /* [samples_max] whose logits sample i is */
    size_t *sample_pos;   /* its position */
    AdapterSet *sets;
    float *logits; /* [samples_max, vocab] */
    int32_t samples_max;
};

/* One more user, whose numbers are brought into memory where they are not. */
LgStatus adapter_object_acquire(Engine *e, AdapterObject *o, LgError *err);
void adapter_object_release(Engine *e, AdapterObject *o);
void adapters_close(Engine *e); /* all of them, whoever uses them */
AdapterObject *adapter_object_find(const Engine *e, const char *name);
LgStatus adapter_not_found(const Engine *e, const char *name,
                           LgError *err); /* says what is loaded */

/* kv.c: slots and pages of a sequence for all positions that it may ever have. */
void kv_init(Engine *e, uint64_t bytes_max);
void kv_clear(Engine *e);
bool kv_fits(const Engine *e, size_t positions);
LgStatus kv_acquire(Engine *e, Sequence *s, bool *acquired, LgError *err);
void kv_release(Engine *e, Sequence *s);

bool sampler_all_numbers(const float *logits, int32_t vocab); /* none infinite, none a NaN */
/* sampler.c: the next id from one row of logits; position makes the random number. */
int32_t sampler_pick(const LgSampling *sampling, const float *logits, int32_t vocab,
                     size_t position, LgStatus *status);

#endif
