/* MODEL as org/name: what Hugging Face's tools have downloaded, found where they keep it. Nothing
 * is ever downloaded here. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "cli/cli.h"

#define COMMIT_BYTES_MAX 256

/* One slash between two plain names: nothing that one would write for a path of one's own, such as
 * ./models/x or /models/x. */
static bool is_repository(const char *model, size_t *org) {
    const char *slash = strchr(model, '/');
    *org = slash ? (size_t)(slash - model) : 0;
    return slash && *org > 0 && slash[1] && !strchr(slash + 1, '/') && model[0] != '.' &&
           model[0] != '~' && slash[1] != '.';
}

/* $HF_HUB_CACHE, else $HF_HOME/hub, else $XDG_CACHE_HOME or ~/.cache, as the tools decide. */
static bool cache_folder(Buf *path) {
    static const struct {
        const char *variable, *below;
    } places[] = {{"HF_HUB_CACHE", ""},
                  {"HF_HOME", "/hub"},
                  {"XDG_CACHE_HOME", "/huggingface/hub"},
                  {"HOME", "/.cache/huggingface/hub"}};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        const char *value = getenv(places[i].variable);
        if (!value || !*value)
            continue;
        buf_printf(path, "%s%s", value, places[i].below);
        return true;
    }
    return false;
}

/* The commit that refs/main names, appended; a name of a folder, whatever the file says. */
static bool append_commit(const char *repository, Buf *path) {
    Buf file, commit;
    buf_init(&file);
    buf_init(&commit);
    buf_printf(&file, "%s/refs/main", repository);
    LgError err;
    bool found = !file.failed && file_read(file.data, COMMIT_BYTES_MAX, &commit, &err) == LG_OK;
    size_t len = found ? strcspn(commit.data, "\r\n \t") : 0;
    found = len > 0 && strspn(commit.data, "0123456789abcdefABCDEF") == len;
    if (found)
        buf_printf(path, "%s/snapshots/%.*s", repository, (int)len, commit.data);
    buf_clear(&commit);
    buf_clear(&file);
    return found && !path->failed;
}

/* A repository of .gguf files has no config.json: its only one is the model. */
static int choose_gguf(const char *model, Buf *path) {
    size_t count = 0, folder = path->len;
    Buf names;
    buf_init(&names);
    DIR *d = opendir(path->data);
    const struct dirent *entry;
    while (d && (entry = readdir(d)) != NULL) {
        if (!lg_str_ends(lg_str(entry->d_name), ".gguf"))
            continue;
        buf_printf(&names, "%s%s", count ? ", " : "", entry->d_name);
        count++;
    }
    if (d)
        closedir(d);
    int code = EXIT_OK;
    if (count == 1)
        buf_printf(path, "/%s", names.data);
    else if (count == 0)
        code = cli_refuse("\"%s\" is in the Hugging Face cache without config.json and without a "
                          ".gguf file (%.*s); its download may have stopped",
                          model, (int)folder, path->data);
    else
        code = cli_refuse("\"%s\" holds several .gguf files: %s; give the path of one in %s", model,
                          names.data, path->data);
    if (code == EXIT_OK && (path->failed || names.failed))
        code = cli_no_memory();
    buf_clear(&names);
    return code;
}

static int find_snapshot(const char *model, const char *repository, Buf *path) {
    if (!append_commit(repository, path))
        return cli_refuse("\"%s\" is no file or folder here, and the Hugging Face cache does not "
                          "hold it: looked for %s/refs/main and the snapshot that it names. "
                          "Ligature downloads nothing; hf download %s does",
                          model, repository, model);
    if (!file_is_dir(path->data))
        return cli_refuse("\"%s\": %s/refs/main names the snapshot %s, which is not there", model,
                          repository, path->data);
    Buf config;
    buf_init(&config);
    buf_printf(&config, "%s/config.json", path->data);
    bool whole = file_exists(config.data), failed = config.failed;
    buf_clear(&config);
    if (failed)
        return cli_no_memory();
    return whole ? EXIT_OK : choose_gguf(model, path);
}

int cli_model_path(const char *model, Buf *path, const char **out) {
    size_t org;
    *out = model;
    if (file_exists(model) || !is_repository(model, &org))
        return EXIT_OK;
    Buf repository;
    buf_init(&repository);
    if (!cache_folder(&repository)) {
        buf_clear(&repository);
        return EXIT_OK;
    }
    buf_printf(&repository, "/models--%.*s--%s", (int)org, model, model + org + 1);
    int code = repository.failed ? cli_no_memory() : find_snapshot(model, repository.data, path);
    buf_clear(&repository);
    *out = path->data;
    return code;
}
