/* The interpreter behind the interface of a back end: no plan, no compiling, the meaning itself. */
#include <stdio.h>
#include <string.h>

#include "backend/runner.h"
#include "base/hash.h"
#include "base/mem.h"
#include "ir/eval.h"

#define INTERP_ROWS_MAX 512

typedef struct InterpRunner {
    Runner runner; /* first: a Runner * is an InterpRunner * */
    Eval *eval;
    char *model; /* zero-terminated, for the provenance */
} InterpRunner;

static InterpRunner *interp(Runner *r) {
    return (InterpRunner *)(void *)r;
}

static LgStatus interp_kv_reserve(Runner *r, int32_t pages, LgError *err) {
    return eval_reserve(interp(r)->eval, pages, err);
}

static LgStatus interp_step(Runner *r, const Step *step, float *logits, LgError *err) {
    if (step->rows > r->rows_max)
        return lg_fail(err, LG_LIMIT, 0, "step: %d rows, this runner takes %d", step->rows,
                       r->rows_max);
    return eval_step(interp(r)->eval, step, logits, err);
}

static LgStatus interp_adapter_install(Runner *r, const AdapterData *adapter, int32_t *slot,
                                       LgError *err) {
    return eval_adapter_install(interp(r)->eval, adapter, slot, err);
}

static void interp_adapter_remove(Runner *r, int32_t slot) {
    eval_adapter_remove(interp(r)->eval, slot);
}

static uint64_t interp_adapter_bytes(const Runner *r, int32_t slot) {
    return eval_adapter_bytes(((const InterpRunner *)(const void *)r)->eval, slot);
}

static void interp_close(Runner *r) {
    if (!r)
        return;
    InterpRunner *i = interp(r);
    eval_destroy(i->eval);
    lg_free(i->model);
    lg_free(i);
}

static const RunnerOps interp_ops = {
    .backend = "interp",
    .kv_reserve = interp_kv_reserve,
    .step = interp_step,
    .adapter_install = interp_adapter_install,
    .adapter_remove = interp_adapter_remove,
    .adapter_bytes = interp_adapter_bytes,
    .close = interp_close,
};

/* The checked program as text names dims and numbers, so that its digest covers source and config.
 */
static LgStatus digest_program(const RunnerOptions *o, char hex[65], LgError *err) {
    Buf text;
    buf_init(&text);
    buf_printf(&text, "interp %s\n", o->store_f32 ? "f32" : "bf16");
    lang_print(o->program, &text);
    bool failed = text.failed;
    if (!failed)
        sha256_hex(text.data, text.len, hex);
    buf_clear(&text);
    return failed ? lg_fail_memory(err) : LG_OK;
}

static LgStatus find_vocab(const LangProgram *p, int32_t *vocab, LgError *err) {
    for (int i = 0; i < p->tensor_count; i++) {
        const LangTensor *t = &p->tensors[i];
        if (t->kind != LANG_OUTPUT)
            continue;
        uint64_t columns = p->dims[t->dims[t->rank - 1]].size;
        if (t->rank != 2 || columns == 0 || columns > INT32_MAX)
            return lang_refuse(
                p, t->line, 0, err,
                "cannot run %.*s: an output has two axes, rows and a known number of "
                "columns",
                LG_STR_ARG(t->name));
        *vocab = (int32_t)columns;
        return LG_OK;
    }
    return lg_fail(err, LG_BAD_INPUT, 0, "%.*s: cannot run the program: it has no output",
                   LG_STR_ARG(p->file));
}

LgStatus runner_open_interp(const RunnerOptions *o, Runner **out, LgError *err) {
    const LangProgram *p = o->program;
    InterpRunner *i = lg_calloc(1, sizeof *i);
    if (!i)
        return lg_fail_memory(err);
    i->runner.ops = &interp_ops;
    i->runner.rows_max = o->rows_max > 0 ? o->rows_max : INTERP_ROWS_MAX;
    i->runner.level = "interpreter";
    i->model = lg_alloc(p->name.len + 1);
    LgStatus status = i->model ? LG_OK : lg_fail_memory(err);
    if (status == LG_OK) {
        memcpy(i->model, p->name.ptr, p->name.len);
        i->model[p->name.len] = 0;
        i->runner.provenance = (Provenance){PROVENANCE_COMPILED, i->model, NULL};
        status = find_vocab(p, &i->runner.vocab, err);
    }
    if (status == LG_OK)
        status = digest_program(o, i->runner.digest, err);
    if (status == LG_OK)
        status =
            eval_create(p, o->binding, (EvalOptions){.store_f32 = o->store_f32}, &i->eval, err);
    if (status != LG_OK) {
        interp_close(&i->runner);
        return status;
    }
    i->runner.kv_page_bytes = eval_page_bytes(i->eval);
    *out = &i->runner;
    return LG_OK;
}
