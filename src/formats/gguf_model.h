/* What a GGUF of a known architecture is called in Hugging Face's terms. */
#ifndef LG_FORMATS_GGUF_MODEL_H
#define LG_FORMATS_GGUF_MODEL_H

#include "base/config.h"
#include "formats/gguf.h"

/* Fills an empty config from the metadata, with what the architecture implies.
 * Errors: LG_BAD_INPUT where the architecture is not known, or the file is no model (an adapter, a
 * part of a split). */
LgStatus gguf_model_config(const Gguf *g, const char *what, Config *config, LgError *err);

/* The tensors under Hugging Face's names, sharing g's bytes; config is gguf_model_config's, and
 * gains rope_scaling.* where the file has it as a tensor. */
LgStatus gguf_model_tensors(const Gguf *g, const char *what, Config *config, TensorSet **out,
                            LgError *err);

/* The tensors of a LoRA adapter ("blk.0.attn_q.weight.lora_a") under PEFT's names, sharing g's
 * bytes. config: of the model that it is for; the rows of q's and k's B lie by its heads where g's
 * architecture is llama. *alpha: adapter.lora.alpha. Errors: LG_BAD_INPUT where g is no such
 * adapter.
 */
LgStatus gguf_adapter_tensors(const Gguf *g, const char *what, const Config *config,
                              TensorSet **out, double *alpha, LgError *err);

/* Llama 3 files hold RoPE's scaling as a tensor of divisors. True where they are those of a known
 * parameter set, which is then written to config as rope_scaling.*; *status tells of a failed
 * allocation. */
bool gguf_rope_recognise(const Tensor *divisors, Config *config, LgStatus *status, LgError *err);

#endif
