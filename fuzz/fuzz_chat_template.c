/* A template, and behind a zero byte the context as JSON (a fixed one where there is none). What is
 * rendered is UTF-8, and the same again the next time. */
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "chat/template.h"
#include "fuzz/fuzz.h"

static const char fixed[] = "{\"messages\":[{\"role\":\"system\",\"content\":\"Be "
                            "brief.\"},{\"role\":\"user\",\"content\":\" Hi\\tth\xc3\xa9re \"},"
                            "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"name\":"
                            "\"f\",\"arguments\":{\"a\":1,\"b\":[1.5,true]}}]}],"
                            "\"add_generation_prompt\":true,\"bos_token\":\"<s>\",\"tools\":null,"
                            "\"l\":[3,1,2],\"d\":{\"b\":1,\"a\":\"x\"},\"s\":\"a b\",\"n\":7}";

static json_t *read_context(LgStr text) {
    json_t *context = NULL;
    LgError err = {0};
    if (lg_json_parse(text, "context", &context, &err) != LG_OK)
        FUZZ_CHECK(lg_json_parse(LG_STR(fixed), "context", &context, &err) == LG_OK);
    return context;
}

static void check_render(const ChatTemplate *t, const json_t *context, bool again) {
    LgError err = {0};
    Buf first, second;
    buf_init(&first);
    buf_init(&second);
    LgStatus status = chat_template_render(t, context, &first, &err);
    if (status == LG_OK) {
        FUZZ_CHECK(utf8_valid(buf_view(&first)));
        if (again) {
            FUZZ_CHECK(chat_template_render(t, context, &second, &err) == LG_OK);
            FUZZ_CHECK(lg_str_eq(buf_view(&first), buf_view(&second)));
        }
    } else {
        FUZZ_CHECK(first.len == 0 && err.status == status && err.message[0]);
        FUZZ_CHECK(status == LG_BAD_INPUT || status == LG_LIMIT);
    }
    buf_clear(&first);
    buf_clear(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    LgStr all = {(const char *)data, size};
    const char *zero = size ? memchr(data, 0, size) : NULL;
    LgStr source = zero ? lg_str_sub(all, 0, (size_t)(zero - all.ptr)) : all;
    ChatTemplate *t = NULL;
    LgError err = {0};
    LgStatus status = chat_template_parse(source, &t, &err);
    if (status == LG_OK) {
        json_t *context =
            read_context(zero ? lg_str_sub(all, source.len + 1, size) : LG_STR(fixed));
        /* The time of day may change between two renderings. */
        check_render(t, context, !(source.len && memmem(source.ptr, source.len, "strftime", 8)));
        json_decref(context);
    } else {
        FUZZ_CHECK(!t && err.status == status && err.message[0]);
    }
    chat_template_destroy(t);
    return 0;
}
