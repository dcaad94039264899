#include "tests/e2e/random_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
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
    bool gain;        /* a norm's: near one, f32 */
    int rope_heads;   /* llama.cpp's order of rows, in quantised models */
    uint64_t experts; /* rank 3: the first axis; rank 2: tensors by the name's "@"; 0: one */
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

/* Where blocks have their f16 numbers (least -1: none), and the largest that the scale is times. */
static const struct {
    DType dtype;
    int step, least, largest;
} block_places[] = {
    {DTYPE_Q8_0, 0, -1, 127}, {DTYPE_Q4_0, 0, -1, 8},      {DTYPE_Q4_1, 0, 2, 8},
    {DTYPE_Q5_1, 0, 2, 16},   {DTYPE_Q4_K, 0, 2, 63 * 15}, {DTYPE_Q6_K, 208, -1, 127 * 32},
    {DTYPE_Q2_K, 80, 82, 45}, {DTYPE_IQ4_NL, 0, -1, 127},
};

/* A scale, for some a least value, then codes of any bits. */
static void random_block(Writer *w, const DTypeInfo *info, DType dtype, float size,
                         unsigned char *out) {
    size_t at = 0;
    while (block_places[at].dtype != dtype)
        at++;
    float u = rng_unit(w->seed, w->counter++);
    uint16_t step = f16_from_float(size / (float)block_places[at].largest * (0.5f + u));
    float most = info->block_elems > 32 ? 1.0f / 63 : -1; /* subtracted, times a small number */
    uint16_t least = f16_from_float(most * size * rng_unit(w->seed, w->counter++));
    for (size_t k = 0; k < info->block_bytes; k++)
        out[k] = (unsigned char)rng_u64(w->seed, w->counter++);
    memcpy(out + block_places[at].step, &step, sizeof step);
    if (block_places[at].least >= 0)
        memcpy(out + block_places[at].least, &least, sizeof least);
}

/* `count` elements (whole blocks) of values up to about `size`. */
static void random_elements(Writer *w, DType dtype, float size, unsigned char *out, size_t count) {
    const DTypeInfo *info = dtype_info(dtype);
    for (size_t i = 0; i < count; i += info->block_elems, out += info->block_bytes) {
        float f = size * signed_unit(w);
        uint16_t half = dtype == DTYPE_BF16 ? bf16_from_float(f) : f16_from_float(f);
        if (info->block_elems > 1)
            random_block(w, info, dtype, size, out);
        else
            memcpy(out, info->block_bytes == 4 ? (void *)&f : (void *)&half, info->block_bytes);
    }
}

/* "{}" stands for the layer, "@" for the expert. */
static void spell(const char *name, int layer, uint64_t expert, char *out, size_t size) {
    size_t n = 0;
    for (const char *p = name; *p && n + 24 < size; p++) {
        if (p[0] == '{')
            n += (size_t)snprintf(out + n, size - n, "%d", layer);
        else if (p[0] == '@')
            n += (size_t)snprintf(out + n, size - n, "%llu", (unsigned long long)expert);
        else if (p[0] != '}')
            out[n++] = *p;
    }
    out[n] = 0;
}

static void put_tensor(Writer *w, const Row *row, int layer, uint64_t expert) {
    char name[128];
    spell(row->name, layer, expert, name, sizeof name);
    Tensor t = {.name = lg_str(name), .dtype = row->gain ? DTYPE_F32 : w->m->shape.dtype};
    t.rank = row->rank;
    t.shape[0] = row->rank > 1 ? row->rows : row->columns;
    t.shape[1] = row->columns;
    if (row->rank == 3) {
        t.shape[0] = row->experts;
        t.shape[1] = row->rows / row->experts;
        t.shape[2] = row->columns;
    }
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
    bool qwen3 = strncmp(s->page, "qwen3", 5) == 0;
    const int kv_heads = s->kv_heads, heads = s->kv_heads * s->group;
    const uint64_t x = (uint64_t)s->experts;
    const bool dense = x == 0, each = x && !s->fused, fused = x && s->fused;
    const Row rows[] = {
        {"model.embed_tokens.weight", 2, v, e, false, 0, 0},
        {"model.norm.weight", 1, 1, e, true, 0, 0},
        {s->tied ? NULL : "lm_head.weight", 2, v, e, false, 0, 0},
        {"model.layers.{}.input_layernorm.weight", 1, 1, e, true, 0, 0},
        {"model.layers.{}.self_attn.q_proj.weight", 2, q, e, false, heads, 0},
        {"model.layers.{}.self_attn.k_proj.weight", 2, kv, e, false, kv_heads, 0},
        {"model.layers.{}.self_attn.v_proj.weight", 2, kv, e, false, 0, 0},
        {"model.layers.{}.self_attn.o_proj.weight", 2, e, q, false, 0, 0},
        {qwen3 ? "model.layers.{}.self_attn.q_norm.weight" : NULL, 1, 1, d, true, 0, 0},
        {qwen3 ? "model.layers.{}.self_attn.k_norm.weight" : NULL, 1, 1, d, true, 0, 0},
        {"model.layers.{}.post_attention_layernorm.weight", 1, 1, e, true, 0, 0},
        {dense ? "model.layers.{}.mlp.gate_proj.weight" : NULL, 2, f, e, false, 0, 0},
        {dense ? "model.layers.{}.mlp.up_proj.weight" : NULL, 2, f, e, false, 0, 0},
        {dense ? "model.layers.{}.mlp.down_proj.weight" : NULL, 2, e, f, false, 0, 0},
        {x ? "model.layers.{}.mlp.gate.weight" : NULL, 2, x, e, false, 0, 0},
        {each ? "model.layers.{}.mlp.experts.@.gate_proj.weight" : NULL, 2, f, e, false, 0, x},
        {each ? "model.layers.{}.mlp.experts.@.up_proj.weight" : NULL, 2, f, e, false, 0, x},
        {each ? "model.layers.{}.mlp.experts.@.down_proj.weight" : NULL, 2, e, f, false, 0, x},
        {fused ? "model.layers.{}.mlp.experts.gate_up_proj" : NULL, 3, x * 2 * f, e, false, 0, x},
        {fused ? "model.layers.{}.mlp.experts.down_proj" : NULL, 3, x * e, f, false, 0, x},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int count = rows[i].name && strstr(rows[i].name, "{}") ? s->layers : 1;
        uint64_t experts = rows[i].rank == 2 && rows[i].experts ? rows[i].experts : 1;
        for (int layer = 0; rows[i].name && layer < count; layer++)
            for (uint64_t expert = 0; expert < experts && w->status == LG_OK; expert++)
                put_tensor(w, &rows[i], layer, expert);
    }
}

static uint64_t axis(const LangProgram *p, const LangTensor *t, int index) {
    uint64_t size = 1;
    for (int i = t->axis_start[index]; i < t->axis_start[index + 1]; i++)
        size *= p->dims[t->dims[i]].size;
    return size;
}

static bool named(const LangTensor *t, LgStr name) {
    return t->kind == LANG_PARAM && t->source_count > 0 &&
           t->sources[0].kind == LANG_SOURCE_TENSOR && lg_str_eq(t->sources[0].name, name);
}

/* The stored tensor that a param names first; windows of one tensor make it together. */
static void put_param(Writer *w, const LangProgram *p, int id) {
    const LangTensor *t = &p->tensors[id];
    if (t->kind != LANG_PARAM || !named(t, t->sources[0].name))
        return;
    const char *source = arena_strdup(&w->m->arena, t->sources[0].name);
    if (!source) {
        w->status = lg_fail_memory(w->err);
        return;
    }
    char name[128];
    const char *hole = strstr(source, "{l}");
    snprintf(name, sizeof name, "%.*s%s%s", hole ? (int)(hole - source) : 127, source,
             hole ? "{}" : "", hole ? hole + 3 : "");
    Row row = {.name = name,
               .rank = t->axis_count,
               .columns = axis(p, t, t->axis_count - 1),
               .gain = strstr(source, "norm") != NULL};
    for (int i = 0; i < p->tensor_count; i++) {
        if (!named(&p->tensors[i], t->sources[0].name))
            continue;
        if (i < id)
            return;
        row.rows += t->axis_count > 1 ? axis(p, &p->tensors[i], 0) : 1;
    }
    for (int layer = 0; layer < (t->in_layer ? p->layer_count : 1) && w->status == LG_OK; layer++)
        put_tensor(w, &row, layer, 0);
}

static LgStatus make_tensors(RandomModel *m, const LangProgram *p, uint64_t seed, LgError *err) {
    Writer w = {.m = m, .seed = seed, .err = err, .status = LG_OK};
    m->tensors = tensor_set_create();
    if (!m->tensors)
        return lg_fail_memory(err);
    if (!m->shape.keys)
        put_all(&w);
    for (int id = 0; m->shape.keys && id < p->tensor_count && w.status == LG_OK; id++)
        put_param(&w, p, id);
    return w.status;
}

static LgStatus fill_key(Config *c, const char *key, const char *value, LgError *err) {
    if (value[0] == '\'')
        return config_set_str(c, key, (LgStr){value + 1, strlen(value) - 2}, err);
    if (strcmp(value, "true") == 0 || strcmp(value, "false") == 0)
        return config_set_bool(c, key, value[0] == 't', err);
    return strchr(value, '.') ? config_set_real(c, key, strtod(value, NULL), err)
                              : config_set_int(c, key, strtol(value, NULL, 10), err);
}

static LgStatus fill_keys(const char *keys, Config *c, LgError *err) {
    char key[64], value[64];
    for (int used = 0; sscanf(keys, " %63[^=]=%63s%n", key, value, &used) == 2; keys += used)
        LG_TRY(fill_key(c, key, value, err));
    return LG_OK;
}

static LgStatus fill_moe_config(const RandomShape *s, Config *c, LgError *err) {
    LG_TRY(config_set_int(c, "num_experts", s->experts, err));
    LG_TRY(config_set_int(c, "num_experts_per_tok", s->chosen, err));
    LG_TRY(config_set_int(c, "moe_intermediate_size", s->ffn, err));
    LG_TRY(config_set_int(c, "decoder_sparse_step", 1, err));
    const ConfigValue none = {.kind = CONFIG_LIST};
    LG_TRY(config_set(c, LG_STR("mlp_only_layers"), &none, err));
    return config_set_bool(c, "norm_topk_prob", s->chosen % 2 == 0, err);
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
                {"max_position_embeddings", 4096},
                {s->experts ? NULL : "intermediate_size", s->ffn}};
    for (size_t i = 0; i < sizeof ints / sizeof ints[0] && ints[i].key; i++)
        LG_TRY(config_set_int(c, ints[i].key, ints[i].value, err));
    LG_TRY(config_set_real(c, "rms_norm_eps", 1e-5, err));
    LG_TRY(config_set_real(c, "rope_theta", 10000, err));
    LG_TRY(config_set_bool(c, "attention_bias", false, err));
    LG_TRY(config_set_bool(c, "tie_word_embeddings", s->tied, err));
    if (s->keys)
        return fill_keys(s->keys, c, err);
    LG_TRY(config_set_str(c, "hidden_act", LG_STR("silu"), err));
    if (s->experts)
        LG_TRY(fill_moe_config(s, c, err));
    if (strncmp(s->page, "qwen3", 5) == 0)
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

static LgStatus compile(RandomModel *m, uint64_t seed, LgError *err) {
    const LgEmbedded *page = lg_models;
    while (page->name && strcmp(page->name, m->shape.page) != 0)
        page++;
    if (!page->name)
        return lg_fail(err, LG_NOT_FOUND, 0, "no page %s", m->shape.page);
    LangProgram *plain, *program;
    Binding *binding;
    LG_TRY(lang_compile((LgStr){page->data, page->size}, page->name, m->config, &m->arena, &plain,
                        err));
    LG_TRY(make_tensors(m, plain, seed, err));
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
        status = compile(out, seed, err);
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

typedef struct SiteAxes {
    uint64_t in, out, experts; /* 0: one weight */
} SiteAxes;

/* Of a table the looked-up axis is A's; otherwise A meets the input axis, which is w's last. */
static SiteAxes site_axes(const LangProgram *p, int site) {
    const LangTensor *w = &p->tensors[p->sites[site].param];
    uint64_t experts = w->axis_count > 2 ? axis(p, w, 0) : 0;
    uint64_t rows = axis(p, w, experts ? 1 : 0), columns = axis(p, w, w->axis_count - 1);
    bool lookup = p->sites[site].lookup;
    return (SiteAxes){lookup ? rows : columns, lookup ? columns : rows, experts};
}

typedef struct Drawing {
    RandomAdapter *out;
    uint64_t seed;
    size_t used, experts_used;
    bool store_f32;
} Drawing;

static AdapterSite draw_site(Drawing *d, const SiteAxes *axes, int32_t rank, float scale) {
    float *a = d->out->numbers + d->used, *b = a + axes->in * (uint64_t)rank;
    for (uint64_t i = 0; i < (axes->in + axes->out) * (uint64_t)rank; i++) {
        double u = (double)rng_unit(d->seed + 1, d->used + i) * 2 - 1;
        double fan = (double)(i < axes->in * (uint64_t)rank ? axes->in : (uint64_t)rank);
        float f = (float)(u / sqrt(fan));
        a[i] = d->store_f32 ? f : bf16_round(f);
    }
    d->used += (size_t)((axes->in + axes->out) * (uint64_t)rank);
    return (AdapterSite){.rank = rank, .a = a, .b = b, .scale = scale};
}

/* Every expert has a rank and a scale of its own. */
static AdapterSite draw_experts(Drawing *d, const SiteAxes *axes, int32_t rank_max, size_t k) {
    AdapterSite *experts = d->out->experts + d->experts_used, whole = {.experts = experts};
    d->experts_used += axes->experts;
    for (uint64_t x = 0; x < axes->experts; x++) {
        int32_t rank = (int32_t)(rng_u64(d->seed, 1000 + k * 64 + x) % (uint64_t)(rank_max + 1));
        experts[x] = draw_site(d, axes, rank, 0.5f + (float)((k + x) % 3));
        whole.rank = rank > whole.rank ? rank : whole.rank;
    }
    return whole;
}

LgStatus random_adapter_make(const RandomModel *m, uint64_t seed, int32_t rank_max, bool store_f32,
                             RandomAdapter *out, LgError *err) {
    const LangProgram *p = m->program;
    int layers = p->layer_count > 0 ? p->layer_count : 1;
    size_t site_total = (size_t)layers * (size_t)p->site_count, need = 0, experts = 0;
    *out = (RandomAdapter){0};
    for (int i = 0; i < p->site_count; i++) {
        SiteAxes axes = site_axes(p, i);
        need += (size_t)((axes.in + axes.out) * (axes.experts ? axes.experts : 1)) *
                (size_t)rank_max * (size_t)layers;
        experts += (size_t)axes.experts * (size_t)layers;
    }
    out->sites = lg_calloc(site_total, sizeof *out->sites);
    out->experts = lg_calloc(experts + 1, sizeof *out->experts);
    out->numbers = lg_alloc_array(need, sizeof *out->numbers);
    if (!out->sites || !out->experts || !out->numbers) {
        random_adapter_clear(out);
        return lg_fail_memory(err);
    }
    Drawing d = {.out = out, .seed = seed, .store_f32 = store_f32};
    for (size_t k = 0; k < site_total; k++) {
        int site = (int)(k % (size_t)p->site_count);
        SiteAxes axes = site_axes(p, site);
        int32_t rank = (int32_t)(rng_u64(seed, k) % (uint64_t)(rank_max + 1));
        if (!p->sites[site].in_layer && k >= (size_t)p->site_count)
            rank = 0;
        out->sites[k] = axes.experts ? draw_experts(&d, &axes, rank_max, k)
                                     : draw_site(&d, &axes, rank, 0.5f + (float)(k % 3));
    }
    out->data = (AdapterData){.site_count = p->site_count,
                              .layer_count = layers,
                              .sites = out->sites,
                              .store_f32 = store_f32,
                              .bytes = d.used * sizeof(float)};
    return LG_OK;
}

void random_adapter_clear(RandomAdapter *a) {
    lg_free(a->sites);
    lg_free(a->experts);
    lg_free(a->numbers);
    *a = (RandomAdapter){0};
}
