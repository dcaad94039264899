/* A plan as one C file that is complete in itself: kernels, one function a launch, and lgp_step. */
#ifndef LG_EMIT_EMIT_CPU_H
#define LG_EMIT_EMIT_CPU_H

#include "stages/stages.h"

/* level: of emit/cpu_levels.h. The text ends with the definition of lgp_info, whose source_sha256
 * is the SHA-256 of the text before the line that defines EMIT_CPU_HASH_MARK. Errors: LG_BAD_INPUT
 * (a stage that the CPU has no kernel for), LG_NO_MEMORY. */
LgStatus emit_cpu(const Plan *plan, const char *level, Buf *out, LgError *err);

#define EMIT_CPU_HASH_MARK "#define LGP_SOURCE_SHA256 "

#endif
