/* Holds a Runner to reference outputs that were made elsewhere: prompts and their greedy
 * continuations are fed token by token (so that one wrong id does not hide what follows), every
 * position's best id and the prompt's last logits are compared. */
#ifndef LG_TESTS_GOLDEN_H
#define LG_TESTS_GOLDEN_H

#include "backend/runner.h"
#include "base/arena.h"
#include "formats/checkpoint.h"
#include "ir/eval.h"
#include "lora/lora.h"

/* A checkpoint with its page compiled and bound. */
typedef struct GoldenModel {
    Checkpoint *checkpoint;
    Arena arena;
    const LangProgram *program; /* with the adapters' statements */
    const Binding *binding;
} GoldenModel;

/* path: a folder or a .gguf file; the page is the embedded one that serves its architecture. */
LgStatus golden_model_open(const char *path, GoldenModel *out, LgError *err);
/* The same with `find` in the page's text replaced once by `put`: a page that is wrong, to see that
 * it is noticed. */
LgStatus golden_model_open_mutant(const char *path, const char *find, const char *put,
                                  GoldenModel *out, LgError *err);
void golden_model_close(GoldenModel *m);

#define GOLDEN_PROMPTS_MAX 8
typedef struct GoldenCase {
    const char *name;                     /* "tiny-qwen3/base" */
    const char *model;                    /* path */
    const char *adapter;                  /* folder; NULL: the base */
    const char *goldens;                  /* path without .json, .safetensors */
    const char *prompts;                  /* path of prompts.json */
    const char *only[GOLDEN_PROMPTS_MAX]; /* prompts; none: all */
    bool greedy_only;                     /* judge the continuations alone */
    bool quiet;                           /* print nothing */
    double last_limit;                    /* f32 stores: of the last logits */
    double sure_margin;                   /* bf16 stores: from here every id must agree */
    /* bf16 stores: where the reference recorded a smaller gap between the last chosen and the first
     * unchosen router logit, rounding may choose another expert, and the id binds no more than one
     * of small margin. */
    double router_gap;
} GoldenCase;

typedef struct GoldenCount {
    int ids, agree;       /* all positions that were judged */
    int sure, sure_agree; /* those whose margin binds */
    int exempt;           /* of wide margin, but behind a close choice of experts */
    double last_diff;     /* largest of the last logits */
    int prompts;
} GoldenCount;

/* Steps of at most `chunk` rows. Positions whose margin binds and that disagree are printed. */
LgStatus golden_run(const GoldenCase *c, Runner *r, int32_t adapter_slot, bool store_f32,
                    int32_t chunk, GoldenCount *out, LgError *err);

/* The f64 interpreter against p64.last_f64; -1 in *diff where the case has none. */
LgStatus golden_run_f64(const GoldenCase *c, const GoldenModel *m, double *diff, LgError *err);

/* The interpreter against p5.hidden, layer by layer: the largest difference as a part of the
 * largest number of its row; -1 in *diff where the case has none. */
LgStatus golden_run_hidden(const GoldenCase *c, const GoldenModel *m, double *diff, LgError *err);

#endif
