/* What the passes share while they build a plan. Internal to src/stages. */
#ifndef LG_STAGES_PASS_H
#define LG_STAGES_PASS_H

#include "stages/match.h"
#include "stages/stages.h"

typedef struct Pass {
    LangProgram *p; /* a copy: passes may add tensors to it */
    const PlanOptions *o;
    Arena *arena;
    LgError *err;
    Stage *stages; /* in order; those of the layer block are [layer_begin, layer_end) */
    int stage_count;
    int layer_begin, layer_end;
    Plan *plan;
} Pass;

/* statements → stages. */
LgStatus pass_lift(Pass *pass);
LgStatus lift_matmul(Pass *pass, const LangStmt *s, const LangExpr *reduce, const LangExpr *bias,
                     Stage *stage);
/* s is the softmax; the sum that reads it is searched for behind it and becomes *sum_index. */
LgStatus lift_attend(Pass *pass, int index, Stage *stage, int *sum_index);
/* Adapter statements move into the stage of their site. */
LgStatus pass_place_lora(Pass *pass);
/* Function calls in the layer block that no layer changes become values in front of it. */
LgStatus pass_hoist(Pass *pass);
/* Verifies the stages as they are, as one launch each. */
LgStatus pass_check(Pass *pass, const char *name);
/* stages → launches, verified behind every rule. */
LgStatus pass_fuse(Pass *pass);
/* Refuses stages that the back end has no kernel for. */
LgStatus pass_check_kernels(Pass *pass);
/* Weight table, state layout, buffers. */
LgStatus pass_weights(Pass *pass);
LgStatus pass_memory(Pass *pass);

int lift_row_var(const LangProgram *p, const LangStmt *s, int *dim);
const char *pass_var(const LangStmt *s, int var, Arena *arena);
/* Calls visit for each tensor that the stage reads (states and lookups included) or writes; attend
 * pairs give both statements'. */
void stage_reads(const LangProgram *p, const Stage *s, MatchRead visit, void *user);
bool stage_reads_tensor(const LangProgram *p, const Stage *s, int tensor);
bool stage_writes_tensor(const Stage *s, int tensor);
/* One of them writes what the other reads or writes. */
bool stages_conflict(const LangProgram *p, const Stage *a, const Stage *b);

#endif
