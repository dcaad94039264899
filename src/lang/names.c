/* One namespace for dims, consts and tensors: a name is defined once in a page. */
#include "lang/check.h"

static uint64_t name_hash(LgStr name) {
    uint64_t h = 1469598103934665603u;
    for (size_t i = 0; i < name.len; i++)
        h = (h ^ (unsigned char)name.ptr[i]) * 1099511628211u;
    return h ^ (h >> 29);
}

static Symbol *slot_of(Symbol *symbols, int cap, LgStr name) {
    size_t mask = (size_t)cap - 1;
    size_t i = (size_t)name_hash(name) & mask;
    while (symbols[i].name.len && !lg_str_eq(symbols[i].name, name))
        i = (i + 1) & mask;
    return &symbols[i];
}

const Symbol *check_find(const Check *c, LgStr name) {
    if (!c->symbol_cap)
        return NULL;
    const Symbol *s = slot_of(c->symbols, c->symbol_cap, name);
    return s->name.len ? s : NULL;
}

static bool symbols_grow(Check *c) {
    int cap = c->symbol_cap ? c->symbol_cap * 2 : 128;
    Symbol *symbols = ARENA_ARRAY(c->arena, Symbol, (size_t)cap);
    if (!symbols)
        return diag_memory(&c->diag);
    for (int i = 0; i < c->symbol_cap; i++)
        if (c->symbols[i].name.len)
            *slot_of(symbols, cap, c->symbols[i].name) = c->symbols[i];
    c->symbols = symbols;
    c->symbol_cap = cap;
    return true;
}

bool check_define(Check *c, AstName name, SymbolKind kind, int id) {
    for (size_t i = 0; i < name.text.len; i++)
        if (name.text.ptr[i] == '.')
            return diag_refuse(&c->diag, name.line, name.column,
                               "cannot define %s: a dot belongs to config keys and to adapters' "
                               "tensors. Letters, digits and _ are accepted.",
                               diag_text(name.text).text);
    const Symbol *old = check_find(c, name.text);
    if (old)
        return diag_refuse(&c->diag, name.line, name.column,
                           "cannot define %s: line %d defines it already. A name that is not used "
                           "yet is accepted.",
                           diag_text(name.text).text, old->line);
    if (c->symbol_count == CHECK_NAMES_MAX)
        return diag_refuse(&c->diag, name.line, name.column,
                           "cannot define %s: the page has too many names. At most %d are "
                           "accepted.",
                           diag_text(name.text).text, CHECK_NAMES_MAX);
    if (c->symbol_count * 2 >= c->symbol_cap && !symbols_grow(c))
        return false;
    *slot_of(c->symbols, c->symbol_cap, name.text) =
        (Symbol){.name = name.text, .kind = kind, .id = id, .line = name.line};
    c->symbol_count++;
    return true;
}

int check_dim(Check *c, AstName name) {
    const Symbol *s = check_find(c, name.text);
    if (s && s->kind == SYMBOL_DIM)
        return s->id;
    diag_refuse(&c->diag, name.line, name.column,
                "cannot use %s as a dim: %s. A name that a `dim` line above declares is accepted.",
                diag_text(name.text).text, s ? "it is none" : "it is not declared");
    return -1;
}

LgStr check_dim_name(const Check *c, int dim) {
    return c->dims.items[dim].name;
}

int check_tensor_add(Check *c, AstName name, LangTensorKind kind) {
    int id = c->tensors.count;
    if (!check_define(c, name, SYMBOL_TENSOR, id))
        return -1;
    if (!AST_LIST_ROOM(c->arena, c->tensors) || !AST_LIST_ROOM(c->arena, c->infos)) {
        diag_memory(&c->diag);
        return -1;
    }
    c->tensors.items[id] = (LangTensor){.name = name.text,
                                        .line = name.line,
                                        .kind = kind,
                                        .in_layer = c->in_layer,
                                        .dtype = LANG_BF16,
                                        .index_dim = -1,
                                        .stack_dim = -1,
                                        .lora_site = -1};
    c->infos.items[id] = (TensorInfo){.column = name.column, .stmt = -1};
    c->tensors.count++;
    c->infos.count++;
    return id;
}
