/* The way through the checker: tree, declarations, statements in order, sites, claims, and the
 * program that comes of it. */
#include <assert.h>
#include <stdarg.h>

#include "lang/check.h"

static Diag diag_open(LgStr source, LgStr file, LgError *err) {
    return (Diag){.file = file, .source = source, .err = err, .status = LG_OK};
}

LgStatus lang_refuse(const LangProgram *p, int line, int column, LgError *err, const char *format,
                     ...) {
    Diag d = diag_open(p->source, p->file, err);
    va_list args;
    va_start(args, format);
    diag_refuse_v(&d, line, column, format, args);
    va_end(args);
    return d.status;
}

LgStatus lang_models(LgStr source, const char *file, Arena *arena, LgStr *model,
                     const LgStr **names, int *count, LgError *err) {
    Diag d = diag_open(source, lg_str(file), err);
    AstFile ast;
    if (!ast_parse(&d, arena, &ast))
        return d.status;
    const AstDecl *found = NULL;
    for (int i = 0; i < ast.decls.count && !found; i++)
        if (ast.decls.items[i].kind == AST_MODEL)
            found = &ast.decls.items[i];
    if (!found) {
        diag_refuse(&d, 1, 0,
                    "cannot tell what the page serves: it names no model. A line `model NAME for "
                    "\"Architecture\"` is accepted.");
        return d.status;
    }
    LgStr *list = ARENA_ARRAY(arena, LgStr, (size_t)found->names.count);
    LgStr name = arena_str(arena, found->name.text);
    bool ok = list && name.ptr;
    for (int i = 0; ok && i < found->names.count; i++) {
        list[i] = arena_str(arena, found->names.items[i].text);
        ok = list[i].ptr != NULL;
    }
    if (!ok) {
        diag_memory(&d);
        return d.status;
    }
    *model = name;
    *names = list;
    *count = found->names.count;
    return LG_OK;
}

static bool check_layer(Check *c) {
    c->in_layer = true;
    c->layer_begin = c->stmts.count;
    for (int i = 0; i < c->layer->body.count; i++)
        if (c->layer->body.items[i].kind == AST_STMT && !check_stmt(c, &c->layer->body.items[i]))
            return false;
    c->layer_end = c->stmts.count;
    c->in_layer = false;
    return check_complete(c, true);
}

static bool check_stmts(Check *c) {
    for (int i = 0; i < c->ast->decls.count; i++) {
        const AstDecl *d = &c->ast->decls.items[i];
        if (d->kind == AST_LAYER && !check_layer(c))
            return false;
        if (d->kind == AST_STMT && !check_stmt(c, d))
            return false;
    }
    if (!check_complete(c, false))
        return false;
    if (c->output_count == 0)
        return diag_refuse(&c->diag, c->model->line, 0,
                           "cannot compile: the page has no output. A statement `output "
                           "logits[n,v] = …` is accepted.");
    return true;
}

static bool check_lora_input(Check *c) {
    c->lora_input = -1;
    if (!c->lora)
        return true;
    AstName name = c->lora->name;
    const Symbol *s = check_find(c, name.text);
    const LangTensor *t = s && s->kind == SYMBOL_TENSOR ? &c->tensors.items[s->id] : NULL;
    bool ok = t && t->kind == LANG_INPUT && t->rank == 1 && t->index_dim >= 0 &&
              c->dims.items[t->index_dim].runtime;
    if (!ok)
        return diag_refuse(&c->diag, name.line, name.column,
                           "cannot take adapters from %s: it is no input that names each row's "
                           "adapter. `input ad[T]: index A`, A a run-time dim, is accepted.",
                           diag_text(name.text).text);
    c->lora_input = s->id;
    return true;
}

static bool check_file(Check *c) {
    size_t keys = config_count(c->config);
    c->claimed = ARENA_ARRAY(c->arena, bool, keys);
    if (!c->claimed)
        return diag_memory(&c->diag);
    return check_decls(c) && check_lora_input(c) && check_roles(c) && check_stmts(c) &&
           check_windows(c) && check_sites(c) && check_claims(c);
}

static LangProgram *program_new(const Check *c) {
    LangProgram *p = ARENA_NEW(c->arena, LangProgram);
    if (!p)
        return NULL;
    *p = (LangProgram){.name = c->model->name.text,
                       .file = c->diag.file,
                       .source = c->diag.source,
                       .layer_count = c->layer ? c->layer_count : 0,
                       .layer_dim = c->layer ? c->layer_dim : -1,
                       .dims = c->dims.items,
                       .dim_count = c->dims.count,
                       .consts = c->layer_consts.items,
                       .const_count = c->layer_consts.count,
                       .tensors = c->tensors.items,
                       .tensor_count = c->tensors.count,
                       .stmts = c->stmts.items,
                       .stmt_count = c->stmts.count,
                       .layer_begin = c->layer_begin,
                       .layer_end = c->layer_end,
                       .sites = c->sites.items,
                       .site_count = c->sites.count,
                       .lora_input = c->lora_input};
    return p;
}

LgStatus lang_compile(LgStr source, const char *file, const Config *config, Arena *arena,
                      LangProgram **out, LgError *err) {
    assert(config && file);
    LgStr text = arena_str(arena, source);
    LgStr name = arena_str(arena, lg_str(file));
    if (!text.ptr || !name.ptr)
        return lg_fail_memory(err);
    Check c = {.diag = diag_open(text, name, err), .arena = arena, .config = config};
    c.layer_dim = -1;
    AstFile ast;
    if (!ast_parse(&c.diag, arena, &ast))
        return c.diag.status;
    c.ast = &ast;
    if (!check_file(&c))
        return c.diag.status;
    LangProgram *p = program_new(&c);
    if (!p)
        return lg_fail_memory(err);
    *out = p;
    return LG_OK;
}
