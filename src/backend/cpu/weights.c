/* Two passes: first every entry gets its place in one block of memory, then the team fills it by
 * jobs of like size. */
#include "backend/cpu/weights.h"

#include <stdatomic.h>
#include <string.h>

#include "backend/cpu/pack.h"
#include "base/mem.h"

#define ALIGN 64u
#define JOB_BYTES                                                                                  \
    ((uint64_t)1                                                                                   \
     << 18) /* packed bytes of one claim: small enough to end together, large enough to read on */

/* One entry of the table that owns data. */
typedef struct Entry {
    const PlanWeight *weight;
    const ParamBinding *binding;
    LgpWeight *out;
    uint64_t offset; /* of its data in the block */
    uint64_t first_job, job_count, panels_a_job;
    uint64_t expert_rows, expert_bytes,
        expert_jobs;       /* of each matrix; one where there are no experts */
    atomic_bool too_large; /* a scale (or a NaN) that the packed format cannot hold */
} Entry;

typedef struct Load {
    const Plan *plan;
    Entry *entries;
    int count;
    uint64_t job_count, bytes;
    unsigned char *data;
    Team *team;
} Load;

/* ---- places ---- */

static LgStatus add_entry(Load *l, const PlanWeight *w, const ParamBinding *b, LgpWeight *out,
                          uint64_t bytes, LgError *err) {
    if (bytes > SIZE_MAX / 2 - l->bytes)
        return lg_fail(err, LG_LIMIT, 0, "the weights need more memory than can be addressed");
    l->entries[l->count++] = (Entry){
        .weight = w, .binding = b, .out = out, .offset = l->bytes, .first_job = l->job_count};
    l->bytes += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return LG_OK;
}

static LgStatus refuse(const Load *l, const PlanWeight *w, LgError *err, const char *why) {
    const LangTensor *t = &l->plan->program->tensors[w->tensor];
    return lang_refuse(l->plan->program, t->line, 0, err, "cannot load param %.*s for the CPU: %s",
                       LG_STR_ARG(t->name), why);
}

/* Rows that a tensor of all experts has of each. */
static uint64_t expert_stored_rows(const Tensor *t) {
    uint64_t rows = 1;
    for (int i = 1; i < t->rank - 1; i++)
        rows *= t->shape[i];
    return rows;
}

static LgStatus place_matrix(Load *l, const PlanWeight *w, const ParamBinding *b, LgpWeight *out,
                             LgError *err) {
    const LangProgram *p = l->plan->program;
    if (b->stacked) {
        uint64_t count = p->dims[p->tensors[w->tensor].dims[0]].size;
        for (uint64_t i = 1; i < count; i++)
            if (b->stacked[i]->dtype != b->stacked[0]->dtype)
                return refuse(l, w, err,
                              "its stacked tensors are stored in different types. One type for all "
                              "is expected.");
    }
    out->format = pack_format(b);
    if (out->format < 0)
        return refuse(l, w, err, "its stored type has no product.");
    if (w->experts > 1 && b->tensor && b->tensor->scale &&
        expert_stored_rows(b->tensor) % b->tensor->scale_rows)
        return refuse(l, w, err, "its scales are shared by rows of several experts.");
    uint64_t rows = w->rows / w->experts;
    uint64_t bytes = pack_matrix_bytes(out->format, rows, w->columns);
    if ((bytes == 0 && rows && w->columns) || bytes > SIZE_MAX / 2 / w->experts)
        return refuse(l, w, err, "it is larger than memory can be addressed.");
    LG_TRY(add_entry(l, w, b, out, bytes * w->experts, err));
    Entry *e = &l->entries[l->count - 1];
    uint64_t panel = lgp_panel_bytes(out->format, w->columns);
    e->panels_a_job = panel < JOB_BYTES ? JOB_BYTES / (panel ? panel : 1) : 1;
    e->expert_rows = rows;
    e->expert_bytes = bytes;
    e->expert_jobs = (pack_panel_count(rows) + e->panels_a_job - 1) / e->panels_a_job;
    e->job_count = e->expert_jobs * w->experts;
    l->job_count += e->job_count;
    out->rows = (int32_t)rows;
    out->row_bytes = bytes;
    return LG_OK;
}

static LgStatus place_table(Load *l, const PlanWeight *w, const ParamBinding *b, LgpWeight *out,
                            LgError *err) {
    if (b->stacked)
        return refuse(l, w, err,
                      "it is looked up by row but stored as a stack. One tensor is expected.");
    if (!b->tensor) { /* one row of the constant, found under every index */
        out->to_f32 = dtype_info(DTYPE_F32)->to_f32;
        out->row_bytes = 0;
        LG_TRY(add_entry(l, w, b, out, w->columns * sizeof(float), err));
        l->entries[l->count - 1].job_count = 1;
        l->job_count++;
        return LG_OK;
    }
    const Tensor *t = b->tensor;
    if (t->rank != 2 || t->rope_heads || !dtype_row_bytes(t->dtype, w->columns, &out->row_bytes))
        return refuse(l, w, err, "it is looked up by row, and its rows are not stored whole.");
    if (t->scale)
        return refuse(l, w, err, "it is looked up by row, and its rows have scales beside them.");
    out->to_f32 = dtype_info(t->dtype)->to_f32;
    out->data = t->data + b->from_row * out->row_bytes;
    return LG_OK;
}

static LgStatus place_all(Load *l, const Binding *binding, LgpWeight *table, LgError *err) {
    const LangProgram *p = l->plan->program;
    for (int i = 0; i < l->plan->weight_count; i++) {
        const PlanWeight *w = &l->plan->weights[i];
        int layers = w->in_layer ? p->layer_count : 1;
        if (w->rows > INT32_MAX || w->columns > INT32_MAX)
            return refuse(l, w, err, "it has more than 2^31 rows or columns.");
        for (int layer = 0; layer < layers; layer++) {
            const ParamBinding *b = binding_get(binding, w->tensor, w->in_layer ? layer : 0);
            LgpWeight *out = &table[w->base + layer];
            *out = (LgpWeight){.rows = (int32_t)w->rows, .columns = (int32_t)w->columns};
            if (w->use == WEIGHT_MATRIX) {
                LG_TRY(place_matrix(l, w, b, out, err));
            } else if (w->use == WEIGHT_TABLE) {
                LG_TRY(place_table(l, w, b, out, err));
            } else {
                LG_TRY(add_entry(l, w, b, out, w->rows * w->columns * sizeof(float), err));
                l->entries[l->count - 1].job_count = 1;
                l->job_count++;
            }
        }
    }
    return LG_OK;
}

/* ---- contents ---- */

static void fill_rows(const Load *l, const Entry *e, float *dst) {
    const LangProgram *p = l->plan->program;
    const LangTensor *t = &p->tensors[e->weight->tensor];
    uint64_t elems = e->weight->rows * e->weight->columns, columns = 1;
    if (!e->binding->tensor && !e->binding->stacked) {
        for (uint64_t i = 0;
             i < elems && !(e->weight->use == WEIGHT_TABLE && i >= e->weight->columns); i++)
            dst[i] = (float)e->binding->constant;
        return;
    }
    for (int d = t->axis_count ? t->axis_start[t->axis_count - 1] : 0; d < t->rank; d++)
        columns *= p->dims[t->dims[d]].size;
    for (uint64_t row = 0; row < elems / columns; row++)
        binding_row_f32(e->binding, p, e->weight->tensor, row, dst + row * columns);
}

/* One expert's matrix of a stack or of a tensor that holds all of them. */
static ParamBinding expert_binding(const ParamBinding *b, uint64_t expert, uint64_t experts,
                                   Tensor *view) {
    ParamBinding one = *b;
    if (b->stacked) {
        one.tensor = b->stacked[expert];
        one.stacked = NULL;
    } else if (b->tensor && experts > 1) {
        *view = *b->tensor;
        view->rank--;
        for (int i = 0; i < view->rank; i++)
            view->shape[i] = b->tensor->shape[i + 1];
        view->bytes = b->tensor->bytes / experts;
        view->data = b->tensor->data + view->bytes * expert;
        if (view->scale) /* whole blocks of rows: place_matrix has seen to it */
            view->scale +=
                expert * expert_stored_rows(b->tensor) / view->scale_rows * view->scale_stride;
        one.tensor = view;
    }
    return one;
}

static bool pack_expert(const Entry *e, int format, uint64_t expert, uint64_t from, uint64_t to,
                        unsigned char *dst) {
    Tensor view;
    ParamBinding one = expert_binding(e->binding, expert, e->weight->experts, &view);
    return pack_matrix_panels(&one, format, e->expert_rows, e->weight->columns, from, to, dst);
}

static void run_job(const Load *l, Entry *e, uint64_t job) {
    unsigned char *dst = l->data + e->offset;
    if (e->weight->use != WEIGHT_MATRIX) {
        fill_rows(l, e, (float *)(void *)dst);
        return;
    }
    uint64_t expert = job / e->expert_jobs, panels = pack_panel_count(e->expert_rows);
    uint64_t from = job % e->expert_jobs * e->panels_a_job;
    uint64_t to = panels - from > e->panels_a_job ? from + e->panels_a_job : panels;
    if (!pack_expert(e, e->out->format, expert, from, to, dst + expert * e->expert_bytes))
        atomic_store(&e->too_large, true);
}

/* The entry that a job belongs to: the last whose first_job is not behind it (those of no jobs lie
 * before it). */
static Entry *entry_of(const Load *l, uint64_t job) {
    int low = 0, high = l->count - 1;
    while (low < high) {
        int middle = low + (high - low + 1) / 2;
        if (l->entries[middle].first_job <= job)
            low = middle;
        else
            high = middle - 1;
    }
    return &l->entries[low];
}

static void load_thread(void *user, int32_t thread) {
    const Load *l = user;
    (void)thread;
    for (uint64_t job; (job = (uint64_t)team_claim(l->team)) < l->job_count;) {
        Entry *e = entry_of(l, job);
        run_job(l, e, job - e->first_job);
    }
}

/* Q4_0 with scales past f16's range packs to Q8 instead: the same values in more bytes. */
static LgStatus repack_large(Load *l, Arena *arena, WeightMemory *out, LgError *err) {
    int count = 0;
    for (int i = 0; i < l->count; i++)
        count += atomic_load(&l->entries[i].too_large);
    if (!count)
        return LG_OK;
    out->repacked = ARENA_ARRAY(arena, void *, (size_t)count);
    if (!out->repacked)
        return lg_fail_memory(err);
    for (int i = 0; i < l->count; i++) {
        const Entry *e = &l->entries[i];
        const PlanWeight *w = e->weight;
        if (!atomic_load(&e->too_large))
            continue;
        if (e->out->format == LGP_F8)
            return refuse(l, w, err, "it has a NaN, or a scale past the range of f32.");
        size_t bytes = pack_matrix_bytes(LGP_Q8, e->expert_rows, w->columns);
        unsigned char *data =
            bytes && bytes <= SIZE_MAX / w->experts ? lg_alloc_aligned(bytes * w->experts) : NULL;
        if (!data)
            return lg_fail_memory(err);
        out->repacked[out->repacked_count++] = data;
        for (uint64_t x = 0; x < w->experts; x++)
            if (!pack_expert(e, LGP_Q8, x, 0, pack_panel_count(e->expert_rows), data + x * bytes))
                return refuse(l, w, err, "its scales are too large.");
        e->out->format = LGP_Q8;
        e->out->row_bytes = bytes;
        e->out->data = data;
    }
    return LG_OK;
}

LgStatus weights_load(const Plan *plan, const Binding *binding, Team *team, Arena *arena,
                      WeightMemory *out, LgError *err) {
    Load l = {.plan = plan, .team = team};
    WeightMemory w = {0};
    w.table = ARENA_ARRAY(arena, LgpWeight, (size_t)plan->weight_total + 1);
    l.entries = lg_calloc((size_t)plan->weight_total + 1, sizeof *l.entries);
    LgStatus status =
        w.table && l.entries ? place_all(&l, binding, w.table, err) : lg_fail_memory(err);
    if (status != LG_OK)
        goto done;
    if (l.job_count > INT32_MAX / 2) {
        status = lg_fail(err, LG_LIMIT, 0, "the weights are too many");
        goto done;
    }
    w.bytes = l.bytes;
    w.data = lg_alloc_large(l.bytes);
    if (!w.data) {
        status = lg_fail(err, LG_NO_MEMORY, 0, "no memory for the packed weights (%.1f MB)",
                         (double)l.bytes * 1e-6);
        goto done;
    }
    l.data = w.data;
    for (int i = 0; i < l.count; i++)
        l.entries[i].out->data = l.data + l.entries[i].offset;
    team_run(team, load_thread, &l);
    status = repack_large(&l, arena, &w, err);
    for (int i = 0; i < l.count; i++)
        if (l.entries[i].weight->use == WEIGHT_MATRIX)
            w.formats |= 1u << l.entries[i].out->format;
done:
    lg_free(l.entries);
    if (status == LG_OK)
        *out = w;
    else
        weights_clear(&w);
    return status;
}

void weights_clear(WeightMemory *w) {
    for (int i = 0; i < w->repacked_count; i++)
        lg_free_aligned(w->repacked[i]);
    lg_free_aligned(w->data);
    *w = (WeightMemory){0};
}
