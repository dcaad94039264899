/* The CPU runner end to end: it computes what the interpreter and Hugging Face's references
 * compute; threads, company, chunks and fusion change no bit; programs come from the cache or a
 * file, or the message says why not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend/cpu/program.h"
#include "backend/cpu/runner_cpu.h"
#include "base/json.h"
#include "ir/stage.h"
#include "tests/unit/backend/tiny_model.h"

/* Programs are the same in most tests: one folder for all of them, but for the tests of the cache.
 */
static char shared_cache[64] = "/tmp/lg-programs-XXXXXX";

typedef struct Fixture {
    TinyModel model;
    char cache[96];
    char compiler[96];
} Fixture;

/* A compiler that hurries: most tests ask where a program comes from, or compare one with itself.
 * What it makes computes the same bits (a test below), only slower. */
static void write_quick_compiler(const char *dir) {
    static const char script[] = "#!/bin/sh\nexec cc \"$@\" -O0\n";
    char path[128];
    snprintf(path, sizeof path, "%s/quick-cc", dir);
    tiny_write(dir, "quick-cc", script, sizeof script - 1);
    if (chmod(path, 0755) != 0)
        abort();
}

static int make_shared_cache(void **state) {
    (void)state;
    if (!mkdtemp(shared_cache))
        return 1;
    write_quick_compiler(shared_cache);
    return 0;
}

static int remove_shared_cache(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", shared_cache);
    return system(command);
}

static int setup_shared(void **state) {
    Fixture *f = calloc(1, sizeof *f);
    tiny_make(&f->model, TINY_LAYERS);
    snprintf(f->cache, sizeof f->cache, "%s", shared_cache);
    snprintf(f->compiler, sizeof f->compiler, "%s/quick-cc", shared_cache);
    *state = f;
    return 0;
}

static int setup_own(void **state) {
    setup_shared(state);
    Fixture *f = *state;
    snprintf(f->cache, sizeof f->cache, "%s/cache", f->model.dir);
    return 0;
}

static int teardown(void **state) {
    Fixture *f = *state;
    tiny_close(&f->model);
    free(f);
    return 0;
}

static RunnerOptions options(const Fixture *f) {
    return (RunnerOptions){.program = f->model.program,
                           .binding = f->model.binding,
                           .threads = 2,
                           .rows_max = TINY_ROWS_MAX,
                           .cache_dir = f->cache,
                           .compiler = f->compiler,
                           .poison = true};
}

static Runner *open_runner(const RunnerOptions *o) {
    Runner *r = NULL;
    LgError err;
    if (runner_open_cpu(o, &r, &err) != LG_OK)
        fail_msg("%s", err.message);
    assert_int_equal(r->ops->kv_reserve(r, 64, NULL), LG_OK);
    return r;
}

static LgStatus try_open(const RunnerOptions *o, LgError *err) {
    Runner *r = NULL;
    LgStatus status = runner_open_cpu(o, &r, err);
    if (status == LG_OK)
        r->ops->close(r);
    return status;
}

static void must_step(Runner *r, const Step *step, float *logits) {
    LgError err;
    if (r->ops->step(r, step, logits, &err) != LG_OK)
        fail_msg("%s", err.message);
}

#define SEQUENCE 100

static int32_t token_at(int32_t slot, int32_t pos) {
    return (int32_t)(rng_u64(77 + (uint64_t)slot, (uint64_t)pos) % TINY_VOCAB);
}

/* Positions [from, to) of a slot, every one sampled; logits: [to - from, vocab]. */
static void run_span(Runner *r, int32_t slot, int32_t from, int32_t to, float *logits) {
    TinyBatch b;
    tiny_batch_init(&b);
    for (int32_t pos = from; pos < to; pos++)
        tiny_batch_row(&b, slot, pos, token_at(slot, pos), true);
    must_step(r, &b.step, logits);
}

static float *logits_of(const RunnerOptions *o) {
    float *logits = test_malloc((size_t)SEQUENCE * TINY_VOCAB * sizeof *logits);
    Runner *r = open_runner(o);
    run_span(r, 3, 0, SEQUENCE, logits);
    r->ops->close(r);
    return logits;
}

static void assert_same(const float *a, const float *b) {
    assert_memory_equal(a, b, (size_t)SEQUENCE * TINY_VOCAB * sizeof *a);
}

/* ---- values ---- */

static float worst_difference(const float *a, const float *b, size_t count) {
    float worst = 0.0f;
    for (size_t i = 0; i < count; i++) {
        float d = fabsf(a[i] - b[i]);
        if (!(d <= worst))
            worst = d;
    }
    return worst;
}

static void hold_to_interpreter(const Fixture *f, bool store_f32, const char *level, float bound) {
    RunnerOptions o = options(f);
    o.store_f32 = store_f32;
    o.level = level;
    Runner *interp = NULL;
    float *got = logits_of(&o), *want = test_malloc((size_t)SEQUENCE * TINY_VOCAB * sizeof *want);
    assert_int_equal(runner_open_interp(&o, &interp, NULL), LG_OK);
    assert_int_equal(interp->ops->kv_reserve(interp, 64, NULL), LG_OK);
    run_span(interp, 3, 0, SEQUENCE, want);
    interp->ops->close(interp);
    float worst = worst_difference(got, want, (size_t)SEQUENCE * TINY_VOCAB);
    if (!(worst <= bound))
        fail_msg("level %s, %s: off by %g, bound %g", level ? level : "best",
                 store_f32 ? "f32" : "bf16", (double)worst, (double)bound);
    test_free(got);
    test_free(want);
}

static void compiled_program_computes_what_the_interpreter_does(void **state) {
    const Fixture *f = *state;
    /* f32 stores: sums in another order, of up to 96 terms of logits near 1. bf16: two right
     * programs may round a value to neighbours (2^-8 relative), which two layers then carry on. */
    hold_to_interpreter(f, true, "generic", 1e-4f);
    hold_to_interpreter(f, true, NULL, 1e-4f);
    hold_to_interpreter(f, false, "generic", 0.15f);
    hold_to_interpreter(f, false, NULL, 0.15f);
}

static void threads_do_not_change_a_bit(void **state) {
    RunnerOptions o = options(*state);
    o.threads = 1;
    float *one = logits_of(&o);
    for (o.threads = 2; o.threads <= 5; o.threads++) {
        float *more = logits_of(&o);
        assert_same(one, more);
        test_free(more);
    }
    test_free(one);
}

static void fusion_and_shared_memory_do_not_change_a_bit(void **state) {
    RunnerOptions o = options(*state);
    float *fused = logits_of(&o);
    o.no_fuse = o.keep_values = true;
    float *plain = logits_of(&o);
    assert_same(fused, plain);
    test_free(fused);
    test_free(plain);
}

static void optimisation_does_not_change_a_bit(void **state) {
    RunnerOptions o = options(*state);
    float *quick = logits_of(&o);
    o.compiler = NULL;
    float *best = logits_of(&o);
    assert_same(quick, best);
    test_free(quick);
    test_free(best);
}

static void chunks_do_not_change_a_bit(void **state) {
    RunnerOptions o = options(*state);
    float *whole = logits_of(&o),
          *parts = test_malloc((size_t)SEQUENCE * TINY_VOCAB * sizeof *parts);
    static const int32_t cuts[] = {0, 1, 2, 7, 40, 63, 64, 65, 99, SEQUENCE};
    Runner *r = open_runner(&o);
    for (size_t i = 0; i + 1 < sizeof cuts / sizeof *cuts; i++)
        run_span(r, 3, cuts[i], cuts[i + 1], parts + (size_t)cuts[i] * TINY_VOCAB);
    r->ops->close(r);
    assert_same(whole, parts);
    test_free(whole);
    test_free(parts);
}

static void company_does_not_change_a_bit(void **state) {
    RunnerOptions o = options(*state);
    float *alone = logits_of(&o),
          *crowd = test_malloc((size_t)2 * TINY_ROWS_MAX * TINY_VOCAB * sizeof *crowd);
    Runner *r = open_runner(&o);
    /* Slot 3 goes on ten positions at a time, between other slots' rows; its own rows are sampled.
     */
    for (int32_t from = 0; from < SEQUENCE; from += 10) {
        TinyBatch b;
        tiny_batch_init(&b);
        for (int32_t pos = from / 10 * 7; pos < from / 10 * 7 + 7; pos++)
            tiny_batch_row(&b, 0, pos, token_at(0, pos), false);
        for (int32_t pos = from; pos < from + 10; pos++) {
            tiny_batch_row(&b, 3, pos, token_at(3, pos), true);
            tiny_batch_row(&b, 5, pos, token_at(5, pos), false);
        }
        must_step(r, &b.step, crowd);
        assert_memory_equal(alone + (size_t)from * TINY_VOCAB, crowd,
                            (size_t)10 * TINY_VOCAB * sizeof *crowd);
    }
    r->ops->close(r);
    test_free(alone);
    test_free(crowd);
}

static void decode_step_allocates_nothing(void **state) {
    RunnerOptions o = options(*state);
    float *logits = test_malloc((size_t)SEQUENCE * TINY_VOCAB * sizeof *logits);
    Runner *r = open_runner(&o);
    run_span(r, 3, 0, 60, logits);
    for (int32_t pos = 60; pos < 70; pos++) { /* a new page among them */
        TinyBatch b;
        tiny_batch_init(&b);
        tiny_batch_row(&b, 3, pos, token_at(3, pos), true);
        lg_alloc_fail_at(1, 1);
        LgStatus status = r->ops->step(r, &b.step, logits, NULL);
        lg_alloc_fail_at(0, 0);
        assert_int_equal(status, LG_OK);
    }
    r->ops->close(r);
    test_free(logits);
}

static void bad_step_is_refused_and_harmless(void **state) {
    RunnerOptions o = options(*state);
    float *want = logits_of(&o),
          *logits = test_malloc((size_t)SEQUENCE * TINY_VOCAB * sizeof *logits);
    Runner *r = open_runner(&o);
    TinyBatch b;
    LgError err;
    tiny_batch_init(&b);
    tiny_batch_row(&b, 3, 0, TINY_VOCAB, true);
    assert_int_equal(r->ops->step(r, &b.step, logits, &err), LG_BAD_INPUT);
    assert_non_null(strstr(err.message, "token 160"));
    b.token[0] = 1;
    b.pages[24] = 1000;
    assert_int_equal(r->ops->step(r, &b.step, logits, &err), LG_BAD_INPUT);
    assert_non_null(strstr(err.message, "1000"));
    run_span(r, 3, 0, SEQUENCE, logits);
    assert_same(want, logits);
    r->ops->close(r);
    test_free(want);
    test_free(logits);
}

/* ---- goldens ---- */

static int64_t number_at(const json_t *list, size_t i) {
    return json_integer_value(json_array_get(list, i));
}

static int32_t argmax(const float *v, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (v[i] > v[best])
            best = i;
    return best;
}

/* The reference continuation is fed; every position's best id must be the reference's. */
static void hold_to_golden(Runner *r, int32_t slot, const char *prompt, const json_t *ids,
                           const json_t *golden) {
    size_t n = json_array_size(ids);
    const json_t *greedy = json_object_get(json_object_get(golden, "greedy"), "ids");
    const json_t *top1 = json_object_get(golden, "top1"),
                 *margin = json_object_get(golden, "margin");
    float *logits = test_malloc((size_t)TINY_ROWS_MAX * (size_t)r->vocab * sizeof *logits);
    TinyBatch b;
    tiny_batch_init(&b);
    for (size_t i = 0; i < n; i++)
        tiny_batch_row(&b, slot, (int32_t)i, (int32_t)number_at(ids, i), true);
    must_step(r, &b.step, logits);
    for (size_t i = 0; i < n; i++)
        if (json_real_value(json_array_get(margin, i)) > 1e-3)
            assert_int_equal(argmax(logits + i * (size_t)r->vocab, r->vocab), number_at(top1, i));
    int32_t next = argmax(logits + (n - 1) * (size_t)r->vocab, r->vocab);
    for (size_t i = 0; i < json_array_size(greedy); i++) {
        if (next != number_at(greedy, i))
            fail_msg("%s: step %zu gives %d, the reference %d", prompt, i, next,
                     (int)number_at(greedy, i));
        tiny_batch_init(&b);
        tiny_batch_row(&b, slot, (int32_t)(n + i), next, true);
        must_step(r, &b.step, logits);
        next = argmax(logits, r->vocab);
    }
    test_free(logits);
}

static json_t *read_json(const char *path) {
    Buf text;
    json_t *root = NULL;
    buf_init(&text);
    assert_int_equal(file_read(path, 1 << 26, &text, NULL), LG_OK);
    assert_int_equal(lg_json_parse(buf_view(&text), path, &root, NULL), LG_OK);
    buf_clear(&text);
    return root;
}

static void hold_model_to_goldens(const Fixture *f, const char *data, const char *name,
                                  const char *page) {
    char path[512];
    TinyModel m = {0};
    snprintf(path, sizeof path, "%s/tiny/models/%s", data, name);
    tiny_open(&m, path, page);
    snprintf(path, sizeof path, "%s/tiny/goldens/prompts.json", data);
    json_t *prompts = read_json(path);
    snprintf(path, sizeof path, "%s/tiny/goldens/%s/base.json", data, name);
    json_t *goldens = read_json(path);
    static const char *const levels[] = {"generic", "avx2", "avx512", "avx512bf16", "amx"};
    for (int i = 0; i < 5 && !level_missing(levels[i]); i++) {
        RunnerOptions o = options(f);
        o.program = m.program;
        o.binding = m.binding;
        o.store_f32 = true;
        o.level = levels[i];
        o.compiler = NULL; /* what a user's program is compiled with */
        Runner *r = open_runner(&o);
        assert_string_equal(r->level, levels[i]);
        const char *prompt;
        json_t *golden;
        int32_t slot = 0;
        json_object_foreach(json_object_get(goldens, "prompts"), prompt, golden) hold_to_golden(
            r, slot++, prompt, json_object_get(json_object_get(prompts, prompt), "ids"), golden);
        assert_true(slot >= 3);
        r->ops->close(r);
    }
    json_decref(prompts);
    json_decref(goldens);
    tiny_close(&m);
}

static void greedy_ids_are_those_of_the_reference(void **state) {
    hold_model_to_goldens(*state, LG_TEST_DATA, "tiny-qwen3", "qwen3.lg");
}

/* ---- where programs come from ---- */

static void second_open_takes_the_program_from_the_cache(void **state) {
    RunnerOptions o = options(*state);
    Runner *r = open_runner(&o);
    assert_true(r->compile_s > 0.0);
    assert_null(r->note);
    r->ops->close(r);
    o.require_cache = true;
    r = open_runner(&o);
    assert_true(r->compile_s == 0.0);
    r->ops->close(r);
}

static void damaged_entry_is_built_again(void **state) {
    const Fixture *f = *state;
    RunnerOptions o = options(f);
    LgError err;
    char command[256];
    assert_int_equal(try_open(&o, NULL), LG_OK);
    snprintf(
        command, sizeof command,
        "for f in %s/*.so; do printf x | dd of=$f bs=1 seek=4096 conv=notrunc 2>/dev/null; done",
        f->cache);
    assert_int_equal(system(command), 0);
    o.require_cache = true;
    assert_int_equal(try_open(&o, &err), LG_NOT_FOUND);
    assert_non_null(strstr(err.message, "damaged"));
    o.require_cache = false;
    Runner *r = open_runner(&o);
    assert_true(r->compile_s > 0.0);
    assert_non_null(strstr(r->note, "damaged"));
    r->ops->close(r);
    o.require_cache = true;
    assert_int_equal(try_open(&o, NULL), LG_OK);
}

static void require_cache_names_what_differs(void **state) {
    const Fixture *f = *state;
    RunnerOptions o = options(f);
    LgError err;
    o.require_cache = true;
    assert_int_equal(try_open(&o, &err), LG_NOT_FOUND);
    assert_non_null(strstr(err.message, "no entry of this model"));
    o.require_cache = false;
    o.level = "generic";
    assert_int_equal(try_open(&o, NULL), LG_OK);
    o.require_cache = true;
    o.store_f32 = true;
    assert_int_equal(try_open(&o, &err), LG_NOT_FOUND);
    assert_non_null(strstr(err.message, "store type: cached bf16, now f32"));
    assert_null(strstr(err.message, "level:"));

    TinyModel deeper;
    tiny_make(&deeper, TINY_LAYERS + 1);
    o.store_f32 = false;
    o.program = deeper.program;
    o.binding = deeper.binding;
    assert_int_equal(try_open(&o, &err), LG_NOT_FOUND);
    assert_non_null(strstr(err.message, "dims: cached L=2, now L=3"));
    tiny_close(&deeper);

    o = options(f);
    o.require_cache = true;
    o.cache_dir = NULL;
    assert_int_equal(try_open(&o, &err), LG_NOT_FOUND);
    assert_non_null(strstr(err.message, "no cache folder"));
}

static void unwritable_cache_is_a_note(void **state) {
    const Fixture *f = *state;
    RunnerOptions o = options(f);
    char path[128];
    snprintf(path, sizeof path, "%s/config.json/cache", f->model.dir);
    o.cache_dir = path;
    Runner *r = open_runner(&o);
    assert_true(r->compile_s > 0.0);
    assert_non_null(r->note);
    assert_non_null(strstr(r->note, "config.json"));
    r->ops->close(r);
}

static void missing_compiler_says_the_way_out_and_a_filled_cache_needs_none(void **state) {
    RunnerOptions o = options(*state);
    const char *compiler = o.compiler;
    LgError err;
    o.compiler = "no-such-compiler";
    assert_int_equal(try_open(&o, &err), LG_NOT_FOUND);
    assert_non_null(strstr(err.message, "no-such-compiler"));
    assert_non_null(strstr(err.message, "ligature compile -o"));
    o.compiler = compiler;
    assert_int_equal(try_open(&o, NULL), LG_OK);
    o.compiler = "no-such-compiler";
    assert_int_equal(try_open(&o, NULL), LG_OK);
}

static void program_file_runs_like_the_compiled_program(void **state) {
    const Fixture *f = *state;
    RunnerOptions o = options(f);
    char file[128];
    LgError err;
    snprintf(file, sizeof file, "%s/tiny.so", f->model.dir);
    float *want = logits_of(&o);
    o.binding = NULL; /* needs no weights */
    assert_int_equal(runner_compile_cpu(&o, file, NULL), LG_OK);
    o = options(f);
    o.program_file = file;
    o.compiler = "no-such-compiler";
    float *got = logits_of(&o);
    assert_same(want, got);
    test_free(want);
    test_free(got);

    o.store_f32 = true;
    assert_int_equal(try_open(&o, &err), LG_BAD_INPUT);
    assert_non_null(strstr(err.message, "store type: program bf16, now f32"));
    o.store_f32 = false;
    TinyModel deeper;
    tiny_make(&deeper, TINY_LAYERS + 1);
    o.program = deeper.program;
    o.binding = deeper.binding;
    assert_int_equal(try_open(&o, &err), LG_BAD_INPUT);
    assert_non_null(strstr(err.message, "dims: program L=2, now L=3"));
    tiny_close(&deeper);

    o = options(f);
    o.program_file = file;
    o.level = strcmp(level_best(), "generic") == 0 ? "avx2" : "generic";
    assert_int_equal(try_open(&o, &err), LG_BAD_INPUT);
    assert_non_null(strstr(err.message, "level: program"));
}

static void program_file_that_is_none_is_refused(void **state) {
    const Fixture *f = *state;
    RunnerOptions o = options(f);
    char path[128];
    LgError err;
    o.program_file = "/no/such/file.so";
    assert_int_equal(try_open(&o, &err), LG_NOT_FOUND);
    snprintf(path, sizeof path, "%s/config.json", f->model.dir);
    o.program_file = path;
    assert_int_equal(try_open(&o, &err), LG_BAD_INPUT);
    assert_non_null(strstr(err.message, "no shared object"));
    o.program_file = "/lib/x86_64-linux-gnu/libm.so.6";
    if (file_exists(o.program_file)) {
        assert_int_equal(try_open(&o, &err), LG_BAD_INPUT);
        assert_non_null(strstr(err.message, "lacks lgp_info"));
    }
}

static void level_that_does_not_exist_is_refused(void **state) {
    RunnerOptions o = options(*state);
    LgError err;
    o.level = "sse9";
    assert_int_equal(try_open(&o, &err), LG_BAD_INPUT);
    assert_non_null(strstr(err.message, "sse9"));
}

static void digest_tells_programs_apart(void **state) {
    RunnerOptions o = options(*state);
    char digests[3][65];
    for (int i = 0; i < 3; i++) {
        o.store_f32 = i == 1;
        o.level = i == 2 ? "generic" : NULL;
        Runner *r = open_runner(&o);
        assert_int_equal(strlen(r->digest), 64);
        strcpy(digests[i], r->digest);
        r->ops->close(r);
    }
    assert_string_not_equal(digests[0], digests[1]);
    assert_string_equal(digests[0], digests[2]); /* the level is told beside it */
}

static void failed_allocations_while_opening_are_reported(void **state) {
    RunnerOptions o = options(*state);
    assert_int_equal(try_open(&o, NULL), LG_OK);
    int failures = 0;
    bool reached = true;
    for (long n = 1; reached; n += 1 + n / 24) {
        LgError err = {0};
        lg_alloc_fail_at(n, 0);
        LgStatus status = try_open(&o, &err);
        reached = lg_alloc_fail_at(0, 0) >= n;
        /* Some failures are survived: a note that is not written, a cache entry that is not read.
         */
        if (status != LG_OK) {
            assert_true(err.message[0] != 0);
            failures++;
        }
    }
    assert_true(failures > 5);
}

/* ---- profile ---- */

static void profile_counts_every_launch(void **state) {
    RunnerOptions o = options(*state);
    o.profile = true;
    Runner *r = open_runner(&o);
    float *logits = test_malloc((size_t)SEQUENCE * TINY_VOCAB * sizeof *logits);
    const LaunchTime *times;
    run_span(r, 3, 0, 10, logits);
    const Plan *plan = runner_cpu_plan(r);
    assert_int_equal(r->ops->launch_times(r, &times), plan->launch_count);
    double total = 0.0;
    for (int i = 0; i < plan->launch_count; i++) {
        assert_string_equal(times[i].name, plan->launches[i].name);
        assert_int_equal(times[i].calls, plan->launches[i].in_layer ? TINY_LAYERS : 1);
        assert_true(times[i].seconds >= 0.0);
        total += times[i].seconds;
    }
    assert_true(total > 0.0);
    r->ops->launch_times_clear(r);
    assert_int_equal(times[0].calls, 0);
    r->ops->close(r);
    test_free(logits);
}

int main(void) {
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup_shared, teardown)
#define CACHE_CASE(f) cmocka_unit_test_setup_teardown(f, setup_own, teardown)
    const struct CMUnitTest tests[] = {
        CASE(compiled_program_computes_what_the_interpreter_does),
        CASE(threads_do_not_change_a_bit),
        CASE(fusion_and_shared_memory_do_not_change_a_bit),
        CASE(optimisation_does_not_change_a_bit),
        CASE(chunks_do_not_change_a_bit),
        CASE(company_does_not_change_a_bit),
        CASE(decode_step_allocates_nothing),
        CASE(bad_step_is_refused_and_harmless),
        CASE(greedy_ids_are_those_of_the_reference),
        CACHE_CASE(second_open_takes_the_program_from_the_cache),
        CACHE_CASE(damaged_entry_is_built_again),
        CACHE_CASE(require_cache_names_what_differs),
        CACHE_CASE(unwritable_cache_is_a_note),
        CACHE_CASE(missing_compiler_says_the_way_out_and_a_filled_cache_needs_none),
        CACHE_CASE(program_file_runs_like_the_compiled_program),
        CASE(program_file_that_is_none_is_refused),
        CASE(level_that_does_not_exist_is_refused),
        CASE(digest_tells_programs_apart),
        CACHE_CASE(failed_allocations_while_opening_are_reported),
        CASE(profile_counts_every_launch),
    };
    return cmocka_run_group_tests(tests, make_shared_cache, remove_shared_cache);
}
