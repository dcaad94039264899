/* Compiled programs against the meaning of their pages, on models of odd shapes: every statement's
 * values within the bound that its arithmetic allows, on both feature levels; and the same bits for
 * a row whatever its company, threads, chunks and order are. The interpreter is held to the same
 * bounds, which are a third reading of the page. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/runner_cpu.h"
#include "base/mem.h"
#include "base/rng.h"
#include "ir/eval.h"
#include "ir/stage.h"
#include "tests/e2e/random_model.h"
#include "tests/e2e/reading.h"

#define ROWS_MAX 33
#define SLOTS 3
#define POSITIONS 160
#define ADAPTERS 2
#define PAGES_PER_SLOT ((POSITIONS + KV_PAGE_POSITIONS - 1) / KV_PAGE_POSITIONS)

static const RandomShape shapes[] = {
    {"qwen3.lg", 52, 1, 3, 16, 37, 61, 2, DTYPE_BF16, true, false, 0, 0, false, NULL},
    {"llama.lg", 33, 3, 1, 22, 65, 131, 1, DTYPE_F32, false, true, 0, 0, false, NULL},
    {"llama.lg", 96, 2, 2, 32, 160, 75, 1, DTYPE_Q4_1, true, false, 0, 0, false, NULL},
    {"qwen3.lg", 64, 2, 4, 48, 100, 47, 1, DTYPE_F16, false, false, 0, 0, false, NULL},
    {"llama.lg", 130, 1, 2, 128, 17, 200, 1, DTYPE_BF16, true, false, 0, 0, false, NULL},
    {"qwen3.lg", 24, 2, 1, 256, 16, 32, 1, DTYPE_BF16, true, false, 0, 0, false, NULL},
    {"llama.lg", 256, 4, 2, 32, 321, 97, 2, DTYPE_F16, true, true, 0, 0, false, NULL},
    {"llama.lg", 32, 1, 1, 64, 96, 33, 2, DTYPE_Q8_0, false, false, 0, 0, false, NULL},
    {"llama.lg", 64, 1, 3, 32, 32, 50, 1, DTYPE_Q4_0, true, false, 0, 0, false, NULL},
    {"llama.lg", 256, 2, 2, 64, 256, 43, 1, DTYPE_Q4_K, true, false, 0, 0, false, NULL},
    {"llama.lg", 256, 1, 4, 64, 512, 35, 1, DTYPE_Q6_K, false, false, 0, 0, false, NULL},
    {"qwen3_moe.lg", 52, 1, 3, 16, 37, 61, 2, DTYPE_BF16, true, false, 5, 3, false, NULL},
    {"qwen3_moe.lg", 64, 2, 1, 32, 96, 47, 1, DTYPE_Q8_0, true, false, 17, 4, true, NULL},
    {"qwen3_moe.lg", 33, 1, 2, 16, 19, 40, 1, DTYPE_F32, false, false, 3, 1, true, NULL},
    {"qwen3_moe.lg", 32, 1, 2, 16, 32, 33, 1, DTYPE_Q4_0, true, false, 4, 2, false, NULL},
    {"gemma3.lg", 48, 1, 2, 24, 40, 53, 2, DTYPE_BF16, true, false, 0, 0, false,
     "hidden_activation='gelu_pytorch_tanh' sliding_window=9 sliding_window_pattern=2 "
     "query_pre_attn_scalar=20 final_logit_softcapping=7.5"},
    {"phi3.lg", 40, 2, 2, 20, 33, 45, 1, DTYPE_BF16, false, false, 0, 0, false,
     "hidden_act='silu' sliding_window=64 partial_rotary_factor=0.8"},
    {"gemma2.lg", 36, 2, 1, 18, 30, 41, 2, DTYPE_F16, true, false, 0, 0, false,
     "hidden_activation='gelu_pytorch_tanh' sliding_window=1 attn_logit_softcapping=1.5 "
     "final_logit_softcapping=4.0"},
    {"qwen2.lg", 44, 1, 3, 16, 50, 39, 2, DTYPE_BF16, true, false, 0, 0, false,
     "hidden_act='silu' use_sliding_window=true sliding_window=17 max_window_layers=1"},
    {"mistral.lg", 32, 2, 2, 22, 48, 37, 1, DTYPE_F32, false, false, 0, 0, false,
     "hidden_act='silu' sliding_window=65"},
    {"olmo2.lg", 56, 2, 2, 14, 44, 35, 1, DTYPE_BF16, false, false, 0, 0, false,
     "hidden_act='silu'"},
};
enum { SHAPE_COUNT = sizeof shapes / sizeof shapes[0], FIRST_OF_EXPERTS = 11, FIRST_OF_PAGES = 15 };
static const char *const levels[] = {"generic", NULL};

/* ---- steps ---- */

typedef struct Batch {
    Step step;
    int32_t token[ROWS_MAX], slot[ROWS_MAX], pos[ROWS_MAX], ad[ROWS_MAX], last[ROWS_MAX];
    int32_t pages[SLOTS * PAGES_PER_SLOT];
    AdapterSet sets[4];
} Batch;

/* Sequence s uses set s: none, one adapter, then both with scales of their own. */
static void batch_init(Batch *b, const int32_t adapter_slots[ADAPTERS]) {
    *b = (Batch){0};
    for (int i = 0; i < SLOTS * PAGES_PER_SLOT; i++)
        b->pages[i] = (i * 5 + 3) % (SLOTS * PAGES_PER_SLOT); /* in no order */
    if (adapter_slots) {
        b->sets[1] = (AdapterSet){.count = 1, .use = {{adapter_slots[0], 1}}};
        b->sets[2] =
            (AdapterSet){.count = 2, .use = {{adapter_slots[1], 0.5f}, {adapter_slots[0], -1}}};
    }
    b->step = (Step){.token = b->token,
                     .slot = b->slot,
                     .pos = b->pos,
                     .ad = b->ad,
                     .set_count = adapter_slots ? 3 : 1,
                     .sets = b->sets,
                     .last = b->last,
                     .slot_count = SLOTS,
                     .pages_per_slot = PAGES_PER_SLOT,
                     .pages = b->pages};
}

static int32_t token_at(const RandomModel *m, int32_t sequence, int32_t pos) {
    return (int32_t)(rng_u64(99 + (uint64_t)sequence, (uint64_t)pos) % (uint64_t)m->shape.vocab);
}

static void batch_row(Batch *b, const RandomModel *m, int32_t slot, int32_t pos) {
    int32_t r = b->step.rows++;
    assert_true(r < ROWS_MAX);
    b->token[r] = token_at(m, slot, pos);
    b->slot[r] = slot;
    b->pos[r] = pos;
    b->ad[r] = b->step.set_count > 1 ? slot : 0;
    b->last[b->step.samples++] = r;
}

/* Steps of 33 rows, of three and of one, prompts in pieces, three sequences, past the edge of a
 * page: (slot, from, to) by step. */
static const int32_t schedule[][3][3] = {
    {{0, 0, 20}, {2, 0, 12}, {1, 0, 1}},     {{1, 1, 34}, {0, 20, 20}, {2, 12, 12}},
    {{0, 20, 51}, {1, 34, 35}, {2, 12, 13}}, {{0, 51, 66}, {2, 13, 30}, {1, 35, 36}},
    {{0, 66, 67}, {1, 36, 36}, {2, 30, 30}}, {{2, 30, 31}, {1, 36, 37}, {0, 67, 68}},
    {{2, 31, 32}, {1, 37, 37}, {0, 68, 68}},
};
enum { SCHEDULE_COUNT = sizeof schedule / sizeof schedule[0] };

static void batch_of(Batch *b, const RandomModel *m, int at,
                     const int32_t adapter_slots[ADAPTERS]) {
    batch_init(b, adapter_slots);
    for (int i = 0; i < 3; i++)
        for (int32_t pos = schedule[at][i][1]; pos < schedule[at][i][2]; pos++)
            batch_row(b, m, schedule[at][i][0], pos);
}

/* ---- a model with its adapters ---- */

typedef struct Case {
    RandomModel model;
    RandomAdapter adapters[ADAPTERS];
    bool store_f32;
} Case;

static void case_open(Case *c, int shape, bool store_f32) {
    LgError err = {0};
    c->store_f32 = store_f32;
    if (random_model_make(&shapes[shape], 7 + (uint64_t)shape, &c->model, &err) != LG_OK)
        fail_msg("shape %d: %s", shape, err.message);
    for (int i = 0; i < ADAPTERS; i++)
        assert_int_equal(random_adapter_make(&c->model, 40 + (uint64_t)i, i ? 17 : 8, store_f32,
                                             &c->adapters[i], &err),
                         LG_OK);
}

static void case_close(Case *c) {
    for (int i = 0; i < ADAPTERS; i++)
        random_adapter_clear(&c->adapters[i]);
    random_model_clear(&c->model);
}

static RunnerOptions case_options(const Case *c, const char *level) {
    return (RunnerOptions){.program = c->model.program,
                           .binding = c->model.binding,
                           .store_f32 = c->store_f32,
                           .threads = 2,
                           .rows_max = ROWS_MAX,
                           .level = level,
                           .cache_dir = LG_TEST_CACHE,
                           .poison = true};
}

static Runner *case_runner(const Case *c, const RunnerOptions *o, int32_t slots[ADAPTERS]) {
    LgError err = {0};
    Runner *r = NULL;
    if (runner_open_cpu(o, &r, &err) != LG_OK)
        fail_msg("%s: %s", c->model.shape.page, err.message);
    assert_int_equal(r->ops->kv_reserve(r, SLOTS * PAGES_PER_SLOT, &err), LG_OK);
    for (int i = 0; slots && i < ADAPTERS; i++)
        if (r->ops->adapter_install(r, &c->adapters[i].data, &slots[i], &err) != LG_OK)
            fail_msg("%s", err.message);
    return r;
}

static void must_step(Runner *r, const Step *step, float *logits) {
    LgError err = {0};
    if (r->ops->step(r, step, logits, &err) != LG_OK)
        fail_msg("%s", err.message);
}

/* ---- statement by statement ---- */

typedef struct Watch {
    Reading *reading;
    const Plan *plan;
    const LangProgram *p;
    ReadingReport report;
    char where[160];
    int next; /* the interpreter: statements that are done; of this layer */
    int layer;
    uint64_t calls;
} Watch;

static const PlanBuffer *buffer_of(const Plan *plan, int tensor) {
    for (int i = 0; i < plan->buffer_count; i++)
        if (plan->buffers[i].tensor == tensor)
            return &plan->buffers[i];
    return NULL;
}

static bool written_again(const LangStmt *const *list, int count, int at) {
    for (int i = at + 1; i < count; i++)
        if (list[i]->targets[0].tensor == list[at]->targets[0].tensor && list[i]->op == LANG_ADD_TO)
            return true;
    return false;
}

/* The statements of a launch in the program's order, those of its adapters behind their sites. */
static int launch_stmts(const Plan *plan, const Launch *l, bool adapters, const LangStmt **list) {
    int count = 0;
    for (int i = 0; i < l->stage_count; i++) {
        const Stage *s = l->stages[i];
        if (s->attend)
            list[count++] = s->attend->softmax;
        list[count++] = s->stmt;
        if (s->site >= 0 && adapters && s->fold >= 0)
            list[count++] = &plan->program->stmts[s->fold];
    }
    return count;
}

/* Which are chosen is stored as whole numbers, how much as f32. */
static void check_choice(Watch *w, const LgpStep *step, const LangStmt *s) {
    for (int t = 0; t < 2; t++) {
        const PlanBuffer *b = buffer_of(w->plan, s->targets[t].tensor);
        assert_non_null(b);
        size_t count = (size_t)step->rows * (size_t)b->row_elems;
        const unsigned char *at = step->arena + b->offset_row * (uint64_t)step->rows_max;
        double *values = lg_alloc_array(count, sizeof *values);
        assert_non_null(values);
        for (size_t i = 0; i < count; i++)
            values[i] = t == 0 ? (double)((const int32_t *)(const void *)at)[i]
                               : (double)((const float *)(const void *)at)[i];
        reading_check(w->reading, s->targets[t].tensor, NULL, values, w->where, &w->report);
        lg_free(values);
    }
}

static void after_launch(const LgpStep *step, int32_t launch, int32_t layer) {
    Watch *w = step->trace_user;
    const Launch *l = &w->plan->launches[launch];
    const LangStmt *list[96];
    int count = launch_stmts(w->plan, l, true, list);
    assert_true(count <= 96);
    snprintf(w->where, sizeof w->where, "%s layer %d", l->name, layer);
    for (int i = 0; i < count; i++) {
        int tensor = list[i]->targets[0].tensor;
        reading_stmt(w->reading, list[i], layer);
        if (list[i]->op == LANG_WRITE || written_again(list, count, i))
            continue;
        const PlanBuffer *b = buffer_of(w->plan, tensor);
        const float *values = NULL;
        if (tensor == w->plan->output)
            values = step->out;
        else if (b)
            values = (const float *)(const void *)(step->arena +
                                                   b->offset_row * (uint64_t)step->rows_max);
        if (list[i]->target_count == 2) {
            check_choice(w, step, list[i]);
            continue;
        }
        if (values)
            reading_check(w->reading, tensor, values, NULL, w->where, &w->report);
    }
    w->calls++;
}

static void report(const Case *c, const char *what, const Watch *w) {
    const RandomShape *s = &c->model.shape;
    print_message(
        "%-9s hidden %3d heads %dx%d of %3d ffn %3d %s, stores %s, %s: %llu values, worst "
        "%.3f of its bound\n",
        s->page, s->hidden, s->kv_heads, s->group, s->head_dim, s->ffn, dtype_info(s->dtype)->name,
        c->store_f32 ? "f32" : "bf16", what, (unsigned long long)w->report.elems, w->report.worst);
    if (w->report.broken)
        fail_msg("%llu values past their bound; %s", (unsigned long long)w->report.broken,
                 w->report.first);
    assert_true(w->calls > 0 && w->report.elems > 1000);
}

static void hold_cpu(const Case *c, const char *level) {
    RunnerOptions o = case_options(c, level);
    o.keep_values = true;
    int32_t slots[ADAPTERS];
    Runner *r = case_runner(c, &o, slots);
    const Plan *plan = runner_cpu_plan(r);
    Watch w = {.plan = plan};
    w.reading = reading_create(plan->program, c->model.binding, c->store_f32, SLOTS, POSITIONS);
    assert_non_null(w.reading);
    for (int i = 0; i < ADAPTERS; i++)
        reading_install(w.reading, slots[i], &c->adapters[i].data);
    runner_cpu_trace(r, after_launch, &w);
    float *logits = lg_alloc_array((size_t)ROWS_MAX * (size_t)r->vocab, sizeof *logits);
    for (int i = 0; i < SCHEDULE_COUNT; i++) {
        Batch b;
        batch_of(&b, &c->model, i, slots);
        reading_step(w.reading, &b.step);
        must_step(r, &b.step, logits);
    }
    report(c, r->level, &w);
    lg_free(logits);
    reading_destroy(w.reading);
    r->ops->close(r);
}

/* The interpreter's trace has no writes of states: those since the last call come first. */
static void after_stmt(void *user, const LangProgram *p, int stmt, int layer, const double *value,
                       uint64_t elems) {
    Watch *w = user;
    (void)elems;
    if (layer != w->layer)
        w->next = layer < 0 ? (stmt >= p->layer_end ? p->layer_end : 0) : p->layer_begin;
    w->layer = layer;
    for (; w->next < stmt; w->next++)
        if (p->stmts[w->next].op == LANG_WRITE)
            reading_stmt(w->reading, &p->stmts[w->next], layer);
    const LangStmt *s = &p->stmts[stmt];
    int target = s->target_count == 2 && w->next == stmt + 1; /* a topk's second call */
    w->next = stmt + 1;
    if (target == 0)
        reading_stmt(w->reading, s, layer);
    snprintf(w->where, sizeof w->where, "line %d layer %d", s->line, layer);
    reading_check(w->reading, s->targets[target].tensor, NULL, value, w->where, &w->report);
    w->calls++;
}

static void hold_interpreter(const Case *c) {
    LgError err = {0};
    Eval *e = NULL;
    int32_t slots[ADAPTERS];
    Watch w = {.layer = -2};
    w.reading = reading_create(c->model.program, c->model.binding, c->store_f32, SLOTS, POSITIONS);
    assert_non_null(w.reading);
    assert_int_equal(eval_create(c->model.program, c->model.binding,
                                 (EvalOptions){.store_f32 = c->store_f32}, &e, &err),
                     LG_OK);
    for (int i = 0; i < ADAPTERS; i++) {
        assert_int_equal(eval_adapter_install(e, &c->adapters[i].data, &slots[i], &err), LG_OK);
        reading_install(w.reading, slots[i], &c->adapters[i].data);
    }
    eval_set_trace(e, after_stmt, &w);
    for (int i = 0; i < SCHEDULE_COUNT; i++) {
        Batch b;
        batch_of(&b, &c->model, i, slots);
        w.layer = -2;
        reading_step(w.reading, &b.step);
        if (eval_step(e, &b.step, NULL, &err) != LG_OK)
            fail_msg("%s", err.message);
    }
    report(c, "interpreter", &w);
    reading_destroy(w.reading);
    eval_destroy(e);
}

/* Every model costs seconds of compiling: the short run takes a few of them, the long one all. */
typedef struct Extent {
    bool all;
} Extent;

static bool taken(void **state, int shape, bool store_f32, int short_count) {
    const Extent *extent = *state;
    bool few = shape < short_count || shape == FIRST_OF_EXPERTS || shape == FIRST_OF_PAGES;
    return extent->all || (few && store_f32 == (shape == 1));
}

static void statements_keep_their_bounds(void **state) {
    for (int i = 0; i < SHAPE_COUNT; i++)
        for (int f32 = 0; f32 < 2; f32++) {
            Case c;
            if (!taken(state, i, f32 != 0, 3))
                continue;
            case_open(&c, i, f32 != 0);
            hold_interpreter(&c);
            for (size_t k = 0; k < sizeof levels / sizeof levels[0]; k++)
                hold_cpu(&c, levels[k]);
            case_close(&c);
        }
}

/* A check that cannot fail proves nothing: a value moved by a few of its bounds must be seen. */
static void a_wrong_value_breaks_its_bound(void **state) {
    (void)state;
    Case c;
    case_open(&c, 0, false);
    Reading *reading = reading_create(c.model.program, c.model.binding, false, SLOTS, POSITIONS);
    Batch b;
    batch_init(&b, NULL);
    batch_row(&b, &c.model, 0, 0);
    reading_step(reading, &b.step);
    const LangStmt *first = &c.model.program->stmts[0];
    float row[64];
    binding_row_f32(binding_get(c.model.binding, first->rhs->tensor, 0), c.model.program,
                    first->rhs->tensor, (uint64_t)b.token[0], row);
    ReadingReport good = {0}, bad = {0};
    reading_stmt(reading, first, -1);
    reading_check(reading, first->targets[0].tensor, row, NULL, "right", &good);
    assert_true(good.elems == 52 && good.broken == 0);
    row[17] *= 1.02f;
    reading_stmt(reading, first, -1);
    reading_check(reading, first->targets[0].tensor, row, NULL, "wrong", &bad);
    assert_true(bad.broken == 1);
    assert_non_null(strstr(bad.first, "element 17"));
    reading_destroy(reading);
    case_close(&c);
}

/* ---- company, order, threads, chunks ---- */

enum { LENGTH = 70 };

/* Logits of all positions of all sequences, [SLOTS][LENGTH][vocab]. */
typedef struct Logits {
    float *all;
    float *step;
    size_t vocab;
} Logits;

static Logits logits_make(size_t vocab) {
    Logits l = {.vocab = vocab};
    l.all = lg_calloc((size_t)SLOTS * LENGTH * vocab, sizeof(float));
    l.step = lg_calloc((size_t)ROWS_MAX * vocab, sizeof(float));
    assert_true(l.all && l.step);
    return l;
}

static void logits_free(Logits *l) {
    lg_free(l->all);
    lg_free(l->step);
}

static void run_batch(Runner *r, Batch *b, Logits *l) {
    if (b->step.rows == 0)
        return;
    must_step(r, &b->step, l->step);
    for (int32_t i = 0; i < b->step.samples; i++) {
        int32_t row = b->last[i];
        memcpy(l->all + ((size_t)b->slot[row] * LENGTH + (size_t)b->pos[row]) * l->vocab,
               l->step + (size_t)i * l->vocab, l->vocab * sizeof(float));
    }
}

/* One sequence after the other, `chunk` rows a step. */
static void run_alone(Runner *r, const Case *c, const int32_t *slots, int32_t chunk, Logits *l) {
    for (int32_t s = 0; s < SLOTS; s++)
        for (int32_t from = 0; from < LENGTH; from += chunk) {
            Batch b;
            batch_init(&b, slots);
            for (int32_t pos = from; pos < from + chunk && pos < LENGTH; pos++)
                batch_row(&b, &c->model, s, pos);
            run_batch(r, &b, l);
        }
}

/* All sequences together in pieces of random lengths, rows of different sequences dealt like cards.
 */
static void run_mixed(Runner *r, const Case *c, const int32_t *slots, uint64_t seed, Logits *l) {
    int32_t at[SLOTS] = {0};
    uint64_t draw = 0;
    for (bool more = true; more;) {
        Batch b;
        batch_init(&b, slots);
        int32_t room = 1 + (int32_t)(rng_u64(seed, draw++) % ROWS_MAX);
        while (b.step.rows < room) {
            int32_t s = (int32_t)(rng_u64(seed, draw++) % SLOTS);
            if (at[s] < LENGTH)
                batch_row(&b, &c->model, s, at[s]++);
            else if (at[0] + at[1] + at[2] == SLOTS * LENGTH)
                break;
        }
        run_batch(r, &b, l);
        more = at[0] + at[1] + at[2] < SLOTS * LENGTH;
    }
}

static void same_bits(const Logits *want, const Logits *got, const char *what) {
    size_t count = (size_t)SLOTS * LENGTH * want->vocab;
    if (memcmp(want->all, got->all, count * sizeof(float)) == 0)
        return;
    for (size_t i = 0; i < count; i++)
        if (memcmp(&want->all[i], &got->all[i], sizeof(float)) != 0)
            fail_msg("%s: sequence %zu position %zu id %zu: %.9g, alone %.9g", what,
                     i / want->vocab / LENGTH, i / want->vocab % LENGTH, i % want->vocab,
                     (double)got->all[i], (double)want->all[i]);
}

static void rows_keep_their_bits_at(const Case *c, const char *level) {
    static const int32_t chunks[] = {2, 7, 17, ROWS_MAX};
    RunnerOptions o = case_options(c, level);
    int32_t slots[ADAPTERS];
    Logits want = logits_make((size_t)c->model.shape.vocab), got = logits_make(want.vocab);
    for (o.threads = 1; o.threads <= 3; o.threads++) {
        Runner *r = case_runner(c, &o, slots);
        char what[96];
        if (o.threads == 1)
            run_alone(r, c, slots, 1, &want);
        for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
            run_alone(r, c, slots, chunks[i], &got);
            snprintf(what, sizeof what, "%s, %d threads, chunks of %d", r->level, o.threads,
                     chunks[i]);
            same_bits(&want, &got, what);
        }
        for (uint64_t seed = 1; seed <= 3; seed++) {
            run_mixed(r, c, slots, seed, &got);
            snprintf(what, sizeof what, "%s, %d threads, mixed by %d", r->level, o.threads,
                     (int)seed);
            same_bits(&want, &got, what);
        }
        r->ops->close(r);
    }
    logits_free(&want);
    logits_free(&got);
}

static void rows_keep_their_bits(void **state) {
    for (int i = 0; i < SHAPE_COUNT; i += i < FIRST_OF_EXPERTS - 1 ? 2 : 1)
        for (size_t k = 0; k < sizeof levels / sizeof levels[0]; k++) {
            Case c;
            if (!taken(state, i, i == 6, 1))
                continue;
            case_open(&c, i, i == 6);
            rows_keep_their_bits_at(&c, levels[k]);
            case_close(&c);
        }
}

/* A fusion that claims to be exact, or that defines the numbers, computes what single statements
 * do. */
static void fusion_keeps_the_bits(void **state) {
    (void)state;
    Case c;
    case_open(&c, 1, false);
    RunnerOptions o = case_options(&c, NULL);
    Logits want = logits_make((size_t)c.model.shape.vocab), got = logits_make(want.vocab);
    int32_t slots[ADAPTERS];
    for (int plain = 0; plain < 2; plain++) {
        o.no_fuse = plain != 0;
        Runner *r = case_runner(&c, &o, slots);
        run_mixed(r, &c, slots, 5, plain ? &got : &want);
        r->ops->close(r);
    }
    same_bits(&want, &got, "one launch a stage");
    logits_free(&want);
    logits_free(&got);
    case_close(&c);
}

int main(int argc, char **argv) {
    Extent extent = {.all = argc > 1 && strcmp(argv[1], "long") == 0};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wrong_value_breaks_its_bound),
        cmocka_unit_test_prestate(statements_keep_their_bounds, &extent),
        cmocka_unit_test_prestate(rows_keep_their_bits, &extent),
        cmocka_unit_test(fusion_keeps_the_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
