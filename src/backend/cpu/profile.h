/* Time by launch: thread 0 looks at the clock behind the barrier that ends each launch. */
#ifndef LG_CPU_PROFILE_H
#define LG_CPU_PROFILE_H

#include "backend/runner.h"
#include "ir/stage.h"
#include "kernels/cpu/abi.h"

typedef struct Profile {
    LaunchTime *times; /* [count]; in the runner's arena */
    int count;
    double last; /* the clock at the end of the launch before */
} Profile;

LgStatus profile_init(Profile *p, const Plan *plan, Arena *arena, LgError *err);
void profile_clear(Profile *p);
void profile_begin(Profile *p); /* before each step */
/* LgpStep's trace hook; trace_user is the Profile. */
void profile_trace(const LgpStep *step, int32_t launch, int32_t layer);

#endif
