#include "backend/cuda/device.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum {
    ATTRIBUTE_SM_COUNT = 16,
    ATTRIBUTE_L2_BYTES = 38,
    ATTRIBUTE_MAJOR = 75,
    ATTRIBUTE_MINOR = 76,
    ATTRIBUTE_BLOCK_SHARED = 97,
    CAPTURE_THREAD_LOCAL = 1,
    EVENT_NO_TIMING = 2,
};

void cuda_arch(int major, int minor, char arch[16]) {
    snprintf(arch, 16, "sm_%d%d%s", major, minor, major >= 9 ? "a" : "");
}

static LgStatus read_properties(CudaDevice *d, LgError *err) {
    const CudaDriver *c = &d->driver;
    int l2 = 0, shared = 0;
    size_t bytes = 0;
    CUDA_TRY(c, device_name(d->name, (int)sizeof d->name, d->handle), "asking for a name", err);
    CUDA_TRY(c, device_attribute(&d->major, ATTRIBUTE_MAJOR, d->handle), "properties", err);
    CUDA_TRY(c, device_attribute(&d->minor, ATTRIBUTE_MINOR, d->handle), "properties", err);
    CUDA_TRY(c, device_attribute(&d->sm_count, ATTRIBUTE_SM_COUNT, d->handle), "properties", err);
    CUDA_TRY(c, device_attribute(&l2, ATTRIBUTE_L2_BYTES, d->handle), "properties", err);
    CUDA_TRY(c, device_attribute(&shared, ATTRIBUTE_BLOCK_SHARED, d->handle), "properties", err);
    CUDA_TRY(c, device_bytes(&bytes, d->handle), "properties", err);
    CUDA_TRY(c, driver_version(&d->driver_version), "properties", err);
    d->l2_bytes = (uint64_t)l2;
    d->block_shared_bytes = (uint64_t)shared;
    d->memory_bytes = bytes;
    cuda_arch(d->major, d->minor, d->arch);
    if (d->major < 8)
        return lg_fail(err, LG_DEVICE, 0,
                       "CUDA: %s has compute capability %d.%d; 8.0 or newer is needed", d->name,
                       d->major, d->minor);
    return LG_OK;
}

static LgStatus open_context(CudaDevice *d, LgError *err) {
    const CudaDriver *c = &d->driver;
    int count = 0;
    CUDA_TRY(c, device_count(&count), "counting devices", err);
    if (d->ordinal < 0 || d->ordinal >= count)
        return lg_fail(err, LG_DEVICE, 0, "CUDA: no device %d; there are %d, from 0 on", d->ordinal,
                       count);
    CUDA_TRY(c, device_get(&d->handle, d->ordinal), "opening the device", err);
    LG_TRY(read_properties(d, err));
    CUDA_TRY(c, context_retain(&d->context, d->handle), "making a context", err);
    return cuda_device_use(d, err);
}

LgStatus cuda_device_open(int ordinal, CudaDevice **out, LgError *err) {
    CudaDevice *d = lg_calloc(1, sizeof *d);
    if (!d)
        return lg_fail_memory(err);
    d->ordinal = ordinal;
    LgStatus status = cuda_driver_open(&d->driver, err);
    if (status == LG_OK)
        status = open_context(d, err);
    if (status != LG_OK) {
        cuda_device_close(d);
        return status;
    }
    *out = d;
    return LG_OK;
}

void cuda_device_close(CudaDevice *d) {
    if (!d)
        return;
    if (d->context)
        d->driver.context_release(d->handle);
    cuda_driver_close(&d->driver);
    lg_free(d);
}

LgStatus cuda_device_use(const CudaDevice *d, LgError *err) {
    CUDA_TRY(&d->driver, context_set(d->context), "choosing the device", err);
    return LG_OK;
}

LgStatus cuda_alloc(const CudaDevice *d, size_t bytes, const char *what, CudaPtr *out,
                    LgError *err) {
    CudaPtr p = 0;
    int code = d->driver.memory_alloc(&p, bytes ? bytes : 1);
    if (code == 2) /* out of memory */
        return lg_fail(err, LG_NO_MEMORY, 0, "CUDA: no %zu bytes on %s for %s", bytes, d->name,
                       what);
    if (code != 0)
        return cuda_fail(&d->driver, code, what, err);
    *out = p;
    return LG_OK;
}

void cuda_free(const CudaDevice *d, CudaPtr p) {
    if (p)
        d->driver.memory_free(p);
}

LgStatus cuda_pinned_alloc(const CudaDevice *d, size_t bytes, void **out, LgError *err) {
    CUDA_TRY(&d->driver, pinned_alloc(out, bytes ? bytes : 1, 0), "pinned memory", err);
    return LG_OK;
}

void cuda_pinned_free(const CudaDevice *d, void *p) {
    if (p)
        d->driver.pinned_free(p);
}

LgStatus cuda_staging_init(CudaStaging *s, const CudaDevice *d, void *stream, size_t bytes,
                           LgError *err) {
    memset(s, 0, sizeof *s);
    s->device = d;
    s->stream = stream;
    s->bytes = bytes;
    LgStatus status = LG_OK;
    for (int i = 0; i < CUDA_STAGING_BUFFERS && status == LG_OK; i++) {
        status = cuda_pinned_alloc(d, bytes, &s->buffer[i], err);
        int code = status == LG_OK ? d->driver.event_create(&s->done[i], EVENT_NO_TIMING) : 0;
        if (code != 0)
            status = cuda_fail(&d->driver, code, "making an event", err);
    }
    if (status != LG_OK)
        cuda_staging_clear(s);
    return status;
}

void cuda_staging_clear(CudaStaging *s) {
    for (int i = 0; s->device && i < CUDA_STAGING_BUFFERS; i++) {
        if (s->done[i]) {
            s->device->driver.event_wait(s->done[i]);
            s->device->driver.event_destroy(s->done[i]);
        }
        cuda_pinned_free(s->device, s->buffer[i]);
    }
    memset(s, 0, sizeof *s);
}

LgStatus cuda_staging_up(CudaStaging *s, CudaPtr to, const void *from, size_t bytes, LgError *err) {
    const CudaDriver *c = &s->device->driver;
    for (size_t at = 0; at < bytes; at += s->bytes) {
        size_t n = bytes - at < s->bytes ? bytes - at : s->bytes;
        CUDA_TRY(c, event_wait(s->done[s->next]), "waiting for a copy", err);
        memcpy(s->buffer[s->next], (const char *)from + at, n);
        CUDA_TRY(c, copy_up(to + at, s->buffer[s->next], n, s->stream), "copying up", err);
        CUDA_TRY(c, event_record(s->done[s->next], s->stream), "copying up", err);
        s->next = (s->next + 1) % CUDA_STAGING_BUFFERS;
    }
    return LG_OK;
}

LgStatus cuda_capture_begin(const CudaDevice *d, void *stream, LgError *err) {
    CUDA_TRY(&d->driver, capture_begin(stream, CAPTURE_THREAD_LOCAL), "recording a graph", err);
    return LG_OK;
}

LgStatus cuda_capture_end(const CudaDevice *d, void *stream, CudaGraph *out, LgError *err) {
    void *graph = NULL, *exec = NULL;
    CUDA_TRY(&d->driver, capture_end(stream, &graph), "recording a graph", err);
    int code = d->driver.graph_instantiate(&exec, graph, 0);
    d->driver.graph_destroy(graph);
    if (code != 0)
        return cuda_fail(&d->driver, code, "making a graph", err);
    out->exec = exec;
    return LG_OK;
}

LgStatus cuda_graph_launch(const CudaDevice *d, const CudaGraph *g, void *stream, LgError *err) {
    CUDA_TRY(&d->driver, graph_launch(g->exec, stream), "launching a graph", err);
    return LG_OK;
}

void cuda_graph_clear(const CudaDevice *d, CudaGraph *g) {
    if (g->exec)
        d->driver.graph_exec_destroy(g->exec);
    g->exec = NULL;
}
