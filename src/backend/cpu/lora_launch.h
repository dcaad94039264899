/* The CPU's launchers of adapter products, over the table of handles: which kernels run, in which
 * order, cut into which tasks. */
#ifndef LG_CPU_LORA_LAUNCH_H
#define LG_CPU_LORA_LAUNCH_H

#include "backend/lora_kernels.h"
#include "kernels/cpu/lora_moe.h"

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
