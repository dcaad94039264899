/* A model on disk, folder or GGUF, under Hugging Face's names. */
#include "files.h"

#include <math.h>

#include "base/json.h"
#include "formats/checkpoint.h"
#include "formats/safetensors.h"

#define ONE_TENSOR                                                                                 \
    "{\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"

static Checkpoint *open_ok(const char *path) {
    Checkpoint *c = NULL;
    LgError err = {0};
    if (checkpoint_open(path, &c, &err) != LG_OK)
        fail_msg("%s", err.message);
    return c;
}

static void refuses(const char *path, LgStatus want, const char *words) {
    Checkpoint *c = NULL;
    LgError err = {0};
    assert_int_equal(checkpoint_open(path, &c, &err), want);
    assert_null(c);
    assert_mentions(&err, words);
}

static void prints(const Checkpoint *c, const char *key, const char *want) {
    Buf b;
    const ConfigValue *v = config_get_c(checkpoint_config(c), key);
    buf_init(&b);
    if (!v)
        fail_msg("\"%s\" is absent", key);
    config_value_print(v, &b);
    assert_string_equal(b.data, want);
    buf_clear(&b);
}

static void absent(const Checkpoint *c, const char *key) {
    if (config_get_c(checkpoint_config(c), key))
        fail_msg("\"%s\" is there", key);
}

static const Tensor *tensor(const Checkpoint *c, const char *name) {
    const Tensor *t = tensor_set_find(checkpoint_tensors(c), lg_str(name));
    if (!t)
        fail_msg("there is no tensor \"%s\"", name);
    return t;
}

static void a_folder_is_opened(void **state) {
    Folder *f = *state;
    write_text(f, "config.json", "{\"hidden_size\": 1}");
    write_safetensors(f, "model.safetensors", ONE_TENSOR, 4);
    Checkpoint *c = open_ok(f->path);
    assert_string_equal(checkpoint_path(c), f->path);
    prints(c, "hidden_size", "1");
    assert_int_equal(tensor(c, "model.norm.weight")->bytes, 4);
    assert_null(checkpoint_gguf(c));
    checkpoint_close(c);
    checkpoint_close(NULL);
}

static void the_config_alone_is_opened(void **state) {
    Folder *f = *state;
    Checkpoint *c = NULL;
    write_text(f, "config.json", "{\"hidden_size\": 1}");
    assert_int_equal(checkpoint_open_config(f->path, &c, NULL), LG_OK);
    prints(c, "hidden_size", "1");
    assert_null(checkpoint_tensors(c));
    checkpoint_close(c);
    assert_int_equal(checkpoint_open_config(in_folder(f, "config.json"), &c, NULL), LG_OK);
    prints(c, "hidden_size", "1");
    checkpoint_close(c);
    refuses(f->path, LG_NOT_FOUND, "model.safetensors");
}

static void what_is_no_model_is_refused(void **state) {
    Folder *f = *state;
    refuses(f->path, LG_NOT_FOUND, "config.json");
    refuses(in_folder(f, "gone"), LG_NOT_FOUND, "does not exist");
    refuses(in_folder(f, "gone.gguf"), LG_NOT_FOUND, "gone.gguf");
    write_text(f, "x.bin", "x");
    refuses(in_folder(f, "x.bin"), LG_BAD_INPUT, "is no model");
    write_text(f, "x.gguf", "x");
    refuses(in_folder(f, "x.gguf"), LG_BAD_INPUT, "x.gguf");
    write_text(f, "config.json", "{");
    refuses(f->path, LG_BAD_INPUT, "config.json");
}

/* A llama of one layer: hidden 8, 2 heads of 4, 1 kv head. */
static void begin_llama(GgufFile *g, const char *arch) {
    char key[80];
    static const struct {
        const char *suffix;
        int64_t value;
    } ints[] = {{"block_count", 1},
                {"context_length", 64},
                {"embedding_length", 8},
                {"feed_forward_length", 32},
                {"vocab_size", 99},
                {"attention.head_count", 2},
                {"attention.head_count_kv", 1}};
    gguf_begin(g);
    put_string(g, "general.architecture", arch);
    put_string(g, "general.type", "model");
    put_int(g, "general.file_type", U32, 3);
    put_int(g, "general.quantization_version", U32, 2);
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++) {
        snprintf(key, sizeof key, "%s.%s", arch, ints[i].suffix);
        put_int(g, key, U32, ints[i].value);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    put_f32(g, key, 1e-5f);
    put_int(g, "tokenizer.ggml.bos_token_id", U32, 1);
    put_int(g, "tokenizer.ggml.eos_token_id", U32, 2);
    put_string(g, "tokenizer.ggml.model", "gpt2");
    put_tensor(g, "token_embd.weight", 8, 5, 0, 0, NULL, 160);
}

static Checkpoint *open_gguf(Folder *f, GgufFile *g) {
    gguf_finish(g);
    write_file(f, "m.gguf", g->file.data, g->file.len);
    gguf_end(g);
    return open_ok(in_folder(f, "m.gguf"));
}

static void refuses_gguf(Folder *f, GgufFile *g, const char *words) {
    gguf_finish(g);
    write_file(f, "m.gguf", g->file.data, g->file.len);
    gguf_end(g);
    refuses(in_folder(f, "m.gguf"), LG_BAD_INPUT, words);
}

static void gguf_metadata_becomes_config_keys(void **state) {
    Folder *f = *state;
    GgufFile g;
    begin_llama(&g, "llama");
    put_f32(&g, "llama.rope.freq_base", 100000.0f);
    put_int(&g, "llama.rope.dimension_count", U32, 4);
    put_int(&g, "llama.new_feature", U32, 7);
    Checkpoint *c = open_gguf(f, &g);
    prints(c, "architectures", "[\"LlamaForCausalLM\"]");
    prints(c, "model_type", "\"llama\"");
    prints(c, "num_hidden_layers", "1");
    prints(c, "max_position_embeddings", "64");
    prints(c, "hidden_size", "8");
    prints(c, "intermediate_size", "32");
    prints(c, "num_attention_heads", "2");
    prints(c, "num_key_value_heads", "1");
    prints(c, "rms_norm_eps", "9.999999747378752e-06");
    prints(c, "rope_theta", "1e+05");
    prints(c, "head_dim", "4");
    prints(c, "vocab_size", "5"); /* the embedding's, not the metadata's */
    prints(c, "bos_token_id", "1");
    prints(c, "eos_token_id", "2");
    prints(c, "hidden_act", "\"silu\"");
    prints(c, "attention_bias", "false");
    prints(c, "mlp_bias", "false");
    prints(c, "tie_word_embeddings", "true");
    prints(c, "llama.new_feature", "7"); /* a program has to claim it */
    absent(c, "partial_rotary_factor");
    absent(c, "v_head_dim");
    absent(c, "rope_scaling");
    absent(c, "general");
    absent(c, "tokenizer");
    assert_non_null(checkpoint_gguf(c));
    assert_true(lg_str_eq_c(gguf_get(checkpoint_gguf(c), "tokenizer.ggml.model")->string, "gpt2"));
    checkpoint_close(c);
    Checkpoint *alone = NULL;
    assert_int_equal(checkpoint_open_config(in_folder(f, "m.gguf"), &alone, NULL), LG_OK);
    prints(alone, "vocab_size", "5");
    assert_null(checkpoint_tensors(alone));
    checkpoint_close(alone);
}

static void what_writers_leave_out_has_its_default(void **state) {
    Folder *f = *state;
    GgufFile g;
    gguf_begin(&g);
    put_string(&g, "general.architecture", "qwen3");
    put_int(&g, "qwen3.attention.head_count", U32, 2);
    put_int(&g, "qwen3.embedding_length", U32, 8);
    put_tensor(&g, "token_embd.weight", 8, 5, 0, 0, NULL, 160);
    put_tensor(&g, "output.weight", 8, 5, 0, 0, NULL, 160);
    Checkpoint *c = open_gguf(f, &g);
    prints(c, "num_key_value_heads", "2");
    prints(c, "rope_theta", "1e+04");
    prints(c, "head_dim", "4");
    prints(c, "tie_word_embeddings", "false");
    prints(c, "use_sliding_window", "false");
    prints(c, "architectures", "[\"Qwen3ForCausalLM\"]");
    assert_int_equal(tensor(c, "lm_head.weight")->shape[0], 5);
    checkpoint_close(c);
}

static void unequal_head_sizes_are_not_hidden(void **state) {
    Folder *f = *state;
    GgufFile g;
    begin_llama(&g, "llama");
    put_int(&g, "llama.attention.key_length", U32, 6);
    put_int(&g, "llama.attention.value_length", U32, 5);
    put_int(&g, "llama.rope.dimension_count", U32, 3);
    Checkpoint *c = open_gguf(f, &g);
    prints(c, "head_dim", "6");
    prints(c, "v_head_dim", "5");
    prints(c, "partial_rotary_factor", "0.5");
    checkpoint_close(c);
}

static void rope_scaling_of_the_metadata_is_mapped(void **state) {
    Folder *f = *state;
    GgufFile g;
    begin_llama(&g, "llama");
    put_string(&g, "llama.rope.scaling.type", "linear");
    put_f32(&g, "llama.rope.scaling.factor", 4.0f);
    put_int(&g, "llama.rope.scaling.original_context_length", U32, 16);
    put_int(&g, "llama.rope.scaling.finetuned", BOOL, 1);
    Checkpoint *c = open_gguf(f, &g);
    prints(c, "rope_scaling.rope_type", "\"linear\"");
    prints(c, "rope_scaling.factor", "4.0");
    prints(c, "rope_scaling.original_max_position_embeddings", "16");
    checkpoint_close(c);
    begin_llama(&g, "llama");
    put_string(&g, "llama.rope.scaling.type", "none");
    c = open_gguf(f, &g);
    absent(c, "rope_scaling");
    checkpoint_close(c);
}

static void a_key_that_is_a_list_stays_one(void **state) {
    Folder *f = *state;
    GgufFile g;
    begin_llama(&g, "llama");
    put_array(&g, "llama.heads_by_layer", U32, 2);
    put_le(&g.pairs, 4, 4);
    put_le(&g.pairs, 2, 4);
    put_array(&g, "llama.scores", F32, 1);
    put_le(&g.pairs, 0x3f800000, 4);
    put_array(&g, "llama.kinds", STRING, 1);
    put_gguf_string(&g.pairs, "full");
    Checkpoint *c = open_gguf(f, &g);
    prints(c, "llama.heads_by_layer", "[4, 2]");
    prints(c, "llama.scores", "[1.0]");
    prints(c, "llama.kinds", "[\"full\"]");
    checkpoint_close(c);
}

static const char *const llama_names[][2] = {
    {"output_norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
    {"blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"},
    {"blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight"},
    {"blk.0.attn_q.bias", "model.layers.0.self_attn.q_proj.bias"},
    {"blk.0.attn_k.weight", "model.layers.0.self_attn.k_proj.weight"},
    {"blk.0.attn_v.weight", "model.layers.0.self_attn.v_proj.weight"},
    {"blk.0.attn_v.bias", "model.layers.0.self_attn.v_proj.bias"},
    {"blk.0.attn_output.weight", "model.layers.0.self_attn.o_proj.weight"},
    {"blk.0.attn_q_norm.weight", "model.layers.0.self_attn.q_norm.weight"},
    {"blk.0.attn_k_norm.weight", "model.layers.0.self_attn.k_norm.weight"},
    {"blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"},
    {"blk.0.ffn_gate.weight", "model.layers.0.mlp.gate_proj.weight"},
    {"blk.0.ffn_up.weight", "model.layers.0.mlp.up_proj.weight"},
    {"blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight"},
    {"blk.0.ffn_gate_inp.weight", "model.layers.0.mlp.gate.weight"},
    {"blk.17.attn_norm.weight", "model.layers.17.input_layernorm.weight"},
    {"blk.0.new.weight",
     "blk.0.new.weight"}, /* unknown ones keep their name, for someone to claim */
    {"blk.01.ffn_up.weight", "blk.01.ffn_up.weight"}, /* not a second spelling of layer 1 */
    {"blk..ffn_up.weight", "blk..ffn_up.weight"},
    {"blk.0.ffn_up.weight.x", "blk.0.ffn_up.weight.x"},
    {"plain", "plain"},
};

static void gguf_tensor_names_become_hugging_faces(void **state) {
    Folder *f = *state;
    GgufFile g;
    begin_llama(&g, "llama");
    for (size_t i = 0; i < sizeof llama_names / sizeof llama_names[0]; i++)
        put_tensor(&g, llama_names[i][0], 8, 0, 0, 0, NULL, 32);
    Checkpoint *c = open_gguf(f, &g);
    for (size_t i = 0; i < sizeof llama_names / sizeof llama_names[0]; i++)
        tensor(c, llama_names[i][1]);
    assert_int_equal(tensor_set_count(checkpoint_tensors(c)),
                     1 + sizeof llama_names / sizeof llama_names[0]);
    assert_non_null(
        tensor_set_find(gguf_tensors(checkpoint_gguf(c)), LG_STR("blk.0.attn_q.weight")));
    prints(c, "attention_bias", "true");
    prints(c, "tie_word_embeddings", "false");
    checkpoint_close(c);
}

/* Names that mean something else elsewhere, or nothing. */
static const char *const other_names[][3] = {
    {"gemma3", "blk.0.ffn_norm.weight", "model.layers.0.pre_feedforward_layernorm.weight"},
    {"gemma2", "blk.0.ffn_norm.weight", "model.layers.0.pre_feedforward_layernorm.weight"},
    {"gemma3", "blk.0.post_attention_norm.weight",
     "model.layers.0.post_attention_layernorm.weight"},
    {"gemma3", "blk.0.post_ffw_norm.weight", "model.layers.0.post_feedforward_layernorm.weight"},
    {"gemma3", "blk.0.attn_q_norm.weight", "model.layers.0.self_attn.q_norm.weight"},
    {"olmo2", "blk.0.post_attention_norm.weight", "model.layers.0.post_attention_layernorm.weight"},
    {"olmo2", "blk.0.post_ffw_norm.weight", "model.layers.0.post_feedforward_layernorm.weight"},
    {"phi3", "blk.0.attn_qkv.weight", "model.layers.0.self_attn.qkv_proj.weight"},
    {"phi3", "blk.0.ffn_up.weight", "model.layers.0.mlp.gate_up_proj.weight"},
    {"phi3", "blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"},
    {"phi3", "rope_factors_long.weight", "rope_factors_long.weight"}, /* nobody claims it */
    {"llama", "blk.0.attn_qkv.weight", "blk.0.attn_qkv.weight"},
    {"gemma3", "blk.0.ffn_up.weight", "model.layers.0.mlp.up_proj.weight"},
};

/* llama.cpp adds 1 to Gemma's norms; the checkpoint, and its page, have them without. */
static void names_depend_on_the_architecture_and_gemmas_norms_lose_their_1(void **state) {
    Folder *f = *state;
    for (size_t i = 0; i < sizeof other_names / sizeof other_names[0]; i++) {
        const char *arch = other_names[i][0];
        const float stored[8] = {1.5f, 1.0f, -0.25f};
        float row[8];
        GgufFile g;
        begin_llama(&g, arch);
        put_tensor(&g, other_names[i][1], 8, 0, 0, 0, stored, sizeof stored);
        Checkpoint *c = open_gguf(f, &g);
        tensor_row_f32(tensor(c, other_names[i][2]), 0, row);
        float less = strstr(arch, "gemma") && strstr(other_names[i][1], "norm") ? 1.0f : 0.0f;
        assert_true(row[0] == 1.5f - less && row[1] == 1.0f - less && row[2] == -0.25f - less);
        checkpoint_close(c);
    }
}

static void put_arch_int(GgufFile *g, const char *arch, const char *suffix, int64_t value) {
    char key[64];
    snprintf(key, sizeof key, "%s.%s", arch, suffix);
    put_int(g, key, U32, value);
}

/* Sizes of which only the head's and the layers' matter here. */
static void begin_gemma(GgufFile *g, const char *arch, int layers) {
    gguf_begin(g);
    put_string(g, "general.architecture", arch);
    put_arch_int(g, arch, "block_count", layers);
    put_arch_int(g, arch, "embedding_length", 64);
    put_arch_int(g, arch, "attention.head_count", 4);
    put_arch_int(g, arch, "attention.key_length", 32);
    put_tensor(g, "token_embd.weight", 64, 5, 0, 0, NULL, 1280);
}

static void gemma_has_what_its_files_imply(void **state) {
    Folder *f = *state;
    static const struct {
        const char *arch, *class_name;
        int layers;
        const char *scalar;
    } rows[] = {{"gemma3", "[\"Gemma3ForCausalLM\"]", 26, "32"},
                {"gemma3", "[\"Gemma3ForCausalLM\"]", 62, "16"}, /* 27B */
                {"gemma2", "[\"Gemma2ForCausalLM\"]", 42, "32"},
                {"gemma2", "[\"Gemma2ForCausalLM\"]", 46, "16"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        GgufFile g;
        begin_gemma(&g, rows[i].arch, rows[i].layers);
        put_arch_int(&g, rows[i].arch, "attention.sliding_window", 512);
        put_arch_int(&g, rows[i].arch, "rope.freq_base_swa", 10000);
        put_arch_int(&g, rows[i].arch, "final_logit_softcapping", 30);
        Checkpoint *c = open_gguf(f, &g);
        prints(c, "architectures", rows[i].class_name);
        prints(c, "query_pre_attn_scalar", rows[i].scalar);
        prints(c, "hidden_activation", "\"gelu_pytorch_tanh\"");
        absent(c, "hidden_act");
        prints(c, "sliding_window", "512");
        prints(c, "rope_local_base_freq", "10000");
        prints(c, "final_logit_softcapping", "30");
        checkpoint_close(c);
    }
}

/* Every n-th layer, or a flag for each; 0 is no window at all. */
static void windows_of_layers_are_mapped(void **state) {
    Folder *f = *state;
    GgufFile g;
    begin_gemma(&g, "gemma3", 26);
    put_arch_int(&g, "gemma3", "attention.sliding_window_pattern", 4);
    Checkpoint *c = open_gguf(f, &g);
    prints(c, "sliding_window_pattern", "4");
    absent(c, "layer_types");
    checkpoint_close(c);
    begin_gemma(&g, "olmo2", 2);
    put_array(&g, "olmo2.attention.sliding_window_pattern", BOOL, 2);
    put_le(&g.pairs, 1, 2);
    c = open_gguf(f, &g);
    prints(c, "layer_types", "[\"sliding_attention\", \"full_attention\"]");
    absent(c, "olmo2.attention.sliding_window_pattern");
    checkpoint_close(c);
    begin_gemma(&g, "phi3", 2);
    put_arch_int(&g, "phi3", "attention.sliding_window", 0);
    put_arch_int(&g, "phi3", "rope.scaling.original_context_length", 4096);
    c = open_gguf(f, &g);
    absent(c, "sliding_window");
    absent(c, "rope_scaling");
    prints(c, "original_max_position_embeddings", "4096");
    checkpoint_close(c);
}

static void rows_of_q_and_k_are_put_back_for_llama_only(void **state) {
    Folder *f = *state;
    for (int llama = 0; llama < 2; llama++) {
        GgufFile g;
        float q[64], bias[8], row[8];
        for (int i = 0; i < 64; i++)
            q[i] = (float)i;
        for (int i = 0; i < 8; i++)
            bias[i] = (float)i;
        begin_llama(&g, llama ? "llama" : "qwen3");
        put_tensor(&g, "blk.0.attn_q.weight", 8, 8, 0, 0, q, sizeof q);
        put_tensor(&g, "blk.0.attn_k.weight", 8, 4, 0, 0, NULL, 128);
        put_tensor(&g, "blk.0.attn_v.weight", 8, 4, 0, 0, NULL, 128);
        put_tensor(&g, "blk.0.attn_q.bias", 8, 0, 0, 0, bias, sizeof bias);
        Checkpoint *c = open_gguf(f, &g);
        const Tensor *t = tensor(c, "model.layers.0.self_attn.q_proj.weight");
        assert_int_equal(t->rope_heads, llama ? 2 : 0);
        assert_int_equal(tensor(c, "model.layers.0.self_attn.k_proj.weight")->rope_heads,
                         llama ? 1 : 0);
        assert_int_equal(tensor(c, "model.layers.0.self_attn.v_proj.weight")->rope_heads, 0);
        tensor_row_f32(t, 1, row); /* logical row 1 of a head of 4 is stored row 2 */
        assert_true(row[0] == (llama ? 16.0f : 8.0f));
        tensor_row_f32(t, 6, row); /* row 2 of the second head is its stored row 1 */
        assert_true(row[0] == (llama ? 40.0f : 48.0f));
        tensor_row_f32(tensor(c, "model.layers.0.self_attn.q_proj.bias"), 0, row);
        assert_true(row[1] == (llama ? 2.0f : 1.0f));
        checkpoint_close(c);
    }
}

static void rows_that_are_no_whole_heads_are_refused(void **state) {
    Folder *f = *state;
    GgufFile g;
    begin_llama(&g, "llama");
    put_tensor(&g, "blk.0.attn_q.weight", 8, 6, 0, 0, NULL, 192);
    refuses_gguf(f, &g, "whole number of heads");
    gguf_begin(&g);
    put_string(&g, "general.architecture", "llama");
    put_tensor(&g, "token_embd.weight", 8, 5, 0, 0, NULL, 160);
    put_tensor(&g, "blk.0.attn_q.weight", 8, 8, 0, 0, NULL, 256);
    refuses_gguf(f, &g, "num_attention_heads");
}

static void stacked_experts_come_one_by_one(void **state) {
    Folder *f = *state;
    GgufFile g;
    float gate[2 * 3 * 4], row[4];
    for (int i = 0; i < 24; i++)
        gate[i] = (float)i;
    begin_llama(&g, "qwen3moe");
    put_int(&g, "qwen3moe.expert_count", U32, 2);
    put_int(&g, "qwen3moe.expert_used_count", U32, 1);
    put_int(&g, "qwen3moe.expert_feed_forward_length", U32, 3);
    put_tensor(&g, "blk.0.ffn_gate_exps.weight", 4, 3, 2, 0, gate, sizeof gate);
    Checkpoint *c = open_gguf(f, &g);
    const Tensor *t = tensor(c, "model.layers.0.mlp.experts.1.gate_proj.weight");
    tensor(c, "model.layers.0.mlp.experts.0.gate_proj.weight");
    assert_int_equal(t->rank, 2);
    assert_int_equal(t->shape[0], 3);
    assert_int_equal(t->shape[1], 4);
    assert_int_equal(t->bytes, 48);
    tensor_row_f32(t, 2, row);
    assert_true(row[3] == 23.0f);
    prints(c, "num_experts", "2");
    prints(c, "num_experts_per_tok", "1");
    prints(c, "moe_intermediate_size", "3");
    prints(c, "architectures", "[\"Qwen3MoeForCausalLM\"]");
    prints(c, "mlp_only_layers", "[]");
    checkpoint_close(c);
    begin_llama(&g, "qwen3moe");
    put_tensor(&g, "blk.0.ffn_up_exps.weight", 4, 3, 0, 0, gate, 48);
    refuses_gguf(f, &g, "3 axes");
}

static void two_names_for_one_tensor_are_refused(void **state) {
    Folder *f = *state;
    GgufFile g;
    begin_llama(&g, "llama");
    put_tensor(&g, "model.embed_tokens.weight", 8, 0, 0, 0, NULL, 32);
    refuses_gguf(f, &g, "occurs twice");
}

static void files_that_are_no_whole_model_are_refused(void **state) {
    Folder *f = *state;
    GgufFile g;
    gguf_begin(&g);
    refuses_gguf(f, &g, "general.architecture is missing");
    gguf_begin(&g);
    put_string(&g, "general.architecture", "gptneox\n");
    refuses_gguf(f, &g, "\"gptneox\\x0a\"; they are for: llama");
    gguf_begin(&g);
    put_string(&g, "general.architecture", "llama");
    put_string(&g, "general.type", "adapter");
    refuses_gguf(f, &g, "a model is expected");
    gguf_begin(&g);
    put_string(&g, "general.architecture", "llama");
    put_int(&g, "split.count", U16, 3);
    refuses_gguf(f, &g, "merge the parts");
    gguf_begin(&g);
    put_string(&g, "general.architecture", "llama");
    refuses_gguf(f, &g, "token_embd.weight");
}

typedef struct Scaling {
    double base, factor, high, original; /* low is 1 */
    int count;                           /* frequencies */
} Scaling;

static void put_divisors(GgufFile *g, const Scaling *s, float more) {
    float divisors[64];
    for (int i = 0; i < s->count; i++) {
        double turns =
            s->original / (2 * 3.14159265358979323846 * pow(s->base, (double)i / s->count));
        double smooth = (turns - 1) / (s->high - 1);
        divisors[i] = (float)(turns >= s->high ? 1.0
                              : turns <= 1     ? s->factor
                                               : 1 / ((1 - smooth) / s->factor + smooth));
    }
    divisors[s->count / 2] += more;
    put_tensor(g, "rope_freqs.weight", (uint64_t)s->count, 0, 0, 0, divisors, 4 * (size_t)s->count);
}

static Checkpoint *open_scaled(Folder *f, const Scaling *s, float more) {
    GgufFile g;
    begin_llama(&g, "llama");
    put_f32(&g, "llama.rope.freq_base", (float)s->base);
    put_int(&g, "llama.attention.key_length", U32, 2 * s->count);
    put_divisors(&g, s, more);
    return open_gguf(f, &g);
}

static double real_of(Checkpoint *c, const char *key) {
    const ConfigValue *v = config_get_c(checkpoint_config(c), key);
    assert_non_null(v);
    return v->real;
}

static void llama_3_scaling_is_found_again_in_its_divisors(void **state) {
    Folder *f = *state;
    static const Scaling scalings[] = {
        {500000, 8, 4, 8192, 64},  /* Llama 3.1, 3.3 */
        {500000, 32, 4, 8192, 32}, /* Llama 3.2 */
        {500000, 8, 4, 128, 16},   /* the tiny one: two frequencies lie between */
        {10000, 20, 8, 2048, 48},  {1000000, 2.5, 4, 131072, 64},
        {500000, 8, 4, 4096, 8}, /* one lies between */
    };
    for (size_t i = 0; i < sizeof scalings / sizeof scalings[0]; i++) {
        const Scaling *s = &scalings[i];
        Checkpoint *c = open_scaled(f, s, 0);
        assert_null(tensor_set_find(checkpoint_tensors(c), LG_STR("rope_freqs.weight")));
        prints(c, "rope_scaling.rope_type", "\"llama3\"");
        assert_true(real_of(c, "rope_scaling.factor") == s->factor);
        assert_true(real_of(c, "rope_scaling.low_freq_factor") == 1);
        assert_true(real_of(c, "rope_scaling.high_freq_factor") == s->high);
        assert_true(real_of(c, "rope_scaling.original_max_position_embeddings") == s->original);
        checkpoint_close(c);
    }
}

/* With no frequency between, any length that divides the same ones is as good. */
static void scaling_without_a_frequency_between_divides_the_same_ones(void **state) {
    Folder *f = *state;
    const Scaling s = {500000, 4, 4, 2000, 4};
    Checkpoint *c = open_scaled(f, &s, 0);
    assert_null(tensor_set_find(checkpoint_tensors(c), LG_STR("rope_freqs.weight")));
    assert_true(real_of(c, "rope_scaling.factor") == 4);
    double original = real_of(c, "rope_scaling.original_max_position_embeddings");
    for (int i = 0; i < 4; i++) {
        double wavelength = 2 * 3.14159265358979323846 * pow(500000.0, i / 4.0);
        assert_int_equal(original / wavelength >= 4, s.original / wavelength >= 4);
        assert_int_equal(original / wavelength <= 1, s.original / wavelength <= 1);
    }
    checkpoint_close(c);
}

/* Unknown ones stay, and nobody claims them. */
static void divisors_of_another_rule_stay_a_tensor(void **state) {
    Folder *f = *state;
    const Scaling s = {500000, 8, 4, 8192, 64};
    const float more[] = {0.01f, -0.01f, INFINITY, NAN};
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++) {
        Checkpoint *c = open_scaled(f, &s, more[i]);
        assert_non_null(tensor_set_find(checkpoint_tensors(c), LG_STR("rope_freqs.weight")));
        absent(c, "rope_scaling");
        checkpoint_close(c);
    }
}

static void every_failed_allocation_is_reported(void **state) {
    Folder *f = *state;
    GgufFile g;
    begin_llama(&g, "llama");
    put_array(&g, "llama.list", U8, 2);
    put_le(&g.pairs, 0, 2);
    put_tensor(&g, "blk.0.attn_q.weight", 8, 8, 0, 0, NULL, 256);
    put_tensor(&g, "blk.0.ffn_up_exps.weight", 4, 3, 2, 0, NULL, 96);
    gguf_finish(&g);
    write_file(f, "m.gguf", g.file.data, g.file.len);
    gguf_end(&g);
    write_text(f, "config.json", "{\"a\": {\"b\": [1]}}");
    write_safetensors(f, "model.safetensors", ONE_TENSOR, 4);
    const char *paths[] = {f->path, in_folder(f, "m.gguf")};
    for (int i = 0; i < 2; i++) {
        LgStatus status = LG_NO_MEMORY;
        for (long n = 1; status != LG_OK; n++) {
            Checkpoint *c = NULL;
            lg_alloc_fail_at(n, 1);
            status = checkpoint_open(paths[i], &c, NULL);
            lg_alloc_fail_at(0, 0);
            assert_true(status == LG_OK || status == LG_NO_MEMORY);
            assert_true(n < 1000);
            checkpoint_close(c);
        }
    }
}

/* The real file, where it is there. */
static void smollm2_reads_as_a_llama(void **state) {
    (void)state;
    if (!file_exists(LG_SMOLLM2))
        skip();
    Checkpoint *c = open_ok(LG_SMOLLM2);
    const LgStr *tokens;
    const int32_t *types;
    prints(c, "num_hidden_layers", "30");
    prints(c, "hidden_size", "576");
    prints(c, "intermediate_size", "1536");
    prints(c, "num_attention_heads", "9");
    prints(c, "num_key_value_heads", "3");
    prints(c, "head_dim", "64");
    prints(c, "rope_theta", "1e+05");
    prints(c, "max_position_embeddings", "8192");
    prints(c, "vocab_size", "49152");
    prints(c, "tie_word_embeddings", "true");
    prints(c, "eos_token_id", "2");
    absent(c, "llama");
    assert_int_equal(tensor_set_count(checkpoint_tensors(c)), 272);
    assert_int_equal(tensor(c, "model.embed_tokens.weight")->dtype, DTYPE_Q8_0);
    const Tensor *q = tensor(c, "model.layers.29.self_attn.q_proj.weight");
    assert_int_equal(q->dtype, DTYPE_Q4_1);
    assert_int_equal(q->rope_heads, 9);
    assert_int_equal(tensor(c, "model.layers.3.self_attn.k_proj.weight")->rope_heads, 3);
    assert_int_equal(gguf_strings(checkpoint_gguf(c), "tokenizer.ggml.tokens", &tokens), 49152);
    assert_true(lg_str_eq_c(tokens[2], "<|im_end|>"));
    assert_int_equal(gguf_strings(checkpoint_gguf(c), "tokenizer.ggml.merges", &tokens), 48900);
    assert_int_equal(gguf_ints(checkpoint_gguf(c), "tokenizer.ggml.token_type", &types), 49152);
    assert_int_equal(types[2], 3);
    checkpoint_close(c);
}

/* Hugging Face's embeddings of a prompt are the rows that we dequantise, to the bit. */
static void smollm2_embeddings_are_the_references(void **state) {
    (void)state;
    TensorSet *goldens = NULL;
    json_t *prompts = NULL;
    Buf text;
    buf_init(&text);
    if (!file_exists(LG_SMOLLM2) ||
        safetensors_open(LG_SHARED_DATA "/smollm2/goldens", "base", &goldens, NULL) != LG_OK)
        skip();
    assert_int_equal(
        file_read(LG_SHARED_DATA "/smollm2/goldens/prompts.json", 1 << 20, &text, NULL), LG_OK);
    assert_int_equal(lg_json_parse(buf_view(&text), "prompts.json", &prompts, NULL), LG_OK);
    json_t *ids = json_object_get(json_object_get(prompts, "p5"), "ids");
    Checkpoint *c = open_ok(LG_SMOLLM2);
    const Tensor *embedding = tensor(c, "model.embed_tokens.weight");
    const Tensor *hidden = tensor_set_find(
        goldens, LG_STR("p5.hidden")); /* [31, 5, 576], the first is the embedding */
    assert_int_equal(json_array_size(ids), 5);
    for (size_t i = 0; i < 5; i++) {
        float row[576], want[576];
        tensor_row_f32(embedding, (uint64_t)json_integer_value(json_array_get(ids, i)), row);
        tensor_row_f32(hidden, i, want);
        assert_memory_equal(row, want, sizeof row);
    }
    checkpoint_close(c);
    json_decref(prompts);
    tensor_set_close(goldens);
    buf_clear(&text);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_make, folder_remove)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(a_folder_is_opened),
        IN_FOLDER(the_config_alone_is_opened),
        IN_FOLDER(what_is_no_model_is_refused),
        IN_FOLDER(gguf_metadata_becomes_config_keys),
        IN_FOLDER(what_writers_leave_out_has_its_default),
        IN_FOLDER(unequal_head_sizes_are_not_hidden),
        IN_FOLDER(rope_scaling_of_the_metadata_is_mapped),
        IN_FOLDER(a_key_that_is_a_list_stays_one),
        IN_FOLDER(gguf_tensor_names_become_hugging_faces),
        IN_FOLDER(names_depend_on_the_architecture_and_gemmas_norms_lose_their_1),
        IN_FOLDER(gemma_has_what_its_files_imply),
        IN_FOLDER(windows_of_layers_are_mapped),
        IN_FOLDER(rows_of_q_and_k_are_put_back_for_llama_only),
        IN_FOLDER(rows_that_are_no_whole_heads_are_refused),
        IN_FOLDER(stacked_experts_come_one_by_one),
        IN_FOLDER(two_names_for_one_tensor_are_refused),
        IN_FOLDER(files_that_are_no_whole_model_are_refused),
        IN_FOLDER(llama_3_scaling_is_found_again_in_its_divisors),
        IN_FOLDER(scaling_without_a_frequency_between_divides_the_same_ones),
        IN_FOLDER(divisors_of_another_rule_stay_a_tensor),
        IN_FOLDER(every_failed_allocation_is_reported),
        cmocka_unit_test(smollm2_reads_as_a_llama),
        cmocka_unit_test(smollm2_embeddings_are_the_references),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
