/* Options: one table says what exists, each command which of them it takes. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "cli/cli.h"

#define AT(field) offsetof(CliOptions, field)
/* clang-format off */
static const CliOption options[] = {
    {"prompt", "p", "TEXT", "the prompt, as plain text", OPTION_VALUE, AT(prompt), NULL},
    {"ids", NULL, "3,17,99", "the prompt, as token ids (needs no tokenizer)", OPTION_VALUE, AT(ids), NULL},
    {"batch", NULL, "FILE.jsonl", "one request a line, all in one batch; - is standard input", OPTION_VALUE, AT(batch), NULL},
    {"jsonl", NULL, "FILE", "one input a line; - is standard input", OPTION_VALUE, AT(jsonl), NULL},
    {"n", "n", "COUNT", "new tokens at most (default 128)", OPTION_VALUE, AT(n), NULL},
    {"greedy", NULL, NULL, "the likeliest token each time", OPTION_FLAG, AT(greedy), NULL},
    {"temperature", NULL, "T", "0 is greedy; the default is the checkpoint's", OPTION_VALUE, AT(temperature), NULL},
    {"top-k", NULL, "K", "sample among the K likeliest", OPTION_VALUE, AT(top_k), NULL},
    {"top-p", NULL, "P", "sample among the likeliest that hold P of the probability", OPTION_VALUE, AT(top_p), NULL},
    {"min-p", NULL, "P", "drop what is less likely than P times the likeliest", OPTION_VALUE, AT(min_p), NULL},
    {"seed", NULL, "N", "of the random numbers; the same seed gives the same text", OPTION_VALUE, AT(seed), NULL},
    {"adapter", NULL, "NAME=DIR", "load a PEFT adapter under a name (repeatable)", OPTION_LIST, AT(adapter), NULL},
    {"use", NULL, "NAME[:SCALE]", "apply it to the sequence; repeated: together, in this order", OPTION_LIST, AT(use), NULL},
    {"system", NULL, "TEXT", "system message of the chat", OPTION_VALUE, AT(system), NULL},
    {"backend", NULL, "NAME", "cpu (default), cuda, or interp, the reference interpreter", OPTION_VALUE, AT(backend), "cpu cuda interp"},
    {"program", NULL, "FILE", "a page FILE.lg, or a program FILE.so made by compile", OPTION_VALUE, AT(program), NULL},
    {"store", NULL, "TYPE", "bf16 (default), or f32: what stores that name no type keep", OPTION_VALUE, AT(store), "bf16 f32"},
    {"threads", NULL, "N", "threads (default: one for each core)", OPTION_VALUE, AT(threads), NULL},
    {"level", NULL, "NAME", "CPU feature level: generic, avx2, avx512, avx512bf16 or amx (default: the best here)", OPTION_VALUE, AT(level), "generic avx2 avx512 avx512bf16 amx"},
    {"compiler", NULL, "CC", "the C compiler of CPU programs (default cc)", OPTION_VALUE, AT(compiler), NULL},
    {"cache", NULL, "DIR", "compiled programs (default ~/.cache/ligature)", OPTION_VALUE, AT(cache), NULL},
    {"require-cache", NULL, NULL, "fail, naming what differs, instead of compiling", OPTION_FLAG, AT(require_cache), NULL},
    {"rows", NULL, "N", "rows of a step (run: at most, default 512; explain: default 1)", OPTION_VALUE, AT(rows), NULL},
    {"context", NULL, "N", "positions of a sequence at most", OPTION_VALUE, AT(context), NULL},
    {"lane", NULL, "NAME", "a hand-written lane instead of the compiled program", OPTION_VALUE, AT(lane), NULL},
    {"digest", NULL, NULL, "add the SHA-256 of each sequence's logits", OPTION_FLAG, AT(digest), NULL},
    {"emit", NULL, "WHAT", "c, plan or so", OPTION_VALUE, AT(emit), "c plan so"},
    {"config", NULL, "DIR", "a checkpoint, or a folder with config.json alone", OPTION_VALUE, AT(config), NULL},
    {"model", NULL, "MODEL", "the model that an adapter is for", OPTION_VALUE, AT(model), NULL},
    {"output", "o", "FILE", "write there", OPTION_VALUE, AT(output), NULL},
    {"sequences", NULL, "LIST", "sequences that decode together (default 1,2,4,8)", OPTION_VALUE, AT(sequences), NULL},
    {"adapters", NULL, "LIST", "different adapters among them (default 0,1,2,4,8)", OPTION_VALUE, AT(adapters), NULL},
    {"ranks", NULL, "LIST", "ranks of the generated adapters (default 8,16,32,64)", OPTION_VALUE, AT(ranks), NULL},
    {"prompts", NULL, "LIST", "ids of a prompt (default 32,128,512)", OPTION_VALUE, AT(prompts), NULL},
    {"contexts", NULL, "LIST", "positions in front of the first decoded id (default 64,256,1024)", OPTION_VALUE, AT(contexts), NULL},
    {"repeats", NULL, "N", "measurements of each point, of which the median counts (default 5)", OPTION_VALUE, AT(repeats), NULL},
    {"html", NULL, "FILE", "write a page with plots there", OPTION_VALUE, AT(html), NULL},
    {"explain-ignored", NULL, NULL, "print the config keys that are ignored", OPTION_FLAG, AT(explain_ignored), NULL},
    {"json", NULL, NULL, "one JSON object on standard output", OPTION_FLAG, AT(json), NULL},
    {"help", "h", NULL, "this text", OPTION_FLAG, AT(help), NULL},
};
/* clang-format on */
#define OPTION_COUNT (sizeof options / sizeof options[0])

static bool takes(const CliCommand *command, const char *name) {
    return cli_has_word(command->options, name) || strcmp(name, "help") == 0;
}

const CliOption *cli_option_at(const CliCommand *command, size_t index) {
    for (size_t i = 0; i < OPTION_COUNT; i++)
        if (takes(command, options[i].name) && index-- == 0)
            return &options[i];
    return NULL;
}

void cli_help(const CliCommand *command) {
    printf("ligature %s %s\n\n%s\n\nOptions\n", command->name, command->usage, command->summary);
    const CliOption *o;
    for (size_t i = 0; (o = cli_option_at(command, i)) != NULL; i++) {
        char left[64];
        snprintf(left, sizeof left, "%s%s%s%s", o->alias ? "-" : "--",
                 o->alias ? o->alias : o->name, o->value ? " " : "", o->value ? o->value : "");
        printf("  %-26s %s\n", left, o->help);
    }
    printf("\nExamples\n%s\nExit codes: 0 done, 1 reading, writing or an internal fault, 2 refused "
           "input.\n",
           command->examples);
}

/* Letters to change, add or drop between two words. */
static size_t distance(const char *a, const char *b) {
    size_t row[32], n = strlen(b);
    if (n >= sizeof row / sizeof row[0])
        return SIZE_MAX;
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 1; *a; a++, i++) {
        size_t corner = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t cost = corner + (*a != b[j - 1]);
            corner = row[j];
            cost = row[j] + 1 < cost ? row[j] + 1 : cost;
            row[j] = row[j - 1] + 1 < cost ? row[j - 1] + 1 : cost;
        }
    }
    return row[n];
}

bool cli_resembles(const char *word, const char *other) {
    size_t len = strlen(word), apart = distance(word, other);
    return apart <= (len < 5 ? 1 : 2) || (len >= 3 && strncmp(word, other, len) == 0);
}

static int unknown_option(const CliCommand *command, const char *arg) {
    const char *word = arg + strspn(arg, "-");
    for (size_t i = 0; i < OPTION_COUNT; i++)
        if (takes(command, options[i].name) && cli_resembles(word, options[i].name))
            return cli_refuse("%s takes no option %s; did you mean --%s? ligature %s --help lists "
                              "them",
                              command->name, arg, options[i].name, command->name);
    return cli_refuse("%s takes no option %s; ligature %s --help lists them", command->name, arg,
                      command->name);
}

/* len: of the option, in front of an = that may come with its value. */
static const CliOption *find(const CliCommand *command, const char *arg, size_t len) {
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        const CliOption *o = &options[i];
        bool named = strncmp(arg, "--", 2) == 0 && len - 2 == strlen(o->name) &&
                     strncmp(arg + 2, o->name, len - 2) == 0;
        bool aliased = arg[0] == '-' && o->alias && strcmp(arg + 1, o->alias) == 0;
        if ((named || aliased) && takes(command, o->name))
            return o;
    }
    return NULL;
}

static int store(const CliOption *o, const char *arg, const char *value, CliOptions *out) {
    void *field = (char *)out + o->offset;
    if (o->kind == OPTION_FLAG) {
        *(bool *)field = true;
        return EXIT_OK;
    }
    if (!value)
        return cli_refuse("%s needs a value: %s %s", arg, arg, o->value);
    if (o->kind == OPTION_VALUE) {
        *(const char **)field = value;
        return EXIT_OK;
    }
    CliList *list = field;
    if (list->count == CLI_LIST_MAX)
        return cli_refuse("%s is given more than %d times", arg, CLI_LIST_MAX);
    list->items[list->count++] = value;
    return EXIT_OK;
}

int cli_parse(int argc, char **argv, const CliCommand *command, CliOptions *o) {
    for (int i = 0; i < argc; i++) {
        const char *arg = argv[i];
        if (arg[0] != '-' || arg[1] == 0) {
            if (o->positional)
                return cli_refuse("unexpected argument \"%s\"; usage: ligature %s %s", arg,
                                  command->name, command->usage);
            o->positional = arg;
            continue;
        }
        size_t len = strncmp(arg, "--", 2) == 0 ? strcspn(arg, "=") : strlen(arg);
        const CliOption *option = find(command, arg, len);
        if (!option)
            return unknown_option(command, arg);
        if (arg[len] == '=' && option->kind == OPTION_FLAG)
            return cli_refuse("--%s takes no value", option->name);
        const char *value = arg[len] == '=' ? arg + len + 1 : NULL;
        if (!value && option->kind != OPTION_FLAG && i + 1 < argc)
            value = argv[++i];
        int code = store(option, arg, value, o);
        if (code != EXIT_OK)
            return code;
    }
    return EXIT_OK;
}
