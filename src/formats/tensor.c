/* Tensors and sets of them. */
#include "formats/tensor.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "formats/tensor_set.h"

uint64_t tensor_elems(const Tensor *t) {
    uint64_t elems = 1;
    for (int i = 0; i < t->rank; i++)
        elems *= t->shape[i]; /* the readers have checked the product */
    return elems;
}

/* Within a head of `half * 2` rows, stored row 2i is logical row i and stored row 2i + 1 is logical
 * row i + half. */
static uint64_t stored_row(uint64_t row, uint64_t rows, uint32_t heads) {
    uint64_t head_rows = rows / heads;
    uint64_t half = head_rows / 2;
    uint64_t head = row / head_rows;
    uint64_t in_head = row % head_rows;
    uint64_t stored = in_head < half ? 2 * in_head : 2 * (in_head - half) + 1;
    return head * head_rows + stored;
}

static uint64_t row_elems(const Tensor *t) {
    return t->rank ? t->shape[t->rank - 1] : 1;
}

static uint64_t row_bytes(const Tensor *t) {
    uint64_t bytes = 0;
    bool whole = dtype_row_bytes(t->dtype, row_elems(t), &bytes);
    assert(whole);
    (void)whole;
    return bytes;
}

const unsigned char *tensor_row(const Tensor *t, uint64_t row) {
    assert(row_elems(t) && row < tensor_elems(t) / row_elems(t));
    if (t->rope_heads && t->rank == 2)
        row = stored_row(row, t->shape[0], t->rope_heads);
    return t->data + row * row_bytes(t);
}

static void take_off(const Tensor *t, float *out, uint64_t elems) {
    for (uint64_t i = 0; t->added != 0 && i < elems; i++)
        out[i] -= t->added;
}

static void apply_scale(const Tensor *t, uint64_t row, float *out, uint64_t elems) {
    if (!t->scale)
        return;
    const float *scale = t->scale + row / t->scale_rows * t->scale_stride;
    for (uint64_t i = 0; i < elems; i++)
        out[i] *= scale[i / t->scale_columns];
}

void tensor_row_f32(const Tensor *t, uint64_t row, float *out) {
    const DTypeInfo *info = dtype_info(t->dtype);
    assert(info->to_f32);
    const unsigned char *stored = tensor_row(t, row);
    uint64_t elems = row_elems(t);
    if (!(t->rope_heads && t->rank == 1)) {
        info->to_f32(stored, out, (size_t)elems);
        apply_scale(t, row, out, elems);
        take_off(t, out, elems);
        return;
    }
    assert(info->block_elems == 1); /* tensor_set's readers set rope_heads on no other vectors */
    for (uint64_t i = 0; i < elems; i++)
        info->to_f32(stored + stored_row(i, elems, t->rope_heads) * info->block_bytes, &out[i], 1);
}

bool tensor_shape_bytes(DType dtype, int rank, const uint64_t *shape, uint64_t *elems,
                        uint64_t *bytes) {
    uint64_t rows = 1;
    for (int i = 0; i < rank - 1; i++) {
        if (shape[i] && rows > UINT64_MAX / shape[i])
            return false;
        rows *= shape[i];
    }
    uint64_t row = rank ? shape[rank - 1] : 1;
    uint64_t per_row;
    if (!dtype_row_bytes(dtype, row, &per_row))
        return false;
    if (row && rows > UINT64_MAX / row)
        return false;
    if (per_row && rows > UINT64_MAX / per_row)
        return false;
    *elems = rows * row;
    *bytes = rows * per_row;
    return true;
}

TensorSet *tensor_set_create(void) {
    TensorSet *s = lg_calloc(1, sizeof *s);
    if (s) {
        arena_init(&s->arena);
        map_init(&s->by_name);
    }
    return s;
}

void tensor_set_close(TensorSet *s) {
    if (!s)
        return;
    for (size_t i = 0; i < s->file_count; i++)
        file_map_close(&s->files[i]);
    lg_free(s->files);
    lg_free(s->items);
    map_clear(&s->by_name);
    arena_clear(&s->arena);
    lg_free(s);
}

size_t tensor_set_count(const TensorSet *s) {
    return s->count;
}

const Tensor *tensor_set_at(const TensorSet *s, size_t index) {
    assert(index < s->count);
    return &s->items[index];
}

const Tensor *tensor_set_find(const TensorSet *s, LgStr name) {
    uint64_t index;
    return map_get(&s->by_name, name, &index) ? &s->items[index] : NULL;
}

static bool has_control(LgStr name) {
    for (size_t i = 0; i < name.len; i++)
        if ((unsigned char)name.ptr[i] < 0x20 || name.ptr[i] == 0x7f)
            return true;
    return false;
}

static LgStatus fail_name(LgError *err, LgStatus status, const char *what, LgStr name,
                          const char *fault) {
    Buf shown;
    buf_init(&shown);
    buf_printable(&shown, name, 200);
    status = lg_fail(err, status, 0, "%s: tensor \"%s\": %s", what, shown.data, fault);
    buf_clear(&shown);
    return status;
}

static LgStatus name_check(const TensorSet *s, const char *what, LgStr name, LgError *err) {
    if (name.len == 0)
        return lg_fail(err, LG_BAD_INPUT, 0, "%s: a tensor has an empty name", what);
    if (name.len > TENSOR_NAME_MAX)
        return fail_name(err, LG_LIMIT, what, name, "the name is longer than 1024 bytes");
    if (has_control(name) || !utf8_valid(name))
        return fail_name(err, LG_BAD_INPUT, what, name,
                         "the name has control characters or is not UTF-8");
    if (map_has(&s->by_name, name))
        return fail_name(err, LG_BAD_INPUT, what, name, "the name occurs twice");
    return LG_OK;
}

LgStatus tensor_set_add(TensorSet *s, const char *what, const Tensor *t, LgError *err) {
    LG_TRY(name_check(s, what, t->name, err));
    if (s->count == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 64;
        Tensor *items = lg_realloc(s->items, cap * sizeof *items);
        if (!items)
            return lg_fail_memory(err);
        s->items = items;
        s->cap = cap;
    }
    LgStr name = arena_str(&s->arena, t->name);
    if (!name.ptr || !map_set(&s->by_name, name, s->count))
        return lg_fail_memory(err);
    s->items[s->count] = *t;
    s->items[s->count].name = name;
    s->count++;
    return LG_OK;
}

LgStatus tensor_set_drop(TensorSet *s, const bool *drop, LgError *err) {
    size_t kept = 0;
    for (size_t i = 0; i < s->count; i++)
        if (!drop[i])
            s->items[kept++] = s->items[i];
    if (kept == s->count)
        return LG_OK;
    s->count = kept;
    map_clear(&s->by_name);
    for (size_t i = 0; i < kept; i++)
        if (!map_set(&s->by_name, s->items[i].name, i))
            return lg_fail_memory(err);
    return LG_OK;
}

LgStatus tensor_set_adopt(TensorSet *s, FileMap *file, LgError *err) {
    if (s->file_count == s->file_cap) {
        size_t cap = s->file_cap ? s->file_cap * 2 : 4;
        FileMap *files = lg_realloc(s->files, cap * sizeof *files);
        if (!files) {
            file_map_close(file);
            return lg_fail_memory(err);
        }
        s->files = files;
        s->file_cap = cap;
    }
    s->files[s->file_count++] = *file;
    *file = (FileMap){0};
    return LG_OK;
}

static int span_order(const void *a, const void *b) {
    const TensorSpan *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

void tensor_spans_sort(TensorSpan *spans, size_t count) {
    if (count)
        qsort(spans, count, sizeof *spans, span_order);
}
