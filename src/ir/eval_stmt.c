/* One statement, for every index on its left. */
#include <math.h>

#include "base/float.h"
#include "base/mem.h"
#include "ir/eval_internal.h"

double eval_store_round(EvalStore store, double value) {
    /* A double goes to f32 first, as in f32 mode it already is one: both modes then store by the
     * same rule. */
    float f = (float)value;
    if (store == EVAL_STORE_BF16)
        return (double)bf16_round(f);
    if (store == EVAL_STORE_F16)
        return (double)f16_to_float(f16_from_float(f));
    return (double)f;
}

void eval_store(Eval *e, const EvalRef *target, double value) {
    const EvalTensor *t = &e->tensors[target->tensor];
    if (t->store == EVAL_STORE_INT) {
        int64_t at = 0;
        for (int i = 0; i < target->count; i++)
            at += eval_index(e, &target->indexes[i]) * t->stride[i];
        t->i[at] = (int32_t)llrint(value);
        return;
    }
    *eval_ref_at(e, target) = (float)eval_store_round(t->store, value);
}

LgStatus eval_scratch(Eval *e, size_t bytes) {
    if (bytes <= e->scratch_bytes)
        return LG_OK;
    void *grown = lg_alloc_aligned(bytes);
    if (!grown)
        return lg_fail_memory(e->err);
    lg_free_aligned(e->scratch);
    e->scratch = grown;
    e->scratch_bytes = bytes;
    return LG_OK;
}

static void one_value(Eval *e, EvalStmt *s) {
    double value = eval_node(e, s->rhs);
    if (s->stmt->op == LANG_ADD_TO)
        value = eval_round(e, (double)*eval_ref_at(e, &s->targets[0]) + value);
    eval_store(e, &s->targets[0], value);
}

/* The best by value, then by lower index; what was taken before is marked by NaN, which is never
 * greater. */
static void choose(Eval *e, EvalStmt *s) {
    EvalNode *n = s->rhs;
    eval_vector(e, n);
    int64_t wanted = (int64_t)e->extents[s->vars[s->choice_var].dim];
    for (int64_t j = 0; j < wanted; j++) {
        int64_t best = -1;
        for (int64_t i = n->low; i < n->high; i++)
            if (!isnan(n->vector[i]) && (best < 0 || n->vector[i] > n->vector[best]))
                best = i;
        double value = best < 0 ? (double)NAN : n->vector[best];
        e->v[s->choice_var] = j;
        eval_store(e, &s->targets[0], best < 0 ? 0 : (double)best);
        eval_store(e, &s->targets[1], value);
        if (best >= 0)
            n->vector[best] = (double)NAN;
    }
}

static void loop_level(Eval *e, EvalStmt *s, int level) {
    if (level == s->loop_count) {
        if (s->choice_var >= 0)
            choose(e, s);
        else
            one_value(e, s);
        return;
    }
    int var = s->loops[level];
    if (var == s->choice_var) {
        loop_level(e, s, level + 1);
        return;
    }
    int64_t low, high;
    eval_bounds(e, var, &low, &high);
    for (int64_t i = low; i < high; i++) {
        e->v[var] = i;
        if (e->filtered && var == s->row_var && !eval_row_wanted(e, s))
            continue;
        loop_level(e, s, level + 1);
    }
}

static LgStatus grow_vectors(Eval *e, EvalStmt *s) {
    for (int i = 0; i < s->reduce_count; i++) {
        EvalNode *n = s->reduces[i];
        uint64_t need = e->extents[s->vars[n->vars[0]].dim];
        bool keeps = n->red == LANG_RED_SOFTMAX || n->red == LANG_RED_TOPK;
        if (!keeps || need <= n->vector_cap)
            continue;
        double *grown = lg_realloc(n->vector, (size_t)need * sizeof *grown);
        if (!grown)
            return lg_fail_memory(e->err);
        n->vector = grown;
        n->vector_cap = need;
    }
    return LG_OK;
}

LgStatus eval_stmt(Eval *e, EvalStmt *s) {
    if (s->stmt->role == LANG_LORA_LOW)
        return LG_OK; /* the fold forms its lows */
    eval_prepare(e, s);
    if (s->fold)
        return eval_fold(e, s);
    if (s->bulk)
        return eval_bulk(e, s);
    LG_TRY(grow_vectors(e, s));
    loop_level(e, s, 0);
    return LG_OK;
}
