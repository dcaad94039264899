#include "backend/cuda/lora_cuda.h"

#include <assert.h>
#include <string.h>

#include "backend/cuda/shared_bytes.h"
#include "base/float.h"

#define THREADS 256 /* of a block; kernels/cuda/common/lora.cuh */
#define STRIP_NARROW 16
#define GEMV_WARPS 32
#define BLOCK_OUTPUTS 256 /* dense, where K is one chunk */
#define ITEM_OUTPUTS 1024 /* of an expand's item */
#define SPLIT_ROWS 128    /* up to so many rows sums over K are cut into parts */
/* Blocks that share the pairs of 16 sorted rows of experts: of prompts, of few rows. */
#define MOE_SLICES 2
#define MOE_SLICES_FEW 8
/* Blocks a multiprocessor: enough to hide latency, few enough that idle ones cost nothing. */
#define SHRINK_BLOCKS 3
#define PROMPT_THREADS 512             /* of a shrink's block for prompts */
#define PARTS_BYTES (32 * 16 * 16 * 4) /* its shared memory */
#define EXPAND_BLOCKS 2

/* ---- memory of adapters ---- */

void cuda_lora_pack_a(const float *a, int rank, int k, uint16_t *out) {
    const int padded = cuda_lora_k(k);
    memset(out, 0, (size_t)cuda_lora_rank(rank) * (size_t)padded * sizeof *out);
    for (int z = 0; z < rank; z++)
        for (int i = 0; i < k; i++)
            out[(size_t)z * (size_t)padded + (size_t)i] =
                bf16_from_float(a[(size_t)z * (size_t)k + (size_t)i]);
}

void cuda_lora_pack_b(const float *b, int n, int rank, uint16_t *out) {
    const int padded = cuda_lora_rank(rank);
    memset(out, 0, (size_t)n * (size_t)padded * sizeof *out);
    for (int o = 0; o < n; o++)
        for (int z = 0; z < rank; z++)
            out[(size_t)o * (size_t)padded + (size_t)z] =
                bf16_from_float(b[(size_t)o * (size_t)rank + (size_t)z]);
}

/* ---- launches ---- */

typedef struct Shape {
    uint32_t x, y, threads, shared;
} Shape;

static LgStatus launch(const CudaLaunch *l, LoraHandle kernel, Shape s, void *params,
                       const char *what, LgError *err) {
    CudaLaunchAttribute attribute = {.id = CUDA_ATTRIBUTE_PROGRAMMATIC, .value.flag = 1};
    CudaLaunchConfig config = {.grid = {s.x, s.y, 1},
                               .block = {s.threads, 1, 1},
                               .shared_bytes = s.shared,
                               .stream = l->stream,
                               .attributes = &attribute,
                               .attribute_count = l->dependent && l->device->major >= 9 ? 1 : 0};
    void *args[] = {params};
    CUDA_TRY(&l->device->driver, launch(&config, kernel, args, NULL), what, err);
    return LG_OK;
}

static uint32_t blocks_of(int64_t n, int64_t each) {
    return (uint32_t)((n + each - 1) / each);
}

/* A grid that goes over its items in turns. */
static uint32_t grid_of(const CudaLaunch *l, int64_t items, int a_multiprocessor) {
    int64_t most = (int64_t)l->device->sm_count * a_multiprocessor;
    return (uint32_t)(items < most ? (items > 0 ? items : 1) : most);
}

/* ---- dense ---- */

/* gemv: a block has 32 warps, a chunk of 8 outputs each. */
static LgStatus product_row(const CudaLaunch *l, LgcDense *p, const char *what, LgError *err) {
    const int chunks = lgc_chunks(p->k);
    Shape s = {.x = blocks_of(p->n, 8 * (chunks < GEMV_WARPS ? GEMV_WARPS / chunks : 1)),
               .y = 1,
               .threads = 32 * GEMV_WARPS};
    return launch(l, l->kernels->gemv_k, s, p, what, err);
}

static LgStatus product(const CudaLaunch *l, LoraHandle kernel, bool queued, LgcDense *p,
                        const char *what, LgError *err) {
    const bool one = lgc_chunks(p->k) == 1;
    if (kernel == l->kernels->gemv_k)
        return product_row(l, p, what, err);
    Shape s = {.x = blocks_of(p->n, one ? BLOCK_OUTPUTS : STRIP_NARROW),
               .y = blocks_of(p->rows, 16 * (queued && one ? 4 : 1)),
               .threads = THREADS,
               .shared = queued ? CUDA_GEMM_TC_SHARED : 0};
    return launch(l, kernel, s, p, what, err);
}

static LgStatus dense_expand(const CudaLaunch *l, const CudaLoraDense *d, LoraHandle kernel,
                             bool queued, LgcDense *expand, LgError *err) {
    if (d->rows > 1 && l->kernels->gemm_tc_acc_k) {
        expand->y = d->y;
        expand->y_stride = d->y_stride;
        return product(l, l->kernels->gemm_tc_acc_k, true, expand, "dense_gemm_tc_scaled_acc", err);
    }
    expand->y = d->delta;
    expand->y_stride = d->n;
    expand->f32 = 1;
    LG_TRY(product(l, kernel, queued, expand, "an adapter's expand", err));
    LgcScaledAdd add = {.y = d->y,
                        .delta = d->delta,
                        .y_stride = d->y_stride,
                        .delta_stride = d->n,
                        .rows = d->rows,
                        .n = d->n,
                        .scale = d->scale};
    Shape s = {.x = grid_of(l, ((int64_t)d->rows * ((d->n + 7) / 8) + THREADS - 1) / THREADS, 8),
               .y = 1,
               .threads = THREADS};
    return launch(l, l->kernels->scaled_add_k, s, &add, "bf16_scaled_add", err);
}

LgStatus cuda_lora_apply(const CudaLaunch *l, const CudaLoraDense *d, LgError *err) {
    const LoraKernels *k = l->kernels;
    if (!k->gemv_k)
        return lora_missing(err, "lora_apply", "gemv", "dense_gemv_bf16");
    if (!k->gemm_k)
        return lora_missing(err, "lora_apply", "gemm", "dense_gemm_bf16");
    if (!k->scaled_add_k)
        return lora_missing(err, "lora_apply", "residual_add", "bf16_scaled_add");
    if (d->rank == 0 || d->rows == 0)
        return LG_OK;
    const bool queued = d->rows > 1 && k->gemm_tc_k;
    LoraHandle kernel = d->rows == 1 ? k->gemv_k : queued ? k->gemm_tc_k : k->gemm_k;
    LgcDense shrink = {.x = d->x,
                       .w = d->a,
                       .y = d->low,
                       .x_stride = d->x_stride,
                       .w_stride = cuda_lora_k(d->k),
                       .y_stride = d->rank,
                       .rows = d->rows,
                       .n = d->rank,
                       .k = d->k};
    LG_TRY(product(l, kernel, queued, &shrink, "an adapter's shrink", err));
    LgcDense expand = {.x = d->low,
                       .w = d->b,
                       .x_stride = d->rank,
                       .w_stride = d->rank,
                       .rows = d->rows,
                       .n = d->n,
                       .k = d->rank,
                       .scale = d->scale};
    return dense_expand(l, d, kernel, queued, &expand, err);
}

/* ---- routed ---- */

CudaLoraPlan cuda_lora_plan(int rows) {
    const bool few = rows <= SPLIT_ROWS;
    return (CudaLoraPlan){.rows = rows, .tile_rows = few ? 16 : LGC_TILE_ROWS, .split = few};
}

int64_t cuda_lora_low_rows(const CudaLoraPlan *plan, int k) {
    return (int64_t)plan->rows * (plan->split ? lgc_chunks(k) : 1);
}

/* All sites' blocks of outputs. */
static int output_blocks(const int *n, int site_count) {
    int blocks = 0;
    for (int s = 0; s < site_count; s++)
        blocks += (n[s] + ITEM_OUTPUTS - 1) / ITEM_OUTPUTS;
    return blocks;
}

/* All blocks of the shrink at once: each takes as many chunks as that needs. */
static Shape shrink_shape(const CudaLaunch *l, const CudaLoraPlan *plan, const LgcCall *call) {
    Shape s = {.y = 1, .threads = plan->split ? THREADS : PROMPT_THREADS};
    if (plan->split) {
        s.x = grid_of(l, (int64_t)plan->rows * lgc_chunks(call->k), SHRINK_BLOCKS);
    } else {
        s.x = grid_of(l, (int64_t)plan->rows * call->site_count, SHRINK_BLOCKS);
        s.shared = PARTS_BYTES;
    }
    return s;
}

LgStatus cuda_lora_apply_bgmv(const CudaLaunch *l, const CudaLoraPlan *plan, LgcCall *call,
                              LgError *err) {
    const LoraKernels *k = l->kernels;
    assert(call->site_count >= 1 && call->site_count <= LGC_SITES);
    assert(call->low_stride % (LGC_SET * LGC_RANK_PAD) == 0);
    if (!k->bgmv_shrink_k)
        return lora_missing(err, "lora_apply_bgmv", "lora_bgmv", "lora_bgmv_shrink");
    if (!k->bgmv_expand_fold_k)
        return lora_missing(err, "lora_apply_bgmv", "lora_bgmv", "lora_bgmv_expand_fold");
    call->split = plan->split;
    call->tile_rows = plan->tile_rows;
    call->entries = plan->rows;
    Shape s = shrink_shape(l, plan, call);
    LG_TRY(launch(l, k->bgmv_shrink_k, s, call, "lora_bgmv_shrink", err));
    s.x = grid_of(l, (int64_t)plan->rows * output_blocks(call->n, call->site_count), EXPAND_BLOCKS);
    s.threads = THREADS;
    s.shared = 0;
    return launch(l, k->bgmv_expand_fold_k, s, call, "lora_bgmv_expand_fold", err);
}

/* ---- experts ---- */

int64_t cuda_lora_moe_low_rows(int rows, int k) {
    return (int64_t)rows * (rows <= SPLIT_ROWS * 8 ? lgc_chunks(k) : 1);
}

/* Both kernels of one form over tiles of so many rows. */
static LgStatus moe_pair(const CudaLaunch *l, LoraHandle shrink, LoraHandle fold, int tile_rows,
                         LgcMoe *call, LgError *err) {
    assert(call->site_count >= 1 && call->site_count <= LGC_SITES);
    assert(call->low_stride % (LGC_SET * LGC_RANK_PAD) == 0);
    call->split = call->entries <= SPLIT_ROWS * 8;
    const bool grouped = tile_rows > 1;
    const int64_t left =
        call->rows - call->first < call->entries ? call->rows - call->first : call->entries;
    const int64_t tiles = (left + tile_rows - 1) / tile_rows;
    const int chunks = call->split ? lgc_chunks(call->k) : 1;
    Shape s = {.y = 1, .threads = THREADS};
    if (grouped) {
        call->slices = call->split ? 1 : MOE_SLICES;
        s.x = grid_of(l, tiles * call->slices * chunks, SHRINK_BLOCKS * 2);
    } else {
        const int64_t most = (int64_t)l->device->sm_count * 4 / (tiles ? tiles : 1);
        call->slices = most < 1 ? 1 : most > 4 ? 4 : (int)most;
        s.x = grid_of(l, tiles * call->slices, SHRINK_BLOCKS * 2);
    }
    LG_TRY(launch(l, shrink, s, call, "an expert's shrink", err));
    call->slices = grouped ? (call->split ? MOE_SLICES_FEW : MOE_SLICES) : 1;
    s.x = grid_of(l, tiles * call->slices * output_blocks(call->n, call->site_count),
                  EXPAND_BLOCKS * 2);
    s.threads = THREADS;
    return launch(l, fold, s, call, "an expert's expand", err);
}

LgStatus cuda_lora_apply_moe_grouped(const CudaLaunch *l, LgcMoe *call, int window, LgError *err) {
    const LoraKernels *k = l->kernels;
    if (!k->moe_down_shrink_k)
        return lora_missing(err, "lora_apply_moe_grouped", "moe_lora_grouped_down",
                            "moe_lora_grouped_shrink");
    if (!k->moe_down_expand_fold_k)
        return lora_missing(err, "lora_apply_moe_grouped", "moe_lora_grouped_down",
                            "moe_lora_grouped_expand_fold");
    assert(window > 0);
    for (int first = 0; first < call->rows; first += window) {
        call->first = first;
        call->entries = window;
        LG_TRY(moe_pair(l, k->moe_down_shrink_k, k->moe_down_expand_fold_k, 16, call, err));
    }
    return LG_OK;
}

LgStatus cuda_lora_apply_moe_gather(const CudaLaunch *l, LgcMoe *call, LgError *err) {
    const LoraKernels *k = l->kernels;
    if (!k->moe_gather_shrink_k)
        return lora_missing(err, "lora_apply_moe_gather", "moe_lora_gather_bgmv",
                            "moe_lora_gather_shrink");
    if (!k->moe_gather_expand_fold_k)
        return lora_missing(err, "lora_apply_moe_gather", "moe_lora_gather_bgmv",
                            "moe_lora_gather_expand_fold");
    if (call->rows == 0)
        return LG_OK;
    call->first = 0;
    call->entries = call->rows;
    return moe_pair(l, k->moe_gather_shrink_k, k->moe_gather_expand_fold_k, 1, call, err);
}
