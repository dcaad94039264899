/* The table of handles of a level, the adapter tables' creation, and the call that programs make.
 */
#include <assert.h>
#include <string.h>

#include "backend/cpu/lora_tables.h"
#include "backend/cpu/team.h"
#include "base/mem.h"

#define OWN_FLOATS ((int64_t)8192) /* lows that a thread computes for itself */

/* ---- kernels ---- */

LoraHandle lora_cpu_find(const void *registry, const char *module, const char *kernel) {
    const LgpKernelTable *t = registry;
    const struct {
        const char *module, *kernel;
        LoraHandle handle;
    } rows[] = {
        {"gemv", "dense_gemv_bf16", (LoraHandle)t->lora_gemv},
        {"gemm", "dense_gemm_bf16", (LoraHandle)t->lora_gemm},
        {"gemm_tc", "dense_gemm_tc_scaled_acc", (LoraHandle)t->lora_gemm_acc},
        {"residual_add", "bf16_scaled_add", (LoraHandle)t->lora_scaled_add},
        {"lora_bgmv", "lora_bgmv_shrink", (LoraHandle)t->lora_shrink},
        {"lora_bgmv", "lora_bgmv_expand_fold", (LoraHandle)t->lora_expand_fold},
        {"moe_lora_grouped_down", "moe_lora_grouped_shrink",
         (LoraHandle)t->lora_moe_grouped_shrink},
        {"moe_lora_grouped_down", "moe_lora_grouped_expand_fold",
         (LoraHandle)t->lora_moe_grouped_expand_fold},
        {"moe_lora_gather_bgmv", "moe_lora_gather_shrink", (LoraHandle)t->lora_moe_gather_shrink},
        {"moe_lora_gather_bgmv", "moe_lora_gather_expand_fold",
         (LoraHandle)t->lora_moe_gather_expand_fold},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].module, module) == 0 && strcmp(rows[i].kernel, kernel) == 0)
            return rows[i].handle;
    return NULL;
}

const LoraKernels *lora_tables_kernels(const LoraTables *t) {
    return &t->kernels;
}

LgStr lora_tables_log(const LoraTables *t) {
    return buf_view(&t->log);
}

/* ---- creating ---- */

static uint64_t axis_size(const LangProgram *p, const LangTensor *t, int axis) {
    uint64_t size = 1;
    for (int i = t->axis_start[axis]; i < t->axis_start[axis + 1]; i++)
        size *= p->dims[t->dims[i]].size;
    return size;
}

/* Results that one row of the step has at a site. */
static uint64_t row_elems(const LangProgram *p, const LangTensor *y) {
    uint64_t n = 1;
    for (int i = 0; i < y->rank; i++)
        if (!p->dims[y->dims[i]].runtime)
            n *= p->dims[y->dims[i]].size;
    return n;
}

static void site_shapes(LoraTables *t) {
    const LangProgram *p = t->o.program;
    t->slots_max = 1;
    for (int s = 0; s < p->site_count; s++) {
        const LangTensor *w = &p->tensors[p->sites[s].param];
        uint64_t rows = 1, columns = axis_size(p, w, w->axis_count - 1);
        bool experts = w->axis_count > 2;
        for (int a = experts ? 1 : 0; a < w->axis_count - 1; a++)
            rows *= axis_size(p, w, a);
        bool lookup = p->sites[s].lookup;
        SiteShape *shape = &t->shapes[s];
        *shape = (SiteShape){.in = (int32_t)(lookup ? rows : columns),
                             .out = (int32_t)(lookup ? columns : rows),
                             .lookup = lookup,
                             .slots = 1};
        if (!experts)
            continue;
        shape->experts = (int32_t)axis_size(p, w, 0);
        shape->slots = (int32_t)(row_elems(p, &p->tensors[p->sites[s].y]) / rows);
        t->slots_max = shape->slots > t->slots_max ? shape->slots : t->slots_max;
        t->experts_max = shape->experts > t->experts_max ? shape->experts : t->experts_max;
    }
}

LgStatus lora_tables_create(const LoraTablesOptions *o, LoraTables **out, LgError *err) {
    LoraTables *t = lg_calloc(1, sizeof *t);
    if (!t)
        return lg_fail_memory(err);
    buf_init(&t->log);
    t->o = *o;
    t->site_count = o->program->site_count;
    t->layer_count = o->program->layer_count > 0 ? o->program->layer_count : 1;
    size_t rows = (size_t)(o->rows_max > 0 ? o->rows_max : 1);
    t->shapes = lg_alloc_array((size_t)t->site_count, sizeof *t->shapes);
    t->own = lg_alloc_aligned((size_t)o->threads * (size_t)OWN_FLOATS * sizeof(float));
    bool whole = t->shapes && t->own && lora_routes_alloc(t, rows);
    LgStatus status = whole ? LG_OK : lg_fail_memory(err);
    if (status == LG_OK)
        status = lora_kernels_resolve(lora_cpu_find, o->level->kernels, o->level->name, &t->kernels,
                                      &t->log, err);
    if (status == LG_OK && t->log.failed)
        status = lg_fail_memory(err);
    if (status != LG_OK) {
        lora_tables_destroy(t);
        return status;
    }
    site_shapes(t);
    *out = t;
    return LG_OK;
}

void lora_tables_destroy(LoraTables *t) {
    if (!t)
        return;
    for (int32_t i = 0; i < t->slot_count; i++)
        lora_slot_free(&t->slots[i]);
    lg_free(t->slots);
    lora_routes_free(t);
    lg_free(t->shapes);
    lg_free(t->moe.items);
    lg_free(t->moe.spans);
    lg_free(t->moe.counts);
    lg_free_aligned(t->own);
    buf_clear(&t->log);
    lg_free(t);
}

/* ---- calls ---- */

/* Where rows share adapters, their experts' numbers are worth meeting for. The handles are there:
 * installing an adapter of experts has seen to that. */
#define GROUPED_ROWS 2

static void call_experts(LoraTables *t, const LoraLaunch *launch, const LgpLora *call) {
    const LgpLoraRoute *route = &t->routes[call->domain].route;
    if (route->count > route->group_count * GROUPED_ROWS)
        (void)lora_apply_moe_grouped(launch, call, route, &t->moe, NULL);
    else
        (void)lora_apply_moe_gather(launch, call, route, NULL);
}

void lora_cpu_call(const LgpStep *step, int32_t thread, const LgpLora *call) {
    LoraTables *t = step->lora_tables;
    assert(thread < t->o.threads);
    LoraLaunch launch = {.kernels = &t->kernels,
                         .thread = thread,
                         .thread_count = step->thread_count,
                         .team = step->team,
                         .claim = step->claim,
                         .barrier = step->barrier,
                         .arrive = team_arrive,
                         .meet = team_meet,
                         .replace = t->o.level->kernels->lora_replace,
                         .scratch = step->scratch + thread * step->scratch_floats,
                         .own = t->own + thread * OWN_FLOATS,
                         .own_floats = OWN_FLOATS};
    if (call->choice)
        call_experts(t, &launch, call);
    else
        lora_apply_bgmv(&launch, call, &t->routes[call->domain].route);
}
