/* Whichever allocation of a call fails, the call says so, gives nothing, leaves what was open as it
 * was and leaks nothing (the address sanitizer looks). A result is the same as ever or not there.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "ligature.h"

#define MODEL LG_TEST_DATA "/tiny/models/tiny-qwen3"
#define ADAPTER(name) LG_TEST_DATA "/tiny/adapters/tiny-qwen3/" name

/* Where a sweep over all allocations would take long, it takes strides after the first of them; odd
 * ones, so that single and lasting failures meet every kind of place. */
#define EACH_UP_TO 300

static LgEngineOptions options(void) {
    LgEngineOptions o;
    lg_engine_options_init(&o);
    o.model = MODEL;
    o.backend = "interp";
    o.rows_max = 16;
    return o;
}

static LgEngine *open_engine(void) {
    LgEngineOptions o = options();
    LgError err = {0};
    LgEngine *e = NULL;
    if (lg_engine_open(&o, &e, &err) != LG_OK)
        fail_msg("%s", err.message);
    return e;
}

/* A call whose result is text, for lg_free_memory, or none. */
typedef LgStatus (*Attempt)(LgEngine *e, const void *what, char **text, LgError *err);

/* Until the call goes through because it does not allocate as often as that. */
static void survives(Attempt attempt, LgEngine *e, const void *what, long stride) {
    LgError err = {0};
    char *expected = NULL;
    if (attempt(e, what, &expected, &err) != LG_OK)
        fail_msg("%s", err.message);
    long n = 1;
    for (;; n += n < EACH_UP_TO ? 1 : stride) {
        char *text = NULL;
        err = (LgError){0};
        lg_alloc_fail_at(n, n & 1);
        LgStatus status = attempt(e, what, &text, &err);
        long made = lg_alloc_fail_at(0, 0);
        if (status == LG_OK && expected)
            assert_string_equal(text, expected);
        else
            assert_null(text);
        lg_free_memory(text);
        if (status == LG_OK && made < n)
            break;
        if (status != LG_OK && status != LG_NO_MEMORY)
            fail_msg("allocation %ld: status %d, %s", n, (int)status, err.message);
        assert_int_equal(err.status, status);
    }
    assert_true(n > 2);
    lg_free_memory(expected);
}

static LgStatus open_and_close(LgEngine *e, const void *what, char **text, LgError *err) {
    (void)e;
    (void)text;
    LgEngine *opened = NULL;
    LgStatus status = lg_engine_open(what, &opened, err);
    assert_true((status == LG_OK) == (opened != NULL));
    lg_engine_close(opened);
    return status;
}

static void engines_open_or_say_why_not(void **state) {
    (void)state;
    LgEngineOptions o = options();
    survives(open_and_close, NULL, &o, 1);
}

static LgStatus load_and_unload(LgEngine *e, const void *what, char **text, LgError *err) {
    (void)text;
    LgStatus status = lg_adapter_load(e, "a", what, err);
    LgStatus unloaded = lg_adapter_unload(e, "a", NULL);
    assert_int_equal(unloaded, status == LG_OK ? LG_OK : LG_NOT_FOUND);
    return status;
}

/* The compiled program is in the cache: no compiler runs. */
static void compiled_engines_open_or_say_why_not(void **state) {
    (void)state;
    LgEngineOptions o = options();
    o.backend = "cpu";
    o.cache_dir = "program-cache"; /* of the build folder */
    o.threads = 2;
    LgEngine *e = NULL;
    LgError err;
    if (lg_engine_open(&o, &e, &err) != LG_OK)
        fail_msg("%s", err.message);
    survives(load_and_unload, e, ADAPTER("dora-r8"), 1);
    lg_engine_close(e);
    o.require_cache = true;
    survives(open_and_close, NULL, &o, 17);
}

static void adapters_load_whole_or_not_at_all(void **state) {
    (void)state;
    LgEngine *e = open_engine();
    survives(load_and_unload, e, ADAPTER("dora-r8"), 1);
    survives(load_and_unload, e, ADAPTER("pattern"), 1);
    survives(load_and_unload, e, ADAPTER("embed-head"), 1);
    lg_engine_close(e);
}

static LgStatus describe(LgEngine *e, const void *what, char **text, LgError *err) {
    (void)what;
    return lg_engine_describe(e, text, err);
}

static LgStatus report(LgEngine *e, const void *what, char **text, LgError *err) {
    return lg_adapter_report(e, what, text, err);
}

static LgStatus explain(LgEngine *e, const void *what, char **text, LgError *err) {
    (void)what;
    return lg_explain(e, 16, text, err);
}

static LgStatus inspect(LgEngine *e, const void *what, char **text, LgError *err) {
    return lg_inspect(what, e, text, err);
}

static LgStatus compile(LgEngine *e, const void *what, char **text, LgError *err) {
    (void)e;
    LgCompileOptions o = {.config = MODEL, .emit = what};
    return lg_compile(&o, NULL, text, err);
}

static void reports_are_whole_or_not_there(void **state) {
    (void)state;
    LgEngine *e = open_engine();
    assert_int_equal(lg_adapter_load(e, "a", ADAPTER("dora-r8"), NULL), LG_OK);
    survives(describe, e, NULL, 1);
    survives(report, e, "a", 1);
    survives(explain, e, NULL, 17);
    survives(inspect, e, ADAPTER("en-r8-all"), 17);
    survives(inspect, NULL, ADAPTER("en-r8-all"), 17);
    survives(inspect, NULL, MODEL, 17);
    survives(compile, NULL, "plan", 101);
    survives(compile, NULL, "c", 101);
    lg_engine_close(e);
}

/* An engine of its own each time: the tokenizer and the template are opened on first use. */
static LgStatus render_and_tokenize(LgEngine *e, const void *what, char **text, LgError *err) {
    (void)e;
    LgEngineOptions o = options();
    LgEngine *fresh = NULL;
    int32_t *ids = NULL;
    size_t count = 0;
    char *rendered = NULL;
    LgStatus status = lg_engine_open(&o, &fresh, err);
    if (status == LG_OK)
        status = lg_chat_render(fresh, what, NULL, true, &rendered, err);
    if (status == LG_OK)
        status = lg_tokenize(fresh, rendered, strlen(rendered), false, &ids, &count, err);
    if (status == LG_OK)
        status = lg_detokenize(fresh, ids, count, false, text, NULL, err);
    if (status == LG_OK)
        assert_string_equal(*text, rendered);
    lg_free_memory(ids);
    lg_free_memory(rendered);
    lg_engine_close(fresh);
    return status;
}

static void conversations_become_the_same_ids_or_none(void **state) {
    (void)state;
    survives(render_and_tokenize, NULL,
             "[{\"role\":\"user\",\"content\":\"na\\u00efve, caf\\u00e9\"}]", 37);
}

/* What a caller sees of two sequences that share their steps. */
typedef struct Seen {
    int32_t ids[2][8];
    char text[2][200];
    char digest[2][65];
    int failures;
} Seen;

static bool again(LgStatus status, Seen *seen) {
    if (status == LG_OK)
        return false;
    assert_int_equal(status, LG_NO_MEMORY);
    assert_true(++seen->failures == 1);
    return true;
}

static void append_text(LgSequence *s, char *to, Seen *seen) {
    const char *text;
    LgError err;
    while (again(lg_sequence_text(s, false, &text, NULL, &err), seen))
        ;
    strncat(to, text, 199 - strlen(to));
}

/* The n-th allocation fails once, and the call that says so is repeated. */
static long run(LgEngine *e, long n, Seen *seen) {
    static const int32_t prompt[20] = {32, 67, 67, 346, 435, 99};
    static const LgAdapterUse use = {"a", 1};
    LgSequence *s[2];
    LgError err;
    *seen = (Seen){0};
    lg_alloc_fail_at(n, 0);
    for (size_t i = 0; i < 2; i++) {
        LgRequest r = {.ids = prompt,
                       .id_count = i ? 20 : 6, /* more rows than one step has */
                       .adapters = &use,
                       .adapter_count = i,
                       .max_tokens = 8,
                       .sampling = {.temperature = 1.5f, .top_p = 1, .seed = 7 + i},
                       .digest = true};
        while (again(lg_sequence_create(e, &r, &s[i], &err), seen))
            ;
    }
    int32_t active = 2;
    for (int steps = 0; active; steps++) {
        assert_true(steps < 100);
        while (again(lg_engine_step(e, &active, &err), seen))
            ;
        for (size_t i = 0; i < 2; i++)
            append_text(s[i], seen->text[i], seen);
    }
    long made = lg_alloc_fail_at(0, 0);
    for (size_t i = 0; i < 2; i++) {
        size_t count;
        const int32_t *ids = lg_sequence_ids(s[i], &count);
        assert_int_equal(count, 8);
        memcpy(seen->ids[i], ids, sizeof seen->ids[i]);
        memcpy(seen->digest[i], lg_sequence_logits_sha256(s[i]), 65);
        lg_sequence_destroy(s[i]);
    }
    return made;
}

static void a_repeated_step_goes_on_where_it_failed(void **state) {
    (void)state;
    LgEngine *e = open_engine();
    assert_int_equal(lg_adapter_load(e, "a", ADAPTER("en-r8-all"), NULL), LG_OK);
    Seen quiet, seen;
    run(e, 0, &quiet);
    assert_true(strlen(quiet.text[0]) > 8);
    assert_string_not_equal(quiet.digest[0], quiet.digest[1]);
    for (long n = 1;; n += n < EACH_UP_TO ? 1 : 7) {
        LgEngine *fresh = n % 8 ? e : open_engine(); /* pages and slots are made in a first run */
        if (fresh != e)
            assert_int_equal(lg_adapter_load(fresh, "a", ADAPTER("en-r8-all"), NULL), LG_OK);
        long made = run(fresh, n, &seen);
        if (fresh != e)
            lg_engine_close(fresh);
        assert_memory_equal(seen.ids, quiet.ids, sizeof seen.ids);
        for (size_t i = 0; i < 2; i++) {
            assert_string_equal(seen.text[i], quiet.text[i]);
            assert_string_equal(seen.digest[i], quiet.digest[i]);
        }
        if (made < n)
            break;
        assert_int_equal(seen.failures, 1);
    }
    lg_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engines_open_or_say_why_not),
        cmocka_unit_test(compiled_engines_open_or_say_why_not),
        cmocka_unit_test(adapters_load_whole_or_not_at_all),
        cmocka_unit_test(reports_are_whole_or_not_there),
        cmocka_unit_test(conversations_become_the_same_ids_or_none),
        cmocka_unit_test(a_repeated_step_goes_on_where_it_failed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
