/* The checked program of the Qwen3 page: what the levels above rely on. */
#include "lang_test.h"

#include <math.h>

typedef struct Fixture {
    Buf source;
    Config *config;
    Arena arena;
    LangProgram *p;
} Fixture;

static int open_page(Fixture *f, const char *path, const char *config) {
    LgError err;
    f->source = test_file(path);
    f->config = test_config(lg_str(config));
    arena_init(&f->arena);
    if (lang_compile(buf_view(&f->source), "page.lg", f->config, &f->arena, &f->p, &err) != LG_OK)
        fail_msg("%s", err.message);
    return 0;
}

static int setup(void **state) {
    static Fixture f;
    *state = &f;
    return open_page(&f, LG_SOURCE_DIR "/models/qwen3.lg", test_qwen3_config);
}

static int teardown(void **state) {
    Fixture *f = *state;
    arena_clear(&f->arena);
    config_destroy(f->config);
    buf_clear(&f->source);
    return 0;
}

static int tensor(const LangProgram *p, const char *name) {
    for (int i = 0; i < p->tensor_count; i++)
        if (lg_str_eq_c(p->tensors[i].name, name))
            return i;
    fail_msg("no tensor %s", name);
    return -1;
}

static int dim(const LangProgram *p, const char *name) {
    for (int i = 0; i < p->dim_count; i++)
        if (lg_str_eq_c(p->dims[i].name, name))
            return i;
    fail_msg("no dim %s", name);
    return -1;
}

static const LangStmt *stmt(const LangProgram *p, const char *text) {
    for (int i = 0; i < p->stmt_count; i++)
        if (lg_str_starts(p->stmts[i].text, text))
            return &p->stmts[i];
    fail_msg("no statement %s", text);
    return NULL;
}

static void check_dims(const LangProgram *p, const LangTensor *t, const char *names) {
    Buf got;
    buf_init(&got);
    for (int i = 0; i < t->rank; i++)
        buf_str(&got, p->dims[t->dims[i]].name);
    assert_string_equal(got.data, names);
    buf_clear(&got);
}

static void dims_have_sizes_of_the_config(void **state) {
    const LangProgram *p = ((Fixture *)*state)->p;
    assert_int_equal(p->dims[dim(p, "R")].size, 16);
    assert_int_equal(p->dims[dim(p, "M")].size, 2);
    assert_false(p->dims[dim(p, "M")].runtime);
    assert_true(p->dims[dim(p, "S")].runtime);
    assert_int_equal(p->dims[dim(p, "S")].size, 0);
    assert_int_equal(p->layer_dim, dim(p, "L"));
    assert_int_equal(p->layer_count, 4);
}

static void params_have_axes_sources_and_modules(void **state) {
    const LangProgram *p = ((Fixture *)*state)->p;
    const LangTensor *wq = &p->tensors[tensor(p, "wq")];
    assert_int_equal(wq->kind, LANG_PARAM);
    assert_true(wq->in_layer);
    check_dims(p, wq, "GMCRE");
    assert_int_equal(wq->axis_count, 2);
    assert_int_equal(wq->axis_start[0], 0);
    assert_int_equal(wq->axis_start[1], 4);
    assert_int_equal(wq->axis_start[2], 5);
    assert_int_equal(wq->source_count, 1);
    assert_true(lg_str_eq_c(wq->sources[0].name, "model.layers.{l}.self_attn.q_proj.weight"));
    assert_true(lg_str_eq_c(wq->module, "model.layers.{l}.self_attn.q_proj"));
    assert_false(wq->dtype_written);
    assert_int_equal(wq->stack_dim, -1);
}

static void a_tied_head_is_the_embedding_under_its_own_module(void **state) {
    const LangProgram *p = ((Fixture *)*state)->p;
    const LangTensor *head = &p->tensors[tensor(p, "head")];
    assert_int_equal(head->source_count, 1);
    assert_int_equal(head->sources[0].kind, LANG_SOURCE_PARAM);
    assert_int_equal(head->sources[0].param, tensor(p, "emb"));
    assert_true(lg_str_eq_c(head->module, "lm_head"));
}

static void inputs_and_states_are_listed(void **state) {
    const LangProgram *p = ((Fixture *)*state)->p;
    const LangTensor *pos = &p->tensors[tensor(p, "pos")];
    assert_int_equal(pos->kind, LANG_INPUT);
    assert_int_equal(pos->index_dim, dim(p, "S"));
    assert_int_equal(pos->dtype, LANG_I32);
    const LangTensor *kc = &p->tensors[tensor(p, "kc")];
    assert_int_equal(kc->kind, LANG_STATE);
    check_dims(p, kc, "BSGCR");
    assert_int_equal(p->tensors[tensor(p, "logits")].kind, LANG_OUTPUT);
    assert_int_equal(p->lora_input, tensor(p, "ad"));
}

static void store_types_are_those_written(void **state) {
    const LangProgram *p = ((Fixture *)*state)->p;
    assert_false(p->tensors[tensor(p, "x")].dtype_written);
    assert_true(p->tensors[tensor(p, "phi")].dtype_written);
    assert_int_equal(p->tensors[tensor(p, "phi")].dtype, LANG_F32);
}

static void statements_keep_their_order_and_lines(void **state) {
    const LangProgram *p = ((Fixture *)*state)->p;
    assert_int_equal(p->layer_begin, 2);
    assert_int_equal(p->layer_end, 24);
    assert_int_equal(p->stmt_count, 26);
    for (int i = 0; i < p->stmt_count; i++) {
        assert_int_equal(p->stmts[i].in_layer, i >= 2 && i < 24);
        assert_int_equal(p->stmts[i].role, LANG_PLAIN);
        assert_true(i == 0 || p->stmts[i].line > p->stmts[i - 1].line);
    }
    assert_string_equal("x[t,i]        = emb[token[t],i]",
                        arena_strdup(&((Fixture *)*state)->arena, p->stmts[0].text));
}

static void free_vars_come_first_in_target_order(void **state) {
    const LangProgram *p = ((Fixture *)*state)->p;
    const LangStmt *s = stmt(p, "qn[");
    const char *names[] = {"t", "g", "m", "c", "r", "a", "b"};
    const char *dims[] = {"T", "G", "M", "C", "R", "C", "R"};
    assert_int_equal(s->var_count, 7);
    for (int i = 0; i < 7; i++) {
        assert_true(lg_str_eq_c(s->vars[i].name, names[i]));
        assert_int_equal(s->vars[i].dim, dim(p, dims[i]));
        assert_int_equal(s->vars[i].reduced, i >= 5);
    }
}

static void numbers_are_folded_and_arithmetic_is_not(void **state) {
    const LangProgram *p = ((Fixture *)*state)->p;
    const LangExpr *e = stmt(p, "phi[")->rhs; /* pos[t] * rope_theta ^ (-r / R) */
    assert_int_equal(e->kind, EXPR_MUL);
    assert_int_equal(e->a->kind, EXPR_REF);
    assert_int_equal(e->b->kind, EXPR_POW);
    assert_true(e->b->a->number == 1000000.0);
    const LangExpr *power = e->b->b;
    assert_int_equal(power->kind, EXPR_DIV);
    assert_int_equal(power->a->kind, EXPR_NEG);
    assert_int_equal(power->a->a->kind, EXPR_VAR);
    assert_int_equal(power->a->a->var, 1);
    assert_true(power->b->number == 16.0);
}

static void a_softmax_keeps_its_index_with_the_bound(void **state) {
    const LangProgram *p = ((Fixture *)*state)->p;
    const LangStmt *s = stmt(p, "p[");
    assert_int_equal(s->rhs->kind, EXPR_REDUCE);
    assert_int_equal(s->rhs->red, LANG_RED_SOFTMAX);
    assert_int_equal(s->rhs->var_count, 1);
    const LangVar *v = &s->vars[s->rhs->vars[0]];
    assert_true(lg_str_eq_c(v->name, "s"));
    assert_false(v->reduced);
    assert_int_equal(v->upper->kind, EXPR_REF);
    assert_int_equal(v->upper->tensor, tensor(p, "pos"));
    assert_null(v->lower);
    const LangStmt *o = stmt(p, "o[");
    assert_true(o->vars[o->rhs->vars[0]].reduced);
    assert_non_null(o->vars[o->rhs->vars[0]].upper);
}

static void a_state_is_written_through_lookups(void **state) {
    const LangProgram *p = ((Fixture *)*state)->p;
    const LangStmt *s = stmt(p, "kc[");
    assert_int_equal(s->op, LANG_WRITE);
    const LangIndex *x = s->targets[0].indexes;
    assert_int_equal(x[0].kind, LANG_INDEX_LOOKUP);
    assert_int_equal(x[0].tensor, tensor(p, "slot"));
    assert_int_equal(x[0].dim, dim(p, "B"));
    assert_int_equal(x[1].tensor, tensor(p, "pos"));
    assert_int_equal(x[1].indexes[0].kind, LANG_INDEX_VAR);
    assert_int_equal(x[2].kind, LANG_INDEX_VAR);
    assert_int_equal(s->var_count, 4);
}

static void parts_are_two_statements_of_one_tensor(void **state) {
    const LangProgram *p = ((Fixture *)*state)->p;
    const LangStmt *a = stmt(p, "qr[t,g,m,0");
    const LangStmt *b = stmt(p, "qr[t,g,m,1");
    assert_int_equal(a->targets[0].tensor, b->targets[0].tensor);
    assert_int_equal(a->targets[0].indexes[3].kind, LANG_INDEX_INT);
    assert_int_equal(a->targets[0].indexes[3].dim, dim(p, "C"));
    assert_int_equal(b->targets[0].indexes[3].value, 1);
    check_dims(p, &p->tensors[a->targets[0].tensor], "TGMCR");
}

static void sites_know_their_product_and_the_adapter_of_a_row(void **state) {
    const LangProgram *p = ((Fixture *)*state)->p;
    assert_int_equal(p->site_count, 9);
    const LangSite *wo = &p->sites[p->tensors[tensor(p, "wo")].lora_site];
    assert_int_equal(wo->x, tensor(p, "o"));
    assert_int_equal(wo->y, tensor(p, "ao"));
    assert_true(wo->in_layer);
    assert_int_equal(wo->ad.tensor, tensor(p, "ad"));
    assert_int_equal(wo->ad.indexes[0].kind, LANG_INDEX_VAR);
    const LangSite *emb = &p->sites[p->tensors[tensor(p, "emb")].lora_site];
    assert_true(emb->lookup);
    assert_int_equal(emb->x, tensor(p, "token"));
    const LangSite *head = &p->sites[p->tensors[tensor(p, "head")].lora_site];
    assert_false(head->in_layer);
    assert_int_equal(head->ad.indexes[0].kind, LANG_INDEX_LOOKUP);
    assert_int_equal(head->ad.indexes[0].tensor, tensor(p, "last"));
    assert_int_equal(head->ad.indexes[0].dim, dim(p, "T"));
}

static void experts_are_stacked_and_chosen_by_lookup(void **state) {
    (void)state;
    Fixture f;
    Buf page = test_file(LG_SOURCE_DIR "/tests/lang/accepts_qwen3_moe.lg");
    char config[4096];
    const char *end = strchr(page.data, '\n');
    snprintf(config, sizeof config, "%.*s", (int)(end - page.data - 10), page.data + 10);
    open_page(&f, LG_SOURCE_DIR "/tests/lang/accepts_qwen3_moe.lg", config);
    const LangProgram *p = f.p;
    const LangTensor *wg = &p->tensors[tensor(p, "wg")];
    assert_int_equal(wg->stack_dim, dim(p, "X"));
    assert_true(lg_str_eq_c(wg->module, "model.layers.{l}.mlp.experts.{X}.gate_proj"));
    const LangStmt *s = stmt(p, "pick[");
    assert_int_equal(s->target_count, 2);
    assert_int_equal(s->rhs->red, LANG_RED_TOPK);
    const LangTensor *pick = &p->tensors[s->targets[0].tensor];
    assert_int_equal(pick->index_dim, dim(p, "X"));
    assert_int_equal(pick->dtype, LANG_I32);
    const LangTensor *gate = &p->tensors[s->targets[1].tensor];
    assert_int_equal(gate->index_dim, -1);
    assert_int_equal(gate->dtype, LANG_F32);
    check_dims(p, gate, "TK");
    buf_clear(&page);
    void *open = &f;
    teardown(&open);
}

static void layers_of_several_kinds_have_their_own_numbers(void **state) {
    (void)state;
    static const char page[] = "model m for \"M\"\n"
                               "dim E = 4, L = 3\n"
                               "dim T, S\n"
                               "input pos[T]: index S\n"
                               "const base[l] = if kinds[l] == \"a\" then 10 else 20\n"
                               "const same[l] = if kinds[l] == \"c\" then 1 else 2\n"
                               "x[t,i in E] = pos[t]\n"
                               "layer l in L {\n"
                               "  x[t,i] += base * same * (if kinds[l] == \"a\" then 1 else 3)\n"
                               "}\n"
                               "output y[t,i] = x[t,i]\n";
    Config *config = test_config(LG_STR("{\"kinds\": [\"a\", \"b\", \"a\"]}"));
    Arena arena;
    arena_init(&arena);
    LangProgram *p;
    LgError err;
    if (lang_compile(lg_str(page), "page.lg", config, &arena, &p, &err) != LG_OK)
        fail_msg("%s", err.message);
    assert_int_equal(p->const_count, 1);
    assert_true(lg_str_eq_c(p->consts[0].name, "base"));
    assert_true(p->consts[0].values[0] == 10 && p->consts[0].values[1] == 20);
    const LangExpr *e = p->stmts[1].rhs; /* (base * same) * (if …) */
    assert_int_equal(e->a->a->kind, EXPR_CONST);
    assert_int_equal(e->a->b->kind, EXPR_NUMBER);
    assert_true(e->a->b->number == 2);
    assert_int_equal(e->b->kind, EXPR_IF);
    assert_true(e->b->layer_true[0] && !e->b->layer_true[1] && e->b->layer_true[2]);
    arena_clear(&arena);
    config_destroy(config);
}

static void a_page_says_which_architectures_it_serves(void **state) {
    (void)state;
    Arena arena;
    arena_init(&arena);
    LgStr model;
    const LgStr *names;
    int count;
    LgError err;
    LgStr page = LG_STR("dim E = 3\nmodel two for \"One\", \"Two\"\n");
    assert_int_equal(lang_models(page, "two.lg", &arena, &model, &names, &count, &err), LG_OK);
    assert_true(lg_str_eq_c(model, "two"));
    assert_int_equal(count, 2);
    assert_true(lg_str_eq_c(names[1], "Two"));
    assert_int_equal(lang_models(LG_STR("dim E"), "none.lg", &arena, &model, &names, &count, &err),
                     LG_BAD_INPUT);
    assert_true(lg_str_starts(lg_str(err.message), "none.lg:1: cannot tell what the page serves"));
    arena_clear(&arena);
}

static void later_levels_refuse_in_the_same_shape(void **state) {
    const LangProgram *p = ((Fixture *)*state)->p;
    LgError err;
    LgStatus status = lang_refuse(
        p, 50, 19, &err, "cannot lift: this sum has %s. Two are accepted.", "three factors");
    assert_int_equal(status, LG_BAD_INPUT);
    assert_int_equal(err.offset, 50);
    assert_string_equal(err.message,
                        "page.lg:50: cannot lift: this sum has three factors. Two are accepted.\n"
                        "  q[t,g,m,c,r]  = sum i: ha[t,i] * wq[g,m,c,r,i]\n"
                        "                  ^");
    lang_refuse(p, 50, 0, &err, "cannot bind: it is gone. Another is accepted.");
    assert_string_equal(err.message, "page.lg:50: cannot bind: it is gone. Another is accepted.\n"
                                     "  q[t,g,m,c,r]  = sum i: ha[t,i] * wq[g,m,c,r,i]");
}

static void the_caret_counts_code_points(void **state) {
    (void)state;
    Arena arena;
    arena_init(&arena);
    LgStr model;
    const LgStr *names;
    int count;
    LgError err;
    LgStr page = LG_STR("model m for \"\xc3\xa4\xc3\xb6\" 3\n");
    assert_int_equal(lang_models(page, "m.lg", &arena, &model, &names, &count, &err), LG_BAD_INPUT);
    assert_non_null(strstr(err.message, "\n                 ^"));
    arena_clear(&arena);
}

static void ignored_keys_are_printed_with_why(void **state) {
    (void)state;
    Buf out;
    buf_init(&out);
    lang_print_ignored(&out);
    assert_non_null(strstr(out.data, "transformers_version: "));
    assert_non_null(strstr(out.data, "sliding_window (qwen3) when use_sliding_window is off: "));
    assert_null(strstr(out.data, "quantization_config"));
    buf_clear(&out);
}

static void printing_is_the_same_every_time(void **state) {
    Fixture *f = *state;
    LangProgram *again;
    LgError err;
    Arena arena;
    arena_init(&arena);
    assert_int_equal(lang_compile(buf_view(&f->source), "page.lg", f->config, &arena, &again, &err),
                     LG_OK);
    Buf a, b;
    buf_init(&a);
    buf_init(&b);
    lang_print(f->p, &a);
    lang_print(again, &b);
    assert_string_equal(a.data, b.data);
    buf_clear(&a);
    buf_clear(&b);
    arena_clear(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dims_have_sizes_of_the_config),
        cmocka_unit_test(params_have_axes_sources_and_modules),
        cmocka_unit_test(a_tied_head_is_the_embedding_under_its_own_module),
        cmocka_unit_test(inputs_and_states_are_listed),
        cmocka_unit_test(store_types_are_those_written),
        cmocka_unit_test(statements_keep_their_order_and_lines),
        cmocka_unit_test(free_vars_come_first_in_target_order),
        cmocka_unit_test(numbers_are_folded_and_arithmetic_is_not),
        cmocka_unit_test(a_softmax_keeps_its_index_with_the_bound),
        cmocka_unit_test(a_state_is_written_through_lookups),
        cmocka_unit_test(parts_are_two_statements_of_one_tensor),
        cmocka_unit_test(sites_know_their_product_and_the_adapter_of_a_row),
        cmocka_unit_test(experts_are_stacked_and_chosen_by_lookup),
        cmocka_unit_test(layers_of_several_kinds_have_their_own_numbers),
        cmocka_unit_test(a_page_says_which_architectures_it_serves),
        cmocka_unit_test(later_levels_refuse_in_the_same_shape),
        cmocka_unit_test(the_caret_counts_code_points),
        cmocka_unit_test(ignored_keys_are_printed_with_why),
        cmocka_unit_test(printing_is_the_same_every_time),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
