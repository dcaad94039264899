/* A compiled program in this process: from a plan through the cache and the compiler, or from a
 * file that was made ahead of time. */
#ifndef LG_CPU_PROGRAM_H
#define LG_CPU_PROGRAM_H

#include "backend/cpu/cache.h"
#include "ir/plan.h"
#include "kernels/cpu/abi.h"

typedef struct ProgramRequest {
    const Plan *plan;
    const char *level;
    const char *cache_dir; /* NULL: not kept */
    const char *compiler;  /* NULL: "cc" */
    bool require_cache;
    uint32_t formats; /* of matrices that products are for: bit LGP_*. 0: all */
} ProgramRequest;

typedef struct Program {
    void *handle;
    const LgpInfo *info;
    void (*step)(const LgpStep *step, int32_t thread);
    int64_t (*scratch_floats)(int32_t positions);
    double compile_s; /* 0: not compiled now */
    char note[512];   /* what the user may want to know (the cache could not be written, …); "" */
} Program;

/* Takes the program from the cache or compiles it. Errors: LG_NOT_FOUND (no compiler; not in the
 * cache though required, with what differs), LG_INTERNAL (the compiler refused the text), those of
 * the emitter. */
LgStatus program_get(const ProgramRequest *r, Program *out, LgError *err);

/* path: made by program_write, for this plan; its level is the file's. r->level NULL: whatever
 * level the file has. Errors: LG_NOT_FOUND, LG_BAD_INPUT with what differs, or what this machine
 * lacks. */
LgStatus program_load(const ProgramRequest *r, const char *path, Program *out, LgError *err);

/* Compiles to a file. */
LgStatus program_write(const ProgramRequest *r, const char *path, LgError *err);

void program_close(Program *p);

/* NULL: the level runs here; else why not. */
const char *level_missing(const char *level);
const char *level_best(void);

#endif
