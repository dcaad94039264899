/* cuda_check [--quick] [--filter TEXT] [--target common] [--seed N] [--cache DIR] [--nvrtc PATH]
 *            [--experiment] [--bench OUT.csv [--cells TEXT]]
 * Checks every kernel of adapters on the present device, then that broken kernels are caught; or
 * looks at the order of the matrix units' sums; or times. Exit code 77: there is no device. */
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

typedef struct Options {
    const char *filter, *target, *cache, *nvrtc, *bench, *cells;
    uint64_t seed;
    bool quick, experiment;
} Options;

static bool parse(int argc, char **argv, Options *o) {
    const struct {
        const char *name;
        const char **value;
    } texts[] = {{"--filter", &o->filter}, {"--target", &o->target}, {"--cache", &o->cache},
                 {"--nvrtc", &o->nvrtc},   {"--bench", &o->bench},   {"--cells", &o->cells}};
    for (int i = 1; i < argc; i++) {
        bool known = false;
        if (strcmp(argv[i], "--quick") == 0) {
            known = o->quick = true;
        } else if (strcmp(argv[i], "--experiment") == 0) {
            known = o->experiment = true;
        } else if (i + 1 < argc && strcmp(argv[i], "--seed") == 0) {
            known = true;
            o->seed = strtoull(argv[++i], NULL, 0);
        } else {
            for (size_t t = 0; t < sizeof texts / sizeof *texts && i + 1 < argc && !known; t++)
                if (strcmp(argv[i], texts[t].name) == 0) {
                    *texts[t].value = argv[++i];
                    known = true;
                }
        }
        if (!known)
            return false;
    }
    return true;
}

static void open_gpu(const Options *o, Gpu *g) {
    LgError err;
    if (cuda_device_open(0, &g->device, &err) != LG_OK) {
        printf("SKIPPED, NOTHING WAS CHECKED: %s\n", err.message);
        exit(77);
    }
    CudaRegistryOptions options = {g->device, o->cache, o->nvrtc, o->target};
    must(cuda_registry_create(&options, &g->registry, &err), &err);
    must(nvrtc_open(o->nvrtc, &g->nvrtc, &err), &err);
    LgStatus status = cuda_lora_kernels(g->registry, &g->kernels, &err);
    if (status != LG_OK)
        fputs(cuda_registry_log(g->registry), stderr);
    must(status, &err);
    must_code(g, g->device->driver.stream_create(&g->stream, 1), "making a stream");
}

static int run_checks(Gpu *g, const Options *o) {
    static const struct {
        const char *name;
        bool (*run)(Gpu *g);
    } checks[] = {{"routed", check_routed}, {"moe", check_moe}, {"mutants", check_mutants}};
    int failures = 0;
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        if (o->filter ? !strstr(checks[i].name, o->filter) : g->quick && i == 2)
            continue;
        g->cases = g->comparisons = 0;
        bool good = checks[i].run(g) && g->failures == 0;
        printf("%-8s %4ld cases, %5ld comparisons of bits: %s\n", checks[i].name, g->cases,
               g->comparisons, good ? "good" : "FAILED");
        failures += !good;
    }
    return failures;
}

int main(int argc, char **argv) {
    Options o = {.seed = 1};
    Gpu g = {0};
    LgError err;
    Buf table;
    if (!parse(argc, argv, &o)) {
        fprintf(stderr,
                "usage: %s [--quick] [--filter TEXT] [--target common] [--seed N] "
                "[--cache DIR] [--nvrtc PATH] [--experiment] [--bench OUT.csv [--cells "
                "TEXT]]\n",
                argv[0]);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    g.quick = o.quick;
    g.seed = o.seed;
    open_gpu(&o, &g);
    buf_init(&table);
    must(cuda_registry_print(g.registry, &table, &err), &err);
    if (!o.filter && !o.bench)
        fputs(table.data, stdout);
    buf_clear(&table);
    int failures = 0;
    if (o.experiment)
        experiment_order(&g);
    else if (o.bench)
        bench(&g, o.bench, o.cells);
    else
        failures = run_checks(&g, &o);
    g.device->driver.stream_destroy(g.stream);
    nvrtc_close(g.nvrtc);
    cuda_registry_destroy(g.registry);
    cuda_device_close(g.device);
    return failures ? 1 : 0;
}
