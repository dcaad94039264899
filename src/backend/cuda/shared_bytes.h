/* Shared memory that kernels ask for beyond what every block may have. Internal to
 * src/backend/cuda. */
#ifndef LG_CUDA_SHARED_BYTES_H
#define LG_CUDA_SHARED_BYTES_H

/* dense_gemm_tc.cu: eight queues of four stages of 32 rows of 128 bytes, and 32 × 16 × 16 sums. */
#define CUDA_GEMM_TC_SHARED (8 * 4 * 32 * 128 + 32 * 16 * 16 * 4)

#endif
