/* Files: mapped whole and read-only, read whole, written by rename. */
#ifndef LG_BASE_FILE_H
#define LG_BASE_FILE_H

#include "base/status.h"
#include "base/str.h"

typedef struct FileMap {
    const unsigned char *data; /* NULL where size is 0 */
    size_t size;
} FileMap;

/* Errors: LG_NOT_FOUND, LG_IO, with the path and the system's words. */
LgStatus file_map_open(const char *path, FileMap *out, LgError *err);
void file_map_close(FileMap *m);

LgStatus file_read(const char *path, size_t max_bytes, Buf *out, LgError *err);
/* The whole file or nothing of it; a path that is no regular file (a pipe, a device, a link) is
 * written into. */
LgStatus file_write_atomic(const char *path, const void *data, size_t bytes, LgError *err);
/* The path of the file `name` of the folder dir, links resolved, appended to an empty *path.
 * Refuses (LG_BAD_INPUT) what is not a plain file name (separators, "..", control characters) and a
 * link that leads out of dir; but the layout of Hugging Face's cache is known: .../snapshots/X/name
 * may be a link into .../blobs.  LG_NOT_FOUND: no such file. */
LgStatus file_inside(const char *dir, LgStr name, Buf *path, LgError *err);

bool file_exists(const char *path);
bool file_is_dir(const char *path);
LgStatus file_mkdirs(const char *path, LgError *err);

#endif
