/* Expressions and statements: a function for each symbol of the grammar, its rule above it. */
#include "lang/parse.h"

#include <stdio.h>
#include <string.h>

static AstExpr *node_new(Parser *p, AstExprKind kind, int line, int column) {
    AstExpr *e = ARENA_NEW(p->arena, AstExpr);
    if (!e) {
        diag_memory(p->diag);
        return NULL;
    }
    e->kind = kind;
    e->line = line;
    e->column = column;
    e->height = 1;
    return e;
}

static bool node_arg(Parser *p, AstExpr *e, const AstExpr *arg) {
    if (!arg)
        return false;
    e->args[e->arg_count++] = arg;
    if (arg->height >= e->height)
        e->height = arg->height + 1;
    if (e->height > PARSE_HEIGHT_MAX)
        return diag_refuse(p->diag, e->line, e->column,
                           "cannot parse: the expression is too deep. At most %d operators on a "
                           "path are accepted: name a part of it first.",
                           PARSE_HEIGHT_MAX);
    return true;
}

static const AstExpr *node_binary(Parser *p, AstExprKind kind, Token op, const AstExpr *a,
                                  const AstExpr *b) {
    AstExpr *e = a && b ? node_new(p, kind, op.line, op.column) : NULL;
    return e && node_arg(p, e, a) && node_arg(p, e, b) ? e : NULL;
}

/* value = NUMBER | STRING | "true" | "false" | "null" | "[" "]" ; */
bool parse_value(Parser *p, ConfigValue *out) {
    *out = (ConfigValue){.kind = CONFIG_NULL};
    Token t = p->tok;
    if (parse_accept(p, TOK_NUMBER)) {
        out->kind = CONFIG_REAL;
        out->real = t.number;
    } else if (parse_accept(p, TOK_STRING)) {
        out->kind = CONFIG_STRING;
        out->string = t.text;
    } else if (parse_accept(p, TOK_TRUE) || parse_accept(p, TOK_FALSE)) {
        out->kind = CONFIG_BOOL;
        out->boolean = t.kind == TOK_TRUE;
    } else if (parse_accept(p, TOK_LBRACKET)) {
        out->kind = CONFIG_LIST;
        return parse_expect(p, TOK_RBRACKET, "the empty list");
    } else if (!parse_accept(p, TOK_NULL)) {
        return parse_unexpected(p, "A value (a number, a string, true, false, null or [])");
    }
    return true;
}

static bool parse_indexes(Parser *p, AstIndexes *out, bool target);

/* index = INT | NAME [ "[" index { "," index } "]" ] ; */
static bool parse_index(Parser *p, AstIndex *out) {
    *out = (AstIndex){0};
    Token t = p->tok;
    if (t.kind == TOK_NUMBER) {
        if (!t.integer || t.number > 2147483647.0)
            return parse_unexpected(p, "A whole number below 2^31 as an index");
        parse_advance(p);
        out->name.line = t.line;
        out->name.column = t.column;
        out->value = (int64_t)t.number;
    } else {
        if (!parse_name(p, &out->name, "An index (a name, a number or a lookup)"))
            return false;
        if (parse_accept(p, TOK_LBRACKET)) {
            out->bracketed = true;
            if (!parse_indexes(p, &out->indexes, false))
                return false;
        }
    }
    switch (p->tok.kind) {
    case TOK_PLUS:
    case TOK_MINUS:
    case TOK_STAR:
    case TOK_SLASH:
    case TOK_CARET:
        return diag_refuse(p->diag, p->tok.line, p->tok.column,
                           "cannot parse: there is no arithmetic on an index. A name, a number or "
                           "a lookup is accepted; splits and merges of axes are declared "
                           "(`w[A*B, E]`).");
    default:
        return true;
    }
}

/* tindex = index [ "in" NAME ] ;  The list with its closing bracket; the opening one is read. */
static bool parse_indexes(Parser *p, AstIndexes *out, bool target) {
    if (!parse_enter(p))
        return false;
    do {
        if (!AST_LIST_ROOM(p->arena, *out))
            return diag_memory(p->diag);
        AstIndex *index = &out->items[out->count];
        if (!parse_index(p, index))
            return false;
        out->count++;
        if (target && parse_accept(p, TOK_IN) && !parse_name(p, &index->in, "A dim after `in`"))
            return false;
    } while (parse_accept(p, TOK_COMMA));
    p->depth--;
    return parse_expect(p, TOK_RBRACKET, "the indexes");
}

/* ref = NAME [ "[" index { "," index } "]" ] ; */
static bool parse_ref(Parser *p, AstIndex *out) {
    *out = (AstIndex){0};
    if (!parse_name(p, &out->name, "A name"))
        return false;
    if (!parse_accept(p, TOK_LBRACKET))
        return true;
    out->bracketed = true;
    return parse_indexes(p, &out->indexes, false);
}

static const AstExpr *parse_ref_node(Parser *p) {
    AstExpr *e = node_new(p, AST_REF, p->tok.line, p->tok.column);
    return e && parse_ref(p, &e->ref) ? e : NULL;
}

/* cond = ref [ ( "==" | "!=" ) value | ( "<" | "<=" | ">" | ">=" ) expr ] ; */
const AstCond *parse_cond(Parser *p) {
    AstCond *c = ARENA_NEW(p->arena, AstCond);
    if (!c) {
        diag_memory(p->diag);
        return NULL;
    }
    if (!parse_ref(p, &c->ref))
        return NULL;
    static const struct {
        TokKind token;
        AstCompare op;
    } ops[] = {{TOK_EQ, AST_EQ}, {TOK_NE, AST_NE}, {TOK_LT, AST_LT},
               {TOK_LE, AST_LE}, {TOK_GT, AST_GT}, {TOK_GE, AST_GE}};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0] && c->op == AST_TRUE; i++)
        if (parse_accept(p, ops[i].token))
            c->op = ops[i].op;
    if (c->op == AST_TRUE)
        return c;
    if (c->op == AST_EQ || c->op == AST_NE)
        return parse_value(p, &c->value) ? c : NULL;
    c->number = parse_expr(p);
    return c->number ? c : NULL;
}

/* "if" cond "then" X "else" X, where X is a rhs or a cexpr; `if` is read. */
static const AstExpr *parse_if(Parser *p, Token at, const AstExpr *(*branch)(Parser *)) {
    AstExpr *e = node_new(p, AST_IF, at.line, at.column);
    if (!e || !parse_enter(p))
        return NULL;
    e->parens = branch == parse_rhs;
    e->cond = parse_cond(p);
    if (e->cond && e->cond->number && e->cond->number->height >= e->height)
        e->height = e->cond->number->height + 1;
    if (!e->cond || !parse_expect(p, TOK_THEN, "the condition") || !node_arg(p, e, branch(p)) ||
        !parse_expect(p, TOK_ELSE, "the first branch") || !node_arg(p, e, branch(p)))
        return NULL;
    p->depth--;
    return e;
}

/* atom = FN "(" rhs { "," expr } ")" | … */
static const AstExpr *parse_call(Parser *p) {
    AstExpr *e = node_new(p, AST_CALL, p->tok.line, p->tok.column);
    if (!e || !parse_enter(p))
        return NULL;
    e->fn = (LangFn)p->tok.id;
    parse_advance(p);
    if (!parse_expect(p, TOK_LPAREN, "a function's name") || !node_arg(p, e, parse_rhs(p)))
        return NULL;
    while (parse_accept(p, TOK_COMMA)) {
        if (e->arg_count == lang_fn_args(e->fn))
            break;
        if (!node_arg(p, e, parse_expr(p)))
            return NULL;
    }
    if (e->arg_count != lang_fn_args(e->fn) || p->last.kind == TOK_COMMA) {
        diag_refuse(p->diag, e->line, e->column,
                    "cannot parse: %s is given another number of arguments. %d %s accepted.",
                    lang_fn_text(e->fn), lang_fn_args(e->fn),
                    lang_fn_args(e->fn) == 1 ? "is" : "are");
        return NULL;
    }
    p->depth--;
    return parse_expect(p, TOK_RPAREN, "the arguments") ? e : NULL;
}

/* A name in front of a parenthesis can only be meant as a function. */
static const AstExpr *refuse_function(Parser *p, const AstExpr *e) {
    char known[256] = "";
    for (int fn = 0; fn < LANG_FN_COUNT; fn++) {
        const size_t at = strlen(known);
        snprintf(known + at, sizeof known - at, "%s%s", fn ? ", " : "", lang_fn_text((LangFn)fn));
    }
    diag_refuse(p->diag, e->line, e->column,
                "cannot parse: there is no function %.*s. One of %s is accepted.",
                LG_STR_ARG(e->ref.name.text), known);
    return NULL;
}

/* atom = NUMBER | FN "(" rhs { "," expr } ")" | "(" rhs ")" | "(" "if" cond "then" rhs "else" rhs
 * ")" | ref ; */
static const AstExpr *parse_atom(Parser *p) {
    Token t = p->tok;
    if (t.kind == TOK_FN)
        return parse_call(p);
    if (t.kind == TOK_NAME) {
        const AstExpr *e = parse_ref_node(p);
        return e && !e->ref.bracketed && p->tok.kind == TOK_LPAREN ? refuse_function(p, e) : e;
    }
    if (parse_accept(p, TOK_NUMBER)) {
        AstExpr *e = node_new(p, AST_NUMBER, t.line, t.column);
        if (e)
            e->number = t.number;
        return e;
    }
    if (t.kind == TOK_LPAREN) {
        if (!parse_enter(p))
            return NULL;
        parse_advance(p);
        Token inner = p->tok;
        bool is_if = parse_accept(p, TOK_IF);
        const AstExpr *e = is_if ? parse_if(p, inner, parse_rhs) : parse_rhs(p);
        p->depth--;
        return e && parse_expect(p, TOK_RPAREN, "the parenthesis") ? e : NULL;
    }
    if (t.kind == TOK_RED)
        diag_refuse(p->diag, t.line, t.column,
                    "cannot parse: %s is a part of a larger expression. A reduction as the whole "
                    "right side, or alone in parentheses, is accepted.",
                    lang_red_text((LangRed)t.id));
    else
        parse_unexpected(p, "A number, a name, a function or a parenthesis");
    return NULL;
}

/* unary = "-" unary | atom [ "^" unary ] ; */
static const AstExpr *parse_unary(Parser *p) {
    Token t = p->tok;
    if (!parse_enter(p))
        return NULL;
    const AstExpr *e;
    if (parse_accept(p, TOK_MINUS)) {
        const AstExpr *arg = parse_unary(p);
        AstExpr *neg = arg ? node_new(p, AST_NEG, t.line, t.column) : NULL;
        e = neg && node_arg(p, neg, arg) ? neg : NULL;
    } else {
        e = parse_atom(p);
        Token op = p->tok;
        if (e && parse_accept(p, TOK_CARET))
            e = node_binary(p, AST_POW, op, e, parse_unary(p));
    }
    p->depth--;
    return e;
}

/* term = unary { ( "*" | "/" ) unary } ; */
static const AstExpr *parse_term(Parser *p) {
    const AstExpr *e = parse_unary(p);
    while (e) {
        Token op = p->tok;
        if (parse_accept(p, TOK_STAR))
            e = node_binary(p, AST_MUL, op, e, parse_unary(p));
        else if (parse_accept(p, TOK_SLASH))
            e = node_binary(p, AST_DIV, op, e, parse_unary(p));
        else
            break;
    }
    return e;
}

/* expr = term { ( "+" | "-" ) term } ; */
const AstExpr *parse_expr(Parser *p) {
    const AstExpr *e = parse_term(p);
    while (e) {
        Token op = p->tok;
        if (parse_accept(p, TOK_PLUS))
            e = node_binary(p, AST_ADD, op, e, parse_term(p));
        else if (parse_accept(p, TOK_MINUS))
            e = node_binary(p, AST_SUB, op, e, parse_term(p));
        else
            break;
    }
    return e;
}

/* bind = expr [ "<" NAME ] [ "<=" ref ] ; */
static bool parse_bind(Parser *p, AstBind *out) {
    *out = (AstBind){0};
    Token at = p->tok;
    const AstExpr *e = parse_expr(p);
    if (!e)
        return false;
    if (parse_accept(p, TOK_LT)) {
        out->lower = e;
        if (!parse_name(p, &out->name, "An index after `<`"))
            return false;
    } else {
        if (e->kind != AST_REF || e->ref.bracketed)
            return diag_refuse(p->diag, at.line, at.column,
                               "cannot parse: a reduction binds an index, and this is none. "
                               "`i`, `s <= pos[t]` and `pos[t] - W < s <= pos[t]` are accepted.");
        out->name = e->ref.name;
    }
    if (parse_accept(p, TOK_LE)) {
        out->upper = parse_ref_node(p);
        if (!out->upper)
            return false;
    }
    return true;
}

/* rhs = RED bind { "," bind } ":" expr | expr ; */
const AstExpr *parse_rhs(Parser *p) {
    Token t = p->tok;
    if (!parse_accept(p, TOK_RED))
        return parse_expr(p);
    AstExpr *e = node_new(p, AST_REDUCE, t.line, t.column);
    if (!e || !parse_enter(p))
        return NULL;
    e->red = (LangRed)t.id;
    do {
        if (!AST_LIST_ROOM(p->arena, e->binds)) {
            diag_memory(p->diag);
            return NULL;
        }
        if (!parse_bind(p, &e->binds.items[e->binds.count]))
            return NULL;
        e->binds.count++;
    } while (parse_accept(p, TOK_COMMA));
    if (!parse_expect(p, TOK_COLON, "the bound indexes") || !node_arg(p, e, parse_expr(p)))
        return NULL;
    p->depth--;
    return e;
}

/* dimexpr = expr [ "or" expr ] ; */
const AstExpr *parse_dimexpr(Parser *p) {
    const AstExpr *e = parse_expr(p);
    Token op = p->tok;
    if (e && parse_accept(p, TOK_OR))
        e = node_binary(p, AST_OR, op, e, parse_expr(p));
    return e;
}

/* cexpr = "if" cond "then" cexpr "else" cexpr | expr [ "or" expr ] ; */
const AstExpr *parse_cexpr(Parser *p) {
    Token t = p->tok;
    return parse_accept(p, TOK_IF) ? parse_if(p, t, parse_cexpr) : parse_dimexpr(p);
}

/* target = NAME "[" tindex { "," tindex } "]" ; */
static bool parse_target(Parser *p, AstTarget *out) {
    return parse_name(p, &out->name, "A tensor to define") &&
           parse_expect(p, TOK_LBRACKET, "the name of what the statement defines") &&
           parse_indexes(p, &out->indexes, true);
}

/* stmt = [ "output" ] target [ "," target ] [ ":" DTYPE ] ( "=" | "+=" | ":=" ) rhs ; */
bool parse_stmt(Parser *p, AstDecl *d) {
    d->kind = AST_STMT;
    d->output = parse_accept(p, TOK_OUTPUT);
    d->target_count = 1;
    if (!parse_target(p, &d->targets[0]))
        return false;
    if (parse_accept(p, TOK_COMMA)) {
        d->target_count = 2;
        if (!parse_target(p, &d->targets[1]))
            return false;
    }
    d->name = d->targets[0].name;
    if (parse_accept(p, TOK_COLON)) {
        d->dtype_written = true;
        d->dtype = (LangDType)p->tok.id;
        if (!parse_expect(p, TOK_DTYPE, "`:`"))
            return false;
    }
    if (parse_accept(p, TOK_ADD_TO))
        d->stmt_op = LANG_ADD_TO;
    else if (parse_accept(p, TOK_WRITE))
        d->stmt_op = LANG_WRITE;
    else if (!parse_accept(p, TOK_ASSIGN))
        return parse_unexpected(p, "`=`, `+=` or `:=`");
    d->expr = parse_rhs(p);
    return d->expr != NULL;
}
