/* Expressions, a function per level of precedence where the levels differ in form, and one table
 * for the plain binary ones. */
#include <string.h>

#include "chat/library.h"
#include "chat/parser.h"

static LgStatus parse_unary(TplParser *p, bool filters, const TplNode **out);

typedef struct BinaryRow {
    const char *text;
    TplOp op;
    int level; /* higher binds tighter */
} BinaryRow;
static const BinaryRow binary_rows[] = {
    {"+", TPL_ADD, 0}, {"-", TPL_SUB, 0},       {"~", TPL_CONCAT, 1}, {"*", TPL_MUL, 2},
    {"/", TPL_DIV, 2}, {"//", TPL_FLOORDIV, 2}, {"%", TPL_MOD, 2},    {"**", TPL_POW, 3},
};
static const BinaryRow compare_rows[] = {
    {"==", TPL_EQ, 0}, {"!=", TPL_NE, 0}, {"<", TPL_LT, 0},
    {"<=", TPL_LE, 0}, {">", TPL_GT, 0},  {">=", TPL_GE, 0},
};

#define ROWS(table) (sizeof(table) / sizeof((table)[0]))

static const BinaryRow *row_at(const TplParser *p, const BinaryRow *rows, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (tpl_at_op(p, rows[i].text))
            return &rows[i];
    return NULL;
}

/* level 4 is a unary; all levels are left-associative, ** too. */
static LgStatus parse_binary(TplParser *p, int level, const TplNode **out) {
    if (level == 4)
        return parse_unary(p, true, out);
    const TplNode *left;
    LG_TRY(parse_binary(p, level + 1, &left));
    for (;;) {
        const BinaryRow *row = row_at(p, binary_rows, ROWS(binary_rows));
        if (!row || row->level != level)
            break;
        TplNode *node;
        LG_TRY(tpl_node(p, TPL_BINARY, &node));
        p->at++;
        node->op = row->op;
        node->a = left;
        LG_TRY(parse_binary(p, level + 1, &node->b));
        left = node;
    }
    *out = left;
    return LG_OK;
}

/* Whether a comparison follows; consumes its operator. */
static bool skip_comparison(TplParser *p, TplOp *op) {
    const BinaryRow *row = row_at(p, compare_rows, ROWS(compare_rows));
    const TplToken *after = tpl_token_after(p);
    if (row) {
        *op = row->op;
        p->at++;
        return true;
    }
    if (tpl_skip_name(p, "in")) {
        *op = TPL_IN;
        return true;
    }
    if (tpl_at_name(p, "not") && after->kind == TPL_TOK_NAME && lg_str_eq_c(after->text, "in")) {
        *op = TPL_NOT_IN;
        p->at += 2;
        return true;
    }
    return false;
}

static LgStatus parse_compare(TplParser *p, const TplNode **out) {
    const TplNode *first;
    TplNode *chain = NULL;
    TplOp op;
    LG_TRY(parse_binary(p, 0, &first));
    while (skip_comparison(p, &op)) {
        TplNode *operand;
        if (!chain)
            LG_TRY(tpl_node(p, TPL_COMPARE, &chain));
        LG_TRY(tpl_node(p, TPL_COMPARE, &operand));
        operand->op = op;
        LG_TRY(parse_binary(p, 0, &operand->a));
        LG_TRY(tpl_append(p, &chain->items, operand));
    }
    if (chain)
        chain->a = first;
    *out = chain ? chain : first;
    return LG_OK;
}

static LgStatus parse_not(TplParser *p, const TplNode **out) {
    size_t count = 0;
    const TplNode *node;
    while (tpl_skip_name(p, "not"))
        count++;
    LG_TRY(parse_compare(p, &node));
    for (; count > 0; count--) {
        TplNode *negated;
        LG_TRY(tpl_node(p, TPL_NOT, &negated));
        negated->a = node;
        node = negated;
    }
    *out = node;
    return LG_OK;
}

static LgStatus parse_and(TplParser *p, const TplNode **out) {
    const TplNode *left;
    LG_TRY(parse_not(p, &left));
    while (tpl_at_name(p, "and")) {
        TplNode *node;
        LG_TRY(tpl_node(p, TPL_AND, &node));
        p->at++;
        node->a = left;
        LG_TRY(parse_not(p, &node->b));
        left = node;
    }
    *out = left;
    return LG_OK;
}

static LgStatus parse_or(TplParser *p, const TplNode **out) {
    const TplNode *left;
    LG_TRY(parse_and(p, &left));
    while (tpl_at_name(p, "or")) {
        TplNode *node;
        LG_TRY(tpl_node(p, TPL_OR, &node));
        p->at++;
        node->a = left;
        LG_TRY(parse_and(p, &node->b));
        left = node;
    }
    *out = left;
    return LG_OK;
}

LgStatus tpl_parse_expression(TplParser *p, bool conditional, const TplNode **out) {
    LG_TRY(tpl_enter(p));
    const TplNode *value;
    const TplToken *unknown = p->unknown;
    LG_TRY(parse_or(p, &value));
    while (conditional && tpl_at_name(p, "if")) {
        TplNode *node;
        LG_TRY(tpl_node(p, TPL_CONDITION, &node));
        p->at++;
        p->unknown = unknown; /* what was read is a branch */
        node->b = value;
        LG_TRY(parse_or(p, &node->a));
        p->branches++;
        if (tpl_skip_name(p, "else"))
            LG_TRY(tpl_parse_expression(p, true, &node->c));
        p->branches--;
        value = node;
    }
    tpl_leave(p);
    *out = value;
    return LG_OK;
}

static bool at_tuple_end(const TplParser *p) {
    TplTokenKind kind = tpl_token(p)->kind;
    return kind == TPL_TOK_PRINT_END || kind == TPL_TOK_BLOCK_END || tpl_at_op(p, ")");
}

LgStatus tpl_parse_tuple(TplParser *p, bool conditional, const TplNode **out) {
    TplNode *tuple = NULL;
    const TplNode *item;
    LG_TRY(tpl_parse_expression(p, conditional, &item));
    if (!tpl_at_op(p, ",")) {
        *out = item;
        return LG_OK;
    }
    LG_TRY(tpl_node(p, TPL_TUPLE_OF, &tuple));
    LG_TRY(tpl_append(p, &tuple->items, item));
    while (tpl_skip_op(p, ",") && !at_tuple_end(p)) {
        LG_TRY(tpl_parse_expression(p, conditional, &item));
        LG_TRY(tpl_append(p, &tuple->items, item));
    }
    *out = tuple;
    return LG_OK;
}

static LgStatus parse_target_item(TplParser *p, bool attribute, const TplNode **out) {
    static const char *const reserved[] = {"true", "True", "false", "False",
                                           "none", "None", "loop"};
    TplNode *node, *owner;
    const TplToken *name;
    LG_TRY(tpl_node(p, TPL_NAME, &node));
    LG_TRY(tpl_expect_name(p, &name));
    for (size_t i = 0; i < ROWS(reserved); i++)
        if (lg_str_eq_c(name->text, reserved[i]))
            return tpl_fail_at(p->err, p->tokens.source, name->offset,
                               "\"%s\" cannot be assigned to", reserved[i]);
    node->name = name->text;
    *out = node;
    if (!attribute || !tpl_skip_op(p, "."))
        return LG_OK;
    owner = node;
    LG_TRY(tpl_node(p, TPL_ATTRIBUTE, &node));
    LG_TRY(tpl_expect_name(p, &name));
    node->a = owner;
    node->name = name->text;
    *out = node;
    return LG_OK;
}

/* Brackets around a target are looked through: (a, b) is a, b. */
LgStatus tpl_parse_target(TplParser *p, bool attribute, const TplNode **out) {
    TplNode *tuple = NULL;
    const TplNode *item = NULL;
    bool brackets = tpl_skip_op(p, "(");
    LG_TRY(parse_target_item(p, attribute, &item));
    *out = item;
    if (tpl_at_op(p, ",")) {
        LG_TRY(tpl_node(p, TPL_TUPLE_OF, &tuple));
        LG_TRY(tpl_append(p, &tuple->items, item));
        *out = tuple;
    }
    while (tpl_skip_op(p, ",") && tpl_token(p)->kind == TPL_TOK_NAME && !tpl_at_name(p, "in")) {
        LG_TRY(parse_target_item(p, attribute, &item));
        LG_TRY(tpl_append(p, &tuple->items, item));
    }
    return brackets ? tpl_expect_op(p, ")") : LG_OK;
}

static LgStatus parse_list(TplParser *p, const TplNode **out) {
    TplNode *node;
    LG_TRY(tpl_node(p, TPL_LIST_OF, &node));
    LG_TRY(tpl_expect_op(p, "["));
    while (!tpl_at_op(p, "]")) {
        const TplNode *item;
        LG_TRY(tpl_parse_expression(p, true, &item));
        LG_TRY(tpl_append(p, &node->items, item));
        if (!tpl_skip_op(p, ","))
            break;
    }
    *out = node;
    return tpl_expect_op(p, "]");
}

static LgStatus parse_dict(TplParser *p, const TplNode **out) {
    TplNode *node;
    LG_TRY(tpl_node(p, TPL_DICT_OF, &node));
    LG_TRY(tpl_expect_op(p, "{"));
    while (!tpl_at_op(p, "}")) {
        const TplNode *item;
        LG_TRY(tpl_parse_expression(p, true, &item));
        LG_TRY(tpl_append(p, &node->items, item));
        LG_TRY(tpl_expect_op(p, ":"));
        LG_TRY(tpl_parse_expression(p, true, &item));
        LG_TRY(tpl_append(p, &node->items, item));
        if (!tpl_skip_op(p, ","))
            break;
    }
    *out = node;
    return tpl_expect_op(p, "}");
}

static LgStatus parse_strings(TplParser *p, TplNode *node) {
    Buf text;
    buf_init(&text);
    for (; tpl_token(p)->kind == TPL_TOK_STRING; p->at++)
        buf_str(&text, tpl_token(p)->text);
    LgStr joined = text.failed ? (LgStr){NULL, 0} : arena_str(p->arena, buf_view(&text));
    buf_clear(&text);
    if (!joined.ptr)
        return lg_fail_memory(p->err);
    node->value = tpl_str(joined);
    return LG_OK;
}

static LgStatus parse_name(TplParser *p, TplNode *node) {
    static const struct {
        const char *name;
        TplValueKind kind;
        bool value;
    } constants[] = {{"true", TPL_BOOL, true},   {"True", TPL_BOOL, true},
                     {"false", TPL_BOOL, false}, {"False", TPL_BOOL, false},
                     {"none", TPL_NONE, false},  {"None", TPL_NONE, false}};
    for (size_t i = 0; i < ROWS(constants); i++) {
        if (!tpl_at_name(p, constants[i].name))
            continue;
        node->value = constants[i].kind == TPL_NONE ? tpl_none() : tpl_bool(constants[i].value);
        p->at++;
        return LG_OK;
    }
    node->kind = TPL_NAME;
    node->name = tpl_token(p)->text;
    p->at++;
    return LG_OK;
}

static LgStatus parse_primary(TplParser *p, const TplNode **out) {
    const TplToken *token = tpl_token(p);
    TplNode *node;
    if (tpl_at_op(p, "["))
        return parse_list(p, out);
    if (tpl_at_op(p, "{"))
        return parse_dict(p, out);
    LG_TRY(tpl_node(p, TPL_CONST, &node));
    *out = node;
    switch (token->kind) {
    case TPL_TOK_NAME:
        return parse_name(p, node);
    case TPL_TOK_STRING:
        return parse_strings(p, node);
    case TPL_TOK_INT:
        node->value = tpl_int(token->as.integer);
        p->at++;
        return LG_OK;
    case TPL_TOK_FLOAT:
        node->value = tpl_float(token->as.real);
        p->at++;
        return LG_OK;
    default:
        if (!tpl_skip_op(p, "("))
            return tpl_fail_token(p, "an expression");
    }
    if (tpl_skip_op(p, ")")) {
        node->kind = TPL_TUPLE_OF;
        return LG_OK;
    }
    LG_TRY(tpl_parse_tuple(p, true, out));
    return tpl_expect_op(p, ")");
}

static LgStatus parse_arguments(TplParser *p, TplNode *call) {
    LG_TRY(tpl_expect_op(p, "("));
    while (!tpl_at_op(p, ")")) {
        const TplToken *token = tpl_token(p), *after = tpl_token_after(p);
        if (tpl_at_op(p, "*") || tpl_at_op(p, "**"))
            return tpl_fail_at(p->err, p->tokens.source, token->offset,
                               "* and ** in a call are not served; arguments one by one are");
        const TplNode *value;
        if (token->kind == TPL_TOK_NAME && after->kind == TPL_TOK_OP &&
            lg_str_eq_c(after->text, "=")) {
            TplNode *named;
            LG_TRY(tpl_node(p, TPL_NAME, &named));
            p->at += 2;
            named->name = token->text;
            LG_TRY(tpl_parse_expression(p, true, &named->a));
            LG_TRY(tpl_append(p, &call->named, named));
        } else if (call->named.count) {
            return tpl_fail_token(p, "a named argument (they come last)");
        } else {
            LG_TRY(tpl_parse_expression(p, true, &value));
            LG_TRY(tpl_append(p, &call->items, value));
        }
        if (!tpl_skip_op(p, ","))
            break;
    }
    return tpl_expect_op(p, ")");
}

/* what: "method", "function". */
static LgStatus refuse_call(const TplParser *p, const char *what, LgStr name,
                            void (*names)(Buf *out)) {
    size_t offset = p->at ? p->tokens.items[p->at - 1].offset : 0;
    Buf known;
    buf_init(&known);
    names(&known);
    LgStatus status =
        tpl_fail_at(p->err, p->tokens.source, offset, "the %s \"%.*s\" is not served; served: %s",
                    what, LG_STR_ARG(lg_str_sub(name, 0, 60)), known.data);
    buf_clear(&known);
    return status;
}

static LgStatus parse_call(TplParser *p, const TplNode *callee, const TplNode **out) {
    TplNode *node;
    LG_TRY(tpl_node(p, TPL_CALL, &node));
    node->a = callee;
    if (callee->kind == TPL_ATTRIBUTE && !tpl_method_is_known(callee->name))
        return refuse_call(p, "method", callee->name, tpl_method_names);
    if (callee->kind == TPL_NAME && tpl_function_is_refused(callee->name))
        return refuse_call(p, "function", callee->name, tpl_function_names);
    LG_TRY(parse_arguments(p, node));
    *out = node;
    return LG_OK;
}

/* [b] or [from:to:step]. */
static LgStatus parse_index(TplParser *p, const TplNode *value, const TplNode **out) {
    TplNode *node;
    const TplNode *part = NULL;
    size_t colons = 0;
    LG_TRY(tpl_node(p, TPL_INDEX, &node));
    LG_TRY(tpl_expect_op(p, "["));
    node->a = value;
    while (!tpl_at_op(p, "]")) {
        part = NULL;
        if (!tpl_at_op(p, ":"))
            LG_TRY(tpl_parse_expression(p, true, &part));
        if (colons == 0 && !tpl_at_op(p, ":"))
            break;
        LG_TRY(tpl_append(p, &node->items, part));
        if (colons == 2 || !tpl_skip_op(p, ":"))
            break;
        colons++;
    }
    if (tpl_at_op(p, ","))
        return tpl_fail_token(p, "] (a tuple as an index is not served)");
    if (colons == 0 && !part)
        return tpl_fail_token(p, "an expression");
    node->kind = colons ? TPL_SLICE : TPL_INDEX;
    node->b = part;
    while (colons && node->items.count < 3)
        LG_TRY(tpl_append(p, &node->items, NULL));
    *out = node;
    return tpl_expect_op(p, "]");
}

static LgStatus parse_attribute(TplParser *p, const TplNode *value, const TplNode **out) {
    TplNode *node, *index;
    LG_TRY(tpl_expect_op(p, "."));
    const TplToken *token = tpl_token(p);
    LG_TRY(tpl_node(p, TPL_ATTRIBUTE, &node));
    node->a = value;
    *out = node;
    if (token->kind == TPL_TOK_NAME) {
        node->name = token->text;
    } else if (token->kind == TPL_TOK_INT) {
        LG_TRY(tpl_node(p, TPL_CONST, &index));
        index->value = tpl_int(token->as.integer);
        node->kind = TPL_INDEX;
        node->b = index;
    } else {
        return tpl_fail_token(p, "a name or a number");
    }
    p->at++;
    return LG_OK;
}

static LgStatus parse_postfix(TplParser *p, const TplNode *value, const TplNode **out) {
    for (;;) {
        if (tpl_at_op(p, "."))
            LG_TRY(parse_attribute(p, value, &value));
        else if (tpl_at_op(p, "["))
            LG_TRY(parse_index(p, value, &value));
        else if (tpl_at_op(p, "("))
            LG_TRY(parse_call(p, value, &value));
        else
            break;
    }
    *out = value;
    return LG_OK;
}

/* As in Jinja: in a branch an unknown filter or test is an error when it is reached, elsewhere of
 * the whole template. */
static void note_unknown(TplParser *p, const TplToken *name, bool test) {
    if (p->branches || p->unknown)
        return;
    p->unknown = name;
    p->unknown_test = test;
}

/* A filter's name and arguments, behind the |. */
LgStatus tpl_parse_filter(TplParser *p, const TplNode *value, const TplNode **out) {
    TplNode *node;
    const TplToken *name;
    LG_TRY(tpl_node(p, TPL_FILTER, &node));
    LG_TRY(tpl_expect_name(p, &name));
    node->a = value;
    node->name = name->text;
    node->row.filter = tpl_filter_find(name->text);
    if (!node->row.filter)
        note_unknown(p, name, false);
    if (tpl_at_op(p, "("))
        LG_TRY(parse_arguments(p, node));
    *out = node;
    return LG_OK;
}

LgStatus tpl_parse_filters(TplParser *p, const TplNode *value, const TplNode **out) {
    while (tpl_skip_op(p, "|"))
        LG_TRY(tpl_parse_filter(p, value, &value));
    *out = value;
    return LG_OK;
}

/* A test's one argument may stand without brackets: "is divisibleby 3". */
static bool at_bare_argument(const TplParser *p) {
    TplTokenKind kind = tpl_token(p)->kind;
    if (kind == TPL_TOK_NAME)
        return !tpl_at_name(p, "else") && !tpl_at_name(p, "or") && !tpl_at_name(p, "and");
    return kind == TPL_TOK_STRING || kind == TPL_TOK_INT || kind == TPL_TOK_FLOAT ||
           tpl_at_op(p, "[") || tpl_at_op(p, "{");
}

static LgStatus parse_test(TplParser *p, const TplNode *value, const TplNode **out) {
    TplNode *node, *negated;
    const TplToken *name;
    p->at++;
    bool not = tpl_skip_name(p, "not");
    LG_TRY(tpl_node(p, TPL_TEST, &node));
    LG_TRY(tpl_expect_name(p, &name));
    node->a = value;
    node->name = name->text;
    node->row.test = tpl_test_find(name->text);
    *out = node;
    if (!node->row.test)
        note_unknown(p, name, true);
    if (tpl_at_op(p, "(")) {
        LG_TRY(parse_arguments(p, node));
    } else if (at_bare_argument(p)) {
        const TplNode *argument;
        if (tpl_at_name(p, "is"))
            return tpl_fail_token(p, "the end of the test (tests do not chain)");
        LG_TRY(parse_primary(p, &argument));
        LG_TRY(parse_postfix(p, argument, &argument));
        LG_TRY(tpl_append(p, &node->items, argument));
    }
    if (!not )
        return LG_OK;
    LG_TRY(tpl_node(p, TPL_NOT, &negated));
    negated->a = node;
    *out = negated;
    return LG_OK;
}

static LgStatus parse_unary(TplParser *p, bool filters, const TplNode **out) {
    const TplNode *value;
    bool minus = tpl_at_op(p, "-");
    LG_TRY(tpl_enter(p));
    if (minus || tpl_at_op(p, "+")) {
        TplNode *node;
        LG_TRY(tpl_node(p, minus ? TPL_NEGATE : TPL_PLUS, &node));
        p->at++;
        LG_TRY(parse_unary(p, false, &node->a));
        value = node;
    } else {
        LG_TRY(parse_primary(p, &value));
    }
    LG_TRY(parse_postfix(p, value, &value));
    for (;;) {
        if (filters && tpl_at_op(p, "|"))
            LG_TRY(tpl_parse_filters(p, value, &value));
        else if (filters && tpl_at_name(p, "is"))
            LG_TRY(parse_test(p, value, &value));
        else if (filters && tpl_at_op(p, "("))
            LG_TRY(parse_call(p, value, &value));
        else
            break;
    }
    tpl_leave(p);
    *out = value;
    return LG_OK;
}
