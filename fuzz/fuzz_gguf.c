/* A GGUF file: its tensors and metadata, then as a model under Hugging Face's names. */
#include "formats/gguf_model.h"
#include "fuzz/fuzz_tensors.h"

static void touch_metadata(const Gguf *g) {
    for (size_t i = 0; i < gguf_key_count(g); i++) {
        const LgStr *strings;
        const int32_t *ints;
        const float *floats;
        const char *key = gguf_key(g, i).ptr;
        const ConfigValue *value = gguf_get(g, key);
        size_t in_strings = gguf_strings(g, key, &strings);
        size_t in_ints = gguf_ints(g, key, &ints);
        size_t in_floats = gguf_floats(g, key, &floats);
        FUZZ_CHECK((value != NULL) + (in_strings > 0) + (in_ints > 0) + (in_floats > 0) <= 1);
        for (size_t k = 0; k < in_strings; k++)
            FUZZ_CHECK(strings[k].ptr && strings[k].ptr[strings[k].len] == 0);
    }
}

static void as_model(const Gguf *g, const uint8_t *data, size_t size) {
    Config *config = config_create();
    TensorSet *tensors = NULL;
    LgError err = {0};
    FUZZ_CHECK(config);
    if (gguf_model_config(g, "input", config, &err) == LG_OK &&
        gguf_model_tensors(g, "input", config, &tensors, &err) == LG_OK)
        fuzz_check_tensors(tensors, data, size);
    else
        FUZZ_CHECK(err.message[0]);
    tensor_set_close(tensors);
    config_destroy(config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Gguf *g = NULL;
    LgError err = {0};
    LgStatus status = gguf_parse(data, size, "input", &g, &err);
    FUZZ_CHECK((status == LG_OK) == (g != NULL));
    if (!g) {
        FUZZ_CHECK(err.status == status && err.message[0]);
        return 0;
    }
    fuzz_check_tensors(gguf_tensors(g), data, size);
    touch_metadata(g);
    as_model(g, data, size);
    gguf_close(g);
    return 0;
}
