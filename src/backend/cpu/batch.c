#include "backend/cpu/batch.h"

#include <string.h>

#include "base/mem.h"

#define SLOTS_MIN 256
#define PAGES_MIN 1024

static LgStatus reserve_pages(Batch *b, size_t count, LgError *err) {
    if (count <= b->page_cap)
        return LG_OK;
    unsigned char **grown = lg_alloc_array(count, sizeof *grown);
    if (!grown)
        return lg_fail_memory(err);
    lg_free(b->pages);
    b->pages = grown;
    b->page_cap = count;
    return LG_OK;
}

static LgStatus reserve_slots(Batch *b, size_t count, LgError *err) {
    if (count <= b->slot_cap)
        return LG_OK;
    int32_t *grown = lg_alloc_array(count, sizeof *grown);
    if (!grown)
        return lg_fail_memory(err);
    lg_free(b->slot_end);
    b->slot_end = grown;
    b->slot_cap = count;
    return LG_OK;
}

LgStatus batch_reserve(Batch *b, int32_t kv_pages, LgError *err) {
    size_t pages = (size_t)kv_pages * 2 > PAGES_MIN ? (size_t)kv_pages * 2 : PAGES_MIN;
    LG_TRY(reserve_pages(b, pages, err));
    LG_TRY(reserve_slots(b, SLOTS_MIN, err));
    if (kv_pages > b->page_slot_count) {
        int32_t *grown = lg_realloc(b->page_slot, (size_t)kv_pages * sizeof *grown);
        if (!grown)
            return lg_fail_memory(err);
        for (int32_t i = b->page_slot_count; i < kv_pages; i++)
            grown[i] = -1;
        b->page_slot = grown;
        b->page_slot_count = kv_pages;
    }
    return LG_OK;
}

void batch_clear(Batch *b) {
    lg_free(b->pages);
    lg_free(b->slot_end);
    lg_free(b->page_slot);
    *b = (Batch){0};
}

LgStatus batch_vocab(const LangProgram *p, int output, int32_t *tokens, int32_t *columns,
                     LgError *err) {
    uint64_t ids = 0;
    for (int i = 0; i < p->tensor_count; i++) {
        const LangTensor *t = &p->tensors[i];
        if (t->kind == LANG_INPUT && lg_str_eq_c(t->name, "token") && t->index_dim >= 0)
            ids = p->dims[t->index_dim].size;
    }
    const LangTensor *out = &p->tensors[output];
    uint64_t size = out->rank == 2 ? p->dims[out->dims[1]].size : 0;
    if (ids == 0 || ids > INT32_MAX)
        return lang_refuse(
            p, 1, 0, err,
            "cannot run: there is no `input token[T]: index V`. It is what a step's ids are.");
    if (size == 0 || size > INT32_MAX)
        return lang_refuse(p, out->line, 0, err,
                           "cannot run: the output has %d indexes. Two are expected, sampled rows "
                           "and the vocabulary.",
                           out->rank);
    *tokens = (int32_t)ids;
    *columns = (int32_t)size;
    return LG_OK;
}

static LgStatus check_counts(const Step *s, const BatchLimits *limits, LgError *err) {
    if (s->rows < 1 || s->rows > limits->rows_max)
        return lg_fail(err, LG_LIMIT, 0, "a step of %d rows: 1 to %d are possible", s->rows,
                       limits->rows_max);
    if (s->samples < 0 || s->samples > limits->rows_max)
        return lg_fail(err, LG_LIMIT, 0, "a step with %d sampled rows: 0 to %d are possible",
                       s->samples, limits->rows_max);
    if (s->slot_count < 1 || s->pages_per_slot < 1)
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "a step with %d slots of %d KV pages: at least one of each is needed",
                       s->slot_count, s->pages_per_slot);
    if (!s->token || !s->slot || !s->pos || !s->pages || (s->samples && !s->last))
        return lg_fail(err, LG_BAD_INPUT, 0, "a step without its token, slot, pos, pages or last");
    for (int32_t n = 0; n < s->samples; n++)
        if (s->last[n] < 0 || s->last[n] >= s->rows)
            return lg_fail(err, LG_BAD_INPUT, 0,
                           "sampled row %d is row %d, but the step has %d rows", n, s->last[n],
                           s->rows);
    return LG_OK;
}

static LgStatus check_sets(const Step *s, const BatchLimits *limits, LgError *err) {
    if (s->set_count < 0 || (s->set_count > 0 && !s->sets))
        return lg_fail(err, LG_BAD_INPUT, 0, "a step with %d adapter sets, but none given",
                       s->set_count);
    for (int32_t i = 0; i < s->set_count; i++) {
        const AdapterSet *set = &s->sets[i];
        if (set->count < 0 || set->count > (i == 0 ? 0 : ADAPTER_SET_MAX))
            return lg_fail(err, LG_BAD_INPUT, 0,
                           "adapter set %d has %d adapters; set 0 is empty, others have at most %d",
                           i, set->count, ADAPTER_SET_MAX);
        for (int32_t k = 0; k < set->count; k++)
            if (!limits->adapter_live(limits->user, set->use[k].slot))
                return lg_fail(err, LG_BAD_INPUT, 0,
                               "adapter set %d names adapter slot %d, which holds no adapter", i,
                               set->use[k].slot);
    }
    return LG_OK;
}

/* Slots, positions and order; notes how far each slot reaches. */
static LgStatus check_rows(Batch *b, const Step *s, const BatchLimits *limits, LgError *err) {
    memset(b->slot_end, 0, (size_t)s->slot_count * sizeof *b->slot_end);
    int64_t positions = (int64_t)s->pages_per_slot * KV_PAGE_POSITIONS;
    int32_t longest = 0;
    for (int32_t r = 0; r < s->rows; r++) {
        int32_t slot = s->slot[r], pos = s->pos[r];
        if (s->token[r] < 0 || s->token[r] >= limits->vocab)
            return lg_fail(err, LG_BAD_INPUT, 0,
                           "row %d has token %d; ids of this model are 0 to %d", r, s->token[r],
                           limits->vocab - 1);
        if (slot < 0 || slot >= s->slot_count)
            return lg_fail(err, LG_BAD_INPUT, 0, "row %d is of slot %d, but the step has %d slots",
                           r, slot, s->slot_count);
        if (pos < 0 || pos >= positions || pos == INT32_MAX)
            return lg_fail(err, LG_BAD_INPUT, 0,
                           "row %d is at position %d, but its slot has pages for %lld", r, pos,
                           (long long)positions);
        if (pos < b->slot_end[slot])
            return lg_fail(
                err, LG_BAD_INPUT, 0,
                "row %d is at position %d of slot %d behind position %d: rows of a slot rise", r,
                pos, slot, b->slot_end[slot] - 1);
        if (s->ad && (s->ad[r] < 0 || (s->ad[r] > 0 && s->ad[r] >= s->set_count)))
            return lg_fail(err, LG_BAD_INPUT, 0,
                           "row %d has adapter set %d, but the step has %d sets", r, s->ad[r],
                           s->set_count);
        b->slot_end[slot] = pos + 1;
        if (pos + 1 > longest)
            longest = pos + 1;
    }
    b->positions = longest;
    return LG_OK;
}

static LgStatus fill_pages(Batch *b, const Step *s, const KvMemory *kv, LgError *err) {
    for (int32_t slot = 0; slot < s->slot_count; slot++) {
        const int32_t *ids = s->pages + (size_t)slot * (size_t)s->pages_per_slot;
        unsigned char **out = b->pages + (size_t)slot * (size_t)s->pages_per_slot;
        int32_t used = (b->slot_end[slot] + KV_PAGE_POSITIONS - 1) / KV_PAGE_POSITIONS;
        for (int32_t i = 0; i < used; i++) {
            if (ids[i] < 0 || ids[i] >= kv->count)
                return lg_fail(err, LG_BAD_INPUT, 0,
                               "slot %d reaches position %d, but its page %d is %d; pages 0 to %d "
                               "are reserved",
                               slot, b->slot_end[slot] - 1, i, ids[i], kv->count - 1);
            out[i] = kv->pages[ids[i]];
        }
        memset(out + used, 0, (size_t)(s->pages_per_slot - used) * sizeof *out);
    }
    return LG_OK;
}

/* Two slots may read one page, but only one may write it. */
static LgStatus check_writers(Batch *b, const Step *s, LgError *err) {
    LgStatus status = LG_OK;
    int32_t done = 0;
    for (; done < s->rows && status == LG_OK; done++) {
        int32_t slot = s->slot[done];
        int32_t *writer = &b->page_slot[s->pages[(size_t)slot * (size_t)s->pages_per_slot +
                                                 (size_t)(s->pos[done] / KV_PAGE_POSITIONS)]];
        if (*writer >= 0 && *writer != slot)
            status = lg_fail(err, LG_BAD_INPUT, 0, "slots %d and %d both write to KV page %d",
                             *writer, slot, (int)(writer - b->page_slot));
        else
            *writer = slot;
    }
    for (int32_t r = 0; r < done; r++)
        b->page_slot[s->pages[(size_t)s->slot[r] * (size_t)s->pages_per_slot +
                              (size_t)(s->pos[r] / KV_PAGE_POSITIONS)]] = -1;
    return status;
}

LgStatus batch_prepare(Batch *b, const Step *step, const KvMemory *kv, const BatchLimits *limits,
                       LgError *err) {
    LG_TRY(check_counts(step, limits, err));
    LG_TRY(check_sets(step, limits, err));
    if ((size_t)step->pages_per_slot > SIZE_MAX / sizeof(void *) / (size_t)step->slot_count)
        return lg_fail_memory(err);
    LG_TRY(reserve_slots(b, (size_t)step->slot_count, err));
    LG_TRY(reserve_pages(b, (size_t)step->slot_count * (size_t)step->pages_per_slot, err));
    LG_TRY(check_rows(b, step, limits, err));
    LG_TRY(fill_pages(b, step, kv, err));
    return check_writers(b, step, err);
}
