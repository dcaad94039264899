/* `eval`: teacher-forced, every position. */
#include <stdlib.h>

#include "cli/cli.h"

static void print_positions(const LgPosition *p, size_t count) {
    printf("%8s %8s %8s %10s %10s\n", "position", "top1", "top2", "margin", "logsumexp");
    for (size_t i = 0; i < count; i++)
        printf("%8zu %8d %8d %10.4f %10.4f\n", i, p[i].top1, p[i].top2, (double)p[i].margin,
               (double)p[i].logsumexp);
}

static json_t *eval_json(const LgEngine *e, const LgPosition *p, size_t count,
                         const float *logits) {
    json_t *positions = json_array(), *last = json_array();
    for (size_t i = 0; i < count; i++)
        positions =
            cli_append(positions, json_pack("{s:i, s:i, s:f, s:f}", "top1", p[i].top1, "top2",
                                            p[i].top2, "margin", (double)p[i].margin, "logsumexp",
                                            (double)p[i].logsumexp));
    for (int32_t i = 0; i < lg_engine_vocab(e); i++)
        last = cli_append(last, json_real((double)logits[i]));
    return json_pack("{s:o, s:o, s:o}", "positions", positions, "logits", last, "program",
                     cli_program_json(e, false));
}

int cmd_eval(const CliOptions *o) {
    if (!o->ids)
        return cli_refuse("--ids LIST is needed");
    int32_t *ids = NULL;
    size_t count = 0, use_count = 0;
    LgAdapterUse uses[LG_ADAPTERS_MAX];
    LgEngine *e = NULL;
    int code = cli_ids(o->ids, &ids, &count);
    if (code == EXIT_OK)
        code = cli_uses(o, uses, &use_count);
    if (code == EXIT_OK)
        code = cli_open(o, &e);
    LgPosition *positions = malloc((count + 1) * sizeof *positions);
    float *logits = e ? malloc((size_t)lg_engine_vocab(e) * sizeof *logits) : NULL;
    LgError err;
    if (code == EXIT_OK && (!positions || !logits))
        code = EXIT_INTERNAL;
    if (code == EXIT_OK &&
        lg_eval(e, ids, count, uses, use_count, positions, logits, &err) != LG_OK)
        code = cli_fail(&err);
    if (code == EXIT_OK && o->json)
        code = cli_print_json(eval_json(e, positions, count, logits));
    else if (code == EXIT_OK)
        print_positions(positions, count);
    free(logits);
    free(positions);
    free(ids);
    lg_engine_close(e);
    return code;
}
