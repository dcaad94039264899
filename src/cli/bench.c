/* `bench`: throughput and latency of a model on this machine, series by series. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "cli/bench.h"

typedef struct Numbers {
    int values[BENCH_LIST_MAX];
    int count;
    bool asked; /* for by the user; otherwise what does not fit the model is left out */
} Numbers;

typedef struct Bench {
    const CliOptions *options;
    const char *model; /* path */
    BenchRun run;
    Numbers lists[BENCH_SERIES_COUNT];
    BenchConditions conditions;
    BenchAdapters adapters; /* of the first rank, or those that were given */
    bool given;
    BenchPoint points[BENCH_POINTS_MAX];
    size_t count;
    BenchPoint left_out[BENCH_POINTS_MAX]; /* of the standard lists: the context is too short */
    size_t left_out_count;
} Bench;

static const struct {
    const char *name, *standard;
    long min, max;
} series_rows[] = {
    [BENCH_SEQUENCES] = {"sequences", "1,2,4,8", 1, 1024},
    [BENCH_ADAPTERS] = {"adapters", "0,1,2,4,8", 0, 1024},
    [BENCH_RANKS] = {"ranks", "8,16,32,64", 1, 4096},
    [BENCH_PROMPTS] = {"prompts", "32,128,512", 1, 1 << 24},
    [BENCH_CONTEXTS] = {"contexts", "64,256,1024", 1, 1 << 24},
};

const char *bench_series_name(BenchSeries s) {
    return series_rows[s].name;
}

static int read_list(const char *text, BenchSeries series, Numbers *out) {
    out->asked = text != NULL;
    out->count = 0;
    const char *at = text ? text : series_rows[series].standard;
    for (;;) {
        char one[16];
        size_t len = strcspn(at, ",");
        long value;
        snprintf(one, sizeof one, "%.*s", (int)len, at);
        if (len >= sizeof one || out->count == BENCH_LIST_MAX ||
            !cli_int(one, series_rows[series].min, series_rows[series].max, &value))
            return cli_refuse("--%s %s: up to %d numbers from %ld to %ld are accepted, as in %s",
                              series_rows[series].name, at, BENCH_LIST_MAX, series_rows[series].min,
                              series_rows[series].max, series_rows[series].standard);
        out->values[out->count++] = (int)value;
        if (!at[len])
            return EXIT_OK;
        at += len + 1;
    }
}

static int largest(const Numbers *n) {
    int most = 0;
    for (int i = 0; i < n->count; i++)
        most = n->values[i] > most ? n->values[i] : most;
    return most;
}

static int read_options(Bench *b) {
    const CliOptions *o = b->options;
    const char *const lists[] = {[BENCH_SEQUENCES] = o->sequences,
                                 [BENCH_ADAPTERS] = o->adapters,
                                 [BENCH_RANKS] = o->ranks,
                                 [BENCH_PROMPTS] = o->prompts,
                                 [BENCH_CONTEXTS] = o->contexts};
    long steps = 32, repeats = 5, rows = 512;
    if (o->n && !cli_int(o->n, 1, 65536, &steps))
        return cli_refuse("-n %s: a number of decoded ids from 1 to 65536 is needed", o->n);
    if (o->repeats && !cli_int(o->repeats, 1, BENCH_REPEATS_MAX, &repeats))
        return cli_refuse("--repeats %s: a number from 1 to %d is needed", o->repeats,
                          BENCH_REPEATS_MAX);
    if (o->rows && !cli_int(o->rows, 1, 65536, &rows))
        return cli_refuse("--rows %s: a number from 1 to 65536 is needed", o->rows);
    for (int s = 0; s < BENCH_SERIES_COUNT; s++) {
        int code = read_list(lists[s], (BenchSeries)s, &b->lists[s]);
        if (code != EXIT_OK)
            return code;
    }
    b->given = o->adapter.count > 0;
    if (b->given && o->ranks)
        return cli_refuse("--ranks is of generated adapters, and --adapter gives others; one of "
                          "the two is accepted");
    b->run = (BenchRun){.rows = (int)rows, .steps = (int)steps, .repeats = (int)repeats};
    return EXIT_OK;
}

/* ---- what the numbers hold for ---- */

static void read_cpu(char *out, size_t size) {
    char line[512];
    FILE *f = fopen("/proc/cpuinfo", "r");
    snprintf(out, size, "unknown");
    while (f && fgets(line, sizeof line, f)) {
        const char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !value)
            continue;
        value += 1 + strspn(value + 1, " \t");
        snprintf(out, size, "%.*s", (int)strcspn(value, "\n"), value);
        break;
    }
    if (f)
        fclose(f);
}

static void read_conditions(BenchConditions *c) {
    struct utsname u;
    cpu_set_t cores;
    double load;
    time_t now = time(NULL);
    struct tm utc;
    read_cpu(c->cpu, sizeof c->cpu);
    c->cores = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
    c->load_average = getloadavg(&load, 1) == 1 ? load : -1;
    if (uname(&u) == 0)
        snprintf(c->system, sizeof c->system, "%.40s %.60s %.30s", u.sysname, u.release, u.machine);
    if (gmtime_r(&now, &utc))
        strftime(c->date, sizeof c->date, "%Y-%m-%dT%H:%MZ", &utc);
}

/* ---- the series ---- */

static void progress(const BenchPoint *p) {
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[Kbench: %s, %d sequences, %d adapters, prompts of %d",
                bench_series_name(p->series), p->sequences, p->adapters, p->prompt);
}

/* Measures it, and keeps it. asked: the user's own number, which is refused where it does not fit
 * the context; others are left out. */
static int point(Bench *b, const BenchAdapters *adapters, BenchPoint p, bool asked) {
    long context = lg_engine_context(b->run.engine), needed = bench_positions(&b->run, &p);
    if (needed > context && !asked) {
        if (b->left_out_count < BENCH_POINTS_MAX)
            b->left_out[b->left_out_count++] = p;
        return EXIT_OK;
    }
    if (needed > context)
        return cli_refuse("%s: %d sequences with prompts of %d ids need %ld positions each; the "
                          "context has %ld",
                          bench_series_name(p.series), p.sequences, p.prompt, needed, context);
    if (b->count == BENCH_POINTS_MAX)
        return cli_refuse("more than %d points are asked for", BENCH_POINTS_MAX);
    progress(&p);
    int code = bench_measure(&b->run, adapters, &p);
    if (code == EXIT_OK)
        b->points[b->count++] = p;
    return code;
}

static int least(int a, int b) {
    return a < b ? a : b;
}

/* What the other series hold: the most sequences, the first rank, the first prompt. */
static BenchPoint held(const Bench *b, BenchSeries series) {
    return (BenchPoint){.series = series,
                        .sequences = largest(&b->lists[BENCH_SEQUENCES]),
                        .rank = b->given ? 0 : b->lists[BENCH_RANKS].values[0],
                        .prompt = b->lists[BENCH_PROMPTS].values[0]};
}

/* The base, and with as many adapters as there may be (at most `most`). */
static int both(Bench *b, BenchPoint p, int most, bool asked) {
    int rank = p.rank;
    p.rank = p.adapters = 0;
    int code = point(b, &b->adapters, p, asked);
    p.adapters = least(most, b->adapters.count);
    p.rank = rank;
    return code == EXIT_OK && p.adapters ? point(b, &b->adapters, p, asked) : code;
}

static int measure_sequences(Bench *b) {
    const Numbers *n = &b->lists[BENCH_SEQUENCES];
    int code = EXIT_OK;
    for (int i = 0; code == EXIT_OK && i < n->count; i++) {
        BenchPoint p = held(b, BENCH_SEQUENCES);
        p.sequences = n->values[i];
        code = both(b, p, p.sequences, n->asked);
    }
    return code;
}

static int measure_adapters(Bench *b) {
    const Numbers *n = &b->lists[BENCH_ADAPTERS];
    int code = EXIT_OK;
    for (int i = 0; code == EXIT_OK && i < n->count; i++) {
        BenchPoint p = held(b, BENCH_ADAPTERS);
        p.adapters = n->values[i];
        int most = least(p.sequences, b->adapters.count);
        if (p.adapters > most && !n->asked)
            continue;
        if (p.adapters > most)
            return cli_refuse("--adapters %d: there are %d sequences and %d adapters", p.adapters,
                              p.sequences, b->adapters.count);
        p.rank = p.adapters ? p.rank : 0;
        code = point(b, &b->adapters, p, n->asked);
    }
    return code;
}

static int measure_ranks(Bench *b) {
    const Numbers *n = &b->lists[BENCH_RANKS];
    int code = EXIT_OK;
    for (int i = 0; code == EXIT_OK && !b->given && b->adapters.count && i < n->count; i++) {
        BenchPoint p = held(b, BENCH_RANKS);
        BenchAdapters others = {0};
        p.adapters = least(p.sequences, b->adapters.count);
        p.rank = n->values[i];
        if (i == 0) {
            code = point(b, &b->adapters, p, n->asked);
            continue;
        }
        code = bench_adapters_make(b->run.engine, b->model, p.rank, p.adapters, &others);
        if (code == EXIT_OK)
            code = point(b, &others, p, n->asked);
        int dropped = bench_adapters_drop(b->run.engine, &others);
        code = code == EXIT_OK ? dropped : code;
    }
    return code;
}

/* Prompts and contexts: one sequence, the same measurement. */
static int measure_lengths(Bench *b, BenchSeries series) {
    const Numbers *n = &b->lists[series];
    int code = EXIT_OK;
    for (int i = 0; code == EXIT_OK && i < n->count; i++) {
        BenchPoint p = held(b, series);
        p.sequences = 1;
        p.prompt = n->values[i];
        code = both(b, p, 1, n->asked);
    }
    return code;
}

/* Those that were given are loaded by their names. */
static int name_given(Bench *b) {
    const CliList *list = &b->options->adapter;
    b->adapters.names = calloc((size_t)list->count + 1, sizeof(char *));
    if (!b->adapters.names)
        return cli_no_memory();
    for (int i = 0; i < list->count; i++) {
        b->adapters.names[i] = strndup(list->items[i], strcspn(list->items[i], "="));
        if (!b->adapters.names[i])
            return cli_no_memory();
        b->adapters.count++;
    }
    return EXIT_OK;
}

static int measure_all(Bench *b) {
    int needed = least(largest(&b->lists[BENCH_SEQUENCES]), largest(&b->lists[BENCH_ADAPTERS]));
    int code = b->given ? name_given(b) : EXIT_OK;
    if (code == EXIT_OK && !b->given && needed)
        code = bench_adapters_make(b->run.engine, b->model, b->lists[BENCH_RANKS].values[0], needed,
                                   &b->adapters);
    BenchPoint warm = held(b, BENCH_SEQUENCES);
    warm.sequences = 1;
    if (code == EXIT_OK) /* memory that nothing has touched is not what is measured */
        code = both(b, warm, 1, false);
    b->count = b->left_out_count = 0;
    if (code == EXIT_OK)
        code = measure_sequences(b);
    if (code == EXIT_OK)
        code = measure_adapters(b);
    if (code == EXIT_OK)
        code = measure_ranks(b);
    if (code == EXIT_OK)
        code = measure_lengths(b, BENCH_PROMPTS);
    if (code == EXIT_OK)
        code = measure_lengths(b, BENCH_CONTEXTS);
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
    if (code == EXIT_OK && b->count == 0)
        code = cli_refuse("no point fits the context of %d positions; shorter --prompts and "
                          "--contexts and a smaller -n may",
                          (int)lg_engine_context(b->run.engine));
    return code;
}

/* ---- what comes out ---- */

static json_t *stat_json(const BenchStat *s) {
    return json_pack("{s:f, s:f, s:f}", "median", s->median, "low", s->low, "high", s->high);
}

static json_t *point_json(const BenchPoint *p) {
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:o, s:o, s:o, s:o}", "series",
                     bench_series_name(p->series), "sequences", p->sequences, "adapters",
                     p->adapters, "rank", p->rank, "prompt", p->prompt, "prefill_tokens_per_s",
                     stat_json(&p->prefill_rate), "first_token_ms", stat_json(&p->first_ms),
                     "decode_tokens_per_s", stat_json(&p->decode_rate), "step_ms",
                     stat_json(&p->step_ms));
}

static int print_json(const Bench *b) {
    const BenchConditions *c = &b->conditions;
    json_t *points = json_array(), *left_out = json_array();
    for (size_t i = 0; i < b->count; i++)
        points = cli_append(points, point_json(&b->points[i]));
    for (size_t i = 0; i < b->left_out_count; i++) {
        const BenchPoint *p = &b->left_out[i];
        left_out = cli_append(left_out, json_pack("{s:s, s:i, s:i, s:i, s:i}", "series",
                                                  bench_series_name(p->series), "sequences",
                                                  p->sequences, "adapters", p->adapters, "rank",
                                                  p->rank, "prompt", p->prompt));
    }
    json_t *conditions =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:f}", "model", c->model,
                  "version", lg_version(), "cpu", c->cpu, "system", c->system, "date", c->date,
                  "cores", c->cores, "threads", c->threads, "rows", b->run.rows, "repeats",
                  c->repeats, "new_tokens", c->steps, "load_average", c->load_average);
    return cli_print_json(json_pack("{s:o, s:o, s:o, s:o, s:o}", "conditions", conditions,
                                    "program", cli_program_json(b->run.engine, false), "timing",
                                    cli_timing_json(b->run.engine), "points", points, "left_out",
                                    left_out));
}

static void print_table(const Bench *b) {
    const BenchConditions *c = &b->conditions;
    printf("%s; %d threads on %d cores, load %.2f; medians of %d, of %d decoded ids each\n", c->cpu,
           c->threads, c->cores, c->load_average, c->repeats, c->steps);
    printf("%-10s %9s %8s %5s %7s  %13s %11s  %12s %19s %9s\n", "series", "sequences", "adapters",
           "rank", "prompt", "prefill ids/s", "first id ms", "decode ids/s", "low to high",
           "step ms");
    for (size_t i = 0; i < b->count; i++) {
        const BenchPoint *p = &b->points[i];
        char range[40];
        snprintf(range, sizeof range, "%.1f to %.1f", p->decode_rate.low, p->decode_rate.high);
        if (i && b->points[i - 1].series != p->series)
            putchar('\n');
        printf("%-10s %9d %8d %5d %7d  %13.1f %11.2f  %12.1f %19s %9.3f\n",
               bench_series_name(p->series), p->sequences, p->adapters, p->rank, p->prompt,
               p->prefill_rate.median, p->first_ms.median, p->decode_rate.median, range,
               p->step_ms.median);
    }
}

static int write_page(const Bench *b) {
    Buf page;
    buf_init(&page);
    json_t *program = cli_program_json(b->run.engine, false);
    bench_page(&b->conditions, program, b->points, b->count, &page);
    json_decref(program);
    LgError err;
    int code = EXIT_OK;
    if (page.failed)
        code = cli_no_memory();
    else if (file_write_atomic(b->options->html, page.data, page.len, &err) != LG_OK)
        code = cli_fail(&err);
    buf_clear(&page);
    return code;
}

/* A standard point that the model is too short for is missed in no output. */
static void say_left_out(const Bench *b) {
    for (size_t i = 0; i < b->left_out_count; i++) {
        const BenchPoint *p = &b->left_out[i];
        if (i == 0 || p->series != p[-1].series || p->prompt != p[-1].prompt ||
            p->sequences != p[-1].sequences)
            fprintf(stderr,
                    "ligature: left out of %s: %d sequences with prompts of %d ids need %ld "
                    "positions each, the context has %d\n",
                    bench_series_name(p->series), p->sequences, p->prompt,
                    bench_positions(&b->run, p), (int)lg_engine_context(b->run.engine));
    }
}

static int report(const Bench *b) {
    say_left_out(b);
    int code = b->options->html ? write_page(b) : EXIT_OK;
    if (code == EXIT_OK && b->options->json)
        return print_json(b);
    if (code == EXIT_OK) {
        print_table(b);
        cli_provenance_line(b->run.engine, -1);
    }
    return code;
}

static int open_and_measure(Bench *b) {
    CliOptions open = *b->options;
    char threads[16];
    read_conditions(&b->conditions);
    if (!open.threads) { /* said outright, so that the page can say it */
        snprintf(threads, sizeof threads, "%d", least(b->conditions.cores, 256));
        open.threads = threads;
    }
    int code = cli_open(&open, &b->run.engine);
    if (code != EXIT_OK)
        return code;
    long count = 0;
    cli_int(open.threads, 1, 256, &count);
    b->conditions.threads = (int)count;
    b->conditions.repeats = b->run.repeats;
    b->conditions.steps = b->run.steps;
    b->conditions.model = b->options->positional;
    code = measure_all(b);
    if (code == EXIT_OK)
        code = report(b);
    int dropped = bench_adapters_drop(b->run.engine, &b->adapters);
    lg_engine_close(b->run.engine);
    return code == EXIT_OK ? dropped : code;
}

int cmd_bench(const CliOptions *o) {
    Bench *b = calloc(1, sizeof *b);
    if (!b)
        return cli_no_memory();
    b->options = o;
    Buf found;
    buf_init(&found);
    int code = read_options(b);
    if (code == EXIT_OK && !o->positional)
        code = cli_refuse("usage: ligature bench MODEL [options]");
    if (code == EXIT_OK)
        code = cli_model_path(o->positional, &found, &b->model);
    if (code == EXIT_OK)
        code = open_and_measure(b);
    buf_clear(&found);
    free(b);
    return code;
}
