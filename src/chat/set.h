/* The chat templates of a checkpoint, and the tokens that they may name. */
#ifndef LG_CHAT_SET_H
#define LG_CHAT_SET_H

#include "chat/template.h"

typedef struct ChatSet {
    ChatTemplate *plain; /* "default"; NULL: none */
    ChatTemplate *tools; /* "tool_use", for requests with tools; NULL: they use the other */
    json_t *tokens;      /* bos_token, … as strings */
} ChatSet;

/* The texts of files; len 0: there is none. */
typedef struct ChatFiles {
    LgStr config;     /* tokenizer_config.json */
    LgStr jinja;      /* chat_template.jinja */
    LgStr tool_jinja; /* additional_chat_templates/tool_use.jinja */
} ChatFiles;

/* The templates are those of the .jinja files where there is one, else the config's
 * "chat_template": a string, or a list of {"name","template"}. A set without templates is no error.
 * Errors: those of chat_template_parse, with the template's name where it has one. */
LgStatus chat_set_from_files(const ChatFiles *files, ChatSet *out, LgError *err);

/* By hand: zero-initialised, then these. name: "default" or "tool_use"; others are passed over. */
LgStatus chat_set_add_template(ChatSet *s, LgStr name, LgStr source, LgError *err);
LgStatus chat_set_add_token(ChatSet *s, const char *name, LgStr text, LgError *err);
void chat_set_clear(ChatSet *s);

/* messages, tools (NULL: none): arrays. Templates see what Hugging Face's apply_chat_template gives
 * them: messages, tools and documents (none where absent), add_generation_prompt and the tokens.
 * Errors: LG_BAD_INPUT where the set has no template for this. */
LgStatus chat_set_render(const ChatSet *s, json_t *messages, json_t *tools,
                         bool add_generation_prompt, Buf *out, LgError *err);

#endif
