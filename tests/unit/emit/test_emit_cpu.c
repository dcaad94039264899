/* The emitted C: complete, without warnings at every level, the same every time, and citing the
 * page. */
#include <stdlib.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "emit/cpu_levels.h"
#include "emit/emit_cpu.h"
#include "tests/unit/stages/fixture.h"

static const PlanOptions cpu = {.backend = "cpu"};
static const PlanOptions plain = {.backend = "cpu", .no_fuse = true, .store_f32 = true};

static const char qwen3_config[] =
    "{\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\", \"vocab_size\": 512, "
    "\"hidden_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2, \"head_dim\": 16, \"intermediate_size\": 96, \"rms_norm_eps\": "
    "1e-6, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", \"tie_word_embeddings\": true, "
    "\"attention_bias\": false, \"use_sliding_window\": false}";

/* Every function, reductions over one and two indexes and one inside another, numbers that differ
 * by layer, a score function, a window, names that C has a use for, and a comment that would end
 * one of C's. */
static const char varied[] = PAGE_HEAD
    "param gz[E] = \"gz.weight\" # */ #error not here /*\n"
    "lora ad on wh\n"
    "while[t,i]: f32 = exp(x[t,i]) + log(2 + abs(x[t,i])) - sqrt(abs(x[t,i])) / rsqrt(2 + "
    "x[t,i]^2)\n"
    "step[t,i]: f32 = sin(while[t,i]) * cos(while[t,i]) + sigmoid(x[t,i]) * tanh(x[t,i]) # */ int "
    "x;\n"
    "layer l in L {\n"
    "  param wo[E, G*M*D] = \"{l}.wo.weight\"\n"
    "  param wh[G*D, E] = \"{l}.wh.weight\"\n"
    "  param bh[G*D] = \"{l}.bh.weight\"\n"
    "  const W[l] = if layer_types[l] == \"sliding_attention\" then sliding_window else S\n"
    "  const Z[l] = if layer_types[l] == \"sliding_attention\" then 3 else 5\n"
    "  state kc[B, S, G, D]\n"
    "  state vc[B, S, G, D]\n"
    "  c[t,i] = gelu(step[t,i]) + gelu_tanh(x[t,i]) + min(x[t,i], max(0.5, -x[t,i])) ^ 3\n"
    "  y[t,i] = (x[t,i] - (mean j: c[t,j])) * rsqrt((mean j: (c[t,j] - (max k: x[t,k]))^2) + Z) "
    "* gz[i] * floor(x[t,0]) + ceil(x[t,1])\n"
    "  h[t,g,d] = (sum i: y[t,i] * wh[g,d,i]) + bh[g,d]\n"
    "  q[t,g,m in M,d] = h[t,g,d] * m + (sum a,b: h[t,a,b]^2) + (sum b,a: h[t,a,b] * d)\n"
    "  kc[slot[t],pos[t],g,d] := h[t,g,d] * pos[t]\n"
    "  vc[slot[t],pos[t],g,d] := h[t,g,d]\n"
    "  p[t,g,m,s]: f32 = softmax pos[t] - W < s <= pos[t]: 30 * tanh((sum d: q[t,g,m,d] * "
    "kc[slot[t],s,g,d]) * Z / 30)\n"
    "  o[t,g,m,d] = sum pos[t] - W < s <= pos[t]: p[t,g,m,s] * vc[slot[t],s,g,d]\n"
    "  ao[t,i] = sum g,m,d: o[t,g,m,d] * wo[i,g,m,d]\n"
    "  x[t,i] += ao[t,i]\n"
    "}\n" PAGE_TAIL;

static const char varied_config[] =
    "{\"architectures\": [\"TestForCausalLM\"], \"model_type\": \"test\", \"vocab_size\": 96, "
    "\"hidden_size\": 50, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2, \"head_dim\": 12, \"intermediate_size\": 80, \"sliding_window\": "
    "70, "
    "\"layer_types\": [\"full_attention\", \"sliding_attention\"], "
    "\"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0}";

static void plan_page(Page *p, const char *source, const char *file, const char *config,
                      const PlanOptions *o) {
    if (page_compile(p, source, file, config, true) != LG_OK || page_plan(p, o) != LG_OK)
        fail_msg("%s", p->error.message);
}

static void plan_model(Page *p, const char *name, const char *config, const PlanOptions *o) {
    char path[600];
    snprintf(path, sizeof path, "%s/models/%s", LG_SOURCE_DIR, name);
    Page reader = {0};
    arena_init(&reader.arena);
    const char *source = read_text(&reader, path);
    assert_non_null(source);
    plan_page(p, source, path, config, o);
    arena_clear(&reader.arena);
}

/* cc must take the text without a warning. formats: of the products, as hosts define them. */
static void compiles(const Plan *plan, const char *level, const char *formats) {
    LgError error = {0};
    Buf text;
    buf_init(&text);
    if (emit_cpu(plan, level, &text, &error) != LG_OK)
        fail_msg("%s", error.message);
    const EmitLevel *l;
    assert_int_equal(emit_level_find(level, &l, &error), LG_OK);
    char source[] = "/tmp/lg_emit_XXXXXX.c", command[800], flags[200] = "";
    for (const char *const *f = l->flags; *f; f++)
        snprintf(flags + strlen(flags), sizeof flags - strlen(flags), "%s ", *f);
    int fd = mkstemps(source, 2);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text.data, text.len), text.len);
    close(fd);
    snprintf(
        command, sizeof command,
        "cc -std=c11 -O1 %s -Wall -Werror -ffp-contract=off -fno-math-errno -fvisibility=hidden "
        "-fPIC -shared %s %s -o %s.so -lm",
        formats, flags, source, source);
    int rc = system(command);
    char object[64];
    snprintf(object, sizeof object, "%s.so", source);
    unlink(object);
    unlink(source);
    buf_clear(&text);
    assert_int_equal(rc, 0);
}

static void emitted_pages_compile_without_warnings(void **state) {
    (void)state;
    for (int l = 0; l < emit_level_count(); l++) {
        const char *level = emit_level_at(l)->name;
        Page a, b, c;
        plan_model(&a, "qwen3.lg", qwen3_config, &cpu);
        compiles(a.plan, level, ""); /* all of them */
        plan_page(&b, varied, "varied.lg", varied_config, &cpu);
        compiles(b.plan, level, "-DLGP_FORMATS=2u");
        plan_page(&c, varied, "varied.lg", varied_config, &plain);
        compiles(c.plan, level, "-DLGP_FORMATS=1u");
        page_clear(&a);
        page_clear(&b);
        page_clear(&c);
    }
}

static void emitted_text_is_the_same_every_time_and_hashes_itself(void **state) {
    (void)state;
    Page p;
    LgError error = {0};
    Buf a, b;
    buf_init(&a);
    buf_init(&b);
    plan_page(&p, varied, "some/where/varied.lg", varied_config, &cpu);
    assert_int_equal(emit_cpu(p.plan, "avx2", &a, &error), LG_OK);
    page_clear(&p);
    plan_page(&p, varied, "else/varied.lg", varied_config, &cpu);
    assert_int_equal(emit_cpu(p.plan, "avx2", &b, &error), LG_OK);
    assert_string_equal(a.data, b.data);
    const char *mark = strstr(a.data, EMIT_CPU_HASH_MARK);
    assert_non_null(mark);
    char hash[65];
    sha256_hex(a.data, (size_t)(mark - a.data), hash);
    assert_memory_equal(mark + strlen(EMIT_CPU_HASH_MARK) + 1, hash, 64);
    assert_non_null(strstr(mark, p.plan->digest));
    page_clear(&p);
    buf_clear(&a);
    buf_clear(&b);
}

static void every_statement_is_quoted_and_cited(void **state) {
    (void)state;
    Page p;
    LgError error = {0};
    Buf text;
    buf_init(&text);
    plan_model(&p, "qwen3.lg", qwen3_config, &cpu);
    assert_int_equal(emit_cpu(p.plan, "generic", &text, &error), LG_OK);
    const LangProgram *program = p.plan->program;
    for (int k = 0; k < program->stmt_count; k++) {
        const LangStmt *s = &program->stmts[k];
        char mark[80];
        snprintf(mark, sizeof mark, "#line %d \"qwen3.lg\"\n", s->line);
        if (s->role == LANG_PLAIN && !strstr(text.data, mark))
            fail_msg("no code cites line %d", s->line);
        const char *quote = arena_strdup(&p.arena, s->text);
        if (s->role == LANG_PLAIN && !strstr(text.data, quote))
            fail_msg("no comment quotes: %s", quote);
    }
    for (int l = 0; l < p.plan->launch_count; l++)
        if (!strstr(text.data, p.plan->launches[l].name))
            fail_msg("no function for %s", p.plan->launches[l].name);
    buf_clear(&text);
    page_clear(&p);
}

/* Lines that #line says must be the lines that the file has. */
static void lines_of_the_file_itself_are_right(void **state) {
    (void)state;
    Page p;
    LgError error = {0};
    Buf text;
    buf_init(&text);
    plan_page(&p, varied, "varied.lg", varied_config, &cpu);
    assert_int_equal(emit_cpu(p.plan, "generic", &text, &error), LG_OK);
    int line = 1, marks = 0;
    for (char *at = text.data; *at; line++) {
        char *end = strchr(at, '\n');
        assert_non_null(end);
        int said = 0;
        char file[64] = "";
        if (sscanf(at, "#line %d \"%63[^\"]\"", &said, file) == 2 && !strcmp(file, "test.c")) {
            assert_int_equal(said, line + 1);
            marks++;
        }
        at = end + 1;
    }
    assert_true(marks > 10);
    buf_clear(&text);
    page_clear(&p);
}

static void wrong_level_and_types_are_refused(void **state) {
    (void)state;
    Page p;
    LgError error = {0};
    Buf text;
    buf_init(&text);
    plan_page(&p, varied, "varied.lg", varied_config, &cpu);
    assert_int_equal(emit_cpu(p.plan, "avx9", &text, &error), LG_BAD_INPUT);
    assert_non_null(strstr(error.message, "there are generic, avx2, avx512, avx512bf16 and amx"));
    page_clear(&p);
    plan_page(&p, PAGE_HEAD "y[t,i]: f16 = x[t,i] * 2\nhz[n,i] = y[last[n],i]" PAGE_END, "test.lg",
              small_config, &cpu);
    assert_int_equal(emit_cpu(p.plan, "generic", &text, &error), LG_BAD_INPUT);
    assert_non_null(strstr(error.message, "store f32 and bf16"));
    page_clear(&p);
    plan_page(&p,
              PAGE_HEAD "param head[V, E] = \"head.weight\"\n"
                        "output logits[t,v]: f32 = sum i: x[t,i] * head[v,i]\n",
              "test.lg", small_config, &cpu);
    assert_int_equal(emit_cpu(p.plan, "generic", &text, &error), LG_BAD_INPUT);
    assert_non_null(strstr(error.message, "one row of logits for each row that the input last"));
    page_clear(&p);
    buf_clear(&text);
}

static void explanation_names_every_launch(void **state) {
    (void)state;
    Page p;
    Buf text;
    buf_init(&text);
    plan_model(&p, "qwen3.lg", qwen3_config, &cpu);
    plan_explain(p.plan, 1, NULL, NULL, &text);
    json_t *json = json_loads(text.data, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(json);
    assert_string_equal(json_string_value(json_object_get(json, "provenance")), "Compiled");
    json_t *launches = json_object_get(json, "launches");
    assert_int_equal(json_array_size(launches), p.plan->launch_count);
    json_int_t flops = 0;
    for (size_t k = 0; k < json_array_size(launches); k++) {
        json_t *l = json_array_get(launches, k);
        assert_true(json_array_size(json_object_get(l, "lines")) > 0);
        assert_true(json_array_size(json_object_get(l, "statements")) > 0);
        json_int_t times = json_is_true(json_object_get(l, "in_layer")) ? 2 : 1;
        flops += times * json_integer_value(json_object_get(l, "flops"));
    }
    assert_int_equal(json_integer_value(json_object_get(json, "flops")), flops);
    /* Products alone: two operations a weight. */
    json_int_t weights = 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96) + 512 * 64;
    assert_true(flops > 2 * weights && flops < 3 * weights);
    json_decref(json);
    buf_clear(&text);
    page_clear(&p);
}

/* The n-th allocation fails, for every n until planning and emitting need no more: an error each
 * time, and nothing is lost. */
static void failed_allocations_are_reported(void **state) {
    (void)state;
    Page p;
    if (page_compile(&p, varied, "varied.lg", varied_config, true) != LG_OK)
        fail_msg("%s", p.error.message);
    LgStatus status = LG_NO_MEMORY;
    long n = 1;
    for (; status != LG_OK && n < 20000; n++) {
        Arena arena;
        Plan *plan = NULL;
        LgError error = {0};
        Buf text;
        arena_init(&arena);
        buf_init(&text);
        lg_alloc_fail_at(n, 1);
        status = plan_build(p.program, &cpu, &arena, &plan, &error);
        if (status == LG_OK)
            status = emit_cpu(plan, "avx2", &text, &error);
        lg_alloc_fail_at(0, 0);
        if (status != LG_OK)
            assert_int_equal(error.status, LG_NO_MEMORY);
        buf_clear(&text);
        arena_clear(&arena);
    }
    assert_int_equal(status, LG_OK);
    assert_true(n > 10);
    page_clear(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(emitted_pages_compile_without_warnings),
        cmocka_unit_test(emitted_text_is_the_same_every_time_and_hashes_itself),
        cmocka_unit_test(every_statement_is_quoted_and_cited),
        cmocka_unit_test(lines_of_the_file_itself_are_right),
        cmocka_unit_test(wrong_level_and_types_are_refused),
        cmocka_unit_test(explanation_names_every_launch),
        cmocka_unit_test(failed_allocations_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
