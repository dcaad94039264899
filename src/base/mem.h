/* All heap memory of the project comes from here: one hook can make the N-th allocation fail. */
#ifndef LG_BASE_MEM_H
#define LG_BASE_MEM_H

#include <stddef.h>

/* NULL on failure; a size of 0 gives a pointer that may be freed. Free with lg_free. */
void *lg_alloc(size_t bytes);
void *lg_calloc(size_t count, size_t bytes); /* checks the product */
void *lg_realloc(void *p, size_t bytes);     /* on failure p is untouched and NULL is returned */
void *lg_alloc_array(size_t count, size_t bytes); /* checks the product */
void lg_free(void *p);

/* Aligned to 64 bytes; free with lg_free_aligned. */
void *lg_alloc_aligned(size_t bytes);
/* The same in large pages where they fit: what is read from end to end at every step. */
void *lg_alloc_large(size_t bytes);
void lg_free_aligned(void *p);

/* Test hook: the n-th allocation from now (1 = the next) fails, and so does every later one where
 * `forever`; n = 0 switches it off.  Returns how many allocations were made since the last call.
 * Process-wide, thread-safe. */
long lg_alloc_fail_at(long n, int forever);

/* Makes jansson and other libraries with process-wide hooks allocate here. Idempotent; call before
 * any parsing. */
void lg_mem_install_hooks(void);

#endif
