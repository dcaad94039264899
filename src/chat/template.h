/* Chat templates: the subset of Jinja that they use. A template is immutable after parsing. */
#ifndef LG_CHAT_TEMPLATE_H
#define LG_CHAT_TEMPLATE_H

#include <jansson.h>

#include "base/status.h"
#include "base/str.h"

typedef struct ChatTemplate ChatTemplate;

/* Whitespace as Hugging Face renders templates: trim_blocks and lstrip_blocks on. What is outside
 * of the subset is refused here, with line and column; a filter or test that is not served and
 * stands in a branch is an error when it is reached, as in Jinja, since templates guard such parts.
 * Statements: if, for (with a filter, else, break, continue), set (also of namespaces and of
 * blocks), macro, filter, with, generation (its text stands as it is), raw. Not: inheritance,
 * include, import, call, recursive loops. Limits (LG_LIMIT): 1 MiB of source, 100 levels of
 * nesting. */
LgStatus chat_template_parse(LgStr source, ChatTemplate **out, LgError *err);
void chat_template_destroy(ChatTemplate *t);

/* context: an object with `messages`, `add_generation_prompt`, `bos_token`, `eos_token`, `tools`, …
 * Values keep their order, and must not change while this runs. Appends; nothing is appended on
 * failure. Errors: LG_BAD_INPUT with the line, where the template raises or uses a value wrongly;
 * LG_LIMIT where it takes more than 20 million steps, 600 levels of evaluation, 512 MiB of values,
 * or makes more than 64 MiB of text. */
LgStatus chat_template_render(const ChatTemplate *t, const json_t *context, Buf *out, LgError *err);

#endif
