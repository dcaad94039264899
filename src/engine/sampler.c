/* The next id from a row of logits. Candidates are kept in (logit falling, id rising) order, so
 * that nothing depends on the sort. */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/rng.h"
#include "engine/internal.h"

typedef struct Candidate {
    float logit, weight;
    int32_t id;
} Candidate;

static int32_t argmax(const float *logits, int32_t vocab) {
    int32_t best = 0;
    for (int32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

bool sampler_all_numbers(const float *logits, int32_t vocab) {
    float bad = 0; /* x - x is 0 for a number, NaN for an infinity or a NaN */
    for (int32_t i = 0; i < vocab; i++)
        bad += logits[i] - logits[i];
    return bad == 0;
}

static int by_logit(const void *a, const void *b) {
    const Candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit < y->logit ? 1 : -1;
    return x->id < y->id ? -1 : 1;
}

/* Keeps a prefix of the sorted candidates: top_k, then top_p and min_p on the tempered
 * distribution; returns its length and total weight. */
static int32_t keep_prefix(const LgSampling *s, Candidate *c, int32_t count, double *total) {
    if (s->top_k > 0 && s->top_k < count)
        count = s->top_k;
    double sum = 0;
    for (int32_t i = 0; i < count; i++) {
        c[i].weight = expf((c[i].logit - c[0].logit) / s->temperature);
        sum += (double)c[i].weight;
    }
    double kept = 0;
    int32_t n = 0;
    while (n < count && (n == 0 || (kept < (double)s->top_p * sum && c[n].weight >= s->min_p)))
        kept += (double)c[n++].weight;
    *total = kept;
    return n;
}

int32_t sampler_pick(const LgSampling *s, const float *logits, int32_t vocab, size_t position,
                     LgStatus *status) {
    *status = LG_OK;
    if (s->temperature <= 0)
        return argmax(logits, vocab);
    Candidate *c = lg_alloc_array((size_t)vocab, sizeof *c);
    if (!c) {
        *status = LG_NO_MEMORY;
        return 0;
    }
    for (int32_t i = 0; i < vocab; i++)
        c[i] = (Candidate){.logit = logits[i], .id = i};
    qsort(c, (size_t)vocab, sizeof *c, by_logit);
    double total;
    int32_t n = keep_prefix(s, c, vocab, &total);
    double at = (double)rng_unit(s->seed, position) * total;
    int32_t pick = 0;
    while (pick < n - 1 && at >= (double)c[pick].weight)
        at -= (double)c[pick++].weight;
    int32_t id = c[pick].id;
    lg_free(c);
    return id;
}
