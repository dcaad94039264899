/* Feature levels of CPU programs: what the C defines and what the compiler is told, a row a level.
 */
#ifndef LG_EMIT_CPU_LEVELS_H
#define LG_EMIT_CPU_LEVELS_H

#include "base/status.h"

typedef struct EmitLevel {
    const char *name;
    const char *defines[5]; /* of kernels/cpu/vec.h; ended by NULL */
    const char *flags[12];  /* of GCC and Clang; ended by NULL */
    const char *needs;      /* of the processor, for messages */
} EmitLevel;

/* Narrowest first. Its number of rows: emit_level_count(). */
const EmitLevel *emit_level_at(int index);
int emit_level_count(void);
/* LG_BAD_INPUT with the names that there are. */
LgStatus emit_level_find(const char *name, const EmitLevel **out, LgError *err);

#endif
