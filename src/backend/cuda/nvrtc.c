#include "backend/cuda/nvrtc.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

/* It stays where it was loaded: what it allocates once is not given back when it is closed. */
#define NVRTC_OPEN (RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)

#define MESSAGE_MAX 1200

/* clang-format off */
#define NVRTC_MAP(X)                                                                               \
    X(version,     "nvrtcVersion",           (int *major, int *minor))                             \
    X(create,      "nvrtcCreateProgram",     (void **program, const char *text, const char *name, int header_count, const char *const *headers, const char *const *names)) \
    X(destroy,     "nvrtcDestroyProgram",    (void **program))                                     \
    X(compile,     "nvrtcCompileProgram",    (void *program, int option_count, const char *const *options)) \
    X(log_bytes,   "nvrtcGetProgramLogSize", (void *program, size_t *bytes))                       \
    X(log,         "nvrtcGetProgramLog",     (void *program, char *log))                           \
    X(cubin_bytes, "nvrtcGetCUBINSize",      (void *program, size_t *bytes))                       \
    X(cubin,       "nvrtcGetCUBIN",          (void *program, char *cubin))
/* clang-format on */

struct Nvrtc {
    void *library;
    char version_text[24];
#define NVRTC_FIELD(field, symbol, parameters) int(*field) parameters;
    NVRTC_MAP(NVRTC_FIELD)
#undef NVRTC_FIELD
};

static const struct {
    const char *symbol;
    size_t offset;
} symbols[] = {
#define NVRTC_SYMBOL(field, symbol, parameters) {symbol, offsetof(Nvrtc, field)},
    NVRTC_MAP(NVRTC_SYMBOL)
#undef NVRTC_SYMBOL
};

/* Where a library of NVRTC usually is. */
static const char *const places[] = {
    "libnvrtc.so.13",
    "libnvrtc.so.12",
    "libnvrtc.so",
    "/usr/local/cuda/lib64/libnvrtc.so",
    "/usr/local/cuda/lib/libnvrtc.so",
    "/usr/local/cuda-13.0/lib/libnvrtc.so",
};

/* Products and sums stay apart unless they are written as one: otherwise the compiler's version
 * would change bits. */
static const char *const options[] = {"--std=c++17", "--fmad=false", "-lineinfo", "--restrict"};
#define OPTION_COUNT ((int)(sizeof options / sizeof *options))

const char *nvrtc_options(void) {
    return "--std=c++17 --fmad=false -lineinfo --restrict";
}

static void *open_library(const char *path, Buf *found) {
    if (path && file_is_dir(path)) {
        static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            buf_reset(found);
            buf_printf(found, "%s/%s", path, names[i]);
            void *library = found->failed ? NULL : dlopen(found->data, NVRTC_OPEN);
            if (library)
                return library;
        }
        return NULL;
    }
    if (path)
        return dlopen(path, NVRTC_OPEN);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        void *library = dlopen(places[i], NVRTC_OPEN);
        if (library)
            return library;
    }
    return NULL;
}

LgStatus nvrtc_open(const char *path, Nvrtc **out, LgError *err) {
    Buf name;
    buf_init(&name);
    void *library = open_library(path, &name);
    buf_clear(&name);
    if (!library)
        return lg_fail(err, LG_NOT_FOUND, 0,
                       "no NVRTC %s%s: device code is compiled by it; install a CUDA toolkit, or "
                       "`pip install nvidia-cuda-nvrtc` and name its folder",
                       path ? "at " : "on this machine", path ? path : "");
    Nvrtc *n = lg_calloc(1, sizeof *n);
    if (!n) {
        dlclose(library);
        return lg_fail_memory(err);
    }
    n->library = library;
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *found = dlsym(library, symbols[i].symbol);
        memcpy((char *)n + symbols[i].offset, &found, sizeof found);
        if (!found) {
            nvrtc_close(n);
            return lg_fail(err, LG_NOT_FOUND, 0, "this NVRTC has no %s: too old",
                           symbols[i].symbol);
        }
    }
    int major = 0, minor = 0;
    n->version(&major, &minor);
    snprintf(n->version_text, sizeof n->version_text, "%d.%d", major, minor);
    *out = n;
    return LG_OK;
}

void nvrtc_close(Nvrtc *n) {
    if (!n)
        return;
    dlclose(n->library);
    lg_free(n);
}

const char *nvrtc_version(const Nvrtc *n) {
    return n->version_text;
}

static LgStatus fail_compile(const Nvrtc *n, void *program, const NvrtcSource *source,
                             const char *arch, LgError *err) {
    size_t bytes = 0;
    char *log = NULL;
    if (n->log_bytes(program, &bytes) == 0 && bytes > 1 && (log = lg_calloc(bytes + 1, 1)))
        n->log(program, log);
    LgStatus status =
        lg_fail(err, LG_INTERNAL, 0, "NVRTC %s does not compile %s for %s: %.*s", n->version_text,
                source->name, arch, MESSAGE_MAX, log && *log ? log : "it does not say why");
    lg_free(log);
    return status;
}

static LgStatus take_cubin(const Nvrtc *n, void *program, Buf *cubin, LgError *err) {
    size_t bytes = 0;
    if (n->cubin_bytes(program, &bytes) != 0 || bytes == 0)
        return lg_fail(err, LG_INTERNAL, 0, "NVRTC gave no machine code");
    char *code = lg_alloc(bytes);
    if (!code)
        return lg_fail_memory(err);
    LgStatus status = n->cubin(program, code) == 0
                          ? LG_OK
                          : lg_fail(err, LG_INTERNAL, 0, "NVRTC gave no machine code");
    if (status == LG_OK)
        buf_append(cubin, code, bytes);
    lg_free(code);
    return status == LG_OK && cubin->failed ? lg_fail_memory(err) : status;
}

LgStatus nvrtc_compile(const Nvrtc *n, const NvrtcSource *source, const char *arch, Buf *cubin,
                       LgError *err) {
    const char *names[16], *texts[16], *all[OPTION_COUNT + 1];
    char target[48];
    if (source->header_count > 16)
        return lg_fail(err, LG_INTERNAL, 0, "%s: more than 16 headers", source->name);
    for (int i = 0; i < source->header_count; i++) {
        names[i] = source->headers[i].name;
        texts[i] = source->headers[i].text;
    }
    snprintf(target, sizeof target, "--gpu-architecture=%s", arch);
    memcpy(all, options, sizeof options);
    all[OPTION_COUNT] = target;
    void *program = NULL;
    if (n->create(&program, source->text, source->name, source->header_count, texts, names) != 0)
        return lg_fail_memory(err);
    LgStatus status = n->compile(program, OPTION_COUNT + 1, all) == 0
                          ? take_cubin(n, program, cubin, err)
                          : fail_compile(n, program, source, arch, err);
    n->destroy(&program);
    return status;
}
