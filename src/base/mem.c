/* The heap, behind one counter that a test can make fail. The counters are the only state of the
 * process here. */
#include "base/mem.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MEM_ALIGN 64
#define HUGE_PAGE ((size_t)2 << 20)

static atomic_long mem_made;    /* since the last lg_alloc_fail_at */
static atomic_long mem_fail_at; /* 0: never */
static atomic_int mem_fail_forever;

long lg_alloc_fail_at(long n, int forever) {
    atomic_store(&mem_fail_at, 0); /* nothing fails while the three values disagree */
    long made = atomic_exchange(&mem_made, 0);
    atomic_store(&mem_fail_forever, forever != 0);
    atomic_store(&mem_fail_at, n);
    return made;
}

static int mem_must_fail(void) {
    long made = atomic_fetch_add(&mem_made, 1) + 1;
    long at = atomic_load(&mem_fail_at);
    return at != 0 && (made == at || (made > at && atomic_load(&mem_fail_forever)));
}

void *lg_alloc(size_t bytes) {
    if (mem_must_fail())
        return NULL;
    return malloc(bytes ? bytes : 1);
}

void *lg_calloc(size_t count, size_t bytes) {
    if ((bytes && count > SIZE_MAX / bytes) || mem_must_fail())
        return NULL;
    if (count == 0 || bytes == 0)
        return calloc(1, 1);
    return calloc(count, bytes);
}

void *lg_realloc(void *p, size_t bytes) {
    if (mem_must_fail())
        return NULL;
    return realloc(p, bytes ? bytes : 1);
}

void *lg_alloc_array(size_t count, size_t bytes) {
    if (bytes && count > SIZE_MAX / bytes)
        return NULL;
    return lg_alloc(count * bytes);
}

void lg_free(void *p) {
    free(p);
}

void *lg_alloc_aligned(size_t bytes) {
    if (bytes > SIZE_MAX - MEM_ALIGN || mem_must_fail())
        return NULL;
    size_t rounded = bytes ? (bytes + MEM_ALIGN - 1) / MEM_ALIGN * MEM_ALIGN : MEM_ALIGN;
    return aligned_alloc(MEM_ALIGN, rounded);
}

void *lg_alloc_large(size_t bytes) {
    unsigned char *data = lg_alloc_aligned(bytes);
    if (data && bytes >= 2 * HUGE_PAGE) {
        uintptr_t from = ((uintptr_t)data + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
        uintptr_t to = ((uintptr_t)data + bytes) / HUGE_PAGE * HUGE_PAGE;
        (void)madvise((void *)from, to - from, MADV_HUGEPAGE); /* advice only */
    }
    return data;
}

void lg_free_aligned(void *p) {
    free(p);
}
