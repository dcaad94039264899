/* How the launches use params, and how states lie in pages. */
#include "stages/pass.h"

#include "ir/step.h"

typedef struct Weights {
    Pass *pass;
    const Stage *stage;
    int cap;
    LgStatus status;
} Weights;

static void add_weight(Weights *w, int tensor, WeightUse use, uint64_t rows, uint64_t columns,
                       uint64_t experts) {
    Plan *plan = w->pass->plan;
    if (plan_weight(plan, tensor, use) || w->status != LG_OK)
        return;
    if (plan->weight_count == w->cap) {
        int cap = w->cap ? w->cap * 2 : 32;
        PlanWeight *grown = arena_grow(w->pass->arena, plan->weights, (size_t)plan->weight_count,
                                       (size_t)cap, sizeof(PlanWeight));
        if (!grown) {
            w->status = lg_fail_memory(w->pass->err);
            return;
        }
        plan->weights = grown;
        w->cap = cap;
    }
    const LangTensor *t = &w->pass->p->tensors[tensor];
    plan->weights[plan->weight_count++] = (PlanWeight){.tensor = tensor,
                                                       .use = use,
                                                       .in_layer = t->in_layer,
                                                       .rows = rows,
                                                       .columns = columns,
                                                       .experts = experts,
                                                       .base = plan->weight_total};
    plan->weight_total += t->in_layer ? w->pass->p->layer_count : 1;
}

/* W[token[t], i, …]: whole rows of a table; the lookup stands alone in its stored axis. */
static bool is_table(const LangTensor *t, const LangExpr *ref) {
    if (ref->indexes[0].kind != LANG_INDEX_LOOKUP || t->axis_count != 2 || t->axis_start[1] != 1)
        return false;
    for (int k = 1; k < ref->index_count; k++)
        if (ref->indexes[k].kind == LANG_INDEX_LOOKUP)
            return false;
    return true;
}

static void elementwise(void *user, int tensor, const LangExpr *ref) {
    Weights *w = user;
    const LangProgram *p = w->pass->p;
    const LangTensor *t = &p->tensors[tensor];
    if (t->kind != LANG_PARAM || w->status != LG_OK)
        return;
    bool lookup = false;
    for (int k = 0; k < ref->index_count; k++)
        lookup |= ref->indexes[k].kind == LANG_INDEX_LOOKUP;
    uint64_t elems = match_stride(p, t, 0);
    if (!lookup) {
        add_weight(w, tensor, WEIGHT_VECTOR, 1, elems, 1);
        return;
    }
    if (!is_table(t, ref)) {
        w->status =
            lang_refuse(p, w->stage->stmt->line, ref->column, w->pass->err,
                        "cannot lift: a weight is looked up by its first index alone, and its "
                        "other axes are stored as one. Declare it so.");
        return;
    }
    uint64_t rows = p->dims[t->dims[0]].size;
    add_weight(w, tensor, WEIGHT_TABLE, rows, elems / rows, 1);
}

static LgStatus add_state(Pass *pass, int tensor, StateLayout layout, uint64_t heads,
                          uint64_t width) {
    Plan *plan = pass->plan;
    const LangTensor *t = &pass->p->tensors[tensor];
    const PlanState *old = plan_state(plan, tensor);
    if (old && old->layout == layout && old->width == width)
        return LG_OK;
    if (old)
        return lang_refuse(
            pass->p, t->line, 0, pass->err,
            "cannot lay out this state: it is read as keys and as values. Give each its "
            "own state.");
    bool f32 = t->dtype_written ? t->dtype == LANG_F32 : pass->o->store_f32;
    if (t->dtype_written && t->dtype != LANG_F32 && t->dtype != LANG_BF16)
        return lang_refuse(
            pass->p, t->line, 0, pass->err,
            "cannot lay out this state: its type is neither bf16 nor f32. Declare one "
            "of these.");
    if (!t->in_layer)
        return lang_refuse(
            pass->p, t->line, 0, pass->err,
            "cannot lay out this state: it is declared outside the layers. Declare it "
            "in the layer block.");
    uint64_t bytes = heads * width * KV_PAGE_POSITIONS * (f32 ? 4u : 2u);
    plan->states[plan->state_count++] = (PlanState){.tensor = tensor,
                                                    .layout = layout,
                                                    .heads = heads,
                                                    .width = width,
                                                    .offset_page = plan->layer_page_bytes,
                                                    .page_bytes = bytes};
    plan->layer_page_bytes += bytes;
    return LG_OK;
}

static LgStatus states(Pass *pass) {
    Plan *plan = pass->plan;
    plan->states = ARENA_ARRAY(pass->arena, PlanState, (size_t)pass->p->tensor_count + 1);
    if (!plan->states)
        return lg_fail_memory(pass->err);
    for (int k = 0; k < pass->stage_count; k++) {
        const StageAttend *a = pass->stages[k].attend;
        if (!a)
            continue;
        LG_TRY(add_state(pass, a->k, STATE_TRANSPOSED, a->kv_heads, a->width));
        LG_TRY(add_state(pass, a->v, STATE_ROW, a->kv_heads, a->v_width));
    }
    for (int k = 0; k < pass->stage_count; k++) {
        const Stage *s = &pass->stages[k];
        int y = s->stmt->targets[0].tensor;
        if (s->op == STAGE_SCATTER && !plan_state(plan, y))
            return lang_refuse(
                pass->p, s->stmt->line, 0, pass->err,
                "cannot lay out this state: it is written and never read. Read it in an "
                "attention, or leave it out.");
    }
    return LG_OK;
}

LgStatus pass_weights(Pass *pass) {
    Weights w = {.pass = pass, .status = LG_OK};
    for (int k = 0; k < pass->stage_count && w.status == LG_OK; k++) {
        const Stage *s = &pass->stages[k];
        const StageMatmul *m = s->matmul;
        w.stage = s;
        if (m) {
            add_weight(&w, m->w, WEIGHT_MATRIX, m->n * m->experts, m->k, m->experts);
            if (m->bias >= 0)
                add_weight(&w, m->bias, WEIGHT_VECTOR, 1, m->n, 1);
            if (m->expert >= 0 && m->slots > pass->plan->sort_slots)
                pass->plan->sort_slots = m->slots;
            if (m->expert >= 0 && m->experts > pass->plan->sort_experts)
                pass->plan->sort_experts = m->experts;
        } else {
            stage_reads(pass->p, s, elementwise, &w);
        }
    }
    LG_TRY(w.status);
    return states(pass);
}
