/* Open addressing with linear probing. The hash is seeded with the table's address, so that a file
 * cannot be made whose names all collide; nothing depends on the order of the entries. */
#include "base/map.h"

#include <string.h>

#include "base/mem.h"

struct MapEntry {
    LgStr key; /* ptr NULL: free */
    uint64_t value;
    uint64_t hash;
};

static uint64_t fold(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t hash_bytes(LgStr key, const MapEntry *entries) {
    const uint64_t odd = 0x9e3779b97f4a7c15u;
    uint64_t h = fold((uint64_t)(uintptr_t)entries ^ odd, key.len ^ 0xd1342543de82ef95u);
    size_t i = 0;
    for (; key.len - i >= 8; i += 8) {
        uint64_t word;
        memcpy(&word, key.ptr + i, 8);
        h = fold(h ^ word, odd) + word;
    }
    uint64_t last = 0;
    if (i < key.len)
        memcpy(&last, key.ptr + i, key.len - i);
    return fold(h ^ last, odd ^ h);
}

void map_init(Map *m) {
    *m = (Map){0};
    arena_init(&m->keys);
}

void map_clear(Map *m) {
    lg_free(m->entries);
    arena_clear(&m->keys);
    map_init(m);
}

/* The entry of key, or the free one where it belongs. The table is never full. */
static MapEntry *find(MapEntry *entries, size_t cap, LgStr key, uint64_t hash) {
    size_t i = (size_t)hash & (cap - 1);
    while (entries[i].key.ptr && !(entries[i].hash == hash && lg_str_eq(entries[i].key, key)))
        i = (i + 1) & (cap - 1);
    return &entries[i];
}

static bool grow(Map *m) {
    size_t cap = m->cap ? m->cap * 2 : 16;
    MapEntry *entries = lg_calloc(cap, sizeof *entries);
    if (!entries)
        return false;
    for (size_t i = 0; i < m->cap; i++) {
        MapEntry e = m->entries[i];
        if (!e.key.ptr)
            continue;
        e.hash = hash_bytes(e.key, entries);
        *find(entries, cap, e.key, e.hash) = e;
    }
    lg_free(m->entries);
    m->entries = entries;
    m->cap = cap;
    return true;
}

bool map_set(Map *m, LgStr key, uint64_t value) {
    if (m->count >= m->cap / 4 * 3 && !grow(m))
        return false;
    uint64_t hash = hash_bytes(key, m->entries);
    MapEntry *e = find(m->entries, m->cap, key, hash);
    if (!e->key.ptr) {
        LgStr copy = arena_str(&m->keys, key);
        if (!copy.ptr)
            return false;
        *e = (MapEntry){.key = copy, .hash = hash};
        m->count++;
    }
    e->value = value;
    return true;
}

bool map_get(const Map *m, LgStr key, uint64_t *value) {
    if (m->count == 0)
        return false;
    const MapEntry *e = find(m->entries, m->cap, key, hash_bytes(key, m->entries));
    if (!e->key.ptr)
        return false;
    *value = e->value;
    return true;
}

bool map_has(const Map *m, LgStr key) {
    uint64_t ignored;
    return map_get(m, key, &ignored);
}
