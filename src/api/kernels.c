/* Which kernels run here: those of the present GPU, or the CPU's levels. */
#include "api/internal.h"
#include "backend/cpu/levels.h"
#include "backend/cpu/lora_cpu.h"
#include "backend/cuda/modules.h"

static LgStatus print_cuda(const char *cache_dir, const CudaDevice *device, Buf *out,
                           LgError *err) {
    CudaRegistryOptions options = {.device = device, .cache_dir = cache_dir};
    CudaRegistry *registry;
    LoraKernels kernels;
    LG_TRY(cuda_registry_create(&options, &registry, err));
    LgStatus status = cuda_registry_print(registry, out, err);
    if (status == LG_OK) {
        buf_puts(out, "\nKernels of adapters:\n");
        status = cuda_lora_kernels(registry, &kernels, err);
        buf_puts(out, cuda_registry_log(registry));
    }
    cuda_registry_destroy(registry);
    return status;
}

static LgStatus print_cpu(Buf *out, LgError *err) {
    for (int i = 0; i < cpu_level_count(); i++) {
        const CpuLevel *level = cpu_level_at(i);
        LoraKernels kernels;
        buf_printf(out, "cpu %s: %s\n", level->name,
                   !level->kernels         ? "not compiled in"
                   : cpu_level_runs(level) ? "runs here"
                                           : "not on this processor");
        if (cpu_level_runs(level))
            LG_TRY(lora_kernels_resolve(lora_cpu_find, level->kernels, level->name, &kernels, out,
                                        err));
    }
    return LG_OK;
}

LgStatus lg_kernels(const char *cache_dir, char **text, LgError *error) {
    API_NEED(text);
    CudaDevice *device = NULL;
    LgError why = {0};
    Buf out;
    buf_init(&out);
    LgStatus status;
    if (cuda_device_open(0, &device, &why) == LG_OK) {
        status = print_cuda(cache_dir, device, &out, error);
    } else {
        buf_printf(&out, "%s\n", why.message);
        status = print_cpu(&out, error);
    }
    cuda_device_close(device);
    char *taken = status == LG_OK ? buf_take(&out) : NULL;
    if (status == LG_OK && !taken)
        status = lg_fail_memory(error);
    if (taken)
        *text = taken;
    buf_clear(&out);
    return status;
}
