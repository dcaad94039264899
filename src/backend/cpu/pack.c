/* Packing of weight matrices: one routine a stored type, each for one panel of 16 rows. */
#include "backend/cpu/pack.h"

#include <assert.h>
#include <string.h>

#include "base/float.h"

/* The stored rows of a panel; missing ones (past the matrix) are NULL and become zeros. */
typedef struct PanelRows {
    const unsigned char *row[LGP_PANEL];
    const Tensor *tensor[LGP_PANEL]; /* where the row is from, and its number there */
    uint64_t number[LGP_PANEL];
} PanelRows;

typedef bool (*PanelFn)(const PanelRows *p, uint64_t columns, unsigned char *dst);

static uint16_t load_u16(const unsigned char *p) {
    uint16_t u;
    memcpy(&u, p, sizeof u);
    return u;
}

static void store_u16(unsigned char *p, uint16_t u) {
    memcpy(p, &u, sizeof u);
}

/* Columns that are spread at once: what they become stays in the first cache. */
#define SPREAD 64

static uint64_t spread_end(uint64_t from, uint64_t columns) {
    return columns - from < SPREAD ? columns : from + SPREAD;
}

static bool panel_f32(const PanelRows *p, uint64_t columns, unsigned char *dst) {
    for (uint64_t from = 0; from < columns; from += SPREAD)
        for (uint64_t o = 0; o < LGP_PANEL; o++)
            for (uint64_t k = from; p->row[o] && k < spread_end(from, columns); k++)
                memcpy(dst + (k * LGP_PANEL + o) * 4, p->row[o] + k * 4, 4);
    return true;
}

/* Two-byte elements; place: where in a k's 16 output o goes. */
static void panel_u16(const PanelRows *p, uint64_t columns, unsigned char *dst,
                      const uint8_t place[LGP_PANEL]) {
    for (uint64_t from = 0; from < columns; from += SPREAD)
        for (uint64_t o = 0; o < LGP_PANEL; o++) {
            unsigned char *to = dst + (from * LGP_PANEL + place[o]) * 2;
            for (uint64_t k = from; p->row[o] && k < spread_end(from, columns);
                 k++, to += LGP_PANEL * 2)
                store_u16(to, load_u16(p->row[o] + k * 2));
        }
}

static bool panel_f16(const PanelRows *p, uint64_t columns, unsigned char *dst) {
    static const uint8_t place[LGP_PANEL] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    panel_u16(p, columns, dst, place);
    return true;
}

static const uint8_t bf16_place[LGP_PANEL] = {0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15};

static bool panel_bf16(const PanelRows *p, uint64_t columns, unsigned char *dst) {
    panel_u16(p, columns, dst, bf16_place);
    return true;
}

/* One stored block of output o, to its lane of a packed block. */
typedef bool (*BlockFn)(const unsigned char *src, unsigned char *block, int o);

static inline bool panel_blocks(const PanelRows *p, uint64_t columns, unsigned char *dst,
                                int format, uint64_t src_bytes, BlockFn block) {
    uint64_t bytes = lgp_panel_bytes(format, LGP_BLOCK);
    bool fits = true;
    for (uint64_t b = 0; b < columns / LGP_BLOCK; b++)
        for (int o = 0; o < LGP_PANEL; o++)
            if (p->row[o])
                fits &= block(p->row[o] + b * src_bytes, dst + b * bytes, o);
    return fits;
}

static inline bool block_q8(const unsigned char *src, unsigned char *block, int o) {
    memcpy(block + 2 * o, src, 2);
    for (int k = 0; k < LGP_BLOCK; k++)
        block[2 * LGP_PANEL + k * LGP_PANEL + o] = src[2 + k];
    return true;
}

static bool panel_q8(const PanelRows *p, uint64_t columns, unsigned char *dst) {
    return panel_blocks(p, columns, dst, LGP_Q8, 34, block_q8);
}

/* Q4_0 as Q8: code - 8, the same scale. */
static inline bool block_q4_0_as_q8(const unsigned char *src, unsigned char *block, int o) {
    memcpy(block + 2 * o, src, 2);
    unsigned char *codes = block + 2 * LGP_PANEL + o;
    for (int k = 0; k < LGP_BLOCK / 2; k++) {
        codes[k * LGP_PANEL] = (unsigned char)((src[2 + k] & 15) - 8);
        codes[(k + LGP_BLOCK / 2) * LGP_PANEL] = (unsigned char)((src[2 + k] >> 4) - 8);
    }
    return true;
}

static bool panel_q4_0_as_q8(const PanelRows *p, uint64_t columns, unsigned char *dst) {
    return panel_blocks(p, columns, dst, LGP_Q8, 18, block_q4_0_as_q8);
}

/* The low nibbles of eight bytes, the first one lowest. */
static uint32_t low_nibbles(uint64_t bytes) {
    bytes &= 0x0f0f0f0f0f0f0f0full;
    bytes = (bytes | bytes >> 4) & 0x00ff00ff00ff00ffull;
    bytes = (bytes | bytes >> 8) & 0x0000ffff0000ffffull;
    return (uint32_t)(bytes | bytes >> 16);
}

/* The 16 stored bytes hold elements 0 to 15 in their low halves, 16 to 31 in the high ones. */
static void q4_words(const unsigned char *src, unsigned char *codes) {
    for (int half = 0; half < 2; half++) {
        uint64_t bytes;
        memcpy(&bytes, src + 8 * half, 8);
        uint32_t first = low_nibbles(bytes), last = low_nibbles(bytes >> 4);
        memcpy(codes + half * LGP_PANEL * 4, &first, 4);
        memcpy(codes + (2 + half) * LGP_PANEL * 4, &last, 4);
    }
}

static inline bool block_q4_1(const unsigned char *src, unsigned char *block, int o) {
    memcpy(block + 2 * o, src, 2);
    memcpy(block + 2 * LGP_PANEL + 2 * o, src + 2, 2);
    q4_words(src + 4, block + 4 * LGP_PANEL + 4 * o);
    return true;
}

static bool panel_q4_1(const PanelRows *p, uint64_t columns, unsigned char *dst) {
    return panel_blocks(p, columns, dst, LGP_Q4, 20, block_q4_1);
}

/* (code - 8) d = code d + m with m = -8 d, which f16 holds exactly unless it is too large. */
static inline bool block_q4_0(const unsigned char *src, unsigned char *block, int o) {
    float d = f16_to_float(load_u16(src));
    memcpy(block + 2 * o, src, 2);
    store_u16(block + 2 * LGP_PANEL + 2 * o, f16_from_float(-8.0f * d));
    q4_words(src + 2, block + 4 * LGP_PANEL + 4 * o);
    return !(d > 8188.0f || d < -8188.0f); /* 8 * 8188 = 65504, the largest f16 */
}

static bool panel_q4_0(const PanelRows *p, uint64_t columns, unsigned char *dst) {
    return panel_blocks(p, columns, dst, LGP_Q4, 18, block_q4_0);
}

/* ---- any block format, taken apart ---- */

/* The scales of run `run` of a stored block, to lane o; head: of the blocks that share d and m. */
static void put_scales(const BlockParts *b, const LgpLayout *l, int run, unsigned char *head,
                       unsigned char *scales, int o) {
    unsigned char *halves = l->span ? head : scales;
    store_u16(halves + 2 * o, b->d);
    if (l->minimum)
        store_u16(halves + 2 * LGP_PANEL + 2 * o, b->m);
    for (int r = 0; l->span && r < l->runs; r++) {
        int from = (run + r * (LGP_BLOCK / l->runs)) / b->run;
        scales[r * LGP_PANEL + o] = (unsigned char)b->scale[from];
        if (l->minimum)
            scales[(l->runs + r) * LGP_PANEL + o] = (unsigned char)b->min[from];
    }
}

static void put_codes(const int8_t *code, const LgpLayout *l, unsigned char *codes, int o) {
    for (int k = 0; l->code_bits == 8 && k < LGP_BLOCK; k++)
        codes[k * LGP_PANEL + o] = (unsigned char)code[k];
    for (int g = 0; l->code_bits == 4 && g < LGP_BLOCK / 8; g++) {
        uint32_t word = 0;
        for (int j = 0; j < 8; j++)
            word |= (uint32_t)(code[8 * g + j] & 15) << (4 * j);
        memcpy(codes + (g * LGP_PANEL + o) * 4, &word, 4);
    }
}

static void panel_parts(const PanelRows *p, uint64_t columns, unsigned char *dst, int format,
                        DType dtype) {
    const DTypeInfo *info = dtype_info(dtype);
    const LgpLayout *l = &lgp_layouts[format];
    const uint64_t bytes = lgp_block_bytes(format);
    unsigned char *blocks = dst + lgp_head_bytes(format, columns);
    BlockParts b;
    for (int o = 0; o < LGP_PANEL; o++) {
        for (uint64_t at = 0; p->row[o] && at < columns / LGP_BLOCK; at++) {
            uint64_t in_block = at * LGP_BLOCK % info->block_elems;
            if (in_block == 0)
                info->parts(p->row[o] + at * LGP_BLOCK / info->block_elems * info->block_bytes, &b);
            unsigned char *block = blocks + at * bytes;
            unsigned char *head = l->span ? dst + at / l->span * l->head_bytes : NULL;
            put_scales(&b, l, (int)in_block, head, block, o);
            put_codes(b.code + in_block, l, block + l->scale_bytes, o);
        }
    }
}

#define PANEL_PARTS(dtype, format)                                                                 \
    static bool panel_##dtype(const PanelRows *p, uint64_t columns, unsigned char *dst) {          \
        panel_parts(p, columns, dst, format, DTYPE_##dtype);                                       \
        return true;                                                                               \
    }
PANEL_PARTS(Q5_0, LGP_Q8)
PANEL_PARTS(IQ4_NL, LGP_Q8)
PANEL_PARTS(Q5_1, LGP_Q8M)
PANEL_PARTS(Q2_K, LGP_K4S)
PANEL_PARTS(Q3_K, LGP_K4S)
PANEL_PARTS(Q4_K, LGP_K4)
PANEL_PARTS(Q5_K, LGP_K8)
PANEL_PARTS(Q6_K, LGP_K8S)

/* ---- f8 ---- */

/* The kernel's codes count 2^-8: the scale makes up for it. False: a NaN, which the kernel's codes
 * do not know, or a scale that is then no f32. */
static bool panel_f8(const PanelRows *p, uint64_t columns, unsigned char *dst) {
    const LgpLayout *l = &lgp_layouts[LGP_F8];
    unsigned char *codes = dst + lgp_head_bytes(LGP_F8, columns);
    bool fits = true;
    for (uint64_t o = 0; o < LGP_PANEL; o++) {
        const Tensor *t = p->tensor[o];
        for (uint64_t k = 0; p->row[o] && k < columns; k++) {
            codes[k * LGP_PANEL + o] = p->row[o][k];
            fits &= (p->row[o][k] & 0x7f) != 0x7f;
            if (k % (l->span * LGP_BLOCK))
                continue;
            float scale = 256.0f;
            if (t->scale)
                scale *=
                    t->scale[p->number[o] / t->scale_rows * t->scale_stride + k / t->scale_columns];
            fits &= scale - scale == 0.0f;
            memcpy(dst + k / (l->span * LGP_BLOCK) * l->head_bytes + 4 * o, &scale, 4);
        }
    }
    return fits;
}

/* Stored type, packed format, routine; the first row of a type is what it packs to. */
static const struct {
    DType dtype;
    int format;
    PanelFn panel;
} packings[] = {
    {DTYPE_F32, LGP_F32, panel_f32},        {DTYPE_F16, LGP_F16, panel_f16},
    {DTYPE_BF16, LGP_BF16, panel_bf16},     {DTYPE_Q8_0, LGP_Q8, panel_q8},
    {DTYPE_Q4_0, LGP_Q4, panel_q4_0},       {DTYPE_Q4_1, LGP_Q4, panel_q4_1},
    {DTYPE_Q4_0, LGP_Q8, panel_q4_0_as_q8}, {DTYPE_Q5_0, LGP_Q8, panel_Q5_0},
    {DTYPE_IQ4_NL, LGP_Q8, panel_IQ4_NL},   {DTYPE_Q5_1, LGP_Q8M, panel_Q5_1},
    {DTYPE_Q2_K, LGP_K4S, panel_Q2_K},      {DTYPE_Q3_K, LGP_K4S, panel_Q3_K},
    {DTYPE_Q4_K, LGP_K4, panel_Q4_K},       {DTYPE_Q5_K, LGP_K8, panel_Q5_K},
    {DTYPE_Q6_K, LGP_K8S, panel_Q6_K},      {DTYPE_F8_E4M3, LGP_F8, panel_f8},
};

#define PACKING_COUNT (sizeof packings / sizeof *packings)

static const Tensor *first_tensor(const ParamBinding *b) {
    return b->stacked ? b->stacked[0] : b->tensor;
}

int pack_format(const ParamBinding *b) {
    const Tensor *t = first_tensor(b);
    for (size_t i = 0; t && i < PACKING_COUNT; i++)
        if (packings[i].dtype == t->dtype)
            return packings[i].format;
    return t ? -1 : LGP_F32;
}

uint64_t pack_panel_count(uint64_t rows) {
    return rows / LGP_PANEL + (rows % LGP_PANEL != 0);
}

size_t pack_matrix_bytes(int format, uint64_t rows, uint64_t columns) {
    if (columns > SIZE_MAX / 4 / LGP_PANEL - 4 * LGP_BLOCK)
        return 0;
    uint64_t panel = lgp_panel_bytes(format, columns), panels = pack_panel_count(rows);
    return panel && panels > SIZE_MAX / panel ? 0 : panel * panels;
}

/* The tensor that has row r of the matrix, and its number there. A window takes `declared` rows of
 * each `stored` ones. */
static const Tensor *find_row(const ParamBinding *b, uint64_t rows, uint64_t r, uint64_t *number) {
    const Tensor *t = b->tensor;
    if (b->stacked) {
        uint64_t each = tensor_elems(b->stacked[0]) / b->stacked[0]->shape[b->stacked[0]->rank - 1];
        *number = r % each;
        return b->stacked[r / each];
    }
    if (!t) /* neither: the caller has none of its rows to ask for */
        return NULL;
    uint64_t stored = t->shape[t->rank - 2], outer = 1;
    for (int i = 0; i < t->rank - 2; i++)
        outer *= t->shape[i];
    uint64_t declared = rows / outer;
    *number = r / declared * stored + b->from_row + r % declared;
    return t;
}

static void take_row(const ParamBinding *b, uint64_t rows, uint64_t r, PanelRows *p, uint64_t o) {
    if (b->tensor && b->tensor->rank < 2) { /* one row; a window of it is cut by the columns */
        p->tensor[o] = b->tensor;
        p->row[o] = b->tensor->data + b->from_row;
        return;
    }
    p->tensor[o] = find_row(b, rows, r, &p->number[o]);
    p->row[o] = tensor_row(p->tensor[o], p->number[o]);
}

static void fill_constant(float value, uint64_t rows, uint64_t columns, uint64_t from, uint64_t to,
                          float *dst) {
    for (uint64_t p = from; p < to; p++)
        for (uint64_t k = 0; k < columns; k++)
            for (uint64_t o = 0; o < LGP_PANEL; o++)
                dst[(p * columns + k) * LGP_PANEL + o] = p * LGP_PANEL + o < rows ? value : 0.0f;
}

bool pack_matrix_panels(const ParamBinding *b, int format, uint64_t rows, uint64_t columns,
                        uint64_t panel_from, uint64_t panel_to, void *dst) {
    const Tensor *t = first_tensor(b);
    if (!t) {
        assert(format == LGP_F32);
        fill_constant((float)b->constant, rows, columns, panel_from, panel_to, dst);
        return true;
    }
    PanelFn panel = NULL;
    for (size_t i = 0; i < PACKING_COUNT; i++)
        if (packings[i].dtype == t->dtype && packings[i].format == format)
            panel = packings[i].panel;
    assert(panel && (dtype_info(t->dtype)->block_elems == 1 || columns % LGP_BLOCK == 0));
    uint64_t bytes = lgp_panel_bytes(format, columns);
    bool fits = true;
    for (uint64_t p = panel_from; p < panel_to; p++) {
        PanelRows source = {.row = {NULL}};
        for (uint64_t o = 0; o < LGP_PANEL && p * LGP_PANEL + o < rows; o++)
            take_row(b, rows, p * LGP_PANEL + o, &source, o);
        unsigned char *to = (unsigned char *)dst + p * bytes;
        if (!source.row[LGP_PANEL - 1])
            memset(to, 0, bytes);
        fits &= panel(&source, columns, to);
    }
    return fits;
}

void pack_f32_panels(const float *rows_f32, uint64_t stride, int format, uint64_t rows,
                     uint64_t columns, uint64_t panel_from, uint64_t panel_to, void *dst) {
    assert(format == LGP_F32 || format == LGP_BF16);
    uint64_t bytes = lgp_panel_bytes(format, columns);
    for (uint64_t p = panel_from; p < panel_to; p++) {
        unsigned char *to = (unsigned char *)dst + p * bytes;
        for (uint64_t o = 0; o < LGP_PANEL; o++) {
            uint64_t r = p * LGP_PANEL + o;
            for (uint64_t k = 0; k < columns; k++) {
                float v = r < rows ? rows_f32[r * stride + k] : 0.0f;
                if (format == LGP_F32)
                    memcpy(to + (k * LGP_PANEL + o) * 4, &v, 4);
                else
                    store_u16(to + (k * LGP_PANEL + bf16_place[o]) * 2, bf16_from_float(v));
            }
        }
    }
}
