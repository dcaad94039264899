/* Unicode normalization form C. */
#ifndef LG_TEXT_NORMALIZE_H
#define LG_TEXT_NORMALIZE_H

#include "base/status.h"
#include "base/str.h"

/* *out views text itself where it is in the form already, else the new text in buf (which is reset
 * first). text is valid UTF-8. */
LgStatus normalize_nfc(LgStr text, Buf *buf, LgStr *out, LgError *err);

bool unicode_is_space(uint32_t code); /* White_Space */
bool unicode_is_word(uint32_t code);  /* what \w matches in Unicode's regular expressions */

#endif
