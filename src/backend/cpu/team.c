/* A waiting thread spins for a few dozen microseconds (the usual wait inside a step, and between
 * steps) and then sleeps in the kernel on the word that it waits for. Where the team is larger than
 * the machine it sleeps at once: a spinning thread would take the processor from the one that it
 * waits for. */
#include "backend/cpu/team.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/mem.h"

#define SPINS_MAX 2000

/* A word that threads wait on until it changes. */
typedef struct Signal {
    alignas(64) atomic_uint word;
    atomic_uint sleepers;
} Signal;

/* Padded: what every thread writes lies on lines of its own. */
struct Team { // NOLINT(clang-analyzer-optin.performance.Padding)
    alignas(64) atomic_int next_task;
    alignas(64) atomic_int arrived;
    Signal generation; /* of the barrier */
    Signal met;        /* threads that have arrived since the last barrier */
    Signal epoch;      /* of team_run; workers wait for it between runs */
    int32_t thread_count;
    int spins;
    bool stop; /* read after epoch changed */
    TeamFn fn;
    void *user;
    int32_t started;
    pthread_t threads[TEAM_THREADS_MAX];
    struct TeamWorker {
        Team *team;
        int32_t thread;
    } workers[TEAM_THREADS_MAX];
};

int team_processors(void) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return CPU_COUNT(&set);
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 && n < INT_MAX ? (int)n : 1;
}

static inline void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void signal_wait(Signal *s, unsigned seen, int spins) {
    for (int i = 0; i < spins; i++) {
        if (atomic_load_explicit(&s->word, memory_order_acquire) != seen)
            return;
        pause_briefly();
    }
    /* The setter changes the word before it looks for sleepers, we count ourselves before the
     * kernel looks at the word: one of the two sees the other. */
    atomic_fetch_add(&s->sleepers, 1);
    while (atomic_load(&s->word) == seen)
        syscall(SYS_futex, &s->word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(&s->sleepers, 1);
}

/* After the word has changed. */
static void signal_wake(Signal *s) {
    if (atomic_load(&s->sleepers) != 0)
        syscall(SYS_futex, &s->word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void signal_set(Signal *s, unsigned value) {
    atomic_store(&s->word, value);
    signal_wake(s);
}

int32_t team_claim(void *team) {
    Team *t = team;
    return atomic_fetch_add_explicit(&t->next_task, 1, memory_order_relaxed);
}

void team_barrier(void *team, int32_t thread) {
    (void)thread;
    Team *t = team;
    unsigned seen = atomic_load_explicit(&t->generation.word, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&t->arrived, 1, memory_order_acq_rel) + 1 == t->thread_count) {
        atomic_store_explicit(&t->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&t->next_task, 0, memory_order_relaxed);
        atomic_store_explicit(&t->met.word, 0, memory_order_relaxed);
        signal_set(&t->generation, seen + 1);
    } else {
        signal_wait(&t->generation, seen, t->spins);
    }
}

void team_arrive(void *team) {
    Team *t = team;
    atomic_fetch_add(&t->met.word, 1);
    signal_wake(&t->met);
}

void team_meet(void *team) {
    Team *t = team;
    unsigned there;
    while ((there = atomic_load_explicit(&t->met.word, memory_order_acquire)) <
           (unsigned)t->thread_count)
        signal_wait(&t->met, there, t->spins);
}

static void *worker_main(void *arg) {
    struct TeamWorker *w = arg;
    Team *t = w->team;
    unsigned seen = 0;
    for (;;) {
        signal_wait(&t->epoch, seen, t->spins);
        seen++;
        if (t->stop)
            return NULL;
        t->fn(t->user, w->thread);
        team_barrier(t, w->thread);
    }
}

void team_run(Team *t, TeamFn fn, void *user) {
    t->fn = fn;
    t->user = user;
    if (t->thread_count > 1)
        signal_set(&t->epoch, atomic_load_explicit(&t->epoch.word, memory_order_relaxed) + 1);
    fn(user, 0);
    team_barrier(t, 0);
}

LgStatus team_create(int threads, Team **out, LgError *err) {
    int count = threads > 0 ? threads : team_processors();
    if (threads == 0 && count > TEAM_THREADS_MAX)
        count = TEAM_THREADS_MAX;
    if (threads < 0 || count > TEAM_THREADS_MAX)
        return lg_fail(err, LG_LIMIT, 0,
                       "%d threads asked for: 1 to %d are possible, 0 takes the machine's", threads,
                       TEAM_THREADS_MAX);
    Team *t = lg_alloc_aligned(sizeof *t);
    if (!t)
        return lg_fail_memory(err);
    memset(t, 0, sizeof *t);
    t->thread_count = count;
    t->spins = count <= team_processors() ? SPINS_MAX : 0;

    /* The program's signals are for its own threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = 0;
    for (int32_t i = 1; i < count && !failed; i++) {
        t->workers[i] = (struct TeamWorker){t, i};
        failed = pthread_create(&t->threads[i], NULL, worker_main, &t->workers[i]);
        if (!failed)
            t->started = i;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        int failed_thread = t->started + 2;
        team_destroy(t);
        return lg_fail(err, LG_INTERNAL, 0,
                       "cannot start thread %d of %d: %s; fewer threads may do", failed_thread,
                       count, strerror(failed));
    }
    *out = t;
    return LG_OK;
}

void team_destroy(Team *t) {
    if (!t)
        return;
    t->stop = true;
    signal_set(&t->epoch, atomic_load_explicit(&t->epoch.word, memory_order_relaxed) + 1);
    for (int32_t i = 1; i <= t->started; i++)
        pthread_join(t->threads[i], NULL);
    lg_free_aligned(t);
}

int32_t team_thread_count(const Team *t) {
    return t->thread_count;
}
