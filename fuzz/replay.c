/* Runs files through a fuzz target, so that a corpus is an ordinary test: replay_NAME
 * FOLDER_OR_FILE... Each input is a heap block of exactly its size: a sanitizer then sees a read
 * past its end. */
#include <dirent.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "fuzz/fuzz.h"

#define INPUT_BYTES_MAX (64u << 20)

static int replay_file(const char *path, size_t *count) {
    Buf text;
    LgError err = {0};
    buf_init(&text);
    int failed = 1;
    if (file_read(path, INPUT_BYTES_MAX, &text, &err) != LG_OK) {
        fprintf(stderr, "%s\n", err.message);
    } else {
        uint8_t *exact = lg_alloc(text.len);
        if (exact) {
            memcpy(exact, text.data, text.len);
            LLVMFuzzerTestOneInput(exact, text.len);
            (*count)++;
            failed = 0;
        }
        lg_free(exact);
    }
    buf_clear(&text);
    return failed;
}

static int is_shown(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

static int replay_dir(const char *dir, size_t *count) {
    struct dirent **entries;
    int entry_count = scandir(dir, &entries, is_shown, alphasort);
    int failed = entry_count < 0;
    for (int i = 0; i < entry_count; i++) {
        Buf path;
        buf_init(&path);
        buf_printf(&path, "%s/%s", dir, entries[i]->d_name);
        failed |= replay_file(path.data, count);
        buf_clear(&path);
        free(entries[i]);
    }
    if (entry_count >= 0)
        free(entries);
    return failed;
}

int main(int argc, char **argv) {
    size_t count = 0;
    int failed = 0;
    lg_mem_install_hooks();
    for (int i = 1; i < argc; i++)
        failed |= file_is_dir(argv[i]) ? replay_dir(argv[i], &count) : replay_file(argv[i], &count);
    printf("%zu inputs\n", count);
    if (count == 0)
        fprintf(stderr, "there was nothing to run\n");
    return failed || count == 0;
}
