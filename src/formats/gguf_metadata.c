/* GGUF's key-value pairs. Strings are copied, so that they stay where the caller's memory moves on;
 * arrays become C arrays. */
#include "formats/gguf_metadata.h"

#include <string.h>

#include "base/float.h"

#define PAIRS_MAX (1u << 16)
#define PAIR_BYTES_MIN 13 /* key length, type, one byte */
#define KEY_BYTES_MAX 65535
#define ARRAY_DEPTH_MAX 4

typedef enum ValueType {
    VALUE_U8,
    VALUE_I8,
    VALUE_U16,
    VALUE_I16,
    VALUE_U32,
    VALUE_I32,
    VALUE_F32,
    VALUE_BOOL,
    VALUE_STRING,
    VALUE_ARRAY,
    VALUE_U64,
    VALUE_I64,
    VALUE_F64,
    VALUE_TYPE_COUNT
} ValueType;

/* Bytes of a value, and the least bytes of one where it varies. */
static const unsigned char value_bytes[VALUE_TYPE_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

static LgStatus fail_end(GgufCursor *c) {
    return lg_fail(c->err, LG_BAD_INPUT, c->at, "%s: the file ends within a value at byte %zu",
                   c->what, c->at);
}

bool gguf_take(GgufCursor *c, uint64_t bytes, const unsigned char **out) {
    if (bytes > c->size - c->at)
        return false;
    *out = c->data + c->at;
    c->at += (size_t)bytes;
    return true;
}

static uint64_t load_le(const unsigned char *p, unsigned bytes) {
    uint64_t value = 0;
    for (unsigned i = bytes; i-- > 0;)
        value = value << 8 | p[i];
    return value;
}

LgStatus gguf_u32(GgufCursor *c, uint32_t *out) {
    const unsigned char *p;
    if (!gguf_take(c, 4, &p))
        return fail_end(c);
    *out = (uint32_t)load_le(p, 4);
    return LG_OK;
}

LgStatus gguf_u64(GgufCursor *c, uint64_t *out) {
    const unsigned char *p;
    if (!gguf_take(c, 8, &p))
        return fail_end(c);
    *out = load_le(p, 8);
    return LG_OK;
}

LgStatus gguf_string(GgufCursor *c, LgStr *out) {
    uint64_t len;
    const unsigned char *p;
    LG_TRY(gguf_u64(c, &len));
    if (!gguf_take(c, len, &p))
        return lg_fail(c->err, LG_BAD_INPUT, c->at,
                       "%s: the string at byte %zu claims %llu bytes, %zu are left", c->what, c->at,
                       (unsigned long long)len, c->size - c->at);
    *out = (LgStr){(const char *)p, (size_t)len};
    return LG_OK;
}

void gguf_metadata_init(GgufMetadata *m) {
    *m = (GgufMetadata){0};
    arena_init(&m->arena);
    map_init(&m->by_key);
}

void gguf_metadata_clear(GgufMetadata *m) {
    map_clear(&m->by_key);
    arena_clear(&m->arena);
    gguf_metadata_init(m);
}

/* One value of a plain type at p. */
static ConfigValue scalar_at(const unsigned char *p, ValueType type) {
    uint64_t raw = load_le(p, value_bytes[type]);
    uint64_t sign = (uint64_t)1 << (8 * value_bytes[type] - 1);
    ConfigValue v = {.kind = CONFIG_INT};
    switch (type) {
    case VALUE_I8:
    case VALUE_I16:
    case VALUE_I32:
        v.integer = (int64_t)((raw ^ sign) - sign);
        break;
    case VALUE_F32:
        v.kind = CONFIG_REAL;
        v.real = (double)float_from_bits((uint32_t)raw);
        return v;
    case VALUE_F64:
        v.kind = CONFIG_REAL;
        memcpy(&v.real, &raw, sizeof raw);
        return v;
    case VALUE_BOOL:
        v.kind = CONFIG_BOOL;
        v.boolean = raw != 0;
        return v;
    default:
        v.integer = (int64_t)raw;
        break;
    }
    v.real = (double)v.integer;
    if (type == VALUE_U64 && raw > INT64_MAX) /* as JSON's integers past 64 bits */
        v = (ConfigValue){.kind = CONFIG_REAL, .real = (double)raw};
    return v;
}

static LgStatus read_type(GgufCursor *c, ValueType *out) {
    uint32_t type;
    size_t at = c->at;
    LG_TRY(gguf_u32(c, &type));
    if (type >= VALUE_TYPE_COUNT)
        return lg_fail(c->err, LG_BAD_INPUT, at,
                       "%s: unknown type %u of a metadata value at byte %zu", c->what, type, at);
    *out = (ValueType)type;
    return LG_OK;
}

static LgStatus read_array_head(GgufCursor *c, ValueType *type, size_t *count) {
    uint64_t n;
    LG_TRY(read_type(c, type));
    size_t at = c->at;
    LG_TRY(gguf_u64(c, &n));
    if (n > (c->size - c->at) / value_bytes[*type])
        return lg_fail(c->err, LG_BAD_INPUT, at,
                       "%s: the array at byte %zu claims %llu values, %zu bytes are left", c->what,
                       at, (unsigned long long)n, c->size - c->at);
    *count = (size_t)n;
    return LG_OK;
}

static LgStatus read_strings(GgufMetadata *m, GgufCursor *c, GgufEntry *e) {
    LgStr *items = ARENA_ARRAY(&m->arena, LgStr, e->count);
    if (!items)
        return lg_fail_memory(c->err);
    for (size_t i = 0; i < e->count; i++) {
        LgStr borrowed;
        LG_TRY(gguf_string(c, &borrowed));
        items[i] = arena_str(&m->arena, borrowed);
        if (!items[i].ptr)
            return lg_fail_memory(c->err);
    }
    e->strings = items;
    return LG_OK;
}

static LgStatus read_scalars(GgufMetadata *m, GgufCursor *c, ValueType type, GgufEntry *e) {
    const unsigned char *p;
    bool real = type == VALUE_F32 || type == VALUE_F64;
    if (!gguf_take(c, (uint64_t)e->count * value_bytes[type], &p))
        return fail_end(c);
    void *items = arena_array(&m->arena, e->count, 4);
    if (!items)
        return lg_fail_memory(c->err);
    bool fits = true;
    for (size_t i = 0; i < e->count; i++) {
        ConfigValue v = scalar_at(p + i * value_bytes[type], type);
        if (v.kind == CONFIG_BOOL)
            v.integer = v.boolean;
        if (real)
            ((float *)items)[i] = (float)v.real;
        else
            ((int32_t *)items)[i] = (int32_t)v.integer;
        fits =
            fits &&
            (real || (v.kind != CONFIG_REAL && v.integer >= INT32_MIN && v.integer <= INT32_MAX));
    }
    e->floats = real ? items : NULL;
    e->ints = !real && fits ? items : NULL;
    return LG_OK;
}

/* Arrays of arrays are allowed by the format and used by nobody: they are checked and passed over.
 */
static LgStatus skip_array(GgufCursor *c, int depth) {
    ValueType type;
    size_t count;
    const unsigned char *p;
    LgStr s;
    if (depth > ARRAY_DEPTH_MAX)
        return lg_fail(c->err, LG_BAD_INPUT, c->at,
                       "%s: arrays are nested deeper than %d at byte %zu", c->what, ARRAY_DEPTH_MAX,
                       c->at);
    LG_TRY(read_array_head(c, &type, &count));
    if (type != VALUE_STRING && type != VALUE_ARRAY)
        return gguf_take(c, (uint64_t)count * value_bytes[type], &p) ? LG_OK : fail_end(c);
    for (size_t i = 0; i < count; i++)
        LG_TRY(type == VALUE_STRING ? gguf_string(c, &s) : skip_array(c, depth + 1));
    return LG_OK;
}

static LgStatus read_array(GgufMetadata *m, GgufCursor *c, GgufEntry *e) {
    ValueType type;
    LG_TRY(read_array_head(c, &type, &e->count));
    if (type == VALUE_STRING)
        return read_strings(m, c, e);
    if (type != VALUE_ARRAY)
        return read_scalars(m, c, type, e);
    for (size_t i = 0; i < e->count; i++)
        LG_TRY(skip_array(c, 2));
    e->count = 0;
    return LG_OK;
}

static LgStatus read_value(GgufMetadata *m, GgufCursor *c, GgufEntry *e) {
    ValueType type;
    const unsigned char *p;
    LG_TRY(read_type(c, &type));
    if (type == VALUE_ARRAY)
        return read_array(m, c, e);
    if (type == VALUE_STRING) {
        LgStr borrowed;
        LG_TRY(gguf_string(c, &borrowed));
        e->value = (ConfigValue){.kind = CONFIG_STRING, .string = arena_str(&m->arena, borrowed)};
        return e->value.string.ptr ? LG_OK : lg_fail_memory(c->err);
    }
    if (!gguf_take(c, value_bytes[type], &p))
        return fail_end(c);
    if (type == VALUE_BOOL && *p > 1)
        return lg_fail(c->err, LG_BAD_INPUT, c->at - 1,
                       "%s: the bool at byte %zu is %u; 0 or 1 is expected", c->what, c->at - 1,
                       *p);
    e->value = scalar_at(p, type);
    return LG_OK;
}

static LgStatus fail_key(GgufCursor *c, LgStr key, const char *fault) {
    Buf shown;
    buf_init(&shown);
    buf_printable(&shown, key, 200);
    LgStatus status = lg_fail(c->err, LG_BAD_INPUT, c->at, "%s: metadata key \"%s\": %s", c->what,
                              shown.data, fault);
    buf_clear(&shown);
    return status;
}

static LgStatus read_key(GgufMetadata *m, GgufCursor *c, LgStr *key) {
    LG_TRY(gguf_string(c, key));
    if (key->len == 0 || key->len > KEY_BYTES_MAX)
        return fail_key(c, *key, "a key has 1 to 65535 bytes");
    for (size_t i = 0; i < key->len; i++)
        if (key->ptr[i] <= 0x20 || key->ptr[i] >= 0x7f)
            return fail_key(c, *key, "a key is printable ASCII without spaces");
    if (map_has(&m->by_key, *key))
        return fail_key(c, *key, "the key occurs twice");
    return LG_OK;
}

LgStatus gguf_metadata_read(GgufMetadata *m, GgufCursor *c, uint64_t count) {
    if (count > PAIRS_MAX)
        return lg_fail(c->err, LG_LIMIT, 16,
                       "%s: it claims %llu metadata keys; at most %u are read", c->what,
                       (unsigned long long)count, PAIRS_MAX);
    if (count > (c->size - c->at) / PAIR_BYTES_MIN)
        return lg_fail(c->err, LG_BAD_INPUT, 16,
                       "%s: it claims %llu metadata keys, more than its %zu bytes can hold",
                       c->what, (unsigned long long)count, c->size);
    m->entries = ARENA_ARRAY(&m->arena, GgufEntry, (size_t)count);
    if (!m->entries)
        return lg_fail_memory(c->err);
    for (size_t i = 0; i < count; i++) {
        GgufEntry *e = &m->entries[i];
        LgStr borrowed;
        LG_TRY(read_key(m, c, &borrowed));
        e->key = arena_str(&m->arena, borrowed);
        if (!e->key.ptr || !map_set(&m->by_key, e->key, i))
            return lg_fail_memory(c->err);
        m->count = i + 1;
        LG_TRY(read_value(m, c, e));
    }
    return LG_OK;
}

const GgufEntry *gguf_metadata_find(const GgufMetadata *m, const char *key) {
    uint64_t index;
    return map_get(&m->by_key, lg_str(key), &index) ? &m->entries[index] : NULL;
}

const ConfigValue *gguf_metadata_get(const GgufMetadata *m, const char *key) {
    const GgufEntry *e = gguf_metadata_find(m, key);
    return e && e->value.kind != CONFIG_NULL ? &e->value : NULL;
}
