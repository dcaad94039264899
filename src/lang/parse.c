/* Declarations and files: a function for each symbol of the grammar, its rule above it. */
#include "lang/parse.h"

#include <stdio.h>

void *ast_list_grow(Arena *arena, const void *items, int count, int *cap, size_t elem_bytes) {
    int more = count ? count * 2 : 4;
    void *grown = arena_grow(arena, items, (size_t)count, (size_t)more, elem_bytes);
    if (grown)
        *cap = more;
    return grown;
}

void parse_advance(Parser *p) {
    p->last = p->tok;
    p->tok = lex_next(&p->lex);
}

bool parse_accept(Parser *p, TokKind kind) {
    if (p->tok.kind != kind || p->diag->status != LG_OK)
        return false;
    parse_advance(p);
    return true;
}

static DiagText token_text(Token t) {
    if (t.kind == TOK_NL || t.kind == TOK_EOF)
        return diag_text(lg_str(lex_kind_text(t.kind)));
    DiagText inner = diag_text(t.text);
    DiagText out;
    const char *quote = t.kind == TOK_STRING ? "\"" : "`";
    snprintf(out.text, sizeof out.text, "%s%.64s%s", quote, inner.text, quote);
    return out;
}

bool parse_unexpected(Parser *p, const char *wanted) {
    return diag_refuse(p->diag, p->tok.line, p->tok.column,
                       "cannot parse: %s does not fit here. %s is accepted.",
                       token_text(p->tok).text, wanted);
}

bool parse_expect(Parser *p, TokKind kind, const char *where) {
    if (parse_accept(p, kind))
        return true;
    return diag_refuse(p->diag, p->tok.line, p->tok.column,
                       "cannot parse: %s comes after %s. Here %s is accepted.",
                       token_text(p->tok).text, where, lex_kind_text(kind));
}

bool parse_name(Parser *p, AstName *out, const char *what) {
    *out = (AstName){p->tok.text, p->tok.line, p->tok.column};
    if (parse_accept(p, TOK_NAME))
        return true;
    switch (p->tok.kind) {
    case TOK_EOF:
    case TOK_NL:
    case TOK_NUMBER:
    case TOK_STRING:
        return parse_unexpected(p, what);
    default:
        if (p->tok.kind >= TOK_ADD_TO && p->tok.kind <= TOK_CARET)
            return parse_unexpected(p, what);
        return diag_refuse(p->diag, p->tok.line, p->tok.column,
                           "cannot parse: %s is a word of the language. %s is accepted here.",
                           token_text(p->tok).text, what);
    }
}

bool parse_enter(Parser *p) {
    if (++p->depth <= PARSE_DEPTH_MAX)
        return true;
    return diag_refuse(p->diag, p->tok.line, p->tok.column,
                       "cannot parse: this is nested too deeply. At most %d levels are accepted: "
                       "name a part of it first.",
                       PARSE_DEPTH_MAX);
}

static bool names_push(Parser *p, AstNames *names, AstName name) {
    if (!AST_LIST_ROOM(p->arena, *names))
        return diag_memory(p->diag);
    names->items[names->count++] = name;
    return true;
}

/* NAME { "," NAME } */
static bool parse_names(Parser *p, AstNames *names, const char *what) {
    do {
        AstName name;
        if (!parse_name(p, &name, what) || !names_push(p, names, name))
            return false;
    } while (parse_accept(p, TOK_COMMA));
    return true;
}

/* decl = "model" NAME "for" STRING { "," STRING } */
static bool decl_model(Parser *p, AstDecl *d) {
    d->kind = AST_MODEL;
    if (!parse_name(p, &d->name, "The model's name") || !parse_expect(p, TOK_FOR, "the name"))
        return false;
    do {
        AstName name = {p->tok.text, p->tok.line, p->tok.column};
        if (!parse_expect(p, TOK_STRING, "`for`") || !names_push(p, &d->names, name))
            return false;
    } while (parse_accept(p, TOK_COMMA));
    return true;
}

/* decl = "dim" NAME [ "=" dimexpr ] { "," NAME [ "=" dimexpr ] } */
static bool decl_dim(Parser *p, AstDecl *d) {
    d->kind = AST_DIM;
    do {
        if (!AST_LIST_ROOM(p->arena, d->dims))
            return diag_memory(p->diag);
        AstDim *dim = &d->dims.items[d->dims.count++];
        *dim = (AstDim){0};
        if (!parse_name(p, &dim->name, "A dim's name"))
            return false;
        if (parse_accept(p, TOK_ASSIGN)) {
            dim->size = parse_dimexpr(p);
            if (!dim->size)
                return false;
        }
    } while (parse_accept(p, TOK_COMMA));
    return true;
}

/* NAME [ "[" NAME "]" ]: what the config or the page has once, or once for each layer. */
static bool parse_layered_name(Parser *p, AstDecl *d, const char *what) {
    if (!parse_name(p, &d->name, what))
        return false;
    return !parse_accept(p, TOK_LBRACKET) || (parse_name(p, &d->index_dim, "The layer's index") &&
                                              parse_expect(p, TOK_RBRACKET, "the index"));
}

/* decl = "require" NAME [ "[" NAME "]" ] ( "==" | "!=" | "<=" | ">=" ) value { "or" value } */
static bool decl_require(Parser *p, AstDecl *d) {
    d->kind = AST_REQUIRE;
    if (!parse_layered_name(p, d, "A key of the config"))
        return false;
    if (parse_accept(p, TOK_EQ))
        d->op = AST_EQ;
    else if (parse_accept(p, TOK_NE))
        d->op = AST_NE;
    else if (parse_accept(p, TOK_LE))
        d->op = AST_LE;
    else if (parse_accept(p, TOK_GE))
        d->op = AST_GE;
    else
        return parse_unexpected(p, "`==`, `!=`, `<=` or `>=`");
    do {
        if (!AST_LIST_ROOM(p->arena, d->values))
            return diag_memory(p->diag);
        if (!parse_value(p, &d->values.items[d->values.count]))
            return false;
        d->values.count++;
    } while (parse_accept(p, TOK_OR));
    return true;
}

/* decl = "ignore" NAME { "," NAME } */
static bool decl_ignore(Parser *p, AstDecl *d) {
    d->kind = AST_IGNORE;
    return parse_names(p, &d->names, "A key of the config");
}

/* axes = "[" NAME { ( "," | "*" ) NAME } "]" ; */
static bool parse_axes(Parser *p, AstAxes *axes) {
    if (!parse_expect(p, TOK_LBRACKET, "the tensor's name"))
        return false;
    bool joined = false;
    for (;;) {
        if (!AST_LIST_ROOM(p->arena, *axes))
            return diag_memory(p->diag);
        AstAxis *axis = &axes->items[axes->count++];
        *axis = (AstAxis){.joined = joined};
        if (!parse_name(p, &axis->name, "A dim"))
            return false;
        joined = parse_accept(p, TOK_STAR);
        if (!joined && !parse_accept(p, TOK_COMMA))
            return parse_expect(p, TOK_RBRACKET, "the dims");
    }
}

static bool parse_dtype(Parser *p, AstDecl *d) {
    d->dtype_written = true;
    d->dtype = (LangDType)p->tok.id;
    return parse_expect(p, TOK_DTYPE, "`:`");
}

/* decl = "input" NAME axes ":" type      type = DTYPE | "index" NAME ; */
static bool decl_input(Parser *p, AstDecl *d) {
    d->kind = AST_INPUT;
    if (!parse_name(p, &d->name, "An input's name") || !parse_axes(p, &d->axes) ||
        !parse_expect(p, TOK_COLON, "the axes"))
        return false;
    if (parse_accept(p, TOK_INDEX))
        return parse_name(p, &d->index_dim, "A dim after `index`");
    if (p->tok.kind != TOK_DTYPE)
        return parse_unexpected(p, "A type (`index D` or i32)");
    return parse_dtype(p, d);
}

/* src = STRING [ "from" expr ] | NAME | NUMBER ; */
static bool parse_src(Parser *p, AstSrcs *sources) {
    if (!AST_LIST_ROOM(p->arena, *sources))
        return diag_memory(p->diag);
    AstSrc *src = &sources->items[sources->count++];
    Token t = p->tok;
    *src = (AstSrc){.name = {t.text, t.line, t.column}, .number = t.number};
    if (parse_accept(p, TOK_STRING)) {
        src->kind = LANG_SOURCE_TENSOR;
        if (parse_accept(p, TOK_FROM)) {
            src->from = parse_expr(p);
            return src->from != NULL;
        }
    } else if (parse_accept(p, TOK_NAME)) {
        src->kind = LANG_SOURCE_PARAM;
    } else if (parse_accept(p, TOK_NUMBER)) {
        src->kind = LANG_SOURCE_NUMBER;
    } else {
        return parse_unexpected(p, "A checkpoint tensor's name, a param or a number");
    }
    return true;
}

/* source = src { "or" src } | "if" cond "then" src "else" src ; */
static bool parse_source(Parser *p, AstDecl *d) {
    if (parse_accept(p, TOK_IF)) {
        d->condition = parse_cond(p);
        return d->condition && parse_expect(p, TOK_THEN, "the condition") &&
               parse_src(p, &d->sources) && parse_expect(p, TOK_ELSE, "the first source") &&
               parse_src(p, &d->sources);
    }
    do {
        if (!parse_src(p, &d->sources))
            return false;
    } while (parse_accept(p, TOK_OR));
    return true;
}

/* decl = "param" NAME axes [ ":" DTYPE ] "=" source */
static bool decl_param(Parser *p, AstDecl *d) {
    d->kind = AST_PARAM;
    if (!parse_name(p, &d->name, "A param's name") || !parse_axes(p, &d->axes))
        return false;
    if (parse_accept(p, TOK_COLON) && !parse_dtype(p, d))
        return false;
    return parse_expect(p, TOK_ASSIGN, "the axes") && parse_source(p, d);
}

/* decl = "state" NAME axes [ ":" DTYPE ] */
static bool decl_state(Parser *p, AstDecl *d) {
    d->kind = AST_STATE;
    return parse_name(p, &d->name, "A state's name") && parse_axes(p, &d->axes) &&
           (!parse_accept(p, TOK_COLON) || parse_dtype(p, d));
}

/* decl = "lora" NAME "on" NAME { "," NAME } */
static bool decl_lora(Parser *p, AstDecl *d) {
    d->kind = AST_LORA;
    return parse_name(p, &d->name, "The input that names each row's adapter") &&
           parse_expect(p, TOK_ON, "the input") && parse_names(p, &d->names, "A param");
}

/* decl = "const" NAME [ "[" NAME "]" ] "=" cexpr */
static bool decl_const(Parser *p, AstDecl *d) {
    d->kind = AST_CONST;
    if (!parse_layered_name(p, d, "A const's name"))
        return false;
    if (!parse_expect(p, TOK_ASSIGN, "the const's name"))
        return false;
    d->expr = parse_cexpr(p);
    return d->expr != NULL;
}

static bool parse_decls(Parser *p, AstDecls *decls, bool in_layer);

/* decl = "layer" NAME "in" NAME "{" NL { [ decl ] NL } "}" */
static bool decl_layer(Parser *p, AstDecl *d) {
    d->kind = AST_LAYER;
    if (!parse_name(p, &d->name, "The layer's index") ||
        !parse_expect(p, TOK_IN, "the layer's index") ||
        !parse_name(p, &d->index_dim, "The dim of the layers") ||
        !parse_expect(p, TOK_LBRACE, "the dim"))
        return false;
    Token brace = p->last;
    if (!parse_expect(p, TOK_NL, "`{`") || !parse_decls(p, &d->body, true))
        return false;
    if (p->tok.kind == TOK_EOF)
        return diag_refuse(
            p->diag, brace.line, brace.column,
            "cannot parse: the layer block of this line is not closed. `}` on a line "
            "of its own is accepted.");
    return parse_expect(p, TOK_RBRACE, "the layer block");
}

typedef struct DeclRule {
    bool (*parse)(Parser *, AstDecl *);
    TokKind word;
    bool in_layer; /* may stand in a layer block */
} DeclRule;

static const DeclRule decl_rules[] = {
    {decl_model, TOK_MODEL, false},     {decl_dim, TOK_DIM, false},
    {decl_require, TOK_REQUIRE, false}, {decl_ignore, TOK_IGNORE, false},
    {decl_input, TOK_INPUT, false},     {decl_param, TOK_PARAM, true},
    {decl_state, TOK_STATE, true},      {decl_lora, TOK_LORA, false},
    {decl_const, TOK_CONST, true},      {decl_layer, TOK_LAYER, false},
};

/* From the declaration's first token to its last: without the comment. */
static LgStr text_between(Token from, Token last) {
    const char *end = last.text.ptr + last.text.len + (last.kind == TOK_STRING ? 1 : 0);
    const char *start = from.text.ptr;
    return (LgStr){start, (size_t)(end - start)};
}

/* decl = … | stmt ; */
static bool parse_decl(Parser *p, AstDecl *d, bool in_layer) {
    Token at = p->tok;
    *d = (AstDecl){.line = at.line, .column = at.column};
    bool ok = false;
    bool found = false;
    for (size_t i = 0; i < sizeof decl_rules / sizeof decl_rules[0] && !found; i++) {
        const DeclRule *rule = &decl_rules[i];
        if (rule->word != at.kind)
            continue;
        if (in_layer && !rule->in_layer)
            return diag_refuse(p->diag, at.line, at.column,
                               "cannot declare %s here: a layer block holds what each layer has. "
                               "param, state, const and statements are accepted.",
                               lex_kind_text(at.kind));
        found = true;
        parse_advance(p);
        ok = rule->parse(p, d);
    }
    if (!found && at.kind != TOK_NAME && at.kind != TOK_OUTPUT)
        return parse_unexpected(p, "A declaration or a statement");
    if (!found)
        ok = parse_stmt(p, d);
    if (ok)
        d->text = text_between(at, p->last);
    return ok;
}

/* { [ decl ] NL } up to the end of the file or the block; the last line needs no end. */
static bool parse_decls(Parser *p, AstDecls *decls, bool in_layer) {
    for (;;) {
        if (parse_accept(p, TOK_NL))
            continue;
        if (p->diag->status != LG_OK)
            return false;
        if (p->tok.kind == TOK_EOF || (in_layer && p->tok.kind == TOK_RBRACE))
            return true;
        if (decls->count == PARSE_DECLS_MAX)
            return diag_refuse(p->diag, p->tok.line, p->tok.column,
                               "cannot parse: the page is too long. At most %d declarations and "
                               "statements are accepted.",
                               PARSE_DECLS_MAX);
        if (!AST_LIST_ROOM(p->arena, *decls))
            return diag_memory(p->diag);
        if (!parse_decl(p, &decls->items[decls->count], in_layer))
            return false;
        decls->count++;
        if (p->tok.kind != TOK_EOF && !parse_expect(p, TOK_NL, "a whole line"))
            return false;
    }
}

/* file = { [ decl ] NL } ; */
bool ast_parse(Diag *diag, Arena *arena, AstFile *out) {
    Parser p = {.arena = arena, .diag = diag};
    *out = (AstFile){0};
    if (!lex_open(&p.lex, diag))
        return false;
    parse_advance(&p);
    return parse_decls(&p, &out->decls, false) && diag->status == LG_OK;
}
