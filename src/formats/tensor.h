/* A stored tensor: a name, a type, a shape and borrowed bytes of a mapped file. */
#ifndef LG_FORMATS_TENSOR_H
#define LG_FORMATS_TENSOR_H

#include "base/status.h"
#include "base/str.h"
#include "formats/dtype.h"

#define TENSOR_RANK_MAX 4

typedef struct Tensor {
    LgStr name; /* in Hugging Face's spelling, whatever the file's format */
    DType dtype;
    int rank;
    uint64_t shape[TENSOR_RANK_MAX]; /* outermost first: [rows, columns] for a linear */
    const unsigned char *data;       /* not aligned: read through memcpy or unaligned loads */
    uint64_t bytes;
    /* llama.cpp stores the rows of q and k of Llama models in another order; 0: stored as named,
     * otherwise the number of heads whose rows are interleaved. tensor_row undoes it. */
    uint32_t rope_heads;
    float added; /* llama.cpp stores Gemma's norms with 1 added; tensor_row_f32 takes it off */
    /* f8: what element (r, c) is multiplied by is scale[r / scale_rows * scale_stride + c /
     * scale_columns]; scale_columns is a multiple of 128, or whole rows share one. NULL: 1. */
    const float *scale;
    uint64_t scale_rows, scale_columns, scale_stride;
} Tensor;

#define TENSOR_SCALE_COLUMNS 128

uint64_t tensor_elems(const Tensor *t);
/* The stored bytes of logical row r (the last axis is a row; the others are flattened). */
const unsigned char *tensor_row(const Tensor *t, uint64_t row);
/* Row r as f32; out has shape[rank-1] elements. */
void tensor_row_f32(const Tensor *t, uint64_t row, float *out);

/* The tensors of one file or of several shards, with the files they are mapped from. */
typedef struct TensorSet TensorSet;
size_t tensor_set_count(const TensorSet *s);
const Tensor *tensor_set_at(const TensorSet *s, size_t index); /* file order */
const Tensor *tensor_set_find(const TensorSet *s, LgStr name); /* NULL: absent */
void tensor_set_close(TensorSet *s);

#endif
