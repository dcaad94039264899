/* Plans of the shipped pages on small configs are golden files, so that a change to lifting or
 * fusion shows up in review. After a change that is meant: run this test with the argument
 * --update, and read the difference. */
#include "tests/unit/stages/fixture.h"

typedef struct Golden {
    const char *page, *name, *backend;
    const char *config;
    bool adapters;
} Golden;

#define GEMMA_DIMS                                                                                 \
    "\"vocab_size\": 512, \"hidden_size\": 64, \"num_hidden_layers\": 2, "                         \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 16, "                   \
    "\"intermediate_size\": 96, \"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0, "                 \
    "\"tie_word_embeddings\": true"
#define SMALL_DIMS GEMMA_DIMS ", \"hidden_act\": \"silu\""

static const Golden goldens[] = {
    {"qwen3.lg", "qwen3", "cpu",
     "{\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\", "
     "\"attention_bias\": false, \"use_sliding_window\": false, " SMALL_DIMS "}",
     true},
    {"llama.lg", "llama", "cpu",
     "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", "
     "\"attention_bias\": false, \"mlp_bias\": false, " SMALL_DIMS "}",
     true},
    {"llama.lg", "llama_no_adapters", "cpu",
     "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", "
     "\"attention_bias\": false, \"mlp_bias\": false, " SMALL_DIMS "}",
     false},
    {"qwen3_moe.lg", "qwen3_moe", "cpu",
     "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"model_type\": \"qwen3_moe\", "
     "\"attention_bias\": false, \"use_sliding_window\": false, \"num_experts\": 8, "
     "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": 40, \"norm_topk_prob\": true, "
     "\"decoder_sparse_step\": 1, \"mlp_only_layers\": [], " SMALL_DIMS "}",
     true},
    {"qwen2.lg", "qwen2", "cpu",
     "{\"architectures\": [\"Qwen2ForCausalLM\"], \"model_type\": \"qwen2\", "
     "\"use_sliding_window\": true, \"sliding_window\": 32, \"max_window_layers\": 1, " SMALL_DIMS
     "}",
     true},
    {"mistral.lg", "mistral", "cpu",
     "{\"architectures\": [\"MistralForCausalLM\"], \"model_type\": \"mistral\", "
     "\"sliding_window\": 32, " SMALL_DIMS "}",
     true},
    {"gemma2.lg", "gemma2", "cpu",
     "{\"architectures\": [\"Gemma2ForCausalLM\"], \"model_type\": \"gemma2\", "
     "\"hidden_activation\": \"gelu_pytorch_tanh\", \"sliding_window\": 32, "
     "\"attn_logit_softcapping\": 50, \"final_logit_softcapping\": 30, " GEMMA_DIMS "}",
     true},
    {"gemma3.lg", "gemma3", "cpu",
     "{\"architectures\": [\"Gemma3ForCausalLM\"], \"model_type\": \"gemma3_text\", "
     "\"hidden_activation\": \"gelu_pytorch_tanh\", \"sliding_window\": 32, "
     "\"sliding_window_pattern\": 2, " GEMMA_DIMS "}",
     true},
    {"phi3.lg", "phi3", "cpu",
     "{\"architectures\": [\"Phi3ForCausalLM\"], \"model_type\": \"phi3\", "
     "\"sliding_window\": 32, \"partial_rotary_factor\": 0.75, " SMALL_DIMS "}",
     true},
    {"olmo2.lg", "olmo2", "cpu",
     "{\"architectures\": [\"Olmo2ForCausalLM\"], \"model_type\": \"olmo2\", "
     "\"attention_bias\": false, " SMALL_DIMS "}",
     true},
};

static bool update;

static void first_difference(const char *path, const char *was, const char *now) {
    int line = 1;
    while (*was && *was == *now) {
        line += *was == '\n';
        was++;
        now++;
    }
    fail_msg(
        "the plan differs from %s at line %d: there \"%.60s\", now \"%.60s\". If that is meant, "
        "run stages_test_golden_plans --update and read the difference.",
        path, line, was, now);
}

static void check(const Golden *g) {
    Page p;
    char path[600], golden[600];
    snprintf(path, sizeof path, "%s/models/%s", LG_SOURCE_DIR, g->page);
    snprintf(golden, sizeof golden, "%s/tests/golden/plans/%s.txt", LG_SOURCE_DIR, g->name);
    Arena files;
    arena_init(&files);
    Page reader = {.arena = files};
    const char *source = read_text(&reader, path);
    if (!source)
        fail_msg("no page %s", path);
    PlanOptions o = {.backend = g->backend};
    if (page_compile(&p, source, g->page, g->config, g->adapters) != LG_OK ||
        page_plan(&p, &o) != LG_OK)
        fail_msg("%s", p.error.message);
    Buf text;
    buf_init(&text);
    plan_print(p.plan, &text);
    if (update) {
        FILE *f = fopen(golden, "wb");
        assert_non_null(f);
        fwrite(text.data, 1, text.len, f);
        fclose(f);
    }
    const char *was = read_text(&reader, golden);
    if (!was)
        fail_msg("no golden file %s; run stages_test_golden_plans --update", golden);
    if (strcmp(was, text.data))
        first_difference(golden, was, text.data);
    buf_clear(&text);
    arena_clear(&reader.arena);
    page_clear(&p);
}

static void plans_of_shipped_pages_are_the_golden_ones(void **state) {
    (void)state;
    for (size_t k = 0; k < sizeof goldens / sizeof goldens[0]; k++)
        check(&goldens[k]);
}

static void digest_follows_what_decides_the_program(void **state) {
    (void)state;
    const Golden *g = &goldens[0];
    char path[600], first[65], config[1200];
    snprintf(path, sizeof path, "%s/models/%s", LG_SOURCE_DIR, g->page);
    Page a, b;
    Arena files;
    arena_init(&files);
    Page reader = {.arena = files};
    const char *source = read_text(&reader, path);
    assert_non_null(source);
    PlanOptions o = {.backend = "cpu"};
    assert_int_equal(page_compile(&a, source, g->page, g->config, true), LG_OK);
    assert_int_equal(page_plan(&a, &o), LG_OK);
    memcpy(first, a.plan->digest, sizeof first);
    assert_int_equal(page_plan(&a, &o), LG_OK);
    assert_string_equal(first, a.plan->digest); /* the same again */
    o.store_f32 = true;
    assert_int_equal(page_plan(&a, &o), LG_OK);
    assert_string_not_equal(first, a.plan->digest);
    o.store_f32 = false;
    /* A constant that no line of the page shows. */
    snprintf(config, sizeof config, "%s", g->config);
    char *eps = strstr(config, "1e-6");
    assert_non_null(eps);
    eps[3] = '5';
    assert_int_equal(page_compile(&b, source, g->page, config, true), LG_OK);
    assert_int_equal(page_plan(&b, &o), LG_OK);
    assert_string_not_equal(first, b.plan->digest);
    page_clear(&a);
    page_clear(&b);
    arena_clear(&reader.arena);
}

int main(int argc, char **argv) {
    update = argc > 1 && !strcmp(argv[1], "--update");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_of_shipped_pages_are_the_golden_ones),
        cmocka_unit_test(digest_follows_what_decides_the_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
