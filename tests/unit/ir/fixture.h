/* Small programs with checkpoints made in memory. */
#ifndef LG_TESTS_IR_FIXTURE_H
#define LG_TESTS_IR_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/float.h"
#include "base/mem.h"
#include "formats/safetensors.h"
#include "ir/bind.h"
#include "ir/eval.h"

/* One tensor of a checkpoint: f32 unless `raw` gives another type's bytes. */
typedef struct FixtureTensor {
    const char *name;
    int rank;
    uint64_t shape[4];
    const float *values;
    const char *dtype; /* NULL: "F32" */
    size_t elem_bytes; /* of dtype */
    const void *raw;
} FixtureTensor;

typedef struct Fixture {
    Arena arena;
    Config *config;
    Buf file;
    TensorSet *tensors;
    LangProgram *program;
    Binding *binding;
    Eval *eval;
} Fixture;

static inline void fixture_init(Fixture *f) {
    *f = (Fixture){0};
    arena_init(&f->arena);
    buf_init(&f->file);
    f->config = config_create();
    assert_non_null(f->config);
}

static inline void fixture_clear(Fixture *f) {
    eval_destroy(f->eval);
    tensor_set_close(f->tensors);
    buf_clear(&f->file);
    config_destroy(f->config);
    arena_clear(&f->arena);
}

static inline void fixture_int(Fixture *f, const char *key, int64_t value) {
    assert_int_equal(config_set_int(f->config, key, value, NULL), LG_OK);
}

static inline void fixture_checkpoint(Fixture *f, const FixtureTensor *tensors, size_t count) {
    Buf header;
    uint64_t at = 0;
    buf_init(&header);
    for (size_t i = 0; i < count; i++) {
        const FixtureTensor *t = &tensors[i];
        uint64_t elems = 1;
        buf_printf(&header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? "," : "{", t->name,
                   t->dtype ? t->dtype : "F32");
        for (int k = 0; k < t->rank; k++) {
            buf_printf(&header, "%s%llu", k ? "," : "", (unsigned long long)t->shape[k]);
            elems *= t->shape[k];
        }
        uint64_t bytes = elems * (t->dtype ? t->elem_bytes : sizeof(float));
        buf_printf(&header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
                   (unsigned long long)(at + bytes));
        at += bytes;
    }
    buf_putc(&header, '}');
    while (header.len % 8)
        buf_putc(&header, ' ');
    uint64_t header_bytes = header.len;
    buf_append(&f->file, &header_bytes, sizeof header_bytes);
    buf_str(&f->file, buf_view(&header));
    for (size_t i = 0; i < count; i++) {
        const FixtureTensor *t = &tensors[i];
        uint64_t elems = 1;
        for (int k = 0; k < t->rank; k++)
            elems *= t->shape[k];
        buf_append(&f->file, t->dtype ? t->raw : t->values,
                   (size_t)elems * (t->dtype ? t->elem_bytes : sizeof(float)));
    }
    buf_clear(&header);
    LgError err = {0};
    LgStatus status = safetensors_parse((const unsigned char *)f->file.data, f->file.len, "fixture",
                                        &f->tensors, &err);
    if (status != LG_OK)
        print_message("%s\n", err.message);
    assert_int_equal(status, LG_OK);
}

static inline void fixture_compile(Fixture *f, const char *source) {
    LgError err = {0};
    LangProgram *plain = NULL;
    LgStatus status = lang_compile(lg_str(source), "test.lg", f->config, &f->arena, &plain, &err);
    if (status == LG_OK)
        status = lang_rewrite_lora(plain, &f->arena, &f->program, &err);
    if (status != LG_OK)
        print_message("%s\n", err.message);
    assert_int_equal(status, LG_OK);
}

static inline void fixture_bind(Fixture *f) {
    LgError err = {0};
    LgStatus status = bind_params(f->program, f->tensors, &f->arena, &f->binding, &err);
    if (status != LG_OK)
        print_message("%s\n", err.message);
    assert_int_equal(status, LG_OK);
}

/* The refusal's message must hold both words. */
static inline void fixture_bind_refused(Fixture *f, const char *word, const char *other) {
    LgError err = {0};
    Binding *binding = NULL;
    assert_int_equal(bind_params(f->program, f->tensors, &f->arena, &binding, &err), LG_BAD_INPUT);
    assert_null(binding);
    if (!strstr(err.message, word) || !strstr(err.message, other))
        print_message("%s\n", err.message);
    assert_non_null(strstr(err.message, word));
    assert_non_null(strstr(err.message, other));
}

static inline void fixture_eval(Fixture *f, EvalOptions options) {
    LgError err = {0};
    LgStatus status = eval_create(f->program, f->binding, options, &f->eval, &err);
    if (status != LG_OK)
        print_message("%s\n", err.message);
    assert_int_equal(status, LG_OK);
}

static inline int fixture_tensor(const Fixture *f, const char *name) {
    for (int i = 0; i < f->program->tensor_count; i++)
        if (lg_str_eq_c(f->program->tensors[i].name, name))
            return i;
    fail_msg("no tensor %s", name);
    return -1;
}

/* What a statement made: the last value that the trace saw of a tensor, at a layer (-2: any). */
#define FIXTURE_ELEMS_MAX 512
typedef struct FixtureTrace {
    const Fixture *f;
    const char *name;
    int layer;
    int target; /* 0, or 1: the second target of a statement with two */
    int seen;   /* calls of this statement so far */
    double values[FIXTURE_ELEMS_MAX];
    uint64_t elems;
} FixtureTrace;

static inline void fixture_trace(void *user, const LangProgram *p, int stmt, int layer,
                                 const double *value, uint64_t elems) {
    FixtureTrace *t = user;
    const LangStmt *s = &p->stmts[stmt];
    if (t->target < s->target_count && (t->layer == -2 || t->layer == layer) &&
        lg_str_eq_c(p->tensors[s->targets[t->target].tensor].name, t->name)) {
        bool mine = s->target_count == 1 || t->seen % s->target_count == t->target;
        t->seen++;
        if (!mine)
            return;
        assert_true(elems <= FIXTURE_ELEMS_MAX);
        memcpy(t->values, value, (size_t)elems * sizeof *value);
        t->elems = elems;
    }
}

static inline void fixture_step(Fixture *f, const Step *step, float *logits) {
    LgError err = {0};
    LgStatus status = eval_step(f->eval, step, logits, &err);
    if (status != LG_OK)
        print_message("%s\n", err.message);
    assert_int_equal(status, LG_OK);
}

static inline void fixture_step_traced(Fixture *f, const Step *step, FixtureTrace *t) {
    t->f = f;
    eval_set_trace(f->eval, fixture_trace, t);
    fixture_step(f, step, NULL);
    eval_set_trace(f->eval, NULL, NULL);
    assert_true(t->elems > 0);
}

#define assert_near(got, want, limit) assert_true(fabs((double)(got) - (double)(want)) <= (limit))

#endif
