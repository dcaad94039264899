/* GGUF tensor names into Hugging Face's, and what its writers do to the tensors themselves: the
 * rows of q and k of Llama models in another order, the experts of a layer in one tensor, 1 added
 * to Gemma's norms, RoPE's scaling as a tensor. */

#include "formats/gguf_model.h"
#include "formats/tensor_set.h"

#define EXPERTS_MAX 4096
#define HEADS_MAX 65536

typedef enum Storage {
    STORED_PLAIN,
    STORED_Q,       /* rows of num_attention_heads heads, interleaved in architecture llama */
    STORED_K,       /* of num_key_value_heads heads */
    STORED_EXPERTS, /* one more axis in front; "@" in the name is the expert */
    STORED_NORM,    /* in the Gemmas: 1 more than the checkpoint has */
} Storage;

/* "#" stands for the layer. ".weight" and ".bias" follow on both sides. gguf NULL: every
 * architecture; the first row that fits holds. */
typedef struct NameRow {
    const char *name, *hf;
    Storage storage;
    const char *gguf;
} NameRow;

/* clang-format off */
static const NameRow name_rows[] = {
    {"token_embd", "model.embed_tokens", STORED_PLAIN, NULL},
    {"output_norm", "model.norm", STORED_NORM, NULL},
    {"output", "lm_head", STORED_PLAIN, NULL},
    {"blk.#.attn_norm", "model.layers.#.input_layernorm", STORED_NORM, NULL},
    {"blk.#.attn_q", "model.layers.#.self_attn.q_proj", STORED_Q, NULL},
    {"blk.#.attn_k", "model.layers.#.self_attn.k_proj", STORED_K, NULL},
    {"blk.#.attn_v", "model.layers.#.self_attn.v_proj", STORED_PLAIN, NULL},
    {"blk.#.attn_qkv", "model.layers.#.self_attn.qkv_proj", STORED_PLAIN, "phi3"},
    {"blk.#.attn_output", "model.layers.#.self_attn.o_proj", STORED_PLAIN, NULL},
    {"blk.#.attn_q_norm", "model.layers.#.self_attn.q_norm", STORED_NORM, NULL},
    {"blk.#.attn_k_norm", "model.layers.#.self_attn.k_norm", STORED_NORM, NULL},
    {"blk.#.post_attention_norm", "model.layers.#.post_attention_layernorm", STORED_NORM, NULL},
    {"blk.#.ffn_norm", "model.layers.#.pre_feedforward_layernorm", STORED_NORM, "gemma2"},
    {"blk.#.ffn_norm", "model.layers.#.pre_feedforward_layernorm", STORED_NORM, "gemma3"},
    {"blk.#.ffn_norm", "model.layers.#.post_attention_layernorm", STORED_NORM, NULL},
    {"blk.#.post_ffw_norm", "model.layers.#.post_feedforward_layernorm", STORED_NORM, NULL},
    {"blk.#.ffn_gate", "model.layers.#.mlp.gate_proj", STORED_PLAIN, NULL},
    {"blk.#.ffn_up", "model.layers.#.mlp.gate_up_proj", STORED_PLAIN, "phi3"},
    {"blk.#.ffn_up", "model.layers.#.mlp.up_proj", STORED_PLAIN, NULL},
    {"blk.#.ffn_down", "model.layers.#.mlp.down_proj", STORED_PLAIN, NULL},
    {"blk.#.ffn_gate_inp", "model.layers.#.mlp.gate", STORED_PLAIN, NULL},
    {"blk.#.ffn_gate_exps", "model.layers.#.mlp.experts.@.gate_proj", STORED_EXPERTS, NULL},
    {"blk.#.ffn_up_exps", "model.layers.#.mlp.experts.@.up_proj", STORED_EXPERTS, NULL},
    {"blk.#.ffn_down_exps", "model.layers.#.mlp.experts.@.down_proj", STORED_EXPERTS, NULL},
};
/* clang-format on */

typedef struct Renamer {
    const char *what;
    const Config *config;
    Config *rope; /* gains what rope_freqs says; NULL: an adapter */
    LgStr arch;
    TensorSet *out;
    LgError *err;
} Renamer;

/* Matches a name without its last part; *layer is what "#" stands for. */
static bool match_stem(const char *pattern, LgStr stem, LgStr *layer) {
    size_t at = 0;
    *layer = (LgStr){NULL, 0};
    for (; *pattern; pattern++) {
        if (*pattern != '#') {
            if (at == stem.len || stem.ptr[at] != *pattern)
                return false;
            at++;
            continue;
        }
        size_t digits = 0;
        while (at + digits < stem.len && stem.ptr[at + digits] >= '0' &&
               stem.ptr[at + digits] <= '9')
            digits++;
        *layer = lg_str_sub(stem, at, digits);
        at += digits;
        if (digits == 0 || (digits > 1 && layer->ptr[0] == '0')) /* one spelling of a layer only */
            return false;
    }
    return at == stem.len;
}

static const NameRow *find_row(const Renamer *r, LgStr name, LgStr *layer, LgStr *suffix) {
    size_t dot = name.len;
    while (dot > 0 && name.ptr[dot - 1] != '.')
        dot--;
    if (dot == 0)
        return NULL;
    *suffix = lg_str_sub(name, dot - 1, name.len);
    LgStr stem = lg_str_sub(name, 0, dot - 1);
    for (size_t i = 0; i < sizeof name_rows / sizeof name_rows[0]; i++)
        if ((!name_rows[i].gguf || lg_str_eq_c(r->arch, name_rows[i].gguf)) &&
            match_stem(name_rows[i].name, stem, layer))
            return &name_rows[i];
    return NULL;
}

static void spell(const NameRow *row, LgStr layer, LgStr suffix, uint64_t expert, Buf *out) {
    buf_reset(out);
    for (const char *p = row->hf; *p; p++) {
        if (*p == '#')
            buf_str(out, layer);
        else if (*p == '@')
            buf_printf(out, "%llu", (unsigned long long)expert);
        else
            buf_putc(out, *p);
    }
    buf_str(out, suffix);
}

static LgStatus fail_named(const Renamer *r, const Tensor *t, const char *fault) {
    Buf shown;
    buf_init(&shown);
    buf_printable(&shown, t->name, 200);
    LgStatus status =
        lg_fail(r->err, LG_BAD_INPUT, 0, "%s: tensor \"%s\": %s", r->what, shown.data, fault);
    buf_clear(&shown);
    return status;
}

static LgStatus set_rope_heads(const Renamer *r, const char *heads_key, Tensor *t) {
    const ConfigValue *v = config_get_c(r->config, heads_key);
    if (!v || v->kind != CONFIG_INT || v->integer < 1 || v->integer > HEADS_MAX)
        return lg_fail(
            r->err, LG_BAD_INPUT, 0,
            "%s: the number of heads (%s) must be an integer from 1 to %d to read q and k", r->what,
            heads_key, HEADS_MAX);
    uint64_t heads = (uint64_t)v->integer;
    if (t->rank > 2 || t->shape[0] % (2 * heads) != 0)
        return fail_named(r, t, "its rows are no whole number of heads of even size");
    if (t->rank == 1 && dtype_info(t->dtype)->block_elems != 1)
        return fail_named(r, t, "a bias must not be quantised");
    t->rope_heads = (uint32_t)heads;
    return LG_OK;
}

static LgStatus add_experts(const Renamer *r, const NameRow *row, LgStr layer, LgStr suffix,
                            const Tensor *t, Buf *name) {
    if (t->rank != 3 || t->shape[0] > EXPERTS_MAX)
        return fail_named(r, t, "stacked experts need 3 axes, the first of 4096 at most");
    Tensor expert = *t;
    expert.rank = 2;
    expert.shape[0] = t->shape[1];
    expert.shape[1] = t->shape[2];
    expert.bytes = t->bytes / t->shape[0];
    for (uint64_t i = 0; i < t->shape[0]; i++) {
        spell(row, layer, suffix, i, name);
        if (name->failed)
            return lg_fail_memory(r->err);
        expert.name = buf_view(name);
        expert.data = t->data + i * expert.bytes;
        LG_TRY(tensor_set_add(r->out, r->what, &expert, r->err));
    }
    return LG_OK;
}

static LgStatus add_tensor(const Renamer *r, const Tensor *t, Buf *name) {
    LgStr layer, suffix;
    const NameRow *row = find_row(r, t->name, &layer, &suffix);
    if (!row) {
        LgStatus status = LG_OK;
        if (lg_str_eq_c(t->name, "rope_freqs.weight") &&
            gguf_rope_recognise(t, r->rope, &status, r->err))
            return status;
        return tensor_set_add(r->out, r->what, t, r->err);
    }
    if (row->storage == STORED_EXPERTS)
        return add_experts(r, row, layer, suffix, t, name);
    Tensor renamed = *t;
    if (row->storage == STORED_NORM && lg_str_starts(r->arch, "gemma"))
        renamed.added = 1;
    bool heads = row->storage == STORED_Q || row->storage == STORED_K;
    if (heads && lg_str_eq_c(r->arch, "llama"))
        LG_TRY(set_rope_heads(
            r, row->storage == STORED_Q ? "num_attention_heads" : "num_key_value_heads", &renamed));
    spell(row, layer, suffix, 0, name);
    if (name->failed)
        return lg_fail_memory(r->err);
    renamed.name = buf_view(name);
    return tensor_set_add(r->out, r->what, &renamed, r->err);
}

LgStatus gguf_model_tensors(const Gguf *g, const char *what, Config *config, TensorSet **out,
                            LgError *err) {
    const TensorSet *stored = gguf_tensors(g);
    const ConfigValue *arch = gguf_get(g, "general.architecture");
    Renamer r = {
        .what = what, .config = config, .rope = config, .err = err, .out = tensor_set_create()};
    r.arch = arch && arch->kind == CONFIG_STRING ? arch->string : LG_STR("");
    Buf name;
    buf_init(&name);
    LgStatus status = r.out ? LG_OK : lg_fail_memory(err);
    for (size_t i = 0; i < tensor_set_count(stored) && status == LG_OK; i++)
        status = add_tensor(&r, tensor_set_at(stored, i), &name);
    buf_clear(&name);
    if (status == LG_OK)
        *out = r.out;
    else
        tensor_set_close(r.out);
    return status;
}

/* ---- adapters ---- */

static bool says(const Gguf *g, const char *key, const char *value) {
    const ConfigValue *v = gguf_get(g, key);
    return v && v->kind == CONFIG_STRING && lg_str_eq_c(v->string, value);
}

static LgStatus read_alpha(const Gguf *g, const char *what, double *alpha, LgError *err) {
    const ConfigValue *v = gguf_get(g, "adapter.lora.alpha");
    if (!says(g, "general.type", "adapter") || !says(g, "adapter.type", "lora"))
        return lg_fail(
            err, LG_BAD_INPUT, 0,
            "%s: it is no LoRA adapter (general.type \"adapter\", adapter.type \"lora\")", what);
    if (!v || (v->kind != CONFIG_REAL && v->kind != CONFIG_INT))
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "%s: adapter.lora.alpha is missing, so the scale alpha / r is not known",
                       what);
    *alpha = v->kind == CONFIG_INT ? (double)v->integer : v->real;
    return LG_OK;
}

/* NAME.weight.lora_a is the A of NAME's module. An embedding's A lies the other way round. */
static LgStatus add_lora(const Renamer *r, const Tensor *t, Buf *name) {
    bool a = lg_str_ends(t->name, ".weight.lora_a"), b = lg_str_ends(t->name, ".weight.lora_b");
    LgStr stem = lg_str_sub(t->name, 0, t->name.len - ((a || b) ? lg_str(".lora_a").len : 0));
    LgStr layer, tail, suffix = a ? LG_STR(".lora_A.weight") : LG_STR(".lora_B.weight");
    const NameRow *row = a || b ? find_row(r, stem, &layer, &tail) : NULL;
    if (!row || row->storage == STORED_NORM)
        return fail_named(r, t, "it is no lora_a or lora_b of a matrix that this architecture has");
    if (lg_str_eq_c(stem, "token_embd.weight"))
        return fail_named(r, t, "LoRA on the embedding is served from PEFT's files only");
    if (row->storage == STORED_EXPERTS)
        return add_experts(r, row, layer, suffix, t, name);
    Tensor renamed = *t;
    bool q = row->storage == STORED_Q, heads = q || row->storage == STORED_K;
    if (b && heads && lg_str_eq_c(r->arch, "llama")) {
        if (!r->config)
            return fail_named(r, t, "the model's number of heads is needed to read it");
        LG_TRY(set_rope_heads(r, q ? "num_attention_heads" : "num_key_value_heads", &renamed));
    }
    spell(row, layer, suffix, 0, name);
    if (name->failed)
        return lg_fail_memory(r->err);
    renamed.name = buf_view(name);
    return tensor_set_add(r->out, r->what, &renamed, r->err);
}

LgStatus gguf_adapter_tensors(const Gguf *g, const char *what, const Config *config,
                              TensorSet **out, double *alpha, LgError *err) {
    LG_TRY(read_alpha(g, what, alpha, err));
    const TensorSet *stored = gguf_tensors(g);
    const ConfigValue *arch = gguf_get(g, "general.architecture");
    Renamer r = {.what = what, .config = config, .err = err, .out = tensor_set_create()};
    r.arch = arch && arch->kind == CONFIG_STRING ? arch->string : LG_STR("");
    Buf name;
    buf_init(&name);
    LgStatus status = r.out ? LG_OK : lg_fail_memory(err);
    for (size_t i = 0; i < tensor_set_count(stored) && status == LG_OK; i++)
        status = add_lora(&r, tensor_set_at(stored, i), &name);
    buf_clear(&name);
    if (status == LG_OK)
        *out = r.out;
    else
        tensor_set_close(r.out);
    return status;
}
