/* How launchers of adapter products hand out their tasks. Internal to src/backend/cpu. */
#ifndef LG_CPU_LORA_WALK_H
#define LG_CPU_LORA_WALK_H

#include "backend/cpu/lora_launch.h"

/* Tasks: a few rows each, so that what they share is read once and what they touch stays in the
 * cache; and a few tasks a thread, but none so small that handing it out costs more than itself.
 * Work is counted in multiply-adds. */
#define TASK_ROWS 12
#define TASK_RANKS 16
#define TASKS_A_THREAD 2
#define TASK_WORK_MIN ((int64_t)16384)
#define TASK_WORK_MAX ((int64_t)65536)
#define FOLD_WORK 8 /* what a result costs beside its ranks */

/* Tasks in their one order: each thread walks over all of them and stops at those that it has
 * claimed. Dealt: at every thread_count-th, where numbers to claim are those of other tasks. */
typedef struct Walk {
    const LoraLaunch *launch;
    int64_t task_work; /* about */
    int32_t next, index;
    bool dealt;
} Walk;

static inline Walk walk_begin(const LoraLaunch *l, int64_t work) {
    int64_t part = work / ((int64_t)l->thread_count * TASKS_A_THREAD);
    part = part < TASK_WORK_MIN ? TASK_WORK_MIN : part > TASK_WORK_MAX ? TASK_WORK_MAX : part;
    return (Walk){.launch = l, .task_work = part, .next = l->claim ? l->claim(l->team) : 0};
}

static inline Walk walk_deal(const LoraLaunch *l) {
    return (Walk){.launch = l, .next = l->claim ? l->thread : 0, .dealt = true};
}

static inline bool walk_mine(Walk *w) {
    if (w->launch->claim && w->index != w->next) {
        w->index++;
        return false;
    }
    w->index++;
    return true;
}

static inline void walk_done(Walk *w) {
    if (w->dealt)
        w->next += w->launch->thread_count;
    else if (w->launch->claim)
        w->next = w->launch->claim(w->launch->team);
}

static inline int32_t in_range(int64_t n, int32_t from, int32_t to) {
    return n < from ? from : n > to ? to : (int32_t)n;
}

#endif
