/* Rows of experts: both forms, and each row against the same row alone in the routed form (which
 * routed.c holds to the reference): in any company and order, in windows, with ids out of bounds.
 */
#include <stdlib.h>
#include <string.h>

#include "adapters.h"

typedef struct Case {
    Sites sites;
    int tokens, top_k, experts, slots, rows;
    bool x_by_token;
    Adapter *adapters;      /* [slots][experts] */
    LgcRecord *table;       /* the same */
    int32_t *seq_slot;      /* [LGC_SET][tokens] */
    float *scales;          /* the same */
    int32_t *indices;       /* [rows] */
    uint16_t *x;            /* [rows][k]; by token: rows of one token are equal */
    uint16_t *y[LGC_SITES]; /* [rows][n] */
    int low_stride;
} Case;

static void draw_routes(Gpu *g, Case *c) {
    const size_t tokens = (size_t)c->tokens;
    const int most = draw_int(g, 0, 2) ? 1 : LGC_SET;
    for (size_t t = 0; t < tokens; t++) {
        int members = draw_int(g, 0, most);
        for (size_t m = 0; m < LGC_SET; m++) {
            c->seq_slot[m * tokens + t] = (int)m < members ? draw_int(g, 0, c->slots - 1) : -1;
            c->scales[m * tokens + t] = draw_int(g, 0, 1) ? 1.0f : draw_unit(g);
        }
        int first = draw_int(g, 0, c->experts - 1);
        for (int k = 0; k < c->top_k; k++)
            c->indices[(int)t * c->top_k + k] = (first + k * (1 + c->experts / 8)) % c->experts;
    }
}

static void draw_case(Gpu *g, Case *c, int number) {
    memset(c, 0, sizeof *c);
    c->tokens = g->quick ? DRAW_OF(g, 1, 3, 7) : DRAW_OF(g, 1, 2, 5, 8, 20, 37);
    c->top_k = DRAW_OF(g, 1, 2, 4);
    c->rows = c->tokens * c->top_k;
    c->experts = DRAW_OF(g, 4, 5, 16, 33);
    c->slots = draw_int(g, 1, 3);
    c->x_by_token = draw_int(g, 0, 1);
    c->sites = (Sites){.k = g->quick ? 64 : DRAW_OF(g, 32, 48, 96, 128, 768, 2048),
                       .count = draw_int(g, 1, 2),
                       .n = {DRAW_OF(g, 8, 48, 256, 300), DRAW_OF(g, 8, 33, 257)},
                       .rank_max = 64};
    const size_t rows = (size_t)c->rows, k = (size_t)c->sites.k,
                 pairs = (size_t)(c->slots * c->experts);
    int most = LGC_RANK_PAD;
    c->adapters = room(pairs * sizeof *c->adapters);
    c->table = room(pairs * sizeof *c->table);
    for (size_t i = 0; i < pairs; i++) {
        if (draw_int(g, 0, 4))
            adapter_draw(g, &c->sites, 0, &c->adapters[i]);
        adapter_record(&c->adapters[i], &c->sites, &c->table[i]);
        int ranks = adapter_ranks(&c->adapters[i], c->sites.count);
        most = ranks > most ? ranks : most;
    }
    c->low_stride = LGC_SET * most;
    c->seq_slot = room((size_t)c->tokens * LGC_SET * sizeof *c->seq_slot);
    c->scales = room((size_t)c->tokens * LGC_SET * sizeof *c->scales);
    c->indices = room(rows * sizeof *c->indices);
    draw_routes(g, c);
    c->x = room(rows * k * 2);
    draw_bf16(g, 0, c->x, rows * k);
    for (size_t r = 0; c->x_by_token && r < rows; r++)
        memcpy(&c->x[r * k], &c->x[r / (size_t)c->top_k * (size_t)c->top_k * k], k * 2);
    for (int i = 0; i < c->sites.count; i++) {
        c->y[i] = room(rows * (size_t)c->sites.n[i] * 2);
        draw_bf16(g, 0, c->y[i], rows * (size_t)c->sites.n[i]);
    }
    snprintf(g->shape, sizeof g->shape,
             "moe case %d: %d tokens, top %d of %d, %d slots, k %d, sites %d (n %d %d), x by %s",
             number, c->tokens, c->top_k, c->experts, c->slots, c->sites.k, c->sites.count,
             c->sites.n[0], c->sites.n[1], c->x_by_token ? "token" : "row");
}

static void free_case(Gpu *g, Case *c) {
    for (int i = 0; i < c->slots * c->experts; i++)
        adapter_free(g, &c->adapters[i]);
    for (int i = 0; i < LGC_SITES; i++)
        free(c->y[i]);
    free(c->adapters);
    free(c->table);
    free(c->seq_slot);
    free(c->scales);
    free(c->indices);
    free(c->x);
}

/* Device memory of one launch, rows in the order that `order` gives (row i is the case's
 * order[i]). */
typedef struct Setup {
    Dev x, y[LGC_SITES], table, low, seq_slot, scales, tokens, offsets, indices, fault;
    LgcMoe call;
} Setup;

static Dev up_ordered(Gpu *g, const uint16_t *from, const int *order, int rows, int columns) {
    uint16_t *all = room((size_t)rows * (size_t)columns * 2);
    for (int i = 0; i < rows; i++)
        memcpy(&all[(size_t)i * (size_t)columns], &from[(size_t)order[i] * (size_t)columns],
               (size_t)columns * 2);
    Dev d = dev_of(g, all, (size_t)rows * (size_t)columns * 2);
    free(all);
    return d;
}

static Setup set_up(Gpu *g, const Case *c, const int *order, int low_rows) {
    Setup s = {0};
    const size_t rows = (size_t)c->rows, tokens = (size_t)c->tokens;
    int zero = 0, *of = room((rows + 1) * sizeof *of);
    if (c->x_by_token) {
        for (int t = 0; t < c->tokens; t++)
            of[t] = t * c->top_k;
        s.x = up_ordered(g, c->x, of, c->tokens, c->sites.k);
    } else {
        s.x = up_ordered(g, c->x, order, c->rows, c->sites.k);
    }
    for (size_t i = 0; i < rows; i++)
        of[i] = order[i] / c->top_k;
    s.tokens = dev_of(g, of, rows * sizeof *of);
    for (size_t i = 0; i < rows; i++)
        of[i] = c->indices[order[i]];
    s.indices = dev_of(g, of, rows * sizeof *of);
    int *offsets = room((size_t)(c->experts + 1) * sizeof *offsets);
    for (size_t i = 0; i < rows; i++)
        for (int e = c->indices[order[i]] + 1; e <= c->experts; e++)
            offsets[e]++;
    s.offsets = dev_of(g, offsets, (size_t)(c->experts + 1) * sizeof *offsets);
    free(offsets);
    free(of);
    s.table = dev_of(g, c->table, (size_t)(c->slots * c->experts) * sizeof *c->table);
    s.seq_slot = dev_of(g, c->seq_slot, LGC_SET * tokens * sizeof *c->seq_slot);
    s.scales = dev_of(g, c->scales, LGC_SET * tokens * sizeof *c->scales);
    s.low = dev_new(g, (size_t)(cuda_lora_moe_low_rows(low_rows, c->sites.k) * c->low_stride) * 4);
    s.fault = dev_of(g, &zero, sizeof zero);
    s.call = (LgcMoe){.x = s.x.data,
                      .table = s.table.data,
                      .low = s.low.data,
                      .seq_slot = s.seq_slot.data,
                      .scales = s.scales.data,
                      .tokens = s.tokens.data,
                      .offsets = s.offsets.data,
                      .indices = s.indices.data,
                      .fault = s.fault.data,
                      .x_stride = c->sites.k,
                      .k = c->sites.k,
                      .site_count = c->sites.count,
                      .low_stride = c->low_stride,
                      .rows = c->rows,
                      .x_gather = c->x_by_token,
                      .top_k = c->top_k,
                      .experts = c->experts,
                      .slots = c->slots,
                      .token_count = c->tokens};
    for (int i = 0; i < c->sites.count; i++) {
        s.y[i] = up_ordered(g, c->y[i], order, c->rows, c->sites.n[i]);
        s.call.y[i] = s.y[i].data;
        s.call.y_stride[i] = s.call.n[i] = c->sites.n[i];
    }
    return s;
}

/* Results in the case's order, after checks of what must not have changed. */
static bool take_down(Gpu *g, const Case *c, Setup *s, const int *order, uint16_t *y[LGC_SITES],
                      int *fault) {
    bool good = dev_whole(g, &s->low) && dev_whole(g, &s->x) && dev_whole(g, &s->fault);
    dev_down(g, &s->fault, fault, sizeof *fault);
    for (int i = 0; i < c->sites.count; i++) {
        size_t n = (size_t)c->sites.n[i];
        uint16_t *all = room((size_t)c->rows * n * 2);
        good = dev_whole(g, &s->y[i]) && good;
        dev_down(g, &s->y[i], all, (size_t)c->rows * n * 2);
        y[i] = room((size_t)c->rows * n * 2);
        for (int r = 0; r < c->rows; r++)
            memcpy(&y[i][(size_t)order[r] * n], &all[(size_t)r * n], n * 2);
        free(all);
        dev_free(g, &s->y[i]);
    }
    Dev *const all[] = {&s->x,      &s->table,   &s->low,     &s->seq_slot, &s->scales,
                        &s->tokens, &s->offsets, &s->indices, &s->fault};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        dev_free(g, all[i]);
    if (!good)
        fail(g, "something was written outside of results");
    return good;
}

/* The row alone in the routed form, its pairs' records as slots 0, 1, …, in place on y. */
static void row_alone(Gpu *g, const Case *c, int row, uint16_t *y[LGC_SITES]) {
    LgError err;
    LgcRecord table[LGC_SET];
    const CudaLoraPlan plan = cuda_lora_plan(1);
    int32_t set[LGC_SET] = {-1, -1, -1, -1};
    float scales[LGC_SET] = {0};
    memset(table, 0, sizeof table);
    for (int m = 0; m < LGC_SET; m++) {
        int slot = c->seq_slot[m * c->tokens + row / c->top_k];
        if (slot < 0)
            break;
        table[m] = c->table[slot * c->experts + c->indices[row]];
        scales[m] = c->scales[m * c->tokens + row / c->top_k];
        set[m] = m;
    }
    CudaRoute *route;
    must(cuda_route_create(g->device, 1, &route, &err), &err);
    must(cuda_route_write(route, set, scales, 1, g->stream, &err), &err);
    Dev dev_table = dev_of(g, table, sizeof table), dev_y[LGC_SITES] = {{0}};
    Dev x = dev_of(g, &c->x[(size_t)row * (size_t)c->sites.k], (size_t)c->sites.k * 2);
    Dev low = dev_new(g, (size_t)(cuda_lora_low_rows(&plan, c->sites.k) * c->low_stride) * 4);
    LgcCall call = {.x = x.data,
                    .table = dev_table.data,
                    .low = low.data,
                    .x_stride = c->sites.k,
                    .k = c->sites.k,
                    .site_count = c->sites.count,
                    .low_stride = c->low_stride,
                    .slots = LGC_SET};
    for (int i = 0; i < c->sites.count; i++) {
        size_t n = (size_t)c->sites.n[i];
        dev_y[i] = dev_of(g, &c->y[i][(size_t)row * n], n * 2);
        call.y[i] = dev_y[i].data;
        call.y_stride[i] = call.n[i] = c->sites.n[i];
    }
    cuda_route_view(route, &call.route);
    CudaLaunch l = {g->device, &g->kernels, g->stream, true};
    must(cuda_lora_apply_bgmv(&l, &plan, &call, &err), &err);
    for (int i = 0; i < c->sites.count; i++) {
        dev_down(g, &dev_y[i], y[i], (size_t)c->sites.n[i] * 2);
        dev_free(g, &dev_y[i]);
    }
    cuda_route_destroy(route);
    dev_free(g, &dev_table);
    dev_free(g, &x);
    dev_free(g, &low);
}

static bool same(Gpu *g, const Case *c, uint16_t *const a[LGC_SITES], uint16_t *const b[LGC_SITES],
                 const char *what) {
    g->comparisons++;
    for (int i = 0; i < c->sites.count; i++)
        for (int r = 0; r < c->rows; r++) {
            size_t n = (size_t)c->sites.n[i];
            if (memcmp(&a[i][(size_t)r * n], &b[i][(size_t)r * n], n * 2) != 0)
                return fail(g, "%s: row %d differs at site %d", what, r, i);
        }
    return true;
}

static void free_results(uint16_t *y[LGC_SITES]) {
    for (int i = 0; i < LGC_SITES; i++)
        free(y[i]);
}

/* Rows by expert; within one by adapter, or as drawn. */
static void sort_rows(Gpu *g, const Case *c, bool by_slot, int *order) {
    long *key = room((size_t)c->rows * sizeof *key);
    for (int r = 0; r < c->rows; r++) {
        long slot = by_slot ? c->seq_slot[r / c->top_k] + 1 : draw_int(g, 0, 1000);
        key[r] = (c->indices[r] * 1001L + slot) * c->rows + r;
    }
    for (int i = 0; i < c->rows; i++) {
        int best = -1;
        for (int r = 0; r < c->rows; r++)
            if (key[r] >= 0 && (best < 0 || key[r] < key[best]))
                best = r;
        order[i] = best;
        key[best] = -1;
    }
    free(key);
}

static bool check_grouped(Gpu *g, const Case *c, uint16_t *const want[LGC_SITES], bool by_slot,
                          int window, const char *what) {
    LgError err;
    int fault = 0, *order = room((size_t)c->rows * sizeof *order);
    uint16_t *y[LGC_SITES] = {NULL};
    sort_rows(g, c, by_slot, order);
    Setup s = set_up(g, c, order, window);
    CudaLaunch l = {g->device, &g->kernels, g->stream, by_slot};
    must(cuda_lora_apply_moe_grouped(&l, &s.call, window, &err), &err);
    bool good = take_down(g, c, &s, order, y, &fault) && same(g, c, want, y, what);
    if (good && fault)
        good = fail(g, "%s: row %d is reported as out of bounds", what, fault - 1);
    free_results(y);
    free(order);
    return good;
}

static bool run_gather(Gpu *g, const Case *c, uint16_t *y[LGC_SITES], int *fault) {
    LgError err;
    int *order = room((size_t)c->rows * sizeof *order);
    for (int i = 0; i < c->rows; i++)
        order[i] = i;
    Setup s = set_up(g, c, order, c->rows);
    CudaLaunch l = {g->device, &g->kernels, g->stream, true};
    must(cuda_lora_apply_moe_gather(&l, &s.call, &err), &err);
    bool good = take_down(g, c, &s, order, y, fault);
    free(order);
    return good;
}

static bool check_rows(Gpu *g, const Case *c, uint16_t *const got[LGC_SITES]) {
    for (int r = 0; r<c->rows; r += c->rows> 20 ? 5 : 1) {
        uint16_t *alone[LGC_SITES] = {NULL};
        bool good = true;
        for (int i = 0; i < c->sites.count; i++)
            alone[i] = room((size_t)c->sites.n[i] * 2);
        row_alone(g, c, r, alone);
        for (int i = 0; i < c->sites.count && good; i++) {
            size_t n = (size_t)c->sites.n[i];
            if (memcmp(alone[i], &got[i][(size_t)r * n], n * 2) != 0)
                good = fail(g, "gather: row %d is not what it is alone, site %d", r, i);
        }
        g->comparisons++;
        free_results(alone);
        if (!good)
            return false;
    }
    return true;
}

/* An expert's id that does not exist: the row is named, nothing of it is read or written. */
static bool check_bounds(Gpu *g, Case *c) {
    const int row = c->rows - 1, kept = c->indices[row];
    const int wrong[] = {-1, c->experts, 1 << 30};
    bool good = true;
    for (size_t w = 0; w < sizeof wrong / sizeof *wrong && good; w++) {
        uint16_t *y[LGC_SITES] = {NULL};
        int fault = 0;
        c->indices[row] = wrong[w];
        LgError err;
        int *order = room((size_t)c->rows * sizeof *order);
        for (int i = 0; i < c->rows; i++)
            order[i] = i;
        c->indices[row] = kept;
        Setup s = set_up(g, c, order, c->rows);
        must_code(
            g,
            g->device->driver.copy_up(s.indices.data + (CudaPtr)row * 4, &wrong[w], 4, g->stream),
            "copying up");
        wait_for(g);
        CudaLaunch l = {g->device, &g->kernels, g->stream, true};
        must(cuda_lora_apply_moe_gather(&l, &s.call, &err), &err);
        good = take_down(g, c, &s, order, y, &fault);
        if (good && fault != row + 1)
            good = fail(g, "expert %d of row %d: reported %d", wrong[w], row, fault - 1);
        for (int i = 0; i < c->sites.count && good; i++) {
            size_t n = (size_t)c->sites.n[i];
            if (memcmp(&y[i][(size_t)row * n], &c->y[i][(size_t)row * n], n * 2) != 0)
                good = fail(g, "expert %d of row %d: the row was changed", wrong[w], row);
        }
        free_results(y);
        free(order);
    }
    return good;
}

bool check_moe(Gpu *g) {
    const int cases = g->quick ? 5 : 40;
    bool good = true;
    for (int i = 0; i < cases && good; i++) {
        Case c;
        int fault = 0;
        uint16_t *gather[LGC_SITES] = {NULL};
        g->draws = ((uint64_t)i << 32) + (1u << 30);
        draw_case(g, &c, i);
        good = run_gather(g, &c, gather, &fault) && check_rows(g, &c, gather);
        if (good && fault)
            good = fail(g, "gather: row %d is reported as out of bounds", fault - 1);
        good = good && check_grouped(g, &c, gather, true, c.rows, "grouped");
        good = good && check_grouped(g, &c, gather, false, c.rows, "grouped, adapters mixed");
        good = good && check_grouped(g, &c, gather, true, (c.rows + 2) / 3, "grouped, in windows");
        good = good && check_grouped(g, &c, gather, false, 2048, "grouped, for prompts");
        good = good && check_bounds(g, &c);
        free_results(gather);
        free_case(g, &c);
        g->cases++;
    }
    return good;
}
