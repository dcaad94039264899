/* Device code of the checks themselves, and changed copies of the product's. */
#ifndef LG_CUDA_CHECK_DEVICE_TEXT_H
#define LG_CUDA_CHECK_DEVICE_TEXT_H

#include "gpu.h"

/* Compiles a text with the product's headers (in the one named `header`, `from` becomes `to`; NULL:
 * as they are) and loads it. Ends the program where that fails. */
void *load_text(Gpu *g, const char *name, const char *text, const char *header, const char *from,
                const char *to);
/* tests/cuda/FILE, read from the folder that the program was started in. */
void *load_file(Gpu *g, const char *file);
void *kernel_of(Gpu *g, void *module, const char *name);

#endif
