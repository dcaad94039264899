/* Params that an adapter replaces. A statement that reads one of them runs once for the rows of
 * each such adapter, with the adapter's values in the params' place, and once for all other rows:
 * no row is computed from a mixture. */
#include <string.h>

#include "base/mem.h"
#include "ir/eval_internal.h"

static bool reads(const EvalNode *n, int tensor) {
    if (!n)
        return false;
    return (n->kind == EXPR_REF && n->ref.tensor == tensor) || reads(n->a, tensor) ||
           reads(n->b, tensor);
}

/* ---- install ---- */

static LgStatus check_replaced(const Eval *e, const AdapterReplaced *r, LgError *err) {
    const LangTensor *decl = &e->p->tensors[r->tensor];
    const EvalTensor *t = &e->tensors[r->tensor];
    if (!t->params || r->layer >= (t->in_layer ? e->layers : 1) || r->columns == 0 ||
        (!r->rows && r->row_count * r->columns != t->elems))
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "adapter: it replaces %.*s, which is another one in this program",
                       LG_STR_ARG(decl->name));
    for (uint64_t i = 0; r->rows && i < r->row_count; i++)
        if (r->rows[i] < 0 || (uint64_t)r->rows[i] >= t->elems / r->columns)
            return lg_fail(err, LG_BAD_INPUT, 0, "adapter: %.*s has no row %d",
                           LG_STR_ARG(decl->name), r->rows[i]);
    for (int i = 0; i < e->p->stmt_count; i++)
        if (e->stmts[i].row_var < 0 && e->stmts[i].stmt->role == LANG_PLAIN &&
            reads(e->stmts[i].rhs, r->tensor))
            return lang_refuse(
                e->p, e->stmts[i].stmt->line, 0, err,
                "cannot replace %.*s for an adapter: this statement reads it for all "
                "rows at once. Read it in a statement that has a row",
                LG_STR_ARG(decl->name));
    return LG_OK;
}

static float *whole_value(const Eval *e, const AdapterReplaced *r) {
    const EvalTensor *t = &e->tensors[r->tensor];
    float *value = lg_alloc_array((size_t)t->elems, sizeof *value);
    if (!value)
        return NULL;
    memcpy(value, t->params[r->layer], (size_t)t->elems * sizeof *value);
    for (uint64_t i = 0; i < r->row_count; i++)
        if (r->rows)
            memcpy(value + (uint64_t)r->rows[i] * r->columns, r->data + i * r->columns,
                   (size_t)r->columns * sizeof *value);
        else
            memcpy(value + i * r->columns, r->data + i * r->columns,
                   (size_t)r->columns * sizeof *value);
    return value;
}

LgStatus eval_replace_install(const Eval *e, const AdapterData *a, float ***out, LgError *err) {
    *out = NULL;
    if (a->replaced_count == 0)
        return LG_OK;
    for (int i = 0; i < a->replaced_count; i++)
        LG_TRY(check_replaced(e, &a->replaced[i], err));
    float **values = lg_calloc((size_t)e->p->tensor_count * (size_t)e->layers, sizeof *values);
    LgStatus status = values ? LG_OK : lg_fail_memory(err);
    for (int i = 0; status == LG_OK && i < a->replaced_count; i++) {
        const AdapterReplaced *r = &a->replaced[i];
        float **at = &values[r->tensor * e->layers + r->layer];
        *at = whole_value(e, r);
        if (!*at)
            status = lg_fail_memory(err);
    }
    if (status != LG_OK) {
        eval_replace_free(e, a, values);
        return status;
    }
    *out = values;
    return LG_OK;
}

void eval_replace_free(const Eval *e, const AdapterData *a, float **values) {
    for (int i = 0; values && i < a->replaced_count; i++)
        lg_free(values[a->replaced[i].tensor * e->layers + a->replaced[i].layer]);
    lg_free(values);
}

/* ---- a step ---- */

void eval_swap(Eval *e, int32_t slot) {
    float **values = e->replaced[slot];
    int layer = e->layer > 0 ? e->layer : 0;
    for (int i = 0; i < e->p->tensor_count; i++) {
        EvalTensor *t = &e->tensors[i];
        int at = t->in_layer ? layer : 0;
        float **own = &values[i * e->layers + at];
        if (!*own)
            continue;
        float *base = t->params[at];
        t->params[at] = *own;
        *own = base;
    }
}

/* The slot of a set that replaces something which s reads in this layer; -1. */
static int32_t replacing(const Eval *e, const EvalStmt *s, int32_t set) {
    const AdapterSet *use = &e->step->sets[set];
    if (use->count != 1 || !e->replaced[use->use[0].slot])
        return -1;
    int32_t slot = use->use[0].slot;
    const AdapterData *a = e->adapters[slot];
    int layer = e->layer > 0 ? e->layer : 0;
    for (int i = 0; i < a->replaced_count; i++) {
        const AdapterReplaced *r = &a->replaced[i];
        if (r->layer == (e->tensors[r->tensor].in_layer ? layer : 0) && reads(s->rhs, r->tensor))
            return slot;
    }
    return -1;
}

bool eval_row_wanted(const Eval *e, const EvalStmt *s) {
    int64_t row = e->v[s->row_var];
    if (s->vars[s->row_var].dim == e->dim_samples)
        row = e->step->last[row];
    int32_t set = e->step->ad[row];
    return e->only_set >= 0 ? set == e->only_set : replacing(e, s, set) < 0;
}

LgStatus eval_replaced(Eval *e, EvalStmt *s) {
    bool any = false;
    for (int32_t set = 0; set < e->step->set_count && !any; set++)
        any = replacing(e, s, set) >= 0;
    if (!any)
        return eval_stmt(e, s);
    e->filtered = true;
    e->only_set = -1;
    LgStatus status = eval_stmt(e, s);
    for (int32_t set = 0; status == LG_OK && set < e->step->set_count; set++) {
        int32_t slot = replacing(e, s, set);
        if (slot < 0)
            continue;
        e->only_set = set;
        eval_swap(e, slot);
        status = eval_stmt(e, s);
        eval_swap(e, slot);
    }
    e->filtered = false;
    return status;
}
