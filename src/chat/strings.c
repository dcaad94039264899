/* Case comes from utf8proc's tables, one code point to one; ß alone becomes two letters, as in
 * Python. */
#include "chat/strings.h"

#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "chat/lexer.h"

static size_t next_code(LgStr s, size_t at, uint32_t *code) {
    int bytes = utf8_decode(s.ptr + at, s.len - at, code);
    if (!bytes)
        *code = 0xfffd;
    return bytes ? (size_t)bytes : 1;
}

static size_t last_code(LgStr s, uint32_t *code) {
    size_t start = s.len - 1;
    while (start > 0 && ((unsigned char)s.ptr[start] & 0xc0) == 0x80)
        start--;
    next_code(s, start, code);
    return s.len - start;
}

static bool is_one_of(LgStr chars, uint32_t code) {
    if (!chars.ptr)
        return tpl_is_space(code);
    for (size_t i = 0; i < chars.len;) {
        uint32_t c;
        i += next_code(chars, i, &c);
        if (c == code)
            return true;
    }
    return false;
}

LgStr tpl_strip(LgStr s, LgStr chars, bool left, bool right) {
    uint32_t code;
    while (left && s.len) {
        size_t bytes = next_code(s, 0, &code);
        if (!is_one_of(chars, code))
            break;
        s = lg_str_sub(s, bytes, s.len);
    }
    while (right && s.len) {
        size_t bytes = last_code(s, &code);
        if (!is_one_of(chars, code))
            break;
        s.len -= bytes;
    }
    return s;
}

static void put_case(uint32_t code, TplCase to, Buf *out) {
    char bytes[4];
    if (code == 0xdf && to != TPL_LOWER) {
        buf_puts(out, to == TPL_UPPER ? "SS" : "Ss");
        return;
    }
    int32_t c = (int32_t)code;
    c = to == TPL_UPPER   ? utf8proc_toupper(c)
        : to == TPL_LOWER ? utf8proc_tolower(c)
                          : utf8proc_totitle(c);
    buf_append(out, bytes, (size_t)utf8_encode((uint32_t)c, bytes));
}

void tpl_case(LgStr s, TplCase to, Buf *out) {
    for (size_t i = 0; i < s.len;) {
        uint32_t code;
        i += next_code(s, i, &code);
        put_case(code, to, out);
    }
}

static bool is_letter_with_case(uint32_t code) {
    utf8proc_category_t c = utf8proc_category((int32_t)code);
    return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT;
}

void tpl_title_words(LgStr s, Buf *out) {
    bool inside = false;
    for (size_t i = 0; i < s.len;) {
        uint32_t code;
        i += next_code(s, i, &code);
        put_case(code, inside ? TPL_LOWER : TPL_TITLE, out);
        inside = is_letter_with_case(code);
    }
}

void tpl_title_blanks(LgStr s, Buf *out) {
    bool begins = true;
    for (size_t i = 0; i < s.len;) {
        uint32_t code;
        i += next_code(s, i, &code);
        bool between = tpl_is_space(code) || (code < 0x80 && code && strchr("-({[<", (int)code));
        put_case(code, begins && !between ? TPL_UPPER : TPL_LOWER, out);
        begins = between;
    }
}

void tpl_capitalize(LgStr s, Buf *out) {
    for (size_t i = 0; i < s.len;) {
        uint32_t code;
        TplCase to = i == 0 ? TPL_TITLE : TPL_LOWER;
        i += next_code(s, i, &code);
        put_case(code, to, out);
    }
}

size_t tpl_find(LgStr s, LgStr part, size_t from) {
    if (from > s.len)
        return SIZE_MAX;
    if (part.len == 0)
        return from;
    const char *at = memmem(s.ptr + from, s.len - from, part.ptr, part.len);
    return at ? (size_t)(at - s.ptr) : SIZE_MAX;
}

size_t tpl_find_last(LgStr s, LgStr part, size_t end) {
    if (part.len > end)
        return SIZE_MAX;
    for (size_t at = end - part.len;; at--) {
        if (lg_str_eq(lg_str_sub(s, at, part.len), part))
            return at;
        if (at == 0)
            return SIZE_MAX;
    }
}

/* An empty old stands in front of each code point and at the end. */
static void insert_between(LgStr s, LgStr new, size_t max, Buf *out) {
    size_t i = 0;
    for (; max > 0; max--) {
        uint32_t code;
        buf_str(out, new);
        if (i == s.len)
            return;
        size_t bytes = next_code(s, i, &code);
        buf_append(out, s.ptr + i, bytes);
        i += bytes;
    }
    buf_append(out, s.ptr + i, s.len - i);
}

void tpl_replace(LgStr s, LgStr old, LgStr new, size_t max, Buf *out) {
    size_t at = 0;
    if (old.len == 0) {
        insert_between(s, new, max, out);
        return;
    }
    for (; max > 0; max--) {
        size_t found = tpl_find(s, old, at);
        if (found == SIZE_MAX)
            break;
        buf_append(out, s.ptr + at, found - at);
        buf_str(out, new);
        at = found + old.len;
    }
    buf_str(out, lg_str_sub(s, at, s.len));
}

void tpl_escape(LgStr s, Buf *out) {
    static const char from[] = "&<>\"'";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    for (size_t i = 0; i < s.len; i++) {
        const char *at = s.ptr[i] ? strchr(from, s.ptr[i]) : NULL;
        if (at)
            buf_puts(out, to[at - from]);
        else
            buf_putc(out, s.ptr[i]);
    }
}

static bool ends_line(uint32_t code) {
    return (code >= 10 && code <= 13) || (code >= 0x1c && code <= 0x1e) || code == 0x85 ||
           code == 0x2028 || code == 0x2029;
}

bool tpl_next_line(LgStr s, size_t *at, bool keep_end, LgStr *line) {
    size_t start = *at, i = start;
    if (start >= s.len)
        return false;
    while (i < s.len) {
        uint32_t code;
        size_t bytes = next_code(s, i, &code);
        if (!ends_line(code)) {
            i += bytes;
            continue;
        }
        size_t end = i + bytes;
        if (code == '\r' && end < s.len && s.ptr[end] == '\n')
            end++;
        *at = end;
        *line = lg_str_sub(s, start, (keep_end ? end : i) - start);
        return true;
    }
    *at = i;
    *line = lg_str_sub(s, start, i - start);
    return true;
}

/* A newline is put behind s first, so that one at its end makes an empty last line. */
void tpl_indent(LgStr s, LgStr indent, bool first, bool blank, Buf *out) {
    size_t at = 0;
    LgStr line = {"", 0};
    bool more = tpl_next_line(s, &at, false, &line), begin = true;
    uint32_t last = 0;
    if (s.len)
        last_code(s, &last);
    bool extra =
        s.len == 0 || ends_line(last); /* the empty line in front of the newline that was put */
    while (more || extra) {
        if (!more) {
            extra = false;
            line = (LgStr){"", 0};
        }
        if (!begin)
            buf_putc(out, '\n');
        if (begin ? first : (blank || line.len))
            buf_str(out, indent);
        buf_str(out, line);
        begin = false;
        more = more && tpl_next_line(s, &at, false, &line);
    }
}

size_t tpl_code_count(LgStr s) {
    size_t n = 0;
    for (size_t i = 0; i < s.len; i++)
        n += ((unsigned char)s.ptr[i] & 0xc0) != 0x80;
    return n;
}

static bool in_class(uint32_t code, TplClass class) {
    utf8proc_category_t c = utf8proc_category((int32_t)code);
    bool alpha = c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
    bool superscript = code == 0xb2 || code == 0xb3 || code == 0xb9 || code == 0x2070 ||
                       (code >= 0x2074 && code <= 0x2079) || (code >= 0x2080 && code <= 0x2089);
    switch (class) {
    case TPL_DECIMAL:
        return c == UTF8PROC_CATEGORY_ND;
    case TPL_DIGIT:
        return c == UTF8PROC_CATEGORY_ND || superscript;
    case TPL_ALPHA:
        return alpha;
    case TPL_ALNUM:
        return alpha || (c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO);
    default:
        return tpl_is_space(code);
    }
}

bool tpl_all_of(LgStr s, TplClass class) {
    for (size_t i = 0; i < s.len;) {
        uint32_t code;
        i += next_code(s, i, &code);
        if (!in_class(code, class))
            return false;
    }
    return s.len > 0;
}

bool tpl_is_cased(LgStr s, TplCase as) {
    bool some = false;
    for (size_t i = 0; i < s.len;) {
        uint32_t code;
        i += next_code(s, i, &code);
        utf8proc_category_t c = utf8proc_category((int32_t)code);
        if (c == UTF8PROC_CATEGORY_LT ||
            c == (as == TPL_UPPER ? UTF8PROC_CATEGORY_LL : UTF8PROC_CATEGORY_LU))
            return false;
        some = some || is_letter_with_case(code);
    }
    return some;
}
