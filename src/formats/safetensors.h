/* safetensors, single and sharded, memory-mapped. */
#ifndef LG_FORMATS_SAFETENSORS_H
#define LG_FORMATS_SAFETENSORS_H

#include "formats/tensor.h"

/* Opens DIR/STEM.safetensors, or the shards that DIR/STEM.safetensors.index.json names (which must
 * lie in DIR itself: a path separator, "..", an absolute path or a link out of DIR is refused).
 * Errors: LG_NOT_FOUND where neither exists; LG_BAD_INPUT with file, tensor and offset for
 * everything malformed. */
LgStatus safetensors_open(const char *dir, const char *stem, TensorSet **out, LgError *err);

/* Parses a whole file in memory, which must outlive the set: for fuzzing and tests. what names it
 * in messages. */
LgStatus safetensors_parse(const unsigned char *data, size_t size, const char *what,
                           TensorSet **out, LgError *err);

#endif
