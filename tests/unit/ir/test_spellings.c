/* One model in the spellings of two years: what transformers 4 and 5 write of the tiny models of
 * random weights compiles to the same program, and binds the same tensors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/embedded.h"
#include "base/file.h"
#include "formats/checkpoint.h"
#include "ir/bind.h"
#include "lang/lang.h"

#define MODELS LG_SOURCE_DIR "/tests/data/made/models/"

static const struct {
    const char *model, *page;
} cases[] = {
    {"qwen2-window", "qwen2.lg"}, {"mistral", "mistral.lg"},    {"gemma3", "gemma3.lg"},
    {"gemma2", "gemma2.lg"},      {"llama-linear", "llama.lg"}, {"llama-yarn", "llama.lg"},
    {"phi3", "phi3.lg"},          {"olmo2", "olmo2.lg"},
};

static LgStr page_named(const char *name) {
    for (const LgEmbedded *e = lg_models; e->name; e++)
        if (strcmp(e->name, name) == 0)
            return (LgStr){e->data, e->size};
    fail_msg("no page %s in the binary", name);
    return (LgStr){0};
}

static const LangProgram *compile(const char *model, const char *file, const char *page,
                                  Arena *arena, Buf *printed) {
    char path[600];
    snprintf(path, sizeof path, MODELS "%s/%s", model, file);
    LgError err = {0};
    Buf text;
    buf_init(&text);
    Config *config = config_create();
    assert_non_null(config);
    LangProgram *p = NULL;
    if (file_read(path, 1u << 20, &text, &err) != LG_OK ||
        hf_config_parse(buf_view(&text), path, config, &err) != LG_OK ||
        lang_compile(page_named(page), page, config, arena, &p, &err) != LG_OK)
        fail_msg("%s: %s", path, err.message);
    lang_print(p, printed);
    config_destroy(config);
    buf_clear(&text);
    return p;
}

static void both_spellings_give_one_program(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Arena arena;
        arena_init(&arena);
        Buf of4, of5;
        buf_init(&of4);
        buf_init(&of5);
        compile(cases[i].model, "config.v4.json", cases[i].page, &arena, &of4);
        compile(cases[i].model, "config.json", cases[i].page, &arena, &of5);
        assert_true(of5.len > 1000);
        assert_string_equal(of4.data, of5.data);
        buf_clear(&of4);
        buf_clear(&of5);
        arena_clear(&arena);
    }
}

static void the_program_of_the_older_spelling_binds(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char path[600];
        snprintf(path, sizeof path, MODELS "%s", cases[i].model);
        Arena arena;
        arena_init(&arena);
        Buf printed;
        buf_init(&printed);
        LgError err = {0};
        Checkpoint *checkpoint = NULL;
        Binding *binding = NULL;
        const LangProgram *p =
            compile(cases[i].model, "config.v4.json", cases[i].page, &arena, &printed);
        if (checkpoint_open(path, &checkpoint, &err) != LG_OK ||
            bind_params(p, checkpoint_tensors(checkpoint), &arena, &binding, &err) != LG_OK)
            fail_msg("%s: %s", path, err.message);
        buf_clear(&printed);
        checkpoint_close(checkpoint);
        arena_clear(&arena);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_spellings_give_one_program),
        cmocka_unit_test(the_program_of_the_older_spelling_binds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
