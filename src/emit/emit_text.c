/* Lines of an emitted file: which of them stand for lines of the page, and the names in them. */
#include "emit/emit_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

static void count_lines(Emit *e) {
    for (; e->line_seen < e->out->len; e->line_seen++)
        e->line += e->out->data[e->line_seen] == '\n';
}

void emit_done(Emit *e, Buf *text) {
    e->failed |= text->failed;
    buf_clear(text);
}

static void indent(Emit *e) {
    for (int k = 0; k < e->indent; k++)
        buf_puts(e->out, "    ");
}

static void append_format(Buf *out, const char *format, va_list args) {
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, again);
    va_end(again);
    char small[256];
    if (n >= 0 && (size_t)n < sizeof small) {
        vsnprintf(small, sizeof small, format, args);
        buf_puts(out, small);
        return;
    }
    char *text = n < 0 ? NULL : lg_alloc((size_t)n + 1);
    if (!text) {
        out->failed = true;
        return;
    }
    vsnprintf(text, (size_t)n + 1, format, args);
    buf_puts(out, text);
    lg_free(text);
}

void emit_line(Emit *e, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (strcmp(format, "%s") != 0)
        indent(e);
    append_format(e->out, format, args);
    buf_putc(e->out, '\n');
    va_end(args);
}

void emit_code(Emit *e, int source, const char *format, ...) {
    va_list args;
    buf_printf(e->out, "#line %d \"%s\"\n", source, e->file);
    va_start(args, format);
    indent(e);
    append_format(e->out, format, args);
    buf_putc(e->out, '\n');
    va_end(args);
}

void emit_own(Emit *e) {
    count_lines(e);
    buf_printf(e->out, "#line %d \"%s.c\"\n", e->line + 1, e->plan->provenance.model);
}

/* The text of a page may hold what would end a comment, or begin another. */
void emit_quote(Emit *e, const char *before, int line, LgStr text, const char *after) {
    indent(e);
    buf_puts(e->out, before);
    if (line)
        buf_printf(e->out, "%d: ", line);
    for (size_t k = 0; k < text.len; k++) {
        char c = text.ptr[k], next = k + 1 < text.len ? text.ptr[k + 1] : ' ';
        buf_putc(e->out, (unsigned char)c < ' ' ? ' ' : c);
        if ((c == '*' && next == '/') || (c == '/' && next == '*'))
            buf_putc(e->out, ' ');
    }
    buf_puts(e->out, after);
    buf_putc(e->out, '\n');
}

/* Names of C and of the emitted text that a page's names must not hide. */
static const char *const reserved[] = {
    "auto",     "break",  "case",    "char",     "const",    "continue", "default",  "do",
    "double",   "else",   "enum",    "extern",   "float",    "for",      "goto",     "if",
    "inline",   "int",    "long",    "register", "restrict", "return",   "short",    "signed",
    "sizeof",   "static", "struct",  "switch",   "typedef",  "union",    "unsigned", "void",
    "volatile", "while",  "asm",     "step",     "thread",   "layer",    "row",      "rows",
    "task",     "tasks",  "scratch", "at",       "page",     "part",     "call",     "a",
    "scores",   "count",  "ends",    "tile",     "column",   "adapted",  "index",    "size",
    "moe",      "walk",   "values",  "choice",   "body",     "sinf",     "cosf",     "powf",
    "logf",     "sqrtf",  "fabsf",   "floorf",   "ceilf",    "linux",    "unix",     "NAN",
    "INFINITY"};

static const char *identifier(Emit *e, LgStr name, bool taken) {
    for (size_t k = 0; k < sizeof reserved / sizeof reserved[0]; k++)
        taken |= lg_str_eq_c(name, reserved[k]);
    char *text =
        taken ? arena_printf(e->arena, "%.*s_", LG_STR_ARG(name)) : arena_strdup(e->arena, name);
    for (char *c = text; c && *c; c++)
        if (*c == '.')
            *c = '_';
    return text;
}

const char *emit_tensor_name(Emit *e, int tensor) {
    return identifier(e, e->p->tensors[tensor].name, false);
}

const char *emit_var_name(Emit *e, const LangStmt *s, int var) {
    bool taken = false;
    for (int t = 0; t < e->p->tensor_count; t++)
        taken |= lg_str_eq(e->p->tensors[t].name, s->vars[var].name);
    const char *name = identifier(e, s->vars[var].name, taken);
    return name ? name : "?";
}

const char *emit_input(const Emit *e, int tensor) {
    static const char *const inputs[][2] = {{"token", "step->token"},
                                            {"slot", "step->slot"},
                                            {"pos", "step->pos"},
                                            {"last", "step->last"}};
    const LangTensor *t = &e->p->tensors[tensor];
    for (size_t k = 0; k < sizeof inputs / sizeof inputs[0]; k++)
        if (t->kind == LANG_INPUT && lg_str_eq_c(t->name, inputs[k][0]))
            return inputs[k][1];
    return NULL;
}

const char *emit_file_name(LgStr path, Arena *arena) {
    size_t from = path.len;
    while (from > 0 && path.ptr[from - 1] != '/')
        from--;
    char *name = arena_strdup(arena, lg_str_sub(path, from, path.len - from));
    for (char *c = name; c && *c; c++)
        if (*c == '"' || *c == '\\' || (unsigned char)*c < ' ')
            *c = '_';
    return name;
}

LgStatus emit_launches(Emit *e, LgStatus (*launch)(Emit *e, int launch)) {
    /* The functions are written aside: the tables that they need come first. */
    Buf *file = e->out, aside;
    buf_init(&aside);
    int lines = e->line;
    size_t seen = e->line_seen;
    LgStatus status = LG_OK;
    for (int round = 0; round < 2 && status == LG_OK; round++) {
        /* The first round finds the tables, the second knows how many lines they take. */
        if (round) {
            buf_puts(file, "\n");
            buf_str(file, buf_view(&e->statics));
            e->line = lines;
            e->line_seen = seen;
            e->out = file;
        } else {
            e->out = &aside;
            e->line_seen = 0;
        }
        e->failed |= e->statics.failed;
        buf_reset(&e->statics);
        e->static_count = 0;
        for (int k = 0; k < e->plan->launch_count && status == LG_OK; k++) {
            status = launch(e, k);
        }
    }
    e->out = file;
    emit_done(e, &aside);
    return status;
}
