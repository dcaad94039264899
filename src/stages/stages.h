/* The compiler's middle: a checked program in, a plan out. pipeline.c lists the passes. */
#ifndef LG_STAGES_STAGES_H
#define LG_STAGES_STAGES_H

#include "ir/plan_text.h"

typedef struct PlanOptions {
    const char *backend; /* "cpu", "interp" */
    bool store_f32;      /* stores that name no type are f32, not bf16 */
    bool keep_values; /* no two values share memory, so that every one can be looked at after a step
                       */
    bool no_fuse;     /* one launch a stage: the same bits, for tests */
} PlanOptions;

/* p: after lang_rewrite_lora where adapters are wanted. The plan lives in the arena, and borrows p.
 * Errors: LG_BAD_INPUT in the language's refusal shape (lang_refuse), LG_NO_MEMORY. */
LgStatus plan_build(const LangProgram *p, const PlanOptions *options, Arena *arena, Plan **out,
                    LgError *err);

/* Holds a plan to its program: every statement covered once and in an order that keeps its
 * dependences, every value defined before it is used, no two live values in one place, every launch
 * citing its lines. Errors: LG_INTERNAL, naming pass and launch. */
LgStatus plan_verify(const Plan *plan, const char *pass, LgError *err);

/* Bytes that a param takes as bound (one layer's), for plan_explain. */
typedef uint64_t (*PlanWeightBytes)(void *user, const PlanWeight *weight);

/* The plan launch by launch as JSON, for a step of `rows` tokens: provenance, name, source lines,
 * statements, kernel, rule, numerics, bytes and FLOPs. weight_bytes NULL: two bytes an element. */
void plan_explain(const Plan *plan, uint64_t rows, PlanWeightBytes weight_bytes, void *user,
                  Buf *out);

#endif
