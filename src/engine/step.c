/* One step: rows of every running sequence (one for those that decode, a chunk for those whose
 * prompt is not done), and the next ids from their logits. Which rows meet in a step changes speed
 * alone: a row's bits depend on that row. */
#include <assert.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/float.h"
#include "base/mem.h"
#include "engine/internal.h"

typedef struct Batch {
    int32_t rows, samples, sets;
    bool prompt; /* any prompt row that is not a sequence's last known id */
} Batch;

static LgStatus admit(Engine *e, LgError *err) {
    for (Sequence *s = e->first; s; s = s->next) {
        if (s->state != SEQUENCE_WAITING)
            continue;
        bool acquired;
        LG_TRY(kv_acquire(e, s, &acquired, err));
        if (!acquired)
            return LG_OK; /* in age order: nobody overtakes who waits for memory */
        s->state = SEQUENCE_RUNNING;
    }
    return LG_OK;
}

/* In the same order too: that is the order of the sums. */
static bool same_set(const AdapterSet *a, const AdapterSet *b) {
    bool same = a->count == b->count;
    for (int32_t i = 0; same && i < a->count; i++)
        same = a->use[i].slot == b->use[i].slot &&
               float_bits(a->use[i].scale) == float_bits(b->use[i].scale);
    return same;
}

static int32_t set_of(Engine *e, Batch *b, const Sequence *s) {
    if (s->set.count == 0)
        return 0;
    for (int32_t i = 1; i < b->sets; i++)
        if (same_set(&e->sets[i], &s->set))
            return i;
    e->sets[b->sets] = s->set;
    return b->sets++;
}

/* Adds up to `room` rows of s; a sample for its last id, or for every row of an evaluation. */
static void add_rows(Engine *e, Batch *b, Sequence *s, int32_t room) {
    size_t left = s->count - s->done;
    if ((size_t)room < left)
        left = (size_t)room;
    if (s->seen && left > (size_t)(e->samples_max - b->samples))
        left = (size_t)(e->samples_max - b->samples);
    int32_t ad = left ? set_of(e, b, s) : 0;
    b->prompt |= s->done < s->prompt_count - 1 && left > 0;
    for (size_t i = 0; i < left; i++) {
        int32_t row = b->rows++;
        size_t pos = s->done + i;
        e->token[row] = s->ids[pos];
        e->slot[row] = s->slot;
        e->pos[row] = (int32_t)pos;
        e->ad[row] = ad;
        if (s->seen || pos + 1 == s->count) {
            e->sample_of[b->samples] = s;
            e->sample_pos[b->samples] = pos;
            e->last[b->samples++] = row;
        }
    }
    s->done += left;
}

/* A step that failed may be repeated: rows whose KV may be missing, or whose sample was not taken,
 * are rows of the next one, with the same bits. */
static void undo_rows(Engine *e) {
    for (Sequence *s = e->first; s; s = s->next)
        s->done = s->done_before;
}

static void undo_samples(Engine *e, int32_t from, int32_t samples) {
    for (int32_t i = from; i < samples; i++)
        if (e->sample_of[i]->done > e->sample_pos[i])
            e->sample_of[i]->done = e->sample_pos[i];
}

/* Decoding sequences first, so that a long prompt does not hold them up; then prompts by age. */
static Batch fill(Engine *e) {
    Batch b = {.sets = 1};
    for (Sequence *s = e->first; s; s = s->next)
        s->done_before = s->done;
    for (int pass = 0; pass < 2; pass++)
        for (Sequence *s = e->first; s; s = s->next) {
            bool decoding = s->count - s->done == 1;
            if (s->state != SEQUENCE_RUNNING || decoding != (pass == 0) || s->done == s->count)
                continue;
            if (b.rows == e->rows_max || b.samples == e->samples_max)
                return b;
            add_rows(e, &b, s, e->rows_max - b.rows);
        }
    return b;
}

static void finish(Engine *e, Sequence *s, LgFinish how) {
    s->state = SEQUENCE_FINISHED;
    s->finish = how;
    kv_release(e, s);
}

static bool is_end(const Engine *e, int32_t id) {
    for (int i = 0; i < e->model.end_count; i++)
        if (e->model.end_ids[i] == id)
            return true;
    return false;
}

static LgStatus take_sample(Engine *e, Sequence *s, size_t pos, const float *logits, LgError *err) {
    int32_t vocab = e->runner->vocab;
    if (!sampler_all_numbers(logits, vocab)) {
        snprintf(s->error, sizeof s->error,
                 "the logits of position %zu are infinite or no numbers; weights, or an adapter at "
                 "its scale, are too large for 32 bits",
                 pos);
        finish(e, s, LG_FINISH_FAILED);
        return LG_OK;
    }
    if (s->seen) {
        s->seen(s->seen_user, pos, logits, vocab);
        if (pos + 1 == s->count)
            finish(e, s, LG_FINISH_LENGTH);
        return LG_OK;
    }
    LgStatus status;
    int32_t id = sampler_pick(&s->sampling, logits, vocab, pos, &status);
    if (status != LG_OK)
        return lg_fail_memory(err);
    if (s->digest)
        sha256_update(s->digest, logits, (size_t)vocab * sizeof *logits);
    if (s->first_token_s < 0)
        s->first_token_s = clock_seconds() - s->created_s;
    if (s->stop_at_end && is_end(e, id)) {
        finish(e, s, LG_FINISH_STOP);
        return LG_OK;
    }
    s->ids[s->count++] = id;
    if (s->count == s->count_max)
        finish(e, s, LG_FINISH_LENGTH);
    return LG_OK;
}

static int32_t count_active(const Engine *e) {
    int32_t n = 0;
    for (const Sequence *s = e->first; s; s = s->next)
        n += s->state != SEQUENCE_FINISHED;
    return n;
}

static LgStatus take_samples(Engine *e, int32_t samples, LgError *err) {
    LgStatus status = LG_OK;
    for (int32_t i = 0; status == LG_OK && i < samples; i++) {
        status = take_sample(e, e->sample_of[i], e->sample_pos[i],
                             e->logits + (size_t)i * (size_t)e->runner->vocab, err);
        if (status != LG_OK)
            undo_samples(e, i, samples);
    }
    return status;
}

LgStatus engine_step(Engine *e, int32_t *active, LgError *err) {
    LG_TRY(admit(e, err));
    Batch b = fill(e);
    if (b.rows > 0) {
        double start = clock_seconds();
        Step step = {.rows = b.rows,
                     .token = e->token,
                     .slot = e->slot,
                     .pos = e->pos,
                     .ad = e->ad,
                     .set_count = b.sets,
                     .sets = e->sets,
                     .samples = b.samples,
                     .last = e->last,
                     .slot_count = e->slot_count,
                     .pages_per_slot = e->pages_per_slot,
                     .pages = e->page_table};
        LgStatus status = e->runner->ops->step(e->runner, &step, e->logits, err);
        if (status != LG_OK) {
            undo_rows(e);
            return status;
        }
        LG_TRY(take_samples(e, b.samples, err));
        double seconds = clock_seconds() - start;
        *(b.prompt ? &e->timing.prefill_s : &e->timing.decode_s) += seconds;
        *(b.prompt ? &e->timing.prefill_tokens : &e->timing.decode_tokens) += (uint64_t)b.rows;
    }
    if (active)
        *active = count_active(e);
    return LG_OK;
}

LgStatus engine_eval(Engine *e, const int32_t *ids, size_t count, const LgAdapterUse *adapters,
                     size_t adapter_count, LogitsSeen seen, void *user, LgError *err) {
    /* One new token is asked for so that the sequence runs; none is made, since an evaluation
     * samples nothing. */
    LgRequest r = {.ids = ids,
                   .id_count = count,
                   .adapters = adapters,
                   .adapter_count = adapter_count,
                   .max_tokens = count < (size_t)e->context ? 1 : 0,
                   .sampling = {.top_p = 1}};
    Sequence *s = NULL;
    LG_TRY(sequence_create(e, &r, &s, err));
    s->seen = seen;
    s->seen_user = user;
    s->state = SEQUENCE_WAITING;
    s->finish = LG_RUNNING;
    LgStatus status = LG_OK;
    while (status == LG_OK && s->state != SEQUENCE_FINISHED)
        status = engine_step(e, NULL, err);
    if (status == LG_OK && s->finish == LG_FINISH_FAILED)
        status = lg_fail(err, LG_BAD_INPUT, 0, "%s", s->error);
    sequence_destroy(s);
    return status;
}
