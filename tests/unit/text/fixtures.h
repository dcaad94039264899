/* Tokenizers and texts of tests/data/text. */
#ifndef LG_TESTS_TEXT_FIXTURES_H
#define LG_TESTS_TEXT_FIXTURES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "text/tokenizer.h"

static inline json_t *fixture_json(const char *path) {
    Buf text;
    LgError err = {0};
    json_t *value = NULL;
    buf_init(&text);
    if (file_read(path, (size_t)64 << 20, &text, &err) != LG_OK ||
        lg_json_parse(buf_view(&text), path, &value, &err) != LG_OK)
        fail_msg("%s", err.message);
    buf_clear(&text);
    return value;
}

static inline Tokenizer *fixture_tokenizer_json(const char *path) {
    Buf text;
    LgError err = {0};
    Tokenizer *t = NULL;
    buf_init(&text);
    if (file_read(path, (size_t)64 << 20, &text, &err) != LG_OK ||
        tokenizer_from_json(buf_view(&text), &t, &err) != LG_OK)
        fail_msg("%s", err.message);
    buf_clear(&text);
    return t;
}

static inline LgStr *fixture_strings(const json_t *list) {
    LgStr *out = calloc(json_array_size(list) + 1, sizeof *out);
    for (size_t i = 0; i < json_array_size(list); i++)
        out[i] = lg_json_string(json_array_get(list, i));
    return out;
}

/* What tools/extract_gguf_tokenizer.py wrote. */
static inline Tokenizer *fixture_tokenizer_vocab(const char *path) {
    json_t *v = fixture_json(path);
    const json_t *tokens = json_object_get(v, "tokens"), *merges = json_object_get(v, "merges");
    const json_t *runs = json_object_get(v, "types");
    size_t count = json_array_size(tokens), n = 0;
    int32_t *types = calloc(count + 1, sizeof *types);
    for (size_t i = 0; i < json_array_size(runs); i++)
        for (json_int_t k = json_integer_value(json_array_get(json_array_get(runs, i), 1)); k > 0;
             k--)
            types[n++] = (int32_t)json_integer_value(json_array_get(json_array_get(runs, i), 0));
    assert_int_equal(n, count);
    LgStr *token_texts = fixture_strings(tokens), *merge_texts = fixture_strings(merges);
    TokenizerVocab vocab = {.model = lg_json_string(json_object_get(v, "model")),
                            .pre = lg_json_string(json_object_get(v, "pre")),
                            .tokens = token_texts,
                            .token_count = count,
                            .types = types,
                            .merges = merge_texts,
                            .merge_count = json_array_size(merges)};
    LgError err = {0};
    Tokenizer *t = NULL;
    if (tokenizer_from_vocab(&vocab, &t, &err) != LG_OK)
        fail_msg("%s", err.message);
    free(types);
    free(token_texts);
    free(merge_texts);
    json_decref(v);
    return t;
}

#endif
