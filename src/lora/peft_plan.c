/* Which tensor acts where. Every tensor finds its place and every place is whole, or the plan fails
 * and names the tensor; nothing is allocated by what a config claims, only by what the tensors are.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "lora/peft_planner.h"

#define SAMPLES_MAX 3
#define SAMPLE_BYTES_MAX 110

LgStatus peft_fail_tensor(LgError *err, LgStr name, const char *format, ...) {
    char fault[sizeof err->message];
    va_list args;
    va_start(args, format);
    vsnprintf(fault, sizeof fault, format, args);
    va_end(args);
    Buf shown;
    buf_init(&shown);
    buf_printable(&shown, name, 160);
    LgStatus status = lg_fail(err, LG_BAD_INPUT, 0, "tensor \"%s\": %s", shown.data, fault);
    buf_clear(&shown);
    return status;
}

/* ---- tensors to places ---- */

static LgStatus take_copy(Planner *pl, const Tensor *t, const LoraModule *module) {
    size_t i = pl->plan->copy_count++;
    pl->plan->copies[i] = t;
    pl->plan->copy_modules[i] = module;
    for (size_t k = 0; k < i; k++)
        if (pl->plan->copy_modules[k] == module)
            return peft_fail_tensor(pl->err, t->name,
                                    "a second copy of the base weight of module \"%.*s\"",
                                    LG_STR_ARG(module->name));
    return LG_OK;
}

static LgStatus take_adapter_name(Planner *pl, const Tensor *t, LgStr name) {
    if (name.len == 0 || lg_str_eq(name, pl->adapter_name))
        return LG_OK;
    if (pl->adapter_name.len) {
        Buf both;
        buf_init(&both);
        buf_printf(&both, "its key names the adapter \"");
        buf_printable(&both, name, 60);
        buf_puts(&both, "\", others name \"");
        buf_printable(&both, pl->adapter_name, 60);
        buf_puts(&both, "\": a file holds one adapter");
        LgStatus status = peft_fail_tensor(pl->err, t->name, "%s", both.data);
        buf_clear(&both);
        return status;
    }
    pl->adapter_name = name;
    return LG_OK;
}

static const Tensor **slot_of(PeftEntry *e, PeftKind kind) {
    if (kind == PEFT_MAGNITUDE)
        return &e->magnitude;
    if (kind == PEFT_B_BIAS)
        return &e->b_bias;
    return kind == PEFT_A || kind == PEFT_EMBED_A ? &e->a : &e->b;
}

static LgStatus take_part(Planner *pl, const Tensor *t, const PeftKey *key,
                          const LoraModule *module) {
    PeftEntry *e = &pl->by_module[module - pl->modules->items];
    const Tensor **slot = slot_of(e, key->kind);
    if (*slot) {
        Buf other;
        buf_init(&other);
        buf_printable(&other, (*slot)->name, 160);
        LgStatus status = peft_fail_tensor(
            pl->err, t->name, "tensor \"%s\" is the %s of the same module \"%.*s\"", other.data,
            peft_kind_name(key->kind), LG_STR_ARG(module->name));
        buf_clear(&other);
        return status;
    }
    *slot = t;
    e->module = module;
    e->file_module = key->module;
    return LG_OK;
}

/* The module of a key, by what the key's kind can act on. Magnitudes follow A and B to either. */
static const LoraModule *module_of(Planner *pl, const PeftKey *key) {
    bool lookup = key->kind == PEFT_EMBED_A || key->kind == PEFT_EMBED_B;
    const LoraModule *module = lora_modules_find(pl->modules, key->bare, lookup);
    if (!module && (key->kind == PEFT_MAGNITUDE || key->kind == PEFT_BASE_COPY))
        module = lora_modules_find(pl->modules, key->bare, true);
    return module;
}

static LgStatus fail_other_kind(Planner *pl, const Tensor *t, const PeftKey *key) {
    bool lookup = key->kind == PEFT_EMBED_A || key->kind == PEFT_EMBED_B;
    return peft_fail_tensor(pl->err, t->name,
                            lookup ? "the module is a product, not an embedding; it is adapted by "
                                     "lora_A and lora_B"
                                   : "the module is an embedding; it is adapted by "
                                     "lora_embedding_A and lora_embedding_B");
}

static void take_stray(Planner *pl, const Tensor *t, const PeftKey *key) {
    if (!pl->stray) {
        pl->stray = t;
        pl->stray_key = *key;
    }
}

static LgStatus take_replaced(Planner *pl, const Tensor *t, const PeftKey *key) {
    bool found = false;
    if (!key->depth)
        LG_TRY(planner_take_replaced(pl, t, key, &found));
    if (!found) {
        take_stray(pl, t, key);
        return LG_OK;
    }
    pl->matched++;
    return take_adapter_name(pl, t, key->adapter);
}

static LgStatus take(Planner *pl, const Tensor *t) {
    PeftKey key = peft_key_parse(t->name);
    if (key.kind == PEFT_BASE_BIAS || key.kind == PEFT_WHOLE || key.kind == PEFT_TOKENS)
        return take_replaced(pl, t, &key);
    const LoraHolder *holder =
        key.kind == PEFT_UNKNOWN ? NULL : lora_modules_holder(pl->modules, key.bare);
    if (holder) {
        pl->matched++;
        LG_TRY(take_adapter_name(pl, t, key.adapter));
        return planner_take_parameter(pl, t, &key, holder);
    }
    const LoraModule *module = key.kind == PEFT_UNKNOWN || key.depth ? NULL : module_of(pl, &key);
    if (!module) {
        bool other = key.kind != PEFT_UNKNOWN && !key.depth &&
                     (lora_modules_find(pl->modules, key.bare, true) ||
                      lora_modules_find(pl->modules, key.bare, false));
        if (other)
            return fail_other_kind(pl, t, &key);
        take_stray(pl, t, &key);
        return LG_OK;
    }
    pl->matched++;
    LG_TRY(take_adapter_name(pl, t, key.adapter));
    if (key.kind == PEFT_BASE_COPY)
        return take_copy(pl, t, module);
    return take_part(pl, t, &key, module);
}

/* ---- a tensor that belongs nowhere ---- */

/* The first, the middle and the last. */
static void sample_keys(const Planner *pl, Buf *out) {
    size_t count = tensor_set_count(pl->tensors);
    size_t samples = count < SAMPLES_MAX ? count : SAMPLES_MAX;
    for (size_t i = 0; i < samples; i++) {
        size_t at = samples > 1 ? i * (count - 1) / (samples - 1) : 0;
        buf_puts(out, i ? ", \"" : "\"");
        buf_printable(out, tensor_set_at(pl->tensors, at)->name, SAMPLE_BYTES_MAX);
        buf_putc(out, '"');
    }
}

static void sample_modules(const Planner *pl, Buf *out) {
    const LangProgram *p = pl->o->program;
    bool first = true;
    for (int i = 0; i < p->site_count && out->len < 420; i++) {
        const LangTensor *param = &p->tensors[p->sites[i].param];
        if (!lora_param_served(param))
            continue;
        buf_printf(out, "%s\"%.*s\"", first ? "" : ", ", LG_STR_ARG(param->module));
        first = false;
    }
    buf_puts(out, first ? "none" : "");
}

static LgStatus fail_stray(Planner *pl) {
    const Tensor *t = pl->stray;
    const LangProgram *p = pl->o->program;
    bool lora_key = pl->stray_key.kind != PEFT_UNKNOWN;
    const char *what;
    int64_t number, last;
    if (lora_key && lora_modules_strange(p, pl->stray_key.bare, &what, &number, &last))
        return peft_fail_tensor(pl->err, t->name, "the model has no %s %lld; its %ss are 0 to %lld",
                                what, (long long)number, what, (long long)last);
    if (pl->matched && (pl->stray_key.kind == PEFT_WHOLE || pl->stray_key.kind == PEFT_BASE_BIAS))
        return peft_fail_tensor(pl->err, t->name,
                                "it would replace a tensor of the base, and the model has none of "
                                "that name");
    if (!lora_key && pl->matched)
        return peft_fail_tensor(pl->err, t->name,
                                "it is no tensor of a LoRA adapter; served are lora_A.weight, "
                                "lora_B.weight, lora_B.bias, lora_embedding_A, lora_embedding_B, "
                                "lora_magnitude_vector, base_layer.weight, base_layer.bias, "
                                "trainable_tokens_delta, weight and bias behind a module's name");
    Buf theirs, ours;
    buf_init(&theirs);
    buf_init(&ours);
    sample_keys(pl, &theirs);
    sample_modules(pl, &ours);
    LgStatus status;
    if (pl->matched)
        status = peft_fail_tensor(pl->err, t->name,
                                  "the model has no such module that adapters can change; it has "
                                  "%s",
                                  ours.data);
    else
        status = lg_fail(pl->err, LG_BAD_INPUT, 0,
                         "none of the adapter's %zu tensors belongs to a module of the model: the "
                         "adapter has %s; the model has %s",
                         tensor_set_count(pl->tensors), theirs.data, ours.data);
    buf_clear(&theirs);
    buf_clear(&ours);
    return status;
}

/* ---- are the places whole ---- */

LgStatus planner_check_type(Planner *pl, const Tensor *t) {
    if (t->dtype == DTYPE_F32 || t->dtype == DTYPE_F16 || t->dtype == DTYPE_BF16)
        return LG_OK;
    return peft_fail_tensor(pl->err, t->name, "its type is %s; F32, F16 and BF16 are served",
                            dtype_info(t->dtype)->name);
}

LgStatus planner_check_axes(Planner *pl, const Tensor *t) {
    LG_TRY(planner_check_type(pl, t));
    if (t->rank != 2)
        return peft_fail_tensor(pl->err, t->name, "it has %d axes; a matrix has 2", t->rank);
    return LG_OK;
}

static LgStatus check_matrix(Planner *pl, const Tensor *t, int axis, uint64_t want,
                             const char *what) {
    LG_TRY(planner_check_axes(pl, t));
    if (t->shape[axis] == want)
        return LG_OK;
    bool a = axis == 1;
    return peft_fail_tensor(pl->err, t->name,
                            "its shape is [%llu, %llu], but the module %s %llu: %s expected",
                            (unsigned long long)t->shape[0], (unsigned long long)t->shape[1], what,
                            (unsigned long long)want, a ? "[r, in] is" : "[out, r] is");
}

static LgStatus check_rank(Planner *pl, PeftEntry *e) {
    uint64_t experts = e->module->experts ? e->module->experts : 1;
    uint64_t rank = e->a->shape[0] / experts;
    if (rank * experts != e->a->shape[0])
        return peft_fail_tensor(pl->err, e->a->name,
                                "its %llu rows are no rank for each of %llu experts",
                                (unsigned long long)e->a->shape[0], (unsigned long long)experts);
    if (e->a->shape[0] != e->b->shape[1])
        return peft_fail_tensor(pl->err, e->b->name, "its rank is %llu, that of %s is %llu",
                                (unsigned long long)e->b->shape[1],
                                e->module->lookup ? "lora_embedding_A" : "lora_A",
                                (unsigned long long)e->a->shape[0]);
    if (rank == 0 || rank > INT32_MAX)
        return peft_fail_tensor(pl->err, e->a->name, "its rank is %llu; a rank is at least 1",
                                (unsigned long long)rank);
    PeftPattern *pattern;
    LG_TRY(patterns_find(&pl->config->rank_pattern, e->file_module, e->module->name, &pattern,
                         pl->err));
    double want = pattern ? pattern->value : (double)pl->config->r;
    if ((pattern || pl->config->has_r) && want != (double)rank)
        return peft_fail_tensor(pl->err, e->a->name,
                                "its rank is %llu, but adapter_config.json says %.0f (%s), so the "
                                "scale is not certain",
                                (unsigned long long)rank, want, pattern ? "rank_pattern" : "r");
    e->rank = (int32_t)rank;
    return LG_OK;
}

static LgStatus check_scale(Planner *pl, PeftEntry *e) {
    PeftPattern *pattern;
    LG_TRY(patterns_find(&pl->config->alpha_pattern, e->file_module, e->module->name, &pattern,
                         pl->err));
    e->alpha = pattern ? pattern->value : pl->config->alpha;
    double rank = e->rank;
    double scale = e->alpha / (pl->config->rslora ? sqrt(rank) : rank);
    if (fabs(scale) > 3.4e38)
        return peft_fail_tensor(pl->err, e->a->name, "its scale %g is too large for 32 bits",
                                scale);
    e->scale = (float)scale;
    return LG_OK;
}

static bool has_experts(const PeftEntry *e) {
    return e->module->experts > 0 || (e->module->targets && e->module->targets->expert >= 0);
}

static LgStatus check_dora(Planner *pl, const PeftEntry *e) {
    const Tensor *m = e->magnitude;
    if (has_experts(e) && (m || pl->config->dora))
        return peft_fail_tensor(pl->err, m ? m->name : e->a->name, "DoRA on experts is not served");
    if (!m && pl->config->dora)
        return peft_fail_tensor(pl->err, e->a->name,
                                "adapter_config.json says use_dora, but the module has no "
                                "lora_magnitude_vector");
    if (!m)
        return LG_OK;
    if (!pl->config->dora)
        return peft_fail_tensor(pl->err, m->name,
                                "a DoRA magnitude, but adapter_config.json does not say use_dora");
    if (e->module->lookup)
        return peft_fail_tensor(pl->err, m->name, "DoRA on an embedding is not served yet");
    LG_TRY(planner_check_type(pl, m));
    if (m->rank != 1 || m->shape[0] != e->module->out)
        return peft_fail_tensor(pl->err, m->name, "its shape must be [%llu]",
                                (unsigned long long)e->module->out);
    return LG_OK;
}

/* PEFT has no bias on B of an embedding or of a parameter, and none beside DoRA. */
static LgStatus check_b_bias(Planner *pl, const PeftEntry *e) {
    const Tensor *t = e->b_bias;
    bool wanted = pl->config->lora_bias && !e->module->lookup;
    if (!t && wanted)
        return peft_fail_tensor(pl->err, e->b->name,
                                "adapter_config.json says lora_bias, but the module has no "
                                "lora_B.bias");
    if (!t)
        return LG_OK;
    if (!wanted)
        return peft_fail_tensor(pl->err, t->name,
                                "a bias on B, but adapter_config.json does not say lora_bias");
    if (e->magnitude)
        return peft_fail_tensor(pl->err, t->name, "a bias on B beside DoRA is not served");
    LG_TRY(planner_check_type(pl, t));
    if (t->rank != 1 || t->shape[0] != e->module->out)
        return peft_fail_tensor(pl->err, t->name, "its shape must be [%llu]",
                                (unsigned long long)e->module->out);
    return LG_OK;
}

/* A fused module's windows must take every row of B: rows that no site takes would be dropped. */
static LgStatus check_windows(Planner *pl, const PeftEntry *e) {
    uint64_t covered = 0;
    bool moved = true;
    while (moved) {
        moved = false;
        for (const LoraTarget *t = e->module->targets; t; t = t->next) {
            uint64_t behind = t->from_row + t->rows;
            if (t->from_row <= covered && behind > covered) {
                covered = behind;
                moved = true;
            }
        }
    }
    if (covered == e->module->out)
        return LG_OK;
    return peft_fail_tensor(pl->err, e->b->name,
                            "the model uses only some of the module's %llu outputs, so the adapter "
                            "cannot be applied whole",
                            (unsigned long long)e->module->out);
}

static LgStatus check_entry(Planner *pl, PeftEntry *e) {
    const Tensor *any = e->a ? e->a : e->b ? e->b : e->magnitude ? e->magnitude : e->b_bias;
    const char *mark = e->module->lookup ? "lora_embedding_" : "lora_";
    if (!e->a || !e->b)
        return peft_fail_tensor(pl->err, any->name, "module \"%.*s\" has no %s%c beside it",
                                LG_STR_ARG(e->module->name), mark, e->a ? 'B' : 'A');
    if (!e->module->experts) {
        LG_TRY(check_matrix(pl, e->a, 1, e->module->in, e->module->lookup ? "looks up" : "reads"));
        LG_TRY(check_matrix(pl, e->b, 0, e->module->out, "writes"));
    }
    pl->plan->experts |= has_experts(e);
    LG_TRY(check_rank(pl, e));
    LG_TRY(check_scale(pl, e));
    LG_TRY(check_dora(pl, e));
    LG_TRY(check_b_bias(pl, e));
    return check_windows(pl, e);
}

uint64_t peft_array_floats(uint64_t elems) {
    return (elems + 15) / 16 * 16;
}

/* Element counts are of tensors that lie in a file (and of weights that are in memory), so the sums
 * cannot wrap. */
static uint64_t entry_floats(const PeftEntry *e) {
    uint64_t floats = peft_array_floats(tensor_elems(e->a)) + peft_array_floats(tensor_elems(e->b));
    if (e->b_bias)
        floats += peft_array_floats(e->module->out);
    if (!e->magnitude)
        return floats;
    floats += peft_array_floats(e->module->out);
    for (const LoraTarget *t = e->module->targets; t; t = t->next)
        floats += 3 * peft_array_floats(t->rows);
    return floats;
}

uint64_t peft_site_floats(const PeftPlan *plan) {
    uint64_t floats = 0;
    for (size_t i = 0; i < plan->count; i++)
        floats += entry_floats(&plan->entries[i]);
    return floats;
}

static LgStatus check_bytes(Planner *pl) {
    int32_t rank = 0;
    for (size_t i = 0; i < pl->plan->count; i++)
        if (pl->plan->entries[i].rank > rank)
            rank = pl->plan->entries[i].rank;
    pl->plan->floats = peft_site_floats(pl->plan);
    for (size_t i = 0; i < pl->plan->replaced_count; i++)
        pl->plan->floats += peft_replaced_floats(&pl->plan->replaced[i]);
    pl->plan->bytes = pl->plan->floats * sizeof(float);
    uint64_t limit = pl->o->bytes_max;
    if (limit && pl->plan->bytes > limit)
        return lg_fail(pl->err, LG_LIMIT, 0,
                       "the adapter needs %llu bytes (its largest rank is %d); the limit is %llu",
                       (unsigned long long)pl->plan->bytes, rank, (unsigned long long)limit);
    return LG_OK;
}

LgStatus peft_plan(const TensorSet *tensors, PeftConfig *config, const LoraModules *modules,
                   const AdapterOptions *o, Arena *arena, PeftPlan *out, LgError *err) {
    size_t count = tensor_set_count(tensors);
    *out = (PeftPlan){.tensor_count = count};
    Planner pl = {.tensors = tensors,
                  .config = config,
                  .modules = modules,
                  .o = o,
                  .arena = arena,
                  .plan = out,
                  .err = err};
    if (count == 0)
        return lg_fail(err, LG_BAD_INPUT, 0, "the adapter has no tensors");
    pl.by_module = ARENA_ARRAY(arena, PeftEntry, modules->count + 1);
    pl.parameters =
        ARENA_ARRAY(arena, PeftParameter, modules->holder_count * LORA_PARAMETERS_MAX + 1);
    out->copies = ARENA_ARRAY(arena, const Tensor *, count);
    out->copy_modules = ARENA_ARRAY(arena, const LoraModule *, count);
    if (!pl.by_module || !pl.parameters || !out->copies || !out->copy_modules)
        return lg_fail_memory(err);
    for (size_t i = 0; i < count; i++)
        LG_TRY(take(&pl, tensor_set_at(tensors, i)));
    if (pl.stray)
        return fail_stray(&pl);
    LG_TRY(planner_place_parameters(&pl));
    for (size_t i = 0; i < modules->count; i++) {
        if (!pl.by_module[i].module)
            continue;
        LG_TRY(check_entry(&pl, &pl.by_module[i]));
        pl.by_module[out->count++] = pl.by_module[i];
    }
    out->entries = pl.by_module;
    if (out->count == 0 && out->replaced_count == 0)
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "the adapter has no lora_A and lora_B, only copies of base weights");
    LG_TRY(planner_place_replaced(&pl));
    return check_bytes(&pl);
}
