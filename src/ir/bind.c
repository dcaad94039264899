/* Binds params to checkpoint tensors. Two passes over the params (tensors first, then those that
 * stand for another param), then two over the claims: every tensor whole and once, or cut into
 * windows that leave no row out. Knows no file format and no layout. */
#include "ir/bind.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define UNCLAIMED_NAMED_MAX 5
#define MESSAGE_NAME_MAX 120

/* Rows [from, from + rows) of the axis that a window may cut; a whole tensor claims all of it. */
typedef struct Claim {
    const Tensor *tensor;
    int param, layer;
    uint64_t from, rows, axis;
} Claim;

typedef struct Binder {
    const LangProgram *p;
    const TensorSet *set;
    Arena *arena;
    LgError *err;
    int layers; /* at least 1 */
    ParamBinding *params;
    bool *bound; /* as params */
    Claim *claims;
    size_t claim_count, claim_cap;
    Buf name; /* of the tensor that is looked for */
    LgStr *disregarded;
    int disregarded_count, disregarded_cap;
} Binder;

const ParamBinding *binding_get(const Binding *b, int tensor, int layer) {
    int layers = b->layer_count > 0 ? b->layer_count : 1;
    return &b->params[(size_t)tensor * (size_t)layers + (size_t)(layer > 0 ? layer : 0)];
}

static uint64_t axis_size(const LangProgram *p, const LangTensor *t, int axis) {
    uint64_t size = 1;
    for (int i = t->axis_start[axis]; i < t->axis_start[axis + 1]; i++)
        size *= p->dims[t->dims[i]].size;
    return size;
}

static size_t slot_of(const Binder *b, int param, int layer) {
    return (size_t)param * (size_t)b->layers + (size_t)layer;
}

/* `text` with {X} replaced by the expert where X is the param's stack dim, and any other {name} by
 * the layer. */
static LgStatus expand_name(Binder *b, LgStr text, int stack_dim, int layer, uint64_t expert) {
    buf_reset(&b->name);
    size_t at = 0;
    while (at < text.len) {
        const char *open = memchr(text.ptr + at, '{', text.len - at);
        const char *close = open ? memchr(open, '}', text.len - (size_t)(open - text.ptr)) : NULL;
        if (!close) {
            buf_append(&b->name, text.ptr + at, text.len - at);
            break;
        }
        size_t begin = (size_t)(open - text.ptr);
        size_t end = (size_t)(close - text.ptr);
        buf_append(&b->name, text.ptr + at, begin - at);
        LgStr key = lg_str_sub(text, begin + 1, end - begin - 1);
        if (stack_dim >= 0 && lg_str_eq(key, b->p->dims[stack_dim].name))
            buf_printf(&b->name, "%llu", (unsigned long long)expert);
        else
            buf_printf(&b->name, "%d", layer);
        at = end + 1;
    }
    return b->name.failed ? lg_fail_memory(b->err) : LG_OK;
}

/* A name as a file spells it, fit for a message. */
typedef struct MessageName {
    char text[MESSAGE_NAME_MAX + 8];
} MessageName;

static MessageName message_name(LgStr name) {
    MessageName m;
    Buf text;
    buf_init(&text);
    buf_printable(&text, name, MESSAGE_NAME_MAX);
    size_t n = text.len < sizeof m.text ? text.len : sizeof m.text - 1;
    if (text.failed)
        n = 0;
    memcpy(m.text, text.data, n);
    m.text[n] = 0;
    buf_clear(&text);
    return m;
}

static void shape_text(char out[160], int rank, const uint64_t *shape) {
    size_t at = 0;
    out[at++] = '[';
    for (int i = 0; i < rank && at < 120; i++) {
        char number[24];
        int n =
            snprintf(number, sizeof number, "%s%llu", i ? ", " : "", (unsigned long long)shape[i]);
        memcpy(out + at, number, (size_t)n);
        at += (size_t)n;
    }
    out[at++] = ']';
    out[at] = 0;
}

static LgStatus check_dtype(Binder *b, const LangTensor *param, const Tensor *t) {
    const DTypeInfo *info = dtype_info(t->dtype);
    if (info->served)
        return LG_OK;
    char served[160] = "";
    for (int d = 0; d < DTYPE_COUNT; d++) {
        const DTypeInfo *other = dtype_info((DType)d);
        if (!other->served)
            continue;
        size_t at = strlen(served);
        snprintf(served + at, sizeof served - at, "%s%s", at ? ", " : "", other->name);
    }
    return lang_refuse(b->p, param->line, 0, b->err,
                       "cannot bind %.*s: \"%s\" is stored as %s. Served are %s",
                       LG_STR_ARG(param->name), message_name(t->name).text, info->name, served);
}

/* Holds t to the declared stored axes [first_axis, …); a window may be cut from the axis before the
 * last (or from the only one). */
static LgStatus check_shape(Binder *b, const LangTensor *param, const LangSource *source,
                            const Tensor *t, int first_axis, Claim *claim) {
    uint64_t want[LANG_RANK_MAX];
    int rank = param->axis_count - first_axis;
    bool same = t->rank == rank;
    int cut = rank > 1 ? rank - 2 : 0;
    for (int i = 0; i < rank; i++) {
        want[i] = axis_size(b->p, param, first_axis + i);
        bool windowed = source->windowed && i == cut;
        if (same && !windowed && t->shape[i] != want[i])
            same = false;
    }
    char found_text[160], want_text[160];
    shape_text(found_text, t->rank, t->shape);
    shape_text(want_text, rank, want);
    MessageName name = message_name(t->name);
    if (!same)
        return lang_refuse(b->p, param->line, 0, b->err,
                           "cannot bind %.*s: \"%s\" has shape %s, the declaration says %s. "
                           "Declare the stored shape, or give the config it belongs to",
                           LG_STR_ARG(param->name), name.text, found_text, want_text);
    *claim = (Claim){.tensor = t, .rows = want[cut], .axis = t->shape[cut]};
    if (!source->windowed)
        return LG_OK;
    claim->from = source->from_row;
    if (claim->from > claim->axis || claim->rows > claim->axis - claim->from)
        return lang_refuse(b->p, param->line, 0, b->err,
                           "cannot bind %.*s: rows %llu to %llu of \"%s\" are wanted, its shape is "
                           "%s. A window must lie inside the stored axis",
                           LG_STR_ARG(param->name), (unsigned long long)claim->from,
                           (unsigned long long)claim->from + (unsigned long long)claim->rows,
                           name.text, found_text);
    if (rank == 1 && dtype_info(t->dtype)->block_elems > 1)
        return lang_refuse(b->p, param->line, 0, b->err,
                           "cannot bind %.*s: \"%s\" is a vector in blocks (%s), which a window "
                           "would cut. Windows of vectors need F32, F16 or BF16",
                           LG_STR_ARG(param->name), name.text, dtype_info(t->dtype)->name);
    return LG_OK;
}

static LgStatus add_claim(Binder *b, Claim claim, int param, int layer) {
    if (b->claim_count == b->claim_cap) {
        size_t cap = b->claim_cap ? b->claim_cap * 2 : 256;
        if (cap > SIZE_MAX / sizeof *b->claims)
            return lg_fail_memory(b->err);
        Claim *grown = lg_realloc(b->claims, cap * sizeof *grown);
        if (!grown)
            return lg_fail_memory(b->err);
        b->claims = grown;
        b->claim_cap = cap;
    }
    claim.param = param;
    claim.layer = layer;
    b->claims[b->claim_count++] = claim;
    return LG_OK;
}

static LgStatus take_tensor(Binder *b, int param, int layer, const LangSource *source,
                            const Tensor *t, int first_axis) {
    const LangTensor *decl = &b->p->tensors[param];
    Claim claim;
    LG_TRY(check_dtype(b, decl, t));
    LG_TRY(check_shape(b, decl, source, t, first_axis, &claim));
    return add_claim(b, claim, param, layer);
}

/* "{X}": the tensors of all experts. */
static LgStatus take_stack(Binder *b, int param, int layer, const LangSource *source,
                           ParamBinding *out) {
    const LangTensor *decl = &b->p->tensors[param];
    uint64_t count = b->p->dims[decl->stack_dim].size;
    const Tensor **stacked = arena_array(b->arena, (size_t)count, sizeof(void *));
    if (!stacked)
        return lg_fail_memory(b->err);
    for (uint64_t x = 0; x < count; x++) {
        LG_TRY(expand_name(b, source->name, decl->stack_dim, layer, x));
        stacked[x] = tensor_set_find(b->set, buf_view(&b->name));
        if (!stacked[x])
            return lang_refuse(b->p, decl->line, 0, b->err,
                               "cannot bind %.*s: the checkpoint has no \"%s\", although it has "
                               "the first of these %llu. All of them are needed",
                               LG_STR_ARG(decl->name), message_name(buf_view(&b->name)).text,
                               (unsigned long long)count);
        LG_TRY(take_tensor(b, param, layer, source, stacked[x], 1));
    }
    out->stacked = stacked;
    return LG_OK;
}

static bool source_is_stacked(const Binder *b, const LangTensor *decl, const LangSource *source) {
    if (decl->stack_dim < 0)
        return false;
    LgStr dim = b->p->dims[decl->stack_dim].name;
    LgStr name = source->name;
    for (size_t i = 0; i + dim.len + 2 <= name.len; i++)
        if (name.ptr[i] == '{' && name.ptr[i + dim.len + 1] == '}' &&
            lg_str_eq(lg_str_sub(name, i + 1, dim.len), dim))
            return true;
    return false;
}

/* The first source that exists; *alias is the param to copy from, or -1. */
static LgStatus bind_one(Binder *b, int param, int layer, int *alias) {
    const LangTensor *decl = &b->p->tensors[param];
    ParamBinding *out = &b->params[slot_of(b, param, layer)];
    *alias = -1;
    for (int i = 0; i < decl->source_count; i++) {
        const LangSource *source = &decl->sources[i];
        if (source->kind == LANG_SOURCE_PARAM) {
            *alias = source->param;
            return LG_OK;
        }
        if (source->kind == LANG_SOURCE_NUMBER) {
            out->constant = source->number;
            return LG_OK;
        }
        bool stacked = source_is_stacked(b, decl, source);
        LG_TRY(expand_name(b, source->name, decl->stack_dim, layer, 0));
        const Tensor *t = tensor_set_find(b->set, buf_view(&b->name));
        if (!t)
            continue;
        out->from_row = source->windowed ? source->from_row : 0;
        if (stacked)
            return take_stack(b, param, layer, source, out);
        out->tensor = t;
        return take_tensor(b, param, layer, source, t, 0);
    }
    if (decl->source_count > 0)
        LG_TRY(expand_name(b, decl->sources[0].name, decl->stack_dim, layer, 0));
    return lang_refuse(b->p, decl->line, 0, b->err,
                       "cannot bind %.*s: the checkpoint has no \"%s\"%s. A tensor of that name is "
                       "needed, or another source behind `or`",
                       LG_STR_ARG(decl->name), message_name(buf_view(&b->name)).text,
                       decl->source_count > 1 ? ", nor any other of its sources" : "");
}

static LgStatus bind_tensors(Binder *b, int *aliases) {
    for (int i = 0; i < b->p->tensor_count; i++) {
        const LangTensor *decl = &b->p->tensors[i];
        aliases[i] = -1;
        if (decl->kind != LANG_PARAM)
            continue;
        for (int layer = 0; layer < (decl->in_layer ? b->layers : 1); layer++) {
            int alias;
            LG_TRY(bind_one(b, i, layer, &alias));
            b->bound[slot_of(b, i, layer)] = alias < 0;
            if (alias >= 0)
                aliases[i] = alias;
        }
    }
    return LG_OK;
}

static bool same_axes(const LangProgram *p, const LangTensor *a, const LangTensor *b) {
    if (a->axis_count != b->axis_count)
        return false;
    for (int i = 0; i < a->axis_count; i++)
        if (axis_size(p, a, i) != axis_size(p, b, i))
            return false;
    return true;
}

/* Params that stand for another one; chains are followed, circles refused. */
static LgStatus bind_aliases(Binder *b, const int *aliases) {
    for (int i = 0; i < b->p->tensor_count; i++) {
        const LangTensor *decl = &b->p->tensors[i];
        if (aliases[i] < 0)
            continue;
        int root = i;
        for (int hops = 0; aliases[root] >= 0; hops++) {
            if (hops > b->p->tensor_count)
                return lang_refuse(
                    b->p, decl->line, 0, b->err,
                    "cannot bind %.*s: it stands for itself. Name a tensor somewhere "
                    "in the circle",
                    LG_STR_ARG(decl->name));
            root = aliases[root];
        }
        const LangTensor *target = &b->p->tensors[root];
        if (!same_axes(b->p, decl, target))
            return lang_refuse(
                b->p, decl->line, 0, b->err,
                "cannot bind %.*s: %.*s has other stored axes. Both must be declared "
                "with the same",
                LG_STR_ARG(decl->name), LG_STR_ARG(target->name));
        for (int layer = 0; layer < (decl->in_layer ? b->layers : 1); layer++)
            if (!b->bound[slot_of(b, i, layer)])
                b->params[slot_of(b, i, layer)] =
                    b->params[slot_of(b, root, target->in_layer ? layer : 0)];
    }
    return LG_OK;
}

static int claim_order(const void *x, const void *y) {
    const Claim *a = x, *b = y;
    if (a->tensor != b->tensor)
        return (uintptr_t)a->tensor < (uintptr_t)b->tensor ? -1 : 1;
    if (a->from != b->from)
        return a->from < b->from ? -1 : 1;
    return a->param - b->param;
}

/* The claims of one tensor, sorted, must follow each other from its first row to its last. */
static LgStatus check_tiling(Binder *b, const Claim *claims, size_t count) {
    uint64_t at = 0;
    for (size_t i = 0; i <= count; i++) {
        uint64_t from = i < count ? claims[i].from : claims[0].axis;
        const LangTensor *decl = &b->p->tensors[claims[i < count ? i : count - 1].param];
        MessageName name = message_name(claims[0].tensor->name);
        if (from < at) {
            const LangTensor *before = &b->p->tensors[claims[i - 1].param];
            return lang_refuse(b->p, decl->line, 0, b->err,
                               "cannot bind %.*s: \"%s\" is bound already by %.*s (line %d). A "
                               "tensor is bound once; to share it write the other param's name",
                               LG_STR_ARG(decl->name), name.text, LG_STR_ARG(before->name),
                               before->line);
        }
        if (from > at)
            return lang_refuse(b->p, decl->line, 0, b->err,
                               "cannot bind %.*s: no param binds rows %llu to %llu of \"%s\". The "
                               "windows must tile the stored axis",
                               LG_STR_ARG(decl->name), (unsigned long long)at,
                               (unsigned long long)from, name.text);
        if (i < count)
            at = claims[i].from + claims[i].rows;
    }
    return LG_OK;
}

static bool is_claimed(const Binder *b, const Tensor *t) {
    size_t low = 0, high = b->claim_count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if ((uintptr_t)b->claims[mid].tensor < (uintptr_t)t)
            low = mid + 1;
        else
            high = mid;
    }
    return low < b->claim_count && b->claims[low].tensor == t;
}

static LgStatus disregard(Binder *b, LgStr name, const char *why) {
    if (b->disregarded_count == b->disregarded_cap) {
        int cap = b->disregarded_cap ? b->disregarded_cap * 2 : 8;
        LgStr *grown = arena_grow(b->arena, b->disregarded, (size_t)b->disregarded_count,
                                  (size_t)cap, sizeof *grown);
        if (!grown)
            return lg_fail_memory(b->err);
        b->disregarded = grown;
        b->disregarded_cap = cap;
    }
    const char *text = arena_printf(b->arena, "%.*s: %s", LG_STR_ARG(name), why);
    if (!text)
        return lg_fail_memory(b->err);
    b->disregarded[b->disregarded_count++] = lg_str(text);
    return LG_OK;
}

/* Same numbers: the same bytes, or, where the types differ, the same rows. */
static LgStatus tensors_equal(Binder *b, const Tensor *x, const Tensor *y, bool *equal) {
    *equal = false;
    if (x->rank != y->rank || !dtype_info(x->dtype)->served)
        return LG_OK;
    for (int i = 0; i < x->rank; i++)
        if (x->shape[i] != y->shape[i])
            return LG_OK;
    if (x->dtype == y->dtype && x->rope_heads == y->rope_heads && x->added == y->added &&
        !x->scale && !y->scale) {
        *equal = x->bytes == y->bytes && memcmp(x->data, y->data, (size_t)x->bytes) == 0;
        return LG_OK;
    }
    size_t columns = (size_t)(x->rank ? x->shape[x->rank - 1] : 1);
    uint64_t rows = columns ? tensor_elems(x) / columns : 0;
    float *row = lg_alloc_array(columns, 2 * sizeof *row);
    if (!row)
        return lg_fail_memory(b->err);
    *equal = true;
    for (uint64_t r = 0; r < rows && *equal; r++) {
        tensor_row_f32(x, r, row);
        tensor_row_f32(y, r, row + columns);
        *equal = memcmp(row, row + columns, columns * sizeof *row) == 0;
    }
    lg_free(row);
    return LG_OK;
}

/* A tied param's own tensor may lie in the checkpoint beside the one it stands for, as long as it
 * says the same. */
static LgStatus excuse_tied(Binder *b, const int *aliases, const Tensor *t, bool *excused) {
    for (int i = 0; i < b->p->tensor_count; i++) {
        const LangTensor *decl = &b->p->tensors[i];
        if (aliases[i] < 0 || decl->module.len == 0)
            continue;
        for (int layer = 0; layer < (decl->in_layer ? b->layers : 1); layer++) {
            LG_TRY(expand_name(b, decl->module, -1, layer, 0));
            buf_puts(&b->name, ".weight");
            if (b->name.failed)
                return lg_fail_memory(b->err);
            const Tensor *shared = b->params[slot_of(b, i, layer)].tensor;
            if (!shared || !lg_str_eq(buf_view(&b->name), t->name))
                continue;
            bool equal;
            LG_TRY(tensors_equal(b, t, shared, &equal));
            if (!equal)
                return lang_refuse(b->p, decl->line, 0, b->err,
                                   "cannot bind %.*s: the config ties it to \"%s\", but the "
                                   "checkpoint's \"%s\" differs from that. Only an equal copy may "
                                   "be disregarded",
                                   LG_STR_ARG(decl->name), message_name(shared->name).text,
                                   message_name(t->name).text);
            *excused = true;
            const char *why =
                arena_printf(b->arena, "equals the tied %.*s", LG_STR_ARG(shared->name));
            return why ? disregard(b, t->name, why) : lg_fail_memory(b->err);
        }
    }
    return LG_OK;
}

static LgStatus check_claims(Binder *b, const int *aliases) {
    if (b->claim_count > 1)
        qsort(b->claims, b->claim_count, sizeof *b->claims, claim_order);
    for (size_t i = 0, end; i < b->claim_count; i = end) {
        for (end = i + 1; end < b->claim_count && b->claims[end].tensor == b->claims[i].tensor;)
            end++;
        LG_TRY(check_tiling(b, b->claims + i, end - i));
    }
    size_t unclaimed = 0;
    char names[UNCLAIMED_NAMED_MAX * (MESSAGE_NAME_MAX + 16)] = "";
    for (size_t i = 0; i < tensor_set_count(b->set); i++) {
        const Tensor *t = tensor_set_at(b->set, i);
        if (is_claimed(b, t))
            continue;
        bool excused = false;
        if (lg_str_ends(t->name, "rotary_emb.inv_freq")) {
            excused = true;
            LG_TRY(disregard(b, t->name, "the program computes the frequencies"));
        } else {
            LG_TRY(excuse_tied(b, aliases, t, &excused));
        }
        if (excused)
            continue;
        if (unclaimed++ < UNCLAIMED_NAMED_MAX) {
            size_t at = strlen(names);
            snprintf(names + at, sizeof names - at, "%s\"%s\"", at ? ", " : "",
                     message_name(t->name).text);
        }
    }
    if (unclaimed == 0)
        return LG_OK;
    return lg_fail(
        b->err, LG_BAD_INPUT, 0,
        "%.*s: cannot bind the checkpoint: no param binds %zu of its tensors: %s%s. Every "
        "tensor must be claimed by a param",
        LG_STR_ARG(b->p->file), unclaimed, names, unclaimed > UNCLAIMED_NAMED_MAX ? ", …" : "");
}

LgStatus bind_params(const LangProgram *p, const TensorSet *tensors, Arena *arena, Binding **out,
                     LgError *err) {
    Binder b = {.p = p, .set = tensors, .arena = arena, .err = err};
    b.layers = p->layer_count > 0 ? p->layer_count : 1;
    buf_init(&b.name);
    size_t tensor_count = (size_t)p->tensor_count;
    size_t slots = tensor_count * (size_t)b.layers;
    Binding *binding = ARENA_NEW(arena, Binding);
    b.params = ARENA_ARRAY(arena, ParamBinding, slots);
    b.bound = lg_calloc(slots, sizeof *b.bound);
    int *aliases = lg_calloc(tensor_count, sizeof *aliases);
    LgStatus status = LG_OK;
    if (!binding || !b.params || !b.bound || !aliases)
        status = lg_fail_memory(err);
    if (status == LG_OK)
        status = bind_tensors(&b, aliases);
    if (status == LG_OK)
        status = bind_aliases(&b, aliases);
    if (status == LG_OK)
        status = check_claims(&b, aliases);
    if (status == LG_OK) {
        for (size_t i = 0; i < tensor_count; i++)
            for (int layer = 1; layer < b.layers && !p->tensors[i].in_layer; layer++)
                b.params[i * (size_t)b.layers + (size_t)layer] = b.params[i * (size_t)b.layers];
        *binding = (Binding){.layer_count = p->layer_count,
                             .params = b.params,
                             .disregarded = b.disregarded,
                             .disregarded_count = b.disregarded_count};
        *out = binding;
    }
    lg_free(aliases);
    lg_free(b.bound);
    lg_free(b.claims);
    buf_clear(&b.name);
    return status;
}

const Tensor *binding_row(const ParamBinding *b, const LangProgram *p, int tensor, uint64_t *row) {
    const LangTensor *decl = &p->tensors[tensor];
    int axes = decl->axis_count;
    const Tensor *t = b->tensor;
    if (b->stacked) {
        uint64_t per_expert = 1;
        for (int a = 1; a < axes - 1; a++)
            per_expert *= axis_size(p, decl, a);
        t = b->stacked[*row / per_expert];
        *row %= per_expert;
    }
    if (t && t->rank > 1) {
        uint64_t declared = axis_size(p, decl, decl->axis_count - 2);
        uint64_t stored = t->shape[t->rank - 2];
        *row = *row / declared * stored + b->from_row + *row % declared;
    }
    return t;
}

void binding_row_f32(const ParamBinding *b, const LangProgram *p, int tensor, uint64_t row,
                     float *out) {
    const LangTensor *decl = &p->tensors[tensor];
    uint64_t columns = axis_size(p, decl, decl->axis_count - 1);
    const Tensor *t = binding_row(b, p, tensor, &row);
    if (!t) {
        for (uint64_t i = 0; i < columns; i++)
            out[i] = (float)b->constant;
        return;
    }
    if (t->rank == 1 && t->shape[0] != columns) {
        const DTypeInfo *info = dtype_info(t->dtype);
        info->to_f32(t->data + b->from_row * info->block_bytes, out, (size_t)columns);
        return;
    }
    tensor_row_f32(t, row, out);
}
