/* Blocks in a list, the newest first; only the newest is filled. */
#include "base/arena.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

#define ARENA_ALIGN 16
#define ARENA_BLOCK_MIN 4096
#define ARENA_BLOCK_MAX (1u << 20)

struct ArenaBlock {
    ArenaBlock *next;
    size_t used, cap; /* of the bytes after this header */
};

static size_t header_bytes(void) {
    return (sizeof(ArenaBlock) + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
}

void arena_init(Arena *a) {
    *a = (Arena){0};
}

void arena_clear(Arena *a) {
    ArenaBlock *block = a->head;
    while (block) {
        ArenaBlock *next = block->next;
        lg_free(block);
        block = next;
    }
    a->head = NULL;
    a->used_bytes = 0;
    a->failed = false;
}

static ArenaBlock *block_new(Arena *a, size_t bytes) {
    size_t cap = a->head ? a->head->cap * 2 : ARENA_BLOCK_MIN;
    if (cap > ARENA_BLOCK_MAX)
        cap = ARENA_BLOCK_MAX;
    if (cap < bytes)
        cap = bytes;
    ArenaBlock *block = lg_alloc(header_bytes() + cap);
    if (!block)
        return NULL;
    *block = (ArenaBlock){.next = a->head, .used = 0, .cap = cap};
    a->head = block;
    return block;
}

static void *alloc(Arena *a, size_t bytes) {
    if (bytes > SIZE_MAX - header_bytes() - ARENA_ALIGN)
        return NULL;
    size_t rounded = (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    if (rounded == 0)
        rounded = ARENA_ALIGN;
    if (a->limit_bytes &&
        (a->used_bytes > a->limit_bytes || rounded > a->limit_bytes - a->used_bytes))
        return NULL;
    ArenaBlock *block = a->head;
    if (!block || block->cap - block->used < rounded)
        block = block_new(a, rounded);
    if (!block)
        return NULL;
    char *p = (char *)block + header_bytes() + block->used;
    block->used += rounded;
    a->used_bytes += rounded;
    memset(p, 0, rounded);
    return p;
}

void *arena_alloc(Arena *a, size_t bytes) {
    void *p = alloc(a, bytes);
    a->failed |= p == NULL;
    return p;
}

void *arena_array(Arena *a, size_t count, size_t elem_bytes) {
    if (elem_bytes && count > SIZE_MAX / elem_bytes)
        return NULL;
    return arena_alloc(a, count * elem_bytes);
}

void *arena_grow(Arena *a, const void *old, size_t old_count, size_t new_count, size_t elem_bytes) {
    assert(old_count <= new_count);
    void *grown = arena_array(a, new_count, elem_bytes);
    if (grown && old_count)
        memcpy(grown, old, old_count * elem_bytes);
    return grown;
}

char *arena_strdup(Arena *a, LgStr s) {
    if (s.len == SIZE_MAX)
        return NULL;
    char *copy = arena_alloc(a, s.len + 1);
    if (copy && s.len)
        memcpy(copy, s.ptr, s.len);
    return copy;
}

LgStr arena_str(Arena *a, LgStr s) {
    char *copy = arena_strdup(a, s);
    return (LgStr){copy, copy ? s.len : 0};
}

char *arena_printf(Arena *a, const char *format, ...) {
    va_list args;
    va_start(args, format);
    va_list again;
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *text = len < 0 ? NULL : arena_alloc(a, (size_t)len + 1);
    if (text)
        vsnprintf(text, (size_t)len + 1, format, again);
    va_end(again);
    return text;
}
