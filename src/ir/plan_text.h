/* A plan as text, and its digest. */
#ifndef LG_IR_PLAN_TEXT_H
#define LG_IR_PLAN_TEXT_H

#include "ir/stage.h"

/* Deterministic: the golden files of the tests hold it. */
void plan_print(const Plan *plan, Buf *out);

/* SHA-256 over plan_print's text and everything else that decides what is emitted. Fills
 * plan->digest. */
LgStatus plan_digest(Plan *plan, LgError *err);

const PlanBuffer *plan_buffer(const Plan *plan, int tensor);              /* NULL: not stored */
const PlanState *plan_state(const Plan *plan, int tensor);                /* NULL: no such state */
const PlanWeight *plan_weight(const Plan *plan, int tensor, WeightUse u); /* NULL: not used so */

#endif
