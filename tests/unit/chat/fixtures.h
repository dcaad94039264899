/* Templates and contexts for tests. */
#ifndef LG_TESTS_CHAT_FIXTURES_H
#define LG_TESTS_CHAT_FIXTURES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "chat/template.h"

static inline json_t *fixture_json(const char *path) {
    Buf text;
    LgError err = {0};
    json_t *value = NULL;
    buf_init(&text);
    if (file_read(path, (size_t)64 << 20, &text, &err) != LG_OK ||
        lg_json_parse(buf_view(&text), path, &value, &err) != LG_OK)
        fail_msg("%s", err.message);
    buf_clear(&text);
    return value;
}

static inline json_t *context_of(const char *json) {
    LgError err = {0};
    json_t *value = NULL;
    if (lg_json_parse(lg_str(json), "context", &value, &err) != LG_OK)
        fail_msg("%s", err.message);
    return value;
}

/* Parses and renders; *err is filled on failure. */
static inline LgStatus render(LgStr source, const json_t *context, Buf *out, LgError *err) {
    ChatTemplate *t = NULL;
    LgStatus status = chat_template_parse(source, &t, err);
    if (status == LG_OK)
        status = chat_template_render(t, context, out, err);
    chat_template_destroy(t);
    return status;
}

static inline void check_render(const char *source, const char *context, const char *want) {
    json_t *c = context_of(context);
    LgError err = {0};
    Buf out;
    buf_init(&out);
    if (render(lg_str(source), c, &out, &err) != LG_OK)
        fail_msg("%s: %s", source, err.message);
    assert_string_equal(out.data, want);
    buf_clear(&out);
    json_decref(c);
}

/* status, the line that err->offset holds, and a part of the message. */
static inline void check_refusal(const char *source, const char *context, LgStatus status,
                                 uint64_t line, const char *part) {
    json_t *c = context_of(context);
    LgError err = {0};
    Buf out;
    buf_init(&out);
    buf_puts(&out, "kept");
    LgStatus got = render(lg_str(source), c, &out, &err);
    if (got != status || err.offset != line || !strstr(err.message, part))
        fail_msg("%s: status %d, line %llu, \"%s\"; want %d, %llu, \"%s\"", source, got,
                 (unsigned long long)err.offset, err.message, status, (unsigned long long)line,
                 part);
    assert_string_equal(out.data, "kept");
    buf_clear(&out);
    json_decref(c);
}

#endif
