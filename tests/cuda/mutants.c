/* The checks are tested too: each broken kernel must fail them. */
#include <stdio.h>
#include <string.h>

#include "device_text.h"

typedef struct Mutant {
    const char *what, *module, *header, *from, *to;
    bool moe;
} Mutant;

/* A change in a header is compiled into the one module alone, so that it differs from the
 * others. */
static const Mutant mutants[] = {
    {"product and sum rounded apart", "lora_bgmv", "lora.cuh",
     "y.v[2 * j + e] = __fmaf_rn(scale, total[j][2 * half + e], y.v[2 * j + e]);",
     "y.v[2 * j + e] = lg_f32(lg_bf16(scale * total[j][2 * half + e])) + y.v[2 * j + e];", false},
    {"chunks added in falling order", "lora_bgmv", "lora.cuh", "&stage[part * n]",
     "&stage[(at.parts - 1 - part) * n]", false},
    {"one chunk too few", "lora_bgmv", "lora.cuh", "part < at.parts; part++",
     "part < at.parts - 1; part++", false},
    {"reads past a row of x", "lora_bgmv", "lora.cuh", "if (at + 3 < r.k)", "if (at < r.k)", false},
    {"the last ranks are left out", "lora_bgmv", "lora.cuh", "i * 16 + t4 < rank && s * LG_STRIP",
     "i * 16 + t4 + 8 < rank && s * LG_STRIP", false},
    {"writes past a row of y", "lora_bgmv", "lora.cuh",
     "        if (i < count)\n                y[i] = lg_bf16(r.v[i]);",
     "        if (i < 8)\n                y[i] = lg_bf16(r.v[i]);", false},
    {"the scale of another member", "lora_bgmv", "lora_bgmv.cu", "[entry * LGC_SET + member])",
     "[entry * LGC_SET + (member ^ 1)])", false},
    {"lows are cut, not rounded", "lora_bgmv", "lora.cuh", "i % 2 * 2] = lg_bf16x2(sum.x, sum.y);",
     "i % 2 * 2] = (__float_as_uint(sum.x) >> 16) | (__float_as_uint(sum.y) & 0xffff0000u);",
     false},
    {"another expert's adapter", "moe_lora_grouped_down", "moe_lora_grouped_down.cu",
     "<= first + i;", "< first + i;", true},
    {"rows of other pairs are folded", "moe_lora_grouped_down", "moe_lora_grouped_down.cu",
     "t.row[o].expert == t.row[r].expert && t.row[o].slot[m] == t.row[r].slot[m]",
     "t.row[o].expert == t.row[r].expert", true},
};

static void swap_kernels(Gpu *g, const Mutant *m, void *module, LoraKernels *k) {
#define MUTANT_KERNEL(field, name, kernel, needed)                                                 \
    if (strcmp(m->module, name) == 0)                                                              \
        k->field = kernel_of(g, module, kernel);
    LORA_KERNEL_MAP(MUTANT_KERNEL)
#undef MUTANT_KERNEL
}

bool check_mutants(Gpu *g) {
    const LoraKernels whole = g->kernels;
    bool good = true;
    for (size_t i = 0; i < sizeof mutants / sizeof *mutants; i++) {
        const Mutant *m = &mutants[i];
        const CudaSource *s = cuda_source_find(m->module, g->device->arch, "common");
        void *module = load_text(g, s->stem, s->text, m->header, m->from, m->to);
        swap_kernels(g, m, module, &g->kernels);
        printf("  (expected) %s: ", m->what);
        const uint64_t seed = g->seed;
        bool caught = false; /* an order of sums shows where a sum is near the middle of two bf16 */
        for (int again = 0; again < 6 && !caught; again++, g->seed++)
            caught = !(m->moe ? check_moe(g) : check_routed(g));
        g->seed = seed;
        if (!caught) {
            printf("NOT NOTICED\n");
            good = false;
        }
        g->failures = 0;
        g->kernels = whole;
        g->cases++;
        g->device->driver.module_unload(module);
    }
    return good;
}
