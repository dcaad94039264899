/* Files and their hashes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"

typedef struct Folder {
    char path[64];
    Buf buf;
} Folder;

static int folder_make(void **state) {
    static Folder folder;
    strcpy(folder.path, "/tmp/lg-file-XXXXXX");
    buf_init(&folder.buf);
    *state = &folder;
    return mkdtemp(folder.path) ? 0 : -1;
}

static int folder_remove(void **state) {
    Folder *f = *state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", f->path);
    buf_clear(&f->buf);
    return system(command);
}

static const char *in(Folder *f, const char *name) {
    buf_reset(&f->buf);
    buf_printf(&f->buf, "%s/%s", f->path, name);
    return f->buf.data;
}

static void put(Folder *f, const char *name, const char *text) {
    assert_int_equal(file_write_atomic(in(f, name), text, strlen(text), NULL), LG_OK);
}

static void what_is_written_is_read(void **state) {
    Folder *f = *state;
    put(f, "a", "first");
    put(f, "a", "second");
    Buf text;
    buf_init(&text);
    assert_int_equal(file_read(in(f, "a"), 6, &text, NULL), LG_OK);
    assert_string_equal(text.data, "second");
    FileMap m;
    assert_int_equal(file_map_open(in(f, "a"), &m, NULL), LG_OK);
    assert_int_equal(m.size, 6);
    assert_memory_equal(m.data, "second", 6);
    file_map_close(&m);
    assert_null(m.data);
    file_map_close(&m);
    buf_clear(&text);
}

static void no_half_written_file_stays(void **state) {
    Folder *f = *state;
    LgError err = {0};
    assert_int_equal(file_mkdirs(in(f, "target"), NULL), LG_OK);
    put(f, "target/x", "y");
    assert_int_equal(file_write_atomic(in(f, "target"), "z", 1, &err),
                     LG_IO); /* a folder is in the way */
    snprintf(err.message, sizeof err.message, "test $(ls %s | wc -l) = 1", f->path);
    assert_int_equal(system(err.message), 0);
}

static void a_larger_file_than_allowed_is_a_limit(void **state) {
    Folder *f = *state;
    LgError err = {0};
    Buf text;
    buf_init(&text);
    put(f, "a", "123456");
    assert_int_equal(file_read(in(f, "a"), 5, &text, &err), LG_LIMIT);
    assert_non_null(strstr(err.message, "/a"));
    buf_clear(&text);
}

static void an_empty_file_maps_to_nothing(void **state) {
    Folder *f = *state;
    put(f, "empty", "");
    FileMap m = {0};
    assert_int_equal(file_map_open(in(f, "empty"), &m, NULL), LG_OK);
    assert_int_equal(m.size, 0);
    assert_null(m.data);
    file_map_close(&m);
}

static void absent_files_and_folders_are_told_apart(void **state) {
    Folder *f = *state;
    LgError err = {0};
    FileMap m;
    Buf text;
    buf_init(&text);
    assert_int_equal(file_map_open(in(f, "none"), &m, &err), LG_NOT_FOUND);
    assert_non_null(strstr(err.message, "none"));
    assert_int_equal(file_read(in(f, "none"), 9, &text, &err), LG_NOT_FOUND);
    assert_int_equal(file_read(f->path, 9, &text, &err), LG_IO);
    assert_non_null(strstr(err.message, "folder"));
    buf_clear(&text);
}

static void a_pipe_does_not_block(void **state) {
    Folder *f = *state;
    LgError err = {0};
    Buf text;
    buf_init(&text);
    assert_int_equal(mkfifo(in(f, "pipe"), 0600), 0);
    assert_int_equal(file_read(in(f, "pipe"), 9, &text, &err), LG_IO);
    buf_clear(&text);
}

static void folders_are_made_with_their_parents(void **state) {
    Folder *f = *state;
    assert_int_equal(file_mkdirs(in(f, "a/b//c/"), NULL), LG_OK);
    assert_int_equal(file_mkdirs(in(f, "a/b/c"), NULL), LG_OK);
    assert_true(file_is_dir(in(f, "a/b/c")));
    put(f, "file", "x");
    assert_true(file_exists(in(f, "file")));
    assert_false(file_is_dir(in(f, "file")));
    assert_false(file_exists(in(f, "other")));
    assert_int_not_equal(file_mkdirs(in(f, "file/b"), NULL), LG_OK);
}

static LgStatus inside(Folder *f, const char *dir, const char *name, LgError *err) {
    Buf path;
    buf_init(&path);
    char where[128];
    snprintf(where, sizeof where, "%s/%s", f->path, dir);
    LgStatus status = file_inside(where, lg_str(name), &path, err);
    if (status == LG_OK)
        assert_true(file_exists(path.data));
    buf_clear(&path);
    return status;
}

static void only_plain_names_are_members(void **state) {
    Folder *f = *state;
    LgError err = {0};
    file_mkdirs(in(f, "d"), NULL);
    put(f, "d/a", "x");
    put(f, "secret", "x");
    assert_int_equal(inside(f, "d", "a", &err), LG_OK);
    assert_int_equal(inside(f, "d", "b", &err), LG_NOT_FOUND);
    static const char *const names[] = {"",       ".",    "..",   "../secret", "/etc/passwd",
                                        "a/../a", "a\\b", "a\nb", ".hidden"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        assert_int_equal(inside(f, "d", names[i], &err), LG_BAD_INPUT);
    Buf path;
    buf_init(&path);
    assert_int_equal(file_inside(f->path, (LgStr){"secret\0x", 8}, &path, &err), LG_BAD_INPUT);
    buf_clear(&path);
}

static void links_must_stay_in_the_folder(void **state) {
    Folder *f = *state;
    LgError err = {0};
    file_mkdirs(in(f, "d"), NULL);
    put(f, "d/a", "x");
    put(f, "secret", "x");
    char at[128];
    snprintf(at, sizeof at, "%s/d/inner", f->path);
    assert_int_equal(symlink("a", at), 0);
    snprintf(at, sizeof at, "%s/d/outer", f->path);
    assert_int_equal(symlink("../secret", at), 0);
    snprintf(at, sizeof at, "%s/d/dangling", f->path);
    assert_int_equal(symlink("gone", at), 0);
    assert_int_equal(inside(f, "d", "inner", &err), LG_OK);
    assert_int_equal(inside(f, "d", "outer", &err), LG_BAD_INPUT);
    assert_non_null(strstr(err.message, "link"));
    assert_int_equal(inside(f, "d", "dangling", &err), LG_NOT_FOUND);
}

static void hugging_face_cache_links_are_known(void **state) {
    Folder *f = *state;
    LgError err = {0};
    char at[128];
    file_mkdirs(in(f, "m/blobs"), NULL);
    file_mkdirs(in(f, "m/snapshots/r1"), NULL);
    put(f, "m/blobs/abc", "x");
    put(f, "m/other", "x");
    snprintf(at, sizeof at, "%s/m/snapshots/r1/model", f->path);
    assert_int_equal(symlink("../../blobs/abc", at), 0);
    snprintf(at, sizeof at, "%s/m/snapshots/r1/other", f->path);
    assert_int_equal(symlink("../../other", at), 0);
    assert_int_equal(inside(f, "m/snapshots/r1", "model", &err), LG_OK);
    assert_int_equal(inside(f, "m/snapshots/r1", "other", &err), LG_BAD_INPUT);
}

static void sha256_is_sha256(void **state) {
    Folder *f = *state;
    static const char abc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    static const char none[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    char hex[65];
    sha256_hex("abc", 3, hex);
    assert_string_equal(hex, abc);
    Sha256 *h = sha256_create();
    sha256_update(h, "a", 1);
    sha256_update(h, "bc", 2);
    sha256_finish(h, hex);
    assert_string_equal(hex, abc);
    sha256_destroy(sha256_create());
    sha256_destroy(NULL);
    put(f, "abc", "abc");
    put(f, "none", "");
    assert_int_equal(sha256_file(in(f, "abc"), hex, NULL), LG_OK);
    assert_string_equal(hex, abc);
    assert_int_equal(sha256_file(in(f, "none"), hex, NULL), LG_OK);
    assert_string_equal(hex, none);
    assert_int_equal(sha256_file(in(f, "gone"), hex, NULL), LG_NOT_FOUND);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_make, folder_remove)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(what_is_written_is_read),
        IN_FOLDER(no_half_written_file_stays),
        IN_FOLDER(a_larger_file_than_allowed_is_a_limit),
        IN_FOLDER(an_empty_file_maps_to_nothing),
        IN_FOLDER(absent_files_and_folders_are_told_apart),
        IN_FOLDER(a_pipe_does_not_block),
        IN_FOLDER(folders_are_made_with_their_parents),
        IN_FOLDER(only_plain_names_are_members),
        IN_FOLDER(links_must_stay_in_the_folder),
        IN_FOLDER(hugging_face_cache_links_are_known),
        IN_FOLDER(sha256_is_sha256),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
