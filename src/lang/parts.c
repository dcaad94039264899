/* A tensor may be defined in parts (`q[t,0 in C,r]`, `q[t,1 in C,r]`): the parts must not overlap,
 * and together be the whole. */
#include "lang/check.h"

static bool parts_meet(const Part *a, const Part *b, int rank) {
    for (int i = 0; i < rank; i++)
        if (a->at[i] >= 0 && b->at[i] >= 0 && a->at[i] != b->at[i])
            return false;
    return true;
}

/* Disjoint boxes are the whole when their volumes add up to it. Axes that every part has whole do
 * not count. */
static bool parts_whole(const Check *c, const LangTensor *t, const Parts *parts) {
    double whole = 1;
    double sum = 0;
    bool split[LANG_RANK_MAX] = {false};
    for (int i = 0; i < t->rank; i++) {
        for (int k = 0; k < parts->count; k++)
            split[i] = split[i] || parts->items[k].at[i] >= 0;
        if (split[i])
            whole *= (double)c->dims.items[t->dims[i]].size;
    }
    for (int k = 0; k < parts->count; k++) {
        double volume = 1;
        for (int i = 0; i < t->rank; i++)
            if (split[i] && parts->items[k].at[i] < 0)
                volume *= (double)c->dims.items[t->dims[i]].size;
        sum += volume;
    }
    return sum == whole && whole < 9007199254740992.0;
}

bool parts_add(Check *c, int tensor, const LangTarget *target, AstName at) {
    const LangTensor *t = &c->tensors.items[tensor];
    TensorInfo *info = &c->infos.items[tensor];
    Part part;
    for (int i = 0; i < t->rank; i++)
        part.at[i] =
            target->indexes[i].kind == LANG_INDEX_INT ? target->indexes[i].value : (int64_t)-1;
    for (int k = 0; k < info->parts.count; k++)
        if (parts_meet(&info->parts.items[k], &part, t->rank))
            return diag_refuse(&c->diag, at.line, at.column,
                               "cannot define this part of %s: it is defined already (line %d). "
                               "Each part once is accepted.",
                               diag_text(t->name).text, t->line);
    if (info->parts.count == CHECK_PARTS_MAX)
        return diag_refuse(&c->diag, at.line, at.column,
                           "cannot define %s in so many parts. At most %d are accepted.",
                           diag_text(t->name).text, CHECK_PARTS_MAX);
    if (!AST_LIST_ROOM(c->arena, info->parts))
        return diag_memory(&c->diag);
    info->parts.items[info->parts.count++] = part;
    info->complete = parts_whole(c, t, &info->parts);
    return true;
}
