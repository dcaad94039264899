/* What the parts of the planner share: one load's context. Internal to src/lora. */
#ifndef LG_LORA_PEFT_PLANNER_H
#define LG_LORA_PEFT_PLANNER_H

#include "lora/peft.h"

/* The tensors that one level of wrappers of a holder has; which of its parameters they are for is
 * known when all have been seen. */
typedef struct PeftParameter {
    const Tensor *a, *b;
    LgStr file_module;
} PeftParameter;

typedef struct Planner {
    const TensorSet *tensors;
    PeftConfig *config;
    const LoraModules *modules;
    const AdapterOptions *o;
    Arena *arena;
    PeftPlan *plan;
    PeftEntry *by_module;
    PeftParameter *parameters; /* [holder * LORA_PARAMETERS_MAX + depth] */
    LgStr adapter_name;        /* in keys; len 0: none so far */
    size_t matched;
    const Tensor *stray; /* the first that belongs to no module */
    PeftKey stray_key;
    LgError *err;
} Planner;

/* A matrix of a type that is served. */
LgStatus planner_check_axes(Planner *pl, const Tensor *t);

/* peft_parameters.c: tensors of modules whose parameters hold all experts. First each is taken to
 * the level of wrappers that its name tells, then the levels become entries. */
LgStatus planner_take_parameter(Planner *pl, const Tensor *t, const PeftKey *key,
                                const LoraHolder *h);
LgStatus planner_place_parameters(Planner *pl);

#endif
