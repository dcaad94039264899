/* Lifts the pair p = softmax s <= pos[t]: f(q·k), o = sum s <= pos[t]: p * v to one ATTEND, whose p
 * is never stored. */
#include "stages/pass.h"

#include <math.h>

typedef struct Pair {
    Pass *pass;
    const LangStmt *p, *o;
    StageAttend *out;
    const LangExpr *dot, *q, *k, *v, *prob;
    int row, position;            /* indexes of p's statement */
    int heads, contracted, group; /* how many axes each */
} Pair;

static const char *name_of(const Pair *a, int tensor) {
    const char *name = arena_strdup(a->pass->arena, a->pass->p->tensors[tensor].name);
    return name ? name : "?";
}

static LgStatus refuse(const Pair *a, const LangStmt *s, const LangExpr *at, const char *why) {
    return lang_refuse(a->pass->p, s->line, at ? at->column : 0, a->pass->err,
                       "cannot lift as attention: %s", why);
}

typedef struct FindDot {
    const LangExpr *dot;
    int count;
} FindDot;

static bool find_dot(void *user, const LangExpr *e) {
    FindDot *f = user;
    if (e->kind == EXPR_REDUCE && e->red == LANG_RED_SUM) {
        f->dot = e;
        f->count++;
        return false;
    }
    return true;
}

/* Two factors, one of them a state. */
static bool split(const Pair *a, const LangExpr *product, const LangExpr **value,
                  const LangExpr **state) {
    const LangExpr *f[3];
    if (match_factors(product, f, 2) != 2 || f[0]->kind != EXPR_REF || f[1]->kind != EXPR_REF)
        return false;
    const LangTensor *t = a->pass->p->tensors;
    bool second = t[f[1]->tensor].kind == LANG_STATE;
    *state = f[second];
    *value = f[!second];
    return t[(*state)->tensor].kind == LANG_STATE && t[(*value)->tensor].kind != LANG_STATE;
}

/* state[slot[t], s, …] */
static bool state_head(const LangExpr *e, int row, int position, int *slot) {
    if (e->index_count < 3 || e->indexes[0].kind != LANG_INDEX_LOOKUP || e->indexes[0].count != 1)
        return false;
    *slot = e->indexes[0].tensor;
    return match_is_var(&e->indexes[0].indexes[0], row) && match_is_var(&e->indexes[1], position);
}

/* position <= pos[row], and the window: lower = pos[row] - constant. */
static LgStatus bounds(const Pair *a, const LangStmt *s, int position, int row, int *pos,
                       double *window) {
    const LangVar *v = &s->vars[position];
    const LangExpr *u = v->upper, *l = v->lower;
    if (!u || u->kind != EXPR_REF || u->index_count != 1 || !match_is_var(&u->indexes[0], row))
        return refuse(a, s, u, "its positions end at an input of the row. Write s <= pos[t].");
    *pos = u->tensor;
    int layers = a->pass->p->layer_count > 0 ? a->pass->p->layer_count : 1;
    for (int k = 0; k < layers; k++)
        window[k] = 0;
    if (!l)
        return LG_OK;
    if (l->kind != EXPR_SUB || !match_equal(l->a, u))
        return refuse(a, s, l,
                      "a window begins a constant before the row's position. Write pos[t] "
                      "- W < s <= pos[t].");
    for (int k = 0; k < layers; k++) {
        double w = 0;
        if (!match_constant(a->pass->p, l->b, k, &w) || !(w >= 1))
            return refuse(a, s, l,
                          "the window is a dim or a constant of at least 1. Write pos[t] - "
                          "W < s <= pos[t].");
        window[k] = isinf(w) || w >= 2147483648.0 ? 0 : floor(w);
    }
    return LG_OK;
}

/* Peels constant factors off the way from the dot product up: they become the scale, the rest the
 * score function. */
static bool peel(const Pair *a, const LangExpr *e, int layer, double *scale,
                 const LangExpr **scaled) {
    double c = 0;
    if (e == a->dot) {
        *scaled = e;
        return true;
    }
    const LangExpr *inner = NULL;
    switch (e->kind) {
    case EXPR_MUL:
        if (match_constant(a->pass->p, e->b, layer, &c))
            inner = e->a;
        else if (match_constant(a->pass->p, e->a, layer, &c))
            inner = e->b;
        break;
    case EXPR_DIV:
        if (match_constant(a->pass->p, e->b, layer, &c)) {
            inner = e->a;
            c = 1.0 / c;
        }
        break;
    case EXPR_NEG:
        inner = e->a;
        c = -1;
        break;
    default:
        break;
    }
    if (inner) {
        if (!peel(a, inner, layer, scale, scaled))
            return false;
        if (*scaled == inner) {
            *scale *= c;
            *scaled = e;
        }
        return true;
    }
    return (e->a && peel(a, e->a, layer, scale, scaled)) ||
           (e->b && peel(a, e->b, layer, scale, scaled));
}

static LgStatus score_of(Pair *a) {
    const LangExpr *body = a->p->rhs->a;
    int layers = a->pass->p->layer_count > 0 ? a->pass->p->layer_count : 1;
    double *scale = ARENA_ARRAY(a->pass->arena, double, (size_t)layers);
    if (!scale)
        return lg_fail_memory(a->pass->err);
    const LangExpr *scaled = NULL;
    for (int k = 0; k < layers; k++) {
        scale[k] = 1;
        if (!peel(a, body, k, &scale[k], &scaled))
            return refuse(a, a->p, body,
                          "the scores hold no product of a value with a state. Write "
                          "(sum d: q * k).");
        scale[k] = (float)scale[k];
    }
    a->out->scale = scale;
    a->out->score = scaled == body ? NULL : body;
    a->out->score_arg = scaled;
    return LG_OK;
}

typedef struct OnlyArg {
    const LangExpr *arg;
    bool bad;
} OnlyArg;

static bool only_arg(void *user, const LangExpr *e) {
    OnlyArg *o = user;
    if (e == o->arg)
        return false;
    if (e->kind == EXPR_REF || e->kind == EXPR_VAR || e->kind == EXPR_REDUCE ||
        e->kind == EXPR_CONST || e->kind == EXPR_IF)
        o->bad = true;
    return true;
}

/* q[t, heads, group, contracted], k[slot[t], s, heads, contracted], p[t, heads, group, s]. */
static LgStatus query_axes(Pair *a) {
    const LangTarget *t = &a->p->targets[0];
    int nk = a->k->index_count - 2, nq = a->q->index_count - 1;
    a->contracted = a->dot->var_count;
    a->heads = nk - a->contracted;
    a->group = nq - nk;
    bool good = a->heads >= 0 && a->group >= 0 && t->index_count == 2 + a->heads + a->group &&
                match_is_var(&a->q->indexes[0], a->row) && match_is_var(&t->indexes[0], a->row) &&
                match_is_var(&t->indexes[t->index_count - 1], a->position);
    for (int k = 0; good && k < a->heads; k++)
        good = match_index_equal(&a->k->indexes[2 + k], &a->q->indexes[1 + k]) &&
               match_index_equal(&a->k->indexes[2 + k], &t->indexes[1 + k]);
    for (int k = 0; good && k < a->group; k++)
        good = match_index_equal(&a->q->indexes[1 + a->heads + k], &t->indexes[1 + a->heads + k]);
    for (int k = 0; good && k < a->contracted; k++) {
        const LangIndex *i = &a->k->indexes[2 + a->heads + k];
        good = i->kind == LANG_INDEX_VAR && a->p->vars[i->var].reduced &&
               match_index_equal(i, &a->q->indexes[1 + a->heads + a->group + k]);
    }
    if (!good)
        return refuse(
            a, a->p, a->dot,
            "its axes are not those of q[t, heads, group, width] and k[slot[t], s, heads, "
            "width] in one order. Store q and k so.");
    return LG_OK;
}

/* o[t, heads, group, v width] = sum s: p * v[slot[t], s, heads, v width]. */
static LgStatus value_axes(Pair *a) {
    const LangTarget *t = &a->o->targets[0];
    int lead = 1 + a->heads + a->group;
    int row = t->indexes[0].kind == LANG_INDEX_VAR ? t->indexes[0].var : -1;
    int position = a->o->rhs->vars[0], slot = -1;
    bool good = row >= 0 && a->prob->index_count == lead + 1 && t->index_count > lead &&
                state_head(a->v, row, position, &slot) && slot == a->out->slot &&
                match_is_var(&a->prob->indexes[lead], position) &&
                a->v->index_count == 2 + a->heads + (t->index_count - lead);
    for (int k = 0; good && k < lead; k++)
        good = t->indexes[k].kind == LANG_INDEX_VAR &&
               match_index_equal(&t->indexes[k], &a->prob->indexes[k]);
    for (int k = 0; good && k < a->heads; k++)
        good = match_index_equal(&t->indexes[1 + k], &a->v->indexes[2 + k]);
    for (int k = 0; good && k < t->index_count - lead; k++)
        good = t->indexes[lead + k].kind == LANG_INDEX_VAR &&
               match_index_equal(&t->indexes[lead + k], &a->v->indexes[2 + a->heads + k]);
    if (!good)
        return refuse(a, a->o, a->v,
                      "its axes are not those of p[t, heads, group, s] and v[slot[t], s, heads, "
                      "width] in one order. Store v so.");
    return LG_OK;
}

static void sizes(Pair *a) {
    const LangProgram *p = a->pass->p;
    const LangTensor *q = &p->tensors[a->q->tensor], *v = &p->tensors[a->v->tensor];
    StageAttend *out = a->out;
    int width = 1 + a->heads + a->group;
    out->width = match_stride(p, q, width);
    out->group = match_stride(p, q, 1 + a->heads) / out->width;
    out->kv_heads = match_stride(p, q, 1) / out->group / out->width;
    out->v_width = match_stride(p, v, 2 + a->heads);
    out->q = a->q->tensor;
    out->k = a->k->tensor;
    out->v = a->v->tensor;
    out->o = a->o->targets[0].tensor;
}

/* The one statement behind p that reads it. */
static LgStatus find_sum(Pair *a, int index, int *sum_index) {
    const LangProgram *p = a->pass->p;
    int prob = a->p->targets[0].tensor;
    *sum_index = -1;
    for (int k = index + 1; k < p->stmt_count; k++) {
        if (!match_reads_tensor(p->stmts[k].rhs, prob))
            continue;
        if (*sum_index >= 0)
            return lang_refuse(
                p, p->stmts[k].line, 0, a->pass->err,
                "cannot lift as attention: %s is read twice, and it is never stored. "
                "Read it in one sum over positions only.",
                name_of(a, prob));
        *sum_index = k;
    }
    if (*sum_index < 0)
        return lang_refuse(
            p, a->p->line, 0, a->pass->err,
            "cannot lift as attention: no statement sums %s over its positions. Add o "
            "= sum s <= pos[t]: p * v.",
            name_of(a, prob));
    a->o = &p->stmts[*sum_index];
    const LangExpr *r = a->o->rhs;
    if (a->o->op != LANG_ASSIGN || r->kind != EXPR_REDUCE || r->red != LANG_RED_SUM ||
        r->var_count != 1 || !split(a, r->a, &a->prob, &a->v) || a->prob->tensor != prob)
        return refuse(a, a->o, r,
                      "what reads the softmax is no sum over positions of its product with "
                      "a state. Write o = sum s <= pos[t]: p * v.");
    if (a->o->in_layer != a->p->in_layer)
        return refuse(a, a->o, r, "softmax and sum are not in one block. Put both into the layer.");
    return LG_OK;
}

static LgStatus check_bounds(Pair *a) {
    int layers = a->pass->p->layer_count > 0 ? a->pass->p->layer_count : 1;
    double *w = ARENA_ARRAY(a->pass->arena, double, (size_t)layers);
    double *w2 = ARENA_ARRAY(a->pass->arena, double, (size_t)layers);
    if (!w || !w2)
        return lg_fail_memory(a->pass->err);
    int pos = -1;
    LG_TRY(bounds(a, a->p, a->position, a->row, &a->out->pos, w));
    int row = a->o->targets[0].indexes[0].var;
    LG_TRY(bounds(a, a->o, a->o->rhs->vars[0], row, &pos, w2));
    bool same = pos == a->out->pos;
    for (int k = 0; k < layers; k++)
        same = same && w[k] == w2[k];
    if (!same)
        return refuse(a, a->o, a->o->rhs,
                      "its bound is not that of the softmax. Repeat the bound.");
    a->out->window = w;
    return LG_OK;
}

LgStatus lift_attend(Pass *pass, int index, Stage *stage, int *sum_index) {
    Pair a = {.pass = pass, .p = &pass->p->stmts[index]};
    a.out = ARENA_NEW(pass->arena, StageAttend);
    if (!a.out)
        return lg_fail_memory(pass->err);
    const LangTensor *prob = &pass->p->tensors[a.p->targets[0].tensor];
    if (a.p->op != LANG_ASSIGN || a.p->rhs->var_count != 1 || stage->row_var < 0)
        return refuse(&a, a.p, a.p->rhs,
                      "a softmax over positions is one assignment for each row.");
    if (!pass->o->store_f32 && !(prob->dtype_written && prob->dtype == LANG_F32))
        return refuse(&a, a.p, NULL,
                      "its weights are never stored, so they keep f32. Write : f32.");
    a.row = stage->row_var;
    a.position = a.p->rhs->vars[0];
    FindDot find = {NULL, 0};
    match_nodes(a.p->rhs->a, find_dot, &find);
    a.dot = find.dot;
    if (find.count != 1 || !split(&a, a.dot->a, &a.q, &a.k) ||
        pass->p->tensors[a.q->tensor].kind != LANG_VALUE ||
        !state_head(a.k, a.row, a.position, &a.out->slot))
        return refuse(
            &a, a.p, a.dot ? a.dot : a.p->rhs,
            "its scores hold no single product of a value with a state of the row's slot. "
            "Write (sum d: q[t,…,d] * k[slot[t],s,…,d]).");
    LG_TRY(query_axes(&a));
    LG_TRY(score_of(&a));
    OnlyArg only = {a.out->score_arg, false};
    match_nodes(a.p->rhs->a, only_arg, &only);
    if (only.bad)
        return refuse(
            &a, a.p, a.p->rhs->a,
            "what is done to a score depends on something else than the score and numbers. "
            "Accepted: constant factors, and functions of the score.");
    LgStatus found = find_sum(&a, index, sum_index);
    if (found != LG_OK || !a.o || !a.prob || !a.v)
        return found;
    LG_TRY(value_axes(&a));
    LG_TRY(check_bounds(&a));
    sizes(&a);
    a.out->softmax = a.p;
    a.out->softmax_index = index;
    const StageAttend *attend = a.out;
    *stage = (Stage){.op = STAGE_ATTEND,
                     .stmt = a.o,
                     .stmt_index = *sum_index,
                     .in_layer = a.o->in_layer,
                     .site = -1,
                     .low = -1,
                     .fold = -1,
                     .attend = attend};
    stage->row_var = lift_row_var(pass->p, a.o, &stage->row_dim);
    return LG_OK;
}
