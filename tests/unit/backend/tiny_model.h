/* A small checkpoint made on the spot: Qwen3's page, random bf16 weights from a seed. And a step
 * over it. */
#ifndef LG_TEST_TINY_MODEL_H
#define LG_TEST_TINY_MODEL_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/runner.h"
#include "base/embedded.h"
#include "base/file.h"
#include "base/float.h"
#include "base/mem.h"
#include "base/rng.h"
#include "formats/checkpoint.h"

#define TINY_VOCAB 160
#define TINY_HIDDEN 64
#define TINY_HEADS 4
#define TINY_KV_HEADS 2
#define TINY_HEAD_DIM 16
#define TINY_FFN 96
#define TINY_LAYERS 2

typedef struct TinyModel {
    char dir[64];
    Arena arena;
    Checkpoint *checkpoint;
    LangProgram *program;
    Binding *binding;
} TinyModel;

/* Name (%d: the layer), rows (0: a vector), columns. */
static const struct {
    const char *name;
    int rows, columns;
    bool layered;
} tiny_tensors[] = {
    {"model.embed_tokens.weight", TINY_VOCAB, TINY_HIDDEN, false},
    {"model.norm.weight", 0, TINY_HIDDEN, false},
    {"model.layers.%d.input_layernorm.weight", 0, TINY_HIDDEN, true},
    {"model.layers.%d.self_attn.q_proj.weight", TINY_HEADS *TINY_HEAD_DIM, TINY_HIDDEN, true},
    {"model.layers.%d.self_attn.k_proj.weight", TINY_KV_HEADS *TINY_HEAD_DIM, TINY_HIDDEN, true},
    {"model.layers.%d.self_attn.v_proj.weight", TINY_KV_HEADS *TINY_HEAD_DIM, TINY_HIDDEN, true},
    {"model.layers.%d.self_attn.o_proj.weight", TINY_HIDDEN, TINY_HEADS *TINY_HEAD_DIM, true},
    {"model.layers.%d.self_attn.q_norm.weight", 0, TINY_HEAD_DIM, true},
    {"model.layers.%d.self_attn.k_norm.weight", 0, TINY_HEAD_DIM, true},
    {"model.layers.%d.post_attention_layernorm.weight", 0, TINY_HIDDEN, true},
    {"model.layers.%d.mlp.gate_proj.weight", TINY_FFN, TINY_HIDDEN, true},
    {"model.layers.%d.mlp.up_proj.weight", TINY_FFN, TINY_HIDDEN, true},
    {"model.layers.%d.mlp.down_proj.weight", TINY_HIDDEN, TINY_FFN, true},
};

static inline void tiny_add_tensor(Buf *header, Buf *data, const char *name, int rows, int columns,
                                   uint64_t seed) {
    size_t begin = data->len, count = (size_t)(rows ? rows : 1) * (size_t)columns;
    for (size_t i = 0; i < count; i++) {
        float v = rng_unit(seed, i) * 2.0f - 1.0f;
        uint16_t h = bf16_from_float(rows ? v * 1.7f / sqrtf((float)columns) : 1.0f + 0.2f * v);
        buf_append(data, &h, sizeof h);
    }
    buf_printf(header, "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[", header->len > 1 ? "," : "",
               name);
    if (rows)
        buf_printf(header, "%d,", rows);
    buf_printf(header, "%d],\"data_offsets\":[%zu,%zu]}", columns, begin, data->len);
}

static inline void tiny_write(const char *dir, const char *name, const void *data, size_t bytes) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (file_write_atomic(path, data, bytes, NULL) != LG_OK)
        abort();
}

static inline void tiny_write_files(const char *dir, int layers) {
    Buf header, data, file, config;
    buf_init(&header);
    buf_init(&data);
    buf_init(&file);
    buf_init(&config);
    buf_putc(&header, '{');
    for (size_t i = 0; i < sizeof tiny_tensors / sizeof *tiny_tensors; i++)
        for (int l = 0; l < (tiny_tensors[i].layered ? layers : 1); l++) {
            char name[96];
            const char *percent = strstr(tiny_tensors[i].name, "%d");
            if (percent)
                snprintf(name, sizeof name, "%.*s%d%s", (int)(percent - tiny_tensors[i].name),
                         tiny_tensors[i].name, l, percent + 2);
            else
                snprintf(name, sizeof name, "%s", tiny_tensors[i].name);
            tiny_add_tensor(&header, &data, name, tiny_tensors[i].rows, tiny_tensors[i].columns,
                            100 * i + (uint64_t)l);
        }
    buf_putc(&header, '}');
    uint64_t length = header.len;
    buf_append(&file, &length, sizeof length);
    buf_append(&file, header.data, header.len);
    buf_append(&file, data.data, data.len);
    tiny_write(dir, "model.safetensors", file.data, file.len);
    buf_printf(
        &config,
        "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"vocab_size\":%d,"
        "\"hidden_size\":%d,"
        "\"num_hidden_layers\":%d,\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"head_"
        "dim\":%d,"
        "\"intermediate_size\":%d,\"rms_norm_eps\":1e-06,\"rope_theta\":10000.0,\"hidden_act\":"
        "\"silu\","
        "\"attention_bias\":false,\"use_sliding_window\":false,\"tie_word_embeddings\":true}",
        TINY_VOCAB, TINY_HIDDEN, layers, TINY_HEADS, TINY_KV_HEADS, TINY_HEAD_DIM, TINY_FFN);
    tiny_write(dir, "config.json", config.data, config.len);
    buf_clear(&header);
    buf_clear(&data);
    buf_clear(&file);
    buf_clear(&config);
}

/* The page of the embedded models that is called `page`, over the checkpoint at path. Aborts on
 * failure, with the message. */
static inline void tiny_open(TinyModel *m, const char *path, const char *page) {
    LgError err = {0};
    const LgEmbedded *source = lg_models;
    while (source->name && strcmp(source->name, page) != 0)
        source++;
    LangProgram *checked = NULL;
    arena_init(&m->arena);
    LgStatus status = source->name ? LG_OK : lg_fail(&err, LG_NOT_FOUND, 0, "no page %s", page);
    if (status == LG_OK)
        status = checkpoint_open(path, &m->checkpoint, &err);
    if (status == LG_OK)
        status = lang_compile((LgStr){source->data, source->size}, page,
                              checkpoint_config(m->checkpoint), &m->arena, &checked, &err);
    if (status == LG_OK)
        status = lang_rewrite_lora(checked, &m->arena, &m->program, &err);
    if (status == LG_OK)
        status = bind_params(m->program, checkpoint_tensors(m->checkpoint), &m->arena, &m->binding,
                             &err);
    if (status != LG_OK) {
        fprintf(stderr, "%s\n", err.message);
        abort();
    }
}

static inline void tiny_make(TinyModel *m, int layers) {
    *m = (TinyModel){0};
    strcpy(m->dir, "/tmp/lg-tiny-XXXXXX");
    if (!mkdtemp(m->dir))
        abort();
    tiny_write_files(m->dir, layers);
    tiny_open(m, m->dir, "qwen3.lg");
}

static inline void tiny_close(TinyModel *m) {
    char command[96];
    checkpoint_close(m->checkpoint);
    arena_clear(&m->arena);
    if (m->dir[0]) {
        snprintf(command, sizeof command, "rm -r %s", m->dir);
        if (system(command) != 0)
            abort();
    }
}

#define TINY_ROWS_MAX 256

/* One or several sequences that go on by chunks; pages are given out as slots grow. */
typedef struct TinyBatch {
    int32_t token[TINY_ROWS_MAX], slot[TINY_ROWS_MAX], pos[TINY_ROWS_MAX], ad[TINY_ROWS_MAX],
        last[TINY_ROWS_MAX];
    int32_t pages[8 * 8]; /* slot s has pages 8 s to 8 s + 7 */
    Step step;
} TinyBatch;

static inline void tiny_batch_init(TinyBatch *b) {
    *b = (TinyBatch){0};
    for (int i = 0; i < 64; i++)
        b->pages[i] = 63 - i;
    b->step = (Step){.token = b->token,
                     .slot = b->slot,
                     .pos = b->pos,
                     .ad = b->ad,
                     .last = b->last,
                     .slot_count = 8,
                     .pages_per_slot = 8,
                     .pages = b->pages};
}

static inline void tiny_batch_row(TinyBatch *b, int32_t slot, int32_t pos, int32_t token,
                                  bool sampled) {
    int32_t r = b->step.rows++;
    b->token[r] = token;
    b->slot[r] = slot;
    b->pos[r] = pos;
    b->ad[r] = 0;
    if (sampled)
        b->last[b->step.samples++] = r;
}

#endif
