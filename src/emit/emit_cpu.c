/* The C file of a plan: kernels as text, helpers, one function a launch, and lgp_step. Written to
 * be read: every piece of arithmetic stands under the line of the page that it is for, and #line
 * makes compilers, debuggers and profilers say that line. */
#include "emit/emit_impl.h"

#include "base/embedded.h"
#include "base/hash.h"
#include "base/mem.h"
#include "emit/cpu_levels.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Kernel texts in the order in which they need each other; lines that include a file of the
 * repository are dropped. */
static LgStatus paste_kernels(Emit *e) {
    static const char *const order[] = {"abi.h",    "vec.h",   "math.h",
                                        "pairs.h",  "tiles.h", "matmul_loops.h",
                                        "matmul.h", "moe.h",   "attend.h"};
    for (size_t n = 0; n < sizeof order / sizeof order[0]; n++) {
        const LgEmbedded *k = lg_kernels_cpu;
        while (k->name && strcmp(k->name, order[n]) != 0)
            k++;
        if (!k->name)
            return lg_fail(e->err, LG_INTERNAL, 0, "the kernel text %s is not in this binary",
                           order[n]);
        buf_printf(e->out, "\n#line 1 \"kernels/cpu/%s\"\n", k->name);
        for (const char *at = k->data, *end = at + k->size; at < end;) {
            const char *nl = memchr(at, '\n', (size_t)(end - at));
            size_t len = nl ? (size_t)(nl - at) : (size_t)(end - at);
            if (len < 10 || memcmp(at, "#include \"", 10) != 0)
                buf_append(e->out, at, len);
            buf_putc(e->out, '\n');
            at += len + 1;
        }
    }
    emit_own(e);
    return LG_OK;
}

static const char helpers[] =
    "#include <math.h>\n"
    "\n"
    "#define LGP_EXPORT __attribute__((visibility(\"default\")))\n"
    "\n"
    "#define LGP_FOR(index, size) for (int32_t index = 0; index < (size); index++)\n"
    "\n"
    "/* Reductions: 16 sums side by side over whole runs of 16, added as a tree, then the tail in "
    "order. */\n"
    "static inline float lgp_tree16(const float *v) {\n"
    "    return (((v[0] + v[8]) + (v[4] + v[12])) + ((v[2] + v[10]) + (v[6] + v[14]))) +\n"
    "           (((v[1] + v[9]) + (v[5] + v[13])) + ((v[3] + v[11]) + (v[7] + v[15])));\n"
    "}\n"
    "#define LGP_SUM(to, index, size, body)                                   \\\n"
    "    float to = 0.0f;                                                     \\\n"
    "    do {                                                                 \\\n"
    "        if ((size) >= 16) {                                              \\\n"
    "            float lane_[16] = {0};                                       \\\n"
    "            for (int32_t from_ = 0; from_ + 16 <= (size); from_ += 16)   \\\n"
    "                for (int32_t z_ = 0; z_ < 16; z_++) {                    \\\n"
    "                    const int32_t index = from_ + z_;                    \\\n"
    "                    lane_[z_] += (body);                                 \\\n"
    "                }                                                        \\\n"
    "            to = lgp_tree16(lane_);                                      \\\n"
    "        }                                                                \\\n"
    "        for (int32_t index = (size) / 16 * 16; index < (size); index++)  \\\n"
    "            to += (body);                                                \\\n"
    "    } while (0)\n"
    "#define LGP_MEAN(to, index, size, body) \\\n"
    "    LGP_SUM(to, index, size, body);     \\\n"
    "    to /= (float)(size)\n"
    "#define LGP_MAX(to, index, size, body)                     \\\n"
    "    float to = -INFINITY;                                  \\\n"
    "    for (int32_t index = 0; index < (size); index++)       \\\n"
    "        to = lgp_max(to, (body))\n"
    "\n"
    "static inline float lgp_min(float a, float b) { return a < b ? a : b; }\n"
    "static inline float lgp_max(float a, float b) { return a > b ? a : b; }\n"
    "static inline float lgp_square(float a) { return a * a; }\n"
    "\n"
    "/* Row `row` of a value that lies `offset` bytes a row into the arena. */\n"
    "static inline float *lgp_row(const LgpStep *step, uint64_t offset, int64_t elems, int64_t "
    "row) {\n"
    "    return (float *)(void *)(step->arena + offset * (uint64_t)step->rows_max) + row * elems;\n"
    "}\n"
    "\n"
    "/* What thread 0 shows to whoever looks on; the others wait, so that nothing moves meanwhile. "
    "*/\n"
    "static inline void lgp_end(const LgpStep *step, int32_t thread, int32_t launch, int32_t "
    "layer) {\n"
    "    if (!step->trace)\n"
    "        return;\n"
    "    if (thread == 0)\n"
    "        step->trace(step, launch, layer);\n"
    "    step->barrier(step->team, thread);\n"
    "}\n";

static void write_helpers(Emit *e) {
    buf_puts(e->out, helpers);
    emit_line(e, "%s", "");
    emit_line(e, "/* A state's part of the page that holds a position. */");
    emit_line(e, "static inline void *lgp_page(const LgpStep *step, int64_t slot, int32_t pos, "
                 "int32_t layer, "
                 "uint64_t offset) {");
    emit_line(
        e, "    unsigned char *page = step->pages[slot * step->pages_per_slot + pos / LGP_PAGE];");
    emit_line(e, "    return page + (uint64_t)layer * %llu + offset;",
              (unsigned long long)e->plan->layer_page_bytes);
    emit_line(e, "}");
}

static void write_step(Emit *e) {
    const Plan *plan = e->plan;
    emit_line(e, "%s", "");
    emit_line(e, "LGP_EXPORT void lgp_step(const LgpStep *step, int32_t thread);");
    emit_line(e, "LGP_EXPORT void lgp_step(const LgpStep *step, int32_t thread) {");
    e->indent++;
    for (int k = 0; k < plan->launch_count; k++) {
        const Launch *l = &plan->launches[k];
        if (k == plan->layer_begin && l->in_layer) {
            emit_line(e, "for (int32_t layer = 0; layer < %d; layer++) {", e->p->layer_count);
            e->indent++;
        }
        emit_line(e, "launch_%d_%s(step, thread%s);", k, l->name, l->in_layer ? ", layer" : "");
        if (k + 1 == plan->layer_end && l->in_layer) {
            e->indent--;
            emit_line(e, "}");
        }
    }
    e->indent--;
    emit_line(e, "}");
}

static void write_scratch(Emit *e) {
    const Plan *plan = e->plan;
    emit_line(e, "%s", "");
    emit_line(e, "LGP_EXPORT int64_t lgp_scratch_floats(int32_t positions);");
    emit_line(e, "LGP_EXPORT int64_t lgp_scratch_floats(int32_t positions) {");
    e->indent++;
    emit_line(e, "int64_t most = 16, n;");
    emit_line(e, "(void)positions;");
    for (int k = 0; k < plan->launch_count; k++) {
        const Launch *l = &plan->launches[k];
        for (int s = 0; s < l->stage_count; s++) {
            const StageMatmul *m = l->stages[s]->matmul;
            if (m && m->expert >= 0)
                emit_line(e, "n = lgp_moe_scratch(%llu, %llu);", (unsigned long long)m->n,
                          (unsigned long long)m->k);
            else if (m)
                emit_line(e, "n = lgp_matmul_scratch(%llu);", (unsigned long long)m->k);
            else if (l->stages[s]->attend)
                emit_line(e, "n = lgp_attend_scratch(%llu, positions);",
                          (unsigned long long)l->stages[s]->attend->group);
            else
                continue;
            emit_line(e, "most = n > most ? n : most;");
        }
        if (l->kind == LAUNCH_ROWS && emit_rows_scratch(e, l)) {
            emit_line(e, "n = %lld;", (long long)emit_rows_scratch(e, l));
            emit_line(e, "most = n > most ? n : most;");
        }
    }
    emit_line(e, "return (most + 15) / 16 * 16;");
    e->indent--;
    emit_line(e, "}");
}

static void write_info(Emit *e, const char *level) {
    char hash[65];
    sha256_hex(e->out->data, e->out->len, hash);
    emit_line(e, EMIT_CPU_HASH_MARK "\"%s\"", hash);
    emit_line(e, "LGP_EXPORT extern const LgpInfo lgp_info;");
    emit_line(e,
              "const LgpInfo lgp_info = {LGP_ABI, \"%s\", \"%s\", \"%s\", __VERSION__, "
              "LGP_SOURCE_SHA256, LGP_FORMATS};",
              e->plan->provenance.model, e->plan->digest, level);
}

static void write_head(Emit *e, const EmitLevel *level) {
    emit_line(e, "/* %s: made by the compiler from %s, plan %.16s, for level %s.",
              e->plan->provenance.model, e->file, e->plan->digest, level->name);
    emit_line(e, " * Provenance: %s. Every launch cites the lines of the page that it computes. */",
              provenance_text(e->plan->provenance.kind));
    for (const char *const *d = level->defines; *d; d++)
        emit_line(e, "#define %s 1", *d);
    emit_line(e, "#if defined(__GNUC__)");
    emit_line(e, "#pragma GCC diagnostic ignored \"-Wunused-function\"");
    emit_line(e, "#endif");
}

static LgStatus emit_launch(Emit *e, int launch) {
    LaunchKind kind = e->plan->launches[launch].kind;
    return kind == LAUNCH_ROWS     ? emit_rows(e, launch)
           : kind == LAUNCH_MATMUL ? emit_matmul(e, launch)
                                   : emit_attend(e, launch);
}

static LgStatus write_all(Emit *e, const EmitLevel *level) {
    write_head(e, level);
    LG_TRY(paste_kernels(e));
    write_helpers(e);
    LG_TRY(emit_launches(e, emit_launch));
    write_step(e);
    write_scratch(e);
    write_info(e, level->name);
    return LG_OK;
}

LgStatus emit_cpu(const Plan *plan, const char *level_name, Buf *out, LgError *err) {
    const EmitLevel *level;
    LG_TRY(emit_level_find(level_name, &level, err));
    if (strcmp(plan->backend, "cpu") != 0)
        return lg_fail(err, LG_BAD_INPUT, 0, "a plan for back end %s has no CPU program",
                       plan->backend);
    Arena arena;
    arena_init(&arena);
    Emit e = {.plan = plan, .p = plan->program, .err = err, .out = out, .arena = &arena};
    buf_init(&e.statics);
    e.file = emit_file_name(plan->program->file, &arena);
    size_t start = out->len;
    e.line_seen = start;
    e.line = 1;
    LgStatus status = e.file ? emit_check_rows(&e) : lg_fail_memory(err);
    if (status == LG_OK)
        status = write_all(&e, level);
    emit_done(&e, &e.statics);
    if (status == LG_OK && (out->failed || e.failed || arena.failed))
        status = lg_fail_memory(err);
    arena_clear(&arena);
    return status;
}
