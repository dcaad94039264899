/* What the tests of adapters share: a small program made by hand (sites, modules, a binding),
 * adapter files made in memory, and looking into a report. */
#ifndef LG_TEST_LORA_FIXTURE_H
#define LG_TEST_LORA_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/float.h"
#include "base/json.h"
#include "base/mem.h"
#include "formats/safetensors.h"
#include "lora/peft.h"

/* ---- a model ---- */

typedef struct ModelDims {
    int layers;
    uint64_t vocab, hidden, q, kv, ffn;
} ModelDims;

static const ModelDims tiny_qwen3 = {4, 2048, 128, 128, 64, 384};
/* Small enough to write numbers by hand; q|k|v are windows of one stored tensor where `fused`. */
static const ModelDims toy = {2, 6, 4, 3, 2, 5};

enum { EMB, HEAD, WQ, WK, WV, WO, WG, WU, WD, PARAM_COUNT };

typedef struct Model {
    Arena arena;
    LangProgram program;
    Binding binding;
    LangDim dims[2 * PARAM_COUNT];
    LangTensor tensors[PARAM_COUNT];
    LangSite sites[PARAM_COUNT];
    ParamBinding *params;
    AdapterOptions options;
} Model;

typedef struct ParamRow {
    const char *name, *module;
    uint64_t rows, columns;
} ParamRow;

static inline LgStr layer_name(Arena *arena, LgStr module, int layer, const char *tail) {
    Buf text;
    buf_init(&text);
    const char *open = memchr(module.ptr, '{', module.len);
    if (open) {
        buf_append(&text, module.ptr, (size_t)(open - module.ptr));
        buf_printf(&text, "%d", layer);
        buf_str(&text, lg_str_sub(module, (size_t)(open + 3 - module.ptr), module.len));
    } else {
        buf_str(&text, module);
    }
    buf_puts(&text, tail);
    LgStr copy = arena_str(arena, buf_view(&text));
    buf_clear(&text);
    assert_non_null(copy.ptr);
    return copy;
}

/* weights: NULL (every weight is the constant 0.5), or a checkpoint's tensors by their usual names
 * (a head that is not there is tied). */
static inline void model_init(Model *m, const ModelDims *d, const TensorSet *weights) {
    const ParamRow rows[PARAM_COUNT] = {
        [EMB] = {"emb", "model.embed_tokens", d->vocab, d->hidden},
        [HEAD] = {"head", "lm_head", d->vocab, d->hidden},
        [WQ] = {"wq", "model.layers.{l}.self_attn.q_proj", d->q, d->hidden},
        [WK] = {"wk", "model.layers.{l}.self_attn.k_proj", d->kv, d->hidden},
        [WV] = {"wv", "model.layers.{l}.self_attn.v_proj", d->kv, d->hidden},
        [WO] = {"wo", "model.layers.{l}.self_attn.o_proj", d->hidden, d->q},
        [WG] = {"wg", "model.layers.{l}.mlp.gate_proj", d->ffn, d->hidden},
        [WU] = {"wu", "model.layers.{l}.mlp.up_proj", d->ffn, d->hidden},
        [WD] = {"wd", "model.layers.{l}.mlp.down_proj", d->hidden, d->ffn},
    };
    memset(m, 0, sizeof *m);
    arena_init(&m->arena);
    m->params = ARENA_ARRAY(&m->arena, ParamBinding, (size_t)PARAM_COUNT * (size_t)d->layers);
    assert_non_null(m->params);
    for (int i = 0; i < PARAM_COUNT; i++) {
        bool in_layer = i >= WQ;
        m->dims[2 * i] = (LangDim){.name = LG_STR("rows"), .size = rows[i].rows};
        m->dims[2 * i + 1] = (LangDim){.name = LG_STR("columns"), .size = rows[i].columns};
        m->tensors[i] = (LangTensor){.name = lg_str(rows[i].name),
                                     .kind = LANG_PARAM,
                                     .in_layer = in_layer,
                                     .rank = 2,
                                     .dims = {2 * i, 2 * i + 1},
                                     .axis_count = 2,
                                     .axis_start = {0, 1, 2},
                                     .stack_dim = -1,
                                     .module = lg_str(rows[i].module),
                                     .lora_site = i};
        m->sites[i] = (LangSite){.param = i, .in_layer = in_layer, .lookup = i == EMB};
        for (int l = 0; l < (in_layer ? d->layers : 1); l++) {
            ParamBinding *bound = &m->params[i * d->layers + l];
            *bound = (ParamBinding){.constant = 0.5};
            if (!weights)
                continue;
            LgStr name = layer_name(&m->arena, m->tensors[i].module, l, ".weight");
            bound->tensor = tensor_set_find(weights, name);
            if (!bound->tensor && i == HEAD)
                bound->tensor = m->params[EMB * d->layers].tensor;
            assert_non_null(bound->tensor);
        }
    }
    m->program = (LangProgram){.name = LG_STR("test"),
                               .file = LG_STR("test.lg"),
                               .layer_count = d->layers,
                               .dims = m->dims,
                               .dim_count = 2 * PARAM_COUNT,
                               .tensors = m->tensors,
                               .tensor_count = PARAM_COUNT,
                               .sites = m->sites,
                               .site_count = PARAM_COUNT,
                               .lora_input = -1};
    m->binding = (Binding){.layer_count = d->layers, .params = m->params};
    m->options = (AdapterOptions){.program = &m->program, .binding = &m->binding};
}

static inline void model_clear(Model *m) {
    arena_clear(&m->arena);
}

/* ---- a safetensors file in memory ---- */

typedef struct File {
    Buf header, data, bytes;
    TensorSet *set;
} File;

static inline void file_init(File *f) {
    buf_init(&f->header);
    buf_init(&f->data);
    buf_init(&f->bytes);
    f->set = NULL;
}

static inline void file_clear(File *f) {
    tensor_set_close(f->set);
    buf_clear(&f->header);
    buf_clear(&f->data);
    buf_clear(&f->bytes);
}

static inline void put_element(Buf *out, DType type, float value) {
    uint16_t half = type == DTYPE_BF16 ? bf16_from_float(value) : f16_from_float(value);
    if (type == DTYPE_F32)
        buf_append(out, &value, sizeof value);
    else
        buf_append(out, &half, sizeof half);
}

/* values: NULL fills with small numbers that differ between tensors and elements. columns 0: a
 * vector of `rows`. */
static inline void file_add(File *f, const char *name, DType type, uint64_t rows, uint64_t columns,
                            const float *values) {
    size_t begin = f->data.len;
    uint64_t elems = columns ? rows * columns : rows;
    for (uint64_t i = 0; i < elems; i++)
        put_element(&f->data, type,
                    values ? values[i] : (float)((i * 7 + strlen(name) + begin) % 23) / 64 - 0.17f);
    buf_printf(&f->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%llu", f->header.len ? "," : "",
               name, dtype_info(type)->name, (unsigned long long)rows);
    if (columns)
        buf_printf(&f->header, ",%llu", (unsigned long long)columns);
    buf_printf(&f->header, "],\"data_offsets\":[%zu,%zu]}", begin, f->data.len);
}

static inline const TensorSet *file_set(File *f) {
    LgError err;
    uint64_t length = f->header.len + 2;
    buf_append(&f->bytes, &length, 8);
    buf_printf(&f->bytes, "{%s}", f->header.data);
    buf_append(&f->bytes, f->data.data, f->data.len);
    assert_int_equal(safetensors_parse((const unsigned char *)f->bytes.data, f->bytes.len, "memory",
                                       &f->set, &err),
                     LG_OK);
    return f->set;
}

/* A and B of one module: PREFIX + module + ".lora_A.weight" … */
static inline void file_add_pair(File *f, const char *module, DType type, uint64_t rank,
                                 uint64_t in, uint64_t out) {
    char name[300];
    snprintf(name, sizeof name, "base_model.model.%s.lora_A.weight", module);
    file_add(f, name, type, rank, in, NULL);
    snprintf(name, sizeof name, "base_model.model.%s.lora_B.weight", module);
    file_add(f, name, type, out, rank, NULL);
}

/* ---- loads and what they say ---- */

/* more: further keys of the config, beginning with a comma, or "". */
static inline LgStr config_text(char out[2000], const char *r, const char *alpha,
                                const char *more) {
    snprintf(out, 2000, "{\"peft_type\":\"LORA\"%s%s%s%s%s}", r[0] ? ",\"r\":" : "", r,
             alpha[0] ? ",\"lora_alpha\":" : "", alpha, more);
    return lg_str(out);
}

static inline void assert_contains(const char *text, const char *fragment) {
    if (!strstr(text, fragment))
        fail_msg("\"%s\" does not contain \"%s\"", text, fragment);
}

static inline Adapter *load_ok(const Model *m, const TensorSet *set, LgStr config) {
    Adapter *a = NULL;
    LgError err = {0};
    LgStatus status = adapter_from_memory(config, set, &m->options, &a, &err);
    if (status != LG_OK)
        fail_msg("%s", err.message);
    return a;
}

static inline void load_fails(const Model *m, const TensorSet *set, LgStr config, LgStatus want,
                              const char *fragment) {
    Adapter *a = NULL;
    LgError err = {0};
    LgStatus status = adapter_from_memory(config, set, &m->options, &a, &err);
    if (status == LG_OK)
        fail_msg("loads, but \"%s\" was expected", fragment);
    assert_null(a);
    assert_contains(err.message, fragment);
    assert_int_equal(status, want);
    assert_int_equal(err.status, want);
}

static inline const AdapterSite *site_at(const Adapter *a, int site, int layer) {
    const AdapterData *d = adapter_data(a);
    return &d->sites[layer * d->site_count + site];
}

static inline int adapted_sites(const Adapter *a) {
    const AdapterData *d = adapter_data(a);
    int count = 0;
    for (int i = 0; i < d->site_count * d->layer_count; i++)
        count += d->sites[i].rank > 0;
    return count;
}

/* Whether the report's list has an item with this fragment (of a string, or of an object's "what"
 * or "why"). */
static inline bool report_has(const Adapter *a, const char *list, const char *fragment) {
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(adapter_report(a), list), i, item) {
        const char *what = json_string_value(json_object_get(item, "what"));
        const char *why = json_string_value(json_object_get(item, "why"));
        const char *text = json_string_value(item);
        if ((text && strstr(text, fragment)) || (what && strstr(what, fragment)) ||
            (why && strstr(why, fragment)))
            return true;
    }
    return false;
}

#endif
