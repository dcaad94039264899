/* Runs the machine's C compiler on a program's text. Knows nothing of caches or of what the text
 * says. */
#ifndef LG_CPU_COMPILE_H
#define LG_CPU_COMPILE_H

#include "base/arena.h"
#include "base/status.h"

#define COMPILER_FLAGS_MAX 32

/* The program that `name` means: a path, or a name that PATH finds. Errors: LG_NOT_FOUND. */
LgStatus compiler_find(const char *name, Arena *arena, const char **path, LgError *err);

/* The first line that `path --version` prints. Errors: LG_NOT_FOUND (does not run), LG_NO_MEMORY.
 */
LgStatus compiler_version(const char *path, Arena *arena, const char **version, LgError *err);

/* Fills flags (a NULL behind the last) with what programs of this level are compiled with. Errors:
 * LG_BAD_INPUT: no such level. */
LgStatus compiler_flags(const char *level, const char *flags[COMPILER_FLAGS_MAX], LgError *err);

/* Compiles the C file `source` to the shared object `out`. Errors: LG_INTERNAL with what the
 * compiler said, LG_NOT_FOUND. */
LgStatus compiler_run(const char *path, const char *const *flags, const char *source,
                      const char *out, LgError *err);

#endif
