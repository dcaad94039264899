/* Tokens that are found in the text before anything else: special tokens and others that a
 * vocabulary adds. */
#ifndef LG_TEXT_ADDED_H
#define LG_TEXT_ADDED_H

#include "base/status.h"
#include "base/str.h"

#define ADDED_TOKENS_MAX 65536
#define ADDED_BYTES_MAX 4096 /* of one token's text: bounds the work at each position */

typedef struct AddedToken {
    LgStr text; /* borrowed */
    int32_t id;
    bool special;
    bool single_word;    /* counts only between characters that are no word characters */
    bool lstrip, rstrip; /* takes the white space on that side along */
} AddedToken;

/* Sorted by text, so that the tokens with one beginning are a range. */
typedef struct AddedSet {
    AddedToken *items;
    size_t count, cap;
    bool first[256]; /* some token begins with this byte */
} AddedSet;

void added_set_clear(AddedSet *s);
LgStatus added_set_add(AddedSet *s, AddedToken token, LgError *err);
/* After the last add. Errors: LG_BAD_INPUT where two tokens have one text. */
LgStatus added_set_finish(AddedSet *s, LgError *err);

/* A part of a text: a token's text, or text between tokens. */
typedef struct AddedPart {
    LgStr text;
    int32_t id; /* -1: text */
} AddedPart;

typedef struct AddedScan {
    const AddedSet *set;
    LgStr text;
    bool special_as_text;
    size_t done, search; /* what is handed out; where the next match is looked for */
    bool holds;          /* a token behind the text that was handed out last */
    AddedPart held;
} AddedScan;
void added_scan_init(AddedScan *scan, const AddedSet *set, LgStr text, bool special_as_text);
bool added_scan_next(
    AddedScan *scan,
    AddedPart *out); /* false: the text is at its end; text parts are never empty */

#endif
