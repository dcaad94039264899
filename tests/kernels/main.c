/* kernels_check [--level NAME] [--filter TEXT] [--seed N] [--quick] [--bench [--threads N]]: checks
 * every kernel at every level that this machine runs, then that broken kernels are caught; or times
 * them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/levels.h"
#include "harness.h"

const CheckRow check_rows[] = {
    {"matmul", check_matmul}, {"attend", check_attend},
    {"math", check_math},     {"table_row", check_table_row},
    {"lora", check_lora},     {"lora_launch", check_lora_launch},
    {"moe", check_moe},       {"lora_moe", check_lora_moe},
};
const int check_row_count = (int)(sizeof check_rows / sizeof *check_rows);

typedef struct Options {
    const char *level, *filter;
    uint64_t seed;
    bool quick, bench;
    int threads;
} Options;

static bool parse(int argc, char **argv, Options *o) {
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--quick") == 0) {
            o->quick = true;
        } else if (strcmp(argv[i], "--bench") == 0) {
            o->bench = true;
        } else if (!value) {
            return false;
        } else if (strcmp(argv[i], "--level") == 0) {
            o->level = argv[++i];
        } else if (strcmp(argv[i], "--filter") == 0) {
            o->filter = argv[++i];
        } else if (strcmp(argv[i], "--seed") == 0) {
            o->seed = strtoull(argv[++i], NULL, 0);
        } else if (strcmp(argv[i], "--threads") == 0) {
            o->threads = atoi(argv[++i]);
        } else {
            return false;
        }
    }
    return true;
}

static int check_level(const CpuLevel *level, const Options *o) {
    int failures = 0;
    for (int i = 0; i < check_row_count; i++) {
        if (o->filter && !strstr(check_rows[i].name, o->filter))
            continue;
        Check c = {.k = level->kernels, .kernel = check_rows[i].name, .quick = o->quick};
        bool good = check_rows[i].run(&c, o->seed);
        printf("%-12s %-8s %6ld cases: %s\n", check_rows[i].name, level->name, c.cases,
               good ? "good" : "FAILED");
        failures += !good;
    }
    return failures;
}

int main(int argc, char **argv) {
    Options o = {.seed = 1, .threads = 1};
    int failures = 0, levels = 0;
    if (!parse(argc, argv, &o)) {
        fprintf(stderr,
                "usage: %s [--level NAME] [--filter TEXT] [--seed N] [--quick] [--bench] "
                "[--threads N]\n",
                argv[0]);
        return 2;
    }
    for (int i = 0; i < cpu_level_count(); i++) {
        const CpuLevel *level = cpu_level_at(i);
        if ((o.level && strcmp(o.level, level->name) != 0) || !cpu_level_runs(level))
            continue;
        levels++;
        if (o.bench)
            bench(level->kernels, o.threads, o.filter);
        else
            failures += check_level(level, &o);
    }
    if (!levels) {
        fprintf(stderr, "no level \"%s\" on this machine\n", o.level);
        return 2;
    }
    if (!o.bench && !o.filter)
        failures += check_mutants(o.seed);
    return failures ? 1 : 0;
}
