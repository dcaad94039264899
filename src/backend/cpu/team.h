/* The threads that run a CPU program: one function on all of them at once, tasks claimed one by
 * one, barriers in between. The caller of team_run is thread 0. One run at a time. Who computes
 * what never changes a value: that is the programs' part. */
#ifndef LG_CPU_TEAM_H
#define LG_CPU_TEAM_H

#include <stdint.h>

#include "base/status.h"

typedef struct Team Team;

typedef void (*TeamFn)(void *user, int32_t thread);

#define TEAM_THREADS_MAX 256

/* threads: 0 for the processors that this process may use. Errors: LG_LIMIT, LG_NO_MEMORY,
 * LG_INTERNAL (no thread could be made). */
LgStatus team_create(int threads, Team **out, LgError *err);
void team_destroy(Team *t);
int32_t team_thread_count(const Team *t);

/* Returns when every thread has come back from fn. */
void team_run(Team *t, TeamFn fn, void *user);

/* In a run, by its threads. The signatures are those of LgpStep's hooks. */
int32_t team_claim(void *team); /* 0, 1, 2, … since the run's start or its last barrier */
void team_barrier(
    void *team,
    int32_t thread); /* all threads meet; what was written before is seen by all after */

/* A barrier in two halves, once between two barriers: this thread is there; wait until all are, and
 * see what each wrote before. */
void team_arrive(void *team);
void team_meet(void *team);

/* Processors that this process may use; at least 1. */
int team_processors(void);

#endif
