/* JSON through jansson: duplicates rejected, depth bounded, integers past 64 bits read as reals.
 * Strings may hold \u0000 (texts do): read them by lg_json_string, which knows their length. */
#ifndef LG_BASE_JSON_H
#define LG_BASE_JSON_H

#include <jansson.h>

#include "base/status.h"
#include "base/str.h"

/* what names the input in the message ("config.json"). *out is owned by the caller (json_decref).
 * Errors: LG_BAD_INPUT with the byte offset, line and column in the message; LG_NO_MEMORY. */
LgStatus lg_json_parse(LgStr text, const char *what, json_t **out, LgError *err);

/* Appends value as JSON (jansson's flags), in place of json_dumps, which may leave keys out where
 * memory fails: here out->failed says so. A value that is NULL fails too. */
void lg_json_print(const json_t *value, size_t flags, Buf *out);

LgStr lg_json_string(const json_t *value); /* view into value; {NULL,0} where it is no string */

#endif
