/* Config keys that no program need name. */
#ifndef LG_LANG_INERT_H
#define LG_LANG_INERT_H

#include "base/config.h"

/* Whether the key cannot matter in this config: the engine reads it itself, or a row of the table
 * covers it. */
bool inert_key(const Config *config, LgStr key, const ConfigValue *value);

#endif
