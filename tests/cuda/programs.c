/* cuda_programs [long]: compiled CUDA programs without a device. Every shipped page gives a file
 * that NVRTC compiles (long: all of them for each target), with a kernel for each launch under the
 * name that the host looks for; with and without fusion, in bf16 and f32; the file is the same
 * every time and cites the page. */
#include "tests/unit/stages/fixture.h"

#include <dirent.h>
#include <stdlib.h>

#include "backend/cuda/modules.h"
#include "emit/emit_cuda.h"
#include "ir/stage.h"

static bool all_targets;

static const struct {
    const char *config, *page;
} models[] = {
    {"tiny/models/tiny-qwen3", "qwen3.lg"},
    {"tiny/models/tiny-llama", "llama.lg"},
    {"tiny/models/tiny-qwen3-moe", "qwen3_moe.lg"},
    {"made/models/gemma2", "gemma2.lg"},
    {"made/models/gemma3", "gemma3.lg"},
    {"made/models/llama-yarn", "llama.lg"},
    {"made/models/mistral", "mistral.lg"},
    {"made/models/olmo2", "olmo2.lg"},
    {"made/models/phi3", "phi3.lg"},
    {"made/models/qwen2-window", "qwen2.lg"},
};
#define MODELS (sizeof models / sizeof *models)

static const char *read_all(Arena *arena, const char *path) {
    Buf text;
    LgError err;
    buf_init(&text);
    if (file_read(path, 1 << 20, &text, &err) != LG_OK)
        fail_msg("%s", err.message);
    const char *copy = arena_strdup(arena, buf_view(&text));
    buf_clear(&text);
    return copy;
}

static void plan_model(Page *p, size_t model, const PlanOptions *o) {
    char path[600];
    Arena texts;
    arena_init(&texts);
    snprintf(path, sizeof path, "%s/models/%s", LG_SOURCE_DIR, models[model].page);
    const char *source = read_all(&texts, path);
    snprintf(path, sizeof path, "%s/%s/config.json", LG_TEST_DATA, models[model].config);
    const char *config = read_all(&texts, path);
    if (page_compile(p, source, models[model].page, config, true) != LG_OK ||
        page_plan(p, o) != LG_OK)
        fail_msg("%s: %s", models[model].config, p->error.message);
    arena_clear(&texts);
}

static void emit(const Page *p, Buf *text) {
    LgError err = {0};
    buf_init(text);
    if (emit_cuda(p->plan, text, &err) != LG_OK)
        fail_msg("%s", err.message);
}

static void check_kernels(const Plan *plan, const Buf *cubin) {
    for (int k = 0; k < CUDA_KERNELS * plan->launch_count; k++) {
        const int launch = k / CUDA_KERNELS;
        const EmitCudaKernel kernel = (EmitCudaKernel)(k % CUDA_KERNELS);
        char name[EMIT_CUDA_NAME_MAX], symbol[EMIT_CUDA_NAME_MAX + 8];
        if (!emit_cuda_has(plan, launch, kernel))
            continue;
        emit_cuda_name(plan, launch, kernel, name);
        snprintf(symbol, sizeof symbol, ".text.%s", name);
        if (!memmem(cubin->data, cubin->len, symbol, strlen(symbol)))
            fail_msg("no kernel %s", name);
        EmitCudaGrid g = emit_cuda_grid(plan, launch, kernel, 33);
        assert_true(g.x >= 1 && g.y >= 1 && g.threads >= 32 && g.threads <= 1024);
    }
}

static void compiles(const Nvrtc *n, const Page *p, const char *arch) {
    Buf text, cubin;
    LgError err = {0};
    emit(p, &text);
    const CudaSource source = {.folder = "program",
                               .stem = p->plan->provenance.model,
                               .module = p->plan->provenance.model,
                               .kernels = "",
                               .text = text.data};
    buf_init(&cubin);
    if (cuda_source_compile(n, &source, arch, &cubin, &err) != LG_OK)
        fail_msg("%s", err.message);
    check_kernels(p->plan, &cubin);
    buf_clear(&cubin);
    buf_clear(&text);
}

static Nvrtc *open_or_skip(void) {
    Nvrtc *n = NULL;
    LgError err;
    if (nvrtc_open(getenv("LG_NVRTC"), &n, &err) != LG_OK) {
        print_message("SKIPPED, NO PROGRAM WAS COMPILED: %s\n", err.message);
        skip();
    }
    return n;
}

static void every_model_compiles(void **state) {
    (void)state;
    Nvrtc *n = open_or_skip();
    static const char *const targets[] = {"sm_90a", "sm_80", "sm_100a", "sm_121a"};
    static const PlanOptions bf16 = {.backend = "cuda"};
    for (size_t m = 0; m < MODELS; m++) {
        Page p;
        plan_model(&p, m, &bf16);
        for (size_t t = 0; t < 4; t++)
            if (all_targets || (m < 4 && t == m))
                compiles(n, &p, targets[t]);
        page_clear(&p);
    }
    nvrtc_close(n);
}

static void plain_and_f32_programs_compile(void **state) {
    (void)state;
    Nvrtc *n = open_or_skip();
    static const PlanOptions f32 = {.backend = "cuda", .store_f32 = true},
                             plain = {.backend = "cuda", .no_fuse = true, .keep_values = true};
    Page p;
    for (size_t m = 2; m < (all_targets ? 4 : 3); m++) {
        plan_model(&p, m, &f32);
        compiles(n, &p, "sm_90a");
        page_clear(&p);
        plan_model(&p, m, &plain);
        compiles(n, &p, "sm_90a");
        page_clear(&p);
    }
    nvrtc_close(n);
}

static void the_text_is_the_same_every_time_and_cites_the_page(void **state) {
    (void)state;
    static const PlanOptions o = {.backend = "cuda"};
    Page p;
    Buf a, b;
    plan_model(&p, 0, &o);
    emit(&p, &a);
    emit(&p, &b);
    assert_string_equal(a.data, b.data);
    for (int k = 0; k < p.plan->launch_count; k++) {
        const Stage *s = p.plan->launches[k].stages[0];
        char line[64];
        snprintf(line, sizeof line, "#line %d \"qwen3.lg\"", s->stmt->line);
        if (!strstr(a.data, line))
            fail_msg("launch %s: no %s", p.plan->launches[k].name, line);
    }
    buf_clear(&a);
    buf_clear(&b);
    page_clear(&p);
}

int main(int argc, char **argv) {
    all_targets = argc > 1 && strcmp(argv[1], "long") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_text_is_the_same_every_time_and_cites_the_page),
        cmocka_unit_test(every_model_compiles),
        cmocka_unit_test(plain_and_f32_programs_compile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
