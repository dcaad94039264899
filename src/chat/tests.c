/* What stands behind `is`. */
#include <string.h>

#include "chat/run.h"
#include "chat/strings.h"

static LgStatus t_defined(TplRun *r, TplValue v, TplValue other, bool *out) {
    (void)r, (void)other;
    *out = v.kind != TPL_UNDEFINED;
    return LG_OK;
}

static LgStatus t_undefined(TplRun *r, TplValue v, TplValue other, bool *out) {
    (void)r, (void)other;
    *out = v.kind == TPL_UNDEFINED;
    return LG_OK;
}

static LgStatus t_none(TplRun *r, TplValue v, TplValue other, bool *out) {
    (void)r, (void)other;
    *out = v.kind == TPL_NONE;
    return LG_OK;
}

static LgStatus t_boolean(TplRun *r, TplValue v, TplValue other, bool *out) {
    (void)r, (void)other;
    *out = v.kind == TPL_BOOL;
    return LG_OK;
}

static LgStatus t_true(TplRun *r, TplValue v, TplValue other, bool *out) {
    (void)r, (void)other;
    *out = v.kind == TPL_BOOL && v.as.boolean;
    return LG_OK;
}

static LgStatus t_false(TplRun *r, TplValue v, TplValue other, bool *out) {
    (void)r, (void)other;
    *out = v.kind == TPL_BOOL && !v.as.boolean;
    return LG_OK;
}

static LgStatus t_integer(TplRun *r, TplValue v, TplValue other, bool *out) {
    (void)r, (void)other;
    *out = v.kind == TPL_INT;
    return LG_OK;
}

static LgStatus t_float(TplRun *r, TplValue v, TplValue other, bool *out) {
    (void)r, (void)other;
    *out = v.kind == TPL_FLOAT;
    return LG_OK;
}

static LgStatus t_number(TplRun *r, TplValue v, TplValue other, bool *out) {
    (void)r, (void)other;
    *out = tpl_is_number(v);
    return LG_OK;
}

static LgStatus t_string(TplRun *r, TplValue v, TplValue other, bool *out) {
    (void)r, (void)other;
    *out = v.kind == TPL_STR;
    return LG_OK;
}

static LgStatus t_mapping(TplRun *r, TplValue v, TplValue other, bool *out) {
    (void)r, (void)other;
    *out = v.kind == TPL_DICT;
    return LG_OK;
}

static LgStatus t_iterable(TplRun *r, TplValue v, TplValue other, bool *out) {
    (void)r, (void)other;
    *out = v.kind == TPL_UNDEFINED || v.kind == TPL_STR || v.kind == TPL_SEQ ||
           v.kind == TPL_DICT || v.kind == TPL_LOOP;
    return LG_OK;
}

/* What has a length and items by index; Jinja's undefined value has both by its looks. */
static LgStatus t_sequence(TplRun *r, TplValue v, TplValue other, bool *out) {
    (void)r, (void)other;
    *out = v.kind == TPL_UNDEFINED || v.kind == TPL_STR || v.kind == TPL_DICT ||
           (v.kind == TPL_SEQ && v.as.seq->kind <= TPL_RANGE);
    return LG_OK;
}

static LgStatus t_callable(TplRun *r, TplValue v, TplValue other, bool *out) {
    (void)r, (void)other;
    *out = v.kind >= TPL_LOOP || v.kind == TPL_UNDEFINED;
    return LG_OK;
}

static LgStatus divides(TplRun *r, TplValue v, TplValue divisor, bool *out) {
    TplValue rest;
    if (!tpl_is_number(v) || !tpl_is_number(divisor))
        return tpl_fail(r, "odd, even, divisibleby: a %s and a %s are no two numbers",
                        tpl_type_name(v), tpl_type_name(divisor));
    LG_TRY(tpl_binary(r, TPL_MOD, v, divisor, &rest));
    *out = !tpl_truth(rest);
    return LG_OK;
}

static LgStatus t_even(TplRun *r, TplValue v, TplValue other, bool *out) {
    (void)other;
    return divides(r, v, tpl_int(2), out);
}

/* A remainder of exactly 1: 2.5 is neither odd nor even. */
static LgStatus t_odd(TplRun *r, TplValue v, TplValue other, bool *out) {
    TplValue rest = tpl_none();
    LG_TRY(t_even(r, v, other, out));
    LG_TRY(tpl_binary(r, TPL_MOD, v, tpl_int(2), &rest));
    return tpl_equal(r, rest, tpl_int(1), out);
}

static LgStatus t_divisibleby(TplRun *r, TplValue v, TplValue other, bool *out) {
    return divides(r, v, other, out);
}

static LgStatus cased(TplRun *r, TplValue v, TplCase as, bool *out) {
    LgStr s;
    LG_TRY(tpl_text(r, v, &s));
    *out = tpl_is_cased(s, as);
    return LG_OK;
}

static LgStatus t_upper(TplRun *r, TplValue v, TplValue other, bool *out) {
    (void)other;
    return cased(r, v, TPL_UPPER, out);
}

static LgStatus t_lower(TplRun *r, TplValue v, TplValue other, bool *out) {
    (void)other;
    return cased(r, v, TPL_LOWER, out);
}

/* Identity. Numbers and texts have none here: equal ones of one type are taken for the same. */
static LgStatus t_sameas(TplRun *r, TplValue v, TplValue other, bool *out) {
    *out = v.kind == other.kind;
    if (*out && v.kind == TPL_SEQ)
        *out = v.as.seq == other.as.seq;
    else if (*out && v.kind == TPL_DICT)
        *out = v.as.dict == other.as.dict;
    else if (*out)
        return tpl_equal(r, v, other, out);
    return LG_OK;
}

static LgStatus t_eq(TplRun *r, TplValue v, TplValue other, bool *out) {
    return tpl_compare(r, TPL_EQ, v, other, out);
}

static LgStatus t_ne(TplRun *r, TplValue v, TplValue other, bool *out) {
    return tpl_compare(r, TPL_NE, v, other, out);
}

static LgStatus t_lt(TplRun *r, TplValue v, TplValue other, bool *out) {
    return tpl_compare(r, TPL_LT, v, other, out);
}

static LgStatus t_le(TplRun *r, TplValue v, TplValue other, bool *out) {
    return tpl_compare(r, TPL_LE, v, other, out);
}

static LgStatus t_gt(TplRun *r, TplValue v, TplValue other, bool *out) {
    return tpl_compare(r, TPL_GT, v, other, out);
}

static LgStatus t_ge(TplRun *r, TplValue v, TplValue other, bool *out) {
    return tpl_compare(r, TPL_GE, v, other, out);
}

static LgStatus t_in(TplRun *r, TplValue v, TplValue other, bool *out) {
    return tpl_compare(r, TPL_IN, v, other, out);
}

static const TplTest tests[] = {
    {"defined", 0, t_defined},
    {"undefined", 0, t_undefined},
    {"none", 0, t_none},
    {"boolean", 0, t_boolean},
    {"true", 0, t_true},
    {"false", 0, t_false},
    {"integer", 0, t_integer},
    {"float", 0, t_float},
    {"number", 0, t_number},
    {"string", 0, t_string},
    {"mapping", 0, t_mapping},
    {"iterable", 0, t_iterable},
    {"callable", 0, t_callable},
    {"sequence", 0, t_sequence},
    {"odd", 0, t_odd},
    {"even", 0, t_even},
    {"upper", 0, t_upper},
    {"lower", 0, t_lower},
    {"in", 1, t_in},
    {"divisibleby", 1, t_divisibleby},
    {"sameas", 1, t_sameas},
    {"eq", 1, t_eq},
    {"equalto", 1, t_eq},
    {"==", 1, t_eq},
    {"ne", 1, t_ne},
    {"!=", 1, t_ne},
    {"lt", 1, t_lt},
    {"lessthan", 1, t_lt},
    {"<", 1, t_lt},
    {"le", 1, t_le},
    {"<=", 1, t_le},
    {"gt", 1, t_gt},
    {"greaterthan", 1, t_gt},
    {">", 1, t_gt},
    {"ge", 1, t_ge},
    {">=", 1, t_ge},
};

const TplTest *tpl_test_find(LgStr name) {
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++)
        if (lg_str_eq_c(name, tests[i].name))
            return &tests[i];
    return NULL;
}

void tpl_test_names(Buf *out) {
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++)
        if (tests[i].name[0] >= 'a') /* the signs are for selectattr */
            buf_printf(out, "%s%s", out->len ? ", " : "", tests[i].name);
}
