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
LgStatus file_write_atomic(const char *path, const void *data, size_t bytes, LgError *err);
bool file_exists(const char *path);
bool file_is_dir(const char *path);
LgStatus file_mkdirs(const char *path, LgError *err);

#endif
