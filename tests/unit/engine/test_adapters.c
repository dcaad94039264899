/* The life of adapters in an engine: names are replaced while sequences run, memory is limited,
 * what replaces tensors of the base meets others in one batch, and none of it changes a bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/engine.h"

#define MODEL LG_TEST_DATA "/tiny/models/tiny-qwen3"
#define ADAPTER(name) LG_TEST_DATA "/tiny/adapters/tiny-qwen3/" name
#define NEW_IDS 6

static const int32_t prompt[] = {263, 482, 2036, 371, 2037, 285};

static Engine *open_engine(uint64_t adapter_bytes_max, int threads, const char *backend) {
    LgEngineOptions o = {.model = MODEL,
                         .cache_dir = "program-cache",
                         .threads = threads,
                         .backend = backend,
                         .adapter_bytes_max = adapter_bytes_max};
    LgError err = {0};
    Engine *e = NULL;
    if (engine_open(&o, &e, &err) != LG_OK)
        fail_msg("%s", err.message);
    return e;
}

static void load(Engine *e, const char *name, const char *dir) {
    LgError err = {0};
    if (engine_adapter_load(e, name, dir, &err) != LG_OK)
        fail_msg("%s", err.message);
}

static Sequence *start(Engine *e, const char *name) {
    LgAdapterUse use = {.name = name, .scale = 1};
    LgRequest r = {.ids = prompt,
                   .id_count = sizeof prompt / sizeof *prompt,
                   .adapters = &use,
                   .adapter_count = name ? 1 : 0,
                   .max_tokens = NEW_IDS,
                   .sampling = {.top_p = 1},
                   .digest = true};
    LgError err = {0};
    Sequence *s = NULL;
    if (sequence_create(e, &r, &s, &err) != LG_OK)
        fail_msg("%s", err.message);
    return s;
}

static void step(Engine *e, int32_t *active) {
    LgError err = {0};
    if (engine_step(e, active, &err) != LG_OK)
        fail_msg("%s", err.message);
}

static void run(Engine *e) {
    for (int32_t active = 1; active > 0;)
        step(e, &active);
}

static void alone(const char *dir, char digest[65]) {
    Engine *e = open_engine(0, 1, NULL);
    if (dir)
        load(e, "a", dir);
    Sequence *s = start(e, dir ? "a" : NULL);
    run(e);
    memcpy(digest, sequence_digest(s), 65);
    engine_close(e);
}

static size_t count_objects(const Engine *e, bool resident_alone) {
    AdapterInfo info;
    size_t n = 0;
    for (size_t i = 0; engine_adapter_at(e, i, &info); i++)
        n += !resident_alone || info.resident;
    return n;
}

static AdapterInfo info_of(const Engine *e, const char *name) {
    AdapterInfo info;
    for (size_t i = 0; engine_adapter_at(e, i, &info); i++)
        if (info.named && strcmp(info.name, name) == 0)
            return info;
    fail_msg("no adapter is named %s", name);
    return info;
}

static const char *const kinds[] = {
    NULL,
    ADAPTER("save-head"),
    ADAPTER("save-norm"),
    ADAPTER("chat-tokens"),
    ADAPTER("lora-bias"),
    ADAPTER("embed-head"),
    ADAPTER("dora-r8"),
};
#define KINDS (sizeof kinds / sizeof *kinds)

static void what_replaces_the_base_meets_others_in_one_batch(void **state) {
    (void)state;
    Engine *e = open_engine(0, 3, NULL);
    Sequence *s[2 * KINDS];
    for (size_t i = 0; i < 2 * KINDS; i++) {
        char name[16];
        snprintf(name, sizeof name, "a%zu", i % KINDS);
        if (i < KINDS && kinds[i])
            load(e, name, kinds[i]);
        s[i] = start(e, kinds[i % KINDS] ? name : NULL);
        if (i % 3 == 0)
            step(e, NULL); /* prompts and single rows meet too */
    }
    run(e);
    for (size_t i = 0; i < 2 * KINDS; i++) {
        char expected[65];
        alone(kinds[i % KINDS], expected);
        assert_string_equal(sequence_digest(s[i]), expected);
        for (size_t k = 0; k < i && i < KINDS; k++)
            assert_string_not_equal(sequence_digest(s[i]), sequence_digest(s[k]));
    }
    engine_close(e);
}

static void both_back_ends_give_the_same_ids(void **state) {
    (void)state;
    Engine *cpu = open_engine(0, 2, NULL), *interp = open_engine(0, 1, "interp");
    for (size_t i = 0; i < KINDS; i++) {
        char name[16];
        size_t counts[2];
        snprintf(name, sizeof name, "a%zu", i);
        if (kinds[i]) {
            load(cpu, name, kinds[i]);
            load(interp, name, kinds[i]);
        }
        Sequence *a = start(cpu, kinds[i] ? name : NULL),
                 *b = start(interp, kinds[i] ? name : NULL);
        run(cpu);
        run(interp);
        const int32_t *x = sequence_ids(a, &counts[0]), *y = sequence_ids(b, &counts[1]);
        assert_int_equal(counts[0], counts[1]);
        assert_memory_equal(x, y, counts[0] * sizeof *x);
    }
    engine_close(cpu);
    engine_close(interp);
}

static void sets_and_scales_of_what_replaces_are_refused(void **state) {
    (void)state;
    Engine *e = open_engine(0, 1, NULL);
    load(e, "head", ADAPTER("save-head"));
    load(e, "r1", ADAPTER("r1"));
    LgAdapterUse sets[2][2] = {{{"head", 0.5f}}, {{"r1", 1}, {"head", 1}}};
    static const char *const words[] = {"at scale 1 only", "use it alone"};
    for (size_t i = 0; i < 2; i++) {
        LgRequest r = {.ids = prompt,
                       .id_count = 2,
                       .adapters = sets[i],
                       .adapter_count = i + 1,
                       .max_tokens = 1,
                       .sampling = {.top_p = 1}};
        LgError err = {0};
        Sequence *s = NULL;
        assert_int_equal(sequence_create(e, &r, &s, &err), LG_BAD_INPUT);
        assert_non_null(strstr(err.message, words[i]));
    }
    assert_int_equal(info_of(e, "r1").users, 0);
    engine_close(e);
}

static void a_replaced_name_is_a_new_object_at_once(void **state) {
    (void)state;
    char first[65], second[65], hash[65];
    alone(ADAPTER("en-r8-all"), first);
    alone(ADAPTER("save-norm"), second);
    Engine *e = open_engine(0, 2, NULL);
    LgError err = {0};
    assert_int_equal(engine_adapter_replace(e, "x", ADAPTER("r1"), &err), LG_NOT_FOUND);
    load(e, "x", ADAPTER("en-r8-all"));
    memcpy(hash, info_of(e, "x").hash, 65);
    Sequence *old = start(e, "x");
    step(e, NULL);
    /* what cannot be loaded leaves the name as it is */
    assert_int_equal(engine_adapter_replace(e, "x", ADAPTER("nothing"), &err), LG_NOT_FOUND);
    assert_string_equal(info_of(e, "x").hash, hash);
    assert_int_equal(engine_adapter_replace(e, "x", ADAPTER("save-norm"), &err), LG_OK);
    assert_string_not_equal(info_of(e, "x").hash, hash);
    assert_int_equal(count_objects(e, false), 2); /* the old one is still in use */
    Sequence *fresh = start(e, "x");
    run(e);
    assert_string_equal(sequence_digest(old), first);
    assert_string_equal(sequence_digest(fresh), second);
    sequence_destroy(old);
    assert_int_equal(count_objects(e, false), 1);
    engine_close(e);
}

/* Sixteen adapters by turns, with memory for eight. */
static void what_was_used_longest_ago_leaves_memory_and_comes_back(void **state) {
    (void)state;
    static const char *const dirs[] = {ADAPTER("en-r8-all"), ADAPTER("pattern"), ADAPTER("r1"),
                                       ADAPTER("cpp-r16-rslora")};
    char expected[4][65];
    Engine *e = open_engine(0, 1, NULL);
    load(e, "a", dirs[3]);
    uint64_t most = info_of(e, "a").bytes;
    engine_close(e);
    for (int i = 0; i < 4; i++)
        alone(dirs[i], expected[i]);
    e = open_engine(8 * most, 2, NULL);
    for (int i = 0; i < 16; i++) {
        char name[16];
        snprintf(name, sizeof name, "a%d", i);
        load(e, name, dirs[3]);
        engine_adapter_unload(e, name, NULL);
        load(e, name, dirs[i % 2 ? 3 : i % 4]);
    }
    LgError err = {0};
    assert_int_equal(engine_adapter_pin(e, "a3", true, &err), LG_OK);
    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < 16; i++) {
            char name[16];
            snprintf(name, sizeof name, "a%d", i);
            Sequence *s = start(e, name);
            run(e);
            assert_string_equal(sequence_digest(s), expected[i % 2 ? 3 : i % 4]);
            sequence_destroy(s);
            uint64_t bytes = 0;
            AdapterInfo info;
            for (size_t k = 0; engine_adapter_at(e, k, &info); k++)
                bytes += info.bytes;
            assert_true(bytes <= 8 * most);
            assert_true(info_of(e, "a3").resident);
            assert_true(info_of(e, name).resident);
        }
    assert_int_equal(count_objects(e, false), 16);
    assert_true(count_objects(e, true) < 16);
    engine_close(e);
}

static void memory_that_is_in_use_is_not_taken(void **state) {
    (void)state;
    Engine *e = open_engine(0, 1, NULL);
    load(e, "a", ADAPTER("en-r8-all"));
    uint64_t bytes = info_of(e, "a").bytes;
    engine_close(e);
    e = open_engine(bytes + bytes / 2, 1, NULL);
    load(e, "a", ADAPTER("en-r8-all"));
    Sequence *s = start(e, "a");
    LgError err = {0};
    assert_int_equal(engine_adapter_load(e, "b", ADAPTER("en-r8-all"), &err), LG_LIMIT);
    assert_non_null(strstr(err.message, "in use"));
    assert_int_equal(count_objects(e, false), 1);
    run(e);
    sequence_destroy(s);
    load(e, "b", ADAPTER("en-r8-all"));
    assert_false(info_of(e, "a").resident);
    engine_close(e);
}

/* A hundred: what they take beside their own bytes, and how long one takes to load. */
static void a_hundred_adapters_take_little_beside_their_bytes(void **state) {
    (void)state;
    Engine *e = open_engine(0, 1, NULL);
    load(e, "first", ADAPTER("en-r8-all"));
    struct mallinfo2 before = mallinfo2();
    double begin = clock_seconds();
    for (int i = 0; i < 100; i++) {
        char name[16];
        snprintf(name, sizeof name, "a%d", i);
        load(e, name, ADAPTER("en-r8-all"));
    }
    double each = (clock_seconds() - begin) / 100;
    struct mallinfo2 after = mallinfo2();
    double taken =
        (double)(after.uordblks + after.hblkhd) - (double)(before.uordblks + before.hblkhd);
    double bytes = 100.0 * (double)info_of(e, "a0").bytes;
    printf("%.1f KB each, %.1f %% more than their bytes; %.2f ms a load\n", taken / 1e5,
           100 * (taken / bytes - 1), each * 1e3);
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
    assert_true(taken > bytes);
    assert_true(taken < 1.05 * bytes); /* reports too */
    assert_true(each < 0.05);
#endif
    engine_close(e);
}

/* Names come and go between the steps of a team, in several engines at once. */
typedef struct Worker {
    pthread_t thread;
    unsigned seed;
    char expected[KINDS][65];
    bool good;
} Worker;

static unsigned draw(Worker *w, unsigned below) {
    w->seed = w->seed * 1103515245u + 12345u;
    return (w->seed >> 16) % below;
}

static void *stress(void *user) {
    Worker *w = user;
    LgEngineOptions o = {
        .model = MODEL, .cache_dir = "program-cache", .threads = 2, .adapter_bytes_max = 1500000};
    Engine *e = NULL;
    Sequence *s[4] = {NULL};
    size_t kind[4] = {0}, named = 1;
    LgError err;
    w->good = engine_open(&o, &e, &err) == LG_OK &&
              engine_adapter_load(e, "x", kinds[named], &err) == LG_OK;
    for (int i = 0; w->good && i < 120; i++) {
        unsigned at = draw(w, 4);
        if (s[at] && sequence_finish(s[at]) != LG_RUNNING) {
            w->good &= strcmp(sequence_digest(s[at]), w->expected[kind[at]]) == 0;
            sequence_destroy(s[at]);
            s[at] = NULL;
        } else if (s[at] && draw(w, 6) == 0) {
            sequence_destroy(s[at]); /* in the middle of its ids */
            s[at] = NULL;
        } else if (!s[at]) {
            LgAdapterUse use = {"x", 1};
            LgRequest r = {.ids = prompt,
                           .id_count = sizeof prompt / sizeof *prompt,
                           .adapters = &use,
                           .adapter_count = 1,
                           .max_tokens = NEW_IDS,
                           .sampling = {.top_p = 1},
                           .digest = true};
            kind[at] = named;
            w->good &= sequence_create(e, &r, &s[at], &err) == LG_OK;
        }
        if (draw(w, 3) == 0) {
            named = 1 + draw(w, KINDS - 1);
            if (draw(w, 2))
                w->good &= engine_adapter_replace(e, "x", kinds[named], &err) == LG_OK;
            else
                w->good &= engine_adapter_unload(e, "x", &err) == LG_OK &&
                           engine_adapter_load(e, "x", kinds[named], &err) == LG_OK;
        }
        w->good &= engine_step(e, NULL, &err) == LG_OK;
    }
    engine_close(e);
    return NULL;
}

static void names_come_and_go_between_steps(void **state) {
    (void)state;
    Worker workers[3] = {{.seed = 7}, {.seed = 77}, {.seed = 777}};
    for (size_t k = 1; k < KINDS; k++)
        alone(kinds[k], workers[0].expected[k]);
    for (int i = 0; i < 3; i++) {
        memcpy(workers[i].expected, workers[0].expected, sizeof workers[0].expected);
        assert_int_equal(pthread_create(&workers[i].thread, NULL, stress, &workers[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(workers[i].thread, NULL);
        assert_true(workers[i].good);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_replaces_the_base_meets_others_in_one_batch),
        cmocka_unit_test(both_back_ends_give_the_same_ids),
        cmocka_unit_test(sets_and_scales_of_what_replaces_are_refused),
        cmocka_unit_test(a_replaced_name_is_a_new_object_at_once),
        cmocka_unit_test(what_was_used_longest_ago_leaves_memory_and_comes_back),
        cmocka_unit_test(memory_that_is_in_use_is_not_taken),
        cmocka_unit_test(a_hundred_adapters_take_little_beside_their_bytes),
        cmocka_unit_test(names_come_and_go_between_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
