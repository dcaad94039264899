/* The BPE model: vocabulary, what merges, and the merging of one word. Words are bytes that the
 * vocabulary writes in the byte alphabet, or (chars) text as it is, where what the vocabulary lacks
 * may fall back to tokens for single bytes. Knows nothing of special tokens or of splitting. */
#ifndef LG_TEXT_BPE_H
#define LG_TEXT_BPE_H

#include "base/arena.h"
#include "base/map.h"
#include "base/status.h"
#include "text/tokenizer.h"

#define BPE_IDS_MAX (1u << 22) /* ids are below this */
#define BPE_ADDED                                                                                  \
    (1ull << 32) /* beside an id: not of the model, so that no merge or word gives it */
#define BPE_TOKEN_BYTES_MAX 65536 /* of one token's text */
#define BPE_PIECE_BYTES_MAX 1024  /* of one that has a score: bounds the work at each place */
#define BPE_NO_RANK UINT32_MAX    /* no merge gives this token */

/* A pair of neighbours that merges: an entry of the hash table. */
typedef struct BpeMerge {
    int32_t left, right; /* left -1: free */
    uint32_t rank;
    int32_t merged;
} BpeMerge;

typedef struct Bpe {
    Arena arena;        /* the texts */
    LgStr *tokens;      /* by id, as stored; ptr NULL: no token has this id */
    size_t token_count; /* highest id + 1 */
    size_t token_cap;
    Map ids; /* text as stored -> id (the first of several of one text), and BPE_ADDED */
    BpeMerge *merges;
    size_t merge_cap; /* a power of two */
    uint32_t *ranks;  /* by id, or NULL: any two neighbours that make a token merge, the lowest rank
                         first, and `merges` is not asked (SentencePiece's way) */
    size_t piece_bytes_max; /* of a token that has a rank */
    int32_t byte_ids[256];  /* -1: the byte is no token */
    int32_t unk_id;         /* -1: what is no token is dropped */
    bool fuse_unk;
    bool chars;         /* words are text as it is */
    bool byte_fallback; /* chars: a character that is no token becomes its bytes' tokens, where each
                           has one */
    bool ignore_merges; /* a word that is a token is that token, whatever the merges say */
} Bpe;

void bpe_init(Bpe *b);
void bpe_clear(Bpe *b);
/* added: not of the model. Errors: LG_LIMIT; LG_BAD_INPUT where the id is taken. */
LgStatus bpe_add_token(Bpe *b, LgStr text, int64_t id, bool added, LgError *err);
LgStatus bpe_reserve_merges(Bpe *b, size_t count,
                            LgError *err); /* before the first bpe_add_merge */
/* A pair that occurs again gets the later rank. */
LgStatus bpe_add_merge(Bpe *b, LgStr left, LgStr right, uint32_t rank, LgError *err);
/* In place of merges: scores by id (count: token_count), the highest merges first; equal ones from
 * left to right. Tokens that were added have no part. After the last token. */
LgStatus bpe_set_scores(Bpe *b, const float *scores, LgError *err);
/* After the last token and merge. */
void bpe_finish(Bpe *b);
/* The byte that a token "<0x0A>" stands for; -1: none. */
int bpe_byte_token(LgStr text);
int32_t bpe_id(const Bpe *b, LgStr text); /* -1: none */

/* Memory that words of one text share. Zero-initialised; not shared by threads. */
typedef struct BpeSymbol BpeSymbol;
typedef struct BpeCandidate BpeCandidate;
typedef struct BpeWork {
    LgStr word;
    BpeSymbol *symbols;
    size_t symbol_count, symbol_cap;
    BpeCandidate *heap;
    size_t heap_count, heap_cap;
    Buf text;
} BpeWork;
void bpe_work_init(BpeWork *w);
void bpe_work_clear(BpeWork *w);

/* Appends the ids of one word (fewer than 2^31 bytes; where chars is set, UTF-8). */
LgStatus bpe_encode_word(const Bpe *b, BpeWork *w, LgStr word, TokenIds *out, LgError *err);

#endif
