/* plan_memory: a place in the activation arena for every stored value. Places are shared by values
 * that are never live together. */
#include "stages/pass.h"

typedef struct Life {
    int tensor;
    int first, last; /* launches; a value that outlives a layer lives through the whole block */
} Life;

typedef struct Lives {
    Pass *pass;
    Life *lives;
    int count;
    int launch;
    LgStatus status;
} Lives;

static Life *life_of(Lives *l, int tensor) {
    for (int k = 0; k < l->count; k++)
        if (l->lives[k].tensor == tensor)
            return &l->lives[k];
    return NULL;
}

static void touch(Lives *l, int tensor) {
    const LangTensor *t = &l->pass->p->tensors[tensor];
    const Plan *plan = l->pass->plan;
    if (t->kind != LANG_VALUE)
        return;
    Life *life = life_of(l, tensor);
    if (!life) {
        life = &l->lives[l->count++];
        *life = (Life){tensor, l->launch, l->launch};
    }
    life->last = l->launch;
    bool in_layers = l->launch >= plan->layer_begin && l->launch < plan->layer_end;
    if (in_layers && !t->in_layer) {
        if (plan->layer_begin < life->first)
            life->first = plan->layer_begin;
        life->last = plan->layer_end - 1;
    }
}

static void touch_read(void *user, int tensor, const LangExpr *ref) {
    Lives *l = user;
    (void)ref;
    touch(l, tensor);
}

static void touch_stage(Lives *l, const Stage *s) {
    for (int t = 0; t < s->stmt->target_count; t++)
        touch(l, s->stmt->targets[t].tensor);
    if (s->attend) {
        /* p is never stored: what it and the sum read is. */
        touch(l, s->attend->q);
        return;
    }
    stage_reads(l->pass->p, s, touch_read, l);
}

#define BUFFER_ALIGN 64u

static uint64_t place(const Plan *plan, const Life *lives, int n, uint64_t bytes, bool share) {
    uint64_t at = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int k = 0; k < n; k++) {
            const PlanBuffer *b = &plan->buffers[k];
            uint64_t size = b->row_elems * 4;
            bool together =
                !share || (lives[k].first <= lives[n].last && lives[n].first <= lives[k].last);
            if (together && at < b->offset_row + size && b->offset_row < at + bytes) {
                at = b->offset_row + size;
                at = (at + BUFFER_ALIGN - 1) / BUFFER_ALIGN * BUFFER_ALIGN;
                moved = true;
            }
        }
    }
    return at;
}

LgStatus pass_memory(Pass *pass) {
    Plan *plan = pass->plan;
    const LangProgram *p = pass->p;
    Lives l = {.pass = pass};
    l.lives = ARENA_ARRAY(pass->arena, Life, (size_t)p->tensor_count + 1);
    plan->buffers = ARENA_ARRAY(pass->arena, PlanBuffer, (size_t)p->tensor_count + 1);
    if (!l.lives || !plan->buffers)
        return lg_fail_memory(pass->err);
    for (l.launch = 0; l.launch < plan->launch_count; l.launch++)
        for (int k = 0; k < plan->launches[l.launch].stage_count; k++)
            touch_stage(&l, plan->launches[l.launch].stages[k]);
    plan->buffer_count = 0;
    plan->arena_row_bytes = 0;
    for (int k = 0; k < l.count; k++) {
        const LangTensor *t = &p->tensors[l.lives[k].tensor];
        bool rows = t->rank > 0 && p->dims[t->dims[0]].runtime;
        PlanBuffer b = {.tensor = l.lives[k].tensor,
                        .row_dim = rows ? t->dims[0] : -1,
                        .row_elems = match_stride(p, t, rows ? 1 : 0)};
        b.offset_row = place(plan, l.lives, k, b.row_elems * 4, !pass->o->keep_values);
        uint64_t end =
            b.offset_row + (b.row_elems * 4 + BUFFER_ALIGN - 1) / BUFFER_ALIGN * BUFFER_ALIGN;
        if (end > plan->arena_row_bytes)
            plan->arena_row_bytes = end;
        plan->buffers[plan->buffer_count++] = b;
    }
    return LG_OK;
}
