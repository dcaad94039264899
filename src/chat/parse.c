/* Statements. What is no statement of the subset is refused with the list of those that are. */
#include <string.h>

#include "base/utf8.h"
#include "chat/library.h"
#include "chat/parser.h"

static LgStatus parse_body(TplParser *p, TplList *out, const char *const *ends);

const TplToken *tpl_token(const TplParser *p) {
    return &p->tokens.items[p->at];
}

const TplToken *tpl_token_after(const TplParser *p) {
    return &p->tokens.items[p->at + 1 < p->tokens.count ? p->at + 1 : p->at];
}

bool tpl_at_op(const TplParser *p, const char *op) {
    return tpl_token(p)->kind == TPL_TOK_OP && lg_str_eq_c(tpl_token(p)->text, op);
}

bool tpl_at_name(const TplParser *p, const char *name) {
    return tpl_token(p)->kind == TPL_TOK_NAME && lg_str_eq_c(tpl_token(p)->text, name);
}

bool tpl_skip_op(TplParser *p, const char *op) {
    bool there = tpl_at_op(p, op);
    p->at += there;
    return there;
}

bool tpl_skip_name(TplParser *p, const char *name) {
    bool there = tpl_at_name(p, name);
    p->at += there;
    return there;
}

LgStatus tpl_fail_token(const TplParser *p, const char *expected) {
    const TplToken *t = tpl_token(p);
    Buf shown;
    buf_init(&shown);
    if (t->kind == TPL_TOK_END)
        buf_puts(&shown, "the end of the template");
    else if (t->kind == TPL_TOK_DATA)
        buf_puts(&shown, "text");
    else
        buf_printable(&shown, t->text, 60);
    LgStatus status = tpl_fail_at(p->err, p->tokens.source, t->offset, "expected %s, found %s",
                                  expected, shown.data);
    buf_clear(&shown);
    return status;
}

LgStatus tpl_expect_op(TplParser *p, const char *op) {
    return tpl_skip_op(p, op) ? LG_OK : tpl_fail_token(p, op);
}

LgStatus tpl_expect_name(TplParser *p, const TplToken **out) {
    *out = tpl_token(p);
    if ((*out)->kind != TPL_TOK_NAME)
        return tpl_fail_token(p, "a name");
    p->at++;
    return LG_OK;
}

LgStatus tpl_node(TplParser *p, TplKind kind, TplNode **out) {
    TplNode *node = ARENA_NEW(p->arena, TplNode);
    if (!node)
        return p->arena->used_bytes > TPL_TREE_BYTES_MAX - 4096
                   ? lg_fail(p->err, LG_LIMIT, 0,
                             "chat template: too large, limit %zu bytes of parsed form",
                             TPL_TREE_BYTES_MAX)
                   : lg_fail_memory(p->err);
    node->kind = kind;
    node->line = tpl_token(p)->line;
    *out = node;
    return LG_OK;
}

LgStatus tpl_append(TplParser *p, TplList *list, const TplNode *node) {
    if (list->count == list->cap) {
        size_t cap = list->cap ? list->cap * 2 : 4;
        const TplNode **items =
            arena_grow(p->arena, list->items, list->count, cap, sizeof(const TplNode *));
        if (!items)
            return lg_fail_memory(p->err);
        list->items = items;
        list->cap = cap;
    }
    list->items[list->count++] = node;
    return LG_OK;
}

LgStatus tpl_enter(TplParser *p) {
    const TplToken *t = tpl_token(p);
    if (p->nesting >= TPL_NESTING_MAX)
        return lg_fail(p->err, LG_LIMIT, t->line,
                       "chat template: line %u: nested deeper than %d levels", t->line,
                       TPL_NESTING_MAX);
    p->nesting++;
    return LG_OK;
}

void tpl_leave(TplParser *p) {
    p->nesting--;
}

static LgStatus expect_block_end(TplParser *p) {
    if (tpl_token(p)->kind != TPL_TOK_BLOCK_END)
        return tpl_fail_token(p, "%}");
    p->at++;
    return LG_OK;
}

/* {% word %}, at its word. */
static LgStatus expect_end(TplParser *p, const char *word) {
    if (!tpl_skip_name(p, word))
        return tpl_fail_token(p, word);
    return expect_block_end(p);
}

static LgStatus parse_if(TplParser *p, TplNode *node) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const last[] = {"endif", NULL};
    for (;;) {
        LG_TRY(tpl_parse_tuple(p, false, &node->a));
        LG_TRY(expect_block_end(p));
        p->branches++;
        LG_TRY(parse_body(p, &node->body, ends));
        p->branches--;
        if (!tpl_at_name(p, "elif"))
            break;
        TplNode *next;
        LG_TRY(tpl_node(p, TPL_IF, &next));
        p->at++;
        LG_TRY(tpl_append(p, &node->other, next));
        node = next;
    }
    if (tpl_skip_name(p, "else")) {
        LG_TRY(expect_block_end(p));
        p->branches++;
        LG_TRY(parse_body(p, &node->other, last));
        p->branches--;
    }
    return expect_end(p, "endif");
}

static LgStatus parse_for(TplParser *p, TplNode *node) {
    static const char *const ends[] = {"else", "endfor", NULL};
    static const char *const last[] = {"endfor", NULL};
    node->kind = TPL_FOR;
    LG_TRY(tpl_parse_target(p, false, &node->b));
    if (!tpl_skip_name(p, "in"))
        return tpl_fail_token(p, "in");
    LG_TRY(tpl_parse_tuple(p, false, &node->a));
    if (tpl_skip_name(p, "if"))
        LG_TRY(tpl_parse_expression(p, true, &node->c));
    if (tpl_at_name(p, "recursive"))
        return tpl_fail_token(p, "%} (recursive loops are not served)");
    LG_TRY(expect_block_end(p));
    p->loops++;
    LG_TRY(parse_body(p, &node->body, ends));
    p->loops--;
    if (tpl_skip_name(p, "else")) {
        LG_TRY(expect_block_end(p));
        LG_TRY(parse_body(p, &node->other, last));
    }
    return expect_end(p, "endfor");
}

static LgStatus parse_set(TplParser *p, TplNode *node) {
    static const char *const ends[] = {"endset", NULL};
    LG_TRY(tpl_parse_target(p, true, &node->b));
    if (tpl_skip_op(p, "=")) {
        node->kind = TPL_SET;
        LG_TRY(tpl_parse_tuple(p, true, &node->a));
        return expect_block_end(p);
    }
    node->kind = TPL_SET_BLOCK;
    LG_TRY(tpl_parse_filters(p, NULL, &node->a));
    LG_TRY(expect_block_end(p));
    LG_TRY(parse_body(p, &node->body, ends));
    return expect_end(p, "endset");
}

static LgStatus parse_parameters(TplParser *p, TplNode *node) {
    LG_TRY(tpl_expect_op(p, "("));
    while (!tpl_at_op(p, ")")) {
        TplNode *parameter;
        const TplToken *name;
        LG_TRY(tpl_node(p, TPL_NAME, &parameter));
        LG_TRY(tpl_expect_name(p, &name));
        parameter->name = name->text;
        LG_TRY(tpl_append(p, &node->items, parameter));
        if (tpl_skip_op(p, "=")) {
            const TplNode *value;
            LG_TRY(tpl_parse_expression(p, true, &value));
            LG_TRY(tpl_append(p, &node->named, value));
        } else if (node->named.count) {
            return tpl_fail_token(p, "a default (the parameter before has one)");
        }
        if (!tpl_skip_op(p, ","))
            break;
    }
    return tpl_expect_op(p, ")");
}

static LgStatus parse_macro(TplParser *p, TplNode *node) {
    static const char *const ends[] = {"endmacro", NULL};
    const TplToken *name;
    size_t loops = p->loops;
    node->kind = TPL_MACRO_OF;
    LG_TRY(tpl_expect_name(p, &name));
    node->name = name->text;
    LG_TRY(parse_parameters(p, node));
    LG_TRY(expect_block_end(p));
    p->loops = 0;
    LG_TRY(parse_body(p, &node->body, ends));
    p->loops = loops;
    LG_TRY(expect_end(p, "endmacro"));
    return LG_OK;
}

/* {% filter upper %}: the body's text, filtered. */
static LgStatus parse_filter(TplParser *p, TplNode *node) {
    static const char *const ends[] = {"endfilter", NULL};
    node->kind = TPL_FILTERED;
    LG_TRY(tpl_parse_filter(p, NULL, &node->a));
    LG_TRY(tpl_parse_filters(p, node->a, &node->a));
    LG_TRY(expect_block_end(p));
    LG_TRY(parse_body(p, &node->body, ends));
    return expect_end(p, "endfilter");
}

/* {% with a = 1, b = 2 %}: the values are evaluated outside of the block. */
static LgStatus parse_with(TplParser *p, TplNode *node) {
    static const char *const ends[] = {"endwith", NULL};
    node->kind = TPL_GROUP;
    while (tpl_token(p)->kind != TPL_TOK_BLOCK_END) {
        const TplNode *part;
        if (node->items.count)
            LG_TRY(tpl_expect_op(p, ","));
        LG_TRY(tpl_parse_target(p, false, &part));
        LG_TRY(tpl_append(p, &node->items, part));
        LG_TRY(tpl_expect_op(p, "="));
        LG_TRY(tpl_parse_expression(p, true, &part));
        LG_TRY(tpl_append(p, &node->named, part));
    }
    LG_TRY(expect_block_end(p));
    LG_TRY(parse_body(p, &node->body, ends));
    return expect_end(p, "endwith");
}

/* Marks what the assistant wrote, for training masks; its text is rendered as it stands. */
static LgStatus parse_generation(TplParser *p, TplNode *node) {
    static const char *const ends[] = {"endgeneration", NULL};
    node->kind = TPL_GROUP;
    LG_TRY(expect_block_end(p));
    LG_TRY(parse_body(p, &node->body, ends));
    return expect_end(p, "endgeneration");
}

static LgStatus parse_jump(TplParser *p, TplNode *node, TplKind kind) {
    node->kind = kind;
    if (p->loops == 0) {
        p->at--;
        return tpl_fail_token(p, "a statement (break and continue stand in a for loop)");
    }
    return expect_block_end(p);
}

static LgStatus parse_break(TplParser *p, TplNode *node) {
    return parse_jump(p, node, TPL_BREAK);
}

static LgStatus parse_continue(TplParser *p, TplNode *node) {
    return parse_jump(p, node, TPL_CONTINUE);
}

static const struct {
    const char *word;
    LgStatus (*parse)(TplParser *p, TplNode *node);
} statements[] = {
    {"if", parse_if},         {"for", parse_for},     {"set", parse_set},
    {"macro", parse_macro},   {"break", parse_break}, {"continue", parse_continue},
    {"filter", parse_filter}, {"with", parse_with},   {"generation", parse_generation}};

static LgStatus parse_statement(TplParser *p, TplList *out) {
    TplNode *node;
    LG_TRY(tpl_node(p, TPL_IF, &node));
    for (size_t i = 0; i < sizeof statements / sizeof statements[0]; i++) {
        if (!tpl_skip_name(p, statements[i].word))
            continue;
        LG_TRY(tpl_append(p, out, node));
        return statements[i].parse(p, node);
    }
    return tpl_fail_token(p, "a statement (served: if, for, set, macro, filter, with, break, "
                             "continue, generation, raw)");
}

static LgStatus parse_print(TplParser *p, TplList *out) {
    TplNode *node;
    LG_TRY(tpl_node(p, TPL_PRINT, &node));
    LG_TRY(tpl_parse_tuple(p, true, &node->a));
    if (tpl_token(p)->kind != TPL_TOK_PRINT_END)
        return tpl_fail_token(p, "}}");
    p->at++;
    return tpl_append(p, out, node);
}

static LgStatus parse_data(TplParser *p, TplList *out) {
    TplNode *node;
    LG_TRY(tpl_node(p, TPL_DATA, &node));
    node->name = tpl_token(p)->text;
    p->at++;
    return tpl_append(p, out, node);
}

static bool at_any(const TplParser *p, const char *const *words) {
    for (; words && *words; words++)
        if (tpl_at_name(p, *words))
            return true;
    return false;
}

/* Up to the word of a block that ends it, which is left to the caller; ends NULL: to the end of the
 * template. */
static LgStatus parse_body(TplParser *p, TplList *out, const char *const *ends) {
    LG_TRY(tpl_enter(p));
    for (;;) {
        switch (tpl_token(p)->kind) {
        case TPL_TOK_DATA:
            LG_TRY(parse_data(p, out));
            break;
        case TPL_TOK_PRINT_BEGIN:
            p->at++;
            LG_TRY(parse_print(p, out));
            break;
        case TPL_TOK_BLOCK_BEGIN:
            p->at++;
            if (at_any(p, ends)) {
                tpl_leave(p);
                return LG_OK;
            }
            LG_TRY(parse_statement(p, out));
            break;
        default:
            tpl_leave(p);
            return ends ? tpl_fail_token(p, ends[0]) : LG_OK;
        }
    }
}

static LgStatus fail_unknown(const TplParser *p) {
    Buf known;
    buf_init(&known);
    if (p->unknown_test)
        tpl_test_names(&known);
    else
        tpl_filter_names(&known);
    LgStatus status = tpl_fail_at(p->err, p->tokens.source, p->unknown->offset,
                                  "the %s \"%.*s\" is not served; served: %s",
                                  p->unknown_test ? "test" : "filter",
                                  LG_STR_ARG(lg_str_sub(p->unknown->text, 0, 60)), known.data);
    buf_clear(&known);
    return status;
}

LgStatus tpl_parse(Arena *arena, LgStr source, TplList *out, LgError *err) {
    TplParser p = {.arena = arena, .err = err};
    if (!utf8_valid(source))
        return lg_fail(err, LG_BAD_INPUT, 0, "chat template: its text is not UTF-8");
    LG_TRY(tpl_lex(arena, source, &p.tokens, err));
    LG_TRY(parse_body(&p, out, NULL));
    return p.unknown ? fail_unknown(&p) : LG_OK;
}
