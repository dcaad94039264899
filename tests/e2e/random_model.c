#include "tests/e2e/random_model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/embedded.h"
#include "base/float.h"
#include "base/mem.h"
#include "base/rng.h"
#include "formats/tensor_set.h"

/* One tensor: where its name has {}, one a layer. */
typedef struct Row {
    const char *name;
    int rank;
    uint64_t rows, columns;
    bool gain;      /* a norm's: near one, f32 */
    int rope_heads; /* llama.cpp's order of rows, in quantised models */
} Row;

typedef struct Writer {
    RandomModel *m;
    uint64_t seed, counter;
    LgError *err;
    LgStatus status;
} Writer;

static float signed_unit(Writer *w) {
    return rng_unit(w->seed, w->counter++) * 2 - 1;
}

/* `count` elements (whole blocks) of values up to about `size`. */
static void random_elements(Writer *w, DType dtype, float size, unsigned char *out, size_t count) {
    const DTypeInfo *info = dtype_info(dtype);
    for (size_t i = 0; i < count; i += info->block_elems, out += info->block_bytes) {
        float f = size * signed_unit(w);
        uint16_t half = dtype == DTYPE_BF16 ? bf16_from_float(f) : f16_from_float(f);
        if (info->block_elems == 1) {
            memcpy(out, info->block_bytes == 4 ? (void *)&f : (void *)&half, info->block_bytes);
            continue;
        }
        /* Blocks: a scale, for some a least value, then codes of any bits. */
        uint16_t step = f16_from_float(size / (dtype == DTYPE_Q8_0 ? 127 : 8) *
                                       (0.5f + rng_unit(w->seed, w->counter++)));
        uint16_t least = f16_from_float(-size * rng_unit(w->seed, w->counter++));
        for (size_t k = 0; k < info->block_bytes; k++)
            out[k] = (unsigned char)rng_u64(w->seed, w->counter++);
        memcpy(out, &step, sizeof step);
        if (dtype == DTYPE_Q4_1)
            memcpy(out + sizeof step, &least, sizeof least);
    }
}

static void put_tensor(Writer *w, const Row *row, int layer) {
    char name[128];
    const char *mark = strstr(row->name, "{}");
    if (mark)
        snprintf(name, sizeof name, "%.*s%d%s", (int)(mark - row->name), row->name, layer,
                 mark + 2);
    else
        snprintf(name, sizeof name, "%s", row->name);
    Tensor t = {.name = lg_str(name), .dtype = row->gain ? DTYPE_F32 : w->m->shape.dtype};
    t.rank = row->rank;
    t.shape[0] = row->rank > 1 ? row->rows : row->columns;
    t.shape[1] = row->columns;
    uint64_t row_bytes = 0;
    if (!dtype_row_bytes(t.dtype, row->columns, &row_bytes)) {
        w->status = lg_fail(w->err, LG_BAD_INPUT, 0, "%s: no whole blocks", name);
        return;
    }
    t.bytes = row_bytes * row->rows;
    bool blocks = dtype_info(t.dtype)->block_elems > 1;
    t.rope_heads = blocks ? (uint32_t)row->rope_heads : 0;
    unsigned char *data = arena_alloc(&w->m->arena, (size_t)t.bytes);
    if (!data) {
        w->status = lg_fail_memory(w->err);
        return;
    }
    t.data = data;
    float size = (float)(1.7 / sqrt((double)(row->rank > 1 ? row->columns : 4)));
    random_elements(w, t.dtype, size, data, (size_t)(row->rows * row->columns));
    for (uint64_t i = 0; row->gain && i < row->columns; i++) {
        float f = 1 + 0.3f * signed_unit(w);
        memcpy(data + i * sizeof f, &f, sizeof f);
    }
    w->status = tensor_set_add(w->m->tensors, "random model", &t, w->err);
}

static void put_all(Writer *w) {
    const RandomShape *s = &w->m->shape;
    uint64_t e = (uint64_t)s->hidden, d = (uint64_t)s->head_dim, f = (uint64_t)s->ffn;
    uint64_t kv = (uint64_t)s->kv_heads * d, q = kv * (uint64_t)s->group, v = (uint64_t)s->vocab;
    bool qwen3 = strcmp(s->page, "qwen3.lg") == 0;
    const int kv_heads = s->kv_heads, heads = s->kv_heads * s->group;
    const Row rows[] = {
        {"model.embed_tokens.weight", 2, v, e, false, 0},
        {"model.norm.weight", 1, 1, e, true, 0},
        {s->tied ? NULL : "lm_head.weight", 2, v, e, false, 0},
        {"model.layers.{}.input_layernorm.weight", 1, 1, e, true, 0},
        {"model.layers.{}.self_attn.q_proj.weight", 2, q, e, false, heads},
        {"model.layers.{}.self_attn.k_proj.weight", 2, kv, e, false, kv_heads},
        {"model.layers.{}.self_attn.v_proj.weight", 2, kv, e, false, 0},
        {"model.layers.{}.self_attn.o_proj.weight", 2, e, q, false, 0},
        {qwen3 ? "model.layers.{}.self_attn.q_norm.weight" : NULL, 1, 1, d, true, 0},
        {qwen3 ? "model.layers.{}.self_attn.k_norm.weight" : NULL, 1, 1, d, true, 0},
        {"model.layers.{}.post_attention_layernorm.weight", 1, 1, e, true, 0},
        {"model.layers.{}.mlp.gate_proj.weight", 2, f, e, false, 0},
        {"model.layers.{}.mlp.up_proj.weight", 2, f, e, false, 0},
        {"model.layers.{}.mlp.down_proj.weight", 2, e, f, false, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int count = rows[i].name && strstr(rows[i].name, "{}") ? s->layers : 1;
        for (int layer = 0; rows[i].name && layer < count && w->status == LG_OK; layer++)
            put_tensor(w, &rows[i], layer);
    }
}

static LgStatus make_tensors(RandomModel *m, uint64_t seed, LgError *err) {
    Writer w = {.m = m, .seed = seed, .err = err, .status = LG_OK};
    m->tensors = tensor_set_create();
    if (!m->tensors)
        return lg_fail_memory(err);
    put_all(&w);
    return w.status;
}

static LgStatus fill_config(RandomModel *m, LgError *err) {
    const RandomShape *s = &m->shape;
    Config *c = m->config;
    const struct {
        const char *key;
        int64_t value;
    } ints[] = {{"vocab_size", s->vocab},
                {"hidden_size", s->hidden},
                {"num_hidden_layers", s->layers},
                {"num_key_value_heads", s->kv_heads},
                {"num_attention_heads", (int64_t)s->kv_heads * s->group},
                {"head_dim", s->head_dim},
                {"intermediate_size", s->ffn}};
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++)
        LG_TRY(config_set_int(c, ints[i].key, ints[i].value, err));
    LG_TRY(config_set_real(c, "rms_norm_eps", 1e-5, err));
    LG_TRY(config_set_real(c, "rope_theta", 10000, err));
    LG_TRY(config_set_str(c, "hidden_act", LG_STR("silu"), err));
    LG_TRY(config_set_bool(c, "attention_bias", false, err));
    LG_TRY(config_set_bool(c, "tie_word_embeddings", s->tied, err));
    if (strcmp(s->page, "qwen3.lg") == 0)
        return config_set_bool(c, "use_sliding_window", false, err);
    LG_TRY(config_set_bool(c, "mlp_bias", false, err));
    if (!s->llama3)
        return LG_OK;
    LG_TRY(config_set_str(c, "rope_scaling.rope_type", LG_STR("llama3"), err));
    LG_TRY(config_set_real(c, "rope_scaling.factor", 8, err));
    LG_TRY(config_set_real(c, "rope_scaling.low_freq_factor", 1, err));
    LG_TRY(config_set_real(c, "rope_scaling.high_freq_factor", 4, err));
    return config_set_real(c, "rope_scaling.original_max_position_embeddings", 64, err);
}

static LgStatus compile(RandomModel *m, LgError *err) {
    const LgEmbedded *page = lg_models;
    while (page->name && strcmp(page->name, m->shape.page) != 0)
        page++;
    if (!page->name)
        return lg_fail(err, LG_NOT_FOUND, 0, "no page %s", m->shape.page);
    LangProgram *plain, *program;
    Binding *binding;
    LG_TRY(lang_compile((LgStr){page->data, page->size}, page->name, m->config, &m->arena, &plain,
                        err));
    LG_TRY(lang_rewrite_lora(plain, &m->arena, &program, err));
    LG_TRY(bind_params(program, m->tensors, &m->arena, &binding, err));
    m->program = program;
    m->binding = binding;
    return LG_OK;
}

LgStatus random_model_make(const RandomShape *shape, uint64_t seed, RandomModel *out,
                           LgError *err) {
    *out = (RandomModel){.shape = *shape, .config = config_create()};
    arena_init(&out->arena);
    LgStatus status = out->config ? fill_config(out, err) : lg_fail_memory(err);
    if (status == LG_OK)
        status = make_tensors(out, seed, err);
    if (status == LG_OK)
        status = compile(out, err);
    if (status != LG_OK)
        random_model_clear(out);
    return status;
}

void random_model_clear(RandomModel *m) {
    tensor_set_close(m->tensors);
    config_destroy(m->config);
    arena_clear(&m->arena);
    *m = (RandomModel){0};
}

static uint64_t axis(const LangProgram *p, const LangTensor *t, int index) {
    uint64_t size = 1;
    for (int i = t->axis_start[index]; i < t->axis_start[index + 1]; i++)
        size *= p->dims[t->dims[i]].size;
    return size;
}

LgStatus random_adapter_make(const RandomModel *m, uint64_t seed, int32_t rank_max, bool store_f32,
                             RandomAdapter *out, LgError *err) {
    const LangProgram *p = m->program;
    int layers = p->layer_count > 0 ? p->layer_count : 1;
    size_t site_total = (size_t)layers * (size_t)p->site_count, need = 0, used = 0;
    *out = (RandomAdapter){0};
    for (int i = 0; i < p->site_count; i++) {
        const LangTensor *w = &p->tensors[p->sites[i].param];
        need += (size_t)((axis(p, w, 0) + axis(p, w, w->axis_count - 1)) * (uint64_t)rank_max) *
                (size_t)layers;
    }
    out->sites = lg_calloc(site_total, sizeof *out->sites);
    out->numbers = lg_alloc_array(need, sizeof *out->numbers);
    if (!out->sites || !out->numbers) {
        random_adapter_clear(out);
        return lg_fail_memory(err);
    }
    for (size_t k = 0; k < site_total; k++) {
        const LangSite *site = &p->sites[k % (size_t)p->site_count];
        const LangTensor *w = &p->tensors[site->param];
        /* Of a table the looked-up axis is A's; otherwise A meets the input axis, which is w's
         * last. */
        uint64_t rows = axis(p, w, 0), columns = axis(p, w, w->axis_count - 1);
        uint64_t in = site->lookup ? rows : columns, to = site->lookup ? columns : rows;
        int32_t rank = (int32_t)(rng_u64(seed, k) % (uint64_t)(rank_max + 1));
        if (!site->in_layer && k >= (size_t)p->site_count)
            rank = 0;
        float *a = out->numbers + used, *b = a + in * (uint64_t)rank;
        for (uint64_t i = 0; i < (in + to) * (uint64_t)rank; i++) {
            double u = (double)rng_unit(seed + 1, used + i) * 2 - 1;
            float f = (float)(u / sqrt((double)(i < in * (uint64_t)rank ? in : (uint64_t)rank)));
            a[i] = store_f32 ? f : bf16_round(f);
        }
        used += (size_t)((in + to) * (uint64_t)rank);
        out->sites[k] = (AdapterSite){.rank = rank, .a = a, .b = b, .scale = 0.5f + (float)(k % 3)};
    }
    out->data = (AdapterData){.site_count = p->site_count,
                              .layer_count = layers,
                              .sites = out->sites,
                              .store_f32 = store_f32,
                              .bytes = used * sizeof(float)};
    return LG_OK;
}

void random_adapter_clear(RandomAdapter *a) {
    lg_free(a->sites);
    lg_free(a->numbers);
    *a = (RandomAdapter){0};
}
