/* `completion`: what a shell needs to complete this command line, from the tables of commands and
 * options, so that it knows what --help knows. */
#include <string.h>

#include "cli/cli.h"

/* What follows an option or a command is completed with. */
typedef enum Follows { FOLLOWS_ANYTHING, FOLLOWS_WORDS, FOLLOWS_FILES, FOLLOWS_FOLDERS } Follows;

static Follows follows(const CliOption *o) {
    if (o->values)
        return FOLLOWS_WORDS;
    if (strstr(o->value, "DIR") && strcmp(o->name, "config") != 0)
        return FOLLOWS_FOLDERS;
    bool file = strstr(o->value, "FILE") || strstr(o->value, "MODEL") || strstr(o->value, "DIR");
    return file ? FOLLOWS_FILES : FOLLOWS_ANYTHING;
}

/* The first word of the usage: a choice such as bash|zsh|fish, or the name of a file. */
static bool is_choice(const CliCommand *c) {
    return memchr(c->usage, '|', strcspn(c->usage, " ")) != NULL;
}

/* The words of text, which separator keeps apart, each between before and after. */
static void print_words(const char *text, const char *separators, const char *before,
                        const char *after) {
    while (*text) {
        char word[64];
        size_t len = strcspn(text, separators);
        snprintf(word, sizeof word, "%.*s", (int)len, text);
        printf("%s%s%s", before, word, after);
        text += len + (text[len] != 0);
    }
}

/* In single quotes, with the characters of `more` behind a backslash. */
static void print_quoted(const char *text, const char *more) {
    for (; *text; text++) {
        if (*text == '\'')
            fputs("'\\''", stdout);
        else if (strchr(more, *text))
            printf("\\%c", *text);
        else
            putchar(*text);
    }
}

/* An option's spellings. */
static void print_spellings(const CliOption *o, const char *separator) {
    if (strlen(o->name) > 1)
        printf("--%s%s", o->name, o->alias ? separator : "");
    if (o->alias)
        printf("-%s", o->alias);
}

/* ---- bash ---- */

static void bash_values(const CliCommand *c) {
    const CliOption *o;
    for (size_t i = 0; (o = cli_option_at(c, i)) != NULL; i++) {
        if (o->kind == OPTION_FLAG)
            continue;
        printf("            ");
        print_spellings(o, "|");
        printf(") ");
        switch (follows(o)) {
        case FOLLOWS_WORDS:
            printf("_ligature_reply -W $'");
            print_words(o->values, " ", "", "\\n");
            printf("'");
            break;
        case FOLLOWS_FILES:
            printf("_ligature_reply -f");
            break;
        case FOLLOWS_FOLDERS:
            printf("_ligature_reply -d");
            break;
        case FOLLOWS_ANYTHING:
            printf("COMPREPLY=()");
            break;
        }
        printf("; return ;;\n");
    }
}

static void bash_command(const CliCommand *c) {
    const CliOption *o;
    printf("    %s)\n        case $before in\n", c->name);
    bash_values(c);
    printf("        esac\n        options=$'");
    for (size_t i = 0; (o = cli_option_at(c, i)) != NULL; i++) {
        print_spellings(o, "\\n");
        printf("\\n");
    }
    printf("'\n");
    if (is_choice(c)) {
        printf("        words=$'");
        print_words(c->usage, "|", "", "\\n");
        printf("'\n");
    }
    printf("        ;;\n");
}

/* bash cuts words at =: an option's value, or the folder of NAME=DIR, stands behind one. */
static void print_bash(void) {
    fputs("# bash completion of ligature: source <(ligature completion bash)\n"
          "_ligature_reply() {\n"
          "    local IFS=$'\\n'\n"
          "    case $1 in -f | -d) compopt -o filenames 2>/dev/null ;; esac\n"
          "    COMPREPLY=($(compgen \"$@\" -- \"$word\"))\n"
          "}\n"
          "_ligature() {\n"
          "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}\n"
          "    local at=$((COMP_CWORD - 1)) options='' words=''\n"
          "    COMPREPLY=()\n"
          "    if [ \"$word\" = = ]; then word='' before== at=$COMP_CWORD; fi\n"
          "    if [ \"$before\" = = ]; then\n"
          "        before=${COMP_WORDS[at - 1]}\n"
          "        case $before in -*) ;; *) before=${COMP_WORDS[at - 2]} ;; esac\n"
          "    fi\n"
          "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
          "        _ligature_reply -W $'",
          stdout);
    for (size_t i = 0; i < cli_command_count; i++)
        printf("%s\\n", cli_commands[i].name);
    fputs("--help\\n--version'\n        return\n    fi\n    case ${COMP_WORDS[1]} in\n", stdout);
    for (size_t i = 0; i < cli_command_count; i++)
        bash_command(&cli_commands[i]);
    fputs("    *) return ;;\n    esac\n"
          "    case $word in\n"
          "    -*) _ligature_reply -W \"$options\" ;;\n"
          "    *) if [ \"$words\" ]; then _ligature_reply -W \"$words\"; else _ligature_reply -f; "
          "fi ;;\n"
          "    esac\n"
          "}\n"
          "complete -F _ligature ligature\n",
          stdout);
}

/* ---- zsh ---- */

static void zsh_option(const CliOption *o) {
    static const char *const actions[] = {
        [FOLLOWS_ANYTHING] = " ", [FOLLOWS_FILES] = "_files", [FOLLOWS_FOLDERS] = "_files -/"};
    bool both = o->alias && strlen(o->name) > 1, value = o->kind != OPTION_FLAG;
    for (int k = 0; k < 1 + both; k++) {
        const char *dashes = both && k == 0 ? "--" : o->alias ? "-" : "--";
        printf(" \\\n            '");
        if (o->kind == OPTION_LIST)
            putchar('*');
        else if (both)
            printf("(--%s -%s)", o->name, o->alias);
        printf("%s%s%s[", dashes, both && k == 1 ? o->alias : o->name,
               value && strlen(dashes) == 2 ? "=" : "");
        print_quoted(o->help, "[]:\\");
        putchar(']');
        if (value) {
            putchar(':');
            print_quoted(o->value, ":\\[]");
            putchar(':');
            if (follows(o) == FOLLOWS_WORDS)
                printf("(%s)", o->values);
            else /* the folder of NAME=DIR stands behind the name */
                printf("%s%s", strstr(o->value, "=DIR") ? "{compset -P \"*=\"; _files -/}" : "",
                       strstr(o->value, "=DIR") ? "" : actions[follows(o)]);
        }
        putchar('\'');
    }
}

static void print_zsh(void) {
    fputs("#compdef ligature\n# zsh completion of ligature: a file _ligature in a folder of "
          "$fpath\n_ligature() {\n    local -a commands=(\n",
          stdout);
    for (size_t i = 0; i < cli_command_count; i++) {
        printf("        '%s:", cli_commands[i].name);
        print_quoted(cli_commands[i].summary, ":\\");
        printf("'\n");
    }
    fputs("    )\n    if (( CURRENT == 2 )); then\n        _describe command commands\n"
          "        return\n    fi\n    local command=$words[2]\n    shift words\n"
          "    (( CURRENT-- ))\n    case $command in\n",
          stdout);
    for (size_t i = 0; i < cli_command_count; i++) {
        const CliCommand *c = &cli_commands[i];
        const CliOption *o;
        printf("    %s)\n        _arguments", c->name);
        for (size_t k = 0; (o = cli_option_at(c, k)) != NULL; k++)
            zsh_option(o);
        if (is_choice(c)) {
            printf(" \\\n            '1:choice:(");
            print_words(c->usage, "|", " ", "");
            printf(")'");
        } else if (c->usage[0] != '[')
            printf(" \\\n            '1:%.*s:_files'", (int)strcspn(c->usage, " "), c->usage);
        printf("\n        ;;\n");
    }
    fputs("    esac\n}\n"
          "if [[ $funcstack[1] = _ligature ]]; then _ligature \"$@\"; else compdef _ligature "
          "ligature; fi\n",
          stdout);
}

/* ---- fish ---- */

static void fish_option(const CliCommand *c, const CliOption *o) {
    printf("complete -c ligature -n '__fish_seen_subcommand_from %s'", c->name);
    if (strlen(o->name) > 1)
        printf(" -l %s", o->name);
    if (o->alias)
        printf(" -s %s", o->alias);
    if (o->kind != OPTION_FLAG) {
        switch (follows(o)) {
        case FOLLOWS_WORDS:
            printf(" -x -a '%s'", o->values);
            break;
        case FOLLOWS_FOLDERS:
            printf(" -x -a '(__fish_complete_directories)'");
            break;
        case FOLLOWS_FILES:
            printf(" -r -F");
            break;
        case FOLLOWS_ANYTHING:
            printf(" -x");
            break;
        }
    }
    printf(" -d '");
    for (const char *t = o->help; *t; t++)
        printf(*t == '\'' || *t == '\\' ? "\\%c" : "%c", *t);
    printf("'\n");
}

static void print_fish(void) {
    fputs("# fish completion of ligature: ~/.config/fish/completions/ligature.fish\n", stdout);
    for (size_t i = 0; i < cli_command_count; i++) {
        const CliCommand *c = &cli_commands[i];
        const CliOption *o;
        printf("complete -c ligature -n __fish_use_subcommand -f -a %s -d '", c->name);
        for (const char *t = c->summary; *t; t++)
            printf(*t == '\'' || *t == '\\' ? "\\%c" : "%c", *t);
        printf("'\n");
        if (is_choice(c)) {
            printf("complete -c ligature -n '__fish_seen_subcommand_from %s' -f -a '", c->name);
            print_words(c->usage, "|", "", " ");
            printf("'\n");
        }
        for (size_t k = 0; (o = cli_option_at(c, k)) != NULL; k++)
            fish_option(c, o);
    }
}

int cmd_completion(const CliOptions *o) {
    static const struct {
        const char *shell;
        void (*print)(void);
    } shells[] = {{"bash", print_bash}, {"zsh", print_zsh}, {"fish", print_fish}};
    for (size_t i = 0; o->positional && i < sizeof shells / sizeof shells[0]; i++)
        if (strcmp(o->positional, shells[i].shell) == 0) {
            shells[i].print();
            return EXIT_OK;
        }
    if (o->positional)
        return cli_refuse("no completion is known for \"%s\"; for bash, zsh and fish there is one",
                          o->positional);
    return cli_refuse("usage: ligature completion bash|zsh|fish");
}
