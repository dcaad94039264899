/* `tokenize`: a line in, a line out. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

static int print_line(json_t *ids, const char *text, size_t bytes) {
    json_t *value = json_stringn(text, bytes);
    if (!value) {
        json_decref(ids);
        return cli_refuse("the text is no UTF-8");
    }
    return cli_print_json(json_pack("{s:o, s:o}", "ids", ids, "text", value));
}

static int from_text(LgEngine *e, const char *text, size_t bytes, LgTextKind kind) {
    int32_t *ids;
    size_t count;
    LgError err;
    if (lg_tokenize(e, text, bytes, kind, &ids, &count, &err) != LG_OK)
        return cli_fail(&err);
    int code = print_line(cli_ids_json(ids, count), text, bytes);
    lg_free_memory(ids);
    return code;
}

static int from_ids(LgEngine *e, const json_t *list, long number) {
    size_t count, bytes;
    int32_t *ids;
    int code = cli_id_list(list, "input", number, &ids, &count);
    char *text = NULL;
    LgError err;
    if (code == EXIT_OK && lg_detokenize(e, ids, count, false, &text, &bytes, &err) != LG_OK)
        code = cli_fail(&err);
    if (code == EXIT_OK)
        code = print_line(cli_ids_json(ids, count), text, bytes);
    lg_free_memory(text);
    free(ids);
    return code;
}

static int from_messages(LgEngine *e, const json_t *line, long number) {
    const json_t *tools = json_object_get(line, "tools");
    if (tools && !json_is_array(tools) && !json_is_null(tools))
        return cli_refuse("input line %ld: \"tools\" is a list", number);
    char *messages = NULL, *tools_text = NULL, *text = NULL;
    LgError err;
    int code = cli_json_text(json_object_get(line, "messages"), &messages);
    if (code == EXIT_OK && json_is_array(tools))
        code = cli_json_text(tools, &tools_text);
    if (code == EXIT_OK &&
        lg_chat_render(e, messages, tools_text,
                       json_is_true(json_object_get(line, "add_generation_prompt")), &text,
                       &err) != LG_OK)
        code = cli_fail(&err);
    if (code == EXIT_OK)
        code = from_text(e, text, strlen(text), LG_TEXT_RENDERED);
    lg_free_memory(text);
    lg_free_memory(tools_text);
    lg_free_memory(messages);
    return code;
}

static int tokenize_line(void *user, json_t *line, long number) {
    const json_t *text = json_object_get(line, "text"), *ids = json_object_get(line, "ids");
    const json_t *messages = json_object_get(line, "messages");
    int code = cli_known_keys(line, "text plain ids messages tools add_generation_prompt", "input",
                              number, NULL);
    if (code != EXIT_OK)
        return code;
    const json_t *plain = json_object_get(line, "plain"),
                 *prompt = json_object_get(line, "add_generation_prompt");
    if ((text != NULL) + (ids != NULL) + (messages != NULL) != 1)
        return cli_refuse(
            "input line %ld: exactly one of \"text\", \"ids\" and \"messages\" is needed", number);
    if ((plain && (!text || !json_is_boolean(plain))) ||
        (prompt && (!messages || !json_is_boolean(prompt))) ||
        (json_object_get(line, "tools") && !messages))
        return cli_refuse(
            "input line %ld: \"plain\" (true or false) goes with \"text\"; \"tools\" (a "
            "list) and \"add_generation_prompt\" (true or false) with \"messages\"",
            number);
    if (json_is_string(text))
        return from_text(user, json_string_value(text), json_string_length(text),
                         json_is_true(json_object_get(line, "plain")) ? LG_TEXT_PLAIN
                                                                      : LG_TEXT_PROMPT);
    if (json_is_array(ids))
        return from_ids(user, ids, number);
    if (json_is_array(messages))
        return from_messages(user, line, number);
    return cli_refuse("input line %ld: \"text\" is a string, \"ids\" and \"messages\" are lists",
                      number);
}

int cmd_tokenize(const CliOptions *o) {
    if (!o->jsonl)
        return cli_refuse("--jsonl FILE is needed (- is standard input)");
    LgEngine *e;
    int code = cli_open(o, &e);
    if (code != EXIT_OK)
        return code;
    code = cli_each_line(o->jsonl, tokenize_line, e);
    lg_engine_close(e);
    return code;
}
