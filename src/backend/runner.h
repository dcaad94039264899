/* What the engine runs: a program on a back end. One interface for the compiled CPU program, the
 * interpreter and CUDA. */
#ifndef LG_BACKEND_RUNNER_H
#define LG_BACKEND_RUNNER_H

#include "base/config.h"
#include "ir/adapter.h"
#include "ir/bind.h"
#include "ir/plan.h"
#include "ir/provenance.h"
#include "ir/step.h"

typedef struct Runner Runner;

/* Time spent in one launch since the counts were cleared, over all layers. */
typedef struct LaunchTime {
    const char *name; /* of the plan's launch */
    uint64_t calls;
    double seconds;
} LaunchTime;

typedef struct RunnerOps {
    const char *backend; /* "cpu", "cuda", "interp" */
    /* Storage for KV pages [0, pages): grows, keeps what is there. */
    LgStatus (*kv_reserve)(Runner *r, int32_t pages, LgError *err);
    /* logits: [samples, vocab] f32. One step at a time. */
    LgStatus (*step)(Runner *r, const Step *step, float *logits, LgError *err);
    /* The adapter must outlive its slot, unless adapter_copied. Never blocks a step for long; call
     * between steps. */
    LgStatus (*adapter_install)(Runner *r, const AdapterData *adapter, int32_t *slot, LgError *err);
    void (*adapter_remove)(Runner *r, int32_t slot);
    uint64_t (*adapter_bytes)(const Runner *r, int32_t slot); /* what an installed one takes */
    bool adapter_copied; /* nothing of the AdapterData is read once it is installed */
    void (*close)(Runner *r);
    /* Where `profile` was asked for: how many launches there are, and their times so far, in the
     * plan's order, borrowed until the next step; 0 otherwise. NULL where the back end has none. */
    int (*launch_times)(Runner *r, const LaunchTime **times);
    void (*launch_times_clear)(Runner *r);
} RunnerOps;

struct Runner {
    const RunnerOps *ops;
    Provenance provenance;
    char digest[65]; /* of the plan: program, config dims, store type, back end */
    uint64_t kv_page_bytes;
    int32_t rows_max;  /* rows that one step may have */
    int32_t vocab;     /* columns of the logits */
    double compile_s;  /* seconds spent compiling; 0 from the cache */
    const char *level; /* "generic", "avx2", …; "sm_90a" */
    const char *note;  /* what the user may want to know, such as a cache that cannot be written;
                          NULL: nothing */
};

typedef struct RunnerOptions {
    const LangProgram *program; /* after lang_rewrite_lora */
    const Binding *binding;
    bool store_f32;
    int threads;           /* 0: the machine's */
    int32_t rows_max;      /* 0: 512 */
    const char *level;     /* NULL: the best of this machine; "generic", "avx2" force one */
    const char *cache_dir; /* compiled programs */
    const char *compiler;  /* NULL: "cc" */
    const char
        *program_file;  /* a program compiled ahead of time; NULL: compile or take from the cache */
    bool require_cache; /* fail, naming what differs, instead of compiling */
    bool profile;       /* keep times by launch (ops->launch_times) */
    bool poison;        /* for tests: memory that nothing has written holds NaNs */
    bool keep_values, no_fuse; /* for tests: as in PlanOptions */
} RunnerOptions;

LgStatus runner_open_cpu(const RunnerOptions *o, Runner **out, LgError *err);
LgStatus runner_open_cuda(const RunnerOptions *o, Runner **out, LgError *err);
LgStatus runner_open_interp(const RunnerOptions *o, Runner **out, LgError *err);

/* Compiles without running: writes the shared object (program_file path = out_path). The binding
 * may be NULL. */
LgStatus runner_compile_cpu(const RunnerOptions *o, const char *out_path, LgError *err);

#endif
