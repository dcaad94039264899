/* What a folder may hold: shards, links, files of other formats. */
#include "tests/unit/lora/fixture.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"

#define FOLDER LG_TEST_DATA "/tiny/bad-adapters"
#define Q1 "model.layers.1.self_attn.q_proj"

/* A folder of its own for each test, emptied by name. */
typedef struct Folder {
    char path[40];
} Folder;

static Folder folder_new(void) {
    Folder f = {"/tmp/lg-adapter-XXXXXX"};
    assert_non_null(mkdtemp(f.path));
    return f;
}

static const char *in_folder(const Folder *f, char out[200], const char *name) {
    snprintf(out, 200, "%s/%s", f->path, name);
    return out;
}

static void put(const Folder *f, const char *name, const void *data, size_t bytes) {
    char path[200];
    assert_int_equal(file_write_atomic(in_folder(f, path, name), data, bytes, NULL), LG_OK);
}

static void put_tensors(const Folder *f, const char *name, File *file) {
    (void)file_set(file);
    put(f, name, file->bytes.data, file->bytes.len);
}

static void folder_end(const Folder *f, const char *const *names) {
    char path[200];
    for (; *names; names++)
        assert_int_equal(unlink(in_folder(f, path, *names)), 0);
    assert_int_equal(rmdir(f->path), 0);
}

static void shards_are_read_together(void **state) {
    (void)state;
    char text[2000];
    Model m;
    File one, two;
    LgError err = {0};
    Adapter *a = NULL;
    Folder f = folder_new();
    model_init(&m, &toy, NULL);
    file_init(&one);
    file_init(&two);
    file_add(&one, Q1 ".lora_A.weight", DTYPE_BF16, 2, 4, NULL);
    file_add(&two, Q1 ".lora_B.weight", DTYPE_BF16, 3, 2, NULL);
    put_tensors(&f, "adapter_model-00001-of-00002.safetensors", &one);
    put_tensors(&f, "adapter_model-00002-of-00002.safetensors", &two);
    LgStr config = config_text(text, "2", "4", "");
    put(&f, "adapter_config.json", config.ptr, config.len);
    const char index[] = "{\"metadata\":{},\"weight_map\":{"
                         "\"" Q1 ".lora_A.weight\":\"adapter_model-00001-of-00002.safetensors\","
                         "\"" Q1 ".lora_B.weight\":\"adapter_model-00002-of-00002.safetensors\"}}";
    put(&f, "adapter_model.safetensors.index.json", index, sizeof index - 1);
    if (adapter_load("x", f.path, &m.options, &a, &err) != LG_OK)
        fail_msg("%s", err.message);
    assert_int_equal(site_at(a, WQ, 1)->rank, 2);
    adapter_destroy(a);
    file_clear(&one);
    file_clear(&two);
    model_clear(&m);
    folder_end(&f, (const char *const[]){"adapter_model-00001-of-00002.safetensors",
                                         "adapter_model-00002-of-00002.safetensors",
                                         "adapter_config.json",
                                         "adapter_model.safetensors.index.json", NULL});
}

static void other_formats_are_refused_with_what_to_do(void **state) {
    (void)state;
    static const char *const names[] = {"adapter_model.bin", "adapter_model.pt",
                                        "adapter_model.gguf"};
    static const char *const words[] = {"weights_only=True", "weights_only=True",
                                        "without adapter_config.json"};
    for (size_t i = 0; i < 3; i++) {
        char text[2000];
        Model m;
        LgError err = {0};
        Adapter *a = NULL;
        Folder f = folder_new();
        model_init(&m, &toy, NULL);
        LgStr config = config_text(text, "2", "4", "");
        put(&f, "adapter_config.json", config.ptr, config.len);
        assert_int_equal(adapter_load("x", f.path, &m.options, &a, &err), LG_NOT_FOUND);
        assert_contains(err.message, "adapter_model.safetensors");
        put(&f, names[i], "x", 1);
        assert_int_equal(adapter_load("x", f.path, &m.options, &a, &err), LG_BAD_INPUT);
        assert_contains(err.message, names[i]);
        assert_contains(err.message, words[i]);
        assert_null(a);
        model_clear(&m);
        folder_end(&f, (const char *const[]){"adapter_config.json", names[i], NULL});
    }
}

/* A pickle beside the safetensors file is not looked at. */
static void safetensors_go_before_a_pickle(void **state) {
    (void)state;
    char text[2000];
    Model m;
    File file;
    Adapter *a = NULL;
    Folder f = folder_new();
    model_init(&m, &toy, NULL);
    file_init(&file);
    file_add_pair(&file, Q1, DTYPE_BF16, 2, 4, 3);
    put_tensors(&f, "adapter_model.safetensors", &file);
    put(&f, "adapter_model.bin", "x", 1);
    LgStr config = config_text(text, "2", "4", "");
    put(&f, "adapter_config.json", config.ptr, config.len);
    assert_int_equal(adapter_load("x", f.path, &m.options, &a, NULL), LG_OK);
    adapter_destroy(a);
    file_clear(&file);
    model_clear(&m);
    folder_end(&f, (const char *const[]){"adapter_config.json", "adapter_model.safetensors",
                                         "adapter_model.bin", NULL});
}

static void a_path_that_is_no_folder_is_refused(void **state) {
    (void)state;
    Model m;
    LgError err;
    Adapter *a = NULL;
    model_init(&m, &tiny_qwen3, NULL);
    assert_int_equal(adapter_load("x", FOLDER "/not-there", &m.options, &a, &err), LG_NOT_FOUND);
    assert_contains(err.message, "adapter \"x\": there is no folder");
    assert_int_equal(adapter_load("x", FOLDER "/control-ok/NOTE.txt", &m.options, &a, &err),
                     LG_BAD_INPUT);
    assert_contains(err.message, "is no folder");
    assert_null(a);
    model_clear(&m);
}

static void a_link_out_of_the_folder_is_refused(void **state) {
    (void)state;
    static const char *const names[] = {"adapter_model.safetensors", "adapter_config.json", NULL};
    for (int config = 0; config < 2; config++) {
        Model m;
        LgError err = {0};
        Adapter *a = NULL;
        Folder f = folder_new();
        model_init(&m, &tiny_qwen3, NULL);
        for (int i = 0; i < 2; i++) { /* one a link, the other a copy */
            char from[600], path[200];
            snprintf(from, sizeof from, "%s/control-ok/%s", FOLDER, names[i]);
            Buf bytes;
            buf_init(&bytes);
            assert_int_equal(file_read(from, 1 << 20, &bytes, NULL), LG_OK);
            if (i == config)
                assert_int_equal(symlink(from, in_folder(&f, path, names[i])), 0);
            else
                put(&f, names[i], bytes.data, bytes.len);
            buf_clear(&bytes);
        }
        assert_int_equal(adapter_load("x", f.path, &m.options, &a, &err), LG_BAD_INPUT);
        assert_contains(err.message, "link");
        assert_contains(err.message, names[config]);
        assert_null(a);
        model_clear(&m);
        folder_end(&f, names);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_are_read_together),
        cmocka_unit_test(other_formats_are_refused_with_what_to_do),
        cmocka_unit_test(safetensors_go_before_a_pickle),
        cmocka_unit_test(a_path_that_is_no_folder_is_refused),
        cmocka_unit_test(a_link_out_of_the_folder_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
