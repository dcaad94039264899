/* Arithmetic and comparison. Integers have 64 bits; what leaves them is an error, not a wrong
 * number. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "chat/run.h"

static const char *const op_texts[] = {"+",  "-",  "~", "*",  "/", "//", "%",  "**",
                                       "==", "!=", "<", "<=", ">", ">=", "in", "not in"};

static LgStatus fail_operands(TplRun *r, TplOp op, TplValue a, TplValue b) {
    if (a.kind == TPL_UNDEFINED || b.kind == TPL_UNDEFINED)
        return tpl_use_undefined(r, a.kind == TPL_UNDEFINED ? a : b);
    return tpl_fail(r, "%s does not go with a %s and a %s", op_texts[op], tpl_type_name(a),
                    tpl_type_name(b));
}

static LgStatus fail_overflow(TplRun *r, TplOp op) {
    return tpl_fail(r, "%s: the result is no integer of 64 bits", op_texts[op]);
}

static LgStatus power(TplRun *r, int64_t base, int64_t exponent, TplValue *out) {
    int64_t result = 1;
    if (exponent < 0) {
        if (base == 0)
            return tpl_fail(r, "**: 0 to a negative power");
        *out = tpl_float(pow((double)base, (double)exponent));
        return LG_OK;
    }
    while (exponent > 0) {
        if ((exponent & 1) && __builtin_mul_overflow(result, base, &result))
            return fail_overflow(r, TPL_POW);
        exponent >>= 1;
        if (exponent && __builtin_mul_overflow(base, base, &base))
            return fail_overflow(r, TPL_POW);
    }
    *out = tpl_int(result);
    return LG_OK;
}

/* Division rounds down, and the remainder has the divisor's sign. */
static LgStatus divide(TplRun *r, TplOp op, int64_t a, int64_t b, TplValue *out) {
    if (b == 0)
        return tpl_fail(r, "%s: division by zero", op_texts[op]);
    if (op == TPL_DIV) {
        *out = tpl_float((double)a / (double)b);
        return LG_OK;
    }
    if (a == INT64_MIN && b == -1) {
        if (op != TPL_MOD)
            return fail_overflow(r, op);
        *out = tpl_int(0);
        return LG_OK;
    }
    int64_t quotient = a / b, rest = a % b;
    if (rest != 0 && (rest < 0) != (b < 0)) {
        quotient--;
        rest += b;
    }
    *out = tpl_int(op == TPL_MOD ? rest : quotient);
    return LG_OK;
}

static LgStatus integers(TplRun *r, TplOp op, int64_t a, int64_t b, TplValue *out) {
    int64_t result = 0;
    bool overflow;
    switch (op) {
    case TPL_ADD:
        overflow = __builtin_add_overflow(a, b, &result);
        break;
    case TPL_SUB:
        overflow = __builtin_sub_overflow(a, b, &result);
        break;
    case TPL_MUL:
        overflow = __builtin_mul_overflow(a, b, &result);
        break;
    case TPL_POW:
        return power(r, a, b, out);
    default:
        return divide(r, op, a, b, out);
    }
    if (overflow)
        return fail_overflow(r, op);
    *out = tpl_int(result);
    return LG_OK;
}

static LgStatus reals(TplRun *r, TplOp op, double a, double b, TplValue *out) {
    double result = 0;
    if ((op == TPL_DIV || op == TPL_FLOORDIV || op == TPL_MOD) && b == 0)
        return tpl_fail(r, "%s: division by zero", op_texts[op]);
    double rest = op == TPL_FLOORDIV || op == TPL_MOD ? fmod(a, b) : 0;
    if (rest != 0 && (rest < 0) != (b < 0))
        rest += b;
    switch (op) {
    case TPL_ADD:
        result = a + b;
        break;
    case TPL_SUB:
        result = a - b;
        break;
    case TPL_MUL:
        result = a * b;
        break;
    case TPL_DIV:
        result = a / b;
        break;
    case TPL_FLOORDIV:
        result = floor((a - rest) / b + 0.5);
        break;
    case TPL_MOD:
        result = rest;
        break;
    default:
        result = pow(a, b);
    }
    *out = tpl_float(result);
    return LG_OK;
}

/* a + b as text; grows the last such text where a is it, so that building one up bit by bit is not
 * quadratic. */
static LgStatus join(TplRun *r, LgStr a, LgStr b, TplValue *out) {
    LG_TRY(tpl_step(r, 1 + b.len / 64));
    if (a.len > TPL_OUTPUT_BYTES_MAX || b.len > TPL_OUTPUT_BYTES_MAX - a.len)
        return lg_fail(r->err, LG_LIMIT, r->line,
                       "chat template: line %u: a text of more than %zu bytes", r->line,
                       TPL_OUTPUT_BYTES_MAX);
    size_t len = a.len + b.len;
    if (!r->tail || a.ptr != r->tail || a.len != r->tail_len || len > r->tail_cap) {
        LG_TRY(tpl_step(r, a.len / 64));
        size_t cap = len < 64 ? len : len * 2;
        char *text = arena_alloc(&r->arena, cap + 1);
        if (!text)
            return tpl_fail_memory(r);
        if (a.len)
            memcpy(text, a.ptr, a.len);
        r->tail = text;
        r->tail_cap = cap;
    }
    if (b.len)
        memmove(r->tail + a.len, b.ptr, b.len); /* b may be a part of a */
    r->tail_len = len;
    *out = tpl_str((LgStr){r->tail, len});
    return LG_OK;
}

static LgStatus add_seqs(TplRun *r, const TplSeq *a, const TplSeq *b, TplValue *out) {
    LG_TRY(tpl_new_seq(r, a->kind, a->count + b->count, out));
    TplValue *items = out->as.seq->items;
    if (a->count)
        memcpy(items, a->items, a->count * sizeof *items);
    if (b->count)
        memcpy(items + a->count, b->items, b->count * sizeof *items);
    return LG_OK;
}

static LgStatus repeat(TplRun *r, TplValue v, int64_t times, TplValue *out) {
    size_t len = v.kind == TPL_STR ? v.as.str.len : v.as.seq->count;
    size_t count = times > 0 ? (size_t)times : 0;
    if (len && count > TPL_OUTPUT_BYTES_MAX / len)
        return lg_fail(r->err, LG_LIMIT, r->line,
                       "chat template: line %u: a repetition of more than %zu items", r->line,
                       TPL_OUTPUT_BYTES_MAX);
    if (v.kind == TPL_SEQ) {
        LG_TRY(tpl_new_seq(r, v.as.seq->kind, len * count, out));
        for (size_t i = 0; i < len * count; i++)
            out->as.seq->items[i] = v.as.seq->items[i % len];
        return LG_OK;
    }
    Buf text;
    buf_init(&text);
    for (size_t i = 0; len && i < count; i++)
        buf_str(&text, v.as.str);
    return tpl_take_str(r, &text, out);
}

static bool is_list(TplValue v) {
    return v.kind == TPL_SEQ && v.as.seq->kind <= TPL_TUPLE;
}

static LgStatus add_texts(TplRun *r, TplValue a, TplValue b, TplValue *out) {
    bool safe = a.safe || b.safe;
    if (safe) {
        LG_TRY(tpl_make_safe(r, a, &a));
        LG_TRY(tpl_make_safe(r, b, &b));
    }
    LG_TRY(join(r, a.as.str, b.as.str, out));
    out->safe = safe;
    return LG_OK;
}

LgStatus tpl_binary(TplRun *r, TplOp op, TplValue a, TplValue b, TplValue *out) {
    if (op == TPL_CONCAT) {
        LgStr left, right;
        LG_TRY(tpl_text(r, a, &left));
        LG_TRY(tpl_text(r, b, &right));
        return join(r, left, right, out);
    }
    if (tpl_is_integer(a) && tpl_is_integer(b))
        return integers(r, op, tpl_integer(a), tpl_integer(b), out);
    if (tpl_is_number(a) && tpl_is_number(b))
        return reals(r, op, tpl_real(a), tpl_real(b), out);
    if (op == TPL_ADD && a.kind == TPL_STR && b.kind == TPL_STR)
        return add_texts(r, a, b, out);
    if (op == TPL_ADD && is_list(a) && is_list(b) && a.as.seq->kind == b.as.seq->kind)
        return add_seqs(r, a.as.seq, b.as.seq, out);
    if (op == TPL_MUL && (a.kind == TPL_STR || is_list(a)) && tpl_is_integer(b))
        return repeat(r, a, tpl_integer(b), out);
    if (op == TPL_MUL && (b.kind == TPL_STR || is_list(b)) && tpl_is_integer(a))
        return repeat(r, b, tpl_integer(a), out);
    if (op == TPL_MOD && a.kind == TPL_STR)
        return tpl_fail(r, "%% for formatting is not served; ~ puts texts together");
    return fail_operands(r, op, a, b);
}

LgStatus tpl_compare(TplRun *r, TplOp op, TplValue a, TplValue b, bool *out) {
    int order;
    switch (op) {
    case TPL_EQ:
    case TPL_NE:
        LG_TRY(tpl_equal(r, a, b, out));
        *out = *out == (op == TPL_EQ);
        return LG_OK;
    case TPL_IN:
    case TPL_NOT_IN:
        LG_TRY(tpl_contains(r, b, a, out));
        *out = *out == (op == TPL_IN);
        return LG_OK;
    default:
        LG_TRY(tpl_order(r, a, b, &order));
        *out = op == TPL_LT   ? order < 0
               : op == TPL_LE ? order <= 0
               : op == TPL_GT ? order > 0
                              : order >= 0;
        return LG_OK;
    }
}
