#include "backend/cpu/kv.h"

#include <string.h>

#include "base/mem.h"

#define CHUNK_PAGES_MIN 8 /* memory that nothing touches costs nothing: a chunk may be generous */

static bool grow_list(unsigned char ***list, int32_t *cap, int32_t needed) {
    if (needed <= *cap)
        return true;
    int32_t bigger = needed < INT32_MAX / 2 ? needed * 2 : INT32_MAX;
    unsigned char **grown = lg_realloc(*list, (size_t)bigger * sizeof **list);
    if (!grown)
        return false;
    *list = grown;
    *cap = bigger;
    return true;
}

LgStatus kv_memory_reserve(KvMemory *kv, int32_t pages, LgError *err) {
    if (pages <= kv->count)
        return LG_OK;
    int32_t more = pages - kv->count;
    if (more < CHUNK_PAGES_MIN)
        more = CHUNK_PAGES_MIN;
    if (kv->page_bytes && (uint64_t)more > (SIZE_MAX / 2) / kv->page_bytes)
        return lg_fail(err, LG_LIMIT, 0,
                       "%d KV pages of %llu bytes are more than this machine can address", pages,
                       (unsigned long long)kv->page_bytes);
    if (more > INT32_MAX - kv->count)
        more = INT32_MAX - kv->count;
    size_t bytes = (size_t)more * (size_t)kv->page_bytes;
    if (!grow_list(&kv->pages, &kv->cap, kv->count + more) ||
        !grow_list(&kv->chunks, &kv->chunk_cap, kv->chunk_count + 1))
        return lg_fail_memory(err);
    unsigned char *chunk = lg_alloc_aligned(bytes ? bytes : 1);
    if (!chunk)
        return lg_fail(err, LG_NO_MEMORY, 0, "no memory for %d more KV pages (%.1f MB)", more,
                       (double)bytes * 1e-6);
    if (kv->poison)
        memset(chunk, 0xff, bytes);
    kv->chunks[kv->chunk_count++] = chunk;
    for (int32_t i = 0; i < more; i++)
        kv->pages[kv->count++] = chunk + (size_t)i * kv->page_bytes;
    return LG_OK;
}

void kv_memory_clear(KvMemory *kv) {
    for (int32_t i = 0; i < kv->chunk_count; i++)
        lg_free_aligned(kv->chunks[i]);
    lg_free(kv->chunks);
    lg_free(kv->pages);
    *kv = (KvMemory){0};
}
