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

/* The next {…} of text: its place, and behind it; false: there is none. */
static bool find_hole(LgStr text, size_t from, size_t *open, size_t *behind) {
    const char *a = from < text.len ? memchr(text.ptr + from, '{', text.len - from) : NULL;
    const char *b = a ? memchr(a, '}', text.len - (size_t)(a - text.ptr)) : NULL;
    if (!b)
        return false;
    *open = (size_t)(a - text.ptr);
    *behind = (size_t)(b + 1 - text.ptr);
    return true;
}

static bool is_layer_hole(LgStr text, size_t open, size_t behind) {
    return behind - open == 3 && text.ptr[open + 1] == 'l';
}

/* text with {l} replaced by the layer, and any other {…} by the expert. */
static void expand(LgStr text, int layer, int expert, Buf *out) {
    size_t at = 0, open, behind;
    buf_reset(out);
    while (find_hole(text, at, &open, &behind)) {
        buf_append(out, text.ptr + at, open - at);
        buf_printf(out, "%d", is_layer_hole(text, open, behind) ? layer : expert);
        at = behind;
    }
    buf_append(out, text.ptr + at, text.len - at);
}

/* Weights of two stored axes are served: [out, in], and of a lookup [vocabulary, out]; and of three
 * where they are experts' that have a name each. */
bool lora_param_served(const LangTensor *param) {
    return param->module.len > 0 && param->axis_count == (param->stack_dim < 0 ? 2 : 3);
}

uint64_t lora_site_experts(const LangProgram *p, int site) {
    const LangTensor *param = &p->tensors[p->sites[site].param];
    return !p->sites[site].lookup && param->axis_count == 3 ? axis_size(p, param, 0) : 0;
}

static LoraModule *module_push(LoraModules *m, LgStr name, Arena *arena) {
    if (!m->items || m->count == m->cap) {
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
    LoraModule *module = &m->items[m->count++];
    *module = (LoraModule){.name = copy};
    return module;
}

static LoraModule *module_add(LoraModules *m, LgStr name, bool lookup, Arena *arena) {
    LoraModule *module = module_push(m, name, arena);
    if (!module || !map_set(lookup ? &m->lookup_by_bare : &m->by_bare, peft_bare_name(module->name),
                            m->count - 1))
        return NULL;
    module->lookup = lookup;
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

static LgStatus push_target(Builder *b, LoraModule *module, LoraTarget target) {
    LoraTarget *t = ARENA_NEW(b->arena, LoraTarget);
    if (!t)
        return lg_fail_memory(b->err);
    *t = target;
    t->next = module->targets;
    module->targets = t;
    return LG_OK;
}

/* expert -1: the param is one weight. */
static LgStatus add_target(Builder *b, int site, int layer, int expert) {
    const LangSite *s = &b->p->sites[site];
    const LangTensor *param = &b->p->tensors[s->param];
    const ParamBinding *bound = binding_get(b->binding, s->param, param->in_layer ? layer : 0);
    int first = expert < 0 ? 0 : 1;
    uint64_t rows = axis_size(b->p, param, first), columns = axis_size(b->p, param, first + 1);
    bool window = expert < 0 && bound->tensor && bound->tensor->rank == 2;
    uint64_t stored = window ? bound->tensor->shape[0] : rows;
    expand(param->module, layer, expert, &b->name);
    if (b->name.failed)
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
    return push_target(b, module,
                       (LoraTarget){.site = site,
                                    .layer = s->in_layer ? layer : 0,
                                    .expert = expert,
                                    .from_row = s->lookup || expert >= 0 ? 0 : bound->from_row,
                                    .rows = s->lookup ? columns : rows});
}

static LoraHolder *holder_of(Builder *b, LgStr bare) {
    LoraModules *m = b->out;
    uint64_t index;
    if (map_get(&m->holder_by_bare, bare, &index))
        return &m->holders[index];
    if (m->holder_count == m->holder_cap) {
        size_t cap = m->holder_cap ? m->holder_cap * 2 : 16;
        LoraHolder *grown =
            arena_grow(b->arena, m->holders, m->holder_count, cap, sizeof *m->holders);
        if (!grown)
            return NULL;
        m->holders = grown;
        m->holder_cap = cap;
    }
    LgStr copy = arena_str(b->arena, bare);
    if (!copy.ptr || !map_set(&m->holder_by_bare, copy, m->holder_count))
        return NULL;
    m->holders[m->holder_count] = (LoraHolder){0};
    return &m->holders[m->holder_count++];
}

/* The holder's parameter of that name, new or known; it is found through its holder alone. */
static LoraModule *parameter_of(Builder *b, LoraHolder *h, LgStr name) {
    LoraModules *m = b->out;
    for (int i = 0; i < h->count; i++)
        if (lg_str_eq(m->items[h->parameters[i]].name, name))
            return &m->items[h->parameters[i]];
    if (h->count == LORA_PARAMETERS_MAX)
        return NULL;
    LoraModule *module = module_push(m, name, b->arena);
    if (module)
        h->parameters[h->count++] = m->count - 1;
    return module;
}

/* What a source that holds all experts of a layer says of the module that has it: its last
 * component is the parameter. */
static LgStatus add_parameter(Builder *b, int site, int layer, const LangSource *source) {
    const LangSite *s = &b->p->sites[site];
    const LangTensor *param = &b->p->tensors[s->param];
    expand(source->name, layer, 0, &b->name);
    if (b->name.failed)
        return lg_fail_memory(b->err);
    LgStr name = buf_view(&b->name), holder = name;
    while (holder.len && holder.ptr[holder.len - 1] != '.')
        holder.len--;
    if (holder.len < 2)
        return LG_OK;
    holder.len--;
    LoraHolder *h = holder_of(b, peft_bare_name(holder));
    if (!h)
        return lg_fail_memory(b->err);
    LoraModule *module = parameter_of(b, h, name);
    if (!module && h->count == LORA_PARAMETERS_MAX)
        return lg_fail(b->err, LG_LIMIT, (uint64_t)param->line,
                       "%.*s:%d: adapters are served for %d parameters of one module at most",
                       LG_STR_ARG(b->p->file), param->line, LORA_PARAMETERS_MAX);
    if (!module)
        return lg_fail_memory(b->err);
    if (module->experts &&
        (module->experts != axis_size(b->p, param, 0) || module->in != axis_size(b->p, param, 2)))
        return fail_shared(b, param);
    uint64_t from = source->windowed ? source->from_row : 0, rows = axis_size(b->p, param, 1);
    module->experts = axis_size(b->p, param, 0);
    module->in = axis_size(b->p, param, 2);
    module->out = from + rows > module->out ? from + rows : module->out;
    return push_target(b, module,
                       (LoraTarget){.site = site,
                                    .layer = s->in_layer ? layer : 0,
                                    .expert = -1,
                                    .from_row = from,
                                    .rows = rows});
}

static bool names_each_expert(const LangProgram *p, const LangTensor *param, LgStr name) {
    LgStr dim = p->dims[param->stack_dim].name;
    size_t at = 0, open, behind;
    while (find_hole(name, at, &open, &behind)) {
        if (lg_str_eq(lg_str_sub(name, open + 1, behind - open - 2), dim))
            return true;
        at = behind;
    }
    return false;
}

static LgStatus add_experts(Builder *b, int site, int layer) {
    const LangTensor *param = &b->p->tensors[b->p->sites[site].param];
    uint64_t experts = axis_size(b->p, param, 0);
    for (uint64_t e = 0; e < experts; e++)
        LG_TRY(add_target(b, site, layer, (int)e));
    for (int i = 0; i < param->source_count; i++)
        if (param->sources[i].kind == LANG_SOURCE_TENSOR &&
            !names_each_expert(b->p, param, param->sources[i].name))
            LG_TRY(add_parameter(b, site, layer, &param->sources[i]));
    return LG_OK;
}

LgStatus lora_modules_build(const LangProgram *p, const Binding *binding, Arena *arena,
                            LoraModules *out, LgError *err) {
    *out = (LoraModules){0};
    map_init(&out->by_bare);
    map_init(&out->lookup_by_bare);
    map_init(&out->holder_by_bare);
    Builder b = {.p = p, .binding = binding, .arena = arena, .out = out, .err = err};
    buf_init(&b.name);
    LgStatus status = LG_OK;
    for (int site = 0; site < p->site_count && status == LG_OK; site++) {
        int layers = p->sites[site].in_layer ? p->layer_count : 1;
        bool served = lora_param_served(&p->tensors[p->sites[site].param]);
        bool experts = lora_site_experts(p, site) > 0;
        for (int layer = 0; served && layer < layers && status == LG_OK; layer++)
            status = experts ? add_experts(&b, site, layer) : add_target(&b, site, layer, -1);
    }
    buf_clear(&b.name);
    return status;
}

void lora_modules_clear(LoraModules *m) {
    map_clear(&m->by_bare);
    map_clear(&m->lookup_by_bare);
    map_clear(&m->holder_by_bare);
    *m = (LoraModules){0};
}

const LoraModule *lora_modules_find(const LoraModules *m, LgStr bare, bool lookup) {
    return find(m, bare, lookup);
}

const LoraHolder *lora_modules_holder(const LoraModules *m, LgStr bare) {
    uint64_t index;
    return map_get(&m->holder_by_bare, bare, &index) ? &m->holders[index] : NULL;
}

/* Reads a number at *at; -1: there is none. */
static int64_t read_number(LgStr s, size_t *at) {
    int64_t n = 0;
    size_t from = *at;
    for (; *at < s.len && s.ptr[*at] >= '0' && s.ptr[*at] <= '9'; (*at)++)
        n = n > INT32_MAX ? n : n * 10 + (s.ptr[*at] - '0');
    return *at > from ? n : -1;
}

bool lora_name_match(LgStr pattern, LgStr name, int64_t *layer, int64_t *expert) {
    size_t at = 0, in = 0, open, behind;
    *layer = *expert = -1;
    while (find_hole(pattern, in, &open, &behind)) {
        LgStr plain = lg_str_sub(pattern, in, open - in);
        if (!lg_str_eq(lg_str_sub(name, at, plain.len), plain))
            return false;
        at += plain.len;
        int64_t n = read_number(name, &at);
        if (n < 0)
            return false;
        *(is_layer_hole(pattern, open, behind) ? layer : expert) = n;
        in = behind;
    }
    return lg_str_eq(lg_str_sub(name, at, name.len), lg_str_sub(pattern, in, pattern.len));
}

bool lora_modules_strange(const LangProgram *p, LgStr bare, const char **what, int64_t *number,
                          int64_t *last) {
    for (int site = 0; site < p->site_count; site++) {
        const LangTensor *param = &p->tensors[p->sites[site].param];
        int64_t layer, expert;
        if (!param->module.len ||
            !lora_name_match(peft_bare_name(param->module), bare, &layer, &expert))
            continue;
        if (layer >= p->layer_count) {
            *what = "layer";
            *number = layer;
            *last = p->layer_count - 1;
            return true;
        }
        int64_t experts = (int64_t)lora_site_experts(p, site);
        if (expert >= experts && experts > 0) {
            *what = "expert";
            *number = expert;
            *last = experts - 1;
            return true;
        }
    }
    return false;
}
