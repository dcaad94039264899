/* `inspect`: what a file holds, and what an adapter does to a model: in short for people, whole
 * with --json. */
#include <string.h>

#include "base/json.h"
#include "cli/cli.h"

static const char *text_of(const json_t *o, const char *key) {
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : "";
}

static long long count_of(const json_t *o, const char *key) {
    return (long long)json_integer_value(json_object_get(o, key));
}

static void print_why(const json_t *list, const char *title) {
    size_t i;
    json_t *entry;
    json_array_foreach(list, i, entry) {
        if (json_is_string(entry))
            printf("%s: %s\n", title, json_string_value(entry));
        else
            printf("%s: %s (%s)\n", title, text_of(entry, "what"), text_of(entry, "why"));
    }
}

/* The entries of one site as a line: its layers, and the ranks and scales that occur. */
static void print_site(const json_t *sites, const char *name) {
    size_t i, count = 0, dora = 0;
    json_t *s;
    long long low = -1, high = -1, rank_low = 0, rank_high = 0;
    double scale_low = 0, scale_high = 0;
    json_array_foreach(sites, i, s) {
        if (strcmp(text_of(s, "site"), name) != 0)
            continue;
        long long layer = count_of(s, "layer"), rank = count_of(s, "rank");
        double scale = json_number_value(json_object_get(s, "scale"));
        low = count == 0 || layer < low ? layer : low;
        high = layer > high ? layer : high;
        rank_low = count == 0 || rank < rank_low ? rank : rank_low;
        rank_high = rank > rank_high ? rank : rank_high;
        scale_low = count == 0 || scale < scale_low ? scale : scale_low;
        scale_high = count == 0 || scale > scale_high ? scale : scale_high;
        dora += json_is_true(json_object_get(s, "dora"));
        count++;
    }
    char layers[48], ranks[48], scales[64];
    snprintf(layers, sizeof layers,
             low < 0       ? "-"
             : low == high ? "%lld"
                           : "%lld to %lld",
             low, high);
    snprintf(ranks, sizeof ranks, rank_low == rank_high ? "%lld" : "%lld to %lld", rank_low,
             rank_high);
    if (scale_low == scale_high)
        snprintf(scales, sizeof scales, "%.6g", scale_low);
    else
        snprintf(scales, sizeof scales, "%.6g to %.6g", scale_low, scale_high);
    printf("  %-12s %7zu  %-12s %-12s %-24s %s\n", name, count, layers, ranks, scales,
           dora ? "DoRA" : "");
}

static bool seen_before(const json_t *sites, size_t at) {
    for (size_t i = 0; i < at; i++)
        if (strcmp(text_of(json_array_get(sites, i), "site"),
                   text_of(json_array_get(sites, at), "site")) == 0)
            return true;
    return false;
}

static void print_replaced(const json_t *list) {
    size_t i;
    json_t *r;
    json_array_foreach(list, i, r) {
        printf("  %s, layer %lld, is replaced", text_of(r, "param"), count_of(r, "layer"));
        if (json_object_get(r, "rows"))
            printf(" in %lld rows", count_of(r, "rows"));
        printf(" by %s\n", text_of(r, "tensor"));
    }
}

static void print_report(const json_t *report) {
    const json_t *tensors = json_object_get(report, "tensors");
    const json_t *sites = json_object_get(report, "sites");
    printf("%lld of %lld tensors applied, %lld modules, %lld bytes\n", count_of(tensors, "applied"),
           count_of(tensors, "tensors"), count_of(tensors, "modules"), count_of(report, "bytes"));
    printf("content %s\n", text_of(report, "hash"));
    printf("  %-12s %7s  %-12s %-12s %s\n", "site", "modules", "layers", "rank", "scale");
    for (size_t i = 0; i < json_array_size(sites); i++)
        if (!seen_before(sites, i))
            print_site(sites, text_of(json_array_get(sites, i), "site"));
    print_replaced(json_object_get(report, "replaced"));
    print_why(json_object_get(report, "disregarded"), "disregarded");
    print_why(json_object_get(report, "notes"), "note");
}

static void print_tensors(const json_t *tensors) {
    size_t i, k;
    json_t *t, *size;
    json_array_foreach(tensors, i, t) {
        char shape[96] = "";
        json_array_foreach(json_object_get(t, "shape"), k, size) {
            size_t at = strlen(shape);
            snprintf(shape + at, sizeof shape - at, "%s%lld", k ? " x " : "",
                     (long long)json_integer_value(size));
        }
        printf("  %-60s %-6s %s\n", text_of(t, "name"), text_of(t, "dtype"), shape);
    }
}

/* A checkpoint, or an adapter without its model. */
static int print_file(const json_t *file) {
    const json_t *config = json_object_get(file, "config"),
                 *tensors = json_object_get(file, "tensors");
    const char *key;
    json_t *value;
    printf("%s%s%s, %zu tensors\n", text_of(file, "format"), *text_of(file, "format") ? " " : "",
           json_object_get(file, "kind") ? text_of(file, "kind") : "adapter",
           json_array_size(tensors));
    json_object_foreach((json_t *)config, key, value) {
        char *text;
        int code = cli_json_text(value, &text);
        if (code != EXIT_OK)
            return code;
        printf("  %s = %s\n", key, text);
        lg_free_memory(text);
    }
    print_tensors(tensors);
    print_why(json_object_get(file, "disregarded"), "disregarded");
    if (json_is_string(json_object_get(file, "refusal")))
        printf("cannot be served: %s\n", text_of(file, "refusal"));
    return EXIT_OK;
}

static int print_text(const char *text) {
    json_t *root = NULL;
    LgError err;
    int code = EXIT_OK;
    if (lg_json_parse(lg_str(text), "report", &root, &err) != LG_OK)
        return cli_fail(&err);
    if (json_object_get(root, "sites"))
        print_report(root);
    else
        code = print_file(root);
    json_decref(root);
    return code;
}

int cmd_inspect(const CliOptions *o) {
    if (!o->positional)
        return cli_refuse("usage: ligature inspect PATH [--model MODEL] [--json]");
    LgEngine *e = NULL;
    CliOptions open = *o;
    open.positional = o->model;
    int code = o->model ? cli_open(&open, &e) : EXIT_OK;
    char *text = NULL;
    LgError err;
    Buf found;
    buf_init(&found);
    const char *path;
    if (code == EXIT_OK)
        code = cli_model_path(o->positional, &found, &path);
    if (code == EXIT_OK && lg_inspect(path, e, &text, &err) != LG_OK)
        code = cli_fail(&err);
    else if (code == EXIT_OK && o->json)
        puts(text);
    else if (code == EXIT_OK)
        code = print_text(text);
    lg_free_memory(text);
    buf_clear(&found);
    lg_engine_close(e);
    return code;
}
