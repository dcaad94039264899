/* Whose sums have the same bits: mma.sync with two ways of holding k, with its operands changed
 * over, and wgmma, all over the same steps of 16 in the same order. docs/decisions has the
 * answer. */
#include <stdlib.h>
#include <string.h>

#include "device_text.h"

enum { WAYS = 4, RESULTS = 16 * 8, STEPS_MAX = 256 };
static const char *const ways[WAYS] = {"order_manual", "order_lanes", "order_swapped",
                                       "order_wgmma"};

static void launch(Gpu *g, void *kernel, uint32_t threads, CudaPtr x, CudaPtr w, CudaPtr out,
                   int steps) {
    CudaLaunchConfig config = {.grid = {1, 1, 1}, .block = {threads, 1, 1}, .stream = g->stream};
    void *args[] = {&x, &w, &out, &steps};
    must_code(g, g->device->driver.launch(&config, kernel, args, NULL), "an experiment");
}

/* Values of one magnitude, of many, near opposites, or with one large among small. */
static void draw_inputs(Gpu *g, int kind, uint16_t *v, size_t count) {
    for (size_t i = 0; i < count; i++) {
        float f = draw_unit(g);
        if (kind == 1)
            for (int e = draw_int(g, 0, 30); e > 0; e--)
                f *= 0.5f;
        if (kind == 2 && i % 2)
            f = -bf16_to_float(v[i - 1]) * (1 + 0.02f * draw_unit(g));
        if (kind == 3 && draw_int(g, 0, 30) == 0)
            f *= 4096;
        v[i] = bf16_from_float(f);
    }
}

void experiment_order(Gpu *g) {
    static const char *const kinds[] = {"one magnitude", "many magnitudes", "near opposites",
                                        "one large among small"};
    static const int steps[] = {1, 2, 8, 64, STEPS_MAX};
    const bool hopper = strcmp(g->device->arch, "sm_90a") == 0;
    void *module = load_file(g, "order.cu"), *kernels[WAYS];
    for (int i = 0; i < WAYS; i++)
        kernels[i] = i < 3 || hopper ? kernel_of(g, module, ways[i]) : NULL;
    size_t k = STEPS_MAX * 16;
    uint16_t *x = room(16 * k * 2), *w = room(8 * k * 2);
    Dev dev_x = dev_new(g, 16 * k * 2), dev_w = dev_new(g, 8 * k * 2),
        dev_out = dev_new(g, WAYS * RESULTS * 4);
    printf("results whose bits differ from order_manual's, of so many: %s, %s\n", g->device->name,
           g->device->arch);
    printf("%-24s %6s %8s %14s %14s %14s\n", "inputs", "K", "results", ways[1], ways[2], ways[3]);
    for (int kind = 0; kind < 4; kind++)
        for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
            long differs[WAYS] = {0}, total = 0;
            for (int trial = 0; trial < 40; trial++) {
                float out[WAYS][RESULTS];
                draw_inputs(g, kind, x, 16 * (size_t)steps[s] * 16);
                draw_inputs(g, kind, w, 8 * (size_t)steps[s] * 16);
                dev_up(g, &dev_x, x, 16 * (size_t)steps[s] * 32);
                dev_up(g, &dev_w, w, 8 * (size_t)steps[s] * 32);
                for (int i = 0; i < WAYS; i++)
                    if (kernels[i])
                        launch(g, kernels[i], i == 3 ? 128 : 32, dev_x.data, dev_w.data,
                               dev_out.data + (CudaPtr)i * RESULTS * 4, steps[s]);
                dev_down(g, &dev_out, out, sizeof out);
                total += RESULTS;
                for (int i = 1; i < WAYS; i++)
                    for (int r = 0; r < RESULTS; r++)
                        differs[i] += memcmp(&out[0][r], &out[i][r], 4) != 0;
            }
            printf("%-24s %6d %8ld %14ld %14ld %14ld\n", kinds[kind], steps[s] * 16, total,
                   differs[1], differs[2], hopper ? differs[3] : -1L);
        }
    free(x);
    free(w);
    dev_free(g, &dev_x);
    dev_free(g, &dev_w);
    dev_free(g, &dev_out);
}
