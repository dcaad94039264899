/* The command line: option tables, and what the commands share. Talks to the library through
 * ligature.h alone. */
#ifndef LG_CLI_CLI_H
#define LG_CLI_CLI_H

#include <jansson.h>
#include <stdio.h>

#include "base/str.h"
#include "ligature.h"

enum { EXIT_OK = 0, EXIT_INTERNAL = 1, EXIT_REFUSED = 2 };

#define CLI_LIST_MAX 256

typedef struct CliList {
    const char *items[CLI_LIST_MAX];
    int count;
} CliList;

/* Every option that a command may take; a command lists the names that it accepts. */
typedef struct CliOptions {
    const char *positional;
    const char *prompt, *ids, *batch, *jsonl, *messages;
    const char *n, *temperature, *top_k, *top_p, *min_p, *seed;
    const char *backend, *program, *threads, *level, *store, *compiler, *cache, *rows, *context,
        *emit, *output;
    const char *config, *model, *lane, *system;
    const char *sequences, *adapters, *ranks, *prompts, *contexts, *repeats, *html;
    CliList adapter, use;
    bool greedy, json, digest, require_cache, help, explain_ignored;
} CliOptions;

typedef enum CliOptionKind { OPTION_FLAG, OPTION_VALUE, OPTION_LIST } CliOptionKind;

typedef struct CliOption {
    const char *name, *alias, *value, *help;
    CliOptionKind kind;
    size_t offset;      /* of its field in CliOptions */
    const char *values; /* all that are accepted, separated by blanks; NULL: no such list */
} CliOption;

typedef struct CliCommand {
    const char *name, *summary, *usage, *options,
        *examples; /* options: names, separated by blanks */
    int (*run)(const CliOptions *o);
} CliCommand;

/* main.c */
extern const CliCommand cli_commands[];
extern const size_t cli_command_count;

int cmd_run(const CliOptions *o);
int cmd_chat(const CliOptions *o);
int cmd_tokenize(const CliOptions *o);
int cmd_compile(const CliOptions *o);
int cmd_explain(const CliOptions *o);
int cmd_inspect(const CliOptions *o);
int cmd_eval(const CliOptions *o);
int cmd_bench(const CliOptions *o);
int cmd_completion(const CliOptions *o);
int cmd_kernels(const CliOptions *o);

/* args.c */
/* The command's options in the table's order; NULL past the last. */
const CliOption *cli_option_at(const CliCommand *command, size_t index);
int cli_parse(int argc, char **argv, const CliCommand *command,
              CliOptions *o); /* EXIT_OK, or the exit code after a message */
void cli_help(const CliCommand *command);
bool cli_resembles(const char *word,
                   const char *other); /* a likely misspelling, or its beginning */

/* common.c: messages go to stderr as "ligature: …". */
int cli_fail(const LgError *e); /* prints it; the exit code that its status means */
int cli_fail_at(const LgError *e, const char *what, size_t number); /* "what number: message" */
int cli_refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool cli_int(const char *text, long min, long max, long *out);
int cli_open(const CliOptions *o, LgEngine **out); /* engine with the options' adapters loaded */
/* MODEL as a path: a file or folder that is there is itself; org/name is its snapshot in the
 * Hugging Face cache. *path, empty, may hold it. */
int cli_model_path(const char *model, Buf *path, const char **out);
int cli_ids(const char *text, int32_t **ids,
            size_t *count); /* "3,17,99"; the caller frees with free() */
int cli_id_list(const json_t *list, const char *what, long line, int32_t **ids,
                size_t *count); /* the same as a JSON list; *ids is the caller's also on failure */
bool cli_has_word(const char *words, const char *word); /* words: separated by blanks */
/* Refuses an object of a JSONL file with any other key. inside: NULL, or where it stands. */
int cli_known_keys(const json_t *object, const char *keys, const char *what, long line,
                   const char *inside);
int cli_uses(const CliOptions *o, LgAdapterUse *uses,
             size_t *count);              /* --use, or the only --adapter; at most 4 */
bool cli_scale(double value, float *out); /* false: infinite or 0 in 32 bits, and not so in 64 */
int cli_check_uses(const LgEngine *e, const LgAdapterUse *uses, size_t count); /* loaded? */
int cli_sampling(const CliOptions *o, const LgEngine *e, LgSampling *out);
json_t *cli_program_json(const LgEngine *e, bool whole); /* the fixed form's "program" */
json_t *cli_timing_json(const LgEngine *e);
json_t *cli_ids_json(const int32_t *ids, size_t count);
json_t *cli_uses_json(const LgAdapterUse *uses, size_t count);
/* JSON that memory was missing for is NULL: a list that an element was not added to, what is made
 * of it, and so on up to the printing, which says so. */
json_t *cli_append(json_t *list, json_t *value); /* takes both references; list, or NULL */
int cli_print_json(json_t *value); /* one line on stdout; takes the reference; exit code */
int cli_json_text(const json_t *value, char **text); /* for lg_free_memory; exit code */
int cli_no_memory(void);
void cli_provenance_line(const LgEngine *e, double first_token_s);
/* Reads a JSONL file line by line; line numbers from 1. Returns an exit code. */
typedef int (*CliLine)(void *user, json_t *line, long number);
int cli_each_line(const char *path, CliLine fn, void *user);

#endif
