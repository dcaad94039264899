/* What the commands share: opening an engine, adapters, numbers, JSON forms. The environment is
 * read here and nowhere else. */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "cli/cli.h"

static int exit_code(LgStatus status) {
    switch (status) {
    case LG_IO:
    case LG_INTERNAL:
    case LG_DEVICE:
    case LG_NO_MEMORY:
        return EXIT_INTERNAL;
    default:
        return EXIT_REFUSED;
    }
}

int cli_fail(const LgError *e) {
    fprintf(stderr, "ligature: %s\n", e->message);
    return exit_code(e->status);
}

int cli_fail_at(const LgError *e, const char *what, size_t number) {
    fprintf(stderr, "ligature: %s %zu: %s\n", what, number, e->message);
    return exit_code(e->status);
}

int cli_refuse(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("ligature: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return EXIT_REFUSED;
}

bool cli_int(const char *text, long min, long max, long *out) {
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < min || value > max)
        return false;
    *out = value;
    return true;
}

/* $LIGATURE_CACHE, else $XDG_CACHE_HOME/ligature, else ~/.cache/ligature; NULL where there is no
 * home. */
static const char *default_cache(Buf *path) {
    const char *own = getenv("LIGATURE_CACHE");
    const char *xdg = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    if (own && *own)
        buf_puts(path, own);
    else if (xdg && *xdg)
        buf_printf(path, "%s/ligature", xdg);
    else if (home && *home)
        buf_printf(path, "%s/.cache/ligature", home);
    return path->len ? path->data : NULL;
}

static int engine_options(const CliOptions *o, LgEngineOptions *out, Buf *cache, Buf *model) {
    lg_engine_options_init(out);
    long threads = 0, rows = 0, context = 0;
    if (o->threads && !cli_int(o->threads, 1, 256, &threads))
        return cli_refuse("--threads %s: a number from 1 to 256 is needed", o->threads);
    if (o->rows && !cli_int(o->rows, 1, 65536, &rows))
        return cli_refuse("--rows %s: a number from 1 to 65536 is needed", o->rows);
    if (o->context && !cli_int(o->context, 1, 1 << 24, &context))
        return cli_refuse("--context %s: a number from 1 to 16777216 is needed", o->context);
    if (o->store && strcmp(o->store, "bf16") != 0 && strcmp(o->store, "f32") != 0)
        return cli_refuse("--store %s: bf16 or f32 is accepted", o->store);
    if (o->lane)
        return cli_refuse("--lane %s: there is no hand-written lane of that name; without --lane "
                          "the compiled program runs",
                          o->lane);
    int code = cli_model_path(o->positional, model, &out->model);
    if (code != EXIT_OK)
        return code;
    out->program = o->program;
    out->backend = o->backend;
    out->level = o->level;
    out->compiler = o->compiler;
    out->cache_dir = o->cache ? o->cache : default_cache(cache);
    out->require_cache = o->require_cache;
    out->store_f32 = o->store && strcmp(o->store, "f32") == 0;
    out->threads = (int)threads;
    out->rows_max = (int)rows;
    out->context_max = (int)context;
    return EXIT_OK;
}

static int load_adapters(const CliOptions *o, LgEngine *e) {
    for (int i = 0; i < o->adapter.count; i++) {
        const char *eq = strchr(o->adapter.items[i], '=');
        if (!eq)
            return cli_refuse("--adapter %s: NAME=DIR is needed", o->adapter.items[i]);
        char name[256];
        size_t len = (size_t)(eq - o->adapter.items[i]);
        if (len >= sizeof name)
            return cli_refuse("--adapter: the name has %zu bytes; up to 255 are accepted", len);
        memcpy(name, o->adapter.items[i], len);
        name[len] = 0;
        LgError err;
        if (lg_adapter_load(e, name, eq + 1, &err) != LG_OK)
            return cli_fail(&err);
    }
    return EXIT_OK;
}

static json_t *describe(const LgEngine *e) {
    char *text;
    LgError err;
    if (lg_engine_describe(e, &text, &err) != LG_OK)
        return NULL;
    json_t *o = NULL;
    if (lg_json_parse(lg_str(text), "description", &o, &err) != LG_OK)
        o = NULL;
    lg_free_memory(text);
    return o;
}

/* What opening has to say, such as a cache that cannot be written. */
static void print_note(const LgEngine *e) {
    json_t *o = describe(e);
    const char *note = json_string_value(json_object_get(o, "note"));
    if (note)
        fprintf(stderr, "ligature: %s\n", note);
    json_decref(o);
}

int cli_open(const CliOptions *o, LgEngine **out) {
    if (!o->positional)
        return cli_refuse(
            "no MODEL is given: a checkpoint folder, a .gguf file, or org/name in the Hugging "
            "Face cache is needed");
    LgEngineOptions options;
    Buf cache, model;
    buf_init(&cache);
    buf_init(&model);
    LgError err;
    LgEngine *e = NULL;
    int code = engine_options(o, &options, &cache, &model);
    if (code == EXIT_OK && lg_engine_open(&options, &e, &err) != LG_OK)
        code = cli_fail(&err);
    buf_clear(&cache);
    buf_clear(&model);
    if (code == EXIT_OK)
        print_note(e);
    if (code == EXIT_OK)
        code = load_adapters(o, e);
    if (code != EXIT_OK) {
        lg_engine_close(e);
        return code;
    }
    *out = e;
    return EXIT_OK;
}

int cli_ids(const char *text, int32_t **ids, size_t *count) {
    size_t n = 1;
    for (const char *c = text; *c; c++)
        n += *c == ',';
    int32_t *list = malloc(n * sizeof *list);
    if (!list)
        return EXIT_INTERNAL;
    const char *at = text;
    for (size_t i = 0; i < n; i++) {
        char *end;
        errno = 0;
        long value = strtol(at, &end, 10);
        if (errno || end == at || (*end != ',' && *end) || value < 0 || value > INT32_MAX) {
            free(list);
            return cli_refuse(
                "--ids: number %zu is no token id; ids and commas are accepted, as in 3,17,99",
                i + 1);
        }
        list[i] = (int32_t)value;
        at = end + 1;
    }
    *ids = list;
    *count = n;
    return EXIT_OK;
}

int cli_id_list(const json_t *list, const char *what, long line, int32_t **ids, size_t *count) {
    *count = json_array_size(list);
    *ids = malloc((*count + 1) * sizeof **ids);
    if (!*ids)
        return cli_no_memory();
    for (size_t i = 0; i < *count; i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT32_MAX)
            return cli_refuse(
                "%s line %ld: element %zu of \"ids\" is no token id; whole numbers of "
                "0 or more are accepted",
                what, line, i + 1);
        (*ids)[i] = (int32_t)json_integer_value(v);
    }
    return EXIT_OK;
}

bool cli_has_word(const char *words, const char *word) {
    size_t len = strlen(word);
    for (const char *at = words; len && !strchr(word, ' ') && (at = strstr(at, word)); at += len)
        if ((at == words || at[-1] == ' ') && (at[len] == ' ' || at[len] == 0))
            return true;
    return false;
}

int cli_known_keys(const json_t *object, const char *keys, const char *what, long line,
                   const char *inside) {
    const char *key;
    json_t *value;
    if (!json_is_object(object))
        return cli_refuse("%s line %ld: an object is needed%s%s", what, line, inside ? " in " : "",
                          inside ? inside : "");
    json_object_foreach((json_t *)object, key, value) {
        if (!cli_has_word(keys, key))
            return cli_refuse("%s line %ld: unknown key \"%s\"%s%s; accepted are: %s", what, line,
                              key, inside ? " in " : "", inside ? inside : "", keys);
    }
    return EXIT_OK;
}

bool cli_scale(double value, float *out) {
    *out = (float)value;
    return *out - *out == 0 && (*out != 0) == (value != 0);
}

/* names: storage for the names in front of a colon. */
int cli_uses(const CliOptions *o, LgAdapterUse *uses, size_t *count) {
    static char names[LG_ADAPTERS_MAX][256]; /* the process runs one command */
    *count = 0;
    const CliList *list = o->use.count ? &o->use : &o->adapter;
    if (!o->use.count && o->adapter.count > 1)
        return cli_refuse(
            "%d adapters are loaded and none is chosen; say which with --use NAME[:SCALE]",
            o->adapter.count);
    if (list->count > LG_ADAPTERS_MAX)
        return cli_refuse("--use is given %d times; at most %d adapters act on one sequence",
                          list->count, LG_ADAPTERS_MAX);
    for (int i = 0; i < list->count; i++) {
        const char *item = list->items[i];
        size_t len = strcspn(item, o->use.count ? ":" : "=");
        if (len >= sizeof names[0])
            return cli_refuse("--use: the name has %zu bytes; up to 255 are accepted", len);
        memcpy(names[i], item, len);
        names[i][len] = 0;
        uses[i] = (LgAdapterUse){.name = names[i], .scale = 1};
        if (o->use.count && item[len] == ':') {
            char *end;
            double scale = strtod(item + len + 1, &end);
            if (end == item + len + 1 || *end || !cli_scale(scale, &uses[i].scale))
                return cli_refuse("--use %s: after the colon a number is needed that 32 bits hold",
                                  item);
        }
    }
    *count = (size_t)list->count;
    return EXIT_OK;
}

int cli_check_uses(const LgEngine *e, const LgAdapterUse *uses, size_t count) {
    for (size_t i = 0; i < count; i++) {
        char *report;
        LgError err;
        if (lg_adapter_report(e, uses[i].name, &report, &err) != LG_OK)
            return cli_fail(&err);
        lg_free_memory(report);
    }
    return EXIT_OK;
}

static bool real(const char *text, float *out) {
    char *end;
    float v = strtof(text, &end);
    if (end == text || *end || !(v - v == 0))
        return false;
    *out = v;
    return true;
}

int cli_sampling(const CliOptions *o, const LgEngine *e, LgSampling *out) {
    lg_engine_default_sampling(e, out);
    long number;
    if (o->greedy)
        *out = (LgSampling){.top_p = 1};
    if (o->temperature && !real(o->temperature, &out->temperature))
        return cli_refuse("--temperature %s: a number is needed", o->temperature);
    if (o->greedy && out->temperature > 0)
        return cli_refuse("--greedy is temperature 0, and --temperature asks for %s",
                          o->temperature);
    if (o->top_p && !real(o->top_p, &out->top_p))
        return cli_refuse("--top-p %s: a number from 0 to 1 is needed", o->top_p);
    if (o->min_p && !real(o->min_p, &out->min_p))
        return cli_refuse("--min-p %s: a number from 0 to 1 is needed", o->min_p);
    if (o->top_k) {
        if (!cli_int(o->top_k, 0, INT32_MAX, &number))
            return cli_refuse("--top-k %s: a number of 0 or more is needed", o->top_k);
        out->top_k = (int32_t)number;
    }
    if (o->seed) {
        if (!cli_int(o->seed, 0, 0x7fffffffffffffff, &number))
            return cli_refuse("--seed %s: a number of 0 or more is needed", o->seed);
        out->seed = (uint64_t)number;
    }
    return EXIT_OK;
}

json_t *cli_program_json(const LgEngine *e, bool whole) {
    json_t *o = describe(e);
    if (!whole && o) {
        static const char *const drop[] = {"vocab",  "context",   "disregarded",
                                           "load_s", "compile_s", "note"};
        for (size_t i = 0; i < sizeof drop / sizeof drop[0]; i++)
            json_object_del(o, drop[i]);
    }
    return o;
}

json_t *cli_timing_json(const LgEngine *e) {
    LgTiming t;
    lg_engine_timing(e, &t);
    return json_pack("{s:f, s:f, s:f, s:f, s:I, s:I}", "load_s", t.load_s, "compile_s", t.compile_s,
                     "prefill_s", t.prefill_s, "decode_s", t.decode_s, "prefill_tokens",
                     (json_int_t)t.prefill_tokens, "decode_tokens", (json_int_t)t.decode_tokens);
}

json_t *cli_ids_json(const int32_t *ids, size_t count) {
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        list = cli_append(list, json_integer(ids[i]));
    return list;
}

json_t *cli_uses_json(const LgAdapterUse *uses, size_t count) {
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        list = cli_append(
            list, json_pack("{s:s, s:f}", "name", uses[i].name, "scale", (double)uses[i].scale));
    return list;
}

json_t *cli_append(json_t *list, json_t *value) {
    if (json_array_append_new(list, value) == 0)
        return list;
    json_decref(list);
    return NULL;
}

int cli_no_memory(void) {
    cli_refuse("out of memory");
    return EXIT_INTERNAL;
}

int cli_json_text(const json_t *value, char **text) {
    Buf out;
    buf_init(&out);
    lg_json_print(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9), &out);
    *text = buf_take(&out);
    return *text ? EXIT_OK : cli_no_memory();
}

int cli_print_json(json_t *value) {
    char *text;
    int code = cli_json_text(value, &text);
    if (code == EXIT_OK)
        puts(text);
    lg_free_memory(text);
    json_decref(value);
    return code;
}

void cli_provenance_line(const LgEngine *e, double first_token_s) {
    json_t *o = describe(e);
    LgTiming t;
    lg_engine_timing(e, &t);
    fflush(stdout); /* the text comes first where both go to one terminal */
    fprintf(stderr, "%s program %s on %s", json_string_value(json_object_get(o, "provenance")),
            json_string_value(json_object_get(o, "model")),
            json_string_value(json_object_get(o, "backend")));
    const char *level = json_string_value(json_object_get(o, "level"));
    fprintf(stderr, "%s%s, digest %.12s", level && *level ? "/" : "", level ? level : "",
            json_string_value(json_object_get(o, "digest")));
    if (t.decode_s > 0)
        fprintf(stderr, "; decode %.1f tokens/s", (double)t.decode_tokens / t.decode_s);
    if (t.prefill_s > 0)
        fprintf(stderr, ", prefill %.1f tokens/s", (double)t.prefill_tokens / t.prefill_s);
    if (first_token_s >= 0)
        fprintf(stderr, ", first token after %.3f s", first_token_s);
    fprintf(stderr, "; load %.2f s, compile %.2f s\n", t.load_s, t.compile_s);
    json_decref(o);
}

static int each_line(LgStr text, const char *path, CliLine fn, void *user) {
    long number = 0;
    size_t at = 0;
    while (at < text.len) {
        const char *end = memchr(text.ptr + at, '\n', text.len - at);
        size_t len = end ? (size_t)(end - text.ptr) - at : text.len - at;
        LgStr line = {text.ptr + at, len};
        at += len + 1;
        number++;
        if (strspn(line.ptr, " \t\r") >= line.len)
            continue;
        char what[300];
        snprintf(what, sizeof what, "%.200s line %ld", path, number);
        json_t *value = NULL;
        LgError err;
        if (lg_json_parse(line, what, &value, &err) != LG_OK)
            return cli_fail(&err);
        int code = json_is_object(value) ? fn(user, value, number)
                                         : cli_refuse("%s: an object is needed", what);
        json_decref(value);
        if (code != EXIT_OK)
            return code;
    }
    return EXIT_OK;
}

/* Through stdio: a pipe or standard input is as good as a file here. */
static int read_stream(const char *path, Buf *out) {
    FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    if (!f) {
        fprintf(stderr, "ligature: cannot open \"%s\": %s\n", path, strerror(errno));
        return EXIT_REFUSED;
    }
    char chunk[65536];
    size_t n;
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0 && !out->failed)
        buf_append(out, chunk, n);
    bool bad = ferror(f) || out->failed;
    if (f != stdin)
        fclose(f);
    if (bad)
        fprintf(stderr, "ligature: reading \"%s\" failed\n", path);
    return bad ? EXIT_INTERNAL : EXIT_OK;
}

int cli_each_line(const char *path, CliLine fn, void *user) {
    Buf text;
    buf_init(&text);
    int code = read_stream(path, &text);
    if (code == EXIT_OK)
        code = each_line(buf_view(&text), path, fn, user);
    buf_clear(&text);
    return code;
}
