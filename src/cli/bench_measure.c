/* One point of `bench`: sequences begin together, then decode together, several times over. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/rng.h"
#include "cli/bench.h"

typedef struct Once {
    double prefill_rate, decode_rate, first_ms, step_ms;
} Once;

/* Steps until the last sequence has its first id, at most: meanwhile the first ones go on. */
static long steps_before(const BenchRun *run, const BenchPoint *p) {
    return (long)p->sequences * p->prompt / run->rows + p->sequences + 2;
}

long bench_positions(const BenchRun *run, const BenchPoint *p) {
    return p->prompt + steps_before(run, p) + run->steps;
}

/* Ids that no two sequences share: nothing could be kept from one for the other. */
static int create(const BenchRun *run, const BenchAdapters *adapters, const BenchPoint *p,
                  uint64_t seed, LgSequence **sequences) {
    int32_t *ids = malloc((size_t)p->prompt * sizeof *ids);
    if (!ids)
        return cli_no_memory();
    int code = EXIT_OK;
    uint64_t vocab = (uint64_t)lg_engine_vocab(run->engine);
    for (int i = 0; code == EXIT_OK && i < p->sequences; i++) {
        for (int k = 0; k < p->prompt; k++)
            ids[k] = (int32_t)(rng_u64(seed, ((uint64_t)i << 32) + (uint64_t)k) % vocab);
        LgAdapterUse use = {.scale = 1};
        if (p->adapters)
            use.name = adapters->names[i % p->adapters];
        LgRequest r = {.ids = ids,
                       .id_count = (size_t)p->prompt,
                       .adapters = &use,
                       .adapter_count = p->adapters ? 1 : 0,
                       .max_tokens = (int32_t)(steps_before(run, p) + run->steps),
                       .sampling = {.top_p = 1}};
        LgError err;
        if (lg_sequence_create(run->engine, &r, &sequences[i], &err) != LG_OK)
            code = cli_fail(&err);
    }
    free(ids);
    return code;
}

/* New ids of all; *least: of the one that has fewest. */
static int count_ids(const BenchPoint *p, LgSequence **sequences, size_t *total, size_t *least) {
    *total = 0;
    *least = SIZE_MAX;
    for (int i = 0; i < p->sequences; i++) {
        size_t count;
        lg_sequence_ids(sequences[i], &count);
        *total += count;
        *least = count < *least ? count : *least;
        const char *error = lg_sequence_error(sequences[i]);
        if (error)
            return cli_refuse("a sequence of the bench failed: %s", error);
    }
    return EXIT_OK;
}

static int step(const BenchRun *run, const BenchPoint *p) {
    LgError err;
    int32_t active;
    if (lg_engine_step(run->engine, &active, &err) != LG_OK)
        return cli_fail(&err);
    if (active < p->sequences)
        return cli_refuse("the memory for KV pages does not hold %d sequences of %ld positions at "
                          "once, so that they cannot be measured together",
                          p->sequences, bench_positions(run, p));
    return EXIT_OK;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts the values. */
static BenchStat stat_of(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, compare);
    double middle = (values[(count - 1) / 2] + values[count / 2]) / 2;
    return (BenchStat){.median = middle, .low = values[0], .high = values[count - 1]};
}

static int decode(const BenchRun *run, const BenchPoint *p, LgSequence **sequences, Once *out) {
    double *times = malloc((size_t)run->steps * sizeof *times), total = 0;
    size_t before = 0, after = 0, least;
    if (!times)
        return cli_no_memory();
    int code = count_ids(p, sequences, &before, &least);
    for (int i = 0; code == EXIT_OK && i < run->steps; i++) {
        double start = clock_seconds();
        code = step(run, p);
        times[i] = clock_seconds() - start;
        total += times[i];
    }
    if (code == EXIT_OK)
        code = count_ids(p, sequences, &after, &least);
    if (code == EXIT_OK) {
        out->decode_rate = (double)(after - before) / total;
        out->step_ms = stat_of(times, run->steps).median * 1e3;
    }
    free(times);
    return code;
}

static int measure_once(const BenchRun *run, const BenchAdapters *adapters, const BenchPoint *p,
                        uint64_t seed, Once *out) {
    LgSequence **sequences = calloc((size_t)p->sequences, sizeof(LgSequence *));
    if (!sequences)
        return cli_no_memory();
    size_t total, least = 0;
    double start = clock_seconds();
    int code = create(run, adapters, p, seed, sequences);
    while (code == EXIT_OK && least == 0) {
        code = step(run, p);
        if (code == EXIT_OK)
            code = count_ids(p, sequences, &total, &least);
    }
    double seconds = clock_seconds() - start;
    out->first_ms = seconds * 1e3;
    out->prefill_rate = (double)p->sequences * p->prompt / seconds;
    if (code == EXIT_OK)
        code = decode(run, p, sequences, out);
    for (int i = 0; i < p->sequences; i++)
        lg_sequence_destroy(sequences[i]);
    free(sequences);
    return code;
}

int bench_measure(const BenchRun *run, const BenchAdapters *adapters, BenchPoint *p) {
    double values[4][BENCH_REPEATS_MAX];
    for (int i = 0; i < run->repeats; i++) {
        Once once = {0};
        int code = measure_once(run, adapters, p, (uint64_t)i + 1, &once);
        if (code != EXIT_OK)
            return code;
        values[0][i] = once.prefill_rate;
        values[1][i] = once.decode_rate;
        values[2][i] = once.first_ms;
        values[3][i] = once.step_ms;
    }
    p->prefill_rate = stat_of(values[0], run->repeats);
    p->decode_rate = stat_of(values[1], run->repeats);
    p->first_ms = stat_of(values[2], run->repeats);
    p->step_ms = stat_of(values[3], run->repeats);
    return EXIT_OK;
}
