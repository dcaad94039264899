/* What every fuzz target shares. A target is one function over bytes that no one vouches for; it
 * checks more than that nothing crashes, by FUZZ_CHECK, which holds in every build. */
#ifndef LG_FUZZ_H
#define LG_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_CHECK(condition)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);         \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

#endif
