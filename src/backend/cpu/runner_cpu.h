/* What tests see of the CPU runner beyond Runner: its plan, and a look at memory after each launch.
 */
#ifndef LG_CPU_RUNNER_CPU_H
#define LG_CPU_RUNNER_CPU_H

#include "backend/runner.h"
#include "kernels/cpu/abi.h"

typedef void (*CpuTrace)(const LgpStep *step, int32_t launch, int32_t layer);

/* Calls trace after each launch of later steps, with step->trace_user == user. NULL: no more. Not
 * together with profile. */
void runner_cpu_trace(Runner *r, CpuTrace trace, void *user);
const Plan *runner_cpu_plan(const Runner *r);

#endif
