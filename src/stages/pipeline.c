/* The passes, in order, with the verifier between them. */
#include "stages/pass.h"

#include <string.h>

/* Stages that a back end has a kernel for. */
typedef struct BackendStages {
    const char *backend;
    bool has[STAGE_OP_COUNT];
    bool indexed_matmul;
} BackendStages;

static const BackendStages backend_stages[] = {
    {"interp",
     {[STAGE_GATHER] = true,
      [STAGE_MAP] = true,
      [STAGE_REDUCE] = true,
      [STAGE_MATMUL] = true,
      [STAGE_SOFTMAX] = true,
      [STAGE_TOPK] = true,
      [STAGE_SCATTER] = true,
      [STAGE_ATTEND] = true},
     true},
    {"cpu",
     {[STAGE_GATHER] = true,
      [STAGE_MAP] = true,
      [STAGE_REDUCE] = true,
      [STAGE_MATMUL] = true,
      [STAGE_SOFTMAX] = true,
      [STAGE_TOPK] = true,
      [STAGE_SCATTER] = true,
      [STAGE_ATTEND] = true},
     true},
    {"cuda",
     {[STAGE_GATHER] = true,
      [STAGE_MAP] = true,
      [STAGE_REDUCE] = true,
      [STAGE_MATMUL] = true,
      [STAGE_SOFTMAX] = true,
      [STAGE_TOPK] = true,
      [STAGE_SCATTER] = true,
      [STAGE_ATTEND] = true},
     true},
};

LgStatus pass_check_kernels(Pass *pass) {
    const BackendStages *b = NULL;
    for (size_t k = 0; k < sizeof(backend_stages) / sizeof(backend_stages[0]); k++)
        if (!strcmp(backend_stages[k].backend, pass->o->backend))
            b = &backend_stages[k];
    if (!b)
        return lg_fail(pass->err, LG_BAD_INPUT, 0, "no back end %s; there are cpu, cuda and interp",
                       pass->o->backend);
    for (int k = 0; k < pass->stage_count; k++) {
        const Stage *s = &pass->stages[k];
        bool indexed = s->matmul && s->matmul->expert >= 0;
        if (!b->has[s->op] || (indexed && !b->indexed_matmul))
            return lang_refuse(
                pass->p, s->stmt->line, 0, pass->err,
                "cannot compile: missing kernel for this stage (%s%s) on back end %s. The "
                "interpreter runs it.",
                indexed ? "indexed " : "", stage_op_name(s->op), b->backend);
    }
    return LG_OK;
}

static int find_output(const LangProgram *p) {
    for (int k = 0; k < p->tensor_count; k++)
        if (p->tensors[k].kind == LANG_OUTPUT)
            return k;
    return -1;
}

LgStatus plan_build(const LangProgram *p, const PlanOptions *options, Arena *arena, Plan **out,
                    LgError *err) {
    Pass pass = {.o = options, .arena = arena, .err = err};
    pass.p = ARENA_NEW(arena, LangProgram);
    pass.plan = ARENA_NEW(arena, Plan);
    const char *model = arena_strdup(arena, p->name);
    const char *backend = arena_strdup(arena, lg_str(options->backend));
    if (!pass.p || !pass.plan || !model || !backend)
        return lg_fail_memory(err);
    *pass.p = *p;
    Plan *plan = pass.plan;
    plan->program = pass.p;
    plan->provenance = (Provenance){PROVENANCE_COMPILED, model, NULL};
    plan->backend = backend;
    plan->store_f32 = options->store_f32;
    plan->output = find_output(p);
    plan->before_output = -1;
    if (plan->output < 0)
        return lg_fail(err, LG_BAD_INPUT, 0, "%.*s: cannot compile: no statement is an output",
                       LG_STR_ARG(p->file));
    LG_TRY(pass_lift(&pass));
    LG_TRY(pass_check_kernels(&pass));
    LG_TRY(pass_place_lora(&pass));
    LG_TRY(pass_check(&pass, "place_lora"));
    if (!options->no_fuse)
        LG_TRY(pass_hoist(&pass));
    LG_TRY(pass_fuse(&pass));
    LG_TRY(pass_weights(&pass));
    LG_TRY(pass_memory(&pass));
    LG_TRY(plan_verify(plan, "memory", err));
    LG_TRY(plan_digest(plan, err));
    if (arena->failed) /* a name may be missing */
        return lg_fail_memory(err);
    *out = plan;
    return LG_OK;
}
