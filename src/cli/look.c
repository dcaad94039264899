/* `compile`, `explain`, `inspect`: what the library says of programs and files. */
#include <string.h>

#include "base/json.h"
#include "cli/cli.h"

/* Long tables read better by line: a JSON object is printed indented unless --json asked for one
 * line. */
static int print_json_text(char *text, bool one_line) {
    json_t *value = NULL;
    LgError err;
    Buf indented;
    buf_init(&indented);
    int code = EXIT_OK;
    if (!one_line && lg_json_parse(lg_str(text), "report", &value, &err) != LG_OK)
        code = cli_fail(&err);
    if (value)
        lg_json_print(value, JSON_INDENT(1) | JSON_REAL_PRECISION(9), &indented);
    if (code == EXIT_OK && indented.failed)
        code = cli_no_memory();
    if (code == EXIT_OK)
        puts(value ? indented.data : text);
    json_decref(value);
    buf_clear(&indented);
    lg_free_memory(text);
    return code;
}

int cmd_compile(const CliOptions *o) {
    LgError err;
    char *text = NULL;
    if (o->explain_ignored) {
        if (lg_ignored_keys(&text, &err) != LG_OK)
            return cli_fail(&err);
        fputs(text, stdout);
        lg_free_memory(text);
        return EXIT_OK;
    }
    if (!o->positional || !o->config)
        return cli_refuse(
            "usage: ligature compile FILE.lg --config DIR [--emit c|plan|so] [-o FILE]");
    if (o->store && strcmp(o->store, "bf16") != 0 && strcmp(o->store, "f32") != 0)
        return cli_refuse("--store %s: bf16 or f32 is accepted", o->store);
    LgCompileOptions options = {.program = o->positional,
                                .config = o->config,
                                .emit = o->emit ? o->emit : "plan",
                                .level = o->level,
                                .compiler = o->compiler,
                                .store_f32 = o->store && strcmp(o->store, "f32") == 0};
    if (lg_compile(&options, o->output, &text, &err) != LG_OK)
        return cli_fail(&err);
    if (text)
        fputs(text, stdout);
    lg_free_memory(text);
    return EXIT_OK;
}

static int print_launches(const json_t *root) {
    size_t i;
    int code = EXIT_OK;
    json_t *l;
    printf("%-4s %-11s %-34s %-12s %-10s %12s %12s  %s\n", "", "provenance", "launch", "kernel",
           "numerics", "bytes", "flops", "lines");
    json_array_foreach(json_object_get(root, "launches"), i, l) {
        char *lines;
        if ((code = cli_json_text(json_object_get(l, "lines"), &lines)) != EXIT_OK)
            break;
        printf("%-4zu %-11s %-34s %-12s %-10s %12.0f %12.0f  %s\n", i,
               json_string_value(json_object_get(l, "provenance")),
               json_string_value(json_object_get(l, "name")),
               json_string_value(json_object_get(l, "kernel")),
               json_string_value(json_object_get(l, "numerics")),
               json_number_value(json_object_get(l, "bytes")),
               json_number_value(json_object_get(l, "flops")), lines);
        lg_free_memory(lines);
    }
    return code;
}

int cmd_explain(const CliOptions *o) {
    long rows = 1;
    if (o->rows && !cli_int(o->rows, 1, 65536, &rows))
        return cli_refuse("--rows %s: a number from 1 to 65536 is needed", o->rows);
    CliOptions open = *o;
    open.rows = NULL;
    LgEngine *e;
    int code = cli_open(&open, &e);
    if (code != EXIT_OK)
        return code;
    char *text;
    LgError err;
    if (lg_explain(e, (int32_t)rows, &text, &err) != LG_OK)
        code = cli_fail(&err);
    else if (o->json)
        code = print_json_text(text, true);
    else {
        json_t *root = NULL;
        code = lg_json_parse(lg_str(text), "report", &root, &err) == LG_OK ? print_launches(root)
                                                                           : cli_fail(&err);
        json_decref(root);
        lg_free_memory(text);
    }
    lg_engine_close(e);
    return code;
}

int cmd_inspect(const CliOptions *o) {
    if (!o->positional)
        return cli_refuse("usage: ligature inspect PATH [--model MODEL] [--json]");
    LgEngine *e = NULL;
    CliOptions open = *o;
    open.positional = o->model;
    int code = o->model ? cli_open(&open, &e) : EXIT_OK;
    char *text;
    LgError err;
    if (code == EXIT_OK && lg_inspect(o->positional, e, &text, &err) != LG_OK)
        code = cli_fail(&err);
    else if (code == EXIT_OK)
        code = print_json_text(text, o->json);
    lg_engine_close(e);
    return code;
}
