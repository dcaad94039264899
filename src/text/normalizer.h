/* What happens to a text before it is cut into words: steps, one after the other. */
#ifndef LG_TEXT_NORMALIZER_H
#define LG_TEXT_NORMALIZER_H

#include "base/status.h"
#include "base/str.h"

#define NORMALIZER_STEPS_MAX 16
#define NORMALIZER_AFFIX_MAX 256                 /* bytes of what a step looks for or puts in */
#define NORMALIZER_TEXT_MAX ((size_t)1024 << 20) /* of what a step makes */

typedef enum NormalKind {
    NORMAL_NFC,
    NORMAL_PREPEND, /* `to` in front, unless the text is empty */
    NORMAL_REPLACE  /* every `from` by `to` */
} NormalKind;

typedef struct NormalStep {
    NormalKind kind;
    LgStr from, to; /* borrowed */
} NormalStep;

typedef struct Normalizer {
    NormalStep steps[NORMALIZER_STEPS_MAX];
    size_t count;
} Normalizer;

/* Errors: LG_LIMIT for too many steps and too long texts in them; LG_BAD_INPUT where nothing is to
 * be replaced. */
LgStatus normalizer_add(Normalizer *n, NormalStep step, LgError *err);
/* *out views text, or one of the two rooms. text is valid UTF-8. */
LgStatus normalizer_apply(const Normalizer *n, LgStr text, Buf rooms[2], LgStr *out, LgError *err);

/* Appends text with every `from` (not empty) replaced. */
void text_replace(LgStr text, LgStr from, LgStr to, Buf *out);

#endif
