/* The checked program as text: statements as they were understood, with the dim of every index. The
 * same program gives the same bytes. */
#include "lang/print.h"

#include "lang/ast.h"
#include "lang/lex.h"

static void print_dim(const LangProgram *p, int dim, Buf *out) {
    buf_str(out, p->dims[dim].name);
}

static void print_indexes(const LangProgram *p, const LangStmt *s, const LangIndex *list, int count,
                          Buf *out) {
    buf_putc(out, '[');
    for (int i = 0; i < count; i++) {
        const LangIndex *x = &list[i];
        buf_puts(out, i ? "," : "");
        switch (x->kind) {
        case LANG_INDEX_VAR:
            buf_str(out, s->vars[x->var].name);
            break;
        case LANG_INDEX_INT:
            buf_printf(out, "%lld", (long long)x->value);
            break;
        case LANG_INDEX_LOOKUP:
            buf_str(out, p->tensors[x->tensor].name);
            print_indexes(p, s, x->indexes, x->count, out);
            break;
        }
    }
    buf_putc(out, ']');
}

typedef enum Tight { TIGHT_RHS, TIGHT_EXPR, TIGHT_TERM, TIGHT_UNARY, TIGHT_ATOM } Tight;

static const struct {
    Tight self, left, right;
    const char *text;
} operators[] = {
    [EXPR_NUMBER] = {TIGHT_ATOM, TIGHT_ATOM, TIGHT_ATOM, ""},
    [EXPR_CONST] = {TIGHT_ATOM, TIGHT_ATOM, TIGHT_ATOM, ""},
    [EXPR_VAR] = {TIGHT_ATOM, TIGHT_ATOM, TIGHT_ATOM, ""},
    [EXPR_REF] = {TIGHT_ATOM, TIGHT_ATOM, TIGHT_ATOM, ""},
    [EXPR_NEG] = {TIGHT_UNARY, TIGHT_UNARY, TIGHT_UNARY, "-"},
    [EXPR_ADD] = {TIGHT_EXPR, TIGHT_EXPR, TIGHT_TERM, " + "},
    [EXPR_SUB] = {TIGHT_EXPR, TIGHT_EXPR, TIGHT_TERM, " - "},
    [EXPR_MUL] = {TIGHT_TERM, TIGHT_TERM, TIGHT_UNARY, " * "},
    [EXPR_DIV] = {TIGHT_TERM, TIGHT_TERM, TIGHT_UNARY, " / "},
    [EXPR_POW] = {TIGHT_UNARY, TIGHT_ATOM, TIGHT_UNARY, " ^ "},
    [EXPR_CALL] = {TIGHT_ATOM, TIGHT_RHS, TIGHT_EXPR, ""},
    [EXPR_REDUCE] = {TIGHT_RHS, TIGHT_EXPR, TIGHT_EXPR, ""},
    [EXPR_IF] = {TIGHT_RHS, TIGHT_RHS, TIGHT_RHS, ""},
};

static void print_expr(const LangProgram *p, const LangStmt *s, const LangExpr *e, Tight place,
                       Buf *out);

static void print_reduce(const LangProgram *p, const LangStmt *s, const LangExpr *e, Buf *out) {
    buf_printf(out, "%s ", lang_red_text(e->red));
    for (int i = 0; i < e->var_count; i++) {
        const LangVar *v = &s->vars[e->vars[i]];
        buf_puts(out, i ? "," : "");
        if (v->lower) {
            print_expr(p, s, v->lower, TIGHT_EXPR, out);
            buf_puts(out, " < ");
        }
        buf_str(out, v->name);
        if (v->upper) {
            buf_puts(out, " <= ");
            print_expr(p, s, v->upper, TIGHT_EXPR, out);
        }
    }
    buf_puts(out, ": ");
    print_expr(p, s, e->a, TIGHT_EXPR, out);
}

/* The layers of a condition that differs: "if layer in {0,2}". */
static void print_if(const LangProgram *p, const LangStmt *s, const LangExpr *e, Buf *out) {
    const char *sep = "";
    buf_puts(out, "if layer in {");
    for (int l = 0; l < p->layer_count; l++) {
        if (!e->layer_true[l])
            continue;
        buf_printf(out, "%s%d", sep, l);
        sep = ",";
    }
    buf_puts(out, "} then ");
    print_expr(p, s, e->a, TIGHT_RHS, out);
    buf_puts(out, " else ");
    print_expr(p, s, e->b, TIGHT_RHS, out);
}

static void print_bare(const LangProgram *p, const LangStmt *s, const LangExpr *e, Buf *out) {
    switch (e->kind) {
    case EXPR_NUMBER:
        lang_number_print(e->number, out);
        return;
    case EXPR_CONST:
        buf_str(out, p->consts[e->constant].name);
        return;
    case EXPR_VAR:
        buf_str(out, s->vars[e->var].name);
        return;
    case EXPR_REF:
        buf_str(out, p->tensors[e->tensor].name);
        print_indexes(p, s, e->indexes, e->index_count, out);
        return;
    case EXPR_REDUCE:
        print_reduce(p, s, e, out);
        return;
    case EXPR_IF:
        print_if(p, s, e, out);
        return;
    case EXPR_CALL:
        buf_printf(out, "%s(", lang_fn_text(e->fn));
        print_expr(p, s, e->a, TIGHT_RHS, out);
        if (e->b) {
            buf_puts(out, ", ");
            print_expr(p, s, e->b, TIGHT_EXPR, out);
        }
        buf_putc(out, ')');
        return;
    case EXPR_NEG:
        buf_putc(out, '-');
        print_expr(p, s, e->a, TIGHT_UNARY, out);
        return;
    default:
        break;
    }
    print_expr(p, s, e->a, operators[e->kind].left, out);
    buf_puts(out, operators[e->kind].text);
    print_expr(p, s, e->b, operators[e->kind].right, out);
}

static void print_expr(const LangProgram *p, const LangStmt *s, const LangExpr *e, Tight place,
                       Buf *out) {
    bool negative = e->kind == EXPR_NUMBER && e->number < 0;
    bool parens =
        operators[e->kind].self < place || (negative && place > TIGHT_EXPR) || e->kind == EXPR_IF;
    buf_puts(out, parens ? "(" : "");
    print_bare(p, s, e, out);
    buf_puts(out, parens ? ")" : "");
}

void print_stmt_text(const LangProgram *p, const LangStmt *s, Buf *out) {
    static const char *const ops[] = {
        [LANG_ASSIGN] = " = ", [LANG_ADD_TO] = " += ", [LANG_WRITE] = " := "};
    for (int i = 0; i < s->target_count; i++) {
        buf_puts(out, i ? ", " : "");
        buf_str(out, p->tensors[s->targets[i].tensor].name);
        print_indexes(p, s, s->targets[i].indexes, s->targets[i].index_count, out);
    }
    buf_puts(out, ops[s->op]);
    print_expr(p, s, s->rhs, TIGHT_RHS, out);
}

static void print_vars(const LangProgram *p, const LangStmt *s, Buf *out) {
    for (int i = 0; i < s->var_count; i++) {
        bool turn = i == 0 || s->vars[i].reduced != s->vars[i - 1].reduced;
        if (turn)
            buf_puts(out, s->vars[i].reduced ? " over " : i ? " each " : "each ");
        else
            buf_puts(out, ", ");
        buf_str(out, s->vars[i].name);
        buf_puts(out, " in ");
        print_dim(p, s->vars[i].dim, out);
    }
}

static void print_stmt(const LangProgram *p, int index, Buf *out) {
    static const char *const roles[] = {
        [LANG_PLAIN] = "", [LANG_LORA_LOW] = "low ", [LANG_LORA_FOLD] = "fold "};
    const LangStmt *s = &p->stmts[index];
    buf_printf(out, "%s%d %s", s->in_layer ? "  " : "", s->line, roles[s->role]);
    if (s->role != LANG_PLAIN)
        buf_printf(out, "site %d ", s->site);
    print_stmt_text(p, s, out);
    buf_puts(out, "  # ");
    print_vars(p, s, out);
    buf_putc(out, '\n');
}

static void print_axes(const LangProgram *p, const LangTensor *t, Buf *out) {
    buf_putc(out, '[');
    int axis = 0;
    for (int i = 0; i < t->rank; i++) {
        bool begins = axis < t->axis_count && t->axis_start[axis] == i;
        axis += begins;
        buf_puts(out, i == 0 ? "" : begins ? ", " : "*");
        print_dim(p, t->dims[i], out);
    }
    buf_putc(out, ']');
}

static void print_source(const LangProgram *p, const LangSource *s, Buf *out) {
    switch (s->kind) {
    case LANG_SOURCE_TENSOR:
        buf_printf(out, "\"%.*s\"", LG_STR_ARG(s->name));
        if (s->windowed)
            buf_printf(out, " from %llu", (unsigned long long)s->from_row);
        break;
    case LANG_SOURCE_PARAM:
        buf_str(out, p->tensors[s->param].name);
        break;
    case LANG_SOURCE_NUMBER:
        lang_number_print(s->number, out);
        break;
    }
}

static void print_tensor(const LangProgram *p, const LangTensor *t, Buf *out) {
    static const char *const kinds[] = {
        [LANG_INPUT] = "input", [LANG_PARAM] = "param",   [LANG_STATE] = "state",
        [LANG_VALUE] = "value", [LANG_OUTPUT] = "output", [LANG_ADAPTER] = "adapter"};
    buf_printf(out, "%s%s %.*s", t->in_layer ? "  " : "", kinds[t->kind], LG_STR_ARG(t->name));
    print_axes(p, t, out);
    if (t->dtype_written)
        buf_printf(out, ": %s", lang_dtype_text(t->dtype));
    if (t->index_dim >= 0) {
        buf_puts(out, " index ");
        print_dim(p, t->index_dim, out);
    }
    for (int i = 0; i < t->source_count; i++) {
        buf_puts(out, i ? " or " : " = ");
        print_source(p, &t->sources[i], out);
    }
    if (t->stack_dim >= 0) {
        buf_puts(out, " stacked over ");
        print_dim(p, t->stack_dim, out);
    }
    if (t->module.len)
        buf_printf(out, " module \"%.*s\"", LG_STR_ARG(t->module));
    if (t->lora_site >= 0)
        buf_printf(out, " site %d", t->lora_site);
    buf_putc(out, '\n');
}

static void print_site(const LangProgram *p, int index, Buf *out) {
    const LangSite *site = &p->sites[index];
    buf_printf(out, "site %d %.*s at line %d: %.*s from %.*s%s, adapter ", index,
               LG_STR_ARG(p->tensors[site->param].name), p->stmts[site->stmt].line,
               LG_STR_ARG(p->tensors[site->y].name), LG_STR_ARG(p->tensors[site->x].name),
               site->lookup ? " (lookup)" : "");
    buf_str(out, p->tensors[site->ad.tensor].name);
    print_indexes(p, &p->stmts[site->stmt], site->ad.indexes, site->ad.count, out);
    buf_putc(out, '\n');
}

void lang_print(const LangProgram *p, Buf *out) {
    buf_printf(out, "program %.*s\n", LG_STR_ARG(p->name));
    for (int i = 0; i < p->dim_count; i++) {
        buf_printf(out, "dim %.*s", LG_STR_ARG(p->dims[i].name));
        if (p->dims[i].runtime)
            buf_puts(out, " at run time\n");
        else
            buf_printf(out, " = %llu\n", (unsigned long long)p->dims[i].size);
    }
    for (int i = 0; i < p->const_count; i++) {
        buf_printf(out, "const %.*s =", LG_STR_ARG(p->consts[i].name));
        for (int l = 0; l < p->layer_count; l++) {
            buf_putc(out, ' ');
            lang_number_print(p->consts[i].values[l], out);
        }
        buf_putc(out, '\n');
    }
    for (int i = 0; i < p->tensor_count; i++)
        print_tensor(p, &p->tensors[i], out);
    for (int i = 0; i < p->site_count; i++)
        print_site(p, i, out);
    for (int i = 0; i < p->stmt_count; i++) {
        if (p->layer_count && i == p->layer_begin)
            buf_printf(out, "layers %d {\n", p->layer_count);
        if (p->layer_count && i == p->layer_end)
            buf_puts(out, "}\n");
        print_stmt(p, i, out);
    }
    if (p->layer_count && p->layer_end == p->stmt_count)
        buf_puts(out, "}\n");
}
