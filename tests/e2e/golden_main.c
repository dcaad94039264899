/* e2e_golden BACKEND SET: holds a back end ("interp", "cpu") to the reference outputs in the
 * repository (of trained models: "repo", of random weights: "made"), in the larger set of small
 * models ("tiny") or of SmolLM2 ("smollm2").  With f32 stores the logits must be the reference's to
 * rounding, and every id whose margin is clear of that; with bf16 stores every id of a wide margin,
 * and of all ids nearly all. Exit: 0 held, 1 not, 77 the data is not there. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "tests/e2e/golden.h"

#define SKIPPED 77
#define PATH_MAX_BYTES 1024
#define HIDDEN_LIMIT 2e-5 /* of the largest number of a layer's rows */
/* With bf16 stores nine in ten of tiny-qwen3-moe's router logits move by up to 0.008, 0.010 and
 * 0.011 in layers 1 to 3: what is closer than this may change places. */
#define ROUTER_GAP 0.01

/* f32: how far the last logits may be off; f64: the same for the f64 interpreter, whose values are
 * still stored as f32. bf16: ids of at least this margin must all agree; pooled, and in every case,
 * this share of the others must. */
typedef struct Rules {
    double f32_limit, f64_limit, sure_margin, pooled_share, case_share;
} Rules;

static const Rules tiny_rules = {2e-3, 3e-5, 0.5, 0.95, 0.90};
static const Rules smollm2_rules = {4e-3, 5e-5, 1.0, 0.94, 0.90};
/* Random weights choose between many ids of nearly the same logit. */
static const Rules made_rules = {2e-3, 3e-5, 0.5, 0.93, 0.88};

typedef struct Entry {
    const char *model;
    const char *adapter;                  /* NULL: the base */
    const char *only[GOLDEN_PROMPTS_MAX]; /* prompts; none: all */
    bool may_refuse;                      /* the loader may say that it does not serve this */
    const char *slow[GOLDEN_PROMPTS_MAX]; /* of a slow back end, instead of `only` */
} Entry;

static const Entry tiny_entries[] = {
    {"tiny-qwen3", NULL, {NULL}, false, {NULL}},
    {"tiny-qwen3", "en-r8-all", {NULL}, false, {NULL}},
    {"tiny-qwen3", "en-r8-all-fp16", {NULL}, false, {NULL}},
    {"tiny-qwen3", "en-r8-all-fp32", {NULL}, false, {NULL}},
    {"tiny-qwen3", "cpp-r16-rslora", {NULL}, false, {NULL}},
    {"tiny-qwen3", "json-r4-qv", {NULL}, false, {NULL}},
    {"tiny-qwen3", "layer1-q-only", {NULL}, false, {NULL}},
    {"tiny-qwen3", "r1", {NULL}, false, {NULL}},
    {"tiny-qwen3", "pattern", {NULL}, false, {NULL}},
    {"tiny-qwen3", "pattern-overlap", {NULL}, false, {NULL}},
    {"tiny-qwen3", "alpha0", {NULL}, false, {NULL}},
    {"tiny-qwen3", "dora-r8", {NULL}, false, {NULL}},
    {"tiny-qwen3", "embed-head", {NULL}, false, {NULL}},
    {"tiny-qwen3", "lora-bias", {NULL}, false, {NULL}},
    {"tiny-qwen3", "save-head", {NULL}, false, {NULL}},
    {"tiny-qwen3", "save-norm", {NULL}, false, {NULL}},
    {"tiny-qwen3", "chat-tokens", {NULL}, false, {NULL}},
    {"tiny-llama", NULL, {NULL}, false, {NULL}},
    {"tiny-llama", "en-r8-all", {NULL}, false, {NULL}},
    {"tiny-llama", "cpp-r16", {NULL}, false, {NULL}},
    {"tiny-qwen3-moe", NULL, {NULL}, false, {NULL}},
    {"tiny-qwen3-moe", "attn-r8", {NULL}, false, {NULL}},
    {"tiny-qwen3-moe", "router-r4", {NULL}, false, {NULL}},
    {"tiny-qwen3-moe", "experts-perexpert-r4", {NULL}, false, {NULL}},
    /* only in the larger set */
    {"tiny-qwen3-hd48", NULL, {NULL}, false, {NULL}},
    {"tiny-qwen3-hd48", "en-r8-all", {NULL}, false, {NULL}},
    {"tiny-qwen3-hd48", "cpp-r16", {NULL}, false, {NULL}},
    {"tiny-qwen2", NULL, {NULL}, false, {NULL}},
    {"tiny-qwen2", "en-r8-all", {NULL}, false, {NULL}},
    {"tiny-qwen2", "cpp-r16", {NULL}, false, {NULL}},
    {"tiny-mistral", NULL, {NULL}, false, {NULL}},
    {"tiny-mistral", "en-r8-all", {NULL}, false, {NULL}},
    {"tiny-mistral", "cpp-r16", {NULL}, false, {NULL}},
    {"tiny-qwen2", "bias-lora-only", {NULL}, false, {NULL}},
    {"mid-qwen3", NULL, {NULL}, false, {NULL}},
    {"mid-qwen3", "en-r8-all", {NULL}, false, {NULL}},
    {"mid-qwen3", "cpp-r16", {NULL}, false, {NULL}},
    {NULL, NULL, {NULL}, false, {NULL}},
};

/* Random weights: one architecture or way of scaling each (tools/make_model_cases.py). */
static const Entry made_entries[] = {
    {"qwen2-window", NULL, {NULL}, false, {NULL}},
    {"qwen2-window", "r4-all", {NULL}, false, {NULL}},
    {"mistral", NULL, {NULL}, false, {NULL}},
    {"mistral", "r4-all", {NULL}, false, {NULL}},
    {"gemma3", NULL, {NULL}, false, {NULL}},
    {"gemma3", "r4-all", {NULL}, false, {NULL}},
    {"gemma2", NULL, {NULL}, false, {NULL}},
    {"gemma2", "r4-all", {NULL}, false, {NULL}},
    {"llama-linear", NULL, {NULL}, false, {NULL}},
    {"llama-linear", "r4-all", {NULL}, false, {NULL}},
    {"llama-yarn", NULL, {NULL}, false, {NULL}},
    {"llama-yarn", "r4-all", {NULL}, false, {NULL}},
    {"phi3", NULL, {NULL}, false, {NULL}},
    {"phi3", "r4-all", {NULL}, false, {NULL}},
    {"olmo2", NULL, {NULL}, false, {NULL}},
    {"olmo2", "r4-all", {NULL}, false, {NULL}},
    {NULL, NULL, {NULL}, false, {NULL}},
};

static const Entry smollm2_entries[] = {
    {"smollm2", NULL, {"p5", "p64", "p200", "p1500"}, false, {"p5", "p64"}},
    {"smollm2", "sql", {"p5", "p200", "sql0", "sql1", "sql2", "sql3"}, false, {"sql0"}},
    {"smollm2",
     "extract",
     {"p5", "p200", "extract0", "extract1", "extract2", "extract3"},
     false,
     {"extract0"}},
    {"smollm2",
     "redact",
     {"p5", "p200", "redact0", "redact1", "redact2", "redact3"},
     false,
     {"redact0"}},
    {"smollm2",
     "triage",
     {"p5", "p200", "triage0", "triage1", "triage2", "triage3"},
     false,
     {"triage0"}},
    {NULL, NULL, {NULL}, false, {NULL}},
};

typedef struct Backend {
    const char *name;
    LgStatus (*open)(const RunnerOptions *o, Runner **out, LgError *err);
    bool slow; /* the interpreter; it also runs in double */
    int32_t chunk;
} Backend;

static const Backend backends[] = {
    {"interp", runner_open_interp, true, 128},
    {"cpu", runner_open_cpu, false, 128},
    {"cuda", runner_open_cuda, false, 128},
};

typedef struct Set {
    const char *name;
    const char *root;
    const Entry *entries;
    const Rules *rules;
    const char *gguf; /* NULL: ROOT/models/MODEL */
} Set;

static const Set sets[] = {
    {"repo", LG_TEST_DATA "/tiny", tiny_entries, &tiny_rules, NULL},
    {"made", LG_TEST_DATA "/made", made_entries, &made_rules, NULL},
    {"tiny", LG_SHARED_DATA "/tiny", tiny_entries, &tiny_rules, NULL},
    {"smollm2", LG_SHARED_DATA "/smollm2", smollm2_entries, &smollm2_rules, LG_SMOLLM2},
};

typedef struct Pool {
    int ids, agree;
    int close, close_agree; /* of small margin */
    int cases, failed;
} Pool;

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double share(int part, int whole) {
    return whole ? (double)part / whole : 1;
}

/* f32 stores bind the logits and every id that is clear of their error; bf16 stores the ids of wide
 * margin, and most of the others. */
static bool hold(const Rules *rules, const GoldenCase *c, const GoldenCount *n, bool store_f32,
                 Pool *pool) {
    bool held = n->sure_agree == n->sure;
    int close = n->ids - n->sure, close_agree = n->agree - n->sure_agree;
    if (store_f32) {
        held &= n->last_diff <= rules->f32_limit;
    } else {
        held &= share(close_agree, close) >= rules->case_share;
        pool->ids += n->ids;
        pool->agree += n->agree;
        pool->close += close;
        pool->close_agree += close_agree;
    }
    printf("%s %-32s %s  prompts %2d  ids %5d agree %6.2f %%  wide %5d agree %5d  close %4d agree "
           "%6.2f %%  exempt %d  last logits %.2e\n",
           held ? "ok  " : "FAIL", c->name, store_f32 ? "f32 " : "bf16", n->prompts, n->ids,
           100 * share(n->agree, n->ids), n->sure, n->sure_agree, close,
           100 * share(close_agree, close), n->exempt, n->last_diff);
    return held;
}

static LgStatus run_store(const Backend *b, const Set *set, const GoldenCase *c, bool store_f32,
                          bool *held, Pool *pool, LgError *err) {
    GoldenModel m;
    Runner *r = NULL;
    Adapter *adapter = NULL;
    int32_t slot = -1;
    GoldenCount count;
    LG_TRY(golden_model_open(c->model, &m, err));
    const RunnerOptions o = {.program = m.program,
                             .binding = m.binding,
                             .store_f32 = store_f32,
                             .cache_dir = LG_TEST_CACHE};
    LgStatus status = b->open(&o, &r, err);
    if (status == LG_OK && c->adapter) {
        AdapterOptions ao = {.program = m.program, .binding = m.binding, .store_f32 = store_f32};
        status = adapter_load(c->name, c->adapter, &ao, &adapter, err);
        if (status == LG_OK)
            status = r->ops->adapter_install(r, adapter_data(adapter), &slot, err);
    }
    if (status == LG_OK)
        status = golden_run(c, r, slot, store_f32, b->chunk, &count, err);
    if (status == LG_OK)
        *held &= hold(set->rules, c, &count, store_f32, pool);
    double diff = -1;
    if (status == LG_OK && b->slow && store_f32)
        status = golden_run_f64(c, &m, &diff, err);
    if (status == LG_OK && diff >= 0) {
        bool close = diff <= set->rules->f64_limit;
        printf("%s %-32s f64   p64 last logits %.2e\n", close ? "ok  " : "FAIL", c->name, diff);
        *held &= close;
    }
    diff = -1;
    if (status == LG_OK && b->slow && store_f32)
        status = golden_run_hidden(c, &m, &diff, err);
    if (status == LG_OK && diff >= 0) {
        bool close = diff <= HIDDEN_LIMIT;
        printf("%s %-32s f32   p5 hidden states, relative %.2e\n", close ? "ok  " : "FAIL", c->name,
               diff);
        *held &= close;
    }
    if (r)
        r->ops->close(r);
    adapter_destroy(adapter);
    golden_model_close(&m);
    return status;
}

static void run_entry(const Backend *b, const Set *set, const Entry *entry, Pool *pool) {
    char name[256], model[PATH_MAX_BYTES], adapter[PATH_MAX_BYTES], goldens[PATH_MAX_BYTES],
        prompts[PATH_MAX_BYTES];
    const char *which = entry->adapter ? entry->adapter : "base";
    bool one_model = set->gguf != NULL; /* then the folders have no level for it */
    const char *slash = one_model ? "" : "/", *folder = one_model ? "" : entry->model;
    snprintf(name, sizeof name, "%s/%s", entry->model, which);
    snprintf(model, sizeof model, "%s/models/%s", set->root, entry->model);
    snprintf(adapter, sizeof adapter, "%s/adapters%s%s/%s", set->root, slash, folder, which);
    snprintf(goldens, sizeof goldens, "%s/goldens%s%s/%s", set->root, slash, folder, which);
    snprintf(prompts, sizeof prompts, "%s/goldens/prompts.json", set->root);
    GoldenCase c = {.name = name,
                    .model = one_model ? set->gguf : model,
                    .adapter = entry->adapter ? adapter : NULL,
                    .goldens = goldens,
                    .prompts = prompts,
                    .last_limit = set->rules->f32_limit,
                    .sure_margin = set->rules->sure_margin,
                    .router_gap = ROUTER_GAP};
    memcpy(c.only, b->slow ? entry->slow : entry->only, sizeof c.only);
    if (!file_exists(c.model) && !file_is_dir(c.model))
        return;
    bool held = true;
    for (int store_f32 = 1; store_f32 >= 0; store_f32--) {
        LgError err = {0};
        LgStatus status = run_store(b, set, &c, store_f32, &held, pool, &err);
        /* by name, and only adapters: scripts/test-gpu counts what is left out */
        const bool unserved = status == LG_BAD_INPUT && c.adapter && strcmp(b->name, "cuda") == 0 &&
                              strstr(err.message, "back end cuda");
        if (unserved) {
            printf("--   %-32s not served: %s\n", c.name, err.message);
            continue;
        }
        if (status != LG_OK && entry->may_refuse) {
            printf("ok   %-32s refused: %s\n", c.name, err.message);
            return;
        }
        if (status != LG_OK) {
            printf("FAIL %-32s %s\n", c.name, err.message);
            held = false;
        }
    }
    pool->cases++;
    pool->failed += !held;
}

int main(int argc, char **argv) {
    const Backend *b = NULL;
    const Set *set = NULL;
    for (size_t i = 0; argc >= 3 && i < sizeof backends / sizeof backends[0]; i++)
        if (strcmp(argv[1], backends[i].name) == 0)
            b = &backends[i];
    for (size_t i = 0; argc >= 3 && i < sizeof sets / sizeof sets[0]; i++)
        if (strcmp(argv[2], sets[i].name) == 0)
            set = &sets[i];
    if (!b || !set) {
        fprintf(stderr,
                "use: e2e_golden interp|cpu|cuda repo|made|tiny|smollm2 [MODEL [ADAPTER]]\n");
        return 2;
    }
    double start = seconds();
    Pool pool = {0};
    for (const Entry *entry = set->entries; entry->model; entry++) {
        const char *which = entry->adapter ? entry->adapter : "base";
        if (argc < 4 || strcmp(argv[3], entry->model) == 0)
            if (argc < 5 || strcmp(argv[4], which) == 0)
                run_entry(b, set, entry, &pool);
    }
    if (pool.cases == 0) {
        printf("skipped: no data in %s\n", set->root);
        return SKIPPED;
    }
    double close = share(pool.close_agree, pool.close);
    bool pooled = close >= set->rules->pooled_share;
    printf(
        "%s %s %s: %d cases, %d failed; bf16: of %d ids %.2f %% agree, of the %d of small margin "
        "%.2f %%; %.1f s\n",
        pooled && !pool.failed ? "ok  " : "FAIL", b->name, set->name, pool.cases, pool.failed,
        pool.ids, 100 * share(pool.agree, pool.ids), pool.close, 100 * close, seconds() - start);
    return pooled && !pool.failed ? 0 : 1;
}
