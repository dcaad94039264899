/* A model on disk, whatever its format: Hugging Face's config keys and tensor names. */
#ifndef LG_FORMATS_CHECKPOINT_H
#define LG_FORMATS_CHECKPOINT_H

#include "base/config.h"
#include "formats/gguf.h"
#include "formats/tensor.h"

typedef struct Checkpoint Checkpoint;

/* path: a folder with config.json (and model.safetensors or shards), or a .gguf file. A GGUF's
 * metadata becomes the same config keys (architectures and model_type included), its tensor names
 * become Hugging Face's, and rope_heads is set where its architecture permutes q and k. */
LgStatus checkpoint_open(const char *path, Checkpoint **out, LgError *err);
/* The config alone: DIR/config.json, or a path to a json file; no tensors (checkpoint_tensors is
 * NULL). */
LgStatus checkpoint_open_config(const char *path, Checkpoint **out, LgError *err);
void checkpoint_close(Checkpoint *c);

const char *checkpoint_path(const Checkpoint *c);
const Config *checkpoint_config(const Checkpoint *c);
const TensorSet *checkpoint_tensors(const Checkpoint *c); /* NULL: config only */
const Gguf *checkpoint_gguf(const Checkpoint *c);         /* NULL: not a GGUF */

/* Hugging Face's config.json into flat keys under one name each: transformers 4 and 5 spellings by
 * one table of aliases, `rope_type: default` counts as absent. Exposed for tests and fuzzing. */
LgStatus hf_config_parse(LgStr json, const char *what, Config *out, LgError *err);

#endif
