/* What tests see of the CUDA runner beyond Runner. */
#ifndef LG_CUDA_RUNNER_CUDA_H
#define LG_CUDA_RUNNER_CUDA_H

#include "backend/cuda/device.h"
#include "backend/runner.h"

/* Called behind each launch (and behind what is done to its tiles), when the device is idle;
 * values: the arena's memory, copied to the host. */
typedef void (*CudaTrace)(void *user, int launch, int layer, const unsigned char *values);

/* Later steps run launch by launch, not as graphs. NULL: no more. */
void runner_cuda_trace(Runner *r, CudaTrace trace, void *user);
/* Steps are launched, not replayed as graphs. */
void runner_cuda_graphs(Runner *r, bool on);
const Plan *runner_cuda_plan(const Runner *r);

#endif
