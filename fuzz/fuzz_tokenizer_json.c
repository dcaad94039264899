/* tokenizer.json, and behind a zero byte tokenizer_config.json, which also chooses chat templates;
 * what loads encodes and decodes a text, all at once and id by id alike. */
#include <string.h>

#include "base/utf8.h"
#include "chat/set.h"
#include "fuzz/fuzz.h"
#include "text/tokenizer.h"

static const char sample[] = "Hello  w\xc3\xb6rld, it's 12 345!\r\n\n  <s> </s> "
                             "<|im_start|>\te\xcc\x81 \xf0\x9f\x98\x80 aaab\x01 x";

static void check_tokenizer(const Tokenizer *t, bool special_as_text) {
    TokenIds ids = {0};
    LgError err = {0};
    Buf whole, pieces;
    Detok d;
    buf_init(&whole);
    buf_init(&pieces);
    LgStatus status = tokenizer_encode(t, LG_STR(sample), special_as_text, &ids, &err);
    FUZZ_CHECK(status == LG_OK || status == LG_LIMIT);
    detok_init(&d, t, special_as_text);
    for (size_t i = 0; i < ids.count; i++) {
        FUZZ_CHECK(ids.ids[i] >= 0 && (size_t)ids.ids[i] < tokenizer_vocab_count(t));
        FUZZ_CHECK(detok_push(&d, ids.ids[i], &pieces, &err) == LG_OK);
        FUZZ_CHECK(utf8_valid(buf_view(&pieces)));
    }
    detok_finish(&d, &pieces);
    FUZZ_CHECK(tokenizer_decode(t, ids.ids, ids.count, special_as_text, &whole, &err) == LG_OK);
    FUZZ_CHECK(lg_str_eq(buf_view(&whole), buf_view(&pieces)));
    buf_clear(&whole);
    buf_clear(&pieces);
    token_ids_clear(&ids);
}

static void check_templates(LgStr config) {
    const ChatFiles files = {.config = config};
    ChatSet set = {0};
    LgError err = {0};
    LgStatus status = chat_set_from_files(&files, &set, &err);
    FUZZ_CHECK(status == LG_OK || (!set.plain && !set.tools && err.status == status));
    chat_set_clear(&set);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Tokenizer *t = NULL;
    LgError err = {0};
    LgStr all = {(const char *)data, size};
    const char *zero = size ? memchr(data, 0, size) : NULL;
    LgStr json = zero ? lg_str_sub(all, 0, (size_t)(zero - all.ptr)) : all;
    LgStr config = zero ? lg_str_sub(all, json.len + 1, size) : LG_STR("");
    LgStatus status = tokenizer_from_files(json, config, &t, &err);
    if (status == LG_OK) {
        check_tokenizer(t, false);
        check_tokenizer(t, true);
    } else {
        FUZZ_CHECK(!t && err.status == status && err.message[0]);
    }
    tokenizer_destroy(t);
    if (config.len)
        check_templates(config);
    return 0;
}
