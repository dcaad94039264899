/* Feature levels of the CPU kernels: which are compiled in, which this processor runs. */
#ifndef LG_CPU_LEVELS_H
#define LG_CPU_LEVELS_H

#include <stdbool.h>

#include "kernels/cpu/table.h"

typedef struct CpuLevel {
    const char *name;
    const LgpKernelTable *kernels; /* NULL: known, not compiled in */
} CpuLevel;

/* From the plainest to the widest. A mask of levels has bit i for level i. */
#define CPU_LEVELS_ALL (~0u)
int cpu_level_count(void);
const CpuLevel *cpu_level_at(int index);
const CpuLevel *cpu_level_find(const char *name); /* NULL: no such level */

/* Compiled in, and this processor has its features. */
bool cpu_level_runs(const CpuLevel *level);
/* The widest level of the mask that runs here and pays on this processor, if none pays the widest
 * that runs; the generic one always does. */
const CpuLevel *cpu_level_best(unsigned mask);

#endif
