/* plan_explain: what each launch rests on and what it moves, as JSON. */
#include "stages/pass.h"

typedef struct Cost {
    const Plan *plan;
    uint64_t rows;
    PlanWeightBytes weight_bytes;
    void *user;
    uint64_t weights, values, states, flops;
} Cost;

static uint64_t bytes_of(const Cost *c, const PlanWeight *w) {
    if (!w)
        return 0;
    if (c->weight_bytes)
        return c->weight_bytes(c->user, w);
    return w->rows * w->columns * (w->use == WEIGHT_VECTOR ? 4 : 2);
}

static void value_bytes(Cost *c, int tensor) {
    const PlanBuffer *b = plan_buffer(c->plan, tensor);
    if (b)
        c->values += b->row_elems * 4 * (b->row_dim < 0 ? 1 : c->rows);
    else if (tensor == c->plan->output || tensor == c->plan->before_output)
        c->values +=
            match_stride(c->plan->program, &c->plan->program->tensors[tensor], 1) * 4 * c->rows;
}

static void read_bytes(void *user, int tensor, const LangExpr *ref) {
    Cost *c = user;
    const LangTensor *t = &c->plan->program->tensors[tensor];
    (void)ref;
    value_bytes(c, tensor);
    if (t->kind != LANG_PARAM)
        return;
    const PlanWeight *w = plan_weight(c->plan, tensor, WEIGHT_VECTOR);
    const PlanWeight *table = plan_weight(c->plan, tensor, WEIGHT_TABLE);
    if (table)
        c->weights += bytes_of(c, table) / table->rows * c->rows;
    else
        c->weights += bytes_of(c, w);
}

typedef struct Count {
    const LangProgram *p;
    const LangStmt *s;
    uint64_t rows;
    uint64_t flops;
} Count;

/* How often a reduction is computed: once for each value of the indexes that it needs from
 * outside, for every row. */
static uint64_t reduce_times(const Count *c, const LangExpr *e, uint64_t times) {
    uint32_t vars = match_vars(e);
    uint64_t n = c->rows;
    for (int v = 0; v < c->s->var_count; v++)
        if (vars >> v & 1 && !c->p->dims[c->s->vars[v].dim].runtime)
            n *= c->p->dims[c->s->vars[v].dim].size;
    return n < times ? n : times;
}

/* Additions, multiplications and calls count as one each. */
static void count_flops(Count *c, const LangExpr *e, uint64_t times) {
    if (!e)
        return;
    if (e->kind == EXPR_REDUCE) {
        uint64_t n = reduce_times(c, e, times);
        for (int k = 0; k < e->var_count; k++) {
            const LangDim *d = &c->p->dims[c->s->vars[e->vars[k]].dim];
            n *= d->runtime ? 1 : d->size;
        }
        c->flops += n;
        count_flops(c, e->a, n);
        return;
    }
    if (e->kind >= EXPR_NEG && e->kind <= EXPR_CALL)
        c->flops += times;
    count_flops(c, e->a, times);
    count_flops(c, e->b, times);
}

static void stage_cost(Cost *c, const Stage *s) {
    const LangProgram *p = c->plan->program;
    if (s->matmul) {
        const StageMatmul *m = s->matmul;
        /* Experts: one for each choice, at most. */
        uint64_t chosen = c->rows < m->experts / m->slots ? c->rows * m->slots : m->experts;
        c->weights += bytes_of(c, plan_weight(c->plan, m->w, WEIGHT_MATRIX)) / m->experts * chosen;
        c->weights += m->bias < 0 ? 0 : bytes_of(c, plan_weight(c->plan, m->bias, WEIGHT_VECTOR));
        value_bytes(c, m->x);
        value_bytes(c, s->stmt->targets[0].tensor);
        c->flops += 2 * m->n * m->k * m->slots * c->rows;
        return;
    }
    if (s->attend) {
        const StageAttend *a = s->attend;
        value_bytes(c, a->q);
        value_bytes(c, a->o);
        /* One page of context: what a longer one adds is a multiple of it. */
        c->states += plan_state(c->plan, a->k)->page_bytes + plan_state(c->plan, a->v)->page_bytes;
        c->flops += 2 * 64 * a->kv_heads * a->group * (a->width + a->v_width) * c->rows;
        return;
    }
    uint64_t elems = c->rows;
    for (int v = 0; v < s->stmt->var_count; v++)
        if (!s->stmt->vars[v].reduced && !p->dims[s->stmt->vars[v].dim].runtime)
            elems *= p->dims[s->stmt->vars[v].dim].size;
    Count count = {.p = p, .s = s->stmt, .rows = c->rows};
    count_flops(&count, s->stmt->rhs, elems);
    c->flops += count.flops;
    stage_reads(p, s, read_bytes, c);
    for (int t = 0; t < s->stmt->target_count; t++)
        value_bytes(c, s->stmt->targets[t].tensor);
}

static void quoted(Buf *out, LgStr s) {
    buf_putc(out, '"');
    buf_json_escape(out, s);
    buf_putc(out, '"');
}

static void explain_launch(const Plan *plan, const Launch *l, Cost *c, Buf *out) {
    for (int k = 0; k < l->stage_count; k++)
        stage_cost(c, l->stages[k]);
    buf_puts(out, "    {\"name\": ");
    quoted(out, lg_str(l->name));
    buf_printf(out,
               ", \"provenance\": \"%s\", \"in_layer\": %s, \"kernel\": \"%s\", \"rule\": \"%s\", "
               "\"numerics\": \"%s\", \"lines\": [",
               provenance_text(plan->provenance.kind), l->in_layer ? "true" : "false", l->kernel,
               l->rule, numerics_name(l->numerics));
    for (int k = 0; k < l->cite.line_count; k++)
        buf_printf(out, "%s%d", k ? ", " : "", l->cite.lines[k]);
    buf_puts(out, "], \"statements\": [");
    for (int k = 0; k < l->stage_count; k++) {
        const Stage *s = l->stages[k];
        buf_printf(out, "%s{\"stage\": \"%s\", \"line\": %d, \"text\": ", k ? ", " : "",
                   stage_op_name(s->op), s->stmt->line);
        quoted(out, s->stmt->text);
        buf_puts(out, "}");
    }
    buf_puts(out, "], \"adapters\": [");
    bool first = true;
    for (int k = 0; k < l->stage_count; k++)
        if (l->stages[k]->site >= 0) {
            buf_puts(out, first ? "" : ", ");
            quoted(out,
                   plan->program->tensors[plan->program->sites[l->stages[k]->site].param].name);
            first = false;
        }
    buf_printf(
        out,
        "], \"weight_bytes\": %llu, \"value_bytes\": %llu, \"state_bytes\": %llu, \"flops\": %llu}",
        (unsigned long long)c->weights, (unsigned long long)c->values,
        (unsigned long long)c->states, (unsigned long long)c->flops);
}

void plan_explain(const Plan *plan, uint64_t rows, PlanWeightBytes weight_bytes, void *user,
                  Buf *out) {
    uint64_t layers = (uint64_t)plan->program->layer_count;
    Cost sum = {0};
    buf_puts(out, "{\n  \"model\": ");
    quoted(out, lg_str(plan->provenance.model));
    buf_printf(out,
               ",\n  \"provenance\": \"%s\",\n  \"backend\": \"%s\",\n  \"digest\": \"%s\",\n"
               "  \"layers\": %llu,\n  \"rows\": %llu,\n  \"launches\": [\n",
               provenance_text(plan->provenance.kind), plan->backend, plan->digest,
               (unsigned long long)layers, (unsigned long long)rows);
    for (int k = 0; k < plan->launch_count; k++) {
        Cost c = {.plan = plan, .rows = rows, .weight_bytes = weight_bytes, .user = user};
        explain_launch(plan, &plan->launches[k], &c, out);
        buf_puts(out, k + 1 < plan->launch_count ? ",\n" : "\n");
        uint64_t times = plan->launches[k].in_layer ? layers : 1;
        sum.weights += c.weights * times;
        sum.values += c.values * times;
        sum.states += c.states * times;
        sum.flops += c.flops * times;
    }
    buf_printf(
        out,
        "  ],\n  \"weight_bytes\": %llu,\n  \"value_bytes\": %llu,\n  \"state_bytes\": %llu,\n"
        "  \"flops\": %llu\n}\n",
        (unsigned long long)sum.weights, (unsigned long long)sum.values,
        (unsigned long long)sum.states, (unsigned long long)sum.flops);
}
