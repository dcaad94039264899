/* GGUF: a header of counts, key-value pairs, tensor descriptions, padding, data. All values
 * little-endian. Every count is compared with the bytes that are left before anything is made for
 * it. Format: github.com/ggml-org/ggml, docs/gguf.md. */
#include "formats/gguf.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "formats/gguf_metadata.h"
#include "formats/tensor_set.h"

#define TENSORS_MAX (1u << 20)
#define TENSOR_INFO_BYTES_MIN 24 /* name length, rank, type, offset */
#define ALIGNMENT_DEFAULT 32
#define ALIGNMENT_MAX (1u << 20)

struct Gguf {
    GgufMetadata metadata;
    TensorSet *tensors;
};

/* GGUF's numbers of types; those that are not in our table have the name alone, for the refusal. */
typedef struct GgufType {
    uint32_t number;
    DType dtype;
    const char *unknown; /* NULL: dtype holds */
} GgufType;

static const GgufType gguf_types[] = {
    {0, DTYPE_F32, NULL},        {1, DTYPE_F16, NULL},         {2, DTYPE_Q4_0, NULL},
    {3, DTYPE_Q4_1, NULL},       {6, DTYPE_Q5_0, NULL},        {7, DTYPE_Q5_1, NULL},
    {8, DTYPE_Q8_0, NULL},       {9, DTYPE_COUNT, "Q8_1"},     {10, DTYPE_Q2_K, NULL},
    {11, DTYPE_Q3_K, NULL},      {12, DTYPE_Q4_K, NULL},       {13, DTYPE_Q5_K, NULL},
    {14, DTYPE_Q6_K, NULL},      {15, DTYPE_COUNT, "Q8_K"},    {16, DTYPE_COUNT, "IQ2_XXS"},
    {17, DTYPE_COUNT, "IQ2_XS"}, {18, DTYPE_COUNT, "IQ3_XXS"}, {19, DTYPE_COUNT, "IQ1_S"},
    {20, DTYPE_IQ4_NL, NULL},    {21, DTYPE_COUNT, "IQ3_S"},   {22, DTYPE_COUNT, "IQ2_S"},
    {23, DTYPE_COUNT, "IQ4_XS"}, {24, DTYPE_I8, NULL},         {25, DTYPE_I16, NULL},
    {26, DTYPE_I32, NULL},       {27, DTYPE_I64, NULL},        {28, DTYPE_F64, NULL},
    {29, DTYPE_COUNT, "IQ1_M"},  {30, DTYPE_BF16, NULL},       {34, DTYPE_COUNT, "TQ1_0"},
    {35, DTYPE_COUNT, "TQ2_0"},  {39, DTYPE_COUNT, "MXFP4"},
};

/* A tensor as described, before the place of the data is known. */
typedef struct Described {
    Tensor tensor;
    uint64_t offset;
} Described;

static LgStatus read_header(GgufCursor *c, uint64_t *tensor_count, uint64_t *pair_count) {
    const unsigned char *magic;
    uint32_t version;
    if (!gguf_take(c, 4, &magic) || memcmp(magic, "GGUF", 4) != 0)
        return lg_fail(c->err, LG_BAD_INPUT, 0, "%s: it does not begin with \"GGUF\"", c->what);
    LG_TRY(gguf_u32(c, &version));
    if (version != 2 && version != 3)
        return lg_fail(c->err, LG_BAD_INPUT, 4, "%s: GGUF version %u%s; 2 and 3 are read", c->what,
                       version, version && !(version & 0xffff) ? " (a big-endian file)" : "");
    LG_TRY(gguf_u64(c, tensor_count));
    LG_TRY(gguf_u64(c, pair_count));
    if (*tensor_count > TENSORS_MAX)
        return lg_fail(c->err, LG_LIMIT, 8, "%s: it claims %llu tensors; at most %u are read",
                       c->what, (unsigned long long)*tensor_count, TENSORS_MAX);
    if (*tensor_count > (c->size - c->at) / TENSOR_INFO_BYTES_MIN)
        return lg_fail(c->err, LG_BAD_INPUT, 8,
                       "%s: it claims %llu tensors, more than its %zu bytes can describe", c->what,
                       (unsigned long long)*tensor_count, c->size);
    return LG_OK;
}

static LgStatus fail_tensor(GgufCursor *c, LgStr name, const char *fault) {
    Buf shown;
    buf_init(&shown);
    buf_printable(&shown, name, 200);
    LgStatus status =
        lg_fail(c->err, LG_BAD_INPUT, c->at, "%s: tensor \"%s\": %s", c->what, shown.data, fault);
    buf_clear(&shown);
    return status;
}

static LgStatus read_type(GgufCursor *c, Tensor *t) {
    uint32_t number;
    LG_TRY(gguf_u32(c, &number));
    char fault[80] = "";
    for (size_t i = 0; i < sizeof gguf_types / sizeof gguf_types[0]; i++) {
        const GgufType *row = &gguf_types[i];
        if (row->number != number)
            continue;
        t->dtype = row->dtype;
        if (!row->unknown)
            return LG_OK;
        snprintf(fault, sizeof fault, "its type %s is not supported", row->unknown);
    }
    if (!fault[0])
        snprintf(fault, sizeof fault, "its type has the unknown number %u", number);
    return fail_tensor(c, t->name, fault);
}

/* GGUF writes the innermost axis first. */
static LgStatus read_shape(GgufCursor *c, Tensor *t) {
    uint32_t rank;
    LG_TRY(gguf_u32(c, &rank));
    if (rank < 1 || rank > TENSOR_RANK_MAX)
        return fail_tensor(c, t->name, "it must have 1 to 4 axes");
    t->rank = (int)rank;
    for (int i = t->rank - 1; i >= 0; i--) {
        LG_TRY(gguf_u64(c, &t->shape[i]));
        if (t->shape[i] == 0 || t->shape[i] > INT64_MAX)
            return fail_tensor(c, t->name, "an axis of its shape is 0 or passes 63 bits");
    }
    return LG_OK;
}

static LgStatus read_described(GgufCursor *c, uint32_t alignment, Described *d) {
    Tensor *t = &d->tensor;
    uint64_t elems;
    LG_TRY(gguf_string(c, &t->name));
    LG_TRY(read_shape(c, t));
    LG_TRY(read_type(c, t));
    LG_TRY(gguf_u64(c, &d->offset));
    if (d->offset % alignment != 0)
        return fail_tensor(c, t->name, "its offset is no multiple of the alignment");
    if (!tensor_shape_bytes(t->dtype, t->rank, t->shape, &elems, &t->bytes))
        return fail_tensor(c, t->name,
                           t->shape[t->rank - 1] % dtype_info(t->dtype)->block_elems
                               ? "its rows are no whole number of blocks"
                               : "its shape multiplies to more than 64 bits");
    return LG_OK;
}

/* Tensors follow each other with padding between them and nothing else, as writers make them. */
static LgStatus check_layout(GgufCursor *c, TensorSpan *spans, size_t count, const Described *all,
                             uint32_t alignment) {
    tensor_spans_sort(spans, count);
    uint64_t end = 0;
    for (size_t i = 0; i < count; i++) {
        LgStr name = all[spans[i].tensor].tensor.name;
        if (spans[i].begin < end)
            return fail_tensor(c, name, "its data overlaps that of another tensor");
        if (spans[i].begin - end >= alignment)
            return fail_tensor(c, name, "bytes in front of its data belong to no tensor");
        end = spans[i].end;
    }
    return LG_OK;
}

static LgStatus place_tensors(GgufCursor *c, Described *all, size_t count, uint32_t alignment,
                              TensorSpan *spans, TensorSet *set) {
    uint64_t padding = (alignment - c->at % alignment) % alignment;
    uint64_t start = c->at + padding; /* may lie past the end of a file without tensors */
    uint64_t data_bytes = start < c->size ? c->size - start : 0;
    for (size_t i = 0; i < count; i++) {
        Tensor *t = &all[i].tensor;
        if (all[i].offset > data_bytes || t->bytes > data_bytes - all[i].offset)
            return fail_tensor(c, t->name, "its data lies past the end of the file");
        t->data = c->data + start + all[i].offset;
        spans[i] = (TensorSpan){all[i].offset, all[i].offset + t->bytes, i};
    }
    LG_TRY(check_layout(c, spans, count, all, alignment));
    for (size_t i = 0; i < count; i++)
        LG_TRY(tensor_set_add(set, c->what, &all[i].tensor, c->err));
    return LG_OK;
}

static LgStatus alignment_of(GgufCursor *c, const GgufMetadata *m, uint32_t *out) {
    const ConfigValue *v = gguf_metadata_get(m, "general.alignment");
    *out = ALIGNMENT_DEFAULT;
    if (!v)
        return LG_OK;
    if (v->kind != CONFIG_INT || v->integer < 8 || v->integer > ALIGNMENT_MAX ||
        (v->integer & (v->integer - 1)) != 0)
        return lg_fail(c->err, LG_BAD_INPUT, 0,
                       "%s: general.alignment must be a power of two from 8 to %u", c->what,
                       ALIGNMENT_MAX);
    *out = (uint32_t)v->integer;
    return LG_OK;
}

static LgStatus read_tensors(GgufCursor *c, size_t count, Gguf *g) {
    uint32_t alignment;
    LG_TRY(alignment_of(c, &g->metadata, &alignment));
    Described *all = lg_alloc_array(count, sizeof *all);
    TensorSpan *spans = lg_alloc_array(count, sizeof *spans);
    LgStatus status = all && spans ? LG_OK : lg_fail_memory(c->err);
    for (size_t i = 0; i < count && status == LG_OK; i++) {
        all[i] = (Described){0};
        status = read_described(c, alignment, &all[i]);
    }
    if (status == LG_OK)
        status = place_tensors(c, all, count, alignment, spans, g->tensors);
    lg_free(all);
    lg_free(spans);
    return status;
}

static LgStatus parse(GgufCursor *c, Gguf *g) {
    uint64_t tensor_count, pair_count;
    LG_TRY(read_header(c, &tensor_count, &pair_count));
    LG_TRY(gguf_metadata_read(&g->metadata, c, pair_count));
    return read_tensors(c, (size_t)tensor_count, g);
}

LgStatus gguf_parse(const unsigned char *data, size_t size, const char *what, Gguf **out,
                    LgError *err) {
    Gguf *g = lg_calloc(1, sizeof *g);
    if (!g)
        return lg_fail_memory(err);
    gguf_metadata_init(&g->metadata);
    g->tensors = tensor_set_create();
    static const unsigned char nothing[1];
    GgufCursor cursor = {.data = size ? data : nothing, .size = size, .what = what, .err = err};
    LgStatus status = g->tensors ? parse(&cursor, g) : lg_fail_memory(err);
    if (status == LG_OK)
        *out = g;
    else
        gguf_close(g);
    return status;
}

LgStatus gguf_open(const char *path, Gguf **out, LgError *err) {
    FileMap map;
    LG_TRY(file_map_open(path, &map, err));
    Gguf *g = NULL;
    LgStatus status = gguf_parse(map.data, map.size, path, &g, err);
    if (status != LG_OK) {
        file_map_close(&map);
        return status;
    }
    status = tensor_set_adopt(g->tensors, &map, err);
    if (status == LG_OK)
        *out = g;
    else
        gguf_close(g);
    return status;
}

void gguf_close(Gguf *g) {
    if (!g)
        return;
    gguf_metadata_clear(&g->metadata);
    tensor_set_close(g->tensors);
    lg_free(g);
}

const ConfigValue *gguf_get(const Gguf *g, const char *key) {
    return gguf_metadata_get(&g->metadata, key);
}

size_t gguf_strings(const Gguf *g, const char *key, const LgStr **items) {
    const GgufEntry *e = gguf_metadata_find(&g->metadata, key);
    *items = e ? e->strings : NULL;
    return *items ? e->count : 0;
}

size_t gguf_ints(const Gguf *g, const char *key, const int32_t **items) {
    const GgufEntry *e = gguf_metadata_find(&g->metadata, key);
    *items = e ? e->ints : NULL;
    return *items ? e->count : 0;
}

size_t gguf_floats(const Gguf *g, const char *key, const float **items) {
    const GgufEntry *e = gguf_metadata_find(&g->metadata, key);
    *items = e ? e->floats : NULL;
    return *items ? e->count : 0;
}

size_t gguf_key_count(const Gguf *g) {
    return g->metadata.count;
}

LgStr gguf_key(const Gguf *g, size_t index) {
    return g->metadata.entries[index].key;
}

const TensorSet *gguf_tensors(const Gguf *g) {
    return g->tensors;
}
