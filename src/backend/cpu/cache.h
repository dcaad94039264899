/* Compiled programs on disk: DIR/KEY.so with DIR/KEY.json beside it (and KEY.c, which also is the
 * lock of whoever builds the entry). The key is a hash over everything that decides what the
 * program does, so that an entry is never stale, only absent; the .json holds the same fields
 * readable, and size and hash of the .so, so that a damaged entry counts as absent. Many processes
 * may share a folder. */
#ifndef LG_CPU_CACHE_H
#define LG_CPU_CACHE_H

#include "base/arena.h"
#include "base/status.h"

/* What a program was made from. Field, its name in messages; `derived` ones follow from the others
 * and from this version of Ligature, and are named only where nothing else differs. */
/* clang-format off */
#define PROGRAM_FIELD_MAP(X)                          \
    X(model,    "model",           false)             \
    X(source,   "program source",  false) /* SHA-256 */ \
    X(dims,     "dims",            false) /* "E=576 V=49152" */ \
    X(store,    "store type",      false)             \
    X(level,    "level",           false)             \
    X(kernels,  "kernels",         false) /* SHA-256 */ \
    X(compiler, "compiler",        false) /* path and version */ \
    X(flags,    "flags",           false)             \
    X(abi,      "abi",             false)             \
    X(plan,     "plan",            true)              \
    X(code,     "emitted code",    true)  /* SHA-256 */
/* clang-format on */

typedef enum ProgramField {
#define PROGRAM_FIELD_ENUM(id, name, derived) PROGRAM_FIELD_##id,
    PROGRAM_FIELD_MAP(PROGRAM_FIELD_ENUM)
#undef PROGRAM_FIELD_ENUM
        PROGRAM_FIELD_COUNT
} ProgramField;

typedef struct ProgramFields {
    const char *value[PROGRAM_FIELD_COUNT];
} ProgramFields;

void program_fields_key(const ProgramFields *f, char hex[65]);
/* One JSON object with a member for each field, and before its end what `extra` says (may be NULL).
 */
void program_fields_print(const ProgramFields *f, const char *extra, Buf *out);
/* Values live in the arena; absent ones are "". */
LgStatus program_fields_parse(LgStr json, const char *what, Arena *arena, ProgramFields *out,
                              LgError *err);
/* Appends what differs: `level: cached avx2, now generic; …`. `there` is the word for the old side.
 * Returns how many differ. */
int program_fields_diff(const ProgramFields *was, const ProgramFields *now, const char *there,
                        Buf *out);

/* A folder that may hold programs that this process will run: a note says why not ("", where it
 * may). */
LgStatus cache_dir_check(const char *dir, bool *usable, Buf *note, LgError *err);

/* *hit: DIR/KEY.so is there and whole. damaged: there, but not what its .json says (or without
 * one). */
typedef enum CacheState { CACHE_ABSENT, CACHE_HIT, CACHE_DAMAGED } CacheState;
LgStatus cache_lookup(const char *dir, const char *key, Arena *arena, const char **so_path,
                      CacheState *state, LgError *err);

/* The entry of the same model with the fewest differing fields. *key NULL: none. */
LgStatus cache_nearest(const char *dir, const ProgramFields *now, Arena *arena, const char **key,
                       ProgramFields *fields, LgError *err);

/* Puts the finished object temp_so (in DIR) in the entry's place. */
LgStatus cache_publish(const char *dir, const char *key, const ProgramFields *f,
                       const char *temp_so, LgError *err);

/* Opens and locks DIR/KEY.c; waits for another process that builds the entry. -1: cannot; errno
 * says why. Closing it unlocks. */
int cache_lock(const char *dir, const char *key);

/* `path --version`, remembered in DIR by path, size and time of change (DIR NULL: asked for each
 * time). */
LgStatus cache_compiler_version(const char *dir, const char *path, Arena *arena,
                                const char **version, LgError *err);

#endif
