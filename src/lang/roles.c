/* Dims are nominal, and some count more than a width: rows of a step, slots, positions, adapters,
 * layers.  A dim that would count two of these, or be the width of a param as well, is a slip of
 * the pen. */
#include "lang/check.h"

static const char *const role_texts[] = {
    [ROLE_NONE] = "",
    [ROLE_ROWS] = "rows of a step",
    [ROLE_SLOTS] = "slots of a state",
    [ROLE_POSITIONS] = "positions of a state",
    [ROLE_ADAPTERS] = "adapters",
    [ROLE_LAYERS] = "layers",
};

static bool refuse_role(Check *c, int tensor, int dim) {
    const LangTensor *t = &c->tensors.items[tensor];
    return diag_refuse(&c->diag, t->line, c->infos.items[tensor].column,
                       "cannot use the dim %s here: it counts %s already. A dim of its own is "
                       "accepted.",
                       diag_text(check_dim_name(c, dim)).text, role_texts[c->roles[dim]]);
}

static bool role_set(Check *c, int tensor, int dim, DimRole role) {
    if (c->roles[dim] != ROLE_NONE && c->roles[dim] != role)
        return refuse_role(c, tensor, dim);
    c->roles[dim] = role;
    return true;
}

static bool roles_of(Check *c, int tensor) {
    const LangTensor *t = &c->tensors.items[tensor];
    if (t->kind == LANG_INPUT && !role_set(c, tensor, t->dims[0], ROLE_ROWS))
        return false;
    if (tensor == c->lora_input && !role_set(c, tensor, t->index_dim, ROLE_ADAPTERS))
        return false;
    return t->kind != LANG_STATE || (role_set(c, tensor, t->dims[0], ROLE_SLOTS) &&
                                     role_set(c, tensor, t->dims[1], ROLE_POSITIONS));
}

static bool widths_of(Check *c, int tensor) {
    const LangTensor *t = &c->tensors.items[tensor];
    int first = t->kind == LANG_INPUT ? 1 : t->kind == LANG_STATE ? 2 : 0;
    for (int i = first; i < t->rank; i++)
        if (c->roles[t->dims[i]] != ROLE_NONE)
            return refuse_role(c, tensor, t->dims[i]);
    bool other = t->kind == LANG_INPUT && tensor != c->lora_input && t->index_dim >= 0 &&
                 (c->roles[t->index_dim] == ROLE_ADAPTERS || c->roles[t->index_dim] == ROLE_LAYERS);
    return other ? refuse_role(c, tensor, t->index_dim) : true;
}

bool check_roles(Check *c) {
    c->roles = ARENA_ARRAY(c->arena, DimRole, (size_t)c->dims.count);
    if (!c->roles)
        return diag_memory(&c->diag);
    if (c->layer_dim >= 0)
        c->roles[c->layer_dim] = ROLE_LAYERS;
    for (int i = 0; i < c->tensors.count; i++)
        if (!roles_of(c, i))
            return false;
    for (int i = 0; i < c->tensors.count; i++)
        if (!widths_of(c, i))
            return false;
    return true;
}

bool role_is_number(const Check *c, int dim) {
    return c->dims.items[dim].runtime &&
           (c->roles[dim] == ROLE_NONE || c->roles[dim] == ROLE_POSITIONS);
}
