/* One feature level's kernels: this file is compiled once a level, with that level's flags. */
#include "kernels/cpu/table.h"

static int32_t matmul_tasks(const LgpMatmul *m) {
    return lgp_matmul_tasks(m);
}

static int64_t matmul_scratch(int32_t k) {
    return lgp_matmul_scratch(k);
}

static int64_t moe_scratch(int32_t n, int32_t k) {
    return lgp_moe_scratch(n, k);
}

static int32_t attend_tasks(const LgpAttend *a) {
    return lgp_attend_tasks(a);
}

static int64_t attend_scratch(int32_t group, int32_t positions) {
    return lgp_attend_scratch(group, positions);
}

#define LGP_MATH_ARRAY(name)                                                                       \
    static void array_##name(const float *x, float *y, int64_t count) {                            \
        for (int64_t i = 0; i < count; i++)                                                        \
            y[i] = lgp_##name(x[i]);                                                               \
    }
LGP_MATH_MAP(LGP_MATH_ARRAY)

#if defined LGP_LEVEL_AMX
#define LGP_TABLE lgp_kernels_amx
#elif defined LGP_LEVEL_BF16
#define LGP_TABLE lgp_kernels_avx512bf16
#elif defined LGP_LEVEL_AVX512
#define LGP_TABLE lgp_kernels_avx512
#elif defined LGP_LEVEL_AVX2
#define LGP_TABLE lgp_kernels_avx2
#else
#define LGP_TABLE lgp_kernels_generic
#endif

const LgpKernelTable LGP_TABLE = {
    .level = LGP_LEVEL_NAME,
#ifdef LGP_LEVEL_BF16
    .bf16_products = 1,
#endif
    .matmul_tasks = matmul_tasks,
    .matmul_task = lgp_matmul_task,
    .matmul_scratch = matmul_scratch,
    .attend_tasks = attend_tasks,
    .attend_task = lgp_attend_task,
    .attend_scratch = attend_scratch,
    .table_row = lgp_table_row,
#define LGP_MATH_ENTRY(name) .name = array_##name,
    LGP_MATH_MAP(LGP_MATH_ENTRY)
#undef LGP_MATH_ENTRY
        .lora_gemv = lgp_lora_gemv,
    .lora_gemm = lgp_lora_gemm,
    .lora_gemm_acc = lgp_lora_gemm_acc,
    .lora_scaled_add = lgp_lora_scaled_add,
    .lora_shrink = lgp_lora_shrink,
    .lora_expand_fold = lgp_lora_expand_fold,
    .lora_replace = lgp_lora_replace,
    .lora_moe_grouped_shrink = lgp_lora_moe_grouped_shrink,
    .lora_moe_grouped_expand_fold = lgp_lora_moe_grouped_expand_fold,
    .lora_moe_gather_shrink = lgp_lora_moe_gather_shrink,
    .lora_moe_gather_expand_fold = lgp_lora_moe_gather_expand_fold,
    .softmax = lgp_softmax,
    .topk = lgp_topk,
    .moe_sort = lgp_moe_sort,
    .moe_seek = lgp_moe_seek,
    .moe_task = lgp_moe_task,
    .moe_scratch = moe_scratch,
};
