/* Text of the public interface: the checkpoint's tokenizer, opened on first use. */
#include "api/internal.h"
#include "base/file.h"
#include "base/mem.h"

#define TOKENIZER_BYTES_MAX (256u << 20)
#define SETTINGS_BYTES_MAX (4u << 20)

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

LgStatus api_gguf_tokenizer(const Gguf *g, Tokenizer **out, LgError *err) {
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

LgStatus api_read_settings(const LgEngine *e, const char *name, Buf *out, LgError *err) {
    LgError fault;
    LgStatus status = read_beside(e, name, SETTINGS_BYTES_MAX, out, &fault);
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
        return api_gguf_tokenizer(g, &e->tokenizer, err);
    Buf text, config;
    buf_init(&text);
    buf_init(&config);
    LgStatus status = read_beside(e, "tokenizer.json", TOKENIZER_BYTES_MAX, &text, err);
    if (status == LG_OK)
        status = api_read_settings(e, "tokenizer_config.json", &config, err);
    if (status == LG_OK)
        status = tokenizer_from_files(buf_view(&text), buf_view(&config), &e->tokenizer, err);
    buf_clear(&text);
    buf_clear(&config);
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
