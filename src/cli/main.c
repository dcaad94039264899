/* The command table. */
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"

#define MODEL_OPTIONS                                                                              \
    "backend program store threads level compiler cache require-cache context lane "

const CliCommand cli_commands[] = {
    {"run", "Writes text: one sequence, or a batch in which every request has adapters of its own.",
     "MODEL [-p TEXT | --ids LIST | --batch FILE.jsonl] [options]",
     "prompt ids batch n greedy temperature top-k top-p min-p seed adapter use digest json "
     "rows " MODEL_OPTIONS,
     "  ligature run model.gguf -p 'The sky is' -n 32 --greedy\n"
     "  ligature run DIR --ids 3,17,99 -n 48 --greedy --json --adapter sql=adapters/sql\n"
     "  ligature run DIR --batch requests.jsonl --json --adapter a=DIR_A --adapter b=DIR_B\n"
     "  A batch line: "
     "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"adapter\":\"a\",\"n\":48}\n"
     "  (or \"prompt\" or \"ids\"; \"adapters\":[{\"name\":\"a\",\"scale\":0.5}]; \"eos\":true "
     "stops at the end token)\n",
     cmd_run},
    {"chat", "Talks: reads lines, answers by the model's chat template.", "MODEL [options]",
     "n greedy temperature top-k top-p min-p seed adapter use system " MODEL_OPTIONS,
     "  ligature chat model.gguf --adapter support=DIR\n", cmd_chat},
    {"tokenize", "Text to ids and back, a line each.", "MODEL --jsonl FILE", "jsonl " MODEL_OPTIONS,
     "  echo '{\"text\":\"Hello\"}' | ligature tokenize model.gguf --jsonl -\n"
     "  Input lines: {\"text\":..,\"plain\":true}, {\"ids\":[..]}, "
     "{\"messages\":[..],\"add_generation_prompt\":true}\n",
     cmd_tokenize},
    {"compile",
     "Compiles a page of equations for a config, or refuses with the line and the reason.",
     "FILE.lg --config DIR [--emit c|plan|so] [-o FILE]",
     "config emit output level compiler store explain-ignored",
     "  ligature compile models/llama.lg --config DIR --emit plan\n"
     "  ligature compile models/llama.lg --config DIR --emit so -o llama.so\n",
     cmd_compile},
    {"explain", "Launch by launch: provenance, source lines, kernel, bytes and FLOPs.",
     "MODEL [--rows R] [--json]", "rows json " MODEL_OPTIONS,
     "  ligature explain model.gguf --rows 1\n", cmd_explain},
    {"inspect",
     "What a checkpoint, an adapter or a .gguf holds; with --model an adapter's load report.",
     "PATH [--model MODEL] [--json]", "model json store",
     "  ligature inspect adapters/sql --model model.gguf --json\n", cmd_inspect},
    {"eval", "Teacher-forced: the likeliest ids, margins and logsumexp at every position.",
     "MODEL --ids LIST [options]", "ids adapter use json rows " MODEL_OPTIONS,
     "  ligature eval DIR --ids 3,17,99 --json --store f32\n", cmd_eval},
    {"kernels", "The kernels that run here: of the present GPU, or the CPU's levels.",
     "[--cache DIR]", "cache", "  ligature kernels\n", cmd_kernels},
    {"bench", "Throughput and latency on this machine, over sequences, adapters, rank and lengths.",
     "MODEL [options]",
     "sequences adapters ranks prompts contexts repeats n adapter rows html json " MODEL_OPTIONS,
     "  ligature bench model.gguf --html bench.html\n"
     "  ligature bench DIR --sequences 1,4,16 --ranks 16 --prompts 128 --json\n"
     "  ligature bench DIR --adapter a=DIR_A --adapter b=DIR_B\n",
     cmd_bench},
    {"completion", "Writes the completion of this command line for a shell.", "bash|zsh|fish", "",
     "  source <(ligature completion bash)\n"
     "  ligature completion zsh > ~/.zfunc/_ligature\n"
     "  ligature completion fish > ~/.config/fish/completions/ligature.fish\n",
     cmd_completion},
};
const size_t cli_command_count = sizeof cli_commands / sizeof cli_commands[0];

static void overview(FILE *to) {
    fprintf(to,
            "ligature %s: runs language models from readable source, with many adapters at "
            "once.\n\nCommands\n",
            lg_version());
    for (size_t i = 0; i < cli_command_count; i++)
        fprintf(to, "  %-10s %s\n", cli_commands[i].name, cli_commands[i].summary);
    fprintf(to, "\nligature COMMAND --help says more.\n");
}

static int run_command(int argc, char **argv) {
    if (argc < 2) {
        overview(stderr);
        return EXIT_REFUSED;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        overview(stdout);
        return EXIT_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("ligature %s\n", lg_version());
        return EXIT_OK;
    }
    for (size_t i = 0; i < cli_command_count; i++) {
        if (strcmp(argv[1], cli_commands[i].name) != 0)
            continue;
        CliOptions options = {0};
        int code = cli_parse(argc - 2, argv + 2, &cli_commands[i], &options);
        if (code != EXIT_OK || !options.help)
            return code == EXIT_OK ? cli_commands[i].run(&options) : code;
        cli_help(&cli_commands[i]);
        return EXIT_OK;
    }
    for (size_t i = 0; i < cli_command_count; i++)
        if (cli_resembles(argv[1], cli_commands[i].name))
            return cli_refuse("there is no command \"%s\"; did you mean %s? ligature --help lists "
                              "them",
                              argv[1], cli_commands[i].name);
    return cli_refuse("there is no command \"%s\"; ligature --help lists them", argv[1]);
}

int main(int argc, char **argv) {
    lg_mem_install_hooks();
    int code = run_command(argc, argv);
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == EXIT_OK) {
        fputs("ligature: writing to standard output failed\n", stderr);
        code = EXIT_INTERNAL;
    }
    return code;
}
