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
    if (t->kind != LANG_VALUE || tensor == plan->before_output)
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

typedef struct InPlace {
    const LangProgram *p;
    const Stage *output;
    int candidate; /* -1: none so far */
    bool good;
} InPlace;

static bool stored_f32(const Pass *pass, const LangTensor *t) {
    return t->dtype_written ? t->dtype == LANG_F32 : pass->o->store_f32;
}

/* A read of a value that has the output's shape, at the output's own element. */
static void in_place_read(void *user, int tensor, const LangExpr *ref) {
    InPlace *x = user;
    const LangTarget *y = &x->output->stmt->targets[0];
    const LangTensor *t = &x->p->tensors[tensor], *out = &x->p->tensors[y->tensor];
    if (t->kind != LANG_VALUE || t->rank != out->rank)
        return;
    bool same = ref && ref->tensor == tensor && (x->candidate < 0 || x->candidate == tensor);
    for (int k = 0; same && k < t->rank; k++)
        same = t->dims[k] == out->dims[k] && match_index_equal(&ref->indexes[k], &y->indexes[k]);
    x->candidate = tensor;
    x->good &= same;
}

/* logits = f(z), where z is wide (a vocabulary) and nothing else reads it: z needs no place of its
 * own. */
static int find_before_output(const Pass *pass) {
    InPlace x = {.p = pass->p, .candidate = -1, .good = true};
    int writers = 0;
    for (int k = 0; k < pass->stage_count; k++)
        if (stage_writes_tensor(&pass->stages[k], pass->plan->output)) {
            x.output = &pass->stages[k];
            writers++;
        }
    if (writers != 1 || pass->o->keep_values || x.output->op != STAGE_MAP || x.output->site >= 0)
        return -1;
    stage_reads(pass->p, x.output, in_place_read, &x);
    if (!x.good || x.candidate < 0 || pass->p->tensors[x.candidate].in_layer ||
        !stored_f32(pass, &pass->p->tensors[x.candidate]) ||
        !stored_f32(pass, &pass->p->tensors[pass->plan->output]))
        return -1;
    for (int k = 0; k < pass->stage_count; k++)
        if (&pass->stages[k] != x.output &&
            stage_reads_tensor(pass->p, &pass->stages[k], x.candidate))
            return -1;
    return x.candidate;
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
    plan->before_output = find_before_output(pass);
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
