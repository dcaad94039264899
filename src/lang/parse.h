/* What the two halves of the parser share. One token is looked at; a refusal makes every later
 * token the end of the file, so that only the first one is told. */
#ifndef LG_LANG_PARSE_H
#define LG_LANG_PARSE_H

#include "lang/ast.h"
#include "lang/lex.h"

#define PARSE_DEPTH_MAX 64   /* nested parentheses, indexes, minus signs, else-branches */
#define PARSE_DECLS_MAX 8192 /* declarations and statements of a file or block */
#define PARSE_HEIGHT_MAX 200 /* operators on the longest path of one expression */

typedef struct Parser {
    Lexer lex;
    Token tok;
    Token last; /* the token before tok */
    Arena *arena;
    Diag *diag;
    int depth;
} Parser;

void parse_advance(Parser *p);
bool parse_accept(Parser *p, TokKind kind);
bool parse_expect(Parser *p, TokKind kind, const char *where);
bool parse_name(Parser *p, AstName *out, const char *what);
/* A refusal at the current token: what was found, and `wanted`. */
bool parse_unexpected(Parser *p, const char *wanted);
bool parse_enter(Parser *p); /* depth; leave with p->depth-- */

/* NULL or false: refused, or out of memory. */
const AstExpr *parse_expr(Parser *p);
const AstExpr *parse_rhs(Parser *p);
const AstExpr *parse_cexpr(Parser *p);
const AstCond *parse_cond(Parser *p);
const AstExpr *parse_dimexpr(Parser *p);
bool parse_value(Parser *p, ConfigValue *out);
bool parse_stmt(Parser *p, AstDecl *d);

#endif
