/* One function a launch: what all have in common, and those of products and of attention, whose
 * work a kernel does. */
#include "emit/emit_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool emit_rounds(const Emit *e, int tensor) {
    const LangTensor *t = &e->p->tensors[tensor];
    return t->dtype_written ? t->dtype == LANG_BF16 : !e->plan->store_f32;
}

/* What lies in the output's place is f32, as the output is. */
bool emit_held_bf16(const Emit *e, int tensor) {
    return emit_rounds(e, tensor) && plan_buffer(e->plan, tensor) &&
           tensor != e->plan->before_output;
}

LgStatus emit_check_type(Emit *e, const LangStmt *s, int tensor) {
    const LangTensor *t = &e->p->tensors[tensor];
    if (emit_is_choice(e, tensor) || !t->dtype_written || t->dtype == LANG_F32 ||
        t->dtype == LANG_BF16)
        return LG_OK;
    return lang_refuse(e->p, s->line, 0, e->err,
                       "cannot emit: programs of back end %s store f32 and bf16. Give %.*s one of "
                       "these types.",
                       e->plan->backend, LG_STR_ARG(t->name));
}

/* The dim of an input's rows; -1: the page has no such input. */
static int input_dim(const Emit *e, const char *name) {
    for (int t = 0; t < e->p->tensor_count; t++)
        if (e->p->tensors[t].kind == LANG_INPUT && lg_str_eq_c(e->p->tensors[t].name, name))
            return e->p->tensors[t].dims[0];
    return -1;
}

LgStatus emit_check_rows(Emit *e) {
    int samples = input_dim(e, "last"), rows = input_dim(e, "token");
    const LangTensor *y = &e->p->tensors[e->plan->output];
    if (rows < 0 || samples < 0 || y->dims[0] != samples)
        return lang_refuse(
            e->p, y->line, 0, e->err,
            "cannot emit: a step gives one row of %.*s for each row that the input last "
            "names, of those that token begins. Declare token[T] and last[N], and the "
            "output over N.",
            LG_STR_ARG(y->name));
    for (int k = 0; k < e->plan->launch_count; k++) {
        const Launch *l = &e->plan->launches[k];
        if (l->row_dim >= 0 && l->row_dim != rows && l->row_dim != samples)
            return lang_refuse(
                e->p, l->cite.lines[0], 0, e->err,
                "cannot emit: a value's rows are neither the step's nor those that it "
                "samples. Its first index runs over the dim of token or of last.");
    }
    return LG_OK;
}

const char *emit_rows_text(const Emit *e, const Launch *l) {
    if (l->row_dim < 0)
        return "1";
    return l->row_dim == input_dim(e, "last") ? "step->samples" : "step->rows";
}

int emit_domain(const Emit *e, const Launch *l) {
    return !strcmp(emit_rows_text(e, l), "step->samples");
}

uint64_t emit_row_elems(const Emit *e, int tensor) {
    const PlanBuffer *b = plan_buffer(e->plan, tensor);
    return b ? b->row_elems : match_stride(e->p, &e->p->tensors[tensor], 1);
}

void emit_row_place(Emit *e, int tensor, const char *row, Buf *out) {
    const PlanBuffer *b = plan_buffer(e->plan, tensor);
    unsigned long long elems = (unsigned long long)emit_row_elems(e, tensor);
    if (e->cuda && !b)
        buf_printf(out, "lgc_out(step, %llu, %s)", elems, row);
    else if (e->cuda)
        buf_printf(out, "lgc_row<%s>(step, %llu, %llu, %s)",
                   emit_is_choice(e, tensor)   ? "int"
                   : emit_held_bf16(e, tensor) ? "bf16"
                                               : "float",
                   (unsigned long long)b->offset_row, elems, b->row_dim < 0 ? "0" : row);
    else if (!b)
        buf_printf(out, "step->out + (int64_t)%s * %llu", row, elems);
    else
        buf_printf(out, "lgp_row(step, %llu, %llu, %s)", (unsigned long long)b->offset_row, elems,
                   b->row_dim < 0 ? "0" : row);
}

const char *emit_layer_index(const Emit *e, const PlanWeight *w, Arena *arena) {
    (void)e;
    const char *text = w->in_layer ? arena_printf(arena, "%d + layer", w->base)
                                   : arena_printf(arena, "%d", w->base);
    return text ? text : "0";
}

void emit_launch_comment(Emit *e, int launch) {
    const Launch *l = &e->plan->launches[launch];
    emit_line(e, "%s", "");
    emit_line(e, "/* Launch %d: %s, rule %s, %s.", launch, l->kernel, l->rule,
              numerics_name(l->numerics));
    for (int k = 0; k < l->stage_count; k++) {
        const Stage *s = l->stages[k];
        if (s->attend)
            emit_quote(e, " *   ", s->attend->softmax->line, s->attend->softmax->text, "");
        emit_quote(e, " *   ", s->stmt->line, s->stmt->text, "");
        if (s->attend)
            emit_line(e, " * %s computes both: scores and their softmax, then the sum over values.",
                      e->cuda ? "lgc_attend (step_attend.cuh)" : "lgp_attend_task (above)");
        if (s->fold >= 0) {
            emit_quote(e, " *      ", 0, e->p->stmts[s->low].text, "");
            emit_quote(e, " *      ", 0, e->p->stmts[s->fold].text, "");
        }
    }
    emit_line(e, " */");
}

void emit_launch_begin(Emit *e, int launch) {
    const Launch *l = &e->plan->launches[launch];
    emit_launch_comment(e, launch);
    emit_line(e, "LGP_NOINLINE void launch_%d_%s(const LgpStep *step, int32_t thread%s) {", launch,
              l->name, l->in_layer ? ", int32_t layer" : "");
    e->indent++;
}

/* A tensor's name for a comment. */
static const char *name_of(Emit *e, int tensor) {
    const char *name = arena_strdup(e->arena, e->p->tensors[tensor].name);
    return name ? name : "";
}

static void lora_site(Emit *e, const Stage *s, int at) {
    Buf y;
    buf_init(&y);
    int target = s->stmt->targets[0].tensor;
    emit_row_place(e, target, "0", &y);
    emit_line(e, "call.sites[%d] = %d; /* %s: %s */", at, s->site, name_of(e, target),
              name_of(e, e->p->sites[s->site].param));
    emit_line(e, "call.y[%d] = %s;", at, y.data);
    unsigned long long elems = (unsigned long long)emit_row_elems(e, target);
    if (s->matmul)
        elems /= s->matmul->slots;
    emit_line(e, "call.y_stride[%d] = %llu;", at, elems);
    emit_line(e, "call.n[%d] = %llu;", at, s->matmul ? (unsigned long long)s->matmul->n : elems);
    if (s->matmul && s->matmul->bias >= 0) {
        const PlanWeight *w = plan_weight(e->plan, s->matmul->bias, WEIGHT_VECTOR);
        const char *index = emit_layer_index(e, w, e->arena);
        emit_line(e, "call.bias[%d] = step->weights[%s].data;", at, index);
        emit_line(e, "call.bias_weight[%d] = %s;", at, index);
    }
    emit_done(e, &y);
}

/* What an adapter call is about; its sites share x. */
static void lora_fields(Emit *e, const Launch *l, const LaunchLora *c) {
    const Stage *first = l->stages[c->stages[0]];
    emit_line(e, "call.layer = %s;", l->in_layer ? "layer" : "0");
    emit_line(e, "call.domain = %d;", emit_domain(e, l));
    emit_line(e, "call.site_count = %d;", c->count);
    emit_line(e, "call.store_bf16 = %d;", emit_rounds(e, first->stmt->targets[0].tensor) ? 1 : 0);
    if (first->matmul) {
        Buf x;
        buf_init(&x);
        emit_row_place(e, first->matmul->x, "0", &x);
        emit_line(e, "call.x = %s; /* %s */", x.data, name_of(e, first->matmul->x));
        emit_line(e, "call.x_stride = %llu;",
                  (unsigned long long)(emit_row_elems(e, first->matmul->x) /
                                       (first->matmul->slots / first->matmul->share)));
        if (first->matmul->expert >= 0)
            emit_lora_experts(e, first->matmul);
        emit_line(e, "call.k = %llu;", (unsigned long long)first->matmul->k);
        emit_done(e, &x);
    } else {
        const LangTensor *w = &e->p->tensors[e->p->sites[first->site].param];
        emit_line(e, "call.k = %llu; /* a lookup: a column of A for each row's token */",
                  (unsigned long long)e->p->dims[w->dims[0]].size);
    }
    for (int k = 0; k < c->count; k++)
        lora_site(e, l->stages[c->stages[k]], k);
}

static void lora_step(Emit *e, const Launch *l, const LaunchLora *c) {
    emit_code(e, l->stages[c->stages[0]]->stmt->line, "step->lora(step, thread, &call);");
    emit_own(e);
}

/* B's part is done to each tile of the products, when A's is there: where every product is a site,
 * in one call. */
static bool lora_by_tiles(const Launch *l) {
    return l->kind == LAUNCH_MATMUL && l->lora_count == 1 && l->loras[0].count == l->epilogue &&
           l->stages[0]->matmul->expert < 0;
}

/* In front of the products: A's part. */
static void lora_begin(Emit *e, const Launch *l) {
    emit_line(e, "const int32_t adapted = step->lora_rows[%d];", emit_domain(e, l));
    emit_line(e, "LgpLora call = {0};");
    emit_line(e, "if (adapted) { /* adapters: A's part */");
    e->indent++;
    lora_fields(e, l, &l->loras[0]);
    emit_line(e, "call.part = LGP_LORA_SHRINK;");
    lora_step(e, l, &l->loras[0]);
    e->indent--;
    emit_line(e, "}");
}

/* Task `task` of product k, and what adapters do to its tile. */
static void product_task(Emit *e, const Launch *l, const char *task) {
    if (!lora_by_tiles(l)) {
        emit_line(e, "lgp_matmul_task(&part[k], %s, scratch);", task);
        return;
    }
    emit_line(e, "if (adapted) {");
    emit_line(e, "    lgp_lora_tile(&call, &part[k], %s, k);", task);
    emit_line(e, "    call.part = LGP_LORA_ASK;");
    emit_line(e, "    step->lora(step, thread, &call);");
    emit_line(e, "}");
    emit_line(e, "lgp_matmul_task(&part[k], %s, scratch);", task);
    emit_line(e, "if (adapted) { /* B's part */");
    e->indent++;
    emit_line(e, "call.part = LGP_LORA_FOLD;");
    lora_step(e, l, &l->loras[0]);
    e->indent--;
    emit_line(e, "}");
}

static void lora_call(Emit *e, const Launch *l, const LaunchLora *c) {
    emit_line(e, "if (step->lora_rows[%d]) { /* adapters */", emit_domain(e, l));
    e->indent++;
    emit_line(e, "LgpLora call = {0};");
    lora_fields(e, l, c);
    lora_step(e, l, c);
    e->indent--;
    emit_line(e, "}");
}

/* What is done to tiles waits for adapters that are called behind the products: each thread does it
 * to its share of the outputs. */
static void tiles_behind_adapters(Emit *e, int launch) {
    const Launch *l = &e->plan->launches[launch];
    emit_line(e, "if (adapted) {");
    e->indent++;
    emit_line(e, "LgpMatmulPart mine = {.row_end = part[0].rows};");
    emit_line(e, "lgp_matmul_share(part[0].w->rows, thread, step->thread_count, &mine);");
    emit_line(e, "tile_%d(step%s, mine);", launch, l->in_layer ? ", layer" : "");
    emit_line(e, "step->barrier(step->team, thread);");
    e->indent--;
    emit_line(e, "}");
}

LgStatus emit_launch_end(Emit *e, int launch) {
    const Launch *l = &e->plan->launches[launch];
    emit_line(e, "step->barrier(step->team, thread);");
    for (int c = 0; c < l->lora_count && !lora_by_tiles(l); c++)
        lora_call(e, l, &l->loras[c]);
    if (l->epilogue < l->stage_count && l->lora_count && !lora_by_tiles(l)) {
        if (l->stages[0]->matmul->expert >= 0)
            emit_experts_behind_adapters(e, launch);
        else
            tiles_behind_adapters(e, launch);
    }
    emit_line(e, "lgp_end(step, thread, %d, %s);", launch, l->in_layer ? "layer" : "-1");
    e->indent--;
    emit_line(e, "}");
    return LG_OK;
}

void emit_matmul_part(Emit *e, const Stage *s, const char *part) {
    const StageMatmul *m = s->matmul;
    const uint64_t x_rows = m->slots / m->share;
    int line = s->stmt->line, target = s->stmt->targets[0].tensor;
    Buf x, y;
    buf_init(&x);
    buf_init(&y);
    emit_row_place(e, m->x, "0", &x);
    emit_row_place(e, target, "0", &y);
    const char *bias = "NULL";
    if (m->bias >= 0) {
        const char *at =
            emit_layer_index(e, plan_weight(e->plan, m->bias, WEIGHT_VECTOR), e->arena);
        bias = arena_printf(e->arena, "step->weights[%s].data", at);
        /* an adapter's own are for rows of the step; those of experts' products are not */
        if (bias && m->expert < 0)
            bias = arena_printf(e->arena, "%s, .replaced = step->replaced[%d], .bias_weight = %s",
                                bias, s->row_dim == input_dim(e, "last"), at);
    }
    emit_code(
        e, line,
        "%s = (LgpMatmul){.x = %s /* %s */, .x_stride = %llu, .w = &step->weights[%s] /* %s "
        "*/, .y = %s /* %s */, .y_stride = %llu, .bias = %s, .round_bf16 = %d, .x_bf16 = %d};",
        part, x.data, name_of(e, m->x), (unsigned long long)(emit_row_elems(e, m->x) / x_rows),
        emit_layer_index(e, plan_weight(e->plan, m->w, WEIGHT_MATRIX), e->arena), name_of(e, m->w),
        y.data, name_of(e, target), (unsigned long long)(emit_row_elems(e, target) / m->slots),
        bias ? bias : "NULL", emit_rounds(e, target) ? 1 : 0, emit_rounds(e, m->x) ? 1 : 0);
    emit_done(e, &x);
    emit_done(e, &y);
}

/* Tasks of one product after another. */
static void product_tasks(Emit *e, const Launch *l) {
    emit_line(e, "int32_t task;");
    emit_line(e, "while ((task = step->claim(step->team)) < tasks) {");
    e->indent++;
    emit_line(e, "int32_t k = 0;");
    emit_line(e, "while (task >= ends[k])");
    emit_line(e, "    k++;");
    emit_line(e, "task -= k ? ends[k - 1] : 0;");
    product_task(e, l, "task");
    e->indent--;
    emit_line(e, "}");
}

/* A task does the same tile of all products (they have one shape), and then what comes of it. */
static void tile_tasks(Emit *e, int launch) {
    const Launch *l = &e->plan->launches[launch];
    const char *layer = l->in_layer ? ", layer" : "";
    const bool wait = l->lora_count && !lora_by_tiles(l);
    emit_line(e, "tasks = ends[0];");
    if (wait)
        emit_line(e, "const int32_t adapted = step->lora_rows[%d];", emit_domain(e, l));
    emit_line(e, "int32_t task;");
    emit_line(e, "while ((task = step->claim(step->team)) < tasks) {");
    e->indent++;
    emit_line(e, "for (int32_t k = 0; k < %d; k++) {", l->epilogue);
    e->indent++;
    product_task(e, l, "task");
    e->indent--;
    emit_line(e, "}");
    if (wait)
        emit_line(e, "if (!adapted)");
    emit_line(e, "%stile_%d(step%s, lgp_matmul_part(&part[0], task));", wait ? "    " : "", launch,
              layer);
    e->indent--;
    emit_line(e, "}");
}

LgStatus emit_matmul(Emit *e, int launch) {
    const Launch *l = &e->plan->launches[launch];
    int n = l->epilogue;
    bool tiles = n < l->stage_count;
    if (l->stages[0]->matmul->expert >= 0)
        return emit_experts(e, launch);
    for (int k = 0; k < n; k++)
        LG_TRY(emit_check_type(e, l->stages[k]->stmt, l->stages[k]->stmt->targets[0].tensor));
    if (tiles)
        LG_TRY(emit_tile(e, launch));
    emit_launch_begin(e, launch);
    emit_line(e, "LgpMatmul part[%d];", n);
    for (int k = 0; k < n; k++) {
        char part[32];
        snprintf(part, sizeof part, "part[%d]", k);
        emit_matmul_part(e, l->stages[k], part);
    }
    emit_own(e);
    emit_line(e, "int32_t ends[%d], tasks = 0;", n);
    emit_line(e, "for (int32_t k = 0; k < %d; k++) {", n);
    emit_line(e, "    part[k].rows = %s;", emit_rows_text(e, l));
    emit_line(e, "    ends[k] = tasks += lgp_matmul_tasks(&part[k]);");
    emit_line(e, "}");
    emit_line(e, "float *const scratch = step->scratch + thread * step->scratch_floats;");
    if (lora_by_tiles(l))
        lora_begin(e, l);
    if (tiles)
        tile_tasks(e, launch);
    else
        product_tasks(e, l);
    return emit_launch_end(e, launch);
}

LgStatus emit_score(Emit *e, const Stage *s, int launch) {
    const StageAttend *a = s->attend;
    StmtEmit x = {.e = e,
                  .stage = s,
                  .s = a->softmax,
                  .row_var = -1,
                  .hole = a->score_arg,
                  .hole_name = "scores[k]",
                  .status = LG_OK};
    Buf body;
    buf_init(&body);
    emit_expr(&x, a->score, &body);
    emit_line(e, "%s", "");
    emit_quote(e, "/* ", a->softmax->line, a->softmax->text, " */");
    emit_line(e, "%s void score_%d(float *scores, int32_t count) {", e->cuda ? "LG_DEV" : "static",
              launch);
    e->indent++;
    emit_code(e, a->softmax->line, "for (int32_t k = 0; k < count; k++)");
    emit_code(e, a->softmax->line, "    scores[k] = %s;", body.data);
    e->indent--;
    emit_own(e);
    emit_line(e, "}");
    emit_done(e, &body);
    return x.status;
}

/* What the first statement says, and what the second adds. */
static void attend_fields(Emit *e, const Stage *s, int launch) {
    const StageAttend *a = s->attend;
    unsigned long long page = (unsigned long long)e->plan->layer_page_bytes;
    Buf q, o, scale, window, score;
    buf_init(&q);
    buf_init(&o);
    buf_init(&scale);
    buf_init(&window);
    buf_init(&score);
    emit_row_place(e, a->q, "0", &q);
    emit_row_place(e, a->o, "0", &o);
    emit_layered(e, a->scale, "scale", "float", &scale);
    emit_layered(e, a->window, "window", "int32_t", &window);
    if (a->score)
        buf_printf(&score, "score_%d", launch);
    emit_code(e, a->softmax->line,
              "LgpAttend part = {.q = %s /* %s */, .q_stride = %llu, .slot = %s, .pos = %s, "
              ".kv_heads = %llu, "
              ".group = %llu, .width = %llu, .scale = %s, .window = %s, .score = %s, .k_offset = "
              "(uint64_t)layer * %llu + %llu /* %s */, .kv_bf16 = %d};",
              q.data, name_of(e, a->q), (unsigned long long)emit_row_elems(e, a->q),
              emit_input(e, a->slot), emit_input(e, a->pos), (unsigned long long)a->kv_heads,
              (unsigned long long)a->group, (unsigned long long)a->width, scale.data, window.data,
              a->score ? score.data : "NULL", page,
              (unsigned long long)plan_state(e->plan, a->k)->offset_page, name_of(e, a->k),
              emit_rounds(e, a->k) ? 1 : 0);
    emit_code(e, s->stmt->line,
              "part.o = %s /* %s */, part.o_stride = %llu, part.v_width = %llu, part.v_offset = "
              "(uint64_t)layer * %llu + %llu /* %s */, part.round_bf16 = %d;",
              o.data, name_of(e, a->o), (unsigned long long)emit_row_elems(e, a->o),
              (unsigned long long)a->v_width, page,
              (unsigned long long)plan_state(e->plan, a->v)->offset_page, name_of(e, a->v),
              emit_rounds(e, a->o) ? 1 : 0);
    emit_own(e);
    emit_done(e, &q);
    emit_done(e, &o);
    emit_done(e, &scale);
    emit_done(e, &window);
    emit_done(e, &score);
}

LgStatus emit_attend(Emit *e, int launch) {
    const Launch *l = &e->plan->launches[launch];
    const Stage *s = l->stages[0];
    const StageAttend *a = s->attend;
    LG_TRY(emit_check_type(e, s->stmt, a->o));
    if (emit_rounds(e, a->k) != emit_rounds(e, a->v))
        return lang_refuse(e->p, s->stmt->line, 0, e->err,
                           "cannot emit: keys and values are stored in two types. Give both states "
                           "one type.");
    if (!emit_input(e, a->slot) || !emit_input(e, a->pos))
        return lang_refuse(e->p, s->stmt->line, 0, e->err,
                           "cannot emit: attention goes by the inputs slot and pos. Name them so.");
    if (a->score)
        LG_TRY(emit_score(e, s, launch));
    emit_launch_begin(e, launch);
    attend_fields(e, s, launch);
    emit_line(e, "part.rows = %s;", emit_rows_text(e, l));
    emit_line(e, "part.pages = step->pages;");
    emit_line(e, "part.pages_per_slot = step->pages_per_slot;");
    emit_line(e, "const int32_t tasks = lgp_attend_tasks(&part);");
    emit_line(e, "float *const scratch = step->scratch + thread * step->scratch_floats;");
    emit_line(e, "for (int32_t task; (task = step->claim(step->team)) < tasks;)");
    emit_line(e, "    lgp_attend_task(&part, task, scratch);");
    return emit_launch_end(e, launch);
}
