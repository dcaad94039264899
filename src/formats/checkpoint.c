/* A model on disk: which reader it needs, and what belongs to it as long as it is open. */
#include "formats/checkpoint.h"

#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "formats/gguf_model.h"
#include "formats/hf_quantization.h"
#include "formats/safetensors.h"

#define CONFIG_BYTES_MAX (16u << 20)

struct Checkpoint {
    char *path;
    Config *config;
    TensorSet *tensors;
    Gguf *gguf; /* the tensors borrow from it */
};

static LgStatus create(const char *path, Checkpoint **out, LgError *err) {
    Checkpoint *c = lg_calloc(1, sizeof *c);
    if (!c)
        return lg_fail_memory(err);
    size_t len = strlen(path);
    c->path = lg_alloc(len + 1);
    c->config = config_create();
    if (!c->path || !c->config) {
        checkpoint_close(c);
        return lg_fail_memory(err);
    }
    memcpy(c->path, path, len + 1);
    *out = c;
    return LG_OK;
}

void checkpoint_close(Checkpoint *c) {
    if (!c)
        return;
    config_destroy(c->config);
    tensor_set_close(c->tensors);
    gguf_close(c->gguf);
    lg_free(c->path);
    lg_free(c);
}

static LgStatus read_config(Checkpoint *c, const char *path, HfQuantization *q, LgError *err) {
    Buf text;
    buf_init(&text);
    LgStatus status = file_read(path, CONFIG_BYTES_MAX, &text, err);
    if (status == LG_OK)
        status = hf_config_parse(buf_view(&text), path, c->config, err);
    if (status == LG_OK)
        status = hf_quantization_claim(c->config, path, q, err);
    buf_clear(&text);
    return status;
}

static LgStatus read_dir_config(Checkpoint *c, HfQuantization *q, LgError *err) {
    Buf path;
    buf_init(&path);
    LgStatus status = file_inside(c->path, LG_STR("config.json"), &path, err);
    if (status == LG_OK)
        status = read_config(c, path.data, q, err);
    else if (status == LG_NOT_FOUND)
        lg_fail(err, status, 0,
                "\"%s\" has no config.json; a folder with config.json and model.safetensors, or a "
                ".gguf file, is expected",
                c->path);
    buf_clear(&path);
    return status;
}

static LgStatus open_dir(Checkpoint *c, bool tensors, LgError *err) {
    HfQuantization q;
    LG_TRY(read_dir_config(c, &q, err));
    if (!tensors)
        return LG_OK;
    LG_TRY(safetensors_open(c->path, "model", &c->tensors, err));
    return hf_quantization_join(c->tensors, &q, c->path, err);
}

static LgStatus open_gguf(Checkpoint *c, bool tensors, LgError *err) {
    LG_TRY(gguf_open(c->path, &c->gguf, err));
    LG_TRY(gguf_model_config(c->gguf, c->path, c->config, err));
    LG_TRY(gguf_model_tensors(c->gguf, c->path, c->config, &c->tensors, err));
    if (!tensors) { /* they had to be looked at: part of the config follows from them */
        tensor_set_close(c->tensors);
        c->tensors = NULL;
    }
    return LG_OK;
}

static LgStatus open_any(Checkpoint *c, bool tensors, LgError *err) {
    if (file_is_dir(c->path))
        return open_dir(c, tensors, err);
    if (lg_str_ends(lg_str(c->path), ".gguf"))
        return open_gguf(c, tensors, err);
    if (!file_exists(c->path))
        return lg_fail(err, LG_NOT_FOUND, 0,
                       "\"%s\" does not exist; a folder or a .gguf file is expected", c->path);
    HfQuantization q;
    if (!tensors)
        return read_config(c, c->path, &q, err);
    return lg_fail(err, LG_BAD_INPUT, 0,
                   "\"%s\" is no model: a folder with config.json and model.safetensors, or a "
                   ".gguf file, is expected",
                   c->path);
}

static LgStatus open_as(const char *path, bool tensors, Checkpoint **out, LgError *err) {
    Checkpoint *c = NULL;
    LG_TRY(create(path, &c, err));
    LgStatus status = open_any(c, tensors, err);
    if (status == LG_OK)
        *out = c;
    else
        checkpoint_close(c);
    return status;
}

LgStatus checkpoint_open(const char *path, Checkpoint **out, LgError *err) {
    return open_as(path, true, out, err);
}

LgStatus checkpoint_open_config(const char *path, Checkpoint **out, LgError *err) {
    return open_as(path, false, out, err);
}

const char *checkpoint_path(const Checkpoint *c) {
    return c->path;
}

const Config *checkpoint_config(const Checkpoint *c) {
    return c->config;
}

const TensorSet *checkpoint_tensors(const Checkpoint *c) {
    return c->tensors;
}

const Gguf *checkpoint_gguf(const Checkpoint *c) {
    return c->gguf;
}
