#include "chat/set.h"

#include "base/json.h"

void chat_set_clear(ChatSet *s) {
    chat_template_destroy(s->plain);
    chat_template_destroy(s->tools);
    json_decref(s->tokens);
    *s = (ChatSet){0};
}

LgStatus chat_set_add_template(ChatSet *s, LgStr name, LgStr source, LgError *err) {
    bool tools = lg_str_eq_c(name, "tool_use");
    ChatTemplate **place = tools ? &s->tools : &s->plain;
    if (!tools && !lg_str_eq_c(name, "default"))
        return LG_OK;
    if (*place)
        return lg_fail(err, LG_BAD_INPUT, 0, "chat_template: two templates named \"%s\"",
                       tools ? "tool_use" : "default");
    LgStatus status = chat_template_parse(source, place, err);
    return status != LG_OK && tools ? lg_fail_context(err, status, "template \"tool_use\"")
                                    : status;
}

LgStatus chat_set_add_token(ChatSet *s, const char *name, LgStr text, LgError *err) {
    if (!s->tokens)
        s->tokens = json_object();
    return json_object_set_new(s->tokens, name, json_stringn(text.ptr, text.len)) == 0
               ? LG_OK
               : lg_fail_memory(err);
}

/* A token is a string or {"content": …}. */
static LgStr token_text(const json_t *value) {
    return lg_json_string(json_is_object(value) ? json_object_get(value, "content") : value);
}

static LgStatus add_tokens(ChatSet *s, const json_t *config, LgError *err) {
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        LgStr text = token_text(json_object_get(config, names[i]));
        if (text.ptr)
            LG_TRY(chat_set_add_token(s, names[i], text, err));
    }
    return LG_OK;
}

static LgStatus add_from_config(ChatSet *s, const json_t *value, LgError *err) {
    LgStr source = lg_json_string(value);
    if (source.ptr)
        return chat_set_add_template(s, LG_STR("default"), source, err);
    if (value && !json_is_null(value) && !json_is_array(value))
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "tokenizer_config.json: \"chat_template\" is neither a string nor a list");
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *entry = json_array_get(value, i);
        LgStr name = lg_json_string(json_object_get(entry, "name"));
        source = lg_json_string(json_object_get(entry, "template"));
        if (!name.ptr || !source.ptr)
            return lg_fail(err, LG_BAD_INPUT, 0,
                           "tokenizer_config.json: chat_template[%zu] has no \"name\" and "
                           "\"template\"",
                           i);
        LG_TRY(chat_set_add_template(s, name, source, err));
    }
    return LG_OK;
}

static LgStatus add_files(ChatSet *s, const ChatFiles *files, const json_t *config, LgError *err) {
    LG_TRY(add_tokens(s, config, err));
    if (!files->jinja.len && !files->tool_jinja.len)
        return add_from_config(s, json_object_get(config, "chat_template"), err);
    if (files->jinja.len)
        LG_TRY(chat_set_add_template(s, LG_STR("default"), files->jinja, err));
    return files->tool_jinja.len
               ? chat_set_add_template(s, LG_STR("tool_use"), files->tool_jinja, err)
               : LG_OK;
}

LgStatus chat_set_from_files(const ChatFiles *files, ChatSet *out, LgError *err) {
    ChatSet set = {0};
    json_t *config = NULL;
    LgStatus status = files->config.len
                          ? lg_json_parse(files->config, "tokenizer_config.json", &config, err)
                          : LG_OK;
    if (status == LG_OK)
        status = add_files(&set, files, config, err);
    if (status == LG_OK)
        *out = set;
    else
        chat_set_clear(&set);
    json_decref(config);
    return status;
}

LgStatus chat_set_render(const ChatSet *s, json_t *messages, json_t *tools,
                         bool add_generation_prompt, Buf *out, LgError *err) {
    const ChatTemplate *t = tools && s->tools ? s->tools : s->plain;
    if (!t)
        return lg_fail(err, LG_BAD_INPUT, 0,
                       s->tools ? "the only chat template is \"tool_use\", which needs tools"
                                : "there is no chat template");
    json_t *context =
        json_pack("{s:b, s:O, s:O*, s:n}", "add_generation_prompt", add_generation_prompt,
                  "messages", messages, "tools", tools, "documents");
    bool made = context && (tools || json_object_set_new(context, "tools", json_null()) == 0) &&
                (!s->tokens || json_object_update_missing(context, s->tokens) == 0);
    LgStatus status = made ? chat_template_render(t, context, out, err) : lg_fail_memory(err);
    json_decref(context);
    return status;
}
