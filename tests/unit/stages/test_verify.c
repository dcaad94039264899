/* A plan that is broken in any one way is refused, whatever pass broke it. */
#include "ir/stage.h"
#include "tests/unit/stages/fixture.h"

static const PlanOptions cpu = {.backend = "cpu"};

static const char source[] = PAGE_HEAD "param gz[E] = \"gz.weight\"\n"
                                       "lora ad on w, u\n"
                                       "layer l in L {\n"
                                       "  param w[F, E] = \"{l}.w.weight\"\n"
                                       "  param u[F, E] = \"{l}.u.weight\"\n"
                                       "  param d[E, F] = \"{l}.d.weight\"\n"
                                       "  h[t,i] = x[t,i] * gz[i]\n"
                                       "  a[t,f] = sum i: h[t,i] * w[f,i]\n"
                                       "  b[t,f] = sum i: h[t,i] * u[f,i]\n"
                                       "  c[t,f] = silu(a[t,f]) * b[t,f]\n"
                                       "  y[t,i] = sum f: c[t,f] * d[i,f]\n"
                                       "  x[t,i] += y[t,i]\n"
                                       "}\n" PAGE_TAIL;

static Page page;

static int setup(void **state) {
    (void)state;
    if (page_compile(&page, source, "test.lg", small_config, true) != LG_OK ||
        page_plan(&page, &cpu) != LG_OK)
        fail_msg("%s", page.error.message);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    page_clear(&page);
    return 0;
}

static void broken(const char *why) {
    LgError error = {0};
    assert_int_equal(plan_verify(page.plan, "a test", &error), LG_INTERNAL);
    if (!strstr(error.message, why) || !strstr(error.message, "after a test"))
        fail_msg("expected \"%s\" in: %s", why, error.message);
}

static Launch *launch(const char *value) {
    return &page.plan->launches[launch_of(page.plan, value)];
}

static PlanBuffer *buffer(const char *value) {
    int y = tensor_id(page.plan->program, value);
    for (int k = 0; k < page.plan->buffer_count; k++)
        if (page.plan->buffers[k].tensor == y)
            return &page.plan->buffers[k];
    fail_msg("no buffer for %s", value);
    return NULL;
}

static void whole_plan_passes(void **state) {
    LgError error = {0};
    (void)state;
    assert_int_equal(plan_verify(page.plan, "a test", &error), LG_OK);
    assert_int_equal(page.plan->provenance.kind, PROVENANCE_COMPILED);
}

static void launch_that_cites_nothing_is_refused(void **state) {
    (void)state;
    launch("h")->cite.line_count = 0;
    broken("cites no source line");
}

static void launch_that_leaves_a_line_out_is_refused(void **state) {
    (void)state;
    Launch *l = launch("a");
    assert_int_equal(l->cite.line_count, 3);
    l->cite.line_count = 2;
    broken("does not cite the line of");
}

static void hand_written_launch_needs_template_and_lock(void **state) {
    (void)state;
    page.plan->provenance.kind = PROVENANCE_HAND_WRITTEN;
    broken("cites no template and lock");
}

static void lost_store_is_refused(void **state) {
    (void)state;
    Launch *l = launch("logits");
    l->stage_count = 0;
    broken("is empty");
    memmove(l, l + 1,
            (size_t)(&page.plan->launches[page.plan->launch_count] - (l + 1)) * sizeof *l);
    page.plan->launch_count--;
    broken("never does");
}

static void statement_done_twice_is_refused(void **state) {
    (void)state;
    Launch *l = launch("hz");
    const Stage **twice = ARENA_ARRAY(&page.arena, const Stage *, 2);
    twice[0] = twice[1] = l->stages[0];
    l->stages = twice;
    l->stage_count = 2;
    broken("does twice");
}

static void launches_out_of_order_are_refused(void **state) {
    (void)state;
    Launch *a = launch("h"), *b = launch("a"), keep = *a;
    *a = *b;
    *b = keep;
    broken("reads a value before it is defined: h");
}

static void addition_before_its_summand_is_refused(void **state) {
    (void)state;
    static const PlanOptions plain = {.backend = "cpu", .no_fuse = true};
    assert_int_equal(page_plan(&page, &plain), LG_OK);
    Plan *plan = page.plan;
    int h = launch_of(plan, "h"), y = launch_of(plan, "y");
    Launch *l = plan->launches, moved = l[y + 1];
    assert_int_equal(moved.stages[0]->stmt->op, LANG_ADD_TO);
    memmove(&l[h + 2], &l[h + 1], (size_t)(y - h) * sizeof *l);
    l[h + 1] = moved;
    broken("reads a value before it is defined: y");
}

static void statement_behind_one_that_depends_on_it_is_refused(void **state) {
    (void)state;
    /* Twice added to x: the sums are the same statements in another order, and every value is
     * defined. */
    static const char twice[] = PAGE_HEAD "layer l in L {\n"
                                          "  h[t,i] = x[t,i] * 2\n"
                                          "  x[t,i] += h[t,i]\n"
                                          "  k[t,i] = x[t,i] * 3\n"
                                          "  x[t,i] += k[t,i] + h[t,i]\n"
                                          "}\n" PAGE_TAIL;
    static const PlanOptions plain = {.backend = "cpu", .no_fuse = true};
    Page p;
    LgError error = {0};
    assert_int_equal(page_compile(&p, twice, "test.lg", small_config, false), LG_OK);
    assert_int_equal(page_plan(&p, &plain), LG_OK);
    int h = launch_of(p.plan, "h"), k = launch_of(p.plan, "k");
    assert_int_equal(k, h + 2);
    Launch keep = p.plan->launches[k];
    p.plan->launches[k] = p.plan->launches[k - 1];
    p.plan->launches[k - 1] = keep;
    assert_int_equal(plan_verify(p.plan, "a test", &error), LG_INTERNAL);
    assert_non_null(strstr(error.message, "runs too late: x[t,i] += h[t,i]"));
    page_clear(&p);
}

static void tile_work_that_needs_whole_rows_is_refused(void **state) {
    (void)state;
    Launch *l = launch("c");
    assert_int_equal(l->kind, LAUNCH_MATMUL);
    assert_int_equal(l->epilogue, 2);
    assert_int_equal(l->stage_count, 3);
    Stage *reduce = ARENA_NEW(&page.arena, Stage);
    *reduce = *l->stages[2];
    reduce->op = STAGE_REDUCE;
    l->stages[2] = reduce;
    broken("does to its tiles what needs whole rows");
    l->epilogue = 3;
    broken("has a stage that its kernel does not do");
}

static void product_behind_the_tiles_is_refused(void **state) {
    (void)state;
    launch("a")->epilogue = 1;
    broken("has a stage that its kernel does not do");
}

static void statement_of_other_rows_is_refused(void **state) {
    (void)state;
    launch("hz")->row_dim = launch("h")->row_dim;
    broken("holds a statement with other rows");
}

static void site_without_its_adapters_is_refused(void **state) {
    (void)state;
    Launch *l = launch("a");
    assert_int_equal(l->lora_count, 1);
    assert_int_equal(l->loras[0].count, 2);
    l->loras[0].count = 1;
    broken("leaves out the adapters of a site");
}

static void adapters_of_no_site_are_refused(void **state) {
    (void)state;
    static LaunchLora call = {1, {0}};
    Launch *l = launch("y");
    l->loras = &call;
    l->lora_count = 1;
    broken("no site");
}

static void two_live_values_in_one_place_are_refused(void **state) {
    (void)state;
    buffer("b")->offset_row = buffer("a")->offset_row;
    broken("place was taken by another: ");
}

static void residual_overwritten_in_the_layer_is_refused(void **state) {
    (void)state;
    /* Nothing later in the same round reads x, but the next layer does. */
    buffer("y")->offset_row = buffer("x")->offset_row;
    broken("place was taken by another: x");
}

static void value_without_a_place_is_refused(void **state) {
    (void)state;
    buffer("c")->tensor = page.plan->output;
    broken("has no place: c");
}

int main(void) {
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(whole_plan_passes),
        CASE(launch_that_cites_nothing_is_refused),
        CASE(launch_that_leaves_a_line_out_is_refused),
        CASE(hand_written_launch_needs_template_and_lock),
        CASE(lost_store_is_refused),
        CASE(statement_done_twice_is_refused),
        CASE(launches_out_of_order_are_refused),
        CASE(addition_before_its_summand_is_refused),
        CASE(statement_behind_one_that_depends_on_it_is_refused),
        CASE(tile_work_that_needs_whole_rows_is_refused),
        CASE(product_behind_the_tiles_is_refused),
        CASE(statement_of_other_rows_is_refused),
        CASE(site_without_its_adapters_is_refused),
        CASE(adapters_of_no_site_are_refused),
        CASE(two_live_values_in_one_place_are_refused),
        CASE(residual_overwritten_in_the_layer_is_refused),
        CASE(value_without_a_place_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
