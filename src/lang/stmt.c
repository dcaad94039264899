/* Statements: what the left side may be, and what a statement makes known to those below it. */
#include "lang/check.h"

#include <string.h>

static bool refuse_target(StmtCtx *s, AstName at, const char *why, const char *accepted) {
    return diag_refuse(&s->c->diag, at.line, at.column,
                       "cannot define %s here: %s. %s is accepted.", diag_text(at.text).text, why,
                       accepted);
}

/* Free names inside a target's lookup become vars of the statement. */
static bool lookup_vars(StmtCtx *s, const AstIndex *ast) {
    for (int i = 0; i < ast->indexes.count; i++) {
        const AstIndex *x = &ast->indexes.items[i];
        if (x->bracketed) {
            if (!lookup_vars(s, x))
                return false;
        } else if (x->name.text.len && expr_var_find(s, x->name.text) < 0 &&
                   expr_var_add(s, x->name, -1, false) < 0) {
            return false;
        }
    }
    return true;
}

/* One index of a target. dim: what the tensor has there, -1 where this statement decides. */
static bool target_index(StmtCtx *s, const AstIndex *ast, int dim, AstName owner, LangIndex *out) {
    Check *c = s->c;
    if (ast->in.text.len) {
        int written = check_dim(c, ast->in);
        if (written < 0)
            return false;
        if (dim >= 0 && written != dim)
            return refuse_target(s, ast->in, "this axis has another dim", "The axis' own dim");
        dim = written;
    }
    if (ast->bracketed) {
        if (s->ast->stmt_op != LANG_WRITE)
            return refuse_target(s, owner, "a lookup on the left writes a state",
                                 "`:=` to a state, or plain indexes,");
        if (!c->dims.items[dim].runtime)
            return refuse_target(s, ast->name, "this axis of the state has a fixed size",
                                 "A plain index there");
        return lookup_vars(s, ast) && expr_index(s, ast, dim, owner.text, out);
    }
    if (s->ast->stmt_op == LANG_WRITE && c->dims.items[dim].runtime)
        return diag_refuse(&c->diag, ast->name.line, ast->name.column,
                           "cannot write %s like this: its slot and position are looked up. "
                           "`%s[slot[t],pos[t],…] := …` is accepted.",
                           diag_text(owner.text).text, diag_text(owner.text).text);
    if (ast->name.text.len) {
        int var = expr_var_add(s, ast->name, dim, false);
        *out = (LangIndex){.kind = LANG_INDEX_VAR, .dim = dim, .var = var};
        return var >= 0;
    }
    if (s->ast->stmt_op == LANG_ADD_TO)
        return refuse_target(s, owner, "`+=` adds to the whole tensor", "A name for each index");
    if (dim < 0)
        return diag_refuse(&c->diag, ast->name.line, ast->name.column,
                           "cannot tell what axis the part %lld is of. `%lld in C` is accepted.",
                           (long long)ast->value, (long long)ast->value);
    return expr_index(s, ast, dim, owner.text, out);
}

/* The tensor that a `=` defines a further part of, -1 where it is a new one; false: refused. */
static bool assign_target(StmtCtx *s, AstName name, int *out) {
    Check *c = s->c;
    const Symbol *sym = check_find(c, name.text);
    *out = -1;
    if (!sym)
        return true;
    const LangTensor *t = sym->kind == SYMBOL_TENSOR ? &c->tensors.items[sym->id] : NULL;
    if (t && t->kind == LANG_STATE)
        return refuse_target(s, name, "it is a state", "`:=` through lookups");
    bool part = t && (t->kind == LANG_VALUE || t->kind == LANG_OUTPUT) &&
                t->in_layer == c->in_layer && !c->infos.items[sym->id].complete;
    if (!part)
        return diag_refuse(&c->diag, name.line, name.column,
                           "cannot define %s: line %d defines it already. A new name is accepted "
                           "(or `+=` inside the layer block, for a tensor from outside).",
                           diag_text(name.text).text, sym->line);
    *out = sym->id;
    return true;
}

static bool add_target(StmtCtx *s, AstName name, int *out) {
    Check *c = s->c;
    const Symbol *sym = check_find(c, name.text);
    const LangTensor *t = sym && sym->kind == SYMBOL_TENSOR ? &c->tensors.items[sym->id] : NULL;
    if (!t)
        return refuse_target(s, name, "`+=` adds to a tensor, and nothing above defines it",
                             "A tensor defined above the layer block");
    if (t->kind != LANG_VALUE)
        return refuse_target(s, name, "`+=` adds to a computed tensor, and it is none",
                             "A tensor that `=` defines above the layer block");
    if (!c->in_layer || t->in_layer)
        return refuse_target(
            s, name,
            "`+=` adds to a tensor of an enclosing scope, and it is of "
            "this one",
            "`=` with a new name, or `+=` to a tensor from above the layer block,");
    if (!c->infos.items[sym->id].complete)
        return refuse_target(s, name, "only a part of it is defined", "A whole tensor");
    if (s->ast->dtype_written)
        return refuse_target(s, name, "`+=` cannot change its type", "`+=` without a type");
    *out = sym->id;
    s->forbidden = sym->id;
    return true;
}

static bool write_target(StmtCtx *s, AstName name, int *out) {
    Check *c = s->c;
    const Symbol *sym = check_find(c, name.text);
    const LangTensor *t = sym && sym->kind == SYMBOL_TENSOR ? &c->tensors.items[sym->id] : NULL;
    if (!t || t->kind != LANG_STATE)
        return refuse_target(s, name, "`:=` writes a state, and it is none",
                             "A declared state, or `=`,");
    if (t->in_layer != c->in_layer)
        return refuse_target(s, name, "the state belongs to another scope",
                             "A write in the scope that declares it");
    if (c->infos.items[sym->id].complete)
        return refuse_target(s, name, "this step has written it already", "One write a step");
    if (s->ast->dtype_written)
        return refuse_target(s, name, "its declaration gives the type", "`:=` without a type");
    *out = sym->id;
    return true;
}

static bool find_target(StmtCtx *s, AstName name, int *out) {
    if (s->ast->output && (s->c->in_layer || s->ast->stmt_op != LANG_ASSIGN))
        return refuse_target(s, name, "an output is computed once, after the layers",
                             "`output NAME[…] = …` outside the layer block");
    switch (s->ast->stmt_op) {
    case LANG_ADD_TO:
        return add_target(s, name, out);
    case LANG_WRITE:
        return write_target(s, name, out);
    case LANG_ASSIGN:
        break;
    }
    return assign_target(s, name, out);
}

/* slot and position are of one row: (slot[t], pos[t]). */
static bool check_lookups(StmtCtx *s, const LangTarget *target, AstName at) {
    const LangIndex *a = &target->indexes[0];
    const LangIndex *b = &target->indexes[1];
    bool same = a->count == b->count;
    for (int i = 0; same && i < a->count; i++)
        same = index_equal(&a->indexes[i], &b->indexes[i]);
    const LangIndex *first = s->c->infos.items[target->tensor].targets;
    if (first)
        same = same && first[0].tensor == a->tensor && first[1].tensor == b->tensor;
    if (same)
        return true;
    return diag_refuse(&s->c->diag, at.line, at.column,
                       "cannot write %s like this: slot and position are of different rows. "
                       "`%s[slot[t],pos[t],…] := …` is accepted.",
                       diag_text(at.text).text, diag_text(at.text).text);
}

static bool build_target(StmtCtx *s, const AstTarget *ast, LangTarget *out) {
    Check *c = s->c;
    if (!find_target(s, ast->name, &out->tensor))
        return false;
    const LangTensor *t = out->tensor >= 0 ? &c->tensors.items[out->tensor] : NULL;
    int count = ast->indexes.count;
    if (count > LANG_RANK_MAX || (t && t->rank != count))
        return diag_refuse(&c->diag, ast->name.line, ast->name.column,
                           "cannot define %s with %d %s: %s %d. That many are accepted.",
                           diag_text(ast->name.text).text, count, count == 1 ? "index" : "indexes",
                           t ? "it has" : "a tensor has at most", t ? t->rank : LANG_RANK_MAX);
    LangIndex *indexes = ARENA_ARRAY(c->arena, LangIndex, (size_t)count);
    if (!indexes)
        return diag_memory(&c->diag);
    for (int i = 0; i < count; i++)
        if (!target_index(s, &ast->indexes.items[i], t ? t->dims[i] : -1, ast->name, &indexes[i]))
            return false;
    out->index_count = count;
    out->indexes = indexes;
    return s->ast->stmt_op != LANG_WRITE || check_lookups(s, out, ast->name);
}

/* topk's second target has the indexes of the first. */
static bool build_second(StmtCtx *s) {
    Check *c = s->c;
    const AstTarget *a = &s->ast->targets[0];
    const AstTarget *b = &s->ast->targets[1];
    bool same = a->indexes.count == b->indexes.count && !lg_str_eq(a->name.text, b->name.text);
    for (int i = 0; same && i < a->indexes.count; i++) {
        const AstIndex *x = &a->indexes.items[i];
        const AstIndex *y = &b->indexes.items[i];
        same = lg_str_eq(x->name.text, y->name.text) && x->value == y->value && !y->bracketed &&
               lg_str_eq(x->in.text, y->in.text);
    }
    if (!same)
        return diag_refuse(&c->diag, b->name.line, b->name.column,
                           "cannot define %s beside %s: their indexes differ. Two tensors with the "
                           "same indexes (`pick[t,j in K], gate[t,j in K] = topk …`) are accepted.",
                           diag_text(b->name.text).text, diag_text(a->name.text).text);
    if (!find_target(s, b->name, &s->out->targets[1].tensor))
        return false;
    s->out->targets[1].index_count = s->out->targets[0].index_count;
    s->out->targets[1].indexes = s->out->targets[0].indexes;
    return true;
}

/* The dims of target vars are known only after the right side. */
static void settle_dims(StmtCtx *s) {
    const LangTarget *target = &s->out->targets[0];
    LangIndex *indexes = (LangIndex *)target->indexes; /* made by this statement */
    for (int i = 0; i < target->index_count; i++)
        if (indexes[i].kind == LANG_INDEX_VAR)
            indexes[i].dim = s->out->vars[indexes[i].var].dim;
}

static bool refuse_choice(StmtCtx *s, const char *why) {
    return diag_refuse(&s->c->diag, s->ast->expr->line, s->ast->expr->column,
                       "cannot choose like this: %s. `pick[t,j in K], gate[t,j in K] = topk e: "
                       "score[t,e]` and `best[t] = argmax e: score[t,e]` are accepted.",
                       why);
}

/* topk and argmax: their targets, and the dim that they choose from. */
static bool check_choice(StmtCtx *s, int *from) {
    const LangStmt *st = s->out;
    const LangExpr *e = st->rhs;
    bool topk = e->kind == EXPR_REDUCE && e->red == LANG_RED_TOPK;
    bool argmax = e->kind == EXPR_REDUCE && e->red == LANG_RED_ARGMAX;
    *from = -1;
    if (!topk && st->target_count == 2)
        return refuse_choice(s, "only topk has two targets");
    if (!topk && !argmax)
        return true;
    if (topk != (st->target_count == 2) || st->op != LANG_ASSIGN || s->ast->output)
        return refuse_choice(s, topk ? "topk gives which and how much, to two new tensors"
                                     : "argmax gives an index, to one new tensor");
    const LangVar *e_var = &st->vars[e->vars[0]];
    const LangDim *dim = &s->c->dims.items[e_var->dim];
    if (dim->runtime || e_var->upper)
        return refuse_choice(s, "the axis has no fixed size");
    *from = e_var->dim;
    if (argmax)
        return s->ast->dtype_written && s->ast->dtype != LANG_I32
                   ? refuse_choice(s, "what argmax gives is an index, and its type i32")
                   : true;
    int made = -1;
    for (int i = 0; i < st->var_count; i++) {
        if (st->vars[i].reduced || expr_uses(e->a, i))
            continue;
        if (made >= 0)
            return refuse_choice(s, "two indexes of the left are not on the right");
        made = st->vars[i].dim;
    }
    if (made < 0)
        return refuse_choice(s, "the left has no index that counts the choices");
    if (s->c->dims.items[made].runtime || s->c->dims.items[made].size > dim->size)
        return refuse_choice(s, "it takes more than the axis has");
    return true;
}

static bool check_value_dtype(StmtCtx *s) {
    bool choice = s->out->rhs->kind == EXPR_REDUCE && s->out->rhs->red == LANG_RED_ARGMAX;
    if (!s->ast->dtype_written || choice || (s->ast->dtype != LANG_I32 && s->ast->dtype != LANG_F8))
        return true;
    return refuse_target(s, s->ast->name, "a computed value is a real number of 16 or 32 bits",
                         "f32, bf16 or f16");
}

/* The tensor of a `=`: a new one, or a further part. */
static bool define_target(StmtCtx *s, int k, int choice_of) {
    Check *c = s->c;
    LangTarget *target = &s->out->targets[k];
    AstName name = s->ast->targets[k].name;
    bool is_choice = choice_of >= 0 && k == 0;
    bool written = s->ast->dtype_written && !is_choice;
    LangDType dtype = is_choice ? LANG_I32 : written ? s->ast->dtype : LANG_BF16;
    LangTensorKind kind = s->ast->output ? LANG_OUTPUT : LANG_VALUE;
    if (target->tensor >= 0) {
        const LangTensor *t = &c->tensors.items[target->tensor];
        if (t->kind != kind || t->dtype != dtype || t->dtype_written != (written || is_choice))
            return refuse_target(s, name, "its first part has another type, or is no output",
                                 "The same type for every part");
        return parts_add(c, target->tensor, target, name);
    }
    int id = check_tensor_add(c, name, kind);
    if (id < 0)
        return false;
    target->tensor = id;
    LangTensor *t = &c->tensors.items[id];
    t->dtype = dtype;
    t->dtype_written = written || is_choice;
    t->rank = t->axis_count = target->index_count;
    t->index_dim = is_choice ? choice_of : -1;
    for (int i = 0; i < t->rank; i++) {
        const LangIndex *x = &target->indexes[i];
        t->dims[i] = x->dim;
        t->axis_start[i] = i;
        if (x->kind != LANG_INDEX_VAR)
            continue;
        const LangVar *v = &s->out->vars[x->var];
        c->infos.items[id].ragged[i] = (Ragged){v->upper, v->lower};
    }
    t->axis_start[t->rank] = t->rank;
    c->output_count += s->ast->output;
    return parts_add(c, id, target, name);
}

static bool finish_targets(StmtCtx *s, int choice_of) {
    Check *c = s->c;
    for (int k = 0; k < s->out->target_count; k++) {
        LangTarget *target = &s->out->targets[k];
        AstName name = s->ast->targets[k].name;
        if (s->out->op == LANG_ADD_TO)
            continue;
        if (s->out->op == LANG_ASSIGN ? !define_target(s, k, choice_of)
                                      : !parts_add(c, target->tensor, target, name))
            return false;
        TensorInfo *info = &c->infos.items[target->tensor];
        if (info->stmt < 0) {
            info->stmt = c->stmts.count;
            info->targets = target->indexes;
            info->row = site_row(c, s->out);
        }
    }
    return c->diag.status == LG_OK;
}

bool check_stmt(Check *c, const AstDecl *d) {
    if (c->stmts.count == CHECK_STMTS_MAX)
        return diag_refuse(&c->diag, d->line, d->column,
                           "cannot compile so many statements. At most %d are accepted.",
                           CHECK_STMTS_MAX);
    if (!AST_LIST_ROOM(c->arena, c->stmts))
        return diag_memory(&c->diag);
    LangStmt *out = &c->stmts.items[c->stmts.count];
    *out = (LangStmt){.line = d->line,
                      .text = d->text,
                      .in_layer = c->in_layer,
                      .op = d->stmt_op,
                      .site = -1,
                      .target_count = d->target_count};
    StmtCtx s = {.c = c, .ast = d, .out = out, .forbidden = -1};
    if (!build_target(&s, &d->targets[0], &out->targets[0]) ||
        (d->target_count == 2 && !build_second(&s)))
        return false;
    out->rhs = expr_build(&s, d->expr);
    int choice_of;
    if (!out->rhs || !bounds_check(&s))
        return false;
    settle_dims(&s);
    if (!check_choice(&s, &choice_of) || !check_value_dtype(&s) || !finish_targets(&s, choice_of))
        return false;
    c->stmts.count++;
    return true;
}

static bool refuse_unread(Check *c, const LangTensor *t, int column) {
    return diag_refuse(&c->diag, t->line, column,
                       "cannot accept %s: nothing reads it. A tensor that a statement below uses "
                       "is accepted, or a page without it.",
                       diag_text(t->name).text);
}

bool check_complete(Check *c, bool in_layer) {
    for (int i = 0; i < c->tensors.count; i++) {
        const LangTensor *t = &c->tensors.items[i];
        const TensorInfo *info = &c->infos.items[i];
        if (t->in_layer != in_layer || t->kind == LANG_INPUT)
            continue;
        if (!info->complete && t->kind == LANG_STATE && !info->parts.count)
            return diag_refuse(&c->diag, t->line, info->column,
                               "cannot accept the state %s: no statement writes it. `%s[slot[t],"
                               "pos[t],…] := …` is accepted.",
                               diag_text(t->name).text, diag_text(t->name).text);
        if (!info->complete)
            return diag_refuse(&c->diag, t->line, info->column,
                               "cannot complete %s: a part of it is left out. A statement for each "
                               "literal index is accepted.",
                               diag_text(t->name).text);
        if (!info->read && t->kind != LANG_OUTPUT)
            return refuse_unread(c, t, info->column);
    }
    return true;
}
