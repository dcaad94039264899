/* Files. Only regular files are read: a pipe or a device in a model folder would block or never
 * end. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

static LgStatus fail_errno(LgError *err, const char *what, const char *path) {
    int code = errno;
    LgStatus status = code == ENOENT || code == ENOTDIR ? LG_NOT_FOUND : LG_IO;
    char words[128];
    return lg_fail(err, status, 0, "cannot %s \"%s\": %s", what, path,
                   strerror_r(code, words, sizeof words));
}

static LgStatus open_regular(const char *path, int *fd_out, size_t *size, LgError *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return fail_errno(err, "open", path);
    struct stat st;
    LgStatus status = LG_OK;
    if (fstat(fd, &st) != 0)
        status = fail_errno(err, "examine", path);
    else if (!S_ISREG(st.st_mode))
        status = lg_fail(err, LG_IO, 0, "cannot read \"%s\": it is %s, not a regular file", path,
                         S_ISDIR(st.st_mode) ? "a folder" : "a device, pipe or socket");
    if (status != LG_OK) {
        close(fd);
        return status;
    }
    *fd_out = fd;
    *size = (size_t)st.st_size;
    return LG_OK;
}

LgStatus file_map_open(const char *path, FileMap *out, LgError *err) {
    int fd;
    size_t size;
    LG_TRY(open_regular(path, &fd, &size, err));
    void *data = NULL;
    LgStatus status = LG_OK;
    if (size) {
        data = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED)
            status = fail_errno(err, "map", path);
    }
    close(fd);
    if (status == LG_OK)
        *out = (FileMap){.data = data, .size = size};
    return status;
}

void file_map_close(FileMap *m) {
    if (m->data)
        munmap((void *)(uintptr_t)m->data, m->size);
    *m = (FileMap){0};
}

LgStatus file_read(const char *path, size_t max_bytes, Buf *out, LgError *err) {
    int fd;
    size_t size;
    LG_TRY(open_regular(path, &fd, &size, err));
    buf_reset(out);
    LgStatus status = LG_OK;
    char chunk[16384];
    for (;;) {
        ssize_t n = read(fd, chunk, sizeof chunk);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            status = fail_errno(err, "read", path);
        if (n <= 0)
            break;
        if ((size_t)n > max_bytes - out->len) {
            status = lg_fail(err, LG_LIMIT, 0, "\"%s\" is larger than the %zu bytes that are read",
                             path, max_bytes);
            break;
        }
        buf_append(out, chunk, (size_t)n);
        if (out->failed) {
            status = lg_fail_memory(err);
            break;
        }
    }
    close(fd);
    return status;
}

static bool write_all(int fd, const char *data, size_t bytes) {
    while (bytes) {
        ssize_t n = write(fd, data, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        data += n;
        bytes -= (size_t)n;
    }
    return true;
}

/* A device, a pipe or what a link leads to is written into, never replaced. */
static LgStatus write_through(const char *path, const void *data, size_t bytes, LgError *err) {
    int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    if (fd < 0)
        return fail_errno(err, "open", path);
    bool ok = write_all(fd, data, bytes);
    int code = errno;
    if (close(fd) != 0 && ok) {
        ok = false;
        code = errno;
    }
    errno = code;
    return ok ? LG_OK : fail_errno(err, "write", path);
}

LgStatus file_write_atomic(const char *path, const void *data, size_t bytes, LgError *err) {
    struct stat st;
    if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        return write_through(path, data, bytes, err);
    Buf temp;
    buf_init(&temp);
    buf_printf(&temp, "%s.XXXXXX", path);
    if (temp.failed) {
        buf_clear(&temp);
        return lg_fail_memory(err);
    }
    int fd = mkostemp(temp.data, O_CLOEXEC);
    if (fd < 0) {
        buf_clear(&temp);
        return fail_errno(err, "create", path);
    }
    bool ok = write_all(fd, data, bytes) && fchmod(fd, 0644) == 0 && fsync(fd) == 0;
    int code = errno;
    if (close(fd) != 0 && ok) {
        ok = false;
        code = errno;
    }
    if (ok && rename(temp.data, path) != 0) {
        ok = false;
        code = errno;
    }
    LgStatus status = LG_OK;
    if (!ok) {
        unlink(temp.data);
        errno = code;
        status = fail_errno(err, "write", path);
    }
    buf_clear(&temp);
    return status;
}

static bool is_plain_name(LgStr name) {
    if (name.len == 0 || name.len > NAME_MAX || name.ptr[0] == '.')
        return false;
    for (size_t i = 0; i < name.len; i++) {
        unsigned char c = (unsigned char)name.ptr[i];
        if (c < 0x20 || c == 0x7f || c == '/' || c == '\\')
            return false;
    }
    return true;
}

/* Cuts the last part of a resolved path; false for the root. */
static bool path_parent(LgStr *path) {
    while (path->len && path->ptr[path->len - 1] != '/')
        path->len--;
    if (path->len <= 1)
        return false;
    path->len--;
    return true;
}

/* Whether a resolved file may be read as a member of a resolved folder. */
static bool is_member(LgStr file, LgStr dir) {
    LgStr parent = file;
    if (!path_parent(&parent))
        return false;
    if (lg_str_eq(parent, dir))
        return true;
    LgStr cache = dir; /* ROOT/snapshots/REVISION */
    if (!path_parent(&cache) || !lg_str_ends(cache, "/snapshots") || !path_parent(&cache))
        return false;
    return parent.len > cache.len && lg_str_eq(lg_str_sub(parent, 0, cache.len), cache) &&
           lg_str_eq_c(lg_str_sub(parent, cache.len, parent.len), "/blobs");
}

LgStatus file_inside(const char *dir, LgStr name, Buf *path, LgError *err) {
    if (!is_plain_name(name)) {
        Buf shown;
        buf_init(&shown);
        buf_printable(&shown, name, 200);
        LgStatus status =
            lg_fail(err, LG_BAD_INPUT, 0,
                    "\"%s\" is no plain file name: a file of the folder \"%s\" itself is expected",
                    shown.data, dir);
        buf_clear(&shown);
        return status;
    }
    buf_printf(path, "%s/%.*s", dir, LG_STR_ARG(name));
    if (path->failed)
        return lg_fail_memory(err);
    char dir_real[PATH_MAX], file_real[PATH_MAX];
    if (!realpath(dir, dir_real))
        return fail_errno(err, "open", dir);
    if (!realpath(path->data, file_real))
        return fail_errno(err, "open", path->data);
    if (!is_member(lg_str(file_real), lg_str(dir_real)))
        return lg_fail(
            err, LG_BAD_INPUT, 0,
            "\"%s\" is a link that leads out of its folder; a file of the folder is expected",
            path->data);
    buf_reset(path);
    buf_puts(path, file_real);
    return path->failed ? lg_fail_memory(err) : LG_OK;
}

bool file_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0;
}

bool file_is_dir(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

LgStatus file_mkdirs(const char *path, LgError *err) {
    Buf part;
    buf_init(&part);
    LgStatus status = LG_OK;
    size_t len = strlen(path);
    for (size_t i = 1; i <= len && status == LG_OK; i++) {
        if (i < len && path[i] != '/')
            continue;
        buf_reset(&part);
        buf_append(&part, path, i);
        if (part.failed)
            status = lg_fail_memory(err);
        else if (mkdir(part.data, 0777) != 0 && !file_is_dir(part.data))
            status = fail_errno(err, "create the folder", part.data);
    }
    buf_clear(&part);
    return status;
}
