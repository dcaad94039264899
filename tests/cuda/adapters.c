#include "adapters.h"

#include <stdlib.h>
#include <string.h>

int adapter_ranks(const Adapter *a, int sites) {
    int ranks = 0;
    for (int i = 0; i < sites; i++)
        ranks += cuda_lora_rank(a->rank[i]);
    return ranks;
}

/* Small ones, so that sums are of the size of their terms. */
static void draw_padded(Gpu *g, int regime, int rows, int columns, int padded, uint16_t *out) {
    uint16_t *row = room((size_t)columns * 2);
    for (int i = 0; i < rows; i++) {
        draw_bf16(g, regime, row, (size_t)columns);
        memcpy(&out[(size_t)i * (size_t)padded], row, (size_t)columns * 2);
    }
    free(row);
}

void adapter_draw(Gpu *g, const Sites *s, int regime, Adapter *out) {
    const int padded = cuda_lora_k(s->k);
    memset(out, 0, sizeof *out);
    bool any = false;
    for (int i = 0; i < s->count; i++) {
        int rank = draw_int(g, 0, 5) == 0 ? 0 : DRAW_OF(g, 1, 3, 8, 12, 16, 16, 17, 64, 100, 512);
        out->rank[i] = rank < s->rank_max ? rank : s->rank_max;
        out->scale[i] = draw_int(g, 0, 8) == 0 ? 0.0f : 2.0f * draw_unit(g);
        any = any || out->rank[i] > 0;
    }
    if (!any)
        return;
    size_t a_count = (size_t)adapter_ranks(out, s->count) * (size_t)padded;
    out->a = room(a_count * 2);
    for (int i = 0; i < s->count; i++) {
        if (out->rank[i] == 0)
            continue;
        int rank = cuda_lora_rank(out->rank[i]);
        draw_padded(g, regime, out->rank[i], s->k, padded,
                    &out->a[(size_t)adapter_ranks(out, i) * (size_t)padded]);
        out->b[i] = room((size_t)s->n[i] * (size_t)rank * 2);
        draw_padded(g, 0, s->n[i], out->rank[i], rank, out->b[i]);
        out->dev_b[i] = dev_of(g, out->b[i], (size_t)s->n[i] * (size_t)rank * 2);
    }
    out->dev_a = dev_of(g, out->a, a_count * 2);
}

void adapter_free(Gpu *g, Adapter *a) {
    free(a->a);
    dev_free(g, &a->dev_a);
    for (int i = 0; i < LGC_SITES; i++) {
        free(a->b[i]);
        dev_free(g, &a->dev_b[i]);
    }
}

void adapter_record(const Adapter *a, const Sites *s, LgcRecord *out) {
    memset(out, 0, sizeof *out);
    out->a = a->dev_a.data;
    for (int i = 0; i < s->count; i++) {
        out->b[i] = a->dev_b[i].data;
        out->scale[i] = a->scale[i];
        out->rank[i] = cuda_lora_rank(a->rank[i]);
    }
}

double low_ref(const Adapter *a, const Sites *s, const uint16_t *x, int site, int z,
               double *magnitude) {
    const uint16_t *row = &a->a[(size_t)(adapter_ranks(a, site) + z) * (size_t)cuda_lora_k(s->k)];
    double sum = 0;
    *magnitude = 0;
    for (int i = 0; i < s->k; i++) {
        double p = (double)bf16_to_float(x[i]) * (double)bf16_to_float(row[i]);
        sum += p;
        *magnitude += p < 0 ? -p : p;
    }
    return sum;
}

double delta_ref(const Adapter *a, const uint16_t *low, int site, int o, double *magnitude) {
    const int rank = cuda_lora_rank(a->rank[site]);
    double sum = 0;
    *magnitude = 0;
    for (int z = 0; z < rank; z++) {
        double p = (double)bf16_to_float(low[z]) *
                   (double)bf16_to_float(a->b[site][(size_t)o * (size_t)rank + (size_t)z]);
        sum += p;
        *magnitude += p < 0 ? -p : p;
    }
    return sum;
}

void apply_alone(Gpu *g, const LoraKernels *k, const Adapter *a, const Sites *s, int site,
                 const uint16_t *x, float scale, int rows, uint16_t *y) {
    const int n = s->n[site], rank = cuda_lora_rank(a->rank[site]), padded = cuda_lora_k(s->k);
    LgError err;
    if (rank == 0)
        return;
    uint16_t *many = room((size_t)rows * (size_t)(s->k > n ? s->k : n) * 2);
    for (int i = 0; i < rows; i++)
        memcpy(&many[(size_t)i * (size_t)s->k], x, (size_t)s->k * 2);
    Dev dev_x = dev_of(g, many, (size_t)rows * (size_t)s->k * 2);
    for (int i = 0; i < rows; i++)
        memcpy(&many[(size_t)i * (size_t)n], y, (size_t)n * 2);
    Dev dev_y = dev_of(g, many, (size_t)rows * (size_t)n * 2);
    Dev low = dev_new(g, (size_t)rows * (size_t)rank * 2);
    Dev delta = dev_new(g, (size_t)rows * (size_t)n * 4);
    CudaLaunch l = {g->device, k, g->stream, true};
    CudaLoraDense d = {.x = dev_x.data,
                       .y = dev_y.data,
                       .x_stride = s->k,
                       .y_stride = n,
                       .rows = rows,
                       .k = s->k,
                       .n = n,
                       .rank = rank,
                       .a = a->dev_a.data + (CudaPtr)adapter_ranks(a, site) * (CudaPtr)padded * 2,
                       .b = a->dev_b[site].data,
                       .scale = scale,
                       .low = low.data,
                       .delta = delta.data};
    must(cuda_lora_apply(&l, &d, &err), &err);
    dev_down(g, &dev_y, many, (size_t)rows * (size_t)n * 2);
    for (int i = 1; i < rows; i++)
        if (memcmp(many, &many[(size_t)i * (size_t)n], (size_t)n * 2) != 0)
            fail(g, "lora_apply: row %d of %d equal rows differs from the first", i, rows);
    if (!dev_whole(g, &dev_y) || !dev_whole(g, &low) || !dev_whole(g, &delta))
        fail(g, "lora_apply wrote outside its results");
    memcpy(y, many, (size_t)n * 2);
    free(many);
    dev_free(g, &dev_x);
    dev_free(g, &dev_y);
    dev_free(g, &low);
    dev_free(g, &delta);
}
