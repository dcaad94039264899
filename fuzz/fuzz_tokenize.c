/* Texts, for tokenizers that have a token for each byte: what is encoded decodes to the same text.
 * The first byte chooses the tokenizer and whether special tokens are text. */
#include <string.h>

#include "base/utf8.h"
#include "fuzz/fuzz.h"
#include "text/bytelevel.h"
#include "text/tokenizer.h"

#define BYTES 256
#define TOKENS_MAX 300

/* Pre-tokenizers of byte-level BPE; then SentencePiece's way, without and with a space in front. */
static const char *const pres[] = {"gpt-2",  "smollm",       "llama-bpe",   "qwen2", "default",
                                   "tekken", "deepseek-llm", "deepseek-v3", "",      " "};
enum { PRES = sizeof pres / sizeof pres[0], PIECES = PRES - 2 };

#define MARK "\xe2\x96\x81"
static const char *const piece_texts[] = {MARK,
                                          "a",
                                          "b",
                                          "aa",
                                          "aaa",
                                          MARK "a",
                                          MARK MARK,
                                          "the",
                                          "th",
                                          "he",
                                          "t",
                                          "h",
                                          "e",
                                          MARK "t",
                                          MARK "th",
                                          MARK "the",
                                          "\xc3\xa9",
                                          "\n\n",
                                          "\xe4\xb8\xad\xe6\x96\x87",
                                          "\xf0\x9f\x98\x80",
                                          "0",
                                          "00",
                                          MARK "0",
                                          "."};
static const char *const merges[] = {
    "a a", "aa a",    "t h",         "th e", "\xc4\xa0 t", "\xc4\xa0 \xc4\xa0",
    "i n", "aaa aaa", "\xc4\xa0t h", "0 0"};
static const char *const specials[] = {"<s>", "<s", "</s>", "<|im_start|>", "\xc3\xa9", " x "};

typedef struct Texts {
    char bytes[TOKENS_MAX][16];
    LgStr tokens[TOKENS_MAX];
    int32_t types[TOKENS_MAX];
    size_t count;
} Texts;

static void add(Texts *t, LgStr text, int32_t type) {
    memcpy(t->bytes[t->count], text.ptr, text.len);
    t->tokens[t->count] = (LgStr){t->bytes[t->count], text.len};
    t->types[t->count++] = type;
}

static Tokenizer *make_pieces(bool space) {
    static Texts texts;
    float scores[TOKENS_MAX] = {0};
    Tokenizer *t = NULL;
    LgError err = {0};
    texts.count = 0;
    add(&texts, LG_STR("<unk>"), 2);
    for (unsigned i = 0; i < BYTES; i++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", i);
        add(&texts, lg_str(name), 6);
    }
    for (size_t i = 0; i < sizeof piece_texts / sizeof piece_texts[0]; i++) {
        scores[texts.count] = (float)(i % 7) - 10.0f;
        add(&texts, lg_str(piece_texts[i]), 1);
    }
    add(&texts, LG_STR("<s>"), 3);
    add(&texts, LG_STR("</s>"), 3);
    const TokenizerVocab v = {.model = LG_STR("llama"),
                              .pre = LG_STR("default"),
                              .tokens = texts.tokens,
                              .token_count = texts.count,
                              .types = texts.types,
                              .scores = scores,
                              .add_space_prefix = space};
    FUZZ_CHECK(tokenizer_from_vocab(&v, &t, &err) == LG_OK);
    return t;
}

static Tokenizer *make(const char *pre) {
    static Texts texts;
    LgStr merge_texts[sizeof merges / sizeof merges[0]];
    Tokenizer *t = NULL;
    LgError err = {0};
    Buf b;
    buf_init(&b);
    texts.count = 0;
    for (unsigned i = 0; i < BYTES; i++) {
        char byte = (char)i;
        buf_reset(&b);
        bytelevel_write((LgStr){&byte, 1}, &b);
        add(&texts, buf_view(&b), 1);
    }
    for (size_t i = 0; i < sizeof merges / sizeof merges[0]; i++) {
        merge_texts[i] = lg_str(merges[i]);
        buf_reset(&b);
        for (const char *c = merges[i]; *c; c++)
            if (*c != ' ')
                buf_putc(&b, *c);
        add(&texts, buf_view(&b), 1);
    }
    for (size_t i = 0; i < sizeof specials / sizeof specials[0]; i++)
        add(&texts, lg_str(specials[i]), i % 2 ? 4 : 3);
    const TokenizerVocab v = {.model = LG_STR("gpt2"),
                              .pre = lg_str(pre),
                              .tokens = texts.tokens,
                              .token_count = texts.count,
                              .types = texts.types,
                              .merges = merge_texts,
                              .merge_count = sizeof merges / sizeof merges[0]};
    FUZZ_CHECK(tokenizer_from_vocab(&v, &t, &err) == LG_OK);
    buf_clear(&b);
    return t;
}

static void check_stream(const Tokenizer *t, const TokenIds *ids, LgStr want) {
    LgError err = {0};
    Buf pieces;
    Detok d;
    buf_init(&pieces);
    detok_init(&d, t, false);
    for (size_t i = 0; i < ids->count; i++) {
        size_t before = pieces.len;
        FUZZ_CHECK(detok_push(&d, ids->ids[i], &pieces, &err) == LG_OK);
        FUZZ_CHECK(utf8_valid(lg_str_sub(buf_view(&pieces), before, pieces.len)));
    }
    detok_finish(&d, &pieces);
    FUZZ_CHECK(lg_str_eq(buf_view(&pieces), want));
    buf_clear(&pieces);
}

/* Pieces write a space and U+2581 alike, and put spaces in front of text behind special tokens. */
static void check_round_trip(size_t which, bool special_as_text, LgStr text, LgStr back) {
    if (which < PIECES) {
        FUZZ_CHECK(strcmp(pres[which], "qwen2") == 0 || lg_str_eq(text, back)); /* it normalizes */
        return;
    }
    size_t i = 0, k = 0;
    while (special_as_text && i < text.len) {
        bool mark = lg_str_starts(lg_str_sub(text, i, 3), MARK);
        FUZZ_CHECK(k < back.len && back.ptr[k++] == (mark ? ' ' : text.ptr[i]));
        i += mark ? 3 : 1;
    }
    FUZZ_CHECK(!special_as_text || k == back.len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static Tokenizer *tokenizers[PRES]; /* kept for the process */
    if (size == 0)
        return 0;
    size_t which = data[0] / 2 % PRES;
    if (!tokenizers[which])
        tokenizers[which] = which < PIECES ? make(pres[which]) : make_pieces(pres[which][0] == ' ');
    const Tokenizer *t = tokenizers[which];
    LgStr text = {(const char *)data + 1, size - 1};
    TokenIds ids = {0};
    LgError err = {0};
    Buf back;
    buf_init(&back);
    LgStatus status = tokenizer_encode(t, text, data[0] & 1, &ids, &err);
    FUZZ_CHECK((status == LG_OK) == utf8_valid(text));
    if (status != LG_OK) {
        FUZZ_CHECK(ids.count == 0 && err.offset < text.len &&
                   utf8_valid(lg_str_sub(text, 0, err.offset)));
        return 0;
    }
    FUZZ_CHECK(tokenizer_decode(t, ids.ids, ids.count, false, &back, &err) == LG_OK);
    check_round_trip(which, data[0] & 1, text, buf_view(&back));
    check_stream(t, &ids, buf_view(&back));
    buf_clear(&back);
    token_ids_clear(&ids);
    return 0;
}
