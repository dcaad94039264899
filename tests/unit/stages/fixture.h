/* Pages and configs of the tests of stages and of the emitter: a page compiled, rewritten for
 * adapters where it has sites, and planned. */
#ifndef LG_TEST_STAGES_FIXTURE_H
#define LG_TEST_STAGES_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "formats/checkpoint.h"
#include "stages/stages.h"

typedef struct Page {
    Arena arena;
    Config *config;
    LangProgram *program;
    Plan *plan;
    LgError error;
} Page;

/* A small model in the keys that the pages use. */
static const char small_config[] =
    "{\"architectures\": [\"TestForCausalLM\"], \"model_type\": \"test\", \"vocab_size\": 96, "
    "\"hidden_size\": 48, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2, \"head_dim\": 12, \"intermediate_size\": 80, "
    "\"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0}";

/* The declarations that the small pages share; statements follow. */
#define PAGE_HEAD                                                                                  \
    "model test for \"TestForCausalLM\"\n"                                                         \
    "dim V = vocab_size\n"                                                                         \
    "dim E = hidden_size\n"                                                                        \
    "dim L = num_hidden_layers\n"                                                                  \
    "dim G = num_key_value_heads\n"                                                                \
    "dim M = num_attention_heads / G\n"                                                            \
    "dim D = head_dim\n"                                                                           \
    "dim F = intermediate_size\n"                                                                  \
    "dim T, N, B, S, A\n"                                                                          \
    "ignore rms_norm_eps, rope_theta\n"                                                            \
    "input token[T]: index V\n"                                                                    \
    "input slot[T]: index B\n"                                                                     \
    "input pos[T]: index S\n"                                                                      \
    "input last[N]: index T\n"                                                                     \
    "input ad[T]: index A\n"                                                                       \
    "param emb[V, E] = \"emb.weight\"\n"                                                           \
    "x[t,i] = emb[token[t],i]\n"
#define PAGE_END "\noutput logits[n,v]: f32 = sum i: hz[n,i] * emb[v,i]\n"
#define PAGE_TAIL "hz[n,i] = x[last[n],i]" PAGE_END

static inline LgStatus page_compile(Page *p, const char *source, const char *file,
                                    const char *config, bool adapters) {
    memset(p, 0, sizeof *p);
    arena_init(&p->arena);
    p->config = config_create();
    assert_non_null(p->config);
    LangProgram *plain = NULL;
    LgStatus status = hf_config_parse(lg_str(config), "config.json", p->config, &p->error);
    if (status == LG_OK)
        status = lang_compile(lg_str(source), file, p->config, &p->arena, &plain, &p->error);
    p->program = plain;
    if (status == LG_OK && adapters)
        status = lang_rewrite_lora(plain, &p->arena, &p->program, &p->error);
    return status;
}

static inline LgStatus page_plan(Page *p, const PlanOptions *options) {
    return plan_build(p->program, options, &p->arena, &p->plan, &p->error);
}

static inline void page_clear(Page *p) {
    config_destroy(p->config);
    arena_clear(&p->arena);
}

static inline int tensor_id(const LangProgram *p, const char *name) {
    for (int k = 0; k < p->tensor_count; k++)
        if (lg_str_eq_c(p->tensors[k].name, name))
            return k;
    fail_msg("the program has no tensor %s", name);
    return -1;
}

/* The stage that makes a value, and its launch. */
static inline const Stage *stage_of(const Plan *plan, const char *name, int *launch) {
    int y = tensor_id(plan->program, name);
    for (int l = 0; l < plan->launch_count; l++)
        for (int k = 0; k < plan->launches[l].stage_count; k++)
            if (plan->launches[l].stages[k]->stmt->targets[0].tensor == y) {
                if (launch)
                    *launch = l;
                return plan->launches[l].stages[k];
            }
    fail_msg("no launch makes %s", name);
    return NULL;
}

static inline int launch_of(const Plan *plan, const char *name) {
    int launch = -1;
    stage_of(plan, name, &launch);
    return launch;
}

/* A file of the source tree or of the test data as a string of the arena. */
static inline const char *read_text(Page *p, const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    Buf b;
    buf_init(&b);
    char part[4096];
    for (size_t n; (n = fread(part, 1, sizeof part, f)) > 0;)
        buf_append(&b, part, n);
    fclose(f);
    const char *text = arena_strdup(&p->arena, buf_view(&b));
    buf_clear(&b);
    return text;
}

#endif
