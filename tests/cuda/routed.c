/* Routed rows: against the reference in double, and the same bits alone, in company, in any order,
 * in either class of buckets, and through lora_apply. */
#include <stdlib.h>
#include <string.h>

#include "adapters.h"

#define SLOTS 6

typedef struct Case {
    Sites sites;
    int rows, regime, x_pad, y_pad;
    Adapter adapters[SLOTS];
    int32_t *sets; /* [rows][LGC_SET] */
    float *scales;
    uint16_t *x;            /* [rows][k] */
    uint16_t *y[LGC_SITES]; /* [rows][n]: base results */
} Case;

static void draw_sets(Gpu *g, Case *c) {
    const int kind = draw_int(g, 0, 4); /* one for all, each its own, some none, sets, ragged */
    for (int r = 0; r < c->rows; r++) {
        int32_t *set = &c->sets[r * LGC_SET];
        int members = kind == 3 ? draw_int(g, 0, LGC_SET) : kind == 2 ? draw_int(g, 0, 1) : 1;
        for (int m = 0; m < LGC_SET; m++) {
            set[m] = m >= members ? -1 - draw_int(g, 0, 2)
                     : kind == 0  ? 1
                     : kind == 1  ? r % SLOTS
                                  : draw_int(g, 0, SLOTS - 1);
            c->scales[r * LGC_SET + m] = draw_int(g, 0, 3) ? 1.0f : 0.5f + draw_unit(g);
        }
    }
}

static void draw_case(Gpu *g, Case *c, int number) {
    memset(c, 0, sizeof *c);
    c->regime = draw_int(g, 0, 3);
    c->rows =
        number < 4 ? 1 + number * 7 : DRAW_OF(g, 0, 1, 2, 8, 15, 16, 17, 31, 33, 64, 65, 100, 129);
    if (g->quick && c->rows > 33)
        c->rows = 33;
    c->sites.count = draw_int(g, 1, LGC_SITES);
    c->sites.k = g->quick ? DRAW_OF(g, 1, 16, 48, 100, 256)
                          : DRAW_OF(g, 1, 7, 16, 32, 48, 100, 128, 576, 1000, 2048, 4096, 12288);
    c->sites.rank_max = c->sites.k > 2048 || g->quick ? 64 : LGC_RANK_MAX;
    for (int i = 0; i < c->sites.count; i++)
        c->sites.n[i] = DRAW_OF(g, 1, 7, 8, 31, 32, 33, 96, 255, 256, 257, 576);
    c->x_pad = DRAW_OF(g, 0, 0, 1, 4, 8);
    c->y_pad = DRAW_OF(g, 0, 0, 1, 4, 8);
    size_t rows = (size_t)c->rows, k = (size_t)c->sites.k;
    for (int i = 0; i < SLOTS; i++)
        adapter_draw(g, &c->sites, c->regime, &c->adapters[i]);
    c->sets = room(rows * LGC_SET * sizeof *c->sets);
    c->scales = room(rows * LGC_SET * sizeof *c->scales);
    draw_sets(g, c);
    c->x = room(rows * k * 2);
    draw_bf16(g, c->regime == 1 ? 0 : c->regime, c->x, rows * k);
    for (int i = 0; i < c->sites.count; i++) {
        c->y[i] = room(rows * (size_t)c->sites.n[i] * 2);
        draw_bf16(g, draw_int(g, 0, 1) ? 0 : c->regime, c->y[i], rows * (size_t)c->sites.n[i]);
    }
    snprintf(g->shape, sizeof g->shape,
             "routed case %d: rows %d, k %d, sites %d (n %d %d %d), regime %d, pads %d %d", number,
             c->rows, c->sites.k, c->sites.count, c->sites.n[0], c->sites.n[1], c->sites.n[2],
             c->regime, c->x_pad, c->y_pad);
}

static void free_case(Gpu *g, Case *c) {
    for (int i = 0; i < SLOTS; i++)
        adapter_free(g, &c->adapters[i]);
    for (int i = 0; i < LGC_SITES; i++)
        free(c->y[i]);
    free(c->sets);
    free(c->scales);
    free(c->x);
}

/* What a launch of some rows gives: y [count][n] a site, and the finished lows [entry][stride] with
 * each entry's row. */
typedef struct Result {
    uint16_t *y[LGC_SITES];
    float *low;
    int low_stride, entries;
    int *entry_row;
} Result;

static void free_result(Result *r) {
    for (int i = 0; i < LGC_SITES; i++)
        free(r->y[i]);
    free(r->low);
    free(r->entry_row);
}

static Dev up_rows(Gpu *g, const uint16_t *from, const int *rows, int count, int columns, int pad) {
    size_t stride = (size_t)(columns + pad);
    uint16_t *all = room((size_t)count * stride * 2);
    memset(all, 0xff, (size_t)count * stride * 2);
    for (int i = 0; i < count; i++)
        memcpy(&all[(size_t)i * stride], &from[(size_t)rows[i] * (size_t)columns],
               (size_t)columns * 2);
    Dev d = dev_of(g, all, (size_t)count * stride * 2);
    free(all);
    return d;
}

static bool down_rows(Gpu *g, const Dev *d, int count, int columns, int pad, uint16_t *out) {
    size_t stride = (size_t)(columns + pad);
    uint16_t *all = room((size_t)count * stride * 2);
    bool whole = dev_whole(g, d);
    dev_down(g, d, all, (size_t)count * stride * 2);
    for (int i = 0; i < count; i++) {
        memcpy(&out[(size_t)i * (size_t)columns], &all[(size_t)i * stride], (size_t)columns * 2);
        for (size_t p = (size_t)columns; p < stride; p++)
            whole = whole && all[(size_t)i * stride + p] == 0xffff;
    }
    free(all);
    return whole;
}

/* Parts are added as the kernels add them: in order, from zero. */
static void finish_lows(Gpu *g, const Dev *low, const LgcCall *call, int used, Result *out) {
    int parts = call->split ? lgc_chunks(call->k) : 1;
    size_t part = (size_t)call->entries * (size_t)call->low_stride;
    float *all = room(part * (size_t)parts * sizeof *all);
    dev_down(g, low, all, part * (size_t)parts * sizeof *all);
    out->low_stride = call->low_stride;
    out->low = room(part * sizeof *out->low);
    for (size_t i = 0; i < (size_t)used * (size_t)call->low_stride; i++) {
        float sum = 0.0f;
        for (int p = 0; p < parts; p++)
            sum += all[(size_t)p * part + i];
        out->low[i] = sum;
    }
    free(all);
}

static int low_stride_of(const Case *c) {
    int most = LGC_RANK_PAD;
    for (int i = 0; i < SLOTS; i++) {
        int ranks = adapter_ranks(&c->adapters[i], c->sites.count);
        most = ranks > most ? ranks : most;
    }
    return LGC_SET * most;
}

enum { PLAIN = 0, DEPENDENT = 1, GRAPH = 2 };

/* In a graph: recorded while no row has an adapter, replayed with the route of the step. */
static void launch_graph(Gpu *g, const CudaLaunch *l, const CudaLoraPlan *plan, LgcCall *call,
                         CudaRoute *route, const int32_t *sets, const float *scales, int count) {
    LgError err;
    CudaGraph graph;
    must(cuda_route_write(route, NULL, NULL, 0, g->stream, &err), &err);
    must(cuda_capture_begin(g->device, g->stream, &err), &err);
    must(cuda_lora_apply_bgmv(l, plan, call, &err), &err);
    must(cuda_capture_end(g->device, g->stream, &graph, &err), &err);
    must(cuda_graph_launch(g->device, &graph, g->stream, &err), &err);
    must(cuda_route_write(route, sets, scales, count, g->stream, &err), &err);
    must(cuda_graph_launch(g->device, &graph, g->stream, &err), &err);
    wait_for(g);
    cuda_graph_clear(g->device, &graph);
}

/* rows: which of the case's, in the order in which the step has them; bucket: of the plan. */
static bool run(Gpu *g, const Case *c, const int *rows, int count, int bucket, int how,
                Result *out) {
    LgError err;
    const CudaLoraPlan plan = cuda_lora_plan(bucket);
    LgcRecord table[SLOTS];
    for (int i = 0; i < SLOTS; i++)
        adapter_record(&c->adapters[i], &c->sites, &table[i]);
    int32_t *sets = room((size_t)count * LGC_SET * sizeof *sets);
    float *scales = room((size_t)count * LGC_SET * sizeof *scales);
    for (int i = 0; i < count; i++) {
        memcpy(&sets[i * LGC_SET], &c->sets[rows[i] * LGC_SET], LGC_SET * sizeof *sets);
        memcpy(&scales[i * LGC_SET], &c->scales[rows[i] * LGC_SET], LGC_SET * sizeof *scales);
    }
    CudaRoute *route;
    must(cuda_route_create(g->device, bucket, &route, &err), &err);
    must(cuda_route_write(route, sets, scales, count, g->stream, &err), &err);
    Dev dev_table = dev_of(g, table, sizeof table), x, y[LGC_SITES] = {{0}}, low;
    LgcCall call = {.table = dev_table.data,
                    .k = c->sites.k,
                    .site_count = c->sites.count,
                    .low_stride = low_stride_of(c),
                    .slots = SLOTS,
                    .x_stride = c->sites.k + c->x_pad};
    x = up_rows(g, c->x, rows, count, c->sites.k, c->x_pad);
    call.x = x.data;
    for (int i = 0; i < c->sites.count; i++) {
        y[i] = up_rows(g, c->y[i], rows, count, c->sites.n[i], c->y_pad);
        call.y[i] = y[i].data;
        call.y_stride[i] = c->sites.n[i] + c->y_pad;
        call.n[i] = c->sites.n[i];
    }
    low = dev_new(g, (size_t)(cuda_lora_low_rows(&plan, c->sites.k) * call.low_stride) * 4);
    call.low = low.data;
    cuda_route_view(route, &call.route);
    CudaLaunch l = {g->device, &g->kernels, g->stream, how != PLAIN};
    if (how == GRAPH)
        launch_graph(g, &l, &plan, &call, route, sets, scales, count);
    else
        must(cuda_lora_apply_bgmv(&l, &plan, &call, &err), &err);
    memset(out, 0, sizeof *out);
    bool good = true;
    for (int i = 0; i < c->sites.count; i++) {
        out->y[i] = room((size_t)count * (size_t)c->sites.n[i] * 2);
        good = down_rows(g, &y[i], count, c->sites.n[i], c->y_pad, out->y[i]) && good;
    }
    const LgcTile *tiles;
    const int32_t *entry_row;
    int tile_count = cuda_route_tiles(route, &tiles, &entry_row);
    out->entries = tile_count ? tiles[tile_count - 1].first + tiles[tile_count - 1].count : 0;
    finish_lows(g, &low, &call, out->entries, out);
    out->entry_row = room((size_t)(out->entries + 1) * sizeof *out->entry_row);
    for (int i = 0; i < out->entries; i++)
        out->entry_row[i] = entry_row[i];
    good = good && dev_whole(g, &low) && dev_whole(g, &x) && dev_whole(g, &dev_table);
    if (!good)
        fail(g, "something was written outside of results");
    cuda_route_destroy(route);
    free(sets);
    free(scales);
    dev_free(g, &dev_table);
    dev_free(g, &x);
    dev_free(g, &low);
    for (int i = 0; i < LGC_SITES; i++)
        dev_free(g, &y[i]);
    return good;
}

/* ---- against the reference ---- */

static bool check_low(Gpu *g, const Case *c, const Result *r, int entry, int member) {
    const int row = r->entry_row[entry];
    const Adapter *a = &c->adapters[c->sets[row * LGC_SET + member]];
    const float *low =
        &r->low[(size_t)entry * (size_t)r->low_stride] + member * (r->low_stride / LGC_SET);
    for (int s = 0; s < c->sites.count; s++)
        for (int z = 0; z < cuda_lora_rank(a->rank[s]); z++) {
            double magnitude, got = (double)low[adapter_ranks(a, s) + z];
            double want =
                low_ref(a, &c->sites, &c->x[(size_t)row * (size_t)c->sites.k], s, z, &magnitude);
            double off = got > want ? got - want : want - got;
            if (!(off <= sum_bound(c->sites.k, magnitude) + TINY))
                return fail(g, "low of row %d, member %d, site %d, rank %d: %g, not %g, bound %g",
                            row, member, s, z, got, want, sum_bound(c->sites.k, magnitude));
        }
    return true;
}

static bool check_outputs(Gpu *g, const Case *c, const Result *r, int entry) {
    const int row = r->entry_row[entry];
    const int32_t *set = &c->sets[row * LGC_SET];
    for (int s = 0; s < c->sites.count; s++)
        for (int o = 0; o < c->sites.n[s]; o++) {
            size_t at = (size_t)row * (size_t)c->sites.n[s] + (size_t)o;
            double v = (double)bf16_to_float(c->y[s][at]), bound = 0, size = v < 0 ? -v : v;
            for (int m = 0; m < LGC_SET && set[m] >= 0; m++) {
                const Adapter *a = &c->adapters[set[m]];
                uint16_t low[LGC_RANK_MAX];
                double magnitude;
                if (a->rank[s] == 0)
                    continue;
                for (int z = 0; z < cuda_lora_rank(a->rank[s]); z++)
                    low[z] = bf16_from_float(
                        r->low[(size_t)entry * (size_t)r->low_stride +
                               (size_t)(m * (r->low_stride / LGC_SET) + adapter_ranks(a, s) + z)]);
                double scale = (double)(a->scale[s] * c->scales[row * LGC_SET + m]);
                double part = scale * delta_ref(a, low, s, o, &magnitude);
                v += part;
                size += part < 0 ? -part : part;
                bound += (scale < 0 ? -scale : scale) *
                             sum_bound(cuda_lora_rank(a->rank[s]), magnitude) +
                         0x1p-24 * size;
            }
            double got = (double)bf16_to_float(r->y[s][at]);
            double off = got > v ? got - v : v - got;
            if (!(off <= bound + U_BF16 * (v < 0 ? -v : v) + TINY))
                return fail(g, "row %d, site %d, output %d: %g, not %g, bound %g", row, s, o, got,
                            v, bound + U_BF16 * (v < 0 ? -v : v));
        }
    return true;
}

static bool check_reference(Gpu *g, const Case *c, const Result *r) {
    for (int e = 0; e < r->entries; e++) {
        const int32_t *set = &c->sets[r->entry_row[e] * LGC_SET];
        if (e > 12 && e % 7 != 3) /* the rest of them is held to these by their bits */
            continue;
        for (int m = 0; m < LGC_SET && set[m] >= 0; m++)
            if (!check_low(g, c, r, e, m))
                return false;
        if (!check_outputs(g, c, r, e))
            return false;
    }
    for (int row = 0; row < c->rows; row++)
        for (int s = 0; s < c->sites.count && c->sets[row * LGC_SET] < 0; s++) {
            size_t n = (size_t)c->sites.n[s];
            if (memcmp(&r->y[s][(size_t)row * n], &c->y[s][(size_t)row * n], n * 2) != 0)
                return fail(g, "row %d has no adapter and was changed at site %d", row, s);
        }
    return true;
}

/* ---- against itself ---- */

static bool same_rows(Gpu *g, const Case *c, const Result *whole, const Result *some,
                      const int *rows, int count, const char *how) {
    g->comparisons++;
    for (int i = 0; i < count; i++)
        for (int s = 0; s < c->sites.count; s++) {
            size_t n = (size_t)c->sites.n[s];
            if (memcmp(&whole->y[s][(size_t)rows[i] * n], &some->y[s][(size_t)i * n], n * 2) != 0)
                return fail(g, "%s: row %d differs at site %d", how, rows[i], s);
        }
    return true;
}

static bool run_and_compare(Gpu *g, const Case *c, const Result *whole, const int *rows, int count,
                            int bucket, int how, const char *what) {
    Result some;
    bool good = run(g, c, rows, count, bucket, how, &some) &&
                same_rows(g, c, whole, &some, rows, count, what);
    free_result(&some);
    return good;
}

static bool check_bits(Gpu *g, const Case *c, const Result *whole, int *rows) {
    bool good = true;
    for (int i = 0; i < c->rows; i++)
        rows[i] = i;
    good = good &&
           run_and_compare(g, c, whole, rows, c->rows, 256, DEPENDENT, "bucket of the other class");
    if (c->rows <= 128)
        good = good &&
               run_and_compare(g, c, whole, rows, c->rows, 128, PLAIN, "largest bucket of few");
    good = good &&
           run_and_compare(g, c, whole, rows, c->rows, 4096, GRAPH, "largest bucket, in a graph");
    for (int i = c->rows - 1; i > 0; i--) {
        int j = draw_int(g, 0, i), t = rows[i];
        rows[i] = rows[j];
        rows[j] = t;
    }
    good = good && run_and_compare(g, c, whole, rows, c->rows, 256, PLAIN, "rows in another order");
    for (int i = 0; i < 3 && i < c->rows; i++)
        good = good && run_and_compare(g, c, whole, &rows[i], 1, 1, i ? GRAPH : DEPENDENT, "alone");
    return good;
}

/* lora_apply, with each optional handle there and not. */
static bool check_dense_bits(Gpu *g, const Case *c, const Result *whole) {
    LoraKernels some[4] = {g->kernels, g->kernels, g->kernels, g->kernels};
    some[1].gemm_tc_acc_k = NULL;
    some[2].gemm_tc_k = NULL;
    some[3].gemm_tc_k = some[3].gemm_tc_acc_k = NULL;
    for (int row = 0, done = 0; row < c->rows && done < 2; row++) {
        const int32_t *set = &c->sets[row * LGC_SET];
        if (set[0] < 0 || set[1] >= 0)
            continue;
        done++;
        const Adapter *a = &c->adapters[set[0]];
        for (int s = 0; s < c->sites.count; s++)
            for (int way = 0; way < 5; way++) {
                size_t n = (size_t)c->sites.n[s];
                uint16_t *y = room(n * 2);
                memcpy(y, &c->y[s][(size_t)row * n], n * 2);
                apply_alone(g, &some[way % 4], a, &c->sites, s,
                            &c->x[(size_t)row * (size_t)c->sites.k],
                            a->scale[s] * c->scales[row * LGC_SET], way == 4 ? 1 : 5 + way * 20, y);
                bool same = memcmp(y, &whole->y[s][(size_t)row * n], n * 2) == 0;
                free(y);
                g->comparisons++;
                if (!same)
                    return fail(g, "lora_apply, way %d: row %d differs at site %d (rank %d)", way,
                                row, s, a->rank[s]);
            }
    }
    return g->failures == 0;
}

bool check_routed(Gpu *g) {
    const int cases = g->quick ? 6 : 60;
    bool good = true;
    for (int i = 0; i < cases && good; i++) {
        Case c;
        Result whole;
        g->draws = (uint64_t)i << 32;
        draw_case(g, &c, i);
        int *rows = room((size_t)(c.rows + 1) * sizeof *rows);
        for (int r = 0; r < c.rows; r++)
            rows[r] = r;
        int bucket = c.rows <= 128 ? 128 : 256;
        good = run(g, &c, rows, c.rows, bucket, DEPENDENT, &whole) &&
               check_reference(g, &c, &whole) && check_bits(g, &c, &whole, rows) &&
               check_dense_bits(g, &c, &whole);
        free_result(&whole);
        free(rows);
        free_case(g, &c);
        g->cases++;
    }
    return good;
}
