#include "backend/cpu/profile.h"

#include "base/clock.h"

LgStatus profile_init(Profile *p, const Plan *plan, Arena *arena, LgError *err) {
    p->times = ARENA_ARRAY(arena, LaunchTime, (size_t)plan->launch_count + 1);
    if (!p->times)
        return lg_fail_memory(err);
    p->count = plan->launch_count;
    for (int i = 0; i < p->count; i++)
        p->times[i].name = plan->launches[i].name;
    return LG_OK;
}

void profile_clear(Profile *p) {
    for (int i = 0; i < p->count; i++)
        p->times[i] = (LaunchTime){.name = p->times[i].name};
}

void profile_begin(Profile *p) {
    p->last = clock_seconds();
}

void profile_trace(const LgpStep *step, int32_t launch, int32_t layer) {
    (void)layer;
    Profile *p = step->trace_user;
    double now = clock_seconds();
    if (launch >= 0 && launch < p->count) {
        p->times[launch].calls++;
        p->times[launch].seconds += now - p->last;
    }
    p->last = now;
}
