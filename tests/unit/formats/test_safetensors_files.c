/* safetensors in folders: one file, shards with an index, links, and the broken adapters of the
 * shared data. */
#include "files.h"

#include "base/json.h"
#include "formats/safetensors.h"

#define ENTRY(name) "{\"" name "\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}"
#define INDEX "model.safetensors.index.json"

static LgStatus open_stem(const char *dir, const char *stem, TensorSet **set, LgError *err) {
    *set = NULL;
    *err = (LgError){0};
    LgStatus status = safetensors_open(dir, stem, set, err);
    assert_int_equal(status == LG_OK, *set != NULL);
    return status;
}

static LgStatus open_model(Folder *f, LgError *err) {
    TensorSet *set;
    LgStatus status = open_stem(f->path, "model", &set, err);
    tensor_set_close(set);
    return status;
}

static void opens_a_single_file(void **state) {
    Folder *f = *state;
    LgError err;
    TensorSet *set;
    write_safetensors(f, "model.safetensors", ENTRY("a"), 2);
    assert_int_equal(open_stem(f->path, "model", &set, &err), LG_OK);
    const Tensor *t = tensor_set_find(set, LG_STR("a"));
    assert_int_equal(t->data[0], 0);
    assert_int_equal(t->data[1], 7);
    tensor_set_close(set);
}

static void opens_shards(void **state) {
    Folder *f = *state;
    LgError err;
    TensorSet *set;
    write_safetensors(f, "m-1.safetensors", ENTRY("a"), 2);
    write_safetensors(f, "m-2.safetensors", ENTRY("b"), 2);
    write_text(f, INDEX,
               "{\"metadata\":{\"total_size\":4},\"weight_map\":{\"b\":\"m-2.safetensors\",\"a\":"
               "\"m-1.safetensors\"}}");
    assert_int_equal(open_stem(f->path, "model", &set, &err), LG_OK);
    assert_int_equal(tensor_set_count(set), 2);
    assert_non_null(tensor_set_find(set, LG_STR("a")));
    assert_non_null(tensor_set_find(set, LG_STR("b")));
    tensor_set_close(set);
}

static void a_folder_without_either_is_not_found(void **state) {
    Folder *f = *state;
    LgError err;
    assert_int_equal(open_model(f, &err), LG_NOT_FOUND);
    assert_mentions(&err, "model.safetensors.index.json");
    TensorSet *set;
    assert_int_equal(open_stem(in_folder(f, "gone"), "model", &set, &err), LG_NOT_FOUND);
    assert_int_equal(safetensors_open(f->path, "model", &set, NULL), LG_NOT_FOUND);
}

typedef struct IndexFault {
    const char *index, *words;
} IndexFault;

#define MAP(tensor, file) "{\"weight_map\":{\"" tensor "\":" file "}}"

static const IndexFault index_faults[] = {
    {"{\"weight_map\":[]}", "weight_map"},
    {"{}", "weight_map"},
    {"[", "not valid JSON"},
    {MAP("a", "1"), "no string"},
    {MAP("a", "\"../m-1.safetensors\""), "no plain file name"},
    {MAP("a", "\"/m-1.safetensors\""), "no plain file name"},
    {MAP("a", "\"sub/m-1.safetensors\""), "no plain file name"},
    {MAP("a", "\"sub\\\\m-1.safetensors\""), "no plain file name"},
    {MAP("a", "\"m-1\\u0000.safetensors\""), "no plain file name"},
    {MAP("a", "\"..\""), ".safetensors file is expected"},
    {MAP("a", "\"m-1.bin\""), ".safetensors file is expected"},
    {MAP("a", "\"outer.safetensors\""), "leads out of its folder"},
    {MAP("a", "\"gone.safetensors\""), "no such file"},
    {MAP("b", "\"m-1.safetensors\""), "no such tensor"},
    {"{\"weight_map\":{\"a\":\"m-2.safetensors\",\"b\":\"m-1.safetensors\"}}", "no such tensor"},
    {"{\"weight_map\":{\"a\":\"m-1.safetensors\",\"b\":\"again.safetensors\"}}", "occurs twice"},
    {"{\"weight_map\":{\"a\":\"broken.safetensors\"}}", "broken.safetensors: "},
};

static void each_fault_of_an_index_is_refused_in_words(void **state) {
    Folder *f = *state;
    LgError err;
    char link[160];
    write_safetensors(f, "m-1.safetensors", ENTRY("a"), 2);
    write_safetensors(f, "m-2.safetensors", ENTRY("b"), 2);
    write_safetensors(f, "again.safetensors", ENTRY("a"), 2);
    write_text(f, "broken.safetensors", "none");
    snprintf(link, sizeof link, "%s/outer.safetensors", f->path);
    assert_int_equal(symlink("/etc/passwd", link), 0);
    for (size_t i = 0; i < sizeof index_faults / sizeof index_faults[0]; i++) {
        write_text(f, INDEX, index_faults[i].index);
        if (open_model(f, &err) != LG_BAD_INPUT)
            fail_msg("not refused: %s", index_faults[i].index);
        assert_mentions(&err, index_faults[i].words);
    }
}

static void a_link_out_of_the_folder_is_refused(void **state) {
    Folder *f = *state;
    LgError err;
    char at[160], target[160];
    file_mkdirs(in_folder(f, "in"), NULL);
    write_safetensors(f, "model.safetensors", ENTRY("a"), 2);
    snprintf(at, sizeof at, "%s/in/model.safetensors", f->path);
    snprintf(target, sizeof target, "%s/model.safetensors", f->path);
    assert_int_equal(symlink(target, at), 0);
    TensorSet *set;
    assert_int_equal(open_stem(in_folder(f, "in"), "model", &set, &err), LG_BAD_INPUT);
    assert_mentions(&err, "link");
}

static void failed_allocations_leave_no_mapping(void **state) {
    Folder *f = *state;
    write_safetensors(f, "m-1.safetensors", ENTRY("a"), 2);
    write_safetensors(f, "m-2.safetensors", ENTRY("b"), 2);
    write_text(f, INDEX, "{\"weight_map\":{\"b\":\"m-2.safetensors\",\"a\":\"m-1.safetensors\"}}");
    LgStatus status = LG_NO_MEMORY;
    for (long n = 1; status != LG_OK; n++) {
        TensorSet *set = NULL;
        lg_alloc_fail_at(n, 1);
        status = safetensors_open(f->path, "model", &set, NULL);
        lg_alloc_fail_at(0, 0);
        assert_true(status == LG_OK || status == LG_NO_MEMORY);
        assert_true(n < 500);
        tensor_set_close(set);
    }
}

/* The broken adapters whose fault is in the file format: the words that the refusal must have. */
typedef struct BadAdapter {
    const char *name;
    LgStatus status;
    const char *words;
} BadAdapter;

static const BadAdapter bad_adapters[] = {
    {"control-ok", LG_OK, NULL},
    {"truncated-file", LG_BAD_INPUT, "past the end"},
    {"truncated-header", LG_BAD_INPUT, "header length"},
    {"empty-file", LG_BAD_INPUT, "0 bytes"},
    {"five-bytes", LG_BAD_INPUT, "5 bytes"},
    {"header-length-lies", LG_BAD_INPUT, "not valid JSON"},
    {"header-length-huge", LG_BAD_INPUT, "18446744073709551615"},
    {"header-length-zero", LG_BAD_INPUT, "does not begin"},
    {"header-not-json", LG_BAD_INPUT, NULL},
    {"header-duplicate-tensor", LG_BAD_INPUT, "duplicate"},
    {"overlapping-spans", LG_BAD_INPUT, "overlaps"},
    {"span-out-of-file", LG_BAD_INPUT, "past the end"},
    {"span-backwards", LG_BAD_INPUT, "ends before it begins"},
    {"shape-ne-span", LG_BAD_INPUT, "another number of bytes"},
    {"shape-overflow", LG_BAD_INPUT, "more than 64 bits"},
    {"shape-negative", LG_BAD_INPUT, "no natural number"},
    {"unknown-dtype", LG_BAD_INPUT, "is not known"},
    {"trailing-bytes", LG_BAD_INPUT, "64 bytes after the last tensor"},
    {"control-characters-in-name", LG_BAD_INPUT, NULL},
    {"long-tensor-name", LG_LIMIT, "1024"},
    {"index-traversal", LG_BAD_INPUT, "a .safetensors file is expected"},
    {"index-missing-shard", LG_BAD_INPUT, "no such file"},
    {"bin-only", LG_NOT_FOUND, "neither"},
    {"integer-dtype", LG_OK, NULL}, /* a matter of adapters, not of the format */
    {"rank-0-tensors", LG_OK, NULL},
    {"empty-adapter", LG_OK, NULL},
};

static void broken_adapters_are_refused_in_words(void **state) {
    (void)state;
    if (!file_is_dir(LG_SHARED_DATA "/tiny/bad-adapters"))
        skip();
    for (size_t i = 0; i < sizeof bad_adapters / sizeof bad_adapters[0]; i++) {
        const BadAdapter *row = &bad_adapters[i];
        char dir[300];
        LgError err;
        TensorSet *set;
        snprintf(dir, sizeof dir, LG_SHARED_DATA "/tiny/bad-adapters/%s", row->name);
        LgStatus status = open_stem(dir, "adapter_model", &set, &err);
        if (status != row->status)
            fail_msg("%s: status %d: %s", row->name, status, err.message);
        if (row->words)
            assert_mentions(&err, row->words);
        tensor_set_close(set);
    }
}

static void shards_of_a_real_model_open(void **state) {
    (void)state;
    if (!file_is_dir(LG_SHARED_DATA "/tiny/models"))
        skip();
    TensorSet *set;
    LgError err;
    assert_int_equal(open_stem(LG_SHARED_DATA "/tiny/models/mid-qwen3", "model", &set, &err),
                     LG_OK);
    uint64_t elems = 0;
    for (size_t i = 0; i < tensor_set_count(set); i++)
        elems += tensor_elems(tensor_set_at(set, i));
    assert_int_equal(elems, 8130432); /* as its index says */
    tensor_set_close(set);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_make, folder_remove)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(opens_a_single_file),
        IN_FOLDER(opens_shards),
        IN_FOLDER(a_folder_without_either_is_not_found),
        IN_FOLDER(each_fault_of_an_index_is_refused_in_words),
        IN_FOLDER(a_link_out_of_the_folder_is_refused),
        IN_FOLDER(failed_allocations_leave_no_mapping),
        cmocka_unit_test(broken_adapters_are_refused_in_words),
        cmocka_unit_test(shards_of_a_real_model_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
