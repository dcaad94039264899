/* Expressions of statements: every name to its meaning, every index to one dim. Numbers that the
 * config knows are folded here; arithmetic stays as written, since a statement computes in f32. */
#include "lang/check.h"

#include <math.h>
#include <string.h>

static LangExpr *node_new(StmtCtx *s, LangExprKind kind, const AstExpr *at) {
    LangExpr *e = ARENA_NEW(s->c->arena, LangExpr);
    if (!e) {
        diag_memory(&s->c->diag);
        return NULL;
    }
    e->kind = kind;
    e->line = at->line;
    e->column = at->column;
    return e;
}

static const LangExpr *number_new(StmtCtx *s, const AstExpr *at, double number) {
    LangExpr *e = node_new(s, EXPR_NUMBER, at);
    if (e)
        e->number = number;
    return e;
}

bool index_equal(const LangIndex *a, const LangIndex *b) {
    if (a->kind != b->kind || a->dim != b->dim)
        return false;
    if (a->kind == LANG_INDEX_VAR)
        return a->var == b->var;
    if (a->kind == LANG_INDEX_INT)
        return a->value == b->value;
    if (a->tensor != b->tensor)
        return false;
    for (int i = 0; i < a->count; i++)
        if (!index_equal(&a->indexes[i], &b->indexes[i]))
            return false;
    return true;
}

int expr_var_find(const StmtCtx *s, LgStr name) {
    for (int i = s->scope_count - 1; i >= 0; i--)
        if (lg_str_eq(s->out->vars[s->scope[i]].name, name))
            return s->scope[i];
    return -1;
}

int expr_var_add(StmtCtx *s, AstName name, int dim, bool reduced) {
    Check *c = s->c;
    const Symbol *taken = check_find(c, name.text);
    bool is_layer = s->c->in_layer && lg_str_eq(c->layer->name.text, name.text);
    bool dotted = memchr(name.text.ptr, '.', name.text.len) != NULL;
    if (dotted || is_layer || (taken && taken->kind != SYMBOL_TENSOR)) {
        diag_refuse(&c->diag, name.line, name.column,
                    "cannot use %s as an index: it %s. A name of its own is accepted.",
                    diag_text(name.text).text,
                    dotted     ? "has a dot"
                    : is_layer ? "is the layer's index"
                               : "is a dim or a const of the page");
        return -1;
    }
    if (expr_var_find(s, name.text) >= 0) {
        diag_refuse(&c->diag, name.line, name.column,
                    "cannot bind the index %s: it has a meaning here already. Another name is "
                    "accepted.",
                    diag_text(name.text).text);
        return -1;
    }
    if (s->out->var_count == LANG_VARS_MAX) {
        diag_refuse(&c->diag, name.line, name.column,
                    "cannot use so many indexes: a statement has at most %d. Fewer are accepted.",
                    LANG_VARS_MAX);
        return -1;
    }
    int id = s->out->var_count++;
    s->out->vars[id] = (LangVar){.name = name.text, .dim = dim, .reduced = reduced};
    s->scope[s->scope_count++] = id;
    return id;
}

bool expr_var_unify(StmtCtx *s, int var, int dim, AstName at, LgStr owner) {
    LangVar *v = &s->out->vars[var];
    if (v->dim < 0)
        v->dim = dim;
    if (v->dim == dim)
        return true;
    return diag_refuse(&s->c->diag, at.line, at.column,
                       "cannot use the index %s here: it runs over %s, and this axis of %s is %s. "
                       "An index over %s is accepted.",
                       diag_text(v->name).text, diag_text(check_dim_name(s->c, v->dim)).text,
                       diag_text(owner).text, diag_text(check_dim_name(s->c, dim)).text,
                       diag_text(check_dim_name(s->c, dim)).text);
}

/* The tensor of that name, if a statement here may read it. */
static int readable(StmtCtx *s, AstName name, int index_count) {
    Check *c = s->c;
    const Symbol *sym = check_find(c, name.text);
    if (!sym || sym->kind != SYMBOL_TENSOR) {
        diag_refuse(&c->diag, name.line, name.column,
                    "cannot read %s: %s. A tensor that a line above defines is accepted.",
                    diag_text(name.text).text,
                    sym ? "it is no tensor" : "nothing above defines it");
        return -1;
    }
    const LangTensor *t = &c->tensors.items[sym->id];
    TensorInfo *info = &c->infos.items[sym->id];
    const char *why = NULL;
    if (t->in_layer && !c->in_layer)
        why = "it belongs to the layer block. A tensor of this scope is accepted";
    else if (!info->complete && t->kind == LANG_STATE)
        why = "this step has not written it yet. A read below its `:=` is accepted";
    else if (!info->complete)
        why = "only a part of it is defined so far. A read below all its parts is accepted";
    else if (sym->id == s->forbidden)
        why = "this statement adds to it. A tensor other than the target is accepted";
    if (why) {
        diag_refuse(&c->diag, name.line, name.column, "cannot read %s here: %s.",
                    diag_text(name.text).text, why);
        return -1;
    }
    if (t->rank != index_count) {
        diag_refuse(&c->diag, name.line, name.column,
                    "cannot read %s with %d %s: it has %d. One index for each axis is accepted.",
                    diag_text(name.text).text, index_count, index_count == 1 ? "index" : "indexes",
                    t->rank);
        return -1;
    }
    info->read = true;
    return sym->id;
}

static bool index_literal(StmtCtx *s, const AstIndex *ast, int dim, LgStr owner, LangIndex *out) {
    const LangDim *d = &s->c->dims.items[dim];
    if (d->runtime || (uint64_t)ast->value >= d->size)
        return diag_refuse(&s->c->diag, ast->name.line, ast->name.column,
                           "cannot use %lld as an index of %s's axis %s: %s. %s is accepted.",
                           (long long)ast->value, diag_text(owner).text, diag_text(d->name).text,
                           d->runtime ? "its size is known at run time only" : "it is out of range",
                           d->runtime ? "A name or a lookup" : "A number below the axis' size");
    out->kind = LANG_INDEX_INT;
    out->value = ast->value;
    return true;
}

static bool index_lookup(StmtCtx *s, const AstIndex *ast, int dim, LgStr owner, LangIndex *out) {
    Check *c = s->c;
    int id = readable(s, ast->name, ast->indexes.count);
    if (id < 0)
        return false;
    const LangTensor *t = &c->tensors.items[id];
    if (t->index_dim != dim) {
        LgStr want = check_dim_name(c, dim);
        return diag_refuse(&c->diag, ast->name.line, ast->name.column,
                           "cannot look up %s by %s: this axis is %s, and %s holds %s%s. A tensor "
                           "declared `index %s` is accepted.",
                           diag_text(owner).text, diag_text(t->name).text, diag_text(want).text,
                           diag_text(t->name).text, t->index_dim < 0 ? "no indexes" : "indexes of ",
                           t->index_dim < 0 ? "" : diag_text(check_dim_name(c, t->index_dim)).text,
                           diag_text(want).text);
    }
    LangIndex *indexes = ARENA_ARRAY(c->arena, LangIndex, (size_t)t->rank);
    if (!indexes)
        return diag_memory(&c->diag);
    for (int i = 0; i < t->rank; i++)
        if (!expr_index(s, &ast->indexes.items[i], t->dims[i], t->name, &indexes[i]))
            return false;
    out->kind = LANG_INDEX_LOOKUP;
    out->tensor = id;
    out->count = c->tensors.items[id].rank;
    out->indexes = indexes;
    return true;
}

bool expr_index(StmtCtx *s, const AstIndex *ast, int dim, LgStr owner, LangIndex *out) {
    *out = (LangIndex){.dim = dim};
    if (!ast->name.text.len)
        return index_literal(s, ast, dim, owner, out);
    if (ast->bracketed)
        return index_lookup(s, ast, dim, owner, out);
    int var = expr_var_find(s, ast->name.text);
    if (var < 0)
        return diag_refuse(&s->c->diag, ast->name.line, ast->name.column,
                           "cannot tell what the index %s is: it is neither on the left nor bound "
                           "by a reduction around it. `sum %s: …`, or %s on the left, is accepted.",
                           diag_text(ast->name.text).text, diag_text(ast->name.text).text,
                           diag_text(ast->name.text).text);
    out->kind = LANG_INDEX_VAR;
    out->var = var;
    return expr_var_unify(s, var, dim, ast->name, owner);
}

static const LangExpr *build_tensor(StmtCtx *s, const AstExpr *ast) {
    int id = readable(s, ast->ref.name, ast->ref.indexes.count);
    if (id < 0)
        return NULL;
    const LangTensor *t = &s->c->tensors.items[id];
    LangExpr *e = node_new(s, EXPR_REF, ast);
    LangIndex *indexes = e ? ARENA_ARRAY(s->c->arena, LangIndex, (size_t)t->rank) : NULL;
    if (!indexes) {
        diag_memory(&s->c->diag);
        return NULL;
    }
    e->tensor = id;
    e->index_count = t->rank;
    e->indexes = indexes;
    for (int i = 0; i < e->index_count; i++)
        if (!expr_index(s, &ast->ref.indexes.items[i], t->dims[i], t->name, &indexes[i]))
            return NULL;
    return e;
}

static const LangExpr *layer_const(StmtCtx *s, const AstExpr *ast, const double *values) {
    Check *c = s->c;
    const Symbol *sym = check_find(c, ast->ref.name.text);
    CheckConst *named = sym && sym->kind == SYMBOL_CONST ? &c->consts.items[sym->id] : NULL;
    LangExpr *e = node_new(s, EXPR_CONST, ast);
    if (!e)
        return NULL;
    if (named && named->program_const >= 0) {
        e->constant = named->program_const;
        return e;
    }
    if (!AST_LIST_ROOM(c->arena, c->layer_consts)) {
        diag_memory(&c->diag);
        return NULL;
    }
    e->constant = c->layer_consts.count++;
    c->layer_consts.items[e->constant] =
        (LangConst){.name = ast->ref.name.text,
                    .line = named ? named->line : ast->ref.name.line,
                    .values = values};
    if (named)
        named->program_const = e->constant;
    return e;
}

/* A number that the config knows, one or one for each layer. */
static const LangExpr *build_number(StmtCtx *s, const AstExpr *ast) {
    Check *c = s->c;
    Fold f = {.layer = c->in_layer ? 0 : -1};
    f.index = c->in_layer ? c->layer->name.text : (LgStr){0};
    double first = 0;
    FoldResult got = fold_ref(c, &f, &ast->ref, &first);
    if (got == FOLD_ABSENT && s->untaken)
        return number_new(s, ast, 0);
    if (got == FOLD_ABSENT)
        fold_refuse_absent(c, &f);
    if (got != FOLD_OK)
        return NULL;
    if (!f.varies)
        return number_new(s, ast, first);
    double *values = ARENA_ARRAY(c->arena, double, (size_t)c->layer_count);
    if (!values) {
        diag_memory(&c->diag);
        return NULL;
    }
    bool differs = false;
    for (f.layer = 0; f.layer < c->layer_count; f.layer++) {
        got = fold_ref(c, &f, &ast->ref, &values[f.layer]);
        if (got == FOLD_ABSENT)
            fold_refuse_absent(c, &f);
        if (got != FOLD_OK)
            return NULL;
        differs = differs || values[f.layer] != values[0];
    }
    return differs ? layer_const(s, ast, values) : number_new(s, ast, values[0]);
}

/* A run-time dim's size is no number of a statement (as a window it is: one without an end). */
static const LangExpr *as_number(StmtCtx *s, const LangExpr *e, AstName at) {
    if (!e)
        return NULL;
    bool ok = e->kind != EXPR_NUMBER || !isinf(e->number);
    for (int l = 0; e->kind == EXPR_CONST && l < s->c->layer_count; l++)
        ok = ok && !isinf(s->c->layer_consts.items[e->constant].values[l]);
    if (ok)
        return e;
    diag_refuse(&s->c->diag, at.line, at.column,
                "cannot use %s as a number: its size is known at run time only. A dim with a size "
                "is accepted (and a run-time dim as the width of a window).",
                diag_text(at.text).text);
    return NULL;
}

static bool names_tensor(const StmtCtx *s, const AstIndex *ref) {
    const Symbol *sym = check_find(s->c, ref->name.text);
    if (sym)
        return sym->kind == SYMBOL_TENSOR;
    return ref->bracketed && !config_get(s->c->config, ref->name.text);
}

static const LangExpr *build_ref(StmtCtx *s, const AstExpr *ast) {
    int var = ast->ref.bracketed ? -1 : expr_var_find(s, ast->ref.name.text);
    if (var >= 0) {
        LangExpr *e = node_new(s, EXPR_VAR, ast);
        if (e)
            e->var = var;
        return e;
    }
    if (names_tensor(s, &ast->ref))
        return build_tensor(s, ast);
    return as_number(s, build_number(s, ast), ast->ref.name);
}

static bool positive_whole(const StmtCtx *s, const LangExpr *e) {
    if (e->kind == EXPR_NUMBER)
        return e->number >= 1 && (isinf(e->number) || e->number == floor(e->number));
    if (e->kind != EXPR_CONST)
        return false;
    const double *values = s->c->layer_consts.items[e->constant].values;
    for (int l = 0; l < s->c->layer_count; l++)
        if (!(values[l] >= 1 && (isinf(values[l]) || values[l] == floor(values[l]))))
            return false;
    return true;
}

/* `pos[t] - W < s <= pos[t]`: the window is measured back from the upper bound. */
static bool build_lower(StmtCtx *s, const AstExpr *ast, const LangExpr *upper, LangVar *v) {
    bool shaped = ast->kind == AST_SUB && ast->args[0]->kind == AST_REF;
    const LangExpr *from = shaped ? expr_build(s, ast->args[0]) : NULL;
    if (shaped && !from)
        return false;
    const AstExpr *width_ast = shaped ? ast->args[1] : NULL;
    const LangExpr *width = NULL;
    if (shaped && width_ast->kind == AST_REF && !names_tensor(s, &width_ast->ref))
        width = build_number(s, width_ast);
    else if (shaped && width_ast->kind == AST_NUMBER)
        width = number_new(s, width_ast, width_ast->number);
    if (s->c->diag.status != LG_OK)
        return false;
    bool same = from && upper && from->kind == EXPR_REF && from->tensor == upper->tensor;
    for (int i = 0; same && i < from->index_count; i++)
        same = index_equal(&from->indexes[i], &upper->indexes[i]);
    if (!same || !width || !positive_whole(s, width))
        return diag_refuse(&s->c->diag, ast->line, ast->column,
                           "cannot bound %s from below like this: a window ends at the upper bound "
                           "and has a width. `pos[t] - W < s <= pos[t]` is accepted, W a whole "
                           "number, a dim or a const, at least 1.",
                           diag_text(v->name).text);
    if (width->kind == EXPR_NUMBER && isinf(width->number))
        return true;
    LangExpr *lower = node_new(s, EXPR_SUB, ast);
    if (!lower)
        return false;
    lower->a = from;
    lower->b = width;
    v->lower = lower;
    return true;
}

static bool build_bounds(StmtCtx *s, const AstBind *bind, LangVar *v) {
    if (bind->upper) {
        const AstIndex *ref = &bind->upper->ref;
        const LangExpr *upper = names_tensor(s, ref) ? build_tensor(s, bind->upper) : NULL;
        if (s->c->diag.status != LG_OK)
            return false;
        int dim = upper ? s->c->tensors.items[upper->tensor].index_dim : -1;
        if (dim < 0)
            return diag_refuse(&s->c->diag, ref->name.line, ref->name.column,
                               "cannot bound %s by this: it is no tensor that holds indexes. An "
                               "input declared `index D` is accepted.",
                               diag_text(v->name).text);
        v->dim = v->dim < 0 ? dim : v->dim;
        if (v->dim != dim)
            return diag_refuse(&s->c->diag, ref->name.line, ref->name.column,
                               "cannot bound %s, which runs over %s, by an index of %s. A bound of "
                               "the same dim is accepted.",
                               diag_text(v->name).text,
                               diag_text(check_dim_name(s->c, v->dim)).text,
                               diag_text(check_dim_name(s->c, dim)).text);
        v->upper = upper;
    }
    if (!bind->lower)
        return true;
    return build_lower(s, bind->lower, v->upper, v);
}

/* softmax keeps its index: the bound is put on the index that the left has. */
static int bind_kept(StmtCtx *s, const AstExpr *ast, const AstBind *bind) {
    int var = expr_var_find(s, bind->name.text);
    const char *why = NULL;
    if (ast->binds.count != 1)
        why = "it runs over one index";
    else if (var < 0 || s->out->vars[var].reduced)
        why = "softmax keeps its index, so the left must have it";
    else if (s->out->vars[var].upper)
        why = "the index is bounded already";
    if (why) {
        diag_refuse(&s->c->diag, bind->name.line, bind->name.column,
                    "cannot take this softmax: %s. `p[t,s] = softmax s <= pos[t]: …` is accepted.",
                    why);
        return -1;
    }
    LangVar v = s->out->vars[var];
    if (!build_bounds(s, bind, &v))
        return -1;
    s->out->vars[var] = v;
    return var;
}

static const LangExpr *build_reduce(StmtCtx *s, const AstExpr *ast) {
    LangExpr *e = node_new(s, EXPR_REDUCE, ast);
    if (!e)
        return NULL;
    e->red = ast->red;
    int scope = s->scope_count;
    bool one = ast->red == LANG_RED_TOPK || ast->red == LANG_RED_ARGMAX;
    if (one && ast != s->ast->expr) {
        diag_refuse(
            &s->c->diag, ast->line, ast->column,
            "cannot take %s inside an expression: what it gives is an index. It is accepted "
            "as the whole right side.",
            lang_red_text(ast->red));
        return NULL;
    }
    if ((one && ast->binds.count != 1) || ast->binds.count > LANG_VARS_MAX) {
        diag_refuse(&s->c->diag, ast->line, ast->column,
                    "cannot take %s over so many indexes. %s is accepted.", lang_red_text(ast->red),
                    one ? "One index" : "Fewer");
        return NULL;
    }
    for (int i = 0; i < ast->binds.count; i++) {
        const AstBind *bind = &ast->binds.items[i];
        int var;
        if (ast->red == LANG_RED_SOFTMAX) {
            var = bind_kept(s, ast, bind);
        } else {
            LangVar v = {.name = bind->name.text, .dim = -1};
            if (!build_bounds(s, bind, &v))
                return NULL;
            var = expr_var_add(s, bind->name, v.dim, true);
            if (var >= 0) {
                s->out->vars[var].upper = v.upper;
                s->out->vars[var].lower = v.lower;
            }
        }
        if (var < 0)
            return NULL;
        e->vars[e->var_count++] = var;
    }
    e->a = expr_build(s, ast->args[0]);
    s->scope_count = scope;
    return e->a ? e : NULL;
}

/* Checked like the taken branch, and then forgotten: what a page refuses should not hang on a
 * config. */
static bool build_untaken(StmtCtx *s, const AstExpr *ast) {
    LangVar vars[LANG_VARS_MAX];
    int count = s->out->var_count;
    for (int i = 0; i < count; i++)
        vars[i] = s->out->vars[i];
    bool outer = s->untaken;
    s->untaken = true;
    const LangExpr *e = expr_build(s, ast);
    s->untaken = outer;
    s->out->var_count = count;
    for (int i = 0; i < count; i++) {
        vars[i].dim = s->out->vars[i].dim;
        s->out->vars[i] = vars[i];
    }
    return e != NULL;
}

static const LangExpr *build_if(StmtCtx *s, const AstExpr *ast) {
    Check *c = s->c;
    Fold f = {.layer = c->in_layer ? 0 : -1, .untaken = s->untaken};
    f.index = c->in_layer ? c->layer->name.text : (LgStr){0};
    bool first = false;
    fold_claim_cond(c, ast->cond);
    if (!fold_cond(c, &f, ast->cond, &first))
        return NULL;
    bool differs = false;
    bool *layer_true = NULL;
    if (f.varies) {
        layer_true = ARENA_ARRAY(c->arena, bool, (size_t)c->layer_count);
        if (!layer_true) {
            diag_memory(&c->diag);
            return NULL;
        }
        for (f.layer = 0; f.layer < c->layer_count; f.layer++) {
            if (!fold_cond(c, &f, ast->cond, &layer_true[f.layer]))
                return NULL;
            differs = differs || layer_true[f.layer] != first;
        }
    }
    if (!differs) {
        if (!build_untaken(s, ast->args[first ? 1 : 0]))
            return NULL;
        return expr_build(s, ast->args[first ? 0 : 1]);
    }
    LangExpr *e = node_new(s, EXPR_IF, ast);
    if (!e)
        return NULL;
    e->layer_true = layer_true;
    e->a = expr_build(s, ast->args[0]);
    e->b = e->a ? expr_build(s, ast->args[1]) : NULL;
    return e->b ? e : NULL;
}

static LangExprKind operator_kind(AstExprKind kind) {
    switch (kind) {
    case AST_NEG:
        return EXPR_NEG;
    case AST_ADD:
        return EXPR_ADD;
    case AST_SUB:
        return EXPR_SUB;
    case AST_MUL:
        return EXPR_MUL;
    case AST_DIV:
        return EXPR_DIV;
    case AST_POW:
        return EXPR_POW;
    default:
        return EXPR_CALL;
    }
}

const LangExpr *expr_build(StmtCtx *s, const AstExpr *ast) {
    switch (ast->kind) {
    case AST_NUMBER:
        return number_new(s, ast, ast->number);
    case AST_REF:
        return build_ref(s, ast);
    case AST_REDUCE:
        return build_reduce(s, ast);
    case AST_IF:
        return build_if(s, ast);
    default:
        break;
    }
    LangExpr *e = node_new(s, operator_kind(ast->kind), ast);
    if (!e)
        return NULL;
    e->fn = ast->fn;
    e->a = expr_build(s, ast->args[0]);
    if (!e->a)
        return NULL;
    if (ast->arg_count == 2) {
        e->b = expr_build(s, ast->args[1]);
        if (!e->b)
            return NULL;
    }
    return e;
}
