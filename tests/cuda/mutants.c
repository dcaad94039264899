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
    {"chunks added in falling order", "lora_bgmv", "lora.cuh",
     "*(const float2 *)(p + (i + u) * part_stride)",
     "*(const float2 *)(p + (parts - 1 - i - u) * part_stride)", false},
    {"one chunk too few", "lora_bgmv", "lora.cuh", "for (int i = 0; i < parts; i += 8)",
     "parts -= parts > 1; for (int i = 0; i < parts; i += 8)", false},
    {"reads past a row of x", "lora_bgmv", "lora.cuh", "if (r.wide && at + 4 <= r.k)",
     "if (r.wide && at < r.k)", false},
    {"the last rank is left out", "lora_bgmv", "lora.cuh", "i * 16 + t4 < rank && 2 * j < left",
     "i * 16 + t4 + 8 < rank && 2 * j < left", false},
    {"writes past a row of y", "lora_bgmv", "lora.cuh",
     "        if (i < count)\n                y[i] = lg_bf16(r.v[i]);",
     "        if (i < 8)\n                y[i] = lg_bf16(r.v[i]);", false},
    {"the scale of another member", "lora_bgmv", "lora_bgmv.cu", "[entry * LGC_SET + member]);",
     "[entry * LGC_SET + (member ^ 1)]);", false},
    {"lows are not rounded as they should be", "lora_bgmv", "lora.cuh",
     "*(u32 *)&lows.v[row * pitch + z] = lg_bf16x2(a, b);",
     "*(u32 *)&lows.v[row * pitch + z] = (__float_as_uint(a) >> 16) | "
     "(__float_as_uint(b) & 0xffff0000u);",
     false},
    {"another expert's adapter", "moe_lora_grouped_down", "moe_lora_grouped_down.cu",
     "<= first + i;", "< first + i;", true},
    {"rows of other pairs are folded", "moe_lora_grouped_down", "lora_moe.cuh",
     "if (t.expert[i] == r.expert && t.slot[m][i] == r.slot)", "if (t.expert[i] == r.expert)",
     true},
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
        bool caught = !(m->moe ? check_moe(g) : check_routed(g));
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
