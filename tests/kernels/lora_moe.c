/* lora_moe.h and its launchers: rows of many adapters and experts in one call get the bits that
 * each has alone through the kernels of dense sites; pairs that are not adapted keep theirs. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/lora_cpu.h"
#include "harness.h"

enum { ADAPTERS = 4, SITES = 2, LAYERS = 2, EXPERTS_MAX = 9, ROWS_MAX = 40, THREADS = 3 };

typedef struct Numbers {
    float *a, *b;
    void *packed;
} Numbers;

typedef struct Fixture {
    int32_t rows, slots, share, experts, k, n[SITES], site_count, adapters;
    bool f32;
    Numbers numbers[ADAPTERS][LAYERS * SITES][EXPERTS_MAX];
    LgpLoraSite experts_of[ADAPTERS][LAYERS * SITES][EXPERTS_MAX];
    LgpLoraSite sites[ADAPTERS][LAYERS * SITES];
    int32_t choice[ROWS_MAX * 4];
    int32_t set[ROWS_MAX][2], members[ROWS_MAX]; /* of each row */
    float request[ROWS_MAX][LGP_LORA_SET];
    float *x, *y0[SITES], *y[SITES];
    LgpLora call;
    LgpLoraRoute route;
    LgpLoraGroup groups[ROWS_MAX];
    int32_t row[ROWS_MAX];
    float scale[ROWS_MAX * LGP_LORA_SET];
    const float *const *gain[ROWS_MAX];
    float *low;
} Fixture;

static float *drawn(Check *c, const Fixture *f, size_t count) {
    float *p = malloc((count + 1) * sizeof *p);
    draw_floats(c, REGIME_PLAIN, !f->f32, p, count);
    return p;
}

static void draw_expert(Check *c, Fixture *f, int32_t adapter, int32_t at, int32_t x) {
    Numbers *m = &f->numbers[adapter][at][x];
    int32_t n = f->n[at % SITES], rank = DRAW_OF(c, 0, 1, 2, 4, 7, 17);
    m->a = drawn(c, f, (size_t)rank * (size_t)f->k);
    m->b = drawn(c, f, (size_t)n * (size_t)rank);
    AdapterSite s = {.rank = rank, .a = m->a, .b = m->b, .scale = (float)draw_unit(c)};
    uint64_t bytes = lora_site_bytes(rank, f->k, n, false, f->f32);
    m->packed = aligned_alloc(64, (bytes + 64) / 64 * 64);
    lora_site_pack(&s, f->k, n, false, f->f32, m->packed, &f->experts_of[adapter][at][x]);
    LgpLoraSite *outer = &f->sites[adapter][at];
    outer->a.rows = rank > outer->a.rows ? rank : outer->a.rows;
}

static void draw_adapters(Check *c, Fixture *f) {
    for (int32_t a = 0; a < f->adapters; a++)
        for (int32_t at = 0; at < LAYERS * SITES; at++) {
            f->sites[a][at] = (LgpLoraSite){.scale = 0};
            if (draw_int(c, 0, 3) == 0)
                continue; /* this site is not adapted at all */
            for (int32_t x = 0; x < f->experts; x++)
                draw_expert(c, f, a, at, x);
            f->sites[a][at].experts = f->experts_of[a][at];
        }
}

static bool same_set(const Fixture *f, int32_t a, int32_t b) {
    return f->members[a] == f->members[b] &&
           memcmp(f->set[a], f->set[b], (size_t)f->members[a] * sizeof(int32_t)) == 0;
}

/* Rows [from, to) with adapters, grouped by their sets. */
static void route(Fixture *f, int32_t from, int32_t to) {
    int32_t count = 0, groups = 0;
    for (int32_t r = from; r < to; r++) {
        bool first = f->members[r] > 0;
        for (int32_t o = from; o < r; o++)
            first &= !same_set(f, o, r);
        if (!first)
            continue;
        LgpLoraGroup *g = &f->groups[groups++];
        *g = (LgpLoraGroup){.first = count, .members = f->members[r]};
        for (int32_t m = 0; m < g->members; m++)
            g->sites[m] = f->sites[f->set[r][m]];
        for (int32_t o = r; o < to; o++) {
            if (!same_set(f, o, r))
                continue;
            f->row[count] = o;
            memcpy(&f->scale[count * LGP_LORA_SET], f->request[o], sizeof f->request[o]);
            count++;
            g->count++;
        }
    }
    f->route = (LgpLoraRoute){.count = count,
                              .group_count = groups,
                              .site_count = SITES,
                              .groups = f->groups,
                              .row = f->row,
                              .scale = f->scale,
                              .gain = (const float *const *const *)f->gain,
                              .low = f->low,
                              .low_stride = 17 * SITES * 2 + 1};
}

static void fixture_make(Check *c, Fixture *f) {
    memset(f, 0, sizeof *f);
    f->f32 = draw_int(c, 0, 2) == 0;
    f->experts = DRAW_OF(c, 1, 3, 9);
    f->slots = draw_int(c, 1, f->experts < 3 ? f->experts : 3);
    f->share = draw_int(c, 0, 1) ? f->slots : 1;
    f->rows = DRAW_OF(c, 1, 2, 5, 13, 40);
    f->k = DRAW_OF(c, 1, 16, 37, 64);
    f->site_count = draw_int(c, 1, SITES);
    f->adapters = draw_int(c, 1, ADAPTERS);
    for (int s = 0; s < SITES; s++)
        f->n[s] = DRAW_OF(c, 1, 16, 45);
    draw_adapters(c, f);
    int32_t results = f->rows * f->slots;
    for (int32_t i = 0; i < results; i++)
        f->choice[i] = draw_int(c, 0, f->experts - 1);
    bool alike = draw_int(c, 0, 2) == 0;
    for (int32_t r = 0; r < f->rows; r++) {
        f->members[r] = alike ? 1 : draw_int(c, 0, 2);
        for (int m = 0; m < 2; m++)
            f->set[r][m] = alike ? 0 : draw_int(c, 0, f->adapters - 1);
        for (int m = 0; m < LGP_LORA_SET; m++)
            f->request[r][m] = draw_int(c, 0, 1) ? 1.0f : (float)draw_unit(c);
    }
    f->x = drawn(c, f, (size_t)(results / f->share) * (size_t)f->k);
    f->low = malloc((size_t)results * (17 * SITES * 2 + 1) * sizeof(float));
    f->call = (LgpLora){.layer = draw_int(c, 0, LAYERS - 1),
                        .site_count = f->site_count,
                        .x = f->x,
                        .x_stride = f->k,
                        .k = f->k,
                        .store_bf16 = !f->f32,
                        .choice = f->choice,
                        .experts = f->experts,
                        .slots = f->slots,
                        .share = f->share};
    for (int s = 0; s < f->site_count; s++) {
        size_t count = (size_t)results * (size_t)f->n[s];
        f->y0[s] = drawn(c, f, count);
        f->y[s] = malloc(count * sizeof(float));
        f->call.sites[s] = s;
        f->call.y[s] = f->y[s];
        f->call.y_stride[s] = f->n[s];
        f->call.n[s] = f->n[s];
    }
    snprintf(c->shape, sizeof c->shape,
             "%d of %d experts, share %d, rows %d, k %d, n %d %d, sites %d, adapters %d, %s",
             f->slots, f->experts, f->share, f->rows, f->k, f->n[0], f->n[1], f->site_count,
             f->adapters, f->f32 ? "f32" : "bf16");
}

static void fixture_free(Fixture *f) {
    for (int a = 0; a < ADAPTERS; a++)
        for (int at = 0; at < LAYERS * SITES; at++)
            for (int x = 0; x < EXPERTS_MAX; x++) {
                free(f->numbers[a][at][x].a);
                free(f->numbers[a][at][x].b);
                free(f->numbers[a][at][x].packed);
            }
    for (int s = 0; s < SITES; s++) {
        free(f->y0[s]);
        free(f->y[s]);
    }
    free(f->x);
    free(f->low);
}

static void reset(Fixture *f) {
    size_t results = (size_t)f->rows * (size_t)f->slots;
    for (int s = 0; s < f->site_count; s++)
        memcpy(f->y[s], f->y0[s], results * (size_t)f->n[s] * sizeof(float));
    memset(f->low, 0xff, results * (17 * SITES * 2 + 1) * sizeof(float));
}

/* One result as a dense site's one row: what it must be. */
static void result_alone(const Fixture *f, const LgpKernelTable *k, int32_t r, int32_t s,
                         float *out) {
    int32_t row = r / f->slots, zero = 0, at = f->call.layer * SITES + s;
    LgpLoraSite sites[2];
    LgpLoraGroup g = {.count = 1, .members = f->members[row]};
    int32_t ranks = 0;
    for (int32_t m = 0; m < g.members; m++) {
        const LgpLoraSite *site = &f->sites[f->set[row][m]][at];
        sites[m] = site->experts ? site->experts[f->choice[r]] : (LgpLoraSite){.scale = 0};
        g.sites[m] = &sites[m];
        ranks += sites[m].a.rows;
    }
    memcpy(out, f->y0[s] + (size_t)r * (size_t)f->n[s], (size_t)f->n[s] * sizeof(float));
    if (ranks == 0)
        return;
    float low[64];
    const float *const *gain = NULL;
    LgpLora call = {.site_count = 1,
                    .x = f->x + r / f->share * f->k,
                    .k = f->k,
                    .y = {out},
                    .n = {f->n[s]},
                    .store_bf16 = !f->f32};
    LgpLoraRoute one = {.count = 1,
                        .group_count = 1,
                        .site_count = 1,
                        .groups = &g,
                        .row = &zero,
                        .scale = f->request[row],
                        .gain = (const float *const *const *)&gain,
                        .low = low,
                        .low_stride = 64};
    LgpLoraExpand e = {
        .call = &call, .route = &one, .group = &g, .end = 1, .to = f->n[s], .low = low};
    for (int32_t m = 0, place = 0; m < g.members; place += sites[m++].a.rows) {
        LgpLoraShrink t = {.call = &call,
                           .route = &one,
                           .group = &g,
                           .member = m,
                           .end = 1,
                           .to = sites[m].a.rows,
                           .low = low + place};
        e.place[m] = place;
        if (t.to > 0)
            k->lora_shrink(&t);
    }
    k->lora_expand_fold(&e);
}

static bool compare(Check *c, const Fixture *f, int32_t from, int32_t to, const char *what) {
    float want[64];
    for (int32_t s = 0; s < f->site_count; s++)
        for (int32_t r = 0; r < f->rows * f->slots; r++) {
            bool called = r / f->slots >= from && r / f->slots < to;
            const float *got = f->y[s] + (size_t)r * (size_t)f->n[s];
            if (called)
                result_alone(f, c->k, r, s, want);
            if (memcmp(got, called ? want : f->y0[s] + (size_t)r * (size_t)f->n[s],
                       (size_t)f->n[s] * sizeof(float)) != 0)
                return fail(c, "%s: site %d, result %d is not what it is alone", what, s, r);
        }
    return true;
}

/* ---- a team ---- */

typedef struct Team {
    const Fixture *f;
    LoraLaunch launch;
    LoraMoeWork *work; /* NULL: gather */
    atomic_int next;
    pthread_barrier_t barrier;
} Team;

typedef struct Member {
    Team *team;
    int32_t thread;
} Member;

static int32_t team_claim(void *team) {
    return atomic_fetch_add(&((Team *)team)->next, 1);
}

static void team_barrier(void *user, int32_t thread) {
    Team *team = user;
    (void)thread;
    if (pthread_barrier_wait(&team->barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
        atomic_store(&team->next, 0);
    pthread_barrier_wait(&team->barrier);
}

static void launch(const LoraLaunch *l, const Fixture *f, LoraMoeWork *work) {
    if (work)
        (void)lora_apply_moe_grouped(l, &f->call, &f->route, work, NULL);
    else
        (void)lora_apply_moe_gather(l, &f->call, &f->route, NULL);
}

static void *team_thread(void *user) {
    Member *m = user;
    LoraLaunch l = m->team->launch;
    l.thread = m->thread;
    launch(&l, m->team->f, m->team->work);
    return NULL;
}

static void run_team(const LoraKernels *k, const Fixture *f, LoraMoeWork *work) {
    Team team = {.f = f, .work = work};
    Member members[THREADS];
    pthread_t threads[THREADS];
    team.launch = (LoraLaunch){.kernels = k,
                               .thread_count = THREADS,
                               .team = &team,
                               .claim = team_claim,
                               .barrier = team_barrier};
    pthread_barrier_init(&team.barrier, NULL, THREADS);
    for (int32_t i = 0; i < THREADS; i++) {
        members[i] = (Member){&team, i};
        pthread_create(&threads[i], NULL, team_thread, &members[i]);
    }
    for (int32_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&team.barrier);
}

static bool one_case(Check *c, const LoraKernels *k, Fixture *f) {
    int32_t items[ROWS_MAX * 4], counts[EXPERTS_MAX + 1];
    LoraSpan spans[ROWS_MAX * 4];
    LoraMoeWork work = {items, spans, counts, 0};
    LoraLaunch alone = {.kernels = k, .thread_count = 1};
    for (int form = 0; form < 2; form++) {
        LoraMoeWork *w = form ? &work : NULL;
        const char *name = form ? "grouped" : "gather";
        route(f, 0, f->rows);
        reset(f);
        launch(&alone, f, w);
        if (!compare(c, f, 0, f->rows, name))
            return false;
        reset(f);
        if (!c->quick || f->rows == 5) {
            run_team(k, f, w);
            if (!compare(c, f, 0, f->rows,
                         form ? "grouped, three threads" : "gather, three threads"))
                return false;
        }
        int32_t row = draw_int(c, 0, f->rows - 1);
        route(f, row, row + 1);
        reset(f);
        launch(&alone, f, w);
        if (!compare(c, f, row, row + 1, name))
            return false;
    }
    return true;
}

/* An id that is no expert folds nothing, whichever the form. */
static bool strange_experts(Check *c, const LoraKernels *k) {
    Fixture *f = malloc(sizeof *f);
    fixture_make(c, f);
    int32_t items[ROWS_MAX * 4], counts[EXPERTS_MAX + 1];
    LoraSpan spans[ROWS_MAX * 4];
    LoraMoeWork work = {items, spans, counts, 0};
    LoraLaunch alone = {.kernels = k, .thread_count = 1};
    bool good = true;
    for (int32_t i = 0; i < f->rows * f->slots; i++)
        f->choice[i] = i % 2 ? f->experts : -1;
    for (int form = 0; form < 2 && good; form++) {
        route(f, 0, f->rows);
        reset(f);
        launch(&alone, f, form ? &work : NULL);
        for (int s = 0; s < f->site_count && good; s++)
            good =
                memcmp(f->y[s], f->y0[s],
                       (size_t)f->rows * (size_t)f->slots * (size_t)f->n[s] * sizeof(float)) == 0 ||
                fail(c, "results of no expert were changed");
    }
    fixture_free(f);
    free(f);
    return good;
}

bool check_lora_moe(Check *c, uint64_t run_seed) {
    LoraKernels k;
    LgError err;
    check_case(c, run_seed, 0);
    if (lora_kernels_resolve(lora_cpu_find, c->k, c->k->level, &k, NULL, &err) != LG_OK)
        return fail(c, "not resolved: %s", err.message);
    int cases = c->quick ? 40 : 200;
    for (int i = 1; i <= cases; i++) {
        Fixture *f = malloc(sizeof *f);
        check_case(c, run_seed, i);
        fixture_make(c, f);
        bool good = one_case(c, &k, f);
        fixture_free(f);
        free(f);
        if (!good || (i % 20 == 0 && !strange_experts(c, &k)))
            return false;
    }
    return true;
}
