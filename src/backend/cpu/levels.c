/* One row a level. A wider one is a row more, and its kernels' object in cmake/kernels.cmake. */
#include "backend/cpu/levels.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
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
static bool has_avx512bf16(void) {
    unsigned a, b, c, d;
    return has_avx512() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1u);
}
/* Tiles need the kernel's leave too, once for the process: threads made afterwards have it, and so
 * may the ones that are there. Asking again is no harm. */
static bool may_use_tiles(void) {
#ifdef SYS_arch_prctl
    const int request_permission = 0x1023, tile_data = 18; /* ARCH_REQ_XCOMP_PERM, XTILEDATA */
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
    return false;
#endif
}
static bool has_amx(void) {
    unsigned a, b, c, d;
    return has_avx512bf16() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1u) &&
           (d >> 24 & 1u) && may_use_tiles();
}

/* Intel's processors that have AVX512-BF16 and were measured do its products slower than f32's;
 * AMD's do twice as many. */
static bool amd(void) {
    __builtin_cpu_init();
    return __builtin_cpu_is("amd");
}
#endif

static bool always(void) {
    return true;
}

/* Tiles of one row are slower than multiply-adds, so that decoding would pay for prompts. */
static bool when_asked_for(void) {
    return false;
}

static const struct {
    CpuLevel level;
    bool (*runs)(void);
    bool (*pays)(void); /* is quicker than the level before it, where it runs */
} levels[] = {
    {{"generic", &lgp_kernels_generic}, always, always},
#ifdef LGP_HAS_AVX2
    {{"avx2", &lgp_kernels_avx2}, has_avx2, always},
    {{"avx512", &lgp_kernels_avx512}, has_avx512, always},
    {{"avx512bf16", &lgp_kernels_avx512bf16}, has_avx512bf16, amd},
    {{"amx", &lgp_kernels_amx}, has_amx, when_asked_for},
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
    for (int slow = 0; slow < 2; slow++)
        for (int i = cpu_level_count() - 1; i > 0; i--)
            if ((mask >> i & 1u) && cpu_level_runs(&levels[i].level) && (slow || levels[i].pays()))
                return &levels[i].level;
    return &levels[0].level;
}
