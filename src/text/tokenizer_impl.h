/* Inside of a tokenizer: for the files that make one. */
#ifndef LG_TEXT_TOKENIZER_IMPL_H
#define LG_TEXT_TOKENIZER_IMPL_H

#include "text/added.h"
#include "text/bpe.h"
#include "text/pattern.h"
#include "text/tokenizer.h"

#define TOKENIZER_STEPS_MAX 16
#define TOKENIZER_FRAME_MAX 16

/* A step of the pre-tokenizer: a split, or (pattern NULL) a space in front of each piece that does
 * not begin with one. */
typedef Split PreStep;

/* What decoding makes of an id. */
typedef struct TokenBytes {
    const char *ptr; /* NULL: no such id */
    uint32_t len;
    bool special;
} TokenBytes;

struct Tokenizer {
    Bpe bpe;
    TokenBytes *bytes; /* by id, bpe.token_count of them */
    bool nfc;
    AddedSet added;        /* looked for in the text as it is */
    AddedSet added_normal; /* looked for after the normalizer */
    PreStep steps[TOKENIZER_STEPS_MAX];
    size_t step_count;
    int32_t prefix[TOKENIZER_FRAME_MAX],
        suffix[TOKENIZER_FRAME_MAX]; /* around every encoded text */
    size_t prefix_count, suffix_count;
};

Tokenizer *tokenizer_new(void); /* empty; NULL: allocation failed */
/* Takes pattern, also on failure. Errors: LG_LIMIT. */
LgStatus tokenizer_add_step(Tokenizer *t, Split step, LgError *err);
/* token.text must outlive t, as the vocabulary's copy does; where `normalized` is set it is
 * normalized here. */
LgStatus tokenizer_add_added(Tokenizer *t, AddedToken token, bool normalized, LgError *err);
LgStatus tokenizer_add_frame(Tokenizer *t, int64_t id, bool behind, LgError *err);
/* After the last token, merge, step and added token. plain: by id, or NULL: what decodes to its
 * text as it stands, not through the byte alphabet. */
LgStatus tokenizer_finish(Tokenizer *t, const bool *plain, LgError *err);

extern const char tokenizer_gpt2_pattern[];

#endif
