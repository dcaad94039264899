/* The thread team: every thread runs, tasks are claimed once, barriers order memory, at any number
 * of threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "backend/cpu/team.h"
#include "base/clock.h"
#include "base/mem.h"

#define ROUNDS 200
#define TASKS 37

typedef struct Rounds {
    Team *team;
    int32_t threads;
    int value[TASKS]; /* written by whoever claims the task, read by all in the next round: no
                         atomics on purpose */
    atomic_int claimed[TASKS];
    atomic_int wrong;
    int rounds;
} Rounds;

static void play_rounds(void *user, int32_t thread) {
    Rounds *g = user;
    for (int round = 0; round < g->rounds; round++) {
        for (int32_t task; (task = team_claim(g->team)) < TASKS;) {
            g->value[task] = round * TASKS + task;
            atomic_fetch_add(&g->claimed[task], 1);
        }
        team_barrier(g->team, thread);
        for (int task = 0; task < TASKS; task++)
            if (g->value[task] != round * TASKS + task)
                atomic_fetch_add(&g->wrong, 1);
        team_barrier(g->team, thread);
    }
}

/* What each thread wrote before it arrived is there for all that have met. */
static void play_meetings(void *user, int32_t thread) {
    Rounds *g = user;
    for (int round = 0; round < g->rounds; round++) {
        g->value[thread] = round;
        team_arrive(g->team);
        team_meet(g->team);
        for (int32_t other = 0; other < g->threads; other++)
            if (g->value[other] != round)
                atomic_fetch_add(&g->wrong, 1);
        team_meet(g->team); /* again, at no cost */
        team_barrier(g->team, thread);
    }
}

static void team_meets_once_a_barrier(void **state) {
    (void)state;
    for (int threads = 1; threads <= 8; threads++) {
        Rounds g = {.threads = threads, .rounds = ROUNDS};
        assert_int_equal(team_create(threads, &g.team, NULL), LG_OK);
        team_run(g.team, play_meetings, &g);
        team_run(g.team, play_meetings, &g);
        assert_int_equal(atomic_load(&g.wrong), 0);
        team_destroy(g.team);
    }
}

static void run_rounds(int threads, int rounds) {
    Rounds g = {.threads = threads, .rounds = rounds};
    assert_int_equal(team_create(threads, &g.team, NULL), LG_OK);
    assert_int_equal(team_thread_count(g.team), threads);
    team_run(g.team, play_rounds, &g);
    team_run(g.team, play_rounds, &g);
    for (int task = 0; task < TASKS; task++)
        assert_int_equal(atomic_load(&g.claimed[task]), 2 * rounds);
    assert_int_equal(atomic_load(&g.wrong), 0);
    team_destroy(g.team);
}

static void team_claims_each_task_once_and_orders_memory(void **state) {
    (void)state;
    for (int threads = 1; threads <= 8; threads++)
        run_rounds(threads, ROUNDS);
}

static void team_larger_than_the_machine_does_not_crawl(void **state) {
    (void)state;
    double begin = clock_seconds();
    run_rounds(team_processors() * 4 + 1, ROUNDS);
    /* 800 barriers: even a millisecond each would pass; a spinning team needs a time slice for
     * each. */
    assert_true(clock_seconds() - begin < 20.0);
}

static void count_call(void *user, int32_t thread) {
    atomic_int *seen = user;
    atomic_fetch_add(&seen[thread], 1);
}

static void team_runs_on_every_thread_after_idling(void **state) {
    (void)state;
    enum { THREADS = 3 };
    Team *t;
    assert_int_equal(team_create(THREADS, &t, NULL), LG_OK);
    atomic_int seen[THREADS] = {0};
    for (int i = 0; i < 20; i++) {
        team_run(t, count_call, seen);
        if (i % 5 == 0) {
            struct timespec ms = {0, 2000000}; /* longer than any spin: the threads sleep */
            nanosleep(&ms, NULL);
        }
    }
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(atomic_load(&seen[i]), 20);
    team_destroy(t);
}

static void team_refuses_counts_it_cannot_have(void **state) {
    (void)state;
    Team *t = NULL;
    LgError err = {0};
    assert_int_equal(team_create(TEAM_THREADS_MAX + 1, &t, &err), LG_LIMIT);
    assert_non_null(strstr(err.message, "256"));
    assert_int_equal(team_create(-1, &t, &err), LG_LIMIT);
    assert_null(t);
}

static void team_of_zero_takes_the_machine(void **state) {
    (void)state;
    Team *t;
    assert_int_equal(team_create(0, &t, NULL), LG_OK);
    assert_true(team_thread_count(t) >= 1);
    assert_true(team_thread_count(t) <= team_processors());
    team_destroy(t);
    team_destroy(NULL);
}

static void team_create_reports_a_failed_allocation(void **state) {
    (void)state;
    Team *t = NULL;
    lg_alloc_fail_at(1, 0);
    LgStatus status = team_create(2, &t, NULL);
    lg_alloc_fail_at(0, 0);
    assert_int_equal(status, LG_NO_MEMORY);
    assert_null(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(team_claims_each_task_once_and_orders_memory),
        cmocka_unit_test(team_meets_once_a_barrier),
        cmocka_unit_test(team_larger_than_the_machine_does_not_crawl),
        cmocka_unit_test(team_runs_on_every_thread_after_idling),
        cmocka_unit_test(team_refuses_counts_it_cannot_have),
        cmocka_unit_test(team_of_zero_takes_the_machine),
        cmocka_unit_test(team_create_reports_a_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
