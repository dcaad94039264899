/* Two rounds of the SplitMix64 finaliser (Steele, Lea, Flood, 2014) over seed and counter. */
#include "base/rng.h"

static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t rng_u64(uint64_t seed, uint64_t counter) {
    uint64_t stream = mix(seed + 0x9e3779b97f4a7c15u);
    return mix(stream + (counter + 1) * 0x9e3779b97f4a7c15u);
}

float rng_unit(uint64_t seed, uint64_t counter) {
    return (float)(rng_u64(seed, counter) >> 40) * 0x1p-24f;
}
