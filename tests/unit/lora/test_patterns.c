/* rank_pattern and alpha_pattern: ^(.*\.)?(KEY)$ on the module's name, the first key of the file.
 */
#include "tests/unit/lora/fixture.h"

/* The value of the pattern that decides, or -1; -2 for a refusal. */
static double find(const char *object, const char *name, LgError *err) {
    Arena arena;
    arena_init(&arena);
    json_t *json = NULL;
    PeftPatterns p = {0};
    PeftPattern *found = NULL;
    assert_int_equal(lg_json_parse(lg_str(object), "patterns", &json, err), LG_OK);
    LgStatus status = patterns_parse("alpha_pattern", json, false, &arena, &p, err);
    if (status == LG_OK)
        status = patterns_find(&p, lg_str(name), lg_str(name), &found, err);
    double value = status != LG_OK ? -2 : found ? found->value : -1;
    patterns_clear(&p);
    json_decref(json);
    arena_clear(&arena);
    return value;
}

typedef struct MatchCase {
    const char *key, *name;
    bool matches;
} MatchCase;

#define Q "model.layers.1.self_attn.q_proj"
static const MatchCase match_cases[] = {
    {"q_proj", Q, true},
    {"_proj", Q, false},
    {"self_attn.q_proj", Q, true},
    {"attn.q_proj", Q, false},
    {"self_attn.q_pro", Q, false},
    {"layers.1.self_attn.q_proj", Q, true},
    {"layers.11.self_attn.q_proj", Q, false},
    {"layers.1.self_attn.q_proj", "model.layers.11.self_attn.q_proj", false},
    {Q, Q, true},
    {"x.model.layers.1.self_attn.q_proj", Q, false},
    {"layers.1.self_attn.q_proj", "modelxlayers.1.self_attn.q_proj", false},
    {"layers.1", Q, false},
    {"selfxattn.q_proj", Q, false},
    {"self.attn.q_proj", Q, true}, /* a dot is any character */
    {"self_attn\\\\.q_proj", Q, true},
    {"self\\\\.attn.q_proj", Q, false},
    {"^q_proj", Q, false},
    {"^q_proj$", "q_proj", true},
    {"^model.layers.1.self_attn.q_proj$", Q, true},
    {"^layers.1.self_attn.q_proj", Q, false},
    {"q_proj$", Q, true},
    {"lm_head", "lm_head", true},
    {"m_head", "lm_head", false},
    {"(q|k)_proj", Q, true},
    {"(q|k)_proj", "model.layers.1.self_attn.v_proj", false},
    {"layers\\\\.[23]\\\\.mlp\\\\.(gate|up)_proj", "model.layers.2.mlp.up_proj", true},
    {"layers\\\\.[23]\\\\.mlp\\\\.(gate|up)_proj", "model.layers.1.mlp.up_proj", false},
    {".*_proj", Q, true},
    {".*", Q, true},
    {"[a-z]_proj|lm_head", "lm_head", true},
    {"q_pro", Q, false},
    {"\\\\d+.self_attn.q_proj", Q, true},
};

static void a_key_matches_the_end_of_a_name_at_a_dot(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof match_cases / sizeof match_cases[0]; i++) {
        const MatchCase *c = &match_cases[i];
        char object[300];
        LgError err = {0};
        snprintf(object, sizeof object, "{\"%s\":3}", c->key);
        double value = find(object, c->name, &err);
        if (value != (c->matches ? 3 : -1))
            fail_msg("\"%s\" on \"%s\": %g %s", c->key, c->name, value, err.message);
    }
}

/* Plain keys are compared without the engine of regular expressions: in a group they are given to
 * it. */
static void plain_keys_match_as_the_same_regular_expressions(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof match_cases / sizeof match_cases[0]; i++) {
        const MatchCase *c = &match_cases[i];
        char object[300];
        LgError err = {0};
        snprintf(object, sizeof object, "{\"(?:%s)\":3}", c->key);
        double value = find(object, c->name, &err);
        if (value != (c->matches ? 3 : -1))
            fail_msg("\"%s\" on \"%s\": %g %s", c->key, c->name, value, err.message);
    }
}

static void the_first_key_of_the_file_decides(void **state) {
    (void)state;
    LgError err;
    assert_true(find("{\"q_proj\":1,\"layers.1.self_attn.q_proj\":2}", Q, &err) == 1);
    assert_true(find("{\"layers.1.self_attn.q_proj\":2,\"q_proj\":1}", Q, &err) == 2);
    assert_true(find("{\"z\":9,\"y\":8,\"b(?:)\":7,\"(q)_proj\":6,\"q_proj\":5}", Q, &err) == 6);
    assert_true(find("{\"z\":9,\"y\":8,\"b(?:)\":7,\"q_proj\":5,\"(q)_proj\":6}", Q, &err) == 5);
    assert_true(find("{}", Q, &err) == -1);
}

static void a_key_that_is_no_regular_expression_is_named(void **state) {
    (void)state;
    LgError err;
    assert_true(find("{\"q_proj\":1,\"[z-a]\":2}", Q, &err) == -2);
    assert_contains(err.message, "alpha_pattern key \"[z-a]\": not a valid regular expression");
    char deep[2000] = "{\"";
    for (int i = 0; i < 400; i++)
        strcat(deep, "((");
    strcat(deep, "\":1}");
    assert_true(find(deep, Q, &err) == -2);
    assert_int_equal(err.status, LG_BAD_INPUT);
}

static void a_key_that_needs_too_many_steps_is_refused(void **state) {
    (void)state;
    LgError err;
    assert_true(find("{\"(([a-z_.0-9]+)+)+[!j]x\":2}", Q, &err) < 0);
    assert_true(find("{\"(.|.)*(.|.)*(.|.)*q_pro[kx]\":2}", Q, &err) == -2);
    assert_contains(err.message, "too many steps");
}

static void regular_expressions_are_few_but_plain_keys_may_be_many(void **state) {
    (void)state;
    Buf text;
    buf_init(&text);
    buf_putc(&text, '{');
    for (int i = 0; i < 3000; i++)
        buf_printf(&text, "\"layers.%d.self_attn.q_proj\":%d,", i + 2, i);
    buf_puts(&text, "\"q_proj\":77}");
    LgError err;
    assert_true(find(text.data, Q, &err) == 77);
    buf_reset(&text);
    buf_putc(&text, '{');
    for (int i = 0; i < 200; i++)
        buf_printf(&text, "\"layers.(%d).x\":%d,", i, i);
    buf_puts(&text, "\"q_proj\":77}");
    assert_true(find(text.data, Q, &err) == -2);
    assert_int_equal(err.status, LG_LIMIT);
    assert_contains(err.message, "200 keys that are regular expressions");
    buf_clear(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_matches_the_end_of_a_name_at_a_dot),
        cmocka_unit_test(plain_keys_match_as_the_same_regular_expressions),
        cmocka_unit_test(the_first_key_of_the_file_decides),
        cmocka_unit_test(a_key_that_is_no_regular_expression_is_named),
        cmocka_unit_test(a_key_that_needs_too_many_steps_is_refused),
        cmocka_unit_test(regular_expressions_are_few_but_plain_keys_may_be_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
