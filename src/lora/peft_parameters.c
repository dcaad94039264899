/* LoRA on parameters that hold the weights of all experts of a layer (PEFT's target_parameters).
 * Their keys name the module alone: the outermost wrapper is that of the last parameter, and each
 * one inside it has one more ".base_layer" in its name. A is [experts * r, in], the expert slowest;
 * B is [out, r * experts], the expert fastest. */
#include "base/json.h"
#include "lora/peft_planner.h"

LgStatus planner_take_parameter(Planner *pl, const Tensor *t, const PeftKey *key,
                                const LoraHolder *h) {
    if (key->kind != PEFT_A && key->kind != PEFT_B)
        return peft_fail_tensor(pl->err, t->name,
                                key->kind == PEFT_MAGNITUDE
                                    ? "DoRA on experts is not served"
                                    : "the module holds parameters of experts; they are adapted by "
                                      "lora_A and lora_B");
    if (key->depth >= h->count)
        return peft_fail_tensor(pl->err, t->name,
                                "it is under %d base_layer, but the module has %d parameters that "
                                "adapters can change",
                                key->depth, h->count);
    PeftParameter *p = &pl->parameters[(size_t)(h - pl->modules->holders) * LORA_PARAMETERS_MAX +
                                       (size_t)key->depth];
    const Tensor **slot = key->kind == PEFT_A ? &p->a : &p->b;
    if (*slot)
        return peft_fail_tensor(pl->err, t->name, "there is a second one of the same module");
    *slot = t;
    p->file_module = key->module;
    return LG_OK;
}

static bool fits(const LoraModule *m, const PeftParameter *p, bool swapped) {
    uint64_t in = swapped ? m->out : m->in, out = swapped ? m->in : m->out;
    return p->a->shape[1] == in && p->b->shape[0] == out;
}

static LgStr last_component(LgStr name) {
    size_t at = name.len;
    while (at > 0 && name.ptr[at - 1] != '.')
        at--;
    return lg_str_sub(name, at, name.len);
}

/* PEFT names a parameter by the end of its name. */
static bool listed(const Planner *pl, const LoraModule *m) {
    for (size_t i = 0; i < json_array_size(pl->config->target_parameters); i++) {
        LgStr name = lg_json_string(json_array_get(pl->config->target_parameters, i));
        LgStr end = lg_str_sub(m->name, m->name.len - name.len, name.len);
        if (name.len && name.len <= m->name.len && lg_str_eq(end, name) &&
            (name.len == m->name.len || m->name.ptr[m->name.len - name.len - 1] == '.'))
            return true;
    }
    return false;
}

/* The parameters that a holder's wrappers are for, outermost first: all of them, or those that the
 * config lists, or the one that has the shape. -1: it cannot be told. */
static int name_levels(const Planner *pl, const LoraHolder *h, const PeftParameter *levels,
                       int count, const LoraModule *out[LORA_PARAMETERS_MAX]) {
    int found = 0, fitting = 0;
    const LoraModule *fit = NULL;
    for (int i = h->count - 1; i >= 0; i--) {
        const LoraModule *m = &pl->modules->items[h->parameters[i]];
        if (count == h->count || listed(pl, m))
            out[found++] = m;
        if (fits(m, levels, false) || fits(m, levels, true)) {
            fit = m;
            fitting++;
        }
    }
    if (found == 0 && count == 1 && fitting == 1)
        out[found++] = fit;
    return found == count ? found : -1;
}

/* PEFT before 0.19 took the axes of [experts, out, in] for in and out. */
static bool version_before_0_19(LgStr version) {
    unsigned long parts[2] = {0, 0};
    size_t at = 0;
    for (int i = 0; i < 2; i++) {
        for (; at < version.len && version.ptr[at] >= '0' && version.ptr[at] <= '9'; at++)
            parts[i] = parts[i] > 100000 ? parts[i]
                                         : parts[i] * 10 + (unsigned long)(version.ptr[at] - '0');
        if (at < version.len && version.ptr[at] == '.')
            at++;
    }
    return parts[0] == 0 && parts[1] < 19;
}

/* Which way round A and B are: by shape; where both ways have it, by the version that wrote them.
 */
static LgStatus check_orientation(Planner *pl, PeftEntry *e, const PeftParameter *p) {
    const LoraModule *m = e->module;
    bool plain = fits(m, p, false), swapped = fits(m, p, true);
    LgStr version = pl->config->peft_version;
    if (!plain && !swapped)
        return peft_fail_tensor(
            pl->err, p->a->name,
            "its shape is [%llu, %llu] and that of lora_B [%llu, %llu], but parameter \"%.*s\" is "
            "[%llu, %llu, %llu]: A [experts * r, %llu] and B [%llu, experts * r] are expected",
            (unsigned long long)p->a->shape[0], (unsigned long long)p->a->shape[1],
            (unsigned long long)p->b->shape[0], (unsigned long long)p->b->shape[1],
            LG_STR_ARG(last_component(m->name)), (unsigned long long)m->experts,
            (unsigned long long)m->out, (unsigned long long)m->in, (unsigned long long)m->in,
            (unsigned long long)m->out);
    if (plain && swapped && version.len == 0)
        return peft_fail_tensor(
            pl->err, p->a->name,
            "parameter \"%.*s\" is square, and adapter_config.json has no peft_version: whether "
            "lora_A reads its inputs (0.19 and later) or its outputs cannot be told",
            LG_STR_ARG(last_component(m->name)));
    e->swapped = plain && swapped ? version_before_0_19(version) : swapped;
    return LG_OK;
}

static LgStatus place_holder(Planner *pl, const LoraHolder *h, const PeftParameter *levels) {
    int count = 0;
    while (count < h->count && (levels[count].a || levels[count].b))
        count++;
    for (int i = 0; i < h->count; i++) {
        const PeftParameter *p = &levels[i];
        const Tensor *any = p->a ? p->a : p->b;
        if (any && i >= count)
            return peft_fail_tensor(pl->err, any->name,
                                    "there is no tensor with one base_layer less");
        if (i < count && (!p->a || !p->b))
            return peft_fail_tensor(pl->err, any->name, "it has no lora_%c beside it",
                                    p->a ? 'B' : 'A');
        if (i < count) {
            LG_TRY(planner_check_axes(pl, p->a));
            LG_TRY(planner_check_axes(pl, p->b));
        }
    }
    if (count == 0)
        return LG_OK;
    const LoraModule *modules[LORA_PARAMETERS_MAX];
    if (name_levels(pl, h, levels, count, modules) < 0)
        return peft_fail_tensor(pl->err, levels[0].a->name,
                                "which parameter of the module it is for cannot be told; "
                                "target_parameters in adapter_config.json must list it");
    for (int i = 0; i < count; i++) {
        PeftEntry *e = &pl->by_module[modules[i] - pl->modules->items];
        *e = (PeftEntry){.module = modules[i],
                         .file_module = modules[i]->name,
                         .a = levels[i].a,
                         .b = levels[i].b};
        LG_TRY(check_orientation(pl, e, &levels[i]));
    }
    return LG_OK;
}

/* A weight must not be adapted twice: by its expert's name, and as a part of a parameter. */
static LgStatus check_twice(Planner *pl) {
    const LangProgram *p = pl->o->program;
    for (size_t i = 0; i < pl->modules->count; i++) {
        const PeftEntry *e = &pl->by_module[i];
        if (!e->module || !e->module->experts)
            continue;
        for (size_t k = 0; k < pl->modules->count; k++) {
            const PeftEntry *one = &pl->by_module[k];
            const LoraTarget *at = one->module ? one->module->targets : NULL;
            for (const LoraTarget *t = e->module->targets; t && at && at->expert >= 0; t = t->next)
                if (t->site == at->site && t->layer == at->layer)
                    return peft_fail_tensor(
                        pl->err, e->a->name,
                        "it adapts %.*s of layer %d, which \"%.*s\" adapts expert by expert",
                        LG_STR_ARG(p->tensors[p->sites[t->site].param].name), t->layer,
                        LG_STR_ARG(one->module->name));
        }
    }
    return LG_OK;
}

LgStatus planner_place_parameters(Planner *pl) {
    for (size_t i = 0; i < pl->modules->holder_count; i++)
        LG_TRY(
            place_holder(pl, &pl->modules->holders[i], &pl->parameters[i * LORA_PARAMETERS_MAX]));
    return check_twice(pl);
}
