#include "emit/cpu_levels.h"

#include <stdio.h>
#include <string.h>

static const EmitLevel levels[] = {
    {"generic", {NULL}, {NULL}, "nothing"},
    {"avx2", {"LGP_LEVEL_AVX2", NULL}, {"-mavx2", "-mfma", "-mf16c", NULL}, "AVX2, FMA and F16C"},
    {"avx512",
     {"LGP_LEVEL_AVX2", "LGP_LEVEL_AVX512", NULL},
     {"-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", NULL},
     "AVX-512 (F, BW, VL and DQ)"},
    {"avx512bf16",
     {"LGP_LEVEL_AVX2", "LGP_LEVEL_AVX512", "LGP_LEVEL_BF16", NULL},
     {"-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq",
      "-mavx512bf16", NULL},
     "AVX-512 (F, BW, VL and DQ) and AVX512-BF16"},
    {"amx",
     {"LGP_LEVEL_AVX2", "LGP_LEVEL_AVX512", "LGP_LEVEL_BF16", "LGP_LEVEL_AMX", NULL},
     {"-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq",
      "-mavx512bf16", "-mamx-tile", "-mamx-bf16", NULL},
     "AVX-512 (F, BW, VL and DQ), AVX512-BF16 and AMX-BF16, and leave to use its tiles"},
};

int emit_level_count(void) {
    return (int)(sizeof levels / sizeof levels[0]);
}

const EmitLevel *emit_level_at(int index) {
    return &levels[index];
}

LgStatus emit_level_find(const char *name, const EmitLevel **out, LgError *err) {
    char names[128] = "";
    size_t at = 0;
    for (int i = 0; i < emit_level_count(); i++) {
        if (strcmp(levels[i].name, name) == 0) {
            *out = &levels[i];
            return LG_OK;
        }
        const char *join = i == 0 ? "" : i + 1 < emit_level_count() ? ", " : " and ";
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", join, levels[i].name);
    }
    return lg_fail(err, LG_BAD_INPUT, 0, "no CPU level %s; there are %s", name, names);
}
