/* Pages that are no model's, so that every form of statement is computed as the interpreter
 * computes it: each page runs on both, over a prompt, single rows and two sequences side by side,
 * and once more with every rewrite switched off, which must not change a bit. */
#include "tests/unit/stages/fixture.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "backend/runner.h"
#include "base/float.h"
#include "base/rng.h"
#include "formats/safetensors.h"
#include "ir/bind.h"

#define PAGES 8 /* of KV memory */

typedef struct Model {
    Page page;
    Buf file;
    TensorSet *tensors;
    Binding *binding;
} Model;

static uint64_t dim_size(const LangProgram *p, const LangTensor *t, int from, int to) {
    uint64_t n = 1;
    for (int k = from; k < to; k++)
        n *= p->dims[t->dims[k]].size;
    return n;
}

/* One stored tensor of a param: numbers whose products stay near 1. */
static void add_tensor(Buf *header, Buf *data, const LangProgram *p, const LangTensor *t,
                       const char *name, uint64_t seed) {
    size_t begin = data->len;
    uint64_t last = dim_size(p, t, t->axis_start[t->axis_count - 1], t->rank);
    uint64_t count = dim_size(p, t, 0, t->rank);
    for (uint64_t i = 0; i < count; i++) {
        float v = rng_unit(seed, i) * 2.0f - 1.0f;
        float w = t->axis_count > 1 ? v * 1.7f / sqrtf((float)last) : 1.0f + 0.2f * v;
        uint16_t h = bf16_from_float(w);
        buf_append(data, &h, sizeof h);
    }
    buf_printf(header, "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[", header->len > 1 ? "," : "",
               name);
    for (int a = 0; a < t->axis_count; a++)
        buf_printf(header, "%s%llu", a ? "," : "",
                   (unsigned long long)dim_size(p, t, t->axis_start[a], t->axis_start[a + 1]));
    buf_printf(header, "],\"data_offsets\":[%zu,%zu]}", begin, data->len);
}

/* A checkpoint that holds just what the page's params ask for. */
static void make_tensors(Model *m) {
    const LangProgram *p = m->page.program;
    Buf header, data;
    buf_init(&header);
    buf_init(&data);
    buf_init(&m->file);
    buf_putc(&header, '{');
    for (int k = 0; k < p->tensor_count; k++) {
        const LangTensor *t = &p->tensors[k];
        if (t->kind != LANG_PARAM || t->sources[0].kind != LANG_SOURCE_TENSOR)
            continue;
        for (int l = 0; l < (t->in_layer ? p->layer_count : 1); l++) {
            char name[128];
            const char *source = arena_strdup(&m->page.arena, t->sources[0].name);
            const char *mark = strstr(source, "{l}");
            if (mark)
                snprintf(name, sizeof name, "%.*s%d%s", (int)(mark - source), source, l, mark + 3);
            else
                snprintf(name, sizeof name, "%s", source);
            add_tensor(&header, &data, p, t, name, (uint64_t)(100 * k + l));
        }
    }
    buf_putc(&header, '}');
    uint64_t length = header.len;
    buf_append(&m->file, &length, sizeof length);
    buf_append(&m->file, header.data, header.len);
    buf_append(&m->file, data.data, data.len);
    buf_clear(&header);
    buf_clear(&data);
    LgError err;
    if (safetensors_parse((const unsigned char *)m->file.data, m->file.len, "test", &m->tensors,
                          &err) != LG_OK ||
        bind_params(p, m->tensors, &m->page.arena, &m->binding, &err) != LG_OK)
        fail_msg("%s", err.message);
}

static void model_open(Model *m, const char *source, const char *config) {
    memset(m, 0, sizeof *m);
    if (page_compile(&m->page, source, "page.lg", config, true) != LG_OK)
        fail_msg("%s", m->page.error.message);
    make_tensors(m);
}

static void model_close(Model *m) {
    tensor_set_close(m->tensors);
    buf_clear(&m->file);
    page_clear(&m->page);
}

/* Runs the whole exercise; logits of every sampled row, one step after another. Returns how many
 * rows. */
static int exercise(Runner *r, float *out) {
    enum { PROMPT = 70, SINGLE = 3, OTHER = 5 };
    int32_t token[PROMPT + SINGLE + OTHER], slot[PROMPT + OTHER], pos[PROMPT + SINGLE + OTHER];
    int32_t ad[PROMPT + OTHER] = {0}, pages[] = {0, 2, 1, 3};
    AdapterSet none = {0};
    LgError err;
    int rows = 0;
    for (int k = 0; k < PROMPT + SINGLE + OTHER; k++)
        token[k] = (k * 37 + 11) % r->vocab;
    if (r->ops->kv_reserve(r, PAGES, &err) != LG_OK)
        fail_msg("%s", err.message);
    Step step = {.token = token,
                 .slot = slot,
                 .pos = pos,
                 .ad = ad,
                 .set_count = 1,
                 .sets = &none,
                 .slot_count = 2,
                 .pages_per_slot = 2,
                 .pages = pages};
    /* A prompt that crosses a page. */
    for (int k = 0; k < PROMPT; k++) {
        slot[k] = 0;
        pos[k] = k;
    }
    int32_t both[2] = {3, PROMPT - 1};
    step.rows = PROMPT;
    step.samples = 2;
    step.last = both;
    if (r->ops->step(r, &step, out, &err) != LG_OK)
        fail_msg("%s", err.message);
    rows += 2;
    /* Single rows. */
    int32_t first = 0;
    for (int k = 0; k < SINGLE; k++) {
        pos[0] = PROMPT + k;
        step.token = token + PROMPT + k;
        step.rows = step.samples = 1;
        step.last = &first;
        if (r->ops->step(r, &step, out + (size_t)rows * (size_t)r->vocab, &err) != LG_OK)
            fail_msg("%s", err.message);
        rows++;
    }
    /* Another sequence's prompt beside a single row. */
    for (int k = 0; k < OTHER; k++) {
        slot[k] = 1;
        pos[k] = k;
    }
    slot[OTHER] = 0;
    pos[OTHER] = PROMPT + SINGLE;
    int32_t ends[2] = {OTHER - 1, OTHER};
    step.token = token;
    step.rows = OTHER + 1;
    step.samples = 2;
    step.last = ends;
    if (r->ops->step(r, &step, out + (size_t)rows * (size_t)r->vocab, &err) != LG_OK)
        fail_msg("%s", err.message);
    return rows + 2;
}

static void run(const RunnerOptions *o, bool interp, float *out, int *count) {
    Runner *r = NULL;
    LgError err;
    if ((interp ? runner_open_interp(o, &r, &err) : runner_open_cpu(o, &r, &err)) != LG_OK)
        fail_msg("%s", err.message);
    *count = exercise(r, out) * r->vocab;
    r->ops->close(r);
}

/* bound: the largest difference to the interpreter with f32 stores; where stores round, values may
 * round apart. */
static void same_as_interpreter(const char *source, const char *config, double bound,
                                double bound_bf16) {
    static float want[4096], got[4096], plain[4096];
    Model m;
    int n = 0;
    model_open(&m, source, config);
    for (int f32 = 0; f32 < 2; f32++) {
        RunnerOptions o = {.program = m.page.program,
                           .binding = m.binding,
                           .store_f32 = f32,
                           .threads = 2,
                           .rows_max = 80,
                           .poison = true};
        run(&o, true, want, &n);
        for (int best = f32 ? 0 : 1; best < 2; best++) {
            o.level = best ? NULL : "generic";
            run(&o, false, got, &n);
            double worst = 0;
            for (int k = 0; k < n; k++)
                if (!(fabs((double)got[k] - (double)want[k]) <= worst))
                    worst = fabs((double)got[k] - (double)want[k]);
            if (!(worst <= (f32 ? bound : bound_bf16)))
                fail_msg("%s stores: off by %g", f32 ? "f32" : "bf16", worst);
        }
        o.no_fuse = o.keep_values = true;
        run(&o, false, plain, &n);
        assert_memory_equal(got, plain, (size_t)n * sizeof(float));
    }
    model_close(&m);
}

static const char config[] =
    "{\"architectures\": [\"TestForCausalLM\"], \"model_type\": \"test\", \"vocab_size\": 96, "
    "\"hidden_size\": 50, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2, \"head_dim\": 12, \"intermediate_size\": 80, \"sliding_window\": "
    "20, "
    "\"layer_types\": [\"full_attention\", \"sliding_attention\"], "
    "\"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0}";

#define PLAIN "ignore sliding_window, layer_types\n"

static void functions_reductions_and_tables(void **state) {
    (void)state;
    same_as_interpreter(
        PAGE_HEAD PLAIN
        /* every function and operator */
        "a[t,i]: f32 = exp(x[t,i]) + log(2 + abs(x[t,i])) - sqrt(abs(x[t,i])) / rsqrt(2 + "
        "x[t,i]^2)\n"
        "b[t,i]: f32 = sin(a[t,i]) * cos(a[t,i]) + sigmoid(x[t,i]) * tanh(x[t,i])\n"
        "c[t,i]: f32 = gelu(b[t,i]) + gelu_tanh(x[t,i]) - silu(-x[t,i]) * 2 ^ (-i / 50)\n"
        "d[t,i]: f32 = min(c[t,i], 0.5) ^ 3 - (b[t,i] - (c[t,i] - x[t,i])) / (a[t,i] / 3) + "
        "max(x[t,i], -0.25) * floor(4 * x[t,i]) + ceil(x[t,i])\n"
        "e[t,i]: f32 = -d[t,i] ^ 2 - -x[t,i] * pos[t] / 64\n"
        /* reductions: one in another, over axes side by side and not, of outer loops */
        "param wh[G*D, E] = \"wh.weight\"\n"
        "param gh[G*D] = \"gh.weight\"\n"
        "h[t,g,d] = sum i: x[t,i] * wh[g,d,i]\n"
        "ra[t,i] = (x[t,i] - (mean j: x[t,j])) * rsqrt((mean j: (x[t,j] - (mean k: x[t,k]))^2) + "
        "0.1)\n"
        "rb[t,g] = max d: h[t,g,d] * gh[g,d]\n"
        "rc[t,d] = sum g: h[t,g,d]\n"
        "re[t] = sum g,d: h[t,g,d] * gh[g,d] * rb[t,g]\n"
        "rf[t] = mean d,g: h[t,g,d] * d\n"
        "rk[t,d]: f32 = rc[t,d] / (1 + abs(sum q: rc[t,q] * h[t,1,q])) + h[t,0,d]\n"
        "ru[t,i] = ra[t,i] * re[t] + rf[t] + (mean d: rk[t,d] * rc[t,d]) * x[t,3]\n"
        /* values without rows, parts of an axis, rows of a table */
        "dim C = 2\n"
        "dim R = 25\n"
        "param p1[C*R] = \"p1.weight\"\n"
        "param pe[V, E] = \"pe.weight\"\n"
        "freq[r in R]: f32 = 100 ^ (-r / R)\n"
        "turn[r]: f32 = freq[r] * (mean q: freq[q]) + 0.5\n"
        "phi[t,r]: f32 = pos[t] * turn[r]\n"
        "ty[t,0 in C,r] = p1[0,r] * cos(phi[t,r])\n"
        "ty[t,1 in C,r] = p1[1,r] * sin(phi[t,r])\n"
        "tz[t,i] = x[t,i] * pe[token[t],i]\n"
        "ts[t] = (sum c,r: ty[t,c,r])\n"
        "hz[n,i]: f32 = e[last[n],i] + d[last[n],i] * x[last[n],i] + ru[last[n],i] + "
        "tz[last[n],i] * ts[last[n]]" PAGE_END,
        config, 2e-5, 0.02);
}

static void layers_of_two_kinds_attend(void **state) {
    (void)state;
    same_as_interpreter(
        PAGE_HEAD
        "layer l in L {\n"
        "  const W[l] = if layer_types[l] == \"sliding_attention\" then sliding_window else S\n"
        "  const Z[l] = if layer_types[l] == \"sliding_attention\" then 0.3 else 0.5\n"
        "  param bh[G*D] = \"{l}.bh.weight\"\n"
        "  param wh[G*D, E] = \"{l}.wh.weight\"\n"
        "  param wq[G*M*D, E] = \"{l}.wq.weight\"\n"
        "  param wo[E, G*M*D] = \"{l}.wo.weight\"\n"
        "  state kc[B, S, G, D]\n"
        "  state vc[B, S, G, D]\n"
        "  y[t,i] = x[t,i] * rsqrt((mean j: x[t,j]^2) + 0.01) * Z\n"
        "  h[t,g,d] = (sum i: y[t,i] * wh[g,d,i]) + bh[g,d]\n"
        "  q[t,g,m,d] = sum i: y[t,i] * wq[g,m,d,i]\n"
        "  kc[slot[t],pos[t],g,d] := h[t,g,d] * cos(pos[t])\n"
        "  vc[slot[t],pos[t],g,d] := h[t,g,d]\n"
        "  p[t,g,m,s]: f32 = softmax pos[t] - W < s <= pos[t]: 3 * tanh((sum d: q[t,g,m,d] * "
        "kc[slot[t],s,g,d]) * Z / 3)\n"
        "  o[t,g,m,d] = sum pos[t] - W < s <= pos[t]: p[t,g,m,s] * vc[slot[t],s,g,d]\n"
        "  ao[t,i] = sum g,m,d: o[t,g,m,d] * wo[i,g,m,d]\n"
        "  x[t,i] += ao[t,i]\n"
        "}\n" PAGE_TAIL,
        config, 2e-5, 0.02);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(functions_reductions_and_tables),
        cmocka_unit_test(layers_of_two_kinds_attend),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
