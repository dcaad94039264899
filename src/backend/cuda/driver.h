/* The CUDA driver, opened at run time: our own declarations of the few calls that are used, so that
 * neither headers nor a toolkit are needed to build, and one binary runs with and without a GPU. */
#ifndef LG_CUDA_DRIVER_H
#define LG_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef uint64_t CudaPtr; /* an address on the device; 0: none */

/* As the driver lays it out. */
typedef struct CudaLaunchAttribute {
    int32_t id, pad;
    union {
        int32_t flag;
        unsigned char bytes[64];
    } value;
} CudaLaunchAttribute;
#define CUDA_ATTRIBUTE_PROGRAMMATIC 6 /* may start before the one before it has ended */

#define CUDA_FUNCTION_SHARED 8 /* bytes of shared memory that launches ask for beyond the usual */

typedef struct CudaLaunchConfig {
    uint32_t grid[3], block[3], shared_bytes;
    void *stream;
    CudaLaunchAttribute *attributes;
    uint32_t attribute_count;
} CudaLaunchConfig;

/* field, symbol, parameters */
/* clang-format off */
#define CUDA_DRIVER_MAP(X)                                                                                     \
    X(init,               "cuInit",                       (unsigned flags))                                    \
    X(driver_version,     "cuDriverGetVersion",           (int *version))                                      \
    X(error_name,         "cuGetErrorName",               (int code, const char **text))                       \
    X(error_text,         "cuGetErrorString",             (int code, const char **text))                       \
    X(device_count,       "cuDeviceGetCount",             (int *count))                                        \
    X(device_get,         "cuDeviceGet",                  (int *device, int ordinal))                          \
    X(device_name,        "cuDeviceGetName",              (char *name, int bytes, int device))                 \
    X(device_attribute,   "cuDeviceGetAttribute",         (int *value, int attribute, int device))             \
    X(device_bytes,       "cuDeviceTotalMem_v2",          (size_t *bytes, int device))                         \
    X(context_retain,     "cuDevicePrimaryCtxRetain",     (void **context, int device))                        \
    X(context_release,    "cuDevicePrimaryCtxRelease_v2", (int device))                                        \
    X(context_set,        "cuCtxSetCurrent",              (void *context))                                     \
    X(context_wait,       "cuCtxSynchronize",             (void))                                              \
    X(memory_alloc,       "cuMemAlloc_v2",                (CudaPtr *ptr, size_t bytes))                        \
    X(memory_free,        "cuMemFree_v2",                 (CudaPtr ptr))                                       \
    X(pinned_alloc,       "cuMemHostAlloc",               (void **ptr, size_t bytes, unsigned flags))          \
    X(pinned_free,        "cuMemFreeHost",                (void *ptr))                                         \
    X(copy_up,            "cuMemcpyHtoDAsync_v2",         (CudaPtr to, const void *from, size_t bytes, void *stream)) \
    X(copy_down,          "cuMemcpyDtoHAsync_v2",         (void *to, CudaPtr from, size_t bytes, void *stream)) \
    X(copy_across,        "cuMemcpyDtoDAsync_v2",         (CudaPtr to, CudaPtr from, size_t bytes, void *stream)) \
    X(fill,               "cuMemsetD8Async",              (CudaPtr to, unsigned char byte, size_t bytes, void *stream)) \
    X(stream_create,      "cuStreamCreate",               (void **stream, unsigned flags))                     \
    X(stream_destroy,     "cuStreamDestroy_v2",           (void *stream))                                      \
    X(stream_wait,        "cuStreamSynchronize",          (void *stream))                                      \
    X(stream_wait_event,  "cuStreamWaitEvent",            (void *stream, void *event, unsigned flags))         \
    X(event_create,       "cuEventCreate",                (void **event, unsigned flags))                      \
    X(event_destroy,      "cuEventDestroy_v2",            (void *event))                                       \
    X(event_record,       "cuEventRecord",                (void *event, void *stream))                         \
    X(event_query,        "cuEventQuery",                 (void *event))                                       \
    X(event_wait,         "cuEventSynchronize",           (void *event))                                       \
    X(event_elapsed,      "cuEventElapsedTime",           (float *ms, void *from, void *to))                   \
    X(module_load,        "cuModuleLoadData",             (void **module, const void *image))                  \
    X(module_unload,      "cuModuleUnload",               (void *module))                                      \
    X(module_function,    "cuModuleGetFunction",          (void **function, void *module, const char *name))   \
    X(function_set,       "cuFuncSetAttribute",           (void *function, int attribute, int value))          \
    X(function_get,       "cuFuncGetAttribute",           (int *value, int attribute, void *function))         \
    X(launch,             "cuLaunchKernelEx",             (const CudaLaunchConfig *config, void *function, void **params, void **extra)) \
    X(capture_begin,      "cuStreamBeginCapture_v2",      (void *stream, int mode))                            \
    X(capture_end,        "cuStreamEndCapture",           (void *stream, void **graph))                        \
    X(graph_instantiate,  "cuGraphInstantiateWithFlags",  (void **exec, void *graph, uint64_t flags))          \
    X(graph_launch,       "cuGraphLaunch",                (void *exec, void *stream))                          \
    X(graph_exec_destroy, "cuGraphExecDestroy",           (void *exec))                                        \
    X(graph_destroy,      "cuGraphDestroy",               (void *graph))
/* clang-format on */

typedef struct CudaDriver {
    void *library; /* NULL: a table that a test made */
#define CUDA_DRIVER_FIELD(field, symbol, parameters) int(*field) parameters;
    CUDA_DRIVER_MAP(CUDA_DRIVER_FIELD)
#undef CUDA_DRIVER_FIELD
} CudaDriver;

/* Opens and initialises the driver. Errors: LG_DEVICE: there is none, it is too old (naming what is
 * missing), or it finds no device. */
LgStatus cuda_driver_open(CudaDriver *out, LgError *err);
void cuda_driver_close(CudaDriver *d);

/* LG_DEVICE with the driver's words for the code: "what: CUDA_ERROR_…: …". */
LgStatus cuda_fail(const CudaDriver *d, int code, const char *what, LgError *err);

#define CUDA_TRY(driver, call, what, err)                                                          \
    do {                                                                                           \
        int cuda_code_ = (driver)->call;                                                           \
        if (cuda_code_ != 0)                                                                       \
            return cuda_fail((driver), cuda_code_, (what), (err));                                 \
    } while (0)

#endif
