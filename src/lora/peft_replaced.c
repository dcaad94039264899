/* Tensors that replace what the base has: whole ones under their own names (modules_to_save,
 * biases) and rows of an embedding (trainable tokens). A fused tensor of the file replaces every
 * param that takes a window of it. What equals the base's replaces nothing. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "lora/peft_planner.h"

static uint64_t axis_size(const LangProgram *p, const LangTensor *t, int axis) {
    uint64_t size = 1;
    for (int i = t->axis_start[axis]; i < t->axis_start[axis + 1]; i++)
        size *= p->dims[t->dims[i]].size;
    return size;
}

static const ParamBinding *bound(const Planner *pl, int param, int layer) {
    return binding_get(pl->o->binding, param, pl->o->program->tensors[param].in_layer ? layer : 0);
}

/* ---- a tensor's name to params ---- */

/* Whether the param is stored under that bare name, and from which row of it on. */
static bool is_stored_as(const LangTensor *param, LgStr full, LgStr module_tail, uint64_t *from,
                         int64_t *layer, int64_t *expert) {
    for (int i = 0; i < param->source_count; i++) {
        const LangSource *s = &param->sources[i];
        *from = s->windowed ? s->from_row : 0;
        if (s->kind == LANG_SOURCE_TENSOR &&
            lora_name_match(peft_bare_name(s->name), full, layer, expert))
            return true;
    }
    *from = 0;
    return module_tail.len && param->module.len &&
           lora_name_match(peft_bare_name(param->module),
                           lg_str_sub(full, 0, full.len - module_tail.len), layer, expert);
}

static LgStatus push(Planner *pl, PeftReplaced r) {
    PeftPlan *plan = pl->plan;
    for (size_t i = 0; i < plan->replaced_count; i++)
        if (plan->replaced[i].param == r.param && plan->replaced[i].layer == r.layer)
            return peft_fail_tensor(pl->err, r.tensor->name,
                                    "another tensor replaces the same weight of the base");
    if (plan->replaced_count == pl->replaced_cap) {
        size_t cap = pl->replaced_cap ? 2 * pl->replaced_cap : 16;
        PeftReplaced *grown =
            arena_grow(pl->arena, plan->replaced, plan->replaced_count, cap, sizeof *grown);
        if (!grown)
            return lg_fail_memory(pl->err);
        plan->replaced = grown;
        pl->replaced_cap = cap;
    }
    plan->replaced[plan->replaced_count++] = r;
    return LG_OK;
}

/* One param of those that a tensor replaces. */
static LgStatus add_param(Planner *pl, const Tensor *t, const PeftKey *key, int param,
                          uint64_t from_row, int64_t layer) {
    const LangProgram *p = pl->o->program;
    const LangTensor *decl = &p->tensors[param];
    if (layer >= p->layer_count)
        return peft_fail_tensor(pl->err, t->name,
                                "the model has no layer %lld; its layers are 0 to %d",
                                (long long)layer, p->layer_count - 1);
    int at = decl->in_layer && layer >= 0 ? (int)layer : 0;
    if (!bound(pl, param, at)->tensor && !bound(pl, param, at)->stacked)
        return peft_fail_tensor(pl->err, t->name, "the base model has no such tensor to replace");
    if (decl->axis_count > 2 || t->rank != decl->axis_count)
        return peft_fail_tensor(pl->err, t->name, "it has %d axes; %.*s of the model has %d",
                                t->rank, LG_STR_ARG(decl->name), decl->axis_count);
    uint64_t columns = axis_size(p, decl, decl->axis_count - 1);
    uint64_t rows = decl->axis_count > 1 ? axis_size(p, decl, 0) : 1;
    if (decl->axis_count > 1 && t->shape[1] != columns)
        return peft_fail_tensor(pl->err, t->name,
                                "its shape is [%llu, %llu]; rows of %llu are expected",
                                (unsigned long long)t->shape[0], (unsigned long long)t->shape[1],
                                (unsigned long long)columns);
    return push(pl, (PeftReplaced){.tensor = t,
                                   .kind = key->kind,
                                   .copy = key->kind == PEFT_BASE_BIAS && !pl->config->bias,
                                   .param = param,
                                   .layer = at,
                                   .from = from_row * (decl->axis_count > 1 ? columns : 1),
                                   .rows = rows,
                                   .columns = columns});
}

/* The windows of params must tile the tensor, so that nothing of it is dropped. */
static LgStatus check_tiling(Planner *pl, const Tensor *t, size_t first) {
    uint64_t covered = 0, elems = tensor_elems(t);
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t i = first; i < pl->plan->replaced_count; i++) {
            const PeftReplaced *r = &pl->plan->replaced[i];
            uint64_t behind = r->from + r->rows * r->columns;
            if (r->from <= covered && behind > covered && behind <= elems) {
                covered = behind;
                moved = true;
            }
            if (behind > elems)
                covered = UINT64_MAX;
        }
    }
    if (covered == elems)
        return LG_OK;
    Buf shape;
    buf_init(&shape);
    for (int i = 0; i < t->rank; i++)
        buf_printf(&shape, "%s%llu", i ? ", " : "", (unsigned long long)t->shape[i]);
    const PeftReplaced *r = &pl->plan->replaced[first];
    unsigned long long wanted = r->rows * r->columns;
    LgStatus status =
        peft_fail_tensor(pl->err, t->name, "its shape is [%s]; the model's %.*s has %llu elements",
                         shape.data, LG_STR_ARG(pl->o->program->tensors[r->param].name), wanted);
    buf_clear(&shape);
    return status;
}

LgStatus planner_take_replaced(Planner *pl, const Tensor *t, const PeftKey *key, bool *found) {
    const LangProgram *p = pl->o->program;
    LgStr tail = key->kind == PEFT_TOKENS         ? LG_STR(".weight")
                 : lg_str_eq_c(key->tail, "bias") ? LG_STR(".bias")
                                                  : LG_STR(".weight");
    const char *full = arena_printf(pl->arena, "%.*s%s", LG_STR_ARG(key->bare), tail.ptr);
    size_t first = pl->plan->replaced_count;
    if (!full)
        return lg_fail_memory(pl->err);
    LgStr module_tail = lg_str_eq_c(tail, ".weight") ? tail : LG_STR("");
    *found = false;
    for (int i = 0; i < p->tensor_count; i++) {
        uint64_t from;
        int64_t layer, expert;
        if (p->tensors[i].kind != LANG_PARAM ||
            !is_stored_as(&p->tensors[i], lg_str(full), module_tail, &from, &layer, &expert))
            continue;
        if (expert >= 0)
            return peft_fail_tensor(pl->err, t->name,
                                    "it replaces the weight of an expert, which is not served; "
                                    "LoRA on experts is");
        LG_TRY(planner_check_type(pl, t));
        LG_TRY(add_param(pl, t, key, i, from, layer));
        *found = true;
    }
    if (!*found)
        return LG_OK;
    pl->plan->replaced_tensors++;
    return key->kind == PEFT_TOKENS ? LG_OK : check_tiling(pl, t, first);
}

/* ---- trainable tokens ---- */

/* PEFT names modules by the end of their names. */
static bool ends_as(LgStr module, LgStr name) {
    return name.len <= module.len && name.len > 0 &&
           lg_str_eq(lg_str_sub(module, module.len - name.len, name.len), name);
}

/* The list of ids that the config has for a tensor's module. */
static const json_t *ids_of(const Planner *pl, LgStr module) {
    json_t *tokens = (json_t *)(uintptr_t)pl->config->tokens, *list;
    const char *name;
    if (!json_is_object(tokens))
        return tokens;
    json_object_foreach(tokens, name, list) if (ends_as(module, lg_str(name))) return list;
    return NULL;
}

static int by_row(const void *a, const void *b) {
    const PeftToken *x = a, *y = b;
    return (x->row > y->row) - (x->row < y->row);
}

static LgStatus read_ids(Planner *pl, PeftReplaced *r, uint64_t vocab) {
    const Tensor *t = r->tensor;
    const json_t *list = ids_of(pl, peft_key_parse(t->name).module);
    if (t->shape[0] != json_array_size(list))
        return peft_fail_tensor(pl->err, t->name,
                                "it has %llu rows, trainable_token_indices names %zu tokens for it",
                                (unsigned long long)t->shape[0], json_array_size(list));
    PeftToken *tokens = ARENA_ARRAY(pl->arena, PeftToken, (size_t)t->shape[0] + 1);
    if (!tokens)
        return lg_fail_memory(pl->err);
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_int_t id = json_integer_value(json_array_get(list, i));
        if ((uint64_t)id >= vocab)
            return peft_fail_tensor(pl->err, t->name,
                                    "trainable_token_indices names the token %lld; ids are 0 to "
                                    "%llu. Added tokens need a base model that has them",
                                    (long long)id, (unsigned long long)(vocab - 1));
        tokens[i] = (PeftToken){(uint64_t)id, i};
    }
    qsort(tokens, (size_t)t->shape[0], sizeof *tokens, by_row);
    for (uint64_t i = 1; i < t->shape[0]; i++)
        if (tokens[i].row == tokens[i - 1].row)
            return peft_fail_tensor(pl->err, t->name,
                                    "trainable_token_indices names the token %llu twice",
                                    (unsigned long long)tokens[i].row);
    r->tokens = tokens;
    r->rows = t->shape[0];
    return LG_OK;
}

/* Rows of a tied head are the embedding's. */
static LgStatus add_tied(Planner *pl, PeftReplaced r) {
    const LangProgram *p = pl->o->program;
    const ParamBinding *b = bound(pl, r.param, 0);
    for (int i = 0; i < p->tensor_count; i++) {
        if (p->tensors[i].kind != LANG_PARAM || i == r.param || p->tensors[i].in_layer)
            continue;
        const ParamBinding *other = binding_get(pl->o->binding, i, 0);
        if (!b->tensor || other->tensor != b->tensor || other->from_row != b->from_row)
            continue;
        r.param = i;
        LG_TRY(push(pl, r));
    }
    return LG_OK;
}

static LgStatus place_tokens(Planner *pl) {
    size_t count = pl->plan->replaced_count;
    bool any = false;
    for (size_t i = 0; i < count; i++) {
        if (pl->plan->replaced[i].kind != PEFT_TOKENS)
            continue;
        any = true;
        LG_TRY(read_ids(pl, &pl->plan->replaced[i], pl->plan->replaced[i].rows));
        LG_TRY(add_tied(pl, pl->plan->replaced[i]));
    }
    if (!pl->config->tokens || any)
        return LG_OK;
    return lg_fail(pl->err, LG_BAD_INPUT, 0,
                   "adapter_config.json sets trainable_token_indices, but the file has no "
                   "trainable_tokens_delta");
}

/* ---- is what the config names there ---- */

static LgStatus check_saved(Planner *pl) {
    for (size_t k = 0; k < json_array_size(pl->config->modules_to_save); k++) {
        LgStr name = lg_json_string(json_array_get(pl->config->modules_to_save, k));
        bool found = false;
        for (size_t i = 0; i < pl->plan->replaced_count && !found; i++)
            found = pl->plan->replaced[i].kind == PEFT_WHOLE &&
                    ends_as(peft_key_parse(pl->plan->replaced[i].tensor->name).module, name);
        if (found)
            continue;
        Buf shown;
        buf_init(&shown);
        buf_printable(&shown, name, 120);
        LgStatus status = lg_fail(pl->err, LG_BAD_INPUT, 0,
                                  "adapter_config.json names \"%s\" in modules_to_save, but the "
                                  "file has no tensor of such a module",
                                  shown.data);
        buf_clear(&shown);
        return status;
    }
    return LG_OK;
}

static const PeftReplaced *find(const Planner *pl, int param, int layer) {
    for (size_t i = 0; i < pl->plan->replaced_count; i++)
        if (pl->plan->replaced[i].param == param && pl->plan->replaced[i].layer == layer)
            return &pl->plan->replaced[i];
    return NULL;
}

/* An adapted module's bias that the base has and the file must have. */
static LgStatus check_bias(Planner *pl, const PeftEntry *e) {
    const LangProgram *p = pl->o->program;
    const char *full =
        arena_printf(pl->arena, "%.*s.bias", LG_STR_ARG(peft_bare_name(e->module->name)));
    if (!full)
        return lg_fail_memory(pl->err);
    for (int i = 0; i < p->tensor_count; i++) {
        uint64_t from;
        int64_t layer = 0, expert;
        if (p->tensors[i].kind != LANG_PARAM ||
            !is_stored_as(&p->tensors[i], lg_str(full), LG_STR(""), &from, &layer, &expert))
            continue;
        layer = p->tensors[i].in_layer && layer >= 0 ? layer : 0;
        if (bound(pl, i, (int)layer)->tensor && !find(pl, i, (int)layer))
            return peft_fail_tensor(pl->err, e->a->name,
                                    "adapter_config.json says that biases are replaced, but the "
                                    "file has no base_layer.bias of this module");
    }
    return LG_OK;
}

static LgStatus check_beside_lora(Planner *pl, const PeftEntry *e) {
    const LangProgram *p = pl->o->program;
    for (const LoraTarget *t = e->module->targets; t; t = t->next) {
        int param = p->sites[t->site].param;
        const PeftReplaced *r = find(pl, param, p->tensors[param].in_layer ? t->layer : 0);
        if (r)
            return peft_fail_tensor(pl->err, r->tensor->name,
                                    "it replaces a weight that the adapter also has LoRA on, which "
                                    "is not served");
    }
    return LG_OK;
}

LgStatus planner_place_replaced(Planner *pl) {
    LG_TRY(check_saved(pl));
    LG_TRY(place_tokens(pl));
    for (size_t i = 0; i < pl->plan->count; i++) {
        const PeftEntry *e = &pl->plan->entries[i];
        LG_TRY(check_beside_lora(pl, e));
        if (pl->config->bias && !e->module->lookup && !e->module->experts)
            LG_TRY(check_bias(pl, e));
    }
    return LG_OK;
}

bool peft_replaced_first(const PeftPlan *plan, size_t index) {
    for (size_t i = 0; i < index; i++)
        if (plan->replaced[i].tensor == plan->replaced[index].tensor)
            return false;
    return true;
}

uint64_t peft_replaced_floats(const PeftReplaced *r) {
    return peft_array_floats(r->rows * r->columns);
}

/* ---- equal to the base's ---- */

/* A copy was written in its own type, from a base that may be stored in another: equal means equal
 * in the copy's type. */
static bool equals_base(const PeftReplaced *r, const AdapterOptions *o, float *base, float *mine) {
    const ParamBinding *b = binding_get(o->binding, r->param, r->layer);
    const DTypeInfo *info = dtype_info(r->tensor->dtype);
    for (uint64_t i = 0; i < r->rows; i++) {
        uint64_t from = r->from + (r->tokens ? r->tokens[i].from : i) * r->columns;
        binding_row_f32(b, o->program, r->param, r->tokens ? r->tokens[i].row : i, base);
        info->to_f32(r->tensor->data + from * info->block_bytes, mine, (size_t)r->columns);
        for (uint64_t k = 0; k < r->columns; k++)
            if (peft_in_type(base[k], r->tensor->dtype) != mine[k])
                return false;
    }
    return true;
}

static LgStatus drop_equal(PeftPlan *plan, const AdapterOptions *o, float *base, float *mine,
                           json_t *disregarded, LgError *err) {
    size_t kept = 0;
    const Tensor *noted = NULL;
    for (size_t i = 0; i < plan->replaced_count; i++) {
        PeftReplaced *r = &plan->replaced[i];
        bool equal = equals_base(r, o, base, mine);
        if (!equal && r->copy)
            return peft_fail_tensor(err, r->tensor->name,
                                    "it differs from the base's bias, but adapter_config.json does "
                                    "not say that biases are replaced (bias: lora_only or all)");
        if (!equal) {
            plan->replaced[kept++] = *r;
            continue;
        }
        plan->bytes -= peft_replaced_floats(r) * sizeof(float);
        plan->floats -= peft_replaced_floats(r);
        if (r->tensor != noted && !peft_disregard(disregarded, r->tensor->name,
                                                  "it equals what the base has in its place"))
            return lg_fail_memory(err);
        noted = r->tensor;
    }
    plan->replaced_count = kept;
    return LG_OK;
}

LgStatus peft_drop_copies(PeftPlan *plan, const AdapterOptions *o, json_t *disregarded,
                          LgError *err) {
    uint64_t columns = 1;
    for (size_t i = 0; i < plan->replaced_count; i++)
        if (plan->replaced[i].columns > columns)
            columns = plan->replaced[i].columns;
    float *base = lg_alloc_array((size_t)columns, sizeof *base);
    float *mine = lg_alloc_array((size_t)columns, sizeof *mine);
    LgStatus status =
        base && mine ? drop_equal(plan, o, base, mine, disregarded, err) : lg_fail_memory(err);
    lg_free(base);
    lg_free(mine);
    return status;
}

/* ---- numbers ---- */

static void place_rows(const PeftReplaced *r, const float *stored, int32_t *rows, float *data) {
    for (uint64_t i = 0; i < r->rows; i++) {
        rows[i] = (int32_t)r->tokens[i].row;
        memcpy(data + i * r->columns, stored + r->tokens[i].from * r->columns,
               (size_t)r->columns * sizeof *data);
    }
}

static LgStatus replace_one(const PeftReplaced *r, float *data, int32_t *rows, AdapterReplaced *out,
                            LgError *err) {
    Tensor part = *r->tensor;
    part.data += r->from * dtype_info(part.dtype)->block_bytes;
    part.rank = 2;
    part.shape[0] = r->rows;
    part.shape[1] = r->columns;
    uint64_t elems = r->rows * r->columns;
    *out = (AdapterReplaced){.tensor = r->param,
                             .layer = r->layer,
                             .columns = r->columns,
                             .row_count = r->rows,
                             .rows = r->tokens ? rows : NULL,
                             .data = data,
                             .bf16 = part.dtype == DTYPE_BF16};
    memset(data + elems, 0, (size_t)(peft_array_floats(elems) - elems) * sizeof *data);
    if (!r->tokens)
        return peft_read_tensor(&part, false, data, err);
    float *stored = lg_alloc_array((size_t)elems, sizeof *stored);
    LgStatus status = stored ? peft_read_tensor(&part, false, stored, err) : lg_fail_memory(err);
    if (status == LG_OK)
        place_rows(r, stored, rows, data);
    lg_free(stored);
    return status;
}

LgStatus peft_replace(const PeftPlan *plan, float *numbers, int32_t *rows, AdapterReplaced *out,
                      LgError *err) {
    for (size_t i = 0; i < plan->replaced_count; i++) {
        const PeftReplaced *r = &plan->replaced[i];
        LG_TRY(replace_one(r, numbers, rows, &out[i], err));
        numbers += peft_replaced_floats(r);
        rows += r->tokens ? r->rows : 0;
    }
    return LG_OK;
}
