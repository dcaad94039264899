/* rank_pattern and alpha_pattern. Keys come from a stranger's file, so a match has a budget of
 * steps and of memory. Most files list plain module names, often one a module: those are compared
 * without the regular-expression engine. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <math.h>
#include <stdio.h>

#include "base/json.h"
#include "base/mem.h"
#include "lora/peft.h"

#define KEY_BYTES_MAX 4096
#define REGEX_KEYS_MAX 128
#define MATCH_STEPS_MAX 5000
#define MATCH_HEAP_KIB_MAX 1024
#define COMPILE_DEPTH_MAX 100

static void *pcre_alloc(size_t bytes, void *data) {
    (void)data;
    return lg_alloc(bytes);
}

static void pcre_free(void *p, void *data) {
    (void)data;
    lg_free(p);
}

static LgStatus fail_key(const PeftPatterns *p, LgStr key, const char *fault, LgError *err) {
    Buf shown;
    buf_init(&shown);
    buf_printable(&shown, key, 120);
    LgStatus status = lg_fail(err, LG_BAD_INPUT, 0, "adapter_config.json: %s key \"%s\": %s",
                              p->config_key, shown.data, fault);
    buf_clear(&shown);
    return status;
}

static bool is_plain_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
}

/* A key of plain characters, `.` and `\.`, with ^ and $ at its ends at most: item->plain and
 * ->anchored. An escaped dot is kept as the byte 1, which no name in a model has. */
static bool read_plain(PeftPattern *item, Arena *arena, bool *failed) {
    LgStr key = item->key;
    char *plain = arena_alloc(arena, key.len + 1);
    *failed = !plain;
    size_t at = 0, used = 0;
    if (!plain)
        return false;
    if (lg_str_starts(key, "^")) {
        item->anchored = true;
        at = 1;
    }
    for (; at < key.len; at++) {
        char c = key.ptr[at];
        if (c == '$' && at + 1 == key.len)
            break;
        if (c == '\\' && at + 1 < key.len && key.ptr[at + 1] == '.') {
            c = 1;
            at++;
        } else if (!is_plain_char(c) && c != '.') {
            return false;
        }
        plain[used++] = c;
    }
    item->plain = (LgStr){plain, used};
    return true;
}

static LgStatus compile(PeftPatterns *p, PeftPattern *item, pcre2_compile_context *context,
                        LgError *err) {
    Buf text;
    buf_init(&text);
    buf_puts(&text, "^(.*\\.)?(");
    buf_str(&text, item->key);
    buf_puts(&text, ")$");
    if (text.failed) {
        buf_clear(&text);
        return lg_fail_memory(err);
    }
    int code;
    PCRE2_SIZE offset;
    item->code =
        pcre2_compile((PCRE2_SPTR)text.data, text.len,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &offset, context);
    buf_clear(&text);
    if (item->code)
        return LG_OK;
    if (code == PCRE2_ERROR_NOMEMORY || code == 121 /* the compiler's own code for the same */)
        return lg_fail_memory(err);
    char words[160], fault[256];
    pcre2_get_error_message(code, (PCRE2_UCHAR *)words, sizeof words);
    snprintf(fault, sizeof fault, "not a valid regular expression: %s", words);
    return fail_key(p, item->key, fault, err);
}

static LgStatus compile_all(PeftPatterns *p, LgError *err) {
    size_t regexes = 0;
    for (size_t i = 0; i < p->count; i++)
        regexes += !p->items[i].plain.ptr;
    if (regexes == 0)
        return LG_OK;
    if (regexes > REGEX_KEYS_MAX)
        return lg_fail(err, LG_LIMIT, 0,
                       "adapter_config.json: %s has %zu keys that are regular expressions; at most "
                       "%d are served, beside any number of plain module names",
                       p->config_key, regexes, REGEX_KEYS_MAX);
    LgStatus status = LG_OK;
    pcre2_general_context *general = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    pcre2_compile_context *context = general ? pcre2_compile_context_create(general) : NULL;
    pcre2_match_context *limits = general ? pcre2_match_context_create(general) : NULL;
    p->match_context = limits;
    p->match_data = general ? pcre2_match_data_create(1, general) : NULL;
    if (!context || !limits || !p->match_data) {
        status = lg_fail_memory(err);
        goto done;
    }
    pcre2_set_parens_nest_limit(context, COMPILE_DEPTH_MAX);
    pcre2_set_match_limit(limits, MATCH_STEPS_MAX);
    pcre2_set_depth_limit(limits, MATCH_STEPS_MAX);
    pcre2_set_heap_limit(limits, MATCH_HEAP_KIB_MAX);
    for (size_t i = 0; i < p->count && status == LG_OK; i++)
        if (!p->items[i].plain.ptr)
            status = compile(p, &p->items[i], context, err);
done:
    pcre2_compile_context_free(context);
    pcre2_general_context_free(general);
    return status;
}

static LgStatus read_item(PeftPatterns *p, LgStr key, const json_t *value, bool whole, Arena *arena,
                          LgError *err) {
    PeftPattern *item = &p->items[p->count];
    double number = json_number_value(value);
    *item = (PeftPattern){.key = key, .value = number};
    p->count++;
    if (key.len == 0 || key.len > KEY_BYTES_MAX)
        return fail_key(p, key, "a key has 1 to 4096 bytes", err);
    if (!json_is_number(value) || !isfinite(number))
        return fail_key(p, key, "its value must be a finite number", err);
    if (whole && !(number >= 1 && number <= INT32_MAX && number == floor(number)))
        return fail_key(p, key, "a rank is a whole number of at least 1", err);
    bool failed;
    read_plain(item, arena, &failed);
    return failed ? lg_fail_memory(err) : LG_OK;
}

LgStatus patterns_parse(const char *config_key, const json_t *object, bool whole, Arena *arena,
                        PeftPatterns *out, LgError *err) {
    *out = (PeftPatterns){.config_key = config_key};
    if (!object || json_is_null(object))
        return LG_OK;
    if (!json_is_object(object))
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "adapter_config.json: %s must be an object of module names and numbers",
                       config_key);
    out->items = ARENA_ARRAY(arena, PeftPattern, json_object_size(object) + 1);
    if (!out->items)
        return lg_fail_memory(err);
    const char *key;
    size_t key_len;
    json_t *value;
    json_object_keylen_foreach((json_t *)(uintptr_t)object, key, key_len, value) {
        LG_TRY(read_item(out, (LgStr){key, key_len}, value, whole, arena, err));
    }
    return compile_all(out, err);
}

void patterns_clear(PeftPatterns *p) {
    for (size_t i = 0; i < p->count; i++)
        pcre2_code_free(p->items[i].code);
    pcre2_match_data_free(p->match_data);
    pcre2_match_context_free(p->match_context);
    *p = (PeftPatterns){.config_key = p->config_key};
}

static bool plain_matches(const PeftPattern *item, LgStr name) {
    LgStr plain = item->plain;
    if (plain.len > name.len)
        return false;
    size_t before = name.len - plain.len;
    if (before && (item->anchored || name.ptr[before - 1] != '.'))
        return false;
    for (size_t i = plain.len; i-- > 0;) {
        char want = plain.ptr[i], have = name.ptr[before + i];
        bool same = want == '.' ? have != '\n' : have == (want == 1 ? '.' : want);
        if (!same)
            return false;
    }
    return true;
}

static LgStatus matches(PeftPatterns *p, const PeftPattern *item, LgStr name, bool *out,
                        LgError *err) {
    if (item->plain.ptr) {
        *out = plain_matches(item, name);
        return LG_OK;
    }
    int found = pcre2_match(item->code, (PCRE2_SPTR)name.ptr, name.len, 0, 0, p->match_data,
                            p->match_context);
    *out = found >= 0;
    if (found >= 0 || found == PCRE2_ERROR_NOMATCH)
        return LG_OK;
    if (found == PCRE2_ERROR_NOMEMORY)
        return lg_fail_memory(err);
    return fail_key(p, item->key,
                    "matching it against a module name takes too many steps; write it without "
                    "nested repetition",
                    err);
}

LgStatus patterns_find(PeftPatterns *p, LgStr name, LgStr other, PeftPattern **out, LgError *err) {
    *out = NULL;
    for (size_t i = 0; i < p->count; i++) {
        bool found = false;
        LG_TRY(matches(p, &p->items[i], name, &found, err));
        if (!found && !lg_str_eq(name, other))
            LG_TRY(matches(p, &p->items[i], other, &found, err));
        if (!found)
            continue;
        p->items[i].used = true;
        *out = &p->items[i];
        return LG_OK;
    }
    return LG_OK;
}
