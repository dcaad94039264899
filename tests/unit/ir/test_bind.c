/* Params and checkpoint tensors: which binds, what is refused, what may be left over. */
#include "tests/unit/ir/fixture.h"

#define HEAD                                                                                       \
    "model tiny for \"TinyForCausalLM\"\n"                                                         \
    "dim V = vocab_size\n"                                                                         \
    "dim E = hidden_size\n"                                                                        \
    "dim L = num_hidden_layers\n"                                                                  \
    "dim T, N, B, S, A\n"                                                                          \
    "input token[T]: index V\n"                                                                    \
    "input last[N]: index T\n"
#define BODY                                                                                       \
    "x[t,i] = emb[token[t],i]\n"                                                                   \
    "layer l in L {\n"                                                                             \
    "  param w[E, E] = \"layers.{l}.w.weight\"\n"                                                  \
    "  y[t,i] = sum j: x[t,j] * w[i,j]\n"                                                          \
    "  x[t,i] += y[t,i]\n"                                                                         \
    "}\n"                                                                                          \
    "output logits[n,v]: f32 = sum i: x[last[n],i] * head[v,i]\n"
#define UNTIED                                                                                     \
    HEAD "param emb[V, E] = \"emb.weight\"\n"                                                      \
         "param head[V, E] = \"lm_head.weight\"\n" BODY
#define TIED                                                                                       \
    HEAD "param emb[V, E] = \"emb.weight\"\n"                                                      \
         "param head[V, E] = if tie_word_embeddings then emb else \"lm_head.weight\"\n" BODY

static const float numbers[64] = {0.5f, 1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
                                  12,   13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23};
static const float others[64] = {0.25f, 1, 2, 3, 4, 5};

static const FixtureTensor emb = {
    .name = "emb.weight", .rank = 2, .shape = {3, 2}, .values = numbers};
static const FixtureTensor lm_head = {
    .name = "lm_head.weight", .rank = 2, .shape = {3, 2}, .values = others};
static const FixtureTensor w0 = {
    .name = "layers.0.w.weight", .rank = 2, .shape = {2, 2}, .values = numbers + 4};
static const FixtureTensor w1 = {
    .name = "layers.1.w.weight", .rank = 2, .shape = {2, 2}, .values = numbers + 8};

static void sizes(Fixture *f) {
    fixture_init(f);
    fixture_int(f, "vocab_size", 3);
    fixture_int(f, "hidden_size", 2);
    fixture_int(f, "num_hidden_layers", 2);
}

static void bind_takes_the_tensor_of_each_layer(void **state) {
    (void)state;
    Fixture f;
    sizes(&f);
    const FixtureTensor all[] = {emb, w1, lm_head, w0};
    fixture_checkpoint(&f, all, 4);
    fixture_compile(&f, UNTIED);
    fixture_bind(&f);
    int w = fixture_tensor(&f, "w");
    float row[2];
    binding_row_f32(binding_get(f.binding, w, 1), f.program, w, 1, row);
    assert_true(row[0] == 10 && row[1] == 11);
    assert_string_equal(binding_get(f.binding, w, 0)->tensor->name.ptr, "layers.0.w.weight");
    /* A param outside the layers is the same for every layer. */
    int e = fixture_tensor(&f, "emb");
    assert_ptr_equal(binding_get(f.binding, e, 0)->tensor, binding_get(f.binding, e, 1)->tensor);
    assert_int_equal(f.binding->disregarded_count, 0);
    fixture_clear(&f);
}

static void refused(const char *source, const FixtureTensor *tensors, size_t count,
                    const char *word, const char *other) {
    Fixture f;
    sizes(&f);
    fixture_checkpoint(&f, tensors, count);
    fixture_compile(&f, source);
    fixture_bind_refused(&f, word, other);
    fixture_clear(&f);
}

static void bind_refuses_a_missing_tensor(void **state) {
    (void)state;
    const FixtureTensor all[] = {emb, lm_head, w0};
    refused(UNTIED, all, 3, "layers.1.w.weight", "test.lg:12: cannot bind w");
}

static void bind_refuses_another_shape(void **state) {
    (void)state;
    FixtureTensor wide = w1;
    wide.shape[1] = 3;
    const FixtureTensor all[] = {emb, lm_head, w0, wide};
    refused(UNTIED, all, 4, "[2, 3]", "[2, 2]");
    FixtureTensor flat = w1;
    flat.rank = 1;
    flat.shape[0] = 4;
    const FixtureTensor more[] = {emb, lm_head, w0, flat};
    refused(UNTIED, more, 4, "layers.1.w.weight", "[4]");
}

static void bind_refuses_a_dtype_that_is_not_served(void **state) {
    (void)state;
    FixtureTensor ints = w1;
    ints.dtype = "I32";
    ints.elem_bytes = 4;
    ints.raw = numbers;
    const FixtureTensor all[] = {emb, lm_head, w0, ints};
    refused(UNTIED, all, 4, "I32", "Served are F32, F16, BF16");
}

static void bind_names_tensors_that_nothing_claims(void **state) {
    (void)state;
    FixtureTensor extra[10] = {emb, lm_head, w0, w1};
    static char names[6][32];
    for (int i = 0; i < 6; i++) {
        snprintf(names[i], sizeof names[i], "stray.%d", i);
        extra[4 + i] = w0;
        extra[4 + i].name = names[i];
    }
    refused(UNTIED, extra, 5, "stray.0", "1 of its tensors");
    refused(UNTIED, extra, 10, "\"stray.4\", …", "6 of its tensors");
}

/* The checker sees equal names; two names that become equal at a layer are seen here. */
static void bind_refuses_one_tensor_for_two_params(void **state) {
    (void)state;
    const char *source = HEAD "param emb[V, E] = \"emb.weight\"\n"
                              "param head[V, E] = \"lm_head.weight\"\n"
                              "param first[E, E] = \"layers.0.w.weight\"\n"
                              "z[t,i] = sum j: emb[token[t],j] * first[i,j]\n"
                              "x[t,i] = emb[token[t],i] + z[t,i]\n"
                              "layer l in L {\n"
                              "  param w[E, E] = \"layers.{l}.w.weight\"\n"
                              "  y[t,i] = sum j: x[t,j] * w[i,j]\n"
                              "  x[t,i] += y[t,i]\n"
                              "}\n"
                              "output logits[n,v]: f32 = sum i: x[last[n],i] * head[v,i]\n";
    const FixtureTensor all[] = {emb, lm_head, w0, w1};
    refused(source, all, 4, "\"layers.0.w.weight\" is bound already", "cannot bind w");
}

static void bind_disregards_inverse_frequencies(void **state) {
    (void)state;
    Fixture f;
    sizes(&f);
    const FixtureTensor freq = {.name = "model.layers.0.self_attn.rotary_emb.inv_freq",
                                .rank = 1,
                                .shape = {2},
                                .values = numbers};
    const FixtureTensor all[] = {emb, w1, lm_head, w0, freq};
    fixture_checkpoint(&f, all, 5);
    fixture_compile(&f, UNTIED);
    fixture_bind(&f);
    assert_int_equal(f.binding->disregarded_count, 1);
    assert_true(lg_str_starts(f.binding->disregarded[0], freq.name));
    fixture_clear(&f);
}

static void tied(Fixture *f, const FixtureTensor *all, size_t count) {
    sizes(f);
    assert_int_equal(config_set_bool(f->config, "tie_word_embeddings", true, NULL), LG_OK);
    fixture_checkpoint(f, all, count);
    fixture_compile(f, TIED);
}

static void bind_disregards_a_tied_head_that_equals_the_embedding(void **state) {
    (void)state;
    Fixture f;
    FixtureTensor copy = lm_head;
    copy.values = numbers;
    const FixtureTensor all[] = {emb, copy, w0, w1};
    tied(&f, all, 4);
    fixture_bind(&f);
    assert_int_equal(f.binding->disregarded_count, 1);
    assert_true(lg_str_starts(f.binding->disregarded[0], "lm_head.weight: equals"));
    const ParamBinding *head = binding_get(f.binding, fixture_tensor(&f, "head"), 0);
    assert_ptr_equal(head->tensor, binding_get(f.binding, fixture_tensor(&f, "emb"), 0)->tensor);
    fixture_clear(&f);
}

static void bind_compares_a_tied_head_of_another_dtype_by_value(void **state) {
    (void)state;
    Fixture f;
    uint16_t halves[6];
    for (int i = 0; i < 6; i++)
        halves[i] = bf16_from_float(numbers[i]);
    FixtureTensor copy = lm_head;
    copy.dtype = "BF16";
    copy.elem_bytes = 2;
    copy.raw = halves;
    const FixtureTensor all[] = {emb, copy, w0, w1};
    tied(&f, all, 4);
    fixture_bind(&f);
    assert_int_equal(f.binding->disregarded_count, 1);
    fixture_clear(&f);
}

static void bind_refuses_a_tied_head_that_differs(void **state) {
    (void)state;
    Fixture f;
    const FixtureTensor all[] = {emb, lm_head, w0, w1};
    tied(&f, all, 4);
    fixture_bind_refused(&f, "lm_head.weight", "differs");
    fixture_clear(&f);
}

#define WINDOWS(first, second)                                                                     \
    HEAD "param emb[V, E] = \"emb.weight\"\n"                                                      \
         "param up[E, E] = \"both.weight\" from " first "\n"                                       \
         "param down[E, E] = \"both.weight\" from " second "\n"                                    \
         "x[t,i] = emb[token[t],i]\n"                                                              \
         "y[t,i] = sum j: x[t,j] * up[i,j]\n"                                                      \
         "z[t,i] = sum j: y[t,j] * down[i,j]\n"                                                    \
         "output logits[n,v]: f32 = sum i: z[last[n],i] * emb[v,i]\n"

static void bind_cuts_windows_from_a_longer_axis(void **state) {
    (void)state;
    Fixture f;
    sizes(&f);
    const FixtureTensor both = {
        .name = "both.weight", .rank = 2, .shape = {4, 2}, .values = numbers};
    const FixtureTensor all[] = {emb, both};
    fixture_checkpoint(&f, all, 2);
    fixture_compile(&f, WINDOWS("E", "0"));
    fixture_bind(&f);
    float row[2];
    int up = fixture_tensor(&f, "up"), down = fixture_tensor(&f, "down");
    assert_int_equal(binding_get(f.binding, up, 0)->from_row, 2);
    binding_row_f32(binding_get(f.binding, up, 0), f.program, up, 1, row);
    assert_true(row[0] == 6 && row[1] == 7);
    binding_row_f32(binding_get(f.binding, down, 0), f.program, down, 1, row);
    assert_true(row[0] == 2 && row[1] == 3);
    fixture_clear(&f);
}

static void bind_refuses_windows_that_do_not_tile(void **state) {
    (void)state;
    FixtureTensor both = {.name = "both.weight", .rank = 2, .shape = {5, 2}, .values = numbers};
    const FixtureTensor five[] = {emb, both};
    refused(WINDOWS("0", "E"), five, 2, "rows 4 to 5", "tile");
    both.shape[0] = 3;
    const FixtureTensor three[] = {emb, both};
    refused(WINDOWS("0", "E"), three, 2, "rows 2 to 4", "inside the stored axis");
}

#define OPTIONAL                                                                                   \
    HEAD "param emb[V, E] = \"emb.weight\"\n"                                                      \
         "param b[E] = \"new.bias\" or \"old.bias\" or 0.5\n"                                      \
         "x[t,i] = emb[token[t],i] + b[i]\n"                                                       \
         "output logits[n,v]: f32 = sum i: x[last[n],i] * emb[v,i]\n"

static void bind_takes_the_first_source_that_exists(void **state) {
    (void)state;
    const FixtureTensor old = {.name = "old.bias", .rank = 1, .shape = {2}, .values = numbers};
    const FixtureTensor all[] = {emb, old};
    for (size_t count = 1; count <= 2; count++) {
        Fixture f;
        sizes(&f);
        fixture_checkpoint(&f, all, count);
        fixture_int(&f, "num_hidden_layers", 1);
        fixture_compile(&f, OPTIONAL);
        fixture_bind(&f);
        int b = fixture_tensor(&f, "b");
        float row[2];
        binding_row_f32(binding_get(f.binding, b, 0), f.program, b, 0, row);
        assert_true(row[0] == 0.5f && row[1] == (count == 1 ? 0.5f : 1.0f));
        fixture_clear(&f);
    }
}

#define EXPERTS                                                                                    \
    HEAD "dim X = num_experts\n"                                                                   \
         "dim K = 1\n"                                                                             \
         "param emb[V, E] = \"emb.weight\"\n"                                                      \
         "param r[X, E] = \"router.weight\"\n"                                                     \
         "param w[X, E, E] = \"experts.{X}.w\"\n"                                                  \
         "x[t,i] = emb[token[t],i]\n"                                                              \
         "s[t,e]: f32 = sum i: x[t,i] * r[e,i]\n"                                                  \
         "pick[t,j in K], gate[t,j in K]: f32 = topk e: s[t,e]\n"                                  \
         "y[t,j,i] = sum a: x[t,a] * w[pick[t,j],i,a]\n"                                           \
         "z[t,i] = sum j: gate[t,j] * y[t,j,i]\n"                                                  \
         "output logits[n,v]: f32 = sum i: z[last[n],i] * emb[v,i]\n"

static void experts(Fixture *f, size_t tensors) {
    const FixtureTensor all[] = {
        emb,
        {.name = "router.weight", .rank = 2, .shape = {3, 2}, .values = numbers},
        {.name = "experts.0.w", .rank = 2, .shape = {2, 2}, .values = numbers},
        {.name = "experts.2.w", .rank = 2, .shape = {2, 2}, .values = numbers + 8},
        {.name = "experts.1.w", .rank = 2, .shape = {2, 2}, .values = numbers + 4}};
    sizes(f);
    fixture_int(f, "num_experts", 3);
    fixture_checkpoint(f, all, tensors);
    fixture_compile(f, EXPERTS);
}

static void bind_stacks_the_tensors_of_experts(void **state) {
    (void)state;
    Fixture f;
    experts(&f, 5);
    fixture_bind(&f);
    int w = fixture_tensor(&f, "w");
    const ParamBinding *b = binding_get(f.binding, w, 0);
    assert_non_null(b->stacked);
    float row[2];
    for (uint64_t r = 0; r < 6; r++) {
        binding_row_f32(b, f.program, w, r, row);
        assert_true(row[0] == numbers[2 * r] && row[1] == numbers[2 * r + 1]);
    }
    fixture_clear(&f);
}

static void bind_refuses_a_missing_expert(void **state) {
    (void)state;
    Fixture f;
    experts(&f, 4);
    fixture_bind_refused(&f, "experts.1.w", "All of them are needed");
    fixture_clear(&f);
}

static void bind_survives_every_failed_allocation(void **state) {
    (void)state;
    Fixture f;
    FixtureTensor copy = lm_head;
    copy.values = numbers;
    const FixtureTensor all[] = {emb, copy, w0, w1};
    tied(&f, all, 4);
    LgStatus status = LG_NO_MEMORY;
    for (long n = 1; status == LG_NO_MEMORY; n++) {
        Arena arena;
        Binding *binding = NULL;
        LgError err = {0};
        arena_init(&arena);
        lg_alloc_fail_at(n, 1);
        status = bind_params(f.program, f.tensors, &arena, &binding, &err);
        lg_alloc_fail_at(0, 0);
        assert_true(status == LG_OK || status == LG_NO_MEMORY);
        assert_int_equal(binding != NULL, status == LG_OK);
        arena_clear(&arena);
        assert_true(n < 1000);
    }
    fixture_clear(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bind_takes_the_tensor_of_each_layer),
        cmocka_unit_test(bind_refuses_a_missing_tensor),
        cmocka_unit_test(bind_refuses_another_shape),
        cmocka_unit_test(bind_refuses_a_dtype_that_is_not_served),
        cmocka_unit_test(bind_names_tensors_that_nothing_claims),
        cmocka_unit_test(bind_refuses_one_tensor_for_two_params),
        cmocka_unit_test(bind_disregards_inverse_frequencies),
        cmocka_unit_test(bind_disregards_a_tied_head_that_equals_the_embedding),
        cmocka_unit_test(bind_compares_a_tied_head_of_another_dtype_by_value),
        cmocka_unit_test(bind_refuses_a_tied_head_that_differs),
        cmocka_unit_test(bind_cuts_windows_from_a_longer_axis),
        cmocka_unit_test(bind_refuses_windows_that_do_not_tile),
        cmocka_unit_test(bind_takes_the_first_source_that_exists),
        cmocka_unit_test(bind_stacks_the_tensors_of_experts),
        cmocka_unit_test(bind_refuses_a_missing_expert),
        cmocka_unit_test(bind_survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
