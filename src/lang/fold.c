/* What the config knows: keys, comparisons, and arithmetic on numbers. An absent key is null. */
#include "lang/check.h"

#include <math.h>

static int key_index(const Check *c, LgStr key) {
    size_t count = config_count(c->config);
    for (size_t i = 0; i < count; i++)
        if (lg_str_eq(config_key(c->config, i), key))
            return (int)i;
    return -1;
}

static bool is_below(LgStr key, LgStr parent) {
    return key.len > parent.len + 1 && key.ptr[parent.len] == '.' &&
           lg_str_eq(lg_str_sub(key, 0, parent.len), parent);
}

/* `rope_type: default` is how configs write that there is no scaling. */
static bool as_good_as_absent(LgStr key, const ConfigValue *v) {
    return v->kind == CONFIG_NULL ||
           (lg_str_eq_c(key, "rope_scaling.rope_type") && v->kind == CONFIG_STRING &&
            lg_str_eq_c(v->string, "default"));
}

typedef enum Nested { NESTED_NONE, NESTED_ABSENT, NESTED_LIVE } Nested;

/* A nested object is its dotted keys, and absent where all of them are. */
static Nested nested_state(const Check *c, LgStr parent) {
    Nested state = NESTED_NONE;
    for (size_t i = 0; i < config_count(c->config); i++) {
        LgStr key = config_key(c->config, i);
        if (!is_below(key, parent))
            continue;
        if (!as_good_as_absent(key, config_value(c->config, i)))
            return NESTED_LIVE;
        state = NESTED_ABSENT;
    }
    return state;
}

const ConfigValue *check_key(Check *c, LgStr key) {
    static const ConfigValue object = {.kind = CONFIG_BOOL, .boolean = true};
    Nested nested = nested_state(c, key);
    for (size_t k = 0; nested == NESTED_ABSENT && k < config_count(c->config); k++)
        if (is_below(config_key(c->config, k), key))
            c->claimed[k] = true;
    int i = key_index(c, key);
    if (i >= 0)
        c->claimed[i] = true;
    const ConfigValue *v = i >= 0 ? config_value(c->config, (size_t)i) : NULL;
    if (nested == NESTED_ABSENT || (v && as_good_as_absent(key, v)))
        return NULL;
    return v ? v : nested == NESTED_LIVE ? &object : NULL;
}

bool fold_compare(const ConfigValue *found, const ConfigValue *wanted) {
    if (wanted->kind == CONFIG_NULL)
        return !found;
    if (wanted->kind == CONFIG_BOOL && !wanted->boolean && !found)
        return true;
    return found && config_value_eq(found, wanted);
}

bool fold_refuse_absent(Check *c, const Fold *f) {
    const Symbol *s = check_find(c, f->absent);
    if (s && s->kind == SYMBOL_TENSOR)
        return diag_refuse(&c->diag, f->at.line, f->at.column,
                           "cannot use %s here: it is a tensor and has indexes. A number, a dim, a "
                           "const or a config key is accepted.",
                           diag_text(f->absent).text);
    return diag_refuse(&c->diag, f->at.line, f->at.column,
                       "cannot give %s a value: it is no index here, no dim, no const, and the "
                       "config has no such key. A defined name is accepted, or a default after "
                       "`or` in a dim or const.",
                       diag_text(f->absent).text);
}

static bool refuse_kind(Check *c, AstName at, const char *wanted) {
    return diag_refuse(&c->diag, at.line, at.column,
                       "cannot use %s here: its value is not %s. A key whose value is %s is "
                       "accepted.",
                       diag_text(at.text).text, wanted, wanted);
}

/* list[l]: the layer's entry of a config list. */
static FoldResult layer_entry(Check *c, Fold *f, const AstIndex *ref, ConfigValue *out) {
    const AstIndexes *in = &ref->indexes;
    AstName at = ref->name;
    bool by_layer = in->count == 1 && in->items[0].name.text.len && !in->items[0].bracketed &&
                    f->layer >= 0 && lg_str_eq(in->items[0].name.text, f->index);
    if (!by_layer) {
        diag_refuse(&c->diag, at.line, at.column,
                    "cannot read %s[…] here: only the layer's index, in its scope, picks from a "
                    "per-layer value. `%s[l]` inside `layer l in L` or `const W[l]` is accepted.",
                    diag_text(at.text).text, diag_text(at.text).text);
        return FOLD_FAILED;
    }
    f->varies = true;
    const Symbol *s = check_find(c, at.text);
    if (s && s->kind == SYMBOL_CONST) {
        const CheckConst *k = &c->consts.items[s->id];
        *out =
            (ConfigValue){.kind = CONFIG_REAL, .real = k->values ? k->values[f->layer] : k->number};
        return FOLD_OK;
    }
    const ConfigValue *v = check_key(c, at.text);
    if (!v) {
        f->absent = at.text;
        f->at = at;
        return FOLD_ABSENT;
    }
    if (v->kind != CONFIG_LIST || v->count != (size_t)c->layer_count) {
        diag_refuse(&c->diag, at.line, at.column,
                    "cannot read %s[%.*s]: the config's value is no list with one entry for each "
                    "of the %d layers. Such a list is accepted.",
                    diag_text(at.text).text, LG_STR_ARG(f->index), c->layer_count);
        return FOLD_FAILED;
    }
    *out = v->items[f->layer];
    return FOLD_OK;
}

/* The value of a name: the layer's index, a dim, a const, a config key. Null is FOLD_ABSENT. */
FoldResult fold_value(Check *c, Fold *f, const AstIndex *ref, ConfigValue *out) {
    if (ref->bracketed)
        return layer_entry(c, f, ref, out);
    LgStr name = ref->name.text;
    if (f->layer >= 0 && lg_str_eq(name, f->index)) {
        f->varies = true;
        *out = (ConfigValue){.kind = CONFIG_REAL, .real = f->layer};
        return FOLD_OK;
    }
    const Symbol *s = check_find(c, name);
    *out = (ConfigValue){.kind = CONFIG_REAL};
    if (s && s->kind == SYMBOL_DIM) {
        const LangDim *d = &c->dims.items[s->id];
        out->real = d->runtime ? (double)INFINITY : (double)d->size;
        return FOLD_OK;
    }
    if (s && s->kind == SYMBOL_CONST) {
        const CheckConst *k = &c->consts.items[s->id];
        if (k->values && f->layer < 0) {
            diag_refuse(&c->diag, ref->name.line, ref->name.column,
                        "cannot read %s here: it differs between layers. It is accepted inside the "
                        "layer block.",
                        diag_text(name).text);
            return FOLD_FAILED;
        }
        f->varies = f->varies || k->values;
        out->real = k->values ? k->values[f->layer] : k->number;
        return FOLD_OK;
    }
    const ConfigValue *v = s ? NULL : check_key(c, name);
    if (!v) {
        f->absent = name;
        f->at = ref->name;
        return FOLD_ABSENT;
    }
    *out = *v;
    return FOLD_OK;
}

FoldResult fold_ref(Check *c, Fold *f, const AstIndex *ref, double *out) {
    ConfigValue v;
    FoldResult got = fold_value(c, f, ref, &v);
    if (got != FOLD_OK)
        return got;
    if (v.kind == CONFIG_NULL) {
        f->absent = ref->name.text;
        f->at = ref->name;
        return FOLD_ABSENT;
    }
    if (v.kind != CONFIG_INT && v.kind != CONFIG_REAL)
        return refuse_kind(c, ref->name, "a number"), FOLD_FAILED;
    *out = v.kind == CONFIG_INT ? (double)v.integer : v.real;
    return FOLD_OK;
}

static bool by_size(AstCompare op, double a, double b) {
    switch (op) {
    case AST_LT:
        return a < b;
    case AST_LE:
        return a <= b;
    case AST_GT:
        return a > b;
    default:
        return a >= b;
    }
}

/* Two numbers, both of which must be there: what is absent has no size. */
static bool fold_by_size(Check *c, Fold *f, const AstCond *cond, bool *out) {
    double a = 0, b = 0;
    bool exact = f->exact;
    f->exact = false;
    FoldResult got = fold_ref(c, f, &cond->ref, &a);
    if (got == FOLD_OK)
        got = fold_number(c, f, cond->number, &b);
    f->exact = exact;
    *out = got == FOLD_OK && by_size(cond->op, a, b);
    if (got != FOLD_ABSENT || f->untaken)
        return got != FOLD_FAILED;
    return diag_refuse(&c->diag, f->at.line, f->at.column,
                       "cannot compare %s by size: it is no dim and no const, and the config has "
                       "no such key. A number that is there is accepted, or a const with a default "
                       "(`const C = %s or 0`).",
                       diag_text(f->absent).text, diag_text(f->absent).text);
}

bool fold_cond(Check *c, Fold *f, const AstCond *cond, bool *out) {
    if (cond->number)
        return fold_by_size(c, f, cond, out);
    ConfigValue v;
    FoldResult got = fold_value(c, f, &cond->ref, &v);
    if (got == FOLD_FAILED)
        return false;
    const ConfigValue *found = got == FOLD_OK && v.kind != CONFIG_NULL ? &v : NULL;
    if (cond->op == AST_TRUE) {
        if (found && found->kind != CONFIG_BOOL)
            return refuse_kind(c, cond->ref.name, "true or false");
        *out = found && found->boolean;
        return true;
    }
    bool number = found && (found->kind == CONFIG_INT || found->kind == CONFIG_REAL);
    if (found && cond->value.kind != CONFIG_NULL && found->kind != cond->value.kind &&
        !(number && cond->value.kind == CONFIG_REAL))
        return refuse_kind(c, cond->ref.name, "of the kind that it is compared with");
    *out = fold_compare(found, &cond->value) == (cond->op == AST_EQ);
    return true;
}

static double call_value(LangFn fn, double a, double b) {
    switch (fn) {
    case LANG_FN_EXP:
        return exp(a);
    case LANG_FN_LOG:
        return log(a);
    case LANG_FN_SQRT:
        return sqrt(a);
    case LANG_FN_RSQRT:
        return 1 / sqrt(a);
    case LANG_FN_SIN:
        return sin(a);
    case LANG_FN_COS:
        return cos(a);
    case LANG_FN_SIGMOID:
        return 1 / (1 + exp(-a));
    case LANG_FN_SILU:
        return a / (1 + exp(-a));
    case LANG_FN_TANH:
        return tanh(a);
    case LANG_FN_GELU:
        return 0.5 * a * (1 + erf(a * 0.70710678118654752440));
    case LANG_FN_GELU_TANH:
        return 0.5 * a * (1 + tanh(0.79788456080286535588 * (a + 0.044715 * a * a * a)));
    case LANG_FN_MIN:
        return a < b ? a : b;
    case LANG_FN_MAX:
        return a > b ? a : b;
    case LANG_FN_ABS:
        return fabs(a);
    case LANG_FN_FLOOR:
        return floor(a);
    case LANG_FN_CEIL:
        return ceil(a);
    case LANG_FN_COUNT:
        break;
    }
    return NAN;
}

static double operator_value(const AstExpr *e, double a, double b) {
    switch (e->kind) {
    case AST_NEG:
        return -a;
    case AST_ADD:
        return a + b;
    case AST_SUB:
        return a - b;
    case AST_MUL:
        return a * b;
    case AST_DIV:
        return a / b;
    case AST_POW:
        return pow(a, b);
    case AST_CALL:
        return call_value(e->fn, a, b);
    default:
        return NAN;
    }
}

static FoldResult fold_operator(Check *c, Fold *f, const AstExpr *e, double *out) {
    double v[AST_ARGS_MAX] = {0, 0};
    bool rounds = e->kind == AST_CALL && (e->fn == LANG_FN_FLOOR || e->fn == LANG_FN_CEIL);
    bool exact = f->exact;
    f->exact = exact && !rounds;
    FoldResult got = FOLD_OK;
    for (int i = 0; i < e->arg_count && got == FOLD_OK; i++)
        got = fold_number(c, f, e->args[i], &v[i]);
    f->exact = exact;
    if (got != FOLD_OK)
        return got;
    *out = operator_value(e, v[0], v[1]);
    if (isnan(*out) || (isinf(*out) && !isinf(v[0]) && !isinf(v[1]))) {
        diag_refuse(&c->diag, e->line, e->column,
                    "cannot compute this number: the result is not finite. Numbers in range are "
                    "accepted.");
        return FOLD_FAILED;
    }
    if (exact && e->kind == AST_DIV && (floor(*out) != *out || *out * v[1] != v[0])) {
        diag_refuse(
            &c->diag, e->line, e->column,
            "cannot divide %.15g by %.15g here: a dim is a whole number, and the division "
            "leaves a rest. An exact division is accepted, or floor(…) or ceil(…) around it.",
            v[0], v[1]);
        return FOLD_FAILED;
    }
    return FOLD_OK;
}

FoldResult fold_number(Check *c, Fold *f, const AstExpr *e, double *out) {
    switch (e->kind) {
    case AST_NUMBER:
        *out = e->number;
        return FOLD_OK;
    case AST_REF:
        return fold_ref(c, f, &e->ref, out);
    case AST_IF: {
        bool taken = false;
        if (!fold_cond(c, f, e->cond, &taken))
            return FOLD_FAILED;
        return fold_number(c, f, e->args[taken ? 0 : 1], out);
    }
    case AST_OR: {
        FoldResult got = fold_number(c, f, e->args[0], out);
        return got == FOLD_ABSENT ? fold_number(c, f, e->args[1], out) : got;
    }
    case AST_REDUCE:
        diag_refuse(&c->diag, e->line, e->column,
                    "cannot reduce here: this number must be known at compile time. Arithmetic on "
                    "numbers, dims, consts and config keys is accepted.");
        return FOLD_FAILED;
    default:
        return fold_operator(c, f, e, out);
    }
}

bool fold_required(Check *c, Fold *f, const AstExpr *e, double *out) {
    fold_claim(c, e);
    FoldResult got = fold_number(c, f, e, out);
    if (got == FOLD_ABSENT)
        return fold_refuse_absent(c, f);
    return got == FOLD_OK;
}

static void claim_name(Check *c, LgStr name) {
    if (!check_find(c, name))
        check_key(c, name);
}

void fold_claim_cond(Check *c, const AstCond *cond) {
    claim_name(c, cond->ref.name.text);
    if (cond->number)
        fold_claim(c, cond->number);
}

void fold_claim(Check *c, const AstExpr *e) {
    if (e->kind == AST_REF)
        claim_name(c, e->ref.name.text);
    if (e->cond)
        fold_claim_cond(c, e->cond);
    for (int i = 0; i < e->arg_count; i++)
        fold_claim(c, e->args[i]);
}
