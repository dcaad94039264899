/* GGUF v2 and v3: metadata and tensors. */
#ifndef LG_FORMATS_GGUF_H
#define LG_FORMATS_GGUF_H

#include "base/config.h"
#include "formats/tensor.h"

typedef struct Gguf Gguf;

LgStatus gguf_open(const char *path, Gguf **out, LgError *err);
/* Memory that outlives the Gguf: for fuzzing and tests. */
LgStatus gguf_parse(const unsigned char *data, size_t size, const char *what, Gguf **out,
                    LgError *err);
void gguf_close(Gguf *g);

/* Metadata. Scalars come as ConfigValue; arrays by the accessors below. NULL: absent. Borrowed. */
const ConfigValue *gguf_get(const Gguf *g, const char *key);
/* Arrays of strings (tokens, merges), of integers (token types) and of floats (scores); count 0
 * where absent or of another type. */
size_t gguf_strings(const Gguf *g, const char *key, const LgStr **items);
size_t gguf_ints(const Gguf *g, const char *key, const int32_t **items);
size_t gguf_floats(const Gguf *g, const char *key, const float **items);

/* All keys in file order. */
size_t gguf_key_count(const Gguf *g);
LgStr gguf_key(const Gguf *g, size_t index); /* zero-terminated */

/* The tensors as stored, with llama.cpp's names, before any renaming. */
const TensorSet *gguf_tensors(const Gguf *g);

#endif
