/* Tensor names of a PEFT file: PREFIX MODULE "." MARK ["." ADAPTER] TAIL. */
#include <string.h>

#include "lora/peft.h"

typedef struct KeyRow {
    const char *mark, *tail; /* tail: what follows the mark, or the adapter's name behind it */
    PeftKind kind;
    const char *why;
} KeyRow;

/* Rows of one mark: the longer tail first. */
static const KeyRow key_rows[] = {
    {"lora_A", "weight", PEFT_A, NULL},
    {"lora_B", "weight", PEFT_B, NULL},
    {"lora_B", "bias", PEFT_REFUSED, "a bias on B (lora_bias) is not served yet"},
    {"lora_embedding_A", "", PEFT_EMBED_A, NULL},
    {"lora_embedding_B", "", PEFT_EMBED_B, NULL},
    {"lora_magnitude_vector", "weight", PEFT_MAGNITUDE, NULL},
    {"lora_magnitude_vector", "", PEFT_MAGNITUDE, NULL},
    {"base_layer", "weight", PEFT_BASE_COPY, NULL},
    {"base_layer", "bias", PEFT_REFUSED,
     "a replaced bias of the base (bias: lora_only) is not served yet"},
    {"token_adapter", "trainable_tokens_delta", PEFT_REFUSED,
     "replaced embedding rows (trainable_token_indices) are not served yet"},
};

static const char why_whole[] =
    "it replaces a whole tensor of the base (modules_to_save), which is not served yet";

static const char *const prefixes[] = {"base_model.", "model.", "language_model."};

LgStr peft_bare_name(LgStr module) {
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0];) {
        if (lg_str_starts(module, prefixes[i])) {
            module = lg_str_sub(module, strlen(prefixes[i]), module.len);
            i = 0;
        } else {
            i++;
        }
    }
    return module;
}

const char *peft_kind_name(PeftKind kind) {
    static const char *const names[] = {
        [PEFT_A] = "lora_A",
        [PEFT_B] = "lora_B",
        [PEFT_EMBED_A] = "lora_embedding_A",
        [PEFT_EMBED_B] = "lora_embedding_B",
        [PEFT_MAGNITUDE] = "lora_magnitude_vector",
        [PEFT_BASE_COPY] = "base_layer.weight",
        [PEFT_REFUSED] = "not served",
        [PEFT_UNKNOWN] = "unknown",
    };
    return names[kind];
}

/* rest is TAIL, or ADAPTER "." TAIL, or (empty tail) ADAPTER alone. */
static bool read_rest(LgStr rest, const char *tail, LgStr *adapter) {
    *adapter = (LgStr){rest.ptr, 0};
    if (lg_str_eq_c(rest, tail))
        return true;
    if (!lg_str_ends(rest, tail))
        return false;
    size_t tail_len = strlen(tail);
    LgStr name = lg_str_sub(rest, 0, rest.len - tail_len);
    if (tail_len) {
        if (!lg_str_ends(name, "."))
            return false;
        name.len--;
    }
    *adapter = name;
    return name.len && !memchr(name.ptr, '.', name.len);
}

/* Reads the key as if the component [begin, end) of name were its mark. False: no row has that
 * mark. */
static bool read_mark(LgStr name, size_t begin, size_t end, PeftKey *key) {
    LgStr mark = lg_str_sub(name, begin, end - begin);
    LgStr rest = lg_str_sub(name, end < name.len ? end + 1 : end, name.len);
    bool known = false;
    if (lg_str_eq_c(mark, "modules_to_save")) {
        key->kind = PEFT_REFUSED;
        key->why = why_whole;
        return true;
    }
    for (size_t i = 0; i < sizeof key_rows / sizeof key_rows[0]; i++) {
        if (!lg_str_eq_c(mark, key_rows[i].mark))
            continue;
        known = true;
        if (!read_rest(rest, key_rows[i].tail, &key->adapter))
            continue;
        key->kind = key_rows[i].kind;
        key->why = key_rows[i].why;
        return true;
    }
    return known;
}

PeftKey peft_key_parse(LgStr name) {
    PeftKey key = {.kind = PEFT_UNKNOWN};
    size_t end = name.len;
    while (end > 0) {
        size_t begin = end;
        while (begin > 0 && name.ptr[begin - 1] != '.')
            begin--;
        if (begin == 0)
            break; /* a mark stands behind a module */
        if (read_mark(name, begin, end, &key)) {
            key.module = lg_str_sub(name, 0, begin - 1);
            break;
        }
        end = begin - 1;
    }
    if (!key.module.ptr && (lg_str_ends(name, ".weight") || lg_str_ends(name, ".bias"))) {
        key.kind = PEFT_REFUSED;
        key.why = why_whole;
    }
    while (key.kind != PEFT_UNKNOWN && lg_str_ends(key.module, ".base_layer")) {
        key.module.len -= strlen(".base_layer");
        key.depth++;
    }
    if (lg_str_starts(key.module, "base_model.model."))
        key.module = lg_str_sub(key.module, strlen("base_model.model."), key.module.len);
    key.bare = peft_bare_name(key.module);
    if (key.kind < PEFT_REFUSED && key.bare.len == 0)
        key.kind = PEFT_UNKNOWN;
    return key;
}
