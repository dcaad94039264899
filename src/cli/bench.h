/* `bench`: points of measurement, what was measured, and where it goes. */
#ifndef LG_CLI_BENCH_H
#define LG_CLI_BENCH_H

#include "cli/cli.h"

#define BENCH_LIST_MAX 16
#define BENCH_REPEATS_MAX 99
#define BENCH_POINTS_MAX 128

/* A series varies one number and holds the others. */
typedef enum BenchSeries {
    BENCH_SEQUENCES,
    BENCH_ADAPTERS,
    BENCH_RANKS,
    BENCH_PROMPTS,
    BENCH_CONTEXTS,
    BENCH_SERIES_COUNT
} BenchSeries;
const char *bench_series_name(BenchSeries s);

typedef struct BenchStat {
    double median, low, high; /* of the repeats */
} BenchStat;

typedef struct BenchPoint {
    BenchSeries series;
    int sequences, adapters, rank, prompt; /* rank 0: none, or not ours to choose */
    BenchStat prefill_rate, decode_rate;   /* ids a second, all sequences together */
    BenchStat first_ms; /* from the request until every sequence has its first id */
    BenchStat step_ms;  /* a step of decode: an id for each sequence */
} BenchPoint;

/* What the numbers hold for. */
typedef struct BenchConditions {
    const char *model; /* as given */
    char cpu[128], system[160], date[32];
    int cores, threads, repeats, steps;
    double load_average; /* at the beginning; negative: not known */
} BenchConditions;

/* Names of loaded adapters. */
typedef struct BenchAdapters {
    char **names;
    int count;
    char *folder; /* of those that were generated, which ends with them; NULL: none */
} BenchAdapters;

/* bench_adapters.c: `count` adapters of a rank for the attention and MLP projections of the model,
 * written as PEFT writes them and loaded. Exit code; drop also what a failure left. */
int bench_adapters_make(LgEngine *e, const char *model, int rank, int count, BenchAdapters *out);
int bench_adapters_drop(LgEngine *e, BenchAdapters *a);

/* bench_measure.c: fills the point's numbers. seed: other ids for each call. Exit code. */
typedef struct BenchRun {
    LgEngine *engine;
    int rows, steps, repeats;
} BenchRun;
int bench_measure(const BenchRun *run, const BenchAdapters *adapters, BenchPoint *point);
/* Positions that a point's sequences take. */
long bench_positions(const BenchRun *run, const BenchPoint *point);

/* bench_page.c: one HTML page that needs nothing else, appended. program: cli_program_json's. */
void bench_page(const BenchConditions *c, const json_t *program, const BenchPoint *points,
                size_t count, Buf *out);

#endif
