/* What a stage reads and writes, adapter statements aside (they touch the target of their own site
 * and nothing else). */
#include "stages/pass.h"

static void stmt_reads(const LangStmt *s, MatchRead visit, void *user) {
    match_reads(s->rhs, visit, user);
    for (int v = 0; v < s->var_count; v++) {
        match_reads(s->vars[v].upper, visit, user);
        match_reads(s->vars[v].lower, visit, user);
    }
    for (int t = 0; t < s->target_count; t++) {
        for (int k = 0; k < s->targets[t].index_count; k++)
            match_index_reads(&s->targets[t].indexes[k], NULL, visit, user);
        if (s->op == LANG_ADD_TO)
            visit(user, s->targets[t].tensor, NULL);
    }
}

void stage_reads(const LangProgram *p, const Stage *s, MatchRead visit, void *user) {
    (void)p;
    if (s->attend)
        stmt_reads(s->attend->softmax, visit, user);
    stmt_reads(s->stmt, visit, user);
}

typedef struct Find {
    int tensor;
    bool found;
} Find;

static void find_read(void *user, int tensor, const LangExpr *ref) {
    Find *f = user;
    (void)ref;
    f->found |= f->tensor == tensor;
}

bool stage_reads_tensor(const LangProgram *p, const Stage *s, int tensor) {
    Find f = {tensor, false};
    stage_reads(p, s, find_read, &f);
    return f.found;
}

bool stage_writes_tensor(const Stage *s, int tensor) {
    for (int t = 0; t < s->stmt->target_count; t++)
        if (s->stmt->targets[t].tensor == tensor)
            return true;
    return false;
}

bool stages_conflict(const LangProgram *p, const Stage *a, const Stage *b) {
    for (int t = 0; t < a->stmt->target_count; t++) {
        int y = a->stmt->targets[t].tensor;
        if (stage_reads_tensor(p, b, y) || stage_writes_tensor(b, y))
            return true;
    }
    for (int t = 0; t < b->stmt->target_count; t++)
        if (stage_reads_tensor(p, a, b->stmt->targets[t].tensor))
            return true;
    return false;
}
