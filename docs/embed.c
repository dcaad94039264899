/* Two sequences of one prompt in one batch: the base model, and the same with an adapter.
 *   embed MODEL ADAPTER_DIR 3,17,99 */
#include <ligature.h>
#include <stdio.h>
#include <stdlib.h>

static int fail(const LgError *error) {
    fprintf(stderr, "embed: %s\n", error->message);
    return 1;
}

static size_t parse_ids(const char *text, int32_t *ids, size_t max) {
    size_t count = 0;
    char *end = (char *)text;
    while (count < max) {
        ids[count++] = (int32_t)strtol(end, &end, 10);
        if (*end != ',')
            break;
        end++;
    }
    return count;
}

static void print_ids(const char *title, const LgSequence *sequence) {
    size_t count;
    const int32_t *ids = lg_sequence_ids(sequence, &count);
    printf("%s:", title);
    for (size_t i = 0; i < count; i++)
        printf(" %d", ids[i]);
    printf("\n");
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: embed MODEL ADAPTER_DIR 3,17,99\n");
        return 2;
    }
    LgError error;
    LgEngineOptions options;
    lg_engine_options_init(&options);
    options.model = argv[1];
    LgEngine *engine = NULL;
    LgSequence *base = NULL, *adapted = NULL;
    int32_t ids[64], active = 1;
    size_t id_count = parse_ids(argv[3], ids, 64);
    LgAdapterUse use = {.name = "mine", .scale = 1.0f};
    LgRequest request = {
        .ids = ids, .id_count = id_count, .max_tokens = 8, .sampling = {.top_p = 1}};
    int code = 0;

    if (lg_engine_open(&options, &engine, &error) != LG_OK ||
        lg_adapter_load(engine, "mine", argv[2], &error) != LG_OK ||
        lg_sequence_create(engine, &request, &base, &error) != LG_OK)
        code = fail(&error);
    request.adapters = &use;
    request.adapter_count = 1;
    if (code == 0 && lg_sequence_create(engine, &request, &adapted, &error) != LG_OK)
        code = fail(&error);
    while (code == 0 && active > 0)
        if (lg_engine_step(engine, &active, &error) != LG_OK)
            code = fail(&error);
    if (code == 0) {
        print_ids("base", base);
        print_ids("adapted", adapted);
    }
    lg_sequence_destroy(adapted);
    lg_sequence_destroy(base);
    lg_engine_close(engine);
    return code;
}
