/* A plan as text for people and for golden files, and a digest over all that decides what is
 * emitted: the text, and every number and node of the statements (constants of the config are
 * folded into those, and no line of the source shows them). */
#include "ir/plan_text.h"

#include "base/hash.h"
#include "base/number.h"

#include <string.h>

const char *stage_op_name(StageOp op) {
    static const char *const names[] = {
#define STAGE_OP_NAME(name) #name,
        STAGE_OP_MAP(STAGE_OP_NAME)
#undef STAGE_OP_NAME
    };
    return op < STAGE_OP_COUNT ? names[op] : "?";
}

const char *numerics_name(Numerics n) {
    static const char *const names[] = {"exact", "reference", "differs"};
    return names[n];
}

const PlanBuffer *plan_buffer(const Plan *plan, int tensor) {
    for (int k = 0; k < plan->buffer_count; k++)
        if (plan->buffers[k].tensor == tensor)
            return &plan->buffers[k];
    return NULL;
}

const PlanState *plan_state(const Plan *plan, int tensor) {
    for (int k = 0; k < plan->state_count; k++)
        if (plan->states[k].tensor == tensor)
            return &plan->states[k];
    return NULL;
}

const PlanWeight *plan_weight(const Plan *plan, int tensor, WeightUse use) {
    for (int k = 0; k < plan->weight_count; k++)
        if (plan->weights[k].tensor == tensor && plan->weights[k].use == use)
            return &plan->weights[k];
    return NULL;
}

static LgStr name_of(const Plan *plan, int tensor) {
    return plan->program->tensors[tensor].name;
}

/* One number where all layers have the same, else all of them. */
static void print_by_layer(const Plan *plan, const Stage *s, const double *values, Buf *out) {
    int count = s->in_layer ? plan->program->layer_count : 1;
    bool same = true;
    for (int l = 1; l < count; l++)
        same = same && values[l] == values[0];
    for (int l = 0; l < (same ? 1 : count); l++) {
        char text[NUMBER_TEXT_MAX];
        number_shortest_float((float)values[l], text);
        buf_printf(out, "%s%s", l ? " " : "", text);
    }
}

static void print_stage(const Plan *plan, const Stage *s, Buf *out) {
    buf_printf(out, "    %-7s", stage_op_name(s->op));
    if (s->attend)
        buf_printf(out, " %3d  %.*s\n           ", s->attend->softmax->line,
                   LG_STR_ARG(s->attend->softmax->text));
    buf_printf(out, " %3d  %.*s\n", s->stmt->line, LG_STR_ARG(s->stmt->text));
    const StageMatmul *m = s->matmul;
    if (m) {
        buf_printf(out, "                 [%llu, %llu] of %.*s", (unsigned long long)m->n,
                   (unsigned long long)m->k, LG_STR_ARG(name_of(plan, m->w)));
        if (m->expert >= 0)
            buf_printf(out, ", one of %llu by %.*s", (unsigned long long)m->experts,
                       LG_STR_ARG(name_of(plan, m->expert)));
        if (m->bias >= 0)
            buf_printf(out, ", bias %.*s", LG_STR_ARG(name_of(plan, m->bias)));
        buf_putc(out, '\n');
    }
    const StageAttend *a = s->attend;
    if (!a)
        return;
    buf_printf(out,
               "                 %llu kv heads of %llu queries, width %llu, values %llu, scale ",
               (unsigned long long)a->kv_heads, (unsigned long long)a->group,
               (unsigned long long)a->width, (unsigned long long)a->v_width);
    print_by_layer(plan, s, a->scale, out);
    buf_puts(out, ", window ");
    print_by_layer(plan, s, a->window, out);
    buf_puts(out, a->score ? ", score function\n" : "\n");
}

static void print_launch(const Plan *plan, int index, Buf *out) {
    const Launch *l = &plan->launches[index];
    LgStr rows = l->row_dim < 0 ? LG_STR("1") : plan->program->dims[l->row_dim].name;
    buf_printf(out, "  %d %s: %s, rows %.*s, rule %s, %s, lines", index, l->name, l->kernel,
               LG_STR_ARG(rows), l->rule, numerics_name(l->numerics));
    for (int k = 0; k < l->cite.line_count; k++)
        buf_printf(out, " %d", l->cite.lines[k]);
    buf_putc(out, '\n');
    for (int k = 0; k < l->epilogue; k++)
        print_stage(plan, l->stages[k], out);
    for (int c = 0; c < l->lora_count; c++) {
        buf_puts(out, "    adapters on");
        for (int k = 0; k < l->loras[c].count; k++) {
            const Stage *s = l->stages[l->loras[c].stages[k]];
            buf_printf(out, " %.*s",
                       LG_STR_ARG(name_of(plan, plan->program->sites[s->site].param)));
        }
        buf_putc(out, '\n');
    }
    if (l->epilogue < l->stage_count)
        buf_puts(out, "    to each tile\n");
    for (int k = l->epilogue; k < l->stage_count; k++)
        print_stage(plan, l->stages[k], out);
}

static void print_tables(const Plan *plan, Buf *out) {
    static const char *const uses[] = {"matrix", "vector", "table"};
    buf_printf(out, "weights %d\n", plan->weight_total);
    for (int k = 0; k < plan->weight_count; k++) {
        const PlanWeight *w = &plan->weights[k];
        buf_printf(out, "  %d %.*s: %s [%llu, %llu]%s\n", w->base,
                   LG_STR_ARG(name_of(plan, w->tensor)), uses[w->use], (unsigned long long)w->rows,
                   (unsigned long long)w->columns, w->in_layer ? " for each layer" : "");
    }
    buf_printf(out, "values %llu bytes a row\n", (unsigned long long)plan->arena_row_bytes);
    for (int k = 0; k < plan->buffer_count; k++) {
        const PlanBuffer *b = &plan->buffers[k];
        buf_printf(out, "  %.*s: at %llu, %llu elements\n", LG_STR_ARG(name_of(plan, b->tensor)),
                   (unsigned long long)b->offset_row, (unsigned long long)b->row_elems);
    }
    if (plan->before_output >= 0)
        buf_printf(out, "  %.*s: in the output's place\n",
                   LG_STR_ARG(name_of(plan, plan->before_output)));
    buf_printf(out, "states %llu bytes a page and layer\n",
               (unsigned long long)plan->layer_page_bytes);
    for (int k = 0; k < plan->state_count; k++) {
        const PlanState *s = &plan->states[k];
        buf_printf(out, "  %.*s: %s, %llu heads, width %llu, at %llu, %llu bytes\n",
                   LG_STR_ARG(name_of(plan, s->tensor)),
                   s->layout == STATE_ROW ? "by position" : "transposed",
                   (unsigned long long)s->heads, (unsigned long long)s->width,
                   (unsigned long long)s->offset_page, (unsigned long long)s->page_bytes);
    }
}

void plan_print(const Plan *plan, Buf *out) {
    buf_printf(out, "plan %s, %s, back end %s, stores %s, %d layers\n", plan->provenance.model,
               provenance_text(plan->provenance.kind), plan->backend,
               plan->store_f32 ? "f32" : "bf16", plan->program->layer_count);
    buf_puts(out, "before the layers\n");
    for (int k = 0; k < plan->launch_count; k++) {
        if (k == plan->layer_begin)
            buf_puts(out, "each layer\n");
        if (k == plan->layer_end)
            buf_puts(out, "behind the layers\n");
        print_launch(plan, k, out);
    }
    print_tables(plan, out);
}

static void dump_index(const LangIndex *i, Buf *out) {
    buf_printf(out, "%d:%d:%lld", (int)i->kind, i->kind == LANG_INDEX_LOOKUP ? i->tensor : i->var,
               (long long)i->value);
    if (i->kind == LANG_INDEX_LOOKUP)
        for (int k = 0; k < i->count; k++) {
            buf_putc(out, k ? ',' : '[');
            dump_index(&i->indexes[k], out);
        }
    buf_putc(out, ';');
}

static void dump_expr(const LangProgram *p, const LangExpr *e, Buf *out) {
    if (!e) {
        buf_putc(out, '_');
        return;
    }
    buf_printf(out, "(%d ", (int)e->kind);
    switch (e->kind) {
    case EXPR_NUMBER:
        buf_printf(out, "%a", e->number);
        break;
    case EXPR_CONST:
        for (int l = 0; l < p->layer_count; l++)
            buf_printf(out, "%a,", p->consts[e->constant].values[l]);
        break;
    case EXPR_IF:
        for (int l = 0; l < p->layer_count; l++)
            buf_putc(out, e->layer_true[l] ? '1' : '0');
        break;
    case EXPR_VAR:
        buf_printf(out, "%d", e->var);
        break;
    case EXPR_CALL:
        buf_printf(out, "%d", (int)e->fn);
        break;
    case EXPR_REF:
        buf_printf(out, "%d", e->tensor);
        for (int k = 0; k < e->index_count; k++)
            dump_index(&e->indexes[k], out);
        break;
    case EXPR_REDUCE:
        buf_printf(out, "%d", (int)e->red);
        for (int k = 0; k < e->var_count; k++)
            buf_printf(out, ",%d", e->vars[k]);
        break;
    default:
        break;
    }
    dump_expr(p, e->a, out);
    if (e->b)
        dump_expr(p, e->b, out);
    buf_putc(out, ')');
}

static void dump_stmt(const LangProgram *p, const LangStmt *s, Buf *out) {
    buf_printf(out, "%d %d:", s->line, (int)s->op);
    for (int v = 0; v < s->var_count; v++) {
        const LangDim *d = &p->dims[s->vars[v].dim];
        buf_printf(out, "%llu,", d->runtime ? 0ull : (unsigned long long)d->size);
        dump_expr(p, s->vars[v].upper, out);
        dump_expr(p, s->vars[v].lower, out);
    }
    for (int t = 0; t < s->target_count; t++) {
        buf_printf(out, "%d", s->targets[t].tensor);
        for (int k = 0; k < s->targets[t].index_count; k++)
            dump_index(&s->targets[t].indexes[k], out);
    }
    dump_expr(p, s->rhs, out);
    buf_putc(out, '\n');
}

LgStatus plan_digest(Plan *plan, LgError *err) {
    Buf text;
    buf_init(&text);
    plan_print(plan, &text);
    const LangProgram *p = plan->program;
    for (int t = 0; t < p->tensor_count; t++) {
        const LangTensor *x = &p->tensors[t];
        buf_printf(&text, "%.*s %d %d %d\n", LG_STR_ARG(x->name), (int)x->kind,
                   x->dtype_written ? (int)x->dtype : -1, x->lora_site);
    }
    for (int l = 0; l < plan->launch_count; l++)
        for (int k = 0; k < plan->launches[l].stage_count; k++) {
            const Stage *s = plan->launches[l].stages[k];
            if (s->attend)
                dump_stmt(p, s->attend->softmax, &text);
            dump_stmt(p, s->stmt, &text);
        }
    /* Emitted files quote the page, and the last part of its path. */
    size_t from = p->file.len;
    while (from > 0 && p->file.ptr[from - 1] != '/')
        from--;
    buf_str(&text, lg_str_sub(p->file, from, p->file.len - from));
    buf_str(&text, p->source);
    bool failed = text.failed;
    if (!failed)
        sha256_hex(text.data, text.len, plan->digest);
    buf_clear(&text);
    return failed ? lg_fail_memory(err) : LG_OK;
}
