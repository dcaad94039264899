/* What a step asks for: its numbers checked, its axes sized, its storage grown. */
#include <math.h>

#include "base/mem.h"
#include "ir/eval_internal.h"

#define ELEMS_MAX ((uint64_t)1 << 38)
/* Of callers that keep no page table: bounds of the one that is kept for them. */
#define POSITIONS_MAX (1 << 22)
#define SLOTS_MAX (1 << 12)

static LgStatus check_range(const char *what, const int32_t *values, int32_t count, int64_t limit,
                            LgError *err) {
    if (!values && count > 0)
        return lg_fail(err, LG_BAD_INPUT, 0, "step: no %s for %d rows", what, count);
    for (int32_t i = 0; i < count; i++)
        if (values[i] < 0 || values[i] >= limit)
            return lg_fail(err, LG_BAD_INPUT, 0, "step: row %d has %s %d, it must be in [0, %lld)",
                           i, what, values[i], (long long)limit);
    return LG_OK;
}

static LgStatus check_sets(const Eval *e, const Step *step, LgError *err) {
    for (int32_t s = 0; s < step->set_count; s++) {
        const AdapterSet *set = &step->sets[s];
        if (set->count < 0 || set->count > ADAPTER_SET_MAX)
            return lg_fail(err, LG_BAD_INPUT, 0, "step: adapter set %d has %d adapters, at most %d",
                           s, set->count, ADAPTER_SET_MAX);
        for (int32_t u = 0; u < set->count; u++) {
            int32_t slot = set->use[u].slot;
            if (slot < 0 || slot >= e->adapter_cap || !e->adapters[slot])
                return lg_fail(err, LG_BAD_INPUT, 0,
                               "step: adapter set %d uses slot %d, where none is installed", s,
                               slot);
            const AdapterData *a = e->adapters[slot];
            if (a->replaced_count && (set->count > 1 || set->use[u].scale != 1))
                return lg_fail(err, LG_BAD_INPUT, 0,
                               "step: adapter set %d has an adapter that replaces tensors of the "
                               "base; such a one is alone, at scale 1",
                               s);
            for (int i = 0; set->count > 1 && i < a->site_count * a->layer_count; i++)
                if (a->sites[i].rank > 0 && a->sites[i].magnitude)
                    return lg_fail(err, LG_BAD_INPUT, 0,
                                   "step: adapter set %d mixes a DoRA adapter with others; DoRA is "
                                   "served alone",
                                   s);
        }
    }
    return LG_OK;
}

LgStatus eval_check_step(const Eval *e, const Step *step, LgError *err) {
    if (step->rows < 0 || step->samples < 0)
        return lg_fail(err, LG_BAD_INPUT, 0, "step: %d rows, %d samples", step->rows,
                       step->samples);
    if (e->in_token >= 0) {
        uint64_t vocab = e->p->dims[e->p->tensors[e->in_token].index_dim].size;
        LG_TRY(check_range("token", step->token, step->rows, (int64_t)vocab, err));
    }
    int64_t slots = step->pages ? step->slot_count : SLOTS_MAX;
    int64_t positions =
        step->pages ? (int64_t)step->pages_per_slot * KV_PAGE_POSITIONS : POSITIONS_MAX;
    if (e->in_slot >= 0)
        LG_TRY(check_range("slot", step->slot, step->rows, slots, err));
    if (e->in_pos >= 0)
        LG_TRY(check_range("pos", step->pos, step->rows, positions, err));
    if (e->in_last >= 0)
        LG_TRY(check_range("last", step->last, step->samples, step->rows, err));
    if (e->in_ad < 0 || !step->ad || step->set_count == 0)
        return LG_OK;
    LG_TRY(check_range("ad", step->ad, step->rows, step->set_count, err));
    return check_sets(e, step, err);
}

static int32_t max_of(const int32_t *values, int32_t count) {
    int32_t max = -1;
    for (int32_t i = 0; i < count; i++)
        max = values[i] > max ? values[i] : max;
    return max;
}

static void set_extents(Eval *e, const Step *step) {
    for (int i = 0; i < e->p->dim_count; i++)
        e->extents[i] = e->p->dims[i].runtime ? 0 : e->p->dims[i].size;
    if (e->dim_rows >= 0)
        e->extents[e->dim_rows] = (uint64_t)step->rows;
    if (e->dim_samples >= 0)
        e->extents[e->dim_samples] = (uint64_t)step->samples;
    if (e->dim_slots >= 0)
        e->extents[e->dim_slots] = (uint64_t)((int64_t)max_of(step->slot, step->rows) + 1);
    if (e->dim_positions >= 0)
        e->extents[e->dim_positions] = (uint64_t)((int64_t)max_of(step->pos, step->rows) + 1);
}

static void *grow(void *old, uint64_t elems, size_t elem_bytes) {
    if (elems > SIZE_MAX / elem_bytes)
        return NULL;
    return lg_realloc(old, (size_t)elems * elem_bytes);
}

/* Strides of this step, and memory for a value. New memory holds NaN, so that a read of what was
 * not written shows. */
static LgStatus size_tensor(Eval *e, int index, LgError *err) {
    const LangTensor *decl = &e->p->tensors[index];
    EvalTensor *t = &e->tensors[index];
    int first = t->is_state ? 2 : 0;
    t->elems = 1;
    for (int i = decl->rank - 1; i >= first; i--) {
        t->extent[i] = e->extents[decl->dims[i]];
        t->stride[i] = (int64_t)t->elems;
        if (t->extent[i] && t->elems > ELEMS_MAX / t->extent[i])
            return lg_fail(err, LG_LIMIT, 0, "step: %.*s would have more than %llu elements",
                           LG_STR_ARG(decl->name), (unsigned long long)ELEMS_MAX);
        t->elems *= t->extent[i];
    }
    if (t->is_state)
        t->stride[1] = (int64_t)t->elems;
    bool value = decl->kind == LANG_VALUE || decl->kind == LANG_OUTPUT;
    if (!value || t->elems <= t->cap)
        return LG_OK;
    bool ints = t->store == EVAL_STORE_INT;
    void *grown = ints ? grow(t->i, t->elems, sizeof *t->i) : grow(t->f, t->elems, sizeof *t->f);
    if (!grown)
        return lg_fail_memory(err);
    if (ints) {
        t->i = grown;
        for (uint64_t k = 0; k < t->elems; k++)
            t->i[k] = 0;
    } else {
        t->f = grown;
        for (uint64_t k = 0; k < t->elems; k++)
            t->f[k] = NAN;
    }
    t->cap = t->elems;
    return LG_OK;
}

static LgStatus grow_states(Eval *e, int32_t pages, LgError *err) {
    if (pages <= e->page_cap)
        return LG_OK;
    int32_t cap = pages > e->page_cap * 2 ? pages : e->page_cap * 2;
    for (int i = 0; i < e->p->tensor_count; i++) {
        EvalTensor *t = &e->tensors[i];
        uint64_t page = (uint64_t)KV_PAGE_POSITIONS * (t->is_state ? t->elems : 0);
        for (int layer = 0; t->is_state && layer < (t->in_layer ? e->layers : 1); layer++) {
            float *grown = grow(t->pages[layer], page * (uint64_t)cap, sizeof *grown);
            if (!grown)
                return lg_fail_memory(err);
            t->pages[layer] = grown;
            for (uint64_t k = page * (uint64_t)e->page_cap; k < page * (uint64_t)cap; k++)
                grown[k] = NAN;
        }
    }
    e->page_cap = cap;
    return LG_OK;
}

/* Pages of the caller: those that a row may read must be there. */
static LgStatus take_pages(Eval *e, const Step *step, LgError *err) {
    e->pages = step->pages;
    e->pages_per_slot = step->pages_per_slot;
    int32_t top = -1;
    for (int32_t r = 0; r < step->rows; r++) {
        const int32_t *table = step->pages + (int64_t)step->slot[r] * step->pages_per_slot;
        for (int32_t k = 0; k <= step->pos[r] / KV_PAGE_POSITIONS; k++) {
            if (table[k] < 0)
                return lg_fail(
                    err, LG_BAD_INPUT, 0,
                    "step: row %d is at position %d of slot %d, whose page %d is missing", r,
                    step->pos[r], step->slot[r], k);
            top = table[k] > top ? table[k] : top;
        }
    }
    return grow_states(e, top + 1, err);
}

/* Pages of its own, for callers that keep none: the next free one wherever a slot grows. */
static LgStatus make_pages(Eval *e, const Step *step, LgError *err) {
    int32_t slots = max_of(step->slot, step->rows) + 1;
    int32_t per_slot = max_of(step->pos, step->rows) / KV_PAGE_POSITIONS + 1;
    slots = slots > e->own_slots ? slots : e->own_slots;
    per_slot = per_slot > e->own_pages_per_slot ? per_slot : e->own_pages_per_slot;
    if (slots > e->own_slots || per_slot > e->own_pages_per_slot) {
        int32_t *table = lg_alloc_array((size_t)slots * (size_t)per_slot, sizeof *table);
        if (!table)
            return lg_fail_memory(err);
        for (int32_t s = 0; s < slots; s++)
            for (int32_t k = 0; k < per_slot; k++)
                table[s * per_slot + k] = s < e->own_slots && k < e->own_pages_per_slot
                                              ? e->own_pages[s * e->own_pages_per_slot + k]
                                              : -1;
        lg_free(e->own_pages);
        e->own_pages = table;
        e->own_slots = slots;
        e->own_pages_per_slot = per_slot;
    }
    for (int32_t r = 0; r < step->rows; r++) {
        int32_t *table = e->own_pages + step->slot[r] * e->own_pages_per_slot;
        for (int32_t k = 0; k <= step->pos[r] / KV_PAGE_POSITIONS; k++)
            if (table[k] < 0)
                table[k] = e->own_used++;
    }
    e->pages = e->own_pages;
    e->pages_per_slot = e->own_pages_per_slot;
    return grow_states(e, e->own_used, err);
}

LgStatus eval_make_room(Eval *e, const Step *step, LgError *err) {
    set_extents(e, step);
    for (int i = 0; i < e->p->tensor_count; i++)
        if (e->tensors[i].used)
            LG_TRY(size_tensor(e, i, err));
    const int inputs[] = {e->in_token, e->in_slot, e->in_pos, e->in_last, e->in_ad};
    const int32_t *const values[] = {step->token, step->slot, step->pos, step->last, step->ad};
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++)
        if (inputs[i] >= 0)
            e->tensors[inputs[i]].input = values[i];
    if (e->in_slot < 0 || e->in_pos < 0 || step->rows == 0)
        return LG_OK;
    return step->pages ? take_pages(e, step, err) : make_pages(e, step, err);
}

LgStatus eval_reserve(Eval *e, int32_t pages, LgError *err) {
    const Step none = {0};
    set_extents(e, &none);
    for (int i = 0; i < e->p->tensor_count; i++)
        if (e->tensors[i].is_state)
            LG_TRY(size_tensor(e, i, err));
    return grow_states(e, pages, err);
}

uint64_t eval_page_bytes(const Eval *e) {
    uint64_t bytes = 0;
    for (int i = 0; i < e->p->tensor_count; i++) {
        const LangTensor *decl = &e->p->tensors[i];
        uint64_t elems = KV_PAGE_POSITIONS;
        for (int k = 2; decl->kind == LANG_STATE && k < decl->rank; k++)
            elems *= e->p->dims[decl->dims[k]].size;
        if (decl->kind == LANG_STATE)
            bytes += elems * sizeof(float) * (uint64_t)(decl->in_layer ? e->layers : 1);
    }
    return bytes;
}
