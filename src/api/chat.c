/* Chat templates of the public interface: those of the checkpoint, opened on first use. */
#include <string.h>

#include "api/internal.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/utf8.h"

static LgStatus no_template(const LgEngine *e, LgError *err) {
    return lg_fail(
        err, LG_BAD_INPUT, 0,
        "%s has no chat template (tokenizer_config.json's \"chat_template\", "
        "chat_template.jinja, or a GGUF's tokenizer.chat_template); send a prompt or ids",
        checkpoint_path(engine_model(e->engine)->checkpoint));
}

static LgStatus open_folder(const LgEngine *e, ChatSet *out, LgError *err) {
    static const char *const names[] = {"tokenizer_config.json", "chat_template.jinja",
                                        "additional_chat_templates/tool_use.jinja"};
    Buf texts[3];
    LgStatus status = LG_OK;
    for (size_t i = 0; i < 3; i++) {
        buf_init(&texts[i]);
        if (status == LG_OK)
            status = api_read_settings(e, names[i], &texts[i], err);
    }
    const ChatFiles files = {buf_view(&texts[0]), buf_view(&texts[1]), buf_view(&texts[2])};
    if (status == LG_OK)
        status = chat_set_from_files(&files, out, err);
    for (size_t i = 0; i < 3; i++)
        buf_clear(&texts[i]);
    return status;
}

static LgStatus add_gguf_token(const Gguf *g, const char *key, const char *name, ChatSet *s,
                               LgError *err) {
    const ConfigValue *id = gguf_get(g, key);
    const LgStr *tokens;
    size_t count = gguf_strings(g, "tokenizer.ggml.tokens", &tokens);
    if (!id || id->kind != CONFIG_INT || id->integer < 0 || (uint64_t)id->integer >= count ||
        !utf8_valid(tokens[id->integer]))
        return LG_OK;
    return chat_set_add_token(s, name, tokens[id->integer], err);
}

LgStatus api_gguf_templates(const Gguf *g, ChatSet *s, LgError *err) {
    static const struct {
        const char *key, *name;
    } templates[] = {{"tokenizer.chat_template", "default"},
                     {"tokenizer.chat_template.tool_use", "tool_use"}},
      tokens[] = {{"tokenizer.ggml.bos_token_id", "bos_token"},
                  {"tokenizer.ggml.eos_token_id", "eos_token"},
                  {"tokenizer.ggml.unknown_token_id", "unk_token"},
                  {"tokenizer.ggml.padding_token_id", "pad_token"}};
    for (size_t i = 0; i < sizeof templates / sizeof templates[0]; i++) {
        const ConfigValue *source = gguf_get(g, templates[i].key);
        if (source && source->kind == CONFIG_STRING)
            LG_TRY(chat_set_add_template(s, lg_str(templates[i].name), source->string, err));
    }
    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++)
        LG_TRY(add_gguf_token(g, tokens[i].key, tokens[i].name, s, err));
    return LG_OK;
}

static LgStatus open_chat(LgEngine *e, LgError *err) {
    const Gguf *g = checkpoint_gguf(engine_model(e->engine)->checkpoint);
    ChatSet set = {0};
    if (e->chat.plain || e->chat.tools)
        return LG_OK;
    LgStatus status = g ? api_gguf_templates(g, &set, err) : open_folder(e, &set, err);
    if (status == LG_OK && !set.plain && !set.tools)
        status = no_template(e, err);
    if (status == LG_OK)
        e->chat = set;
    else
        chat_set_clear(&set);
    return status;
}

static LgStatus parse_array(const char *text, const char *what, json_t **out, LgError *err) {
    LG_TRY(lg_json_parse(lg_str(text), what, out, err));
    return json_is_array(*out) ? LG_OK
                               : lg_fail(err, LG_BAD_INPUT, 0, "%s: an array is needed", what);
}

LgStatus lg_chat_render(LgEngine *engine, const char *messages_json, const char *tools_json,
                        bool add_generation_prompt, char **text, LgError *error) {
    API_NEED(engine);
    API_NEED(messages_json);
    API_NEED(text);
    LG_TRY(open_chat(engine, error));
    json_t *messages = NULL, *tools = NULL;
    Buf out;
    buf_init(&out);
    LgStatus status = parse_array(messages_json, "messages", &messages, error);
    if (status == LG_OK && tools_json)
        status = parse_array(tools_json, "tools", &tools, error);
    if (status == LG_OK)
        status =
            chat_set_render(&engine->chat, messages, tools, add_generation_prompt, &out, error);
    if (status == LG_OK && out.len && memchr(out.data, 0, out.len))
        status = lg_fail(error, LG_BAD_INPUT, 0,
                         "the rendered messages hold U+0000, which a prompt cannot have");
    char *data = status == LG_OK ? buf_take(&out) : NULL;
    if (status == LG_OK && !data)
        status = lg_fail_memory(error);
    if (status == LG_OK)
        *text = data;
    buf_clear(&out);
    json_decref(messages);
    json_decref(tools);
    return status;
}
