/* Ligature's public C interface: the only header that programs outside the project include.
 *
 * Conventions.  A call returns an LgStatus and writes its results through out-pointers, which are
 * set on success only.  An LgError, where one is passed, is filled on failure and untouched on
 * success. Names that end in create or open return objects that the caller owns; destroy and close
 * take NULL. Strings are UTF-8.  Token ids are int32_t. */
#ifndef LIGATURE_H
#define LIGATURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define LG_API __attribute__((visibility("default")))
#define LG_MUST_CHECK __attribute__((warn_unused_result))
#else
#define LG_API
#define LG_MUST_CHECK
#endif

/* Code, HTTP status, text. */
/* clang-format off */
#define LG_STATUS_MAP(X)                                              \
    X(OK,          200, "ok")                                         \
    X(BAD_INPUT,   400, "malformed or unsupported input")             \
    X(NOT_FOUND,   404, "no such file, model, adapter or name")       \
    X(CONFLICT,    409, "the name is in use")                         \
    X(LIMIT,       413, "a documented limit was exceeded")            \
    X(BUSY,        429, "no room now, retry later")                   \
    X(INTERNAL,    500, "a bug in Ligature, or in the compiler used") \
    X(DEVICE,      500, "the device reported an error")               \
    X(IO,          500, "reading or writing a file failed")           \
    X(NO_MEMORY,   503, "allocation failed")                          \
    X(CANCELLED,   499, "the caller cancelled")
/* clang-format on */

typedef enum LgStatus {
#define LG_STATUS_ENUM(name, http, text) LG_##name,
    LG_STATUS_MAP(LG_STATUS_ENUM)
#undef LG_STATUS_ENUM
} LgStatus;

/* message stands alone: which object, what was found, what would be accepted.
 * offset: byte offset (or line, where the message says so) in the input; 0 where there is none. */
typedef struct LgError {
    LgStatus status;
    uint64_t offset;
    char message[1000];
} LgError;

/* "ok", "malformed or unsupported input", …; never NULL. */
LG_API const char *lg_status_text(LgStatus status);
LG_API int lg_status_http(LgStatus status);

/* Memory that the library handed out (strings, ids) is returned with this. NULL is fine. */
LG_API void lg_free_memory(void *p);

/* The library's version, "0.1.0". */
LG_API const char *lg_version(void);

/* ---- Engine
 * -------------------------------------------------------------------------------------------------------------
 * A checkpoint, its compiled program, its adapters and its running sequences. An engine is used by
 * one thread at a time; several engines are independent of each other. Work runs on the engine's
 * own thread team. */
typedef struct LgEngine LgEngine;

typedef struct LgEngineOptions {
    const char *model; /* a folder with config.json and safetensors, or a .gguf file */
    const char
        *program; /* FILE.lg or FILE.so; NULL: the page that serves the checkpoint's architecture */
    const char *backend;   /* "cpu" (NULL), "cuda", or "interp", the reference interpreter */
    const char *level;     /* CPU feature level: NULL: the best of this machine; "generic", "avx2",
                              "avx512",     "avx512bf16", "amx" */
    const char *compiler;  /* C compiler for CPU programs; NULL: "cc" */
    const char *cache_dir; /* compiled programs; NULL: not kept, and compiled at every start */
    bool require_cache; /* fail, naming what differs, where the compiled program is not in the cache
                         */
    bool store_f32;     /* stores that name no type keep f32 instead of bf16 */
    int threads;        /* 0: one for each core */
    int rows_max;       /* rows of one step, prompt chunks included; 0: 512 */
    int context_max; /* positions a sequence may have; 0: the checkpoint's max_position_embeddings,
                        which is also the most that is accepted */
    uint64_t kv_bytes_max;      /* memory for KV pages; 0: 4 GiB */
    uint64_t adapter_bytes_max; /* memory for adapters' numbers; those used longest ago are read
                                   again when they are needed. 0: no limit */
} LgEngineOptions;

/* Everything zero, which is the defaults. */
LG_API void lg_engine_options_init(LgEngineOptions *options);

/* Errors: LG_NOT_FOUND, LG_IO; LG_BAD_INPUT with what, where and what would be accepted;
 * LG_NO_MEMORY. */
LG_API LG_MUST_CHECK LgStatus lg_engine_open(const LgEngineOptions *options, LgEngine **out,
                                             LgError *error);
LG_API void lg_engine_close(LgEngine *engine);

/* One JSON object:
 * {"provenance":"Compiled","model":"llama","backend":"cpu","level":"avx2","digest":"…","store":"bf16",
 * "vocab":…, "context":…, "disregarded":[…],"load_s":…,"compile_s":…}, with "note" where there is
 * something that the user may want to know. Free with lg_free_memory. */
LG_API LG_MUST_CHECK LgStatus lg_engine_describe(const LgEngine *engine, char **json,
                                                 LgError *error);

/* Columns of the logits. */
LG_API int32_t lg_engine_vocab(const LgEngine *engine);
/* Positions that a sequence may have, prompt and new ids together. */
LG_API int32_t lg_engine_context(const LgEngine *engine);

/* ---- Adapters
 * -----------------------------------------------------------------------------------------------------------
 * Names share one namespace: not empty, none of / : = and no control characters. */

/* Loads DIR/adapter_config.json and adapter_model.safetensors whole or not at all. Errors:
 * LG_CONFLICT where the name is taken. */
LG_API LG_MUST_CHECK LgStatus lg_adapter_load(LgEngine *engine, const char *name, const char *dir,
                                              LgError *error);
/* The name is free at once; sequences that use the adapter keep it until they end. */
LG_API LG_MUST_CHECK LgStatus lg_adapter_unload(LgEngine *engine, const char *name, LgError *error);
/* Puts what DIR holds under a name that is taken, whole or not at all: sequences that are there
 * keep the adapter that they began with, new ones get this one. Errors: LG_NOT_FOUND where no
 * adapter has the name. */
LG_API LG_MUST_CHECK LgStatus lg_adapter_replace(LgEngine *engine, const char *name,
                                                 const char *dir, LgError *error);
/* A pinned adapter stays in memory whatever else is loaded. Errors: LG_LIMIT where it does not fit;
 * LG_CONFLICT where its folder holds another adapter by now. */
LG_API LG_MUST_CHECK LgStatus lg_adapter_pin(LgEngine *engine, const char *name, bool pinned,
                                             LgError *error);
/* Those that are loaded, and those that are unloaded or replaced but still in use, oldest first:
 * [{"name","dir","hash","state","bytes","sequences","pinned","named"}]. state: "memory", or "disk"
 * for one whose numbers are read again when it is used. The hash is of all that changes numbers.
 * Free with lg_free_memory. */
LG_API LG_MUST_CHECK LgStatus lg_adapter_list(const LgEngine *engine, char **json, LgError *error);
/* The load report as JSON: sites, ranks, scales, what was disregarded and why. Free with
 * lg_free_memory. */
LG_API LG_MUST_CHECK LgStatus lg_adapter_report(const LgEngine *engine, const char *name,
                                                char **json, LgError *error);

/* ---- Text
 * ---------------------------------------------------------------------------------------------------------------
 * Needs the checkpoint's tokenizer (tokenizer.json, or a GGUF's vocabulary); opened on first use.
 */

/* What a text is: a prompt (special tokens' texts are special, and tokens that the model wants
 * around every text are added), plain text (special tokens' texts are ordinary text), or what a
 * chat template rendered (special tokens' texts are special; nothing is added, the template wrote
 * it). */
typedef enum LgTextKind { LG_TEXT_PROMPT, LG_TEXT_PLAIN, LG_TEXT_RENDERED } LgTextKind;
LG_API LG_MUST_CHECK LgStatus lg_tokenize(LgEngine *engine, const char *text, size_t bytes,
                                          LgTextKind kind, int32_t **ids, size_t *count,
                                          LgError *error);
/* *text is zero-terminated; *bytes (may be NULL) is its length without the zero. */
LG_API LG_MUST_CHECK LgStatus lg_detokenize(LgEngine *engine, const int32_t *ids, size_t count,
                                            bool skip_special, char **text, size_t *bytes,
                                            LgError *error);
/* Renders the checkpoint's chat template. messages_json: an array of {"role","content",…};
 * tools_json: an array or NULL. */
LG_API LG_MUST_CHECK LgStatus lg_chat_render(LgEngine *engine, const char *messages_json,
                                             const char *tools_json, bool add_generation_prompt,
                                             char **text, LgError *error);

/* ---- Sequences
 * ----------------------------------------------------------------------------------------------------------
 * Continuous batching: sequences may be created and destroyed between steps; a row's result depends
 * on that row alone, so that company, order, threads and chunking do not change a bit of it. */
typedef struct LgSequence LgSequence;

/* temperature 0 is greedy (ties go to the lower id). top_k 0, top_p 1 and min_p 0 are off. The same
 * seed gives the same ids, alone and in a crowd. */
typedef struct LgSampling {
    float temperature;
    int32_t top_k;
    float top_p;
    float min_p;
    uint64_t seed;
} LgSampling;

#define LG_ADAPTERS_MAX 4 /* adapters of one sequence */

/* One adapter of a set, its deltas multiplied by scale (1: as trained). */
typedef struct LgAdapterUse {
    const char *name;
    float scale;
} LgAdapterUse;

typedef struct LgRequest {
    const int32_t *ids; /* the prompt, at least one id */
    size_t id_count;
    const LgAdapterUse *adapters; /* applied together, in this order; at most LG_ADAPTERS_MAX */
    size_t adapter_count;
    int32_t max_tokens; /* new ids at most */
    bool stop_at_end;   /* stop at the checkpoint's end tokens (which are then not among the ids) */
    LgSampling sampling;
    bool digest; /* keep the SHA-256 of the logits of each sampled position */
} LgRequest;

/* LG_FINISH_FAILED: its logits were no numbers any more (lg_sequence_error says where), or its
 * engine was closed. Others go on. */
typedef enum LgFinish { LG_RUNNING, LG_FINISH_STOP, LG_FINISH_LENGTH, LG_FINISH_FAILED } LgFinish;

/* What generation_config.json (or the GGUF) asks for; greedy where it says nothing. */
LG_API void lg_engine_default_sampling(const LgEngine *engine, LgSampling *out);

/* Everything is copied. Errors: LG_NOT_FOUND for an unknown adapter (never answered by the base),
 * LG_LIMIT with the numbers where prompt and max_tokens exceed the context or the KV memory,
 * LG_BAD_INPUT for ids outside the vocabulary. */
LG_API LG_MUST_CHECK LgStatus lg_sequence_create(LgEngine *engine, const LgRequest *request,
                                                 LgSequence **out, LgError *error);
/* Before or after its engine is closed. */
LG_API void lg_sequence_destroy(LgSequence *sequence);

/* One step over all sequences that are not finished (some may wait for KV memory). *active: how
 * many are left. A step that fails with LG_NO_MEMORY may be repeated: nothing is lost or sampled
 * twice. */
LG_API LG_MUST_CHECK LgStatus lg_engine_step(LgEngine *engine, int32_t *active, LgError *error);

/* The new ids so far, borrowed until the next step. */
LG_API const int32_t *lg_sequence_ids(const LgSequence *sequence, size_t *count);
LG_API LgFinish lg_sequence_finish(const LgSequence *sequence);
/* Why it failed; NULL where it has not. Borrowed until it is destroyed. */
LG_API const char *lg_sequence_error(const LgSequence *sequence);
/* "length", "stop", "failed" or "running". */
LG_API const char *lg_finish_text(LgFinish finish);
/* Text that became certain since the last call; never a part of a character. Special tokens' texts
 * are kept unless skip_special was asked for at the first call. Borrowed until the next call. */
LG_API LG_MUST_CHECK LgStatus lg_sequence_text(LgSequence *sequence, bool skip_special,
                                               const char **text, size_t *bytes, LgError *error);
/* 64 hexadecimal digits; NULL where the request did not ask for it. Borrowed until the next step.
 */
LG_API const char *lg_sequence_logits_sha256(LgSequence *sequence);
/* Seconds from lg_sequence_create to the first new id; negative: none yet. */
LG_API double lg_sequence_first_token_s(const LgSequence *sequence);

typedef struct LgTiming {
    double load_s, compile_s;   /* of lg_engine_open */
    double prefill_s, decode_s; /* a step with any prompt row counts as prefill */
    uint64_t prefill_tokens, decode_tokens;
} LgTiming;
LG_API void lg_engine_timing(const LgEngine *engine, LgTiming *out);

/* ---- Teacher-forced evaluation
 * ------------------------------------------------------------------------------------------ */
typedef struct LgPosition {
    int32_t top1, top2;
    float margin;    /* logit of top1 - logit of top2 */
    float logsumexp; /* of all logits */
} LgPosition;

/* Runs ids once; positions: [id_count]; last_logits: [vocab], or NULL. */
LG_API LG_MUST_CHECK LgStatus lg_eval(LgEngine *engine, const int32_t *ids, size_t id_count,
                                      const LgAdapterUse *adapters, size_t adapter_count,
                                      LgPosition *positions, float *last_logits, LgError *error);

/* ---- Looking inside
 * -----------------------------------------------------------------------------------------------------
 */

/* Launch by launch, as JSON: provenance, source lines, kernel, numerics, bytes and FLOPs for a step
 * of `rows` rows. */
LG_API LG_MUST_CHECK LgStatus lg_explain(LgEngine *engine, int32_t rows, char **json,
                                         LgError *error);

/* The kernels of the present GPU, as text: module, kernel, file, registers, and what the table of
 * adapters found; without a GPU why there is none, and the CPU's levels. cache_dir: where compiled
 * device code is kept; NULL: nowhere. */
LG_API LG_MUST_CHECK LgStatus lg_kernels(const char *cache_dir, char **text, LgError *error);

/* A checkpoint folder, an adapter folder or a .gguf file, as JSON. engine (may be NULL): an
 * adapter's load report for that model. */
LG_API LG_MUST_CHECK LgStatus lg_inspect(const char *path, LgEngine *engine, char **json,
                                         LgError *error);

typedef struct LgCompileOptions {
    const char *program; /* FILE.lg; NULL: by the config's architecture */
    const char *config;  /* a checkpoint, or a folder (or file) with config.json alone: then no
                            checkpoint tensor is checked */
    const char *emit;    /* "c", "plan", or "so" (a program for machines without a compiler) */
    const char *level;   /* as above */
    const char *compiler;
    bool store_f32;
} LgCompileOptions;
/* out_path NULL: *text is the result ("so" needs a path). Errors: LG_BAD_INPUT with the refusal. */
LG_API LG_MUST_CHECK LgStatus lg_compile(const LgCompileOptions *options, const char *out_path,
                                         char **text, LgError *error);

/* Config keys that the language ignores without being asked, one a line. Free with lg_free_memory.
 */
LG_API LG_MUST_CHECK LgStatus lg_ignored_keys(char **text, LgError *error);

#ifdef __cplusplus
}
#endif
#endif
