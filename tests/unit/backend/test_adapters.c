/* Adapters on the CPU runner: they compute what the interpreter does with them, and act on their
 * own rows only. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend/cpu/program.h"
#include "backend/cpu/runner_cpu.h"
#include "tests/unit/backend/tiny_model.h"

#define ROWS 20
#define ADAPTERS 8
#define SETS 11
#define DORA 5   /* this adapter is one */
#define BIASED 3 /* this one has a bias on B, and so have the next two */
#define WHOLES 6 /* replaces norms, the embedding, the head and one matrix */
#define TOKENS 7 /* replaces some rows of the embedding and of the tied head */

static const int32_t ranks[ADAPTERS] = {1, 3, 12, 17, 64, 4, 2, 5};

typedef struct Fixture {
    TinyModel model;
    char cache[96], compiler[96];
    Arena arena;
    AdapterData adapters[ADAPTERS]; /* f32: rounded by no one */
} Fixture;

static uint64_t axis_size(const LangProgram *p, const LangTensor *t, int axis) {
    uint64_t size = 1;
    for (int i = t->axis_start[axis]; i < t->axis_start[axis + 1]; i++)
        size *= p->dims[t->dims[i]].size;
    return size;
}

static float *random_matrix(Arena *arena, uint64_t count, float size, uint64_t seed) {
    float *m = ARENA_ARRAY(arena, float, count);
    for (uint64_t i = 0; i < count; i++)
        m[i] = bf16_round((rng_unit(seed, i) * 2.0f - 1.0f) * size);
    return m;
}

/* Norms such as a file's would be, and magnitudes a little off them. */
static void add_dora(AdapterSite *s, Arena *arena, uint64_t out, uint64_t seed) {
    float *m = random_matrix(arena, out, 0.2f, seed),
          *w2 = random_matrix(arena, out, 0.2f, seed + 1),
          *wba = random_matrix(arena, out, 0.2f, seed + 2),
          *ba2 = random_matrix(arena, out, 0.1f, seed + 3);
    for (uint64_t o = 0; o < out; o++) {
        m[o] += 1.0f;
        w2[o] += 1.0f;
        ba2[o] += 0.1f;
    }
    s->magnitude = m;
    s->dora_w2 = w2;
    s->dora_wba = wba;
    s->dora_ba2 = ba2;
}

static int param_named(const LangProgram *p, const char *name) {
    for (int i = 0; i < p->tensor_count; i++)
        if (lg_str_eq_c(p->tensors[i].name, name))
            return i;
    fail_msg("the page has no %s", name);
    return -1;
}

/* The whole param, or (row_count > 0) rows 2, 9, 16, …, in one layer; LoRA at its site goes. */
static void replace_param(AdapterData *a, const LangProgram *p, Arena *arena, const char *name,
                          int layer, int row_count) {
    int param = param_named(p, name);
    const LangTensor *t = &p->tensors[param];
    uint64_t columns = axis_size(p, t, t->axis_count - 1);
    uint64_t rows = row_count ? (uint64_t)row_count : t->axis_count > 1 ? axis_size(p, t, 0) : 1;
    bool norm = t->axis_count == 1;
    float *data = random_matrix(arena, rows * columns, norm ? 0.5f : 0.2f, 77 + (uint64_t)param);
    int32_t *list = ARENA_ARRAY(arena, int32_t, rows);
    for (uint64_t i = 0; norm && i < columns; i++)
        data[i] += 1.0f;
    for (uint64_t i = 0; i < rows; i++)
        list[i] = 2 + 7 * (int32_t)i;
    ((AdapterReplaced *)(uintptr_t)a->replaced)[a->replaced_count++] =
        (AdapterReplaced){.tensor = param,
                          .layer = layer,
                          .columns = columns,
                          .row_count = rows,
                          .rows = row_count ? list : NULL,
                          .data = data,
                          .bf16 = !norm && name[0] != 'w'};
    for (int s = 0; s < p->site_count; s++)
        if (p->sites[s].param == param)
            ((AdapterSite *)(uintptr_t)a->sites)[layer * p->site_count + s] =
                (AdapterSite){.rank = 0};
}

static void replace_some(AdapterData *a, const LangProgram *p, Arena *arena, bool whole) {
    a->replaced = ARENA_ARRAY(arena, AdapterReplaced, 8);
    if (whole) {
        replace_param(a, p, arena, "gz", 0, 0);
        replace_param(a, p, arena, "ga", 1, 0);
        replace_param(a, p, arena, "gq", 0, 0);
        replace_param(a, p, arena, "wg", 1, 0);
        replace_param(a, p, arena, "wo", 0, 0);
    }
    replace_param(a, p, arena, "emb", 0, whole ? 0 : 21);
    replace_param(a, p, arena, "head", 0, whole ? 0 : 21);
}

/* Every site of every layer but one, so that a site that is not adapted is met too. */
static AdapterData make_adapter(const LangProgram *p, Arena *arena, int which, bool store_f32) {
    const int32_t rank = ranks[which];
    const bool dora = which == DORA, biased = which >= BIASED && !dora;
    const uint64_t seed = (uint64_t)which + 1;
    AdapterSite *sites = ARENA_ARRAY(arena, AdapterSite, (size_t)(p->site_count * p->layer_count));
    const float size = rank > 17 ? 0.1f : 0.2f; /* no adapter may drown the model */
    for (int layer = 0; layer < p->layer_count; layer++)
        for (int s = 0; s < p->site_count; s++) {
            const LangTensor *w = &p->tensors[p->sites[s].param];
            uint64_t columns = axis_size(p, w, w->axis_count - 1), rows = axis_size(p, w, 0);
            bool lookup = p->sites[s].lookup;
            uint64_t in = lookup ? rows : columns, out = lookup ? columns : rows;
            if ((!p->sites[s].in_layer && layer > 0) || (layer == 1 && s % 3 == 1))
                continue;
            uint64_t key = seed * 1000 + (uint64_t)(layer * p->site_count + s);
            sites[layer * p->site_count + s] =
                (AdapterSite){.rank = rank,
                              .a = random_matrix(arena, (uint64_t)rank * in, size, 2 * key),
                              .b = random_matrix(arena, (uint64_t)rank * out, size, 2 * key + 1),
                              .scale = 0.5f};
            if (dora)
                add_dora(&sites[layer * p->site_count + s], arena, out, 1000000 + 10 * key);
            if (biased && !lookup)
                sites[layer * p->site_count + s].b_bias = random_matrix(arena, out, 0.3f, 9 * key);
        }
    AdapterData a = {.site_count = p->site_count,
                     .layer_count = p->layer_count,
                     .sites = sites,
                     .store_f32 = store_f32};
    if (which >= WHOLES)
        replace_some(&a, p, arena, which == WHOLES);
    return a;
}

static int setup(void **state) {
    static const char script[] = "#!/bin/sh\nexec cc \"$@\" -O0\n";
    Fixture *f = calloc(1, sizeof *f);
    tiny_make(&f->model, TINY_LAYERS);
    arena_init(&f->arena);
    snprintf(f->cache, sizeof f->cache, "%s/cache", f->model.dir);
    snprintf(f->compiler, sizeof f->compiler, "%s/quick-cc", f->model.dir);
    tiny_write(f->model.dir, "quick-cc", script, sizeof script - 1);
    *state = f;
    return chmod(f->compiler, 0755);
}

static int teardown(void **state) {
    Fixture *f = *state;
    arena_clear(&f->arena);
    tiny_close(&f->model);
    free(f);
    return 0;
}

typedef struct Opening {
    const char *level; /* NULL: the best */
    int threads;
    bool store_f32, interp;
} Opening;

static Runner *open_runner(Fixture *f, const Opening *how, int32_t slots[ADAPTERS]) {
    RunnerOptions o = {.program = f->model.program,
                       .binding = f->model.binding,
                       .threads = how->threads,
                       .level = how->level,
                       .rows_max = TINY_ROWS_MAX,
                       .cache_dir = f->cache,
                       .compiler = f->compiler,
                       .store_f32 = how->store_f32,
                       .poison = true};
    Runner *r = NULL;
    LgError err;
    if ((how->interp ? runner_open_interp : runner_open_cpu)(&o, &r, &err) != LG_OK)
        fail_msg("%s", err.message);
    assert_int_equal(r->ops->kv_reserve(r, 64, NULL), LG_OK);
    for (int i = 0; i < ADAPTERS; i++) {
        f->adapters[i] = make_adapter(f->model.program, &f->arena, i, how->store_f32);
        assert_int_equal(r->ops->adapter_install(r, &f->adapters[i], &slots[i], NULL), LG_OK);
    }
    return r;
}

/* Set 0 is none, set 1 + i is adapter i alone, then several with scales of their own, DoRA at a
 * half, and those that replace weights. */
static void make_sets(AdapterSet sets[SETS], const int32_t slots[ADAPTERS]) {
    memset(sets, 0, SETS * sizeof *sets);
    for (int i = 0; i < ADAPTERS; i++)
        sets[i < WHOLES ? 1 + i : 3 + i] = (AdapterSet){1, {{slots[i], 1.0f}}};
    sets[7] =
        (AdapterSet){4, {{slots[1], 0.7f}, {slots[4], -0.4f}, {slots[0], 1.0f}, {slots[3], 0.1f}}};
    sets[8] = (AdapterSet){1, {{slots[DORA], 0.5f}}};
}

static int32_t token_at(int32_t slot, int32_t pos) {
    return (int32_t)(rng_u64(5 + (uint64_t)slot, (uint64_t)pos) % TINY_VOCAB);
}

/* Sequences `from` to `to` - 1, sequence s with set s, ROWS positions of each in two steps; logits
 * [sequence][position]. */
static void run(Runner *r, const int32_t slots[ADAPTERS], int32_t from, int32_t to, float *logits) {
    AdapterSet sets[SETS];
    TinyBatch b;
    LgError err;
    float *part = test_malloc((size_t)TINY_ROWS_MAX * TINY_VOCAB * sizeof *part);
    make_sets(sets, slots);
    for (int32_t half = 0; half < 2; half++) {
        int32_t begin = half ? ROWS / 2 + 3 : 0, end = half ? ROWS : ROWS / 2 + 3;
        tiny_batch_init(&b);
        b.step.sets = sets;
        b.step.set_count = SETS;
        b.step.slot_count = 16;
        b.step.pages_per_slot = 4;
        for (int32_t pos = begin; pos < end; pos++)
            for (int32_t s = from; s < to; s++) {
                tiny_batch_row(&b, s, pos, token_at(s, pos), true);
                b.ad[b.step.rows - 1] = s;
            }
        if (r->ops->step(r, &b.step, part, &err) != LG_OK)
            fail_msg("%s", err.message);
        for (int32_t i = 0; i < b.step.rows; i++)
            memcpy(logits + ((size_t)(b.slot[i] - from) * ROWS + (size_t)b.pos[i]) * TINY_VOCAB,
                   part + (size_t)i * TINY_VOCAB, TINY_VOCAB * sizeof *part);
    }
    test_free(part);
}

#define ALL ((size_t)SETS * ROWS * TINY_VOCAB)
#define ONE ((size_t)ROWS * TINY_VOCAB)

static const char *const levels[] = {"generic", "avx2", "avx512", "avx512bf16", "amx"};
#define LEVELS (int)(sizeof levels / sizeof *levels)

/* Against the interpreter, whose sums have other orders. */
static void adapters_compute_what_the_interpreter_does(void **state) {
    Fixture *f = *state;
    int32_t slots[ADAPTERS];
    float *got = test_malloc(ALL * sizeof *got), *want = test_malloc(ALL * sizeof *want);
    Runner *r = open_runner(f, &(Opening){.threads = 1, .store_f32 = true, .interp = true}, slots);
    run(r, slots, 0, SETS, want);
    r->ops->close(r);
    for (int l = 0; l < LEVELS; l++) {
        if (level_missing(levels[l]))
            continue;
        r = open_runner(f, &(Opening){.level = levels[l], .threads = 2, .store_f32 = true}, slots);
        run(r, slots, 0, SETS, got);
        r->ops->close(r);
        for (size_t s = 0; s < SETS; s++) {
            float worst = 0.0f, effect = 0.0f;
            for (size_t i = s * ONE; i < (s + 1) * ONE; i++) {
                float d = fabsf(got[i] - want[i]), e = fabsf(got[i] - got[i % ONE]);
                worst = d <= worst ? worst : d;
                effect = e <= effect ? effect : e;
            }
            if (!(worst <= 1e-4f))
                fail_msg("%s, set %zu: off by %g", levels[l], s, (double)worst);
            assert_true(s == 0 || effect > 1.0f);
        }
    }
    test_free(got);
    test_free(want);
}

/* The same bits alone, in company, and for any number of threads; the other scale of one adapter
 * shares its group. */
static void rows_are_what_they_are_alone(void **state) {
    Fixture *f = *state;
    int32_t slots[ADAPTERS];
    float *first = test_malloc(ALL * sizeof *first),
          *together = test_malloc(ALL * sizeof *together),
          *alone = test_malloc(ONE * sizeof *alone);
    for (int l = 0; l < LEVELS; l++)
        for (int threads = 1; threads <= 3; threads++) {
            if (level_missing(levels[l]))
                continue;
            Runner *r = open_runner(f, &(Opening){.level = levels[l], .threads = threads}, slots);
            run(r, slots, 0, SETS, together);
            if (threads == 1)
                memcpy(first, together, ALL * sizeof *first);
            assert_memory_equal(first, together, ALL * sizeof *first);
            for (int32_t s = 0; s < SETS; s++) {
                run(r, slots, s, s + 1, alone);
                assert_memory_equal(first + (size_t)s * ONE, alone, ONE * sizeof *alone);
            }
            r->ops->close(r);
        }
    test_free(first);
    test_free(together);
    test_free(alone);
}

static void base_rows_are_those_of_a_runner_without_adapters(void **state) {
    Fixture *f = *state;
    int32_t slots[ADAPTERS];
    float *with = test_malloc(ONE * sizeof *with), *without = test_malloc(ONE * sizeof *without);
    Runner *r = open_runner(f, &(Opening){.threads = 2}, slots);
    run(r, slots, 0, 1, with);
    for (int i = 0; i < ADAPTERS; i++)
        r->ops->adapter_remove(r, slots[i]);
    TinyBatch b;
    tiny_batch_init(&b);
    for (int32_t pos = 0; pos < ROWS; pos++)
        tiny_batch_row(&b, 0, pos, token_at(0, pos), true);
    assert_int_equal(r->ops->step(r, &b.step, without, NULL), LG_OK);
    assert_memory_equal(with, without, ONE * sizeof *with);
    r->ops->close(r);
    test_free(with);
    test_free(without);
}

/* Its equations are another model's: half of it, or it beside another, has no meaning. */
static void adapter_that_replaces_weights_is_alone_at_scale_1(void **state) {
    Fixture *f = *state;
    int32_t slots[ADAPTERS];
    LgError err;
    float logits[TINY_VOCAB];
    for (int interp = 0; interp < 2; interp++) {
        Runner *r = open_runner(f, &(Opening){.threads = 1, .interp = interp}, slots);
        const AdapterSet wrong[] = {{1, {{slots[WHOLES], 0.5f}}},
                                    {2, {{slots[TOKENS], 1.0f}, {slots[0], 1.0f}}}};
        for (size_t i = 0; i < 2; i++) {
            AdapterSet sets[2] = {{0}, wrong[i]};
            TinyBatch b;
            tiny_batch_init(&b);
            b.step.sets = sets;
            b.step.set_count = 2;
            tiny_batch_row(&b, 0, 0, 1, true);
            b.ad[0] = 1;
            assert_int_equal(r->ops->step(r, &b.step, logits, &err), LG_BAD_INPUT);
            assert_non_null(strstr(err.message, "alone, at scale 1"));
        }
        r->ops->close(r);
    }
}

static void adapter_of_other_shapes_or_of_unknown_rows_is_refused(void **state) {
    Fixture *f = *state;
    int32_t slots[ADAPTERS], slot;
    LgError err;
    for (int interp = 0; interp < 2; interp++) {
        Runner *r = open_runner(f, &(Opening){.threads = 1, .interp = interp}, slots);
        AdapterReplaced wrong = f->adapters[TOKENS].replaced[0];
        AdapterData a = f->adapters[TOKENS];
        const int32_t past[] = {TINY_VOCAB};
        a.replaced = &wrong;
        a.replaced_count = 1;
        wrong.rows = past;
        wrong.row_count = 1;
        assert_int_equal(r->ops->adapter_install(r, &a, &slot, &err), LG_BAD_INPUT);
        wrong = f->adapters[WHOLES].replaced[0];
        wrong.columns--;
        assert_int_equal(r->ops->adapter_install(r, &a, &slot, &err), LG_BAD_INPUT);
        assert_non_null(strstr(err.message, "replaces gz"));
        r->ops->close(r);
    }
}

static void removed_adapter_is_refused_and_its_slot_serves_another(void **state) {
    Fixture *f = *state;
    int32_t slots[ADAPTERS], again;
    LgError err;
    float *before = test_malloc(ONE * sizeof *before), *after = test_malloc(ONE * sizeof *after);
    Runner *r = open_runner(f, &(Opening){.threads = 2}, slots);
    run(r, slots, 2, 3, before);
    r->ops->adapter_remove(r, slots[1]);
    r->ops->adapter_remove(r, slots[1]); /* a second time changes nothing */
    AdapterSet sets[SETS];
    TinyBatch b;
    tiny_batch_init(&b);
    make_sets(sets, slots);
    b.step.sets = sets;
    b.step.set_count = SETS;
    tiny_batch_row(&b, 0, 0, 1, true);
    b.ad[0] = 2;
    assert_int_equal(r->ops->step(r, &b.step, after, &err), LG_BAD_INPUT);
    assert_non_null(strstr(err.message, "holds no adapter"));
    assert_int_equal(r->ops->adapter_install(r, &f->adapters[1], &again, NULL), LG_OK);
    slots[1] = again;
    run(r, slots, 2, 3, after);
    assert_memory_equal(before, after, ONE * sizeof *before);
    r->ops->close(r);
    test_free(before);
    test_free(after);
}

/* Whichever allocation of an installation fails, the adapters that are there go on. */
static void failed_installation_changes_nothing(void **state) {
    Fixture *f = *state;
    int32_t slots[ADAPTERS], slot;
    float *before = test_malloc(ONE * sizeof *before), *after = test_malloc(ONE * sizeof *after);
    Runner *r = open_runner(f, &(Opening){.threads = 2}, slots);
    AdapterData more[ADAPTERS];
    run(r, slots, 3, 4, before);
    for (int i = 0; i < ADAPTERS; i++) {
        more[i] = make_adapter(f->model.program, &f->arena, i, false);
        long n = 1;
        LgStatus status;
        do {
            lg_alloc_fail_at(n++, 0);
            status = r->ops->adapter_install(r, &more[i], &slot, NULL);
            lg_alloc_fail_at(0, 0);
            assert_true(status == LG_OK || status == LG_NO_MEMORY);
        } while (status != LG_OK);
        assert_true(n > 3);
        assert_int_equal(slot, ADAPTERS + i);
    }
    run(r, slots, 3, 4, after);
    assert_memory_equal(before, after, ONE * sizeof *before);
    r->ops->close(r);
    test_free(before);
    test_free(after);
}

static void adapter_of_another_store_type_is_refused(void **state) {
    Fixture *f = *state;
    int32_t slots[ADAPTERS], slot;
    LgError err;
    Runner *r = open_runner(f, &(Opening){.threads = 1}, slots);
    AdapterData other = make_adapter(f->model.program, &f->arena, 0, true);
    assert_int_equal(r->ops->adapter_install(r, &other, &slot, &err), LG_BAD_INPUT);
    assert_non_null(strstr(err.message, "f32"));
    r->ops->close(r);
}

static void adapted_decode_step_allocates_nothing(void **state) {
    Fixture *f = *state;
    int32_t slots[ADAPTERS];
    float *logits = test_malloc(ALL * sizeof *logits);
    Runner *r = open_runner(f, &(Opening){.threads = 2}, slots);
    run(r, slots, 0, SETS, logits);
    AdapterSet sets[SETS];
    TinyBatch b;
    make_sets(sets, slots);
    tiny_batch_init(&b);
    b.step.sets = sets;
    b.step.set_count = SETS;
    b.step.slot_count = 16;
    b.step.pages_per_slot = 4;
    for (int32_t s = 0; s < SETS; s++) {
        tiny_batch_row(&b, s, ROWS, token_at(s, ROWS), true);
        b.ad[s] = s;
    }
    lg_alloc_fail_at(1, 1);
    LgStatus status = r->ops->step(r, &b.step, logits, NULL);
    lg_alloc_fail_at(0, 0);
    assert_int_equal(status, LG_OK);
    r->ops->close(r);
    test_free(logits);
}

int main(void) {
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(adapters_compute_what_the_interpreter_does),
        CASE(rows_are_what_they_are_alone),
        CASE(base_rows_are_those_of_a_runner_without_adapters),
        CASE(adapter_that_replaces_weights_is_alone_at_scale_1),
        CASE(adapter_of_other_shapes_or_of_unknown_rows_is_refused),
        CASE(removed_adapter_is_refused_and_its_slot_serves_another),
        CASE(failed_installation_changes_nothing),
        CASE(adapter_of_another_store_type_is_refused),
        CASE(adapted_decode_step_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
