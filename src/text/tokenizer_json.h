/* Reading tokenizer.json: what its two files share. */
#ifndef LG_TEXT_TOKENIZER_JSON_H
#define LG_TEXT_TOKENIZER_JSON_H

#include "base/json.h"
#include "text/tokenizer_impl.h"

/* %s in messages: a value of the file, or what stands for it. */
const char *json_shown(const json_t *value, char out[64]);
LgStatus json_refuse_type(const char *part, const json_t *type, const char *served, LgError *err);
bool json_absent(const json_t *value); /* NULL or null */
bool json_type_is(const json_t *object, const char *type);
LgStatus json_get_bool(const json_t *object, const char *part, const char *key, bool fallback,
                       bool *out, LgError *err);

/* The parts around the model. */
LgStatus tokenizer_load_normalizer(Tokenizer *t, const json_t *part, LgError *err);
/* *byte_level: words go to the model in the byte alphabet. */
LgStatus tokenizer_load_pre_tokenizer(Tokenizer *t, const json_t *part, bool *byte_level,
                                      LgError *err);
LgStatus tokenizer_load_decoder(Tokenizer *t, const json_t *part, LgError *err);
/* *framed: the file says what goes around texts, be it nothing. */
LgStatus tokenizer_load_post_processor(Tokenizer *t, const json_t *part, bool *framed,
                                       LgError *err);

/* config: tokenizer_config.json, or NULL. */
LgStatus tokenizer_load_added(Tokenizer *t, const json_t *tokens, const json_t *config,
                              LgError *err);
LgStatus tokenizer_load_config_frame(Tokenizer *t, const json_t *config, LgError *err);

#endif
