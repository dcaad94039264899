/* An adapter: adapter_config.json, a zero byte, adapter_model.safetensors. The model is a small
 * program made by hand whose weights are constants. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "formats/safetensors.h"
#include "fuzz/fuzz.h"
#include "lora/peft.h"

enum { EMB, HEAD, WQ, WD, PARAM_COUNT };
#define LAYERS 2

/* rows, columns: small enough that a fuzzer finds matching shapes. */
static const uint64_t param_dims[PARAM_COUNT][2] = {{6, 4}, {6, 4}, {3, 4}, {4, 5}};
static const char *const param_modules[PARAM_COUNT] = {"model.embed_tokens", "lm_head",
                                                       "model.layers.{l}.self_attn.q_proj",
                                                       "model.layers.{l}.mlp.down_proj"};

typedef struct Toy {
    LangDim dims[2 * PARAM_COUNT];
    LangTensor tensors[PARAM_COUNT];
    LangSite sites[PARAM_COUNT];
    ParamBinding params[PARAM_COUNT * LAYERS];
    LangProgram program;
    Binding binding;
} Toy;

static void toy_init(Toy *toy) {
    memset(toy, 0, sizeof *toy);
    for (int i = 0; i < PARAM_COUNT; i++) {
        for (int k = 0; k < 2; k++)
            toy->dims[2 * i + k] = (LangDim){.name = LG_STR("n"), .size = param_dims[i][k]};
        toy->tensors[i] = (LangTensor){.name = LG_STR("w"),
                                       .kind = LANG_PARAM,
                                       .in_layer = i >= WQ,
                                       .rank = 2,
                                       .dims = {2 * i, 2 * i + 1},
                                       .axis_count = 2,
                                       .axis_start = {0, 1, 2},
                                       .stack_dim = -1,
                                       .module = lg_str(param_modules[i])};
        toy->sites[i] = (LangSite){.param = i, .in_layer = i >= WQ, .lookup = i == EMB};
        for (int l = 0; l < LAYERS; l++)
            toy->params[i * LAYERS + l] = (ParamBinding){.constant = 0.5};
    }
    toy->program = (LangProgram){.file = LG_STR("toy.lg"),
                                 .layer_count = LAYERS,
                                 .dims = toy->dims,
                                 .dim_count = 2 * PARAM_COUNT,
                                 .tensors = toy->tensors,
                                 .tensor_count = PARAM_COUNT,
                                 .sites = toy->sites,
                                 .site_count = PARAM_COUNT,
                                 .lora_input = -1};
    toy->binding = (Binding){.layer_count = LAYERS, .params = toy->params};
}

static void check_array(const float *values, uint64_t count) {
    for (uint64_t i = 0; i < count; i++)
        FUZZ_CHECK(isfinite(values[i]));
}

static void check_site(const AdapterSite *s, int param) {
    uint64_t rank = (uint64_t)s->rank, rows = param_dims[param][0], columns = param_dims[param][1];
    FUZZ_CHECK(isfinite(s->scale));
    check_array(s->a, rank * (param == EMB ? rows : columns));
    check_array(s->b, rank * (param == EMB ? columns : rows));
    if (!s->magnitude)
        return;
    FUZZ_CHECK(param != EMB);
    check_array(s->magnitude, rows);
    check_array(s->dora_w2, rows);
    check_array(s->dora_wba, rows);
    check_array(s->dora_ba2, rows);
}

static void check_adapter(const Adapter *a, const TensorSet *set) {
    const AdapterData *d = adapter_data(a);
    size_t adapted = 0;
    FUZZ_CHECK(d->site_count == PARAM_COUNT && d->layer_count == LAYERS);
    for (int i = 0; i < PARAM_COUNT * LAYERS; i++) {
        if (d->sites[i].rank == 0)
            continue;
        check_site(&d->sites[i], i % PARAM_COUNT);
        adapted++;
    }
    const json_t *report = adapter_report(a), *counts = json_object_get(report, "tensors");
    FUZZ_CHECK(adapted > 0);
    FUZZ_CHECK(json_array_size(json_object_get(report, "sites")) == adapted);
    FUZZ_CHECK((size_t)json_integer_value(json_object_get(counts, "applied")) +
                   (size_t)json_integer_value(json_object_get(counts, "disregarded")) ==
               tensor_set_count(set));
    FUZZ_CHECK(strlen(adapter_hash(a)) == 64);
}

static void load(LgStr config, const TensorSet *set, bool store_f32) {
    Toy toy;
    toy_init(&toy);
    AdapterOptions options = {
        .program = &toy.program, .binding = &toy.binding, .store_f32 = store_f32};
    Adapter *a = NULL;
    LgError err = {0};
    LgStatus status = adapter_from_memory(config, set, &options, &a, &err);
    FUZZ_CHECK((status == LG_OK) == (a != NULL));
    if (a)
        check_adapter(a, set);
    else
        FUZZ_CHECK(err.status == status && err.message[0]);
    adapter_destroy(a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    if (!end)
        return 0;
    LgStr config = {(const char *)data, (size_t)(end - data)};
    TensorSet *set = NULL;
    LgError err;
    if (safetensors_parse(end + 1, size - config.len - 1, "adapter_model.safetensors", &set,
                          &err) != LG_OK)
        return 0;
    load(config, set, false);
    load(config, set, true);
    tensor_set_close(set);
    return 0;
}
