/* What Python's str can do, on UTF-8. Positions and counts are of code points. */
#ifndef LG_CHAT_STRINGS_H
#define LG_CHAT_STRINGS_H

#include "base/str.h"

typedef enum TplCase { TPL_UPPER, TPL_LOWER, TPL_TITLE } TplCase;

/* chars: what is taken off at the ends; ptr NULL: white space. */
LgStr tpl_strip(LgStr s, LgStr chars, bool left, bool right);
void tpl_case(LgStr s, TplCase to, Buf *out);
void tpl_title_words(LgStr s, Buf *out); /* str.title: a word is a run of letters */
void tpl_title_blanks(
    LgStr s, Buf *out); /* the filter's: words begin behind blanks, - and opening brackets */
void tpl_capitalize(LgStr s, Buf *out);
void tpl_replace(LgStr s, LgStr old, LgStr new, size_t max, Buf *out);
void tpl_escape(LgStr s, Buf *out); /* for HTML */
void tpl_indent(LgStr s, LgStr indent, bool first, bool blank, Buf *out);
size_t tpl_find(LgStr s, LgStr part, size_t from);     /* byte offset, or SIZE_MAX */
size_t tpl_find_last(LgStr s, LgStr part, size_t end); /* of one that ends at or before `end` */
size_t tpl_code_count(LgStr s);
/* The next line of s from *at, without its end unless keep_end; false at the end. */
bool tpl_next_line(LgStr s, size_t *at, bool keep_end, LgStr *line);

typedef enum TplClass { TPL_DIGIT, TPL_DECIMAL, TPL_ALPHA, TPL_ALNUM, TPL_SPACE } TplClass;
bool tpl_all_of(LgStr s, TplClass class); /* false for an empty string */
bool tpl_is_cased(LgStr s, TplCase as);   /* str.isupper, str.islower */

#endif
