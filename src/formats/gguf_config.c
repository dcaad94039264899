/* GGUF metadata into Hugging Face's config keys. A key of the architecture that no row maps is kept
 * under its own name: the program has to claim it or the compile is refused. */
#include <stdio.h>

#include "base/arena.h"
#include "formats/gguf_model.h"

#define KEY_MAX 256
#define ROPE_BASE_DEFAULT 10000.0
#define GEMMA2_27B_LAYERS 46
#define GEMMA3_27B_LAYERS 62

typedef struct Architecture {
    const char *gguf, *class_name, *model_type;
} Architecture;

static const Architecture architectures[] = {
    {"llama", "LlamaForCausalLM", "llama"}, /* Mistral's files too, which lose their window */
    {"qwen2", "Qwen2ForCausalLM", "qwen2"},           {"qwen3", "Qwen3ForCausalLM", "qwen3"},
    {"qwen3moe", "Qwen3MoeForCausalLM", "qwen3_moe"}, {"gemma2", "Gemma2ForCausalLM", "gemma2"},
    {"gemma3", "Gemma3ForCausalLM", "gemma3_text"},   {"phi3", "Phi3ForCausalLM", "phi3"},
    {"olmo2", "Olmo2ForCausalLM", "olmo2"},
};

/* suffix: behind "ARCHITECTURE."; key NULL: says nothing that the tensors do not say, or is looked
 * at below. The first row whose architecture fits holds; NULL: every one. */
typedef struct MetadataRow {
    const char *suffix, *key, *gguf;
} MetadataRow;

static const MetadataRow metadata_rows[] = {
    {"block_count", "num_hidden_layers", NULL},
    {"context_length", "max_position_embeddings", NULL},
    {"embedding_length", "hidden_size", NULL},
    {"feed_forward_length", "intermediate_size", NULL},
    {"expert_feed_forward_length", "moe_intermediate_size", NULL},
    {"expert_count", "num_experts", NULL},
    {"expert_used_count", "num_experts_per_tok", NULL},
    {"attention.head_count", "num_attention_heads", NULL},
    {"attention.head_count_kv", "num_key_value_heads", NULL},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", NULL},
    {"attention.sliding_window", "sliding_window", NULL},
    {"attention.sliding_window_pattern", NULL, NULL}, /* below */
    {"attn_logit_softcapping", "attn_logit_softcapping", NULL},
    {"final_logit_softcapping", "final_logit_softcapping", NULL},
    {"expert_weights_norm", "norm_topk_prob", NULL},
    {"rope.freq_base", "rope_theta", NULL},
    {"rope.freq_base_swa", "rope_local_base_freq", NULL},
    {"rope.scaling.type", "rope_scaling.rope_type", NULL},
    {"rope.scaling.factor", "rope_scaling.factor", NULL},
    {"rope.scaling.attn_factor", "rope_scaling.attention_factor", NULL},
    {"rope.scaling.yarn_attn_factor", "rope_scaling.attention_factor", NULL},
    {"rope.scaling.yarn_beta_fast", "rope_scaling.beta_fast", NULL},
    {"rope.scaling.yarn_beta_slow", "rope_scaling.beta_slow", NULL},
    {"rope.scaling.original_context_length", "original_max_position_embeddings", "phi3"},
    {"rope.scaling.original_context_length", "rope_scaling.original_max_position_embeddings", NULL},
    {"rope.scaling.finetuned", NULL, NULL},
    {"vocab_size", NULL, NULL},
    {"attention.key_length", NULL, NULL},
    {"attention.value_length", NULL, NULL},
    {"rope.dimension_count", NULL, NULL},
};

static const MetadataRow token_rows[] = {
    {"tokenizer.ggml.bos_token_id", "bos_token_id", NULL},
    {"tokenizer.ggml.eos_token_id", "eos_token_id", NULL},
    {"tokenizer.ggml.padding_token_id", "pad_token_id", NULL},
};

/* What an architecture implies. */
typedef struct Implied {
    const char *gguf, *key;
    ConfigValue value;
} Implied;

#define IMPLIED_BOOL(v)                                                                            \
    { .kind = CONFIG_BOOL, .boolean = v }
#define IMPLIED_STRING(s)                                                                          \
    {                                                                                              \
        .kind = CONFIG_STRING, .string = { s, sizeof s - 1 }                                       \
    }

static const Implied implied_rows[] = {
    {"llama", "hidden_act", IMPLIED_STRING("silu")},
    {"qwen2", "hidden_act", IMPLIED_STRING("silu")},
    {"qwen3", "hidden_act", IMPLIED_STRING("silu")},
    {"qwen3moe", "hidden_act", IMPLIED_STRING("silu")},
    {"phi3", "hidden_act", IMPLIED_STRING("silu")},
    {"olmo2", "hidden_act", IMPLIED_STRING("silu")},
    {"gemma2", "hidden_activation", IMPLIED_STRING("gelu_pytorch_tanh")},
    {"gemma3", "hidden_activation", IMPLIED_STRING("gelu_pytorch_tanh")},
    {"qwen2", "use_sliding_window", IMPLIED_BOOL(false)},
    {"qwen3", "use_sliding_window", IMPLIED_BOOL(false)},
    {"qwen3moe", "use_sliding_window", IMPLIED_BOOL(false)},
    {"qwen3moe", "norm_topk_prob", IMPLIED_BOOL(true)},
    {"qwen3moe", "decoder_sparse_step", {.kind = CONFIG_INT, .integer = 1}},
    {"qwen3moe", "mlp_only_layers", {.kind = CONFIG_LIST}},
};

/* A switch of the config that is on where the file has a tensor. */
typedef struct TensorSwitch {
    const char *gguf, *key, *tensor;
} TensorSwitch;

static const TensorSwitch tensor_switches[] = {
    {"llama", "attention_bias", "blk.0.attn_q.bias"},
    {"llama", "mlp_bias", "blk.0.ffn_down.bias"},
    {"qwen3", "attention_bias", "blk.0.attn_q.bias"},
    {"qwen3moe", "attention_bias", "blk.0.attn_q.bias"},
};

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

typedef struct Mapper {
    const Gguf *gguf;
    const char *what;
    const Architecture *arch;
    Config *config;
    LgError *err;
} Mapper;

static bool is_arch(const Mapper *m, const char *gguf) {
    return lg_str_eq_c(lg_str(gguf), m->arch->gguf);
}

/* A value of the architecture. NULL: absent. */
static const ConfigValue *arch_get(const Mapper *m, const char *suffix) {
    char key[KEY_MAX];
    snprintf(key, sizeof key, "%s.%s", m->arch->gguf, suffix);
    return gguf_get(m->gguf, key);
}

static bool natural(const ConfigValue *v, int64_t *out) {
    if (!v || v->kind != CONFIG_INT || v->integer <= 0)
        return false;
    *out = v->integer;
    return true;
}

static LgStatus refuse_other_files(const Mapper *m) {
    const ConfigValue *type = gguf_get(m->gguf, "general.type");
    if (type && type->kind == CONFIG_STRING && !lg_str_eq_c(type->string, "model"))
        return lg_fail(m->err, LG_BAD_INPUT, 0, "%s: general.type is \"%.*s\"; a model is expected",
                       m->what, (int)(type->string.len < 40 ? type->string.len : 40),
                       type->string.ptr);
    const ConfigValue *parts = gguf_get(m->gguf, "split.count");
    if (parts && !(parts->kind == CONFIG_INT && parts->integer <= 1))
        return lg_fail(m->err, LG_BAD_INPUT, 0,
                       "%s: it is one part of a split model; merge the parts into one file first",
                       m->what);
    return LG_OK;
}

static LgStatus find_architecture(Mapper *m) {
    const ConfigValue *name = gguf_get(m->gguf, "general.architecture");
    if (!name || name->kind != CONFIG_STRING)
        return lg_fail(m->err, LG_BAD_INPUT, 0, "%s: general.architecture is missing or no string",
                       m->what);
    for (size_t i = 0; i < COUNT_OF(architectures); i++)
        if (lg_str_eq_c(name->string, architectures[i].gguf))
            m->arch = &architectures[i];
    if (m->arch)
        return LG_OK;
    Buf list, shown;
    buf_init(&list);
    buf_init(&shown);
    buf_printable(&shown, name->string, 60);
    for (size_t i = 0; i < COUNT_OF(architectures); i++)
        buf_printf(&list, "%s%s", i ? ", " : "", architectures[i].gguf);
    LgStatus status =
        lg_fail(m->err, LG_BAD_INPUT, 0,
                "%s: no names are known for the GGUF architecture \"%s\"; they are for: %s",
                m->what, shown.data, list.data);
    buf_clear(&list);
    buf_clear(&shown);
    return status;
}

/* An array of the metadata as a list, for keys that may differ from layer to layer. */
static LgStatus put_list(const Mapper *m, const char *gguf_key, LgStr key) {
    const LgStr *strings;
    const int32_t *ints;
    const float *floats;
    size_t count = gguf_strings(m->gguf, gguf_key, &strings);
    count += gguf_ints(m->gguf, gguf_key, &ints);
    count += gguf_floats(m->gguf, gguf_key, &floats);
    Arena arena;
    arena_init(&arena);
    ConfigValue *items = ARENA_ARRAY(&arena, ConfigValue, count);
    LgStatus status = items ? LG_OK : lg_fail_memory(m->err);
    for (size_t i = 0; items && i < count; i++) {
        if (strings)
            items[i] = (ConfigValue){.kind = CONFIG_STRING, .string = strings[i]};
        else if (ints)
            items[i] = (ConfigValue){.kind = CONFIG_INT, .integer = ints[i]};
        else
            items[i] = (ConfigValue){.kind = CONFIG_REAL, .real = (double)floats[i]};
    }
    ConfigValue list = {.kind = CONFIG_LIST, .items = items, .count = count};
    if (status == LG_OK)
        status = config_set(m->config, key, &list, m->err);
    arena_clear(&arena);
    return status;
}

static LgStatus put(const Mapper *m, const char *gguf_key, LgStr key) {
    const ConfigValue *v = gguf_get(m->gguf, gguf_key);
    return v ? config_set(m->config, key, v, m->err) : put_list(m, gguf_key, key);
}

static LgStatus map_key(const Mapper *m, LgStr gguf_key) {
    size_t stem = lg_str(m->arch->gguf).len;
    if (!lg_str_starts(gguf_key, m->arch->gguf) || gguf_key.len <= stem ||
        gguf_key.ptr[stem] != '.')
        return LG_OK;
    LgStr suffix = lg_str_sub(gguf_key, stem + 1, gguf_key.len);
    for (size_t i = 0; i < COUNT_OF(metadata_rows); i++) {
        const MetadataRow *row = &metadata_rows[i];
        if (lg_str_eq_c(suffix, row->suffix) && (!row->gguf || is_arch(m, row->gguf)))
            return row->key ? put(m, gguf_key.ptr, lg_str(row->key)) : LG_OK;
    }
    return put(m, gguf_key.ptr, gguf_key);
}

static LgStatus map_metadata(const Mapper *m) {
    for (size_t i = 0; i < gguf_key_count(m->gguf); i++)
        LG_TRY(map_key(m, gguf_key(m->gguf, i)));
    for (size_t i = 0; i < COUNT_OF(token_rows); i++)
        if (gguf_get(m->gguf, token_rows[i].suffix))
            LG_TRY(put(m, token_rows[i].suffix, lg_str(token_rows[i].key)));
    const ConfigValue *scaling = config_get_c(m->config, "rope_scaling.rope_type");
    if (scaling && scaling->kind == CONFIG_STRING && lg_str_eq_c(scaling->string, "none"))
        config_remove(m->config, "rope_scaling.rope_type");
    return LG_OK;
}

/* Where a number or a list says which layers have a window: every n-th has none, or one by one. */
static LgStatus map_window(const Mapper *m) {
    char key[KEY_MAX];
    const int32_t *local;
    const ConfigValue *window = config_get_c(m->config, "sliding_window");
    if (window && window->kind == CONFIG_INT && window->integer == 0) /* Phi 4: none */
        config_remove(m->config, "sliding_window");
    const ConfigValue *period = arch_get(m, "attention.sliding_window_pattern");
    if (period)
        return config_set(m->config, LG_STR("sliding_window_pattern"), period, m->err);
    snprintf(key, sizeof key, "%s.attention.sliding_window_pattern", m->arch->gguf);
    size_t count = gguf_ints(m->gguf, key, &local);
    Arena arena;
    arena_init(&arena);
    ConfigValue *items = ARENA_ARRAY(&arena, ConfigValue, count);
    LgStatus status = items ? LG_OK : lg_fail_memory(m->err);
    for (size_t i = 0; items && i < count; i++)
        items[i] = (ConfigValue){.kind = CONFIG_STRING,
                                 .string = local[i] ? LG_STR("sliding_attention")
                                                    : LG_STR("full_attention")};
    ConfigValue list = {.kind = CONFIG_LIST, .items = items, .count = count};
    if (status == LG_OK && count)
        status = config_set(m->config, LG_STR("layer_types"), &list, m->err);
    arena_clear(&arena);
    return status;
}

/* What scores are divided by the root of is no key of GGUF: it is the head's width, but in the 27B
 * models of Gemma, which are told by their number of layers. */
static LgStatus put_gemma_scalar(const Mapper *m) {
    int64_t hidden, heads, layers, scalar;
    if (!is_arch(m, "gemma2") && !is_arch(m, "gemma3"))
        return LG_OK;
    if (!natural(config_get_c(m->config, "hidden_size"), &hidden) ||
        !natural(config_get_c(m->config, "num_attention_heads"), &heads) ||
        !natural(config_get_c(m->config, "num_hidden_layers"), &layers) ||
        !natural(config_get_c(m->config, "head_dim"), &scalar))
        return LG_OK; /* the page says what is missing */
    if (layers == (is_arch(m, "gemma2") ? GEMMA2_27B_LAYERS : GEMMA3_27B_LAYERS))
        scalar = hidden / heads;
    return config_set_int(m->config, "query_pre_attn_scalar", scalar, m->err);
}

/* Three keys in GGUF, of which the writers leave out what equals hidden_size / heads; a difference
 * between them is a feature that a program must know of. */
static LgStatus map_head_dim(const Mapper *m) {
    int64_t hidden, heads, head_dim, rotary, value_dim;
    if (!natural(arch_get(m, "attention.key_length"), &head_dim)) {
        if (!natural(config_get_c(m->config, "hidden_size"), &hidden) ||
            !natural(config_get_c(m->config, "num_attention_heads"), &heads) || hidden % heads != 0)
            return LG_OK;
        head_dim = hidden / heads;
    }
    LG_TRY(config_set_int(m->config, "head_dim", head_dim, m->err));
    if (natural(arch_get(m, "rope.dimension_count"), &rotary) && rotary != head_dim)
        LG_TRY(config_set_real(m->config, "partial_rotary_factor",
                               (double)rotary / (double)head_dim, m->err));
    if (natural(arch_get(m, "attention.value_length"), &value_dim) && value_dim != head_dim)
        LG_TRY(config_set_int(m->config, "v_head_dim", value_dim, m->err));
    return LG_OK;
}

static LgStatus put_defaults(const Mapper *m) {
    const ConfigValue *heads = config_get_c(m->config, "num_attention_heads");
    if (heads && !config_get_c(m->config, "num_key_value_heads")) {
        ConfigValue same = *heads;
        LG_TRY(config_set(m->config, LG_STR("num_key_value_heads"), &same, m->err));
    }
    if (!config_get_c(m->config, "rope_theta"))
        LG_TRY(config_set_real(m->config, "rope_theta", ROPE_BASE_DEFAULT, m->err));
    LG_TRY(map_head_dim(m));
    LG_TRY(map_window(m));
    return put_gemma_scalar(m);
}

static LgStatus put_implied(const Mapper *m) {
    ConfigValue class_name = {.kind = CONFIG_STRING, .string = lg_str(m->arch->class_name)};
    ConfigValue classes = {.kind = CONFIG_LIST, .items = &class_name, .count = 1};
    LG_TRY(config_set(m->config, LG_STR("architectures"), &classes, m->err));
    LG_TRY(config_set_str(m->config, "model_type", lg_str(m->arch->model_type), m->err));
    for (size_t i = 0; i < COUNT_OF(implied_rows); i++) {
        const Implied *row = &implied_rows[i];
        if (is_arch(m, row->gguf))
            LG_TRY(config_set(m->config, lg_str(row->key), &row->value, m->err));
    }
    return LG_OK;
}

static LgStatus put_from_tensors(const Mapper *m) {
    const TensorSet *tensors = gguf_tensors(m->gguf);
    const Tensor *embedding = tensor_set_find(tensors, LG_STR("token_embd.weight"));
    if (!embedding || embedding->rank != 2)
        return lg_fail(m->err, LG_BAD_INPUT, 0, "%s: it has no matrix \"token_embd.weight\"",
                       m->what);
    LG_TRY(config_set_int(m->config, "vocab_size", (int64_t)embedding->shape[0], m->err));
    bool tied = !tensor_set_find(tensors, LG_STR("output.weight"));
    LG_TRY(config_set_bool(m->config, "tie_word_embeddings", tied, m->err));
    for (size_t i = 0; i < COUNT_OF(tensor_switches); i++) {
        const TensorSwitch *row = &tensor_switches[i];
        if (is_arch(m, row->gguf))
            LG_TRY(config_set_bool(m->config, row->key,
                                   tensor_set_find(tensors, lg_str(row->tensor)) != NULL, m->err));
    }
    return LG_OK;
}

LgStatus gguf_model_config(const Gguf *g, const char *what, Config *config, LgError *err) {
    Mapper m = {.gguf = g, .what = what, .config = config, .err = err};
    LG_TRY(refuse_other_files(&m));
    LG_TRY(find_architecture(&m));
    LG_TRY(put_implied(&m));
    LG_TRY(map_metadata(&m));
    LG_TRY(put_defaults(&m));
    return put_from_tensors(&m);
}
