/* Ligature's public C interface: the only header that programs outside the project include.
 *
 * Conventions.  A call returns an LgStatus and writes its results through out-pointers, which are set
 * on success only.  An LgError, where one is passed, is filled on failure and untouched on success.
 * Names that end in create or open return objects that the caller owns; destroy and close take NULL.
 * Strings are UTF-8.  Token ids are int32_t. */
#ifndef LIGATURE_H
#define LIGATURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define LG_API __attribute__((visibility("default")))
#define LG_MUST_CHECK __attribute__((warn_unused_result))
#else
#define LG_API
#define LG_MUST_CHECK
#endif

/* Code, HTTP status, text. */
/* clang-format off */
#define LG_STATUS_MAP(X)                                              \
    X(OK,          200, "ok")                                         \
    X(BAD_INPUT,   400, "malformed or unsupported input")             \
    X(NOT_FOUND,   404, "no such file, model, adapter or name")       \
    X(CONFLICT,    409, "the name is in use")                         \
    X(LIMIT,       413, "a documented limit was exceeded")            \
    X(BUSY,        429, "no room now, retry later")                   \
    X(INTERNAL,    500, "a bug in Ligature, or in the compiler used") \
    X(DEVICE,      500, "the device reported an error")               \
    X(IO,          500, "reading or writing a file failed")           \
    X(NO_MEMORY,   503, "allocation failed")                          \
    X(CANCELLED,   499, "the caller cancelled")
/* clang-format on */

typedef enum LgStatus {
#define LG_STATUS_ENUM(name, http, text) LG_##name,
    LG_STATUS_MAP(LG_STATUS_ENUM)
#undef LG_STATUS_ENUM
} LgStatus;

/* message stands alone: which object, what was found, what would be accepted.
 * offset: byte offset (or line, where the message says so) in the input; 0 where there is none. */
typedef struct LgError {
    LgStatus status;
    uint64_t offset;
    char message[1000];
} LgError;

/* "ok", "malformed or unsupported input", …; never NULL. */
LG_API const char *lg_status_text(LgStatus status);
LG_API int lg_status_http(LgStatus status);

#ifdef __cplusplus
}
#endif
#endif
