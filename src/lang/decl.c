/* Declarations, in order: each sees the dims and consts above it. Statements come later, when all
 * of a page's tensors are known. */
#include "lang/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static bool decl_model(Check *c, const AstDecl *d) {
    if (c->model)
        return diag_refuse(&c->diag, d->line, d->column,
                           "cannot name the model twice: line %d does it already. One `model` line "
                           "is accepted.",
                           c->model->line);
    c->model = d;
    return true;
}

static bool served(const AstDecl *model, const ConfigValue *name) {
    for (int i = 0; i < model->names.count; i++)
        if (name->kind == CONFIG_STRING && lg_str_eq(name->string, model->names.items[i].text))
            return true;
    return false;
}

/* A config that names architectures must name one that the page serves. */
static bool check_architecture(Check *c) {
    const AstDecl *m = c->model;
    if (!m)
        return diag_refuse(&c->diag, 1, 0,
                           "cannot compile: the page names no model. A line `model NAME for "
                           "\"Architecture\"` is accepted.");
    const ConfigValue *v = config_get_c(c->config, "architectures");
    if (!v || (v->kind == CONFIG_LIST && v->count == 0))
        return true;
    bool found = v->kind == CONFIG_LIST ? false : served(m, v);
    for (size_t i = 0; v->kind == CONFIG_LIST && i < v->count && !found; i++)
        found = served(m, &v->items[i]);
    if (found)
        return true;
    const ConfigValue *first = v->kind == CONFIG_LIST ? &v->items[0] : v;
    LgStr name = first->kind == CONFIG_STRING ? first->string : LG_STR("(no string)");
    return diag_refuse(&c->diag, m->line, m->names.items[0].column,
                       "cannot compile for \"%s\": this page serves another architecture. "
                       "\"%s\"%s is accepted.",
                       diag_text(name).text, diag_text(m->names.items[0].text).text,
                       m->names.count > 1 ? " (or another of the line)" : "");
}

static bool decl_dim(Check *c, const AstDecl *d) {
    for (int i = 0; i < d->dims.count; i++) {
        const AstDim *dim = &d->dims.items[i];
        LangDim made = {.name = dim->name.text, .line = dim->name.line, .runtime = !dim->size};
        if (dim->size) {
            Fold f = {.layer = -1, .exact = true};
            double size = 0;
            if (!fold_required(c, &f, dim->size, &size))
                return false;
            if (size != floor(size) || size < 1 || size > CHECK_DIM_MAX)
                return diag_refuse(&c->diag, dim->size->line, dim->size->column,
                                   "cannot size the dim %s: its value is %.15g. A whole number "
                                   "from 1 to 2147483647 is accepted.",
                                   diag_text(dim->name.text).text, size);
            made.size = (uint64_t)size;
        }
        if (!check_define(c, dim->name, SYMBOL_DIM, c->dims.count))
            return false;
        if (!AST_LIST_ROOM(c->arena, c->dims))
            return diag_memory(&c->diag);
        c->dims.items[c->dims.count++] = made;
        if (c->layer && lg_str_eq(c->layer->index_dim.text, made.name)) {
            if (made.runtime || made.size > CHECK_LAYERS_MAX)
                return diag_refuse(&c->diag, dim->name.line, dim->name.column,
                                   "cannot count layers by %s: its size is not known, or more than "
                                   "%d. A dim with a size up to %d is accepted.",
                                   diag_text(made.name).text, CHECK_LAYERS_MAX, CHECK_LAYERS_MAX);
            c->layer_dim = c->dims.count - 1;
            c->layer_count = (int)made.size;
        }
    }
    return true;
}

static bool value_text(Check *c, const ConfigValue *v, DiagText *out) {
    Buf text;
    buf_init(&text);
    if (v && v->kind == CONFIG_REAL)
        lang_number_print(v->real, &text);
    else if (v)
        config_value_print(v, &text);
    else
        buf_puts(&text, "null");
    bool ok = !text.failed;
    *out = diag_text(buf_view(&text));
    buf_clear(&text);
    return ok ? true : diag_memory(&c->diag);
}

static bool holds(const ConfigValue *found, AstCompare op, const ConfigValue *wanted) {
    if (op == AST_EQ)
        return fold_compare(found, wanted);
    if (op == AST_NE)
        return !fold_compare(found, wanted);
    if (!found || (found->kind != CONFIG_INT && found->kind != CONFIG_REAL))
        return false;
    double value = found->kind == CONFIG_INT ? (double)found->integer : found->real;
    return op == AST_LE ? value <= wanted->real : value >= wanted->real;
}

/* The value that a `require` is about: a dim or const of the page, else a config key; where it
 * names the layer's index, that of one layer. */
static bool require_value(Check *c, const AstDecl *d, int layer, ConfigValue *made,
                          const ConfigValue **out) {
    const Symbol *s = check_find(c, d->name.text);
    AstIndex index = {.name = d->index_dim};
    AstIndex ref = {.name = d->name, .bracketed = layer >= 0, .indexes = {&index, 1, 1}};
    Fold f = {.layer = layer, .index = d->index_dim.text};
    *out = NULL;
    if (!s && layer < 0) {
        *out = check_key(c, d->name.text);
        return true;
    }
    FoldResult got = fold_value(c, &f, &ref, made);
    if (got == FOLD_OK && made->kind != CONFIG_NULL)
        *out = made;
    return got == FOLD_ABSENT && s ? fold_refuse_absent(c, &f) : got != FOLD_FAILED;
}

/* `==`: one of the values. `!=`: none of them. layer -1: the value that all have. */
static bool require_one(Check *c, const AstDecl *d, int layer) {
    ConfigValue made;
    const ConfigValue *found;
    if (!require_value(c, d, layer, &made, &found))
        return false;
    bool ok = d->op == AST_NE;
    for (int i = 0; i < d->values.count; i++) {
        const ConfigValue *wanted = &d->values.items[i];
        if ((d->op == AST_LE || d->op == AST_GE) &&
            (wanted->kind != CONFIG_REAL || d->values.count > 1))
            return diag_refuse(&c->diag, d->line, d->column,
                               "cannot compare by size: `<=` and `>=` take one number. `require "
                               "KEY <= 8` is accepted.");
        bool one = holds(found, d->op, wanted);
        ok = d->op == AST_NE ? ok && one : ok || one;
    }
    if (ok)
        return true;
    DiagText has;
    if (!value_text(c, found, &has))
        return false;
    LgStr rule = lg_str_sub(d->text, (size_t)(d->name.column - d->column), d->text.len);
    char of_layer[16] = "";
    if (layer >= 0)
        snprintf(of_layer, sizeof of_layer, "[%d]", layer);
    return diag_refuse(&c->diag, d->line, d->name.column,
                       "cannot compile this config: it says %s%s = %s. %s is accepted.",
                       diag_text(d->name.text).text, of_layer, has.text, diag_text(rule).text);
}

static bool layers_known(Check *c, const AstDecl *d) {
    return c->layer_dim >= 0 ||
           diag_refuse(&c->diag, d->index_dim.line, d->index_dim.column,
                       "cannot give each layer a value: the dim of the layers is not known "
                       "here. A layer block, and its dim declared above, are accepted.");
}

/* `require KEY[l] == …` holds in every layer. */
static bool decl_require(Check *c, const AstDecl *d) {
    if (!d->index_dim.text.len)
        return require_one(c, d, -1);
    bool ok = layers_known(c, d);
    for (int layer = 0; ok && layer < c->layer_count; layer++)
        ok = require_one(c, d, layer);
    return ok;
}

static bool decl_ignore(Check *c, const AstDecl *d) {
    for (int i = 0; i < d->names.count; i++) {
        LgStr name = d->names.items[i].text;
        for (size_t k = 0; k < config_count(c->config); k++) {
            LgStr key = config_key(c->config, k);
            bool below = key.len > name.len && key.ptr[name.len] == '.' &&
                         lg_str_eq(lg_str_sub(key, 0, name.len), name);
            c->claimed[k] = c->claimed[k] || below || lg_str_eq(key, name);
        }
    }
    return true;
}

bool check_axes(Check *c, const AstAxes *axes, bool joins, LangTensor *t) {
    for (int i = 0; i < axes->count; i++) {
        const AstAxis *axis = &axes->items[i];
        if (i == LANG_RANK_MAX)
            return diag_refuse(&c->diag, axis->name.line, axis->name.column,
                               "cannot declare so many axes: a tensor has at most %d indexes. "
                               "Fewer are accepted.",
                               LANG_RANK_MAX);
        if (axis->joined && !joins)
            return diag_refuse(&c->diag, axis->name.line, axis->name.column,
                               "cannot join axes here: `*` tells how a checkpoint stores a param. "
                               "A comma is accepted.");
        int dim = check_dim(c, axis->name);
        if (dim < 0)
            return false;
        if (!axis->joined)
            t->axis_start[t->axis_count++] = i;
        t->dims[i] = dim;
        t->rank = i + 1;
    }
    t->axis_start[t->axis_count] = t->rank;
    uint64_t elems = 1;
    for (int i = 0; i < t->rank; i++) {
        uint64_t size = c->dims.items[t->dims[i]].runtime ? 1 : c->dims.items[t->dims[i]].size;
        if (size > CHECK_ELEMS_MAX / elems)
            return diag_refuse(&c->diag, axes->items[i].name.line, axes->items[i].name.column,
                               "cannot declare this tensor: its size overflows. At most 2^48 "
                               "elements are accepted.");
        elems *= size;
    }
    return true;
}

static bool decl_input(Check *c, const AstDecl *d) {
    LangTensor made = {.index_dim = -1};
    if (!check_axes(c, &d->axes, false, &made))
        return false;
    if (d->dtype_written && d->dtype != LANG_I32)
        return diag_refuse(&c->diag, d->line, d->column,
                           "cannot declare this input: inputs are whole numbers. `index D` and i32 "
                           "are accepted.");
    if (d->index_dim.text.len)
        made.index_dim = check_dim(c, d->index_dim);
    if (d->index_dim.text.len && made.index_dim < 0)
        return false;
    if (!c->dims.items[made.dims[0]].runtime)
        return diag_refuse(&c->diag, d->axes.items[0].name.line, d->axes.items[0].name.column,
                           "cannot declare this input: its first axis has a fixed size. A run-time "
                           "dim (`dim T`) is accepted there: inputs come row by row.");
    if (made.index_dim == made.dims[0])
        return diag_refuse(&c->diag, d->index_dim.line, d->index_dim.column,
                           "cannot declare this input: its rows would name rows of themselves. An "
                           "index of another dim is accepted.");
    int id = check_tensor_add(c, d->name, LANG_INPUT);
    if (id < 0)
        return false;
    LangTensor *t = &c->tensors.items[id];
    t->dtype = LANG_I32;
    t->dtype_written = true;
    t->rank = made.rank;
    t->axis_count = made.axis_count;
    t->index_dim = made.index_dim;
    memcpy(t->dims, made.dims, sizeof t->dims);
    memcpy(t->axis_start, made.axis_start, sizeof t->axis_start);
    c->infos.items[id].complete = true;
    return true;
}

/* A state is indexed by (slot, position), both run-time dims, and what one position holds. */
static bool decl_state(Check *c, const AstDecl *d) {
    LangTensor made = {.index_dim = -1};
    if (!check_axes(c, &d->axes, false, &made))
        return false;
    for (int i = 0; i < made.rank || i < 2; i++) {
        bool runtime = i < made.rank && c->dims.items[made.dims[i]].runtime;
        AstName at = i < made.rank ? d->axes.items[i].name : d->name;
        if (runtime != (i < 2) || (i == 1 && made.dims[0] == made.dims[1]))
            return diag_refuse(&c->diag, at.line, at.column,
                               "cannot declare this state: it is indexed by slot and position, and "
                               "what it holds has a fixed size. Two different run-time dims first, "
                               "then dims with sizes, are accepted.");
    }
    if (d->dtype_written && d->dtype == LANG_I32)
        return diag_refuse(&c->diag, d->line, d->column,
                           "cannot keep this state as i32: it holds computed values. f32, bf16, "
                           "f16 and f8 are accepted.");
    int id = check_tensor_add(c, d->name, LANG_STATE);
    if (id < 0)
        return false;
    LangTensor *t = &c->tensors.items[id];
    t->dtype_written = d->dtype_written;
    t->dtype = d->dtype_written ? d->dtype : LANG_BF16;
    t->rank = made.rank;
    t->axis_count = made.axis_count;
    memcpy(t->dims, made.dims, sizeof t->dims);
    memcpy(t->axis_start, made.axis_start, sizeof t->axis_start);
    return true;
}

/* A const of one value, or of one for each layer; those that turn out equal are one value. */
static bool decl_const(Check *c, const AstDecl *d) {
    CheckConst made = {.name = d->name.text, .line = d->line, .program_const = -1};
    bool each = d->index_dim.text.len > 0;
    if (each && !layers_known(c, d))
        return false;
    Fold f = {.layer = each ? 0 : -1, .index = d->index_dim.text};
    if (!fold_required(c, &f, d->expr, &made.number))
        return false;
    if (each) {
        double *values = ARENA_ARRAY(c->arena, double, (size_t)c->layer_count);
        if (!values)
            return diag_memory(&c->diag);
        bool differs = false;
        for (f.layer = 0; f.layer < c->layer_count; f.layer++) {
            if (!fold_required(c, &f, d->expr, &values[f.layer]))
                return false;
            differs = differs || values[f.layer] != values[0];
        }
        made.values = differs ? values : NULL;
    }
    if (!check_define(c, d->name, SYMBOL_CONST, c->consts.count))
        return false;
    if (!AST_LIST_ROOM(c->arena, c->consts))
        return diag_memory(&c->diag);
    c->consts.items[c->consts.count++] = made;
    return true;
}

static bool decl_lora(Check *c, const AstDecl *d) {
    if (c->lora)
        return diag_refuse(&c->diag, d->line, d->column,
                           "cannot list adapter sites twice: line %d does it already. One `lora` "
                           "line is accepted.",
                           c->lora->line);
    c->lora = d;
    return true;
}

static bool check_list(Check *c, const AstDecls *decls);

static bool decl_layer(Check *c, const AstDecl *d) {
    if (c->layer != d)
        return diag_refuse(&c->diag, d->line, d->column,
                           "cannot begin a second layer block: the layers of a model are one "
                           "block. Layers of several kinds by `const W[l] = if …` are accepted.");
    if (check_dim(c, d->index_dim) < 0)
        return false;
    if (check_find(c, d->name.text))
        return diag_refuse(&c->diag, d->name.line, d->name.column,
                           "cannot use %s as the layer's index: the name is taken. A name that is "
                           "not used yet is accepted.",
                           diag_text(d->name.text).text);
    c->in_layer = true;
    bool ok = check_list(c, &d->body);
    c->in_layer = false;
    return ok;
}

static bool check_decl(Check *c, const AstDecl *d) {
    switch (d->kind) {
    case AST_MODEL:
        return decl_model(c, d);
    case AST_DIM:
        return decl_dim(c, d);
    case AST_REQUIRE:
        return decl_require(c, d);
    case AST_IGNORE:
        return decl_ignore(c, d);
    case AST_INPUT:
        return decl_input(c, d);
    case AST_PARAM:
        return check_param(c, d);
    case AST_STATE:
        return decl_state(c, d);
    case AST_LORA:
        return decl_lora(c, d);
    case AST_CONST:
        return decl_const(c, d);
    case AST_LAYER:
        return decl_layer(c, d);
    case AST_STMT:
        break;
    }
    return true;
}

static bool check_list(Check *c, const AstDecls *decls) {
    for (int i = 0; i < decls->count; i++)
        if (!check_decl(c, &decls->items[i]))
            return false;
    return true;
}

bool check_decls(Check *c) {
    const AstDecls *all = &c->ast->decls;
    for (int i = 0; i < all->count && !c->layer; i++)
        if (all->items[i].kind == AST_LAYER)
            c->layer = &all->items[i];
    for (int i = 0; i < all->count; i++)
        if (all->items[i].kind == AST_MODEL && !decl_model(c, &all->items[i]))
            return false;
    if (!check_architecture(c))
        return false;
    c->model = NULL;
    return check_list(c, all);
}
