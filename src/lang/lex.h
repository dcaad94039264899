/* Tokens of `.lg` text. Spaces and comments are dropped here; ends of lines are tokens. */
#ifndef LG_LANG_LEX_H
#define LG_LANG_LEX_H

#include "lang/diag.h"
#include "lang/lang.h"

/* clang-format off */
#define LEX_PUNCT_MAP(X)                                                                                  \
    X(ADD_TO, "+=") X(WRITE, ":=") X(EQ, "==") X(NE, "!=") X(LE, "<=") X(GE, ">=")                        \
    X(LBRACKET, "[") X(RBRACKET, "]") X(LPAREN, "(") X(RPAREN, ")") X(LBRACE, "{") X(RBRACE, "}")         \
    X(COMMA, ",") X(COLON, ":") X(ASSIGN, "=") X(LT, "<") X(GT, ">") X(PLUS, "+") X(MINUS, "-") X(STAR, "*")         \
    X(SLASH, "/") X(CARET, "^")
#define LEX_WORD_MAP(X)                                                                                   \
    X(MODEL, "model") X(FOR, "for") X(DIM, "dim") X(REQUIRE, "require") X(OR, "or") X(IGNORE, "ignore")   \
    X(INPUT, "input") X(INDEX, "index") X(PARAM, "param") X(FROM, "from") X(STATE, "state")               \
    X(LORA, "lora") X(ON, "on") X(CONST, "const") X(LAYER, "layer") X(IN, "in") X(OUTPUT, "output")       \
    X(IF, "if") X(THEN, "then") X(ELSE, "else") X(TRUE, "true") X(FALSE, "false") X(NULL, "null")
/* clang-format on */

typedef enum TokKind {
    TOK_EOF,
    TOK_NL,
    TOK_NAME,
    TOK_NUMBER,
    TOK_STRING,
    TOK_FN,
    TOK_RED,
    TOK_DTYPE,
#define LEX_ENUM(id, text) TOK_##id,
    LEX_PUNCT_MAP(LEX_ENUM) LEX_WORD_MAP(LEX_ENUM)
#undef LEX_ENUM
} TokKind;

typedef struct Token {
    TokKind kind;
    LgStr text; /* STRING: without its quotes */
    int line, column;
    double number; /* NUMBER */
    bool integer;  /* NUMBER: digits alone */
    int id;        /* FN, RED, DTYPE: the LangFn, LangRed, LangDType */
} Token;

typedef struct Lexer {
    Diag *diag;
    const char *at, *end, *line_start;
    int line;
} Lexer;

/* Refuses what no token may hold: NULs, bytes that are no UTF-8, more than a megabyte. */
bool lex_open(Lexer *l, Diag *diag);
/* After a refusal every token is TOK_EOF. */
Token lex_next(Lexer *l);

/* "`[`", "a name", …: for messages. */
const char *lex_kind_text(TokKind kind);
const char *lang_dtype_text(LangDType dtype);

#endif
