/* The launchers of CUDA without a device: a driver that writes down what it is told to launch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cuda/lora_cuda.h"
#include "base/float.h"

/* ---- the driver ---- */

typedef struct Launched {
    void *kernel;
    uint32_t grid[3], block[3], shared;
    bool dependent;
    LgcMoe moe; /* of a launch of experts: what it was given */
} Launched;

static Launched launched[64];
static int launch_count;

static int fake_launch(const CudaLaunchConfig *c, void *function, void **params, void **extra) {
    Launched *l = &launched[launch_count++];
    (void)extra;
    *l = (Launched){.kernel = function, .shared = c->shared_bytes};
    memcpy(l->grid, c->grid, sizeof l->grid);
    memcpy(l->block, c->block, sizeof l->block);
    l->dependent = c->attribute_count == 1 && c->attributes[0].id == CUDA_ATTRIBUTE_PROGRAMMATIC;
    (void)params;
    return 0;
}
static int fake_launch_moe(const CudaLaunchConfig *c, void *function, void **params, void **extra) {
    fake_launch(c, function, params, extra);
    memcpy(&launched[launch_count - 1].moe, params[0], sizeof(LgcMoe));
    return 0;
}
static int fake_alloc(CudaPtr *p, size_t bytes) {
    void *m = calloc(1, bytes);
    memcpy(p, &m, sizeof m);
    return m ? 0 : 2;
}
static int fake_free(CudaPtr p) {
    free((void *)(uintptr_t)p);
    return 0;
}
static int fake_pinned(void **p, size_t bytes, unsigned flags) {
    (void)flags;
    *p = malloc(bytes);
    return *p ? 0 : 2;
}
static int fake_pinned_free(void *p) {
    free(p);
    return 0;
}
static int fake_copy(CudaPtr to, const void *from, size_t bytes, void *stream) {
    (void)stream;
    memcpy((void *)(uintptr_t)to, from, bytes);
    return 0;
}
static int fake_event(void **event, unsigned flags) {
    (void)flags;
    *event = event;
    return 0;
}
static int fake_record(void *event, void *stream) {
    (void)event;
    (void)stream;
    return 0;
}
static int fake_event_done(void *event) {
    (void)event;
    return 0;
}

static CudaDevice fake_device(void) {
    CudaDevice d = {.major = 9, .sm_count = 132, .block_shared_bytes = 227 * 1024};
    d.driver.launch = fake_launch;
    d.driver.memory_alloc = fake_alloc;
    d.driver.memory_free = fake_free;
    d.driver.pinned_alloc = fake_pinned;
    d.driver.pinned_free = fake_pinned_free;
    d.driver.copy_up = fake_copy;
    d.driver.event_create = fake_event;
    d.driver.event_record = fake_record;
    d.driver.event_wait = d.driver.event_destroy = fake_event_done;
    launch_count = 0;
    return d;
}

/* Handles are addresses of their own names. */
#define NAME_KERNEL(field, module, kernel, needed) static char field##_name[] = #field;
LORA_KERNEL_MAP(NAME_KERNEL)
#undef NAME_KERNEL
static LoraKernels all_kernels(void) {
    LoraKernels k;
#define FILL_KERNEL(field, module, kernel, needed) k.field = field##_name;
    LORA_KERNEL_MAP(FILL_KERNEL)
#undef FILL_KERNEL
    return k;
}

static void assert_launched(const char *names) {
    char got[512] = "";
    for (int i = 0; i < launch_count; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%s", i ? " " : "",
                 (const char *)launched[i].kernel);
    assert_string_equal(got, names);
}

/* ---- one adapter ---- */

static LgStatus apply(const LoraKernels *k, int rows, LgError *err) {
    CudaDevice d = fake_device();
    CudaLaunch l = {&d, k, NULL, true};
    CudaLoraDense dense = {.rows = rows, .k = 4096, .n = 1000, .rank = 16, .scale = 0.5f};
    return cuda_lora_apply(&l, &dense, err);
}

static void one_row_takes_gemv_twice_and_scaled_add(void **state) {
    (void)state;
    LoraKernels k = all_kernels();
    LgError err;
    assert_int_equal(apply(&k, 1, &err), LG_OK);
    assert_launched("gemv_k gemv_k scaled_add_k");
}

static void more_rows_take_the_fused_expand_and_fold(void **state) {
    (void)state;
    LoraKernels k = all_kernels();
    LgError err;
    assert_int_equal(apply(&k, 33, &err), LG_OK);
    assert_launched("gemm_tc_k gemm_tc_acc_k");
    assert_int_equal(launched[0].grid[0], 1); /* 16 outputs */
    assert_int_equal(launched[0].grid[1], 3); /* 33 rows */
    assert_int_equal(launched[1].grid[0], 4); /* 1000 outputs */
    assert_true(launched[0].shared <= 227 * 1024);
    assert_true(launched[1].dependent);
}

static void missing_optional_handles_have_fallbacks(void **state) {
    (void)state;
    LgError err;
    LoraKernels k = all_kernels();
    k.gemm_tc_acc_k = NULL;
    assert_int_equal(apply(&k, 33, &err), LG_OK);
    assert_launched("gemm_tc_k gemm_tc_k scaled_add_k");
    k.gemm_tc_k = NULL;
    assert_int_equal(apply(&k, 33, &err), LG_OK);
    assert_launched("gemm_k gemm_k scaled_add_k");
    k = all_kernels();
    k.gemm_tc_k = NULL;
    assert_int_equal(apply(&k, 33, &err), LG_OK);
    assert_launched("gemm_k gemm_tc_acc_k");
}

static void a_missing_needed_handle_is_named_and_nothing_is_launched(void **state) {
    (void)state;
    LgError err;
    for (int i = 0; i < 3; i++) {
        LoraKernels k = all_kernels();
        *(i == 0 ? &k.gemv_k : i == 1 ? &k.gemm_k : &k.scaled_add_k) = NULL;
        assert_int_equal(apply(&k, 5, &err), LG_DEVICE);
        assert_non_null(strstr(err.message, i == 0   ? "dense_gemv_bf16"
                                            : i == 1 ? "dense_gemm_bf16"
                                                     : "bf16_scaled_add"));
        assert_launched("");
    }
}

/* ---- routed ---- */

static void routed_launches_depend_on_the_bucket_alone(void **state) {
    (void)state;
    LoraKernels k = all_kernels();
    CudaDevice d = fake_device();
    CudaLaunch l = {&d, &k, NULL, true};
    LgError err;
    for (int rows = 1; rows <= 4096; rows *= 2) {
        CudaLoraPlan plan = cuda_lora_plan(rows);
        LgcCall call = {.k = 4096, .site_count = 3, .n = {4096, 1024, 1024}, .low_stride = 192};
        launch_count = 0;
        assert_int_equal(cuda_lora_apply_bgmv(&l, &plan, &call, &err), LG_OK);
        assert_launched("bgmv_shrink_k bgmv_expand_fold_k");
        for (int i = 0; i < 2; i++) {
            assert_true(launched[i].grid[0] >= 1 && launched[i].grid[0] <= 132 * 8);
            assert_true(launched[i].block[0] <= 1024);
        }
        assert_int_equal(call.split, rows <= 128);
        assert_int_equal(call.entries, rows);
        assert_true(cuda_lora_low_rows(&plan, 4096) == (rows <= 128 ? 32 * rows : rows));
    }
}

static void routed_needs_both_its_handles(void **state) {
    (void)state;
    CudaDevice d = fake_device();
    LgError err;
    for (int i = 0; i < 2; i++) {
        LoraKernels k = all_kernels();
        CudaLaunch l = {&d, &k, NULL, true};
        CudaLoraPlan plan = cuda_lora_plan(8);
        LgcCall call = {.k = 64, .site_count = 1, .n = {64}, .low_stride = 32};
        *(i ? &k.bgmv_expand_fold_k : &k.bgmv_shrink_k) = NULL;
        assert_int_equal(cuda_lora_apply_bgmv(&l, &plan, &call, &err), LG_DEVICE);
        assert_non_null(strstr(err.message, i ? "lora_bgmv_expand_fold" : "lora_bgmv_shrink"));
        assert_launched("");
    }
}

/* ---- the route ---- */

static void rows_of_one_set_share_tiles_in_their_order(void **state) {
    (void)state;
    CudaDevice d = fake_device();
    CudaRoute *r;
    LgError err;
    /* Rows 1 and 4 have none; 0, 2 and 5 the same set, whatever stands behind its end. */
    const int32_t sets[][LGC_SET] = {{3, 1, -1, 9}, {-1, 2, 2, 2}, {3, 1, -7, -1},
                                     {3, -1, 1, 1}, {-2, 0, 0, 0}, {3, 1, -1, -1}};
    float scales[6][LGC_SET];
    for (int i = 0; i < 6 * LGC_SET; i++)
        scales[i / LGC_SET][i % LGC_SET] = (float)i;
    const LgcTile *tiles;
    const int32_t *rows;
    assert_int_equal(cuda_route_create(&d, 8, &r, &err), LG_OK);
    assert_int_equal(cuda_route_write(r, sets[0], scales[0], 6, NULL, &err), LG_OK);
    assert_int_equal(cuda_route_tiles(r, &tiles, &rows), 2);
    assert_int_equal(tiles[0].count, 3);
    assert_int_equal(tiles[0].slot[1], 1);
    assert_true(tiles[0].slot[2] < 0 && tiles[0].slot[3] < 0);
    assert_int_equal(rows[0], 0);
    assert_int_equal(rows[1], 2);
    assert_int_equal(rows[2], 5);
    assert_int_equal(tiles[1].first, 3);
    assert_int_equal(tiles[1].count, 1);
    assert_int_equal(rows[3], 3);
    LgcRoute view;
    cuda_route_view(r, &view);
    assert_int_equal(*(const int32_t *)(uintptr_t)view.tile_count, 2); /* it was copied */
    assert_true(((const float *)(uintptr_t)view.scales)[2 * LGC_SET] == 20.0f);
    assert_int_equal(cuda_route_write(r, NULL, NULL, 0, NULL, &err), LG_OK);
    assert_int_equal(cuda_route_tiles(r, &tiles, &rows), 0);
    assert_int_equal(cuda_route_write(r, sets[0], scales[0], 9, NULL, &err), LG_LIMIT);
    cuda_route_destroy(r);
}

static void tiles_have_as_many_rows_as_the_bucket_says(void **state) {
    (void)state;
    CudaDevice d = fake_device();
    LgError err;
    for (int bucket = 128; bucket <= 256; bucket *= 2) {
        const int most = cuda_lora_plan(bucket).tile_rows;
        int32_t *sets = calloc(128 * LGC_SET, sizeof *sets);
        float *scales = calloc(128 * LGC_SET, sizeof *scales);
        CudaRoute *r;
        const LgcTile *tiles;
        const int32_t *rows;
        for (int i = 0; i < 128; i++)
            sets[i * LGC_SET + 1] = -1;
        assert_int_equal(cuda_route_create(&d, bucket, &r, &err), LG_OK);
        assert_int_equal(cuda_route_write(r, sets, scales, 100, NULL, &err), LG_OK);
        int count = cuda_route_tiles(r, &tiles, &rows), seen = 0;
        assert_int_equal(count, (100 + most - 1) / most);
        for (int i = 0; i < count; i++) {
            assert_int_equal(tiles[i].first, seen);
            assert_true(tiles[i].count >= 1 && tiles[i].count <= most);
            seen += tiles[i].count;
        }
        assert_int_equal(seen, 100);
        cuda_route_destroy(r);
        free(sets);
        free(scales);
    }
}

/* ---- experts ---- */

static void a_pair_of_expert_kernels_is_there_whole_or_not_at_all(void **state) {
    (void)state;
    CudaDevice d = fake_device();
    LgError err;
    for (int i = 0; i < 4; i++) {
        LoraKernels k = all_kernels();
        CudaLaunch l = {&d, &k, NULL, true};
        LgcMoe call = {
            .rows = 8, .k = 64, .site_count = 1, .n = {64}, .low_stride = 32, .top_k = 2};
        LoraHandle *const fields[] = {&k.moe_down_shrink_k, &k.moe_down_expand_fold_k,
                                      &k.moe_gather_shrink_k, &k.moe_gather_expand_fold_k};
        static const char *const names[] = {
            "moe_lora_grouped_shrink", "moe_lora_grouped_expand_fold", "moe_lora_gather_shrink",
            "moe_lora_gather_expand_fold"};
        *fields[i] = NULL;
        LgStatus status = i < 2 ? cuda_lora_apply_moe_grouped(&l, &call, 8, &err)
                                : cuda_lora_apply_moe_gather(&l, &call, &err);
        assert_int_equal(status, LG_DEVICE);
        assert_non_null(strstr(err.message, names[i]));
        assert_launched("");
    }
}

static void grouped_rows_go_in_windows_of_what_low_has_room_for(void **state) {
    (void)state;
    LoraKernels k = all_kernels();
    CudaDevice d = fake_device();
    d.driver.launch = fake_launch_moe;
    CudaLaunch l = {&d, &k, NULL, true};
    LgError err;
    LgcMoe call = {.rows = 40, .k = 64, .site_count = 1, .n = {64}, .low_stride = 32};
    assert_int_equal(cuda_lora_apply_moe_grouped(&l, &call, 16, &err), LG_OK);
    assert_launched("moe_down_shrink_k moe_down_expand_fold_k moe_down_shrink_k "
                    "moe_down_expand_fold_k moe_down_shrink_k moe_down_expand_fold_k");
    for (int i = 0; i < 6; i++) {
        assert_int_equal(launched[i].moe.first, i / 2 * 16);
        assert_int_equal(launched[i].moe.entries, 16);
    }
    call.rows = 0;
    launch_count = 0;
    assert_int_equal(cuda_lora_apply_moe_gather(&l, &call, &err), LG_OK);
    assert_launched("");
}

/* ---- the order of sums, memory ---- */

static void chunks_cover_k_whatever_it_is(void **state) {
    (void)state;
    for (int k = 1; k < 40000; k += k < 300 ? 1 : 97) {
        int steps = (k + 15) / 16, each = lgc_chunk_steps(k), chunks = lgc_chunks(k);
        assert_true(each >= 4 && chunks >= 1 && chunks <= LGC_CHUNKS);
        assert_true(each * chunks >= steps && each * (chunks - 1) < steps);
    }
    assert_int_equal(lgc_chunks(64), 1); /* ranks up to 64 are one chunk */
    assert_int_equal(lgc_chunks(4096), 32);
    assert_int_equal(lgc_chunks(12288), 64);
}

static void packed_adapters_are_filled_up_with_zeros(void **state) {
    (void)state;
    const float a[3 * 5] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    uint16_t out[8 * 16];
    memset(out, 0xff, sizeof out);
    cuda_lora_pack_a(a, 3, 5, out);
    for (int z = 0; z < 8; z++)
        for (int i = 0; i < 16; i++)
            assert_int_equal(out[z * 16 + i], z < 3 && i < 5 ? bf16_from_float(a[z * 5 + i]) : 0);
    cuda_lora_pack_b(a, 5, 3, out);
    for (int o = 0; o < 5; o++)
        for (int z = 0; z < 8; z++)
            assert_int_equal(out[o * 8 + z], z < 3 ? bf16_from_float(a[o * 3 + z]) : 0);
}

/* Host and device read the same bytes: no compiler may lay them out in another way. */
static void records_have_the_layout_that_device_code_reads(void **state) {
    (void)state;
    assert_int_equal(sizeof(LgcRecord), 64);
    assert_int_equal(offsetof(LgcRecord, scale), 32);
    assert_int_equal(sizeof(LgcTile), 32);
    assert_int_equal(offsetof(LgcTile, first), 16);
    assert_int_equal(sizeof(CudaLaunchAttribute), 72);
    assert_int_equal(offsetof(CudaLaunchAttribute, value), 8);
    assert_int_equal(offsetof(CudaLaunchConfig, stream), 32);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_row_takes_gemv_twice_and_scaled_add),
        cmocka_unit_test(more_rows_take_the_fused_expand_and_fold),
        cmocka_unit_test(missing_optional_handles_have_fallbacks),
        cmocka_unit_test(a_missing_needed_handle_is_named_and_nothing_is_launched),
        cmocka_unit_test(routed_launches_depend_on_the_bucket_alone),
        cmocka_unit_test(routed_needs_both_its_handles),
        cmocka_unit_test(rows_of_one_set_share_tiles_in_their_order),
        cmocka_unit_test(tiles_have_as_many_rows_as_the_bucket_says),
        cmocka_unit_test(a_pair_of_expert_kernels_is_there_whole_or_not_at_all),
        cmocka_unit_test(grouped_rows_go_in_windows_of_what_low_has_room_for),
        cmocka_unit_test(chunks_cover_k_whatever_it_is),
        cmocka_unit_test(packed_adapters_are_filled_up_with_zeros),
        cmocka_unit_test(records_have_the_layout_that_device_code_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
