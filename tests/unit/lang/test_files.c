/* The pages of tests/lang. `# expect error: TEXT` stands on the line that the refusal must name; `#
 * expect: TEXT` on the line of a statement must be part of how the checked program prints it. A
 * first line `# config: {…}` holds the config. */
#include "lang_test.h"

#include <dirent.h>
#include <stdlib.h>

#include "lang/ast.h"

#define FILES_MAX 1000

typedef struct Expected {
    int line;
    bool error;
    LgStr text;
    LgStr source; /* the whole line */
} Expected;

typedef struct Page {
    LgStr text;
    LgStr config;
    Expected expected[32];
    int count, errors;
} Page;

static LgStr trimmed(LgStr s) {
    while (s.len && s.ptr[0] == ' ') {
        s.ptr++;
        s.len--;
    }
    while (s.len && s.ptr[s.len - 1] == ' ')
        s.len--;
    return s;
}

static void page_expect(Page *p, int line, LgStr source, const char *mark, bool error) {
    const char *at = memmem(source.ptr, source.len, mark, strlen(mark));
    if (!at)
        return;
    assert_true(p->count < 32);
    size_t from = (size_t)(at - source.ptr) + strlen(mark);
    p->expected[p->count++] =
        (Expected){line, error, trimmed(lg_str_sub(source, from, source.len - from)), source};
    p->errors += error;
}

static Page page_read(LgStr text) {
    Page p = {.text = text, .config = LG_STR("{}")};
    int line = 1;
    for (size_t at = 0; at < text.len; line++) {
        const char *nl = memchr(text.ptr + at, '\n', text.len - at);
        size_t len = nl ? (size_t)(nl - text.ptr) - at : text.len - at;
        LgStr source = {text.ptr + at, len};
        if (lg_str_starts(source, "# config: "))
            p.config = lg_str_sub(source, 10, len - 10);
        page_expect(&p, line, source, "# expect error:", true);
        page_expect(&p, line, source, "# expect:", false);
        at += len + 1;
    }
    return p;
}

/* FILE:LINE: cannot WHAT: WHY. WHAT WOULD BE ACCEPTED., then the line, with a caret where there is
 * a column. */
static void check_refusal(const char *name, const Page *p, const LgError *err) {
    const Expected *e = &p->expected[0];
    char start[300];
    snprintf(start, sizeof start, "%s:%d: cannot ", name, e->line);
    LgStr message = lg_str(err->message);
    /* the shown line holds the expectation itself: only what comes before it counts */
    LgStr said = lg_str_sub(message, 0, strcspn(err->message, "\n"));
    if (!lg_str_starts(message, start) || !test_has(said, e->text))
        fail_msg("%s\n  expected at line %d: %.*s\n  got: %s", name, e->line, LG_STR_ARG(e->text),
                 err->message);
    assert_int_equal(err->offset, e->line);
    if (!test_has(said, LG_STR("accepted")))
        fail_msg("%s: says not what would be accepted: %s", name, err->message);
    LgStr shown = lg_str_sub(e->source, 0, 60); /* lines past 140 bytes are shown in part */
    if (e->source.len < 140 && !test_has(message, shown))
        fail_msg("%s: does not show the line: %s", name, err->message);
}

static void check_line(const char *name, LgStr printed, const Expected *e) {
    char number[32];
    snprintf(number, sizeof number, "%d ", e->line);
    for (size_t at = 0; at < printed.len;) {
        const char *nl = memchr(printed.ptr + at, '\n', printed.len - at);
        size_t len = nl ? (size_t)(nl - printed.ptr) - at : printed.len - at;
        LgStr line = trimmed((LgStr){printed.ptr + at, len});
        if (lg_str_starts(line, number) && test_has(line, e->text))
            return;
        at += len + 1;
    }
    fail_msg("%s:%d: expected %.*s, printed\n%.*s", name, e->line, LG_STR_ARG(e->text),
             LG_STR_ARG(printed));
}

static void check_round_trip(const char *name, LgStr text) {
    Arena arena;
    arena_init(&arena);
    Diag diag = {.file = lg_str(name), .source = text, .status = LG_OK};
    AstFile first, second;
    if (ast_parse(&diag, &arena, &first)) {
        Buf printed;
        buf_init(&printed);
        ast_print(&first, &printed);
        LgError err;
        Diag again = {.file = lg_str(name), .source = buf_view(&printed), .err = &err};
        if (!ast_parse(&again, &arena, &second))
            fail_msg("%s: its print does not parse: %s\n%s", name, err.message, printed.data);
        if (!ast_equal(&first, &second))
            fail_msg("%s: its print parses to another tree:\n%s", name, printed.data);
        buf_clear(&printed);
    }
    arena_clear(&arena);
}

static void check_page(const char *path, const char *name) {
    Buf text = test_file(path);
    Page p = page_read(buf_view(&text));
    Config *config = test_config(p.config);
    Arena arena;
    arena_init(&arena);
    LangProgram *program = NULL, *rewritten = NULL;
    LgError err;
    LgStatus status = lang_compile(p.text, name, config, &arena, &program, &err);
    if (p.errors) {
        assert_int_equal(p.count, 1);
        if (status != LG_BAD_INPUT)
            fail_msg("%s: was not refused", name);
        check_refusal(name, &p, &err);
    } else {
        if (status != LG_OK)
            fail_msg("%s: was refused: %s", name, err.message);
        Buf printed;
        buf_init(&printed);
        lang_print(program, &printed);
        for (int i = 0; i < p.count; i++)
            check_line(name, buf_view(&printed), &p.expected[i]);
        buf_clear(&printed);
        assert_int_equal(lang_rewrite_lora(program, &arena, &rewritten, &err), LG_OK);
    }
    check_round_trip(name, p.text);
    arena_clear(&arena);
    config_destroy(config);
    buf_clear(&text);
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void pages_are_accepted_and_refused_as_they_say(void **state) {
    (void)state;
    static char *names[FILES_MAX];
    int count = 0, refusals = 0;
    DIR *dir = opendir(LG_SOURCE_DIR "/tests/lang");
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));)
        if (lg_str_ends(lg_str(entry->d_name), ".lg") && count < FILES_MAX)
            names[count++] = strdup(entry->d_name);
    closedir(dir);
    qsort(names, (size_t)count, sizeof names[0], by_name);
    for (int i = 0; i < count; i++) {
        char path[600];
        snprintf(path, sizeof path, LG_SOURCE_DIR "/tests/lang/%s", names[i]);
        refusals += lg_str_starts(lg_str(names[i]), "refuses_");
        check_page(path, names[i]);
        free(names[i]);
    }
    assert_true(refusals >= 60);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_are_accepted_and_refused_as_they_say),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
