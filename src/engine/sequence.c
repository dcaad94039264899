/* Sequences: admission checks, and what a caller reads of them. */
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/internal.h"

static LgStatus check_request(const Engine *e, const LgRequest *r, LgError *err) {
    if (r->id_count == 0 || !r->ids)
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "the prompt is empty; at least one token id is needed");
    if (r->max_tokens < 0)
        return lg_fail(err, LG_BAD_INPUT, 0, "max_tokens is %d; 0 or more is accepted",
                       r->max_tokens);
    if (r->adapter_count > ADAPTER_SET_MAX)
        return lg_fail(err, LG_LIMIT, 0, "%zu adapters on one sequence; at most %d are served",
                       r->adapter_count, ADAPTER_SET_MAX);
    for (size_t i = 0; i < r->id_count; i++)
        if (r->ids[i] < 0 || r->ids[i] >= e->runner->vocab)
            return lg_fail(err, LG_BAD_INPUT, i, "prompt id %zu is %d; the model has ids 0 to %d",
                           i, r->ids[i], e->runner->vocab - 1);
    size_t positions = r->id_count + (size_t)r->max_tokens;
    if (positions > (size_t)e->context)
        return lg_fail(
            err, LG_LIMIT, 0,
            "the prompt has %zu id%s and %d new ones are asked for: %zu positions, and the context "
            "has %d; shorten the prompt, ask for fewer (max_tokens, -n)%s",
            r->id_count, r->id_count == 1 ? "" : "s", r->max_tokens, positions, e->context,
            e->context < e->model.context ? " or raise the context (context_max, --context)" : "");
    if (!kv_fits(e, positions))
        return lg_fail(err, LG_LIMIT, 0,
                       "%zu positions need %zu KV pages of %llu bytes, and the engine may hold %d",
                       positions, (positions + KV_PAGE_POSITIONS - 1) / KV_PAGE_POSITIONS,
                       (unsigned long long)e->runner->kv_page_bytes, e->kv.total_max);
    const LgSampling *s = &r->sampling;
    if (!(s->temperature >= 0 && s->temperature < 1e6f) || !(s->top_p >= 0 && s->top_p <= 1) ||
        !(s->min_p >= 0 && s->min_p <= 1) || s->top_k < 0)
        return lg_fail(
            err, LG_BAD_INPUT, 0,
            "sampling: temperature %g, top_k %d, top_p %g, min_p %g; accepted are temperature and "
            "top_k of 0 or more, top_p and min_p from 0 to 1",
            (double)s->temperature, s->top_k, (double)s->top_p, (double)s->min_p);
    return LG_OK;
}

static LgStatus take_adapters(Engine *e, const LgRequest *r, Sequence *s, LgError *err) {
    for (size_t i = 0; i < r->adapter_count; i++) {
        const char *name = r->adapters[i].name ? r->adapters[i].name : "";
        AdapterObject *o = adapter_object_find(e, name);
        if (!o)
            return adapter_not_found(e, name, err);
        float scale = r->adapters[i].scale;
        if (!(scale - scale == 0))
            return lg_fail(err, LG_BAD_INPUT, 0, "adapter \"%s\": the scale is not a finite number",
                           o->name);
        const char *why = adapter_refuses(o->adapter, r->adapter_count, scale);
        if (why)
            return lg_fail(err, LG_BAD_INPUT, 0, "adapter \"%s\": %s", o->name, why);
        LG_TRY(adapter_object_acquire(e, o, err));
        s->objects[s->set.count] = o;
        s->set.use[s->set.count++] = (AdapterUse){.slot = o->slot, .scale = scale};
    }
    return LG_OK;
}

LgStatus sequence_create(Engine *e, const LgRequest *r, Sequence **out, LgError *err) {
    LG_TRY(check_request(e, r, err));
    Sequence *s = lg_calloc(1, sizeof *s);
    if (!s)
        return lg_fail_memory(err);
    s->engine = e;
    s->slot = -1;
    s->count_max = r->id_count + (size_t)r->max_tokens;
    s->ids = lg_alloc_array(s->count_max, sizeof *s->ids);
    LgStatus status = s->ids ? take_adapters(e, r, s, err) : lg_fail_memory(err);
    if (status == LG_OK && r->digest) {
        s->digest = sha256_create();
        status = s->digest ? LG_OK : lg_fail_memory(err);
    }
    if (status != LG_OK) {
        sequence_destroy(s);
        return status;
    }
    memcpy(s->ids, r->ids, r->id_count * sizeof *s->ids);
    s->prompt_count = s->count = r->id_count;
    s->stop_at_end = r->stop_at_end;
    s->sampling = r->sampling;
    s->created_s = clock_seconds();
    s->first_token_s = -1;
    if (r->max_tokens == 0) {
        s->state = SEQUENCE_FINISHED;
        s->finish = LG_FINISH_LENGTH;
    }
    Sequence **end = &e->first;
    while (*end)
        end = &(*end)->next;
    *end = s;
    *out = s;
    return LG_OK;
}

void sequence_destroy(Sequence *s) {
    if (!s)
        return;
    Engine *e = s->engine;
    for (Sequence **at = &e->first; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
    kv_release(e, s);
    for (int32_t i = 0; i < s->set.count; i++)
        adapter_object_release(e, s->objects[i]);
    sha256_destroy(s->digest);
    lg_free(s->ids);
    lg_free(s);
}

const int32_t *sequence_ids(const Sequence *s, size_t *count) {
    *count = s->count - s->prompt_count;
    return s->ids + s->prompt_count;
}

const char *sequence_error(const Sequence *s) {
    return *s->error ? s->error : NULL;
}

LgFinish sequence_finish(const Sequence *s) {
    return s->finish;
}

const char *sequence_digest(Sequence *s) {
    if (s->digest && s->finish != LG_RUNNING) {
        sha256_finish(s->digest, s->digest_hex);
        s->digest = NULL;
    }
    return s->digest_hex[0] ? s->digest_hex : NULL;
}

double sequence_first_token_s(const Sequence *s) {
    return s->first_token_s;
}

Engine *sequence_engine(const Sequence *s) {
    return s->engine;
}
