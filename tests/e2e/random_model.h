/* Models of any shape with random weights, made in memory, and random adapters for them. */
#ifndef LG_TESTS_RANDOM_MODEL_H
#define LG_TESTS_RANDOM_MODEL_H

#include "base/arena.h"
#include "base/config.h"
#include "formats/tensor.h"
#include "ir/adapter.h"
#include "ir/bind.h"

typedef struct RandomShape {
    const char *page; /* "qwen3.lg", "llama.lg", "qwen3_moe.lg" */
    int hidden, kv_heads, group, head_dim, ffn, vocab, layers;
    DType dtype; /* of all but the norms; in blocks: q and k have llama.cpp's order of rows */
    bool tied;
    bool llama3; /* scaled rope */
    int experts; /* of "qwen3_moe.lg", and how many a row chooses; ffn is one expert's; 0: none */
    int chosen;
    bool fused; /* a layer's experts in two tensors, gate and up in one */
    /* A page of another name: the config's further keys ("window=20 act='silu' on=true"), and the
     * tensors that its params name. */
    const char *keys;
} RandomShape;

typedef struct RandomModel {
    RandomShape shape;
    Arena arena;
    Config *config;
    TensorSet *tensors;
    const LangProgram *program; /* with the adapters' statements */
    const Binding *binding;
} RandomModel;

LgStatus random_model_make(const RandomShape *shape, uint64_t seed, RandomModel *out, LgError *err);
void random_model_clear(RandomModel *m);

typedef struct RandomAdapter {
    AdapterData data;
    AdapterSite *sites;
    AdapterSite *experts; /* of all sites of experts */
    float *numbers;       /* of all sites */
} RandomAdapter;

/* Ranks differ from site to site (0: not adapted) and go up to rank_max. */
LgStatus random_adapter_make(const RandomModel *m, uint64_t seed, int32_t rank_max, bool store_f32,
                             RandomAdapter *out, LgError *err);
void random_adapter_clear(RandomAdapter *a);

#endif
