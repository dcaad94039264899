/* One row a level. A wider one is a row more, and its kernels' object in cmake/kernels.cmake. */
#include "backend/cpu/levels.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#if defined(__x86_64__)
static bool has_avx2(void) {
    unsigned a, b, c, d;
    __builtin_cpu_init();
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_F16C))
        return false;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
static bool has_avx512(void) {
    __builtin_cpu_init();
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

static bool always(void) {
    return true;
}

static const struct {
    CpuLevel level;
    bool (*runs)(void);
} levels[] = {
    {{"generic", &lgp_kernels_generic}, always},
#ifdef LGP_HAS_AVX2
    {{"avx2", &lgp_kernels_avx2}, has_avx2},
    {{"avx512", &lgp_kernels_avx512}, has_avx512},
#endif
};

int cpu_level_count(void) {
    return (int)(sizeof levels / sizeof *levels);
}

const CpuLevel *cpu_level_at(int index) {
    return &levels[index].level;
}

const CpuLevel *cpu_level_find(const char *name) {
    for (int i = 0; i < cpu_level_count(); i++)
        if (strcmp(levels[i].level.name, name) == 0)
            return &levels[i].level;
    return NULL;
}

bool cpu_level_runs(const CpuLevel *level) {
    for (int i = 0; i < cpu_level_count(); i++)
        if (&levels[i].level == level)
            return level->kernels && levels[i].runs();
    return false;
}

const CpuLevel *cpu_level_best(unsigned mask) {
    for (int i = cpu_level_count() - 1; i > 0; i--)
        if ((mask >> i & 1u) && cpu_level_runs(&levels[i].level))
            return &levels[i].level;
    return &levels[0].level;
}
