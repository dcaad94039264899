#include "backend/cpu/cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/cpu/compile.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"

#define META_BYTES_MAX ((size_t)1 << 16)
#define KEY_HEX 64

typedef struct FieldInfo {
    const char *id, *name;
    bool derived;
} FieldInfo;

static const FieldInfo field_info[PROGRAM_FIELD_COUNT] = {
#define PROGRAM_FIELD_INFO(id, name, derived) {#id, name, derived},
    PROGRAM_FIELD_MAP(PROGRAM_FIELD_INFO)
#undef PROGRAM_FIELD_INFO
};

/* ---- fields ---- */

void program_fields_key(const ProgramFields *f, char hex[65]) {
    Sha256 *h = sha256_create();
    hex[0] = 0;
    if (!h)
        return;
    for (int i = 0; i < PROGRAM_FIELD_COUNT; i++) {
        sha256_update(h, field_info[i].id, strlen(field_info[i].id) + 1);
        sha256_update(h, f->value[i], strlen(f->value[i]) + 1);
    }
    sha256_finish(h, hex);
}

void program_fields_print(const ProgramFields *f, const char *extra, Buf *out) {
    for (int i = 0; i < PROGRAM_FIELD_COUNT; i++) {
        buf_printf(out, "%s\"%s\":\"", i ? "," : "{", field_info[i].id);
        buf_json_escape(out, lg_str(f->value[i]));
        buf_putc(out, '"');
    }
    if (extra)
        buf_printf(out, ",%s", extra);
    buf_putc(out, '}');
}

static LgStatus fields_from_json(const json_t *root, Arena *arena, ProgramFields *out,
                                 LgError *err) {
    for (int i = 0; i < PROGRAM_FIELD_COUNT; i++) {
        out->value[i] =
            arena_strdup(arena, lg_json_string(json_object_get(root, field_info[i].id)));
        if (!out->value[i])
            return lg_fail_memory(err);
    }
    return LG_OK;
}

LgStatus program_fields_parse(LgStr json, const char *what, Arena *arena, ProgramFields *out,
                              LgError *err) {
    json_t *root = NULL;
    LG_TRY(lg_json_parse(json, what, &root, err));
    LgStatus status = fields_from_json(root, arena, out, err);
    json_decref(root);
    return status;
}

static bool is_hash(const char *s) {
    return strlen(s) == KEY_HEX && strspn(s, "0123456789abcdef") == KEY_HEX;
}

static bool has_word(const char *words, const char *word, size_t len) {
    for (const char *p = words; *p;) {
        size_t n = strcspn(p, " ");
        if (n == len && memcmp(p, word, len) == 0)
            return true;
        p += n + (p[n] == ' ');
    }
    return false;
}

/* The words of a that b lacks. */
static void print_other_words(const char *a, const char *b, Buf *out) {
    bool first = true;
    for (const char *p = a; *p;) {
        size_t n = strcspn(p, " ");
        if (n && !has_word(b, p, n)) {
            buf_printf(out, "%s%.*s", first ? "" : " ", (int)n, p);
            first = false;
        }
        p += n + (p[n] == ' ');
    }
    if (first)
        buf_puts(out, "none of these");
}

static void print_difference(ProgramField field, const char *was, const char *now,
                             const char *there, Buf *out) {
    buf_printf(out, "%s: %s ", field_info[field].name, there);
    if (field == PROGRAM_FIELD_dims || field == PROGRAM_FIELD_flags) {
        print_other_words(was, now, out);
        buf_puts(out, ", now ");
        print_other_words(now, was, out);
    } else if (is_hash(was) && is_hash(now)) {
        buf_printf(out, "%.12s, now %.12s", was, now);
    } else {
        buf_printf(out, "%.160s, now %.160s", *was ? was : "nothing", *now ? now : "nothing");
    }
}

int program_fields_diff(const ProgramFields *was, const ProgramFields *now, const char *there,
                        Buf *out) {
    int count = 0;
    for (int pass = 0; pass < 2 && (pass == 0 || count == 0); pass++) {
        for (int i = 0; i < PROGRAM_FIELD_COUNT; i++) {
            if (field_info[i].derived != (pass == 1) || strcmp(was->value[i], now->value[i]) == 0)
                continue;
            if (count++)
                buf_puts(out, "; ");
            print_difference((ProgramField)i, was->value[i], now->value[i], there, out);
        }
    }
    return count;
}

/* ---- entries ---- */

LgStatus cache_dir_check(const char *dir, bool *usable, Buf *note, LgError *err) {
    struct stat st;
    LgError e = {0};
    *usable = false;
    LgStatus status = file_mkdirs(dir, &e);
    if (status == LG_NO_MEMORY)
        return lg_fail_memory(err);
    if (status != LG_OK) {
        buf_printf(note, "compiled programs are not kept: %s", e.message);
        return LG_OK;
    }
    if (stat(dir, &st) != 0) {
        buf_printf(note, "compiled programs are not kept: cannot examine \"%s\": %s", dir,
                   strerror(errno));
        return LG_OK;
    }
    if (st.st_mode & S_IWOTH) {
        buf_printf(note,
                   "compiled programs are not kept: \"%s\" is writable by everyone, so that anyone "
                   "could change them",
                   dir);
        return LG_OK;
    }
    *usable = true;
    return LG_OK;
}

static char *entry_path(Arena *arena, const char *dir, const char *key, const char *ending) {
    return arena_printf(arena, "%s/%s%s", dir, key, ending);
}

/* *out stays NULL where the file is missing or damaged; only a lack of memory fails. */
static LgStatus read_meta(const char *path, json_t **out, LgError *err) {
    Buf text;
    buf_init(&text);
    LgStatus status = file_read(path, META_BYTES_MAX, &text, NULL);
    if (status == LG_OK)
        status = lg_json_parse(buf_view(&text), path, out, NULL);
    buf_clear(&text);
    return status == LG_NO_MEMORY ? lg_fail_memory(err) : LG_OK;
}

static bool is_whole(const char *so_path, const json_t *meta) {
    char hex[65];
    struct stat st;
    return json_is_object(meta) && stat(so_path, &st) == 0 && S_ISREG(st.st_mode) &&
           json_integer_value(json_object_get(meta, "so_bytes")) == (json_int_t)st.st_size &&
           sha256_file(so_path, hex, NULL) == LG_OK &&
           lg_str_eq_c(lg_json_string(json_object_get(meta, "so_sha256")), hex);
}

LgStatus cache_lookup(const char *dir, const char *key, Arena *arena, const char **so_path,
                      CacheState *state, LgError *err) {
    char *so = entry_path(arena, dir, key, ".so"), *json = entry_path(arena, dir, key, ".json");
    if (!so || !json)
        return lg_fail_memory(err);
    *so_path = so;
    *state = CACHE_ABSENT;
    if (!file_exists(so))
        return LG_OK;
    json_t *meta = NULL;
    LG_TRY(read_meta(json, &meta, err));
    *state = is_whole(so, meta) ? CACHE_HIT : CACHE_DAMAGED;
    json_decref(meta);
    return LG_OK;
}

static int count_differences(const ProgramFields *a, const ProgramFields *b) {
    int count = 0;
    for (int i = 0; i < PROGRAM_FIELD_COUNT; i++)
        count += strcmp(a->value[i], b->value[i]) != 0;
    return count;
}

LgStatus cache_nearest(const char *dir, const ProgramFields *now, Arena *arena, const char **key,
                       ProgramFields *fields, LgError *err) {
    *key = NULL;
    DIR *d = opendir(dir);
    if (!d)
        return LG_OK;
    LgStatus status = LG_OK;
    int best = INT_MAX;
    for (struct dirent *e; status == LG_OK && (e = readdir(d));) {
        size_t len = strlen(e->d_name);
        if (len != KEY_HEX + 5 || strcmp(e->d_name + KEY_HEX, ".json") != 0)
            continue;
        char *path = arena_printf(arena, "%s/%s", dir, e->d_name);
        char *name = arena_strdup(arena, (LgStr){e->d_name, KEY_HEX});
        if (!path || !name) {
            status = lg_fail_memory(err);
            break;
        }
        json_t *meta = NULL;
        ProgramFields f;
        status = read_meta(path, &meta, err);
        if (json_is_object(meta) && (status = fields_from_json(meta, arena, &f, err)) == LG_OK &&
            strcmp(f.value[PROGRAM_FIELD_model], now->value[PROGRAM_FIELD_model]) == 0) {
            int differences = count_differences(&f, now);
            /* Ties by name, so that the message does not depend on the order of the folder. */
            if (differences < best || (*key && differences == best && strcmp(name, *key) < 0)) {
                best = differences;
                *key = name;
                *fields = f;
            }
        }
        json_decref(meta);
    }
    closedir(d);
    return status;
}

LgStatus cache_publish(const char *dir, const char *key, const ProgramFields *f,
                       const char *temp_so, LgError *err) {
    char so[PATH_MAX], json[PATH_MAX], hex[65], extra[160];
    int n = snprintf(so, sizeof so, "%s/%s.so", dir, key);
    snprintf(json, sizeof json, "%s/%s.json", dir, key);
    if (n < 0 || (size_t)n + 2 >= sizeof so)
        return lg_fail(err, LG_IO, 0, "the path of the program cache is too long: %s", dir);
    struct stat st;
    LG_TRY(sha256_file(temp_so, hex, err));
    if (stat(temp_so, &st) != 0)
        return lg_fail(err, LG_IO, 0, "cannot examine \"%s\": %s", temp_so, strerror(errno));
    snprintf(extra, sizeof extra, "\"so_bytes\":%lld,\"so_sha256\":\"%s\"", (long long)st.st_size,
             hex);
    Buf meta;
    buf_init(&meta);
    program_fields_print(f, extra, &meta);
    buf_putc(&meta, '\n');
    LgStatus status = LG_OK;
    if (meta.failed)
        status = lg_fail_memory(err);
    else if (rename(temp_so, so) != 0)
        status = lg_fail(err, LG_IO, 0, "cannot write \"%s\": %s", so, strerror(errno));
    else
        status = file_write_atomic(json, meta.data, meta.len, err);
    buf_clear(&meta);
    return status;
}

int cache_lock(const char *dir, const char *key) {
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/%s.c", dir, key);
    if (n < 0 || (size_t)n >= sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0)
        return -1;
    /* Where the file system has no locks two processes may build the same entry: both are right,
     * the last one stays. */
    while (flock(fd, LOCK_EX) != 0 && errno == EINTR)
        ;
    return fd;
}

/* ---- the compiler's version ---- */

LgStatus cache_compiler_version(const char *dir, const char *path, Arena *arena,
                                const char **version, LgError *err) {
    struct stat st;
    if (!dir || stat(path, &st) != 0)
        return compiler_version(path, arena, version, err);
    char hex[65];
    char *identity = arena_printf(arena, "%s %lld %lld.%09ld", path, (long long)st.st_size,
                                  (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
    if (!identity)
        return lg_fail_memory(err);
    sha256_hex(identity, strlen(identity), hex);
    char *file = arena_printf(arena, "%s/compiler-%.16s.txt", dir, hex);
    if (!file)
        return lg_fail_memory(err);

    /* Two lines: what was asked about, what it answered. */
    Buf text;
    buf_init(&text);
    size_t len = strlen(identity);
    LgStatus status = LG_OK;
    if (file_read(file, META_BYTES_MAX, &text, NULL) == LG_OK && text.len > len + 1 &&
        memcmp(text.data, identity, len) == 0 && text.data[len] == '\n' &&
        text.data[text.len - 1] == '\n') {
        *version = arena_strdup(arena, (LgStr){text.data + len + 1, text.len - len - 2});
        status = *version ? LG_OK : lg_fail_memory(err);
    } else if ((status = compiler_version(path, arena, version, err)) == LG_OK) {
        buf_reset(&text);
        buf_printf(&text, "%s\n%s\n", identity, *version);
        if (!text.failed)
            (void)file_write_atomic(file, text.data, text.len,
                                    NULL); /* next time it is asked again */
    }
    buf_clear(&text);
    return status;
}
