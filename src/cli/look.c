/* `compile` and `explain`: what the library says of programs. */
#include <string.h>

#include "base/json.h"
#include "cli/cli.h"

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
    Buf found;
    buf_init(&found);
    const char *config = NULL;
    int code = cli_model_path(o->config, &found, &config);
    LgCompileOptions options = {.program = o->positional,
                                .config = config,
                                .emit = o->emit ? o->emit : "plan",
                                .level = o->level,
                                .compiler = o->compiler,
                                .store_f32 = o->store && strcmp(o->store, "f32") == 0};
    if (code == EXIT_OK && lg_compile(&options, o->output, &text, &err) != LG_OK)
        code = cli_fail(&err);
    if (text)
        fputs(text, stdout);
    lg_free_memory(text);
    buf_clear(&found);
    return code;
}

static int print_launches(const json_t *root) {
    size_t i;
    int code = EXIT_OK;
    json_t *l;
    static const char *const parts[] = {"weight_bytes", "value_bytes", "state_bytes"};
    printf("plan %.16s, %lld layers, %lld rows\n",
           json_string_value(json_object_get(root, "digest")),
           (long long)json_integer_value(json_object_get(root, "layers")),
           (long long)json_integer_value(json_object_get(root, "rows")));
    printf("%-4s %-11s %-34s %-12s %-10s %12s %12s  %s\n", "", "provenance", "launch", "kernel",
           "numerics", "bytes", "flops", "lines");
    json_array_foreach(json_object_get(root, "launches"), i, l) {
        char *lines;
        double bytes = 0;
        for (size_t k = 0; k < sizeof parts / sizeof parts[0]; k++)
            bytes += json_number_value(json_object_get(l, parts[k]));
        if ((code = cli_json_text(json_object_get(l, "lines"), &lines)) != EXIT_OK)
            break;
        printf("%-4zu %-11s %-34s %-12s %-10s %12.0f %12.0f  %s\n", i,
               json_string_value(json_object_get(l, "provenance")),
               json_string_value(json_object_get(l, "name")),
               json_string_value(json_object_get(l, "kernel")),
               json_string_value(json_object_get(l, "numerics")), bytes,
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
    char *text = NULL;
    LgError err;
    if (lg_explain(e, (int32_t)rows, &text, &err) != LG_OK)
        code = cli_fail(&err);
    else if (o->json)
        puts(text);
    else {
        json_t *root = NULL;
        code = lg_json_parse(lg_str(text), "report", &root, &err) == LG_OK ? print_launches(root)
                                                                           : cli_fail(&err);
        json_decref(root);
    }
    lg_free_memory(text);
    lg_engine_close(e);
    return code;
}
