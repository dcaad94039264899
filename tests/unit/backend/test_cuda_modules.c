/* Device code without a device: every file of kernels/cuda compiles for every target by NVRTC, the
 * table says which file gives what where, and the cache gives back what was put in, or nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "backend/cuda/modules.h"
#include "base/file.h"

static const char *const targets[] = {"sm_80", "sm_90a", "sm_100a", "sm_121a"};
#define TARGETS (sizeof targets / sizeof *targets)

/* LG_NVRTC: where scripts put the one of PyPI. */
static Nvrtc *open_or_skip(void) {
    Nvrtc *n = NULL;
    LgError err;
    if (nvrtc_open(getenv("LG_NVRTC"), &n, &err) != LG_OK) {
        print_message("SKIPPED, NO DEVICE CODE WAS COMPILED: %s\n", err.message);
        skip();
    }
    return n;
}

/* The compiler is the same under a sanitizer, only slow: there one file tells what our side does.
 */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FILES_AT_LEAST 1
#else
#define FILES_AT_LEAST 7
#endif

static void every_file_compiles_for_every_target(void **state) {
    (void)state;
    Nvrtc *n = open_or_skip();
    int compiled = 0;
    for (const CudaSource *s = lg_cuda_sources; s->stem; s++)
        for (size_t t = 0; t < TARGETS; t++) {
            Buf cubin;
            LgError err;
            buf_init(&cubin);
            if (FILES_AT_LEAST == 1 && compiled >= (int)TARGETS)
                break;
            if (cuda_source_find(s->module, targets[t], NULL) != s &&
                cuda_source_find(s->module, targets[t], "common") != s)
                continue;
            if (cuda_source_compile(n, s, targets[t], &cubin, &err) != LG_OK)
                fail_msg("%s", err.message);
            assert_memory_equal(cubin.data,
                                "\x7f"
                                "ELF",
                                4);
            for (const char *k = s->kernels; *k;) { /* its names are in the cubin */
                char name[96];
                size_t len = strcspn(k, " ");
                snprintf(name, sizeof name, ".text.%.*s", (int)len, k);
                k += len + (k[len] == ' ');
                assert_non_null(memmem(cubin.data, cubin.len, name, strlen(name)));
            }
            compiled++;
            buf_clear(&cubin);
        }
    print_message("%d files compiled by NVRTC %s\n", compiled, nvrtc_version(n));
    assert_true(compiled >= FILES_AT_LEAST * (int)TARGETS);
    nvrtc_close(n);
}

static void every_lora_handle_has_a_kernel_on_every_target(void **state) {
    (void)state;
    for (size_t t = 0; t < TARGETS; t++) {
#define HAS_KERNEL(field, module, kernel, needed)                                                  \
    {                                                                                              \
        const CudaSource *s = cuda_source_find(module, targets[t], NULL);                          \
        assert_non_null(s);                                                                        \
        assert_true(cuda_source_has(s, kernel));                                                   \
    }
        LORA_KERNEL_MAP(HAS_KERNEL)
#undef HAS_KERNEL
    }
}

static void modules_are_found_by_their_names_not_their_files(void **state) {
    (void)state;
    const CudaSource *s = cuda_source_find("gemv", "sm_90a", NULL);
    assert_non_null(s);
    assert_string_equal(s->stem, "dense_gemv_bf16");
    assert_null(cuda_source_find("dense_gemv_bf16", "sm_90a", NULL));
    assert_false(cuda_source_has(s, "dense_gemv"));
    assert_true(cuda_source_has(s, "dense_gemv_bf16"));
}

static void a_message_of_the_compiler_comes_with_file_and_target(void **state) {
    (void)state;
    Nvrtc *n = open_or_skip();
    LgError err;
    Buf cubin;
    const NvrtcSource wrong = {"wrong.cu", "__global__ void f() { undeclared(); }", NULL, 0};
    buf_init(&cubin);
    assert_int_equal(nvrtc_compile(n, &wrong, "sm_90a", &cubin, &err), LG_INTERNAL);
    assert_non_null(strstr(err.message, "wrong.cu"));
    assert_non_null(strstr(err.message, "undeclared"));
    assert_non_null(strstr(err.message, "sm_90a"));
    assert_int_equal(cubin.len, 0);
    buf_clear(&cubin);
    nvrtc_close(n);
}

static void there_is_no_nvrtc_in_an_empty_folder(void **state) {
    (void)state;
    Nvrtc *n = NULL;
    LgError err;
    assert_int_equal(nvrtc_open("/nonexistent", &n, &err), LG_NOT_FOUND);
    assert_non_null(strstr(err.message, "nvidia-cuda-nvrtc"));
    assert_null(n);
}

/* The one file in dir that ends in .cubin. */
static void cubin_path(const char *dir, const char *pattern, char *path, size_t bytes) {
    char command[512];
    snprintf(command, sizeof command, "ls %s/%s", dir, pattern);
    FILE *p = popen(command, "r");
    assert_non_null(p);
    assert_non_null(fgets(path, (int)bytes, p));
    path[strcspn(path, "\n")] = 0;
    pclose(p);
}

static void the_cache_gives_back_whole_entries_alone(void **state) {
    (void)state;
    Nvrtc *n = open_or_skip();
    char dir[] = "/tmp/lg-cubin-XXXXXX", path[256], command[300];
    const CudaSource *s = cuda_source_find("residual_add", "sm_80", NULL);
    Buf first, again;
    LgError err;
    bool cached = true;
    assert_non_null(mkdtemp(dir));
    buf_init(&first);
    buf_init(&again);
    assert_int_equal(cuda_cubin(n, s, "sm_80", dir, &first, &cached, &err), LG_OK);
    assert_false(cached);
    assert_int_equal(cuda_cubin(n, s, "sm_80", dir, &again, &cached, &err), LG_OK);
    assert_true(cached);
    assert_int_equal(first.len, again.len);
    assert_memory_equal(first.data, again.data, first.len);
    buf_reset(&again);
    assert_int_equal(cuda_cubin(n, s, "sm_90a", dir, &again, &cached, &err), LG_OK);
    assert_false(cached); /* another target is another entry */
    cubin_path(dir, "*.cubin", path, sizeof path);
    Buf file;
    buf_init(&file);
    assert_int_equal(file_read(path, 1 << 24, &file, &err), LG_OK);
    for (int damage = 0; damage < 2; damage++) {
        size_t bytes = damage ? file.len / 2 : file.len;
        file.data[file.len - 5] ^= (char)!damage;
        assert_int_equal(file_write_atomic(path, file.data, bytes, &err), LG_OK);
        file.data[file.len - 5] ^= (char)!damage;
        for (int i = 0; i < 2; i++) {
            bool all = true;
            buf_reset(&again);
            assert_int_equal(cuda_cubin(n, s, "sm_80", dir, &again, &cached, &err), LG_OK);
            all = all && cached;
            buf_reset(&again);
            assert_int_equal(cuda_cubin(n, s, "sm_90a", dir, &again, &cached, &err), LG_OK);
            assert_int_equal(all && cached, i); /* compiled anew once, then whole again */
        }
    }
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
    buf_clear(&file);
    buf_clear(&first);
    buf_clear(&again);
    nvrtc_close(n);
}

static void architectures_have_their_own_instructions_from_hopper_on(void **state) {
    (void)state;
    char arch[16];
    cuda_arch(8, 6, arch);
    assert_string_equal(arch, "sm_86");
    cuda_arch(9, 0, arch);
    assert_string_equal(arch, "sm_90a");
    cuda_arch(12, 1, arch);
    assert_string_equal(arch, "sm_121a");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_file_compiles_for_every_target),
        cmocka_unit_test(every_lora_handle_has_a_kernel_on_every_target),
        cmocka_unit_test(modules_are_found_by_their_names_not_their_files),
        cmocka_unit_test(a_message_of_the_compiler_comes_with_file_and_target),
        cmocka_unit_test(there_is_no_nvrtc_in_an_empty_folder),
        cmocka_unit_test(the_cache_gives_back_whole_entries_alone),
        cmocka_unit_test(architectures_have_their_own_instructions_from_hopper_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
