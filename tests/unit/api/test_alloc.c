/* Whichever allocation of a call fails, the call says so, gives nothing, leaves what was open as it
 * was and leaks nothing (the address sanitizer looks). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "ligature.h"

#define MODEL LG_TEST_DATA "/tiny/models/tiny-qwen3"
#define ADAPTER(name) LG_TEST_DATA "/tiny/adapters/tiny-qwen3/" name

/* All of the first failures are tried; later ones at this stride, which is odd so that single and
 * lasting failures meet both kinds of place. */
#define EACH_UP_TO 400
#define STRIDE 7

static LgEngineOptions options(void) {
    LgEngineOptions o;
    lg_engine_options_init(&o);
    o.model = MODEL;
    o.backend = "interp";
    o.rows_max = 16;
    return o;
}

static LgEngine *open_engine(void) {
    LgEngineOptions o = options();
    LgError err = {0};
    LgEngine *e = NULL;
    if (lg_engine_open(&o, &e, &err) != LG_OK)
        fail_msg("%s", err.message);
    return e;
}

/* One call and the release of what it gave. */
typedef LgStatus (*Attempt)(LgEngine *e, const void *what, LgError *err);

/* Until a call goes through because it does not allocate as often as that. */
static void survives(Attempt attempt, LgEngine *e, const void *what, long at_least) {
    long n = 1;
    for (;; n += n < EACH_UP_TO ? 1 : STRIDE) {
        LgError err = {0};
        lg_alloc_fail_at(n, n & 1);
        LgStatus status = attempt(e, what, &err);
        long made = lg_alloc_fail_at(0, 0);
        if (status == LG_OK && made < n)
            break;
        if (status != LG_OK && status != LG_NO_MEMORY)
            fail_msg("allocation %ld: status %d, %s", n, (int)status, err.message);
        assert_int_equal(err.status, status);
    }
    if (n < at_least)
        fail_msg("only %ld allocations were made to fail", n - 1);
}

static LgStatus open_and_close(LgEngine *e, const void *what, LgError *err) {
    (void)e;
    LgEngine *opened = NULL;
    LgStatus status = lg_engine_open(what, &opened, err);
    assert_true((status == LG_OK) == (opened != NULL));
    lg_engine_close(opened);
    return status;
}

static void engines_open_or_say_why_not(void **state) {
    (void)state;
    LgEngineOptions o = options();
    survives(open_and_close, NULL, &o, 300);
}

static LgStatus load_and_unload(LgEngine *e, const void *what, LgError *err) {
    LgStatus status = lg_adapter_load(e, "a", what, err);
    LgStatus unloaded = lg_adapter_unload(e, "a", NULL);
    assert_int_equal(unloaded, status == LG_OK ? LG_OK : LG_NOT_FOUND);
    return status;
}

static void adapters_load_whole_or_not_at_all(void **state) {
    (void)state;
    LgEngine *e = open_engine();
    survives(load_and_unload, e, ADAPTER("dora-r8"), 100);
    survives(load_and_unload, e, ADAPTER("pattern"), 100);
    lg_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engines_open_or_say_why_not),
        cmocka_unit_test(adapters_load_whole_or_not_at_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
