/* Sequences over a real small model: what could break is who keeps an adapter alive, who waits for
 * memory, and whether company changes a result. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "engine/engine.h"

#define MODEL LG_TEST_DATA "/tiny/models/tiny-qwen3"
#define ADAPTER(name) LG_TEST_DATA "/tiny/adapters/tiny-qwen3/" name
#define NEW_IDS 6

static const int32_t prompt[] = {32, 67, 67, 346, 435};

static Engine *open_with(LgEngineOptions o) {
    LgError err = {0};
    Engine *e = NULL;
    o.model = MODEL;
    o.cache_dir = "program-cache"; /* of the build folder: each program is compiled once */
    o.threads = o.threads ? o.threads : 2;
    if (engine_open(&o, &e, &err) != LG_OK)
        fail_msg("%s", err.message);
    return e;
}

static Engine *open_engine(void) {
    return open_with((LgEngineOptions){0});
}

static void load(Engine *e, const char *name, const char *dir) {
    LgError err = {0};
    if (engine_adapter_load(e, name, dir, &err) != LG_OK)
        fail_msg("%s", err.message);
}

static LgRequest request(const LgAdapterUse *uses, size_t count) {
    return (LgRequest){.ids = prompt,
                       .id_count = 5,
                       .adapters = uses,
                       .adapter_count = count,
                       .max_tokens = NEW_IDS,
                       .sampling = {.top_p = 1},
                       .digest = true};
}

static Sequence *start(Engine *e, const LgRequest *r) {
    LgError err = {0};
    Sequence *s = NULL;
    if (sequence_create(e, r, &s, &err) != LG_OK)
        fail_msg("%s", err.message);
    return s;
}

static void run(Engine *e) {
    int32_t active = 1;
    LgError err = {0};
    for (int steps = 0; active > 0; steps++) {
        assert_true(steps < 1000);
        if (engine_step(e, &active, &err) != LG_OK)
            fail_msg("%s", err.message);
    }
}

/* The digest of one request alone in a new engine. */
static void alone(const char *adapter_dir, char digest[65]) {
    Engine *e = open_engine();
    LgAdapterUse use = {.name = "a", .scale = 1};
    if (adapter_dir)
        load(e, "a", adapter_dir);
    LgRequest r = request(&use, adapter_dir ? 1 : 0);
    Sequence *s = start(e, &r);
    run(e);
    memcpy(digest, sequence_digest(s), 65);
    engine_close(e);
}

static void sequences_of_many_adapters_meet_in_one_batch(void **state) {
    (void)state;
    static const char *const dirs[] = {NULL, ADAPTER("en-r8-all"), ADAPTER("dora-r8"),
                                       ADAPTER("r1")};
    Engine *e = open_engine();
    Sequence *s[4];
    for (int i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof name, "a%d", i);
        if (dirs[i])
            load(e, name, dirs[i]);
        LgAdapterUse use = {.name = name, .scale = 1};
        LgRequest r = request(&use, dirs[i] ? 1 : 0);
        s[i] = start(e, &r);
    }
    run(e);
    for (int i = 0; i < 4; i++) {
        char expected[65];
        alone(dirs[i], expected);
        assert_string_equal(sequence_digest(s[i]), expected);
        for (int k = 0; k < i; k++)
            assert_string_not_equal(sequence_digest(s[i]), sequence_digest(s[k]));
    }
    engine_close(e);
}

static void an_unloaded_adapter_serves_its_sequences_to_their_end(void **state) {
    (void)state;
    char expected[65];
    alone(ADAPTER("en-r8-all"), expected);
    Engine *e = open_engine();
    LgAdapterUse use = {.name = "x", .scale = 1};
    LgRequest r = request(&use, 1);
    load(e, "x", ADAPTER("en-r8-all"));
    Sequence *old = start(e, &r);
    LgError err = {0};
    assert_int_equal(engine_step(e, NULL, &err), LG_OK);
    assert_int_equal(engine_adapter_unload(e, "x", &err), LG_OK);
    Sequence *none = NULL;
    assert_int_equal(sequence_create(e, &r, &none, &err), LG_NOT_FOUND);
    assert_null(none);
    load(e, "x", ADAPTER("r1")); /* the name now means another object */
    Sequence *fresh = start(e, &r);
    run(e);
    assert_string_equal(sequence_digest(old), expected);
    alone(ADAPTER("r1"), expected);
    assert_string_equal(sequence_digest(fresh), expected);
    sequence_destroy(old);
    sequence_destroy(fresh);
    engine_close(e);
}

static void sequences_wait_for_kv_memory_in_order(void **state) {
    (void)state;
    char expected[65];
    alone(NULL, expected);
    Engine *probe = open_engine();
    uint64_t page = engine_runner(probe)->kv_page_bytes;
    engine_close(probe);
    Engine *e = open_with((LgEngineOptions){.kv_bytes_max = page}); /* one sequence at a time */
    LgRequest r = request(NULL, 0);
    Sequence *s[3];
    for (int i = 0; i < 3; i++)
        s[i] = start(e, &r);
    LgError err = {0};
    assert_int_equal(engine_step(e, NULL, &err), LG_OK);
    size_t count;
    sequence_ids(s[0], &count);
    assert_int_equal(count, 1);
    sequence_ids(s[1], &count);
    assert_int_equal(count, 0);
    sequence_destroy(s[1]); /* cancelled while it waits */
    run(e);
    assert_string_equal(sequence_digest(s[0]), expected);
    assert_string_equal(sequence_digest(s[2]), expected);
    r.max_tokens = 100;
    Sequence *big = NULL;
    assert_int_equal(sequence_create(e, &r, &big, &err), LG_LIMIT);
    assert_non_null(strstr(err.message, "KV pages"));
    engine_close(e);
}

static void bad_requests_are_refused_with_the_numbers(void **state) {
    (void)state;
    Engine *e = open_engine();
    load(e, "d", ADAPTER("dora-r8"));
    load(e, "r", ADAPTER("r1"));
    LgAdapterUse both[] = {{"d", 1}, {"r", 1}};
    struct {
        LgRequest r;
        LgStatus status;
        const char *fragment;
    } cases[] = {
        {request(NULL, 0), LG_BAD_INPUT, "prompt is empty"},
        {request(NULL, 0), LG_BAD_INPUT, "prompt id 4 is 2048"},
        {request(NULL, 0), LG_LIMIT, "the context has 1024"},
        {request(both, 2), LG_BAD_INPUT, "DoRA"},
        {request(both, 2), LG_BAD_INPUT, "not a finite"},
        {request(NULL, 0), LG_BAD_INPUT, "temperature"},
    };
    static const int32_t bad_ids[] = {1, 2, 3, 4, 2048};
    LgAdapterUse inf = {"r", 1e38f * 10.0f};
    cases[0].r.id_count = 0;
    cases[1].r.ids = bad_ids;
    cases[2].r.max_tokens = 5000;
    cases[4].r.adapters = &inf;
    cases[4].r.adapter_count = 1;
    cases[5].r.sampling.temperature = -1;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        LgError err = {0};
        Sequence *s = NULL;
        assert_int_equal(sequence_create(e, &cases[i].r, &s, &err), cases[i].status);
        if (!strstr(err.message, cases[i].fragment))
            fail_msg("case %zu: \"%s\" is not in \"%s\"", i, cases[i].fragment, err.message);
    }
    LgError err = {0};
    assert_int_equal(engine_adapter_load(e, "r", ADAPTER("r1"), &err), LG_CONFLICT);
    assert_int_equal(engine_adapter_unload(e, "nobody", &err), LG_NOT_FOUND);
    engine_close(e);
}

static void slots_and_pages_come_back(void **state) {
    (void)state;
    Engine *e = open_engine();
    char expected[65];
    alone(NULL, expected);
    LgRequest r = request(NULL, 0);
    for (int round = 0; round < 12; round++) {
        Sequence *s[3];
        for (int i = 0; i < 3; i++)
            s[i] = start(e, &r);
        LgError err = {0};
        assert_int_equal(engine_step(e, NULL, &err), LG_OK);
        sequence_destroy(s[round % 3]); /* in the middle of its work */
        run(e);
        for (int i = 0; i < 3; i++)
            if (i != round % 3) {
                assert_string_equal(sequence_digest(s[i]), expected);
                sequence_destroy(s[i]);
            }
    }
    engine_close(e);
}

typedef struct Seen {
    size_t positions;
    float first, last;
} Seen;

static void count_positions(void *user, size_t position, const float *logits, int32_t vocab) {
    Seen *seen = user;
    assert_int_equal(position, seen->positions);
    seen->positions++;
    seen->first = position == 0 ? logits[0] : seen->first;
    seen->last = logits[vocab - 1];
}

static void an_evaluation_sees_every_position_once_at_any_chunk(void **state) {
    (void)state;
    int32_t ids[300];
    for (int i = 0; i < 300; i++)
        ids[i] = 7 * i % 2000;
    Seen seen[2] = {{0}};
    for (int i = 0; i < 2; i++) {
        Engine *e = open_with((LgEngineOptions){.rows_max = i ? 33 : 0});
        LgError err = {0};
        if (engine_eval(e, ids, 300, NULL, 0, count_positions, &seen[i], &err) != LG_OK)
            fail_msg("%s", err.message);
        assert_int_equal(seen[i].positions, 300);
        engine_close(e);
    }
    assert_memory_equal(&seen[0], &seen[1], sizeof seen[0]);
}

static void a_stop_token_ends_a_sequence_and_is_not_among_its_ids(void **state) {
    (void)state;
    Engine *e = open_engine();
    /* Sampled at a high temperature, an end token comes soon among 2048 ids: seeds are tried until
     * one stops. */
    LgRequest r = request(NULL, 0);
    r.stop_at_end = true;
    r.max_tokens = 400;
    r.sampling = (LgSampling){.temperature = 4.0f, .top_p = 1};
    const Model *m = engine_model(e);
    bool stopped = false;
    for (uint64_t seed = 0; seed < 40 && !stopped; seed++) {
        r.sampling.seed = seed;
        Sequence *s = start(e, &r);
        run(e);
        size_t count;
        const int32_t *ids = sequence_ids(s, &count);
        for (size_t i = 0; i < count; i++)
            for (int k = 0; k < m->end_count; k++)
                assert_int_not_equal(ids[i], m->end_ids[k]);
        stopped = sequence_finish(s) == LG_FINISH_STOP && count < 400;
        sequence_destroy(s);
    }
    assert_true(stopped);
    engine_close(e);
}

static void missing_and_wrong_models_are_named(void **state) {
    (void)state;
    Engine *e = NULL;
    LgError err = {0};
    LgEngineOptions o = {.model = LG_TEST_DATA "/nowhere"};
    assert_int_equal(engine_open(&o, &e, &err), LG_NOT_FOUND);
    assert_non_null(strstr(err.message, "nowhere"));
    o = (LgEngineOptions){.model = MODEL, .backend = "abacus"};
    assert_int_equal(engine_open(&o, &e, &err), LG_BAD_INPUT);
    assert_non_null(strstr(err.message, "abacus"));
    o = (LgEngineOptions){.model = MODEL, .level = "avx9"};
    assert_int_equal(engine_open(&o, &e, &err), LG_BAD_INPUT);
    assert_null(e);
}

int main(void) {
    lg_mem_install_hooks();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_of_many_adapters_meet_in_one_batch),
        cmocka_unit_test(an_unloaded_adapter_serves_its_sequences_to_their_end),
        cmocka_unit_test(sequences_wait_for_kv_memory_in_order),
        cmocka_unit_test(bad_requests_are_refused_with_the_numbers),
        cmocka_unit_test(slots_and_pages_come_back),
        cmocka_unit_test(an_evaluation_sees_every_position_once_at_any_chunk),
        cmocka_unit_test(a_stop_token_ends_a_sequence_and_is_not_among_its_ids),
        cmocka_unit_test(missing_and_wrong_models_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
