/* Makes small files in memory and on disk, right ones and wrong ones. */
#ifndef LG_TESTS_FORMATS_FILES_H
#define LG_TESTS_FORMATS_FILES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"

static inline void put_le(Buf *b, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++)
        buf_putc(b, (char)(unsigned char)(i < 8 ? value >> (8 * i) : 0));
}

static inline void put_pattern(Buf *b, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        buf_putc(b, (char)(unsigned char)(i * 7));
}

/* A heap block of exactly the bytes: a sanitizer sees a read past its end. The caller frees. */
static inline unsigned char *exact_copy(const Buf *b) {
    unsigned char *copy = lg_alloc(b->len);
    assert_non_null(copy);
    memcpy(copy, b->data, b->len);
    return copy;
}

/* A safetensors file: the header's length, the header, and a pattern as data. */
static inline void make_safetensors(Buf *b, const char *header, size_t data_bytes) {
    put_le(b, strlen(header), 8);
    buf_puts(b, header);
    put_pattern(b, data_bytes);
}

/* A GGUF in parts; gguf_finish puts them together. Counts and version may be falsified before. */
typedef struct GgufFile {
    Buf pairs, tensors, data, file;
    uint64_t pair_count, tensor_count, alignment;
    uint32_t version;
} GgufFile;

static inline void gguf_begin(GgufFile *g) {
    *g = (GgufFile){.version = 3, .alignment = 32};
    buf_init(&g->pairs);
    buf_init(&g->tensors);
    buf_init(&g->data);
    buf_init(&g->file);
}

static inline void gguf_end(GgufFile *g) {
    buf_clear(&g->pairs);
    buf_clear(&g->tensors);
    buf_clear(&g->data);
    buf_clear(&g->file);
}

static inline void put_gguf_string(Buf *b, const char *s) {
    put_le(b, strlen(s), 8);
    buf_puts(b, s);
}

enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 };

static inline void put_key(GgufFile *g, const char *key, uint32_t type) {
    put_gguf_string(&g->pairs, key);
    put_le(&g->pairs, type, 4);
    g->pair_count++;
}

static inline void put_int(GgufFile *g, const char *key, uint32_t type, int64_t value) {
    static const int sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    put_key(g, key, type);
    put_le(&g->pairs, (uint64_t)value, sizes[type]);
}

static inline void put_f32(GgufFile *g, const char *key, float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    put_key(g, key, F32);
    put_le(&g->pairs, bits, 4);
}

static inline void put_string(GgufFile *g, const char *key, const char *value) {
    put_key(g, key, STRING);
    put_gguf_string(&g->pairs, value);
}

static inline void put_array(GgufFile *g, const char *key, uint32_t type, uint64_t count) {
    put_key(g, key, ARRAY);
    put_le(&g->pairs, type, 4);
    put_le(&g->pairs, count, 8);
}

/* Describes a tensor at the given offset; dims end with 0 and are innermost first. */
static inline void describe(GgufFile *g, const char *name, const uint64_t *dims, uint32_t type,
                            uint64_t offset) {
    uint32_t rank = 0;
    while (rank < 4 && dims[rank])
        rank++;
    put_gguf_string(&g->tensors, name);
    put_le(&g->tensors, rank, 4);
    for (uint32_t i = 0; i < rank; i++)
        put_le(&g->tensors, dims[i], 8);
    put_le(&g->tensors, type, 4);
    put_le(&g->tensors, offset, 8);
    g->tensor_count++;
}

/* Describes it behind the others and adds its bytes (NULL: the pattern). */
static inline void put_tensor(GgufFile *g, const char *name, uint64_t columns, uint64_t rows,
                              uint64_t outer, uint32_t type, const void *bytes, size_t byte_count) {
    const uint64_t dims[4] = {columns, rows, outer, 0};
    describe(g, name, dims, type, g->data.len);
    if (bytes)
        buf_append(&g->data, bytes, byte_count);
    else
        put_pattern(&g->data, byte_count);
    while (g->data.len % g->alignment)
        buf_putc(&g->data, 0);
}

static inline void gguf_finish(GgufFile *g) {
    buf_reset(&g->file);
    buf_puts(&g->file, "GGUF");
    put_le(&g->file, g->version, 4);
    put_le(&g->file, g->tensor_count, 8);
    put_le(&g->file, g->pair_count, 8);
    buf_append(&g->file, g->pairs.data, g->pairs.len);
    buf_append(&g->file, g->tensors.data, g->tensors.len);
    while (g->file.len % g->alignment)
        buf_putc(&g->file, 0);
    buf_append(&g->file, g->data.data, g->data.len);
}

/* A folder that is removed with all that is in it. */
typedef struct Folder {
    char path[64];
    char joined[256];
} Folder;

static inline int folder_make(void **state) {
    Folder *f = calloc(1, sizeof *f);
    if (!f)
        return -1;
    strcpy(f->path, "/tmp/lg-formats-XXXXXX");
    *state = f;
    return mkdtemp(f->path) ? 0 : -1;
}

static inline int folder_remove(void **state) {
    Folder *f = *state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", f->path);
    free(f);
    return system(command);
}

static inline const char *in_folder(Folder *f, const char *name) {
    snprintf(f->joined, sizeof f->joined, "%s/%s", f->path, name);
    return f->joined;
}

static inline void write_file(Folder *f, const char *name, const void *data, size_t bytes) {
    assert_int_equal(file_write_atomic(in_folder(f, name), data, bytes, NULL), LG_OK);
}

static inline void write_text(Folder *f, const char *name, const char *text) {
    write_file(f, name, text, strlen(text));
}

static inline void write_safetensors(Folder *f, const char *name, const char *header,
                                     size_t data_bytes) {
    Buf b;
    buf_init(&b);
    make_safetensors(&b, header, data_bytes);
    write_file(f, name, b.data, b.len);
    buf_clear(&b);
}

/* A refusal must name what and say why: a message without these words is no help. */
static inline void assert_mentions(const LgError *err, const char *words) {
    if (!strstr(err->message, words))
        fail_msg("\"%s\" does not mention \"%s\"", err->message, words);
}

#endif
