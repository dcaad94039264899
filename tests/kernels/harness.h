/* Checks of the CPU kernels, level by level: a reference in double over the same rounded inputs, a
 * bound for each element that follows from the arithmetic, guard zones, NaN bytes in whatever is
 * not written, and the same bits alone, in company, in any order of tasks. A check takes its
 * kernels from a table, so that broken tables (mutants.c) can be held to it too. */
#ifndef LG_KERNELS_HARNESS_H
#define LG_KERNELS_HARNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/table.h"

#define U_F32 0x1p-24 /* unit roundoff */
#define U_BF16 0x1p-8
#define TINY 0x1p-149 /* the smallest subnormal */

typedef struct Check {
    const LgpKernelTable *k;
    const char *kernel;
    uint64_t seed;  /* of the present case */
    uint64_t draws; /* made from it */
    bool quiet;     /* mutants: failures are expected */
    bool quick;     /* fewer and smaller cases: mutants, sanitizers */
    int failures;   /* a check returns at its first */
    long cases;
    char shape[256];
} Check;

/* Starts a case: later draws depend on (kernel, case number, the run's seed) alone. */
void check_case(Check *c, uint64_t run_seed, int number);
uint64_t draw(Check *c);
int32_t draw_int(Check *c, int32_t from, int32_t to); /* both included */
int32_t draw_of(Check *c, const int32_t *values, int32_t count);
double draw_unit(Check *c); /* [-1, 1) */
#define DRAW_OF(c, ...)                                                                            \
    draw_of((c), (const int32_t[]){__VA_ARGS__},                                                   \
            (int32_t)(sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t)))

/* Magnitudes of inputs. */
typedef enum Regime { REGIME_PLAIN, REGIME_TINY, REGIME_HUGE, REGIME_CANCEL, REGIME_COUNT } Regime;
/* count values; CANCEL: pairs of near opposites. bf16: every value is one. */
void draw_floats(Check *c, Regime regime, bool bf16, float *out, size_t count);
const char *regime_name(Regime r);

/* Memory between guard zones, filled with NaN bytes. */
typedef struct Guarded {
    unsigned char *base;
    size_t bytes;
    void *data; /* aligned to 4 only where `odd`, else to 64 */
} Guarded;
Guarded guarded(size_t bytes, bool odd);
bool guarded_whole(const Guarded *g); /* nobody wrote outside */
void guarded_refill(Guarded *g);
void guarded_free(Guarded *g);

/* Prints kernel, level, shape, seed and what went wrong; counts. Returns false, for `return
 * fail(…)`. */
bool fail(Check *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The usual failure: element `index` is `got`, the reference is `want`, off by more than `bound`.
 */
bool fail_value(Check *c, size_t index, double got, double want, double bound);
/* NaN agrees with NaN, infinities with themselves, others within the bound. */
bool within(double got, double want, double bound);

bool is_bf16(double v);                    /* what was to be rounded is */
double round_error(double ref, bool bf16); /* of one rounding of a value near ref */

/* ---- the checks: false at the first failure ---- */
bool check_matmul(Check *c, uint64_t run_seed);
bool check_attend(Check *c, uint64_t run_seed);
bool check_math(Check *c, uint64_t run_seed);
bool check_table_row(Check *c, uint64_t run_seed);
bool check_lora(Check *c, uint64_t run_seed);
bool check_lora_launch(Check *c, uint64_t run_seed);
bool check_moe(Check *c, uint64_t run_seed);
bool check_lora_moe(Check *c, uint64_t run_seed);

typedef bool (*CheckFn)(Check *c, uint64_t run_seed);
typedef struct CheckRow {
    const char *name;
    CheckFn run;
} CheckRow;
extern const CheckRow check_rows[];
extern const int check_row_count;

/* Every mutant must fail its check: how many did not. */
int check_mutants(uint64_t run_seed);

/* Times the kernels of a level with so many threads. */
void bench(const LgpKernelTable *k, int threads, const char *filter);

#endif
