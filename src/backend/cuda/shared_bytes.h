/* Shared memory that kernels ask for beyond what every block may have. Internal to
 * src/backend/cuda. */
#ifndef LG_CUDA_SHARED_BYTES_H
#define LG_CUDA_SHARED_BYTES_H

/* dense_gemm_tc.cu: eight queues of three stages of 48 rows of 128 bytes, and 8 × 16 × 32 sums. */
#define CUDA_GEMM_TC_SHARED (8 * 3 * 48 * 128 + 8 * 16 * 32 * 4)

#endif
