/* `chat`: a conversation on the terminal, by the model's chat template. Each turn runs the whole
 * conversation as one prompt. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

typedef struct Chat {
    LgEngine *engine;
    LgSampling sampling;
    LgAdapterUse uses[LG_ADAPTERS_MAX];
    size_t use_count;
    long n;
    json_t *messages;
} Chat;

static int add_message(Chat *c, const char *role, const char *text, size_t bytes) {
    json_t *content = json_stringn(text, bytes);
    if (!content)
        return cli_refuse("the %s message is no UTF-8", role);
    json_t *message = json_pack("{s:s, s:o}", "role", role, "content", content);
    return json_array_append_new(c->messages, message) == 0 ? EXIT_OK : cli_no_memory();
}

static int stream_answer(Chat *c, LgSequence *s) {
    int32_t active = 1;
    Buf answer;
    buf_init(&answer);
    int code = EXIT_OK;
    LgError err;
    while (active > 0 && code == EXIT_OK) {
        const char *text;
        size_t bytes;
        if (lg_engine_step(c->engine, &active, &err) != LG_OK ||
            lg_sequence_text(s, true, &text, &bytes, &err) != LG_OK)
            code = cli_fail(&err);
        else {
            buf_append(&answer, text, bytes);
            fwrite(text, 1, bytes, stdout);
            fflush(stdout);
        }
    }
    putchar('\n');
    if (code == EXIT_OK)
        code = add_message(c, "assistant", answer.data, answer.len);
    buf_clear(&answer);
    return code;
}

static int turn(Chat *c) {
    char *messages, *prompt = NULL;
    int32_t *ids = NULL;
    size_t count = 0;
    LgSequence *s = NULL;
    LgError err;
    int code = cli_json_text(c->messages, &messages);
    if (code != EXIT_OK)
        return code;
    if (lg_chat_render(c->engine, messages, NULL, true, &prompt, &err) != LG_OK ||
        lg_tokenize(c->engine, prompt, strlen(prompt), LG_TEXT_RENDERED, &ids, &count, &err) !=
            LG_OK)
        code = cli_fail(&err);
    LgRequest r = {.ids = ids,
                   .id_count = count,
                   .adapters = c->uses,
                   .adapter_count = c->use_count,
                   .max_tokens = (int32_t)c->n,
                   .stop_at_end = true,
                   .sampling = c->sampling};
    if (code == EXIT_OK && lg_sequence_create(c->engine, &r, &s, &err) != LG_OK)
        code = cli_fail(&err);
    if (code == EXIT_OK)
        code = stream_answer(c, s);
    lg_sequence_destroy(s);
    lg_free_memory(ids);
    lg_free_memory(prompt);
    lg_free_memory(messages);
    return code;
}

static int talk(Chat *c) {
    char *line = NULL;
    size_t cap = 0;
    int code = EXIT_OK;
    fprintf(stderr, "Write a line; an empty one or the end of input stops.\n");
    while (code == EXIT_OK) {
        fprintf(stderr, "> ");
        ssize_t len = getline(&line, &cap, stdin);
        while (len > 0 && (line[len - 1] == '\n' || line[len - 1] == '\r'))
            len--;
        if (len <= 0)
            break;
        code = add_message(c, "user", line, (size_t)len);
        if (code == EXIT_OK)
            code = turn(c);
    }
    free(line);
    return code;
}

int cmd_chat(const CliOptions *o) {
    Chat c = {.n = 512};
    if (o->n && !cli_int(o->n, 1, INT32_MAX, &c.n))
        return cli_refuse("-n %s: a count of new tokens is needed", o->n);
    int code = cli_open(o, &c.engine);
    if (code == EXIT_OK)
        code = cli_sampling(o, c.engine, &c.sampling);
    if (code == EXIT_OK)
        code = cli_uses(o, c.uses, &c.use_count);
    if (code == EXIT_OK)
        code = cli_check_uses(c.engine, c.uses, c.use_count);
    c.messages = json_array();
    if (code == EXIT_OK && o->system)
        code = add_message(&c, "system", o->system, strlen(o->system));
    if (code == EXIT_OK)
        code = talk(&c);
    if (code == EXIT_OK)
        cli_provenance_line(c.engine, -1);
    json_decref(c.messages);
    lg_engine_close(c.engine);
    return code;
}
