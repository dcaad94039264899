/* Read bandwidth of this machine: `threads` threads sum a buffer far larger than the caches; prints
 * the best GB/s of several passes. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct Part {
    const uint64_t *data;
    size_t words;
    uint64_t sum;
} Part;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *read_part(void *arg) {
    Part *p = arg;
    uint64_t s[8] = {0};
    for (size_t i = 0; i + 8 <= p->words; i += 8)
        for (int k = 0; k < 8; k++)
            s[k] += p->data[i + (size_t)k];
    for (int k = 0; k < 8; k++)
        p->sum += s[k];
    return NULL;
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 2;
    size_t bytes = 1ull << 30;
    uint64_t *data = malloc(bytes);
    if (!data || threads < 1 || threads > 64)
        return 1;
    memset(data, 1, bytes);
    double best = 0;
    uint64_t sum = 0;
    for (int pass = 0; pass < 7; pass++) {
        pthread_t ids[64];
        Part parts[64];
        double start = now();
        for (int t = 0; t < threads; t++) {
            size_t words = bytes / 8 / (size_t)threads;
            parts[t] = (Part){data + words * (size_t)t, words, 0};
            if (pthread_create(&ids[t], NULL, read_part, &parts[t]) != 0)
                return 1;
        }
        for (int t = 0; t < threads; t++) {
            pthread_join(ids[t], NULL);
            sum += parts[t].sum;
        }
        double rate = (double)bytes / (now() - start) / 1e9;
        best = rate > best ? rate : best;
    }
    printf("%.3f %llu\n", best, (unsigned long long)(sum & 1));
    free(data);
    return 0;
}
