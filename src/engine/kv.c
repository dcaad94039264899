/* Slots and pages: a sequence gets pages for every position it may have when it starts, so that a
 * running sequence never waits. */
#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "engine/internal.h"
#include "ir/step.h"

static int32_t pages_for(size_t positions) {
    return (int32_t)((positions + KV_PAGE_POSITIONS - 1) / KV_PAGE_POSITIONS);
}

void kv_init(Engine *e, uint64_t bytes_max) {
    uint64_t page_bytes = e->runner->kv_page_bytes ? e->runner->kv_page_bytes : 1;
    uint64_t total = bytes_max / page_bytes;
    e->kv.total_max = total > (1 << 24) ? 1 << 24 : (int32_t)total;
    e->pages_per_slot = pages_for((size_t)e->context);
}

void kv_clear(Engine *e) {
    lg_free(e->kv.free_ids);
    lg_free(e->page_table);
    lg_free(e->slot_used);
}

bool kv_fits(const Engine *e, size_t positions) {
    return pages_for(positions) <= e->kv.total_max;
}

static LgStatus grow_slots(Engine *e, LgError *err) {
    int32_t count = e->slot_count ? e->slot_count * 2 : 8;
    size_t old_cells = (size_t)e->slot_count * (size_t)e->pages_per_slot;
    size_t cells = (size_t)count * (size_t)e->pages_per_slot;
    int32_t *table = lg_realloc(e->page_table, cells * sizeof *table);
    if (!table)
        return lg_fail_memory(err);
    e->page_table = table;
    bool *used = lg_realloc(e->slot_used, (size_t)count * sizeof *used);
    if (!used)
        return lg_fail_memory(err);
    e->slot_used = used;
    for (size_t i = old_cells; i < cells; i++)
        table[i] = -1;
    for (int32_t i = e->slot_count; i < count; i++)
        used[i] = false;
    e->slot_count = count;
    return LG_OK;
}

/* Makes `more` new page ids. */
static LgStatus grow_pages(Engine *e, int32_t more, LgError *err) {
    int32_t total = e->kv.total + more;
    int32_t *ids = lg_realloc(e->kv.free_ids, (size_t)total * sizeof *ids);
    if (!ids)
        return lg_fail_memory(err);
    e->kv.free_ids = ids;
    LG_TRY(e->runner->ops->kv_reserve(e->runner, total, err));
    for (int32_t id = total - 1; id >= e->kv.total; id--)
        ids[e->kv.free_count++] = id;
    e->kv.total = total;
    return LG_OK;
}

LgStatus kv_acquire(Engine *e, Sequence *s, bool *acquired, LgError *err) {
    int32_t need = pages_for(s->count_max);
    *acquired = false;
    if (need > e->kv.free_count + (e->kv.total_max - e->kv.total))
        return LG_OK;
    int32_t slot = 0;
    while (slot < e->slot_count && e->slot_used[slot])
        slot++;
    if (slot == e->slot_count)
        LG_TRY(grow_slots(e, err));
    if (need > e->kv.free_count)
        LG_TRY(grow_pages(e, need - e->kv.free_count, err));
    int32_t *row = e->page_table + (size_t)slot * (size_t)e->pages_per_slot;
    for (int32_t i = 0; i < need; i++)
        row[i] = e->kv.free_ids[--e->kv.free_count];
    e->slot_used[slot] = true;
    s->slot = slot;
    s->page_count = need;
    *acquired = true;
    return LG_OK;
}

void kv_release(Engine *e, Sequence *s) {
    if (s->slot < 0)
        return;
    int32_t *row = e->page_table + (size_t)s->slot * (size_t)e->pages_per_slot;
    for (int32_t i = s->page_count - 1; i >= 0; i--) {
        e->kv.free_ids[e->kv.free_count++] = row[i];
        row[i] = -1;
    }
    assert(e->kv.free_count <= e->kv.total);
    e->slot_used[s->slot] = false;
    s->slot = -1;
    s->page_count = 0;
}
