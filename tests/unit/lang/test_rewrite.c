/* Adapters as a rewrite: what is added behind each site, and that nothing else changes. */
#include "lang_test.h"

typedef struct Fixture {
    Arena arena;
    LangProgram *before, *after;
    Config *config;
} Fixture;

static Fixture rewrite(const char *path, const char *config) {
    Fixture f = {0};
    arena_init(&f.arena);
    Buf source = test_file(path);
    LgStr text = buf_view(&source);
    if (!config) {
        const char *end = strchr(source.data, '\n');
        f.config = test_config((LgStr){source.data + 10, (size_t)(end - source.data) - 10});
    } else {
        f.config = test_config(lg_str(config));
    }
    LgError err;
    if (lang_compile(text, "page.lg", f.config, &f.arena, &f.before, &err) != LG_OK ||
        lang_rewrite_lora(f.before, &f.arena, &f.after, &err) != LG_OK)
        fail_msg("%s", err.message);
    buf_clear(&source);
    return f;
}

static void close_fixture(Fixture *f) {
    arena_clear(&f->arena);
    config_destroy(f->config);
}

static Fixture qwen3(void) {
    return rewrite(LG_SOURCE_DIR "/models/qwen3.lg", test_qwen3_config);
}

static const LangTensor *tensor(const LangProgram *p, const char *name) {
    for (int i = 0; i < p->tensor_count; i++)
        if (lg_str_eq_c(p->tensors[i].name, name))
            return &p->tensors[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

static void check_text(const LangProgram *p, const char *param, const char *low, const char *fold) {
    int site = tensor(p, param)->lora_site;
    assert_true(site >= 0);
    int at = p->sites[site].stmt;
    const LangStmt *a = &p->stmts[at + 1];
    const LangStmt *b = &p->stmts[at + 2];
    assert_int_equal(a->role, LANG_LORA_LOW);
    assert_int_equal(b->role, LANG_LORA_FOLD);
    assert_int_equal(a->site, site);
    assert_int_equal(b->site, site);
    assert_int_equal(a->op, LANG_ASSIGN);
    assert_int_equal(b->op, LANG_ADD_TO);
    assert_int_equal(a->line, p->stmts[at].line);
    assert_int_equal(a->in_layer, p->stmts[at].in_layer);
    if (!lg_str_eq_c(a->text, low) || !lg_str_eq_c(b->text, fold))
        fail_msg("got\n%.*s\n%.*s", LG_STR_ARG(a->text), LG_STR_ARG(b->text));
}

static void a_product_gains_low_and_fold(void **state) {
    (void)state;
    Fixture f = qwen3();
    check_text(f.after, "wq", "q.low[t,z] = sum i: ha[t,i] * wq.A[ad[t],z,i]",
               "q[t,g,m,c,r] += wq.scale[ad[t]] * (sum z: q.low[t,z] * wq.B[ad[t],g,m,c,r,z])");
    check_text(f.after, "wo", "ao.low[t,z] = sum g,m,d: o[t,g,m,d] * wo.A[ad[t],z,g,m,d]",
               "ao[t,i] += wo.scale[ad[t]] * (sum z: ao.low[t,z] * wo.B[ad[t],i,z])");
    close_fixture(&f);
}

static void the_adapter_of_a_sampled_row_is_that_of_its_token(void **state) {
    (void)state;
    Fixture f = qwen3();
    check_text(f.after, "head", "logits.low[n,z] = sum i: hz[n,i] * head.A[ad[last[n]],z,i]",
               "logits[n,v] += head.scale[ad[last[n]]] * (sum z: logits.low[n,z] * "
               "head.B[ad[last[n]],v,z])");
    close_fixture(&f);
}

static void a_lookup_takes_columns_of_a(void **state) {
    (void)state;
    Fixture f = qwen3();
    check_text(f.after, "emb", "x.low[t,z] = emb.A[ad[t],z,token[t]]",
               "x[t,i] += emb.scale[ad[t]] * (sum z: x.low[t,z] * emb.B[ad[t],i,z])");
    close_fixture(&f);
}

static void experts_have_two_lookups(void **state) {
    (void)state;
    Fixture f = rewrite(LG_SOURCE_DIR "/tests/lang/accepts_qwen3_moe.lg", NULL);
    check_text(f.after, "wg", "fg.low[t,j,z] = sum i: hf[t,i] * wg.A[ad[t],pick[t,j],z,i]",
               "fg[t,j,f] += wg.scale[ad[t]] * (sum z: fg.low[t,j,z] * "
               "wg.B[ad[t],pick[t,j],f,z])");
    check_text(f.after, "wd", "fd.low[t,j,z] = sum f: fa[t,j,f] * wd.A[ad[t],pick[t,j],z,f]",
               "fd[t,j,i] += wd.scale[ad[t]] * (sum z: fd.low[t,j,z] * "
               "wd.B[ad[t],pick[t,j],i,z])");
    check_text(f.after, "wr", "rt.low[t,z] = sum i: hf[t,i] * wr.A[ad[t],z,i]",
               "rt[t,e] += wr.scale[ad[t]] * (sum z: rt.low[t,z] * wr.B[ad[t],e,z])");
    close_fixture(&f);
}

static void check_axes(const LangProgram *p, const char *name, const char *axes) {
    const LangTensor *t = tensor(p, name);
    Buf got;
    buf_init(&got);
    int axis = 0;
    for (int i = 0; i < t->rank; i++) {
        bool begins = axis < t->axis_count && t->axis_start[axis] == i;
        axis += begins;
        buf_puts(&got, begins && i ? "," : "");
        buf_str(&got, p->dims[t->dims[i]].name);
    }
    assert_string_equal(got.data, axes);
    assert_int_equal(t->axis_start[t->axis_count], t->rank);
    buf_clear(&got);
}

static void adapter_tensors_have_the_axes_of_their_param(void **state) {
    (void)state;
    Fixture f = qwen3();
    check_axes(f.after, "wq.A", "A,Z,E");
    check_axes(f.after, "wq.B", "A,GMCR,Z");
    check_axes(f.after, "wo.A", "A,Z,GMD");
    check_axes(f.after, "wq.scale", "A");
    check_axes(f.after, "q.low", "T,Z");
    check_axes(f.after, "emb.A", "A,Z,V");
    check_axes(f.after, "logits.low", "N,Z");
    const LangTensor *a = tensor(f.after, "wq.A");
    assert_int_equal(a->kind, LANG_ADAPTER);
    assert_true(a->in_layer);
    assert_false(a->dtype_written);
    assert_false(tensor(f.after, "head.A")->in_layer);
    const LangTensor *scale = tensor(f.after, "wq.scale");
    assert_true(scale->dtype_written && scale->dtype == LANG_F32);
    assert_int_equal(tensor(f.after, "q.low")->kind, LANG_VALUE);
    assert_false(tensor(f.after, "q.low")->dtype_written);
    const LangTensor *logits = tensor(f.after, "logits.low"); /* the type of its statement */
    assert_true(logits->dtype_written && logits->dtype == LANG_F32);
    const LangDim *z = &f.after->dims[f.after->dim_count - 1];
    assert_true(lg_str_eq_c(z->name, "Z") && z->runtime);
    close_fixture(&f);
}

static void layers_and_sites_move_with_what_is_added(void **state) {
    (void)state;
    Fixture f = qwen3();
    assert_int_equal(f.after->stmt_count, f.before->stmt_count + 18);
    assert_int_equal(f.after->layer_begin, f.before->layer_begin + 2);
    assert_int_equal(f.after->layer_end, f.before->layer_end + 2 + 14);
    for (int i = 0; i < f.after->stmt_count; i++)
        assert_int_equal(f.after->stmts[i].in_layer,
                         i >= f.after->layer_begin && i < f.after->layer_end);
    for (int i = 0; i < f.after->site_count; i++) {
        const LangStmt *old = &f.before->stmts[f.before->sites[i].stmt];
        const LangStmt *new = &f.after->stmts[f.after->sites[i].stmt];
        assert_int_equal(old->line, new->line);
        assert_int_equal(new->role, LANG_PLAIN);
    }
    close_fixture(&f);
}

static void the_program_before_is_left_alone(void **state) {
    (void)state;
    Fixture f = qwen3();
    Buf a, b;
    buf_init(&a);
    buf_init(&b);
    lang_print(f.before, &a);
    LangProgram *again;
    LgError err;
    assert_int_equal(lang_rewrite_lora(f.before, &f.arena, &again, &err), LG_OK);
    lang_print(f.before, &b);
    assert_string_equal(a.data, b.data);
    assert_null(strstr(b.data, ".low"));
    buf_clear(&a);
    buf_clear(&b);
    close_fixture(&f);
}

static void taken_names_are_stepped_around(void **state) {
    (void)state;
    Fixture f = rewrite(LG_SOURCE_DIR "/tests/lang/accepts_sites_beside_z.lg", NULL);
    check_text(f.after, "w", "y.low[z,z.rank] = sum i: x[z,i] * w.A[ad[z],z.rank,i]",
               "y[z,f] += w.scale[ad[z]] * (sum z.rank: y.low[z,z.rank] * w.B[ad[z],f,z.rank])");
    check_axes(f.after, "w.A", "A,Z.rank,E");
    close_fixture(&f);
}

static void a_page_without_sites_stays_as_it_is(void **state) {
    (void)state;
    Fixture f = rewrite(LG_SOURCE_DIR "/tests/lang/accepts_inert_keys.lg", NULL);
    assert_int_equal(f.after->stmt_count, f.before->stmt_count);
    assert_int_equal(f.after->tensor_count, f.before->tensor_count);
    assert_int_equal(f.after->dim_count, f.before->dim_count);
    assert_int_equal(f.after->lora_input, -1);
    close_fixture(&f);
}

static void rows_found_through_several_statements_compose(void **state) {
    (void)state;
    Fixture f = rewrite(LG_SOURCE_DIR "/tests/lang/accepts_rows_looked_up_twice.lg", NULL);
    check_text(f.after, "w", "y.low[n,z] = sum i: g[n,i] * w.A[ad[last[n]],z,i]",
               "y[n,f] += w.scale[ad[last[n]]] * (sum z: y.low[n,z] * w.B[ad[last[n]],f,z])");
    close_fixture(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_product_gains_low_and_fold),
        cmocka_unit_test(the_adapter_of_a_sampled_row_is_that_of_its_token),
        cmocka_unit_test(a_lookup_takes_columns_of_a),
        cmocka_unit_test(experts_have_two_lookups),
        cmocka_unit_test(adapter_tensors_have_the_axes_of_their_param),
        cmocka_unit_test(layers_and_sites_move_with_what_is_added),
        cmocka_unit_test(the_program_before_is_left_alone),
        cmocka_unit_test(taken_names_are_stepped_around),
        cmocka_unit_test(a_page_without_sites_stays_as_it_is),
        cmocka_unit_test(rows_found_through_several_statements_compose),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
