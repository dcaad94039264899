/* The launchers over a level's handles: a team of threads against one, rows alone against all
 * together, the dense launcher against the routed one, each optional handle at 0 against its
 * fallback, needed ones at 0 against their refusal. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "lora_fixture.h"

#define THREADS 3

typedef struct Team {
    pthread_barrier_t barrier;
    atomic_int next, there;
    bool tiles;
    LoraLaunch launch;
    const LoraFixture *fixture;
    const LgpLora *call;
    const LgpLoraRoute *route;
} Team;

typedef struct Member {
    Team *team;
    int32_t thread;
    float own[512];
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

static void team_arrive(void *user) {
    atomic_fetch_add(&((Team *)user)->there, 1);
}

static void team_meet(void *user) {
    while (atomic_load(&((Team *)user)->there) < THREADS)
        sched_yield();
}

#define TILE_ROWS 5
#define TILE_COLUMNS (3 * LGP_PANEL)

/* As a program does it beside its products: A's part, then B's by tiles as they are claimed. */
static void apply_by_tiles(const LoraLaunch *l, const LoraFixture *f, const LgpLora *whole,
                           const LgpLoraRoute *route) {
    LgpLora call = *whole;
    call.part = LGP_LORA_SHRINK;
    lora_apply_bgmv(l, &call, route);
    int32_t index = 0, next = l->claim(l->team);
    for (int32_t s = 0; s < call.site_count; s++)
        for (int32_t row = 0; row < f->rows; row += TILE_ROWS)
            for (int32_t n = 0; n < call.n[s]; n += TILE_COLUMNS) {
                if (index++ != next)
                    continue;
                call.tile_site = s;
                call.row = row;
                call.row_end = row + TILE_ROWS < f->rows ? row + TILE_ROWS : f->rows;
                call.from = n;
                call.to = n + TILE_COLUMNS < call.n[s] ? n + TILE_COLUMNS : call.n[s];
                call.part = LGP_LORA_ASK;
                lora_apply_bgmv(l, &call, route);
                call.part = LGP_LORA_FOLD;
                lora_apply_bgmv(l, &call, route);
                next = l->claim(l->team);
            }
}

static void *team_thread(void *user) {
    Member *m = user;
    LoraLaunch l = m->team->launch;
    l.thread = m->thread;
    l.own = m->own;
    l.own_floats = sizeof m->own / sizeof *m->own;
    if (m->team->tiles)
        apply_by_tiles(&l, m->team->fixture, m->team->call, m->team->route);
    else
        lora_apply_bgmv(&l, m->team->call, m->team->route);
    return NULL;
}

static void run_team(const LoraKernels *k, const LoraFixture *f, bool tiles) {
    Team team = {.tiles = tiles, .fixture = f, .call = &f->call, .route = &f->route};
    Member members[THREADS];
    pthread_t threads[THREADS];
    team.launch = (LoraLaunch){.kernels = k,
                               .thread_count = THREADS,
                               .team = &team,
                               .claim = team_claim,
                               .barrier = team_barrier,
                               .arrive = team_arrive,
                               .meet = team_meet};
    pthread_barrier_init(&team.barrier, NULL, THREADS);
    for (int32_t i = 0; i < THREADS; i++) {
        members[i].team = &team;
        members[i].thread = i;
        pthread_create(&threads[i], NULL, team_thread, &members[i]);
    }
    for (int32_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&team.barrier);
}

static void run_alone(const LoraKernels *k, const LoraFixture *f) {
    LoraLaunch l = {.kernels = k, .thread_count = 1};
    lora_apply_bgmv(&l, &f->call, &f->route);
}

static bool same_as(Check *c, const LoraFixture *f, float *const *kept, int32_t from, int32_t to,
                    const char *what) {
    for (int32_t s = 0; s < f->site_count; s++)
        for (int32_t r = from; r < to; r++) {
            int64_t at = r * f->call.y_stride[s];
            if (memcmp(kept[s] + at, f->call.y[s] + at, (size_t)f->n[s] * sizeof(float)) != 0)
                return fail(c, "site %d, row %d differs: %s", s, r, what);
        }
    return true;
}

static bool dense_case(Check *c, const LoraKernels *k, LoraFixture *f, float *const *kept,
                       int32_t row, int32_t rows, const char *what) {
    size_t n = (size_t)f->n[0];
    const LgpLoraSite *site = &f->packed[f->sets[row][0]][f->call.layer * LGP_LORA_SITES];
    float *low = malloc(((size_t)rows * (size_t)site->a.rows + 1) * sizeof(float));
    float *delta = malloc(((size_t)rows * n + 1) * sizeof(float));
    lora_fixture_reset(f);
    LoraDense d = {.x = (const float *)f->x.data + row * (f->k + 1),
                   .x_stride = f->k + 1,
                   .rows = rows,
                   .site = site,
                   .scale = site->scale * f->scale[row * LGP_LORA_SET],
                   .y = f->call.y[0] + row * f->call.y_stride[0],
                   .y_stride = f->call.y_stride[0],
                   .round_bf16 = !f->f32,
                   .low = low,
                   .delta = delta};
    LgError err;
    bool good = lora_apply(k, &d, &err) == LG_OK || fail(c, "%s: refused: %s", what, err.message);
    for (int32_t r = row; good && r < row + rows; r++) {
        int64_t at = r * f->call.y_stride[0];
        if (memcmp(kept[0] + at, f->call.y[0] + at, n * sizeof(float)) != 0)
            good = fail(c, "row %d: %s differs from the routed launcher", r, what);
    }
    free(low);
    free(delta);
    return good;
}

static _Thread_local int tc_calls;
static const LgpKernelTable *tc_table;
static void counted_gemm(const LgpLoraProduct *t) {
    tc_calls++;
    tc_table->lora_gemm(t);
}

/* Runs of rows with one adapter each, through every arrangement of the optional handles. */
static bool dense_all(Check *c, const LoraKernels *k, LoraFixture *f, float *const *kept) {
    for (int32_t row = 0; row < f->rows; row++) {
        int32_t rows = 1;
        if (f->lookup || f->set_count[row] != 1 || (f->dora && f->sets[row][0] == 0))
            continue;
        while (row + rows < f->rows && f->set_count[row + rows] == 1 &&
               f->sets[row + rows][0] == f->sets[row][0] &&
               f->scale[(row + rows) * LGP_LORA_SET] == f->scale[row * LGP_LORA_SET])
            rows++;
        LoraKernels fewer = *k;
        fewer.gemm_tc_acc_k = NULL;
        if (!dense_case(c, k, f, kept, row, rows, "lora_apply") ||
            !dense_case(c, k, f, kept, row, 1, "lora_apply, one row") ||
            !dense_case(c, &fewer, f, kept, row, rows, "without gemm_tc_acc_k"))
            return false;
        tc_calls = 0;
        tc_table = c->k;
        fewer.gemm_tc_k = (LoraHandle)counted_gemm;
        if (!dense_case(c, &fewer, f, kept, row, rows, "with gemm_tc_k"))
            return false;
        int expected =
            rows > 1 && f->packed[f->sets[row][0]][f->call.layer * LGP_LORA_SITES].a.rows > 0 ? 2
                                                                                              : 0;
        if (tc_calls != expected)
            return fail(c, "gemm_tc_k was used %d times, not %d", tc_calls, expected);
        row += rows - 1;
    }
    return true;
}

/* ---- refusals ---- */

static int moe_calls;
static void moe_counted(const LgpLoraMoe *t) {
    (void)t;
    moe_calls++;
}

typedef struct Without {
    const LgpKernelTable *table;
    const char *kernel;
} Without;

static LoraHandle find_without(const void *registry, const char *module, const char *kernel) {
    const Without *w = registry;
    return strcmp(kernel, w->kernel) == 0 ? NULL : lora_cpu_find(w->table, module, kernel);
}

static bool refused(Check *c, LgStatus status, const LgError *err, const char *kernel) {
    if (status != LG_DEVICE || !strstr(err->message, kernel))
        return fail(c, "without %s: status %d, \"%s\"", kernel, (int)status,
                    status == LG_OK ? "" : err->message);
    return true;
}

/* Whichever of a form's two kernels is missing, its launcher says so and launches nothing. */
static bool check_moe_refusals(Check *c, const LoraKernels *k) {
    LgpLoraSite expert = {.a = {.rows = 1}}, site = {.a = {.rows = 1}, .experts = &expert};
    LgpLoraGroup group = {.count = 1, .members = 1, .sites = {&site}};
    const int32_t row[1] = {0}, choice[1] = {0};
    LgpLoraRoute route = {
        .count = 1, .group_count = 1, .site_count = 1, .groups = &group, .row = row};
    LgpLora call = {
        .site_count = 1, .k = 1, .n = {1}, .choice = choice, .experts = 1, .slots = 1, .share = 1};
    int32_t items[1], counts[2];
    LoraSpan spans[1];
    LoraMoeWork work = {items, spans, counts, 0};
    for (int missing = 0; missing < 2; missing++) {
        LoraKernels some = *k;
        LoraLaunch l = {.kernels = &some, .thread_count = 1};
        LgError err = {0};
        some.moe_down_shrink_k = some.moe_gather_shrink_k =
            missing == 0 ? NULL : (LoraHandle)moe_counted;
        some.moe_down_expand_fold_k = some.moe_gather_expand_fold_k =
            missing == 1 ? NULL : (LoraHandle)moe_counted;
        moe_calls = 0;
        if (!refused(c, lora_apply_moe_grouped(&l, &call, &route, &work, &err), &err,
                     missing ? "moe_lora_grouped_expand_fold" : "moe_lora_grouped_shrink") ||
            !refused(c, lora_apply_moe_gather(&l, &call, &route, &err), &err,
                     missing ? "moe_lora_gather_expand_fold" : "moe_lora_gather_shrink"))
            return false;
        if (moe_calls)
            return fail(c, "an expert launcher launched although a kernel was missing");
    }
    return true;
}

static bool check_resolution(Check *c) {
    static const struct {
        const char *module, *kernel;
        bool needed;
    } rows[] = {
#define ROW(field, module, kernel, needed) {module, kernel, needed},
        LORA_KERNEL_MAP(ROW)
#undef ROW
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Without without = {c->k, rows[i].kernel};
        LoraKernels k;
        LgError err = {0};
        Buf log;
        buf_init(&log);
        LgStatus status = lora_kernels_resolve(find_without, &without, c->k->level, &k, &log, &err);
        bool good = strstr(log.data, rows[i].kernel) && strstr(log.data, rows[i].module);
        if (!good)
            fail(c, "the log says nothing of %s", rows[i].kernel);
        if (good && rows[i].needed)
            good = refused(c, status, &err, rows[i].kernel) &&
                   (strstr(err.message, rows[i].module) || fail(c, "no module named"));
        else if (good && status != LG_OK)
            good = fail(c, "%s is optional, yet: %s", rows[i].kernel, err.message);
        buf_clear(&log);
        if (!good)
            return false;
    }
    return true;
}

static bool check_needed(Check *c, const LoraKernels *k, LoraFixture *f) {
    LgpLoraSite site = f->packed[0][0];
    LoraDense d = {.rows = 1, .site = &site};
    LgError err = {0};
    LoraKernels a = *k, b = *k, s = *k;
    a.gemv_k = NULL;
    b.gemm_k = NULL;
    s.scaled_add_k = NULL;
    return refused(c, lora_apply(&a, &d, &err), &err, "dense_gemv_bf16") &&
           refused(c, lora_apply(&b, &d, &err), &err, "dense_gemm_bf16") &&
           refused(c, lora_apply(&s, &d, &err), &err, "bf16_scaled_add");
}

static bool one_case(Check *c, const LoraKernels *k, LoraFixture *f) {
    float *kept[LGP_LORA_SITES];
    lora_fixture_reset(f);
    run_alone(k, f);
    for (int s = 0; s < LGP_LORA_SITES; s++) {
        kept[s] = malloc(f->y[s].bytes);
        memcpy(kept[s], f->y[s].data, f->y[s].bytes);
    }
    lora_fixture_reset(f);
    run_team(k, f, false);
    bool good = same_as(c, f, kept, 0, f->rows, "three threads and one");
    lora_fixture_reset(f);
    run_team(k, f, true);
    good = good && same_as(c, f, kept, 0, f->rows, "by tiles and whole");
    for (int32_t r = 0; good && r<f->rows; r += f->rows> 20 ? 9 : 1) {
        lora_fixture_reset(f);
        lora_fixture_route(f, r, r + 1);
        run_alone(k, f);
        good = same_as(c, f, kept, r, r + 1, "alone and in company");
    }
    lora_fixture_route(f, 0, f->rows);
    good = good && dense_all(c, k, f, kept) && check_needed(c, k, f);
    for (int s = 0; s < LGP_LORA_SITES; s++)
        free(kept[s]);
    return good;
}

bool check_lora_launch(Check *c, uint64_t run_seed) {
    LoraKernels k;
    LgError err;
    check_case(c, run_seed, 0);
    if (lora_kernels_resolve(lora_cpu_find, c->k, c->k->level, &k, NULL, &err) != LG_OK)
        return fail(c, "not resolved: %s", err.message);
    if (!check_resolution(c) || !check_moe_refusals(c, &k))
        return false;
    int cases = c->quick ? 20 : 120;
    for (int i = 1; i <= cases; i++) {
        LoraFixture f;
        check_case(c, run_seed, i);
        lora_fixture_make(c, &f);
        bool good = one_case(c, &k, &f);
        lora_fixture_free(&f);
        if (!good)
            return false;
    }
    return true;
}
