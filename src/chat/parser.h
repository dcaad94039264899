/* Inside of the parser: what its two files share. */
#ifndef LG_CHAT_PARSER_H
#define LG_CHAT_PARSER_H

#include "chat/tree.h"

typedef struct TplParser {
    Arena *arena;
    TplTokens tokens;
    size_t at;
    size_t nesting;
    size_t loops;            /* that are open around the statement, in its macro */
    size_t branches;         /* open ones: what may never be reached */
    const TplToken *unknown; /* the first filter or test outside of a branch that is not served;
                                refused at the end */
    bool unknown_test;
    LgError *err;
} TplParser;

const TplToken *tpl_token(const TplParser *p);
const TplToken *tpl_token_after(const TplParser *p);
bool tpl_at_op(const TplParser *p, const char *op);
bool tpl_at_name(const TplParser *p, const char *name);
bool tpl_skip_op(TplParser *p, const char *op); /* consumes it where it is there */
bool tpl_skip_name(TplParser *p, const char *name);
LgStatus tpl_expect_op(TplParser *p, const char *op);
LgStatus tpl_expect_name(TplParser *p, const TplToken **out); /* any name */
LgStatus tpl_fail_token(const TplParser *p, const char *expected);
LgStatus tpl_node(TplParser *p, TplKind kind, TplNode **out); /* at the current token */
LgStatus tpl_append(TplParser *p, TplList *list, const TplNode *node);
LgStatus tpl_enter(TplParser *p);
void tpl_leave(TplParser *p);

LgStatus tpl_parse_expression(TplParser *p, bool conditional, const TplNode **out);
/* An expression, or several with commas: a tuple. */
LgStatus tpl_parse_tuple(TplParser *p, bool conditional, const TplNode **out);
/* Names, or namespace.attribute where `attribute` is set, or several with commas. */
LgStatus tpl_parse_target(TplParser *p, bool attribute, const TplNode **out);
LgStatus tpl_parse_filter(TplParser *p, const TplNode *value, const TplNode **out);
LgStatus tpl_parse_filters(TplParser *p, const TplNode *value, const TplNode **out);

#endif
