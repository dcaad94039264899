/* config.json into flat keys. Writers of different years spell the same thing differently; the
 * table of aliases is the only place that knows it. What is not in the table keeps its dotted name,
 * so that nothing is lost on the way to the check that every key is claimed. */
#include "formats/checkpoint.h"

#include "base/arena.h"
#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"

#define CONFIG_KEYS_MAX 4096

/* A name that ends in "*" stands for all that begin so; the rest is kept. The first row that
 * matches holds. */
typedef struct Alias {
    const char *from, *to;
} Alias;

static const Alias aliases[] = {
    {"dtype", "torch_dtype"},
    {"num_local_experts", "num_experts"},
    {"_sliding_window_pattern", "sliding_window_pattern"},
    /* transformers 4, older files */
    {"rope_scaling.type", "rope_scaling.rope_type"},
    {"rope_scaling.rope_theta", "rope_theta"},
    /* transformers 5 */
    {"rope_parameters", "rope_scaling"},
    {"rope_parameters.rope_theta", "rope_theta"},
    {"rope_parameters.partial_rotary_factor", "partial_rotary_factor"},
    {"rope_parameters.type", "rope_scaling.rope_type"},
    {"rope_parameters.full_attention.rope_theta", "rope_theta"},
    {"rope_parameters.full_attention.*", "rope_scaling.*"},
    {"rope_parameters.sliding_attention.rope_theta", "rope_local_base_freq"},
    {"rope_parameters.*", "rope_scaling.*"},
};

/* Where the string "default" says that there is no scaling. */
static const char *const rope_type_keys[] = {
    "rope_scaling.rope_type",
    "rope_scaling.sliding_attention.rope_type",
};

typedef struct Walker {
    const char *what;
    Config *config;
    Map seen; /* canonical key → 1, or 0 where its value was null */
    LgError *err;
} Walker;

/* Appends the one name of a dotted key. */
static void put_canonical(LgStr key, Buf *out) {
    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++) {
        LgStr from = lg_str(aliases[i].from), to = lg_str(aliases[i].to);
        if (lg_str_ends(from, "*")) {
            LgStr stem = lg_str_sub(from, 0, from.len - 1);
            if (key.len > stem.len && lg_str_eq(lg_str_sub(key, 0, stem.len), stem)) {
                buf_append(out, to.ptr, to.len - 1);
                buf_str(out, lg_str_sub(key, stem.len, key.len));
                return;
            }
        } else if (lg_str_eq(key, from)) {
            buf_str(out, to);
            return;
        }
    }
    buf_str(out, key);
}

static LgStatus fail_key(const Walker *w, LgStatus status, LgStr key, const char *fault) {
    Buf shown;
    buf_init(&shown);
    buf_printable(&shown, key, 200);
    status = lg_fail(w->err, status, 0, "%s: \"%s\" %s", w->what, shown.data, fault);
    buf_clear(&shown);
    return status;
}

static bool value_of(Arena *a, const json_t *json, ConfigValue *out);

static bool list_of(Arena *a, const json_t *json, ConfigValue *out) {
    size_t count = json_array_size(json);
    ConfigValue *items = ARENA_ARRAY(a, ConfigValue, count);
    for (size_t i = 0; items && i < count; i++)
        if (!value_of(a, json_array_get(json, i), &items[i]))
            return false;
    *out = (ConfigValue){.kind = CONFIG_LIST, .items = items, .count = count};
    return items != NULL;
}

/* An object in a list has no dotted name: its JSON text stands for it. */
static bool object_text_of(Arena *a, const json_t *json, ConfigValue *out) {
    Buf text;
    buf_init(&text);
    lg_json_print(json, JSON_COMPACT | JSON_SORT_KEYS, &text);
    *out = (ConfigValue){.kind = CONFIG_STRING};
    if (!text.failed)
        out->string = arena_str(a, buf_view(&text));
    buf_clear(&text);
    return out->string.ptr != NULL;
}

static bool value_of(Arena *a, const json_t *json, ConfigValue *out) {
    *out = (ConfigValue){.kind = CONFIG_NULL};
    switch (json_typeof(json)) {
    case JSON_NULL:
        return true;
    case JSON_TRUE:
    case JSON_FALSE:
        out->kind = CONFIG_BOOL;
        out->boolean = json_is_true(json);
        return true;
    case JSON_INTEGER:
        out->kind = CONFIG_INT;
        out->integer = json_integer_value(json);
        out->real = (double)out->integer;
        return true;
    case JSON_REAL:
        out->kind = CONFIG_REAL;
        out->real = json_real_value(json);
        return true;
    case JSON_STRING:
        out->kind = CONFIG_STRING;
        out->string = lg_json_string(json);
        return true;
    case JSON_ARRAY:
        return list_of(a, json, out);
    case JSON_OBJECT:
        return object_text_of(a, json, out);
    }
    return false;
}

/* Two spellings of one key may both be there if they agree; null never disagrees. */
static LgStatus put_value(Walker *w, LgStr key, const ConfigValue *value) {
    uint64_t has_value = 0;
    if (map_get(&w->seen, key, &has_value) && has_value) {
        if (value->kind == CONFIG_NULL || config_value_eq(config_get(w->config, key), value))
            return LG_OK;
        return fail_key(w, LG_BAD_INPUT, key,
                        "is given twice (perhaps in two spellings) with different values");
    }
    if (w->seen.count >= CONFIG_KEYS_MAX)
        return lg_fail(w->err, LG_LIMIT, 0, "%s: it has more than %d keys", w->what,
                       CONFIG_KEYS_MAX);
    if (!map_set(&w->seen, key, value->kind != CONFIG_NULL))
        return lg_fail_memory(w->err);
    return config_set(w->config, key, value, w->err);
}

static LgStatus put_leaf(Walker *w, LgStr dotted, const json_t *json) {
    Buf key;
    Arena arena;
    buf_init(&key);
    arena_init(&arena);
    ConfigValue value;
    put_canonical(dotted, &key);
    LgStatus status;
    if (key.failed || !value_of(&arena, json, &value))
        status = lg_fail_memory(w->err);
    else
        status = put_value(w, buf_view(&key), &value);
    buf_clear(&key);
    arena_clear(&arena);
    return status;
}

/* dotted: the path of `object`, "" or ending in a dot. Depth is bounded by the JSON parser. */
static LgStatus walk(Walker *w, json_t *object, Buf *dotted) {
    const char *key;
    size_t key_len;
    json_t *value;
    size_t stem = dotted->len;
    json_object_keylen_foreach(object, key, key_len, value) {
        dotted->len = stem;
        buf_append(dotted, key, key_len);
        bool nested = json_is_object(value);
        if (nested)
            buf_putc(dotted, '.');
        if (dotted->failed)
            return lg_fail_memory(w->err);
        LG_TRY(nested ? walk(w, value, dotted) : put_leaf(w, buf_view(dotted), value));
    }
    return LG_OK;
}

static void drop_defaults(Config *c) {
    for (size_t i = 0; i < sizeof rope_type_keys / sizeof rope_type_keys[0]; i++) {
        const ConfigValue *type = config_get_c(c, rope_type_keys[i]);
        if (type && type->kind == CONFIG_STRING && lg_str_eq_c(type->string, "default"))
            config_remove(c, rope_type_keys[i]);
    }
}

LgStatus hf_config_parse(LgStr json, const char *what, Config *out, LgError *err) {
    json_t *root = NULL;
    LG_TRY(lg_json_parse(json, what, &root, err));
    Walker w = {.what = what, .config = out, .err = err};
    map_init(&w.seen);
    Buf dotted;
    buf_init(&dotted);
    LgStatus status;
    if (json_is_object(root))
        status = walk(&w, root, &dotted);
    else
        status = lg_fail(err, LG_BAD_INPUT, 0, "%s: a JSON object is expected", what);
    if (status == LG_OK)
        drop_defaults(out);
    buf_clear(&dotted);
    map_clear(&w.seen);
    json_decref(root);
    return status;
}
