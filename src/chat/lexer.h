/* From a template's text to tokens. Whitespace control is done here: the data tokens are what is
 * rendered. */
#ifndef LG_CHAT_LEXER_H
#define LG_CHAT_LEXER_H

#include "base/arena.h"
#include "base/status.h"

typedef enum TplTokenKind {
    TPL_TOK_END,
    TPL_TOK_DATA,
    TPL_TOK_PRINT_BEGIN,
    TPL_TOK_PRINT_END,
    TPL_TOK_BLOCK_BEGIN,
    TPL_TOK_BLOCK_END,
    TPL_TOK_NAME,
    TPL_TOK_STRING, /* text is unescaped */
    TPL_TOK_INT,
    TPL_TOK_FLOAT,
    TPL_TOK_OP
} TplTokenKind;

typedef struct TplToken {
    TplTokenKind kind;
    uint32_t line;
    size_t offset; /* in the source with its line ends normalized */
    LgStr text;
    union {
        int64_t integer;
        double real;
    } as;
} TplToken;

typedef struct TplTokens {
    LgStr source; /* line ends normalized, one at the end dropped */
    TplToken *items;
    size_t count, cap;
} TplTokens;

/* All memory is the arena's. */
LgStatus tpl_lex(Arena *arena, LgStr source, TplTokens *out, LgError *err);

/* "line 3, column 7: …"; the error's offset is the line. */
LgStatus tpl_fail_at(LgError *err, LgStr source, size_t offset, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

bool tpl_is_space(uint32_t code); /* Python's str.isspace */
size_t tpl_skip_space(LgStr s, size_t at);
LgStr tpl_strip_right(LgStr s);

#endif
