/* The parts of a PEFT folder on their way to numbers. Nothing here changes an engine: a plan lives
 * in the arena of one load.
 *
 *   config + tensors → PeftConfig, PeftKey → PeftPlan (which tensor acts where, checked) → numbers
 */
#ifndef LG_LORA_PEFT_H
#define LG_LORA_PEFT_H

#include "base/arena.h"
#include "base/map.h"
#include "lora/lora.h"

/* ---- patterns ---- */

typedef struct PeftPattern {
    LgStr key; /* as written */
    double value;
    bool anchored; /* began with ^: the whole name must match */
    LgStr plain;   /* ptr NULL: `code` decides; else a character each, '.' any */
    void *code;    /* pcre2_code */
    bool used;     /* decided for some module */
} PeftPattern;

/* rank_pattern or alpha_pattern, in file order. A key K applies to the names that ^(.*\.)?(K)$
 * matches. */
typedef struct PeftPatterns {
    const char *config_key;
    PeftPattern *items;
    size_t count;
    void *match_data, *match_context; /* pcre2's; NULL where no key needs them */
} PeftPatterns;

/* object: a JSON object or NULL. The result borrows its keys and must be cleared, on failure too.
 * Values are finite numbers; `whole` asks for integers of at least 1. */
LgStatus patterns_parse(const char *config_key, const json_t *object, bool whole, Arena *arena,
                        PeftPatterns *out, LgError *err);
void patterns_clear(PeftPatterns *p);
/* *out: the first pattern that matches either name, or NULL. Errors: LG_BAD_INPUT for one that
 * needs too many steps. */
LgStatus patterns_find(PeftPatterns *p, LgStr name, LgStr other, PeftPattern **out, LgError *err);

/* ---- config ---- */

typedef struct PeftConfig {
    bool has_r; /* r is missing otherwise, and the tensors alone say */
    int64_t r;
    double alpha;
    bool rslora, dora, lora_bias;
    bool bias;                       /* biases of the base are replaced */
    const json_t *target_parameters; /* a list of strings, or NULL */
    const json_t *modules_to_save;   /* the same */
    const json_t *tokens;            /* trainable_token_indices: a list, or lists by module; NULL */
    LgStr peft_version;              /* len 0: not recorded */
    PeftPatterns rank_pattern, alpha_pattern;
} PeftConfig;

/* json borrowed, must outlive the config. Adds what was set but cannot matter to disregarded
 * ([{"what","why"}]). Must be cleared, on failure too. */
LgStatus peft_config_parse(const json_t *json, Arena *arena, json_t *disregarded, PeftConfig *out,
                           LgError *err);
void peft_config_clear(PeftConfig *c);

/* ---- tensor names ---- */

typedef enum PeftKind {
    PEFT_A,
    PEFT_B,
    PEFT_EMBED_A,
    PEFT_EMBED_B,
    PEFT_MAGNITUDE,
    PEFT_B_BIAS,
    PEFT_BASE_COPY,
    PEFT_BASE_BIAS, /* of an adapted module: replaces the base's */
    PEFT_WHOLE,     /* a tensor of the base under its own name: replaces it */
    PEFT_TOKENS,    /* rows of an embedding, which they replace */
    PEFT_UNKNOWN
} PeftKind;

typedef struct PeftKey {
    PeftKind kind;
    int depth;     /* ".base_layer" behind the module's name, which are no part of it */
    LgStr module;  /* as PEFT knew it: without "base_model.model." */
    LgStr bare;    /* without any prefix: "layers.0.self_attn.q_proj" */
    LgStr adapter; /* the adapter's name where the key holds it; len 0 otherwise */
    LgStr tail;    /* of kinds that replace: "weight" or "bias" */
} PeftKey;

PeftKey peft_key_parse(LgStr name);
LgStr peft_bare_name(LgStr module);
const char *peft_kind_name(PeftKind kind);
/* The parts of adapter_print_served. */
void peft_print_keys(Buf *out);
void peft_print_config(Buf *out);

/* ---- the model's modules ---- */

typedef struct LoraTarget {
    int site, layer;
    int expert;              /* -1: all that the param has */
    uint64_t from_row, rows; /* of the module's outputs: a fused module feeds several sites */
    struct LoraTarget *next;
} LoraTarget;

typedef struct LoraModule {
    LgStr name; /* "model.layers.0.self_attn.q_proj" */
    bool lookup;
    uint64_t in, out;
    uint64_t experts; /* of a parameter that holds those of a layer; 0: one weight */
    LoraTarget *targets;
} LoraModule;

/* A module whose parameters, each with the weights of all experts, adapters name through it alone:
 * "model.layers.0.mlp.experts". */
#define LORA_PARAMETERS_MAX 4
typedef struct LoraHolder {
    size_t parameters[LORA_PARAMETERS_MAX]; /* modules, in the page's order, which is the model's */
    int count;
} LoraHolder;

typedef struct LoraModules {
    LoraModule *items;
    size_t count, cap;
    Map by_bare; /* bare name → index of the product's module */
    Map lookup_by_bare;
    LoraHolder *holders;
    size_t holder_count, holder_cap;
    Map holder_by_bare;
} LoraModules;

/* Must be cleared, on failure too; items live in the arena. */
LgStatus lora_modules_build(const LangProgram *p, const Binding *b, Arena *arena, LoraModules *out,
                            LgError *err);
void lora_modules_clear(LoraModules *m);
/* NULL: none. */
const LoraModule *lora_modules_find(const LoraModules *m, LgStr bare, bool lookup);
const LoraHolder *lora_modules_holder(const LoraModules *m, LgStr bare);
/* Whether name is the pattern's ("layers.{l}.self_attn.q_proj") with numbers in its holes; the
 * layer and the expert of them, -1: none. Numbers are at most INT32_MAX + 1. */
bool lora_name_match(LgStr pattern, LgStr name, int64_t *layer, int64_t *expert);
/* Whether adapters for this param are served at all. */
bool lora_param_served(const LangTensor *param);
/* Whether a name is a site's but for a number that the model does not have: *what is "layer" or
 * "expert", *last the highest that it has. */
bool lora_modules_strange(const LangProgram *p, LgStr bare, const char **what, int64_t *number,
                          int64_t *last);

/* ---- the plan ---- */

typedef struct PeftEntry {
    const LoraModule *module;
    LgStr file_module; /* the module's name in the file */
    const Tensor *a, *b, *magnitude, *b_bias;
    /* Of all experts: A and B are those of W's transposed, as PEFT before 0.19 has them. */
    bool swapped;
    int32_t rank;
    double alpha;
    float scale;
} PeftEntry;

/* A row of the param, and the tensor's row that replaces it. */
typedef struct PeftToken {
    uint64_t row, from;
} PeftToken;

/* A param, or a part of its rows, that a tensor replaces. */
typedef struct PeftReplaced {
    const Tensor *tensor;
    PeftKind kind;
    bool copy; /* it must equal the base's, and then nothing is replaced */
    int param, layer;
    uint64_t from;                  /* the first element of the tensor */
    uint64_t rows, columns;         /* columns: of the param's last stored axis */
    const struct PeftToken *tokens; /* [rows] rising; NULL: all rows of the param */
} PeftReplaced;

typedef struct PeftPlan {
    PeftEntry *entries; /* those with a tensor, in the order of the modules */
    size_t count;
    PeftReplaced *replaced;
    size_t replaced_count, replaced_tensors;
    const Tensor **copies; /* ".base_layer.weight" */
    const LoraModule **copy_modules;
    size_t copy_count;
    size_t tensor_count;
    bool experts;           /* some are adapted */
    uint64_t floats, bytes; /* what the numbers take */
} PeftPlan;

/* Every tensor has its place in the plan, or the plan fails. Reads no tensor's bytes. */
LgStatus peft_plan(const TensorSet *tensors, PeftConfig *config, const LoraModules *modules,
                   const AdapterOptions *o, Arena *arena, PeftPlan *out, LgError *err);

/* ---- numbers ---- */

/* Where numbers go. */
typedef struct PeftSites {
    AdapterSite *sites;    /* [layer * site_count + site], zeroed */
    AdapterSite **experts; /* of each of these its experts, zeroed; NULL: one weight */
} PeftSites;

/* Fills the sites and numbers ([plan->floats]) from the plan's tensors. */
LgStatus peft_numbers(const PeftPlan *plan, const AdapterOptions *o, float *numbers,
                      const PeftSites *sites, LgError *err);
/* What the sites' numbers take of the block. */
uint64_t peft_site_floats(const PeftPlan *plan);
/* The tensor's elements as f32, `rounded` to bf16. Errors: one that is not finite. */
LgStatus peft_read_tensor(const Tensor *t, bool rounded, float *out, LgError *err);
/* Experts of a site's param; 0: it is one weight. */
uint64_t lora_site_experts(const LangProgram *p, int site);
/* Takes out of the plan what is equal to the base's, and notes it. Errors: a tensor that must be
 * and is not. */
LgStatus peft_drop_copies(PeftPlan *plan, const AdapterOptions *o, json_t *disregarded,
                          LgError *err);
/* Fills out ([plan->replaced_count]) behind the sites' numbers; rows: [rows of all tokens]. */
LgStatus peft_replace(const PeftPlan *plan, float *numbers, int32_t *rows, AdapterReplaced *out,
                      LgError *err);
/* Whether none before it is of the same tensor. */
bool peft_replaced_first(const PeftPlan *plan, size_t index);
uint64_t peft_replaced_floats(const PeftReplaced *r);
/* value as a tensor of that type would hold it. */
float peft_in_type(float value, DType type);
/* The copies of base weights that the file holds must be the base's own. */
LgStatus peft_check_copies(const PeftPlan *plan, const AdapterOptions *o, LgError *err);
/* Floats of one array in the block of numbers: rounded up so that each array begins on a 64-byte
 * line. */
uint64_t peft_array_floats(uint64_t elems);

LgStatus peft_hash(const PeftPlan *plan, Arena *arena, char hex[65], LgError *err);
/* disregarded is taken over, on failure too. */
LgStatus peft_report(const PeftPlan *plan, const PeftConfig *config, const LangProgram *p,
                     const char *hash, json_t *disregarded, json_t **out, LgError *err);
/* Appends {"what","why"} to a list; false where memory ran out. */
bool peft_disregard(json_t *list, LgStr what, const char *why);

/* ---- messages ---- */

/* `tensor "NAME": …` with LG_BAD_INPUT; the name is shown printable and cut. */
LgStatus peft_fail_tensor(LgError *err, LgStr name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- a whole load from memory ---- */

/* adapter_load without the folder: for fuzzing and tests. tensors is borrowed and need not outlive
 * the adapter. */
LgStatus adapter_from_json(const json_t *config, const TensorSet *tensors, const AdapterOptions *o,
                           Adapter **out, LgError *err);
LgStatus adapter_from_memory(LgStr config, const TensorSet *tensors, const AdapterOptions *o,
                             Adapter **out, LgError *err);

#endif
