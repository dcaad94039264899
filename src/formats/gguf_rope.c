/* Llama 3 stretches RoPE's slow frequencies; GGUF keeps the divisor of each frequency instead of
 * the four parameters that they come from. The parameters are found again from the divisors and
 * then held against all of them; any other file keeps the tensor, which then nobody claims.
 *
 * A frequency that turns t = original / wavelength times within the original context has s = (t -
 * low) / (high - low) and the divisor 1 / ((1 - s) / factor + s), with s cut to 0 … 1. Only the
 * ratios of original, low and high matter, so that low is 1, as in every published file. */
#include <math.h>

#include "formats/gguf_model.h"

#define PI 3.14159265358979323846
#define DIVISORS_MAX 1024
#define TOLERANCE 2e-5 /* the writers computed in f32 */

typedef struct RopeScaling {
    double factor, low_freq_factor, high_freq_factor;
    int64_t original_positions;
} RopeScaling;

#define HIGH_USUAL 4.0

static double wavelength(double base, uint64_t i, uint64_t count) {
    return 2 * PI * pow(base, (double)i / (double)count);
}

static double divisor(const RopeScaling *s, double base, uint64_t i, uint64_t count) {
    double turns = (double)s->original_positions / wavelength(base, i, count);
    if (turns >= s->high_freq_factor)
        return 1.0;
    if (turns <= s->low_freq_factor)
        return s->factor;
    double smooth = (turns - s->low_freq_factor) / (s->high_freq_factor - s->low_freq_factor);
    return 1.0 / ((1.0 - smooth) / s->factor + smooth);
}

static bool fits(const RopeScaling *s, double base, const float *divisors, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        double want = divisor(s, base, i, count);
        if (!(fabs((double)divisors[i] - want) <= TOLERANCE * want))
            return false;
    }
    return true;
}

/* Context lengths are round numbers: a multiple of 64 where that explains the divisors as well. */
static int64_t round_positions(double positions) {
    double round = 64 * nearbyint(positions / 64);
    if (fabs(round - positions) > 1e-3 * positions)
        round = nearbyint(positions);
    return round >= 1 && round <= INT32_MAX ? (int64_t)round : 0;
}

/* s over 1 / wavelength is a line through the frequencies that are neither kept nor divided whole:
 * its slope is original / (high - low), and it falls to 0 where t is low. */
static bool guess(const float *divisors, double base, uint64_t count, RopeScaling *out) {
    double u[2] = {0}, s[2] = {0};
    int found = 0;
    *out = (RopeScaling){(double)divisors[count - 1], 1.0, HIGH_USUAL, 0};
    if (!(out->factor > 1 && out->factor < 1e6))
        return false;
    for (uint64_t i = 0; i < count; i++) {
        double d = (double)divisors[i];
        if (!(d > 1.0 && d < out->factor))
            continue;
        int at = found++ ? 1 : 0; /* the first and the last one */
        u[at] = 1 / wavelength(base, i, count);
        s[at] = (1 / d - 1 / out->factor) / (1 - 1 / out->factor);
    }
    if (found == 0)
        return false;
    double slope = (s[0] + 1 / (HIGH_USUAL - 1)) / u[0];
    if (found > 1) {
        slope = (s[0] - s[1]) / (u[0] - u[1]);
        double high = 1 + 1 / (slope * u[0] - s[0]), whole = nearbyint(high);
        out->high_freq_factor = fabs(high - whole) < 1e-2 ? whole : high;
    }
    out->original_positions = round_positions(slope * (out->high_freq_factor - 1));
    return out->high_freq_factor > 1 && out->original_positions > 0;
}

/* No frequency lies between: every length that puts the step in the right place says the same. */
static bool guess_step(const float *divisors, double base, uint64_t count, RopeScaling *out) {
    *out = (RopeScaling){(double)divisors[count - 1], 1.0, HIGH_USUAL, 64};
    for (; out->original_positions <= 1 << 20; out->original_positions *= 2)
        if (fits(out, base, divisors, count))
            return true;
    return false;
}

static LgStatus put_scaling(Config *c, const RopeScaling *s, LgError *err) {
    LG_TRY(config_set_str(c, "rope_scaling.rope_type", LG_STR("llama3"), err));
    LG_TRY(config_set_real(c, "rope_scaling.factor", s->factor, err));
    LG_TRY(config_set_real(c, "rope_scaling.low_freq_factor", s->low_freq_factor, err));
    LG_TRY(config_set_real(c, "rope_scaling.high_freq_factor", s->high_freq_factor, err));
    return config_set_int(c, "rope_scaling.original_max_position_embeddings", s->original_positions,
                          err);
}

bool gguf_rope_recognise(const Tensor *t, Config *config, LgStatus *status, LgError *err) {
    const ConfigValue *base = config_get_c(config, "rope_theta");
    const ConfigValue *head_dim = config_get_c(config, "head_dim");
    if (t->rank != 1 || t->dtype != DTYPE_F32 || t->shape[0] > DIVISORS_MAX)
        return false;
    if (!base || base->kind != CONFIG_REAL || !head_dim || head_dim->kind != CONFIG_INT ||
        head_dim->integer != 2 * (int64_t)t->shape[0] || config_get_c(config, "rope_scaling"))
        return false;
    float divisors[DIVISORS_MAX];
    tensor_row_f32(t, 0, divisors);
    RopeScaling found;
    bool known = guess(divisors, base->real, t->shape[0], &found) &&
                 fits(&found, base->real, divisors, t->shape[0]);
    if (!known && !guess_step(divisors, base->real, t->shape[0], &found))
        return false;
    *status = put_scaling(config, &found, err);
    return true;
}
