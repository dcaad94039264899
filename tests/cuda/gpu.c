#include "gpu.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"

#define GUARD 1024

void must(LgStatus status, const LgError *err) {
    if (status == LG_OK)
        return;
    fprintf(stderr, "cuda_check: %s\n", err->message);
    exit(1);
}

void must_code(const Gpu *g, int code, const char *what) {
    LgError err;
    if (code != 0)
        must(cuda_fail(&g->device->driver, code, what, &err), &err);
}

void *room(size_t bytes) {
    void *p = calloc(bytes ? bytes : 1, 1);
    if (!p) {
        fprintf(stderr, "cuda_check: no %zu bytes\n", bytes);
        exit(1);
    }
    return p;
}

void wait_for(Gpu *g) {
    must_code(g, g->device->driver.stream_wait(g->stream), "waiting for kernels");
}

Dev dev_new(Gpu *g, size_t bytes) {
    LgError err;
    Dev d = {.bytes = bytes};
    must(cuda_alloc(g->device, bytes + 2 * GUARD, "a check", &d.base, &err), &err);
    d.data = d.base + GUARD;
    must_code(g, g->device->driver.fill(d.base, 0xff, bytes + 2 * GUARD, g->stream), "filling");
    return d;
}

Dev dev_of(Gpu *g, const void *host, size_t bytes) {
    Dev d = dev_new(g, bytes);
    dev_up(g, &d, host, bytes);
    return d;
}

void dev_up(Gpu *g, const Dev *d, const void *host, size_t bytes) {
    if (bytes)
        must_code(g, g->device->driver.copy_up(d->data, host, bytes, g->stream), "copying up");
    wait_for(g);
}

void dev_down(Gpu *g, const Dev *d, void *host, size_t bytes) {
    if (bytes)
        must_code(g, g->device->driver.copy_down(host, d->data, bytes, g->stream), "copying down");
    wait_for(g);
}

bool dev_whole(Gpu *g, const Dev *d) {
    unsigned char zone[2][GUARD];
    must_code(g, g->device->driver.copy_down(zone[0], d->base, GUARD, g->stream), "copying down");
    must_code(g, g->device->driver.copy_down(zone[1], d->data + d->bytes, GUARD, g->stream),
              "copying down");
    wait_for(g);
    for (int i = 0; i < GUARD; i++)
        if (zone[0][i] != 0xff || zone[1][i] != 0xff)
            return false;
    return true;
}

void dev_free(Gpu *g, Dev *d) {
    cuda_free(g->device, d->base);
    memset(d, 0, sizeof *d);
}

uint64_t draw(Gpu *g) {
    return rng_u64(g->seed, g->draws++);
}

int draw_int(Gpu *g, int from, int to) {
    return from + (int)(draw(g) % (uint64_t)(to - from + 1));
}

int draw_of_list(Gpu *g, const int *values, int count) {
    return values[draw_int(g, 0, count - 1)];
}

float draw_unit(Gpu *g) {
    return (float)(draw(g) >> 40) * 0x1p-23f - 1.0f;
}

void draw_bf16(Gpu *g, int regime, uint16_t *out, size_t count) {
    static const float scale[] = {1.0f, 1e-18f, 1e15f, 1.0f};
    float last = 0;
    for (size_t i = 0; i < count; i++) {
        float v = draw_unit(g) * scale[regime];
        if (regime == 3 && i % 2)
            v = -last * (1 + 0.01f * draw_unit(g));
        last = v;
        out[i] = bf16_from_float(v);
    }
}

bool fail(Gpu *g, const char *format, ...) {
    va_list args;
    g->failures++;
    printf("FAILED [%s, seed %llu]: ", g->shape, (unsigned long long)g->seed);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    return false;
}

double sum_bound(int k, double magnitude) {
    return (2.0 * lgc_chunk_steps(k) + lgc_chunks(k) + 2) * 0x1p-22 * magnitude;
}
