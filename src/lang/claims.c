/* Every key of the config is claimed: named by the page, or in the table of keys that cannot
 * matter. Null is absent. */
#include <stdio.h>
#include <string.h>

#include "lang/check.h"
#include "lang/inert.h"

#define OTHERS_MAX 3

/* A nested object's own key is claimed with any key below it that the page names. */
static bool claimed_below(const Check *c, LgStr key) {
    for (size_t i = 0; i < config_count(c->config); i++) {
        LgStr other = config_key(c->config, i);
        if (c->claimed[i] && other.len > key.len + 1 && other.ptr[key.len] == '.' &&
            lg_str_eq(lg_str_sub(other, 0, key.len), key))
            return true;
    }
    return false;
}

static bool unclaimed(const Check *c, size_t i) {
    LgStr key = config_key(c->config, i);
    const ConfigValue *v = config_value(c->config, i);
    return v->kind != CONFIG_NULL && !c->claimed[i] && !inert_key(c->config, key, v) &&
           !claimed_below(c, key);
}

bool check_claims(Check *c) {
    LgStr first = {0};
    int count = 0;
    char others[4 * sizeof(DiagText)] = "";
    for (size_t i = 0; i < config_count(c->config); i++) {
        if (!unclaimed(c, i))
            continue;
        LgStr key = config_key(c->config, i);
        size_t end = strlen(others);
        if (count == 0)
            first = key;
        else if (count <= OTHERS_MAX)
            snprintf(others + end, sizeof others - end, "%s%s", end ? ", " : " (and ",
                     diag_text(key).text);
        count++;
    }
    if (count == 0)
        return true;
    size_t used = strlen(others);
    if (count > 1) /* room for it is left */
        snprintf(others + used, sizeof others - used, "%s", count > 1 + OTHERS_MAX ? ", …)" : ")");
    const ConfigValue *v = config_get(c->config, first);
    Buf value;
    buf_init(&value);
    config_value_print(v, &value);
    DiagText has = diag_text(buf_view(&value));
    bool failed = value.failed;
    buf_clear(&value);
    if (failed)
        return diag_memory(&c->diag);
    return diag_refuse(&c->diag, c->model->line, 0,
                       "cannot compile this config: its key %s = %s%s is not claimed. A page that "
                       "requires it, uses it or says `ignore %s` is accepted.",
                       diag_text(first).text, has.text, others, diag_text(first).text);
}
