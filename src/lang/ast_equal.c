/* Whether two trees are the same, places in the text aside: what the print and parse round trip is
 * held to. */
#include "lang/ast.h"

static bool same_names(const AstNames *a, const AstNames *b) {
    bool same = a->count == b->count;
    for (int i = 0; same && i < a->count; i++)
        same = lg_str_eq(a->items[i].text, b->items[i].text);
    return same;
}

static bool same_indexes(const AstIndexes *a, const AstIndexes *b);

static bool same_index(const AstIndex *a, const AstIndex *b) {
    return lg_str_eq(a->name.text, b->name.text) && a->value == b->value &&
           a->bracketed == b->bracketed && lg_str_eq(a->in.text, b->in.text) &&
           same_indexes(&a->indexes, &b->indexes);
}

static bool same_indexes(const AstIndexes *a, const AstIndexes *b) {
    bool same = a->count == b->count;
    for (int i = 0; same && i < a->count; i++)
        same = same_index(&a->items[i], &b->items[i]);
    return same;
}

static bool same_expr(const AstExpr *a, const AstExpr *b);

static bool same_cond(const AstCond *a, const AstCond *b) {
    if (!a || !b)
        return a == b;
    return same_index(&a->ref, &b->ref) && a->op == b->op &&
           config_value_eq(&a->value, &b->value) && same_expr(a->number, b->number);
}

static bool same_expr(const AstExpr *a, const AstExpr *b) {
    if (!a || !b)
        return a == b;
    if (a->kind != b->kind || a->number != b->number || a->fn != b->fn || a->red != b->red ||
        a->parens != b->parens || a->arg_count != b->arg_count ||
        a->binds.count != b->binds.count || !same_index(&a->ref, &b->ref) ||
        !same_cond(a->cond, b->cond))
        return false;
    for (int i = 0; i < a->binds.count; i++) {
        const AstBind *x = &a->binds.items[i];
        const AstBind *y = &b->binds.items[i];
        if (!lg_str_eq(x->name.text, y->name.text) || !same_expr(x->lower, y->lower) ||
            !same_expr(x->upper, y->upper))
            return false;
    }
    for (int i = 0; i < a->arg_count; i++)
        if (!same_expr(a->args[i], b->args[i]))
            return false;
    return true;
}

static bool same_sources(const AstSrcs *a, const AstSrcs *b) {
    bool same = a->count == b->count;
    for (int i = 0; same && i < a->count; i++) {
        const AstSrc *x = &a->items[i];
        const AstSrc *y = &b->items[i];
        same = x->kind == y->kind && x->number == y->number &&
               (x->kind == LANG_SOURCE_NUMBER || lg_str_eq(x->name.text, y->name.text)) &&
               same_expr(x->from, y->from);
    }
    return same;
}

static bool same_lists(const AstDecl *a, const AstDecl *b) {
    if (a->dims.count != b->dims.count || a->values.count != b->values.count ||
        a->axes.count != b->axes.count)
        return false;
    for (int i = 0; i < a->dims.count; i++)
        if (!lg_str_eq(a->dims.items[i].name.text, b->dims.items[i].name.text) ||
            !same_expr(a->dims.items[i].size, b->dims.items[i].size))
            return false;
    for (int i = 0; i < a->values.count; i++)
        if (!config_value_eq(&a->values.items[i], &b->values.items[i]))
            return false;
    for (int i = 0; i < a->axes.count; i++)
        if (!lg_str_eq(a->axes.items[i].name.text, b->axes.items[i].name.text) ||
            a->axes.items[i].joined != b->axes.items[i].joined)
            return false;
    return true;
}

static bool same_targets(const AstDecl *a, const AstDecl *b) {
    bool same = a->target_count == b->target_count;
    for (int i = 0; same && i < a->target_count; i++)
        same = lg_str_eq(a->targets[i].name.text, b->targets[i].name.text) &&
               same_indexes(&a->targets[i].indexes, &b->targets[i].indexes);
    return same;
}

static bool same_decls(const AstDecls *a, const AstDecls *b);

static bool same_decl(const AstDecl *a, const AstDecl *b) {
    return a->kind == b->kind && lg_str_eq(a->name.text, b->name.text) &&
           same_names(&a->names, &b->names) && same_lists(a, b) && a->op == b->op &&
           a->dtype_written == b->dtype_written && a->dtype == b->dtype &&
           lg_str_eq(a->index_dim.text, b->index_dim.text) &&
           same_cond(a->condition, b->condition) && same_sources(&a->sources, &b->sources) &&
           same_expr(a->expr, b->expr) && same_decls(&a->body, &b->body) &&
           a->output == b->output && a->stmt_op == b->stmt_op && same_targets(a, b);
}

static bool same_decls(const AstDecls *a, const AstDecls *b) {
    bool same = a->count == b->count;
    for (int i = 0; same && i < a->count; i++)
        same = same_decl(&a->items[i], &b->items[i]);
    return same;
}

bool ast_equal(const AstFile *a, const AstFile *b) {
    return same_decls(&a->decls, &b->decls);
}
