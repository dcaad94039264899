/* SHA-256 (libcrypto). */
#ifndef LG_BASE_HASH_H
#define LG_BASE_HASH_H

#include "base/status.h"
#include "base/str.h"

typedef struct Sha256 Sha256;
Sha256 *sha256_create(void); /* NULL: allocation failed */
void sha256_update(Sha256 *h, const void *data, size_t bytes);
void sha256_finish(Sha256 *h, char hex[65]); /* also destroys h */
void sha256_destroy(Sha256 *h);
/* The digest of a file as it is on disk. Errors: as file_map_open, LG_NO_MEMORY. */
LgStatus sha256_file(const char *path, char hex[65], LgError *err);
void sha256_hex(const void *data, size_t bytes, char hex[65]);

#endif
