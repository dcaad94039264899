/* The CUDA C file of a plan. The statements of a launch over rows are those of the CPU's file, word
 * for word; step.cuh gives the words their meaning for the threads of a block. */
#include "emit/emit_cuda.h"

#include <stdio.h>
#include <string.h>

#include "emit/emit_impl.h"
#include "kernels/cuda/common/step_abi.h"

#define TILE_COLUMNS_A_BLOCK 1024
#define TILE_THREADS 256

/* ---- loops ---- */

static uint64_t extent_of(const StmtEmit *x, int from, int to) {
    uint64_t n = 1;
    for (int k = from; k < to; k++)
        n *= emit_dim_of(x, x->loops[k]);
    return n;
}

/* Loops [from, to) as one, over `by`; inside, the indexes by division. */
static void open_joined(StmtEmit *x, const char *name, const char *first, const char *by, int from,
                        int to) {
    Emit *e = x->e;
    emit_code(e, x->s->line, "for (int32_t %s = %s; %s < %llu; %s += %s) {", name, first, name,
              (unsigned long long)extent_of(x, from, to), name, by);
    e->indent++;
    for (int k = from; k < to; k++) {
        unsigned long long inner = (unsigned long long)extent_of(x, k + 1, to);
        unsigned long long size = (unsigned long long)emit_dim_of(x, x->loops[k]);
        const char *var = emit_var_name(e, x->s, x->loops[k]);
        if (k == from && inner == 1)
            emit_line(e, "const int32_t %s = %s;", var, name);
        else if (k == from)
            emit_line(e, "const int32_t %s = %s / %llu;", var, name, inner);
        else if (inner == 1)
            emit_line(e, "const int32_t %s = %s %% %llu;", var, name, size);
        else
            emit_line(e, "const int32_t %s = %s / %llu %% %llu;", var, name, inner, size);
    }
}

/* All threads share the elements; where something is computed once for an outer index, warps share
 * the outer indexes and lanes what is inside. */
int emit_open_shared_loops(StmtEmit *x) {
    Emit *e = x->e;
    int first = 0, last = 0, open = 0;
    for (int k = x->loop_count; k > 0; k--)
        if (emit_hoists_at(x, k)) {
            first = k;
            last = last ? last : k;
        }
    if (first == 0) {
        if (x->loop_count == 0) {
            emit_line(e, "if (threadIdx.x == 0) {");
            e->indent++;
        } else {
            open_joined(x, "element_", "threadIdx.x", "blockDim.x", 0, x->loop_count);
        }
        return 1;
    }
    open_joined(x, "outer_", "threadIdx.x / 32", "blockDim.x / 32", 0, first);
    open++;
    emit_hoists(x, first);
    for (int k = first; k < last; k++) {
        emit_code(e, x->s->line, "LGP_FOR(%s, %llu) {", emit_var_name(e, x->s, x->loops[k]),
                  (unsigned long long)emit_dim_of(x, x->loops[k]));
        e->indent++;
        open++;
        emit_hoists(x, k + 1);
    }
    if (last < x->loop_count) {
        open_joined(x, "element_", "threadIdx.x % 32", "32", last, x->loop_count);
    } else {
        emit_line(e, "if (threadIdx.x %% 32 == 0) {");
        e->indent++;
    }
    return open + 1;
}

/* ---- launches ---- */

static void kernel_begin(Emit *e, int launch, const char *prefix, int threads, bool wait) {
    const Launch *l = &e->plan->launches[launch];
    /* Products of few rows are bound by memory: two blocks have more on its way than one. */
    const int blocks = l->kind == LAUNCH_MATMUL && strcmp(prefix, "many") != 0 ? 2 : 1;
    emit_line(e, "LG_KERNEL_OF(%d, %d) %s_%d_%s(const LgcStep *step, int layer) {", threads, blocks,
              prefix, launch, l->name);
    e->indent++;
    emit_line(e, "lg_let_next();");
    if (wait)
        emit_line(e, "lg_wait_before();");
}

static void kernel_end(Emit *e) {
    e->indent--;
    emit_line(e, "}");
}

static LgStatus cuda_rows(Emit *e, int launch) {
    const Launch *l = &e->plan->launches[launch];
    RowsEmit r = {.e = e, .l = l, .status = LG_OK};
    emit_collect_refs(&r, 0, l->stage_count);
    for (int k = 0; k < l->stage_count && r.status == LG_OK; k++)
        r.status = emit_check_type(e, l->stages[k]->stmt, l->stages[k]->stmt->targets[0].tensor);
    LG_TRY(r.status);
    emit_launch_comment(e, launch);
    kernel_begin(e, launch, "launch", LGC_ROW_THREADS, true);
    if (r.choice)
        emit_line(e, "__shared__ float choice[%lld];", (long long)r.choice);
    emit_line(e, "const int32_t row = blockIdx.x;");
    emit_line(e, "if (row >= %s)", emit_rows_text(e, l));
    emit_line(e, "    return;");
    emit_declare_weights(&r);
    emit_declare_rows(&r);
    for (int k = 0; k < l->stage_count && r.status == LG_OK; k++)
        emit_stmt(&r, l->stages[k]);
    kernel_end(e);
    return r.status;
}

/* Statements of an epilogue over columns first, first + apart, … of one row. */
static LgStatus tile_statements(Emit *e, const Launch *l) {
    RowsEmit r = {.e = e, .l = l, .status = LG_OK};
    emit_collect_refs(&r, l->epilogue, l->stage_count);
    for (int k = l->epilogue; k < l->stage_count && r.status == LG_OK; k++)
        r.status = emit_check_type(e, l->stages[k]->stmt, l->stages[k]->stmt->targets[0].tensor);
    LG_TRY(r.status);
    emit_line(e, "if (row >= %s)", emit_rows_text(e, l));
    emit_line(e, "    return;");
    emit_declare_weights(&r);
    emit_declare_rows(&r);
    for (int k = l->epilogue; k < l->stage_count && r.status == LG_OK; k++)
        emit_tile_stmt(&r, l->stages[k]);
    return r.status;
}

static unsigned long long result_columns(const Emit *e, const Launch *l) {
    return (unsigned long long)emit_row_elems(e, l->stages[0]->stmt->targets[0].tensor);
}

/* What is done to the products' results, element by element; adapters have acted in between. */
static LgStatus cuda_tile(Emit *e, int launch) {
    const Launch *l = &e->plan->launches[launch];
    emit_line(e, "%s", "");
    emit_line(e, "/* What is done to the products of launch %d, behind adapters. */", launch);
    kernel_begin(e, launch, "tile", TILE_THREADS, true);
    emit_line(e, "const int32_t row = blockIdx.x, columns = %llu;", result_columns(e, l));
    emit_line(e, "const int32_t first = blockIdx.y * blockDim.x + threadIdx.x, apart = gridDim.y * "
                 "blockDim.x;");
    LgStatus status = tile_statements(e, l);
    kernel_end(e);
    return status;
}

static const char *row_type(const Emit *e, int tensor) {
    return emit_held_bf16(e, tensor) ? "Bf16Row" : "float *";
}

static const char *weight_index(Emit *e, const Stage *s) {
    return emit_layer_index(e, plan_weight(e->plan, s->matmul->w, WEIGHT_MATRIX), e->arena);
}

static void product(Emit *e, const Launch *l, const Stage *s, const char *call) {
    const StageMatmul *m = s->matmul;
    int line = s->stmt->line, target = s->stmt->targets[0].tensor;
    const unsigned long long slots = (unsigned long long)m->slots;
    Buf x, y, choice;
    buf_init(&x);
    buf_init(&y);
    buf_init(&choice);
    emit_row_place(e, m->x, "0", &x);
    emit_row_place(e, target, "0", &y);
    const char *bias = "nullptr";
    if (m->bias >= 0)
        bias = arena_printf(
            e->arena, "lgp_vector(step, 0, 0, %s)",
            emit_layer_index(e, plan_weight(e->plan, m->bias, WEIGHT_VECTOR), e->arena));
    if (m->expert >= 0)
        emit_row_place(e, m->expert, "0", &choice);
    emit_code(e, line,
              "const Product<%s, %s> p = {&step->weights[%s], %s, %llu, %s, %llu, %s, %s, "
              "%llu, %s * %llu, %d};",
              row_type(e, m->x), row_type(e, target), weight_index(e, s), x.data,
              (unsigned long long)(emit_row_elems(e, m->x) / (m->slots / m->share)), y.data,
              (unsigned long long)(emit_row_elems(e, target) / m->slots), bias ? bias : "nullptr",
              m->expert >= 0 ? choice.data : "nullptr", (unsigned long long)m->share,
              emit_rows_text(e, l), slots, emit_rounds(e, target) ? 1 : 0);
    emit_code(e, line, "%s", call);
    emit_own(e);
    emit_done(e, &x);
    emit_done(e, &y);
    emit_done(e, &choice);
}

static const char *product_call(const Launch *l, int tiles) {
    return l->stages[0]->matmul->expert >= 0 ? "lgc_chosen_product(p, block, parts);"
           : tiles == 1                      ? "lgc_product<1>(p, block, parts);"
                                             : "lgc_product<2>(p, block, parts);";
}

/* A block has the same tile of all products, and then what is done to it. tiles: of 16 rows. */
static LgStatus cuda_fused(Emit *e, int launch, int tiles) {
    const Launch *l = &e->plan->launches[launch];
    emit_line(e, "%s", "");
    emit_line(e, "/* Launch %d in one kernel: where no row has an adapter. */", launch);
    kernel_begin(e, launch, tiles == 1 ? "fused" : "fused32", LGC_PRODUCT_THREADS, false);
    emit_line(e, "__shared__ Parts parts;");
    emit_line(e, "const int32_t block = blockIdx.x;");
    for (int k = 0; k < l->epilogue; k++)
        emit_line(e, "lgc_ahead(&step->weights[%s], block);", weight_index(e, l->stages[k]));
    emit_line(e, "lg_wait_before();");
    for (int k = 0; k < l->epilogue; k++) {
        emit_line(e, "{");
        e->indent++;
        product(e, l, l->stages[k], product_call(l, tiles));
        e->indent--;
        emit_line(e, "}");
    }
    emit_line(e, "__syncthreads();");
    emit_line(e, "const int32_t apart = %d;", LGC_TILE_OUTPUTS);
    emit_line(e, "const int32_t first = block * %d + threadIdx.x %% 16;", LGC_TILE_OUTPUTS);
    emit_line(e, "const int32_t columns = block * %d + %d < %llu ? block * %d + %d : %llu;",
              LGC_TILE_OUTPUTS, LGC_TILE_OUTPUTS, result_columns(e, l), LGC_TILE_OUTPUTS,
              LGC_TILE_OUTPUTS, result_columns(e, l));
    emit_line(e, "LGP_FOR(tile, %d) {", tiles);
    e->indent++;
    emit_line(e, "const int32_t row = (blockIdx.y * %d + tile) * 16 + threadIdx.x / 16;", tiles);
    LgStatus status = tile_statements(e, l);
    e->indent--;
    emit_line(e, "}");
    kernel_end(e);
    return status;
}

/* Blocks of products one after another, each of `outputs` outputs. */
static void product_blocks(Emit *e, const Launch *l, int outputs, const char *call) {
    /* Of many rows, those of one output follow each other: its weights are then at hand. */
    emit_line(e, "int32_t block = blockIdx.%s;", outputs == LGC_TILE_OUTPUTS ? "x" : "y");
    for (int k = 0; k < l->epilogue; k++) {
        int blocks = ((int)l->stages[k]->matmul->n + outputs - 1) / outputs;
        emit_line(e, "if (block >= 0 && block < %d) {", blocks);
        e->indent++;
        if (outputs == LGC_TILE_OUTPUTS && l->stages[k]->matmul->expert < 0)
            emit_line(e, "lgc_ahead(&step->weights[%s], block);", weight_index(e, l->stages[k]));
        emit_line(e, "lg_wait_before();");
        product(e, l, l->stages[k], call);
        e->indent--;
        emit_line(e, "}");
        emit_line(e, "block -= %d;", blocks);
    }
}

static LgStatus cuda_matmul(Emit *e, int launch) {
    const Launch *l = &e->plan->launches[launch];
    for (int k = 0; k < l->epilogue; k++)
        LG_TRY(emit_check_type(e, l->stages[k]->stmt, l->stages[k]->stmt->targets[0].tensor));
    emit_launch_comment(e, launch);
    kernel_begin(e, launch, "launch", LGC_PRODUCT_THREADS, false);
    emit_line(e, "__shared__ Parts parts;");
    product_blocks(e, l, LGC_TILE_OUTPUTS, product_call(l, 1));
    kernel_end(e);
    if (emit_cuda_has(e->plan, launch, CUDA_LAUNCH32)) {
        emit_line(e, "%s", "");
        kernel_begin(e, launch, "launch32", LGC_PRODUCT_THREADS, false);
        emit_line(e, "__shared__ Parts parts;");
        product_blocks(e, l, LGC_TILE_OUTPUTS, product_call(l, 2));
        kernel_end(e);
    }
    if (emit_cuda_has(e->plan, launch, CUDA_MANY)) {
        emit_line(e, "%s", "");
        emit_line(e, "/* The products of launch %d for many rows: the same bits. */", launch);
        kernel_begin(e, launch, "many", LGC_PRODUCT_THREADS, false);
        emit_line(e, "extern __shared__ __align__(128) unsigned char memory[];");
        product_blocks(e, l, LGC_MANY_OUTPUTS, "lgc_many_product(p, block, memory);");
        kernel_end(e);
    }
    if (emit_cuda_has(e->plan, launch, CUDA_TILE))
        LG_TRY(cuda_tile(e, launch));
    if (emit_cuda_has(e->plan, launch, CUDA_FUSED)) {
        LG_TRY(cuda_fused(e, launch, 1));
        LG_TRY(cuda_fused(e, launch, 2));
    }
    return LG_OK;
}

static LgStatus cuda_attend(Emit *e, int launch) {
    const Launch *l = &e->plan->launches[launch];
    const Stage *s = l->stages[0];
    const StageAttend *a = s->attend;
    LG_TRY(emit_check_type(e, s->stmt, a->o));
    if (emit_rounds(e, a->k) != emit_rounds(e, a->v))
        return lang_refuse(e->p, s->stmt->line, 0, e->err,
                           "cannot emit: keys and values are stored in two types. Give both states "
                           "one type.");
    if (a->width > LGC_WIDTH_MAX || a->v_width > LGC_WIDTH_MAX || a->group > 16)
        return lang_refuse(e->p, s->stmt->line, 0, e->err,
                           "cannot emit: back end cuda has heads of up to %d elements, of which up "
                           "to 16 share keys. Back end cpu has others.",
                           LGC_WIDTH_MAX);
    if (!emit_input(e, a->slot) || !emit_input(e, a->pos))
        return lang_refuse(e->p, s->stmt->line, 0, e->err,
                           "cannot emit: attention goes by the inputs slot and pos. Name them so.");
    if (a->score)
        LG_TRY(emit_score(e, s, launch));
    const unsigned long long page = (unsigned long long)e->plan->layer_page_bytes;
    Buf q, o, scale, window;
    buf_init(&q);
    buf_init(&o);
    buf_init(&scale);
    buf_init(&window);
    emit_row_place(e, a->q, "0", &q);
    emit_row_place(e, a->o, "0", &o);
    emit_layered(e, a->scale, "scale", "float", &scale);
    emit_layered(e, a->window, "window", "int32_t", &window);
    emit_launch_comment(e, launch);
    kernel_begin(e, launch, "launch", LGC_ATTEND_THREADS, true);
    emit_code(
        e, a->softmax->line,
        "const Attend<%s, %s> part = {%s, %llu, %s, %llu, %s, %s, %s, %s, (u64)layer * %llu + "
        "%llu, (u64)layer * %llu + %llu, %d, %d, %s};",
        row_type(e, a->q), row_type(e, a->o), q.data, (unsigned long long)emit_row_elems(e, a->q),
        o.data, (unsigned long long)emit_row_elems(e, a->o), emit_input(e, a->slot),
        emit_input(e, a->pos), scale.data, window.data, page,
        (unsigned long long)plan_state(e->plan, a->k)->offset_page, page,
        (unsigned long long)plan_state(e->plan, a->v)->offset_page, emit_rounds(e, a->k) ? 1 : 0,
        emit_rounds(e, a->o) ? 1 : 0, emit_rows_text(e, l));
    const char *heads = arena_printf(e->arena, "%llu, %llu, %llu", (unsigned long long)a->group,
                                     (unsigned long long)a->width, (unsigned long long)a->v_width);
    heads = heads ? heads : "";
    if (a->score)
        emit_code(e, s->stmt->line,
                  "lgc_attend<%s>(part, step, [](float *s, int n) { score_%d(s, n); });", heads,
                  launch);
    else
        emit_code(e, s->stmt->line, "lgc_attend<%s>(part, step, [](float *, int) {});", heads);
    emit_own(e);
    kernel_end(e);
    emit_done(e, &q);
    emit_done(e, &o);
    emit_done(e, &scale);
    emit_done(e, &window);
    return LG_OK;
}

static LgStatus cuda_launch(Emit *e, int launch) {
    LaunchKind kind = e->plan->launches[launch].kind;
    return kind == LAUNCH_ROWS     ? cuda_rows(e, launch)
           : kind == LAUNCH_MATMUL ? cuda_matmul(e, launch)
                                   : cuda_attend(e, launch);
}

/* ---- names and grids, for the host ---- */

bool emit_cuda_has(const Plan *plan, int launch, EmitCudaKernel kernel) {
    const Launch *l = &plan->launches[launch];
    const bool products = l->kind == LAUNCH_MATMUL;
    const bool plain = products && l->stages[0]->matmul->expert < 0;
    switch (kernel) {
    case CUDA_LAUNCH:
        return true;
    case CUDA_TILE:
        return products && l->epilogue < l->stage_count;
    case CUDA_FUSED:
    case CUDA_FUSED32:
        return plain && l->epilogue < l->stage_count;
    case CUDA_LAUNCH32:
        return plain;
    case CUDA_MANY:
        return plain && emit_cuda_bf16(plan, l->stages[0]->matmul->x) &&
               l->stages[0]->matmul->k % 8 == 0;
    default:
        return false;
    }
}

void emit_cuda_name(const Plan *plan, int launch, EmitCudaKernel kernel,
                    char name[EMIT_CUDA_NAME_MAX]) {
    static const char *const prefix[CUDA_KERNELS] = {"launch", "launch32", "tile",
                                                     "fused",  "fused32",  "many"};
    snprintf(name, EMIT_CUDA_NAME_MAX, "%s_%d_%s", prefix[kernel], launch,
             plan->launches[launch].name);
}

bool emit_cuda_bf16(const Plan *plan, int tensor) {
    Emit e = {.plan = plan, .p = plan->program};
    return emit_held_bf16(&e, tensor);
}

int emit_cuda_domain(const Plan *plan, int launch) {
    Emit e = {.plan = plan, .p = plan->program};
    const Launch *l = &plan->launches[launch];
    return l->row_dim < 0 ? 2 : emit_domain(&e, l);
}

/* A thread has four elements of the longest row, where a block can have so many threads. */
static uint32_t row_threads(const Emit *e, const Launch *l) {
    uint64_t most = 1;
    for (int k = 0; k < l->stage_count; k++)
        for (int t = 0; t < l->stages[k]->stmt->target_count; t++) {
            int tensor = l->stages[k]->stmt->targets[t].tensor;
            uint64_t n = e->p->tensors[tensor].kind == LANG_STATE ? 1 : emit_row_elems(e, tensor);
            most = n > most ? n : most;
        }
    uint64_t threads = (most / 4 + 31) / 32 * 32;
    return (uint32_t)(threads < 128 ? 128 : threads > LGC_ROW_THREADS ? LGC_ROW_THREADS : threads);
}

static uint32_t product_grid(const Launch *l, int outputs) {
    uint32_t blocks = 0;
    for (int k = 0; k < l->epilogue; k++)
        blocks += (uint32_t)(((int)l->stages[k]->matmul->n + outputs - 1) / outputs);
    return blocks;
}

EmitCudaGrid emit_cuda_grid(const Plan *plan, int launch, EmitCudaKernel kernel, uint32_t rows) {
    Emit e = {.plan = plan, .p = plan->program};
    const Launch *l = &plan->launches[launch];
    const StageMatmul *m = l->stages[0]->matmul;
    const uint32_t row_tiles = (rows + 15) / 16;
    switch (kernel) {
    case CUDA_TILE:
        return (EmitCudaGrid){
            rows,
            (uint32_t)((result_columns(&e, l) + TILE_COLUMNS_A_BLOCK - 1) / TILE_COLUMNS_A_BLOCK),
            TILE_THREADS, 0};
    case CUDA_FUSED:
        return (EmitCudaGrid){(uint32_t)lgc_product_blocks((int)m->n), row_tiles,
                              LGC_PRODUCT_THREADS, 0};
    case CUDA_FUSED32:
        return (EmitCudaGrid){(uint32_t)lgc_product_blocks((int)m->n), (row_tiles + 1) / 2,
                              LGC_PRODUCT_THREADS, 0};
    case CUDA_LAUNCH32:
        return (EmitCudaGrid){product_grid(l, LGC_TILE_OUTPUTS), (row_tiles + 1) / 2,
                              LGC_PRODUCT_THREADS, 0};
    case CUDA_MANY:
        return (EmitCudaGrid){(rows + LGC_MANY_ROWS - 1) / LGC_MANY_ROWS,
                              product_grid(l, LGC_MANY_OUTPUTS), LGC_PRODUCT_THREADS,
                              LGC_MANY_SHARED};
    default:
        break;
    }
    if (l->kind == LAUNCH_ROWS)
        return (EmitCudaGrid){rows, 1, row_threads(&e, l), 0};
    if (l->kind == LAUNCH_ATTEND) {
        const StageAttend *a = l->stages[0]->attend;
        return (EmitCudaGrid){rows, (uint32_t)a->kv_heads, LGC_ATTEND_THREADS, 0};
    }
    return (EmitCudaGrid){product_grid(l, LGC_TILE_OUTPUTS),
                          m->expert >= 0 ? (uint32_t)(rows * m->slots) : row_tiles,
                          LGC_PRODUCT_THREADS, 0};
}

/* ---- the file ---- */

static LgStatus write_file(Emit *e) {
    emit_line(e, "/* %s: made by the compiler from %s, plan %.16s, for CUDA.",
              e->plan->provenance.model, e->file, e->plan->digest);
    emit_line(e, " * Provenance: %s. Every launch cites the lines of the page that it computes. */",
              provenance_text(e->plan->provenance.kind));
    emit_line(e, "#include \"step.cuh\"");
    emit_line(e, "%s", "");
    emit_line(e, "/* A state's part of the page that holds a position. */");
    emit_line(e, "LG_DEV PageAt lgp_page(const LgcStep *step, int64_t slot, int32_t pos, int32_t "
                 "layer, uint64_t offset) {");
    emit_line(
        e, "    unsigned char *page = step->pages[slot * step->pages_per_slot + pos / LGP_PAGE];");
    emit_line(e, "    return {page + (uint64_t)layer * %llu + offset};",
              (unsigned long long)e->plan->layer_page_bytes);
    emit_line(e, "}");
    return emit_launches(e, cuda_launch);
}

LgStatus emit_cuda(const Plan *plan, Buf *out, LgError *err) {
    if (strcmp(plan->backend, "cuda") != 0)
        return lg_fail(err, LG_BAD_INPUT, 0, "a plan for back end %s has no CUDA program",
                       plan->backend);
    Arena arena;
    arena_init(&arena);
    Emit e = {
        .plan = plan, .p = plan->program, .cuda = true, .err = err, .out = out, .arena = &arena};
    buf_init(&e.statics);
    e.file = emit_file_name(plan->program->file, &arena);
    e.line_seen = out->len;
    e.line = 1;
    LgStatus status = e.file ? emit_check_rows(&e) : lg_fail_memory(err);
    if (status == LG_OK)
        status = write_file(&e);
    emit_done(&e, &e.statics);
    if (status == LG_OK && (out->failed || e.failed || arena.failed))
        status = lg_fail_memory(err);
    arena_clear(&arena);
    return status;
}
