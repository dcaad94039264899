/* The table of config keys that a page need not name, with why. A key that is not here, is not null
 * and that no `require`, use or `ignore` of the page names refuses the compile. quantization_config
 * is not here, and must not be: it changes every weight. */
#include "lang/inert.h"

#include <string.h>

#include "base/number.h"
#include "lang/lang.h"

typedef enum InertWhen {
    WHEN_ALWAYS,
    WHEN_OFF,     /* false, 0, "" or an empty list */
    WHEN_IS,      /* the value is `value`: a number, or a string in quotes */
    WHEN_ALL,     /* a list whose entries all are `value` */
    WHEN_SWITCHED /* the key `value` is off */
} InertWhen;

typedef struct InertRow {
    const char *model_type; /* NULL: every one */
    const char *key;        /* with a last ".*": the key and all below it */
    InertWhen when;
    const char *value;
    const char *why;
} InertRow;

static const char engine[] = "read by the engine";
static const char training[] = "training only";
static const char library[] = "about the library that wrote the file";
static const char label[] = "names and notes";
static const char generation[] = "a default of text generation";

/* clang-format off */
static const InertRow rows[] = {
    {NULL, "architectures",              WHEN_ALWAYS, NULL, engine},
    {NULL, "model_type",                 WHEN_ALWAYS, NULL, engine},
    {NULL, "max_position_embeddings",    WHEN_ALWAYS, NULL, engine},
    {NULL, "bos_token_id",               WHEN_ALWAYS, NULL, engine},
    {NULL, "eos_token_id",               WHEN_ALWAYS, NULL, engine},
    {NULL, "pad_token_id",               WHEN_ALWAYS, NULL, engine},
    {NULL, "unk_token_id",               WHEN_ALWAYS, NULL, engine},
    {NULL, "sep_token_id",               WHEN_ALWAYS, NULL, engine},
    {NULL, "cls_token_id",               WHEN_ALWAYS, NULL, engine},
    {NULL, "mask_token_id",              WHEN_ALWAYS, NULL, engine},
    {NULL, "decoder_start_token_id",     WHEN_ALWAYS, NULL, engine},
    {NULL, "forced_bos_token_id",        WHEN_ALWAYS, NULL, generation},
    {NULL, "forced_eos_token_id",        WHEN_ALWAYS, NULL, generation},
    {NULL, "suppress_tokens",            WHEN_ALWAYS, NULL, generation},
    {NULL, "begin_suppress_tokens",      WHEN_ALWAYS, NULL, generation},
    {NULL, "bad_words_ids",              WHEN_ALWAYS, NULL, generation},
    {NULL, "tokenizer.*",                WHEN_ALWAYS, NULL, engine},
    {NULL, "general.*",                  WHEN_ALWAYS, NULL, label},
    {NULL, "quantize.*",                 WHEN_ALWAYS, NULL, "how a GGUF file was made"},
    {NULL, "split.*",                    WHEN_ALWAYS, NULL, "how a GGUF file was cut"},
    {NULL, "torch_dtype",                WHEN_ALWAYS, NULL, "the checkpoint's tensors say their type"},
    {NULL, "dtype",                      WHEN_ALWAYS, NULL, "the checkpoint's tensors say their type"},
    {NULL, "transformers_version",       WHEN_ALWAYS, NULL, library},
    {NULL, "transformers.js_config.*",   WHEN_ALWAYS, NULL, library},
    {NULL, "_name_or_path",              WHEN_ALWAYS, NULL, label},
    {NULL, "name_or_path",               WHEN_ALWAYS, NULL, label},
    {NULL, "_commit_hash",               WHEN_ALWAYS, NULL, label},
    {NULL, "_attn_implementation",       WHEN_ALWAYS, NULL, library},
    {NULL, "_attn_implementation_autoset", WHEN_ALWAYS, NULL, library},
    {NULL, "attn_implementation",        WHEN_ALWAYS, NULL, library},
    {NULL, "_experts_implementation",    WHEN_ALWAYS, NULL, library},
    {NULL, "use_flash_attention",        WHEN_ALWAYS, NULL, library},
    {NULL, "auto_map.*",                 WHEN_ALWAYS, NULL, library},
    {NULL, "unsloth_version",            WHEN_ALWAYS, NULL, library},
    {NULL, "unsloth_fixed",              WHEN_ALWAYS, NULL, library},
    {NULL, "finetuning_task",            WHEN_ALWAYS, NULL, label},
    {NULL, "task_specific_params.*",     WHEN_ALWAYS, NULL, label},
    {NULL, "problem_type",               WHEN_ALWAYS, NULL, label},
    {NULL, "tokenizer_class",            WHEN_ALWAYS, NULL, engine},
    {NULL, "prefix",                     WHEN_ALWAYS, NULL, label},
    {NULL, "id2label.*",                 WHEN_ALWAYS, NULL, label},
    {NULL, "label2id.*",                 WHEN_ALWAYS, NULL, label},
    {NULL, "num_labels",                 WHEN_ALWAYS, NULL, label},
    {NULL, "use_cache",                  WHEN_ALWAYS, NULL, "the engine always keeps its state"},
    {NULL, "return_dict",                WHEN_ALWAYS, NULL, library},
    {NULL, "return_dict_in_generate",    WHEN_ALWAYS, NULL, library},
    {NULL, "output_attentions",          WHEN_ALWAYS, NULL, library},
    {NULL, "output_hidden_states",       WHEN_ALWAYS, NULL, library},
    {NULL, "output_scores",              WHEN_ALWAYS, NULL, library},
    {NULL, "output_router_logits",       WHEN_ALWAYS, NULL, library},
    {NULL, "torchscript",                WHEN_ALWAYS, NULL, library},
    {NULL, "chunk_size_feed_forward",    WHEN_ALWAYS, NULL, "a way to save memory, not another result"},
    {NULL, "initializer_range",          WHEN_ALWAYS, NULL, training},
    {NULL, "initializer_factor",         WHEN_ALWAYS, NULL, training},
    {NULL, "attention_dropout",          WHEN_ALWAYS, NULL, training},
    {NULL, "attention_probs_dropout_prob", WHEN_ALWAYS, NULL, training},
    {NULL, "hidden_dropout",             WHEN_ALWAYS, NULL, training},
    {NULL, "hidden_dropout_prob",        WHEN_ALWAYS, NULL, training},
    {NULL, "resid_pdrop",                WHEN_ALWAYS, NULL, training},
    {NULL, "embd_pdrop",                 WHEN_ALWAYS, NULL, training},
    {NULL, "attn_pdrop",                 WHEN_ALWAYS, NULL, training},
    {NULL, "classifier_dropout",         WHEN_ALWAYS, NULL, training},
    {NULL, "gradient_checkpointing",     WHEN_ALWAYS, NULL, training},
    {NULL, "router_aux_loss_coef",       WHEN_ALWAYS, NULL, training},
    {NULL, "router_jitter_noise",        WHEN_ALWAYS, NULL, training},
    {NULL, "temperature",                WHEN_ALWAYS, NULL, generation},
    {NULL, "top_k",                      WHEN_ALWAYS, NULL, generation},
    {NULL, "top_p",                      WHEN_ALWAYS, NULL, generation},
    {NULL, "typical_p",                  WHEN_ALWAYS, NULL, generation},
    {NULL, "do_sample",                  WHEN_ALWAYS, NULL, generation},
    {NULL, "repetition_penalty",         WHEN_ALWAYS, NULL, generation},
    {NULL, "length_penalty",             WHEN_ALWAYS, NULL, generation},
    {NULL, "no_repeat_ngram_size",       WHEN_ALWAYS, NULL, generation},
    {NULL, "encoder_no_repeat_ngram_size", WHEN_ALWAYS, NULL, generation},
    {NULL, "max_length",                 WHEN_ALWAYS, NULL, generation},
    {NULL, "min_length",                 WHEN_ALWAYS, NULL, generation},
    {NULL, "num_beams",                  WHEN_ALWAYS, NULL, generation},
    {NULL, "num_beam_groups",            WHEN_ALWAYS, NULL, generation},
    {NULL, "num_return_sequences",       WHEN_ALWAYS, NULL, generation},
    {NULL, "diversity_penalty",          WHEN_ALWAYS, NULL, generation},
    {NULL, "early_stopping",             WHEN_ALWAYS, NULL, generation},
    {NULL, "remove_invalid_values",      WHEN_ALWAYS, NULL, generation},
    {NULL, "exponential_decay_length_penalty", WHEN_ALWAYS, NULL, generation},
    {NULL, "is_decoder",                 WHEN_ALWAYS, NULL, "pages describe decoders"},
    {NULL, "is_encoder_decoder",         WHEN_OFF,    NULL, "pages describe decoders"},
    {NULL, "add_cross_attention",        WHEN_OFF,    NULL, "off"},
    {NULL, "cross_attention_hidden_size", WHEN_OFF,   NULL, "off"},
    {NULL, "tie_encoder_decoder",        WHEN_OFF,    NULL, "off"},
    {NULL, "tie_word_embeddings",        WHEN_OFF,    NULL, "off: a page that does not name it has its own head"},
    {NULL, "pruned_heads",               WHEN_OFF,    NULL, "off"},
    {NULL, "use_bfloat16",               WHEN_OFF,    NULL, "off"},
    {NULL, "tf_legacy_loss",             WHEN_ALWAYS, NULL, library},
    {NULL, "attention_bias",             WHEN_OFF,    NULL, "off"},
    {NULL, "mlp_bias",                   WHEN_OFF,    NULL, "off"},
    {NULL, "use_sliding_window",         WHEN_OFF,    NULL, "off"},
    {NULL, "pretraining_tp",             WHEN_IS,     "1",  "one part: nothing is cut"},
    {NULL, "partial_rotary_factor",      WHEN_IS,     "1",  "all of a head is rotated"},
    {NULL, "layer_types",                WHEN_ALL,    "\"full_attention\"", "every layer sees all positions"},
    {NULL, "rope_interleaved",           WHEN_OFF,    NULL, "off"},
    {"llama", "is_llama_config",         WHEN_ALWAYS, NULL, label},
    {"gemma2", "cache_implementation",   WHEN_ALWAYS, NULL, "how states are kept, not what they hold"},
    {"gemma3_text", "cache_implementation", WHEN_ALWAYS, NULL, "how states are kept, not what they hold"},
    {"qwen2", "sliding_window",          WHEN_SWITCHED, "use_sliding_window", "the window is switched off"},
    {"qwen2", "max_window_layers",       WHEN_SWITCHED, "use_sliding_window", "the window is switched off"},
    {"qwen3", "sliding_window",          WHEN_SWITCHED, "use_sliding_window", "the window is switched off"},
    {"qwen3", "max_window_layers",       WHEN_SWITCHED, "use_sliding_window", "the window is switched off"},
    {"qwen3_moe", "sliding_window",      WHEN_SWITCHED, "use_sliding_window", "the window is switched off"},
    {"qwen3_moe", "max_window_layers",   WHEN_SWITCHED, "use_sliding_window", "the window is switched off"},
    {"qwen3_moe", "intermediate_size",   WHEN_SWITCHED, "mlp_only_layers", "the width of dense layers, and there are none"},
};
/* clang-format on */

static bool is_off(const ConfigValue *v) {
    if (!v)
        return true;
    switch (v->kind) {
    case CONFIG_NULL:
        return true;
    case CONFIG_BOOL:
        return !v->boolean;
    case CONFIG_INT:
        return v->integer == 0;
    case CONFIG_REAL:
        return v->real == 0;
    case CONFIG_STRING:
        return v->string.len == 0;
    case CONFIG_LIST:
        return v->count == 0;
    }
    return false;
}

/* text: a number, or a string in quotes. */
static bool value_is(const ConfigValue *v, const char *text) {
    if (text[0] == '"')
        return v->kind == CONFIG_STRING && v->string.len + 2 == strlen(text) &&
               memcmp(v->string.ptr, text + 1, v->string.len) == 0;
    double want = number_parse(text, NULL);
    return (v->kind == CONFIG_INT && (double)v->integer == want) ||
           (v->kind == CONFIG_REAL && v->real == want);
}

static bool all_are(const ConfigValue *v, const char *text) {
    bool same = v->kind == CONFIG_LIST;
    for (size_t i = 0; same && i < v->count; i++)
        same = value_is(&v->items[i], text);
    return same;
}

static bool row_holds(const InertRow *row, const Config *config, const ConfigValue *v) {
    switch (row->when) {
    case WHEN_ALWAYS:
        return true;
    case WHEN_OFF:
        return is_off(v);
    case WHEN_IS:
        return value_is(v, row->value);
    case WHEN_ALL:
        return all_are(v, row->value);
    case WHEN_SWITCHED:
        return is_off(config_get_c(config, row->value));
    }
    return false;
}

static bool row_names(const InertRow *row, LgStr key) {
    LgStr name = lg_str(row->key);
    if (!lg_str_ends(name, ".*"))
        return lg_str_eq(key, name);
    name.len -= 2;
    return lg_str_eq(lg_str_sub(key, 0, name.len), name) &&
           (key.len == name.len || key.ptr[name.len] == '.');
}

bool inert_key(const Config *config, LgStr key, const ConfigValue *value) {
    const ConfigValue *type = config_get_c(config, "model_type");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const InertRow *row = &rows[i];
        bool typed = !row->model_type || (type && type->kind == CONFIG_STRING &&
                                          lg_str_eq_c(type->string, row->model_type));
        if (typed && row_names(row, key) && row_holds(row, config, value))
            return true;
    }
    return false;
}

void lang_print_ignored(Buf *out) {
    buf_puts(out, "any key            when null: the same as absent\n");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const InertRow *row = &rows[i];
        buf_puts(out, row->key);
        if (row->model_type)
            buf_printf(out, " (%s)", row->model_type);
        switch (row->when) {
        case WHEN_ALWAYS:
            break;
        case WHEN_OFF:
            buf_puts(out, " when false, 0 or empty");
            break;
        case WHEN_IS:
            buf_printf(out, " when %s", row->value);
            break;
        case WHEN_ALL:
            buf_printf(out, " when all %s", row->value);
            break;
        case WHEN_SWITCHED:
            buf_printf(out, " when %s is off", row->value);
            break;
        }
        buf_printf(out, ": %s\n", row->why);
    }
}
