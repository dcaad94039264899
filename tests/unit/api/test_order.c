/* The order in which a caller gives things back does not matter. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "ligature.h"

static LgEngine *engine_of_interp(void) {
    LgEngineOptions options;
    LgEngine *e = NULL;
    LgError err;
    lg_engine_options_init(&options);
    options.model = LG_TEST_DATA "/tiny/models/tiny-qwen3";
    options.backend = "interp";
    if (lg_engine_open(&options, &e, &err) != LG_OK)
        fail_msg("%s", err.message);
    return e;
}

static LgSequence *sequence_of(LgEngine *e) {
    static const int32_t ids[] = {3, 17};
    LgRequest request = {.ids = ids, .id_count = 2, .max_tokens = 2, .sampling = {.top_p = 1}};
    LgSequence *s = NULL;
    LgError err;
    if (lg_sequence_create(e, &request, &s, &err) != LG_OK)
        fail_msg("%s", err.message);
    return s;
}

static void sequence_outlives_its_engine(void **state) {
    (void)state;
    LgEngine *e = engine_of_interp();
    LgSequence *a = sequence_of(e), *b = sequence_of(e), *c = sequence_of(e);
    LgError err;
    lg_sequence_destroy(b);
    assert_int_equal(lg_engine_step(e, NULL, &err), LG_OK);
    assert_null(lg_sequence_error(a));
    lg_engine_close(e);
    size_t count = 7, bytes;
    const char *text;
    assert_null(lg_sequence_ids(a, &count));
    assert_int_equal(count, 0);
    assert_int_equal(lg_sequence_finish(a), LG_FINISH_FAILED);
    assert_string_equal(lg_sequence_error(a), "its engine was closed");
    assert_int_equal(lg_sequence_text(a, false, &text, &bytes, &err), LG_BAD_INPUT);
    lg_sequence_destroy(c);
    lg_sequence_destroy(a);
}

static void engine_outlives_its_sequences(void **state) {
    (void)state;
    LgEngine *e = engine_of_interp();
    LgSequence *a = sequence_of(e), *b = sequence_of(e);
    lg_sequence_destroy(a);
    lg_sequence_destroy(b);
    int32_t active = 3;
    LgError err;
    assert_int_equal(lg_engine_step(e, &active, &err), LG_OK);
    assert_int_equal(active, 0);
    lg_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequence_outlives_its_engine),
        cmocka_unit_test(engine_outlives_its_sequences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
