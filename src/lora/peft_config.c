/* adapter_config.json: what changes numbers is read, what cannot is set aside by name, and
 * everything else is refused by name. */
#include <math.h>
#include <stdio.h>

#include "base/json.h"
#include "base/mem.h"
#include "lora/peft.h"

typedef enum ConfigUse {
    CONFIG_READ,  /* by the functions below */
    CONFIG_INERT, /* note: why it cannot matter */
    CONFIG_REFUSE /* where it is set; note: what it is */
} ConfigUse;

typedef struct ConfigRow {
    const char *key;
    ConfigUse use;
    const char *note;
} ConfigRow;

/* What PEFT 0.2 to 0.21 and the usual trainers write. */
static const ConfigRow config_rows[] = {
    {"peft_type", CONFIG_READ, ""},
    {"r", CONFIG_READ, ""},
    {"lora_alpha", CONFIG_READ, ""},
    {"use_rslora", CONFIG_READ, ""},
    {"use_dora", CONFIG_READ, ""},
    {"rank_pattern", CONFIG_READ, ""},
    {"alpha_pattern", CONFIG_READ, ""},
    {"init_lora_weights", CONFIG_READ, ""},
    {"bias", CONFIG_READ, ""},
    {"target_parameters", CONFIG_READ, ""},
    {"lora_bias", CONFIG_READ, ""},
    {"modules_to_save", CONFIG_READ, ""},
    {"trainable_token_indices", CONFIG_READ, ""},
    {"peft_version", CONFIG_READ, ""},
    {"base_model_name_or_path", CONFIG_INERT, "the base is the model that is served"},
    {"revision", CONFIG_INERT, "the base is the model that is served"},
    {"task_type", CONFIG_INERT, "the tensors say what is adapted"},
    {"target_modules", CONFIG_INERT, "the tensors say what is adapted"},
    {"exclude_modules", CONFIG_INERT, "the tensors say what is adapted"},
    {"layers_to_transform", CONFIG_INERT, "the tensors say what is adapted"},
    {"layers_pattern", CONFIG_INERT, "the tensors say what is adapted"},
    {"inference_mode", CONFIG_INERT, "a setting of training"},
    {"lora_dropout", CONFIG_INERT, "a setting of training"},
    {"eva_config", CONFIG_INERT, "a setting of training: it leaves the base as it is"},
    {"runtime_config", CONFIG_INERT, "a setting of training"},
    {"auto_mapping", CONFIG_INERT, "names Python classes"},
    {"megatron_config", CONFIG_INERT, "a setting of training"},
    {"megatron_core", CONFIG_INERT, "a setting of training"},
    {"qalora_group_size", CONFIG_INERT, "without use_qalora it is not used"},
    {"fan_in_fan_out", CONFIG_REFUSE, "weights stored as [in, out]"},
    {"layer_replication", CONFIG_REFUSE, "a model with repeated layers"},
    {"loftq_config", CONFIG_REFUSE, "a changed base"},
    {"corda_config", CONFIG_REFUSE, "a changed base"},
    {"lora_ga_config", CONFIG_REFUSE, "a changed base"},
    {"use_qalora", CONFIG_REFUSE, "LoRA on pooled inputs"},
    {"alora_invocation_tokens", CONFIG_REFUSE, "an adapter that acts from a token on"},
    {"arrow_config", CONFIG_REFUSE, "routing between adapters"},
    {"ensure_weight_tying", CONFIG_REFUSE, "one adapter for the embedding and the head"},
    {"use_bdlora", CONFIG_REFUSE, "block-diagonal LoRA"},
};

/* How the weights began does not matter unless the base was changed to match. */
static const char *const inits_served[] = {"gaussian", "eva", "orthogonal"};

void peft_print_config(Buf *out) {
    static const char *const uses[] = {[CONFIG_READ] = "read",
                                       [CONFIG_INERT] = "set aside: ",
                                       [CONFIG_REFUSE] = "refused where it is set: "};
    buf_puts(out, "| key of adapter_config.json | |\n| --- | --- |\n");
    for (size_t i = 0; i < sizeof config_rows / sizeof config_rows[0]; i++)
        buf_printf(out, "| `%s` | %s%s |\n", config_rows[i].key, uses[config_rows[i].use],
                   config_rows[i].note);
}

static bool is_set(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_NULL:
    case JSON_FALSE:
        return false;
    case JSON_OBJECT:
        return json_object_size(value) > 0;
    case JSON_ARRAY:
        return json_array_size(value) > 0;
    case JSON_STRING:
        return json_string_length(value) > 0;
    default:
        return true;
    }
}

/* A copy of value's JSON, cut short, for messages. */
static void show_value(const json_t *value, Buf *out) {
    Buf text;
    buf_init(&text);
    lg_json_print(value, JSON_ENCODE_ANY | JSON_COMPACT, &text);
    if (!text.failed)
        buf_printable(out, buf_view(&text), 120);
    buf_clear(&text);
}

static LgStatus fail_value(LgError *err, LgStr key, const json_t *value, const char *accepted) {
    Buf name, shown;
    buf_init(&name);
    buf_init(&shown);
    buf_printable(&name, key, 80);
    show_value(value, &shown);
    LgStatus status = lg_fail(err, LG_BAD_INPUT, 0, "adapter_config.json: \"%s\" is %s; %s",
                              name.data, shown.data, accepted);
    buf_clear(&name);
    buf_clear(&shown);
    return status;
}

static LgStatus read_bool(const json_t *json, const char *key, bool *out, LgError *err) {
    const json_t *value = json_object_get(json, key);
    *out = json_is_true(value);
    if (!value || json_is_null(value) || json_is_boolean(value))
        return LG_OK;
    return fail_value(err, lg_str(key), value, "it must be true or false");
}

static LgStatus read_type(const json_t *json, LgError *err) {
    const json_t *value = json_object_get(json, "peft_type");
    if (!value)
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "adapter_config.json: \"peft_type\" is missing; \"LORA\" is served");
    if (lg_str_eq_c(lg_json_string(value), "LORA"))
        return LG_OK;
    return fail_value(err, LG_STR("peft_type"), value, "only \"LORA\" is served");
}

static LgStatus read_rank(const json_t *json, PeftConfig *out, LgError *err) {
    const json_t *value = json_object_get(json, "r");
    if (!value || json_is_null(value))
        return LG_OK;
    double r = json_number_value(value);
    if (!json_is_number(value) || !(r >= 1 && r <= 1e15 && r == floor(r)))
        return fail_value(err, LG_STR("r"), value, "a rank is a whole number of at least 1");
    out->has_r = true;
    out->r = (int64_t)r;
    return LG_OK;
}

static LgStatus read_alpha(const json_t *json, PeftConfig *out, LgError *err) {
    const json_t *value = json_object_get(json, "lora_alpha");
    if (!value || json_is_null(value))
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "adapter_config.json: \"lora_alpha\" is missing, so the scale alpha / r is "
                       "not known; write the value of the training");
    out->alpha = json_number_value(value);
    if (!json_is_number(value) || !isfinite(out->alpha))
        return fail_value(err, LG_STR("lora_alpha"), value, "it must be a finite number");
    return LG_OK;
}

static LgStatus read_bias(const json_t *json, PeftConfig *out, LgError *err) {
    const json_t *value = json_object_get(json, "bias");
    LgStr which = lg_json_string(value);
    if (!value || !is_set(value) || lg_str_eq_c(which, "none"))
        return LG_OK;
    out->bias = lg_str_eq_c(which, "lora_only") || lg_str_eq_c(which, "all");
    return out->bias ? LG_OK
                     : fail_value(err, LG_STR("bias"), value,
                                  "\"none\", \"lora_only\" and \"all\" are served");
}

static LgStatus read_init(const json_t *json, LgError *err) {
    const json_t *value = json_object_get(json, "init_lora_weights");
    if (!value || json_is_null(value) || json_is_boolean(value))
        return LG_OK;
    LgStr name = lg_json_string(value);
    for (size_t i = 0; i < sizeof inits_served / sizeof inits_served[0]; i++)
        if (lg_str_eq_c(name, inits_served[i]))
            return LG_OK;
    return fail_value(err, LG_STR("init_lora_weights"), value,
                      "true, false, \"gaussian\", \"eva\" and \"orthogonal\" are served. Others "
                      "may have changed the base weights too; save the adapter with "
                      "path_initial_model_for_weight_conversion");
}

static bool is_list(const json_t *value, bool (*is_item)(const json_t *)) {
    bool list = json_is_array(value);
    for (size_t i = 0; list && i < json_array_size(value); i++)
        list = is_item(json_array_get(value, i));
    return list;
}

static bool is_name(const json_t *value) {
    return json_string_length(value) > 0;
}

static bool is_id(const json_t *value) {
    return json_is_integer(value) && json_integer_value(value) >= 0;
}

static LgStatus read_names(const json_t *json, const char *key, const json_t **out, LgError *err) {
    const json_t *value = json_object_get(json, key);
    if (!value || !is_set(value))
        return LG_OK;
    if (!is_list(value, is_name))
        return fail_value(err, lg_str(key), value, "it must be a list of names");
    *out = value;
    return LG_OK;
}

/* Ids of the embedding's rows, or such lists by the module's name. */
static LgStatus read_tokens(const json_t *json, PeftConfig *out, LgError *err) {
    json_t *value = json_object_get(json, "trainable_token_indices"), *list;
    if (!value || !is_set(value))
        return LG_OK;
    const char *name;
    bool good = json_is_object(value) || is_list(value, is_id);
    json_object_foreach(value, name, list) good &= is_list(list, is_id);
    if (!good)
        return fail_value(err, LG_STR("trainable_token_indices"), value,
                          "it must be a list of token ids, or such lists by module");
    out->tokens = value;
    return LG_OK;
}

static const ConfigRow *row_of(LgStr key) {
    for (size_t i = 0; i < sizeof config_rows / sizeof config_rows[0]; i++)
        if (lg_str_eq_c(key, config_rows[i].key))
            return &config_rows[i];
    return NULL;
}

static LgStatus check_keys(const json_t *json, json_t *disregarded, LgError *err) {
    const char *text;
    size_t len;
    json_t *value;
    json_object_keylen_foreach((json_t *)(uintptr_t)json, text, len, value) {
        LgStr key = {text, len};
        const ConfigRow *row = row_of(key);
        if (!is_set(value) || (row && row->use == CONFIG_READ))
            continue;
        if (!row)
            return fail_value(err, key, value,
                              "this key is not known, so it may change numbers; null, false and "
                              "empty values are ignored");
        if (row->use == CONFIG_REFUSE) {
            char words[160];
            snprintf(words, sizeof words, "that means %s, which is not served yet", row->note);
            return fail_value(err, key, value, words);
        }
        if (!peft_disregard(disregarded, key, row->note))
            return lg_fail_memory(err);
    }
    return LG_OK;
}

LgStatus peft_config_parse(const json_t *json, Arena *arena, json_t *disregarded, PeftConfig *out,
                           LgError *err) {
    *out = (PeftConfig){0};
    if (!json_is_object(json))
        return lg_fail(err, LG_BAD_INPUT, 0, "adapter_config.json: it must hold a JSON object");
    LG_TRY(read_type(json, err));
    LG_TRY(check_keys(json, disregarded, err));
    LG_TRY(read_init(json, err));
    LG_TRY(read_bias(json, out, err));
    LG_TRY(read_names(json, "target_parameters", &out->target_parameters, err));
    LG_TRY(read_names(json, "modules_to_save", &out->modules_to_save, err));
    LG_TRY(read_tokens(json, out, err));
    out->peft_version = lg_json_string(json_object_get(json, "peft_version"));
    LG_TRY(read_rank(json, out, err));
    LG_TRY(read_alpha(json, out, err));
    LG_TRY(read_bool(json, "use_rslora", &out->rslora, err));
    LG_TRY(read_bool(json, "use_dora", &out->dora, err));
    LG_TRY(read_bool(json, "lora_bias", &out->lora_bias, err));
    LG_TRY(patterns_parse("rank_pattern", json_object_get(json, "rank_pattern"), true, arena,
                          &out->rank_pattern, err));
    return patterns_parse("alpha_pattern", json_object_get(json, "alpha_pattern"), false, arena,
                          &out->alpha_pattern, err);
}

void peft_config_clear(PeftConfig *c) {
    patterns_clear(&c->rank_pattern);
    patterns_clear(&c->alpha_pattern);
}
