/* The tables of statuses and the one way to fill an LgError. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

#ifdef __clang_analyzer__
#undef lg_fail
#undef lg_fail_context
#undef lg_fail_memory
#endif

typedef struct StatusRow {
    int http;
    const char *text;
} StatusRow;

static const StatusRow status_rows[] = {
#define STATUS_ROW(name, http, text) [LG_##name] = {http, text},
    LG_STATUS_MAP(STATUS_ROW)
#undef STATUS_ROW
};

static const StatusRow *status_row(LgStatus status) {
    size_t index = (size_t)status;
    size_t count = sizeof status_rows / sizeof status_rows[0];
    return &status_rows[index < count ? index : (size_t)LG_INTERNAL];
}

const char *lg_status_text(LgStatus status) {
    return status_row(status)->text;
}

int lg_status_http(LgStatus status) {
    return status_row(status)->http;
}

/* vsnprintf may have cut a code point in two. */
static void message_trim(char *message) {
    size_t len = strlen(message);
    size_t tail = utf8_incomplete_tail((LgStr){message, len});
    message[len - tail] = 0;
}

LgStatus lg_fail(LgError *err, LgStatus status, uint64_t offset, const char *format, ...) {
    if (!err)
        return status;
    va_list args;
    va_start(args, format);
    char message[sizeof err->message]; /* an argument may be err->message itself */
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    message_trim(message);
    memcpy(err->message, message, sizeof message);
    err->status = status;
    err->offset = offset;
    return status;
}

LgStatus lg_fail_context(LgError *err, LgStatus status, const char *format, ...) {
    if (!err)
        return status;
    char message[sizeof err->message];
    va_list args;
    va_start(args, format);
    int written = vsnprintf(message, sizeof message, format, args);
    va_end(args);
    size_t used = written < 0 ? 0 : (size_t)written;
    if (used + 2 < sizeof message) {
        memcpy(message + used, ": ", 2);
        used += 2;
        size_t rest = strlen(err->message);
        if (rest > sizeof message - 1 - used)
            rest = sizeof message - 1 - used;
        memcpy(message + used, err->message, rest);
        message[used + rest] = 0;
    }
    message_trim(message);
    memcpy(err->message, message, sizeof message);
    return err->status;
}

LgStatus lg_fail_memory(LgError *err) {
    return lg_fail(err, LG_NO_MEMORY, 0, "out of memory");
}
