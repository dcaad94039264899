/* Two passes: first every entry gets its place in one block of memory, then rows are turned into
 * the device's form on the host and copied up while the next ones are made. */
#include "backend/cuda/weights.h"

#include <string.h>

#include "base/float.h"
#include "base/mem.h"
#include "kernels/cuda/common/step_abi.h"

#define ALIGN 256u
#define STAGING_BYTES ((size_t)8 << 20)

typedef struct Entry {
    const PlanWeight *weight;
    const ParamBinding *binding;
    DType dtype;                                   /* of a block format's rows */
    uint64_t rows;                                 /* of all experts */
    uint64_t data, scales, row_bytes, scale_bytes; /* places, and bytes a row */
} Entry;

typedef struct Load {
    const CudaDevice *device;
    const Plan *plan;
    Entry *entries; /* [weight_total] */
    LgcWeight *table;
    uint64_t bytes;
    CudaStaging staging;
    unsigned char *data, *scales; /* rows being made */
} Load;

static LgStatus refuse(const Load *l, const PlanWeight *w, LgError *err, const char *why) {
    const LangTensor *t = &l->plan->program->tensors[w->tensor];
    return lang_refuse(l->plan->program, t->line, 0, err, "cannot load param %.*s for CUDA: %s",
                       LG_STR_ARG(t->name), why);
}

static uint64_t place(Load *l, uint64_t bytes) {
    uint64_t at = l->bytes;
    l->bytes += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

/* ---- places ---- */

static const Tensor *first_tensor(const ParamBinding *b) {
    return b->stacked ? b->stacked[0] : b->tensor;
}

/* Tensors of one stack have one type, else they are all made f32. */
static DType stored_type(const Load *l, const PlanWeight *w, const ParamBinding *b) {
    const LangProgram *p = l->plan->program;
    const Tensor *t = first_tensor(b);
    if (!t)
        return DTYPE_F32;
    for (uint64_t i = 1; b->stacked && i < p->dims[p->tensors[w->tensor].dims[0]].size; i++)
        if (b->stacked[i]->dtype != t->dtype)
            return DTYPE_F32;
    return t->dtype;
}

static bool four_bits(DType t) {
    return t == DTYPE_Q4_0 || t == DTYPE_Q4_1 || t == DTYPE_Q4_K;
}

/* Elements that share a scale; 0: no block format. */
static int run_of(DType t) {
    BlockParts parts;
    unsigned char block[256] = {0};
    if (!dtype_info(t)->parts)
        return 0;
    dtype_info(t)->parts(block, &parts);
    return parts.run;
}

static LgStatus place_entry(Load *l, const PlanWeight *w, const ParamBinding *b, int at,
                            LgError *err) {
    LgcWeight *out = &l->table[at];
    Entry *e = &l->entries[at];
    const uint64_t experts = w->use == WEIGHT_MATRIX ? w->experts : 1;
    if (w->rows > INT32_MAX || w->columns > INT32_MAX)
        return refuse(l, w, err, "it has more than 2^31 rows or columns.");
    *e = (Entry){.weight = w, .binding = b, .dtype = stored_type(l, w, b), .rows = w->rows};
    *out = (LgcWeight){.rows = (int)(w->rows / experts), .columns = (int)w->columns};
    const int run = w->use == WEIGHT_MATRIX ? run_of(e->dtype) : 0;
    if (w->use == WEIGHT_VECTOR) {
        out->format = LGC_F32;
    } else if (run) {
        out->format = four_bits(e->dtype) ? LGC_CODES4 : LGC_CODES8;
        out->run = run;
        out->centered = e->dtype == DTYPE_Q4_0;
        e->scale_bytes = w->columns / (uint64_t)run * 2 * sizeof(float);
        e->scales = place(l, e->rows * e->scale_bytes);
    } else {
        const Tensor *t = first_tensor(b);
        out->format = t && t->rank > 1 && !t->added && e->dtype == DTYPE_BF16 ? LGC_BF16 : LGC_F32;
    }
    e->row_bytes = out->format == LGC_F32      ? w->columns * 4
                   : out->format == LGC_BF16   ? w->columns * 2
                   : out->format == LGC_CODES4 ? w->columns / 2
                                               : w->columns;
    e->data = place(l, e->rows * e->row_bytes);
    return LG_OK;
}

/* ---- contents ---- */

static const unsigned char *stored_row(const Load *l, const Entry *e, uint64_t row) {
    const Tensor *t = binding_row(e->binding, l->plan->program, e->weight->tensor, &row);
    return tensor_row(t, row);
}

static void make_codes(const Load *l, const Entry *e, const LgcWeight *w, uint64_t row,
                       unsigned char *data, float *scales) {
    const DTypeInfo *info = dtype_info(e->dtype);
    const unsigned char *from = stored_row(l, e, row);
    const uint32_t elems = info->block_elems;
    for (uint64_t at = 0; at < (uint64_t)w->columns; at += elems, from += info->block_bytes) {
        BlockParts parts;
        info->parts(from, &parts);
        const float d = f16_to_float(parts.d), m = f16_to_float(parts.m);
        for (uint32_t r = 0; r < elems / parts.run; r++) {
            *scales++ = d * (float)parts.scale[r];
            *scales++ = m * (float)parts.min[r];
        }
        for (uint32_t i = 0; i < elems && w->format == LGC_CODES8; i++)
            data[at + i] = (unsigned char)parts.code[i];
        for (uint32_t i = 0; i < elems && w->format == LGC_CODES4; i += 2) {
            const int low = parts.code[i] + 8 * w->centered;
            const int high = parts.code[i + 1] + 8 * w->centered;
            data[(at + i) / 2] = (unsigned char)((low & 15) | (high & 15) << 4);
        }
    }
}

/* Elements of a param's rows, whatever they are stored as: `elems` of the flattened param. */
static void make_row(const Load *l, const Entry *e, const LgcWeight *w, uint64_t row,
                     unsigned char *data) {
    const LangProgram *p = l->plan->program;
    const ParamBinding *b = e->binding;
    const LangTensor *t = &p->tensors[e->weight->tensor];
    float *out = (float *)(void *)data;
    if (w->format == LGC_BF16) { /* as it is stored */
        memcpy(data, stored_row(l, e, row), (size_t)w->columns * 2);
        return;
    }
    if (!first_tensor(b)) {
        for (int i = 0; i < w->columns; i++)
            out[i] = (float)b->constant;
    } else {
        uint64_t columns = 1;
        for (int d = t->axis_count ? t->axis_start[t->axis_count - 1] : 0; d < t->rank; d++)
            columns *= p->dims[t->dims[d]].size;
        /* a vector is one row here, whatever its axes are */
        uint64_t parts = (uint64_t)w->columns / columns;
        for (uint64_t k = 0; k < parts; k++)
            binding_row_f32(b, p, e->weight->tensor, row * parts + k, out + k * columns);
    }
}

static LgStatus fill_entry(Load *l, const Entry *e, const LgcWeight *w, CudaPtr memory,
                           LgError *err) {
    const bool codes = w->format == LGC_CODES4 || w->format == LGC_CODES8;
    const uint64_t most = e->row_bytes > e->scale_bytes ? e->row_bytes : e->scale_bytes;
    const uint64_t batch = most < STAGING_BYTES ? STAGING_BYTES / (most ? most : 1) : 1;
    for (uint64_t row = 0; row < e->rows; row += batch) {
        uint64_t n = e->rows - row < batch ? e->rows - row : batch;
        for (uint64_t i = 0; i < n; i++) {
            unsigned char *data = l->data + i * e->row_bytes;
            if (codes)
                make_codes(l, e, w, row + i, data,
                           (float *)(void *)(l->scales + i * e->scale_bytes));
            else
                make_row(l, e, w, row + i, data);
        }
        LG_TRY(cuda_staging_up(&l->staging, memory + e->data + row * e->row_bytes, l->data,
                               n * e->row_bytes, err));
        if (codes)
            LG_TRY(cuda_staging_up(&l->staging, memory + e->scales + row * e->scale_bytes,
                                   l->scales, n * e->scale_bytes, err));
    }
    return LG_OK;
}

static LgStatus place_all(Load *l, const Binding *binding, LgError *err) {
    for (int i = 0; i < l->plan->weight_count; i++) {
        const PlanWeight *w = &l->plan->weights[i];
        int layers = w->in_layer ? l->plan->program->layer_count : 1;
        for (int layer = 0; layer < layers; layer++)
            LG_TRY(place_entry(l, w, binding_get(binding, w->tensor, w->in_layer ? layer : 0),
                               w->base + layer, err));
    }
    return LG_OK;
}

static LgStatus fill_all(Load *l, CudaWeights *out, LgError *err) {
    uint64_t row_most = STAGING_BYTES;
    for (int i = 0; i < l->plan->weight_total; i++) {
        const Entry *e = &l->entries[i];
        row_most = e->row_bytes > row_most ? e->row_bytes : row_most;
        row_most = e->scale_bytes > row_most ? e->scale_bytes : row_most;
    }
    l->data = lg_alloc_aligned((size_t)row_most);
    l->scales = lg_alloc_aligned((size_t)row_most);
    if (!l->data || !l->scales)
        return lg_fail_memory(err);
    LG_TRY(cuda_alloc(l->device, l->bytes, "the weights", &out->memory, err));
    out->bytes = l->bytes;
    out->formats = lg_alloc_array((size_t)l->plan->weight_total + 1, 1);
    if (!out->formats)
        return lg_fail_memory(err);
    for (int i = 0; i < l->plan->weight_total; i++) {
        const Entry *e = &l->entries[i];
        LG_TRY(fill_entry(l, e, &l->table[i], out->memory, err));
        out->formats[i] = (uint8_t)l->table[i].format;
        l->table[i].data = out->memory + e->data;
        l->table[i].scales = e->scale_bytes ? out->memory + e->scales : 0;
    }
    return cuda_staging_up(&l->staging, out->table, l->table,
                           (size_t)l->plan->weight_total * sizeof *l->table, err);
}

LgStatus cuda_weights_load(const CudaDevice *d, const Plan *plan, const Binding *binding,
                           void *stream, CudaWeights *out, LgError *err) {
    Load l = {.device = d, .plan = plan};
    *out = (CudaWeights){0};
    l.entries = lg_calloc((size_t)plan->weight_total + 1, sizeof *l.entries);
    l.table = lg_calloc((size_t)plan->weight_total + 1, sizeof *l.table);
    LgStatus status = l.entries && l.table ? LG_OK : lg_fail_memory(err);
    if (status == LG_OK)
        status = cuda_staging_init(&l.staging, d, stream, STAGING_BYTES, err);
    if (status == LG_OK)
        status = cuda_alloc(d, ((size_t)plan->weight_total + 1) * sizeof *l.table,
                            "the weight table", &out->table, err);
    if (status == LG_OK)
        status = place_all(&l, binding, err);
    if (status == LG_OK)
        status = fill_all(&l, out, err);
    int code = status == LG_OK ? d->driver.stream_wait(stream) : 0;
    if (code != 0)
        status = cuda_fail(&d->driver, code, "copying the weights", err);
    cuda_staging_clear(&l.staging);
    lg_free(l.entries);
    lg_free(l.table);
    lg_free_aligned(l.data);
    lg_free_aligned(l.scales);
    if (status != LG_OK)
        cuda_weights_clear(d, out);
    return status;
}

void cuda_weights_clear(const CudaDevice *d, CudaWeights *w) {
    cuda_free(d, w->memory);
    cuda_free(d, w->table);
    lg_free(w->formats);
    *w = (CudaWeights){0};
}
