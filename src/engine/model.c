/* From a path to a checked and bound program: picks the page by the checkpoint's architecture. */
#include <string.h>

#include "base/embedded.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "engine/engine.h"

#define PAGE_BYTES_MAX (1u << 20)

/* Whether an embedded page serves the architecture; what it serves goes behind list, "A, B". */
static LgStatus page_serves(const LgEmbedded *page, LgStr architecture, bool *found, Buf *list,
                            LgError *err) {
    Arena arena;
    arena_init(&arena);
    LgStr model;
    const LgStr *names;
    int count;
    LgStatus status = lang_models((LgStr){page->data, page->size}, page->name, &arena, &model,
                                  &names, &count, err);
    for (int i = 0; status == LG_OK && i < count; i++) {
        *found |= lg_str_eq(names[i], architecture);
        buf_printf(list, "%s%.*s", list->len ? ", " : "", LG_STR_ARG(names[i]));
    }
    arena_clear(&arena);
    return status;
}

/* The first architecture of the config's that a page serves decides. */
static LgStatus find_page(Model *m, const ConfigValue *architectures, Buf *served, LgError *err) {
    for (size_t i = 0; i < architectures->count; i++) {
        const ConfigValue *name = &architectures->items[i];
        if (name->kind != CONFIG_STRING)
            continue;
        buf_reset(served);
        for (const LgEmbedded *page = lg_models; page->name; page++) {
            bool found = false;
            LG_TRY(page_serves(page, name->string, &found, served, err));
            if (found) {
                m->source = (LgStr){page->data, page->size};
                m->file = page->name;
                return LG_OK;
            }
        }
    }
    if (served->failed)
        return lg_fail_memory(err);
    return lg_fail(err, LG_BAD_INPUT, 0,
                   "%s: no program serves the architecture \"%.*s\"; served: %s. Or name a page "
                   "with --program FILE.lg",
                   checkpoint_path(m->checkpoint), LG_STR_ARG(architectures->items[0].string),
                   served->data);
}

static LgStatus pick_page(Model *m, LgError *err) {
    const ConfigValue *list = config_get_c(checkpoint_config(m->checkpoint), "architectures");
    if (!list || list->kind != CONFIG_LIST || list->count == 0 ||
        list->items[0].kind != CONFIG_STRING)
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "%s: the config names no architecture (\"architectures\": [\"…\"]); name a "
                       "program with --program FILE.lg",
                       checkpoint_path(m->checkpoint));
    Buf served;
    buf_init(&served);
    LgStatus status = find_page(m, list, &served, err);
    buf_clear(&served);
    return status;
}

static LgStatus read_page(Model *m, const char *page, LgError *err) {
    LG_TRY(file_read(page, PAGE_BYTES_MAX, &m->source_buf, err));
    m->source = buf_view(&m->source_buf);
    const char *slash = strrchr(page, '/');
    m->file = arena_strdup(&m->arena, lg_str(slash ? slash + 1 : page));
    return m->file ? LG_OK : lg_fail_memory(err);
}

static void add_end_id(Model *m, int64_t id) {
    if (id < 0 || id > INT32_MAX || m->end_count == (int)(sizeof m->end_ids / sizeof m->end_ids[0]))
        return;
    for (int i = 0; i < m->end_count; i++)
        if (m->end_ids[i] == id)
            return;
    m->end_ids[m->end_count++] = (int32_t)id;
}

static float number_or(const json_t *object, const char *key, float otherwise) {
    const json_t *v = json_object_get(object, key);
    return json_is_number(v) ? (float)json_number_value(v) : otherwise;
}

/* generation_config.json: end tokens and sampling. A file that is not there is no error. */
static LgStatus read_generation_config(Model *m, LgError *err) {
    m->sampling = (LgSampling){.temperature = 0, .top_p = 1};
    const char *path =
        arena_printf(&m->arena, "%s/generation_config.json", checkpoint_path(m->checkpoint));
    if (!path)
        return lg_fail_memory(err);
    if (!file_exists(path))
        return LG_OK;
    Buf text;
    buf_init(&text);
    json_t *root = NULL;
    LgStatus status = file_read(path, 1u << 20, &text, err);
    if (status == LG_OK)
        status = lg_json_parse(buf_view(&text), path, &root, err);
    if (status == LG_OK) {
        const json_t *end = json_object_get(root, "eos_token_id");
        if (json_is_integer(end))
            add_end_id(m, json_integer_value(end));
        for (size_t i = 0; json_is_array(end) && i < json_array_size(end); i++)
            if (json_is_integer(json_array_get(end, i)))
                add_end_id(m, json_integer_value(json_array_get(end, i)));
        if (json_is_true(json_object_get(root, "do_sample"))) {
            m->sampling.temperature = number_or(root, "temperature", 1.0f);
            m->sampling.top_k = (int32_t)number_or(root, "top_k", 50.0f);
            m->sampling.top_p = number_or(root, "top_p", 1.0f);
            m->sampling.min_p = number_or(root, "min_p", 0.0f);
        }
    }
    json_decref(root);
    buf_clear(&text);
    return status;
}

static void read_config_facts(Model *m) {
    const Config *config = checkpoint_config(m->checkpoint);
    const ConfigValue *context = config_get_c(config, "max_position_embeddings");
    if (context && context->kind == CONFIG_INT && context->integer > 0 &&
        context->integer < INT32_MAX)
        m->context = (int)context->integer;
    if (m->end_count > 0)
        return;
    const ConfigValue *end = config_get_c(config, "eos_token_id");
    if (end && end->kind == CONFIG_INT)
        add_end_id(m, end->integer);
    for (size_t i = 0; end && end->kind == CONFIG_LIST && i < end->count; i++)
        if (end->items[i].kind == CONFIG_INT)
            add_end_id(m, end->items[i].integer);
}

LgStatus model_open(const char *path, const char *page, bool config_only, Model *out,
                    LgError *err) {
    Model m = {0};
    arena_init(&m.arena);
    buf_init(&m.source_buf);
    LgStatus status = config_only ? checkpoint_open_config(path, &m.checkpoint, err)
                                  : checkpoint_open(path, &m.checkpoint, err);
    if (status == LG_OK)
        status = page ? read_page(&m, page, err) : pick_page(&m, err);
    LangProgram *checked = NULL;
    if (status == LG_OK)
        status = lang_compile(m.source, m.file, checkpoint_config(m.checkpoint), &m.arena, &checked,
                              err);
    if (status == LG_OK)
        status = lang_rewrite_lora(checked, &m.arena, &m.program, err);
    const TensorSet *tensors = status == LG_OK ? checkpoint_tensors(m.checkpoint) : NULL;
    if (tensors)
        status = bind_params(m.program, tensors, &m.arena, &m.binding, err);
    if (status == LG_OK)
        status = read_generation_config(&m, err);
    if (status != LG_OK) {
        model_close(&m);
        return status;
    }
    read_config_facts(&m);
    *out = m;
    return LG_OK;
}

void model_close(Model *m) {
    checkpoint_close(m->checkpoint);
    buf_clear(&m->source_buf);
    arena_clear(&m->arena);
    m->checkpoint = NULL;
}
