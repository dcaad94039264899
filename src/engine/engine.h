/* The engine: a model, its adapters and its running sequences, in ids. Knows nothing of text. One
 * thread at a time. */
#ifndef LG_ENGINE_ENGINE_H
#define LG_ENGINE_ENGINE_H

#include "backend/runner.h"
#include "formats/checkpoint.h"
#include "ligature.h"
#include "lora/lora.h"

typedef struct Engine Engine;
typedef struct Sequence Sequence;

/* ---- model.c: from a path to a program ---- */

/* A checkpoint with its page of equations, checked and bound; what every command starts from. */
typedef struct Model {
    Arena arena;
    Checkpoint *checkpoint;
    LgStr source;         /* of the .lg page */
    Buf source_buf;       /* owns it where it was read from a file */
    const char *file;     /* its name, for messages */
    LangProgram *program; /* after the LoRA rewrite */
    Binding *binding;     /* NULL: config only */
    int context;          /* max_position_embeddings; 0: not said */
    int32_t end_ids[16];  /* generation_config.json's, else the config's */
    int end_count;
    LgSampling sampling; /* generation_config.json's */
} Model;

/* path: a checkpoint; page: FILE.lg or NULL (picked by architecture); config_only: path may hold
 * just a config. */
LgStatus model_open(const char *path, const char *page, bool config_only, Model *out, LgError *err);
void model_close(Model *m);

/* ---- engine ---- */
LgStatus engine_open(const LgEngineOptions *o, Engine **out, LgError *err);
void engine_close(Engine *e);
const Model *engine_model(const Engine *e);
const Runner *engine_runner(const Engine *e);
const LgTiming *engine_timing(const Engine *e);
int engine_context(const Engine *e);
bool engine_store_f32(const Engine *e);

/* ---- adapters.c: names to objects; an object lives until its name and its last sequence are gone
 * ---- */
LgStatus engine_adapter_load(Engine *e, const char *name, const char *dir, LgError *err);
LgStatus engine_adapter_unload(Engine *e, const char *name, LgError *err);
/* Puts another object under a name that is taken; sequences keep the one that they began with. */
LgStatus engine_adapter_replace(Engine *e, const char *name, const char *dir, LgError *err);
/* A pinned adapter stays in memory, and is brought there. */
LgStatus engine_adapter_pin(Engine *e, const char *name, bool pinned, LgError *err);

typedef struct AdapterInfo {
    const char *name, *dir, *hash;
    uint64_t bytes; /* in memory; 0: on disk */
    int32_t users;  /* sequences */
    bool named;     /* false: unloaded or replaced, and still in use */
    bool resident, pinned;
} AdapterInfo;
/* All objects, oldest first; false past the last. Borrowed until the next call on the engine. */
bool engine_adapter_at(const Engine *e, size_t index, AdapterInfo *out);
LgStatus engine_adapter_find(const Engine *e, const char *name, const Adapter **out, LgError *err);

/* ---- sequence.c, step.c ---- */
LgStatus sequence_create(Engine *e, const LgRequest *r, Sequence **out, LgError *err);
void sequence_destroy(Sequence *s);
const int32_t *sequence_ids(const Sequence *s, size_t *count); /* new ids */
const char *sequence_error(const Sequence *s);                 /* NULL: it has not failed */
LgFinish sequence_finish(const Sequence *s);
const char *sequence_digest(Sequence *s);
double sequence_first_token_s(const Sequence *s);
Engine *sequence_engine(const Sequence *s);

LgStatus engine_step(Engine *e, int32_t *active, LgError *err);

/* Teacher-forced: logits of every position go to `seen` in order. */
typedef void (*LogitsSeen)(void *user, size_t position, const float *logits, int32_t vocab);
LgStatus engine_eval(Engine *e, const int32_t *ids, size_t count, const LgAdapterUse *adapters,
                     size_t adapter_count, LogitsSeen seen, void *user, LgError *err);

#endif
