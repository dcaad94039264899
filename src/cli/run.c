/* `run`: requests from the options or from a batch file, all in one batch; text or one JSON object.
 */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/request.h"

#define NEW_TOKENS_DEFAULT 128

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

static int batch_line(void *user, json_t *line, long number) {
    Run *run = user;
    Request *r = add_request(run);
    return r ? request_line(run->engine, r, line, number) : cli_no_memory();
}

static int single_request(Run *run) {
    const CliOptions *o = run->options;
    if (o->prompt && o->ids)
        return cli_refuse("-p and --ids are both given; one of them is the prompt");
    if (!o->prompt && !o->ids)
        return cli_refuse("one of -p TEXT, --ids LIST and --batch FILE is needed");
    Request *r = add_request(run);
    if (!r)
        return cli_no_memory();
    r->eos = o->prompt != NULL;
    int code = o->ids ? cli_ids(o->ids, &r->ids, &r->id_count)
                      : request_text(run->engine, r, o->prompt, strlen(o->prompt), LG_TEXT_PROMPT);
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

/* What was asked for; where nothing was, a default that the context has room for. */
static int32_t new_tokens(const Run *run, const Request *r) {
    size_t context = (size_t)lg_engine_context(run->engine);
    size_t room = r->id_count < context ? context - r->id_count : 0;
    if (r->n >= 0)
        return (int32_t)r->n;
    return room > 0 && room < NEW_TOKENS_DEFAULT ? (int32_t)room : NEW_TOKENS_DEFAULT;
}

static int submit(Run *run) {
    for (size_t i = 0; i < run->count; i++) {
        Request *r = &run->requests[i];
        LgRequest request = {.ids = r->ids,
                             .id_count = r->id_count,
                             .adapters = r->uses,
                             .adapter_count = r->use_count,
                             .max_tokens = new_tokens(run, r),
                             .stop_at_end = r->eos,
                             .sampling = r->sampling,
                             .digest = run->options->digest};
        LgError err;
        if (lg_sequence_create(run->engine, &request, &r->sequence, &err) != LG_OK) {
            return run->options->batch ? cli_fail_at(&err, "batch line", (size_t)r->line)
                                       : cli_fail(&err);
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
    const char *error = lg_sequence_error(r->sequence);
    if (error)
        made = json_object_set_new(o, "error", json_string(error)) == 0 && made;
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

/* What failed while others went on. */
static int report_failed(const Run *run) {
    int code = EXIT_OK;
    for (size_t i = 0; i < run->count; i++) {
        const char *error = lg_sequence_error(run->requests[i].sequence);
        if (error && run->options->batch)
            code = cli_refuse("batch line %ld: %s", run->requests[i].line, error);
        else if (error)
            code = cli_refuse("%s", error);
    }
    return code;
}

int cmd_run(const CliOptions *o) {
    Run run = {.options = o, .n = -1};
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
    if (code == EXIT_OK)
        code = report_failed(&run);
    for (size_t i = 0; i < run.count; i++)
        request_clear(&run.requests[i]);
    free(run.requests);
    lg_engine_close(run.engine);
    return code;
}
