/* The interpreter against numbers worked out by hand. */
#include "tests/unit/ir/fixture.h"

#define HEAD                                                                                       \
    "model tiny for \"TinyForCausalLM\"\n"                                                         \
    "dim V = vocab_size\n"                                                                         \
    "dim E = hidden_size\n"                                                                        \
    "dim T, N, B, S, A\n"                                                                          \
    "input token[T]: index V\n"                                                                    \
    "input slot[T]: index B\n"                                                                     \
    "input pos[T]: index S\n"                                                                      \
    "input last[N]: index T\n"                                                                     \
    "param emb[V, E] = \"emb.weight\"\n"                                                           \
    "x[t,i] = emb[token[t],i]\n"
#define TAIL "output logits[n,v]: f32 = sum i: x[last[n],i] * emb[v,i]\n"

/* The language refuses what nothing reads: tensors that a test only looks at are used by nought
 * times their sum. */
#define USE(expr)                                                                                  \
    "used[t,i] = x[t,i] + 0 * (" expr ")\n"                                                        \
    "output logits[n,v]: f32 = sum i: used[last[n],i] * emb[v,i]\n"

#define TENSOR1(tensor_name, values_, n)                                                           \
    { .name = tensor_name, .rank = 1, .shape = {n}, .values = values_ }
#define TENSOR2(tensor_name, values_, rows, columns)                                               \
    { .name = tensor_name, .rank = 2, .shape = {rows, columns}, .values = values_ }

static const EvalOptions store_f32 = {.store_f32 = true};
static const EvalOptions store_bf16 = {0};

static void open_sized(Fixture *f, const char *source, const FixtureTensor *tensors, size_t count,
                       EvalOptions options) {
    fixture_init(f);
    fixture_int(f, "vocab_size", (int64_t)tensors[0].shape[0]);
    fixture_int(f, "hidden_size", (int64_t)tensors[0].shape[1]);
    fixture_checkpoint(f, tensors, count);
    fixture_compile(f, source);
    fixture_bind(f);
    fixture_eval(f, options);
}

/* Rows of one sequence from position 0; every row is sampled. */
typedef struct Rows {
    Step step;
    int32_t token[32], slot[32], pos[32], last[32];
} Rows;

static Step *rows_of(Rows *r, int32_t count, const int32_t *tokens) {
    *r = (Rows){0};
    for (int32_t i = 0; i < count; i++) {
        r->token[i] = tokens ? tokens[i] : i;
        r->pos[i] = r->last[i] = i;
    }
    r->step = (Step){.rows = count,
                     .token = r->token,
                     .slot = r->slot,
                     .pos = r->pos,
                     .samples = count,
                     .last = r->last};
    return &r->step;
}

static void trace_of(Fixture *f, int32_t rows, const char *name, FixtureTrace *t) {
    Rows r;
    *t = (FixtureTrace){.name = name, .layer = -2};
    fixture_step_traced(f, rows_of(&r, rows, NULL), t);
}

static const float pair[4] = {3, 4, 1, 7};

static void eval_normalises(void **state) {
    (void)state;
    Fixture f;
    const float gain[2] = {1, 2};
    const FixtureTensor all[] = {TENSOR2("emb.weight", pair, 2, 2), TENSOR1("g", gain, 2)};
    const char *source =
        HEAD "param g[E] = \"g\"\n"
             "h[t,i] = g[i] * x[t,i] * rsqrt((mean j: x[t,j]^2) + 0.5)\n" USE("h[t,i]");
    FixtureTrace t;
    open_sized(&f, source, all, 2, store_f32);
    trace_of(&f, 2, "h", &t);
    assert_near(t.values[0], 3 / sqrt(13.0), 1e-6);
    assert_near(t.values[1], 8 / sqrt(13.0), 1e-6);
    assert_near(t.values[2], 1 / sqrt(25.5), 1e-6);
    assert_near(t.values[3], 14 / sqrt(25.5), 1e-6);
    fixture_clear(&f);
    open_sized(&f, source, all, 2, store_bf16);
    trace_of(&f, 2, "h", &t);
    assert_true(t.values[1] == (double)bf16_round((float)(8 / sqrt(13.0))));
    fixture_clear(&f);
}

static void eval_rounds_a_store_once_and_to_the_written_type(void **state) {
    (void)state;
    Fixture f;
    const float values[4] = {1.00390625f, 1, 1, 1}; /* 1 + 2^-8: halfway between two bf16 values */
    const FixtureTensor all[] = {TENSOR2("emb.weight", values, 2, 2)};
    const char *source = HEAD "a[t,i] = x[t,i]\n"
                              "b[t,i]: f32 = x[t,i] / 3\n"
                              "c[t,i] = emb[token[t],i] + 0.015625 - 0.0000152587890625\n"
                              "d[t,i]: f16 = b[t,i]\n" USE("a[t,i] + c[t,i] + d[t,i]");
    FixtureTrace t;
    open_sized(&f, source, all, 1, store_bf16);
    trace_of(&f, 2, "a", &t);
    assert_true(t.values[0] == 1.0); /* to even */
    trace_of(&f, 2, "b", &t);
    assert_true(t.values[2] == (double)(1.0f / 3.0f));
    trace_of(&f, 2, "c", &t);
    assert_true(t.values[1] == 1.015625); /* rounded after both operations, not between them */
    trace_of(&f, 2, "d", &t);
    assert_true(t.values[2] == (double)f16_to_float(f16_from_float(1.0f / 3.0f)));
    fixture_clear(&f);
}

static void eval_turns_the_halves(void **state) {
    (void)state;
    Fixture f;
    const float values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const FixtureTensor all[] = {TENSOR2("emb.weight", values, 2, 4), TENSOR2("w", values, 4, 4)};
    const char *source =
        HEAD "dim C = 2\n"
             "dim R = E / C\n"
             "param w[C*R, E] = \"w\"\n"
             "phi[t,r in R]: f32 = pos[t] * 100 ^ (-r / R)\n"
             "q[t,c,r] = sum i: x[t,i] * w[c,r,i]\n"
             "qr[t,0 in C,r] = q[t,0,r] * cos(phi[t,r]) - q[t,1,r] * sin(phi[t,r])\n"
             "qr[t,1 in C,r] = q[t,1,r] * cos(phi[t,r]) + q[t,0,r] * sin(phi[t,r])\n" USE(
                 "sum c,r: qr[t,c,r]");
    const float eye[16] = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
    const FixtureTensor with_eye[] = {all[0], TENSOR2("w", eye, 4, 4)};
    FixtureTrace t;
    open_sized(&f, source, with_eye, 2, store_f32);
    trace_of(&f, 2, "phi", &t);
    assert_near(t.values[2], 1.0, 0);
    assert_near(t.values[3], 0.1, 1e-8);
    trace_of(&f, 2, "qr", &t);
    assert_true(t.values[0] == 1 && t.values[3] == 4); /* position 0 does not turn */
    assert_near(t.values[4], 5 * cos(1.0) - 7 * sin(1.0), 1e-6);
    assert_near(t.values[5], 6 * cos(0.1) - 8 * sin(0.1), 1e-6);
    assert_near(t.values[6], 7 * cos(1.0) + 5 * sin(1.0), 1e-6);
    assert_near(t.values[7], 8 * cos(0.1) + 6 * sin(0.1), 1e-6);
    fixture_clear(&f);
}

/* One kv head read by two query heads, head width 1: every number is a plain one. */
#define ATTENTION(bound)                                                                           \
    HEAD "dim G = 1\n"                                                                             \
         "dim M = 2\n"                                                                             \
         "dim D = 1\n"                                                                             \
         "dim W = 2\n"                                                                             \
         "param wq[G*M*D, E] = \"wq\"\n"                                                           \
         "param wk[G*D, E] = \"wk\"\n"                                                             \
         "param wv[G*D, E] = \"wv\"\n"                                                             \
         "state kc[B, S, G, D]\n"                                                                  \
         "state vc[B, S, G, D]\n"                                                                  \
         "q[t,g,m,d] = sum i: x[t,i] * wq[g,m,d,i]\n"                                              \
         "k[t,g,d] = sum i: x[t,i] * wk[g,d,i]\n"                                                  \
         "v[t,g,d] = sum i: x[t,i] * wv[g,d,i]\n"                                                  \
         "kc[slot[t],pos[t],g,d] := k[t,g,d]\n"                                                    \
         "vc[slot[t],pos[t],g,d] := v[t,g,d]\n"                                                    \
         "p[t,g,m,s]: f32 = softmax " bound ": (sum d: q[t,g,m,d] * kc[slot[t],s,g,d]) * 0.5\n"    \
         "o[t,g,m,d] = sum " bound                                                                 \
         ": p[t,g,m,s] * vc[slot[t],s,g,d]\n" USE("sum g,m,d: o[t,g,m,d]")
#define CAUSAL ATTENTION("s <= pos[t]")
#define WINDOWED ATTENTION("pos[t] - W < s <= pos[t]")

static const float attention_emb[8] = {1, 2, 0.5f, 1, -1, 3, 2, 0.25f};
static const float attention_q[4] = {1, 0, 0, 2}, attention_k[2] = {1, 1}, attention_v[2] = {2, -1};
static const FixtureTensor attention_tensors[] = {
    TENSOR2("emb.weight", attention_emb, 4, 2), TENSOR2("wq", attention_q, 2, 2),
    TENSOR2("wk", attention_k, 1, 2), TENSOR2("wv", attention_v, 1, 2)};

/* o of a row of the sequence 0, 1, 2, 3 by the textbook. */
static double attend(int row, int head, int first) {
    double sum = 0, out = 0;
    double q = head == 0 ? (double)attention_emb[2 * row] : 2 * (double)attention_emb[2 * row + 1];
    for (int s = first > 0 ? first : 0; s <= row; s++) {
        double a = (double)attention_emb[2 * s], b = (double)attention_emb[2 * s + 1];
        double e = exp(q * (a + b) * 0.5);
        sum += e;
        out += e * (2 * a - b);
    }
    return out / sum;
}

static void eval_attends_causally_with_shared_kv_heads(void **state) {
    (void)state;
    Fixture f;
    FixtureTrace t;
    open_sized(&f, CAUSAL, attention_tensors, 4, store_f32);
    trace_of(&f, 4, "o", &t);
    for (int row = 0; row < 4; row++)
        for (int head = 0; head < 2; head++)
            assert_near(t.values[row * 2 + head], attend(row, head, 0), 2e-6);
    fixture_clear(&f);
}

static void eval_attends_in_a_window(void **state) {
    (void)state;
    Fixture f;
    FixtureTrace t;
    open_sized(&f, WINDOWED, attention_tensors, 4, store_f32);
    trace_of(&f, 4, "o", &t);
    for (int row = 0; row < 4; row++)
        for (int head = 0; head < 2; head++)
            assert_near(t.values[row * 2 + head], attend(row, head, row - 1), 2e-6);
    fixture_clear(&f);
}

/* Positions fed one by one, in steps of their own and beside a stranger, give the same bits as in
 * one step. */
static void eval_keeps_state_by_sequence_and_position(void **state) {
    (void)state;
    Fixture f;
    FixtureTrace whole, one;
    open_sized(&f, CAUSAL, attention_tensors, 4, store_f32);
    trace_of(&f, 4, "o", &whole);
    for (int32_t i = 0; i < 4; i++) {
        Rows r;
        rows_of(&r, 2, NULL);
        r.token[0] = 3 - i; /* the stranger runs the other way, in slot 7 */
        r.slot[0] = 7;
        r.token[1] = i;
        r.slot[1] = 2;
        r.pos[0] = r.pos[1] = i;
        one = (FixtureTrace){.name = "o", .layer = -2};
        fixture_step_traced(&f, &r.step, &one);
        assert_memory_equal(&one.values[2], &whole.values[i * 2], 2 * sizeof(double));
    }
    fixture_clear(&f);
}

static void eval_reads_the_pages_of_a_step(void **state) {
    (void)state;
    Fixture f;
    FixtureTrace whole, one = {.name = "o", .layer = -2};
    open_sized(&f, CAUSAL, attention_tensors, 4, store_f32);
    trace_of(&f, 4, "o", &whole);
    fixture_clear(&f);
    open_sized(&f, CAUSAL, attention_tensors, 4, store_f32);
    const int32_t pages[2] = {5, 5}; /* two sequences that share their one page */
    Rows r;
    rows_of(&r, 3, NULL);
    r.step.slot_count = 2;
    r.step.pages_per_slot = 1;
    r.step.pages = pages;
    fixture_step(&f, &r.step, NULL);
    rows_of(&r, 1, NULL);
    r.token[0] = r.pos[0] = 3;
    r.slot[0] = 1;
    r.step.slot_count = 2;
    r.step.pages_per_slot = 1;
    r.step.pages = pages;
    fixture_step_traced(&f, &r.step, &one);
    assert_memory_equal(one.values, &whole.values[6], 2 * sizeof(double));
    fixture_clear(&f);
}

static void eval_refuses_a_missing_page(void **state) {
    (void)state;
    Fixture f;
    LgError err = {0};
    open_sized(&f, CAUSAL, attention_tensors, 4, store_f32);
    const int32_t pages[1] = {-1};
    Rows r;
    rows_of(&r, 1, NULL);
    r.step.slot_count = r.step.pages_per_slot = 1;
    r.step.pages = pages;
    assert_int_equal(eval_step(f.eval, &r.step, NULL, &err), LG_BAD_INPUT);
    assert_non_null(strstr(err.message, "page 0 is missing"));
    fixture_clear(&f);
}

static void eval_refuses_numbers_out_of_range(void **state) {
    (void)state;
    Fixture f;
    LgError err = {0};
    open_sized(&f, CAUSAL, attention_tensors, 4, store_f32);
    Rows r;
    rows_of(&r, 2, NULL);
    r.token[1] = 4;
    assert_int_equal(eval_step(f.eval, &r.step, NULL, &err), LG_BAD_INPUT);
    assert_non_null(strstr(err.message, "token 4"));
    rows_of(&r, 2, NULL);
    r.last[0] = 2;
    assert_int_equal(eval_step(f.eval, &r.step, NULL, &err), LG_BAD_INPUT);
    rows_of(&r, 2, NULL);
    r.pos[0] = -1;
    assert_int_equal(eval_step(f.eval, &r.step, NULL, &err), LG_BAD_INPUT);
    fixture_clear(&f);
}

#define EXPERTS                                                                                    \
    HEAD "dim X = 4\n"                                                                             \
         "dim K = 2\n"                                                                             \
         "param r[X, E] = \"r\"\n"                                                                 \
         "param w[X, E, E] = \"w\"\n"                                                              \
         "s[t,e]: f32 = sum i: x[t,i] * r[e,i]\n"                                                  \
         "pick[t,j in K], gate[t,j in K]: f32 = topk e: s[t,e]\n"                                  \
         "best[t] = argmax e: s[t,e]\n"                                                            \
         "h[t,j,i] = sum a: x[t,a] * w[pick[t,j],i,a]\n"                                           \
         "y[t,i] = sum j: gate[t,j] * h[t,j,i]\n"                                                  \
         "top[t] = max e: s[t,e]\n"                                                                \
         "mine[t,i] = sum a: x[t,a] * w[best[t],i,a]\n" USE("y[t,i] + mine[t,i] + top[t]")

static void eval_chooses_experts_by_value_then_by_index(void **state) {
    (void)state;
    Fixture f;
    /* Row 0 scores 1 3 3 2, row 1 scores 4 0 0 4. */
    const float values[4] = {1, 0, 0, 1};
    const float router[8] = {1, 4, 3, 0, 3, 0, 2, 4};
    const float experts[16] = {1, 0, 0, 1, 2, 0, 0, 2, 3, 0, 0, 3, 5, 7, 0, 4};
    const FixtureTensor all[] = {TENSOR2("emb.weight", values, 2, 2),
                                 TENSOR2("r", router, 4, 2),
                                 {.name = "w", .rank = 3, .shape = {4, 2, 2}, .values = experts}};
    open_sized(&f, EXPERTS, all, 3, store_f32);
    FixtureTrace pick, gate = {.name = "gate", .layer = -2, .target = 1}, y;
    Rows r;
    trace_of(&f, 2, "pick", &pick);
    const double which[4] = {1, 2, 0, 3};
    assert_memory_equal(pick.values, which, sizeof which);
    fixture_step_traced(&f, rows_of(&r, 2, NULL), &gate);
    const double much[4] = {3, 3, 4, 4};
    assert_memory_equal(gate.values, much, sizeof much);
    trace_of(&f, 2, "y", &y);
    /* Row 0 is (1, 0): 3·(2, 0) + 3·(3, 0). Row 1 is (0, 1): 4·(0, 1) + 4·(7, 4). */
    const double want[4] = {15, 0, 28, 20};
    assert_memory_equal(y.values, want, sizeof want);
    trace_of(&f, 2, "top", &y);
    assert_true(y.values[0] == 3 && y.values[1] == 4);
    trace_of(&f, 2, "best", &y);
    assert_true(y.values[0] == 1 && y.values[1] == 0);
    fixture_clear(&f);
}

static void eval_sums_in_index_order_and_in_f32(void **state) {
    (void)state;
    Fixture f;
    const float values[8] = {1e8f, 1, -1e8f, 1, 1, 1, 1, 1};
    const float ones[4] = {1, 1, 1, 1};
    const FixtureTensor all[] = {TENSOR2("emb.weight", values, 2, 4), TENSOR2("w", ones, 1, 4)};
    const char *source = HEAD "dim O = 1\n"
                              "param w[O, E] = \"w\"\n"
                              "y[t,o]: f32 = sum i: x[t,i] * w[o,i]\n"
                              "z[t]: f32 = sum i: x[t,i]\n" USE("(sum o: y[t,o]) + z[t]");
    FixtureTrace t;
    open_sized(&f, source, all, 2, store_f32);
    trace_of(&f, 1, "y", &t);
    assert_true(t.values[0] == 1); /* the first 1 is lost beside 1e8 */
    trace_of(&f, 1, "z", &t);
    assert_true(t.values[0] == 1);
    fixture_clear(&f);
    open_sized(&f, source, all, 2, (EvalOptions){.f64 = true, .store_f32 = true});
    trace_of(&f, 1, "y", &t);
    assert_true(t.values[0] == 2);
    trace_of(&f, 1, "z", &t);
    assert_true(t.values[0] == 2);
    fixture_clear(&f);
}

/* Tiles, lone rows and gathered weights: one sum in index order each. */
static void eval_gives_a_row_the_same_bits_in_any_company(void **state) {
    (void)state;
    enum { VOCAB = 19, WIDTH = 13 };
    static float values[VOCAB * WIDTH], weights[WIDTH * WIDTH];
    for (int i = 0; i < VOCAB * WIDTH; i++)
        values[i] = (float)sin(i * 0.7) * (float)(1 + i % 5);
    for (int i = 0; i < WIDTH * WIDTH; i++)
        weights[i] = (float)cos(i * 1.3);
    const FixtureTensor all[] = {TENSOR2("emb.weight", values, VOCAB, WIDTH),
                                 TENSOR2("w", weights, WIDTH, WIDTH),
                                 TENSOR2("u", weights, WIDTH, WIDTH)};
    const char *source = HEAD "param w[E, E] = \"w\"\n"
                              "param u[E, E] = \"u\"\n"
                              "a[t,i] = sum j: x[t,j] * w[i,j]\n"
                              "b[t,i] = (sum j: a[t,j] * u[j,i]) + x[t,i]\n" USE("b[t,i]");
    for (int f64 = 0; f64 < 2; f64++) {
        Fixture f;
        static float together[VOCAB * VOCAB], alone[VOCAB];
        open_sized(&f, source, all, 3, (EvalOptions){.f64 = f64 != 0, .store_f32 = true});
        Rows r;
        fixture_step(&f, rows_of(&r, VOCAB, NULL), together);
        for (int32_t i = 0; i < VOCAB; i++) {
            fixture_step(&f, rows_of(&r, 1, &i), alone);
            assert_memory_equal(alone, together + i * VOCAB, sizeof alone);
        }
        /* The same by plain loops. */
        for (int i = 0; i < WIDTH && !f64; i++) {
            float sum = 0;
            for (int j = 0; j < WIDTH; j++)
                sum += values[3 * WIDTH + j] * weights[i * WIDTH + j];
            FixtureTrace t;
            trace_of(&f, VOCAB, "a", &t);
            assert_true(t.values[3 * WIDTH + i] == (double)sum);
        }
        fixture_clear(&f);
    }
}

static void eval_takes_the_constants_of_each_layer(void **state) {
    (void)state;
    Fixture f;
    const FixtureTensor all[] = {TENSOR2("emb.weight", pair, 2, 2)};
    const char *source = "model tiny for \"TinyForCausalLM\"\n"
                         "dim V = vocab_size\n"
                         "dim E = hidden_size\n"
                         "dim L = num_hidden_layers\n"
                         "dim T, N, B, S, A\n"
                         "input token[T]: index V\n"
                         "input last[N]: index T\n"
                         "const c[l] = if layer_types[l] == \"a\" then 2 else 5\n"
                         "param emb[V, E] = \"emb.weight\"\n"
                         "x[t,i] = emb[token[t],i]\n"
                         "layer l in L {\n"
                         "  y[t,i] = c[l] * x[t,i]\n"
                         "  x[t,i] += y[t,i]\n"
                         "}\n" TAIL;
    fixture_init(&f);
    fixture_int(&f, "vocab_size", 2);
    fixture_int(&f, "hidden_size", 2);
    fixture_int(&f, "num_hidden_layers", 2);
    const ConfigValue kinds[2] = {{.kind = CONFIG_STRING, .string = LG_STR("b")},
                                  {.kind = CONFIG_STRING, .string = LG_STR("a")}};
    const ConfigValue list = {.kind = CONFIG_LIST, .items = kinds, .count = 2};
    assert_int_equal(config_set(f.config, LG_STR("layer_types"), &list, NULL), LG_OK);
    fixture_checkpoint(&f, all, 1);
    fixture_compile(&f, source);
    fixture_bind(&f);
    fixture_eval(&f, store_f32);
    for (int layer = 0; layer < 2; layer++) {
        FixtureTrace t = {.name = "y", .layer = layer};
        Rows r;
        fixture_step_traced(&f, rows_of(&r, 1, NULL), &t);
        assert_true(t.values[0] == (layer ? 2 * (3 + 15) : 15));
    }
    fixture_clear(&f);
}

static void eval_shares_a_tied_head(void **state) {
    (void)state;
    Fixture f;
    const FixtureTensor all[] = {TENSOR2("emb.weight", pair, 2, 2)};
    float logits[2];
    Rows r;
    open_sized(
        &f,
        HEAD "param head[V, E] = emb\noutput logits[n,v]: f32 = sum i: x[last[n],i] * head[v,i]\n",
        all, 1, store_f32);
    fixture_step(&f, rows_of(&r, 1, NULL), logits);
    assert_true(logits[0] == 25 && logits[1] == 31);
    fixture_clear(&f);
}

static void eval_survives_every_failed_allocation(void **state) {
    (void)state;
    LgStatus status = LG_NO_MEMORY;
    Fixture f;
    open_sized(&f, CAUSAL, attention_tensors, 4, store_f32);
    for (long n = 1; status == LG_NO_MEMORY; n++) {
        Eval *e = NULL;
        float logits[16];
        Rows r;
        LgError err = {0};
        rows_of(&r, 4, NULL);
        lg_alloc_fail_at(n, 1);
        status = eval_create(f.program, f.binding, store_f32, &e, &err);
        assert_int_equal(e != NULL, status == LG_OK);
        if (status == LG_OK)
            status = eval_step(e, &r.step, logits, &err);
        lg_alloc_fail_at(0, 0);
        assert_true(status == LG_OK || status == LG_NO_MEMORY);
        if (e) /* a failed step leaves an Eval that works */
            assert_int_equal(eval_step(e, &r.step, logits, &err), LG_OK);
        eval_destroy(e);
        assert_true(n < 1000);
    }
    fixture_clear(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eval_normalises),
        cmocka_unit_test(eval_rounds_a_store_once_and_to_the_written_type),
        cmocka_unit_test(eval_turns_the_halves),
        cmocka_unit_test(eval_attends_causally_with_shared_kv_heads),
        cmocka_unit_test(eval_attends_in_a_window),
        cmocka_unit_test(eval_keeps_state_by_sequence_and_position),
        cmocka_unit_test(eval_reads_the_pages_of_a_step),
        cmocka_unit_test(eval_refuses_a_missing_page),
        cmocka_unit_test(eval_refuses_numbers_out_of_range),
        cmocka_unit_test(eval_chooses_experts_by_value_then_by_index),
        cmocka_unit_test(eval_sums_in_index_order_and_in_f32),
        cmocka_unit_test(eval_gives_a_row_the_same_bits_in_any_company),
        cmocka_unit_test(eval_takes_the_constants_of_each_layer),
        cmocka_unit_test(eval_shares_a_tied_head),
        cmocka_unit_test(eval_survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
