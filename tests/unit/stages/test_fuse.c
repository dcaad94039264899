/* Which launches each rule joins, and which it must leave apart. That no rule changes a bit is
 * tested where programs run. */
#include "ir/stage.h"
#include "tests/unit/stages/fixture.h"

static const PlanOptions cpu = {.backend = "cpu"};
static const PlanOptions plain = {.backend = "cpu", .no_fuse = true};

static Page page;

static void plan_of(const char *body, const PlanOptions *o, bool adapters) {
    char source[8192];
    snprintf(source, sizeof source, "%s%s", PAGE_HEAD, body);
    if (page_compile(&page, source, "test.lg", small_config, adapters) != LG_OK ||
        page_plan(&page, o) != LG_OK)
        fail_msg("%s", page.error.message);
}

static const Launch *launch(const char *value) {
    return &page.plan->launches[launch_of(page.plan, value)];
}

static void together(const char *a, const char *b) {
    if (launch(a) != launch(b))
        fail_msg("%s and %s are in two launches", a, b);
}

static void apart(const char *a, const char *b) {
    if (launch(a) == launch(b))
        fail_msg("%s and %s are in one launch", a, b);
}

#define WEIGHTS                                                                                    \
    "param w1[F, E] = \"w1.weight\"\n"                                                             \
    "param w2[F, E] = \"w2.weight\"\n"                                                             \
    "param w3[D, E] = \"w3.weight\"\n"

static void products_of_one_input_are_siblings(void **state) {
    (void)state;
    plan_of(WEIGHTS "a[t,f] = sum i: x[t,i] * w1[f,i]\n"
                    "m[t,f] = a[t,f] * 2 + a[t,0]\n"
                    "b[t,f] = sum i: x[t,i] * w2[f,i]\n"
                    "c[t,d] = sum i: x[t,i] * w3[d,i]\n"
                    "hz[n,i] = x[last[n],i] + b[last[n],0] + c[last[n],0] + m[last[n],0]" PAGE_END,
            &cpu, false);
    together("a", "b"); /* although a statement stands between them */
    together("a", "c"); /* although it has other rows */
    apart("a", "m");
    assert_string_equal(launch("a")->rule, "siblings");
    assert_int_equal(launch("a")->cite.line_count, 3);
    assert_non_null(strstr(launch("a")->name, "_a_b_c"));
    page_clear(&page);
}

static void products_of_two_inputs_are_apart(void **state) {
    (void)state;
    plan_of(WEIGHTS "y[t,i] = x[t,i] * 2\n"
                    "a[t,f] = sum i: x[t,i] * w1[f,i]\n"
                    "b[t,f] = sum i: y[t,i] * w2[f,i]\n"
                    "c[t,d] = sum i: y[t,i] * w3[d,i]\n"
                    "hz[n,i] = x[last[n],i] + b[last[n],0] + a[last[n],0] + c[last[n],0]" PAGE_END,
            &cpu, false);
    apart("a", "b");
    together("b", "c");
    page_clear(&page);
}

static void input_that_changes_between_products_keeps_them_apart(void **state) {
    (void)state;
    plan_of("layer l in L {\n"
            "  param w1[F, E] = \"{l}.w1.weight\"\n"
            "  param w2[F, E] = \"{l}.w2.weight\"\n"
            "  a[t,f] = sum i: x[t,i] * w1[f,i]\n"
            "  x[t,i] += a[t,0]\n"
            "  b[t,f] = sum i: x[t,i] * w2[f,i]\n"
            "  x[t,i] += b[t,0]\n"
            "}\n" PAGE_TAIL,
            &cpu, false);
    apart("a", "b");
    page_clear(&page);
}

static void five_sites_are_two_launches(void **state) {
    (void)state;
    plan_of("lora ad on w1, w2, w3, w4, w5\n"
            "layer l in L {\n"
            "  param w1[F, E] = \"{l}.w1.weight\"\n"
            "  param w2[F, E] = \"{l}.w2.weight\"\n"
            "  param w3[F, E] = \"{l}.w3.weight\"\n"
            "  param w4[F, E] = \"{l}.w4.weight\"\n"
            "  param w5[F, E] = \"{l}.w5.weight\"\n"
            "  a[t,f] = sum i: x[t,i] * w1[f,i]\n"
            "  b[t,f] = sum i: x[t,i] * w2[f,i]\n"
            "  c[t,f] = sum i: x[t,i] * w3[f,i]\n"
            "  d[t,f] = sum i: x[t,i] * w4[f,i]\n"
            "  e[t,f] = sum i: x[t,i] * w5[f,i]\n"
            "  x[t,i] += a[t,0] + b[t,0] + c[t,0] + d[t,0] + e[t,0]\n"
            "}\n" PAGE_TAIL,
            &cpu, true);
    together("a", "d");
    apart("a", "e");
    assert_int_equal(launch("a")->lora_count, 1);
    assert_int_equal(launch("a")->loras[0].count, 4);
    assert_int_equal(launch("e")->loras[0].count, 1);
    page_clear(&page);
}

static void statements_on_one_row_are_a_chain(void **state) {
    (void)state;
    plan_of("y[t,i] = x[t,i] * 2\n"
            "z[t] = mean i: y[t,i]\n"
            "u[t,i] = y[t,i] * z[t]\n"
            "hz[n,i] = u[last[n],i]" PAGE_END,
            &cpu, false);
    together("x", "y");
    together("x", "z");
    together("x", "u");
    apart("u", "hz"); /* hz has other rows */
    assert_string_equal(launch("u")->rule, "row-chain");
    page_clear(&page);
}

static void adapters_end_a_chain(void **state) {
    (void)state;
    plan_of("param head[V, E] = \"head.weight\"\n"
            "lora ad on emb\n"
            "y[t,i] = x[t,i] * 2\n"
            "hz[n,i] = y[last[n],i]\n"
            "output logits[n,v]: f32 = sum i: hz[n,i] * head[v,i]\n",
            &cpu, true);
    apart("x", "y");
    assert_int_equal(launch("x")->lora_count, 1);
    page_clear(&page);
}

static void arithmetic_on_elements_ends_its_products(void **state) {
    (void)state;
    plan_of("lora ad on w1, w2, w4\n"
            "layer l in L {\n"
            "  param w1[F, E] = \"{l}.w1.weight\"\n"
            "  param w2[F, E] = \"{l}.w2.weight\"\n"
            "  param w4[E, F] = \"{l}.w4.weight\"\n"
            "  param g[F] = \"{l}.g.weight\"\n"
            "  a[t,f] = sum i: x[t,i] * w1[f,i]\n"
            "  b[t,f] = sum i: x[t,i] * w2[f,i]\n"
            "  c[t,f] = silu(a[t,f]) * b[t,f] * g[f]\n"
            "  y[t,i] = sum f: c[t,f] * w4[i,f]\n"
            "  x[t,i] += y[t,i]\n"
            "}\n" PAGE_TAIL,
            &cpu, true);
    together("a", "c");
    assert_string_equal(launch("c")->rule, "epilogue");
    assert_int_equal(launch("c")->epilogue, 2);
    assert_int_equal(launch("c")->lora_count, 1);
    const Launch *y = launch("y");
    assert_int_equal(y->stage_count, 2);
    assert_int_equal(y->stages[1]->stmt->op, LANG_ADD_TO);
    page_clear(&page);
}

static void epilogue_apart(const char *statement) {
    char body[1024];
    snprintf(body, sizeof body,
             WEIGHTS "a[t,f] = sum i: x[t,i] * w1[f,i]\n"
                     "b[t,f] = sum i: x[t,i] * w2[f,i]\n"
                     "c[t,d] = sum i: x[t,i] * w3[d,i]\n%s\n"
                     "hz[n,i] = y[last[n],0] + b[last[n],0] + c[last[n],0] + x[last[n],i]" PAGE_END,
             statement);
    plan_of(body, &cpu, false);
    apart("a", "y");
    page_clear(&page);
}

static void arithmetic_that_needs_more_than_its_element_stays_apart(void **state) {
    (void)state;
    /* c has another shape, so that a task does not hold the same tile of all three. */
    epilogue_apart("y[t,f] = a[t,f] * b[t,f]");
    plan_of(WEIGHTS "a[t,f] = sum i: x[t,i] * w1[f,i]\n"
                    "b[t,f] = sum i: x[t,i] * w2[f,i]\n"
                    "y[t,f] = a[t,f] * b[t,0]\n"
                    "z[t,d] = sum i: x[t,i] * w3[d,i]\n"
                    "hz[n,i] = y[last[n],0] + z[last[n],0] + x[last[n],i]" PAGE_END,
            &cpu, false);
    apart("a", "y");
    page_clear(&page);
    static const char *const statements[] = {
        "y[t,f] = a[t,f] * pos[t]",
        "y[t,f] = a[t,f] * f",
        "y[t,f] = a[t,f] * rsqrt(mean e: a[t,e]^2)",
        "y[t] = a[t,0] * 2",
    };
    for (size_t k = 0; k < sizeof statements / sizeof statements[0]; k++) {
        char body[1024];
        snprintf(body, sizeof body,
                 "param w1[F, E] = \"w1.weight\"\na[t,f] = sum i: x[t,i] * w1[f,i]\n%s\n"
                 "hz[n,i] = y[last[n]%s] + x[last[n],i]" PAGE_END,
                 statements[k], strstr(statements[k], "y[t]") ? "" : ",0");
        plan_of(body, &cpu, false);
        apart("a", "y");
        page_clear(&page);
    }
}

static void calls_that_no_layer_changes_leave_the_layers(void **state) {
    (void)state;
    plan_of("dim R = 6\n"
            "phi[t,r in R]: f32 = pos[t] * 2 ^ (-r / R)\n"
            "layer l in L {\n"
            "  y[t,r] = x[t,0] * cos(phi[t,r])\n"
            "  z[t,r] = x[t,1] * cos(phi[t,r]) + sin(phi[t,r])\n"
            "  v[t,i] = silu(x[t,i]) * y[t,0] * z[t,0]\n"
            "  x[t,i] += v[t,i]\n"
            "}\n" PAGE_TAIL,
            &cpu, false);
    const LangProgram *p = page.plan->program;
    assert_int_equal(p->tensor_count,
                     page.program->tensor_count + 2); /* one cos for both, one sin */
    const Launch *tables = launch("cos.phi");
    assert_false(tables->in_layer);
    together("phi", "cos.phi");
    together("phi", "sin.phi");
    assert_int_equal(stage_of(page.plan, "cos.phi", NULL)->stmt_index, -1);
    int cosine = tensor_id(p, "cos.phi");
    assert_int_equal(p->tensors[cosine].dtype, LANG_F32);
    assert_true(p->tensors[cosine].dtype_written);
    /* x changes in the layers: silu(x) stays. */
    assert_true(launch("v")->in_layer);
    page_clear(&page);
    plan_of("dim R = 6\n"
            "phi[t,r in R]: f32 = pos[t] * 2 ^ (-r / R)\n"
            "layer l in L {\n"
            "  x[t,i] += cos(phi[t,0])\n"
            "}\n" PAGE_TAIL,
            &plain, false);
    assert_int_equal(page.plan->program->tensor_count, page.program->tensor_count);
    page_clear(&page);
}

static void unfused_plan_has_a_launch_for_each_stage(void **state) {
    (void)state;
    plan_of(WEIGHTS "a[t,f] = sum i: x[t,i] * w1[f,i]\n"
                    "b[t,f] = sum i: x[t,i] * w2[f,i]\n"
                    "c[t,d] = sum i: x[t,i] * w3[d,i]\n"
                    "y[t,f] = a[t,f] * b[t,f]\n"
                    "hz[n,i] = x[last[n],i] + y[last[n],0] + c[last[n],0]" PAGE_END,
            &plain, false);
    for (int k = 0; k < page.plan->launch_count; k++) {
        assert_int_equal(page.plan->launches[k].stage_count, 1);
        assert_string_equal(page.plan->launches[k].rule, "alone");
    }
    page_clear(&page);
}

static void values_share_memory_only_where_they_may(void **state) {
    (void)state;
    static const char body[] = "a[t,i] = x[t,i] * 2\n"
                               "layer l in L {\n"
                               "  b[t,i] = x[t,i] + a[t,i]\n"
                               "  c[t,i] = (sum j: b[t,j]) * x[t,i]\n"
                               "  x[t,i] += c[t,i]\n"
                               "}\n" PAGE_TAIL;
    plan_of(body, &plain, false);
    const PlanBuffer *a = plan_buffer(page.plan, tensor_id(page.plan->program, "a"));
    const PlanBuffer *hz = plan_buffer(page.plan, tensor_id(page.plan->program, "hz"));
    uint64_t shared = page.plan->arena_row_bytes;
    assert_int_equal(a->offset_row % 64, 0);
    assert_int_equal(hz->row_elems, 48);
    page_clear(&page);
    static const PlanOptions keep = {.backend = "cpu", .no_fuse = true, .keep_values = true};
    plan_of(body, &keep, false);
    assert_true(page.plan->arena_row_bytes > shared);
    for (int k = 0; k < page.plan->buffer_count; k++)
        for (int m = 0; m < k; m++) {
            const PlanBuffer *x = &page.plan->buffers[k], *y = &page.plan->buffers[m];
            assert_true(x->offset_row + x->row_elems * 4 <= y->offset_row ||
                        y->offset_row + y->row_elems * 4 <= x->offset_row);
        }
    page_clear(&page);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_one_input_are_siblings),
        cmocka_unit_test(products_of_two_inputs_are_apart),
        cmocka_unit_test(input_that_changes_between_products_keeps_them_apart),
        cmocka_unit_test(five_sites_are_two_launches),
        cmocka_unit_test(statements_on_one_row_are_a_chain),
        cmocka_unit_test(adapters_end_a_chain),
        cmocka_unit_test(arithmetic_on_elements_ends_its_products),
        cmocka_unit_test(arithmetic_that_needs_more_than_its_element_stays_apart),
        cmocka_unit_test(calls_that_no_layer_changes_leave_the_layers),
        cmocka_unit_test(unfused_plan_has_a_launch_for_each_stage),
        cmocka_unit_test(values_share_memory_only_where_they_may),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
