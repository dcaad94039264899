/* SHA-256 by libcrypto's EVP interface. */
#include "base/hash.h"

#include <assert.h>
#include <openssl/evp.h>

#include "base/file.h"

/* An EVP_MD_CTX under our name: there is nothing else to keep. */
static EVP_MD_CTX *context(Sha256 *h) {
    return (EVP_MD_CTX *)h;
}

static void hex_of(const unsigned char *digest, char hex[65]) {
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < 32; i++) {
        hex[2 * i] = digits[digest[i] >> 4];
        hex[2 * i + 1] = digits[digest[i] & 15];
    }
    hex[64] = 0;
}

Sha256 *sha256_create(void) {
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    if (c && EVP_DigestInit_ex(c, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(c);
        c = NULL;
    }
    return (Sha256 *)c;
}

void sha256_update(Sha256 *h, const void *data, size_t bytes) {
    int ok = EVP_DigestUpdate(context(h), data, bytes);
    assert(ok == 1);
    (void)ok;
}

void sha256_finish(Sha256 *h, char hex[65]) {
    unsigned char digest[32] = {0};
    int ok = EVP_DigestFinal_ex(context(h), digest, NULL);
    assert(ok == 1);
    (void)ok;
    hex_of(digest, hex);
    sha256_destroy(h);
}

void sha256_destroy(Sha256 *h) {
    EVP_MD_CTX_free(context(h));
}

void sha256_hex(const void *data, size_t bytes, char hex[65]) {
    unsigned char digest[32] = {0};
    int ok = EVP_Digest(data, bytes, digest, NULL, EVP_sha256(), NULL);
    assert(ok == 1);
    (void)ok;
    hex_of(digest, hex);
}

LgStatus sha256_file(const char *path, char hex[65], LgError *err) {
    FileMap map;
    LG_TRY(file_map_open(path, &map, err));
    Sha256 *h = sha256_create();
    if (h) {
        sha256_update(h, map.data, map.size);
        sha256_finish(h, hex);
    }
    file_map_close(&map);
    return h ? LG_OK : lg_fail_memory(err);
}
