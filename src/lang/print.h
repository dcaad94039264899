/* Parts of the program printer that the rewrite also writes its statements with. */
#ifndef LG_LANG_PRINT_H
#define LG_LANG_PRINT_H

#include "lang/lang.h"

void print_stmt_text(const LangProgram *p, const LangStmt *s, Buf *out);

#endif
