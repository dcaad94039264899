/* An adapter: adapter_config.json, a zero byte, adapter_model.safetensors. The model is a small
 * program made by hand whose weights are constants. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "formats/safetensors.h"
#include "fuzz/fuzz.h"
#include "lora/peft.h"

enum { EMB, HEAD, WQ, WD, XG, XU, XD, PARAM_COUNT };
#define LAYERS 2
#define DIMS 3

/* experts (0: one weight), rows, columns: small enough that a fuzzer finds matching shapes. Those
 * of XD are square, so that what the config says decides. */
static const uint64_t param_dims[PARAM_COUNT][DIMS] = {{0, 6, 4}, {0, 6, 4}, {0, 3, 4}, {0, 4, 5},
                                                       {3, 2, 4}, {3, 2, 4}, {3, 4, 4}};
static const char *const param_modules[PARAM_COUNT] = {
    "model.embed_tokens",
    "lm_head",
    "model.layers.{l}.self_attn.q_proj",
    "model.layers.{l}.mlp.down_proj",
    "model.layers.{l}.mlp.experts.{n}.gate_proj",
    "model.layers.{l}.mlp.experts.{n}.up_proj",
    "model.layers.{l}.mlp.experts.{n}.down_proj"};
static const LangSource gate_source = {.name = {"model.layers.{l}.mlp.experts.gate_up_proj", 41},
                                       .windowed = true};
static const LangSource up_source = {
    .name = {"model.layers.{l}.mlp.experts.gate_up_proj", 41}, .windowed = true, .from_row = 2};
static const LangSource down_source = {.name = {"model.layers.{l}.mlp.experts.down_proj", 38}};
static const LangSource *const param_sources[PARAM_COUNT] = {
    [XG] = &gate_source, [XU] = &up_source, [XD] = &down_source};

typedef struct Toy {
    LangDim dims[DIMS * PARAM_COUNT];
    LangTensor tensors[PARAM_COUNT];
    LangSite sites[PARAM_COUNT];
    ParamBinding params[PARAM_COUNT * LAYERS];
    LangProgram program;
    Binding binding;
} Toy;

static void toy_init(Toy *toy) {
    memset(toy, 0, sizeof *toy);
    for (int i = 0; i < PARAM_COUNT; i++) {
        bool experts = param_dims[i][0] > 0;
        int first = DIMS * i + (experts ? 0 : 1);
        for (int k = 0; k < DIMS; k++)
            toy->dims[DIMS * i + k] = (LangDim){.name = LG_STR("n"), .size = param_dims[i][k]};
        toy->tensors[i] = (LangTensor){.name = LG_STR("w"),
                                       .kind = LANG_PARAM,
                                       .in_layer = i >= WQ,
                                       .rank = experts ? 3 : 2,
                                       .dims = {first, first + 1, first + 2},
                                       .axis_count = experts ? 3 : 2,
                                       .axis_start = {0, 1, 2, 3},
                                       .stack_dim = experts ? first : -1,
                                       .sources = param_sources[i],
                                       .source_count = experts,
                                       .module = lg_str(param_modules[i])};
        toy->sites[i] = (LangSite){.param = i, .in_layer = i >= WQ, .lookup = i == EMB};
        for (int l = 0; l < LAYERS; l++)
            toy->params[i * LAYERS + l] = (ParamBinding){.constant = 0.5};
    }
    toy->program = (LangProgram){.file = LG_STR("toy.lg"),
                                 .layer_count = LAYERS,
                                 .dims = toy->dims,
                                 .dim_count = DIMS * PARAM_COUNT,
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
    uint64_t rank = (uint64_t)s->rank, rows = param_dims[param][1], columns = param_dims[param][2];
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

static void check_experts(const AdapterSite *s, int param) {
    int32_t most = 0;
    FUZZ_CHECK(s->experts && !s->magnitude && !s->a);
    for (uint64_t x = 0; x < param_dims[param][0]; x++) {
        check_site(&s->experts[x], param);
        FUZZ_CHECK(!s->experts[x].magnitude && !s->experts[x].experts);
        most = s->experts[x].rank > most ? s->experts[x].rank : most;
    }
    FUZZ_CHECK(most == s->rank);
}

static void check_adapter(const Adapter *a, const TensorSet *set) {
    const AdapterData *d = adapter_data(a);
    size_t adapted = 0;
    FUZZ_CHECK(d->site_count == PARAM_COUNT && d->layer_count == LAYERS);
    for (int i = 0; i < PARAM_COUNT * LAYERS; i++) {
        if (d->sites[i].rank == 0)
            continue;
        int param = i % PARAM_COUNT;
        if (param_dims[param][0])
            check_experts(&d->sites[i], param);
        else
            check_site(&d->sites[i], param);
        adapted++;
    }
    const json_t *report = adapter_report(a), *counts = json_object_get(report, "tensors");
    FUZZ_CHECK(adapted > 0);
    FUZZ_CHECK(json_array_size(json_object_get(report, "sites")) >= adapted);
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
