/* Memory by lifetime: what lives in an arena is freed with it, never alone. Not thread-safe. */
#ifndef LG_BASE_ARENA_H
#define LG_BASE_ARENA_H

#include "base/str.h"

typedef struct ArenaBlock ArenaBlock;
typedef struct Arena {
    ArenaBlock *head;
    size_t used_bytes;
    size_t limit_bytes; /* 0: none; beyond it arena_alloc returns NULL */
    bool failed;        /* some arena_alloc returned NULL */
} Arena;

void arena_init(Arena *a);
void arena_clear(Arena *a);
void *arena_alloc(Arena *a, size_t bytes); /* zeroed, aligned to 16; NULL on failure */
void *arena_array(Arena *a, size_t count, size_t elem_bytes); /* the same, checks the product */
/* A larger copy of an array of the arena, for growing lists; the old one stays until the end. */
void *arena_grow(Arena *a, const void *old, size_t old_count, size_t new_count, size_t elem_bytes);
char *arena_strdup(Arena *a, LgStr s); /* zero-terminated */
LgStr arena_str(Arena *a, LgStr s);    /* ptr NULL on failure */
char *arena_printf(Arena *a, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define ARENA_NEW(arena, Type) ((Type *)arena_alloc((arena), sizeof(Type)))
#define ARENA_ARRAY(arena, Type, count) ((Type *)arena_array((arena), (count), sizeof(Type)))

#endif
