/* NVRTC, the one compiler of device code, opened at run time. */
#ifndef LG_CUDA_NVRTC_H
#define LG_CUDA_NVRTC_H

#include "base/status.h"
#include "base/str.h"

typedef struct Nvrtc Nvrtc;

/* A text that #include "name" finds. */
typedef struct NvrtcHeader {
    const char *name, *text;
} NvrtcHeader;

typedef struct NvrtcSource {
    const char *name; /* in messages */
    const char *text;
    const NvrtcHeader *headers;
    int header_count;
} NvrtcSource;

/* path: the library or the folder that holds it; NULL: wherever the loader or a usual installation
 * has one. Errors: LG_NOT_FOUND, saying what was tried and what to install. */
LgStatus nvrtc_open(const char *path, Nvrtc **out, LgError *err);
void nvrtc_close(Nvrtc *n);

const char *nvrtc_version(const Nvrtc *n); /* "13.0" */
const char *nvrtc_options(void);           /* that texts are compiled with, for keys */

/* Machine code of one architecture ("sm_90a"), appended to *cubin. Errors: LG_INTERNAL with what
 * the compiler said, LG_NO_MEMORY. */
LgStatus nvrtc_compile(const Nvrtc *n, const NvrtcSource *source, const char *arch, Buf *cubin,
                       LgError *err);

#endif
