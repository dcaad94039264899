/* What the language's tests share: configs from JSON text, pages from files. */
#ifndef LG_TESTS_LANG_TEST_H
#define LG_TESTS_LANG_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "lang/lang.h"

static inline ConfigValue test_value(const json_t *v, ConfigValue *items) {
    ConfigValue out = {.kind = CONFIG_NULL};
    if (json_is_boolean(v)) {
        out.kind = CONFIG_BOOL;
        out.boolean = json_is_true(v);
    } else if (json_is_integer(v)) {
        out.kind = CONFIG_INT;
        out.integer = json_integer_value(v);
    } else if (json_is_real(v)) {
        out.kind = CONFIG_REAL;
        out.real = json_real_value(v);
    } else if (json_is_string(v)) {
        out.kind = CONFIG_STRING;
        out.string = lg_str(json_string_value(v));
    } else if (json_is_array(v)) {
        out.kind = CONFIG_LIST;
        out.count = json_array_size(v);
        assert_true(out.count <= 64);
        for (size_t i = 0; i < out.count; i++)
            items[i] = test_value(json_array_get(v, i), NULL);
        out.items = items;
    }
    return out;
}

/* Keys as the JSON object has them: flat, dots included. */
static inline Config *test_config(LgStr text) {
    LgError err;
    json_t *root = NULL;
    if (lg_json_parse(text, "config", &root, &err) != LG_OK)
        fail_msg("%s", err.message);
    Config *c = config_create();
    assert_non_null(c);
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value) {
        ConfigValue items[64];
        ConfigValue v = test_value(value, items);
        assert_int_equal(config_set(c, lg_str(key), &v, &err), LG_OK);
    }
    json_decref(root);
    return c;
}

static inline Buf test_file(const char *path) {
    LgError err;
    Buf text;
    buf_init(&text);
    if (file_read(path, 1u << 22, &text, &err) != LG_OK)
        fail_msg("%s", err.message);
    return text;
}

static inline bool test_has(LgStr text, LgStr part) {
    return memmem(text.ptr, text.len, part.ptr, part.len) != NULL;
}

static const char test_qwen3_config[] =
    "{\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\", \"vocab_size\": 2048,"
    " \"hidden_size\": 128, \"num_hidden_layers\": 4, \"num_key_value_heads\": 2,"
    " \"num_attention_heads\": 4, \"head_dim\": 32, \"intermediate_size\": 384,"
    " \"hidden_act\": \"silu\", \"attention_bias\": false, \"use_sliding_window\": false,"
    " \"tie_word_embeddings\": true, \"rope_theta\": 1000000.0, \"rms_norm_eps\": 1e-06,"
    " \"max_window_layers\": 28, \"sliding_window\": null, \"use_cache\": true}";

#endif
