/* place_lora: the two statements that the source rewrite put behind a site become part of the
 * site's stage, and later one adapter call behind the launch that holds it. */
#include "stages/pass.h"

static Stage *stage_of(Pass *pass, int stmt) {
    for (int k = 0; k < pass->stage_count; k++)
        if (pass->stages[k].stmt_index == stmt)
            return &pass->stages[k];
    return NULL;
}

/* Nothing may read a site's target between its own statement and the fold. The rewrite puts them
 * side by side. */
static LgStatus place(Pass *pass, int index) {
    const LangProgram *p = pass->p;
    const LangStmt *s = &p->stmts[index];
    int base = index - 1;
    while (base >= 0 && p->stmts[base].role != LANG_PLAIN)
        base--;
    Stage *stage = base < 0 ? NULL : stage_of(pass, base);
    const LangSite *site = &p->sites[s->site];
    if (!stage || stage->stmt->targets[0].tensor != site->y ||
        (stage->op != STAGE_MATMUL && stage->op != STAGE_GATHER))
        return lang_refuse(
            p, s->line, 0, pass->err,
            "cannot place the adapter of this statement: its product is no matmul or "
            "lookup of its own. Write the product as a whole statement.");
    stage->site = s->site;
    if (s->role == LANG_LORA_LOW)
        stage->low = index;
    else
        stage->fold = index;
    return LG_OK;
}

LgStatus pass_place_lora(Pass *pass) {
    const LangProgram *p = pass->p;
    for (int k = 0; k < p->stmt_count; k++)
        if (p->stmts[k].role != LANG_PLAIN)
            LG_TRY(place(pass, k));
    for (int k = 0; k < pass->stage_count; k++) {
        const Stage *s = &pass->stages[k];
        if (s->site >= 0 && (s->low < 0 || s->fold < 0))
            return lang_refuse(p, s->stmt->line, 0, pass->err,
                               "cannot place the adapter of this statement: half of its rewrite is "
                               "missing. This is a bug; please report it.");
    }
    return LG_OK;
}
