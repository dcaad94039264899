/* Creating an interpreter, its adapters, and one step: extents, storage, then the statements in
 * order. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "ir/eval_internal.h"

#define ELEMS_MAX ((uint64_t)1 << 38) /* of one value or state: more is a mistake, not a model */

static LgStatus tensor_store(Eval *e, int index, LgError *err) {
    const LangTensor *decl = &e->p->tensors[index];
    EvalTensor *t = &e->tensors[index];
    t->in_layer = decl->in_layer;
    t->rank = decl->rank;
    t->is_state = decl->kind == LANG_STATE;
    t->used = decl->kind != LANG_ADAPTER;
    bool stored = decl->kind == LANG_VALUE || decl->kind == LANG_OUTPUT || t->is_state;
    bool choice = decl->index_dim >= 0;
    if (decl->kind == LANG_INPUT || (stored && (choice || decl->dtype == LANG_I32)))
        t->store = EVAL_STORE_INT;
    else if (!stored || (!decl->dtype_written && e->options.store_f32) || decl->dtype == LANG_F32)
        t->store = EVAL_STORE_F32;
    else if (!decl->dtype_written || decl->dtype == LANG_BF16)
        t->store = EVAL_STORE_BF16;
    else if (decl->dtype == LANG_F16)
        t->store = EVAL_STORE_F16;
    else
        return lang_refuse(
            e->p, decl->line, 0, err,
            "cannot interpret %.*s: its store type is not served. Served are f32, bf16, "
            "f16 and i32",
            LG_STR_ARG(decl->name));
    return LG_OK;
}

/* The program's inputs by the names that a Step has them under. */
static LgStatus find_inputs(Eval *e, LgError *err) {
    int *const places[] = {&e->in_token, &e->in_slot, &e->in_pos, &e->in_last, &e->in_ad};
    static const char *const names[] = {"token", "slot", "pos", "last", "ad"};
    enum { COUNT = sizeof names / sizeof names[0] };
    for (int k = 0; k < COUNT; k++)
        *places[k] = -1;
    e->dim_rows = e->dim_samples = e->dim_positions = e->dim_slots = -1;
    for (int i = 0; i < e->p->tensor_count; i++) {
        const LangTensor *t = &e->p->tensors[i];
        if (t->kind != LANG_INPUT)
            continue;
        int k = 0;
        while (k < COUNT && !lg_str_eq_c(t->name, names[k]))
            k++;
        if (k == COUNT || t->rank != 1)
            return lang_refuse(
                e->p, t->line, 0, err,
                "cannot feed %.*s: a step has no such input. The inputs of a step are "
                "token, slot, pos, last and ad, each with one axis",
                LG_STR_ARG(t->name));
        *places[k] = i;
        int *dim = places[k] == &e->in_last ? &e->dim_samples : &e->dim_rows;
        if (*dim >= 0 && *dim != t->dims[0])
            return lang_refuse(e->p, t->line, 0, err,
                               "cannot feed %.*s: the inputs of a step's rows must share one dim",
                               LG_STR_ARG(t->name));
        *dim = t->dims[0];
        if (places[k] == &e->in_pos)
            e->dim_positions = t->index_dim;
        if (places[k] == &e->in_slot)
            e->dim_slots = t->index_dim;
    }
    return LG_OK;
}

static bool same_binding(const ParamBinding *a, const ParamBinding *b) {
    bool tensor = a->tensor && a->tensor == b->tensor && a->from_row == b->from_row;
    return tensor || (a->stacked && a->stacked == b->stacked);
}

/* The expansion of a param that is bound to the same tensor (a tied head), or NULL. */
static float *shared_param(const Eval *e, int param, const ParamBinding *binding) {
    for (int i = 0; i < param; i++) {
        const EvalTensor *t = &e->tensors[i];
        if (t->params && !t->in_layer && t->elems == e->tensors[param].elems &&
            same_binding(binding_get(e->binding, i, 0), binding))
            return t->params[0];
    }
    return NULL;
}

static LgStatus expand_param(Eval *e, int index, LgError *err) {
    const LangTensor *decl = &e->p->tensors[index];
    EvalTensor *t = &e->tensors[index];
    uint64_t columns = 1;
    t->elems = 1;
    for (int i = 0; i < decl->rank; i++) {
        uint64_t size = e->p->dims[decl->dims[i]].size;
        if (size == 0 || t->elems > ELEMS_MAX / size)
            return lang_refuse(e->p, decl->line, 0, err,
                               "cannot interpret %.*s: it has no size, or one past all measure. A "
                               "param's dims are known at compile time",
                               LG_STR_ARG(decl->name));
        t->elems *= size;
        if (i >= decl->axis_start[decl->axis_count - 1])
            columns *= size;
    }
    int layers = decl->in_layer ? e->layers : 1;
    t->params = ARENA_ARRAY(&e->arena, float *, (size_t)layers);
    if (!t->params)
        return lg_fail_memory(err);
    for (int layer = 0; layer < layers; layer++) {
        const ParamBinding *binding = binding_get(e->binding, index, layer);
        t->params[layer] = decl->in_layer ? NULL : shared_param(e, index, binding);
        if (t->params[layer])
            continue;
        float *data = lg_alloc_array((size_t)t->elems, sizeof *data);
        if (!data)
            return lg_fail_memory(err);
        t->params[layer] = data;
        for (uint64_t row = 0; row < t->elems / columns; row++)
            binding_row_f32(binding, e->p, index, row, data + row * columns);
    }
    return LG_OK;
}

static LgStatus create_tensors(Eval *e, LgError *err) {
    for (int i = 0; i < e->p->tensor_count; i++)
        LG_TRY(tensor_store(e, i, err));
    for (int i = 0; i < e->p->stmt_count; i++)
        if (e->p->stmts[i].role == LANG_LORA_LOW)
            e->tensors[e->p->stmts[i].targets[0].tensor].used = false;
    LG_TRY(find_inputs(e, err));
    e->output = -1;
    for (int i = 0; i < e->p->tensor_count; i++) {
        const LangTensor *decl = &e->p->tensors[i];
        EvalTensor *t = &e->tensors[i];
        if (decl->kind == LANG_PARAM)
            LG_TRY(expand_param(e, i, err));
        if (decl->kind == LANG_OUTPUT && e->output < 0)
            e->output = i;
        if (!t->is_state)
            continue;
        t->pages = ARENA_ARRAY(&e->arena, float *, (size_t)(t->in_layer ? e->layers : 1));
        if (!t->pages)
            return lg_fail_memory(err);
        if (t->rank < 2 || decl->dims[0] != e->dim_slots || decl->dims[1] != e->dim_positions)
            return lang_refuse(e->p, decl->line, 0, err,
                               "cannot interpret %.*s: a state is indexed by the sequence, then by "
                               "the position. Declare it as [B, S, …], the dims that slot and pos "
                               "are indexes of",
                               LG_STR_ARG(decl->name));
    }
    return LG_OK;
}

LgStatus eval_create(const LangProgram *p, const Binding *binding, EvalOptions options, Eval **out,
                     LgError *err) {
    Eval *e = lg_calloc(1, sizeof *e);
    if (!e)
        return lg_fail_memory(err);
    arena_init(&e->arena);
    e->p = p;
    e->binding = binding;
    e->options = options;
    e->layers = p->layer_count > 0 ? p->layer_count : 1;
    e->tensors = ARENA_ARRAY(&e->arena, EvalTensor, (size_t)p->tensor_count);
    e->extents = ARENA_ARRAY(&e->arena, uint64_t, (size_t)p->dim_count);
    LgStatus status = e->tensors && e->extents ? LG_OK : lg_fail_memory(err);
    if (status == LG_OK)
        status = create_tensors(e, err);
    if (status == LG_OK)
        status = eval_build(e, err);
    if (status != LG_OK) {
        eval_destroy(e);
        return status;
    }
    *out = e;
    return LG_OK;
}

static void free_param(Eval *e, int index) {
    EvalTensor *t = &e->tensors[index];
    for (int layer = 0; t->params && layer < (t->in_layer ? e->layers : 1); layer++) {
        bool shared = false;
        for (int i = 0; i < index && !t->in_layer; i++)
            shared |= e->tensors[i].params && e->tensors[i].params[0] == t->params[layer];
        if (!shared)
            lg_free(t->params[layer]);
    }
}

void eval_destroy(Eval *e) {
    if (!e)
        return;
    for (int i = e->p->tensor_count - 1; e->tensors && i >= 0; i--) {
        EvalTensor *t = &e->tensors[i];
        free_param(e, i);
        for (int layer = 0; t->pages && layer < (t->in_layer ? e->layers : 1); layer++)
            lg_free(t->pages[layer]);
        lg_free(t->f);
        lg_free(t->i);
    }
    for (int i = 0; e->stmts && i < e->p->stmt_count; i++)
        for (int k = 0; k < e->stmts[i].reduce_count; k++)
            lg_free(e->stmts[i].reduces[k]->vector);
    for (int32_t i = 0; i < e->adapter_cap; i++)
        eval_adapter_remove(e, i);
    lg_free(e->adapters);
    lg_free(e->replaced);
    lg_free(e->trace_value);
    lg_free(e->own_pages);
    lg_free_aligned(e->scratch);
    arena_clear(&e->arena);
    lg_free(e);
}

static LgStatus check_adapter(const Eval *e, const AdapterData *a, LgError *err) {
    if (a->site_count != e->p->site_count || a->layer_count != e->layers)
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "adapter: made for %d sites in %d layers, this program has %d in %d",
                       a->site_count, a->layer_count, e->p->site_count, e->layers);
    if (a->store_f32 != e->options.store_f32)
        return lg_fail(err, LG_BAD_INPUT, 0, "adapter: rounded to %s, this program stores %s",
                       a->store_f32 ? "f32" : "bf16", e->options.store_f32 ? "f32" : "bf16");
    for (int i = 0; i < e->p->stmt_count; i++) {
        const EvalFold *f = e->stmts[i].fold;
        for (int layer = 0; f && layer < a->layer_count; layer++) {
            const AdapterSite *site = &a->sites[layer * a->site_count + f->site];
            if (site->rank > 0 && f->indexed != (site->experts != NULL))
                return lg_fail(err, LG_BAD_INPUT, 0,
                               "adapter: layer %d adapts %.*s as %s, in this program it is %s",
                               layer, LG_STR_ARG(e->p->tensors[e->p->sites[f->site].param].name),
                               site->experts ? "experts" : "one weight",
                               f->indexed ? "experts" : "one weight");
        }
    }
    return LG_OK;
}

LgStatus eval_adapter_install(Eval *e, const AdapterData *adapter, int32_t *slot, LgError *err) {
    LG_TRY(check_adapter(e, adapter, err));
    int32_t at = 0;
    while (at < e->adapter_cap && e->adapters[at])
        at++;
    if (at == e->adapter_cap) {
        int32_t cap = e->adapter_cap ? e->adapter_cap * 2 : 8;
        const AdapterData **grown = lg_realloc(e->adapters, (size_t)cap * sizeof(void *));
        if (!grown)
            return lg_fail_memory(err);
        e->adapters = grown;
        float ***values = lg_realloc(e->replaced, (size_t)cap * sizeof(void *));
        if (!values)
            return lg_fail_memory(err);
        e->replaced = values;
        memset(grown + at, 0, (size_t)(cap - at) * sizeof(void *));
        memset(values + at, 0, (size_t)(cap - at) * sizeof(void *));
        e->adapter_cap = cap;
    }
    LG_TRY(eval_replace_install(e, adapter, &e->replaced[at], err));
    e->adapters[at] = adapter;
    *slot = at;
    return LG_OK;
}

void eval_adapter_remove(Eval *e, int32_t slot) {
    if (slot < 0 || slot >= e->adapter_cap || !e->adapters[slot])
        return;
    eval_replace_free(e, e->adapters[slot], e->replaced[slot]);
    e->replaced[slot] = NULL;
    e->adapters[slot] = NULL;
}

uint64_t eval_adapter_bytes(const Eval *e, int32_t slot) {
    bool live = slot >= 0 && slot < e->adapter_cap && e->adapters[slot];
    return live ? e->adapters[slot]->bytes : 0;
}

void eval_set_trace(Eval *e, EvalTrace trace, void *user) {
    e->trace = trace;
    e->trace_user = user;
}

static LgStatus trace_target(Eval *e, int stmt, const EvalRef *target, int layer) {
    const EvalTensor *t = &e->tensors[target->tensor];
    if (!e->trace || t->is_state)
        return LG_OK;
    if (t->elems > e->trace_cap) {
        double *grown = lg_realloc(e->trace_value, (size_t)t->elems * sizeof *grown);
        if (!grown)
            return lg_fail_memory(e->err);
        e->trace_value = grown;
        e->trace_cap = t->elems;
    }
    for (uint64_t i = 0; i < t->elems; i++)
        e->trace_value[i] = t->store == EVAL_STORE_INT ? (double)t->i[i] : (double)t->f[i];
    e->trace(e->trace_user, e->p, stmt, layer, e->trace_value, t->elems);
    return LG_OK;
}

static LgStatus run_stmt(Eval *e, int index, int layer) {
    EvalStmt *s = &e->stmts[index];
    e->layer = layer;
    bool no_adapters = !e->step->ad || e->step->set_count == 0;
    if (s->stmt->role == LANG_LORA_LOW || (s->fold && no_adapters))
        return LG_OK;
    LG_TRY(no_adapters || s->fold ? eval_stmt(e, s) : eval_replaced(e, s));
    if (s->fold)
        return trace_target(e, index, &e->stmts[s->fold->base].targets[0], layer);
    for (int i = 0; i < s->stmt->target_count; i++)
        LG_TRY(trace_target(e, index, &s->targets[i], layer));
    return LG_OK;
}

LgStatus eval_step(Eval *e, const Step *step, float *logits, LgError *err) {
    e->step = step;
    e->err = err;
    LG_TRY(eval_check_step(e, step, err));
    LG_TRY(eval_make_room(e, step, err));
    const LangProgram *p = e->p;
    int begin = p->layer_dim >= 0 ? p->layer_begin : p->stmt_count;
    int end = p->layer_dim >= 0 ? p->layer_end : p->stmt_count;
    for (int i = 0; i < begin; i++)
        LG_TRY(run_stmt(e, i, -1));
    for (int layer = 0; begin < end && layer < p->layer_count; layer++)
        for (int i = begin; i < end; i++)
            LG_TRY(run_stmt(e, i, layer));
    for (int i = end; i < p->stmt_count; i++)
        LG_TRY(run_stmt(e, i, -1));
    if (e->output >= 0 && logits)
        memcpy(logits, e->tensors[e->output].f,
               (size_t)e->tensors[e->output].elems * sizeof *logits);
    return LG_OK;
}
