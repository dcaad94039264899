/* The page of models with experts binds both ways in which checkpoints keep them: a tensor for each
 * expert's matrix, or all of a layer in two, gate's rows in front of up's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "formats/checkpoint.h"
#include "formats/tensor_set.h"
#include "ir/bind.h"

enum { LAYERS = 4, EXPERTS = 8, WIDTH = 128, FFN = 128 };

typedef struct Bound {
    Arena arena;
    const LangProgram *program;
    Binding *binding;
} Bound;

static LgStatus bind_page(const Config *config, const TensorSet *tensors, Bound *out,
                          LgError *err) {
    Buf source;
    LangProgram *p = NULL;
    arena_init(&out->arena);
    buf_init(&source);
    assert_int_equal(file_read(LG_SOURCE_DIR "/models/qwen3_moe.lg", 1 << 20, &source, err), LG_OK);
    LgStr text = arena_str(&out->arena, buf_view(&source));
    buf_clear(&source);
    if (lang_compile(text, "qwen3_moe.lg", config, &out->arena, &p, err) != LG_OK)
        fail_msg("%s", err->message);
    out->program = p;
    return bind_params(p, tensors, &out->arena, &out->binding, err);
}

static void add_joined(TensorSet *to, const TensorSet *from, Arena *arena, int layer,
                       const char *name, const char *const *modules, int count, uint64_t rows,
                       uint64_t columns) {
    uint64_t part = rows * columns * 2;
    unsigned char *data = arena_alloc(arena, (size_t)(part * EXPERTS * (uint64_t)count));
    assert_non_null(data);
    for (int e = 0; e < EXPERTS; e++)
        for (int m = 0; m < count; m++) {
            char key[160];
            snprintf(key, sizeof key, "model.layers.%d.mlp.experts.%d.%s.weight", layer, e,
                     modules[m]);
            const Tensor *t = tensor_set_find(from, lg_str(key));
            assert_non_null(t);
            assert_int_equal(t->bytes, part);
            memcpy(data + part * (uint64_t)(e * count + m), t->data, (size_t)part);
        }
    char key[160];
    LgError err;
    snprintf(key, sizeof key, "model.layers.%d.mlp.experts.%s", layer, name);
    Tensor joined = {.name = arena_str(arena, lg_str(key)),
                     .dtype = DTYPE_BF16,
                     .rank = 3,
                     .shape = {EXPERTS, rows * (uint64_t)count, columns},
                     .data = data,
                     .bytes = part * EXPERTS * (uint64_t)count};
    assert_int_equal(tensor_set_add(to, "joined", &joined, &err), LG_OK);
}

static TensorSet *join_experts(const TensorSet *from, Arena *arena) {
    static const char *const gate_up[] = {"gate_proj", "up_proj"}, *const down[] = {"down_proj"};
    LgError err;
    TensorSet *to = tensor_set_create();
    assert_non_null(to);
    for (size_t i = 0; i < tensor_set_count(from); i++) {
        const Tensor *t = tensor_set_at(from, i);
        bool expert = false;
        for (size_t k = 0; k + 9 < t->name.len; k++)
            expert |= memcmp(t->name.ptr + k, ".experts.", 9) == 0;
        if (!expert)
            assert_int_equal(tensor_set_add(to, "joined", t, &err), LG_OK);
    }
    for (int layer = 0; layer < LAYERS; layer++) {
        add_joined(to, from, arena, layer, "gate_up_proj", gate_up, 2, FFN, WIDTH);
        add_joined(to, from, arena, layer, "down_proj", down, 1, WIDTH, FFN);
    }
    return to;
}

static int param(const LangProgram *p, const char *name) {
    for (int i = 0; i < p->tensor_count; i++)
        if (lg_str_eq_c(p->tensors[i].name, name))
            return i;
    fail_msg("no param %s", name);
    return -1;
}

static void both_ways_of_storing_experts_are_the_same_weights(void **state) {
    (void)state;
    Checkpoint *c = NULL;
    LgError err = {0};
    Arena arena;
    Bound each = {0}, joined = {0};
    arena_init(&arena);
    if (checkpoint_open(LG_TEST_DATA "/tiny/models/tiny-qwen3-moe", &c, &err) != LG_OK)
        fail_msg("%s", err.message);
    TensorSet *set = join_experts(checkpoint_tensors(c), &arena);
    if (bind_page(checkpoint_config(c), checkpoint_tensors(c), &each, &err) != LG_OK ||
        bind_page(checkpoint_config(c), set, &joined, &err) != LG_OK)
        fail_msg("%s", err.message);
    for (int layer = 0; layer < LAYERS; layer++)
        for (int k = 0; k < 3; k++) {
            int t = param(each.program, k == 0 ? "wg" : k == 1 ? "wu" : "wd");
            const ParamBinding *a = binding_get(each.binding, t, layer),
                               *b = binding_get(joined.binding, t, layer);
            assert_non_null(a->stacked);
            assert_null(b->stacked);
            for (uint64_t row = 0; row < (uint64_t)EXPERTS * 128; row++) {
                float x[128], y[128];
                binding_row_f32(a, each.program, t, row, x);
                binding_row_f32(b, joined.program, t, row, y);
                assert_memory_equal(x, y, sizeof x);
            }
        }
    tensor_set_close(set);
    arena_clear(&each.arena);
    arena_clear(&joined.arena);
    arena_clear(&arena);
    checkpoint_close(c);
}

/* A layer whose gate_up is there and whose down is not has no down at all. */
static void half_of_a_way_is_refused(void **state) {
    (void)state;
    Checkpoint *c = NULL;
    LgError err = {0};
    Arena arena;
    Bound bound = {0};
    static const char *const gate_up[] = {"gate_proj", "up_proj"};
    arena_init(&arena);
    if (checkpoint_open(LG_TEST_DATA "/tiny/models/tiny-qwen3-moe", &c, &err) != LG_OK)
        fail_msg("%s", err.message);
    TensorSet *set = tensor_set_create();
    for (size_t i = 0; i < tensor_set_count(checkpoint_tensors(c)); i++) {
        const Tensor *t = tensor_set_at(checkpoint_tensors(c), i);
        if (!lg_str_starts(t->name, "model.layers.2.mlp.experts."))
            assert_int_equal(tensor_set_add(set, "half", t, &err), LG_OK);
    }
    add_joined(set, checkpoint_tensors(c), &arena, 2, "gate_up_proj", gate_up, 2, FFN, WIDTH);
    assert_int_equal(bind_page(checkpoint_config(c), set, &bound, &err), LG_BAD_INPUT);
    if (!strstr(err.message, "model.layers.2.mlp.experts.0.down_proj.weight"))
        fail_msg("%s", err.message);
    tensor_set_close(set);
    arena_clear(&bound.arena);
    arena_clear(&arena);
    checkpoint_close(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_ways_of_storing_experts_are_the_same_weights),
        cmocka_unit_test(half_of_a_way_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
