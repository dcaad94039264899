/* Only what changes no weight's meaning passes by: a row a key, with the values that are served.
 * Activations are not rounded here, whatever the config would have done to them; what it says of
 * them has to be something that needs no tensor (dynamic). */
#include "formats/hf_quantization.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "formats/tensor_set.h"

#define STEM "quantization_config."
#define COLUMNS_MULTIPLE 32

/* key: behind quantization_config; "*" is one part of a key, or at the end all of the rest.  The
 * first row that matches holds.  values: as JSON, between bars; NULL: any. */
typedef struct AcceptedRow {
    const char *method, *key, *values;
} AcceptedRow;

static const AcceptedRow accepted[] = {
    {"fp8", "quant_method", NULL},
    {"fp8", "fmt", "|\"e4m3\"|"},
    {"fp8", "activation_scheme", "|\"dynamic\"|"},
    {"fp8", "weight_block_size", NULL},
    {"fp8", "modules_to_not_convert", NULL}, /* the tensors' types say it */
    {"fp8", "dequantize", "|false|"},
    {"compressed-tensors", "quant_method", NULL},
    {"compressed-tensors", "format", "|\"float-quantized\"|"},
    {"compressed-tensors", "quantization_status", "|\"compressed\"|\"frozen\"|"},
    {"compressed-tensors", "ignore", NULL},
    {"compressed-tensors", "version", NULL},
    {"compressed-tensors", "global_compression_ratio", NULL},
    {"compressed-tensors", "config_groups.*.targets", NULL},
    {"compressed-tensors", "config_groups.*.format", "|\"float-quantized\"|"},
    {"compressed-tensors", "config_groups.*.weights.num_bits", "|8|"},
    {"compressed-tensors", "config_groups.*.weights.type", "|\"float\"|"},
    {"compressed-tensors", "config_groups.*.weights.symmetric", "|true|"},
    {"compressed-tensors", "config_groups.*.weights.dynamic", "|false|"},
    {"compressed-tensors", "config_groups.*.weights.strategy",
     "|\"channel\"|\"tensor\"|\"block\"|"},
    {"compressed-tensors", "config_groups.*.weights.block_structure", NULL},
    {"compressed-tensors", "config_groups.*.weights.scale_dtype", NULL},
    {"compressed-tensors", "config_groups.*.weights.zp_dtype", NULL},
    {"compressed-tensors", "config_groups.*.weights.observer*", NULL},
    {"compressed-tensors", "config_groups.*.input_activations.dynamic", "|true|"},
    {"compressed-tensors", "config_groups.*.input_activations.*", NULL},
};

typedef struct Claimer {
    const char *what;
    Config *config;
    LgError *err;
} Claimer;

static bool key_matches(const char *pattern, LgStr key) {
    size_t at = 0;
    for (; *pattern; pattern++) {
        if (*pattern == '*') {
            if (!pattern[1])
                return true;
            while (at < key.len && key.ptr[at] != '.')
                at++;
        } else if (at == key.len || key.ptr[at++] != *pattern) {
            return false;
        }
    }
    return at == key.len;
}

static LgStatus fail_value(const Claimer *c, LgStr key, const ConfigValue *v, const char *served) {
    Buf value, shown, list;
    buf_init(&value);
    buf_init(&shown);
    buf_init(&list);
    config_value_print(v, &value);
    buf_printable(&shown, buf_view(&value), 80);
    for (const char *p = served + 1; *p; p++)
        if (*p != '|')
            buf_putc(&list, *p);
        else if (p[1])
            buf_puts(&list, " or ");
    LgStatus status = lg_fail(c->err, LG_BAD_INPUT, 0, "%s: %.*s is %s; %s is served", c->what,
                              (int)(key.len < 120 ? key.len : 120), key.ptr, shown.data, list.data);
    buf_clear(&value);
    buf_clear(&shown);
    buf_clear(&list);
    return status;
}

static LgStatus accept_key(const Claimer *c, LgStr method, LgStr key, const ConfigValue *v) {
    LgStr rest = lg_str_sub(key, sizeof STEM - 1, key.len);
    for (size_t i = 0; i < sizeof accepted / sizeof accepted[0]; i++) {
        const AcceptedRow *row = &accepted[i];
        if (!lg_str_eq_c(method, row->method) || !key_matches(row->key, rest))
            continue;
        if (!row->values)
            return LG_OK;
        Buf text;
        buf_init(&text);
        buf_putc(&text, '|');
        config_value_print(v, &text);
        buf_putc(&text, '|');
        LgStatus status = LG_OK;
        if (text.failed)
            status = lg_fail_memory(c->err);
        else if (!strstr(row->values, text.data))
            status = fail_value(c, key, v, row->values);
        buf_clear(&text);
        return status;
    }
    Buf shown;
    buf_init(&shown);
    buf_printable(&shown, key, 120);
    LgStatus status =
        lg_fail(c->err, LG_BAD_INPUT, 0, "%s: its key %s is not known, and may change every weight",
                c->what, shown.data);
    buf_clear(&shown);
    return status;
}

static bool block_of(const ConfigValue *v, HfQuantization *out) {
    if (v->kind != CONFIG_LIST || v->count != 2)
        return false;
    for (int i = 0; i < 2; i++)
        if (v->items[i].kind != CONFIG_INT || v->items[i].integer < 1 ||
            v->items[i].integer > INT32_MAX)
            return false;
    HfQuantization found = {(uint64_t)v->items[0].integer, (uint64_t)v->items[1].integer};
    bool same = !out->block_rows ||
                (out->block_rows == found.block_rows && out->block_columns == found.block_columns);
    *out = found;
    return same;
}

static LgStatus take_key(const Claimer *c, LgStr method, size_t index, HfQuantization *out) {
    LgStr key = config_key(c->config, index);
    const ConfigValue *v = config_value(c->config, index);
    bool block = lg_str_ends(key, ".weight_block_size") || lg_str_ends(key, ".block_structure");
    if (v->kind == CONFIG_NULL)
        return LG_OK;
    LG_TRY(accept_key(c, method, key, v));
    if (block && !block_of(v, out))
        return lg_fail(c->err, LG_BAD_INPUT, 0,
                       "%s: %.*s is no pair of sizes, the same for all groups", c->what,
                       (int)key.len, key.ptr);
    return LG_OK;
}

static LgStatus method_of(const Claimer *c, LgStr *method) {
    const ConfigValue *v = config_get_c(c->config, STEM "quant_method");
    *method = v && v->kind == CONFIG_STRING ? v->string : LG_STR("");
    for (size_t i = 0; i < sizeof accepted / sizeof accepted[0]; i++)
        if (lg_str_eq_c(*method, accepted[i].method))
            return LG_OK;
    Buf shown;
    buf_init(&shown);
    buf_printable(&shown, *method, 60);
    LgStatus status = lg_fail(
        c->err, LG_BAD_INPUT, 0,
        "%s: quantization_config.quant_method is \"%s\"; \"fp8\" and \"compressed-tensors\" "
        "are served (f8 matrices with scales), and quantised GGUF files",
        c->what, shown.data);
    buf_clear(&shown);
    return status;
}

LgStatus hf_quantization_claim(Config *config, const char *what, HfQuantization *out,
                               LgError *err) {
    Claimer c = {what, config, err};
    LgStr method;
    *out = (HfQuantization){0};
    if (!config_get_c(config, "quantization_config"))
        return LG_OK;
    LG_TRY(method_of(&c, &method));
    for (size_t i = 0; i < config_count(config); i++)
        if (lg_str_starts(config_key(config, i), STEM))
            LG_TRY(take_key(&c, method, i, out));
    for (size_t i = config_count(config); i-- > 0;)
        if (lg_str_starts(config_key(config, i), STEM))
            config_remove(config, config_key(config, i).ptr);
    return LG_OK;
}

/* ---- tensors ---- */

typedef struct Joiner {
    TensorSet *set;
    const HfQuantization *q;
    const char *what;
    bool *taken; /* [count]: scales that belong to a matrix */
    LgError *err;
} Joiner;

static LgStatus fail_tensor(const Joiner *j, const Tensor *t, const char *fault) {
    Buf shown;
    buf_init(&shown);
    buf_printable(&shown, t->name, 200);
    LgStatus status =
        lg_fail(j->err, LG_BAD_INPUT, 0, "%s: tensor \"%s\": %s", j->what, shown.data, fault);
    buf_clear(&shown);
    return status;
}

/* The index of the matrix's scales; false: it has none. */
static bool find_scales(const Joiner *j, const Tensor *t, Buf *name, uint64_t *index) {
    static const char *const ends[] = {"_scale_inv", "_scale"};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        buf_reset(name);
        buf_str(name, t->name);
        buf_puts(name, ends[i]);
        if (!name->failed && map_get(&j->set->by_name, buf_view(name), index))
            return true;
    }
    return false;
}

static uint64_t parts(uint64_t size, uint64_t part) {
    return size / part + (size % part != 0);
}

/* One for all, one a row, or one a block. */
static bool arrange(const Joiner *j, const Tensor *s, Tensor *t) {
    uint64_t rows = t->shape[0], columns = t->shape[1], count = tensor_elems(s);
    t->scale_columns = columns;
    t->scale_rows = 1;
    t->scale_stride = 1;
    if (count == 1) {
        t->scale_stride = 0;
        return true;
    }
    if (count == rows && s->rank <= 2 && s->shape[0] == rows)
        return true;
    if (s->rank != 2 || !j->q->block_rows || s->shape[0] != parts(rows, j->q->block_rows) ||
        s->shape[1] != parts(columns, j->q->block_columns))
        return false;
    t->scale_rows = j->q->block_rows;
    t->scale_stride = s->shape[1];
    if (s->shape[1] > 1)
        t->scale_columns = j->q->block_columns;
    return true;
}

static LgStatus read_scales(const Joiner *j, const Tensor *s, float *out) {
    size_t count = (size_t)tensor_elems(s);
    dtype_info(s->dtype)->to_f32(s->data, out, count);
    for (size_t i = 0; i < count; i++)
        if (!isfinite(out[i]))
            return fail_tensor(j, s, "a scale is infinite or no number");
    return LG_OK;
}

static LgStatus join(Joiner *j, Tensor *t, Buf *name) {
    uint64_t index;
    if (t->rank != 2 || !lg_str_ends(t->name, ".weight"))
        return fail_tensor(j, t, "only matrices named \"….weight\" are served in F8_E4M3");
    if (t->shape[1] % COLUMNS_MULTIPLE != 0)
        return fail_tensor(j, t, "rows of F8_E4M3 must have a multiple of 32 elements");
    bool found = find_scales(j, t, name, &index);
    if (name->failed)
        return lg_fail_memory(j->err);
    if (!found)
        return fail_tensor(j, t, "it is stored as F8_E4M3 and has no …_scale_inv or …_scale");
    const Tensor *s = &j->set->items[index];
    if (s->dtype != DTYPE_F32 && s->dtype != DTYPE_BF16 && s->dtype != DTYPE_F16)
        return fail_tensor(j, s, "scales are served in F32, BF16 and F16");
    if (!arrange(j, s, t))
        return fail_tensor(j, s,
                           "its shape is neither one scale, nor one a row, nor one for each block "
                           "that the config's weight_block_size or block_structure cuts");
    if (t->scale_columns != t->shape[1] && t->scale_columns % TENSOR_SCALE_COLUMNS != 0)
        return fail_tensor(j, s, "blocks of a multiple of 128 columns are served");
    float *scale = ARENA_ARRAY(&j->set->arena, float, (size_t)tensor_elems(s));
    if (!scale)
        return lg_fail_memory(j->err);
    LG_TRY(read_scales(j, s, scale));
    t->scale = scale;
    j->taken[index] = true;
    return LG_OK;
}

LgStatus hf_quantization_join(TensorSet *set, const HfQuantization *q, const char *what,
                              LgError *err) {
    Joiner j = {.set = set, .q = q, .what = what, .err = err};
    Buf name;
    j.taken = lg_calloc(set->count + 1, sizeof *j.taken);
    if (!j.taken)
        return lg_fail_memory(err);
    buf_init(&name);
    LgStatus status = LG_OK;
    for (size_t i = 0; i < set->count && status == LG_OK; i++)
        if (set->items[i].dtype == DTYPE_F8_E4M3)
            status = join(&j, &set->items[i], &name);
    if (status == LG_OK)
        status = tensor_set_drop(set, j.taken, err);
    buf_clear(&name);
    lg_free(j.taken);
    return status;
}
