/* Routers and experts: softmax and topk over an axis of a row, and launches of products whose
 * weight a row's choice picks. */
#include "emit/emit_impl.h"

#include <stdio.h>

bool emit_is_choice(const Emit *e, int tensor) {
    const LangTensor *t = &e->p->tensors[tensor];
    return t->kind == LANG_VALUE && t->index_dim >= 0;
}

static uint64_t extent(const Emit *e, const LangStmt *s, int var) {
    return e->p->dims[s->vars[var].dim].size;
}

int64_t emit_choice_floats(const Emit *e, const Stage *stage) {
    if (stage->op != STAGE_TOPK && !(e->cuda && stage->op == STAGE_SOFTMAX))
        return 0;
    return (int64_t)((extent(e, stage->stmt, stage->stmt->rhs->vars[0]) + 15) / 16 * 16);
}

/* Where a target's elements begin that the last index runs over: "pick + j * 4". */
static void emit_target(RowsEmit *r, StmtEmit *x, int target, Buf *out) {
    const LangTarget *t = &x->s->targets[target];
    for (int k = 0; k < r->ref_count; k++)
        if (r->refs[k].tensor == t->tensor && !r->refs[k].row)
            buf_puts(out, r->refs[k].name);
    if (t->index_count > 2) {
        buf_puts(out, " + ");
        emit_linear(x, &x->e->p->tensors[t->tensor], t->indexes, t->index_count - 1, 1, 1, out);
    }
}

static void emit_round_run(StmtEmit *x, int tensor, const char *at, uint64_t count) {
    if (!emit_rounds(x->e, tensor))
        return;
    emit_code(x->e, x->s->line, "for (int32_t at = 0; at < %llu; at++)", (unsigned long long)count);
    emit_code(x->e, x->s->line, "    (%s)[at] = lgp_round_bf16((%s)[at]);", at, at);
}

/* Device code: one thread chooses, in memory of the block. */
static void emit_shared_choice(RowsEmit *r, StmtEmit *x, const char *over, unsigned long long n,
                               const char *value, const char *first) {
    const LangStmt *s = x->s;
    Buf second;
    buf_init(&second);
    emit_code(x->e, s->line, "LGP_FOR(%s, %llu) choice[%s] = %s;", over, n, over, value);
    if (x->stage->op == STAGE_TOPK) {
        unsigned long long k = (unsigned long long)match_stride(
            x->e->p, &x->e->p->tensors[s->targets[0].tensor], s->targets[0].index_count - 1);
        emit_target(r, x, 1, &second);
        emit_code(x->e, s->line, "lgp_topk(choice, %llu, %llu, %s, %s);", n, k, first, second.data);
        emit_round_run(x, s->targets[1].tensor, second.data, k);
    } else {
        const char *round = emit_rounds(x->e, s->targets[0].tensor) ? "lgp_round_bf16" : "";
        emit_code(x->e, s->line, "lgp_softmax(choice, %llu);", n);
        emit_code(x->e, s->line, "for (int32_t at = 0; at < %llu; at++)", n);
        emit_code(x->e, s->line, "    (%s)[at] = %s(choice[at]);", first, round);
    }
    emit_done(x->e, &second);
}

/* The values that the last index runs over, then the choice. */
static void emit_choice_body(RowsEmit *r, StmtEmit *x) {
    const LangStmt *s = x->s;
    const LangExpr *reduce = s->rhs;
    const char *over = emit_var_name(x->e, s, reduce->vars[0]);
    unsigned long long n = (unsigned long long)extent(x->e, s, reduce->vars[0]);
    bool topk = x->stage->op == STAGE_TOPK;
    Buf value, first, second;
    buf_init(&value);
    buf_init(&first);
    buf_init(&second);
    emit_expr(x, reduce->a, &value);
    emit_target(r, x, 0, &first);
    if (x->e->cuda) {
        emit_shared_choice(r, x, over, n, value.data, first.data);
    } else if (topk) {
        emit_target(r, x, 1, &second);
        unsigned long long k = (unsigned long long)match_stride(
            x->e->p, &x->e->p->tensors[s->targets[0].tensor], s->targets[0].index_count - 1);
        emit_code(x->e, s->line, "float *const choice = scratch + %lld;", (long long)r->scratch);
        emit_code(x->e, s->line, "LGP_FOR(%s, %llu) choice[%s] = %s;", over, n, over, value.data);
        emit_code(x->e, s->line, "lgp_topk(choice, %llu, %llu, %s, %s);", n, k, first.data,
                  second.data);
        emit_round_run(x, s->targets[1].tensor, second.data, k);
    } else {
        emit_code(x->e, s->line, "float *const choice = %s;", first.data);
        emit_code(x->e, s->line, "LGP_FOR(%s, %llu) choice[%s] = %s;", over, n, over, value.data);
        emit_code(x->e, s->line, "lgp_softmax(choice, choice, %llu);", n);
        emit_round_run(x, s->targets[0].tensor, "choice", n);
    }
    emit_done(x->e, &value);
    emit_done(x->e, &first);
    emit_done(x->e, &second);
}

/* What is chosen from, or made to sum to one, is the last axis of the target, or its choices are.
 */
static void check_choice(StmtEmit *x) {
    const LangTarget *t = &x->s->targets[0];
    const LangIndex *last = &t->indexes[t->index_count - 1];
    bool softmax = x->stage->op == STAGE_SOFTMAX;
    if (x->s->rhs->var_count != 1 || last->kind != LANG_INDEX_VAR ||
        (softmax && last->var != x->s->rhs->vars[0]) || !match_is_var(&t->indexes[0], x->row_var) ||
        x->s->op != LANG_ASSIGN)
        emit_refuse(x, NULL,
                    "a softmax runs over the last index of its target, and a topk's choices are "
                    "the last of both of its targets; the first is the row.");
}

void emit_choice(RowsEmit *r, const Stage *stage) {
    Emit *e = r->e;
    StmtEmit x = {.e = e,
                  .stage = stage,
                  .s = stage->stmt,
                  .row_var = stage->row_var,
                  .refs = r->refs,
                  .ref_count = r->ref_count,
                  .status = LG_OK};
    const LangTarget *t = &x.s->targets[0];
    check_choice(&x);
    emit_quote(e, "/* ", x.s->line, x.s->text, " */");
    emit_line(e, "{");
    e->indent++;
    if (e->cuda)
        emit_line(e, "if (threadIdx.x == 0)");
    for (int k = 1; k + 1 < t->index_count && x.status == LG_OK; k++)
        if (t->indexes[k].kind == LANG_INDEX_VAR)
            emit_code(e, x.s->line, "LGP_FOR(%s, %llu)", emit_var_name(e, x.s, t->indexes[k].var),
                      (unsigned long long)extent(e, x.s, t->indexes[k].var));
    if (x.status == LG_OK) {
        emit_line(e, "{");
        e->indent++;
        emit_choice_body(r, &x);
        e->indent--;
        emit_own(e);
        emit_line(e, "}");
    }
    e->indent--;
    emit_line(e, "}");
    if (e->cuda)
        emit_line(e, "__syncthreads();");
    if (x.status != LG_OK)
        r->status = x.status;
}

/* ---- products ---- */

/* An earlier launch of the layer has sorted this choice, and none has sorted another since. */
static bool sorted_before(const Emit *e, int launch) {
    const Launch *l = &e->plan->launches[launch];
    for (int k = launch - 1; k >= 0; k--) {
        const Launch *before = &e->plan->launches[k];
        const StageMatmul *m = before->stages[0]->matmul;
        if (before->in_layer != l->in_layer || k < (l->in_layer ? e->plan->layer_begin : 0))
            return false;
        if (before->kind == LAUNCH_MATMUL && m->expert >= 0)
            return m->expert == l->stages[0]->matmul->expert &&
                   m->slots == l->stages[0]->matmul->slots;
    }
    return false;
}

static void sort_rows(Emit *e, int launch, uint64_t experts) {
    const Launch *l = &e->plan->launches[launch];
    emit_line(e, "if (%s > LGP_MOE_FEW) {", emit_rows_text(e, l));
    emit_line(e, "    moe.offsets = step->sorted;");
    emit_line(e, "    moe.order = step->sorted + %llu;", (unsigned long long)experts + 1);
    if (!sorted_before(e, launch)) {
        emit_line(e, "    if (thread == 0)");
        emit_line(e,
                  "        lgp_moe_sort(moe.choice, moe.rows, %llu, step->sorted, step->sorted + "
                  "%llu);",
                  (unsigned long long)experts, (unsigned long long)experts + 1);
        emit_line(e, "    step->barrier(step->team, thread);");
    }
    emit_line(e, "}");
}

static void emit_walk(Emit *e, int launch, bool products, bool tiles, const char *unless) {
    const Launch *l = &e->plan->launches[launch];
    emit_line(e, "LgpMoeWalk walk = {0};");
    emit_line(e, "while (lgp_moe_seek(&moe, &walk, step->claim(step->team))) {");
    e->indent++;
    if (products)
        emit_line(e, "lgp_moe_task(&moe, &walk, scratch);");
    if (tiles) {
        emit_line(e, "for (int32_t at = walk.part.row; %sat < walk.part.row_end; at++)", unless);
        emit_line(e, "    tile_%d(step%s, lgp_moe_part(&moe, &walk, at, %llu));", launch,
                  l->in_layer ? ", layer" : "", (unsigned long long)l->stages[0]->matmul->slots);
    }
    e->indent--;
    emit_line(e, "}");
}

void emit_lora_experts(Emit *e, const StageMatmul *m) {
    emit_line(e, "call.choice = moe.choice;");
    emit_line(e, "call.experts = %llu;", (unsigned long long)m->experts);
    emit_line(e, "call.slots = %llu;", (unsigned long long)m->slots);
    emit_line(e, "call.share = %llu;", (unsigned long long)m->share);
}

void emit_experts_behind_adapters(Emit *e, int launch) {
    emit_line(e, "if (adapted) {");
    e->indent++;
    emit_walk(e, launch, false, true, "");
    emit_line(e, "step->barrier(step->team, thread);");
    e->indent--;
    emit_line(e, "}");
}

LgStatus emit_experts(Emit *e, int launch) {
    const Launch *l = &e->plan->launches[launch];
    const StageMatmul *m = l->stages[0]->matmul;
    int n = l->epilogue;
    bool tiles = n < l->stage_count;
    for (int k = 0; k < n; k++)
        LG_TRY(emit_check_type(e, l->stages[k]->stmt, l->stages[k]->stmt->targets[0].tensor));
    if (tiles)
        LG_TRY(emit_tile(e, launch));
    emit_launch_begin(e, launch);
    Buf choice;
    buf_init(&choice);
    emit_row_place(e, m->expert, "0", &choice);
    emit_line(e,
              "LgpMoe moe = {.products = %d, .choice = (const int32_t *)(void *)%s, .rows = %s * "
              "%llu, .experts = %llu, .share = %llu};",
              n, choice.data, emit_rows_text(e, l), (unsigned long long)m->slots,
              (unsigned long long)m->experts, (unsigned long long)m->share);
    emit_done(e, &choice);
    for (int k = 0; k < n; k++) {
        char part[32];
        snprintf(part, sizeof part, "moe.part[%d]", k);
        emit_matmul_part(e, l->stages[k], part);
    }
    emit_own(e);
    sort_rows(e, launch, m->experts);
    emit_line(e, "float *const scratch = step->scratch + thread * step->scratch_floats;");
    if (l->lora_count && tiles)
        emit_line(e, "const int32_t adapted = step->lora_rows[%d];", emit_domain(e, l));
    emit_line(e, "{");
    e->indent++;
    emit_walk(e, launch, true, tiles, l->lora_count ? "!adapted && " : "");
    e->indent--;
    emit_line(e, "}");
    return emit_launch_end(e, launch);
}
