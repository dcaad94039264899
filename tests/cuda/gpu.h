/* What the device checks share: a device with its kernels, memory between guard zones, draws. */
#ifndef LG_CUDA_CHECK_GPU_H
#define LG_CUDA_CHECK_GPU_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "backend/cuda/lora_cuda.h"
#include "backend/cuda/modules.h"
#include "base/float.h"

typedef struct Gpu {
    CudaDevice *device;
    CudaRegistry *registry;
    Nvrtc *nvrtc;
    LoraKernels kernels;
    void *stream;
    bool quick; /* small cases alone: under a sanitizer */
    uint64_t seed, draws;
    char shape[400]; /* of the present case, for messages */
    long cases, comparisons;
    int failures;
} Gpu;

/* Ends the program with the message: a check cannot go on without its device. */
void must(LgStatus status, const LgError *err);
void must_code(const Gpu *g, int code, const char *what);

/* ---- memory ---- */

/* Device memory between guard zones, all of it NaN bytes at first. */
typedef struct Dev {
    CudaPtr base, data;
    size_t bytes;
} Dev;
Dev dev_new(Gpu *g, size_t bytes);
Dev dev_of(Gpu *g, const void *host, size_t bytes); /* the same, filled */
void dev_up(Gpu *g, const Dev *d, const void *host, size_t bytes);
void dev_down(Gpu *g, const Dev *d, void *host, size_t bytes);
bool dev_whole(Gpu *g, const Dev *d); /* nobody wrote outside */
void dev_free(Gpu *g, Dev *d);
void wait_for(Gpu *g);

/* ---- draws ---- */

uint64_t draw(Gpu *g);
int draw_int(Gpu *g, int from, int to); /* both included */
int draw_of_list(Gpu *g, const int *values, int count);
#define DRAW_OF(g, ...)                                                                            \
    draw_of_list((g), (const int[]){__VA_ARGS__},                                                  \
                 (int)(sizeof((const int[]){__VA_ARGS__}) / sizeof(int)))
float draw_unit(Gpu *g); /* [-1, 1) */
/* bf16 values of one regime: 0 plain, 1 tiny, 2 huge, 3 near opposites in pairs. */
void draw_bf16(Gpu *g, int regime, uint16_t *out, size_t count);

/* ---- results ---- */

bool fail(Gpu *g, const char *format, ...) __attribute__((format(printf, 2, 3)));
void *room(size_t bytes); /* zeroed memory of the host; ends the program where there is none */

/* What the arithmetic allows: a matrix unit adds 16 products (or twice 8) and the sum so far with
 * at most 2^-22 of the largest lost at each; chunks are added in f32. */
double sum_bound(int k, double magnitude);
#define U_BF16 0x1p-8
#define TINY 0x1p-133 /* the smallest bf16 subnormal */

/* ---- checks: false at the first failure ---- */

bool check_routed(Gpu *g);
bool check_moe(Gpu *g);
bool check_mutants(Gpu *g);
void experiment_order(Gpu *g);
void bench(Gpu *g, const char *out, const char *cells);

#endif
