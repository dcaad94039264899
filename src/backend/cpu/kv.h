/* Memory of KV pages: grown by chunks that never move, so that a page's address holds as long as
 * the runner. */
#ifndef LG_CPU_KV_H
#define LG_CPU_KV_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct KvMemory {
    uint64_t page_bytes;
    bool poison; /* new pages are filled with NaNs, so that reading what was never written shows */
    unsigned char **pages; /* [count] */
    int32_t count, cap;
    unsigned char **chunks;
    int32_t chunk_count, chunk_cap;
} KvMemory;

/* Pages [0, pages) exist afterwards. On failure those that were there still are. Errors:
 * LG_NO_MEMORY, LG_LIMIT. */
LgStatus kv_memory_reserve(KvMemory *kv, int32_t pages, LgError *err);
void kv_memory_clear(KvMemory *kv);

#endif
