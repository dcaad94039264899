/* Times the same calls as the checks make, over weights larger than the caches, in huge pages as at
 * load. A run's time is the processor time of its busiest thread, so that others on the machine
 * count for less; best and median of many runs. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/clock.h"
#include "base/float.h"
#include "base/rng.h"
#include "lora_fixture.h"

#define THREADS_MAX 64
#define RUNS_MAX 400
#define HUGE_PAGE ((size_t)2 << 20)
#define WEIGHT_BYTES ((size_t)192 << 20) /* rotated through, so that weights come from memory */

typedef struct Bench {
    const LgpKernelTable *k;
    int threads;
    pthread_barrier_t barrier;
    atomic_int next, stop;
    int32_t (*tasks)(const struct Bench *b);
    void (*task)(const struct Bench *b, int32_t task, float *scratch);
    size_t scratch_floats;
    const void *args;
    double seconds[THREADS_MAX]; /* of each thread in the present run */
} Bench;

typedef struct Worker {
    Bench *bench;
    int thread;
} Worker;

static double thread_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *worker(void *user) {
    const Worker *w = user;
    Bench *b = w->bench;
    float *scratch = aligned_alloc(64, (b->scratch_floats * sizeof(float) + 127) / 64 * 64);
    memset(scratch, 0, b->scratch_floats * sizeof(float));
    for (;;) {
        pthread_barrier_wait(&b->barrier);
        if (atomic_load(&b->stop))
            break;
        double start = thread_seconds();
        int32_t count = b->tasks(b), task;
        while ((task = atomic_fetch_add_explicit(&b->next, 1, memory_order_relaxed)) < count)
            b->task(b, task, scratch);
        b->seconds[w->thread] = thread_seconds() - start;
        pthread_barrier_wait(&b->barrier);
    }
    free(scratch);
    return NULL;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Runs for about half a second; args of run i are given by turn. */
static void measure(Bench *b, const void *(*turn)(void *user, int run), void *user, double *best,
                    double *median) {
    pthread_t threads[THREADS_MAX];
    Worker workers[THREADS_MAX];
    double times[RUNS_MAX], begun = clock_seconds();
    int runs = 0;
    pthread_barrier_init(&b->barrier, NULL, (unsigned)b->threads + 1);
    atomic_store(&b->stop, 0);
    for (int i = 0; i < b->threads; i++) {
        workers[i] = (Worker){b, i};
        pthread_create(&threads[i], NULL, worker, &workers[i]);
    }
    for (int run = 0; runs < RUNS_MAX && (runs < 5 || clock_seconds() - begun < 0.5); run++) {
        b->args = turn(user, run);
        atomic_store(&b->next, 0);
        pthread_barrier_wait(&b->barrier);
        pthread_barrier_wait(&b->barrier);
        double busiest = 0;
        for (int i = 0; i < b->threads; i++)
            busiest = b->seconds[i] > busiest ? b->seconds[i] : busiest;
        if (run >= 2)
            times[runs++] = busiest;
    }
    atomic_store(&b->stop, 1);
    pthread_barrier_wait(&b->barrier);
    for (int i = 0; i < b->threads; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&b->barrier);
    qsort(times, (size_t)runs, sizeof *times, by_value);
    *best = times[0];
    *median = times[runs / 2];
}

/* ---- products ---- */

typedef struct Products {
    LgpMatmul m;
    LgpWeight *weights;
    int copies;
} Products;

static int32_t matmul_tasks(const Bench *b) {
    return b->k->matmul_tasks(b->args);
}

static void matmul_task(const Bench *b, int32_t task, float *scratch) {
    b->k->matmul_task(b->args, task, scratch);
}

static const void *matmul_turn(void *user, int run) {
    Products *p = user;
    p->m.w = &p->weights[run % p->copies];
    return &p->m;
}

static float *random_floats(size_t count) {
    float *f = malloc(count * sizeof *f);
    for (size_t i = 0; i < count; i++)
        f[i] = bf16_round(2 * rng_unit(7, i) - 1);
    return f;
}

static void bench_matmul(const LgpKernelTable *k, int threads, int32_t format, const char *name,
                         int32_t n, int32_t columns) {
    static const int32_t rows[] = {1, 2, 4, 8, 32, 512};
    size_t bytes = (size_t)((n + 15) / 16) * lgp_panel_bytes(format, (uint64_t)columns);
    Products p = {.copies = (int)(WEIGHT_BYTES / bytes) + 1};
    p.weights = malloc((size_t)p.copies * sizeof *p.weights);
    size_t stride = (bytes + 4095) / 4096 * 4096, all = stride * (size_t)p.copies;
    unsigned char *data = aligned_alloc(HUGE_PAGE, (all + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
    madvise(data, all, MADV_HUGEPAGE);
    memset(data, 0x31, all);
    for (int i = 0; i < p.copies; i++)
        p.weights[i] = (LgpWeight){
            .data = data + stride * (size_t)i, .format = format, .rows = n, .columns = columns};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double best, median, work = (double)rows[i] * n * columns;
        float *x = random_floats((size_t)rows[i] * (size_t)columns),
              *y = random_floats((size_t)rows[i] * (size_t)n);
        p.m = (LgpMatmul){.x = x,
                          .x_stride = columns,
                          .rows = rows[i],
                          .y = y,
                          .y_stride = n,
                          .round_bf16 = 1,
                          .x_bf16 = 1};
        Bench b = {.k = k,
                   .threads = threads,
                   .tasks = matmul_tasks,
                   .task = matmul_task,
                   .scratch_floats = (size_t)k->matmul_scratch(columns)};
        measure(&b, matmul_turn, &p, &best, &median);
        printf("%-8s matmul %-5s %6d x %-5d rows %3d: best %9.1f us, median %9.1f us, %6.2f G "
               "multiply-adds/s, %6.2f GB/s "
               "(median %6.2f, %6.2f)\n",
               k->level, name, n, columns, rows[i], best * 1e6, median * 1e6, work / best * 1e-9,
               (double)bytes / best * 1e-9, work / median * 1e-9, (double)bytes / median * 1e-9);
        free(x);
        free(y);
    }
    free(data);
    free(p.weights);
}

/* ---- attention ---- */

static int32_t attend_tasks(const Bench *b) {
    return b->k->attend_tasks(b->args);
}

static void attend_task(const Bench *b, int32_t task, float *scratch) {
    b->k->attend_task(b->args, task, scratch);
}

static const void *same_turn(void *user, int run) {
    (void)run;
    return user;
}

static void bench_attend(const LgpKernelTable *k, int threads, int32_t rows, int32_t from,
                         int32_t kv_heads, int32_t group, int32_t width) {
    int32_t positions = from + rows, pages = positions / LGP_PAGE + 1;
    size_t part = (size_t)kv_heads * LGP_PAGE * (size_t)width * 2;
    unsigned char **page = malloc((size_t)pages * sizeof *page);
    for (int32_t i = 0; i < pages; i++) {
        page[i] = aligned_alloc(64, 2 * part);
        memset(page[i], 0x3c, 2 * part);
    }
    int32_t *slot = calloc((size_t)rows, sizeof *slot), *pos = malloc((size_t)rows * sizeof *pos);
    for (int32_t r = 0; r < rows; r++)
        pos[r] = from + r;
    int64_t stride = (int64_t)kv_heads * group * width;
    float *q = random_floats((size_t)(rows * stride)), *o = random_floats((size_t)(rows * stride));
    LgpAttend a = {.q = q,
                   .q_stride = stride,
                   .rows = rows,
                   .slot = slot,
                   .pos = pos,
                   .kv_heads = kv_heads,
                   .group = group,
                   .width = width,
                   .v_width = width,
                   .pages = page,
                   .pages_per_slot = pages,
                   .v_offset = part,
                   .kv_bf16 = 1,
                   .scale = 0.125f,
                   .o = o,
                   .o_stride = stride,
                   .round_bf16 = 1};
    Bench b = {.k = k,
               .threads = threads,
               .tasks = attend_tasks,
               .task = attend_task,
               .scratch_floats = (size_t)k->attend_scratch(group, positions)};
    double best, median, work = 0;
    measure(&b, same_turn, &a, &best, &median);
    for (int32_t r = 0; r < rows; r++)
        work += 2.0 * (pos[r] + 1) * (double)stride;
    printf("%-8s attend rows %4d from %5d, %d x %d heads of %3d: best %9.1f us, median %9.1f us, "
           "%6.2f G multiply-adds/s\n",
           k->level, rows, from, kv_heads, group, width, best * 1e6, median * 1e6,
           work / best * 1e-9);
    for (int32_t i = 0; i < pages; i++)
        free(page[i]);
    free(page);
    free(slot);
    free(pos);
    free(q);
    free(o);
}

/* ---- adapters ---- */

typedef struct LoraBench {
    LoraKernels kernels;
    LgpLora call;
    LgpLoraRoute route;
} LoraBench;

static int32_t one_task(const Bench *b) {
    (void)b;
    return 1;
}

static void lora_task(const Bench *b, int32_t task, float *scratch) {
    const LoraBench *l = b->args;
    LoraLaunch launch = {.kernels = &l->kernels,
                         .thread_count = 1,
                         .own = scratch,
                         .own_floats = (int64_t)b->scratch_floats};
    (void)task;
    lora_apply_bgmv(&launch, &l->call, &l->route);
}

/* Three sibling sites, as q, k and v; `adapters` adapters over the rows in turn. One thread. */
static void bench_lora(const LgpKernelTable *k, int32_t rows, int32_t adapters, int32_t rank,
                       int32_t in, int32_t out) {
    LoraBench l;
    LgpLoraSite *sites = calloc((size_t)adapters * 3, sizeof *sites);
    LgpLoraGroup *groups = calloc((size_t)adapters, sizeof *groups);
    void **memory = calloc((size_t)adapters * 3, sizeof *memory);
    float *a = random_floats((size_t)rank * (size_t)in),
          *bm = random_floats((size_t)out * (size_t)rank);
    float *scale = random_floats((size_t)rows * LGP_LORA_SET);
    int32_t *row = malloc((size_t)rows * sizeof *row);
    const float *const **gain = calloc((size_t)rows, sizeof *gain);
    AdapterSite site = {.rank = rank, .a = a, .b = bm, .scale = 1};
    memset(&l, 0, sizeof l);
    if (lora_kernels_resolve(lora_cpu_find, k, k->level, &l.kernels, NULL, NULL) != LG_OK)
        abort();
    for (int32_t i = 0; i < adapters * 3; i++) {
        memory[i] = aligned_alloc(64, lora_site_bytes(rank, in, out, false, false));
        lora_site_pack(&site, in, out, false, false, memory[i], &sites[i]);
    }
    int32_t count = 0;
    for (int32_t g = 0; g < adapters; g++) {
        groups[g] = (LgpLoraGroup){.first = count, .members = 1, .sites = {sites + 3 * g}};
        for (int32_t r = g; r < rows; r += adapters, groups[g].count++)
            row[count++] = r;
    }
    float *x = random_floats((size_t)rows * (size_t)in),
          *y = random_floats(3 * (size_t)rows * (size_t)out);
    float *low = random_floats((size_t)rows * 3 * (size_t)rank);
    l.call = (LgpLora){
        .site_count = 3, .sites = {0, 1, 2}, .x = x, .x_stride = in, .k = in, .store_bf16 = 1};
    for (int s = 0; s < 3; s++) {
        l.call.y[s] = y + s * (int64_t)rows * out;
        l.call.y_stride[s] = out;
        l.call.n[s] = out;
    }
    l.route = (LgpLoraRoute){.count = rows,
                             .group_count = adapters,
                             .site_count = 3,
                             .groups = groups,
                             .row = row,
                             .token = row,
                             .scale = scale,
                             .gain = (const float *const *const *)gain,
                             .low = low,
                             .low_stride = 3 * (int64_t)rank};
    Bench b = {.k = k, .threads = 1, .tasks = one_task, .task = lora_task, .scratch_floats = 8192};
    double best, median, work = 3.0 * rows * rank * ((double)in + out);
    measure(&b, same_turn, &l, &best, &median);
    printf("%-8s lora rows %3d, adapters %2d, rank %2d, 3 sites %d to %d: best %8.1f us, median "
           "%8.1f us, %6.2f G "
           "multiply-adds/s\n",
           k->level, rows, adapters, rank, in, out, best * 1e6, median * 1e6, work / best * 1e-9);
    for (int32_t i = 0; i < adapters * 3; i++)
        free(memory[i]);
    free(sites);
    free(groups);
    free(memory);
    free(a);
    free(bm);
    free(scale);
    free(row);
    free(gain);
    free(x);
    free(y);
    free(low);
}

/* ---- elementwise ---- */

static void bench_math(const LgpKernelTable *k) {
    enum { COUNT = 4096 };
    float *x = random_floats(COUNT), *y = random_floats(COUNT);
    const struct {
        const char *name;
        void (*run)(const float *, float *, int64_t);
    } rows[] = {{"exp", k->exp},
                {"silu", k->silu},
                {"tanh", k->tanh},
                {"gelu", k->gelu},
                {"gelu_tanh", k->gelu_tanh}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double best = 1;
        for (int run = 0; run < 200; run++) {
            double start = clock_seconds();
            rows[i].run(x, y, COUNT);
            double t = clock_seconds() - start;
            best = t < best ? t : best;
        }
        printf("%-8s %-9s %d floats: best %6.2f us, %5.2f ns each\n", k->level, rows[i].name, COUNT,
               best * 1e6, best * 1e9 / COUNT);
    }
    free(x);
    free(y);
}

void bench(const LgpKernelTable *k, int threads, const char *filter) {
    static const struct {
        const char *name;
        int32_t format;
    } formats[] = {
        {"q4", LGP_Q4}, {"q8", LGP_Q8}, {"bf16", LGP_BF16}, {"f16", LGP_F16}, {"f32", LGP_F32}};
    threads = threads < 1 ? 1 : threads > THREADS_MAX ? THREADS_MAX : threads;
    printf("%s, %d threads\n", k->level, threads);
    if (!filter || strstr("matmul", filter))
        for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
            bench_matmul(k, threads, formats[i].format, formats[i].name, 1536, 576);
            if (formats[i].format == LGP_Q4) {
                bench_matmul(k, threads, LGP_Q4, "q4", 576, 576);
                bench_matmul(k, threads, LGP_Q4, "q4", 576, 1536);
            }
            if (formats[i].format == LGP_Q8)
                bench_matmul(k, threads, LGP_Q8, "q8", 49152, 576);
        }
    if (!filter || strstr("attend", filter)) {
        bench_attend(k, threads, 1, 200, 3, 3, 64);
        bench_attend(k, threads, 1, 1500, 3, 3, 64);
        bench_attend(k, threads, 8, 1000, 3, 3, 64);
        bench_attend(k, threads, 512, 0, 3, 3, 64);
        bench_attend(k, threads, 512, 1000, 3, 3, 64);
        bench_attend(k, threads, 512, 1000, 8, 4, 128);
    }
    if (!filter || strstr("lora", filter)) {
        bench_lora(k, 1, 1, 16, 576, 576);
        bench_lora(k, 8, 8, 16, 576, 576);
        bench_lora(k, 8, 1, 16, 576, 576);
        bench_lora(k, 512, 1, 16, 576, 576);
        bench_lora(k, 64, 8, 16, 4096, 4096);
    }
    if (!filter || strstr("math", filter))
        bench_math(k);
}
