/* A bad step is an error that names what is wrong; it never reaches a program. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/batch.h"
#include "base/mem.h"

#define ROWS 4
#define SLOTS 2
#define PER_SLOT 2

typedef struct Fixture {
    int32_t token[ROWS], slot[ROWS], pos[ROWS], ad[ROWS], last[2], pages[SLOTS * PER_SLOT];
    AdapterSet sets[2];
    Step step;
    KvMemory kv;
    Batch batch;
    LgError err;
} Fixture;

static bool slot_is_live(const void *user, int32_t slot) {
    (void)user;
    return slot == 3;
}

/* Slot 0 has positions 63 and 64 (two pages), slot 1 positions 0 and 1 (one page). */
static void setup(Fixture *f) {
    *f = (Fixture){.token = {1, 2, 3, 9},
                   .slot = {0, 0, 1, 1},
                   .pos = {63, 64, 0, 1},
                   .ad = {0, 0, 1, 1},
                   .last = {1, 3},
                   .pages = {2, 0, 1, -1},
                   .kv = {.page_bytes = 64}};
    f->sets[1] = (AdapterSet){1, {{3, 1.0f}}};
    f->step = (Step){.rows = ROWS,
                     .token = f->token,
                     .slot = f->slot,
                     .pos = f->pos,
                     .ad = f->ad,
                     .set_count = 2,
                     .sets = f->sets,
                     .samples = 2,
                     .last = f->last,
                     .slot_count = SLOTS,
                     .pages_per_slot = PER_SLOT,
                     .pages = f->pages};
    assert_int_equal(kv_memory_reserve(&f->kv, 3, NULL), LG_OK);
    f->kv.count = 3; /* a chunk holds more; ids past what was asked for are still a mistake here */
    assert_int_equal(batch_reserve(&f->batch, 3, NULL), LG_OK);
}

static void teardown(Fixture *f) {
    batch_clear(&f->batch);
    kv_memory_clear(&f->kv);
}

static LgStatus prepare(Fixture *f) {
    BatchLimits limits = {.rows_max = ROWS, .vocab = 10, .adapter_live = slot_is_live};
    return batch_prepare(&f->batch, &f->step, &f->kv, &limits, &f->err);
}

static void batch_maps_pages_to_memory(void **state) {
    (void)state;
    Fixture f;
    setup(&f);
    assert_int_equal(prepare(&f), LG_OK);
    assert_ptr_equal(f.batch.pages[0], f.kv.pages[2]);
    assert_ptr_equal(f.batch.pages[1], f.kv.pages[0]);
    assert_ptr_equal(f.batch.pages[2], f.kv.pages[1]);
    assert_null(f.batch.pages[3]);
    assert_int_equal(f.batch.positions, 65);
    teardown(&f);
}

static void batch_of_a_known_size_allocates_nothing(void **state) {
    (void)state;
    Fixture f;
    setup(&f);
    lg_alloc_fail_at(1, 1);
    LgStatus status = prepare(&f);
    lg_alloc_fail_at(0, 0);
    assert_int_equal(status, LG_OK);
    teardown(&f);
}

/* One mistake each: where, what to write there, what the message must name. */
typedef struct Mistake {
    size_t offset;
    int32_t value;
    LgStatus status;
    const char *words;
} Mistake;

#define AT(member) offsetof(Fixture, member)

static const Mistake mistakes[] = {
    {AT(token[2]), 10, LG_BAD_INPUT, "row 2 has token 10"},
    {AT(token[0]), -1, LG_BAD_INPUT, "row 0 has token -1"},
    {AT(slot[1]), 2, LG_BAD_INPUT, "row 1 is of slot 2"},
    {AT(slot[3]), -1, LG_BAD_INPUT, "row 3 is of slot -1"},
    {AT(pos[1]), 128, LG_BAD_INPUT, "row 1 is at position 128"},
    {AT(pos[0]), -1, LG_BAD_INPUT, "row 0 is at position -1"},
    {AT(pos[1]), 63, LG_BAD_INPUT, "rows of a slot rise"},
    {AT(pos[1]), 12, LG_BAD_INPUT, "rows of a slot rise"},
    {AT(ad[3]), 2, LG_BAD_INPUT, "adapter set 2"},
    {AT(ad[0]), -1, LG_BAD_INPUT, "adapter set -1"},
    {AT(last[1]), 4, LG_BAD_INPUT, "row 4"},
    {AT(last[0]), -1, LG_BAD_INPUT, "row -1"},
    {AT(pages[0]), -1, LG_BAD_INPUT, "its page 0 is -1"},
    {AT(pages[1]), 3, LG_BAD_INPUT, "its page 1 is 3"},
    {AT(pages[2]), 0, LG_BAD_INPUT, "both write to KV page 0"},
    {AT(sets[1].count), 5, LG_BAD_INPUT, "has 5 adapters"},
    {AT(sets[1].use[0].slot), 2, LG_BAD_INPUT, "adapter slot 2"},
    {AT(sets[0].count), 1, LG_BAD_INPUT, "set 0 is empty"},
    {AT(step.rows), 5, LG_LIMIT, "1 to 4"},
    {AT(step.rows), 0, LG_LIMIT, "0 rows"},
    {AT(step.samples), 5, LG_LIMIT, "5 sampled rows"},
    {AT(step.samples), -1, LG_LIMIT, "-1 sampled rows"},
    {AT(step.slot_count), 0, LG_BAD_INPUT, "0 slots"},
    {AT(step.pages_per_slot), 0, LG_BAD_INPUT, "0 KV pages"},
};

static void batch_names_what_is_wrong(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        Fixture f;
        setup(&f);
        memcpy((char *)&f + mistakes[i].offset, &mistakes[i].value, sizeof mistakes[i].value);
        assert_int_equal(prepare(&f), mistakes[i].status);
        if (!strstr(f.err.message, mistakes[i].words))
            fail_msg("\"%s\" does not say \"%s\"", f.err.message, mistakes[i].words);
        teardown(&f);
    }
}

static void batch_is_as_new_after_a_mistake(void **state) {
    (void)state;
    Fixture f;
    setup(&f);
    f.pages[2] = 0;
    assert_int_equal(prepare(&f), LG_BAD_INPUT);
    f.pages[2] = 1;
    assert_int_equal(prepare(&f), LG_OK);
    teardown(&f);
}

static void kv_memory_keeps_addresses_and_contents_while_it_grows(void **state) {
    (void)state;
    KvMemory kv = {.page_bytes = 256, .poison = true};
    assert_int_equal(kv_memory_reserve(&kv, 2, NULL), LG_OK);
    unsigned char *first = kv.pages[1];
    assert_int_equal(first[0], 0xff);
    assert_int_equal(first[255], 0xff);
    memset(first, 7, 256);
    assert_int_equal(kv_memory_reserve(&kv, 100, NULL), LG_OK);
    assert_true(kv.count >= 100);
    assert_ptr_equal(kv.pages[1], first);
    assert_int_equal(first[255], 7);
    assert_int_equal((uintptr_t)kv.pages[99] % 64, 0);
    kv_memory_clear(&kv);
}

static void kv_memory_survives_a_failed_allocation(void **state) {
    (void)state;
    KvMemory kv;
    for (long n = 1; n <= 2; n++) {
        kv = (KvMemory){.page_bytes = 256};
        assert_int_equal(kv_memory_reserve(&kv, 1, NULL), LG_OK);
        int32_t before = kv.count;
        lg_alloc_fail_at(n, 1);
        LgStatus status = kv_memory_reserve(&kv, 1000, NULL);
        lg_alloc_fail_at(0, 0);
        assert_int_equal(status, LG_NO_MEMORY);
        assert_int_equal(kv.count, before);
        if (n < 2)
            kv_memory_clear(&kv);
    }
    LgError err;
    kv.page_bytes = SIZE_MAX / 4;
    assert_int_equal(kv_memory_reserve(&kv, 1000, &err), LG_LIMIT);
    kv_memory_clear(&kv);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batch_maps_pages_to_memory),
        cmocka_unit_test(batch_of_a_known_size_allocates_nothing),
        cmocka_unit_test(batch_names_what_is_wrong),
        cmocka_unit_test(batch_is_as_new_after_a_mistake),
        cmocka_unit_test(kv_memory_keeps_addresses_and_contents_while_it_grows),
        cmocka_unit_test(kv_memory_survives_a_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
