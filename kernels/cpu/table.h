/* The CPU kernels that are compiled into the host, as one table a feature level: what adapters are
 * applied with, and what the kernel checks hold to their references. */
#ifndef LG_CPU_TABLE_H
#define LG_CPU_TABLE_H

#include "kernels/cpu/attend.h"
#include "kernels/cpu/lora_moe.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/moe.h"

/* Elementwise functions over arrays: name. */
#define LGP_MATH_MAP(X)                                                                            \
    X(exp) X(sigmoid) X(silu) X(tanh) X(gelu) X(gelu_tanh) X(rsqrt) X(round_bf16)

typedef struct LgpKernelTable {
    const char *level;
    int32_t bf16_products; /* 1: products of bf16 rows go by pairs.h or tiles.h */
    int32_t (*matmul_tasks)(const LgpMatmul *m);
    void (*matmul_task)(const LgpMatmul *m, int32_t task, float *scratch);
    int64_t (*matmul_scratch)(int32_t k);
    int32_t (*attend_tasks)(const LgpAttend *a);
    void (*attend_task)(const LgpAttend *a, int32_t task, float *scratch);
    int64_t (*attend_scratch)(int32_t group, int32_t positions);
    void (*table_row)(const LgpWeight *w, int32_t row, float *out);
#define LGP_MATH_FIELD(name) void (*name)(const float *x, float *y, int64_t count);
    LGP_MATH_MAP(LGP_MATH_FIELD)
#undef LGP_MATH_FIELD
    void (*lora_gemv)(const LgpLoraProduct *t);
    void (*lora_gemm)(const LgpLoraProduct *t);
    void (*lora_gemm_acc)(const LgpLoraProduct *t);
    void (*lora_scaled_add)(const LgpLoraScaledAdd *t);
    void (*lora_shrink)(const LgpLoraShrink *t);
    void (*lora_expand_fold)(const LgpLoraExpand *t);
    void (*lora_replace)(const LgpLoraReplace *t);
    void (*lora_moe_grouped_shrink)(const LgpLoraMoe *t);
    void (*lora_moe_grouped_expand_fold)(const LgpLoraMoe *t);
    void (*lora_moe_gather_shrink)(const LgpLoraMoe *t);
    void (*lora_moe_gather_expand_fold)(const LgpLoraMoe *t);
    void (*softmax)(const float *x, float *y, int32_t n);
    void (*topk)(float *x, int32_t n, int32_t k, int32_t *which, float *much);
    void (*moe_sort)(const int32_t *choice, int32_t rows, int32_t experts, int32_t *offsets,
                     int32_t *order);
    int32_t (*moe_seek)(const LgpMoe *m, LgpMoeWalk *w, int32_t task);
    void (*moe_task)(const LgpMoe *m, const LgpMoeWalk *w, float *scratch);
    int64_t (*moe_scratch)(int32_t n, int32_t k);
} LgpKernelTable;

extern const LgpKernelTable lgp_kernels_generic;
#ifdef LGP_HAS_AVX2 /* compiled in where the target is x86-64 */
extern const LgpKernelTable lgp_kernels_avx2;
extern const LgpKernelTable lgp_kernels_avx512;
extern const LgpKernelTable lgp_kernels_avx512bf16;
extern const LgpKernelTable lgp_kernels_amx;
#endif

#endif
