#include "backend/cuda/driver.h"

#include <dlfcn.h>
#include <string.h>

static const struct {
    const char *symbol;
    size_t offset;
} symbols[] = {
#define CUDA_DRIVER_SYMBOL(field, symbol, parameters) {symbol, offsetof(CudaDriver, field)},
    CUDA_DRIVER_MAP(CUDA_DRIVER_SYMBOL)
#undef CUDA_DRIVER_SYMBOL
};

LgStatus cuda_fail(const CudaDriver *d, int code, const char *what, LgError *err) {
    const char *name = NULL, *text = NULL;
    if (d->error_name(code, &name) != 0)
        name = "unknown error";
    if (d->error_text(code, &text) != 0)
        text = "the driver has no words for it";
    return lg_fail(err, LG_DEVICE, 0, "CUDA: %s: %s (%d): %s", what, name, code, text);
}

LgStatus cuda_driver_open(CudaDriver *out, LgError *err) {
    CudaDriver d = {.library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)};
    if (!d.library)
        return lg_fail(err, LG_DEVICE, 0, "CUDA: no driver on this machine (%s)", dlerror());
    LgStatus status = LG_OK;
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols && status == LG_OK; i++) {
        void *found = dlsym(d.library, symbols[i].symbol);
        memcpy((char *)&d + symbols[i].offset, &found, sizeof found);
        if (!found)
            status = lg_fail(err, LG_DEVICE, 0,
                             "CUDA: this machine's driver has no %s; one of CUDA 12 or newer is "
                             "needed",
                             symbols[i].symbol);
    }
    if (status == LG_OK) {
        int code = d.init(0), count = 0;
        if (code == 0)
            code = d.device_count(&count);
        if (code != 0)
            status = cuda_fail(&d, code, "starting the driver", err);
        else if (count == 0)
            status = lg_fail(err, LG_DEVICE, 0, "CUDA: the driver finds no device");
    }
    if (status != LG_OK)
        dlclose(d.library);
    else
        *out = d;
    return status;
}

void cuda_driver_close(CudaDriver *d) {
    if (d->library)
        dlclose(d->library);
    memset(d, 0, sizeof *d);
}
