#include "backend/cuda/adapters.h"

#include <string.h>

#include "base/mem.h"
#include "emit/emit_cuda.h"
#include "ir/stage.h"

#define SLOTS 256
#define BUCKETS 32 /* powers of two */

/* One adapter call of the program: sibling sites of one launch. */
typedef struct Call {
    int launch, count;
    const Stage *stages[LGC_SITES];
    int layers;
    bool served;        /* its values lie as the kernels want them */
    LgcRecord *records; /* [layer][SLOTS] */
    CudaPtr table;
} Call;

typedef struct Slot {
    bool live;
    CudaPtr memory;
    uint64_t bytes;
    int rank_sum; /* most ranks, padded, that a call has */
} Slot;

struct CudaAdapters {
    CudaAdaptersOptions o;
    Call *calls;
    int call_count;
    Slot slots[SLOTS];
    CudaRoute *routes[BUCKETS];
    CudaPtr low;
    size_t low_bytes;
    int low_stride;
    uint64_t generation;
    int32_t *sets;
    float *scales;
};

/* ---- the program's calls ---- */

static bool call_served(const Plan *plan, const Launch *l, const LaunchLora *c) {
    if (c->count > LGC_SITES)
        return false;
    for (int k = 0; k < c->count; k++) {
        const Stage *s = l->stages[c->stages[k]];
        if (!s->matmul || s->matmul->expert >= 0 || !emit_cuda_bf16(plan, s->matmul->x) ||
            !emit_cuda_bf16(plan, s->stmt->targets[0].tensor))
            return false;
    }
    return true;
}

static LgStatus find_calls(CudaAdapters *a, LgError *err) {
    const Plan *plan = a->o.plan;
    int count = 0;
    for (int k = 0; k < plan->launch_count; k++)
        count += plan->launches[k].lora_count;
    a->calls = lg_calloc((size_t)count + 1, sizeof *a->calls);
    if (!a->calls)
        return lg_fail_memory(err);
    for (int k = 0; k < plan->launch_count; k++) {
        const Launch *l = &plan->launches[k];
        for (int c = 0; c < l->lora_count; c++) {
            Call *call = &a->calls[a->call_count++];
            call->launch = k;
            call->served = call_served(plan, l, &l->loras[c]) && emit_cuda_domain(plan, k) == 0;
            call->count = l->loras[c].count < LGC_SITES ? l->loras[c].count : LGC_SITES;
            call->layers = l->in_layer ? plan->program->layer_count : 1;
            for (int s = 0; s < call->count; s++)
                call->stages[s] = l->stages[l->loras[c].stages[s]];
            size_t bytes = (size_t)call->layers * SLOTS * sizeof *call->records;
            call->records = lg_calloc(1, bytes);
            if (!call->records)
                return lg_fail_memory(err);
            LG_TRY(cuda_alloc(a->o.device, bytes, "a table of adapters", &call->table, err));
            CUDA_TRY(&a->o.device->driver, fill(call->table, 0, bytes, a->o.stream),
                     "a table of adapters", err);
        }
    }
    return LG_OK;
}

LgStatus cuda_adapters_create(const CudaAdaptersOptions *o, CudaAdapters **out, LgError *err) {
    CudaAdapters *a = lg_calloc(1, sizeof *a);
    if (!a)
        return lg_fail_memory(err);
    a->o = *o;
    a->low_stride = LGC_SET * LGC_RANK_PAD;
    a->sets = lg_alloc_array((size_t)o->rows_max * LGC_SET, sizeof *a->sets);
    a->scales = lg_alloc_array((size_t)o->rows_max * LGC_SET, sizeof *a->scales);
    LgStatus status = a->sets && a->scales ? find_calls(a, err) : lg_fail_memory(err);
    if (status != LG_OK) {
        cuda_adapters_destroy(a);
        return status;
    }
    *out = a;
    return LG_OK;
}

void cuda_adapters_destroy(CudaAdapters *a) {
    if (!a)
        return;
    for (int i = 0; i < SLOTS; i++)
        cuda_free(a->o.device, a->slots[i].memory);
    for (int i = 0; a->calls && i < a->call_count; i++) {
        cuda_free(a->o.device, a->calls[i].table);
        lg_free(a->calls[i].records);
    }
    for (int i = 0; i < BUCKETS; i++)
        cuda_route_destroy(a->routes[i]);
    cuda_free(a->o.device, a->low);
    lg_free(a->calls);
    lg_free(a->sets);
    lg_free(a->scales);
    lg_free(a);
}

/* ---- slots ---- */

static LgStatus check_site(const CudaAdapters *a, const AdapterSite *site, int at, LgError *err) {
    const LangProgram *p = a->o.plan->program;
    const int s = at % p->site_count;
    const char *why = NULL;
    if (site->rank == 0)
        return LG_OK;
    if (site->experts)
        why = "it adapts experts one by one";
    else if (site->magnitude)
        why = "it is DoRA";
    else if (site->b_bias)
        why = "it has a bias (lora_bias)";
    else if (site->rank > LGC_RANK_MAX)
        why = "its rank is above 512";
    bool found = false;
    for (int c = 0; c < a->call_count; c++)
        for (int k = 0; k < a->calls[c].count; k++)
            found |= a->calls[c].served && a->calls[c].stages[k]->site == s;
    if (!why && !found)
        why = "its values are looked up, sampled, or stored as f32";
    if (!why)
        return LG_OK;
    return lg_fail(err, LG_BAD_INPUT, 0,
                   "adapter: layer %d, %.*s: %s, which back end cuda does not serve yet; back end "
                   "cpu does",
                   at / p->site_count, LG_STR_ARG(p->tensors[p->sites[s].param].name), why);
}

static LgStatus check_adapter(const CudaAdapters *a, const AdapterData *d, LgError *err) {
    const LangProgram *p = a->o.plan->program;
    int layers = p->layer_count > 0 ? p->layer_count : 1;
    if (d->site_count != p->site_count || d->layer_count != layers)
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "adapter: made for %d sites in %d layers, this program has %d in %d",
                       d->site_count, d->layer_count, p->site_count, layers);
    if (d->store_f32 || a->o.plan->store_f32)
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "adapter: back end cuda serves adapters of programs that store bf16; with "
                       "--store f32 use back end cpu");
    if (d->replaced_count)
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "adapter: it replaces tensors of the base, which back end cuda does not "
                       "serve yet; back end cpu does");
    for (int i = 0; i < d->site_count * d->layer_count; i++)
        LG_TRY(check_site(a, &d->sites[i], i, err));
    return LG_OK;
}

static int site_width(const CudaAdapters *a, const Stage *s, int *k) {
    (void)a;
    *k = (int)s->matmul->k;
    return (int)s->matmul->n;
}

static size_t align16(size_t n) {
    return (n + 15) / 16 * 16;
}

/* Bytes of one call's A and B of one layer. */
static size_t call_bytes(const CudaAdapters *a, const Call *c, const AdapterData *d, int layer,
                         int *ranks) {
    size_t bytes = 0;
    *ranks = 0;
    for (int s = 0; s < c->count; s++) {
        int k, n = site_width(a, c->stages[s], &k);
        int rank = cuda_lora_rank(d->sites[layer * d->site_count + c->stages[s]->site].rank);
        bytes += (size_t)rank * (size_t)cuda_lora_k(k) * 2;
        bytes += align16((size_t)rank * (size_t)n * 2);
        *ranks += rank;
    }
    return (bytes + 255) / 256 * 256;
}

/* A of all sites first, then each B. */
static void pack_call(const CudaAdapters *a, const Call *c, const AdapterData *d, int layer,
                      CudaPtr at, unsigned char *to, LgcRecord *record) {
    size_t offset = 0;
    *record = (LgcRecord){0};
    for (int s = 0; s < c->count; s++) {
        const AdapterSite *site = &d->sites[layer * d->site_count + c->stages[s]->site];
        int k;
        (void)site_width(a, c->stages[s], &k);
        if (site->rank == 0)
            continue;
        cuda_lora_pack_a(site->a, site->rank, k, (uint16_t *)(void *)(to + offset));
        record->a = at;
        record->rank[s] = cuda_lora_rank(site->rank);
        record->scale[s] = site->scale;
        offset += (size_t)record->rank[s] * (size_t)cuda_lora_k(k) * 2;
    }
    for (int s = 0; s < c->count; s++) {
        const AdapterSite *site = &d->sites[layer * d->site_count + c->stages[s]->site];
        int k, n = site_width(a, c->stages[s], &k);
        if (site->rank == 0)
            continue;
        cuda_lora_pack_b(site->b, n, site->rank, (uint16_t *)(void *)(to + offset));
        record->b[s] = at + offset;
        offset += align16((size_t)record->rank[s] * (size_t)n * 2);
    }
}

static LgStatus copy_now(const CudaAdapters *a, CudaPtr to, const void *from, size_t bytes,
                         LgError *err) {
    const CudaDriver *c = &a->o.device->driver;
    CUDA_TRY(c, copy_up(to, from, bytes, a->o.stream), "copying an adapter", err);
    CUDA_TRY(c, stream_wait(a->o.stream), "copying an adapter", err);
    return LG_OK;
}

static LgStatus fill_slot(CudaAdapters *a, const AdapterData *d, int at, unsigned char *host,
                          LgError *err) {
    Slot *slot = &a->slots[at];
    size_t offset = 0;
    for (int i = 0; i < a->call_count; i++) {
        Call *c = &a->calls[i];
        for (int layer = 0; c->served && layer < c->layers; layer++) {
            int ranks;
            size_t bytes = call_bytes(a, c, d, layer, &ranks);
            pack_call(a, c, d, layer, slot->memory + offset, host + offset,
                      &c->records[layer * SLOTS + at]);
            offset += bytes;
        }
    }
    LG_TRY(copy_now(a, slot->memory, host, offset, err));
    for (int i = 0; i < a->call_count; i++)
        LG_TRY(copy_now(a, a->calls[i].table, a->calls[i].records,
                        (size_t)a->calls[i].layers * SLOTS * sizeof(LgcRecord), err));
    return LG_OK;
}

LgStatus cuda_adapters_install(CudaAdapters *a, const AdapterData *d, int32_t *slot, LgError *err) {
    int at = 0;
    LG_TRY(check_adapter(a, d, err));
    while (at < SLOTS && a->slots[at].live)
        at++;
    if (at == SLOTS)
        return lg_fail(err, LG_LIMIT, 0, "back end cuda holds %d adapters at once", SLOTS);
    Slot s = {.live = true};
    for (int i = 0; i < a->call_count; i++)
        for (int layer = 0; a->calls[i].served && layer < a->calls[i].layers; layer++) {
            int ranks;
            s.bytes += call_bytes(a, &a->calls[i], d, layer, &ranks);
            s.rank_sum = ranks > s.rank_sum ? ranks : s.rank_sum;
        }
    unsigned char *host = lg_alloc_aligned((size_t)s.bytes + 1);
    if (!host)
        return lg_fail_memory(err);
    memset(host, 0, (size_t)s.bytes);
    LgStatus status = cuda_alloc(a->o.device, (size_t)s.bytes, "an adapter", &s.memory, err);
    if (status == LG_OK) {
        a->slots[at] = s;
        status = fill_slot(a, d, at, host, err);
        if (status != LG_OK)
            cuda_adapters_remove(a, at);
    }
    lg_free_aligned(host);
    if (status != LG_OK)
        return status;
    if (s.rank_sum * LGC_SET > a->low_stride) {
        a->low_stride = s.rank_sum * LGC_SET;
        a->generation++;
    }
    *slot = at;
    return LG_OK;
}

/* Between steps: nothing reads the slot any more. */
void cuda_adapters_remove(CudaAdapters *a, int32_t slot) {
    if (!cuda_adapters_live(a, slot))
        return;
    a->o.device->driver.stream_wait(a->o.stream);
    cuda_free(a->o.device, a->slots[slot].memory);
    a->slots[slot] = (Slot){0};
    for (int i = 0; i < a->call_count; i++)
        for (int layer = 0; layer < a->calls[i].layers; layer++)
            a->calls[i].records[layer * SLOTS + slot] = (LgcRecord){0};
}

bool cuda_adapters_live(const CudaAdapters *a, int32_t slot) {
    return a && slot >= 0 && slot < SLOTS && a->slots[slot].live;
}

uint64_t cuda_adapters_bytes(const CudaAdapters *a, int32_t slot) {
    return cuda_adapters_live(a, slot) ? a->slots[slot].bytes : 0;
}

uint64_t cuda_adapters_generation(const CudaAdapters *a) {
    return a ? a->generation : 0;
}

/* ---- a step ---- */

static int bucket_index(int bucket) {
    int i = 0;
    while (1 << i < bucket)
        i++;
    return i;
}

static LgStatus reserve_low(CudaAdapters *a, int bucket, LgError *err) {
    CudaLoraPlan plan = cuda_lora_plan(bucket);
    size_t most = 0;
    for (int i = 0; i < a->call_count; i++) {
        if (!a->calls[i].served)
            continue;
        size_t rows = (size_t)cuda_lora_low_rows(&plan, (int)a->calls[i].stages[0]->matmul->k);
        most = rows > most ? rows : most;
    }
    size_t bytes = most * (size_t)a->low_stride * sizeof(float);
    if (bytes <= a->low_bytes)
        return LG_OK;
    a->o.device->driver.stream_wait(a->o.stream);
    cuda_free(a->o.device, a->low);
    a->low = 0;
    a->low_bytes = 0;
    LG_TRY(cuda_alloc(a->o.device, bytes, "adapters' first products", &a->low, err));
    a->low_bytes = bytes;
    a->generation++;
    return LG_OK;
}

LgStatus cuda_adapters_route(CudaAdapters *a, const Step *step, int bucket, bool *adapted,
                             LgError *err) {
    *adapted = false;
    for (int32_t r = 0; r < step->rows; r++) {
        const AdapterSet *set = step->ad ? &step->sets[step->ad[r]] : NULL;
        for (int m = 0; m < LGC_SET; m++) {
            bool there = set && m < set->count;
            a->sets[r * LGC_SET + m] = there ? set->use[m].slot : -1;
            a->scales[r * LGC_SET + m] = there ? set->use[m].scale : 0.0f;
            *adapted |= there;
        }
    }
    if (!*adapted)
        return LG_OK;
    CudaRoute **route = &a->routes[bucket_index(bucket)];
    if (!*route)
        LG_TRY(cuda_route_create(a->o.device, bucket, route, err));
    LG_TRY(reserve_low(a, bucket, err));
    return cuda_route_write(*route, a->sets, a->scales, step->rows, a->o.stream, err);
}

static CudaPtr value_at(const CudaAdapters *a, int tensor, int64_t *stride) {
    const PlanBuffer *b = plan_buffer(a->o.plan, tensor);
    *stride = (int64_t)b->row_elems;
    return a->o.arena + b->offset_row * (uint64_t)a->o.rows_max;
}

LgStatus cuda_adapters_apply(CudaAdapters *a, int launch, int layer, int bucket, LgError *err) {
    CudaLaunch l = {a->o.device, &a->o.kernels, a->o.stream, true};
    CudaLoraPlan plan = cuda_lora_plan(bucket);
    for (int i = 0; i < a->call_count; i++) {
        const Call *c = &a->calls[i];
        if (c->launch != launch || !c->served)
            continue;
        int64_t stride;
        LgcCall call = {.low = a->low,
                        .low_stride = a->low_stride,
                        .k = (int)c->stages[0]->matmul->k,
                        .site_count = c->count,
                        .slots = SLOTS,
                        .table = c->table + (uint64_t)layer * SLOTS * sizeof(LgcRecord)};
        call.x = value_at(a, c->stages[0]->matmul->x, &stride);
        call.x_stride = stride;
        for (int s = 0; s < c->count; s++) {
            call.y[s] = value_at(a, c->stages[s]->stmt->targets[0].tensor, &stride);
            call.y_stride[s] = stride;
            call.n[s] = (int)c->stages[s]->matmul->n;
        }
        cuda_route_view(a->routes[bucket_index(bucket)], &call.route);
        LG_TRY(cuda_lora_apply_bgmv(&l, &plan, &call, err));
    }
    return LG_OK;
}
