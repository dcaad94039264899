/* Params: where a checkpoint keeps them, and what an adapter calls them. */
#include "lang/check.h"

#include <math.h>
#include <string.h>

/* "{l}" and "{X}" in a source's name. */
typedef struct Holes {
    bool layer;
    int stack; /* dim; -1: none */
} Holes;

static bool refuse_hole(Check *c, AstName at, const char *why, const char *accepted) {
    return diag_refuse(&c->diag, at.line, at.column, "cannot bind \"%s\": %s. %s is accepted.",
                       diag_text(at.text).text, why, accepted);
}

static bool read_hole(Check *c, AstName at, LgStr hole, Holes *out) {
    if (c->in_layer && lg_str_eq(hole, c->layer->name.text)) {
        out->layer = true;
        return true;
    }
    const Symbol *s = check_find(c, hole);
    if (!s || s->kind != SYMBOL_DIM)
        return refuse_hole(c, at, "its braces hold neither the layer's index nor a dim",
                           "{l} inside the layer block, or the dim that experts are stacked over,");
    if (out->stack >= 0)
        return refuse_hole(c, at, "it stacks over two dims", "One dim in braces");
    out->stack = s->id;
    return true;
}

static bool read_holes(Check *c, AstName at, Holes *out) {
    *out = (Holes){.stack = -1};
    LgStr s = at.text;
    if (!s.len)
        return refuse_hole(c, at, "the name is empty", "A checkpoint tensor's name");
    for (size_t i = 0; i < s.len; i++) {
        if (s.ptr[i] == '}')
            return refuse_hole(c, at, "a brace is not opened", "{l}");
        if (s.ptr[i] != '{')
            continue;
        const char *end = memchr(s.ptr + i, '}', s.len - i);
        if (!end)
            return refuse_hole(c, at, "a brace is not closed", "{l}");
        size_t len = (size_t)(end - s.ptr) - i - 1;
        if (!read_hole(c, at, lg_str_sub(s, i + 1, len), out))
            return false;
        i += len + 1;
    }
    if (c->in_layer && !out->layer)
        return refuse_hole(c, at, "every layer would have the same tensor",
                           "A name with {l} in it, or a param outside the layer block,");
    return true;
}

/* The layer's hole is written {l}, whatever the page calls its index. */
static bool source_name(Check *c, AstName at, LgStr *out) {
    *out = at.text;
    if (!c->in_layer || lg_str_eq_c(c->layer->name.text, "l"))
        return true;
    LgStr index = c->layer->name.text;
    char *text = arena_alloc(c->arena, at.text.len + 1);
    if (!text)
        return diag_memory(&c->diag);
    size_t n = 0;
    for (size_t i = 0; i < at.text.len; i++) {
        text[n++] = at.text.ptr[i];
        bool hole = at.text.ptr[i] == '{' && at.text.len - i > index.len + 1 &&
                    at.text.ptr[i + 1 + index.len] == '}' &&
                    lg_str_eq(lg_str_sub(at.text, i + 1, index.len), index);
        if (hole) {
            text[n++] = 'l';
            i += index.len;
        }
    }
    *out = (LgStr){text, n};
    return true;
}

static bool fold_from(Check *c, const AstExpr *from, LangSource *out) {
    Fold f = {.layer = -1, .exact = true};
    double row = 0;
    if (!fold_required(c, &f, from, &row))
        return false;
    if (row != floor(row) || row < 0 || row > CHECK_DIM_MAX)
        return diag_refuse(&c->diag, from->line, from->column,
                           "cannot start a window at row %.15g. A whole number from 0 to "
                           "2147483647 is accepted.",
                           row);
    out->windowed = true;
    out->from_row = (uint64_t)row;
    return true;
}

static bool same_axes(const LangTensor *a, const LangTensor *b) {
    return a->rank == b->rank && a->axis_count == b->axis_count &&
           memcmp(a->dims, b->dims, (size_t)a->rank * sizeof a->dims[0]) == 0 &&
           memcmp(a->axis_start, b->axis_start, (size_t)a->axis_count * sizeof a->axis_start[0]) ==
               0;
}

static bool source_param(Check *c, const AstSrc *src, const LangTensor *t, LangSource *out) {
    const Symbol *s = check_find(c, src->name.text);
    if (!s || s->kind != SYMBOL_TENSOR || c->tensors.items[s->id].kind != LANG_PARAM ||
        &c->tensors.items[s->id] == t)
        return diag_refuse(&c->diag, src->name.line, src->name.column,
                           "cannot bind to %s: it is no param declared above. Such a param, or a "
                           "checkpoint tensor's name in quotes, is accepted.",
                           diag_text(src->name.text).text);
    const LangTensor *other = &c->tensors.items[s->id];
    if (!same_axes(other, t) || other->in_layer != t->in_layer)
        return diag_refuse(&c->diag, src->name.line, src->name.column,
                           "cannot bind to %s: its axes are others. A param with the same axes in "
                           "the same scope is accepted.",
                           diag_text(src->name.text).text);
    c->infos.items[s->id].read = true;
    out->param = s->id;
    return true;
}

static bool check_source(Check *c, const AstSrc *src, LangTensor *t, LangSource *out) {
    *out = (LangSource){.kind = src->kind, .param = -1, .number = src->number};
    if (src->kind == LANG_SOURCE_NUMBER)
        return true;
    if (src->kind == LANG_SOURCE_PARAM)
        return source_param(c, src, t, out);
    Holes holes;
    if (!read_holes(c, src->name, &holes) || !source_name(c, src->name, &out->name))
        return false;
    if (holes.stack >= 0 &&
        (t->dims[0] != holes.stack || (t->axis_count > 1 ? t->axis_start[1] : t->rank) != 1))
        return refuse_hole(c, src->name, "the dim in braces is not the param's first axis",
                           "A param whose first axis is that dim alone");
    if (holes.stack >= 0)
        t->stack_dim = holes.stack;
    return !src->from || fold_from(c, src->from, out);
}

/* An adapter names a module: the tensor without ".weight". */
static void set_module(LangTensor *t, const LangSource *source) {
    if (source->kind != LANG_SOURCE_TENSOR || t->module.len)
        return;
    t->module = source->name;
    if (lg_str_ends(source->name, ".weight"))
        t->module.len -= 7;
}

static bool check_sources(Check *c, const AstDecl *d, LangTensor *t) {
    int count = d->sources.count;
    LangSource *sources = ARENA_ARRAY(c->arena, LangSource, (size_t)count);
    if (!sources)
        return diag_memory(&c->diag);
    for (int i = 0; i < count; i++)
        if (!check_source(c, &d->sources.items[i], t, &sources[i]))
            return false;
    for (int i = 0; i < count; i++)
        set_module(t, &sources[i]);
    for (int i = 0; i < count; i++) {
        const AstSrc *src = &d->sources.items[i];
        bool last_of_many = i > 0 && i == count - 1 && !d->condition;
        if (src->kind == LANG_SOURCE_NUMBER && !last_of_many)
            return diag_refuse(&c->diag, src->name.line, src->name.column,
                               "cannot bind a number here: it is a default. `\"tensor.name\" or 0` "
                               "is accepted.");
    }
    t->sources = sources;
    t->source_count = count;
    if (!d->condition)
        return true;
    Fold f = {.layer = -1};
    bool taken = false;
    fold_claim_cond(c, d->condition);
    if (!fold_cond(c, &f, d->condition, &taken))
        return false;
    t->sources = &sources[taken ? 0 : 1];
    t->source_count = 1;
    return true;
}

bool check_param(Check *c, const AstDecl *d) {
    LangTensor made = {.index_dim = -1};
    if (!check_axes(c, &d->axes, true, &made))
        return false;
    for (int i = 0; i < made.rank; i++)
        if (c->dims.items[made.dims[i]].runtime)
            return diag_refuse(&c->diag, d->axes.items[i].name.line, d->axes.items[i].name.column,
                               "cannot declare a param over %s: its size is known at run time "
                               "only. Dims with sizes are accepted.",
                               diag_text(d->axes.items[i].name.text).text);
    if (d->dtype_written && d->dtype == LANG_I32)
        return diag_refuse(&c->diag, d->line, d->column,
                           "cannot bind a param as i32: weights are no whole numbers. f32, bf16, "
                           "f16 and f8 are accepted.");
    int id = check_tensor_add(c, d->name, LANG_PARAM);
    if (id < 0)
        return false;
    LangTensor *t = &c->tensors.items[id];
    t->rank = made.rank;
    t->axis_count = made.axis_count;
    memcpy(t->dims, made.dims, sizeof t->dims);
    memcpy(t->axis_start, made.axis_start, sizeof t->axis_start);
    t->dtype_written = d->dtype_written;
    t->dtype = d->dtype_written ? d->dtype : LANG_BF16;
    c->infos.items[id].complete = true;
    return check_sources(c, d, t);
}

/* One use of a stored tensor by a param. */
typedef struct Use {
    LgStr name;
    int tensor;
    bool windowed;
    uint64_t from, rows;
} Use;

static int use_compare(const Use *a, const Use *b) {
    int by_name = lg_str_cmp(a->name, b->name);
    if (by_name)
        return by_name;
    if (a->from != b->from)
        return a->from < b->from ? -1 : 1;
    return a->tensor - b->tensor;
}

/* A heap sort: the C library's qsort may allocate. */
static void use_sift(Use *uses, size_t from, size_t count) {
    size_t i = from;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= count)
            return;
        if (child + 1 < count && use_compare(&uses[child], &uses[child + 1]) < 0)
            child++;
        if (use_compare(&uses[i], &uses[child]) >= 0)
            return;
        Use swap = uses[i];
        uses[i] = uses[child];
        uses[child] = swap;
        i = child;
    }
}

static void use_sort(Use *uses, size_t count) {
    for (size_t i = count / 2; i-- > 0;)
        use_sift(uses, i, count);
    for (size_t end = count; end > 1; end--) {
        Use swap = uses[0];
        uses[0] = uses[end - 1];
        uses[end - 1] = swap;
        use_sift(uses, 0, end - 1);
    }
}

static uint64_t first_axis_rows(const Check *c, const LangTensor *t) {
    uint64_t rows = 1;
    int axis = t->stack_dim >= 0 && t->axis_count > 1 ? 1 : 0;
    for (int i = t->axis_start[axis]; i < t->axis_start[axis + 1]; i++)
        rows *= c->dims.items[t->dims[i]].size;
    return rows;
}

static size_t collect_uses(const Check *c, Use *out) {
    size_t n = 0;
    for (int i = 0; i < c->tensors.count; i++) {
        const LangTensor *t = &c->tensors.items[i];
        for (int k = 0; k < t->source_count; k++) {
            if (t->sources[k].kind != LANG_SOURCE_TENSOR)
                continue;
            if (out)
                out[n] = (Use){t->sources[k].name, i, t->sources[k].windowed,
                               t->sources[k].from_row, first_axis_rows(c, t)};
            n++;
        }
    }
    return n;
}

bool check_windows(Check *c) {
    size_t count = collect_uses(c, NULL);
    Use *uses = ARENA_ARRAY(c->arena, Use, count);
    if (!uses)
        return diag_memory(&c->diag);
    collect_uses(c, uses);
    use_sort(uses, count);
    uint64_t next = 0;
    for (size_t i = 0; i < count; i++) {
        const Use *u = &uses[i];
        bool first = i == 0 || !lg_str_eq(uses[i - 1].name, u->name);
        const LangTensor *t = &c->tensors.items[u->tensor];
        int column = c->infos.items[u->tensor].column;
        if (!first && (!u->windowed || !uses[i - 1].windowed))
            return diag_refuse(&c->diag, t->line, column,
                               "cannot bind \"%s\" to %s: %s binds it already. One param for each "
                               "stored tensor is accepted, or windows of it (`from`).",
                               diag_text(u->name).text, diag_text(t->name).text,
                               diag_text(c->tensors.items[uses[i - 1].tensor].name).text);
        if (u->windowed && u->from != (first ? 0 : next))
            return diag_refuse(&c->diag, t->line, column,
                               "cannot cut \"%s\" like this: a window starts at row %llu where the "
                               "one before ends at %llu. Windows that tile the stored axis are "
                               "accepted.",
                               diag_text(u->name).text, (unsigned long long)u->from,
                               (unsigned long long)(first ? 0 : next));
        next = u->from + u->rows;
    }
    return true;
}
