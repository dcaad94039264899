/* Resolution of the adapter kernels: once, with every outcome on record. */
#include "backend/lora_kernels.h"

#include <string.h>

typedef struct KernelRow {
    const char *field, *module, *kernel;
    bool needed;
    size_t offset;
} KernelRow;

/* clang-format off */
static const KernelRow rows[] = {
#define KERNEL_ROW(field, module, kernel, needed) {#field, module, kernel, needed, offsetof(LoraKernels, field)},
    LORA_KERNEL_MAP(KERNEL_ROW)
#undef KERNEL_ROW
};
/* clang-format on */

LgStatus lora_kernels_resolve(LoraFind find, const void *registry, const char *backend,
                              LoraKernels *out, Buf *log, LgError *err) {
    LoraKernels found;
    const KernelRow *missing = NULL;
    memset(&found, 0, sizeof found);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const KernelRow *r = &rows[i];
        LoraHandle handle = find(registry, r->module, r->kernel);
        memcpy((char *)&found + r->offset, &handle, sizeof handle);
        if (!handle && r->needed && !missing)
            missing = r;
        if (log)
            buf_printf(log, "%s: %s: module %s, kernel %s: %s\n", backend, r->field, r->module,
                       r->kernel,
                       handle      ? "found"
                       : r->needed ? "missing, needed"
                                   : "missing, not needed");
    }
    if (missing)
        return lg_fail(err, LG_DEVICE, 0,
                       "back end %s: kernel %s of module %s is missing; adapters cannot be "
                       "installed without it",
                       backend, missing->kernel, missing->module);
    *out = found;
    return LG_OK;
}

LgStatus lora_missing(LgError *err, const char *launcher, const char *module, const char *kernel) {
    return lg_fail(err, LG_DEVICE, 0,
                   "%s: kernel %s of module %s is missing on this back end; nothing was launched",
                   launcher, kernel, module);
}
