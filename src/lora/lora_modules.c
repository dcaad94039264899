/* The modules that an adapter may name: one for each name that the program's sites carry, over all
 * layers. A module may feed several sites (a stacked qkv_proj cut into windows), and a site's
 * module may be fed in every layer. */
#include <string.h>

#include "lora/peft.h"

static uint64_t axis_size(const LangProgram *p, const LangTensor *t, int axis) {
    uint64_t size = 1;
    for (int i = t->axis_start[axis]; i < t->axis_start[axis + 1]; i++)
        size *= p->dims[t->dims[i]].size;
    return size;
}

/* text with its {…} replaced by the layer. */
static void expand(LgStr text, int layer, Buf *out) {
    buf_reset(out);
    const char *open = text.len ? memchr(text.ptr, '{', text.len) : NULL;
    const char *close = open ? memchr(open, '}', text.len - (size_t)(open - text.ptr)) : NULL;
    if (!close) {
        buf_str(out, text);
        return;
    }
    buf_append(out, text.ptr, (size_t)(open - text.ptr));
    buf_printf(out, "%d", layer);
    buf_append(out, close + 1, text.len - (size_t)(close + 1 - text.ptr));
}

/* Weights of two stored axes are served: [out, in], and of a lookup [vocabulary, out]. */
bool lora_param_served(const LangTensor *param) {
    return param->module.len > 0 && param->stack_dim < 0 && param->axis_count == 2;
}

static LoraModule *module_add(LoraModules *m, LgStr name, bool lookup, Arena *arena) {
    if (m->count == m->cap) {
        size_t cap = m->cap ? m->cap * 2 : 64;
        LoraModule *items = arena_grow(arena, m->items, m->count, cap, sizeof *items);
        if (!items)
            return NULL;
        m->items = items;
        m->cap = cap;
    }
    LgStr copy = arena_str(arena, name);
    if (!copy.ptr)
        return NULL;
    if (!map_set(lookup ? &m->lookup_by_bare : &m->by_bare, peft_bare_name(copy), m->count))
        return NULL;
    LoraModule *module = &m->items[m->count++];
    *module = (LoraModule){.name = copy, .lookup = lookup};
    return module;
}

static LoraModule *find(const LoraModules *m, LgStr bare, bool lookup) {
    uint64_t index;
    if (!map_get(lookup ? &m->lookup_by_bare : &m->by_bare, bare, &index))
        return NULL;
    return &m->items[index];
}

typedef struct Builder {
    const LangProgram *p;
    const Binding *binding;
    Arena *arena;
    LoraModules *out;
    Buf name;
    LgError *err;
} Builder;

/* Two params of the program claim one name: an adapter for it would be ambiguous. */
static LgStatus fail_shared(Builder *b, const LangTensor *param) {
    return lg_fail(b->err, LG_BAD_INPUT, (uint64_t)param->line,
                   "%.*s:%d: param %.*s has the module name \"%s\" of another param with another "
                   "shape, so adapters cannot tell them apart",
                   LG_STR_ARG(b->p->file), param->line, LG_STR_ARG(param->name), b->name.data);
}

static LgStatus add_target(Builder *b, int site, int layer) {
    const LangSite *s = &b->p->sites[site];
    const LangTensor *param = &b->p->tensors[s->param];
    const ParamBinding *bound = binding_get(b->binding, s->param, param->in_layer ? layer : 0);
    uint64_t rows = axis_size(b->p, param, 0), columns = axis_size(b->p, param, 1);
    uint64_t stored = bound->tensor && bound->tensor->rank == 2 ? bound->tensor->shape[0] : rows;
    expand(param->module, layer, &b->name);
    LoraTarget *target = ARENA_NEW(b->arena, LoraTarget);
    if (b->name.failed || !target)
        return lg_fail_memory(b->err);
    LgStr name = buf_view(&b->name);
    LoraModule *module = find(b->out, peft_bare_name(name), s->lookup);
    if (!module) {
        module = module_add(b->out, name, s->lookup, b->arena);
        if (!module)
            return lg_fail_memory(b->err);
        module->in = s->lookup ? rows : columns;
        module->out = s->lookup ? columns : stored;
    } else if (module->in != (s->lookup ? rows : columns) ||
               module->out != (s->lookup ? columns : stored) || !lg_str_eq(module->name, name)) {
        return fail_shared(b, param);
    }
    *target = (LoraTarget){.site = site,
                           .layer = s->in_layer ? layer : 0,
                           .from_row = s->lookup ? 0 : bound->from_row,
                           .rows = s->lookup ? columns : rows,
                           .next = module->targets};
    module->targets = target;
    return LG_OK;
}

LgStatus lora_modules_build(const LangProgram *p, const Binding *binding, Arena *arena,
                            LoraModules *out, LgError *err) {
    *out = (LoraModules){0};
    map_init(&out->by_bare);
    map_init(&out->lookup_by_bare);
    Builder b = {.p = p, .binding = binding, .arena = arena, .out = out, .err = err};
    buf_init(&b.name);
    LgStatus status = LG_OK;
    for (int site = 0; site < p->site_count && status == LG_OK; site++) {
        int layers = p->sites[site].in_layer ? p->layer_count : 1;
        bool served = lora_param_served(&p->tensors[p->sites[site].param]);
        for (int layer = 0; served && layer < layers && status == LG_OK; layer++)
            status = add_target(&b, site, layer);
    }
    buf_clear(&b.name);
    return status;
}

void lora_modules_clear(LoraModules *m) {
    map_clear(&m->by_bare);
    map_clear(&m->lookup_by_bare);
    *m = (LoraModules){0};
}

const LoraModule *lora_modules_find(const LoraModules *m, LgStr bare, bool lookup) {
    return find(m, bare, lookup);
}

int64_t lora_modules_strange_layer(const LangProgram *p, LgStr bare) {
    for (int site = 0; site < p->site_count; site++) {
        LgStr module = peft_bare_name(p->tensors[p->sites[site].param].module);
        const char *open = module.len ? memchr(module.ptr, '{', module.len) : NULL;
        size_t before = open ? (size_t)(open - module.ptr) : 0;
        const char *close = open ? memchr(open, '}', module.len - before) : NULL;
        if (!close || bare.len <= before || memcmp(bare.ptr, module.ptr, before) != 0)
            continue;
        int64_t layer = 0;
        size_t at = before;
        for (; at < bare.len && bare.ptr[at] >= '0' && bare.ptr[at] <= '9'; at++)
            layer = layer > INT32_MAX ? layer : layer * 10 + (bare.ptr[at] - '0');
        size_t behind = (size_t)(close + 1 - module.ptr);
        LgStr rest = lg_str_sub(module, behind, module.len);
        if (at > before && layer >= p->layer_count &&
            lg_str_eq(lg_str_sub(bare, at, bare.len), rest))
            return layer;
    }
    return -1;
}
