/* Joins launches by rules that are data, greedily by priority. A rule says which later launch may
 * run as part of an earlier one; that the move there keeps every dependence is checked here for all
 * rules alike. */
#include "stages/pass.h"

#include <limits.h>
#include <string.h>

#define SIBLINGS_MAX 4

typedef struct Draft {
    LaunchKind kind;
    const Stage **stages;
    int count;
    bool in_layer;
    int block; /* 0: before the layers, 1: in them, 2: behind */
    const char *rule;
    Numerics numerics;
} Draft;

typedef struct Fuse {
    Pass *pass;
    Draft *drafts;
    int count;
} Fuse;

typedef struct FuseRule {
    const char *name;
    int priority;         /* higher first */
    uint64_t rows_min;    /* steps that it pays for; a rule that holds for all rows changes the plan
                             for all */
    const char *backends; /* names, each followed by a space */
    Numerics numerics;
    bool adjacent; /* joins neighbours only */
    bool (*joins)(const Fuse *f, const Draft *a, const Draft *b);
} FuseRule;

static bool has_site(const Draft *d) {
    for (int k = 0; k < d->count; k++)
        if (d->stages[k]->site >= 0)
            return true;
    return false;
}

/* MATMULs on one input: one launch, and one adapter call. */
static bool siblings(const Fuse *f, const Draft *a, const Draft *b) {
    (void)f;
    if (a->kind != LAUNCH_MATMUL || b->kind != LAUNCH_MATMUL || a->count + b->count > SIBLINGS_MAX)
        return false;
    const Stage *s = a->stages[0], *t = b->stages[0];
    const StageMatmul *x = s->matmul, *y = t->matmul;
    if (x->x != y->x || s->row_dim != t->row_dim || x->expert != y->expert)
        return false;
    /* Experts' tasks are of one shape. */
    return x->expert < 0 || (x->n == y->n && x->slots == y->slots && x->experts == y->experts);
}

typedef struct SameRow {
    const Draft *a;
    int row_var;
    bool good;
} SameRow;

static void same_row(void *user, int tensor, const LangExpr *ref) {
    SameRow *s = user;
    bool written = false;
    for (int k = 0; k < s->a->count; k++)
        written |= stage_writes_tensor(s->a->stages[k], tensor);
    if (!written || !ref)
        return;
    if (ref->tensor != tensor || ref->index_count < 1 ||
        !match_is_var(&ref->indexes[0], s->row_var))
        s->good = false;
}

static int lines_of(const Draft *a, const Draft *b) {
    int lines = 0;
    const Draft *both[2] = {a, b};
    for (int d = 0; d < 2; d++)
        for (int k = 0; both[d] && k < both[d]->count; k++)
            lines += both[d]->stages[k]->attend ? 2 : 1;
    return lines;
}

/* Row by row, what a row needs of the earlier statements is there: they read their own row of it
 * alone. Statements without rows are one row. */
static bool row_chain(const Fuse *f, const Draft *a, const Draft *b) {
    if (a->kind != LAUNCH_ROWS || b->kind != LAUNCH_ROWS || has_site(a))
        return false;
    if (a->stages[0]->row_dim != b->stages[0]->row_dim || lines_of(a, b) > CITATION_LINES_MAX)
        return false;
    for (int k = 0; k < b->count && a->stages[0]->row_dim >= 0; k++) {
        SameRow s = {a, b->stages[k]->row_var, true};
        stage_reads(f->pass->p, b->stages[k], same_row, &s);
        if (!s.good)
            return false;
    }
    return true;
}

typedef struct Elementwise {
    const LangProgram *p;
    const Stage *stage;
    bool good;
} Elementwise;

/* A read at just the target's own indexes, or of a param over all but the row. */
static void same_element(void *user, int tensor, const LangExpr *ref) {
    Elementwise *e = user;
    const LangTarget *t = &e->stage->stmt->targets[0];
    if (!ref)
        return; /* the target itself, added to */
    int lead = e->p->tensors[tensor].kind == LANG_PARAM ? 1 : 0;
    if (ref->tensor != tensor || e->p->tensors[tensor].kind == LANG_INPUT ||
        ref->index_count != t->index_count - lead) {
        e->good = false;
        return;
    }
    for (int k = 0; k < ref->index_count; k++)
        e->good &= match_index_equal(&ref->indexes[k], &t->indexes[k + lead]);
}

static bool plain_value(void *user, const LangExpr *e) {
    Elementwise *x = user;
    x->good &= e->kind != EXPR_VAR;
    return x->good;
}

/* Arithmetic on the elements of products of one shape (gate and up, the residual): done to each
 * tile while it is in the cache. The products are stored and rounded first, so no bit changes. */
static bool epilogue(const Fuse *f, const Draft *a, const Draft *b) {
    const LangProgram *p = f->pass->p;
    const Stage *s = b->stages[0], *first = a->stages[0];
    if (a->kind != LAUNCH_MATMUL || b->kind != LAUNCH_ROWS || b->count != 1 || s->op != STAGE_MAP ||
        s->site >= 0 || s->row_dim != first->row_dim || !first->matmul)
        return false;
    uint64_t n = first->matmul->n;
    for (int k = 0; k < a->count; k++)
        if (a->stages[k]->matmul && a->stages[k]->matmul->n != n)
            return false;
    const LangTarget *t = &s->stmt->targets[0];
    const LangTensor *y = &p->tensors[t->tensor];
    if (match_stride(p, y, 1) != n * first->matmul->slots ||
        !match_is_var(&t->indexes[0], s->row_var))
        return false;
    Elementwise e = {p, s, true};
    for (int k = 1; k < t->index_count; k++)
        e.good &= t->indexes[k].kind == LANG_INDEX_VAR;
    stage_reads(p, s, same_element, &e);
    match_nodes(s->stmt->rhs, plain_value, &e);
    return e.good;
}

static const FuseRule rules[] = {
    {"siblings", 20, 1, "cpu cuda interp ", NUMERICS_EXACT, false, siblings},
    {"epilogue", 15, 1, "cpu cuda ", NUMERICS_EXACT, true, epilogue},
    {"row-chain", 10, 1, "cpu cuda interp ", NUMERICS_EXACT, true, row_chain},
};

static bool for_backend(const FuseRule *r, const char *backend) {
    size_t n = strlen(backend);
    for (const char *at = r->backends; (at = strstr(at, backend)) != NULL; at += n)
        if (at[n] == ' ' && (at == r->backends || at[-1] == ' '))
            return true;
    return false;
}

/* b may run right behind a: nothing between them conflicts with it. */
static bool movable(const Fuse *f, int a, int b) {
    for (int m = a + 1; m < b; m++)
        for (int x = 0; x < f->drafts[m].count; x++)
            for (int y = 0; y < f->drafts[b].count; y++)
                if (stages_conflict(f->pass->p, f->drafts[m].stages[x], f->drafts[b].stages[y]))
                    return false;
    return true;
}

static LgStatus join(Fuse *f, int a, int b, const FuseRule *rule) {
    Draft *x = &f->drafts[a], *y = &f->drafts[b];
    const Stage **stages =
        ARENA_ARRAY(f->pass->arena, const Stage *, (size_t)x->count + (size_t)y->count);
    if (!stages)
        return lg_fail_memory(f->pass->err);
    for (int k = 0; k < x->count; k++)
        stages[k] = x->stages[k];
    for (int k = 0; k < y->count; k++)
        stages[x->count + k] = y->stages[k];
    x->stages = stages;
    x->count += y->count;
    x->rule = rule->name;
    if (y->numerics > x->numerics)
        x->numerics = y->numerics;
    if (rule->numerics > x->numerics)
        x->numerics = rule->numerics;
    memmove(y, y + 1, (size_t)(f->count - b - 1) * sizeof(*y));
    f->count--;
    return LG_OK;
}

static LgStatus apply(Fuse *f, const FuseRule *rule) {
    for (int a = 0; a < f->count; a++)
        for (int b = a + 1; b < f->count && f->drafts[b].block == f->drafts[a].block;) {
            if (rule->joins(f, &f->drafts[a], &f->drafts[b]) && movable(f, a, b))
                LG_TRY(join(f, a, b, rule));
            else if (rule->adjacent)
                break;
            else
                b++;
        }
    return LG_OK;
}

static LgStatus start(Fuse *f) {
    Pass *pass = f->pass;
    f->drafts = ARENA_ARRAY(pass->arena, Draft, (size_t)pass->stage_count + 1);
    if (!f->drafts)
        return lg_fail_memory(pass->err);
    for (int k = 0; k < pass->stage_count; k++) {
        Draft *d = &f->drafts[f->count++];
        const Stage *s = &pass->stages[k];
        d->stages = ARENA_ARRAY(pass->arena, const Stage *, 1);
        if (!d->stages)
            return lg_fail_memory(pass->err);
        d->stages[0] = s;
        d->count = 1;
        d->kind = s->matmul ? LAUNCH_MATMUL : s->attend ? LAUNCH_ATTEND : LAUNCH_ROWS;
        d->block = k < pass->layer_begin ? 0 : k < pass->layer_end ? 1 : 2;
        d->in_layer = d->block == 1;
        d->rule = s->attend ? "attend-pair" : "alone";
        d->numerics = s->attend || s->matmul || s->op == STAGE_REDUCE || s->op == STAGE_SOFTMAX
                          ? NUMERICS_REFERENCE
                          : NUMERICS_EXACT;
    }
    return LG_OK;
}

static void cite(Citation *c, int line) {
    int at = 0;
    while (at < c->line_count && c->lines[at] < line)
        at++;
    if ((at < c->line_count && c->lines[at] == line) || c->line_count == CITATION_LINES_MAX)
        return;
    memmove(&c->lines[at + 1], &c->lines[at], (size_t)(c->line_count - at) * sizeof(int));
    c->lines[at] = line;
    c->line_count++;
}

#define LAUNCH_NAME_MAX 72

/* Model, first and last line, what it makes. */
static const char *launch_name(Pass *pass, const Launch *l) {
    Buf b;
    buf_init(&b);
    buf_printf(&b, "%.*s_%d", LG_STR_ARG(pass->p->name), l->cite.lines[0]);
    if (l->cite.line_count > 1)
        buf_printf(&b, "_%d", l->cite.lines[l->cite.line_count - 1]);
    int last = -1;
    for (int k = 0; k < l->stage_count; k++)
        for (int t = 0; t < l->stages[k]->stmt->target_count; t++) {
            int y = l->stages[k]->stmt->targets[t].tensor;
            LgStr name = pass->p->tensors[y].name;
            if (y == last || b.len + name.len > LAUNCH_NAME_MAX)
                continue;
            buf_putc(&b, '_');
            buf_str(&b, name);
            last = y;
        }
    for (size_t k = 0; k < b.len; k++)
        if (b.data[k] == '.')
            b.data[k] = '_';
    const char *name = b.failed ? NULL : arena_strdup(pass->arena, buf_view(&b));
    buf_clear(&b);
    return name;
}

/* Sites of a launch share their input, so that one call serves all of them, four at a time. */
static LgStatus group_sites(Pass *pass, Launch *l) {
    l->loras = ARENA_ARRAY(pass->arena, LaunchLora, (size_t)l->stage_count);
    if (!l->loras)
        return lg_fail_memory(pass->err);
    for (int k = 0; k < l->stage_count; k++) {
        if (l->stages[k]->site < 0)
            continue;
        if (l->lora_count == 0 || l->loras[l->lora_count - 1].count == STAGE_LORA_SITES_MAX ||
            !l->stages[k]->matmul)
            l->lora_count++;
        LaunchLora *c = &l->loras[l->lora_count - 1];
        c->stages[c->count++] = k;
    }
    return LG_OK;
}

static LgStatus finish(Pass *pass, const Draft *d, Launch *l) {
    static const char *const kernels[] = {"rows", "matmul", "attend"};
    const StageMatmul *m = d->stages[0]->matmul;
    *l = (Launch){.kind = d->kind,
                  .stages = d->stages,
                  .stage_count = d->count,
                  .in_layer = d->in_layer,
                  .row_dim = d->stages[0]->row_dim,
                  .rule = d->rule,
                  .numerics = d->numerics,
                  .kernel = m && m->expert >= 0 ? "moe" : kernels[d->kind]};
    l->cite.template_name = l->kernel;
    l->epilogue = d->count;
    while (d->kind == LAUNCH_MATMUL && !d->stages[l->epilogue - 1]->matmul)
        l->epilogue--;
    for (int k = 0; k < d->count; k++) {
        cite(&l->cite, d->stages[k]->stmt->line);
        if (d->stages[k]->attend)
            cite(&l->cite, d->stages[k]->attend->softmax->line);
    }
    l->name = launch_name(pass, l);
    if (!l->name)
        return lg_fail_memory(pass->err);
    return group_sites(pass, l);
}

/* The drafts as the plan's launches, verified. */
static LgStatus settle(const Fuse *f, const char *name) {
    Pass *pass = f->pass;
    Plan *plan = pass->plan;
    plan->launches = ARENA_ARRAY(pass->arena, Launch, (size_t)f->count + 1);
    if (!plan->launches)
        return lg_fail_memory(pass->err);
    plan->launch_count = f->count;
    plan->layer_begin = plan->layer_end = 0;
    for (int k = 0; k < f->count; k++) {
        LG_TRY(finish(pass, &f->drafts[k], &plan->launches[k]));
        plan->layer_begin += f->drafts[k].block < 1;
        plan->layer_end += f->drafts[k].block < 2;
    }
    return plan_verify(plan, name, pass->err);
}

LgStatus pass_check(Pass *pass, const char *name) {
    Fuse f = {.pass = pass};
    LG_TRY(start(&f));
    return settle(&f, name);
}

LgStatus pass_fuse(Pass *pass) {
    Fuse f = {.pass = pass};
    LG_TRY(start(&f));
    LG_TRY(settle(&f, "stages"));
    int done = INT_MAX;
    while (!pass->o->no_fuse) {
        const FuseRule *next = NULL;
        for (size_t k = 0; k < sizeof(rules) / sizeof(rules[0]); k++)
            if (rules[k].priority < done && for_backend(&rules[k], pass->o->backend) &&
                (!next || rules[k].priority > next->priority))
                next = &rules[k];
        if (!next)
            break;
        LG_TRY(apply(&f, next));
        LG_TRY(settle(&f, next->name));
        done = next->priority;
    }
    return LG_OK;
}
