/* Inside of a tokenizer: for the files that make one. */
#ifndef LG_TEXT_TOKENIZER_IMPL_H
#define LG_TEXT_TOKENIZER_IMPL_H

#include "text/added.h"
#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/pattern.h"
#include "text/tokenizer.h"

#define TOKENIZER_STEPS_MAX 16
#define TOKENIZER_FRAME_MAX 16
#define DECODER_REPLACES_MAX 8

/* A step of the pre-tokenizer. */
typedef enum PreKind {
    PRE_SPLIT,
    PRE_REPLACE,     /* every `from` by `to`, in all pieces */
    PRE_PREFIX,      /* `to` in front of each piece that does not begin with it */
    PRE_FIRST_PREFIX /* the same, only of the piece that the text begins with */
} PreKind;

typedef struct PreStep {
    PreKind kind;
    Split split;
    LgStr from, to; /* of the vocabulary's arena, or constant */
} PreStep;

/* From the vocabulary's texts to the text of ids. */
typedef struct Decoder {
    bool byte_level; /* texts are written in the byte alphabet */
    bool bytes;      /* "<0x0A>" stands for a byte */
    struct {
        LgStr from, to;
    } replaces[DECODER_REPLACES_MAX]; /* in each token, one after the other */
    size_t replace_count;
    LgStr
        strip; /* a character that is taken off in front of the whole, strip_count times at most */
    uint32_t strip_count;
    LgStr first_without; /* what the first token loses wherever it stands (len 0: nothing) */
} Decoder;

/* What decoding makes of an id. */
typedef struct TokenBytes {
    const char *ptr; /* NULL: no such id */
    uint32_t len;
    bool special;
    bool byte; /* one byte of text, which need not be UTF-8 by itself */
} TokenBytes;

struct Tokenizer {
    Bpe bpe;
    TokenBytes *bytes; /* by id, bpe.token_count of them */
    Normalizer normalizer;
    Decoder decoder;
    AddedSet added;        /* looked for in the text as it is */
    AddedSet added_normal; /* looked for after the normalizer */
    PreStep steps[TOKENIZER_STEPS_MAX];
    size_t step_count;
    int32_t prefix[TOKENIZER_FRAME_MAX],
        suffix[TOKENIZER_FRAME_MAX]; /* around every encoded text */
    size_t prefix_count, suffix_count;
};

Tokenizer *tokenizer_new(void); /* empty; NULL: allocation failed */
/* Takes the pattern, also on failure. Errors: LG_LIMIT. */
LgStatus tokenizer_add_step(Tokenizer *t, PreStep step, LgError *err);
LgStatus tokenizer_add_pattern(Tokenizer *t, LgStr regex, SplitBehavior behavior, LgError *err);
/* A copy that lives as long as t. */
LgStatus tokenizer_keep(Tokenizer *t, LgStr text, LgStr *out, LgError *err);
/* Behind the last step of the normalizer. token.text must outlive t, as the vocabulary's copy does;
 * where `normalized` is set it is normalized here. */
LgStatus tokenizer_add_added(Tokenizer *t, AddedToken token, bool normalized, LgError *err);
LgStatus tokenizer_add_frame(Tokenizer *t, int64_t id, bool behind, LgError *err);
/* After the last token, merge, step and added token. plain: by id, or NULL: what decodes to its
 * text as it stands, whatever the decoder does with others. */
LgStatus tokenizer_finish(Tokenizer *t, const bool *plain, LgError *err);

/* The pre-tokenizer of a name. Errors: LG_BAD_INPUT with the names that are served. */
LgStatus tokenizer_set_pre(Tokenizer *t, LgStr pre, LgError *err);

extern const char tokenizer_gpt2_pattern[];
#define TOKENIZER_SPACE_MARK "\xe2\x96\x81" /* U+2581, which stands for a space */

#endif
