#include "backend/cpu/program.h"

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cpu/compile.h"
#include "backend/cpu/elf_check.h"
#include "backend/cpu/levels.h"
#include "base/clock.h"
#include "base/embedded.h"
#include "base/file.h"
#include "base/hash.h"
#include "emit/emit_cpu.h"

#define STRING_(x) #x
#define STRING(x) STRING_(x)

/* One compile: everything that its steps share. Strings live in the arena. */
typedef struct Build {
    const ProgramRequest *r;
    Arena arena;
    ProgramFields fields;
    char key[65];
    const char *compiler; /* path; NULL: none was found, compiler_error says so */
    LgError compiler_error;
    const char *flags[COMPILER_FLAGS_MAX];
    Buf code;
    Buf note;
} Build;

/* ---- levels ---- */

const char *level_missing(const char *level) {
    const CpuLevel *l = cpu_level_find(level);
    if (!l)
        return "there is no such level";
    if (!l->kernels)
        return "this build has no kernels for it";
    if (!cpu_level_runs(l))
        return "this processor lacks its instructions";
    return NULL;
}

const char *level_best(void) {
    return cpu_level_best(CPU_LEVELS_ALL)->name;
}

/* ---- what a program is made from ---- */

static const char *dims_text(const LangProgram *p, Arena *arena) {
    Buf out;
    buf_init(&out);
    for (int i = 0; i < p->dim_count; i++)
        if (!p->dims[i].runtime)
            buf_printf(&out, "%s%.*s=%llu", out.len ? " " : "", LG_STR_ARG(p->dims[i].name),
                       (unsigned long long)p->dims[i].size);
    const char *text = out.failed ? NULL : arena_strdup(arena, buf_view(&out));
    buf_clear(&out);
    return text;
}

static const char *flags_text(const char *const *flags, Arena *arena) {
    Buf out;
    buf_init(&out);
    for (; *flags; flags++)
        buf_printf(&out, "%s%s", out.len ? " " : "", *flags);
    const char *text = out.failed ? NULL : arena_strdup(arena, buf_view(&out));
    buf_clear(&out);
    return text;
}

static const char *hash_text(Arena *arena, const void *data, size_t bytes) {
    char hex[65];
    sha256_hex(data, bytes, hex);
    return arena_strdup(arena, lg_str(hex));
}

static const char *kernels_text(Arena *arena) {
    Sha256 *h = sha256_create();
    char hex[65];
    if (!h)
        return NULL;
    for (const LgEmbedded *e = lg_kernels_cpu; e->name; e++) {
        sha256_update(h, e->name, strlen(e->name) + 1);
        sha256_update(h, e->data, e->size);
    }
    sha256_finish(h, hex);
    return arena_strdup(arena, lg_str(hex));
}

/* Fields that need neither compiler nor emitted text. */
static LgStatus fill_plain_fields(const ProgramRequest *r, const char *level, Arena *arena,
                                  ProgramFields *f, LgError *err) {
    const LangProgram *p = r->plan->program;
    const char **v = f->value;
    v[PROGRAM_FIELD_model] = arena_strdup(arena, p->name);
    v[PROGRAM_FIELD_source] = hash_text(arena, p->source.ptr, p->source.len);
    v[PROGRAM_FIELD_dims] = dims_text(p, arena);
    v[PROGRAM_FIELD_store] = r->plan->store_f32 ? "f32" : "bf16";
    v[PROGRAM_FIELD_level] = level;
    v[PROGRAM_FIELD_kernels] = kernels_text(arena);
    v[PROGRAM_FIELD_compiler] = "";
    v[PROGRAM_FIELD_flags] = "";
    v[PROGRAM_FIELD_abi] = STRING(LGP_ABI);
    v[PROGRAM_FIELD_plan] = r->plan->digest;
    v[PROGRAM_FIELD_code] = "";
    for (int i = 0; i < PROGRAM_FIELD_COUNT; i++)
        if (!v[i])
            return lg_fail_memory(err);
    return LG_OK;
}

static LgStatus find_compiler(Build *b, const char *version_dir, LgError *err) {
    const char *path, *version = NULL;
    LgStatus status =
        compiler_find(b->r->compiler ? b->r->compiler : "cc", &b->arena, &path, &b->compiler_error);
    if (status == LG_OK)
        status = cache_compiler_version(version_dir, path, &b->arena, &version, &b->compiler_error);
    if (status == LG_NO_MEMORY)
        return lg_fail_memory(err);
    if (status != LG_OK)
        return LG_OK; /* an error only where there is something to compile */
    b->compiler = path;
    b->fields.value[PROGRAM_FIELD_compiler] = arena_printf(&b->arena, "%s, %s", path, version);
    return b->fields.value[PROGRAM_FIELD_compiler] ? LG_OK : lg_fail_memory(err);
}

/* Products of other formats than the weights have would only cost the compiler's time. */
static LgStatus add_formats(Build *b, LgError *err) {
    int count = 0;
    while (b->flags[count])
        count++;
    assert(count < COMPILER_FLAGS_MAX - 1);
    if (!b->r->formats)
        return LG_OK;
    b->flags[count] = arena_printf(&b->arena, "-DLGP_FORMATS=0x%xu", b->r->formats);
    b->flags[count + 1] = NULL;
    return b->flags[count] ? LG_OK : lg_fail_memory(err);
}

static LgStatus build_begin(Build *b, const ProgramRequest *r, const char *version_dir,
                            LgError *err) {
    b->r = r;
    LG_TRY(compiler_flags(r->level, b->flags, err));
    LG_TRY(add_formats(b, err));
    LG_TRY(fill_plain_fields(r, r->level, &b->arena, &b->fields, err));
    LG_TRY(emit_cpu(r->plan, r->level, &b->code, err));
    LG_TRY(find_compiler(b, version_dir, err));
    if (b->code.failed)
        return lg_fail_memory(err);
    b->fields.value[PROGRAM_FIELD_flags] = flags_text(b->flags, &b->arena);
    b->fields.value[PROGRAM_FIELD_code] = hash_text(&b->arena, b->code.data, b->code.len);
    if (!b->fields.value[PROGRAM_FIELD_flags] || !b->fields.value[PROGRAM_FIELD_code])
        return lg_fail_memory(err);
    program_fields_key(&b->fields, b->key);
    return b->key[0] ? LG_OK : lg_fail_memory(err);
}

static void build_init(Build *b) {
    *b = (Build){0};
    arena_init(&b->arena);
    buf_init(&b->code);
    buf_init(&b->note);
}

static void build_clear(Build *b) {
    buf_clear(&b->code);
    buf_clear(&b->note);
    arena_clear(&b->arena);
}

/* The text that is compiled: the emitted one, and the fields, so that a file that does not fit can
 * say why. */
static void append_meta(Build *b) {
    Buf json;
    buf_init(&json);
    program_fields_print(&b->fields, NULL, &json);
    buf_puts(&b->code, "\n#line 1 \"lgp_meta\"\nextern const char lgp_meta[];\n"
                       "__attribute__((visibility(\"default\"))) const char lgp_meta[] =\n\"");
    for (size_t i = 0; i < json.len; i++) {
        unsigned char c = (unsigned char)json.data[i];
        if (c == '"' || c == '\\')
            buf_printf(&b->code, "\\%c", c);
        else if (c < 0x20 || c >= 0x7f)
            buf_printf(&b->code, "\\%03o", c);
        else
            buf_putc(&b->code, (char)c);
    }
    buf_puts(&b->code, "\";\n");
    b->code.failed |= json.failed;
    buf_clear(&json);
}

/* ---- loading ---- */

static LgStatus check_info(const ProgramRequest *r, const char *path, void *handle,
                           const LgpInfo *info, LgError *err) {
    if (info->abi != LGP_ABI)
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "the program \"%s\" does not fit: abi: program %d, now %d. Compile it again "
                       "with this version",
                       path, info->abi, LGP_ABI);
    if (strcmp(info->digest, r->plan->digest) != 0 ||
        (r->level && strcmp(info->level, r->level) != 0)) {
        Arena arena;
        arena_init(&arena);
        ProgramFields was, now;
        Buf why;
        buf_init(&why);
        const char *meta = dlsym(handle, "lgp_meta");
        LgStatus status =
            fill_plain_fields(r, r->level ? r->level : info->level, &arena, &now, err);
        if (status == LG_OK && meta &&
            program_fields_parse(lg_str(meta), path, &arena, &was, NULL) == LG_OK) {
            was.value[PROGRAM_FIELD_compiler] = was.value[PROGRAM_FIELD_flags] =
                was.value[PROGRAM_FIELD_code] = "";
            program_fields_diff(&was, &now, "program", &why);
        }
        if (status == LG_OK)
            status = lg_fail(
                err, LG_BAD_INPUT, 0,
                "the program \"%s\" does not fit this model: %.700s. Compile it again for it", path,
                why.len ? why.data : "its digest is another");
        buf_clear(&why);
        arena_clear(&arena);
        return status;
    }
    if (r->formats & ~info->formats)
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "the program \"%s\" was compiled for weights of other stored types. Compile "
                       "it again for this model",
                       path);
    const char *missing = level_missing(info->level);
    if (missing)
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "the program \"%s\" is of level %s, but %s. "
                       "Compile it for level generic",
                       path, info->level, missing);
    return LG_OK;
}

static LgStatus load(const ProgramRequest *r, const char *path, Program *out, LgError *err) {
    char local[4096];
    int n = snprintf(local, sizeof local, "%s%s", strchr(path, '/') ? "" : "./", path);
    if (n < 0 || (size_t)n >= sizeof local)
        return lg_fail(err, LG_BAD_INPUT, 0, "the program's path is too long");
    void *handle = dlopen(local, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return lg_fail(err, LG_BAD_INPUT, 0, "cannot load the program: %s", dlerror());
    const LgpInfo *info = dlsym(handle, "lgp_info");
    void *step = dlsym(handle, "lgp_step"), *scratch = dlsym(handle, "lgp_scratch_floats");
    LgStatus status;
    if (!info || !step || !scratch)
        status = lg_fail(err, LG_BAD_INPUT, 0, "\"%s\" is no program of Ligature: it lacks %s",
                         path, !info ? "lgp_info" : (!step ? "lgp_step" : "lgp_scratch_floats"));
    else
        status = check_info(r, path, handle, info, err);
    if (status != LG_OK) {
        dlclose(handle);
        return status;
    }
    out->handle = handle;
    out->info = info;
    /* POSIX: a data pointer from dlsym holds a function's address; copied, as C has no cast for it.
     */
    memcpy(&out->step, &step, sizeof step);
    memcpy(&out->scratch_floats, &scratch, sizeof scratch);
    return LG_OK;
}

LgStatus program_load(const ProgramRequest *r, const char *path, Program *out, LgError *err) {
    LG_TRY(elf_check(path, err));
    Program p = {0};
    LG_TRY(load(r, path, &p, err));
    *out = p;
    return LG_OK;
}

void program_close(Program *p) {
    if (p->handle)
        dlclose(p->handle);
    *p = (Program){0};
}

/* ---- compiling ---- */

static LgStatus write_code(Build *b, int fd, const char *path, LgError *err) {
    append_meta(b);
    if (b->code.failed)
        return lg_fail_memory(err);
    int e = ftruncate(fd, 0) == 0 ? 0 : errno;
    for (size_t done = 0; !e && done < b->code.len;) {
        ssize_t n = write(fd, b->code.data + done, b->code.len - done);
        if (n > 0)
            done += (size_t)n;
        else if (n < 0 && errno != EINTR)
            e = errno;
    }
    return e ? lg_fail(err, LG_IO, 0, "cannot write \"%s\": %s", path, strerror(e)) : LG_OK;
}

/* Compiles the file that fd is open on. */
static LgStatus compile_to(Build *b, int fd, const char *source, const char *out, Program *p,
                           LgError *err) {
    if (!b->compiler)
        return lg_fail(err, b->compiler_error.status, 0, "%s", b->compiler_error.message);
    LG_TRY(write_code(b, fd, source, err));
    double begin = clock_seconds();
    LG_TRY(compiler_run(b->compiler, b->flags, source, out, err));
    p->compile_s = clock_seconds() - begin;
    return LG_OK;
}

/* Without a folder to keep it in: compiled to a temporary one, which is gone once the program is
 * loaded. */
static LgStatus build_unkept(Build *b, Program *p, LgError *err) {
    char dir[] = "/tmp/ligature-XXXXXX";
    if (!mkdtemp(dir))
        return lg_fail(err, LG_IO, 0, "cannot make a folder in /tmp for the compiled program: %s",
                       strerror(errno));
    char source[64], so[64];
    snprintf(source, sizeof source, "%s/program.c", dir);
    snprintf(so, sizeof so, "%s/program.so", dir);
    FILE *f = fopen(source, "wxe");
    LgStatus status =
        f ? compile_to(b, fileno(f), source, so, p, err)
          : lg_fail(err, LG_IO, 0, "cannot write \"%s\": %s", source, strerror(errno));
    if (f)
        fclose(f);
    if (status == LG_OK)
        status = load(b->r, so, p, err);
    unlink(source);
    unlink(so);
    rmdir(dir);
    return status;
}

/* Builds the entry under its lock. *kept false: the folder cannot be written, nothing was done. */
static LgStatus build_entry(Build *b, const char *dir, bool *kept, Program *p, LgError *err) {
    const char *so;
    CacheState state;
    int fd = cache_lock(dir, b->key);
    if (fd < 0) {
        buf_printf(&b->note, "compiled programs are not kept: cannot write in \"%s\": %s", dir,
                   strerror(errno));
        *kept = false;
        return LG_OK;
    }
    *kept = true;
    char *source = arena_printf(&b->arena, "%s/%s.c", dir, b->key);
    /* Under the lock it is ours alone; what a killed process left is written over. */
    char *temp = arena_printf(&b->arena, "%s/%s.tmp.so", dir, b->key);
    LgStatus status = source && temp ? cache_lookup(dir, b->key, &b->arena, &so, &state, err)
                                     : lg_fail_memory(err);
    if (status == LG_OK && state != CACHE_HIT) {
        status = compile_to(b, fd, source, temp, p, err);
        if (status == LG_OK)
            status = cache_publish(dir, b->key, &b->fields, temp, err);
        unlink(temp);
    }
    if (status == LG_OK)
        status = load(b->r, so, p, err);
    close(fd);
    return status;
}

/* What to do where the entry is not there: refuse, or find one that only another compiler made
 * where this machine has none. */
static LgStatus look_further(Build *b, const char *dir, bool damaged, const char **so,
                             CacheState *state, LgError *err) {
    const char *key;
    ProgramFields was;
    LG_TRY(cache_nearest(dir, &b->fields, &b->arena, &key, &was, err));
    Buf why;
    buf_init(&why);
    int differences = key ? program_fields_diff(&was, &b->fields, "cached", &why) : 0;
    LgStatus status = LG_OK;
    if (!b->compiler && differences == 1 &&
        strcmp(was.value[PROGRAM_FIELD_code], b->fields.value[PROGRAM_FIELD_code]) == 0 &&
        strcmp(was.value[PROGRAM_FIELD_flags], b->fields.value[PROGRAM_FIELD_flags]) == 0)
        status = cache_lookup(dir, key, &b->arena, so, state, err);
    if (status == LG_OK && *state != CACHE_HIT && b->r->require_cache)
        status = lg_fail(err, LG_NOT_FOUND, 0,
                         "the compiled program of model \"%s\" is not in the cache \"%s\", and "
                         "compiling was ruled out: %.600s",
                         b->fields.value[PROGRAM_FIELD_model], dir,
                         damaged   ? "its entry is damaged"
                         : why.len ? why.data
                                   : "there is no entry of this model");
    buf_clear(&why);
    return status;
}

static LgStatus get_from(Build *b, const char *dir, Program *p, LgError *err) {
    const char *so;
    CacheState state;
    LG_TRY(cache_lookup(dir, b->key, &b->arena, &so, &state, err));
    bool damaged = state == CACHE_DAMAGED;
    if (state != CACHE_HIT && (b->r->require_cache || !b->compiler))
        LG_TRY(look_further(b, dir, damaged, &so, &state, err));
    if (state == CACHE_HIT)
        return load(b->r, so, p, err);
    if (damaged)
        buf_puts(&b->note, "the cached program was damaged and has been compiled again");
    bool kept;
    LG_TRY(build_entry(b, dir, &kept, p, err));
    return kept ? LG_OK : build_unkept(b, p, err);
}

LgStatus program_get(const ProgramRequest *r, Program *out, LgError *err) {
    Build b;
    Program p = {0};
    build_init(&b);
    bool usable = false;
    LgStatus status = r->cache_dir ? cache_dir_check(r->cache_dir, &usable, &b.note, err) : LG_OK;
    const char *dir = usable ? r->cache_dir : NULL;
    if (status == LG_OK && !dir && r->require_cache)
        status =
            lg_fail(err, LG_NOT_FOUND, 0, "a compiled program from the cache was required: %.600s",
                    b.note.len ? b.note.data : "no cache folder is set");
    if (status == LG_OK)
        status = build_begin(&b, r, dir, err);
    if (status == LG_OK)
        status = dir ? get_from(&b, dir, &p, err) : build_unkept(&b, &p, err);
    if (status == LG_OK) {
        snprintf(p.note, sizeof p.note, "%s", b.note.data);
        *out = p;
    }
    build_clear(&b);
    return status;
}

LgStatus program_write(const ProgramRequest *r, const char *path, LgError *err) {
    Build b;
    build_init(&b);
    char dir[] = "/tmp/ligature-XXXXXX", source[64] = "";
    char *temp = NULL;
    FILE *f = NULL;
    Program p = {0};
    LgStatus status = build_begin(&b, r, NULL, err);
    if (status == LG_OK && !(temp = arena_printf(&b.arena, "%s.%ld.tmp", path, (long)getpid())))
        status = lg_fail_memory(err);
    if (status != LG_OK)
        goto done;
    if (!mkdtemp(dir)) {
        status = lg_fail(err, LG_IO, 0, "cannot make a folder in /tmp for the program's text: %s",
                         strerror(errno));
        goto done;
    }
    snprintf(source, sizeof source, "%s/program.c", dir);
    f = fopen(source, "wxe");
    status = f ? compile_to(&b, fileno(f), source, temp, &p, err)
               : lg_fail(err, LG_IO, 0, "cannot write \"%s\": %s", source, strerror(errno));
    if (status == LG_OK && rename(temp, path) != 0)
        status = lg_fail(err, LG_IO, 0, "cannot write \"%s\": %s", path, strerror(errno));
    unlink(temp);
    unlink(source);
    rmdir(dir);
done:
    if (f)
        fclose(f);
    build_clear(&b);
    return status;
}
