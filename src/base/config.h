/* A model's configuration as flat keys: nested ones are dotted ("rope_scaling.factor"), absent and
 * null are the same. */
#ifndef LG_BASE_CONFIG_H
#define LG_BASE_CONFIG_H

#include "base/status.h"
#include "base/str.h"

typedef enum ConfigKind {
    CONFIG_NULL,
    CONFIG_BOOL,
    CONFIG_INT,
    CONFIG_REAL,
    CONFIG_STRING,
    CONFIG_LIST
} ConfigKind;

typedef struct ConfigValue ConfigValue;
struct ConfigValue {
    ConfigKind kind;
    bool boolean;
    int64_t integer; /* CONFIG_INT */
    double real;     /* CONFIG_REAL; also set for CONFIG_INT */
    LgStr string;
    const ConfigValue *items; /* CONFIG_LIST */
    size_t count;
};

typedef struct Config Config;

Config *config_create(void); /* NULL: allocation failed */
void config_destroy(Config *c);
/* Copies key and value; an existing key gets the new value. */
LgStatus config_set(Config *c, LgStr key, const ConfigValue *value, LgError *err);
LgStatus config_set_int(Config *c, const char *key, int64_t value, LgError *err);
LgStatus config_set_real(Config *c, const char *key, double value, LgError *err);
LgStatus config_set_bool(Config *c, const char *key, bool value, LgError *err);
LgStatus config_set_str(Config *c, const char *key, LgStr value, LgError *err);
void config_remove(Config *c, const char *key);

/* NULL where the key is absent or null. Borrowed until the next config_set.
 * A key that has none but nested ones ("rope_scaling" beside "rope_scaling.factor") gives the
 * string "{...}", so that comparing it with null says whether the object is there; such a key is
 * not among those counted below. */
const ConfigValue *config_get(const Config *c, LgStr key);
const ConfigValue *config_get_c(const Config *c, const char *key);
/* Keys in insertion order, null ones included. */
size_t config_count(const Config *c);
LgStr config_key(const Config *c, size_t index);
const ConfigValue *config_value(const Config *c, size_t index);
bool config_value_eq(const ConfigValue *a, const ConfigValue *b); /* 1 == 1.0 */
void config_value_print(const ConfigValue *v, Buf *out);          /* as JSON */

#endif
