/* Pre-tokenizer patterns and what to do with their matches: texts fall into pieces, which are BPE's
 * words. */
#ifndef LG_TEXT_PATTERN_H
#define LG_TEXT_PATTERN_H

#include "base/status.h"
#include "base/str.h"

#define PATTERN_BYTES_MAX 16384

typedef enum SplitBehavior {
    SPLIT_ISOLATED,             /* a match is a piece, and so is what lies between matches */
    SPLIT_REMOVED,              /* matches are dropped */
    SPLIT_MERGED_WITH_PREVIOUS, /* a match goes to the piece in front of it */
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS /* matches that touch are one piece */
} SplitBehavior;
bool split_behavior_parse(LgStr name, SplitBehavior *out); /* "Isolated", … */

typedef struct Pattern Pattern;
/* A regular expression in Oniguruma's (Ruby's) syntax, which tokenizer.json uses; what PCRE2 would
 * read otherwise is refused. */
LgStatus pattern_compile(LgStr regex, Pattern **out, LgError *err);
LgStatus pattern_literal(LgStr text, Pattern **out, LgError *err);
void pattern_destroy(Pattern *p);

typedef struct Piece {
    size_t start, len;
} Piece;
typedef struct Pieces {
    Piece *items;
    size_t count, cap;
} Pieces;
void pieces_clear(Pieces *p);
bool pieces_push(Pieces *p, Piece piece);

/* What matching needs, for one thread. */
typedef struct PatternWork PatternWork;
PatternWork *pattern_work_create(void); /* NULL: allocation failed */
void pattern_work_destroy(PatternWork *w);

typedef struct Split {
    Pattern *pattern;
    SplitBehavior behavior;
    bool invert; /* matches and gaps change places */
} Split;
/* Appends the pieces of one piece of text (some may be empty). text is valid UTF-8.
 * Errors: LG_LIMIT where the pattern takes too many steps. */
LgStatus split_piece(const Split *s, PatternWork *w, LgStr text, Piece piece, Pieces *out,
                     LgError *err);

#endif
