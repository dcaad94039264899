/* How the readers of this folder fill a TensorSet; nobody outside it does. */
#ifndef LG_FORMATS_TENSOR_SET_H
#define LG_FORMATS_TENSOR_SET_H

#include "base/arena.h"
#include "base/file.h"
#include "base/map.h"
#include "formats/tensor.h"

#define TENSOR_NAME_MAX 1024

struct TensorSet {
    Arena arena; /* names, and what a reader wants to keep as long */
    Tensor *items;
    size_t count, cap;
    Map by_name; /* → index */
    FileMap *files;
    size_t file_count, file_cap;
};

TensorSet *tensor_set_create(void); /* NULL: allocation failed */

/* Copies the tensor and its name, after checking the name: not empty, not longer than
 * TENSOR_NAME_MAX, UTF-8 without control characters, not there yet.  what names the file in
 * messages. */
LgStatus tensor_set_add(TensorSet *s, const char *what, const Tensor *t, LgError *err);

/* Takes those tensors out that drop[index] says. */
LgStatus tensor_set_drop(TensorSet *s, const bool *drop, LgError *err);

/* Takes over the mapping, also on failure. */
LgStatus tensor_set_adopt(TensorSet *s, FileMap *file, LgError *err);

/* Elements and bytes of a shape; false where a product passes 64 bits or a row is no whole number
 * of blocks. */
bool tensor_shape_bytes(DType dtype, int rank, const uint64_t *shape, uint64_t *elems,
                        uint64_t *bytes);

/* A span of a file's data and the tensor it belongs to (an index into the set). */
typedef struct TensorSpan {
    uint64_t begin, end;
    size_t tensor;
} TensorSpan;

void tensor_spans_sort(TensorSpan *spans, size_t count); /* by begin, then end */

#endif
