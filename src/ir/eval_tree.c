/* From checked statements to the interpreter's trees, and what an address is. */
#include <math.h>

#include "ir/eval_internal.h"

typedef struct Builder {
    Eval *e;
    EvalStmt *s;
    LgError *err;
    LgStatus status;
    int reduce_cap;
} Builder;

static uint32_t index_deps(const LangIndex *index) {
    if (index->kind == LANG_INDEX_VAR)
        return 1u << index->var;
    uint32_t deps = 0;
    for (int i = 0; index->kind == LANG_INDEX_LOOKUP && i < index->count; i++)
        deps |= index_deps(&index->indexes[i]);
    return deps;
}

static EvalRef make_ref(int tensor, int count, const LangIndex *indexes) {
    EvalRef r = {.tensor = tensor, .count = count, .indexes = indexes};
    for (int i = 0; i < count; i++)
        r.deps |= index_deps(&indexes[i]);
    return r;
}

static uint32_t var_bits(const EvalNode *n) {
    uint32_t bits = 0;
    for (int i = 0; i < n->var_count; i++)
        bits |= 1u << n->vars[i];
    return bits;
}

/* Whether every index that moves with one of the bits is that variable itself, and no walk over a
 * state's positions is an outer one. */
static bool ref_is_affine(const Builder *b, const EvalRef *r, uint32_t bits, int last) {
    const EvalTensor *t = &b->e->tensors[r->tensor];
    if (t->store == EVAL_STORE_INT)
        return false;
    for (int i = 0; i < r->count; i++) {
        const LangIndex *index = &r->indexes[i];
        if (!(index_deps(index) & bits))
            continue;
        if (index->kind != LANG_INDEX_VAR || (t->is_state && i == 0))
            return false;
        if (t->is_state && i == 1 && index->var != last)
            return false;
    }
    return true;
}

static bool ref_walks_positions(const Builder *b, const EvalRef *r, int var) {
    return b->e->tensors[r->tensor].is_state && r->indexes[1].kind == LANG_INDEX_VAR &&
           r->indexes[1].var == var;
}

/* Sums of products of two refs get a tight loop: same order, same numbers. */
static void find_dot(Builder *b, EvalNode *n) {
    const EvalNode *body = n->a;
    if (n->red != LANG_RED_SUM && n->red != LANG_RED_MEAN)
        return;
    const EvalNode *x = body->a, *y = body->b;
    if (body->kind == EXPR_POW && y->kind == EXPR_NUMBER && y->number == 2)
        y = x;
    else if (body->kind != EXPR_MUL)
        return;
    if (x->kind != EXPR_REF || y->kind != EXPR_REF)
        return;
    uint32_t bits = var_bits(n);
    for (int i = 0; i < n->var_count; i++) {
        const EvalVar *v = &b->s->vars[n->vars[i]];
        if ((v->upper && (v->upper->deps & bits)) || (v->lower && (v->lower->deps & bits)))
            return;
    }
    int last = n->vars[n->var_count - 1];
    if (!ref_is_affine(b, &x->ref, bits, last) || !ref_is_affine(b, &y->ref, bits, last))
        return;
    n->dot = true;
    n->dot_a = &x->ref;
    n->dot_b = &y->ref;
    n->dot_paged = ref_walks_positions(b, n->dot_a, last) || ref_walks_positions(b, n->dot_b, last);
}

static void fail_memory(Builder *b) {
    if (b->status == LG_OK)
        b->status = lg_fail_memory(b->err);
}

static void add_reduce(Builder *b, EvalNode *n) {
    EvalStmt *s = b->s;
    if (s->reduce_count == b->reduce_cap) {
        int cap = b->reduce_cap ? b->reduce_cap * 2 : 4;
        EvalNode **grown = arena_grow(&b->e->arena, s->reduces, (size_t)s->reduce_count,
                                      (size_t)cap, sizeof(void *));
        if (!grown) {
            fail_memory(b);
            return;
        }
        s->reduces = grown;
        b->reduce_cap = cap;
    }
    s->reduces[s->reduce_count++] = n;
}

static EvalNode *build(Builder *b, const LangExpr *x);

/* Bounds belong to variables, and so are built once, when a statement is. */
static void build_bounds(Builder *b) {
    const LangStmt *stmt = b->s->stmt;
    for (int i = 0; i < stmt->var_count; i++) {
        EvalVar *v = &b->s->vars[i];
        v->dim = stmt->vars[i].dim;
        v->upper = stmt->vars[i].upper ? build(b, stmt->vars[i].upper) : NULL;
        v->lower = stmt->vars[i].lower ? build(b, stmt->vars[i].lower) : NULL;
    }
}

static void build_reduce(Builder *b, EvalNode *n, const LangExpr *x) {
    if (!n->a)
        return;
    n->red = x->red;
    n->var_count = x->var_count;
    for (int i = 0; i < x->var_count; i++)
        n->vars[i] = x->vars[i];
    bool one_var =
        n->red == LANG_RED_SOFTMAX || n->red == LANG_RED_TOPK || n->red == LANG_RED_ARGMAX;
    if (one_var && n->var_count != 1 && b->status == LG_OK)
        b->status =
            lang_refuse(b->e->p, x->line, x->column, b->err,
                        "cannot interpret: softmax, topk and argmax run over one index, this "
                        "one over %d. Join the axes in the declaration",
                        n->var_count);
    uint32_t bits = var_bits(n);
    n->deps = n->a->deps;
    if (n->red != LANG_RED_SOFTMAX)
        n->deps &= ~bits;
    for (int i = 0; i < n->var_count; i++) {
        const EvalVar *v = &b->s->vars[n->vars[i]];
        n->deps |= ((v->upper ? v->upper->deps : 0) | (v->lower ? v->lower->deps : 0)) & ~bits;
    }
    find_dot(b, n);
    add_reduce(b, n);
}

static EvalNode *build(Builder *b, const LangExpr *x) {
    EvalNode *n = ARENA_NEW(&b->e->arena, EvalNode);
    if (!n) {
        fail_memory(b);
        return NULL;
    }
    n->kind = x->kind;
    n->fn = x->fn;
    n->var = x->var;
    if (x->kind == EXPR_NUMBER)
        n->number = eval_round(b->e, x->number);
    if (x->kind == EXPR_CONST)
        n->values = b->e->p->consts[x->constant].values;
    if (x->kind == EXPR_IF)
        n->layer_true = x->layer_true;
    if (x->kind == EXPR_VAR)
        n->deps = 1u << x->var;
    if (x->kind == EXPR_REF) {
        n->ref = make_ref(x->tensor, x->index_count, x->indexes);
        n->deps = n->ref.deps;
        return n;
    }
    n->a = x->a ? build(b, x->a) : NULL;
    n->b = x->b ? build(b, x->b) : NULL;
    if (b->status != LG_OK)
        return n;
    if (x->kind == EXPR_REDUCE)
        build_reduce(b, n, x);
    else
        n->deps |= (n->a ? n->a->deps : 0) | (n->b ? n->b->deps : 0);
    return n;
}

static void add_loops(EvalStmt *s, const LangIndex *indexes, int count) {
    for (int i = 0; i < count; i++) {
        if (indexes[i].kind == LANG_INDEX_LOOKUP)
            add_loops(s, indexes[i].indexes, indexes[i].count);
        bool seen = indexes[i].kind != LANG_INDEX_VAR;
        for (int k = 0; k < s->loop_count && !seen; k++)
            seen = s->loops[k] == indexes[i].var;
        if (!seen)
            s->loops[s->loop_count++] = indexes[i].var;
    }
}

/* Loops in the order of the left side, but a bounded variable after those that its bounds read. */
static void order_loops(EvalStmt *s) {
    int ordered[LANG_VARS_MAX];
    int count = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < s->loop_count; i++) {
            const EvalVar *v = &s->vars[s->loops[i]];
            bool bounded = v->upper || v->lower;
            if (bounded == (pass == 1))
                ordered[count++] = s->loops[i];
        }
    for (int i = 0; i < count; i++)
        s->loops[i] = ordered[i];
}

static void find_single_reduce(EvalNode *n, EvalNode **found, int *count) {
    if (!n)
        return;
    if (n->kind == EXPR_REDUCE) {
        *found = n;
        ++*count;
        return;
    }
    find_single_reduce(n->a, found, count);
    find_single_reduce(n->b, found, count);
}

/* A matmul-like statement: every value needs one product of its own, over whole axes, and nothing
 * depends on an order of the values. */
static void find_bulk(Eval *e, EvalStmt *s) {
    EvalNode *n = NULL;
    int count = 0;
    find_single_reduce(s->rhs, &n, &count);
    const LangStmt *stmt = s->stmt;
    if (count != 1 || !n->dot || n->red != LANG_RED_SUM || n->dot_a == n->dot_b || n->dot_paged)
        return;
    if (stmt->op == LANG_WRITE || stmt->target_count != 1 || s->reduce_count != 1 ||
        e->tensors[s->targets[0].tensor].store == EVAL_STORE_INT)
        return;
    for (int i = 0; i < stmt->var_count; i++)
        if (s->vars[i].upper || s->vars[i].lower)
            return;
    for (int i = 0; i < s->targets[0].count; i++)
        if (s->targets[0].indexes[i].kind == LANG_INDEX_LOOKUP)
            return;
    s->bulk = n;
}

static LgStatus find_choice(Eval *e, EvalStmt *s, LgError *err) {
    s->choice_var = -1;
    if (s->rhs->kind != EXPR_REDUCE || s->rhs->red != LANG_RED_TOPK)
        return LG_OK;
    int found = 0;
    for (int i = 0; i < s->loop_count; i++)
        if (!(s->rhs->deps & (1u << s->loops[i]))) {
            s->choice_var = s->loops[i];
            found++;
        }
    if (found == 1 && s->stmt->target_count == 2)
        return LG_OK;
    return lang_refuse(
        e->p, s->stmt->line, 0, err,
        "cannot interpret: topk gives which and how much, and one index of both counts "
        "the chosen. Write `which[t,j in K], much[t,j in K] = topk e: …`");
}

static LgStatus build_stmt(Eval *e, EvalStmt *s, const LangStmt *stmt, LgError *err) {
    Builder b = {.e = e, .s = s, .err = err, .status = LG_OK};
    s->stmt = stmt;
    s->choice_var = s->row_var = -1;
    build_bounds(&b);
    if (b.status != LG_OK || stmt->role != LANG_PLAIN)
        return b.status;
    for (int i = 0; i < stmt->target_count; i++) {
        s->targets[i] = make_ref(stmt->targets[i].tensor, stmt->targets[i].index_count,
                                 stmt->targets[i].indexes);
        add_loops(s, s->targets[i].indexes, s->targets[i].count);
    }
    order_loops(s);
    for (int i = 0; i < s->loop_count; i++) {
        int dim = s->vars[s->loops[i]].dim;
        if (dim == e->dim_rows || dim == e->dim_samples)
            s->row_var = s->loops[i];
    }
    s->rhs = build(&b, stmt->rhs);
    if (b.status != LG_OK)
        return b.status;
    find_bulk(e, s);
    return find_choice(e, s, err);
}

LgStatus eval_build(Eval *e, LgError *err) {
    e->stmts = ARENA_ARRAY(&e->arena, EvalStmt, (size_t)e->p->stmt_count);
    if (!e->stmts)
        return lg_fail_memory(err);
    for (int i = 0; i < e->p->stmt_count; i++)
        LG_TRY(build_stmt(e, &e->stmts[i], &e->p->stmts[i], err));
    for (int i = 0; i < e->p->stmt_count; i++)
        if (e->p->stmts[i].role == LANG_LORA_FOLD)
            LG_TRY(eval_fold_build(e, &e->stmts[i], err));
    return LG_OK;
}

int64_t eval_ref_stride(const Eval *e, const EvalRef *r, int var) {
    const EvalTensor *t = &e->tensors[r->tensor];
    int64_t stride = 0;
    for (int i = 0; i < r->count; i++)
        if (r->indexes[i].kind == LANG_INDEX_VAR && r->indexes[i].var == var)
            stride += t->stride[i];
    return stride;
}

void eval_prepare(Eval *e, EvalStmt *s) {
    e->running = s;
    for (int i = 0; i < s->reduce_count; i++) {
        EvalNode *n = s->reduces[i];
        n->cached = n->forced = false;
        for (int k = 0; n->dot && k < n->var_count; k++) {
            n->dot_sa[k] = eval_ref_stride(e, n->dot_a, n->vars[k]);
            n->dot_sb[k] = eval_ref_stride(e, n->dot_b, n->vars[k]);
        }
    }
}

static int64_t int_at(const Eval *e, int tensor, int count, const LangIndex *indexes) {
    const EvalTensor *t = &e->tensors[tensor];
    int64_t at = 0;
    for (int i = 0; i < count; i++)
        at += eval_index(e, &indexes[i]) * t->stride[i];
    return t->input ? t->input[at] : t->i[at];
}

int64_t eval_index(const Eval *e, const LangIndex *index) {
    if (index->kind == LANG_INDEX_VAR)
        return e->v[index->var];
    if (index->kind == LANG_INDEX_INT)
        return index->value;
    return int_at(e, index->tensor, index->count, index->indexes);
}

float *eval_ref_at(const Eval *e, const EvalRef *r) {
    const EvalTensor *t = &e->tensors[r->tensor];
    float *base = t->f;
    int64_t at = 0;
    int first = 0;
    if (t->is_state) {
        int64_t slot = eval_index(e, &r->indexes[0]);
        int64_t pos = eval_index(e, &r->indexes[1]);
        int64_t page = e->pages[slot * e->pages_per_slot + pos / KV_PAGE_POSITIONS];
        base = t->pages[t->in_layer ? e->layer : 0];
        at = (page * KV_PAGE_POSITIONS + pos % KV_PAGE_POSITIONS) * t->stride[1];
        first = 2;
    } else if (t->params) {
        base = t->params[t->in_layer ? e->layer : 0];
    }
    for (int i = first; i < r->count; i++)
        at += eval_index(e, &r->indexes[i]) * t->stride[i];
    return base + at;
}

double eval_ref_value(const Eval *e, const EvalRef *r) {
    if (e->tensors[r->tensor].store == EVAL_STORE_INT)
        return eval_round(e, (double)int_at(e, r->tensor, r->count, r->indexes));
    return (double)*eval_ref_at(e, r);
}

void eval_bounds(Eval *e, int var, int64_t *low, int64_t *high) {
    const EvalVar *v = &e->running->vars[var];
    int64_t extent = (int64_t)e->extents[v->dim];
    *low = 0;
    *high = extent;
    if (v->upper) {
        double upper = floor(eval_node(e, v->upper));
        if (upper + 1 < (double)extent)
            *high = upper < 0 ? 0 : (int64_t)upper + 1;
    }
    if (v->lower) {
        double lower = floor(eval_node(e, v->lower));
        if (lower >= 0)
            *low = lower >= (double)extent ? extent : (int64_t)lower + 1;
    }
    if (*high < *low)
        *high = *low;
}
