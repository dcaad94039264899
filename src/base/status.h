/* Errors of users are statuses with a message; errors of ours are asserts. */
#ifndef LG_BASE_STATUS_H
#define LG_BASE_STATUS_H

#include "ligature.h"

/* Fills *err (which may be NULL) and returns status, for `return lg_fail(...)`. */
LgStatus lg_fail(LgError *err, LgStatus status, uint64_t offset, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Puts "context: " in front of the message of *err (which may be NULL); the status stays. Returns
 * err's status, or `status` where err is NULL.  For the one level that knows the name of the file
 * or adapter. */
LgStatus lg_fail_context(LgError *err, LgStatus status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The usual message of a failed allocation. */
LgStatus lg_fail_memory(LgError *err);

#ifdef __clang_analyzer__ /* which does not see into status.c: a failure is never LG_OK */
#define lg_fail(err, status, ...) ((void)lg_fail(err, status, __VA_ARGS__), status)
#define lg_fail_context(err, status, ...) ((void)lg_fail_context(err, status, __VA_ARGS__), status)
#define lg_fail_memory(err) ((void)lg_fail_memory(err), LG_NO_MEMORY)
#endif

#define LG_TRY(call)                                                                               \
    do {                                                                                           \
        LgStatus lg_try_status_ = (call);                                                          \
        if (lg_try_status_ != LG_OK)                                                               \
            return lg_try_status_;                                                                 \
    } while (0)

#endif
