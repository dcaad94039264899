/* Tensor names of a PEFT file: PREFIX MODULE "." MARK ["." ADAPTER] TAIL. */
#include <string.h>

#include "lora/peft.h"

typedef struct KeyRow {
    const char *mark, *tail; /* tail: what follows the mark, or the adapter's name behind it */
    PeftKind kind;
} KeyRow;

/* Rows of one mark: the longer tail first. */
static const KeyRow key_rows[] = {
    {"lora_A", "weight", PEFT_A},
    {"lora_B", "weight", PEFT_B},
    {"lora_B", "bias", PEFT_B_BIAS},
    {"lora_embedding_A", "", PEFT_EMBED_A},
    {"lora_embedding_B", "", PEFT_EMBED_B},
    {"lora_magnitude_vector", "weight", PEFT_MAGNITUDE},
    {"lora_magnitude_vector", "", PEFT_MAGNITUDE},
    {"base_layer", "weight", PEFT_BASE_COPY},
    {"base_layer", "bias", PEFT_BASE_BIAS},
    {"modules_to_save", "weight", PEFT_WHOLE},
    {"modules_to_save", "bias", PEFT_WHOLE},
    {"token_adapter", "trainable_tokens_delta", PEFT_TOKENS},
};

/* Wrappers that stand in names and are no part of a module's. */
static const char token_wrapper[] = ".token_adapter";

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
        [PEFT_B_BIAS] = "lora_B.bias",
        [PEFT_BASE_COPY] = "base_layer.weight",
        [PEFT_BASE_BIAS] = "base_layer.bias",
        [PEFT_WHOLE] = "replaced tensor",
        [PEFT_TOKENS] = "replaced rows",
        [PEFT_UNKNOWN] = "unknown",
    };
    return names[kind];
}

void peft_print_keys(Buf *out) {
    static const char *const meanings[PEFT_UNKNOWN] = {
        [PEFT_A] = "A of a product",
        [PEFT_B] = "B of a product",
        [PEFT_EMBED_A] = "A of an embedding",
        [PEFT_EMBED_B] = "B of an embedding",
        [PEFT_MAGNITUDE] = "DoRA's magnitudes",
        [PEFT_B_BIAS] = "added to B (A x), before scaling",
        [PEFT_BASE_COPY] = "must equal the base's",
        [PEFT_BASE_BIAS] = "replaces the base's bias",
        [PEFT_WHOLE] = "replaces the base's tensor",
        [PEFT_TOKENS] = "rows that replace the embedding's, and a tied head's",
    };
    buf_puts(out, "| tensor, behind the module's name | what it is |\n| --- | --- |\n");
    for (size_t i = 0; i < sizeof key_rows / sizeof key_rows[0]; i++)
        buf_printf(out, "| `%s%s%s` | %s |\n", key_rows[i].mark, *key_rows[i].tail ? "." : "",
                   key_rows[i].tail, meanings[key_rows[i].kind]);
    buf_printf(out, "| `weight`, `bias` | %s |\n", meanings[PEFT_WHOLE]);
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
    for (size_t i = 0; i < sizeof key_rows / sizeof key_rows[0]; i++) {
        if (!lg_str_eq_c(mark, key_rows[i].mark))
            continue;
        known = true;
        if (!read_rest(rest, key_rows[i].tail, &key->adapter))
            continue;
        key->kind = key_rows[i].kind;
        key->tail = lg_str(key_rows[i].tail);
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
    for (int i = 0; !key.module.ptr && i < 2; i++) {
        LgStr tail = i ? LG_STR("bias") : LG_STR("weight");
        size_t len = name.len - tail.len - 1;
        if (name.len < tail.len + 2 || !lg_str_ends(name, i ? ".bias" : ".weight"))
            continue;
        key = (PeftKey){.kind = PEFT_WHOLE, .module = lg_str_sub(name, 0, len), .tail = tail};
    }
    while (key.kind != PEFT_UNKNOWN && lg_str_ends(key.module, ".base_layer")) {
        key.module.len -= strlen(".base_layer");
        key.depth++;
    }
    if (key.kind == PEFT_BASE_COPY && lg_str_ends(key.module, token_wrapper))
        key.module.len -= strlen(token_wrapper);
    if (lg_str_starts(key.module, "base_model.model."))
        key.module = lg_str_sub(key.module, strlen("base_model.model."), key.module.len);
    key.bare = peft_bare_name(key.module);
    if (key.bare.len == 0)
        key.kind = PEFT_UNKNOWN;
    return key;
}
