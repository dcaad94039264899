/* Flat keys in insertion order. Keys and values live in the arena; a replaced value's memory stays
 * until the end. */
#include "base/config.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/number.h"

typedef struct ConfigSlot {
    LgStr key;
    ConfigValue value;
    bool live;
} ConfigSlot;

struct Config {
    Arena arena;
    Map index; /* key → slot */
    ConfigSlot *slots;
    size_t *order; /* the live slots; as long as slots, so that reviving one cannot fail */
    size_t slot_count, slot_cap, order_count;
};

Config *config_create(void) {
    Config *c = lg_calloc(1, sizeof *c);
    if (c) {
        arena_init(&c->arena);
        map_init(&c->index);
    }
    return c;
}

void config_destroy(Config *c) {
    if (!c)
        return;
    arena_clear(&c->arena);
    map_clear(&c->index);
    lg_free(c->slots);
    lg_free(c->order);
    lg_free(c);
}

static bool value_copy(Arena *a, const ConfigValue *from, ConfigValue *to) {
    ConfigValue v = *from;
    if (v.kind == CONFIG_INT)
        v.real = (double)v.integer;
    if (v.kind == CONFIG_STRING) {
        v.string = arena_str(a, from->string);
        if (!v.string.ptr)
            return false;
    }
    if (v.kind == CONFIG_LIST) {
        ConfigValue *items = ARENA_ARRAY(a, ConfigValue, from->count);
        if (!items)
            return false;
        for (size_t i = 0; i < from->count; i++)
            if (!value_copy(a, &from->items[i], &items[i]))
                return false;
        v.items = items;
    }
    *to = v;
    return true;
}

static bool slots_grow(Config *c) {
    size_t cap = c->slot_cap ? c->slot_cap * 2 : 32;
    ConfigSlot *slots = lg_realloc(c->slots, cap * sizeof *slots);
    if (!slots)
        return false;
    c->slots = slots;
    size_t *order = lg_realloc(c->order, cap * sizeof *order);
    if (!order)
        return false;
    c->order = order;
    c->slot_cap = cap;
    return true;
}

LgStatus config_set(Config *c, LgStr key, const ConfigValue *value, LgError *err) {
    ConfigValue copy;
    if (!value_copy(&c->arena, value, &copy))
        return lg_fail_memory(err);
    uint64_t at;
    if (!map_get(&c->index, key, &at)) {
        LgStr name = arena_str(&c->arena, key);
        if (!name.ptr || (c->slot_count == c->slot_cap && !slots_grow(c)) ||
            !map_set(&c->index, key, c->slot_count))
            return lg_fail_memory(err);
        at = c->slot_count++;
        c->slots[at] = (ConfigSlot){.key = name};
    }
    ConfigSlot *slot = &c->slots[at];
    slot->value = copy;
    if (!slot->live)
        c->order[c->order_count++] = (size_t)at;
    slot->live = true;
    return LG_OK;
}

LgStatus config_set_int(Config *c, const char *key, int64_t value, LgError *err) {
    ConfigValue v = {.kind = CONFIG_INT, .integer = value};
    return config_set(c, lg_str(key), &v, err);
}

LgStatus config_set_real(Config *c, const char *key, double value, LgError *err) {
    ConfigValue v = {.kind = CONFIG_REAL, .real = value};
    return config_set(c, lg_str(key), &v, err);
}

LgStatus config_set_bool(Config *c, const char *key, bool value, LgError *err) {
    ConfigValue v = {.kind = CONFIG_BOOL, .boolean = value};
    return config_set(c, lg_str(key), &v, err);
}

LgStatus config_set_str(Config *c, const char *key, LgStr value, LgError *err) {
    ConfigValue v = {.kind = CONFIG_STRING, .string = value};
    return config_set(c, lg_str(key), &v, err);
}

void config_remove(Config *c, const char *key) {
    uint64_t at;
    if (!map_get(&c->index, lg_str(key), &at) || !c->slots[at].live)
        return;
    c->slots[at].live = false;
    size_t i = 0;
    while (c->order[i] != at)
        i++;
    memmove(&c->order[i], &c->order[i + 1], (c->order_count - i - 1) * sizeof c->order[0]);
    c->order_count--;
}

/* Whether a live key that is not null lies under "key.". */
static bool has_nested(const Config *c, LgStr key) {
    for (size_t i = 0; i < c->order_count; i++) {
        const ConfigSlot *slot = &c->slots[c->order[i]];
        if (slot->key.len > key.len && slot->key.ptr[key.len] == '.' &&
            slot->value.kind != CONFIG_NULL && lg_str_eq(lg_str_sub(slot->key, 0, key.len), key))
            return true;
    }
    return false;
}

const ConfigValue *config_get(const Config *c, LgStr key) {
    static const ConfigValue nested = {.kind = CONFIG_STRING, .string = {"{...}", 5}};
    uint64_t at;
    if (map_get(&c->index, key, &at)) {
        const ConfigSlot *slot = &c->slots[at];
        if (slot->live && slot->value.kind != CONFIG_NULL)
            return &slot->value;
    }
    return has_nested(c, key) ? &nested : NULL;
}

const ConfigValue *config_get_c(const Config *c, const char *key) {
    return config_get(c, lg_str(key));
}

size_t config_count(const Config *c) {
    return c->order_count;
}

LgStr config_key(const Config *c, size_t index) {
    assert(index < c->order_count);
    return c->slots[c->order[index]].key;
}

const ConfigValue *config_value(const Config *c, size_t index) {
    assert(index < c->order_count);
    return &c->slots[c->order[index]].value;
}

static double value_real(const ConfigValue *v) {
    return v->kind == CONFIG_INT ? (double)v->integer : v->real;
}

static bool is_number(const ConfigValue *v) {
    return v->kind == CONFIG_INT || v->kind == CONFIG_REAL;
}

bool config_value_eq(const ConfigValue *a, const ConfigValue *b) {
    if (a->kind == CONFIG_INT && b->kind == CONFIG_INT)
        return a->integer == b->integer;
    if (is_number(a) && is_number(b))
        return value_real(a) == value_real(b);
    if (a->kind != b->kind)
        return false;
    if (a->kind == CONFIG_BOOL)
        return a->boolean == b->boolean;
    if (a->kind == CONFIG_STRING)
        return lg_str_eq(a->string, b->string);
    if (a->kind == CONFIG_LIST) {
        if (a->count != b->count)
            return false;
        for (size_t i = 0; i < a->count; i++)
            if (!config_value_eq(&a->items[i], &b->items[i]))
                return false;
    }
    return true;
}

/* The fewest digits that read back as the same double, and always recognisable as a real. */
static void real_print(double value, Buf *out) {
    if (!isfinite(value)) {
        buf_puts(out, "null");
        return;
    }
    char text[NUMBER_TEXT_MAX];
    number_shortest(value, text);
    buf_puts(out, text);
    if (!strpbrk(text, ".e"))
        buf_puts(out, ".0");
}

void config_value_print(const ConfigValue *v, Buf *out) {
    switch (v->kind) {
    case CONFIG_NULL:
        buf_puts(out, "null");
        break;
    case CONFIG_BOOL:
        buf_puts(out, v->boolean ? "true" : "false");
        break;
    case CONFIG_INT:
        buf_printf(out, "%lld", (long long)v->integer);
        break;
    case CONFIG_REAL:
        real_print(v->real, out);
        break;
    case CONFIG_STRING:
        buf_putc(out, '"');
        buf_json_escape(out, v->string);
        buf_putc(out, '"');
        break;
    case CONFIG_LIST:
        buf_putc(out, '[');
        for (size_t i = 0; i < v->count; i++) {
            buf_puts(out, i ? ", " : "");
            config_value_print(&v->items[i], out);
        }
        buf_putc(out, ']');
        break;
    }
}
