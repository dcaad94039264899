/* LoraKernels: the table of kernel handles that the adapter launchers use, and the launchers. One
 * table for every back end: the CPU fills it with its own routines, by feature level; CUDA resolves
 * it through its module registry. A handle that is optional and missing is 0 (NULL); its launcher
 * takes the fallback of lora.md, or returns an error and launches nothing. */
#ifndef LG_BACKEND_LORA_KERNELS_H
#define LG_BACKEND_LORA_KERNELS_H

#include "base/status.h"
#include "base/str.h"
#include "ir/adapter.h"
#include "kernels/cpu/lora_moe.h"

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

/* The CPU's calling conventions of handles. */
typedef void (*LoraProductFn)(
    const LgpLoraProduct *t); /* gemv_k, gemm_k, gemm_tc_k, gemm_tc_acc_k */
typedef void (*LoraScaledAddFn)(const LgpLoraScaledAdd *t); /* scaled_add_k */
typedef void (*LoraShrinkFn)(const LgpLoraShrink *t);       /* bgmv_shrink_k */
typedef void (*LoraExpandFoldFn)(const LgpLoraExpand *t);   /* bgmv_expand_fold_k */

/* The team that runs a launch: every thread calls the launcher with its own. claim NULL: this
 * thread is alone. */
typedef struct LoraLaunch {
    const LoraKernels *kernels;
    int32_t thread, thread_count;
    void *team;
    int32_t (*claim)(void *team);
    void (*barrier)(void *team, int32_t thread);
    /* A barrier in two halves: this thread is there; wait until all are. */
    void (*arrive)(void *team);
    void (*meet)(void *team);
    /* Outputs whose weights an adapter replaces; scratch: this thread's, of the base's products. */
    void (*replace)(const LgpLoraReplace *t);
    float *scratch;
    float *own; /* this thread's memory for lows that are cheaper computed by each thread than
                   waited for */
    int64_t own_floats;
} LoraLaunch;

/* One adapter on rows that all have it. */
typedef struct LoraDense {
    const float *x;
    int64_t x_stride;
    int32_t rows;
    const LgpLoraSite *site;
    float scale; /* the site's times the request's */
    float *y;    /* base results, already rounded; replaced by the adapted ones */
    int64_t y_stride;
    int32_t round_bf16;
    float *low;   /* [rows, rank] */
    float *delta; /* [rows, out]: where expand and fold are two kernels */
} LoraDense;

/* One row: gemv, gemv, scaled add.  More: gemm_tc (gemm where missing), then expand and fold in one
 * (two where missing).  Same bits either way, and those of lora_apply_bgmv.  Runs on the calling
 * thread alone.  Errors: LG_DEVICE: a needed handle is 0; nothing was launched. */
LgStatus lora_apply(const LoraKernels *k, const LoraDense *d, LgError *err);

/* Routed: the groups of a step's route, sibling sites of one x in one shrink.  Called by every
 * thread of the team; two barriers inside at most, the last at its end; none where no group adapts
 * these sites. With call->part only that part of the work, and no barrier (kernels/cpu/abi.h). The
 * handles were resolved before. */
void lora_apply_bgmv(const LoraLaunch *l, const LgpLora *call, const LgpLoraRoute *route);

/* Items of one group (an adapter set) and one expert, that follow each other. */
typedef struct LoraSpan {
    int32_t group, expert, first, end;
} LoraSpan;

/* Work memory of the grouped launcher, for a route's count * slots items. */
typedef struct LoraMoeWork {
    int32_t *items;
    LoraSpan *spans;
    int32_t *counts; /* [experts + 1] */
    int32_t span_count;
} LoraMoeWork;
typedef void (*LoraMoeFn)(const LgpLoraMoe *t); /* the four moe handles */

/* Sites of experts, keyed on (adapter, expert): kernels/cpu/lora_moe.h says what items are. Called
 * as lora_apply_bgmv is, with the same bits whichever of the two it is.  Grouped sorts the items by
 * group and expert first, so that rows that share A and B meet: for prompts. Gather takes them as
 * they are: for rows of which few share an expert's adapter. Where no group adapts these sites
 * nothing is launched, and no barrier met.  Errors: LG_DEVICE, naming the kernel that this back end
 * lacks; nothing was launched. */
LgStatus lora_apply_moe_grouped(const LoraLaunch *l, const LgpLora *call, const LgpLoraRoute *route,
                                LoraMoeWork *work, LgError *err);
LgStatus lora_apply_moe_gather(const LoraLaunch *l, const LgpLora *call, const LgpLoraRoute *route,
                               LgError *err);

#endif
