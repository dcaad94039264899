#include "text/normalizer.h"

#include <string.h>

#include "text/normalize.h"

LgStatus normalizer_add(Normalizer *n, NormalStep step, LgError *err) {
    if (n->count == NORMALIZER_STEPS_MAX)
        return lg_fail(err, LG_LIMIT, 0, "normalizer: more than %d steps", NORMALIZER_STEPS_MAX);
    if (step.from.len > NORMALIZER_AFFIX_MAX || step.to.len > NORMALIZER_AFFIX_MAX)
        return lg_fail(err, LG_LIMIT, 0, "normalizer: a text of %zu bytes, limit %d",
                       step.from.len > step.to.len ? step.from.len : step.to.len,
                       NORMALIZER_AFFIX_MAX);
    if (step.kind == NORMAL_REPLACE && step.from.len == 0)
        return lg_fail(err, LG_BAD_INPUT, 0, "normalizer: Replace has an empty pattern");
    n->steps[n->count++] = step;
    return LG_OK;
}

void text_replace(LgStr text, LgStr from, LgStr to, Buf *out) {
    size_t done = 0;
    while (done < text.len) {
        const char *rest = text.ptr + done;
        const char *hit = memmem(rest, text.len - done, from.ptr, from.len);
        size_t kept = hit ? (size_t)(hit - rest) : text.len - done;
        buf_append(out, rest, kept);
        if (!hit || out->failed || out->len > NORMALIZER_TEXT_MAX)
            return;
        buf_str(out, to);
        done += kept + from.len;
    }
}

static LgStatus apply_step(const NormalStep *step, LgStr text, Buf *room, LgStr *out,
                           LgError *err) {
    *out = text;
    if (text.len == 0)
        return LG_OK;
    if (step->kind == NORMAL_NFC)
        return normalize_nfc(text, room, out, err);
    if (step->kind == NORMAL_REPLACE && !memmem(text.ptr, text.len, step->from.ptr, step->from.len))
        return LG_OK;
    buf_reset(room);
    if (step->kind == NORMAL_PREPEND) {
        buf_str(room, step->to);
        buf_str(room, text);
    } else {
        text_replace(text, step->from, step->to, room);
    }
    *out = buf_view(room);
    if (room->failed)
        return lg_fail_memory(err);
    return out->len <= NORMALIZER_TEXT_MAX
               ? LG_OK
               : lg_fail(err, LG_LIMIT, 0, "text: more than %zu bytes behind the normalizer",
                         NORMALIZER_TEXT_MAX);
}

LgStatus normalizer_apply(const Normalizer *n, LgStr text, Buf rooms[2], LgStr *out, LgError *err) {
    size_t next = 0; /* the room that does not hold the text */
    for (size_t i = 0; i < n->count; i++) {
        LgStr before = text;
        LG_TRY(apply_step(&n->steps[i], text, &rooms[next], &text, err));
        if (text.ptr != before.ptr)
            next ^= 1;
    }
    *out = text;
    return LG_OK;
}
