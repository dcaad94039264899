/* The shipped pages against configs as they are found, and their checked programs against golden
 * files (tests/lang/golden). A golden file that should change is written anew from what the failing
 * test prints. */
#include "lang_test.h"

#include <math.h>

#include "base/embedded.h"
#include "lang/ast.h"

#define LLAMA_BASE                                                                                 \
    "\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"vocab_size\": 2048,"  \
    " \"hidden_size\": 128, \"num_hidden_layers\": 4, \"num_attention_heads\": 4,"                 \
    " \"intermediate_size\": 384, \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-05,"              \
    " \"pretraining_tp\": 1, \"initializer_range\": 0.02, \"use_cache\": true,"                    \
    " \"max_position_embeddings\": 1024, \"torch_dtype\": \"bfloat16\","                           \
    " \"bos_token_id\": 128000, \"eos_token_id\": [128001, 128008], \"pad_token_id\": null,"       \
    " \"attention_dropout\": 0.0, \"transformers_version\": \"4.42.3\""

static const char llama2[] = "{" LLAMA_BASE "}";
static const char llama3[] =
    "{" LLAMA_BASE ", \"num_key_value_heads\": 2, \"head_dim\": 32, \"attention_bias\": false,"
    " \"mlp_bias\": false, \"tie_word_embeddings\": false, \"rope_theta\": 500000.0,"
    " \"rope_scaling.factor\": 8.0, \"rope_scaling.low_freq_factor\": 1.0,"
    " \"rope_scaling.high_freq_factor\": 4.0, \"rope_scaling.rope_type\": \"llama3\","
    " \"rope_scaling.original_max_position_embeddings\": 128}";
static const char llama3_without_factor[] =
    "{" LLAMA_BASE ", \"rope_scaling.rope_type\": \"llama3\"}";
static const char llama_linear[] =
    "{" LLAMA_BASE ", \"rope_scaling.rope_type\": \"linear\", \"rope_scaling.factor\": 2}";
static const char llama_yarn[] =
    "{" LLAMA_BASE ", \"rope_scaling.rope_type\": \"yarn\", \"rope_scaling.factor\": 4,"
    " \"rope_scaling.original_max_position_embeddings\": 256, \"rope_scaling.beta_fast\": 16,"
    " \"rope_scaling.mscale\": 0.7, \"rope_scaling.mscale_all_dim\": 0.5}";
static const char llama_yarn_uncut[] =
    "{" LLAMA_BASE ", \"rope_scaling.rope_type\": \"yarn\", \"rope_scaling.factor\": 4,"
    " \"rope_scaling.truncate\": false}";
static const char llama_dynamic[] =
    "{" LLAMA_BASE ", \"rope_scaling.rope_type\": \"dynamic\", \"rope_scaling.factor\": 2}";
static const char llama_biased[] = "{" LLAMA_BASE ", \"attention_bias\": true}";
static const char llama_cut[] = "{" LLAMA_BASE ", \"partial_rotary_factor\": 0.5}";
static const char smollm2[] =
    "{" LLAMA_BASE ", \"num_key_value_heads\": 2, \"rope_theta\": 100000, \"rope_scaling\": null,"
    " \"rope_interleaved\": false, \"is_llama_config\": true, \"tie_word_embeddings\": true,"
    " \"attention_bias\": false, \"mlp_bias\": false, \"transformers.js_config.dtype\": \"q4\","
    " \"transformers.js_config.kv_cache_dtype.q4f16\": \"float16\"}";

static LgStr page_named(const char *name) {
    for (const LgEmbedded *e = lg_models; e->name; e++)
        if (strcmp(e->name, name) == 0)
            return (LgStr){e->data, e->size};
    fail_msg("no page %s in the binary", name);
    return (LgStr){0};
}

/* NULL: refused, with the message in err. */
static LangProgram *compile(const char *page, const char *config_text, Arena *arena, LgError *err) {
    Config *config = test_config(lg_str(config_text));
    LangProgram *p = NULL;
    *err = (LgError){0};
    if (lang_compile(page_named(page), page, config, arena, &p, err) != LG_OK)
        p = NULL;
    config_destroy(config);
    return p;
}

static void check_accepted(const char *page, const char *config) {
    Arena arena;
    arena_init(&arena);
    LgError err;
    LangProgram *p = compile(page, config, &arena, &err);
    if (!p)
        fail_msg("%s", err.message);
    assert_int_equal(p->site_count, 9);
    arena_clear(&arena);
}

static void check_refused(const char *page, const char *config, const char *why) {
    Arena arena;
    arena_init(&arena);
    LgError err;
    assert_null(compile(page, config, &arena, &err));
    if (!strstr(err.message, why))
        fail_msg("expected %s, got %s", why, err.message);
    arena_clear(&arena);
}

static void every_page_of_the_binary_names_what_it_serves(void **state) {
    (void)state;
    int pages = 0;
    for (const LgEmbedded *e = lg_models; e->name; e++, pages++) {
        Arena arena;
        arena_init(&arena);
        LgStr model;
        const LgStr *names;
        int count;
        LgError err;
        LgStr page = {e->data, e->size};
        assert_int_equal(lang_models(page, e->name, &arena, &model, &names, &count, &err), LG_OK);
        assert_true(count > 0);
        arena_clear(&arena);
    }
    assert_true(pages >= 2);
}

static void qwen3_compiles(void **state) {
    (void)state;
    check_accepted("qwen3.lg", test_qwen3_config);
}

static void llama_configs_of_several_years_compile(void **state) {
    (void)state;
    check_accepted("llama.lg", llama2);
    check_accepted("llama.lg", llama3);
    check_accepted("llama.lg", smollm2);
    check_accepted("llama.lg", llama_linear);
    check_accepted("llama.lg", llama_yarn);
}

static void llama_features_that_the_page_lacks_are_refused(void **state) {
    (void)state;
    check_refused("llama.lg", llama3_without_factor, "cannot give rope_scaling.factor a value");
    check_refused("llama.lg", llama_yarn_uncut, "it says rope_scaling.truncate = false");
    check_refused("llama.lg", llama_dynamic, "it says rope_scaling.rope_type = \"dynamic\"");
    check_refused("llama.lg", llama_biased, "it says attention_bias = true");
    check_refused("llama.lg", llama_cut, "its key partial_rotary_factor = 0.5 is not claimed");
    check_refused("qwen3.lg", llama2, "cannot compile for \"LlamaForCausalLM\"");
}

/* A page's config, less what the row adds. */
#define DIMS                                                                                       \
    "\"vocab_size\": 2048, \"hidden_size\": 128, \"num_hidden_layers\": 4,"                        \
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 32,"                   \
    " \"intermediate_size\": 384, \"rms_norm_eps\": 1e-05"
#define SILU DIMS ", \"hidden_act\": \"silu\""
#define GEMMA DIMS ", \"hidden_activation\": \"gelu_pytorch_tanh\", \"sliding_window\": 16"

static const char gemma3[] =
    "{" GEMMA ", \"final_logit_softcapping\": 30, \"sliding_window_pattern\": 3}";
static const char phi3[] = "{" SILU ", \"partial_rotary_factor\": 0.75, \"sliding_window\": 24}";

typedef struct Feature {
    const char *page, *config;
    const char *why; /* NULL: served */
} Feature;

static const Feature features[] = {
    {"qwen2.lg", "{" SILU ", \"rope_theta\": 1e6}", NULL},
    {"qwen2.lg",
     "{" SILU ", \"rope_theta\": 1e6, \"use_sliding_window\": false, \"sliding_window\": 4096, "
     "\"max_window_layers\": 28}",
     NULL},
    {"qwen2.lg",
     "{" SILU ", \"rope_theta\": 1e6, \"use_sliding_window\": true, \"sliding_window\": 64, "
     "\"max_window_layers\": 2}",
     NULL},
    {"qwen2.lg",
     "{" SILU ", \"rope_theta\": 1e6, \"use_sliding_window\": true, \"sliding_window\": 64}",
     "cannot compare max_window_layers by size"},
    {"qwen2.lg",
     "{" SILU ", \"rope_theta\": 1e6, \"layer_types\": [\"full_attention\", "
     "\"chunked_attention\", \"full_attention\", \"full_attention\"]}",
     "it says layer_types[1] = \"chunked_attention\""},
    {"qwen2.lg", "{" SILU ", \"rope_theta\": 1e6, \"rope_scaling.rope_type\": \"yarn\"}",
     "it says rope_scaling = true"},
    {"mistral.lg", "{" SILU ", \"sliding_window\": null}", NULL},
    {"mistral.lg", "{" SILU ", \"sliding_window\": 0}", "cannot bound s from below like this"},
    {"mistral.lg", "{" DIMS ", \"hidden_act\": \"gelu\"}", "it says hidden_act = \"gelu\""},
    {"gemma3.lg", "{" GEMMA "}", NULL},
    {"gemma3.lg",
     "{" GEMMA ", \"sliding_window_pattern\": 2, \"cache_implementation\": \"hybrid\", "
     "\"model_type\": \"gemma3_text\"}",
     NULL},
    {"gemma3.lg", "{" GEMMA ", \"attn_logit_softcapping\": 50}",
     "it says attn_logit_softcapping = 50"},
    {"gemma3.lg", "{" GEMMA ", \"use_bidirectional_attention\": true}",
     "it says use_bidirectional_attention = true"},
    {"gemma3.lg", "{" GEMMA ", \"rope_scaling.rope_type\": \"yarn\", \"rope_scaling.factor\": 2}",
     "it says rope_scaling.rope_type = \"yarn\""},
    {"gemma3.lg", "{" DIMS ", \"hidden_activation\": \"gelu\", \"sliding_window\": 16}",
     "it says hidden_activation = \"gelu\""},
    {"gemma2.lg", "{" GEMMA ", \"attn_logit_softcapping\": 50, \"final_logit_softcapping\": 30}",
     NULL},
    {"gemma2.lg", "{" GEMMA ", \"hidden_act\": \"relu\"}", "it says hidden_act = \"relu\""},
    {"phi3.lg", "{" SILU ", \"original_max_position_embeddings\": 4096}", NULL},
    {"phi3.lg", "{" SILU ", \"rope_scaling.rope_type\": \"longrope\"}",
     "it says rope_scaling = true"},
    {"phi3.lg", "{" SILU ", \"attention_bias\": true}", "it says attention_bias = true"},
    {"olmo2.lg", "{" SILU "}", NULL},
    {"olmo2.lg", "{" SILU ", \"attention_bias\": true}", "it says attention_bias = true"},
};

static void pages_serve_and_refuse_by_the_config(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof features / sizeof features[0]; i++) {
        if (features[i].why)
            check_refused(features[i].page, features[i].config, features[i].why);
        else
            check_accepted(features[i].page, features[i].config);
    }
}

/* The values of a const for each layer, as the statements have them. */
static void check_layers(const char *page, const char *config, const char *name, int count,
                         const double *want) {
    Arena arena;
    arena_init(&arena);
    LgError err;
    LangProgram *p = compile(page, config, &arena, &err);
    if (!p)
        fail_msg("%s", err.message);
    const LangConst *found = NULL;
    for (int i = 0; i < p->const_count; i++)
        if (lg_str_eq_c(p->consts[i].name, name))
            found = &p->consts[i];
    assert_non_null(found);
    assert_int_equal(p->layer_count, count);
    for (int l = 0; l < count; l++)
        assert_true(found->values[l] == want[l]);
    arena_clear(&arena);
}

/* Where the config lists no kinds, every so-manieth layer, or all behind a count, differ. */
static void kinds_of_layers_follow_from_counts(void **state) {
    (void)state;
    check_layers("gemma3.lg", "{" GEMMA ", \"sliding_window_pattern\": 2}", "W", 4,
                 (const double[]){16, (double)INFINITY, 16, (double)INFINITY});
    check_layers("gemma3.lg",
                 "{" GEMMA ", \"sliding_window_pattern\": 3, \"rope_theta\": 9, "
                 "\"rope_local_base_freq\": 7, \"rope_scaling.rope_type\": \"linear\", "
                 "\"rope_scaling.factor\": 8}",
                 "theta", 4, (const double[]){7, 7, 9, 7});
    check_layers("gemma2.lg", "{" GEMMA "}", "W", 4,
                 (const double[]){16, (double)INFINITY, 16, (double)INFINITY});
    check_layers(
        "qwen2.lg",
        "{" SILU ", \"rope_theta\": 1e6, \"use_sliding_window\": true, \"sliding_window\": 64, "
        "\"max_window_layers\": 3}",
        "W", 4, (const double[]){(double)INFINITY, (double)INFINITY, (double)INFINITY, 64});
}

static void check_golden(const char *page, const char *config, const char *golden) {
    Arena arena;
    arena_init(&arena);
    LgError err;
    LangProgram *p = compile(page, config, &arena, &err);
    if (!p || lang_rewrite_lora(p, &arena, &p, &err) != LG_OK)
        fail_msg("%s", err.message);
    Buf got;
    buf_init(&got);
    lang_print(p, &got);
    char path[600];
    snprintf(path, sizeof path, LG_SOURCE_DIR "/tests/lang/golden/%s", golden);
    Buf want = test_file(path);
    if (strcmp(got.data, want.data) != 0) {
        fputs(got.data, stdout);
        fail_msg("%s differs from what is printed above", golden);
    }
    buf_clear(&got);
    buf_clear(&want);
    arena_clear(&arena);
}

static void checked_programs_are_as_the_golden_files(void **state) {
    (void)state;
    check_golden("qwen3.lg", test_qwen3_config, "qwen3.txt");
    check_golden("llama.lg", llama3, "llama.txt");
    check_golden("llama.lg", llama2, "llama2.txt");
    check_golden("llama.lg", llama_yarn, "llama_yarn.txt");
    check_golden("gemma3.lg", gemma3, "gemma3.txt");
    check_golden("phi3.lg", phi3, "phi3.txt");
}

/* With a factor of 1 every frequency is multiplied by exactly 1: 1 + keep * (1 - 1), and divided
 * by 1. */
static void llama_without_scaling_folds_to_neutral_numbers(void **state) {
    (void)state;
    Arena arena;
    arena_init(&arena);
    LgError err;
    LangProgram *p = compile("llama.lg", llama2, &arena, &err);
    assert_non_null(p);
    const LangStmt *turn = NULL;
    for (int i = 0; i < p->stmt_count; i++)
        if (lg_str_starts(p->stmts[i].text, "turn["))
            turn = &p->stmts[i];
    assert_non_null(turn);
    const LangExpr *e = turn->rhs; /* freq / factor * (1 + keep * (factor - 1)) */
    assert_true(e->a->b->number == 1);
    assert_true(e->b->b->b->a->number == 1 && e->b->b->b->b->number == 1);
    arena_clear(&arena);
}

static void pages_survive_printing(void **state) {
    (void)state;
    for (const LgEmbedded *e = lg_models; e->name; e++) {
        Arena arena;
        arena_init(&arena);
        Diag d = {.file = lg_str(e->name), .source = {e->data, e->size}};
        AstFile a, b;
        assert_true(ast_parse(&d, &arena, &a));
        Buf text;
        buf_init(&text);
        ast_print(&a, &text);
        Diag again = {.file = lg_str(e->name), .source = buf_view(&text)};
        assert_true(ast_parse(&again, &arena, &b));
        assert_true(ast_equal(&a, &b));
        b.decls.count--;
        assert_false(ast_equal(&a, &b));
        buf_clear(&text);
        arena_clear(&arena);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_page_of_the_binary_names_what_it_serves),
        cmocka_unit_test(qwen3_compiles),
        cmocka_unit_test(llama_configs_of_several_years_compile),
        cmocka_unit_test(llama_features_that_the_page_lacks_are_refused),
        cmocka_unit_test(pages_serve_and_refuse_by_the_config),
        cmocka_unit_test(kinds_of_layers_follow_from_counts),
        cmocka_unit_test(checked_programs_are_as_the_golden_files),
        cmocka_unit_test(llama_without_scaling_folds_to_neutral_numbers),
        cmocka_unit_test(pages_survive_printing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
