/* Refusals: the first one of a compile is kept, in the language's one shape, with the source line
 * and a caret. */
#ifndef LG_LANG_DIAG_H
#define LG_LANG_DIAG_H

#include "base/status.h"
#include "base/str.h"

typedef struct Diag {
    LgStr file;
    LgStr source;
    LgError *err;    /* may be NULL */
    LgStatus status; /* of the first refusal; LG_OK: none yet */
} Diag;

/* Both keep the first failure only, and return false so that a caller can write `return
 * diag_refuse(…)`. format: "cannot WHAT: WHY. WHAT WOULD BE ACCEPTED."  line 0: no place in the
 * source; column 0: no caret. */
bool diag_refuse(Diag *d, int line, int column, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
bool diag_refuse_v(Diag *d, int line, int column, const char *format, va_list args)
    __attribute__((format(printf, 4, 0)));
bool diag_memory(Diag *d);

/* s as it may stand in a message: cut, and without control characters (config keys come from
 * files). */
typedef struct DiagText {
    char text[72];
} DiagText;
DiagText diag_text(LgStr s);

#endif
