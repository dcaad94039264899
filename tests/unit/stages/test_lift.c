/* What each kind of statement lifts to, and which statements are refused with which words. */
#include "tests/unit/stages/fixture.h"

static const PlanOptions cpu = {.backend = "cpu"};

/* A page must use all that it makes: params are declared where a body reads them, and what stands
 * behind a body's @ is added to what the logits read. */
static const char *const params[][2] = {
    {" w[", "param w[F, E] = \"w.weight\"\n"},      {" wt[", "param wt[E, F] = \"wt.weight\"\n"},
    {" b[", "param b[F] = \"w.bias\"\n"},           {" wh[", "param wh[G*D, E] = \"wh.weight\"\n"},
    {" wo[", "param wo[E, G*D] = \"wo.weight\"\n"},
};
#define STATES "  state kc[B, S, G, D]\n  state vc[B, S, G, D]\n"

static void page_of(char *source, size_t size, const char *body) {
    size_t n = (size_t)snprintf(source, size, "%s", PAGE_HEAD);
    for (size_t k = 0; k < sizeof params / sizeof params[0]; k++)
        if (strstr(body, params[k][0]))
            n += (size_t)snprintf(source + n, size - n, "%s", params[k][1]);
    const char *use = strchr(body, '@');
    snprintf(source + n, size - n, "%.*s%s%s%s%s", use ? (int)(use - body) : (int)strlen(body),
             body, "hz[n,i] = x[last[n],i]", use ? " + " : "", use ? use + 1 : "", PAGE_END);
}

static void plan_of(Page *p, const char *body, const PlanOptions *o) {
    char source[8192];
    page_of(source, sizeof source, body);
    if (page_compile(p, source, "test.lg", small_config, false) != LG_OK ||
        page_plan(p, o) != LG_OK)
        fail_msg("%s", p->error.message);
}

/* The message must hold every one of the words, and cite line and file. */
static void refused(const char *body, const char *first, const char *second) {
    Page p;
    char source[8192];
    page_of(source, sizeof source, body);
    if (page_compile(&p, source, "test.lg", small_config, false) != LG_OK)
        fail_msg("refused too early: %s", p.error.message);
    assert_int_equal(page_plan(&p, &cpu), LG_BAD_INPUT);
    if (!strstr(p.error.message, first) || !strstr(p.error.message, second) ||
        !strstr(p.error.message, "test.lg:"))
        fail_msg("expected \"%s\" and \"%s\" in: %s", first, second, p.error.message);
    page_clear(&p);
}

static void lookup_of_a_weights_row_is_a_gather(void **state) {
    Page p;
    (void)state;
    plan_of(&p, "", &cpu);
    assert_int_equal(stage_of(p.plan, "x", NULL)->op, STAGE_GATHER);
    assert_false(stage_of(p.plan, "x", NULL)->maps);
    const PlanWeight *w = plan_weight(p.plan, tensor_id(p.plan->program, "emb"), WEIGHT_TABLE);
    assert_non_null(w);
    assert_int_equal(w->rows, 96);
    assert_int_equal(w->columns, 48);
    page_clear(&p);
}

static void elementwise_is_a_map_and_a_mean_a_reduce(void **state) {
    Page p;
    (void)state;
    plan_of(&p,
            "y[t,i] = silu(x[t,i]) * 2\n"
            "z[t] = mean i: y[t,i]^2\n"
            "u[t,i] = y[t,i] * rsqrt((mean j: y[t,j]^2) + 0.5)\n@z[last[n]] * u[last[n],i]",
            &cpu);
    assert_int_equal(stage_of(p.plan, "y", NULL)->op, STAGE_MAP);
    assert_int_equal(stage_of(p.plan, "z", NULL)->op, STAGE_REDUCE);
    assert_false(stage_of(p.plan, "z", NULL)->maps);
    assert_int_equal(stage_of(p.plan, "u", NULL)->op, STAGE_REDUCE);
    assert_true(stage_of(p.plan, "u", NULL)->maps);
    page_clear(&p);
}

static void product_with_a_weight_is_a_matmul_whichever_factor_comes_first(void **state) {
    Page p;
    (void)state;
    plan_of(&p,
            "y[t,f] = sum i: x[t,i] * w[f,i]\n"
            "z[t,f] = (sum i:  w[f,i] * x[t,i]) + b[f]\n"
            "h[t,g,d] = sum i: x[t,i] * wh[g,d,i]\n"
            "o[t,i] = sum g,d: h[t,g,d] * wo[i,g,d]\n@o[last[n],i] + y[last[n],0] + z[last[n],0]",
            &cpu);
    const StageMatmul *y = stage_of(p.plan, "y", NULL)->matmul;
    const StageMatmul *z = stage_of(p.plan, "z", NULL)->matmul;
    const StageMatmul *h = stage_of(p.plan, "h", NULL)->matmul;
    const StageMatmul *o = stage_of(p.plan, "o", NULL)->matmul;
    assert_true(y && z && h && o);
    assert_int_equal(y->n, 80);
    assert_int_equal(y->k, 48);
    assert_int_equal(y->bias, -1);
    assert_int_equal(z->w, tensor_id(p.plan->program, "w"));
    assert_int_equal(z->bias, tensor_id(p.plan->program, "b"));
    assert_int_equal(h->n, 24);
    assert_int_equal(o->n, 48);
    assert_int_equal(o->k, 24);
    page_clear(&p);
}

static void sum_of_values_stays_a_reduce(void **state) {
    Page p;
    (void)state;
    plan_of(&p, "z[t] = sum i: x[t,i] * x[t,i]\n@z[last[n]]", &cpu);
    assert_int_equal(stage_of(p.plan, "z", NULL)->op, STAGE_REDUCE);
    page_clear(&p);
}

static void product_is_refused_with_the_reason(void **state) {
    (void)state;
    refused("s[t] = mean i: x[t,i]\ny[t,f] = sum i: x[t,i] * w[f,i] * s[t]\n@y[last[n],0]",
            "this sum has three factors (x, w, s); a matmul has two",
            "Name the product of two of them first.");
    refused("y[t,f] = sum i: silu(x[t,i]) * w[f,i]\n@y[last[n],0]",
            "a factor of this product is an expression", "Name it first.");
    refused("y[t,f] = sum i: x[t,i] * wt[i,f]\n@y[last[n],0]",
            "the summed axes of wt are not its last ones", "Declare it with them last.");
    refused("y[t,f] = 2 * (sum i: x[t,i] * w[f,i])\n@y[last[n],0]",
            "a product with a weight is a whole right side", "Name the product first");
    refused("y[t,d,g] = sum i: x[t,i] * wh[g,d,i]\n@y[last[n],0,0]",
            "the axes of y are not the rows of wh in their order", "then reorder it.");
    refused("h[t,d in D,g in G] = x[t,0] * d * g\no[t,i] = sum g,d: h[t,d,g] * "
            "wo[i,g,d]\n@o[last[n],i]",
            "the summed axes of h are not its last ones in the order of wo", "Store it");
    refused("h[t,g in G,d in D] = x[t,0] * d * g\no[t,g,i] = sum d: h[t,g,d] * "
            "wo[i,g,d]\n@o[last[n],0,i]",
            "what is summed of wo is not its last stored axis", "the whole of that axis");
    refused(
        "layer l in L {\n  h[t,g in G,d in D] = x[t,0] * d * g\n  x[t,i] += sum g,d: h[t,g,d] * "
        "wo[i,g,d]\n}\n",
        "a product is not added in place", "Name the product first, then add it.");
}

#define ATTENTION(softmax, sum)                                                                    \
    "layer l in L {\n" STATES "  h[t,g,d] = sum i: x[t,i] * wh[g,d,i]\n"                           \
    "  q[t,g,m in M,d] = h[t,g,d] * m\n"                                                           \
    "  kc[slot[t],pos[t],g,d] := h[t,g,d]\n"                                                       \
    "  vc[slot[t],pos[t],g,d] := h[t,g,d]\n"                                                       \
    "  " softmax "\n"                                                                              \
    "  " sum "\n"                                                                                  \
    "  x[t,i] += (mean m: o[t,0,m,0])\n"                                                           \
    "}\n"
#define SUM "o[t,g,m,d] = sum s <= pos[t]: p[t,g,m,s] * vc[slot[t],s,g,d]"
#define SOFTMAX                                                                                    \
    "p[t,g,m,s]: f32 = softmax s <= pos[t]: (sum d: q[t,g,m,d] * kc[slot[t],s,g,d]) * rsqrt(D)"

static void softmax_and_its_sum_are_one_attend(void **state) {
    Page p;
    (void)state;
    plan_of(&p, ATTENTION(SOFTMAX, SUM), &cpu);
    const StageAttend *a = stage_of(p.plan, "o", NULL)->attend;
    assert_non_null(a);
    assert_int_equal(a->kv_heads, 2);
    assert_int_equal(a->group, 2);
    assert_int_equal(a->width, 12);
    assert_int_equal(a->v_width, 12);
    assert_true(a->scale[0] > 0.28867 && a->scale[0] < 0.28868);
    assert_true(a->window[0] == 0);
    assert_null(a->score);
    assert_null(plan_buffer(p.plan, tensor_id(p.plan->program, "p")));
    const PlanState *k = plan_state(p.plan, tensor_id(p.plan->program, "kc"));
    const PlanState *v = plan_state(p.plan, tensor_id(p.plan->program, "vc"));
    assert_int_equal(k->layout, STATE_TRANSPOSED);
    assert_int_equal(v->layout, STATE_ROW);
    assert_int_equal(k->page_bytes, 2 * 12 * 64 * 2);
    assert_int_equal(p.plan->layer_page_bytes, k->page_bytes + v->page_bytes);
    assert_true(k->offset_page != v->offset_page);
    page_clear(&p);
}

static void window_and_score_function_belong_to_the_attend(void **state) {
    Page p;
    (void)state;
    plan_of(&p,
            ATTENTION("p[t,g,m,s]: f32 = softmax pos[t] - F < s <= pos[t]: 30 * tanh((sum d: "
                      "q[t,g,m,d] * kc[slot[t],s,g,d]) * rsqrt(D) / 30)",
                      "o[t,g,m,d] = sum pos[t] - F < s <= pos[t]: p[t,g,m,s] * vc[slot[t],s,g,d]"),
            &cpu);
    const StageAttend *a = stage_of(p.plan, "o", NULL)->attend;
    assert_true(a->window[0] == 80);
    assert_true(a->window[1] == 80);
    assert_non_null(a->score);
    assert_true(a->scale[0] > 0.0096 && a->scale[0] < 0.0097); /* rsqrt(12) / 30, once */
    page_clear(&p);
}

static void attention_is_refused_with_the_reason(void **state) {
    (void)state;
    refused(
        ATTENTION("p[t,g,m,s] = softmax s <= pos[t]: (sum d: q[t,g,m,d] * kc[slot[t],s,g,d])", SUM),
        "its weights are never stored, so they keep f32", "Write : f32.");
    refused(ATTENTION("p[t,g,m,s]: f32 = softmax s <= pos[t]: (sum d: q[t,g,m,d] * "
                      "kc[slot[t],s,g,d]) + s",
                      SUM),
            "depends on something else than the score", "functions of the score");
    refused(ATTENTION("p[t,m,g,s]: f32 = softmax s <= pos[t]: (sum d: q[t,g,m,d] * "
                      "kc[slot[t],s,g,d])",
                      "o[t,m,g,d] = sum s <= pos[t]: p[t,m,g,s] * vc[slot[t],s,g,d]"),
            "its axes are not those of q", "in one order");
    refused(ATTENTION("r[t,g] = sum s <= pos[t]: kc[slot[t],s,g,0] * vc[slot[t],s,g,0]",
                      "o[t,g,m in M,d] = r[t,g] * q[t,g,m,d]"),
            "over the run-time axis of s lifts as a pair only", "Accepted:");
}

#define ROUTER                                                                                     \
    "dim X = 4\ndim K = 2\n"                                                                       \
    "param wr[X, E] = \"r.weight\"\n"                                                              \
    "param we[X, F, E] = \"e.{X}.weight\"\n"                                                       \
    "param wd[X, E, F] = \"d.{X}.weight\"\n"                                                       \
    "rt[t,e]: f32 = sum i: x[t,i] * wr[e,i]\n"                                                     \
    "route[t,e]: f32 = softmax e: rt[t,e]\n"                                                       \
    "pick[t,j in K], gate[t,j in K]: f32 = topk e: route[t,e]\n"

static void experts_lift_to_products_that_a_choice_picks(void **state) {
    Page p;
    (void)state;
    plan_of(&p,
            ROUTER "fg[t,j,f] = sum i: x[t,i] * we[pick[t,j],f,i]\n"
                   "fd[t,j,i] = sum f: fg[t,j,f] * wd[pick[t,j],i,f]\n@fd[last[n],0,i] * "
                   "gate[last[n],0]",
            &cpu);
    assert_int_equal(stage_of(p.plan, "route", NULL)->op, STAGE_SOFTMAX);
    assert_int_equal(stage_of(p.plan, "pick", NULL)->op, STAGE_TOPK);
    const StageMatmul *m = stage_of(p.plan, "fg", NULL)->matmul;
    assert_non_null(m);
    assert_int_equal(m->expert, tensor_id(p.plan->program, "pick"));
    assert_int_equal(m->experts, 4);
    assert_int_equal(m->n, 80);
    assert_int_equal(m->k, 48);
    assert_int_equal(m->slots, 2);
    assert_int_equal(m->share, 2); /* both choices of a row read the same x */
    assert_int_equal(stage_of(p.plan, "fd", NULL)->matmul->share, 1);
    const PlanWeight *w = plan_weight(p.plan, tensor_id(p.plan->program, "we"), WEIGHT_MATRIX);
    assert_non_null(w);
    assert_int_equal(w->experts, 4);
    assert_int_equal(w->rows, 4 * 80);
    assert_int_equal(p.plan->sort_experts, 4);
    assert_int_equal(p.plan->sort_slots, 2);
    page_clear(&p);
}

/* Every choice's product would be that of the first one's expert. */
static void experts_chosen_for_another_result_are_refused(void **state) {
    (void)state;
    refused(ROUTER "u[t,j in K,i] = x[t,i] * gate[t,j]\n"
                   "fg[t,j,f] = sum i: u[t,j,i] * we[pick[t,0],f,i]\n"
                   "fd[t,j,i] = sum f: fg[t,j,f] * wd[pick[t,j],i,f]\n@fd[last[n],0,i]",
            "cannot lift: we is looked up by another choice than that of its result",
            "W[pick[t,j],f,i]");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lookup_of_a_weights_row_is_a_gather),
        cmocka_unit_test(elementwise_is_a_map_and_a_mean_a_reduce),
        cmocka_unit_test(product_with_a_weight_is_a_matmul_whichever_factor_comes_first),
        cmocka_unit_test(sum_of_values_stays_a_reduce),
        cmocka_unit_test(product_is_refused_with_the_reason),
        cmocka_unit_test(softmax_and_its_sum_are_one_attend),
        cmocka_unit_test(window_and_score_function_belong_to_the_attend),
        cmocka_unit_test(attention_is_refused_with_the_reason),
        cmocka_unit_test(experts_lift_to_products_that_a_choice_picks),
        cmocka_unit_test(experts_chosen_for_another_result_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
