/* Pre-tokenizers by the names that GGUF files give them. */
#include "text/tokenizer_impl.h"

#define PRE_PATTERNS_MAX 6

#define GPT2 tokenizer_gpt2_pattern
#define NUMBER "\\p{N}"
#define NUMBERS "\\p{N}+"
#define THREE_NUMBERS "\\p{N}{1,3}"

/* The families of patterns. What stands first are English contractions; the parts behind `end`
 * differ in which line ends and slashes stay with punctuation. */
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LLAMA3(digits)                                                                             \
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| "                                     \
                 "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES
/* Words end where a lower-case letter is followed by an upper-case one. */
#define HIGH "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOW "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(ending, digits)                                                                      \
    "[^\\r\\n\\p{L}\\p{N}]?" HIGH "*" LOW "+" ending "|[^\\r\\n\\p{L}\\p{N}]?" HIGH "+" LOW        \
    "*" ending "|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES
#define HAN_AND_HANGUL "[\\x{4e00}-\\x{9fa5}\\x{0800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
#define HAN_AND_KANA "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+"
#define ASCII_PUNCTUATION "[!-/:-@\\[-`{-~]"

/* nfc, ignore_merges: as in the tokenizer.json of the models that use the name. */
typedef struct PreRow {
    const char *name;
    bool ignore_merges, nfc;
    const char *patterns[PRE_PATTERNS_MAX]; /* one after the other, matches isolated */
} PreRow;
static const PreRow pre_rows[] = {
    {"default", false, false, {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, NUMBERS, "[0-9][0-9][0-9]"}},
    {"gpt-2", false, false, {GPT2}},
    {"phi-2", false, false, {GPT2}},
    {"exaone4", false, false, {GPT2}},
    {"olmo", false, true, {GPT2}},
    {"mpt", false, true, {GPT2}},
    {"smollm", false, false, {NUMBER, GPT2}},
    {"starcoder", false, false, {NUMBER, GPT2}},
    {"refact", false, false, {NUMBER, GPT2}},
    {"command-r", false, false, {NUMBER, GPT2}},
    {"codeshell", false, false, {NUMBER, GPT2}},
    {"exaone", false, false, {NUMBER, GPT2}},
    {"minerva-7b", false, false, {NUMBER, GPT2}},
    {"llama-bpe", true, false, {LLAMA3(THREE_NUMBERS)}},
    {"llama3", true, false, {LLAMA3(THREE_NUMBERS)}},
    {"llama-v3", true, false, {LLAMA3(THREE_NUMBERS)}},
    {"falcon3", true, false, {LLAMA3(THREE_NUMBERS)}},
    {"glm4", true, false, {LLAMA3(THREE_NUMBERS)}},
    {"chatglm-bpe", false, false, {LLAMA3(THREE_NUMBERS)}},
    {"dbrx", false, false, {LLAMA3(THREE_NUMBERS)}},
    {"smaug-bpe", false, false, {LLAMA3(THREE_NUMBERS)}},
    {"qwen2", false, true, {LLAMA3(NUMBER)}},
    {"deepseek-r1-qwen", false, true, {LLAMA3(NUMBER)}},
    {"megrez", false, true, {LLAMA3(NUMBER)}},
    {"tekken", true, false, {CASED("", NUMBER)}},
    {"gpt-4o", false, false, {CASED(CONTRACTIONS "?", THREE_NUMBERS)}},
    {"llama4", false, false, {CASED(CONTRACTIONS "?", THREE_NUMBERS)}},
    {"deepseek-llm",
     false,
     false,
     {"[\\r\\n]", "\\s?[\\p{Lu}\\p{Ll}\\p{Lt}]+",
      "\\s?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+",
      "\\s+$", HAN_AND_HANGUL, NUMBERS}},
    {"deepseek-coder",
     false,
     false,
     {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", HAN_AND_HANGUL, NUMBER}},
    {"deepseek-v3",
     false,
     false,
     {THREE_NUMBERS, HAN_AND_KANA,
      ASCII_PUNCTUATION "[A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
                        "?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES}},
};

#define ROWS (sizeof pre_rows / sizeof pre_rows[0])

static LgStatus fail_pre(LgStr pre, LgError *err) {
    Buf name, known;
    buf_init(&name);
    buf_init(&known);
    buf_printable(&name, pre, 60);
    for (size_t i = 0; i < ROWS; i++)
        buf_printf(&known, "%s%s", i ? ", " : "", pre_rows[i].name);
    LgStatus status =
        lg_fail(err, LG_BAD_INPUT, 0, "tokenizer.ggml.pre: \"%s\" is not served; served: %s",
                name.data, known.data);
    buf_clear(&name);
    buf_clear(&known);
    return status;
}

LgStatus tokenizer_set_pre(Tokenizer *t, LgStr pre, LgError *err) {
    const PreRow *row = NULL;
    for (size_t i = 0; i < ROWS; i++)
        if (lg_str_eq_c(pre, pre_rows[i].name) || (pre.len == 0 && i == 0))
            row = &pre_rows[i];
    if (!row)
        return fail_pre(pre, err);
    t->bpe.ignore_merges = row->ignore_merges;
    if (row->nfc)
        LG_TRY(normalizer_add(&t->normalizer, (NormalStep){.kind = NORMAL_NFC}, err));
    for (size_t i = 0; i < PRE_PATTERNS_MAX && row->patterns[i]; i++)
        LG_TRY(tokenizer_add_pattern(t, lg_str(row->patterns[i]), SPLIT_ISOLATED, err));
    return LG_OK;
}
