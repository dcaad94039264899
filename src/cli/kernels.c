/* `kernels`: what runs here, and where it comes from. */
#include "cli/cli.h"

int cmd_kernels(const CliOptions *o) {
    LgError err;
    char *text = NULL;
    if (lg_kernels(o->cache, &text, &err) != LG_OK)
        return cli_fail(&err);
    fputs(text, stdout);
    lg_free_memory(text);
    return EXIT_OK;
}
