/* Every folder of the malformed set: what is refused, with which words, and what is served none the
 * less. */
#include "tests/unit/lora/fixture.h"

#include <dirent.h>

#include "base/clock.h"

#define FOLDER LG_TEST_DATA "/tiny/bad-adapters"

typedef struct Case {
    const char *name;
    LgStatus status;
    const char *fragment; /* of the message; of a note of the report where it is served */
} Case;

static const Case cases[] = {
    {"control-ok", LG_OK, NULL},
    {"prefix-mismatch", LG_OK, NULL},
    {"no-prefix", LG_OK, NULL},
    {"adapter-name-in-key", LG_OK, NULL},
    {"alpha-fraction", LG_OK, NULL},
    {"alpha-negative", LG_OK, "alpha is negative for 2 of 2 modules"},
    {"missing-r", LG_OK, "r is missing"},
    {"slow-regex", LG_OK, "alpha_pattern key \"(([a-z_.0-9]+)+)+!\" decides for no adapted module"},

    {"missing-lora-b", LG_BAD_INPUT, "self_attn.q_proj\" has no lora_B"},
    {"missing-lora-a", LG_BAD_INPUT, "self_attn.q_proj\" has no lora_A"},
    {"wrong-in-dim", LG_BAD_INPUT,
     "q_proj.lora_A.weight\": its shape is [8, 127], but the module reads 128"},
    {"wrong-out-dim", LG_BAD_INPUT,
     "q_proj.lora_B.weight\": its shape is [136, 8], but the module writes 128"},
    {"swapped-in-out", LG_BAD_INPUT,
     "down_proj.lora_A.weight\": its shape is [8, 128], but the module reads 384"},
    {"rank-a-ne-rank-b", LG_BAD_INPUT,
     "q_proj.lora_B.weight\": its rank is 4, that of lora_A is 8"},
    {"rank-ne-config", LG_BAD_INPUT, "its rank is 8, but adapter_config.json says 16"},
    {"rank-0-config", LG_BAD_INPUT, "\"r\" is 0"},
    {"rank-0-tensors", LG_BAD_INPUT, "\"r\" is 0"},
    {"rank-negative", LG_BAD_INPUT, "\"r\" is -8"},
    {"rank-huge", LG_BAD_INPUT, "adapter_config.json says 1000000000"},
    {"nan-tensor", LG_BAD_INPUT, "q_proj.lora_B.weight\": its element ["},
    {"inf-tensor", LG_BAD_INPUT, "is infinite"},
    {"one-dimensional", LG_BAD_INPUT, "q_proj.lora_A.weight\": it has 1 axes"},
    {"integer-dtype", LG_BAD_INPUT, "its type is I16; F32, F16 and BF16"},
    {"empty-adapter", LG_BAD_INPUT, "no tensors"},
    {"unknown-module", LG_BAD_INPUT, "qkv_proj.lora_A.weight\": the model has no such module"},
    {"unknown-layer", LG_BAD_INPUT, "no layer 99; its layers are 0 to 3"},
    {"extra-tensor", LG_BAD_INPUT, "layers.0.mystery\": it is no tensor of a LoRA adapter"},
    {"dora-key-without-flag", LG_BAD_INPUT, "does not say use_dora"},
    {"dora-flag-without-key", LG_BAD_INPUT, "no lora_magnitude_vector"},
    {"traversal-tensor-name", LG_BAD_INPUT, "tensor \"../../../../tmp/x.lora_A.weight\""},
    {"long-tensor-name", LG_LIMIT, "longer than 1024 bytes"},
    {"control-characters-in-name", LG_BAD_INPUT, "control"},
    {"missing-lora-alpha", LG_BAD_INPUT, "\"lora_alpha\" is missing"},
    {"alpha-string", LG_BAD_INPUT, "\"lora_alpha\" is \"16\"; it must be a finite number"},
    {"alpha-nan", LG_BAD_INPUT, "not valid JSON at line"},
    {"duplicate-config-keys", LG_BAD_INPUT, "duplicate"},
    {"config-not-json", LG_BAD_INPUT, "not valid JSON"},
    {"config-list", LG_BAD_INPUT, "must hold a JSON object"},
    {"config-deep", LG_BAD_INPUT, "nested deeper"},
    {"config-missing", LG_NOT_FOUND, "has no adapter_config.json"},
    {"peft-type-ia3", LG_BAD_INPUT, "\"peft_type\" is \"IA3\"; only \"LORA\" is served"},
    {"bad-regex", LG_BAD_INPUT, "rank_pattern key \"(q_proj\": not a valid regular expression"},
    {"truncated-file", LG_BAD_INPUT, "past the end of the file"},
    {"truncated-header", LG_BAD_INPUT, "the header length is"},
    {"empty-file", LG_BAD_INPUT, "the file has 0 bytes"},
    {"five-bytes", LG_BAD_INPUT, "the file has 5 bytes"},
    {"header-length-lies", LG_BAD_INPUT, "header"},
    {"header-length-huge", LG_BAD_INPUT, "the header length is 18446744073709551615"},
    {"header-length-zero", LG_BAD_INPUT, "header"},
    {"header-not-json", LG_BAD_INPUT, "header"},
    {"header-duplicate-tensor", LG_BAD_INPUT, "duplicate"},
    {"overlapping-spans", LG_BAD_INPUT, "overlaps"},
    {"span-out-of-file", LG_BAD_INPUT, "past the end of the file"},
    {"span-backwards", LG_BAD_INPUT, "ends before it begins"},
    {"shape-ne-span", LG_BAD_INPUT, "another number of bytes"},
    {"shape-overflow", LG_BAD_INPUT, "more than 64 bits"},
    {"shape-negative", LG_BAD_INPUT, "no natural number"},
    {"unknown-dtype", LG_BAD_INPUT, "dtype \"Q4_K\""},
    {"trailing-bytes", LG_BAD_INPUT, "64 bytes after the last tensor"},
    {"index-traversal", LG_BAD_INPUT, "etc/passwd"},
    {"index-missing-shard", LG_BAD_INPUT, "adapter_model-00001-of-00002.safetensors"},
    {"bin-only", LG_BAD_INPUT, "safetensors.torch"},
};
#define CASE_COUNT (sizeof cases / sizeof cases[0])

static void check_served(const Case *c, const Adapter *a) {
    const AdapterSite *q = site_at(a, WQ, 0);
    assert_int_equal(adapted_sites(a), 2);
    assert_int_equal(q->rank, 8);
    assert_int_equal(site_at(a, WD, 0)->rank, 8);
    float scale = !strcmp(c->name, "alpha-fraction")   ? 0.3125f
                  : !strcmp(c->name, "alpha-negative") ? -2.0f
                                                       : 2.0f;
    assert_true(q->scale == scale);
    if (c->fragment)
        assert_true(report_has(a, "notes", c->fragment));
    else
        assert_int_equal(json_array_size(json_object_get(adapter_report(a), "notes")), 0);
}

static void check_case(const Case *c, const Model *m) {
    char dir[512];
    snprintf(dir, sizeof dir, "%s/%s", FOLDER, c->name);
    Adapter *a = NULL;
    LgError err = {0};
    double begin = clock_seconds();
    LgStatus status = adapter_load(c->name, dir, &m->options, &a, &err);
    assert_true(clock_seconds() - begin < 2);
    if (status != c->status)
        fail_msg("%s: status %d, message \"%s\"", c->name, (int)status, err.message);
    if (status == LG_OK) {
        check_served(c, a);
    } else {
        assert_null(a);
        assert_contains(err.message, "adapter \"");
        assert_contains(err.message, c->name);
        assert_contains(err.message, c->fragment);
    }
    adapter_destroy(a);
}

static void each_folder_of_the_malformed_set_is_refused_or_served_as_listed(void **state) {
    (void)state;
    Model m;
    model_init(&m, &tiny_qwen3, NULL);
    for (size_t i = 0; i < CASE_COUNT; i++)
        check_case(&cases[i], &m);
    model_clear(&m);
}

static void the_list_names_every_folder(void **state) {
    (void)state;
    DIR *dir = opendir(FOLDER);
    assert_non_null(dir);
    size_t found = 0;
    struct dirent *entry;
    while ((entry = readdir(dir))) {
        if (entry->d_name[0] == '.' || strstr(entry->d_name, ".json"))
            continue;
        size_t i = 0;
        while (i < CASE_COUNT && strcmp(cases[i].name, entry->d_name))
            i++;
        if (i == CASE_COUNT)
            fail_msg("%s is not listed", entry->d_name);
        found++;
    }
    closedir(dir);
    assert_int_equal(found, CASE_COUNT);
}

static void spellings_of_one_adapter_give_the_same_numbers(void **state) {
    (void)state;
    static const char *const same[] = {"prefix-mismatch", "no-prefix", "adapter-name-in-key",
                                       "missing-r"};
    Model m;
    model_init(&m, &tiny_qwen3, NULL);
    Adapter *control = NULL;
    assert_int_equal(adapter_load("c", FOLDER "/control-ok", &m.options, &control, NULL), LG_OK);
    for (size_t i = 0; i < 4; i++) {
        char dir[512];
        snprintf(dir, sizeof dir, "%s/%s", FOLDER, same[i]);
        Adapter *a = NULL;
        assert_int_equal(adapter_load(same[i], dir, &m.options, &a, NULL), LG_OK);
        for (int site = WQ; site <= WD; site += WD - WQ) {
            const AdapterSite *x = site_at(control, site, 0), *y = site_at(a, site, 0);
            size_t in = site == WQ ? 128 : 384;
            assert_memory_equal(x->a, y->a, 8 * in * sizeof(float));
            assert_memory_equal(x->b, y->b, 8 * 128 * sizeof(float));
            assert_true(x->scale == y->scale);
        }
        adapter_destroy(a);
    }
    adapter_destroy(control);
    model_clear(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_folder_of_the_malformed_set_is_refused_or_served_as_listed),
        cmocka_unit_test(the_list_names_every_folder),
        cmocka_unit_test(spellings_of_one_adapter_give_the_same_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
