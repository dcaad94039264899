/* The program cache: what is whole is found, what is damaged counts as absent, what differs is
 * named; and the compiler's messages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "backend/cpu/cache.h"
#include "backend/cpu/compile.h"
#include "backend/cpu/elf_check.h"
#include "base/file.h"

#define HASH_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define HASH_B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

static const ProgramFields plain = {{
    [PROGRAM_FIELD_model] = "tiny",
    [PROGRAM_FIELD_source] = HASH_A,
    [PROGRAM_FIELD_dims] = "V=2048 E=128 L=4",
    [PROGRAM_FIELD_store] = "bf16",
    [PROGRAM_FIELD_level] = "avx2",
    [PROGRAM_FIELD_kernels] = HASH_A,
    [PROGRAM_FIELD_compiler] = "/usr/bin/cc, gcc 12.2",
    [PROGRAM_FIELD_flags] = "-O3 -mavx2",
    [PROGRAM_FIELD_abi] = "1",
    [PROGRAM_FIELD_plan] = HASH_A,
    [PROGRAM_FIELD_code] = HASH_A,
}};

typedef struct Fixture {
    char dir[32];
    Arena arena;
    char key[65];
} Fixture;

static void put(const char *dir, const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int setup(void **state) {
    Fixture *f = calloc(1, sizeof *f);
    strcpy(f->dir, "/tmp/lg-cache-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    arena_init(&f->arena);
    program_fields_key(&plain, f->key);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    Fixture *f = *state;
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", f->dir);
    assert_int_equal(system(command), 0);
    arena_clear(&f->arena);
    free(f);
    return 0;
}

static void publish(Fixture *f, const ProgramFields *fields, const char *content) {
    char key[65], temp[64];
    program_fields_key(fields, key);
    put(f->dir, "temp.so", content);
    snprintf(temp, sizeof temp, "%s/temp.so", f->dir);
    assert_int_equal(cache_publish(f->dir, key, fields, temp, NULL), LG_OK);
    assert_false(file_exists(temp));
}

static CacheState look(Fixture *f, const char **so) {
    CacheState state;
    assert_int_equal(cache_lookup(f->dir, f->key, &f->arena, so, &state, NULL), LG_OK);
    return state;
}

static void cache_finds_what_was_published(void **state) {
    Fixture *f = *state;
    const char *so;
    assert_int_equal(look(f, &so), CACHE_ABSENT);
    publish(f, &plain, "an object");
    assert_int_equal(look(f, &so), CACHE_HIT);
    assert_true(file_exists(so));
}

static void cache_notices_damage(void **state) {
    Fixture *f = *state;
    const char *so;
    char name[80];
    publish(f, &plain, "an object");
    snprintf(name, sizeof name, "%s.so", f->key);
    put(f->dir, name, "an obj"); /* truncated */
    assert_int_equal(look(f, &so), CACHE_DAMAGED);
    put(f->dir, name, "an 0bject"); /* one byte */
    assert_int_equal(look(f, &so), CACHE_DAMAGED);
    put(f->dir, name, "an object");
    assert_int_equal(look(f, &so), CACHE_HIT);
    snprintf(name, sizeof name, "%s.json", f->key);
    put(f->dir, name, "{\"so_bytes\":9"); /* the other half */
    assert_int_equal(look(f, &so), CACHE_DAMAGED);
    char path[160];
    snprintf(path, sizeof path, "%s/%s", f->dir, name);
    unlink(path);
    assert_int_equal(look(f, &so), CACHE_DAMAGED);
}

static void every_field_is_in_the_key(void **state) {
    (void)state;
    char a[65], b[65];
    program_fields_key(&plain, a);
    for (int i = 0; i < PROGRAM_FIELD_COUNT; i++) {
        ProgramFields other = plain;
        other.value[i] = "another";
        program_fields_key(&other, b);
        assert_string_not_equal(a, b);
    }
}

static void fields_survive_printing(void **state) {
    Fixture *f = *state;
    ProgramFields odd = plain, back;
    odd.value[PROGRAM_FIELD_compiler] = "/opt/my \"cc\"\\bin, v\t1";
    Buf json;
    buf_init(&json);
    program_fields_print(&odd, NULL, &json);
    assert_int_equal(program_fields_parse(buf_view(&json), "meta", &f->arena, &back, NULL), LG_OK);
    for (int i = 0; i < PROGRAM_FIELD_COUNT; i++)
        assert_string_equal(odd.value[i], back.value[i]);
    buf_clear(&json);
}

static void assert_diff(const ProgramFields *was, const ProgramFields *now, const char *text,
                        int count) {
    Buf out;
    buf_init(&out);
    assert_int_equal(program_fields_diff(was, now, "cached", &out), count);
    assert_string_equal(out.data, text);
    buf_clear(&out);
}

static void difference_names_fields(void **state) {
    (void)state;
    ProgramFields now = plain;
    assert_diff(&plain, &now, "", 0);
    now.value[PROGRAM_FIELD_code] = HASH_B;
    now.value[PROGRAM_FIELD_plan] = HASH_B;
    /* Nothing else differs: then the derived ones are the news. */
    assert_diff(&plain, &now,
                "plan: cached aaaaaaaaaaaa, now bbbbbbbbbbbb; emitted code: cached aaaaaaaaaaaa, "
                "now bbbbbbbbbbbb",
                2);
    now.value[PROGRAM_FIELD_compiler] = "clang 14";
    assert_diff(&plain, &now, "compiler: cached /usr/bin/cc, gcc 12.2, now clang 14", 1);
    now.value[PROGRAM_FIELD_dims] = "V=2048 E=256 L=4";
    assert_diff(
        &plain, &now,
        "dims: cached E=128, now E=256; compiler: cached /usr/bin/cc, gcc 12.2, now clang 14", 2);
    now = plain;
    now.value[PROGRAM_FIELD_flags] = "-O3";
    assert_diff(&plain, &now, "flags: cached -mavx2, now none of these", 1);
}

static void cache_nearest_is_the_closest_of_the_same_model(void **state) {
    Fixture *f = *state;
    const char *key;
    ProgramFields found, other = plain, closer = plain, far = plain;
    assert_int_equal(cache_nearest(f->dir, &plain, &f->arena, &key, &found, NULL), LG_OK);
    assert_null(key);
    other.value[PROGRAM_FIELD_model] = "another";
    closer.value[PROGRAM_FIELD_level] = "generic";
    far.value[PROGRAM_FIELD_level] = "generic";
    far.value[PROGRAM_FIELD_store] = "f32";
    publish(f, &other, "1");
    publish(f, &far, "2");
    publish(f, &closer, "3");
    put(f->dir, HASH_A ".json", "no json at all");
    assert_int_equal(cache_nearest(f->dir, &plain, &f->arena, &key, &found, NULL), LG_OK);
    assert_non_null(key);
    assert_string_equal(found.value[PROGRAM_FIELD_level], "generic");
    assert_string_equal(found.value[PROGRAM_FIELD_store], "bf16");
}

static bool usable(const char *dir, Buf *note) {
    bool found = false;
    assert_int_equal(cache_dir_check(dir, &found, note, NULL), LG_OK);
    return found;
}

static void cache_folder_must_be_ours_to_write(void **state) {
    Fixture *f = *state;
    Buf note;
    buf_init(&note);
    assert_true(usable(f->dir, &note));
    assert_int_equal(note.len, 0);
    assert_int_equal(chmod(f->dir, 0777), 0);
    assert_false(usable(f->dir, &note));
    assert_non_null(strstr(note.data, "writable by everyone"));
    put(f->dir, "file", "");
    char path[64];
    snprintf(path, sizeof path, "%s/file/cache", f->dir);
    buf_reset(&note);
    assert_false(usable(path, &note));
    assert_non_null(strstr(note.data, "/file"));
    buf_clear(&note);
}

/* ---- the compiler ---- */

static void compiler_that_is_missing_is_named_with_the_way_out(void **state) {
    Fixture *f = *state;
    const char *path;
    LgError err;
    assert_int_equal(compiler_find("no-such-cc", &f->arena, &path, &err), LG_NOT_FOUND);
    assert_non_null(strstr(err.message, "\"no-such-cc\""));
    assert_non_null(strstr(err.message, "ligature compile -o"));
    assert_int_equal(compiler_find("/no/such/cc", &f->arena, &path, &err), LG_NOT_FOUND);
    assert_int_equal(compiler_find(f->dir, &f->arena, &path, &err), LG_NOT_FOUND);
}

static void compiler_refusal_shows_what_it_said(void **state) {
    Fixture *f = *state;
    const char *path, *flags[COMPILER_FLAGS_MAX];
    char source[64], out[64];
    LgError err;
    snprintf(source, sizeof source, "%s/bad.c", f->dir);
    snprintf(out, sizeof out, "%s/bad.so", f->dir);
    put(f->dir, "bad.c", "int f(void) { return no_such_name; }\n");
    assert_int_equal(compiler_find("cc", &f->arena, &path, NULL), LG_OK);
    assert_int_equal(compiler_flags("generic", flags, NULL), LG_OK);
    assert_int_equal(compiler_run(path, flags, source, out, &err), LG_INTERNAL);
    assert_non_null(strstr(err.message, "no_such_name"));
    assert_non_null(strstr(err.message, "bad.c:1"));
    assert_false(file_exists(out));
}

static void compiler_makes_an_object_that_loads(void **state) {
    Fixture *f = *state;
    const char *path, *flags[COMPILER_FLAGS_MAX];
    char source[64], out[64], cut[64];
    LgError err;
    snprintf(source, sizeof source, "%s/good.c", f->dir);
    snprintf(out, sizeof out, "%s/good.so", f->dir);
    put(f->dir, "good.c", "int answer(void); int answer(void) { return 42; }\n");
    assert_int_equal(compiler_find("cc", &f->arena, &path, NULL), LG_OK);
    assert_int_equal(compiler_flags("generic", flags, NULL), LG_OK);
    assert_int_equal(compiler_run(path, flags, source, out, NULL), LG_OK);
    assert_int_equal(elf_check(out, NULL), LG_OK);

    /* Cut short it must not reach the loader. */
    Buf bytes;
    buf_init(&bytes);
    assert_int_equal(file_read(out, 1 << 24, &bytes, NULL), LG_OK);
    snprintf(cut, sizeof cut, "%s/cut.so", f->dir);
    for (size_t n = 0; n < bytes.len; n = n * 2 + 1) {
        assert_int_equal(file_write_atomic(cut, bytes.data, n, NULL), LG_OK);
        assert_int_equal(elf_check(cut, &err), LG_BAD_INPUT);
    }
    assert_non_null(strstr(err.message, "truncated"));
    buf_clear(&bytes);
    assert_int_equal(elf_check(source, &err), LG_BAD_INPUT);
    assert_non_null(strstr(err.message, "no shared object"));
}

static void unknown_level_has_no_flags(void **state) {
    (void)state;
    const char *flags[COMPILER_FLAGS_MAX];
    LgError err;
    assert_int_equal(compiler_flags("sse9", flags, &err), LG_BAD_INPUT);
    assert_non_null(strstr(err.message, "sse9"));
}

static void compiler_version_is_asked_once(void **state) {
    Fixture *f = *state;
    char script[64], count[64];
    const char *version;
    snprintf(script, sizeof script, "%s/cc", f->dir);
    snprintf(count, sizeof count, "%s/asked", f->dir);
    Buf text;
    buf_init(&text);
    buf_printf(&text, "#!/bin/sh\necho x >> %s\necho 'mock cc 1.0'\necho more\n", count);
    put(f->dir, "cc", text.data);
    assert_int_equal(chmod(script, 0755), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(cache_compiler_version(f->dir, script, &f->arena, &version, NULL), LG_OK);
        assert_string_equal(version, "mock cc 1.0");
    }
    buf_reset(&text);
    assert_int_equal(file_read(count, 100, &text, NULL), LG_OK);
    assert_string_equal(text.data, "x\n");

    /* Another size or time of change is another compiler. */
    buf_reset(&text);
    buf_printf(&text, "#!/bin/sh\necho 'mock cc 2.0 next'\n");
    put(f->dir, "cc", text.data);
    assert_int_equal(cache_compiler_version(f->dir, script, &f->arena, &version, NULL), LG_OK);
    assert_string_equal(version, "mock cc 2.0 next");
    buf_clear(&text);
}

int main(void) {
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(cache_finds_what_was_published),
        CASE(cache_notices_damage),
        CASE(every_field_is_in_the_key),
        CASE(fields_survive_printing),
        CASE(difference_names_fields),
        CASE(cache_nearest_is_the_closest_of_the_same_model),
        CASE(cache_folder_must_be_ours_to_write),
        CASE(compiler_that_is_missing_is_named_with_the_way_out),
        CASE(compiler_refusal_shows_what_it_said),
        CASE(compiler_makes_an_object_that_loads),
        CASE(unknown_level_has_no_flags),
        CASE(compiler_version_is_asked_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
