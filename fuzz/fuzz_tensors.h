/* What must hold for the tensors of any file that was accepted. */
#ifndef LG_FUZZ_TENSORS_H
#define LG_FUZZ_TENSORS_H

#include <string.h>

#include "base/mem.h"
#include "formats/tensor.h"
#include "fuzz/fuzz.h"

#define FUZZ_ROW_ELEMS_MAX 65536

/* Reads the first and the last row: a span that is off by one shows in the last. */
static inline void fuzz_read_rows(const Tensor *t) {
    uint64_t elems = tensor_elems(t);
    uint64_t row = t->rank ? t->shape[t->rank - 1] : 1;
    if (elems == 0 || row > FUZZ_ROW_ELEMS_MAX || !dtype_info(t->dtype)->served)
        return;
    float *out = lg_alloc_array((size_t)row, sizeof *out);
    FUZZ_CHECK(out);
    tensor_row_f32(t, 0, out);
    tensor_row_f32(t, elems / row - 1, out);
    lg_free(out);
}

static inline void fuzz_check_tensors(const TensorSet *set, const uint8_t *data, size_t size) {
    for (size_t i = 0; i < tensor_set_count(set); i++) {
        const Tensor *t = tensor_set_at(set, i);
        FUZZ_CHECK(t->bytes <= size);
        FUZZ_CHECK(t->bytes == 0 || (t->data >= data && t->data <= data + size - t->bytes));
        FUZZ_CHECK(tensor_set_find(set, t->name) == t);
        fuzz_read_rows(t);
    }
}

#endif
