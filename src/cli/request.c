/* Lines of a batch file. Every key is known, or the line is refused. */
#include "cli/request.h"

#include <stdlib.h>
#include <string.h>

#define LINE_KEYS "ids prompt messages adapter adapters n eos title seed temperature"

int request_text(LgEngine *e, Request *r, const char *text, size_t bytes, LgTextKind kind) {
    int32_t *ids;
    LgError err;
    if (lg_tokenize(e, text, bytes, kind, &ids, &r->id_count, &err) != LG_OK)
        return cli_fail(&err);
    r->ids = malloc((r->id_count + 1) * sizeof *r->ids);
    if (r->ids)
        memcpy(r->ids, ids, r->id_count * sizeof *ids);
    lg_free_memory(ids);
    return r->ids ? EXIT_OK : cli_no_memory();
}

/* What a line says outside its messages has no meaning inside one, and would go unnoticed there. */
static int check_messages(const json_t *messages, long number) {
    size_t i;
    const char *key;
    json_t *message, *value;
    json_array_foreach(messages, i, message) {
        if (!json_is_object(message))
            return cli_refuse("batch line %ld: message %zu is no object; "
                              "{\"role\":..,\"content\":..} is accepted",
                              number, i + 1);
        json_object_foreach(message, key, value) {
            if (cli_has_word(LINE_KEYS, key))
                return cli_refuse("batch line %ld: \"%s\" stands inside message %zu; it belongs "
                                  "beside \"messages\"",
                                  number, key, i + 1);
        }
    }
    return EXIT_OK;
}

static int take_messages(LgEngine *e, Request *r, const json_t *messages, long number) {
    char *text, *prompt = NULL;
    LgError err;
    int code = check_messages(messages, number);
    if (code != EXIT_OK)
        return code;
    code = cli_json_text(messages, &text);
    if (code == EXIT_OK && lg_chat_render(e, text, NULL, true, &prompt, &err) != LG_OK)
        code = cli_fail_at(&err, "batch line", (size_t)number);
    if (code == EXIT_OK)
        code = request_text(e, r, prompt, strlen(prompt), LG_TEXT_RENDERED);
    lg_free_memory(prompt);
    lg_free_memory(text);
    return code;
}

static int add_use(Request *r, const json_t *name, const json_t *scale, long number) {
    if (!json_is_string(name))
        return cli_refuse("batch line %ld: an adapter needs a name (a string)", number);
    if (scale && !json_is_number(scale))
        return cli_refuse("batch line %ld: an adapter's \"scale\" is a number", number);
    float factor = 1;
    if (scale && !cli_scale(json_number_value(scale), &factor))
        return cli_refuse("batch line %ld: an adapter's \"scale\" is %g, which 32 bits do not hold",
                          number, json_number_value(scale));
    if (r->use_count == LG_ADAPTERS_MAX)
        return cli_refuse("batch line %ld: at most %d adapters act on one sequence", number,
                          LG_ADAPTERS_MAX);
    char *copy = strdup(json_string_value(name));
    if (!copy)
        return cli_no_memory();
    r->names[r->use_count] = copy;
    r->uses[r->use_count++] = (LgAdapterUse){.name = copy, .scale = factor};
    return EXIT_OK;
}

static int take_adapters(Request *r, const json_t *line, long number) {
    const json_t *one = json_object_get(line, "adapter");
    const json_t *several = json_object_get(line, "adapters");
    if (one && several)
        return cli_refuse("batch line %ld: \"adapter\" or \"adapters\" is accepted, not both",
                          number);
    int code = one && !json_is_null(one) ? add_use(r, one, NULL, number) : EXIT_OK;
    if (several && !json_is_array(several))
        return cli_refuse("batch line %ld: \"adapters\" is a list of {\"name\",\"scale\"}", number);
    for (size_t i = 0; code == EXIT_OK && i < json_array_size(several); i++) {
        const json_t *entry = json_array_get(several, i);
        code = cli_known_keys(entry, "name scale", "batch", number, "\"adapters\"");
        if (code == EXIT_OK)
            code =
                add_use(r, json_object_get(entry, "name"), json_object_get(entry, "scale"), number);
    }
    return code;
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
    if (seed && (!json_is_integer(seed) || json_integer_value(seed) < 0))
        return cli_refuse("batch line %ld: \"seed\" is a whole number of 0 or more", number);
    if (temperature && !json_is_number(temperature))
        return cli_refuse("batch line %ld: \"temperature\" is a number", number);
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

static int take_prompt(LgEngine *e, Request *r, const json_t *line, long number) {
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
        return cli_id_list(ids, "batch", number, &r->ids, &r->id_count);
    if (messages)
        return take_messages(e, r, messages, number);
    return request_text(e, r, json_string_value(prompt), json_string_length(prompt),
                        LG_TEXT_PROMPT);
}

int request_line(LgEngine *e, Request *r, const json_t *line, long number) {
    const json_t *title = json_object_get(line, "title");
    r->line = number;
    int code = cli_known_keys(line, LINE_KEYS, "batch", number, NULL);
    if (code == EXIT_OK && title && !json_is_string(title))
        code = cli_refuse("batch line %ld: \"title\" is a string", number);
    if (code == EXIT_OK)
        code = take_prompt(e, r, line, number);
    if (code == EXIT_OK)
        code = take_adapters(r, line, number);
    if (code == EXIT_OK)
        code = take_numbers(r, line, number);
    if (code == EXIT_OK && title && !(r->title = strdup(json_string_value(title))))
        code = cli_no_memory();
    return code;
}

void request_clear(Request *r) {
    lg_sequence_destroy(r->sequence);
    for (size_t k = 0; k < LG_ADAPTERS_MAX; k++)
        free(r->names[k]);
    free(r->ids);
    free(r->title);
}
