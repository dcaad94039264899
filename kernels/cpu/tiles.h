/* Tile products (the level with AMX): up to 16 rows of x by 16 pairs of k by 16 outputs at once.
 *
 * TDPBF16PS, as Intel defines it: with pairs in rising order, the products of the lower halves go
 * into one sum from zero, those of the upper halves into another, each step a multiply-add that
 * rounds once; then both sums are added, and the result to what the tile holds. Inputs and results
 * below 2^-126 count as zero. A block has 16 steps in each sum and two more additions: fewer
 * roundings an input than a chain has.
 *
 * Rows of a tile do not see each other, and every product of the level goes through tiles, so that
 * a row's bits depend on the row alone. Tiles 0 to 3 are sums (2 of rows by 2 panels), 4 and 5 rows
 * of x, 6 and 7 weights. The tiles' shape is set for each task, by the thread that does it, and
 * released at its end. */
#ifndef LG_CPU_TILES_H
#define LG_CPU_TILES_H

#include "kernels/cpu/abi.h"
#include "kernels/cpu/pairs.h"
#include "kernels/cpu/vec.h"

#ifdef LGP_LEVEL_AMX
#define LGP_TILE_ROWS 16 /* of a tile, at most */
#define LGP_TILE_STRIP 8 /* blocks that are unpacked at a time */

/* Instructions as text: what compilers offer instead says nothing of the memory that they read. */
/* clang-format off */
#define LGP_TILE_LOAD(tile, p, stride)                                                             \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile                                            \
                     : : "r"(p), "r"((int64_t)(stride)) : "memory")
#define LGP_TILE_STORE(tile, p, stride)                                                            \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)"                                        \
                     : : "r"(p), "r"((int64_t)(stride)) : "memory")
#define LGP_TILE_ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile : : : "memory")
#define LGP_TILE_DOT(sum, x, w)                                                                    \
    __asm__ volatile("tdpbf16ps %%tmm" #w ", %%tmm" #x ", %%tmm" #sum : : : "memory")
/* clang-format on */

/* For a product of `rows` rows: tiles of like height. rows_out: those of all tiles. */
LGP_INLINE void lgp_tiles_begin(int format, int32_t rows, int32_t *rows_out, int32_t *tile_rows) {
    struct {
        uint8_t palette, start, none[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } shape __attribute__((aligned(64))) = {.palette = 1};
    const int32_t tiles = (rows + LGP_TILE_ROWS - 1) / LGP_TILE_ROWS;
    const int32_t height = tiles > 0 ? (rows + tiles - 1) / tiles : 1;
    const int pairs = LGP_PAIRS / (lgp_layouts[format].runs == 2 ? 2 : 1);
    for (int i = 0; i < 8; i++) {
        shape.row_bytes[i] = (uint16_t)(i == 4 || i == 5 ? 4 * pairs : 64);
        shape.rows[i] = (uint8_t)(i < 6 ? height : pairs);
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(shape) : "memory");
    *tile_rows = height;
    *rows_out = tiles * height;
}

LGP_INLINE void lgp_tiles_end(void) {
    __asm__ volatile("tilerelease" ::: "memory");
}

/* One tile of rows, or two, and a strip of blocks. */
typedef struct LgpTiles {
    const float *x; /* of the strip's first block: [tile rows][16 pairs] */
    int64_t x_block;
    const float *w; /* [strip][panels][16 pairs][16] */
    float *acc;     /* [rows][panels][16] */
    int32_t rows, two;
} LgpTiles;

LGP_INLINE void lgp_tiles_dot(int panels, int two, const float *x, const float *x2,
                              const float *w) {
    LGP_TILE_LOAD(4, x, 64);
    LGP_TILE_LOAD(6, w, 64);
    LGP_TILE_DOT(0, 4, 6);
    if (panels > 1) {
        LGP_TILE_LOAD(7, w + LGP_PAIRS * LGP_PANEL, 64);
        LGP_TILE_DOT(1, 4, 7);
    }
    if (two) {
        LGP_TILE_LOAD(5, x2, 64);
        LGP_TILE_DOT(2, 5, 6);
        if (panels > 1)
            LGP_TILE_DOT(3, 5, 7);
    }
}

/* p of one run: [rows][panels][16]. */
LGP_INLINE void lgp_tiles_run(int panels, int runs, int32_t block, int run, const LgpTiles *s,
                              float *p) {
    const int pairs = LGP_PAIRS / runs;
    const float *x = s->x + block * s->x_block + run * pairs, *x2 = x + s->rows * LGP_PAIRS;
    const float *w = s->w + (block * panels * LGP_PAIRS + run * pairs) * LGP_PANEL;
    float *p2 = p + s->rows * panels * LGP_PANEL;
    LGP_TILE_ZERO(0);
    LGP_TILE_ZERO(1);
    LGP_TILE_ZERO(2);
    LGP_TILE_ZERO(3);
    if (s->two)
        lgp_tiles_dot(panels, 1, x, x2, w);
    else
        lgp_tiles_dot(panels, 0, x, x2, w);
    LGP_TILE_STORE(0, p, panels * 64);
    if (panels > 1)
        LGP_TILE_STORE(1, p + LGP_PANEL, panels * 64);
    if (s->two) {
        LGP_TILE_STORE(2, p2, panels * 64);
        if (panels > 1)
            LGP_TILE_STORE(3, p2 + LGP_PANEL, panels * 64);
    }
}

/* acc = acc + p of each of some blocks, in turn, in the tiles. */
LGP_INLINE void lgp_tiles_add(int panels, int32_t blocks, const LgpTiles *s) {
    float *acc = s->acc, *acc2 = acc + s->rows * panels * LGP_PANEL;
    LGP_TILE_LOAD(0, acc, panels * 64);
    if (panels > 1)
        LGP_TILE_LOAD(1, acc + LGP_PANEL, panels * 64);
    if (s->two) {
        LGP_TILE_LOAD(2, acc2, panels * 64);
        if (panels > 1)
            LGP_TILE_LOAD(3, acc2 + LGP_PANEL, panels * 64);
    }
    for (int32_t b = 0; b < blocks; b++) {
        const float *x = s->x + b * s->x_block, *x2 = x + s->rows * LGP_PAIRS;
        const float *w = s->w + (int64_t)b * panels * LGP_PAIRS * LGP_PANEL;
        if (s->two)
            lgp_tiles_dot(panels, 1, x, x2, w);
        else
            lgp_tiles_dot(panels, 0, x, x2, w);
    }
    LGP_TILE_STORE(0, acc, panels * 64);
    if (panels > 1)
        LGP_TILE_STORE(1, acc + LGP_PANEL, panels * 64);
    if (s->two) {
        LGP_TILE_STORE(2, acc2, panels * 64);
        if (panels > 1)
            LGP_TILE_STORE(3, acc2 + LGP_PANEL, panels * 64);
    }
}
#else
#define LGP_TILE_ROWS 0
LGP_INLINE void lgp_tiles_begin(int format, int32_t rows, int32_t *rows_out, int32_t *tile_rows) {
    (void)format, (void)rows, (void)rows_out, (void)tile_rows;
}
LGP_INLINE void lgp_tiles_end(void) {
}
#endif

#endif
