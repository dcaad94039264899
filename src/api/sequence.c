/* Sequences of the public interface: the engine's, with their text. */
#include <math.h>
#include <string.h>

#include "api/internal.h"
#include "base/mem.h"

LgStatus lg_sequence_create(LgEngine *engine, const LgRequest *request, LgSequence **out,
                            LgError *error) {
    API_NEED(engine);
    API_NEED(request);
    API_NEED(out);
    if (request->adapter_count > 0)
        API_NEED(request->adapters);
    LgSequence *s = lg_calloc(1, sizeof *s);
    if (!s)
        return lg_fail_memory(error);
    buf_init(&s->text);
    s->engine = engine;
    LgStatus status = sequence_create(engine->engine, request, &s->sequence, error);
    if (status != LG_OK) {
        lg_sequence_destroy(s);
        return status;
    }
    s->next = engine->first;
    engine->first = s;
    *out = s;
    return LG_OK;
}

void lg_sequence_destroy(LgSequence *sequence) {
    if (!sequence)
        return;
    for (LgSequence **at = sequence->engine ? &sequence->engine->first : NULL; at && *at;
         at = &(*at)->next)
        if (*at == sequence) {
            *at = sequence->next;
            break;
        }
    sequence_destroy(sequence->sequence);
    buf_clear(&sequence->text);
    lg_free(sequence);
}

LgStatus lg_engine_step(LgEngine *engine, int32_t *active, LgError *error) {
    API_NEED(engine);
    return engine_step(engine->engine, active, error);
}

const int32_t *lg_sequence_ids(const LgSequence *sequence, size_t *count) {
    size_t n = 0;
    const int32_t *ids =
        sequence && sequence->sequence ? sequence_ids(sequence->sequence, &n) : NULL;
    if (count)
        *count = n;
    return ids;
}

LgFinish lg_sequence_finish(const LgSequence *sequence) {
    return sequence && sequence->sequence ? sequence_finish(sequence->sequence) : LG_FINISH_FAILED;
}

const char *lg_sequence_error(const LgSequence *sequence) {
    if (!sequence)
        return NULL;
    return sequence->sequence ? sequence_error(sequence->sequence) : "its engine was closed";
}

const char *lg_finish_text(LgFinish finish) {
    static const char *const text[] = {"running", "stop", "length", "failed"};
    return finish <= LG_FINISH_FAILED ? text[finish] : "unknown";
}

/* Turns the ids from text_ids on to text. Where memory fails nothing is lost: the call that failed
 * can be repeated. */
static LgStatus push_text(LgSequence *s, LgError *err) {
    size_t count;
    const int32_t *ids = sequence_ids(s->sequence, &count);
    bool finished = sequence_finish(s->sequence) != LG_RUNNING;
    while (s->text_ids < count || (finished && !s->text_done)) {
        bool last = s->text_ids == count;
        Detok before = s->detok;
        size_t len = s->text.len;
        LgStatus status = LG_OK;
        if (last)
            detok_finish(&s->detok, &s->text);
        else
            status = detok_push(&s->detok, ids[s->text_ids], &s->text, err);
        if (s->text.failed) {
            buf_cut(&s->text, len);
            s->detok = before;
            return lg_fail_memory(err);
        }
        LG_TRY(status);
        s->text_ids += !last;
        s->text_done |= last;
    }
    return LG_OK;
}

LgStatus lg_sequence_text(LgSequence *sequence, bool skip_special, const char **text, size_t *bytes,
                          LgError *error) {
    API_NEED(sequence);
    API_NEED(text);
    if (!sequence->sequence)
        return lg_fail(error, LG_BAD_INPUT, 0, "the sequence's engine was closed");
    LG_TRY(api_tokenizer(sequence->engine, error));
    if (!sequence->detok_open) {
        detok_init(&sequence->detok, sequence->engine->tokenizer, skip_special);
        sequence->detok_open = true;
    }
    if (sequence->text_given)
        buf_reset(&sequence->text);
    sequence->text_given = false;
    LG_TRY(push_text(sequence, error));
    sequence->text_given = true;
    *text = sequence->text.data;
    if (bytes)
        *bytes = sequence->text.len;
    return LG_OK;
}

const char *lg_sequence_logits_sha256(LgSequence *sequence) {
    return sequence && sequence->sequence ? sequence_digest(sequence->sequence) : NULL;
}

double lg_sequence_first_token_s(const LgSequence *sequence) {
    return sequence && sequence->sequence ? sequence_first_token_s(sequence->sequence) : -1;
}

typedef struct EvalSink {
    LgPosition *positions;
    float *last;
    size_t count;
} EvalSink;

/* top1 and top2 with ties to the lower id; the sum of exponentials in double, from the largest. */
static void eval_seen(void *user, size_t position, const float *logits, int32_t vocab) {
    EvalSink *sink = user;
    int32_t top1 = 0, top2 = -1;
    for (int32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[top1]) {
            top2 = top1;
            top1 = i;
        } else if (top2 < 0 || logits[i] > logits[top2])
            top2 = i;
    double sum = 0;
    for (int32_t i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - (double)logits[top1]);
    sink->positions[position] = (LgPosition){.top1 = top1,
                                             .top2 = top2 < 0 ? top1 : top2,
                                             .margin = top2 < 0 ? 0 : logits[top1] - logits[top2],
                                             .logsumexp = (float)((double)logits[top1] + log(sum))};
    if (sink->last && position + 1 == sink->count)
        memcpy(sink->last, logits, (size_t)vocab * sizeof *logits);
}

LgStatus lg_eval(LgEngine *engine, const int32_t *ids, size_t id_count,
                 const LgAdapterUse *adapters, size_t adapter_count, LgPosition *positions,
                 float *last_logits, LgError *error) {
    API_NEED(engine);
    API_NEED(ids);
    API_NEED(positions);
    EvalSink sink = {.positions = positions, .last = last_logits, .count = id_count};
    return engine_eval(engine->engine, ids, id_count, adapters, adapter_count, eval_seen, &sink,
                       error);
}
