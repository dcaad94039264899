/* From Oniguruma's regular expressions to PCRE2's, for the part that both have. */
#ifndef LG_TEXT_PATTERN_SYNTAX_H
#define LG_TEXT_PATTERN_SYNTAX_H

#include "base/status.h"
#include "base/str.h"

/* Appends the same expression in PCRE2's syntax (with UTF, UCP and MULTILINE on).
 * Errors: LG_BAD_INPUT with the offset of what has no same meaning there. */
LgStatus pattern_translate(LgStr onig, Buf *pcre, LgError *err);

#endif
