/* From stored tensors to the arrays that kernels read. A and B are rounded once, to the store type;
 * DoRA's row norms are summed in double precision from the dequantised base weight and the A and B
 * that are served. */
#include <math.h>
#include <string.h>

#include "base/float.h"
#include "base/mem.h"
#include "lora/peft.h"

/* The arrays follow each other in one block. */
typedef struct Block {
    float *next;
} Block;

static float *block_take(Block *b, uint64_t elems) {
    float *array = b->next;
    uint64_t floats = peft_array_floats(elems);
    memset(array + elems, 0, (size_t)(floats - elems) * sizeof(float));
    b->next += floats;
    return array;
}

static LgStatus fail_element(const Tensor *t, uint64_t index, float value, LgError *err) {
    uint64_t columns = t->rank ? t->shape[t->rank - 1] : 1;
    const char *what = isnan(value) ? "NaN" : "infinite (or too large for the type it is kept in)";
    return peft_fail_tensor(err, t->name, "its element [%llu, %llu] is %s",
                            (unsigned long long)(index / columns),
                            (unsigned long long)(index % columns), what);
}

LgStatus peft_read_tensor(const Tensor *t, bool rounded, float *out, LgError *err) {
    size_t elems = (size_t)tensor_elems(t);
    uint64_t columns = t->rank ? t->shape[t->rank - 1] : 1;
    if (t->rope_heads) /* rows in another order */
        for (uint64_t row = 0; row * columns < elems; row++)
            tensor_row_f32(t, row, out + row * columns);
    else
        dtype_info(t->dtype)->to_f32(t->data, out, elems);
    if (rounded && t->dtype != DTYPE_BF16)
        for (size_t i = 0; i < elems; i++)
            out[i] = bf16_round(out[i]);
    uint32_t worst =
        0; /* largest magnitude bits: at least those of infinity where one is not finite */
    for (size_t i = 0; i < elems; i++) {
        uint32_t bits = float_bits(out[i]) & 0x7fffffffu;
        worst = bits > worst ? bits : worst;
    }
    if (worst < 0x7f800000u)
        return LG_OK;
    size_t i = 0;
    while (isfinite(out[i]))
        i++;
    return fail_element(t, i, out[i], err);
}

static AdapterSite *site_of(const PeftSites *sites, const AdapterOptions *o, const LoraTarget *t) {
    return &sites->sites[t->layer * o->program->site_count + t->site];
}

/* What the norms of one entry need beside its arrays. */
typedef struct DoraWork {
    double *a_columns; /* [in, rank]: A transposed, so that a column is contiguous */
    double *gram;      /* [rank, rank]: A Aᵀ */
    double *dots;      /* [rank]: one row of W against A */
    float *row;        /* [in]: one row of W */
} DoraWork;

static void dora_work_clear(DoraWork *w) {
    lg_free(w->a_columns);
    lg_free(w->gram);
    lg_free(w->dots);
    lg_free(w->row);
}

static bool dora_work_init(DoraWork *w, const float *a, size_t rank, size_t in) {
    *w = (DoraWork){0};
    if (rank > SIZE_MAX / sizeof(double) / in || rank > SIZE_MAX / sizeof(double) / rank)
        return false;
    w->a_columns = lg_alloc_array(rank * in, sizeof(double));
    w->gram = lg_calloc(rank * rank, sizeof(double));
    w->dots = lg_alloc_array(rank, sizeof(double));
    w->row = lg_alloc_array(in, sizeof(float));
    if (!w->a_columns || !w->gram || !w->dots || !w->row)
        return false;
    for (size_t z = 0; z < rank; z++)
        for (size_t i = 0; i < in; i++)
            w->a_columns[i * rank + z] = (double)a[z * in + i];
    for (size_t i = 0; i < in; i++) {
        const double *column = w->a_columns + i * rank;
        for (size_t y = 0; y < rank; y++)
            for (size_t z = 0; z < rank; z++)
                w->gram[y * rank + z] += column[y] * column[z];
    }
    return true;
}

/* w->dots = W_row Aᵀ; returns the row's squared norm. */
static double dora_dots(DoraWork *w, size_t rank, size_t in) {
    double norm = 0;
    double *restrict dots = w->dots;
    memset(dots, 0, rank * sizeof *dots);
    for (size_t i = 0; i < in; i++) {
        double x = (double)w->row[i];
        const double *restrict column = w->a_columns + i * rank;
        norm += x * x;
        for (size_t z = 0; z < rank; z++)
            dots[z] += x * column[z];
    }
    return norm;
}

typedef struct DoraRow {
    double w2, wba, ba2;
} DoraRow;

static DoraRow dora_row(DoraWork *w, const float *b, double scale, size_t rank, size_t in) {
    DoraRow r = {.w2 = dora_dots(w, rank, in)};
    for (size_t y = 0; y < rank; y++) {
        double by = (double)b[y], through = 0;
        for (size_t z = 0; z < rank; z++)
            through += w->gram[y * rank + z] * (double)b[z];
        r.wba += by * w->dots[y];
        r.ba2 += by * through;
    }
    r.wba *= scale;
    r.ba2 *= scale * scale;
    return r;
}

typedef struct DoraArrays {
    float *w2, *wba, *ba2;
} DoraArrays;

static LgStatus dora_target(const PeftEntry *e, const LoraTarget *t, const AdapterOptions *o,
                            DoraWork *w, const AdapterSite *site, const DoraArrays *out,
                            LgError *err) {
    int param = o->program->sites[t->site].param;
    int layer = o->program->tensors[param].in_layer ? t->layer : 0;
    const ParamBinding *bound = binding_get(o->binding, param, layer);
    size_t rank = (size_t)e->rank, in = (size_t)e->module->in;
    for (uint64_t row = 0; row < t->rows; row++) {
        binding_row_f32(bound, o->program, param, row, w->row);
        DoraRow r = dora_row(w, site->b + row * rank, (double)e->scale, rank, in);
        double square = r.w2 + 2 * r.wba + r.ba2;
        uint64_t stored_row = t->from_row + row;
        if (!(square > 0 && square < 3.4e38))
            return peft_fail_tensor(err, e->magnitude->name,
                                    "row %llu of the adapted weight has the squared norm %g, so "
                                    "DoRA cannot scale it",
                                    (unsigned long long)stored_row, square);
        out->w2[row] = (float)r.w2;
        out->wba[row] = (float)r.wba;
        out->ba2[row] = (float)r.ba2;
    }
    return LG_OK;
}

static LgStatus dora_entry(const PeftEntry *e, const AdapterOptions *o, Block *block,
                           const float *a, const float *magnitude, const PeftSites *sites,
                           LgError *err) {
    DoraWork w;
    LgStatus status = LG_OK;
    if (!dora_work_init(&w, a, (size_t)e->rank, (size_t)e->module->in))
        status = lg_fail_memory(err);
    for (const LoraTarget *t = e->module->targets; t && status == LG_OK; t = t->next) {
        AdapterSite *site = site_of(sites, o, t);
        DoraArrays arrays = {block_take(block, t->rows), block_take(block, t->rows),
                             block_take(block, t->rows)};
        site->magnitude = magnitude + t->from_row;
        site->dora_w2 = arrays.w2;
        site->dora_wba = arrays.wba;
        site->dora_ba2 = arrays.ba2;
        status = dora_target(e, t, o, &w, site, &arrays, err);
    }
    dora_work_clear(&w);
    return status;
}

/* Of experts the outer site says the largest rank. */
static void put_expert(const PeftSites *sites, const AdapterOptions *o, const LoraTarget *t,
                       uint64_t expert, AdapterSite numbers) {
    AdapterSite *outer = site_of(sites, o, t);
    sites->experts[outer - sites->sites][expert] = numbers;
    outer->experts = sites->experts[outer - sites->sites];
    outer->rank = numbers.rank > outer->rank ? numbers.rank : outer->rank;
}

/* out[e][r][c] = stored[c][r * experts + e]: what PEFT keeps with the expert fastest. */
static void unpack_fastest(const float *stored, uint64_t columns, uint64_t rank, uint64_t experts,
                           bool rank_last, float *out) {
    for (uint64_t c = 0; c < columns; c++)
        for (uint64_t r = 0; r < rank; r++)
            for (uint64_t e = 0; e < experts; e++)
                out[e * rank * columns + (rank_last ? c * rank + r : r * columns + c)] =
                    stored[(c * rank + r) * experts + e];
}

static void transpose_each(const float *stored, uint64_t experts, uint64_t rows, uint64_t columns,
                           float *out) {
    for (uint64_t e = 0; e < experts; e++)
        for (uint64_t r = 0; r < rows; r++)
            for (uint64_t c = 0; c < columns; c++)
                out[(e * columns + c) * rows + r] = stored[(e * rows + r) * columns + c];
}

/* lora_A [experts * rank, in] and lora_B [out, rank * experts], or both of the transposed weight,
 * to [experts][rank, in] and [experts][out, rank]. */
static LgStatus read_parameter(const PeftEntry *e, bool rounded, float *a, float *b, LgError *err) {
    const LoraModule *m = e->module;
    uint64_t rank = (uint64_t)e->rank, most = tensor_elems(e->a) > tensor_elems(e->b)
                                                  ? tensor_elems(e->a)
                                                  : tensor_elems(e->b);
    float *stored = lg_alloc_array((size_t)most, sizeof *stored);
    LgStatus status = stored ? LG_OK : lg_fail_memory(err);
    if (status == LG_OK)
        status = peft_read_tensor(e->a, rounded, stored, err);
    if (status == LG_OK && e->swapped)
        transpose_each(stored, m->experts, rank, m->out, b);
    else if (status == LG_OK)
        memcpy(a, stored, (size_t)tensor_elems(e->a) * sizeof *a);
    if (status == LG_OK)
        status = peft_read_tensor(e->b, rounded, stored, err);
    if (status == LG_OK && e->swapped)
        unpack_fastest(stored, m->in, rank, m->experts, false, a);
    else if (status == LG_OK)
        unpack_fastest(stored, m->out, rank, m->experts, true, b);
    lg_free(stored);
    return status;
}

static LgStatus fill_parameter(const PeftEntry *e, const AdapterOptions *o, Block *block,
                               const PeftSites *sites, LgError *err) {
    const LoraModule *m = e->module;
    uint64_t rank = (uint64_t)e->rank;
    float *a = block_take(block, m->experts * rank * m->in);
    float *b = block_take(block, m->experts * rank * m->out);
    LG_TRY(read_parameter(e, !o->store_f32, a, b, err));
    for (const LoraTarget *t = m->targets; t; t = t->next)
        for (uint64_t x = 0; x < m->experts; x++)
            put_expert(sites, o, t, x,
                       (AdapterSite){.rank = e->rank,
                                     .a = a + x * rank * m->in,
                                     .b = b + (x * m->out + t->from_row) * rank,
                                     .scale = e->scale});
    return LG_OK;
}

static LgStatus fill_entry(const PeftEntry *e, const AdapterOptions *o, Block *block,
                           const PeftSites *sites, LgError *err) {
    if (e->module->experts)
        return fill_parameter(e, o, block, sites, err);
    float *a = block_take(block, tensor_elems(e->a));
    float *b = block_take(block, tensor_elems(e->b));
    LG_TRY(peft_read_tensor(e->a, !o->store_f32, a, err));
    LG_TRY(peft_read_tensor(e->b, !o->store_f32, b, err));
    float *bias = e->b_bias ? block_take(block, e->module->out) : NULL;
    if (bias)
        LG_TRY(peft_read_tensor(e->b_bias, false, bias, err));
    for (const LoraTarget *t = e->module->targets; t; t = t->next) {
        AdapterSite numbers = {.rank = e->rank,
                               .a = a,
                               .b = b + t->from_row * (uint64_t)e->rank,
                               .b_bias = bias ? bias + t->from_row : NULL,
                               .scale = e->scale};
        if (t->expert >= 0)
            put_expert(sites, o, t, (uint64_t)t->expert, numbers);
        else
            *site_of(sites, o, t) = numbers;
    }
    if (!e->magnitude)
        return LG_OK;
    float *magnitude = block_take(block, e->module->out);
    LG_TRY(peft_read_tensor(e->magnitude, false, magnitude, err));
    return dora_entry(e, o, block, a, magnitude, sites, err);
}

LgStatus peft_numbers(const PeftPlan *plan, const AdapterOptions *o, float *numbers,
                      const PeftSites *sites, LgError *err) {
    Block block = {numbers};
    for (size_t i = 0; i < plan->count; i++)
        LG_TRY(fill_entry(&plan->entries[i], o, &block, sites, err));
    return LG_OK;
}

/* A copy was written in its own type, from a base that may be stored in another: equal means equal
 * in the copy's type. */
float peft_in_type(float value, DType type) {
    if (type == DTYPE_BF16)
        return bf16_round(value);
    return type == DTYPE_F16 ? f16_to_float(f16_from_float(value)) : value;
}

static LgStatus check_copy_rows(const Tensor *t, const LoraTarget *target, const AdapterOptions *o,
                                float *base, float *copy, LgError *err) {
    int param = o->program->sites[target->site].param;
    int layer = o->program->tensors[param].in_layer ? target->layer : 0;
    const ParamBinding *bound = binding_get(o->binding, param, layer);
    uint64_t rows = o->program->sites[target->site].lookup ? t->shape[0] : target->rows;
    uint64_t first = target->expert > 0 ? (uint64_t)target->expert * target->rows : 0;
    for (uint64_t row = 0; row < rows; row++) {
        binding_row_f32(bound, o->program, param, first + row, base);
        uint64_t stored_row = target->from_row + row;
        tensor_row_f32(t, stored_row, copy);
        for (uint64_t i = 0; i < t->shape[1]; i++)
            if (peft_in_type(base[i], t->dtype) != copy[i])
                return peft_fail_tensor(err, t->name,
                                        "its element [%llu, %llu] is %g, that of the base is %g; a "
                                        "copy of a base weight must equal it",
                                        (unsigned long long)stored_row, (unsigned long long)i,
                                        (double)copy[i], (double)base[i]);
    }
    return LG_OK;
}

static LgStatus check_copy(const Tensor *t, const LoraModule *m, const AdapterOptions *o,
                           LgError *err) {
    uint64_t rows = m->lookup ? m->in : m->out, columns = m->lookup ? m->out : m->in;
    if (t->dtype != DTYPE_F32 && t->dtype != DTYPE_F16 && t->dtype != DTYPE_BF16)
        return peft_fail_tensor(err, t->name, "its type is %s; F32, F16 and BF16 are served",
                                dtype_info(t->dtype)->name);
    if (t->rank != 2 || t->shape[0] != rows || t->shape[1] != columns)
        return peft_fail_tensor(err, t->name,
                                "it must be the base's weight, whose shape is [%llu, %llu]",
                                (unsigned long long)rows, (unsigned long long)columns);
    LgStatus status = LG_OK;
    float *base = lg_alloc_array((size_t)columns, sizeof *base);
    float *copy = lg_alloc_array((size_t)columns, sizeof *copy);
    if (!base || !copy)
        status = lg_fail_memory(err);
    for (const LoraTarget *target = m->targets; target && status == LG_OK; target = target->next)
        status = check_copy_rows(t, target, o, base, copy, err);
    lg_free(base);
    lg_free(copy);
    return status;
}

LgStatus peft_check_copies(const PeftPlan *plan, const AdapterOptions *o, LgError *err) {
    for (size_t i = 0; i < plan->copy_count; i++)
        LG_TRY(check_copy(plan->copies[i], plan->copy_modules[i], o, err));
    return LG_OK;
}
