/* Text of the public interface: the checkpoint's tokenizer and chat template, opened on first use.
 */
#include <string.h>

#include "api/internal.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/utf8.h"

#define TOKENIZER_BYTES_MAX (256u << 20)
#define TEMPLATE_BYTES_MAX (4u << 20)

static int32_t gguf_id(const Gguf *g, const char *key, int32_t otherwise) {
    const ConfigValue *v = gguf_get(g, key);
    if (!v)
        return otherwise;
    return v->kind == CONFIG_INT && v->integer >= 0 && v->integer <= INT32_MAX ? (int32_t)v->integer
                                                                               : -1;
}

static bool gguf_flag(const Gguf *g, const char *key, bool otherwise) {
    const ConfigValue *v = gguf_get(g, key);
    return v && v->kind == CONFIG_BOOL ? v->boolean : otherwise;
}

static LgStr gguf_text(const Gguf *g, const char *key) {
    const ConfigValue *v = gguf_get(g, key);
    return v && v->kind == CONFIG_STRING ? v->string : LG_STR("");
}

static LgStatus tokenizer_from_gguf(const Gguf *g, Tokenizer **out, LgError *err) {
    TokenizerVocab v = {.model = gguf_text(g, "tokenizer.ggml.model"),
                        .pre = gguf_text(g, "tokenizer.ggml.pre"),
                        .architecture = gguf_text(g, "general.architecture")};
    v.token_count = gguf_strings(g, "tokenizer.ggml.tokens", &v.tokens);
    if (v.token_count == 0)
        return lg_fail(err, LG_BAD_INPUT, 0, "the GGUF holds no tokenizer (tokenizer.ggml.tokens)");
    if (gguf_ints(g, "tokenizer.ggml.token_type", &v.types) != v.token_count)
        v.types = NULL;
    if (gguf_floats(g, "tokenizer.ggml.scores", &v.scores) != v.token_count)
        v.scores = NULL;
    v.merge_count = gguf_strings(g, "tokenizer.ggml.merges", &v.merges);
    /* What llama.cpp means where a file leaves things out. */
    bool pieces = lg_str_eq_c(v.model, "llama");
    v.bos_id = gguf_id(g, "tokenizer.ggml.bos_token_id", pieces ? 1 : -1);
    v.eos_id = gguf_id(g, "tokenizer.ggml.eos_token_id", pieces ? 2 : -1);
    bool bos = pieces || lg_str_eq_c(v.pre, "llama-bpe") || lg_str_eq_c(v.pre, "tekken");
    v.add_space_prefix = pieces && gguf_flag(g, "tokenizer.ggml.add_space_prefix", true);
    v.add_bos = v.bos_id >= 0 && gguf_flag(g, "tokenizer.ggml.add_bos_token", bos);
    v.add_eos = v.eos_id >= 0 && gguf_flag(g, "tokenizer.ggml.add_eos_token", false);
    return tokenizer_from_vocab(&v, out, err);
}

static LgStatus read_beside(const LgEngine *e, const char *name, size_t max, Buf *out,
                            LgError *err) {
    Buf path;
    buf_init(&path);
    buf_printf(&path, "%s/%s", checkpoint_path(engine_model(e->engine)->checkpoint), name);
    LgStatus status = path.failed ? lg_fail_memory(err) : file_read(path.data, max, out, err);
    buf_clear(&path);
    return status;
}

/* A file that is not there is an empty one. */
static LgStatus read_if_there(const LgEngine *e, const char *name, Buf *out, LgError *err) {
    LgError fault;
    LgStatus status = read_beside(e, name, TEMPLATE_BYTES_MAX, out, &fault);
    if (status == LG_NOT_FOUND)
        return LG_OK;
    if (status != LG_OK && err)
        *err = fault;
    return status;
}

LgStatus api_tokenizer(LgEngine *e, LgError *err) {
    if (e->tokenizer)
        return LG_OK;
    const Gguf *g = checkpoint_gguf(engine_model(e->engine)->checkpoint);
    if (g)
        return tokenizer_from_gguf(g, &e->tokenizer, err);
    Buf text;
    buf_init(&text);
    LgStatus status = read_beside(e, "tokenizer.json", TOKENIZER_BYTES_MAX, &text, err);
    if (status == LG_OK)
        status = tokenizer_from_json(buf_view(&text), &e->tokenizer, err);
    buf_clear(&text);
    return status;
}

LgStatus lg_tokenize(LgEngine *engine, const char *text, size_t bytes, LgTextKind kind,
                     int32_t **ids, size_t *count, LgError *error) {
    API_NEED(engine);
    API_NEED(text);
    API_NEED(ids);
    API_NEED(count);
    LG_TRY(api_tokenizer(engine, error));
    TokenIds list = {0};
    LgStatus (*encode)(const Tokenizer *, LgStr, bool, TokenIds *, LgError *) =
        kind == LG_TEXT_RENDERED ? tokenizer_encode_bare : tokenizer_encode;
    LgStatus status =
        encode(engine->tokenizer, (LgStr){text, bytes}, kind == LG_TEXT_PLAIN, &list, error);
    if (status == LG_OK && !list.ids) {
        list.ids = lg_alloc(sizeof *list.ids); /* no ids: still a pointer to free */
        status = list.ids ? LG_OK : lg_fail_memory(error);
    }
    if (status != LG_OK) {
        token_ids_clear(&list);
        return status;
    }
    *ids = list.ids;
    *count = list.count;
    return LG_OK;
}

LgStatus lg_detokenize(LgEngine *engine, const int32_t *ids, size_t count, bool skip_special,
                       char **text, size_t *bytes, LgError *error) {
    API_NEED(engine);
    API_NEED(text);
    if (count > 0)
        API_NEED(ids);
    LG_TRY(api_tokenizer(engine, error));
    Buf out;
    buf_init(&out);
    LgStatus status = tokenizer_decode(engine->tokenizer, ids, count, skip_special, &out, error);
    size_t len = out.len;
    char *data = status == LG_OK ? buf_take(&out) : NULL;
    buf_clear(&out);
    if (status != LG_OK)
        return status;
    if (!data)
        return lg_fail_memory(error);
    *text = data;
    if (bytes)
        *bytes = len;
    return LG_OK;
}

static LgStatus copy_string(LgStr s, char **out, LgError *err) {
    if (!s.ptr)
        return LG_OK;
    char *copy = lg_alloc(s.len + 1);
    if (!copy)
        return lg_fail_memory(err);
    memcpy(copy, s.ptr, s.len);
    copy[s.len] = 0;
    lg_free(*out);
    *out = copy;
    return LG_OK;
}

/* tokenizer_config.json writes a token as a string or as {"content": …}. */
static LgStr token_text(const json_t *value) {
    return lg_json_string(json_is_object(value) ? json_object_get(value, "content") : value);
}

/* A template is a string, or a list of {"name","template"} of which "default" counts. */
static LgStr template_text(const json_t *value) {
    if (!json_is_array(value))
        return lg_json_string(value);
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *entry = json_array_get(value, i);
        if (lg_str_eq_c(lg_json_string(json_object_get(entry, "name")), "default"))
            return lg_json_string(json_object_get(entry, "template"));
    }
    return (LgStr){0};
}

static LgStatus no_template(const LgEngine *e, LgError *err) {
    return lg_fail(err, LG_BAD_INPUT, 0,
                   "%s has no chat template (tokenizer_config.json's \"chat_template\", "
                   "chat_template.jinja, or "
                   "a GGUF's tokenizer.chat_template); send a prompt or ids",
                   checkpoint_path(engine_model(e->engine)->checkpoint));
}

static LgStatus chat_from_folder(LgEngine *e, LgError *err) {
    Buf config_text, jinja;
    buf_init(&config_text);
    buf_init(&jinja);
    json_t *root = NULL;
    LgStr source = {0};
    LgStatus status = read_if_there(e, "tokenizer_config.json", &config_text, err);
    if (status == LG_OK && config_text.len > 0)
        status = lg_json_parse(buf_view(&config_text), "tokenizer_config.json", &root, err);
    if (status == LG_OK) {
        status = copy_string(token_text(json_object_get(root, "bos_token")), &e->bos, err);
        if (status == LG_OK)
            status = copy_string(token_text(json_object_get(root, "eos_token")), &e->eos, err);
        source = template_text(json_object_get(root, "chat_template"));
    }
    if (status == LG_OK)
        status = read_if_there(e, "chat_template.jinja", &jinja, err);
    if (jinja.len > 0)
        source = buf_view(&jinja);
    if (status == LG_OK)
        status = source.ptr ? chat_template_parse(source, &e->chat, err) : no_template(e, err);
    json_decref(root);
    buf_clear(&jinja);
    buf_clear(&config_text);
    return status;
}

static LgStatus gguf_token_text(const Gguf *g, const char *key, char **out, LgError *err) {
    const ConfigValue *id = gguf_get(g, key);
    const LgStr *tokens;
    size_t count = gguf_strings(g, "tokenizer.ggml.tokens", &tokens);
    if (!id || id->kind != CONFIG_INT || id->integer < 0 || (uint64_t)id->integer >= count)
        return LG_OK;
    LgStr text = tokens[id->integer];
    return utf8_valid(text) ? copy_string(text, out, err) : LG_OK;
}

static LgStatus chat_from_gguf(LgEngine *e, const Gguf *g, LgError *err) {
    const ConfigValue *source = gguf_get(g, "tokenizer.chat_template");
    if (!source || source->kind != CONFIG_STRING)
        return no_template(e, err);
    LG_TRY(gguf_token_text(g, "tokenizer.ggml.bos_token_id", &e->bos, err));
    LG_TRY(gguf_token_text(g, "tokenizer.ggml.eos_token_id", &e->eos, err));
    return chat_template_parse(source->string, &e->chat, err);
}

/* json_pack cannot tell a token that is not there from one that there was no memory for. */
static bool add_token(json_t *context, const char *key, const char *token) {
    return !token || json_object_set_new(context, key, json_string(token)) == 0;
}

static LgStatus parse_json_argument(const char *text, const char *what, json_t *context,
                                    const char *key, LgError *err) {
    json_t *value = NULL;
    LG_TRY(lg_json_parse(lg_str(text), what, &value, err));
    if (!json_is_array(value)) {
        json_decref(value);
        return lg_fail(err, LG_BAD_INPUT, 0, "%s: an array is needed", what);
    }
    return json_object_set_new(context, key, value) == 0 ? LG_OK : lg_fail_memory(err);
}

LgStatus lg_chat_render(LgEngine *engine, const char *messages_json, const char *tools_json,
                        bool add_generation_prompt, char **text, LgError *error) {
    API_NEED(engine);
    API_NEED(messages_json);
    API_NEED(text);
    const Gguf *g = checkpoint_gguf(engine_model(engine->engine)->checkpoint);
    if (!engine->chat)
        LG_TRY(g ? chat_from_gguf(engine, g, error) : chat_from_folder(engine, error));
    Buf out;
    buf_init(&out);
    json_t *context = json_pack("{s:b}", "add_generation_prompt", add_generation_prompt);
    bool made = context && add_token(context, "bos_token", engine->bos) &&
                add_token(context, "eos_token", engine->eos);
    LgStatus status = made ? LG_OK : lg_fail_memory(error);
    if (status == LG_OK)
        status = parse_json_argument(messages_json, "messages", context, "messages", error);
    if (status == LG_OK && tools_json)
        status = parse_json_argument(tools_json, "tools", context, "tools", error);
    if (status == LG_OK)
        status = chat_template_render(engine->chat, context, &out, error);
    char *data = status == LG_OK ? buf_take(&out) : NULL;
    if (status == LG_OK && !data)
        status = lg_fail_memory(error);
    if (status == LG_OK)
        *text = data;
    buf_clear(&out);
    json_decref(context);
    return status;
}
