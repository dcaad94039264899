/* A vocabulary as a GGUF file may have it. The first byte: bit 0 SentencePiece's way, bit 1 a space
 * in front, bit 2 no types, bits 3 to 7 the pre-tokenizer. Then tokens: length, type, score, bytes;
 * a length of 255 begins the merges: length, bytes. What loads encodes a text and decodes it, all
 * at once and id by id alike. */
#include <string.h>

#include "base/utf8.h"
#include "fuzz/fuzz.h"
#include "text/tokenizer.h"

#define TOKENS_MAX 512
#define MERGES_FOLLOW 255

static const char sample[] = " Hello  w\xc3\xb6rld, it's 12\r\n <s></s> \xe2\x96\x81x "
                             "\xf0\x9f\x98\x80 aaab\x01 the then ";
static const char *const pres[] = {"default",      "gpt-2",       "llama-bpe", "qwen2",
                                   "deepseek-llm", "deepseek-v3", "tekken",    "nonsense"};

typedef struct Input {
    LgStr tokens[TOKENS_MAX], merges[TOKENS_MAX];
    int32_t types[TOKENS_MAX];
    float scores[TOKENS_MAX];
    size_t token_count, merge_count;
} Input;

static void read_input(LgStr in, Input *out) {
    bool merges = false;
    size_t i = 0;
    while (i < in.len && out->token_count < TOKENS_MAX && out->merge_count < TOKENS_MAX) {
        size_t len = (unsigned char)in.ptr[i++];
        if (!merges && len == MERGES_FOLLOW) {
            merges = true;
        } else if (merges) {
            out->merges[out->merge_count++] = lg_str_sub(in, i, len);
            i += len;
        } else if (in.len - i >= 2) {
            size_t n = out->token_count++;
            out->types[n] = (signed char)in.ptr[i];
            out->scores[n] = (float)(signed char)in.ptr[i + 1];
            out->tokens[n] = lg_str_sub(in, i + 2, len);
            i += 2 + len;
        }
    }
}

static void check_decode(const Tokenizer *t, const TokenIds *ids, bool skip) {
    LgError err = {0};
    Buf whole, pieces;
    Detok d;
    buf_init(&whole);
    buf_init(&pieces);
    detok_init(&d, t, skip);
    for (size_t i = 0; i < ids->count; i++) {
        size_t before = pieces.len;
        FUZZ_CHECK(detok_push(&d, ids->ids[i], &pieces, &err) == LG_OK);
        FUZZ_CHECK(utf8_valid(lg_str_sub(buf_view(&pieces), before, pieces.len)));
    }
    detok_finish(&d, &pieces);
    FUZZ_CHECK(tokenizer_decode(t, ids->ids, ids->count, skip, &whole, &err) == LG_OK);
    FUZZ_CHECK(lg_str_eq(buf_view(&whole), buf_view(&pieces)));
    buf_clear(&whole);
    buf_clear(&pieces);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static Input in;
    in.token_count = in.merge_count = 0;
    if (size == 0)
        return 0;
    read_input((LgStr){(const char *)data + 1, size - 1}, &in);
    const TokenizerVocab v = {.model = data[0] & 1 ? LG_STR("llama") : LG_STR("gpt2"),
                              .pre = lg_str(pres[data[0] >> 3 & 7]),
                              .architecture = data[0] & 64 ? LG_STR("phi3") : LG_STR("llama"),
                              .tokens = in.tokens,
                              .token_count = in.token_count,
                              .types = data[0] & 4 ? NULL : in.types,
                              .scores = in.scores,
                              .merges = in.merges,
                              .merge_count = in.merge_count,
                              .add_space_prefix = data[0] & 2,
                              .add_bos = data[0] & 128};
    Tokenizer *t = NULL;
    TokenIds ids = {0};
    LgError err = {0};
    LgStatus status = tokenizer_from_vocab(&v, &t, &err);
    FUZZ_CHECK(status == LG_OK || (!t && err.status == status && err.message[0]));
    if (status == LG_OK) {
        FUZZ_CHECK(tokenizer_encode(t, LG_STR(sample), false, &ids, &err) == LG_OK);
        for (size_t i = 0; i < ids.count; i++)
            FUZZ_CHECK(ids.ids[i] >= 0 && (size_t)ids.ids[i] < in.token_count);
        check_decode(t, &ids, false);
        for (size_t i = 0; i < in.token_count; i++) /* and every token once */
            FUZZ_CHECK(token_ids_push(&ids, (int32_t)i));
        check_decode(t, &ids, true);
    }
    token_ids_clear(&ids);
    tokenizer_destroy(t);
    return 0;
}
