/* Look-up in the tables, and the binding of arguments to parameters. */
#include "chat/library.h"

#include <string.h>

#include "chat/run.h"

static const TplFilter *const filter_tables[] = {tpl_text_filters, tpl_sequence_filters};
static const TplMethod *const method_tables[] = {tpl_string_methods, tpl_other_methods};

#define TABLES 2

const TplFilter *tpl_filter_find(LgStr name) {
    for (size_t t = 0; t < TABLES; t++)
        for (const TplFilter *f = filter_tables[t]; f->name; f++)
            if (lg_str_eq_c(name, f->name))
                return f;
    return NULL;
}

void tpl_filter_names(Buf *out) {
    for (size_t t = 0; t < TABLES; t++)
        for (const TplFilter *f = filter_tables[t]; f->name; f++)
            buf_printf(out, "%s%s", out->len ? ", " : "", f->name);
}

const TplMethod *tpl_method_find(TplValueKind self, LgStr name) {
    for (size_t t = 0; t < TABLES; t++)
        for (const TplMethod *m = method_tables[t]; m->name; m++)
            if (m->self == self && lg_str_eq_c(name, m->name))
                return m;
    return NULL;
}

static bool is_listed(const TplMethod *table, const TplMethod *row) {
    for (const TplMethod *m = table; m != row; m++)
        if (strcmp(m->name, row->name) == 0)
            return true;
    return false;
}

bool tpl_method_is_known(LgStr name) {
    for (size_t t = 0; t < TABLES; t++)
        for (const TplMethod *m = method_tables[t]; m->name; m++)
            if (lg_str_eq_c(name, m->name))
                return true;
    return false;
}

void tpl_method_names(Buf *out) {
    for (size_t t = 0; t < TABLES; t++)
        for (const TplMethod *m = method_tables[t]; m->name; m++)
            if ((m->call || m->open) && !is_listed(method_tables[t], m))
                buf_printf(out, "%s%s", out->len ? ", " : "", m->name);
}

/* The next word of a list of words; *list moves behind it. */
static bool next_word(const char **list, LgStr *out) {
    while (**list == ' ')
        (*list)++;
    const char *start = *list;
    while (**list && **list != ' ')
        (*list)++;
    *out = (LgStr){start, (size_t)(*list - start)};
    return out->len > 0;
}

LgStatus tpl_bind(TplRun *r, const char *what, const char *name, const char *parameters,
                  int required, const TplArgs *args, TplValue *argv) {
    size_t count = 0, used = 0;
    LgStr word;
    for (const char *at = parameters; next_word(&at, &word); count++) {
        argv[count] = (TplValue){.kind = TPL_ABSENT};
        if (count < args->count)
            argv[count] = args->items[count];
        for (size_t i = 0; i < args->named_count && count >= args->count; i++) {
            if (lg_str_eq(args->names[i], word)) {
                argv[count] = args->named[i];
                used++;
            }
        }
        if (argv[count].kind == TPL_ABSENT && count < (size_t)required)
            return tpl_fail(r, "the %s \"%s\" lacks its argument \"%.*s\"", what, name,
                            LG_STR_ARG(word));
    }
    if (args->count > count || used != args->named_count)
        return tpl_fail(r, "the %s \"%s\" takes these arguments only: %s", what, name,
                        count ? parameters : "(none)");
    return LG_OK;
}
