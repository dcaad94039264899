/* LoraKernels: the table of kernel handles that the adapter launchers use. One
 * table for every back end: the CPU fills it with its own routines, by feature level; CUDA resolves
 * it through its module registry. A handle that is optional and missing is 0 (NULL); its launcher
 * takes the fallback of lora.md, or returns an error and launches nothing. */
#ifndef LG_BACKEND_LORA_KERNELS_H
#define LG_BACKEND_LORA_KERNELS_H

#include "base/status.h"
#include "base/str.h"
#include "ir/adapter.h"

typedef void *LoraHandle;

/* field, module, kernel, needed */
/* clang-format off */
#define LORA_KERNEL_MAP(X)                                                                          \
    X(gemv_k,                   "gemv",                  "dense_gemv_bf16",              true)      \
    X(gemm_k,                   "gemm",                  "dense_gemm_bf16",              true)      \
    X(gemm_tc_k,                "gemm_tc",               "dense_gemm_tc",                false)     \
    X(gemm_tc_acc_k,            "gemm_tc",               "dense_gemm_tc_scaled_acc",     false)     \
    X(scaled_add_k,             "residual_add",          "bf16_scaled_add",              true)      \
    X(bgmv_shrink_k,            "lora_bgmv",             "lora_bgmv_shrink",             true)      \
    X(bgmv_expand_fold_k,       "lora_bgmv",             "lora_bgmv_expand_fold",        true)      \
    X(moe_down_shrink_k,        "moe_lora_grouped_down", "moe_lora_grouped_shrink",      false)     \
    X(moe_down_expand_fold_k,   "moe_lora_grouped_down", "moe_lora_grouped_expand_fold", false)     \
    X(moe_gather_shrink_k,      "moe_lora_gather_bgmv",  "moe_lora_gather_shrink",       false)     \
    X(moe_gather_expand_fold_k, "moe_lora_gather_bgmv",  "moe_lora_gather_expand_fold",  false)
/* clang-format on */

typedef struct LoraKernels {
#define LORA_KERNEL_FIELD(field, module, kernel, needed) LoraHandle field;
    LORA_KERNEL_MAP(LORA_KERNEL_FIELD)
#undef LORA_KERNEL_FIELD
} LoraKernels;

/* Gives a kernel of a back end's registry, or NULL. */
typedef LoraHandle (*LoraFind)(const void *registry, const char *module, const char *kernel);

/* Fills the table and appends a line for each kernel to *log (which may be NULL): module, kernel,
 * and whether it was found, is missing but not needed, or is missing. Errors: LG_DEVICE naming
 * module and kernel of the first needed one that is missing; the log is whole even then. */
LgStatus lora_kernels_resolve(LoraFind find, const void *registry, const char *backend,
                              LoraKernels *out, Buf *log, LgError *err);

/* LG_DEVICE: a launcher found a handle of 0. */
LgStatus lora_missing(LgError *err, const char *launcher, const char *module, const char *kernel);

#endif
