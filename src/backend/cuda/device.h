/* One GPU: its context, what it is, its memory, streams, events, and graphs of launches. */
#ifndef LG_CUDA_DEVICE_H
#define LG_CUDA_DEVICE_H

#include <stdbool.h>

#include "backend/cuda/driver.h"

typedef struct CudaDevice {
    CudaDriver driver;
    int ordinal, handle;
    void *context;
    char name[128];
    char arch[16]; /* "sm_90a": what code for it is compiled for */
    int major, minor;
    int sm_count;
    uint64_t memory_bytes, l2_bytes, block_shared_bytes;
    int driver_version; /* 13000 */
} CudaDevice;

/* The architecture that code for a device of this compute capability is compiled for: with all its
 * own instructions where it has some ("sm_80", "sm_90a"). */
void cuda_arch(int major, int minor, char arch[16]);

/* Errors: LG_DEVICE: no driver, no such device (naming how many there are), too old a one. */
LgStatus cuda_device_open(int ordinal, CudaDevice **out, LgError *err);
void cuda_device_close(CudaDevice *d);

/* Makes the device current on the calling thread: before anything below on a new thread. */
LgStatus cuda_device_use(const CudaDevice *d, LgError *err);

/* ---- memory ---- */

/* Planned at load: steps allocate nothing. Aligned to 256 bytes. Errors: LG_NO_MEMORY, naming bytes
 * and what they are for. */
LgStatus cuda_alloc(const CudaDevice *d, size_t bytes, const char *what, CudaPtr *out,
                    LgError *err);
void cuda_free(const CudaDevice *d, CudaPtr p); /* 0 is fine */
/* Memory of the host that copies may run from while the host does other things. */
LgStatus cuda_pinned_alloc(const CudaDevice *d, size_t bytes, void **out, LgError *err);
void cuda_pinned_free(const CudaDevice *d, void *p);

/* A ring of pinned buffers between pageable memory and the device: a buffer is filled again once
 * the copy out of it has ended. */
#define CUDA_STAGING_BUFFERS 2
typedef struct CudaStaging {
    const CudaDevice *device;
    void *stream;
    size_t bytes; /* of a buffer */
    void *buffer[CUDA_STAGING_BUFFERS], *done[CUDA_STAGING_BUFFERS];
    int next;
} CudaStaging;
LgStatus cuda_staging_init(CudaStaging *s, const CudaDevice *d, void *stream, size_t bytes,
                           LgError *err);
void cuda_staging_clear(CudaStaging *s);
/* Returns once `from` may be changed; the last copies may still run on the stream. */
LgStatus cuda_staging_up(CudaStaging *s, CudaPtr to, const void *from, size_t bytes, LgError *err);

/* ---- graphs ---- */

typedef struct CudaGraph {
    void *exec;
} CudaGraph;
/* Between the two, launches on the stream are recorded, not run. A failed recording is ended by
 * cuda_capture_end too, which then returns the error. */
LgStatus cuda_capture_begin(const CudaDevice *d, void *stream, LgError *err);
LgStatus cuda_capture_end(const CudaDevice *d, void *stream, CudaGraph *out, LgError *err);
LgStatus cuda_graph_launch(const CudaDevice *d, const CudaGraph *g, void *stream, LgError *err);
void cuda_graph_clear(const CudaDevice *d, CudaGraph *g);

#endif
