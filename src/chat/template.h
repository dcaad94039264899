/* Chat templates: the subset of Jinja that they use. A template is immutable after parsing. */
#ifndef LG_CHAT_TEMPLATE_H
#define LG_CHAT_TEMPLATE_H

#include <jansson.h>

#include "base/status.h"
#include "base/str.h"

typedef struct ChatTemplate ChatTemplate;

/* Whitespace as Hugging Face renders templates: trim_blocks and lstrip_blocks on. What is outside
 * the subset is refused here, with line and column. */
LgStatus chat_template_parse(LgStr source, ChatTemplate **out, LgError *err);
void chat_template_destroy(ChatTemplate *t);

/* context: an object with `messages`, `add_generation_prompt`, `bos_token`, `eos_token`, `tools`, …
 * Values keep their order. Errors: LG_BAD_INPUT with the line, where the template raises or uses a
 * value wrongly; LG_LIMIT where it runs too long or makes too much text. */
LgStatus chat_template_render(const ChatTemplate *t, const json_t *context, Buf *out, LgError *err);

#endif
