/* Holds a plan to its program. What it finds is a bug of a pass, never of a user, but it is
 * reported and not asserted: a release must not run a plan that is wrong. */
#include "stages/pass.h"

typedef struct Verify {
    const Plan *plan;
    const char *pass;
    LgError *err;
    const Launch *launch;
    const Stage *stage;
    int launch_index, stage_index;
    bool *defined; /* [tensors] */
    LgStatus status;
} Verify;

static LgStatus broken(Verify *v, const char *what, LgStr detail) {
    const char *name = v->launch && v->launch->name ? v->launch->name : "plan";
    v->status =
        lg_fail(v->err, LG_INTERNAL, 0, "%.*s: after %s: launch %s: %s %.*s",
                LG_STR_ARG(v->plan->program->file), v->pass, name, what, LG_STR_ARG(detail));
    return v->status;
}

static LgStr tensor_name(const Verify *v, int tensor) {
    return v->plan->program->tensors[tensor].name;
}

static void check_read(void *user, int tensor, const LangExpr *ref) {
    Verify *v = user;
    const LangTensor *t = &v->plan->program->tensors[tensor];
    (void)ref;
    if (v->status != LG_OK || (t->kind != LANG_VALUE && t->kind != LANG_OUTPUT))
        return;
    if (v->stage->attend && v->stage->attend->softmax->targets[0].tensor == tensor)
        return; /* lives in registers */
    if (!v->defined[tensor])
        broken(v, "reads a value before it is defined:", t->name);
}

typedef struct CrossRow {
    Verify *v;
    const Stage *stage;
} CrossRow;

/* In a launch over rows, what the launch itself wrote is read at the same row only. */
static void check_row(void *user, int tensor, const LangExpr *ref) {
    CrossRow *c = user;
    Verify *v = c->v;
    bool written = false;
    for (int k = 0; k < v->launch->stage_count; k++)
        written |= stage_writes_tensor(v->launch->stages[k], tensor);
    if (v->status != LG_OK || !written || !ref)
        return;
    if (ref->tensor != tensor || ref->index_count < 1 ||
        !match_is_var(&ref->indexes[0], c->stage->row_var))
        broken(v, "reads another row of a value of the same launch:", tensor_name(v, tensor));
}

static void check_stage(Verify *v) {
    const LangProgram *p = v->plan->program;
    const Stage *s = v->stage;
    if (s->in_layer != v->launch->in_layer)
        broken(v, "holds a statement of another block:", s->stmt->text);
    if (s->row_dim != v->launch->row_dim)
        broken(v, "holds a statement with other rows:", s->stmt->text);
    if (v->status == LG_OK)
        stage_reads(p, s, check_read, v);
    CrossRow row = {v, s};
    if (v->status == LG_OK && v->launch->kind == LAUNCH_ROWS && s->row_dim >= 0)
        stage_reads(p, s, check_row, &row);
    for (int t = 0; t < s->stmt->target_count; t++)
        v->defined[s->stmt->targets[t].tensor] = true;
}

static bool cites(const Citation *c, int line) {
    for (int k = 0; k < c->line_count; k++)
        if (c->lines[k] == line)
            return true;
    return false;
}

static LgStatus check_citation(Verify *v) {
    const Launch *l = v->launch;
    if (v->plan->provenance.kind == PROVENANCE_HAND_WRITTEN) {
        if (!l->cite.template_name || !l->cite.lock)
            return broken(v, "cites no template and lock", LG_STR(""));
        return LG_OK;
    }
    if (l->cite.line_count < 1)
        return broken(v, "cites no source line", LG_STR(""));
    for (int k = 0; k < l->stage_count; k++)
        if (!cites(&l->cite, l->stages[k]->stmt->line) ||
            (l->stages[k]->attend && !cites(&l->cite, l->stages[k]->attend->softmax->line)))
            return broken(v, "does not cite the line of", l->stages[k]->stmt->text);
    return LG_OK;
}

/* Sites: every adapter statement is behind its stage, and nothing in the launch reads the target
 * before the call. */
static LgStatus check_sites(Verify *v) {
    const Launch *l = v->launch;
    int sites = 0, called = 0;
    for (int k = 0; k < l->stage_count; k++)
        sites += l->stages[k]->site >= 0;
    for (int c = 0; c < l->lora_count; c++)
        for (int k = 0; k < l->loras[c].count; k++) {
            int at = l->loras[c].stages[k];
            if (at < 0 || at >= l->stage_count || l->stages[at]->site < 0)
                return broken(v, "calls adapters for a statement that is no site", LG_STR(""));
            called++;
            for (int m = at + 1; m < l->epilogue; m++)
                if (stages_conflict(v->plan->program, l->stages[at], l->stages[m]))
                    return broken(v, "uses a site's value before its adapters act:",
                                  l->stages[at]->stmt->text);
        }
    return sites == called ? LG_OK : broken(v, "leaves out the adapters of a site", LG_STR(""));
}

/* Every statement of the program is a stage once: no store is lost. */
static LgStatus check_cover(Verify *v, int *seen) {
    const LangProgram *p = v->plan->program;
    for (int l = 0; l < v->plan->launch_count; l++) {
        v->launch = &v->plan->launches[l];
        for (int k = 0; k < v->launch->stage_count; k++) {
            const Stage *s = v->launch->stages[k];
            if (s->stmt_index >= 0)
                seen[s->stmt_index]++;
            if (s->attend)
                seen[s->attend->softmax_index]++;
            if (s->low >= 0)
                seen[s->low]++;
            if (s->fold >= 0)
                seen[s->fold]++;
        }
    }
    v->launch = NULL;
    for (int k = 0; k < p->stmt_count; k++)
        if (seen[k] != 1)
            return broken(v, seen[k] ? "does twice:" : "never does:", p->stmts[k].text);
    return LG_OK;
}

/* Statements that depend on each other keep the order of the source. */
static LgStatus check_order(Verify *v) {
    const Plan *plan = v->plan;
    for (int a = 0; a < plan->launch_count; a++)
        for (int b = a; b < plan->launch_count; b++)
            for (int x = 0; x < plan->launches[a].stage_count; x++)
                for (int y = b == a ? x + 1 : 0; y < plan->launches[b].stage_count; y++) {
                    const Stage *s = plan->launches[a].stages[x], *t = plan->launches[b].stages[y];
                    if (s->stmt_index < 0 || t->stmt_index < 0 || s->stmt_index < t->stmt_index)
                        continue;
                    v->launch = &plan->launches[b];
                    if (stages_conflict(plan->program, s, t))
                        return broken(v, "runs too late:", t->stmt->text);
                }
    v->launch = NULL;
    return LG_OK;
}

/* A value in a shared place must not be overwritten between its definition and its last use:
 * replayed launch by launch, each place remembers whose value it holds. */
static void check_held(void *user, int tensor, const LangExpr *ref) {
    Verify *v = user;
    const Plan *plan = v->plan;
    const PlanBuffer *b = plan_buffer(plan, tensor);
    (void)ref;
    if (!b || v->status != LG_OK)
        return;
    if (!v->defined[tensor])
        broken(v, "reads a value whose place was taken by another:", tensor_name(v, tensor));
}

static bool overlap(const PlanBuffer *a, const PlanBuffer *b) {
    return a->offset_row < b->offset_row + b->row_elems * 4 &&
           b->offset_row < a->offset_row + a->row_elems * 4;
}

static LgStatus replay_launch(Verify *v) {
    const Plan *plan = v->plan;
    const Launch *l = v->launch;
    for (int k = 0; k < l->stage_count; k++) {
        v->stage = l->stages[k];
        if (v->stage->attend)
            check_held(v, v->stage->attend->q, NULL);
        else
            stage_reads(plan->program, v->stage, check_held, v);
        for (int t = 0; t < v->stage->stmt->target_count; t++) {
            int y = v->stage->stmt->targets[t].tensor;
            const PlanBuffer *b = plan_buffer(plan, y);
            const LangTensor *tensor = &plan->program->tensors[y];
            if (!b && tensor->kind == LANG_VALUE && y != plan->before_output)
                return broken(v, "stores a value that has no place:", tensor->name);
            for (int n = 0; b && n < plan->buffer_count; n++)
                if (&plan->buffers[n] != b && overlap(b, &plan->buffers[n]))
                    v->defined[plan->buffers[n].tensor] = false;
            v->defined[y] = true;
        }
    }
    return v->status;
}

/* Two rounds of the layer block, so that what one layer leaves for the next is held, too. */
static LgStatus check_places(Verify *v) {
    const Plan *plan = v->plan;
    if (!plan->buffers)
        return LG_OK;
    for (int t = 0; t < plan->program->tensor_count; t++)
        v->defined[t] = false;
    for (int round = 0; round < 3; round++) {
        int from = round == 0 ? 0 : round == 1 ? plan->layer_begin : plan->layer_end;
        int to = round == 0 ? plan->layer_end : round == 1 ? plan->layer_end : plan->launch_count;
        for (int l = from; l < to; l++) {
            v->launch = &plan->launches[l];
            LG_TRY(replay_launch(v));
        }
    }
    return LG_OK;
}

/* What is done to the tiles of products needs no more of them than its own element. */
static LgStatus check_epilogue(Verify *v) {
    const Launch *l = v->launch;
    for (int k = 0; k < l->stage_count; k++) {
        const Stage *s = l->stages[k];
        bool tile = l->kind == LAUNCH_MATMUL && k >= l->epilogue;
        if ((l->kind == LAUNCH_MATMUL && !tile) != (s->matmul != NULL))
            return broken(v, "has a stage that its kernel does not do:", s->stmt->text);
        if (tile && (s->op != STAGE_MAP || s->site >= 0))
            return broken(v, "does to its tiles what needs whole rows:", s->stmt->text);
    }
    return LG_OK;
}

static LgStatus verify_all(Verify *v, int *seen) {
    for (int l = 0; l < v->plan->launch_count; l++) {
        v->launch = &v->plan->launches[l];
        if (v->launch->stage_count < 1)
            return broken(v, "is empty", LG_STR(""));
        LG_TRY(check_citation(v));
        for (int k = 0; k < v->launch->stage_count && v->status == LG_OK; k++) {
            v->stage = v->launch->stages[k];
            check_stage(v);
        }
        LG_TRY(v->status);
        LG_TRY(check_epilogue(v));
        LG_TRY(check_sites(v));
    }
    LG_TRY(check_cover(v, seen));
    LG_TRY(check_order(v));
    return check_places(v);
}

LgStatus plan_verify(const Plan *plan, const char *pass, LgError *err) {
    Verify v = {.plan = plan, .pass = pass, .err = err, .status = LG_OK};
    Arena arena;
    arena_init(&arena);
    v.defined = ARENA_ARRAY(&arena, bool, (size_t)plan->program->tensor_count + 1);
    int *seen = ARENA_ARRAY(&arena, int, (size_t)plan->program->stmt_count + 1);
    LgStatus status = v.defined && seen ? verify_all(&v, seen) : lg_fail_memory(err);
    arena_clear(&arena);
    return status;
}
