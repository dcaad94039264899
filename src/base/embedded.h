/* Files of the repository that the binary carries (tools/embed.py makes the tables). */
#ifndef LG_BASE_EMBEDDED_H
#define LG_BASE_EMBEDDED_H

#include <stddef.h>

typedef struct LgEmbedded {
    const char *name; /* "qwen3.lg"; NULL ends a table */
    const char *data; /* zero-terminated after size bytes */
    size_t size;
} LgEmbedded;

extern const LgEmbedded lg_models[];      /* models/ *.lg */
extern const LgEmbedded lg_kernels_cpu[]; /* kernels/cpu/ */

#endif
