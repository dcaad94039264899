/* Params to checkpoint tensors: shapes checked, every tensor claimed. */
#ifndef LG_IR_BIND_H
#define LG_IR_BIND_H

#include "base/arena.h"
#include "formats/tensor.h"
#include "lang/lang.h"

typedef struct ParamBinding {
    const Tensor *tensor;         /* NULL: constant */
    const Tensor *const *stacked; /* "{X}": [size of the stack dim]; NULL: one tensor */
    uint64_t from_row;            /* first row, in rows of the last axis */
    double constant;
} ParamBinding;

typedef struct Binding {
    int layer_count;
    const ParamBinding
        *params; /* [tensor id * layer_count + layer]; params outside the layers at layer 0 */
    const LgStr *disregarded; /* "lm_head.weight: equals the tied embedding", … */
    int disregarded_count;
} Binding;

const ParamBinding *binding_get(const Binding *b, int tensor, int layer);

/* The binding lives in the arena and borrows the tensors. Errors: LG_BAD_INPUT, in the language's
 * refusal shape where a declaration is at fault. */
LgStatus bind_params(const LangProgram *p, const TensorSet *tensors, Arena *arena, Binding **out,
                     LgError *err);

/* The stored tensor and row that row *row of a bound param ([.., last axis] flattened) lies in;
 * NULL: a constant. For params of at least two axes. */
const Tensor *binding_row(const ParamBinding *b, const LangProgram *p, int tensor, uint64_t *row);

/* Element rows of a bound param as f32, undoing every storage trick: row r of the flattened [..,
 * last axis]. */
void binding_row_f32(const ParamBinding *b, const LangProgram *p, int tensor, uint64_t row,
                     float *out);

#endif
