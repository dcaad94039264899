/* Questions that passes and emitters ask of a checked tree. */
#ifndef LG_STAGES_MATCH_H
#define LG_STAGES_MATCH_H

#include "lang/lang.h"

/* The indexes that an expression needs from outside, as bits: those that its own reductions bind
 * are left out. */
uint32_t match_vars(const LangExpr *e);
uint32_t match_index_vars(const LangIndex *i);

/* Where e is made of numbers and per-layer constants alone: true, and its value in that layer.
 * Rounded to f32 at every step. */
bool match_constant(const LangProgram *p, const LangExpr *e, int layer, double *value);
bool match_layered(const LangExpr *e); /* uses a per-layer constant or condition */

/* Calls visit for every tensor that e reads, lookups inside indexes included (then ref is the outer
 * node). */
typedef void (*MatchRead)(void *user, int tensor, const LangExpr *ref);
void match_reads(const LangExpr *e, MatchRead visit, void *user);
void match_index_reads(const LangIndex *i, const LangExpr *ref, MatchRead visit, void *user);
bool match_reads_tensor(const LangExpr *e, int tensor);

/* Calls visit for every node, parents first; stops descending where it returns false. */
typedef bool (*MatchNode)(void *user, const LangExpr *e);
void match_nodes(const LangExpr *e, MatchNode visit, void *user);

bool match_index_equal(const LangIndex *a, const LangIndex *b);
bool match_equal(const LangExpr *a, const LangExpr *b);

bool match_is_var(const LangIndex *i, int var);
/* The reduction whose body is a product with a weight, or NULL: a factor is a param that has both a
 * summed axis and an axis that the target keeps (or a lookup). */
bool match_is_product(const LangProgram *p, const LangStmt *s, const LangExpr *reduce);

/* Leaves of a tree of multiplications. Returns their number, at most max (more: max + 1). */
int match_factors(const LangExpr *e, const LangExpr **out, int max);

/* The f32 result of an elementwise function, for constants. */
double match_call(LangFn fn, double a, double b);

/* Elements from dim `from` on of a tensor's index order; 1 at its end. Run-time dims count as 1. */
uint64_t match_stride(const LangProgram *p, const LangTensor *t, int axis);

#endif
