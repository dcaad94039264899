/* Looks at a shared object before the loader does: a truncated file would end the process, not the
 * call. */
#ifndef LG_CPU_ELF_CHECK_H
#define LG_CPU_ELF_CHECK_H

#include "base/status.h"

/* Errors: LG_NOT_FOUND, LG_IO, LG_BAD_INPUT (no shared object, of another machine, truncated). */
LgStatus elf_check(const char *path, LgError *err);

#endif
