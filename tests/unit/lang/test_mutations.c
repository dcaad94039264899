/* The Qwen3 page with one token changed must not compile: a typo in a page is an error, not another
 * model. The changes that give another correct page (another sign, another tensor of the same axes,
 * …) are listed, so that the list cannot grow unseen. */
#include "lang_test.h"

#include "base/mem.h"
#include "lang/lex.h"

#define TOKENS_MAX 4000

/* clang-format off */
/* A sign, or a function around a value of the same axes. */
static const char other_a_token_left_out[] =
    "32:45 - -> \n"
    "49:36 rsqrt -> \n"
    "53:44 rsqrt -> \n"
    "54:44 rsqrt -> \n"
    "55:40 cos -> \n"
    "55:72 sin -> \n"
    "56:40 cos -> \n"
    "56:72 sin -> \n"
    "57:40 cos -> \n"
    "57:72 sin -> \n"
    "58:40 cos -> \n"
    "58:72 sin -> \n"
    "61:91 rsqrt -> \n"
    "66:36 rsqrt -> \n"
    "69:19 silu -> \n"
    "74:34 rsqrt -> \n";

/* Dims as numbers, in arithmetic. */
static const char other_a_dim_by_another[] =
    "7:31 G -> L\n"
    "10:9 D -> V\n"
    "10:9 D -> E\n"
    "10:9 D -> L\n"
    "10:9 D -> G\n"
    "10:9 D -> M\n"
    "10:9 D -> C\n"
    "10:13 C -> L\n"
    "10:13 C -> G\n"
    "10:13 C -> M\n"
    "10:13 C -> D\n"
    "32:50 R -> V\n"
    "32:50 R -> E\n"
    "32:50 R -> L\n"
    "32:50 R -> G\n"
    "32:50 R -> M\n"
    "32:50 R -> D\n"
    "32:50 R -> C\n"
    "32:50 R -> F\n"
    "61:97 D -> V\n"
    "61:97 D -> E\n"
    "61:97 D -> L\n"
    "61:97 D -> G\n"
    "61:97 D -> M\n"
    "61:97 D -> C\n"
    "61:97 D -> R\n"
    "61:97 D -> F\n";

/* Tensors of the same axes, where nothing is left unread. */
static const char other_a_tensor_by_another[] =
    "49:51 x -> phi\n"
    "50:26 ha -> x\n"
    "51:26 ha -> x\n"
    "52:26 ha -> x\n"
    "55:24 qn -> q\n"
    "55:56 qn -> q\n"
    "56:24 qn -> q\n"
    "56:56 qn -> q\n"
    "57:24 kn -> k\n"
    "57:56 kn -> k\n"
    "58:24 kn -> k\n"
    "58:56 kn -> k\n"
    "66:27 x -> ha\n"
    "66:27 x -> ao\n"
    "66:51 x -> phi\n"
    "66:51 x -> ha\n"
    "66:51 x -> ao\n"
    "67:26 hf -> x\n"
    "67:26 hf -> ha\n"
    "67:26 hf -> ao\n"
    "68:26 hf -> x\n"
    "68:26 hf -> ha\n"
    "68:26 hf -> ao\n"
    "74:49 x -> phi\n";
/* clang-format on */

typedef struct Mutator {
    LgStr source;
    Config *config;
    Token tokens[TOKENS_MAX];
    bool in_brackets[TOKENS_MAX];
    int count;
    int tried, survived;
    Buf text;
    Buf survivors;
} Mutator;

static void tokenize(Mutator *m) {
    LgError err;
    Diag d = {.file = LG_STR("qwen3.lg"), .source = m->source, .err = &err};
    Lexer lex;
    assert_true(lex_open(&lex, &d));
    int depth = 0;
    for (;;) {
        Token t = lex_next(&lex);
        if (t.kind == TOK_EOF)
            break;
        assert_true(m->count < TOKENS_MAX);
        depth -= t.kind == TOK_RBRACKET;
        m->in_brackets[m->count] = depth > 0;
        m->tokens[m->count++] = t;
        depth += t.kind == TOK_LBRACKET;
    }
}

static void try_instead(Mutator *m, int i, LgStr with) {
    const Token *t = &m->tokens[i];
    size_t from = (size_t)(t->text.ptr - m->source.ptr) - (t->kind == TOK_STRING);
    size_t end = (size_t)(t->text.ptr - m->source.ptr) + t->text.len + (t->kind == TOK_STRING);
    buf_reset(&m->text);
    buf_append(&m->text, m->source.ptr, from);
    buf_str(&m->text, with);
    buf_append(&m->text, m->source.ptr + end, m->source.len - end);
    Arena arena;
    arena_init(&arena);
    LangProgram *p;
    LgError err;
    LgStatus status = lang_compile(buf_view(&m->text), "qwen3.lg", m->config, &arena, &p, &err);
    m->tried++;
    if (status == LG_OK) {
        m->survived++;
        buf_printf(&m->survivors, "%d:%d %.*s -> %.*s\n", t->line, t->column, LG_STR_ARG(t->text),
                   LG_STR_ARG(with));
    } else {
        assert_int_equal(status, LG_BAD_INPUT);
        assert_true(lg_str_starts(lg_str(err.message), "qwen3.lg:"));
    }
    arena_clear(&arena);
}

static bool is_upper(LgStr s) {
    return s.len == 1 && s.ptr[0] >= 'A' && s.ptr[0] <= 'Z';
}

static void open_mutator(Mutator *m) {
    *m = (Mutator){0};
    static Buf source;
    source = test_file(LG_SOURCE_DIR "/models/qwen3.lg");
    m->source = buf_view(&source);
    m->config = test_config(lg_str(test_qwen3_config));
    buf_init(&m->text);
    buf_init(&m->survivors);
    tokenize(m);
}

static void close_mutator(Mutator *m, const char *expected) {
    if (strcmp(m->survivors.data, expected) != 0) {
        printf("%s", m->survivors.data);
        fail_msg("%d of %d changes compile, and not those expected", m->survived, m->tried);
    }
    buf_clear(&m->text);
    buf_clear(&m->survivors);
    config_destroy(m->config);
    lg_free((void *)m->source.ptr);
}

static void a_token_left_out(void **state) {
    (void)state;
    static Mutator m;
    open_mutator(&m);
    for (int i = 0; i < m.count; i++)
        if (m.tokens[i].kind != TOK_NL)
            try_instead(&m, i, LG_STR(""));
    close_mutator(&m, other_a_token_left_out);
}

/* Every index by every other index name of the page. */
static void an_index_by_another(void **state) {
    (void)state;
    static const char *const names[] = {"t", "i", "r", "g", "m", "c", "d", "a",
                                        "b", "s", "j", "f", "n", "v", "l"};
    static Mutator m;
    open_mutator(&m);
    for (int i = 0; i + 1 < m.count; i++) {
        bool index = m.tokens[i].kind == TOK_NAME && m.in_brackets[i] &&
                     m.tokens[i + 1].kind != TOK_LBRACKET && !is_upper(m.tokens[i].text);
        for (size_t k = 0; index && k < sizeof names / sizeof names[0]; k++)
            if (!lg_str_eq_c(m.tokens[i].text, names[k]))
                try_instead(&m, i, lg_str(names[k]));
    }
    close_mutator(&m, "");
}

/* Every dim by every other dim. */
static void a_dim_by_another(void **state) {
    (void)state;
    static const char *const names[] = {"V", "E", "L", "G", "M", "D", "C",
                                        "R", "F", "T", "N", "B", "S", "A"};
    static Mutator m;
    open_mutator(&m);
    for (int i = 0; i < m.count; i++)
        for (size_t k = 0; is_upper(m.tokens[i].text) && k < sizeof names / sizeof names[0]; k++)
            if (m.tokens[i].kind == TOK_NAME && !lg_str_eq_c(m.tokens[i].text, names[k]))
                try_instead(&m, i, lg_str(names[k]));
    close_mutator(&m, other_a_dim_by_another);
}

/* Every tensor by every other tensor. */
static void a_tensor_by_another(void **state) {
    (void)state;
    static Mutator m;
    open_mutator(&m);
    Arena arena;
    arena_init(&arena);
    LangProgram *p;
    LgError err;
    assert_int_equal(lang_compile(m.source, "qwen3.lg", m.config, &arena, &p, &err), LG_OK);
    for (int i = 0; i + 1 < m.count; i++) {
        bool tensor = m.tokens[i].kind == TOK_NAME && m.tokens[i + 1].kind == TOK_LBRACKET;
        for (int k = 0; tensor && k < p->tensor_count; k++)
            if (!lg_str_eq(p->tensors[k].name, m.tokens[i].text))
                try_instead(&m, i, p->tensors[k].name);
    }
    arena_clear(&arena);
    close_mutator(&m, other_a_tensor_by_another);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token_left_out),
        cmocka_unit_test(an_index_by_another),
        cmocka_unit_test(a_dim_by_another),
        cmocka_unit_test(a_tensor_by_another),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
