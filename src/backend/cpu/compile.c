/* No shell is involved: the compiler is spawned with a vector of arguments, what it prints comes
 * back through a pipe. */
#include "backend/cpu/compile.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "emit/cpu_levels.h"

extern char **environ;

#define OUTPUT_MAX ((size_t)1 << 16)
#define MESSAGE_MAX 700

/* Contraction is off because a fused multiply-add is written where it is meant: otherwise the
 * compiler's version would change bits. */
static const char *const common_flags[] = {"-O3",
                                           "-std=gnu11",
                                           "-ffp-contract=off",
                                           "-fno-math-errno",
                                           "-fvisibility=hidden",
                                           "-fPIC",
                                           "-shared",
                                           "-w",
                                           NULL};

/* Where the host is built with a sanitizer its programs are too, so that it sees their accesses. */
#ifndef LG_PROGRAM_CFLAGS
#define LG_PROGRAM_CFLAGS NULL
#endif
static const char *const build_flags[] = {LG_PROGRAM_CFLAGS, NULL};

static int append_flags(const char **flags, int count, const char *const *more) {
    for (; *more && count < COMPILER_FLAGS_MAX - 1; more++)
        flags[count++] = *more;
    flags[count] = NULL;
    return count;
}

LgStatus compiler_flags(const char *level, const char *flags[COMPILER_FLAGS_MAX], LgError *err) {
    const EmitLevel *l;
    LG_TRY(emit_level_find(level, &l, err));
    int count = append_flags(flags, 0, common_flags);
    count = append_flags(flags, count, l->flags);
    append_flags(flags, count, build_flags);
    return LG_OK;
}

static bool is_program(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

LgStatus compiler_find(const char *name, Arena *arena, const char **path, LgError *err) {
    /* Looking a command up is the one thing that PATH is read for outside the command line:
     * posix_spawnp would do the same, but would not say which file it took. */
    const char *search = getenv("PATH");
    if (strchr(name, '/')) {
        if (is_program(name))
            return (*path = arena_strdup(arena, lg_str(name))) ? LG_OK : lg_fail_memory(err);
    } else {
        for (const char *p = search ? search : "/usr/local/bin:/usr/bin:/bin"; *p;) {
            size_t len = strcspn(p, ":");
            char *candidate = arena_printf(arena, "%.*s%s%s", (int)len, p, len ? "/" : "./", name);
            if (!candidate)
                return lg_fail_memory(err);
            if (is_program(candidate)) {
                *path = candidate;
                return LG_OK;
            }
            p += len + (p[len] == ':');
        }
    }
    return lg_fail(err, LG_NOT_FOUND, 0,
                   "no C compiler: \"%s\" is %s. Programs are compiled on first use; install gcc "
                   "or clang, or compile elsewhere with "
                   "`ligature compile -o FILE.so` and run with --program FILE.so",
                   name, strchr(name, '/') ? "no executable file" : "not in PATH");
}

static LgStatus spawn(char *const *argv, int output, pid_t *pid, LgError *err) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attr);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, output, 1);
    posix_spawn_file_actions_adddup2(&actions, output, 2);
    sigset_t none, pipe_only;
    sigemptyset(&none);
    sigemptyset(&pipe_only);
    sigaddset(&pipe_only, SIGPIPE);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &pipe_only);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    int e = posix_spawn(pid, argv[0], &actions, &attr, argv, environ);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&actions);
    if (e)
        return lg_fail(err, LG_NOT_FOUND, 0, "cannot run the C compiler %s: %s", argv[0],
                       strerror(e));
    return LG_OK;
}

/* Reads to the end, keeps the first OUTPUT_MAX bytes. */
static void read_output(int fd, Buf *out) {
    char chunk[4096];
    for (;;) {
        ssize_t n = read(fd, chunk, sizeof chunk);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return;
        size_t room = OUTPUT_MAX - out->len;
        buf_append(out, chunk, (size_t)n < room ? (size_t)n : room);
    }
}

/* *exit_status: what the program returned, 128 + the signal that ended it. */
static LgStatus run_captured(char *const *argv, Buf *out, int *exit_status, LgError *err) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return lg_fail(err, LG_IO, 0, "cannot make a pipe for the C compiler: %s", strerror(errno));
    pid_t pid;
    LgStatus status = spawn(argv, ends[1], &pid, err);
    close(ends[1]);
    if (status == LG_OK) {
        read_output(ends[0], out);
        int code = 0;
        pid_t got;
        do
            got = waitpid(pid, &code, 0);
        while (got < 0 && errno == EINTR);
        if (got < 0)
            status = lg_fail(err, LG_INTERNAL, 0, "cannot wait for the C compiler %s: %s", argv[0],
                             strerror(errno));
        else
            *exit_status = WIFEXITED(code) ? WEXITSTATUS(code) : 128 + WTERMSIG(code);
    }
    close(ends[0]);
    return status;
}

LgStatus compiler_version(const char *path, Arena *arena, const char **version, LgError *err) {
    Buf text;
    buf_init(&text);
    char *copy = arena_strdup(arena, lg_str(path));
    char flag[] = "--version";
    char *const argv[] = {copy, flag, NULL};
    int code = 0;
    LgStatus status = copy ? run_captured(argv, &text, &code, err) : lg_fail_memory(err);
    if (status == LG_OK &&
        (text.failed ||
         !(*version = arena_strdup(arena, (LgStr){text.data, strcspn(text.data, "\n")}))))
        status = lg_fail_memory(err);
    else if (status == LG_OK && code != 0)
        status = lg_fail(err, LG_NOT_FOUND, 0, "%s --version ended with %d: is it a C compiler?",
                         path, code);
    buf_clear(&text);
    return status;
}

/* The first line that names an error, with what follows; else the end of the text. */
static const char *interesting_part(const char *text, size_t len) {
    const char *error = strstr(text, "error");
    if (!error)
        return len > MESSAGE_MAX ? text + (len - MESSAGE_MAX) : text;
    while (error > text && error[-1] != '\n')
        error--;
    return error;
}

LgStatus compiler_run(const char *path, const char *const *flags, const char *source,
                      const char *out, LgError *err) {
    const char *argv[COMPILER_FLAGS_MAX + 8];
    int n = 0;
    argv[n++] = path;
    for (; *flags; flags++)
        argv[n++] = *flags;
    argv[n++] = "-o";
    argv[n++] = out;
    argv[n++] = source;
    argv[n++] = "-lm";
    argv[n] = NULL;

    Buf text;
    buf_init(&text);
    int code = 0;
    /* posix_spawn takes its arguments without const, for history's sake; it does not write to them.
     */
    char *args[COMPILER_FLAGS_MAX + 8];
    memcpy(args, argv, sizeof args);
    LgStatus status = run_captured(args, &text, &code, err);
    if (status == LG_OK && code != 0)
        status = lg_fail(err, LG_INTERNAL, 0, "the C compiler %s ended with %d on %s: %.*s", path,
                         code, source, MESSAGE_MAX,
                         text.len ? interesting_part(text.data, text.len) : "it said nothing");
    buf_clear(&text);
    return status;
}
