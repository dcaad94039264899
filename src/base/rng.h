/* A counter-based generator: a value depends on (seed, counter) alone, so that the same seed gives
 * the same text alone and in a crowd. */
#ifndef LG_BASE_RNG_H
#define LG_BASE_RNG_H

#include <stdint.h>

uint64_t rng_u64(uint64_t seed, uint64_t counter);
float rng_unit(uint64_t seed, uint64_t counter); /* [0, 1), 24 bits */

#endif
