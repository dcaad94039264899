/* `run`: requests from the options or from a batch file, all in one batch; text or one JSON object.
 */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "cli/cli.h"

typedef struct Request {
    int32_t *ids;
    size_t id_count;
    LgAdapterUse uses[4];
    char *names[4]; /* own the names of uses */
    size_t use_count;
    long n;
    bool eos;
    char *title; /* shown in text mode */
    LgSampling sampling;
    LgSequence *sequence;
} Request;

typedef struct Run {
    const CliOptions *options;
    LgEngine *engine;
    LgSampling sampling;
    long n;
    Request *requests;
    size_t count;
} Run;

static Request *add_request(Run *run) {
    Request *list = realloc(run->requests, (run->count + 1) * sizeof *list);
    if (!list)
        return NULL;
    run->requests = list;
    Request *r = &list[run->count++];
    *r = (Request){.n = run->n, .sampling = run->sampling};
    return r;
}

static int take_text(Run *run, Request *r, const char *text, size_t bytes, LgTextKind kind) {
    int32_t *ids;
    LgError err;
    if (lg_tokenize(run->engine, text, bytes, kind, &ids, &r->id_count, &err) != LG_OK)
        return cli_fail(&err);
    r->ids = malloc((r->id_count + 1) * sizeof *r->ids);
    if (r->ids)
        memcpy(r->ids, ids, r->id_count * sizeof *ids);
    lg_free_memory(ids);
    return r->ids ? EXIT_OK : EXIT_INTERNAL;
}

static int take_messages(Run *run, Request *r, const json_t *messages) {
    char *text, *prompt = NULL;
    LgError err;
    int code = cli_json_text(messages, &text);
    if (code == EXIT_OK && lg_chat_render(run->engine, text, NULL, true, &prompt, &err) != LG_OK)
        code = cli_fail(&err);
    if (code == EXIT_OK)
        code = take_text(run, r, prompt, strlen(prompt), LG_TEXT_RENDERED);
    lg_free_memory(prompt);
    lg_free_memory(text);
    return code;
}

static int take_id_list(Request *r, const json_t *list, long line) {
    r->id_count = json_array_size(list);
    r->ids = malloc((r->id_count + 1) * sizeof *r->ids);
    if (!r->ids)
        return EXIT_INTERNAL;
    for (size_t i = 0; i < r->id_count; i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT32_MAX)
            return cli_refuse("batch line %ld: \"ids\" %zu is no token id", line, i);
        r->ids[i] = (int32_t)json_integer_value(v);
    }
    return EXIT_OK;
}

static int add_use(Request *r, const json_t *name, float scale, long line) {
    if (!json_is_string(name))
        return cli_refuse("batch line %ld: an adapter needs a name (a string)", line);
    if (r->use_count == 4)
        return cli_refuse("batch line %ld: at most 4 adapters act on one sequence", line);
    char *copy = strdup(json_string_value(name));
    if (!copy)
        return EXIT_INTERNAL;
    r->names[r->use_count] = copy;
    r->uses[r->use_count++] = (LgAdapterUse){.name = copy, .scale = scale};
    return EXIT_OK;
}

static int take_adapters(Request *r, const json_t *line, long number) {
    const json_t *one = json_object_get(line, "adapter");
    const json_t *several = json_object_get(line, "adapters");
    if (one && !json_is_null(one)) {
        int code = add_use(r, one, 1, number);
        if (code != EXIT_OK)
            return code;
    }
    if (several && !json_is_array(several))
        return cli_refuse("batch line %ld: \"adapters\" is a list of {\"name\",\"scale\"}", number);
    for (size_t i = 0; several && i < json_array_size(several); i++) {
        const json_t *entry = json_array_get(several, i);
        const json_t *scale = json_object_get(entry, "scale");
        if (scale && !json_is_number(scale))
            return cli_refuse("batch line %ld: an adapter's \"scale\" is a number", number);
        int code = add_use(r, json_object_get(entry, "name"),
                           scale ? (float)json_number_value(scale) : 1.0f, number);
        if (code != EXIT_OK)
            return code;
    }
    return EXIT_OK;
}

static int check_keys(const json_t *line, long number) {
    static const char *const known[] = {"ids", "prompt", "messages", "adapter", "adapters",
                                        "n",   "eos",    "title",    "seed",    "temperature"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)line, key, value) {
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
            found |= strcmp(key, known[i]) == 0;
        if (!found)
            return cli_refuse("batch line %ld: unknown key \"%s\"; accepted are ids, prompt or "
                              "messages, adapter, "
                              "adapters, n, eos, title, seed, temperature",
                              number, key);
    }
    return EXIT_OK;
}

static int take_numbers(Request *r, const json_t *line, long number) {
    const json_t *n = json_object_get(line, "n"), *eos = json_object_get(line, "eos");
    const json_t *seed = json_object_get(line, "seed"),
                 *temperature = json_object_get(line, "temperature");
    if (n &&
        (!json_is_integer(n) || json_integer_value(n) < 0 || json_integer_value(n) > INT32_MAX))
        return cli_refuse("batch line %ld: \"n\" is a count of new tokens", number);
    if (eos && !json_is_boolean(eos))
        return cli_refuse("batch line %ld: \"eos\" is true or false", number);
    if ((seed && !json_is_integer(seed)) || (temperature && !json_is_number(temperature)))
        return cli_refuse("batch line %ld: \"seed\" and \"temperature\" are numbers", number);
    if (n)
        r->n = (long)json_integer_value(n);
    if (eos)
        r->eos = json_is_true(eos);
    if (seed)
        r->sampling.seed = (uint64_t)json_integer_value(seed);
    if (temperature)
        r->sampling.temperature = (float)json_number_value(temperature);
    return EXIT_OK;
}

static int batch_line(void *user, json_t *line, long number) {
    Run *run = user;
    int code = check_keys(line, number);
    if (code != EXIT_OK)
        return code;
    Request *r = add_request(run);
    if (!r)
        return EXIT_INTERNAL;
    const json_t *ids = json_object_get(line, "ids"), *prompt = json_object_get(line, "prompt");
    const json_t *messages = json_object_get(line, "messages");
    if ((ids != NULL) + (prompt != NULL) + (messages != NULL) != 1)
        return cli_refuse(
            "batch line %ld: exactly one of \"ids\", \"prompt\" and \"messages\" is needed",
            number);
    if ((ids && !json_is_array(ids)) || (prompt && !json_is_string(prompt)) ||
        (messages && !json_is_array(messages)))
        return cli_refuse(
            "batch line %ld: \"ids\" and \"messages\" are lists, \"prompt\" is a string", number);
    r->eos = !ids;
    if (ids)
        code = take_id_list(r, ids, number);
    else if (messages)
        code = take_messages(run, r, messages);
    else
        code = take_text(run, r, json_string_value(prompt), json_string_length(prompt),
                         LG_TEXT_PROMPT);
    if (code == EXIT_OK)
        code = take_adapters(r, line, number);
    if (code == EXIT_OK)
        code = take_numbers(r, line, number);
    const char *title = json_string_value(json_object_get(line, "title"));
    r->title = title ? strdup(title) : NULL;
    return code;
}

static int single_request(Run *run) {
    const CliOptions *o = run->options;
    if ((o->prompt != NULL) + (o->ids != NULL) != 1)
        return cli_refuse("one of -p TEXT, --ids LIST and --batch FILE is needed");
    Request *r = add_request(run);
    if (!r)
        return EXIT_INTERNAL;
    r->eos = o->prompt != NULL;
    int code = o->ids ? cli_ids(o->ids, &r->ids, &r->id_count)
                      : take_text(run, r, o->prompt, strlen(o->prompt), LG_TEXT_PROMPT);
    return code == EXIT_OK ? cli_uses(o, r->uses, &r->use_count) : code;
}

static int collect(Run *run) {
    const CliOptions *o = run->options;
    if (!o->batch)
        return single_request(run);
    if (o->prompt || o->ids || o->use.count)
        return cli_refuse("--batch goes without -p, --ids and --use: each line says its own");
    int code = cli_each_line(o->batch, batch_line, run);
    if (code == EXIT_OK && run->count == 0)
        code = cli_refuse("%s holds no request", o->batch);
    return code;
}

static int submit(Run *run) {
    for (size_t i = 0; i < run->count; i++) {
        Request *r = &run->requests[i];
        LgRequest request = {.ids = r->ids,
                             .id_count = r->id_count,
                             .adapters = r->uses,
                             .adapter_count = r->use_count,
                             .max_tokens = (int32_t)r->n,
                             .stop_at_end = r->eos,
                             .sampling = r->sampling,
                             .digest = run->options->digest};
        LgError err;
        if (lg_sequence_create(run->engine, &request, &r->sequence, &err) != LG_OK) {
            if (run->options->batch)
                fprintf(stderr, "ligature: request %zu:\n", i + 1);
            return cli_fail(&err);
        }
    }
    return EXIT_OK;
}

/* The text that is new; special tokens' texts stay in it. Without a tokenizer (ids in, ids out)
 * there is none: *text is NULL. */
static int new_text(Request *r, const char **text, size_t *bytes, bool needed) {
    LgError err;
    *text = NULL;
    if (lg_sequence_text(r->sequence, false, text, bytes, &err) == LG_OK || !needed)
        return EXIT_OK;
    return cli_fail(&err);
}

static int stream_one(Run *run, Request *r) {
    const char *text;
    size_t bytes;
    int code = new_text(r, &text, &bytes, !run->options->ids);
    if (code == EXIT_OK && text) {
        fwrite(text, 1, bytes, stdout);
        fflush(stdout);
    }
    return code;
}

static int step_all(Run *run) {
    bool streams = !run->options->json && run->count == 1;
    int32_t active = 1;
    while (active > 0) {
        LgError err;
        if (lg_engine_step(run->engine, &active, &err) != LG_OK)
            return cli_fail(&err);
        int code = streams ? stream_one(run, &run->requests[0]) : EXIT_OK;
        if (code != EXIT_OK)
            return code;
    }
    return EXIT_OK;
}

static json_t *sequence_json(Run *run, Request *r) {
    size_t count, bytes = 0;
    const int32_t *ids = lg_sequence_ids(r->sequence, &count);
    const char *text = NULL;
    (void)new_text(r, &text, &bytes, false);
    json_t *o =
        json_pack("{s:o, s:o, s:o}", "adapters", cli_uses_json(r->uses, r->use_count), "prompt_ids",
                  cli_ids_json(r->ids, r->id_count), "ids", cli_ids_json(ids, count));
    const char *finish = lg_finish_text(lg_sequence_finish(r->sequence));
    bool made = true;
    if (text) /* UTF-8, as ever: what is none has become U+FFFD */
        made = json_object_set_new(o, "text", json_stringn_nocheck(text, bytes)) == 0;
    made = json_object_set_new(o, "finish", json_string(finish)) == 0 && made;
    if (run->options->digest) {
        const char *hex = lg_sequence_logits_sha256(r->sequence);
        made = json_object_set_new(o, "logits_sha256", json_string(hex)) == 0 && made;
    }
    if (!made) {
        json_decref(o);
        o = NULL;
    }
    return o;
}

static int print_json(Run *run) {
    json_t *list = json_array();
    for (size_t i = 0; i < run->count; i++)
        list = cli_append(list, sequence_json(run, &run->requests[i]));
    return cli_print_json(json_pack("{s:o, s:o, s:o}", "sequences", list, "program",
                                    cli_program_json(run->engine, false), "timing",
                                    cli_timing_json(run->engine)));
}

static void print_title(const Request *r, size_t index) {
    if (r->title)
        printf("== %s\n", r->title);
    else if (r->use_count == 0)
        printf("== request %zu: base\n", index + 1);
    else {
        printf("== request %zu:", index + 1);
        for (size_t i = 0; i < r->use_count; i++)
            printf(" %s%s", r->uses[i].name, i + 1 < r->use_count ? " +" : "\n");
    }
}

static int print_text(Run *run) {
    for (size_t i = 0; i < run->count && run->count > 1; i++) {
        print_title(&run->requests[i], i);
        int code = stream_one(run, &run->requests[i]);
        if (code != EXIT_OK)
            return code;
        putchar('\n');
    }
    if (run->count == 1)
        putchar('\n');
    for (size_t i = 0; i < run->count && run->options->digest; i++)
        printf("logits_sha256 %s\n", lg_sequence_logits_sha256(run->requests[i].sequence));
    double first = -1;
    for (size_t i = 0; i < run->count; i++) {
        double s = lg_sequence_first_token_s(run->requests[i].sequence);
        first = first < 0 || (s >= 0 && s < first) ? s : first;
    }
    cli_provenance_line(run->engine, first);
    return EXIT_OK;
}

static void free_request(Request *r) {
    lg_sequence_destroy(r->sequence);
    for (size_t k = 0; k < 4; k++)
        free(r->names[k]);
    free(r->ids);
    free(r->title);
}

int cmd_run(const CliOptions *o) {
    Run run = {.options = o, .n = 128};
    if (o->n && !cli_int(o->n, 0, INT32_MAX, &run.n))
        return cli_refuse("-n %s: a count of new tokens is needed", o->n);
    int code = cli_open(o, &run.engine);
    if (code == EXIT_OK)
        code = cli_sampling(o, run.engine, &run.sampling);
    if (code == EXIT_OK)
        code = collect(&run);
    if (code == EXIT_OK)
        code = submit(&run);
    if (code == EXIT_OK)
        code = step_all(&run);
    if (code == EXIT_OK)
        code = o->json ? print_json(&run) : print_text(&run);
    for (size_t i = 0; i < run.count; i++)
        free_request(&run.requests[i]);
    free(run.requests);
    lg_engine_close(run.engine);
    return code;
}
