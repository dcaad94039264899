/* Modules of device code: which file gives which module for a device, compiled on first use into
 * the disk cache, and a record of every lookup. The table is made at build time from kernels/cuda
 * and its KERNEL.toml files. */
#ifndef LG_CUDA_MODULES_H
#define LG_CUDA_MODULES_H

#include "backend/cuda/device.h"
#include "backend/cuda/nvrtc.h"
#include "backend/lora_kernels.h"

typedef struct CudaSource {
    const char *folder, *stem; /* NULL: the table's end */
    const char *module;
    const char *kernels; /* separated by blanks */
    const char *text;
} CudaSource;

/* Folders of kernels in the order in which they are searched: special ones first, "common" last. */
typedef struct CudaFolder {
    const char *name;          /* NULL: the table's end */
    const char *architectures; /* separated by blanks; "": all */
} CudaFolder;

extern const CudaSource lg_cuda_sources[];
extern const NvrtcHeader lg_cuda_headers[];
extern const CudaFolder lg_cuda_folders[];

/* The file that gives the module for the architecture; target: the only folder beside common that
 * may ("common": no other). NULL: any. Returns NULL where no file does. */
const CudaSource *cuda_source_find(const char *module, const char *arch, const char *target);
bool cuda_source_has(const CudaSource *s, const char *kernel);

LgStatus cuda_source_compile(const Nvrtc *n, const CudaSource *s, const char *arch, Buf *cubin,
                             LgError *err);

/* ---- machine code on disk ---- */

/* The cubin of the file, taken from DIR or compiled and put there. dir NULL: always compiled.
 * *cached: it was there. An entry that was cut or changed counts as absent. */
LgStatus cuda_cubin(const Nvrtc *n, const CudaSource *s, const char *arch, const char *dir,
                    Buf *cubin, bool *cached, LgError *err);

/* ---- what a device runs ---- */

typedef struct CudaRegistry CudaRegistry;
typedef struct CudaRegistryOptions {
    const CudaDevice *device; /* outlives the registry */
    const char *cache_dir;    /* NULL: compiled at each start */
    const char *nvrtc;        /* as nvrtc_open takes it */
    const char *target;       /* NULL: the device's own; "common" leaves the special kernels out */
} CudaRegistryOptions;

LgStatus cuda_registry_create(const CudaRegistryOptions *o, CudaRegistry **out, LgError *err);
void cuda_registry_destroy(CudaRegistry *r);

/* The kernel (for CudaDriver.launch), or NULL; either way a line of the log says what was found
 * where, or why not. Modules are compiled and loaded when first asked for. */
void *cuda_registry_find(CudaRegistry *r, const char *module, const char *kernel);
/* The same, for kernels that nothing runs without. Errors: LG_DEVICE, naming both. */
LgStatus cuda_registry_require(CudaRegistry *r, const char *module, const char *kernel, void **out,
                               LgError *err);
const char *cuda_registry_log(const CudaRegistry *r);

/* The module of an emitted program, compiled or from the cache; the caller unloads it. */
LgStatus cuda_registry_program(CudaRegistry *r, const char *name, const char *text, void **module,
                               bool *cached, LgError *err);

/* Fills the adapters' table; its log joins the registry's. Errors: LG_DEVICE: adapters cannot be
 * installed here, naming module and kernel. */
LgStatus cuda_lora_kernels(CudaRegistry *r, LoraKernels *out, LgError *err);

/* The table that `ligature kernels` prints: the device, and each of its modules and kernels with
 * where it comes from; registers and bytes of spilled memory a thread. */
LgStatus cuda_registry_print(CudaRegistry *r, Buf *out, LgError *err);

#endif
