/* GGUF's key-value pairs, and the cursor that all of its parser reads by. */
#ifndef LG_FORMATS_GGUF_METADATA_H
#define LG_FORMATS_GGUF_METADATA_H

#include "base/arena.h"
#include "base/config.h"
#include "base/map.h"
#include "base/status.h"

/* data is not NULL and at <= size, always; a read that would pass the end fails with the offset. */
typedef struct GgufCursor {
    const unsigned char *data;
    size_t size, at;
    const char *what;
    LgError *err;
} GgufCursor;

bool gguf_take(GgufCursor *c, uint64_t bytes,
               const unsigned char **out); /* false: not so many are left */
LgStatus gguf_u32(GgufCursor *c, uint32_t *out);
LgStatus gguf_u64(GgufCursor *c, uint64_t *out);
LgStatus gguf_string(GgufCursor *c, LgStr *out); /* borrows the data */

/* A pair. Arrays have at most one of the three lists: strings; integers, where each fits 32 bits;
 * floats. */
typedef struct GgufEntry {
    LgStr key;
    ConfigValue value; /* CONFIG_NULL: an array */
    const LgStr *strings;
    const int32_t *ints;
    const float *floats;
    size_t count;
} GgufEntry;

typedef struct GgufMetadata {
    Arena arena;
    Map by_key; /* → index */
    GgufEntry *entries;
    size_t count;
} GgufMetadata;

void gguf_metadata_init(GgufMetadata *m);
void gguf_metadata_clear(GgufMetadata *m);
LgStatus gguf_metadata_read(GgufMetadata *m, GgufCursor *c, uint64_t count);

const GgufEntry *gguf_metadata_find(const GgufMetadata *m, const char *key); /* NULL: absent */
const ConfigValue *gguf_metadata_get(const GgufMetadata *m,
                                     const char *key); /* NULL: absent or an array */

#endif
