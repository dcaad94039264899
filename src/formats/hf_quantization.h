/* Checkpoints whose matrices are stored in f8 (e4m3) with scales beside them, as published ones
 * are: `quantization_config` of config.json, and tensors NAME.weight_scale_inv or
 * NAME.weight_scale. */
#ifndef LG_FORMATS_HF_QUANTIZATION_H
#define LG_FORMATS_HF_QUANTIZATION_H

#include "base/config.h"
#include "formats/tensor.h"

typedef struct HfQuantization {
    uint64_t block_rows, block_columns; /* that share a scale, as the config says; 0: it does not */
} HfQuantization;

/* Takes the keys of quantization_config out of the config, after holding each to what is served.
 * Nothing where there are none.  Errors: LG_BAD_INPUT, with the key. */
LgStatus hf_quantization_claim(Config *config, const char *what, HfQuantization *out, LgError *err);

/* Gives every f8 matrix its scales and takes their tensors out of the set. Errors: LG_BAD_INPUT,
 * with the tensor. */
LgStatus hf_quantization_join(TensorSet *set, const HfQuantization *q, const char *what,
                              LgError *err);

#endif
