/* Times the launchers as the peers' kernels were timed (tests/cuda/README.md): a graph of several
 * calls, each with its own operands, replayed with a cold cache; median of event times over
 * calls. */
#include <stdlib.h>
#include <string.h>

#include "device_text.h"

#define REPLAYS 12
#define RANDOM_BYTES ((size_t)64 << 20)
#define FLUSH_BYTES ((size_t)256 << 20)
#define CALLS_MAX 16

typedef struct Bench {
    Gpu *g;
    FILE *out;
    CudaPtr wide, narrow; /* random bf16 of deviation about 1 and 0.05, RANDOM_BYTES each */
    CudaPtr flush, word;
    CudaPtr arena; /* operands of the present cell */
    size_t arena_bytes, arena_used;
    void *read, *nothing, *from, *to;
} Bench;

typedef struct Group {
    const char *model, *name;
    int k, sites, n[LGC_SITES];
} Group;

static const Group groups[] = {
    {"Qwen3-8B", "qkv", 4096, 3, {4096, 1024, 1024}},   {"Qwen3-8B", "o", 4096, 1, {4096}},
    {"Qwen3-8B", "gate_up", 4096, 2, {12288, 12288}},   {"Qwen3-8B", "down", 12288, 1, {4096}},
    {"Qwen3-0.6B", "qkv", 1024, 3, {2048, 1024, 1024}}, {"Qwen3-0.6B", "o", 2048, 1, {1024}},
    {"Qwen3-0.6B", "gate_up", 1024, 2, {3072, 3072}},   {"Qwen3-0.6B", "down", 3072, 1, {1024}},
};

typedef struct Batch {
    int rows, with, adapters;
} Batch;
static const Batch batches[] = {{1, 1, 1},       {8, 8, 8},      {32, 32, 1},  {32, 32, 32},
                                {64, 64, 8},     {128, 128, 32}, {32, 16, 16}, {512, 512, 1},
                                {2048, 2048, 1}, {2048, 2048, 8}};

static CudaPtr take(Bench *b, size_t bytes) {
    bytes = (bytes + 255) / 256 * 256;
    if (bytes > b->arena_bytes - b->arena_used) {
        fprintf(stderr, "bench: a cell needs more than %zu bytes\n", b->arena_bytes);
        exit(1);
    }
    CudaPtr p = b->arena + b->arena_used;
    b->arena_used += bytes;
    return p;
}

/* Filled from one of the random blocks, from a place of its own. */
static CudaPtr take_random(Bench *b, CudaPtr block, size_t bytes) {
    CudaPtr p = take(b, bytes);
    size_t at = (size_t)(draw(b->g) % (RANDOM_BYTES / 512)) * 256;
    for (size_t done = 0; done < bytes;) {
        size_t n = bytes - done < RANDOM_BYTES - at ? bytes - done : RANDOM_BYTES - at;
        must_code(b->g, b->g->device->driver.copy_across(p + done, block + at, n, b->g->stream),
                  "filling");
        done += n;
        at = 0;
    }
    return p;
}

static CudaPtr take_copy(Bench *b, const void *from, size_t bytes) {
    CudaPtr p = take(b, bytes);
    must_code(b->g, b->g->device->driver.copy_up(p, from, bytes, b->g->stream), "copying up");
    wait_for(b->g);
    return p;
}

/* Ranks as multiples of 8 alone. */
static LgcRecord random_record(Bench *b, const Group *gr, int rank) {
    LgcRecord r = {0};
    r.a = take_random(b, b->narrow, (size_t)(rank * gr->sites) * (size_t)cuda_lora_k(gr->k) * 2);
    for (int s = 0; s < gr->sites; s++) {
        r.b[s] = take_random(b, b->narrow, (size_t)gr->n[s] * (size_t)rank * 2);
        r.scale[s] = 1.0f;
        r.rank[s] = rank;
    }
    return r;
}

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

typedef struct Times {
    float median, p10, p90;
} Times;

typedef void (*CallFn)(void *user, const CudaLaunch *l, int call);

/* calls: recorded once each, in order. */
static Times time_calls(Bench *b, CallFn fn, void *user, const LoraKernels *kernels, int calls,
                        bool dependent) {
    Gpu *g = b->g;
    const CudaDriver *c = &g->device->driver;
    LgError err;
    CudaGraph graph;
    float us[REPLAYS];
    CudaLaunch l = {g->device, kernels, g->stream, dependent};
    must(cuda_capture_begin(g->device, g->stream, &err), &err);
    for (int i = 0; i < calls; i++)
        fn(user, &l, i);
    must(cuda_capture_end(g->device, g->stream, &graph, &err), &err);
    for (int i = -2; i < REPLAYS; i++) {
        uint64_t count = FLUSH_BYTES / 16;
        void *args[] = {&b->flush, &count, &b->word};
        CudaLaunchConfig config = {.grid = {1056, 1, 1}, .block = {256, 1, 1}, .stream = g->stream};
        must_code(g, c->launch(&config, b->read, args, NULL), "flushing");
        must_code(g, c->event_record(b->from, g->stream), "timing");
        must(cuda_graph_launch(g->device, &graph, g->stream, &err), &err);
        must_code(g, c->event_record(b->to, g->stream), "timing");
        wait_for(g);
        float ms = 0;
        must_code(g, c->event_elapsed(&ms, b->from, b->to), "timing");
        if (i >= 0)
            us[i] = ms * 1000 / (float)calls;
    }
    cuda_graph_clear(g->device, &graph);
    qsort(us, REPLAYS, sizeof *us, by_value);
    return (Times){us[REPLAYS / 2], us[REPLAYS / 10], us[REPLAYS - 1 - REPLAYS / 10]};
}

static void print_row(Bench *b, const char *kernel, const char *stage, const char *model,
                      const char *group, int in, const char *out, int rank, Batch batch, Times t,
                      double bytes, const char *note) {
    double floor_us = bytes / 4.18e6;
    fprintf(b->out,
            "ligature,,%s,%s,%s,%s,%d,%s,%d,%d,%d,%d,cold,%.3f,%.3f,%.3f,%.0f,%.3f,%.3f,,%s\n",
            kernel, stage, model, group, in, out, rank, batch.rows, batch.with, batch.adapters,
            (double)t.median, (double)t.p10, (double)t.p90, bytes, floor_us,
            floor_us / (double)t.median, note);
    printf("%-10s %-8s r%-3d %4d/%-3d %-14s %-12s %8.2f us, floor %6.2f, share %.2f\n", model,
           group, rank, batch.rows, batch.adapters, kernel, stage, (double)t.median, floor_us,
           floor_us / (double)t.median);
}

/* ---- dense groups ---- */

typedef struct DenseCell {
    CudaLoraPlan plan;
    LgcCall call[CALLS_MAX];
} DenseCell;

static void routed_call(void *user, const CudaLaunch *l, int call) {
    DenseCell *c = user;
    LgError err;
    must(cuda_lora_apply_bgmv(l, &c->plan, &c->call[call], &err), &err);
}

static double dense_bytes(const Group *gr, int rank, Batch batch) {
    double n = 0;
    for (int s = 0; s < gr->sites; s++)
        n += gr->n[s];
    double ranks = (double)rank * gr->sites, rows = batch.with;
    return 2 * (batch.adapters * (ranks * gr->k + n * rank) + rows * gr->k + 2 * rows * ranks +
                2 * rows * n);
}

static void bench_group(Bench *b, const Group *gr, int rank, Batch batch, bool parts) {
    DenseCell cell = {.plan = cuda_lora_plan(batch.rows)};
    LgError err;
    Gpu *g = b->g;
    CudaRoute *route;
    const int calls = batch.rows >= 512 ? 8 : CALLS_MAX, low_stride = LGC_SET * rank * gr->sites;
    int32_t *sets = room((size_t)batch.rows * LGC_SET * sizeof *sets);
    float *scales = room((size_t)batch.rows * LGC_SET * sizeof *scales);
    char out[64] = "", note[64];
    for (int r = 0; r < batch.rows; r++)
        for (int m = 0; m < LGC_SET; m++) {
            bool prompt = batch.rows >= 512, none = batch.with < batch.rows && r % 2;
            sets[r * LGC_SET + m] = m || none ? -1
                                    : prompt  ? r / (batch.rows / batch.adapters)
                                              : r / (batch.rows / batch.with) % batch.adapters;
            scales[r * LGC_SET + m] = 1.0f;
        }
    must(cuda_route_create(g->device, batch.rows, &route, &err), &err);
    must(cuda_route_write(route, sets, scales, batch.rows, g->stream, &err), &err);
    b->arena_used = 0;
    for (int i = 0; i < calls; i++) {
        LgcCall *c = &cell.call[i];
        LgcRecord table[32];
        for (int a = 0; a < batch.adapters; a++)
            table[a] = random_record(b, gr, rank);
        *c = (LgcCall){.k = gr->k,
                       .site_count = gr->sites,
                       .x_stride = gr->k,
                       .low_stride = low_stride,
                       .slots = batch.adapters};
        c->table = take_copy(b, table, (size_t)batch.adapters * sizeof *table);
        c->x = take_random(b, b->wide, (size_t)batch.rows * (size_t)gr->k * 2);
        for (int s = 0; s < gr->sites; s++) {
            c->y[s] = take_random(b, b->wide, (size_t)batch.rows * (size_t)gr->n[s] * 2);
            c->n[s] = gr->n[s];
            c->y_stride[s] = gr->n[s];
        }
        c->low = take(b, (size_t)(cuda_lora_low_rows(&cell.plan, gr->k) * low_stride) * 4);
        cuda_route_view(route, &c->route);
    }
    for (int s = 0; s < gr->sites; s++)
        snprintf(out + strlen(out), sizeof out - strlen(out), "%s%d", s ? "+" : "", gr->n[s]);
    const double bytes = dense_bytes(gr, rank, batch);
    for (int dependent = 1; dependent >= 0; dependent--) {
        snprintf(note, sizeof note, "%d calls%s", calls, dependent ? ", dependent launches" : "");
        Times t = time_calls(b, routed_call, &cell, &g->kernels, calls, dependent);
        print_row(b, dependent ? "bgmv" : "bgmv-plain", "shrink+expand", gr->model, gr->name, gr->k,
                  out, rank, batch, t, bytes, note);
    }
    for (int part = 0; part < 2 && parts; part++) {
        LoraKernels one = g->kernels;
        *(part ? &one.bgmv_shrink_k : &one.bgmv_expand_fold_k) = b->nothing;
        Times t = time_calls(b, routed_call, &cell, &one, calls, false);
        print_row(b, "bgmv-plain", part ? "expand" : "shrink", gr->model, gr->name, gr->k, out,
                  rank, batch, t, bytes, "beside a launch of nothing");
    }
    cuda_route_destroy(route);
    free(sets);
    free(scales);
}

/* ---- one adapter by lora_apply ---- */

typedef struct ApplyCell {
    CudaLoraDense d[CALLS_MAX];
} ApplyCell;

static void apply_call(void *user, const CudaLaunch *l, int call) {
    LgError err;
    must(cuda_lora_apply(l, &((ApplyCell *)user)->d[call], &err), &err);
}

static void bench_apply(Bench *b, const Group *gr, int rank, Batch batch) {
    ApplyCell cell;
    char out[16];
    const int calls = batch.rows >= 512 ? 8 : CALLS_MAX;
    b->arena_used = 0;
    for (int i = 0; i < calls; i++) {
        LgcRecord r = random_record(b, gr, rank);
        const size_t rows = (size_t)batch.rows, n = (size_t)gr->n[0];
        cell.d[i] = (CudaLoraDense){.x = take_random(b, b->wide, rows * (size_t)gr->k * 2),
                                    .y = take_random(b, b->wide, rows * n * 2),
                                    .x_stride = gr->k,
                                    .y_stride = gr->n[0],
                                    .rows = batch.rows,
                                    .k = gr->k,
                                    .n = gr->n[0],
                                    .rank = rank,
                                    .a = r.a,
                                    .b = r.b[0],
                                    .scale = 1.0f,
                                    .low = take(b, rows * (size_t)rank * 2),
                                    .delta = take(b, rows * n * 4)};
    }
    snprintf(out, sizeof out, "%d", gr->n[0]);
    Times t = time_calls(b, apply_call, &cell, &b->g->kernels, calls, true);
    print_row(b, "apply", "shrink+expand", gr->model, gr->name, gr->k, out, rank, batch, t,
              dense_bytes(gr, rank, batch), "dependent launches");
}

/* ---- experts ---- */

enum { EXPERTS = 128, TOP_K = 8, MOE_CALLS = 12 };
static const Group moe_groups[] = {
    {"Qwen3-30B-A3B", "gate_up", 2048, 2, {768, 768}},
    {"Qwen3-30B-A3B", "down", 768, 1, {2048}},
};
static const Batch moe_batches[] = {{1, 1, 1},   {1, 1, 8},   {8, 8, 1},     {8, 8, 8},
                                    {32, 32, 1}, {32, 32, 8}, {512, 512, 1}, {512, 512, 8}};

typedef struct MoeCell {
    LgcMoe call[MOE_CALLS];
    int window;
    bool grouped;
} MoeCell;

static void moe_call(void *user, const CudaLaunch *l, int call) {
    MoeCell *c = user;
    LgError err;
    must(c->grouped ? cuda_lora_apply_moe_grouped(l, &c->call[call], c->window, &err)
                    : cuda_lora_apply_moe_gather(l, &c->call[call], &err),
         &err);
}

/* Each token's experts, all different. Returns how many (adapter, expert) pairs there are. */
static int draw_experts(Bench *b, int tokens, int adapters, int *indices) {
    static bool seen[8 * EXPERTS];
    int pairs = 0;
    memset(seen, 0, sizeof seen);
    for (int t = 0; t < tokens; t++)
        for (int k = 0; k < TOP_K; k++) {
            int e, taken;
            do {
                e = draw_int(b->g, 0, EXPERTS - 1);
                taken = 0;
                for (int i = 0; i < k; i++)
                    taken |= indices[t * TOP_K + i] == e;
            } while (taken);
            indices[t * TOP_K + k] = e;
            bool *pair = &seen[t % adapters * EXPERTS + e];
            pairs += !*pair;
            *pair = true;
        }
    return pairs;
}

static void bench_moe(Bench *b, const Group *gr, Batch batch, bool grouped) {
    static int indices[512 * TOP_K], sorted[512 * TOP_K], tokens[512 * TOP_K];
    int offsets[EXPERTS + 1] = {0}, slots[512 * LGC_SET], at = 0, zero = 0;
    float scales[512 * LGC_SET];
    static LgcRecord table[8 * EXPERTS];
    char out[64] = "";
    MoeCell cell = {.grouped = grouped};
    const int rows = batch.rows * TOP_K, rank = 16, low_stride = LGC_SET * rank * gr->sites;
    const bool by_token = gr->sites > 1;
    int pairs = draw_experts(b, batch.rows, batch.adapters, indices);
    for (int i = 0; i < batch.rows * LGC_SET; i++) {
        slots[i] = i < batch.rows ? i % batch.adapters : -1;
        scales[i] = 1.0f;
    }
    for (int e = 0; e < EXPERTS; e++) {
        for (int a = 0; a < batch.adapters; a++)
            for (int r = 0; r < rows; r++)
                if (indices[r] == e && r / TOP_K % batch.adapters == a) {
                    sorted[at] = e;
                    tokens[at++] = r / TOP_K;
                }
        offsets[e + 1] = at;
    }
    cell.window = rows;
    b->arena_used = 0;
    for (int i = 0; i < MOE_CALLS; i++) {
        LgcMoe *c = &cell.call[i];
        for (int r = 0; r < batch.adapters * EXPERTS; r++)
            table[r] = random_record(b, gr, rank);
        *c = (LgcMoe){.x_stride = gr->k,
                      .k = gr->k,
                      .site_count = gr->sites,
                      .low_stride = low_stride,
                      .rows = rows,
                      .x_gather = by_token,
                      .top_k = TOP_K,
                      .experts = EXPERTS,
                      .slots = batch.adapters,
                      .token_count = batch.rows};
        c->table = take_copy(b, table, (size_t)(batch.adapters * EXPERTS) * sizeof *table);
        c->x = take_random(b, b->wide, (size_t)(by_token ? batch.rows : rows) * (size_t)gr->k * 2);
        for (int s = 0; s < gr->sites; s++) {
            c->y[s] = take_random(b, b->wide, (size_t)rows * (size_t)gr->n[s] * 2);
            c->n[s] = gr->n[s];
            c->y_stride[s] = gr->n[s];
        }
        c->low = take(b, (size_t)(cuda_lora_moe_low_rows(rows, gr->k) * low_stride) * 4);
        c->seq_slot = take_copy(b, slots, (size_t)batch.rows * LGC_SET * sizeof *slots);
        c->scales = take_copy(b, scales, (size_t)batch.rows * LGC_SET * sizeof *scales);
        c->tokens = take_copy(b, tokens, (size_t)rows * sizeof *tokens);
        c->offsets = take_copy(b, offsets, sizeof offsets);
        c->indices = take_copy(b, grouped ? sorted : indices, (size_t)rows * sizeof *indices);
        c->fault = take_copy(b, &zero, sizeof zero);
    }
    double n = 0;
    for (int s = 0; s < gr->sites; s++) {
        snprintf(out + strlen(out), sizeof out - strlen(out), "%s%d", s ? "+" : "", gr->n[s]);
        n += gr->n[s];
    }
    double ranks = (double)rank * gr->sites;
    double bytes =
        2 * (pairs * (ranks * gr->k + n * rank) + (double)(by_token ? batch.rows : rows) * gr->k +
             2 * rows * ranks + 2 * rows * n);
    Times t = time_calls(b, moe_call, &cell, &b->g->kernels, MOE_CALLS, true);
    print_row(b, grouped ? "moe-grouped" : "moe-gather", "shrink+expand", gr->model, gr->name,
              gr->k, out, rank, batch, t, bytes, "dependent launches");
}

/* ---- all cells ---- */

static CudaPtr random_block(Bench *b, float scale) {
    LgError err;
    CudaPtr p;
    uint16_t *v = room(RANDOM_BYTES);
    for (size_t i = 0; i < RANDOM_BYTES / 2; i += 4) {
        uint64_t r = draw(b->g);
        for (size_t j = 0; j < 4; j++, r >>= 16)
            v[i + j] = bf16_from_float(((float)(r & 0xffff) * 0x1p-15f - 1.0f) * 1.73f * scale);
    }
    must(cuda_alloc(b->g->device, RANDOM_BYTES, "random numbers", &p, &err), &err);
    must_code(b->g, b->g->device->driver.copy_up(p, v, RANDOM_BYTES, b->g->stream), "filling");
    wait_for(b->g);
    free(v);
    return p;
}

static void bench_machine(Bench *b) {
    const CudaDriver *c = &b->g->device->driver;
    const size_t bytes = (size_t)1 << 30;
    float best = 1e9f;
    for (int i = 0; i < 10; i++) {
        float ms;
        must_code(b->g, c->event_record(b->from, b->g->stream), "timing");
        must_code(b->g, c->copy_across(b->arena, b->arena + bytes, bytes, b->g->stream), "copying");
        must_code(b->g, c->event_record(b->to, b->g->stream), "timing");
        wait_for(b->g);
        must_code(b->g, c->event_elapsed(&ms, b->from, b->to), "timing");
        best = ms < best ? ms : best;
    }
    printf("copy of 1 GiB: %.0f us, %.2f TB/s read and written\n", (double)best * 1000,
           2.0 * (double)bytes / (double)best * 1e-9);
}

void bench(Gpu *g, const char *out, const char *cells) {
    LgError err;
    Bench b = {.g = g, .out = fopen(out, "w"), .arena_bytes = (size_t)12 << 30};
    const CudaDriver *c = &g->device->driver;
    if (!b.out) {
        fprintf(stderr, "bench: cannot write %s\n", out);
        exit(1);
    }
    fprintf(b.out,
            "peer,version,kernel,stage,model,group,in,out,rank,rows,rows_with_adapter,"
            "adapters,state,us_median,us_p10,us_p90,bytes,floor_us,share_of_floor,base_us,note\n");
    must(cuda_alloc(g->device, b.arena_bytes, "operands", &b.arena, &err), &err);
    must(cuda_alloc(g->device, FLUSH_BYTES, "a cold cache", &b.flush, &err), &err);
    must(cuda_alloc(g->device, 4, "a cold cache", &b.word, &err), &err);
    must_code(g, c->event_create(&b.from, 0), "timing");
    must_code(g, c->event_create(&b.to, 0), "timing");
    b.wide = random_block(&b, 1.0f);
    b.narrow = random_block(&b, 0.05f);
    void *module = load_file(g, "bench.cu");
    b.read = kernel_of(g, module, "bench_read");
    b.nothing = kernel_of(g, module, "bench_nothing");
    bench_machine(&b);
    static const int ranks[] = {16, 64, 8};
    for (size_t r = 0; r < sizeof ranks / sizeof *ranks; r++)
        for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
            for (size_t j = 0; j < sizeof batches / sizeof *batches; j++) {
                char cell[96];
                snprintf(cell, sizeof cell, "dense/%s/%s/r%d/%d/%d", groups[i].model,
                         groups[i].name, ranks[r], batches[j].rows, batches[j].adapters);
                if (!cells || strstr(cell, cells))
                    bench_group(&b, &groups[i], ranks[r], batches[j], i < 4 && r == 0);
            }
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        for (size_t j = 0; j < sizeof batches / sizeof *batches; j++)
            if (groups[i].sites == 1 && batches[j].adapters == 1 &&
                (!cells || strstr("apply", cells)))
                bench_apply(&b, &groups[i], 16, batches[j]);
    for (size_t i = 0; i < 2; i++)
        for (size_t j = 0; j < sizeof moe_batches / sizeof *moe_batches; j++)
            for (int grouped = 0; grouped < 2; grouped++)
                if ((grouped || moe_batches[j].rows <= 32) && (!cells || strstr("moe", cells)))
                    bench_moe(&b, &moe_groups[i], moe_batches[j], grouped);
    fclose(b.out);
    cuda_free(g->device, b.arena);
    cuda_free(g->device, b.flush);
    cuda_free(g->device, b.word);
    cuda_free(g->device, b.wide);
    cuda_free(g->device, b.narrow);
}
