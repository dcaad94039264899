/* Llama 3 stretches RoPE's slow frequencies; GGUF keeps the divisor of each frequency instead of
 * the four parameters that they come from. The parameters of the released models are tried; any
 * other file keeps the tensor, which then nobody claims. */
#include <math.h>

#include "formats/gguf_model.h"

#define PI 3.14159265358979323846
#define DIVISORS_MAX 1024
#define TOLERANCE 1e-4 /* the writers computed in f32 */

typedef struct RopeScaling {
    double factor, low_freq_factor, high_freq_factor;
    int64_t original_positions;
} RopeScaling;

static const RopeScaling released[] = {
    {8.0, 1.0, 4.0, 8192},  /* Llama 3.1, 3.3 */
    {32.0, 1.0, 4.0, 8192}, /* Llama 3.2 */
};

static double divisor(const RopeScaling *s, double base, uint64_t i, uint64_t count) {
    double wavelength = 2 * PI * pow(base, (double)i / (double)count);
    double turns = (double)s->original_positions / wavelength;
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
    for (size_t i = 0; i < sizeof released / sizeof released[0]; i++) {
        if (fits(&released[i], base->real, divisors, t->shape[0])) {
            *status = put_scaling(config, &released[i], err);
            return true;
        }
    }
    return false;
}
