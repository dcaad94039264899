#include "tests/e2e/golden.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/embedded.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "formats/safetensors.h"

#define JSON_BYTES_MAX (64u << 20)
#define TOKENS_MAX 4096

static bool serves(const LgEmbedded *page, LgStr architecture) {
    Arena scratch;
    arena_init(&scratch);
    LgStr model;
    const LgStr *names;
    int count = 0;
    bool found = false;
    if (lang_models((LgStr){page->data, page->size}, page->name, &scratch, &model, &names, &count,
                    NULL) == LG_OK)
        for (int i = 0; i < count; i++)
            found |= lg_str_eq(names[i], architecture);
    arena_clear(&scratch);
    return found;
}

/* The page's text, with one replacement where `find` is not NULL. */
static LgStatus page_source(GoldenModel *m, const LgEmbedded *page, const char *find,
                            const char *put, LgStr *out, LgError *err) {
    *out = (LgStr){page->data, page->size};
    const char *at = find ? strstr(page->data, find) : NULL;
    if (!find)
        return LG_OK;
    if (!at)
        return lg_fail(err, LG_NOT_FOUND, 0, "%s holds no \"%s\"", page->name, find);
    const char *text = arena_printf(&m->arena, "%.*s%s%s", (int)(at - page->data), page->data, put,
                                    at + strlen(find));
    *out = text ? lg_str(text) : *out;
    return text ? LG_OK : lg_fail_memory(err);
}

static LgStatus compile_page(GoldenModel *m, const char *find, const char *put, LgError *err) {
    const Config *config = checkpoint_config(m->checkpoint);
    const ConfigValue *names = config_get_c(config, "architectures");
    LgStr architecture = {NULL, 0};
    if (names && names->kind == CONFIG_LIST && names->count > 0)
        architecture = names->items[0].string;
    for (const LgEmbedded *page = lg_models; page->name; page++) {
        if (!serves(page, architecture))
            continue;
        LgStr source;
        LangProgram *plain, *program;
        LG_TRY(page_source(m, page, find, put, &source, err));
        LG_TRY(lang_compile(source, page->name, config, &m->arena, &plain, err));
        LG_TRY(lang_rewrite_lora(plain, &m->arena, &program, err));
        m->program = program;
        return LG_OK;
    }
    return lg_fail(err, LG_NOT_FOUND, 0, "no page serves %.*s", LG_STR_ARG(architecture));
}

LgStatus golden_model_open(const char *path, GoldenModel *out, LgError *err) {
    return golden_model_open_mutant(path, NULL, NULL, out, err);
}

LgStatus golden_model_open_mutant(const char *path, const char *find, const char *put,
                                  GoldenModel *out, LgError *err) {
    GoldenModel m = {0};
    arena_init(&m.arena);
    Binding *binding = NULL;
    LgStatus status = checkpoint_open(path, &m.checkpoint, err);
    if (status == LG_OK)
        status = compile_page(&m, find, put, err);
    if (status == LG_OK)
        status = bind_params(m.program, checkpoint_tensors(m.checkpoint), &m.arena, &binding, err);
    m.binding = binding;
    if (status != LG_OK)
        golden_model_close(&m);
    else
        *out = m;
    return status;
}

void golden_model_close(GoldenModel *m) {
    arena_clear(&m->arena);
    checkpoint_close(m->checkpoint);
    *m = (GoldenModel){0};
}

/* The reference files of a case. */
typedef struct Goldens {
    json_t *outputs, *prompts;
    TensorSet *logits;
} Goldens;

static LgStatus read_json(const char *path, json_t **out, LgError *err) {
    Buf text;
    buf_init(&text);
    LgStatus status = file_read(path, JSON_BYTES_MAX, &text, err);
    if (status == LG_OK)
        status = lg_json_parse(buf_view(&text), path, out, err);
    buf_clear(&text);
    return status;
}

static void goldens_close(Goldens *g) {
    json_decref(g->outputs);
    json_decref(g->prompts);
    tensor_set_close(g->logits);
}

static LgStatus goldens_open(const GoldenCase *c, Goldens *g, LgError *err) {
    char path[1024], folder[1024];
    *g = (Goldens){0};
    snprintf(path, sizeof path, "%s.json", c->goldens);
    LG_TRY(read_json(path, &g->outputs, err));
    LG_TRY(read_json(c->prompts, &g->prompts, err));
    snprintf(folder, sizeof folder, "%s", c->goldens);
    char *slash = strrchr(folder, '/');
    if (!slash)
        return lg_fail(err, LG_BAD_INPUT, 0, "%s: no folder", c->goldens);
    *slash = 0;
    return safetensors_open(folder, slash + 1, &g->logits, err);
}

static bool wanted(const GoldenCase *c, const char *prompt) {
    if (!c->only[0])
        return true;
    for (size_t i = 0; i < sizeof c->only / sizeof c->only[0] && c->only[i]; i++)
        if (strcmp(c->only[i], prompt) == 0)
            return true;
    return false;
}

/* The tokens that are fed, and what must come out behind each. */
typedef struct Forced {
    int32_t count, prompt;
    int32_t *token, *want;
    double *margin;
    double *gap; /* the router's; INFINITY where none is recorded */
} Forced;

static void forced_free(Forced *f) {
    lg_free(f->token);
    lg_free(f->want);
    lg_free(f->margin);
    lg_free(f->gap);
}

static int32_t int_at(const json_t *list, size_t i) {
    return (int32_t)json_integer_value(json_array_get(list, i));
}

static LgStatus forced_make(const Goldens *g, const char *name, const json_t *golden, Forced *f,
                            LgError *err) {
    const json_t *ids = json_object_get(json_object_get(g->prompts, name), "ids");
    const json_t *greedy = json_object_get(golden, "greedy");
    const json_t *next = json_object_get(greedy, "ids");
    size_t n = json_array_size(ids), steps = json_array_size(next);
    if (n == 0 || steps == 0 || n + steps > TOKENS_MAX)
        return lg_fail(err, LG_BAD_INPUT, 0, "prompt %s has %zu ids and %zu steps", name, n, steps);
    *f = (Forced){.count = (int32_t)(n + steps - 1), .prompt = (int32_t)n};
    f->token = lg_alloc_array(n + steps, sizeof *f->token);
    f->want = lg_alloc_array(n + steps, sizeof *f->want);
    f->margin = lg_alloc_array(n + steps, sizeof *f->margin);
    f->gap = lg_alloc_array(n + steps, sizeof *f->gap);
    if (!f->token || !f->want || !f->margin || !f->gap)
        return lg_fail_memory(err);
    const json_t *gaps = json_object_get(golden, "router_gap");
    for (size_t i = 0; i < n + steps - 1; i++) {
        const json_t *gap = i < n ? json_array_get(gaps, i) : NULL;
        f->gap[i] = gap ? json_number_value(gap) : (double)INFINITY;
        f->token[i] = i < n ? int_at(ids, i) : int_at(next, i - n);
        bool continues = i + 1 >= n;
        f->want[i] =
            continues ? int_at(next, i + 1 - n) : int_at(json_object_get(golden, "top1"), i);
        const json_t *margins = json_object_get(continues ? greedy : golden, "margin");
        f->margin[i] = json_number_value(json_array_get(margins, continues ? i + 1 - n : i));
    }
    return LG_OK;
}

/* A run of one prompt: rows of one slot in chunks, all of them sampled. */
typedef struct Forcing {
    const GoldenCase *c;
    const char *prompt;
    const Forced *f;
    const Tensor *last; /* NULL: the case has none for this prompt */
    bool store_f32;
    int32_t vocab;
    GoldenCount *count;
} Forcing;

static void judge(const Forcing *j, int32_t at, const float *logits) {
    const Forced *f = j->f;
    if (at == f->prompt - 1 && j->last) {
        const float *want = (const float *)(const void *)j->last->data;
        for (int32_t v = 0; v < j->vocab; v++) {
            float w;
            memcpy(&w, want + v, sizeof w);
            double diff = fabs((double)logits[v] - (double)w);
            /* A NaN must not pass as small. */
            if (!(diff <= j->count->last_diff))
                j->count->last_diff = isnan(diff) ? (double)INFINITY : diff;
        }
    }
    if (at < f->prompt - 1 && j->c->greedy_only)
        return;
    int32_t best = 0;
    for (int32_t v = 1; v < j->vocab; v++)
        if (logits[v] > logits[best])
            best = v;
    bool agree = best == f->want[at];
    bool sure = f->margin[at] >= (j->store_f32 ? 2 * j->c->last_limit : j->c->sure_margin);
    if (sure && !j->store_f32 && f->gap[at] < j->c->router_gap) {
        sure = false;
        j->count->exempt++;
    }
    j->count->ids++;
    j->count->agree += agree;
    j->count->sure += sure;
    j->count->sure_agree += sure && agree;
    if (sure && !agree && !j->c->quiet)
        printf("  %s %s position %d: id %d, the reference has %d with margin %.4g\n", j->c->name,
               j->prompt, at, best, f->want[at], f->margin[at]);
}

typedef struct StepArrays {
    int32_t *slot, *pos, *ad, *last, *pages;
    float *logits;
} StepArrays;

static LgStatus step_arrays(StepArrays *a, int32_t count, int32_t chunk, int32_t vocab,
                            LgError *err) {
    size_t n = (size_t)count;
    a->slot = lg_calloc(n, sizeof *a->slot);
    a->pos = lg_calloc(n, sizeof *a->pos);
    a->ad = lg_calloc(n, sizeof *a->ad);
    a->last = lg_calloc(n, sizeof *a->last);
    a->pages = lg_calloc(n / KV_PAGE_POSITIONS + 1, sizeof *a->pages);
    a->logits = lg_alloc_array((size_t)chunk * (size_t)vocab, sizeof *a->logits);
    if (!a->slot || !a->pos || !a->ad || !a->last || !a->pages || !a->logits)
        return lg_fail_memory(err);
    return LG_OK;
}

static void step_arrays_free(StepArrays *a) {
    lg_free(a->slot);
    lg_free(a->pos);
    lg_free(a->ad);
    lg_free(a->last);
    lg_free(a->pages);
    lg_free(a->logits);
}

static LgStatus force(Runner *r, const Forcing *j, int32_t adapter_slot, int32_t chunk,
                      StepArrays *a, LgError *err) {
    const AdapterSet sets[2] = {{0}, {.count = 1, .use = {{adapter_slot, 1.0f}}}};
    int32_t pages = (j->f->count + KV_PAGE_POSITIONS - 1) / KV_PAGE_POSITIONS;
    LG_TRY(r->ops->kv_reserve(r, pages, err));
    /* Backwards, so that a program that takes a page's number for its place is caught. */
    for (int32_t p = 0; p < pages; p++)
        a->pages[p] = pages - 1 - p;
    for (int32_t at = 0; at < j->f->count; at += chunk) {
        int32_t rows = j->f->count - at < chunk ? j->f->count - at : chunk;
        for (int32_t i = 0; i < rows; i++) {
            a->pos[i] = at + i;
            a->ad[i] = adapter_slot >= 0;
            a->last[i] = i;
        }
        Step step = {.rows = rows,
                     .token = j->f->token + at,
                     .slot = a->slot,
                     .pos = a->pos,
                     .ad = a->ad,
                     .set_count = adapter_slot >= 0 ? 2 : 1,
                     .sets = sets,
                     .samples = rows,
                     .last = a->last,
                     .slot_count = 1,
                     .pages_per_slot = pages,
                     .pages = a->pages};
        LG_TRY(r->ops->step(r, &step, a->logits, err));
        for (int32_t i = 0; i < rows; i++)
            judge(j, at + i, a->logits + (size_t)i * (size_t)r->vocab);
    }
    return LG_OK;
}

LgStatus golden_run(const GoldenCase *c, Runner *r, int32_t adapter_slot, bool store_f32,
                    int32_t chunk, GoldenCount *out, LgError *err) {
    Goldens g;
    GoldenCount count = {0};
    LgStatus status = goldens_open(c, &g, err);
    const char *name;
    json_t *golden;
    if (chunk > r->rows_max)
        chunk = r->rows_max;
    json_object_foreach(json_object_get(g.outputs, "prompts"), name, golden) {
        if (status != LG_OK || !wanted(c, name))
            continue;
        Forced f = {0};
        StepArrays a = {0};
        char key[128];
        snprintf(key, sizeof key, "%s.last", name);
        status = forced_make(&g, name, golden, &f, err);
        if (status == LG_OK)
            status = step_arrays(&a, f.count, chunk, r->vocab, err);
        const Forcing j = {.c = c,
                           .prompt = name,
                           .f = &f,
                           .last = tensor_set_find(g.logits, lg_str(key)),
                           .store_f32 = store_f32,
                           .vocab = r->vocab,
                           .count = &count};
        if (status == LG_OK)
            status = force(r, &j, adapter_slot, chunk, &a, err);
        count.prompts++;
        step_arrays_free(&a);
        forced_free(&f);
    }
    goldens_close(&g);
    if (status == LG_OK && count.prompts == 0)
        status = lg_fail(err, LG_BAD_INPUT, 0, "%s: no prompt was run", c->goldens);
    if (status == LG_OK)
        *out = count;
    return status;
}

static LgStatus last_f64(Eval *e, const GoldenCase *c, const Goldens *g, int32_t adapter_slot,
                         double *diff, LgError *err) {
    const json_t *golden = json_object_get(json_object_get(g->outputs, "prompts"), "p64");
    const Tensor *want = tensor_set_find(g->logits, LG_STR("p64.last_f64"));
    *diff = -1;
    if (!golden || !want)
        return LG_OK;
    Forced f = {0};
    StepArrays a = {0};
    int32_t vocab = (int32_t)tensor_elems(want);
    LgStatus status = forced_make(g, "p64", golden, &f, err);
    if (status == LG_OK)
        status = step_arrays(&a, f.count, 1, vocab, err);
    const AdapterSet sets[2] = {{0}, {.count = 1, .use = {{adapter_slot, 1.0f}}}};
    for (int32_t i = 0; status == LG_OK && i < f.prompt; i++) {
        a.pos[i] = i;
        a.ad[i] = adapter_slot >= 0;
    }
    int32_t last = f.prompt - 1;
    Step step = {.rows = f.prompt,
                 .token = f.token,
                 .slot = a.slot,
                 .pos = a.pos,
                 .ad = a.ad,
                 .set_count = adapter_slot >= 0 ? 2 : 1,
                 .sets = sets,
                 .samples = 1,
                 .last = &last,
                 .slot_count = 1};
    if (status == LG_OK)
        status = eval_step(e, &step, a.logits, err);
    for (int32_t v = 0; status == LG_OK && v < vocab; v++) {
        double w;
        memcpy(&w, want->data + (size_t)v * sizeof w, sizeof w);
        double d = fabs((double)a.logits[v] - w);
        if (!(d <= *diff))
            *diff = isnan(d) ? (double)INFINITY : d;
    }
    (void)c;
    step_arrays_free(&a);
    forced_free(&f);
    return status;
}

LgStatus golden_run_f64(const GoldenCase *c, const GoldenModel *m, double *diff, LgError *err) {
    Goldens g;
    Eval *e = NULL;
    Adapter *adapter = NULL;
    int32_t slot = -1;
    LgStatus status = goldens_open(c, &g, err);
    if (status == LG_OK)
        status = eval_create(m->program, m->binding, (EvalOptions){.f64 = true, .store_f32 = true},
                             &e, err);
    if (status == LG_OK && c->adapter) {
        AdapterOptions o = {.program = m->program, .binding = m->binding, .store_f32 = true};
        status = adapter_load(c->name, c->adapter, &o, &adapter, err);
        if (status == LG_OK)
            status = eval_adapter_install(e, adapter_data(adapter), &slot, err);
    }
    if (status == LG_OK)
        status = last_f64(e, c, &g, slot, diff, err);
    eval_destroy(e);
    adapter_destroy(adapter);
    goldens_close(&g);
    return status;
}

/* The residual stream is the tensor that `+=` adds to; what is behind the layers is its norm. */
typedef struct Hidden {
    const Tensor *want; /* [layers + 1, rows, width] */
    const LangProgram *p;
    int stream;
    int next; /* rows of `want` that are done */
    double diff;
} Hidden;

static int residual_stream(const LangProgram *p) {
    for (int i = 0; i < p->stmt_count; i++)
        if (p->stmts[i].op == LANG_ADD_TO && p->stmts[i].role == LANG_PLAIN)
            return p->stmts[i].targets[0].tensor;
    return -1;
}

static bool is_last_of_layer(const LangProgram *p, int stmt, int tensor) {
    for (int i = stmt + 1; i < p->layer_end; i++)
        if (p->stmts[i].targets[0].tensor == tensor)
            return false;
    return true;
}

static void hold_hidden(Hidden *h, const double *value, uint64_t elems) {
    const unsigned char *want = h->want->data + (uint64_t)h->next++ * elems * sizeof(float);
    double largest = 0, diff = 0;
    for (uint64_t i = 0; i < elems; i++) {
        float w;
        memcpy(&w, want + i * sizeof w, sizeof w);
        largest = fmax(largest, fabs((double)w));
        double d = fabs(value[i] - (double)w);
        if (!(d <= diff))
            diff = isnan(d) ? (double)INFINITY : d;
    }
    h->diff = fmax(h->diff, diff / largest);
}

static void trace_hidden(void *user, const LangProgram *p, int stmt, int layer, const double *value,
                         uint64_t elems) {
    Hidden *h = user;
    const LangStmt *s = &p->stmts[stmt];
    bool stream = s->targets[0].tensor == h->stream;
    bool first = stream && layer < 0 && stmt < p->layer_begin;
    bool between =
        stream && layer >= 0 && layer < p->layer_count - 1 && is_last_of_layer(p, stmt, h->stream);
    if (first)
        h->next = 0; /* an adapter's fold comes again */
    /* The first statement behind the layers is the norm. */
    if (first || between || (layer < 0 && stmt == p->layer_end))
        hold_hidden(h, value, elems);
}

LgStatus golden_run_hidden(const GoldenCase *c, const GoldenModel *m, double *diff, LgError *err) {
    enum { ROWS = 5 };
    Goldens g;
    Eval *e = NULL;
    int32_t token[ROWS], slot[ROWS] = {0}, pos[ROWS];
    *diff = -1;
    LgStatus status = goldens_open(c, &g, err);
    Hidden h = {.p = m->program, .stream = residual_stream(m->program)};
    if (status == LG_OK)
        h.want = tensor_set_find(g.logits, LG_STR("p5.hidden"));
    if (status == LG_OK && h.want)
        status = eval_create(m->program, m->binding, (EvalOptions){.store_f32 = true}, &e, err);
    if (e) {
        const json_t *ids = json_object_get(json_object_get(g.prompts, "p5"), "ids");
        for (int32_t i = 0; i < ROWS; i++) {
            token[i] = int_at(ids, (size_t)i);
            pos[i] = i;
        }
        Step step = {.rows = ROWS,
                     .token = token,
                     .slot = slot,
                     .pos = pos,
                     .samples = ROWS,
                     .last = pos,
                     .slot_count = 1};
        eval_set_trace(e, trace_hidden, &h);
        status = eval_step(e, &step, NULL, err);
        if (status == LG_OK && h.next != m->program->layer_count + 1)
            status = lg_fail(err, LG_INTERNAL, 0, "%d of the hidden states were seen", h.next);
        if (status == LG_OK)
            *diff = h.diff;
    }
    eval_destroy(e);
    goldens_close(&g);
    return status;
}
