/* Adapters on CUDA: memory of adapters, the route of a step, and the launchers over the same table
 * of handles as the CPU's. Every launcher may be captured in a graph: it allocates nothing, reads
 * nothing back, and its launches depend on the bucket of rows alone, not on the adapters. */
#ifndef LG_CUDA_LORA_CUDA_H
#define LG_CUDA_LORA_CUDA_H

#include "backend/cuda/device.h"
#include "backend/lora_kernels.h"
#include "kernels/cuda/common/lora_abi.h"

/* Where launches go. */
typedef struct CudaLaunch {
    const CudaDevice *device;
    const LoraKernels *kernels;
    void *stream;
    bool dependent; /* a launch may begin (and fetch weights) before the one before it has ended */
} CudaLaunch;

/* ---- memory of adapters ---- */

/* Elements of A and B in their padded form: rank in whole 8, rows of A in whole 16. */
static inline int cuda_lora_rank(int rank) {
    return (rank + LGC_RANK_PAD - 1) / LGC_RANK_PAD * LGC_RANK_PAD;
}
static inline int cuda_lora_k(int k) {
    return (k + LGC_K_PAD - 1) / LGC_K_PAD * LGC_K_PAD;
}
/* a: [rank, k] values that are bf16 already; out: [padded rank, padded k]. */
void cuda_lora_pack_a(const float *a, int rank, int k, uint16_t *out);
/* b: [n, rank]; out: [n, padded rank]. */
void cuda_lora_pack_b(const float *b, int n, int rank, uint16_t *out);

/* ---- the route of a step ---- */

/* What follows from a bucket of rows alone. */
typedef struct CudaLoraPlan {
    int rows;
    int tile_rows; /* of a tile at most */
    bool split;    /* sums over K in parts, one a chunk: few rows */
} CudaLoraPlan;
CudaLoraPlan cuda_lora_plan(int rows);
/* Rows of `low_stride` f32 that a launch over K needs. */
int64_t cuda_lora_low_rows(const CudaLoraPlan *plan, int k);

/* Tiles of rows with the same set of adapters, at fixed addresses; the host writes them for each
 * step. One for each bucket. */
typedef struct CudaRoute CudaRoute;
LgStatus cuda_route_create(const CudaDevice *d, int rows, CudaRoute **out, LgError *err);
void cuda_route_destroy(CudaRoute *r);
/* sets: [count][LGC_SET] slots, those of a row from the first on, then negative. scales: the same,
 * of the requests. A row without any is left out. The copy runs on the stream. */
LgStatus cuda_route_write(CudaRoute *r, const int32_t *sets, const float *scales, int count,
                          void *stream, LgError *err);
void cuda_route_view(const CudaRoute *r, LgcRoute *out);
/* What the last write made, on the host: for tests and reports. */
int cuda_route_tiles(const CudaRoute *r, const LgcTile **tiles, const int32_t **rows);

/* ---- launchers ---- */

/* One adapter on rows that all have it. */
typedef struct CudaLoraDense {
    CudaPtr x, y; /* bf16 */
    int64_t x_stride, y_stride;
    int rows, k, n, rank; /* rank: padded */
    CudaPtr a, b;
    float scale;   /* the site's times the request's */
    CudaPtr low;   /* [rows, rank] bf16 */
    CudaPtr delta; /* [rows, n] f32: where expand and fold are two kernels */
} CudaLoraDense;

/* One row: gemv, gemv, scaled add.  More: gemm_tc (gemm where missing), then expand and fold in one
 * (two where missing).  Same bits either way, and those of the routed form.  Errors: LG_DEVICE: a
 * needed handle is 0: nothing was launched; or the driver's. */
LgStatus cuda_lora_apply(const CudaLaunch *l, const CudaLoraDense *d, LgError *err);

/* Routed: the tiles of a route, sibling sites of one x in one shrink. call: split, tile_rows and
 * entries are the launcher's to fill in from the plan. */
LgStatus cuda_lora_apply_bgmv(const CudaLaunch *l, const CudaLoraPlan *plan, LgcCall *call,
                              LgError *err);

/* Experts, rows sorted by expert, in windows of as many rows as low has room for. Errors: LG_DEVICE
 * naming the kernel that this device lacks; nothing was launched. */
LgStatus cuda_lora_apply_moe_grouped(const CudaLaunch *l, LgcMoe *call, int window, LgError *err);
/* Experts, rows = tokens * top_k as they come. low has room for all. */
LgStatus cuda_lora_apply_moe_gather(const CudaLaunch *l, LgcMoe *call, LgError *err);
/* Rows of low that the two need: of a window, or of all rows. */
int64_t cuda_lora_moe_low_rows(int rows, int k);

#endif
