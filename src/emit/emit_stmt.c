/* One statement of a launch over rows. What it needs only once for a row, or once for an outer
 * index, stands in front of the loop that uses it; loops run in the target's order. */
#include "emit/emit_impl.h"

#include "ir/step.h"

#define LEVEL_BOUND 99 /* depends on an index that a reduction binds */

static int level_of(const StmtEmit *x, uint32_t vars) {
    int level = 0;
    for (int v = 0; v < x->s->var_count; v++) {
        if (!(vars >> v & 1) || v == x->row_var)
            continue;
        int at = LEVEL_BOUND;
        for (int k = 0; k < x->loop_count; k++)
            if (x->loops[k] == v)
                at = k + 1;
        if (at > level)
            level = at;
    }
    return level;
}

static void collect_hoists(StmtEmit *x, const LangExpr *e, int around) {
    double ignored = 0;
    if (!e || x->status != LG_OK || (!match_layered(e) && match_constant(x->e->p, e, 0, &ignored)))
        return;
    int level = level_of(x, match_vars(e));
    bool costly = e->kind == EXPR_CALL || e->kind == EXPR_POW || e->kind == EXPR_DIV;
    bool hoist = e->kind == EXPR_REDUCE || (costly && level < around);
    int inner = e->kind == EXPR_REDUCE ? LEVEL_BOUND : hoist ? level : around;
    if (e->kind == EXPR_REDUCE && level == LEVEL_BOUND) {
        emit_refuse(x, e,
                    "a reduction inside another depends on its index. Name the inner one "
                    "first.");
        return;
    }
    collect_hoists(x, e->a, inner);
    collect_hoists(x, e->b, inner);
    if (!hoist || level == LEVEL_BOUND)
        return;
    if (x->hoist_count == EMIT_HOISTS_MAX) {
        emit_refuse(x, e, "the statement has too many parts. Split it.");
        return;
    }
    x->hoists[x->hoist_count++] = (Hoisted){e, level, NULL};
}

/* The reduction's indexes are the last of every tensor that it reads, in one order: it runs over
 * them as one. */
typedef struct Flat {
    const StmtEmit *x;
    const LangExpr *reduce;
    bool flat;
} Flat;

static int bound_at(const LangExpr *reduce, const LangIndex *i) {
    for (int k = 0; k < reduce->var_count; k++)
        if (match_is_var(i, reduce->vars[k]))
            return k;
    return -1;
}

static bool flat_node(void *user, const LangExpr *e) {
    Flat *f = user;
    if (e->kind == EXPR_VAR)
        for (int k = 0; k < f->reduce->var_count; k++)
            f->flat &= f->reduce->vars[k] != e->var;
    if (e->kind != EXPR_REF)
        return true;
    uint32_t bound = 0, used = 0;
    for (int k = 0; k < f->reduce->var_count; k++)
        bound |= 1u << f->reduce->vars[k];
    for (int k = 0; k < e->index_count; k++)
        used |= match_index_vars(&e->indexes[k]);
    if (!(used & bound))
        return true;
    int n = f->reduce->var_count;
    if (e->index_count < n) {
        f->flat = false;
        return true;
    }
    for (int k = 0; k < e->index_count; k++) {
        int at = bound_at(f->reduce, &e->indexes[k]);
        f->flat &= at == (k < e->index_count - n ? -1 : k - (e->index_count - n));
    }
    return true;
}

uint64_t emit_dim_of(const StmtEmit *x, int var) {
    return x->e->p->dims[x->s->vars[var].dim].size;
}

/* level: loops that are open; below one, a whole block shares a reduction of device code, else a
 * warp. */
static const char *reduce_macro(const StmtEmit *x, LangRed red, int level) {
    bool warp = x->e->cuda && level > 0;
    switch (red) {
    case LANG_RED_SUM:
        return warp ? "LGP_WARP_SUM" : "LGP_SUM";
    case LANG_RED_MEAN:
        return warp ? "LGP_WARP_MEAN" : "LGP_MEAN";
    case LANG_RED_MAX:
        return warp ? "LGP_WARP_MAX" : "LGP_MAX";
    default:
        return NULL;
    }
}

/* Over several indexes that do not lie side by side: plain loops, one accumulator. */
static void nested_reduce(StmtEmit *x, const LangExpr *r, const char *name) {
    Emit *e = x->e;
    Buf body;
    buf_init(&body);
    emit_expr(x, r->a, &body);
    uint64_t count = 1;
    emit_code(e, x->s->line, "float %s = %s;", name, r->red == LANG_RED_MAX ? "-INFINITY" : "0.0f");
    for (int k = 0; k < r->var_count; k++) {
        const char *v = emit_var_name(e, x->s, r->vars[k]);
        emit_code(e, x->s->line, "for (int32_t %s = 0; %s < %llu; %s++)", v, v,
                  (unsigned long long)emit_dim_of(x, r->vars[k]), v);
        e->indent++;
        count *= emit_dim_of(x, r->vars[k]);
    }
    if (r->red == LANG_RED_MAX)
        emit_code(e, x->s->line, "%s = lgp_max(%s, %s);", name, name, body.data);
    else
        emit_code(e, x->s->line, "%s += %s;", name, body.data);
    e->indent -= r->var_count;
    if (r->red == LANG_RED_MEAN)
        emit_code(e, x->s->line, "%s /= %llu.0f;", name, (unsigned long long)count);
    emit_done(e, &body);
}

static void emit_reduce(StmtEmit *x, const LangExpr *r, const char *name, int level) {
    const char *macro = reduce_macro(x, r->red, level);
    if (!macro) {
        emit_refuse(x, r, "missing kernel for this reduction on this back end.");
        return;
    }
    Flat f = {x, r, true};
    if (r->var_count > 1)
        match_nodes(r->a, flat_node, &f);
    if (!f.flat) {
        nested_reduce(x, r, name);
        return;
    }
    uint64_t count = 1;
    Buf index, body;
    buf_init(&index);
    buf_init(&body);
    for (int k = 0; k < r->var_count; k++) {
        count *= emit_dim_of(x, r->vars[k]);
        buf_printf(&index, "%s%s", k ? "_" : "", emit_var_name(x->e, x->s, r->vars[k]));
    }
    for (int k = 0; k < r->var_count && r->var_count > 1; k++)
        x->flat |= 1u << r->vars[k];
    x->flat_name = index.data;
    emit_expr(x, r->a, &body);
    x->flat = 0;
    emit_code(x->e, x->s->line, "%s(%s, %s, %llu, %s);", macro, name, index.data,
              (unsigned long long)count, body.data);
    emit_done(x->e, &index);
    emit_done(x->e, &body);
}

void emit_hoists(StmtEmit *x, int level) {
    static const char *const red_names[] = {
#define RED_NAME(id, name) #name,
        LANG_RED_MAP(RED_NAME)
#undef RED_NAME
    };
    for (int k = 0; k < x->hoist_count; k++) {
        Hoisted *h = &x->hoists[k];
        if (h->level != level || x->status != LG_OK)
            continue;
        bool reduce = h->e->kind == EXPR_REDUCE;
        const char *name =
            arena_printf(x->e->arena, "%s%d_", reduce ? red_names[h->e->red] : "part", k);
        if (!name) {
            x->status = lg_fail_memory(x->e->err);
            return;
        }
        if (reduce) {
            emit_reduce(x, h->e, name, level);
        } else {
            Buf text;
            buf_init(&text);
            emit_expr(x, h->e, &text);
            emit_code(x->e, x->s->line, "const float %s = %s;", name, text.data);
            emit_done(x->e, &text);
        }
        h->name = name;
    }
}

/* Rows of tables that the statement looks up. */
static void expand_tables(RowsEmit *r, StmtEmit *x) {
    for (int k = 0; k < r->ref_count; k++) {
        const RowRef *ref = &r->refs[k];
        if (!ref->table || !match_reads_tensor(x->s->rhs, ref->tensor))
            continue;
        const PlanWeight *w = plan_weight(r->e->plan, ref->tensor, WEIGHT_TABLE);
        Buf index;
        buf_init(&index);
        emit_index(x, ref->row, &index);
        const char *at = emit_layer_index(r->e, w, r->e->arena);
        if (r->e->cuda)
            emit_code(r->e, x->s->line, "const TableRow %s = lgc_lookup(step, %s, %s);", ref->name,
                      at, index.data);
        else if (r->l->row_dim < 0)
            emit_code(r->e, x->s->line, "lgp_table_row(&step->weights[%s], %s, %s);", at,
                      index.data, ref->name);
        else
            emit_code(r->e, x->s->line, "lgp_lookup(step, %d, row, %s, %s, %s);",
                      emit_domain(r->e, r->l), at, index.data, ref->name);
        emit_done(x->e, &index);
    }
}

/* Element e = head * width + w of a position lies at e * 64 + position where the state is
 * transposed, else at head * 64 * width + position * width + w. */
static void state_element(StmtEmit *x, const PlanState *st, Buf *out) {
    const LangProgram *p = x->e->p;
    const LangTarget *t = &x->s->targets[0];
    const LangTensor *y = &p->tensors[t->tensor];
    if (st->layout == STATE_TRANSPOSED) {
        buf_puts(out, "(");
        emit_linear(x, y, t->indexes, t->index_count, 2, 1, out);
        buf_puts(out, ") * LGP_PAGE + at");
        return;
    }
    int split = 2;
    while (split < t->index_count && match_stride(p, y, split + 1) >= st->width)
        split++;
    buf_printf(out, "at * %llu", (unsigned long long)st->width);
    for (int k = 2; k < t->index_count; k++) {
        uint64_t stride = match_stride(p, y, k + 1) * (k < split ? KV_PAGE_POSITIONS : 1);
        buf_puts(out, " + ");
        emit_index(x, &t->indexes[k], out);
        if (stride != 1)
            buf_printf(out, " * %llu", (unsigned long long)stride);
    }
}

static void store_state(StmtEmit *x, const char *value) {
    Emit *e = x->e;
    const LangTarget *t = &x->s->targets[0];
    const PlanState *st = plan_state(e->plan, t->tensor);
    Buf element;
    buf_init(&element);
    state_element(x, st, &element);
    if (emit_rounds(e, t->tensor))
        emit_code(e, x->s->line, "page[%s] = lgp_bf16_bits(%s);", element.data, value);
    else
        emit_code(e, x->s->line, "page[%s] = %s;", element.data, value);
    emit_done(e, &element);
}

static void open_state(StmtEmit *x) {
    Emit *e = x->e;
    const LangTarget *t = &x->s->targets[0];
    const PlanState *st = plan_state(e->plan, t->tensor);
    Buf slot, pos;
    buf_init(&slot);
    buf_init(&pos);
    emit_index(x, &t->indexes[0], &slot);
    emit_index(x, &t->indexes[1], &pos);
    emit_code(e, x->s->line, "const int32_t at = %s %% LGP_PAGE;", pos.data);
    emit_code(e, x->s->line, "%s *const page = lgp_page(step, %s, %s, layer, %llu);",
              emit_rounds(e, t->tensor) ? "uint16_t" : "float", slot.data, pos.data,
              (unsigned long long)st->offset_page);
    emit_done(e, &slot);
    emit_done(e, &pos);
}

static void store_value(RowsEmit *r, StmtEmit *x, const char *value) {
    Emit *e = x->e;
    const LangTarget *t = &x->s->targets[0];
    const LangTensor *y = &e->p->tensors[t->tensor];
    const char *name = NULL;
    for (int k = 0; k < r->ref_count; k++)
        if (r->refs[k].tensor == t->tensor && !r->refs[k].row)
            name = r->refs[k].name;
    Buf at;
    buf_init(&at);
    emit_linear(x, y, t->indexes, t->index_count, emit_row_axis(e, t->tensor) ? 1 : 0, 1, &at);
    const char *round = emit_rounds(e, t->tensor) ? "lgp_round_bf16" : "";
    if (x->s->op == LANG_ADD_TO)
        emit_code(e, x->s->line, "%s[%s] = %s(%s[%s] + %s);", name, at.data, round, name, at.data,
                  value);
    else if (*round)
        emit_code(e, x->s->line, "%s[%s] = %s(%s);", name, at.data, round, value);
    else
        emit_code(e, x->s->line, "%s[%s] = %s;", name, at.data, value);
    emit_done(e, &at);
}

static void find_loops(StmtEmit *x) {
    const LangTarget *t = &x->s->targets[0];
    for (int k = 0; k < t->index_count; k++) {
        const LangIndex *i = &t->indexes[k];
        if (i->kind != LANG_INDEX_VAR || i->var == x->row_var)
            continue;
        x->loops[x->loop_count++] = i->var;
    }
}

bool emit_hoists_at(const StmtEmit *x, int level) {
    for (int h = 0; h < x->hoist_count; h++)
        if (x->hoists[h].level == level)
            return true;
    return false;
}

/* Loops on one line as far as nothing stands between them. Returns how many such lines there are.
 */
static int open_loops(StmtEmit *x) {
    Emit *e = x->e;
    int lines = 0;
    for (int k = 0; k < x->loop_count;) {
        Buf text;
        buf_init(&text);
        bool braces = false;
        do {
            buf_printf(&text, "%sLGP_FOR(%s, %llu)", text.len ? " " : "",
                       emit_var_name(e, x->s, x->loops[k]),
                       (unsigned long long)emit_dim_of(x, x->loops[k]));
            k++;
            braces = emit_hoists_at(x, k);
        } while (k < x->loop_count && !braces);
        emit_code(e, x->s->line, "%s%s", text.data, braces ? " {" : "");
        emit_done(e, &text);
        e->indent++;
        lines++;
        x->loops_braced = braces;
        if (braces)
            emit_hoists(x, k);
    }
    return lines;
}

void emit_stmt(RowsEmit *r, const Stage *stage) {
    Emit *e = r->e;
    if (stage->op == STAGE_SOFTMAX || stage->op == STAGE_TOPK) {
        emit_choice(r, stage);
        return;
    }
    StmtEmit x = {.e = e,
                  .stage = stage,
                  .s = stage->stmt,
                  .row_var = stage->row_var,
                  .refs = r->refs,
                  .ref_count = r->ref_count,
                  .status = LG_OK};
    bool state = stage->op == STAGE_SCATTER;
    find_loops(&x);
    collect_hoists(&x, x.s->rhs, x.loop_count);
    emit_quote(e, "/* ", x.s->line, x.s->text, " */");
    emit_line(e, "{");
    e->indent++;
    expand_tables(r, &x);
    if (state)
        open_state(&x);
    emit_hoists(&x, 0);
    int open = e->cuda ? emit_open_shared_loops(&x) : open_loops(&x);
    Buf value;
    buf_init(&value);
    emit_expr(&x, x.s->rhs, &value);
    if (x.status == LG_OK && state)
        store_state(&x, value.data);
    else if (x.status == LG_OK)
        store_value(r, &x, value.data);
    emit_done(e, &value);
    for (int k = 0; k < open; k++) {
        e->indent--;
        if (e->cuda || k > 0 || x.loops_braced)
            emit_line(e, "}");
    }
    e->indent--;
    emit_own(e);
    emit_line(e, "}");
    if (e->cuda)
        emit_line(e, "__syncthreads();");
    if (x.status != LG_OK)
        r->status = x.status;
}

/* An elementwise statement over a run of elements of its row: its indexes behind the row read as
 * one. */
void emit_tile_stmt(RowsEmit *r, const Stage *stage) {
    Emit *e = r->e;
    StmtEmit x = {.e = e,
                  .s = stage->stmt,
                  .row_var = stage->row_var,
                  .refs = r->refs,
                  .ref_count = r->ref_count,
                  .flat_name = "column",
                  .status = LG_OK};
    const LangTarget *t = &x.s->targets[0];
    for (int k = 1; k < t->index_count; k++)
        x.flat |= match_index_vars(&t->indexes[k]);
    Buf value;
    buf_init(&value);
    emit_expr(&x, x.s->rhs, &value);
    emit_quote(e, "/* ", x.s->line, x.s->text, " */");
    emit_code(e, x.s->line,
              e->cuda ? "for (int32_t column = first; column < columns; column += apart)"
                      : "for (int32_t column = tile.column; column < tile.column_end; column++)");
    e->indent++;
    if (x.status == LG_OK)
        store_value(r, &x, value.data);
    e->indent--;
    emit_own(e);
    emit_done(e, &value);
    if (x.status != LG_OK)
        r->status = x.status;
}
