/* Lifts every statement to one stage of the closed list, or refuses it with its line and the
 * reason. Knows the language and the stages, no back end. */
#include "stages/pass.h"

#include <string.h>

int lift_row_var(const LangProgram *p, const LangStmt *s, int *dim) {
    uint32_t vars = 0;
    const LangTarget *t = &s->targets[0];
    for (int k = 0; k < t->index_count; k++)
        vars |= match_index_vars(&t->indexes[k]);
    for (int v = 0; v < s->var_count; v++)
        if (vars >> v & 1 && !s->vars[v].reduced && p->dims[s->vars[v].dim].runtime &&
            !s->vars[v].upper) {
            *dim = s->vars[v].dim;
            return v;
        }
    *dim = -1;
    return -1;
}

const char *pass_var(const LangStmt *s, int var, Arena *arena) {
    const char *name = arena_strdup(arena, s->vars[var].name);
    return name ? name : "?";
}

/* What lifting looks for in a statement's right side. */
typedef struct Look {
    const LangProgram *p;
    const LangStmt *s;
    const LangExpr *product; /* the first product with a weight */
    const LangExpr *ragged;  /* a reduction over a run-time axis */
    const LangExpr *state;   /* a read of a state */
    const LangExpr *lookup;  /* a weight's row found by a lookup */
    const LangExpr *choice;  /* softmax, topk */
    const LangExpr *argmax;
    bool reduces;
} Look;

static bool look_node(void *user, const LangExpr *e) {
    Look *l = user;
    if (e->kind == EXPR_REDUCE) {
        l->reduces = true;
        if (!l->product && match_is_product(l->p, l->s, e))
            l->product = e;
        for (int k = 0; k < e->var_count; k++)
            if (!l->ragged && l->p->dims[l->s->vars[e->vars[k]].dim].runtime)
                l->ragged = e;
        if (e->red == LANG_RED_SOFTMAX || e->red == LANG_RED_TOPK)
            l->choice = e;
        if (e->red == LANG_RED_ARGMAX)
            l->argmax = e;
    }
    if (e->kind == EXPR_REF) {
        LangTensorKind kind = l->p->tensors[e->tensor].kind;
        if (kind == LANG_STATE && !l->state)
            l->state = e;
        if (kind == LANG_PARAM && !l->lookup)
            for (int k = 0; k < e->index_count; k++)
                if (e->indexes[k].kind == LANG_INDEX_LOOKUP)
                    l->lookup = e;
    }
    return true;
}

static LgStatus refuse(Pass *pass, const LangStmt *s, const LangExpr *at, const char *why) {
    return lang_refuse(pass->p, s->line, at ? at->column : 0, pass->err, "cannot lift: %s", why);
}

/* A stored value has one run-time axis, and it is the first. */
static LgStatus check_target(Pass *pass, const LangStmt *s, const LangTarget *t) {
    const LangTensor *y = &pass->p->tensors[t->tensor];
    for (int k = 0; k < y->rank; k++)
        if (pass->p->dims[y->dims[k]].runtime && k > 0)
            return refuse(pass, s, NULL,
                          "a stored value may have one run-time axis, its first. A value over "
                          "positions is the softmax of attention, and stands with the sum that "
                          "reads it.");
    return LG_OK;
}

/* A ragged softmax must have its sum; anything else that runs over positions has no stage. */
static LgStatus refuse_ragged(Pass *pass, const LangStmt *s, const LangExpr *at) {
    const char *name = pass_var(s, at->vars[0], pass->arena);
    return lang_refuse(
        pass->p, s->line, at->column, pass->err,
        "cannot lift: a reduction over the run-time axis of %s lifts as a pair only. "
        "Accepted: p = softmax %s <= pos[t]: f(q·k), then o = sum %s <= pos[t]: p * v.",
        name, name, name);
}

static const LangExpr *whole_product(const LangExpr *rhs, const LangExpr *product,
                                     const LangExpr **bias) {
    *bias = NULL;
    if (rhs == product)
        return rhs;
    if (rhs->kind != EXPR_ADD)
        return NULL;
    if (rhs->a == product && rhs->b->kind == EXPR_REF)
        *bias = rhs->b;
    if (rhs->b == product && rhs->a->kind == EXPR_REF)
        *bias = rhs->a;
    return *bias ? product : NULL;
}

static LgStatus lift_product(Pass *pass, const LangStmt *s, const Look *l, Stage *stage) {
    const LangExpr *bias = NULL;
    if (!whole_product(s->rhs, l->product, &bias))
        return refuse(pass, s, l->product,
                      "a product with a weight is a whole right side, with + bias[…] at most. Name "
                      "the product first, then use it.");
    if (s->op != LANG_ASSIGN)
        return refuse(pass, s, l->product,
                      "a product is not added in place. Name the product first, then add it.");
    stage->op = STAGE_MATMUL;
    return lift_matmul(pass, s, l->product, bias, stage);
}

static LgStatus lift_write(Pass *pass, const LangStmt *s, const Look *l, Stage *stage) {
    if (l->reduces)
        return refuse(pass, s, l->product ? l->product : s->rhs,
                      "what is written to a state is elementwise. Name the reduction first.");
    const LangTarget *t = &s->targets[0];
    if (t->index_count < 2 || t->indexes[0].kind != LANG_INDEX_LOOKUP ||
        t->indexes[1].kind != LANG_INDEX_LOOKUP)
        return refuse(
            pass, s, NULL,
            "a state is written at [slot[t], pos[t], …]: its first two axes are lookups.");
    stage->op = STAGE_SCATTER;
    return LG_OK;
}

static LgStatus lift_stmt(Pass *pass, int index, Stage *stage, int *pair) {
    const LangStmt *s = &pass->p->stmts[index];
    Look l = {.p = pass->p, .s = s};
    match_nodes(s->rhs, look_node, &l);
    *stage = (Stage){
        .stmt = s, .stmt_index = index, .in_layer = s->in_layer, .site = -1, .low = -1, .fold = -1};
    stage->row_var = lift_row_var(pass->p, s, &stage->row_dim);
    if (s->op == LANG_WRITE)
        return lift_write(pass, s, &l, stage);
    if (l.choice && l.choice != s->rhs)
        return refuse(pass, s, l.choice,
                      "a softmax or topk is a whole right side. Name it first, then use it.");
    if (l.choice && l.ragged && l.choice->red == LANG_RED_SOFTMAX)
        return lift_attend(pass, index, stage, pair);
    if (l.ragged)
        return refuse_ragged(pass, s, l.ragged);
    if (l.state)
        return refuse(pass, s, l.state,
                      "a state is read by the softmax of attention and by the sum behind it only.");
    for (int k = 0; k < s->target_count; k++)
        LG_TRY(check_target(pass, s, &s->targets[k]));
    if (l.choice) {
        stage->op = l.choice->red == LANG_RED_TOPK ? STAGE_TOPK : STAGE_SOFTMAX;
        return LG_OK;
    }
    if (l.product)
        return lift_product(pass, s, &l, stage);
    stage->op = l.reduces ? STAGE_REDUCE : l.lookup ? STAGE_GATHER : STAGE_MAP;
    stage->maps = stage->op == STAGE_MAP || s->rhs->kind != (l.reduces ? EXPR_REDUCE : EXPR_REF) ||
                  s->op == LANG_ADD_TO;
    return LG_OK;
}

/* An attention pair becomes a stage where its sum stands: what is written to the states in between
 * is then in front of it. */
LgStatus pass_lift(Pass *pass) {
    const LangProgram *p = pass->p;
    size_t room = (size_t)p->stmt_count + 1;
    pass->stages = ARENA_ARRAY(pass->arena, Stage, room);
    Stage *pairs = ARENA_ARRAY(pass->arena, Stage, room); /* by the statement of the sum */
    if (!pass->stages || !pairs)
        return lg_fail_memory(pass->err);
    int n = 0;
    pass->layer_begin = pass->layer_end = -1;
    for (int k = 0; k < p->stmt_count; k++) {
        if (k == p->layer_begin)
            pass->layer_begin = n;
        if (k == p->layer_end)
            pass->layer_end = n;
        if (p->stmts[k].role != LANG_PLAIN)
            continue;
        if (pairs[k].attend) {
            pass->stages[n++] = pairs[k];
            continue;
        }
        int pair = -1;
        LG_TRY(lift_stmt(pass, k, &pass->stages[n], &pair));
        if (pair >= 0)
            pairs[pair] = pass->stages[n];
        else
            n++;
    }
    if (pass->layer_begin < 0)
        pass->layer_begin = n;
    if (pass->layer_end < 0)
        pass->layer_end = n;
    pass->stage_count = n;
    return LG_OK;
}
