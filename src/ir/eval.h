/* The interpreter: the meaning of a program. Sums in index order, f32 (or f64) inside a statement,
 * one rounding a store. Slow, and an oracle: compiled programs are held to it, and it is held to
 * goldens that were made elsewhere. */
#ifndef LG_IR_EVAL_H
#define LG_IR_EVAL_H

#include "ir/adapter.h"
#include "ir/bind.h"
#include "ir/step.h"

typedef struct EvalOptions {
    bool f64;       /* sums and arithmetic in double; stores still round */
    bool store_f32; /* stores that name no type are f32, not bf16 */
} EvalOptions;

typedef struct Eval Eval;

/* p: after lang_rewrite_lora. Everything passed must outlive the Eval. Params are expanded to f32.
 */
LgStatus eval_create(const LangProgram *p, const Binding *binding, EvalOptions options, Eval **out,
                     LgError *err);
void eval_destroy(Eval *e);

LgStatus eval_adapter_install(Eval *e, const AdapterData *adapter, int32_t *slot, LgError *err);
void eval_adapter_remove(Eval *e, int32_t slot);
uint64_t eval_adapter_bytes(const Eval *e, int32_t slot); /* its numbers */

/* logits: [samples, size of the output's last dim]. Where step->pages is NULL the state grows as
 * (slot, pos) need it; otherwise those pages are used (so that sequences may share them), and
 * storage grows to the highest one. An Eval is called one way or the other. */
LgStatus eval_step(Eval *e, const Step *step, float *logits, LgError *err);

/* Storage for pages [0, pages) at once, and what one page takes: the states of all layers. */
LgStatus eval_reserve(Eval *e, int32_t pages, LgError *err);
uint64_t eval_page_bytes(const Eval *e);

/* Called after each statement with its target's whole value so far ([elems], index order of the
 * declaration), for comparing programs statement by statement; not after writes to a state, nor
 * after the first statement of an adapter's two. topk calls it twice, for which and for how much.
 * layer is -1 outside the layers. */
typedef void (*EvalTrace)(void *user, const LangProgram *p, int stmt, int layer,
                          const double *value, uint64_t elems);
void eval_set_trace(Eval *e, EvalTrace trace, void *user);

#endif
