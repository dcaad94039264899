/* Adapters for `bench`: folders as PEFT writes them, of a chosen rank and random numbers, for the
 * attention and MLP projections that the checkpoint has. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/float.h"
#include "base/json.h"
#include "base/rng.h"
#include "cli/bench.h"

static const char tail[] = "_proj.weight";

/* "model.layers.0.self_attn.q_proj", without ".weight"; experts have too many to be a fair guess.
 */
static bool is_projection(const json_t *tensor, LgStr *module) {
    LgStr name = lg_json_string(json_object_get(tensor, "name"));
    *module = lg_str_sub(name, 0, name.len - (name.len < 7 ? name.len : 7));
    return json_array_size(json_object_get(tensor, "shape")) == 2 && lg_str_ends(name, tail) &&
           !strstr(json_string_value(json_object_get(tensor, "name")), ".experts.");
}

static size_t dim(const json_t *tensor, size_t axis) {
    return (size_t)json_integer_value(json_array_get(json_object_get(tensor, "shape"), axis));
}

static void entry(Buf *header, LgStr module, const char *part, size_t rows, size_t columns,
                  size_t *at) {
    size_t bytes = rows * columns * 2;
    buf_printf(header,
               "%c\"base_model.model.%.*s.lora_%s.weight\":{\"dtype\":\"BF16\",\"shape\":[%zu,%zu],"
               "\"data_offsets\":[%zu,%zu]}",
               header->len > 8 ? ',' : '{', LG_STR_ARG(module), part, rows, columns, *at,
               *at + bytes);
    *at += bytes;
}

/* Small enough that dozens of layers leave the logits finite; nowhere 0, so that nothing can be
 * left out. */
static void numbers(Buf *out, size_t count, uint64_t seed, uint64_t counter) {
    for (size_t i = 0; i < count; i++) {
        float v = rng_unit(seed, counter + i) - 0.5f;
        uint16_t h = bf16_from_float((v + (v < 0 ? -0.1f : 0.1f)) * 0.02f);
        buf_append(out, &h, sizeof h);
    }
}

static void safetensors(const json_t *tensors, int rank, uint64_t seed, Buf *out) {
    size_t at = 0, i, r = (size_t)rank;
    json_t *t;
    LgStr module;
    uint64_t size = 0;
    buf_append(out, &size, sizeof size); /* little-endian, as every machine that is served */
    json_array_foreach(tensors, i, t) {
        if (!is_projection(t, &module))
            continue;
        entry(out, module, "A", r, dim(t, 1), &at);
        entry(out, module, "B", dim(t, 0), r, &at);
    }
    buf_putc(out, '}');
    size = out->len - sizeof size;
    if (!out->failed)
        memcpy(out->data, &size, sizeof size);
    json_array_foreach(tensors, i, t) {
        if (is_projection(t, &module))
            numbers(out, r * (dim(t, 0) + dim(t, 1)), seed, (uint64_t)i << 32);
    }
}

/* The last parts of the modules' names, each once. */
static void config(const json_t *tensors, int rank, Buf *out) {
    size_t i;
    json_t *t;
    LgStr module;
    Buf names;
    buf_init(&names);
    json_array_foreach(tensors, i, t) {
        if (!is_projection(t, &module))
            continue;
        const char *dot = memrchr(module.ptr, '.', module.len);
        size_t from = dot ? (size_t)(dot - module.ptr) + 1 : 0;
        char quoted[96];
        snprintf(quoted, sizeof quoted, "\"%.*s\"", (int)(module.len - from), module.ptr + from);
        if (!strstr(names.data, quoted))
            buf_printf(&names, "%s%s", names.len ? "," : "", quoted);
    }
    buf_printf(out,
               "{\"peft_type\":\"LORA\",\"task_type\":\"CAUSAL_LM\",\"bias\":\"none\",\"r\":%d,"
               "\"lora_alpha\":%d,\"target_modules\":[%s]}",
               rank, rank, names.data);
    out->failed = out->failed || names.failed;
    buf_clear(&names);
}

static int write_file(const char *folder, const char *name, const Buf *content) {
    Buf path;
    buf_init(&path);
    buf_printf(&path, "%s/%s", folder, name);
    LgError err;
    int code = EXIT_OK;
    if (path.failed || content->failed)
        code = cli_no_memory();
    else if (file_write_atomic(path.data, content->data, content->len, &err) != LG_OK)
        code = cli_fail(&err);
    buf_clear(&path);
    return code;
}

static void remove_files(const char *folder) {
    static const char *const names[] = {"adapter_config.json", "adapter_model.safetensors"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        Buf path;
        buf_init(&path);
        buf_printf(&path, "%s/%s", folder, names[i]);
        if (!path.failed)
            unlink(path.data);
        buf_clear(&path);
    }
}

/* One folder, written anew for each: the engine keeps what it has read. */
static int make_one(LgEngine *e, const json_t *tensors, int rank, uint64_t seed, const char *name,
                    const char *folder) {
    Buf settings, data;
    buf_init(&settings);
    buf_init(&data);
    config(tensors, rank, &settings);
    safetensors(tensors, rank, seed, &data);
    int code = write_file(folder, "adapter_config.json", &settings);
    if (code == EXIT_OK)
        code = write_file(folder, "adapter_model.safetensors", &data);
    LgError err;
    if (code == EXIT_OK && lg_adapter_load(e, name, folder, &err) != LG_OK)
        code = cli_fail(&err);
    remove_files(folder);
    buf_clear(&data);
    buf_clear(&settings);
    return code;
}

static int add_name(BenchAdapters *a, int rank) {
    char text[48];
    snprintf(text, sizeof text, "bench-r%d-%d", rank, a->count);
    a->names[a->count] = strdup(text);
    if (!a->names[a->count])
        return cli_no_memory();
    a->count++;
    return EXIT_OK;
}

static int read_tensors(const char *model, json_t **report) {
    char *text = NULL;
    LgError err;
    int code = EXIT_OK;
    if (lg_inspect(model, NULL, &text, &err) != LG_OK ||
        lg_json_parse(lg_str(text), "report", report, &err) != LG_OK)
        code = cli_fail(&err);
    lg_free_memory(text);
    return code;
}

static int temporary_folder(char **out) {
    const char *base = getenv("TMPDIR");
    Buf path;
    buf_init(&path);
    buf_printf(&path, "%s/ligature-bench-XXXXXX", base && *base ? base : "/tmp");
    *out = NULL;
    if (path.failed)
        return cli_no_memory();
    if (!mkdtemp(path.data)) {
        cli_refuse("cannot make a folder for adapters, %s", path.data);
        buf_clear(&path);
        return EXIT_INTERNAL;
    }
    *out = buf_take(&path);
    return EXIT_OK;
}

int bench_adapters_make(LgEngine *e, const char *model, int rank, int count, BenchAdapters *a) {
    json_t *report = NULL;
    *a = (BenchAdapters){.names = calloc((size_t)count + 1, sizeof(char *))};
    if (!a->names)
        return cli_no_memory();
    int code = read_tensors(model, &report);
    const json_t *tensors = json_object_get(report, "tensors");
    size_t i, found = 0;
    json_t *t;
    LgStr module;
    json_array_foreach(tensors, i, t) found += is_projection(t, &module);
    if (code == EXIT_OK && found == 0)
        code = cli_refuse("no tensor of \"%s\" is a projection (…%s), so that no adapter can be "
                          "generated; give some with --adapter NAME=DIR, or ask for --adapters 0",
                          model, tail);
    if (code == EXIT_OK)
        code = temporary_folder(&a->folder);
    for (int k = 0; code == EXIT_OK && k < count; k++) {
        code = add_name(a, rank);
        if (code == EXIT_OK)
            code = make_one(e, tensors, rank, (uint64_t)rank * 1000 + (uint64_t)k, a->names[k],
                            a->folder);
    }
    json_decref(report);
    return code;
}

int bench_adapters_drop(LgEngine *e, BenchAdapters *a) {
    int code = EXIT_OK;
    LgError err;
    for (int i = 0; i < a->count; i++) {
        /* After a failure the last may not be loaded; the engine closes then. */
        if (a->folder && lg_adapter_unload(e, a->names[i], &err) != LG_OK)
            code = EXIT_INTERNAL;
        free(a->names[i]);
    }
    free(a->names);
    if (a->folder)
        rmdir(a->folder);
    lg_free_memory(a->folder);
    *a = (BenchAdapters){0};
    return code;
}
