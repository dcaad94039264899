/* Launches over rows: the statements of a chain in order, row by row; and what a launch of products
 * does to its tiles. */
#include "emit/emit_impl.h"

#define ROWS_PER_TASK 4

LgStatus emit_rows(Emit *e, int launch) {
    const Launch *l = &e->plan->launches[launch];
    RowsEmit r = {.e = e, .l = l, .status = LG_OK};
    emit_collect_refs(&r, 0, l->stage_count);
    for (int k = 0; k < l->stage_count && r.status == LG_OK; k++)
        r.status = emit_check_type(e, l->stages[k]->stmt, l->stages[k]->stmt->targets[0].tensor);
    LG_TRY(r.status);
    emit_launch_begin(e, launch);
    if (r.scratch + r.choice)
        emit_line(e, "float *const scratch = step->scratch + thread * step->scratch_floats;");
    emit_line(e, "const int32_t rows = %s;", emit_rows_text(e, l));
    emit_line(e, "const int32_t tasks = (rows + %d) / %d;", ROWS_PER_TASK - 1, ROWS_PER_TASK);
    emit_line(e, "for (int32_t task; (task = step->claim(step->team)) < tasks;)");
    e->indent++;
    emit_line(e, "for (int32_t row = task * %d; row < rows && row < task * %d + %d; row++) {",
              ROWS_PER_TASK, ROWS_PER_TASK, ROWS_PER_TASK);
    e->indent++;
    emit_declare_weights(&r);
    emit_declare_rows(&r);
    for (int k = 0; k < l->stage_count && r.status == LG_OK; k++)
        emit_stmt(&r, l->stages[k]);
    e->indent--;
    emit_line(e, "}");
    e->indent--;
    LG_TRY(r.status);
    return emit_launch_end(e, launch);
}

LgStatus emit_tile(Emit *e, int launch) {
    const Launch *l = &e->plan->launches[launch];
    RowsEmit r = {.e = e, .l = l, .status = LG_OK};
    emit_collect_refs(&r, l->epilogue, l->stage_count);
    for (int k = l->epilogue; k < l->stage_count && r.status == LG_OK; k++)
        r.status = emit_check_type(e, l->stages[k]->stmt, l->stages[k]->stmt->targets[0].tensor);
    LG_TRY(r.status);
    emit_line(e, "%s", "");
    emit_line(e, "/* What launch %d does to each tile of its products. */", launch);
    emit_line(e, "static void tile_%d(const LgpStep *step%s, LgpMatmulPart tile) {", launch,
              l->in_layer ? ", int32_t layer" : "");
    e->indent++;
    emit_line(e, "for (int32_t row = tile.row; row < tile.row_end; row++) {");
    e->indent++;
    emit_declare_weights(&r);
    emit_declare_rows(&r);
    for (int k = l->epilogue; k < l->stage_count && r.status == LG_OK; k++)
        emit_tile_stmt(&r, l->stages[k]);
    e->indent--;
    emit_line(e, "}");
    e->indent--;
    emit_line(e, "}");
    return r.status;
}
