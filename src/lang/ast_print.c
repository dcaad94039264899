/* The tree back to text, and the comparison that holds the round trip. */
#include "lang/ast.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/number.h"
#include "lang/lex.h"

typedef struct FnRow {
    const char *name;
    int args;
} FnRow;

static const FnRow fn_rows[] = {
#define FN_ROW(id, name, args) [LANG_FN_##id] = {#name, args},
    LANG_FN_MAP(FN_ROW)
#undef FN_ROW
};

static const char *const red_names[] = {
#define RED_ROW(id, name) [LANG_RED_##id] = #name,
    LANG_RED_MAP(RED_ROW)
#undef RED_ROW
};

const char *lang_fn_text(LangFn fn) {
    return fn_rows[fn].name;
}

int lang_fn_args(LangFn fn) {
    return fn_rows[fn].args;
}

const char *lang_red_text(LangRed red) {
    return red_names[red];
}

void lang_number_print(double value, Buf *out) {
    char text[NUMBER_TEXT_MAX];
    if (isinf(value)) {
        buf_puts(out, value < 0 ? "-inf" : "inf");
        return;
    }
    if (value == floor(value) && fabs(value) < 1e15) {
        buf_printf(out, "%.0f", value);
        return;
    }
    number_shortest(value, text);
    buf_puts(out, text);
}

static void print_indexes(const AstIndexes *list, Buf *out);

static void print_index(const AstIndex *i, Buf *out) {
    if (i->name.text.len)
        buf_str(out, i->name.text);
    else
        buf_printf(out, "%lld", (long long)i->value);
    if (i->bracketed)
        print_indexes(&i->indexes, out);
    if (i->in.text.len) {
        buf_puts(out, " in ");
        buf_str(out, i->in.text);
    }
}

static void print_indexes(const AstIndexes *list, Buf *out) {
    buf_putc(out, '[');
    for (int i = 0; i < list->count; i++) {
        buf_puts(out, i ? "," : "");
        print_index(&list->items[i], out);
    }
    buf_putc(out, ']');
}

static void print_value(const ConfigValue *v, Buf *out) {
    if (v->kind == CONFIG_REAL) {
        lang_number_print(v->real, out);
    } else if (v->kind == CONFIG_STRING) {
        buf_putc(out, '"');
        buf_str(out, v->string);
        buf_putc(out, '"');
    } else {
        config_value_print(v, out);
    }
}

static const char *compare_text(AstCompare op) {
    static const char *const texts[] = {
        [AST_TRUE] = "", [AST_EQ] = "==", [AST_NE] = "!=", [AST_LT] = "<",
        [AST_LE] = "<=", [AST_GT] = ">",  [AST_GE] = ">=",
    };
    return texts[op];
}

/* How tightly a node holds together: a looser one in a tighter place needs parentheses. A bare
 * reduction fits where a right side is asked and nowhere else; `or` and a const's `if` fit where a
 * const's value is asked. */
typedef enum Tight {
    TIGHT_CEXPR,
    TIGHT_RHS,
    TIGHT_EXPR,
    TIGHT_TERM,
    TIGHT_UNARY,
    TIGHT_ATOM
} Tight;

static Tight tightness(const AstExpr *e) {
    switch (e->kind) {
    case AST_OR:
        return TIGHT_CEXPR;
    case AST_IF:
        return e->parens ? TIGHT_ATOM : TIGHT_CEXPR;
    case AST_REDUCE:
        return TIGHT_RHS;
    case AST_ADD:
    case AST_SUB:
        return TIGHT_EXPR;
    case AST_MUL:
    case AST_DIV:
        return TIGHT_TERM;
    case AST_NEG:
    case AST_POW:
        return TIGHT_UNARY;
    case AST_NUMBER:
    case AST_REF:
    case AST_CALL:
        break;
    }
    return TIGHT_ATOM;
}

static void print_expr(const AstExpr *e, Tight place, Buf *out);

static void print_cond(const AstCond *c, Buf *out) {
    print_index(&c->ref, out);
    if (c->op == AST_TRUE)
        return;
    buf_printf(out, " %s ", compare_text(c->op));
    if (c->number)
        print_expr(c->number, TIGHT_EXPR, out);
    else
        print_value(&c->value, out);
}

static void print_binary(const AstExpr *e, const char *op, Tight left, Tight right, Buf *out) {
    print_expr(e->args[0], left, out);
    buf_puts(out, op);
    print_expr(e->args[1], right, out);
}

static void print_reduce(const AstExpr *e, Buf *out) {
    buf_printf(out, "%s ", lang_red_text(e->red));
    for (int i = 0; i < e->binds.count; i++) {
        const AstBind *b = &e->binds.items[i];
        buf_puts(out, i ? ", " : "");
        if (b->lower) {
            print_expr(b->lower, TIGHT_EXPR, out);
            buf_puts(out, " < ");
        }
        buf_str(out, b->name.text);
        if (b->upper) {
            buf_puts(out, " <= ");
            print_index(&b->upper->ref, out);
        }
    }
    buf_puts(out, ": ");
    print_expr(e->args[0], TIGHT_EXPR, out);
}

static void print_if(const AstExpr *e, Buf *out) {
    Tight branch = e->parens ? TIGHT_RHS : TIGHT_CEXPR;
    buf_puts(out, e->parens ? "(if " : "if ");
    print_cond(e->cond, out);
    buf_puts(out, " then ");
    print_expr(e->args[0], branch, out);
    buf_puts(out, " else ");
    print_expr(e->args[1], branch, out);
    buf_puts(out, e->parens ? ")" : "");
}

static void print_call(const AstExpr *e, Buf *out) {
    buf_printf(out, "%s(", lang_fn_text(e->fn));
    for (int i = 0; i < e->arg_count; i++) {
        buf_puts(out, i ? ", " : "");
        print_expr(e->args[i], i ? TIGHT_EXPR : TIGHT_RHS, out);
    }
    buf_putc(out, ')');
}

static void print_bare(const AstExpr *e, Buf *out) {
    switch (e->kind) {
    case AST_NUMBER:
        lang_number_print(e->number, out);
        break;
    case AST_REF:
        print_index(&e->ref, out);
        break;
    case AST_NEG:
        buf_putc(out, '-');
        print_expr(e->args[0], TIGHT_UNARY, out);
        break;
    case AST_ADD:
        print_binary(e, " + ", TIGHT_EXPR, TIGHT_TERM, out);
        break;
    case AST_SUB:
        print_binary(e, " - ", TIGHT_EXPR, TIGHT_TERM, out);
        break;
    case AST_MUL:
        print_binary(e, " * ", TIGHT_TERM, TIGHT_UNARY, out);
        break;
    case AST_DIV:
        print_binary(e, " / ", TIGHT_TERM, TIGHT_UNARY, out);
        break;
    case AST_POW:
        print_binary(e, " ^ ", TIGHT_ATOM, TIGHT_UNARY, out);
        break;
    case AST_OR:
        print_binary(e, " or ", TIGHT_EXPR, TIGHT_EXPR, out);
        break;
    case AST_CALL:
        print_call(e, out);
        break;
    case AST_REDUCE:
        print_reduce(e, out);
        break;
    case AST_IF:
        print_if(e, out);
        break;
    }
}

static void print_expr(const AstExpr *e, Tight place, Buf *out) {
    bool parens = e->kind == AST_REDUCE ? place != TIGHT_RHS : tightness(e) < place;
    buf_puts(out, parens ? "(" : "");
    print_bare(e, out);
    buf_puts(out, parens ? ")" : "");
}

static void print_names(const AstNames *names, const char *quote, Buf *out) {
    for (int i = 0; i < names->count; i++) {
        buf_printf(out, "%s%s", i ? ", " : "", quote);
        buf_str(out, names->items[i].text);
        buf_puts(out, quote);
    }
}

static void print_axes(const AstAxes *axes, Buf *out) {
    buf_putc(out, '[');
    for (int i = 0; i < axes->count; i++) {
        buf_puts(out, i == 0 ? "" : axes->items[i].joined ? "*" : ", ");
        buf_str(out, axes->items[i].name.text);
    }
    buf_putc(out, ']');
}

static void print_src(const AstSrc *src, Buf *out) {
    switch (src->kind) {
    case LANG_SOURCE_TENSOR:
        buf_putc(out, '"');
        buf_str(out, src->name.text);
        buf_putc(out, '"');
        if (src->from) {
            buf_puts(out, " from ");
            print_expr(src->from, TIGHT_EXPR, out);
        }
        break;
    case LANG_SOURCE_PARAM:
        buf_str(out, src->name.text);
        break;
    case LANG_SOURCE_NUMBER:
        lang_number_print(src->number, out);
        break;
    }
}

static void print_source(const AstDecl *d, Buf *out) {
    if (d->condition) {
        buf_puts(out, "if ");
        print_cond(d->condition, out);
        buf_puts(out, " then ");
        print_src(&d->sources.items[0], out);
        buf_puts(out, " else ");
        print_src(&d->sources.items[1], out);
        return;
    }
    for (int i = 0; i < d->sources.count; i++) {
        buf_puts(out, i ? " or " : "");
        print_src(&d->sources.items[i], out);
    }
}

static void print_dims(const AstDims *dims, Buf *out) {
    for (int i = 0; i < dims->count; i++) {
        buf_puts(out, i ? ", " : "");
        buf_str(out, dims->items[i].name.text);
        if (dims->items[i].size) {
            buf_puts(out, " = ");
            print_expr(dims->items[i].size, TIGHT_CEXPR, out);
        }
    }
}

static void print_stmt(const AstDecl *d, Buf *out) {
    static const char *const ops[] = {
        [LANG_ASSIGN] = " = ", [LANG_ADD_TO] = " += ", [LANG_WRITE] = " := "};
    buf_puts(out, d->output ? "output " : "");
    for (int i = 0; i < d->target_count; i++) {
        buf_puts(out, i ? ", " : "");
        buf_str(out, d->targets[i].name.text);
        print_indexes(&d->targets[i].indexes, out);
    }
    if (d->dtype_written)
        buf_printf(out, ": %s", lang_dtype_text(d->dtype));
    buf_puts(out, ops[d->stmt_op]);
    print_expr(d->expr, TIGHT_RHS, out);
}

static void print_tensor(const AstDecl *d, const char *word, Buf *out) {
    buf_printf(out, "%s %.*s", word, LG_STR_ARG(d->name.text));
    print_axes(&d->axes, out);
    if (d->index_dim.text.len)
        buf_printf(out, ": index %.*s", LG_STR_ARG(d->index_dim.text));
    if (d->dtype_written)
        buf_printf(out, ": %s", lang_dtype_text(d->dtype));
    if (d->kind == AST_PARAM) {
        buf_puts(out, " = ");
        print_source(d, out);
    }
}

static void print_require(const AstDecl *d, Buf *out) {
    buf_printf(out, "require %.*s", LG_STR_ARG(d->name.text));
    if (d->index_dim.text.len)
        buf_printf(out, "[%.*s]", LG_STR_ARG(d->index_dim.text));
    buf_printf(out, " %s ", compare_text(d->op));
    for (int i = 0; i < d->values.count; i++) {
        buf_puts(out, i ? " or " : "");
        print_value(&d->values.items[i], out);
    }
}

static void print_decls(const AstDecls *decls, const char *indent, Buf *out);

static void print_decl(const AstDecl *d, Buf *out) {
    switch (d->kind) {
    case AST_MODEL:
        buf_printf(out, "model %.*s for ", LG_STR_ARG(d->name.text));
        print_names(&d->names, "\"", out);
        break;
    case AST_DIM:
        buf_puts(out, "dim ");
        print_dims(&d->dims, out);
        break;
    case AST_REQUIRE:
        print_require(d, out);
        break;
    case AST_IGNORE:
        buf_puts(out, "ignore ");
        print_names(&d->names, "", out);
        break;
    case AST_INPUT:
        print_tensor(d, "input", out);
        break;
    case AST_PARAM:
        print_tensor(d, "param", out);
        break;
    case AST_STATE:
        print_tensor(d, "state", out);
        break;
    case AST_LORA:
        buf_printf(out, "lora %.*s on ", LG_STR_ARG(d->name.text));
        print_names(&d->names, "", out);
        break;
    case AST_CONST:
        buf_printf(out, "const %.*s", LG_STR_ARG(d->name.text));
        if (d->index_dim.text.len)
            buf_printf(out, "[%.*s]", LG_STR_ARG(d->index_dim.text));
        buf_puts(out, " = ");
        print_expr(d->expr, TIGHT_CEXPR, out);
        break;
    case AST_LAYER:
        buf_printf(out, "layer %.*s in %.*s {\n", LG_STR_ARG(d->name.text),
                   LG_STR_ARG(d->index_dim.text));
        print_decls(&d->body, "  ", out);
        buf_putc(out, '}');
        break;
    case AST_STMT:
        print_stmt(d, out);
        break;
    }
}

static void print_decls(const AstDecls *decls, const char *indent, Buf *out) {
    for (int i = 0; i < decls->count; i++) {
        buf_puts(out, indent);
        print_decl(&decls->items[i], out);
        buf_putc(out, '\n');
    }
}

void ast_print(const AstFile *file, Buf *out) {
    print_decls(&file->decls, "", out);
}
