/* A load in which the n-th allocation fails says so, gives nothing and leaks nothing (the address
 * sanitizer looks). */
#include "tests/unit/lora/fixture.h"

#define CONTROL LG_TEST_DATA "/tiny/bad-adapters/control-ok"
#define Q1 "model.layers.1.self_attn.q_proj"

/* Every kind of tensor and both kinds of pattern. */
static void add_everything(File *f) {
    float half[24];
    for (int i = 0; i < 24; i++)
        half[i] = 0.5f;
    file_add_pair(f, Q1, DTYPE_F32, 2, 4, 3);
    file_add(f, "base_model.model." Q1 ".lora_magnitude_vector", DTYPE_F32, 3, 0, NULL);
    file_add_pair(f, "lm_head", DTYPE_F16, 2, 4, 6);
    file_add(f, "base_model.model.lm_head.lora_magnitude_vector", DTYPE_F32, 6, 0, NULL);
    file_add(f, "base_model.model.lm_head.base_layer.weight", DTYPE_BF16, 6, 4, half);
}

#define EVERYTHING                                                                                 \
    ",\"use_dora\":true,\"rank_pattern\":{\"q_(proj)\":2,\"k_proj\":7},"                           \
    "\"alpha_pattern\":{\"layers.[0-9].*\":0,\"lm_head\":-1},\"lora_dropout\":0.1"

typedef LgStatus (*Attempt)(void *data, Adapter **out, LgError *err);

static void fails_cleanly_at_every_allocation(Attempt attempt, void *data) {
    for (int forever = 0; forever < 2; forever++) {
        long n = 1;
        for (;; n++) {
            Adapter *a = NULL;
            LgError err = {0};
            lg_alloc_fail_at(n, forever);
            LgStatus status = attempt(data, &a, &err);
            lg_alloc_fail_at(0, 0);
            if (status == LG_OK) {
                assert_non_null(a);
                adapter_destroy(a);
                break;
            }
            if (status != LG_NO_MEMORY)
                fail_msg("allocation %ld: status %d, %s", n, (int)status, err.message);
            assert_null(a);
            assert_int_equal(err.status, LG_NO_MEMORY);
        }
        assert_true(n > 50);
    }
}

typedef struct Memory {
    Model *m;
    const TensorSet *set;
    json_t *config;
} Memory;

static LgStatus attempt_memory(void *data, Adapter **out, LgError *err) {
    Memory *d = data;
    return adapter_from_json(d->config, d->set, &d->m->options, out, err);
}

static LgStatus attempt_folder(void *data, Adapter **out, LgError *err) {
    return adapter_load("c", LG_TEST_DATA "/tiny/bad-adapters/control-ok",
                        &((Model *)data)->options, out, err);
}

static void a_load_from_memory_fails_cleanly_at_every_allocation(void **state) {
    (void)state;
    char text[2000];
    Model m;
    File f;
    model_init(&m, &toy, NULL);
    file_init(&f);
    add_everything(&f);
    Memory d = {&m, file_set(&f), NULL};
    LgStr config = config_text(text, "2", "4", EVERYTHING);
    adapter_destroy(load_ok(&m, d.set, config));
    assert_int_equal(lg_json_parse(config, "config", &d.config, NULL), LG_OK);
    fails_cleanly_at_every_allocation(attempt_memory, &d);
    json_decref(d.config);
    file_clear(&f);
    model_clear(&m);
}

static void a_load_from_a_folder_fails_cleanly_at_every_allocation(void **state) {
    (void)state;
    Model m;
    model_init(&m, &tiny_qwen3, NULL);
    fails_cleanly_at_every_allocation(attempt_folder, &m);
    model_clear(&m);
}

static void inspect_fails_cleanly_at_every_allocation(void **state) {
    (void)state;
    for (long n = 1;; n++) {
        json_t *report = NULL;
        LgError err = {0};
        lg_alloc_fail_at(n, n & 1);
        LgStatus status = adapter_inspect(CONTROL, &report, &err);
        lg_alloc_fail_at(0, 0);
        json_decref(report);
        if (status == LG_OK)
            break;
        assert_null(report);
        assert_int_equal(status, LG_NO_MEMORY);
    }
}

/* Refusals too must survive: their message may lose names, nothing else. */
static void refusals_fail_cleanly_at_every_allocation(void **state) {
    (void)state;
    static const char *const folders[] = {"unknown-module", "rank-ne-config",
                                          "bad-regex",      "bin-only",
                                          "extra-tensor",   "dora-key-without-flag"};
    Model m;
    model_init(&m, &tiny_qwen3, NULL);
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        char dir[500];
        snprintf(dir, sizeof dir, "%s/tiny/bad-adapters/%s", LG_TEST_DATA, folders[i]);
        long used = 1;
        for (long n = 1; n <= used; n++) {
            Adapter *a = NULL;
            LgError err = {0};
            lg_alloc_fail_at(n, n & 1);
            LgStatus status = adapter_load("c", dir, &m.options, &a, &err);
            long made = lg_alloc_fail_at(0, 0);
            used = made >= n ? made + 1 : n;
            assert_null(a);
            assert_true(status == LG_NO_MEMORY || status == LG_BAD_INPUT);
            assert_int_equal(err.status, status);
        }
    }
    model_clear(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_load_from_memory_fails_cleanly_at_every_allocation),
        cmocka_unit_test(a_load_from_a_folder_fails_cleanly_at_every_allocation),
        cmocka_unit_test(inspect_fails_cleanly_at_every_allocation),
        cmocka_unit_test(refusals_fail_cleanly_at_every_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
