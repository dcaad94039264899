/* A page of the language. A first line `# config: {…}` is its config, flat; else a small one is
 * used. What parses must print to text that parses to the same tree and compiles alike; what
 * compiles must be a sound program, before and after the LoRA rewrite. */
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "fuzz/fuzz.h"
#include "lang/ast.h"
#include "lang/lang.h"

#define LIST_MAX 64

static const char small_config[] =
    "{\"v\": 16, \"e\": 8, \"d\": 6, \"f\": 5, \"l\": 2, \"x\": 4, \"k\": 2}";

static bool scalar_of(const json_t *v, ConfigValue *out) {
    *out = (ConfigValue){.kind = CONFIG_NULL};
    if (json_is_boolean(v))
        *out = (ConfigValue){.kind = CONFIG_BOOL, .boolean = json_is_true(v)};
    else if (json_is_integer(v))
        *out = (ConfigValue){.kind = CONFIG_INT, .integer = json_integer_value(v)};
    else if (json_is_real(v))
        *out = (ConfigValue){.kind = CONFIG_REAL, .real = json_real_value(v)};
    else if (json_is_string(v))
        *out = (ConfigValue){.kind = CONFIG_STRING, .string = lg_json_string(v)};
    return !json_is_array(v) && !json_is_object(v);
}

static Config *config_of(LgStr text) {
    LgError err;
    json_t *root = NULL;
    if (lg_json_parse(text, "config", &root, &err) != LG_OK || !json_is_object(root)) {
        json_decref(root);
        return NULL;
    }
    Config *c = config_create();
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value) {
        ConfigValue v, items[LIST_MAX];
        if (!scalar_of(value, &v)) {
            v = (ConfigValue){.kind = CONFIG_LIST, .items = items};
            for (size_t i = 0; i < json_array_size(value) && i < LIST_MAX; i++)
                v.count += scalar_of(json_array_get(value, i), &items[v.count]);
        }
        config_set(c, lg_str(key), &v, &err);
    }
    json_decref(root);
    return c;
}

static Config *config_of_page(LgStr page) {
    static const char mark[] = "# config: ";
    const char *nl = page.len ? memchr(page.ptr, '\n', page.len) : NULL;
    Config *c = NULL;
    if (nl && lg_str_starts(page, mark))
        c = config_of(
            lg_str_sub(page, sizeof mark - 1, (size_t)(nl - page.ptr) - (sizeof mark - 1)));
    return c ? c : config_of(lg_str(small_config));
}

static void check_indexes(const LangProgram *p, const LangStmt *s, int tensor,
                          const LangIndex *list, int count) {
    FUZZ_CHECK(tensor >= 0 && tensor < p->tensor_count);
    const LangTensor *t = &p->tensors[tensor];
    FUZZ_CHECK(count == t->rank && count <= LANG_RANK_MAX);
    for (int i = 0; i < count; i++) {
        FUZZ_CHECK(list[i].dim == t->dims[i]);
        if (list[i].kind == LANG_INDEX_VAR) {
            FUZZ_CHECK(list[i].var >= 0 && list[i].var < s->var_count);
            FUZZ_CHECK(s->vars[list[i].var].dim == list[i].dim);
        } else if (list[i].kind == LANG_INDEX_INT) {
            FUZZ_CHECK((uint64_t)list[i].value < p->dims[list[i].dim].size);
        } else {
            FUZZ_CHECK(p->tensors[list[i].tensor].index_dim == list[i].dim);
            check_indexes(p, s, list[i].tensor, list[i].indexes, list[i].count);
        }
    }
}

static void check_expr(const LangProgram *p, const LangStmt *s, const LangExpr *e) {
    FUZZ_CHECK(e);
    switch (e->kind) {
    case EXPR_NUMBER:
        FUZZ_CHECK(e->number == e->number);
        return;
    case EXPR_CONST:
        FUZZ_CHECK(e->constant >= 0 && e->constant < p->const_count && s->in_layer);
        return;
    case EXPR_VAR:
        FUZZ_CHECK(e->var >= 0 && e->var < s->var_count);
        return;
    case EXPR_REF:
        check_indexes(p, s, e->tensor, e->indexes, e->index_count);
        return;
    case EXPR_REDUCE:
        FUZZ_CHECK(e->var_count > 0);
        for (int i = 0; i < e->var_count; i++)
            FUZZ_CHECK(e->vars[i] >= 0 && e->vars[i] < s->var_count &&
                       s->vars[e->vars[i]].reduced == (e->red != LANG_RED_SOFTMAX));
        check_expr(p, s, e->a);
        return;
    case EXPR_NEG:
        check_expr(p, s, e->a);
        return;
    case EXPR_IF:
        FUZZ_CHECK(e->layer_true && s->in_layer);
        break;
    case EXPR_CALL:
        check_expr(p, s, e->a);
        if (lang_fn_args(e->fn) == 2)
            check_expr(p, s, e->b);
        return;
    default:
        break;
    }
    check_expr(p, s, e->a);
    check_expr(p, s, e->b);
}

static void check_stmt(const LangProgram *p, int index) {
    const LangStmt *s = &p->stmts[index];
    bool in_layer = p->layer_count && index >= p->layer_begin && index < p->layer_end;
    FUZZ_CHECK(s->in_layer == in_layer && s->text.len && s->var_count <= LANG_VARS_MAX);
    for (int i = 0; i < s->var_count; i++) {
        const LangVar *v = &s->vars[i];
        FUZZ_CHECK(v->dim >= 0 && v->dim < p->dim_count);
        if (v->upper)
            check_expr(p, s, v->upper);
        if (v->lower)
            check_expr(p, s, v->lower);
    }
    for (int k = 0; k < s->target_count; k++)
        check_indexes(p, s, s->targets[k].tensor, s->targets[k].indexes, s->targets[k].index_count);
    check_expr(p, s, s->rhs);
}

static void check_program(const LangProgram *p) {
    FUZZ_CHECK(p->layer_begin <= p->layer_end && p->layer_end <= p->stmt_count);
    for (int i = 0; i < p->tensor_count; i++) {
        const LangTensor *t = &p->tensors[i];
        FUZZ_CHECK(t->rank > 0 && t->rank <= LANG_RANK_MAX);
        FUZZ_CHECK(t->axis_count > 0 && t->axis_start[t->axis_count] == t->rank);
        FUZZ_CHECK(t->lora_site < p->site_count &&
                   (t->kind == LANG_PARAM) == (t->source_count > 0));
    }
    for (int i = 0; i < p->stmt_count; i++)
        check_stmt(p, i);
    for (int i = 0; i < p->site_count; i++)
        FUZZ_CHECK(p->tensors[p->sites[i].param].lora_site == i &&
                   p->stmts[p->sites[i].stmt].targets[0].tensor == p->sites[i].y);
    Buf out;
    buf_init(&out);
    lang_print(p, &out);
    FUZZ_CHECK(!out.failed && utf8_valid(buf_view(&out)));
    buf_clear(&out);
}

static LgStatus compile(LgStr page, const Config *config, int *stmts) {
    Arena arena;
    arena_init(&arena);
    LangProgram *p = NULL, *rewritten = NULL;
    LgError err = {0};
    LgStatus status = lang_compile(page, "page.lg", config, &arena, &p, &err);
    if (status == LG_OK) {
        check_program(p);
        FUZZ_CHECK(lang_rewrite_lora(p, &arena, &rewritten, &err) == LG_OK);
        check_program(rewritten);
        FUZZ_CHECK(rewritten->stmt_count == p->stmt_count + 2 * p->site_count);
        *stmts = p->stmt_count;
    } else {
        FUZZ_CHECK(status == LG_BAD_INPUT && err.status == status);
        FUZZ_CHECK(lg_str_starts(lg_str(err.message), "page.lg:"));
        FUZZ_CHECK(utf8_valid(lg_str(err.message)));
    }
    arena_clear(&arena);
    return status;
}

static void check_print(LgStr page, const Config *config) {
    Arena arena;
    arena_init(&arena);
    Diag first = {.file = LG_STR("page.lg"), .source = page};
    AstFile a, b;
    Buf text, again;
    buf_init(&text);
    buf_init(&again);
    if (ast_parse(&first, &arena, &a)) {
        ast_print(&a, &text);
        Diag second = {.file = LG_STR("page.lg"), .source = buf_view(&text)};
        int stmts = 0, printed_stmts = 0;
        if (text.len < (1u << 20)) { /* printing adds spaces, and a page has a limit */
            FUZZ_CHECK(ast_parse(&second, &arena, &b));
            FUZZ_CHECK(ast_equal(&a, &b));
            ast_print(&b, &again);
            FUZZ_CHECK(lg_str_eq(buf_view(&text), buf_view(&again)));
            FUZZ_CHECK(compile(page, config, &stmts) ==
                       compile(buf_view(&text), config, &printed_stmts));
            FUZZ_CHECK(stmts == printed_stmts);
        }
    } else {
        int stmts;
        FUZZ_CHECK(compile(page, config, &stmts) == LG_BAD_INPUT);
    }
    buf_clear(&text);
    buf_clear(&again);
    arena_clear(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    LgStr page = {(const char *)data, size};
    Config *config = config_of_page(page);
    FUZZ_CHECK(config);
    check_print(page, config);
    config_destroy(config);
    return 0;
}
