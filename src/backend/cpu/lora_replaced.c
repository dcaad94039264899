#include "backend/cpu/lora_replaced.h"

#include <string.h>

#include "backend/cpu/pack.h"
#include "base/float.h"
#include "base/mem.h"
#include "formats/dtype.h"
#include "ir/plan_text.h"
#include "ir/stage.h"
#include "stages/match.h"

#define ALIGN 64u

static LgStatus refuse(const Plan *plan, const AdapterReplaced *r, const char *why, LgError *err) {
    LgStr name = plan->program->tensors[r->tensor].name;
    return lg_fail(err, LG_BAD_INPUT, 0, "adapter: it replaces %.*s, but %s", LG_STR_ARG(name),
                   why);
}

/* ---- what the program does with a param ---- */

/* NULL: every row of a step may have its own; else why not. */
static const char *why_shared(const Plan *plan, int tensor) {
    for (int k = 0; k < plan->launch_count; k++)
        for (int i = 0; i < plan->launches[k].stage_count; i++) {
            const Launch *l = &plan->launches[k];
            const Stage *s = l->stages[i];
            const StageMatmul *m = s->matmul;
            if (m && m->expert >= 0 && (m->w == tensor || m->bias == tensor))
                return "the program reads it as weights of experts";
            if (m && m->w == tensor && s->site < 0)
                return "the program's page does not list it as an adapter site";
            if (m)
                continue;
            if (s->attend && match_reads_tensor(s->attend->softmax->rhs, tensor))
                return "attention reads it";
            if (l->row_dim < 0 && match_reads_tensor(s->stmt->rhs, tensor))
                return "a statement of the program reads it for all rows at once";
        }
    return NULL;
}

static bool fits(const PlanWeight *w, const AdapterReplaced *r) {
    uint64_t elems = w->rows * w->columns;
    if (w->use == WEIGHT_VECTOR || r->columns != w->columns)
        return !r->rows && r->row_count * r->columns == elems && w->use == WEIGHT_VECTOR;
    for (uint64_t i = 0; r->rows && i < r->row_count; i++)
        if (r->rows[i] < 0 || (uint64_t)r->rows[i] >= w->rows)
            return false;
    return r->rows || r->row_count == w->rows;
}

static LgStatus check(const Plan *plan, const AdapterReplaced *r, LgError *err) {
    int uses = 0;
    const char *why = why_shared(plan, r->tensor);
    if (why)
        return refuse(plan, r, why, err);
    for (int i = 0; i < plan->weight_count; i++) {
        const PlanWeight *w = &plan->weights[i];
        if (w->tensor != r->tensor)
            continue;
        uses++;
        if (!fits(w, r))
            return refuse(plan, r, "its shape is another one in this program", err);
    }
    return uses ? LG_OK : refuse(plan, r, "the program does not use it", err);
}

/* ---- memory ---- */

static uint64_t bytes_of(const PlanWeight *w, const AdapterReplaced *r) {
    uint64_t bytes = r->row_count * r->columns * sizeof(float);
    if (w->use == WEIGHT_MATRIX)
        bytes = pack_panel_count(r->row_count) *
                lgp_panel_bytes(r->bf16 ? LGP_BF16 : LGP_F32, r->columns);
    else if (w->use == WEIGHT_TABLE && r->bf16)
        bytes /= 2;
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static void *fill(const PlanWeight *w, const AdapterReplaced *r, unsigned char *to) {
    uint64_t elems = r->row_count * r->columns;
    if (w->use == WEIGHT_MATRIX)
        pack_f32_panels(r->data, r->columns, r->bf16 ? LGP_BF16 : LGP_F32, r->row_count, r->columns,
                        0, pack_panel_count(r->row_count), to);
    else if (w->use == WEIGHT_TABLE && r->bf16)
        for (uint64_t i = 0; i < elems; i++)
            ((uint16_t *)(void *)to)[i] = bf16_from_float(r->data[i]);
    else
        memcpy(to, r->data, (size_t)elems * sizeof(float));
    return to;
}

typedef struct Build {
    const Plan *plan;
    const AdapterData *a;
    LgpLoraSite *sites;
    LoraReplaced *out;
    unsigned char *next;
    int32_t *ids;
    LgpRows *rows;
} Build;

static void place_matrix(Build *b, const AdapterReplaced *r, const LgpRows *rows) {
    const LangProgram *p = b->plan->program;
    for (int s = 0; s < p->site_count; s++)
        if (p->sites[s].param == r->tensor && !p->sites[s].lookup)
            for (int layer = 0; layer < b->a->layer_count; layer++)
                if (!p->sites[s].in_layer || !p->tensors[r->tensor].in_layer || layer == r->layer)
                    b->sites[layer * b->a->site_count + s].whole = rows;
}

static void place(Build *b, const PlanWeight *w, const AdapterReplaced *r) {
    int index = w->base + (w->in_layer ? r->layer : 0);
    void *data = fill(w, r, b->next);
    b->next += bytes_of(w, r);
    if (w->use == WEIGHT_VECTOR) {
        b->out->by_weight[index] = data;
        return;
    }
    DType type = r->bf16 ? DTYPE_BF16 : DTYPE_F32;
    LgpRows *rows = b->rows++;
    *rows = (LgpRows){.weight = {.data = data,
                                 .format = r->bf16 ? LGP_BF16 : LGP_F32,
                                 .rows = (int32_t)r->row_count,
                                 .columns = (int32_t)r->columns,
                                 .row_bytes = r->columns * (r->bf16 ? 2 : 4),
                                 .to_f32 = dtype_info(type)->to_f32},
                      .count = (int32_t)r->row_count};
    if (r->rows) {
        memcpy(b->ids, r->rows, (size_t)r->row_count * sizeof *b->ids);
        rows->rows = b->ids;
        b->ids += r->row_count;
    }
    if (w->use == WEIGHT_TABLE)
        b->out->by_weight[index] = rows;
    else
        place_matrix(b, r, rows);
}

static LgStatus reserve(const Plan *plan, const AdapterData *a, LoraReplaced *out, LgError *err) {
    size_t uses = 0, ids = 0;
    for (int i = 0; i < a->replaced_count; i++)
        for (int k = 0; k < plan->weight_count; k++)
            if (plan->weights[k].tensor == a->replaced[i].tensor) {
                uses++;
                ids += a->replaced[i].rows ? (size_t)a->replaced[i].row_count : 0;
                out->bytes += bytes_of(&plan->weights[k], &a->replaced[i]);
            }
    out->by_weight = lg_calloc((size_t)plan->weight_total, sizeof *out->by_weight);
    out->rows = lg_alloc_array(uses, sizeof *out->rows);
    out->ids = lg_alloc_array(ids, sizeof *out->ids);
    out->memory = lg_alloc_aligned((size_t)out->bytes);
    return out->by_weight && out->rows && out->ids && out->memory ? LG_OK : lg_fail_memory(err);
}

LgStatus lora_replaced_build(const Plan *plan, const AdapterData *a, LgpLoraSite *sites,
                             LoraReplaced *out, LgError *err) {
    *out = (LoraReplaced){0};
    if (a->replaced_count == 0)
        return LG_OK;
    if (!plan)
        return lg_fail(err, LG_BAD_INPUT, 0, "adapter: it replaces tensors, and there is no plan");
    for (int i = 0; i < a->replaced_count; i++)
        LG_TRY(check(plan, &a->replaced[i], err));
    LgStatus status = reserve(plan, a, out, err);
    if (status != LG_OK) {
        lora_replaced_free(out);
        return status;
    }
    Build b = {.plan = plan,
               .a = a,
               .sites = sites,
               .out = out,
               .next = out->memory,
               .ids = out->ids,
               .rows = out->rows};
    for (int i = 0; i < a->replaced_count; i++)
        for (int k = 0; k < plan->weight_count; k++)
            if (plan->weights[k].tensor == a->replaced[i].tensor)
                place(&b, &plan->weights[k], &a->replaced[i]);
    return LG_OK;
}

void lora_replaced_free(LoraReplaced *r) {
    lg_free(r->by_weight);
    lg_free(r->rows);
    lg_free(r->ids);
    lg_free_aligned(r->memory);
    *r = (LoraReplaced){0};
}
