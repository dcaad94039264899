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
    size_t matched, replaced_cap;
    const Tensor *stray; /* the first that belongs to no module */
    PeftKey stray_key;
    LgError *err;
} Planner;

/* A type that is served; a matrix of such a type. */
LgStatus planner_check_type(Planner *pl, const Tensor *t);
LgStatus planner_check_axes(Planner *pl, const Tensor *t);

/* peft_parameters.c: tensors of modules whose parameters hold all experts. First each is taken to
 * the level of wrappers that its name tells, then the levels become entries. */
LgStatus planner_take_parameter(Planner *pl, const Tensor *t, const PeftKey *key,
                                const LoraHolder *h);
LgStatus planner_place_parameters(Planner *pl);

/* peft_replaced.c: tensors that replace what the base has. *found: the model has such a tensor.
 * When all have been seen, what the config says of them is checked, and rows find their tokens. */
LgStatus planner_take_replaced(Planner *pl, const Tensor *t, const PeftKey *key, bool *found);
LgStatus planner_place_replaced(Planner *pl);

#endif
