/* A hash map from byte strings to 64-bit values. Keys are copied. */
#ifndef LG_BASE_MAP_H
#define LG_BASE_MAP_H

#include "base/arena.h"
#include "base/str.h"

typedef struct MapEntry MapEntry;
typedef struct Map {
    MapEntry *entries;
    size_t count, cap;
    Arena keys;
} Map;

void map_init(Map *m);
void map_clear(Map *m);
/* False where the allocation failed. An existing key gets the new value. */
bool map_set(Map *m, LgStr key, uint64_t value);
bool map_get(const Map *m, LgStr key, uint64_t *value); /* false: absent, *value untouched */
bool map_has(const Map *m, LgStr key);

#endif
