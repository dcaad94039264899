/* Expressions as C text: one operator of the page is one operator of C, in f32 and in the page's
 * order. */
#include "emit/emit_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/number.h"

LgStatus emit_refuse(StmtEmit *x, const LangExpr *at, const char *why) {
    if (x->status == LG_OK)
        x->status = lang_refuse(x->e->p, x->s->line, at ? at->column : 0, x->e->err,
                                "cannot emit: %s", why);
    return x->status;
}

void emit_number(double v, Buf *out) {
    if (isinf(v) || isnan(v)) {
        buf_puts(out, isnan(v) ? "NAN" : v > 0 ? "INFINITY" : "-INFINITY");
        return;
    }
    /* The shortest text that reads as this f32. */
    char text[NUMBER_TEXT_MAX];
    number_shortest_float((float)v, text);
    bool whole = !strpbrk(text, ".en");
    buf_printf(out, v < 0 ? "(%s%sf)" : "%s%sf", text, whole ? ".0" : "");
}

void emit_layered(Emit *e, const double *values, const char *name, const char *type, Buf *out) {
    bool same = true, whole = strcmp(type, "float") != 0;
    int layers = e->p->layer_count;
    for (int l = 1; l < layers; l++)
        same &= values[l] == values[0];
    if (same) {
        if (whole)
            buf_printf(out, "%.0f", values[0]);
        else
            emit_number(values[0], out);
        return;
    }
    int n = e->static_count++;
    buf_printf(&e->statics, "%sstatic const %s %s_%d[%d] = {", e->cuda ? "__device__ " : "", type,
               name, n, layers);
    for (int l = 0; l < layers; l++) {
        buf_puts(&e->statics, l ? ", " : "");
        if (whole)
            buf_printf(&e->statics, "%.0f", values[l]);
        else
            emit_number(values[l], &e->statics);
    }
    buf_puts(&e->statics, "};\n");
    buf_printf(out, "%s_%d[layer]", name, n);
}

void emit_index(StmtEmit *x, const LangIndex *i, Buf *out) {
    switch (i->kind) {
    case LANG_INDEX_INT:
        buf_printf(out, "%lld", (long long)i->value);
        return;
    case LANG_INDEX_VAR:
        if (i->var == x->row_var)
            buf_puts(out, "row");
        else
            buf_puts(out, emit_var_name(x->e, x->s, i->var));
        return;
    case LANG_INDEX_LOOKUP:
        break;
    }
    const char *input = emit_input(x->e, i->tensor);
    if (!input || i->count != 1) {
        emit_refuse(x, NULL,
                    "a lookup goes through an input of the step: token, slot, pos or last.");
        return;
    }
    buf_printf(out, "%s[", input);
    emit_index(x, &i->indexes[0], out);
    buf_putc(out, ']');
}

static bool is_flat(const StmtEmit *x, const LangIndex *i) {
    return i->kind == LANG_INDEX_VAR && x->flat >> i->var & 1;
}

void emit_linear(StmtEmit *x, const LangTensor *t, const LangIndex *indexes, int count, int from,
                 uint64_t scale_all, Buf *out) {
    bool any = false;
    for (int k = from; k < count; k++) {
        uint64_t stride = match_stride(x->e->p, t, k + 1) * scale_all;
        if (is_flat(x, &indexes[k])) {
            buf_printf(out, "%s%s", any ? " + " : "", x->flat_name);
            any = true;
            break; /* the rest is in it */
        }
        if (indexes[k].kind == LANG_INDEX_INT) {
            if (indexes[k].value == 0)
                continue;
            uint64_t offset = (uint64_t)indexes[k].value * stride;
            buf_printf(out, "%s%llu", any ? " + " : "", (unsigned long long)offset);
            any = true;
            continue;
        }
        buf_puts(out, any ? " + " : "");
        any = true;
        emit_index(x, &indexes[k], out);
        if (stride != 1)
            buf_printf(out, " * %llu", (unsigned long long)stride);
    }
    if (!any)
        buf_putc(out, '0');
}

static void emit_ref(StmtEmit *x, const LangExpr *ref, Buf *out) {
    const LangTensor *t = &x->e->p->tensors[ref->tensor];
    if (t->kind == LANG_INPUT) {
        const char *input = emit_input(x->e, ref->tensor);
        if (!input || ref->index_count != 1) {
            emit_refuse(x, ref, "the step has no such input: token, slot, pos and last are there.");
            return;
        }
        buf_printf(out, "(float)%s[", input);
        emit_index(x, &ref->indexes[0], out);
        buf_putc(out, ']');
        return;
    }
    bool rows = t->kind != LANG_PARAM && t->rank > 0 && x->e->p->dims[t->dims[0]].runtime;
    bool table = t->kind == LANG_PARAM && ref->indexes[0].kind == LANG_INDEX_LOOKUP;
    for (int k = 0; k < x->ref_count; k++) {
        const RowRef *r = &x->refs[k];
        if (r->tensor != ref->tensor || r->table != table)
            continue;
        if ((rows || table) && (r->row ? !match_index_equal(r->row, &ref->indexes[0])
                                       : !match_is_var(&ref->indexes[0], x->row_var)))
            continue;
        buf_printf(out, "%s[", r->name);
        emit_linear(x, t, ref->indexes, ref->index_count, rows || table ? 1 : 0, 1, out);
        buf_putc(out, ']');
        return;
    }
    emit_refuse(x, ref, "this value has no place that a launch over rows can read.");
}

static void emit_call(StmtEmit *x, const LangExpr *e, Buf *out) {
    static const char *const names[LANG_FN_COUNT] = {
        [LANG_FN_EXP] = "lgp_exp",
        [LANG_FN_LOG] = "logf",
        [LANG_FN_SQRT] = "sqrtf",
        [LANG_FN_RSQRT] = "lgp_rsqrt",
        [LANG_FN_SIN] = "sinf",
        [LANG_FN_COS] = "cosf",
        [LANG_FN_SILU] = "lgp_silu",
        [LANG_FN_SIGMOID] = "lgp_sigmoid",
        [LANG_FN_TANH] = "lgp_tanh",
        [LANG_FN_GELU] = "lgp_gelu",
        [LANG_FN_GELU_TANH] = "lgp_gelu_tanh",
        [LANG_FN_MIN] = "lgp_min",
        [LANG_FN_MAX] = "lgp_max",
        [LANG_FN_ABS] = "fabsf",
        [LANG_FN_FLOOR] = "floorf",
        [LANG_FN_CEIL] = "ceilf",
    };
    buf_printf(out, "%s(", names[e->fn]);
    emit_expr(x, e->a, out);
    if (e->b) {
        buf_puts(out, ", ");
        emit_expr(x, e->b, out);
    }
    buf_putc(out, ')');
}

static void emit_pow(StmtEmit *x, const LangExpr *e, Buf *out) {
    double power = 0;
    if (match_constant(x->e->p, e->b, 0, &power) && !match_layered(e->b) && power == 2) {
        buf_puts(out, "lgp_square(");
        emit_expr(x, e->a, out);
        buf_putc(out, ')');
        return;
    }
    buf_puts(out, "powf(");
    emit_expr(x, e->a, out);
    buf_puts(out, ", ");
    emit_expr(x, e->b, out);
    buf_putc(out, ')');
}

/* Numbers and per-layer constants: computed here, so that the program holds the result. */
static bool emit_constant(StmtEmit *x, const LangExpr *e, Buf *out) {
    const LangProgram *p = x->e->p;
    double value = 0;
    if (!match_layered(e)) {
        if (!match_constant(p, e, 0, &value))
            return false;
        emit_number(value, out);
        return true;
    }
    double *values = ARENA_ARRAY(x->e->arena, double, (size_t)p->layer_count + 1);
    if (!values) {
        x->status = lg_fail_memory(x->e->err);
        return true;
    }
    for (int l = 0; l < p->layer_count; l++)
        if (!match_constant(p, e, l, &values[l]))
            return false;
    emit_layered(x->e, values, "by_layer", "float", out);
    return true;
}

static void emit_if(StmtEmit *x, const LangExpr *e, Buf *out) {
    int layers = x->e->p->layer_count;
    double *values = ARENA_ARRAY(x->e->arena, double, (size_t)layers + 1);
    if (!values) {
        x->status = lg_fail_memory(x->e->err);
        return;
    }
    for (int l = 0; l < layers; l++)
        values[l] = e->layer_true[l];
    buf_putc(out, '(');
    emit_layered(x->e, values, "if_layer", "unsigned char", out);
    buf_puts(out, " ? ");
    emit_expr(x, e->a, out);
    buf_puts(out, " : ");
    emit_expr(x, e->b, out);
    buf_putc(out, ')');
}

/* How tight an operator binds; C's order and the page's are the same, and both add and multiply
 * from left to right. */
enum { BIND_ADD = 1, BIND_MUL, BIND_UNARY, BIND_ATOM };

static void emit_bound(StmtEmit *x, const LangExpr *e, int least, Buf *out);

static int binds(const StmtEmit *x, const LangExpr *e) {
    double value = 0;
    bool named = e == x->hole;
    for (int k = 0; k < x->hoist_count; k++)
        named |= x->hoists[k].e == e && x->hoists[k].name;
    if (named || match_constant(x->e->p, e, 0, &value))
        return BIND_ATOM;
    switch (e->kind) {
    case EXPR_ADD:
    case EXPR_SUB:
        return BIND_ADD;
    case EXPR_MUL:
    case EXPR_DIV:
        return BIND_MUL;
    case EXPR_NEG:
    case EXPR_VAR: /* a cast */
        return BIND_UNARY;
    case EXPR_REF:
        return x->e->p->tensors[e->tensor].kind == LANG_INPUT ? BIND_UNARY : BIND_ATOM;
    default:
        return BIND_ATOM;
    }
}

static void emit_binary(StmtEmit *x, const LangExpr *e, const char *op, int bind, Buf *out) {
    emit_bound(x, e->a, bind, out);
    buf_puts(out, op);
    emit_bound(x, e->b, bind + 1, out);
}

static void emit_bound(StmtEmit *x, const LangExpr *e, int least, Buf *out) {
    bool paren = binds(x, e) < least;
    if (paren)
        buf_putc(out, '(');
    emit_expr(x, e, out);
    if (paren)
        buf_putc(out, ')');
}

void emit_expr(StmtEmit *x, const LangExpr *e, Buf *out) {
    if (x->status != LG_OK)
        return;
    if (e == x->hole) {
        buf_puts(out, x->hole_name);
        return;
    }
    for (int k = 0; k < x->hoist_count; k++)
        if (x->hoists[k].e == e && x->hoists[k].name) {
            buf_puts(out, x->hoists[k].name);
            return;
        }
    if (emit_constant(x, e, out))
        return;
    switch (e->kind) {
    case EXPR_NUMBER:
    case EXPR_CONST:
        return; /* constants, written above */
    case EXPR_VAR:
        buf_puts(out, "(float)");
        emit_index(x, &(LangIndex){.kind = LANG_INDEX_VAR, .var = e->var}, out);
        return;
    case EXPR_REF:
        emit_ref(x, e, out);
        return;
    case EXPR_NEG:
        buf_putc(out, '-');
        emit_bound(x, e->a, BIND_ATOM, out);
        return;
    case EXPR_ADD:
        emit_binary(x, e, " + ", BIND_ADD, out);
        return;
    case EXPR_SUB:
        emit_binary(x, e, " - ", BIND_ADD, out);
        return;
    case EXPR_MUL:
        emit_binary(x, e, " * ", BIND_MUL, out);
        return;
    case EXPR_DIV:
        emit_binary(x, e, " / ", BIND_MUL, out);
        return;
    case EXPR_POW:
        emit_pow(x, e, out);
        return;
    case EXPR_CALL:
        emit_call(x, e, out);
        return;
    case EXPR_IF:
        emit_if(x, e, out);
        return;
    case EXPR_REDUCE:
        emit_refuse(x, e,
                    "a reduction inside another depends on its index. Name the inner one first.");
        return;
    }
}
