/* Byte-level and SentencePiece-style BPE: text to ids and back. A tokenizer is immutable after it
 * is made and may be used by many threads. */
#ifndef LG_TEXT_TOKENIZER_H
#define LG_TEXT_TOKENIZER_H

#include "base/status.h"
#include "base/str.h"

typedef struct Tokenizer Tokenizer;

/* From the bytes of Hugging Face's tokenizer.json. */
LgStatus tokenizer_from_json(LgStr json, Tokenizer **out, LgError *err);
/* The same with tokenizer_config.json (empty: there is none): its added_tokens_decoder and the
 * tokens that it names, and, where tokenizer.json does not say what goes around a text, its
 * add_bos_token and add_eos_token. add_prefix_space and legacy are not asked: they say how
 * tokenizer.json's steps were made, and those stand there. */
LgStatus tokenizer_from_files(LgStr json, LgStr config, Tokenizer **out, LgError *err);

/* The vocabulary as GGUF's metadata has it (this level does not know GGUF). Copied. */
typedef struct TokenizerVocab {
    LgStr model; /* tokenizer.ggml.model: "gpt2" and "llama" are served */
    LgStr pre;   /* tokenizer.ggml.pre: names the pre-tokenizer of "gpt2" */
    LgStr architecture;
    const LgStr *tokens;
    size_t token_count;
    /* GGUF's token types: 1 normal, 3 control, 4 user-defined, …; NULL: all normal */
    const int32_t *types;
    const float *scores; /* "llama" needs them */
    const LgStr *merges; /* "left right"; of "gpt2" */
    size_t merge_count;
    bool add_space_prefix; /* of "llama" */
    /* tokenizer.ggml.add_bos_token, add_eos_token: what tokenizer_encode puts around a text */
    bool add_bos, add_eos;
    int32_t bos_id, eos_id;
} TokenizerVocab;
LgStatus tokenizer_from_vocab(const TokenizerVocab *vocab, Tokenizer **out, LgError *err);

void tokenizer_destroy(Tokenizer *t);

/* The highest id + 1; some ids below it may be no token. */
size_t tokenizer_vocab_count(const Tokenizer *t);
int32_t tokenizer_id(const Tokenizer *t, LgStr token); /* by its text as stored; -1: none */
bool tokenizer_is_special(const Tokenizer *t, int32_t id);

typedef struct TokenIds {
    int32_t *ids;
    size_t count, cap;
} TokenIds;
void token_ids_clear(TokenIds *ids);
bool token_ids_push(TokenIds *ids, int32_t id); /* false: allocation failed */

#define TOKENIZER_TEXT_MAX ((size_t)256 << 20) /* bytes of one text */

/* Appends; nothing is appended on failure. special_as_text: the texts of special tokens are
 * ordinary text. The tokens that the model wants around every text (a beginning-of-text token, say)
 * are included. Errors: LG_BAD_INPUT with the offset where text is no UTF-8; LG_LIMIT. */
LgStatus tokenizer_encode(const Tokenizer *t, LgStr text, bool special_as_text, TokenIds *out,
                          LgError *err);
/* The same without tokens around the text: for text that has them written out, as chat templates
 * do, and for parts of texts. */
LgStatus tokenizer_encode_bare(const Tokenizer *t, LgStr text, bool special_as_text, TokenIds *out,
                               LgError *err);

/* Appends the text of ids; bytes that do not complete a code point become U+FFFD, as in Hugging
 * Face's decode. Ids that are no token (a model's padding rows) have no text. Errors: LG_BAD_INPUT
 * for a negative id. */
LgStatus tokenizer_decode(const Tokenizer *t, const int32_t *ids, size_t count, bool skip_special,
                          Buf *out, LgError *err);

/* Streaming: pushes one id and appends what is certain, never a part of a code point. finish
 * appends what is left. The concatenation of all pieces equals tokenizer_decode of all ids. */
typedef struct Detok {
    const Tokenizer *tokenizer;
    bool skip_special;
    bool started;        /* an id with text was there */
    uint32_t strip_left; /* characters that may still be taken off in front of the whole */
    char pending[8];     /* the beginning of a code point */
    size_t pending_len;
} Detok;
void detok_init(Detok *d, const Tokenizer *t, bool skip_special);
LgStatus detok_push(Detok *d, int32_t id, Buf *out, LgError *err);
void detok_finish(Detok *d, Buf *out);

#endif
