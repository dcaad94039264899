/* The rows of values that a launch reads or writes, each under one name, and the weights beside
 * them. */
#include "emit/emit_impl.h"

bool emit_row_axis(const Emit *e, int tensor) {
    const LangTensor *t = &e->p->tensors[tensor];
    return t->rank > 0 && e->p->dims[t->dims[0]].runtime;
}

static void add_ref(RowsEmit *r, int tensor, const LangIndex *row) {
    Emit *e = r->e;
    const LangTensor *t = &e->p->tensors[tensor];
    bool table = t->kind == LANG_PARAM && row && row->kind == LANG_INDEX_LOOKUP;
    if (row && !table && (!emit_row_axis(e, tensor) || match_is_var(row, r->stage->row_var)))
        row = NULL;
    if (t->kind == LANG_PARAM && !table)
        row = NULL;
    if (row && match_index_vars(row) != 1u << r->stage->row_var) {
        r->status = lang_refuse(e->p, r->stage->stmt->line, 0, e->err,
                                "cannot emit: a row of %.*s is looked up by another index than the "
                                "statement's row. Look it up in a statement of its own.",
                                LG_STR_ARG(t->name));
        return;
    }
    for (int k = 0; k < r->ref_count; k++)
        if (r->refs[k].tensor == tensor && r->refs[k].table == table &&
            (row ? r->refs[k].row && match_index_equal(row, r->refs[k].row) : !r->refs[k].row))
            return;
    if (r->ref_count == r->ref_cap) {
        int cap = r->ref_cap ? r->ref_cap * 2 : 16;
        RowRef *grown =
            arena_grow(e->arena, r->refs, (size_t)r->ref_count, (size_t)cap, sizeof(RowRef));
        if (!grown) {
            r->status = lg_fail_memory(e->err);
            return;
        }
        r->refs = grown;
        r->ref_cap = cap;
    }
    const char *name = emit_tensor_name(e, tensor);
    if (name && row)
        name = arena_printf(e->arena, "%s_%s%d", name, table ? "row" : "at", r->ref_count);
    if (!name) {
        r->status = lg_fail_memory(e->err);
        return;
    }
    RowRef *ref = &r->refs[r->ref_count++];
    *ref = (RowRef){.tensor = tensor, .row = row, .name = name, .table = table};
    if (table) {
        ref->scratch_at = r->scratch;
        r->scratch += (int64_t)((match_stride(e->p, t, 1) + 15) / 16 * 16);
    }
}

static void read_ref(void *user, int tensor, const LangExpr *ref) {
    RowsEmit *r = user;
    LangTensorKind kind = r->e->p->tensors[tensor].kind;
    if (r->status != LG_OK || kind == LANG_INPUT || kind == LANG_STATE || !ref)
        return;
    if (ref->tensor != tensor)
        return; /* a lookup inside its index */
    add_ref(r, tensor, ref->index_count ? &ref->indexes[0] : NULL);
}

void emit_collect_refs(RowsEmit *r, int from, int to) {
    for (int k = from; k < to; k++) {
        r->stage = r->l->stages[k];
        match_reads(r->stage->stmt->rhs, read_ref, r);
        for (int t = 0; t < r->stage->stmt->target_count; t++) {
            int y = r->stage->stmt->targets[t].tensor;
            if (r->e->p->tensors[y].kind != LANG_STATE)
                add_ref(r, y, NULL);
        }
        int64_t choice = emit_choice_floats(r->e, r->stage);
        r->choice = choice > r->choice ? choice : r->choice;
    }
}

int64_t emit_rows_scratch(const Emit *e, const Launch *l) {
    Emit copy = *e;
    RowsEmit r = {.e = &copy, .l = l, .status = LG_OK};
    emit_collect_refs(&r, 0, l->stage_count);
    return r.scratch + r.choice;
}

/* A second name for the same value may alias the first, and so may two values in one place. */
static bool alone(const RowsEmit *r, int k) {
    const Plan *plan = r->e->plan;
    if (plan->before_output >= 0 &&
        (r->refs[k].tensor == plan->output || r->refs[k].tensor == plan->before_output))
        return false;
    for (int m = 0; m < r->ref_count; m++)
        if (m != k && r->refs[m].tensor == r->refs[k].tensor && !r->refs[m].table)
            return false;
    return true;
}

static bool written(const RowsEmit *r, int tensor) {
    for (int k = 0; k < r->l->stage_count; k++)
        for (int t = 0; t < r->l->stages[k]->stmt->target_count; t++)
            if (r->l->stages[k]->stmt->targets[t].tensor == tensor)
                return true;
    return false;
}

void emit_declare_weights(RowsEmit *r) {
    for (int k = 0; k < r->ref_count; k++) {
        const RowRef *ref = &r->refs[k];
        if (r->e->p->tensors[ref->tensor].kind != LANG_PARAM || ref->table)
            continue;
        const PlanWeight *w = plan_weight(r->e->plan, ref->tensor, WEIGHT_VECTOR);
        const char *at = emit_layer_index(r->e, w, r->e->arena);
        if (r->l->row_dim < 0)
            emit_line(r->e, "const float *const %s = step->weights[%s].data;", ref->name, at);
        else
            emit_line(r->e, "const float *const %s = lgp_vector(step, %d, row, %s);", ref->name,
                      emit_domain(r->e, r->l), at);
    }
}

void emit_declare_rows(RowsEmit *r) {
    Emit *e = r->e;
    StmtEmit x = {.e = e, .row_var = -1, .status = LG_OK};
    for (int k = 0; k < r->ref_count; k++) {
        const RowRef *ref = &r->refs[k];
        if (e->p->tensors[ref->tensor].kind == LANG_PARAM && !ref->table)
            continue;
        if (ref->table && e->cuda)
            continue; /* read where it lies */
        if (ref->table) {
            emit_line(e, "float *const %s = scratch + %lld;", ref->name,
                      (long long)ref->scratch_at);
            continue;
        }
        Buf place, row;
        buf_init(&place);
        buf_init(&row);
        if (ref->row) {
            /* The index is of the statement that uses it; its row is the launch's. */
            for (int s = 0; s < r->l->stage_count; s++)
                if (match_index_vars(ref->row) == 1u << r->l->stages[s]->row_var)
                    x.row_var = r->l->stages[s]->row_var;
            x.s = r->l->stages[0]->stmt;
            emit_index(&x, ref->row, &row);
        } else {
            buf_puts(&row, "row");
        }
        emit_row_place(e, ref->tensor, row.data, &place);
        if (e->cuda)
            emit_line(e, "auto const %s = %s;", ref->name, place.data);
        else if (emit_is_choice(e, ref->tensor))
            emit_line(e, "int32_t *%sconst %s = (int32_t *)(void *)(%s);",
                      alone(r, k) ? "restrict " : "", ref->name, place.data);
        else
            emit_line(e, "%sfloat *%sconst %s = %s;", written(r, ref->tensor) ? "" : "const ",
                      alone(r, k) ? "restrict " : "", ref->name, place.data);
        emit_done(e, &place);
        emit_done(e, &row);
    }
    if (x.status != LG_OK)
        r->status = x.status;
}
