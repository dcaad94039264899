/* Rows of bound params, as stored, to the panels that the CPU kernels read (kernels/cpu/matmul.h
 * has the order). */
#ifndef LG_CPU_PACK_H
#define LG_CPU_PACK_H

#include <stdbool.h>

#include "ir/bind.h"
#include "kernels/cpu/abi.h"

/* The LGP_* format that a bound param packs to; a constant and a norm packs to LGP_F32.  -1: there
 * is no product of its stored type. */
int pack_format(const ParamBinding *b);

/* Bytes of the panels of a [rows, columns] matrix; 0 where they would not fit a size_t. */
size_t pack_matrix_bytes(int format, uint64_t rows, uint64_t columns);
uint64_t pack_panel_count(uint64_t rows);

/* Packs panels [panel_from, panel_to) of the matrix into dst, the address of panel 0: threads share
 * the work by panels. format: pack_format(b), or LGP_Q8 for a Q4_0 param.  rows and columns are the
 * whole matrix's; columns of quantised params are whole blocks (formats have seen to that).  False:
 * a Q4_0 block scale so large (above 8188) that -8 d is no f16; such a matrix is to be packed as
 * LGP_Q8, which holds the same values.  Or a NaN in f8, or a scale of f8 past f32: there is no
 * product of those. */
bool pack_matrix_panels(const ParamBinding *b, int format, uint64_t rows, uint64_t columns,
                        uint64_t panel_from, uint64_t panel_to, void *dst)
    __attribute__((warn_unused_result));

/* The same for f32 rows in memory, [rows, columns] with a row stride in elements: adapters. format:
 * LGP_F32 or LGP_BF16 (rounded to nearest even). */
void pack_f32_panels(const float *rows_f32, uint64_t stride, int format, uint64_t rows,
                     uint64_t columns, uint64_t panel_from, uint64_t panel_to, void *dst);

#endif
