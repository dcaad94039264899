#include "backend/cuda/modules.h"

#include <stdio.h>
#include <string.h>

#include "backend/cpu/cache.h"
#include "backend/cuda/shared_bytes.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"

#define CUBIN_BYTES_MAX ((size_t)64 << 20)
#define HASH_BYTES 64 /* of a SHA-256 as hex */

static bool has_word(const char *words, const char *word) {
    size_t n = strlen(word);
    for (const char *p = words; *p;) {
        size_t len = strcspn(p, " ");
        if (len == n && memcmp(p, word, n) == 0)
            return true;
        p += len + (p[len] == ' ');
    }
    return false;
}

static bool folder_serves(const CudaFolder *f, const char *arch, const char *target) {
    if (strcmp(f->name, "common") == 0)
        return true;
    return (!target || strcmp(target, f->name) == 0) && has_word(f->architectures, arch);
}

const CudaSource *cuda_source_find(const char *module, const char *arch, const char *target) {
    for (const CudaFolder *f = lg_cuda_folders; f->name; f++) {
        if (!folder_serves(f, arch, target))
            continue;
        for (const CudaSource *s = lg_cuda_sources; s->stem; s++)
            if (strcmp(s->folder, f->name) == 0 && strcmp(s->module, module) == 0)
                return s;
    }
    return NULL;
}

bool cuda_source_has(const CudaSource *s, const char *kernel) {
    return has_word(s->kernels, kernel);
}

LgStatus cuda_source_compile(const Nvrtc *n, const CudaSource *s, const char *arch, Buf *cubin,
                             LgError *err) {
    char name[128];
    int headers = 0;
    while (lg_cuda_headers[headers].name)
        headers++;
    snprintf(name, sizeof name, "kernels/cuda/%s/%s.cu", s->folder, s->stem);
    NvrtcSource source = {name, s->text, lg_cuda_headers, headers};
    return nvrtc_compile(n, &source, arch, cubin, err);
}

/* ---- machine code on disk: DIR/KEY.cubin is the SHA-256 of what follows it, and the cubin ---- */

static LgStatus cubin_key(const Nvrtc *n, const CudaSource *s, const char *arch, char hex[65],
                          LgError *err) {
    Sha256 *h = sha256_create();
    if (!h)
        return lg_fail_memory(err);
    const char *const fields[] = {"cubin 1", nvrtc_version(n), nvrtc_options(), arch,
                                  s->folder, s->stem,          s->text};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        sha256_update(h, fields[i], strlen(fields[i]) + 1);
    for (const NvrtcHeader *k = lg_cuda_headers; k->name; k++) {
        sha256_update(h, k->name, strlen(k->name) + 1);
        sha256_update(h, k->text, strlen(k->text) + 1);
    }
    sha256_finish(h, hex);
    return LG_OK;
}

/* Whether a whole entry was appended to *cubin. */
static bool read_cubin(const char *path, Buf *cubin) {
    FileMap map;
    char hex[65];
    if (!file_exists(path) || file_map_open(path, &map, NULL) != LG_OK)
        return false;
    bool whole = map.size > HASH_BYTES && map.size <= CUBIN_BYTES_MAX;
    if (whole) {
        sha256_hex(map.data + HASH_BYTES, map.size - HASH_BYTES, hex);
        whole = memcmp(hex, map.data, HASH_BYTES) == 0;
    }
    if (whole)
        buf_append(cubin, map.data + HASH_BYTES, map.size - HASH_BYTES);
    file_map_close(&map);
    return whole && !cubin->failed;
}

static LgStatus write_cubin(const char *path, LgStr code, LgError *err) {
    Buf file;
    char hex[65];
    buf_init(&file);
    sha256_hex(code.ptr, code.len, hex);
    buf_append(&file, hex, HASH_BYTES);
    buf_str(&file, code);
    LgStatus status =
        file.failed ? lg_fail_memory(err) : file_write_atomic(path, file.data, file.len, err);
    buf_clear(&file);
    return status;
}

LgStatus cuda_cubin(const Nvrtc *n, const CudaSource *s, const char *arch, const char *dir,
                    Buf *cubin, bool *cached, LgError *err) {
    char key[65];
    Buf path;
    *cached = false;
    if (!dir)
        return cuda_source_compile(n, s, arch, cubin, err);
    LG_TRY(cubin_key(n, s, arch, key, err));
    buf_init(&path);
    buf_printf(&path, "%s/%s.cubin", dir, key);
    LgStatus status = path.failed ? lg_fail_memory(err) : LG_OK;
    if (status == LG_OK && read_cubin(path.data, cubin)) {
        *cached = true;
    } else if (status == LG_OK) {
        size_t from = cubin->len;
        status = cuda_source_compile(n, s, arch, cubin, err);
        if (status == LG_OK)
            status = write_cubin(path.data, (LgStr){cubin->data + from, cubin->len - from}, err);
    }
    buf_clear(&path);
    return status;
}

/* ---- what a device runs ---- */

enum { FUNCTION_LOCAL_BYTES = 3, FUNCTION_REGISTERS = 4 };

typedef struct Module {
    const CudaSource *source;
    void *module; /* NULL: does not load; `why` says why */
    bool cached;
    LgError why;
} Module;

struct CudaRegistry {
    const CudaDevice *device;
    const char *target;
    Nvrtc *nvrtc;
    char *cache_dir;
    Module *modules; /* [count], those asked for so far */
    int count;
    Buf log;
};

/* A folder of the cache, made where it is missing; one that others can write to is not used. */
static LgStatus open_cache(CudaRegistry *r, const char *dir, LgError *err) {
    bool usable = false;
    Buf note;
    buf_init(&note);
    LgStatus status = cache_dir_check(dir, &usable, &note, err);
    if (status == LG_OK && usable) {
        Buf copy;
        buf_init(&copy);
        buf_puts(&copy, dir);
        r->cache_dir = buf_take(&copy);
        buf_clear(&copy);
        if (!r->cache_dir)
            status = lg_fail_memory(err);
    } else if (status == LG_OK) {
        buf_printf(&r->log, "cuda: %s\n", note.data);
    }
    buf_clear(&note);
    return status;
}

LgStatus cuda_registry_create(const CudaRegistryOptions *o, CudaRegistry **out, LgError *err) {
    size_t sources = 0;
    CudaRegistry *r = lg_calloc(1, sizeof *r);
    if (!r)
        return lg_fail_memory(err);
    while (lg_cuda_sources[sources].stem)
        sources++;
    r->device = o->device;
    r->target = o->target;
    buf_init(&r->log);
    r->modules = lg_calloc(sources + 1, sizeof *r->modules);
    LgStatus status = r->modules ? nvrtc_open(o->nvrtc, &r->nvrtc, err) : lg_fail_memory(err);
    if (status == LG_OK && o->cache_dir)
        status = open_cache(r, o->cache_dir, err);
    if (status != LG_OK) {
        cuda_registry_destroy(r);
        return status;
    }
    *out = r;
    return LG_OK;
}

void cuda_registry_destroy(CudaRegistry *r) {
    if (!r)
        return;
    for (int i = 0; r->modules && i < r->count; i++)
        if (r->modules[i].module)
            r->device->driver.module_unload(r->modules[i].module);
    nvrtc_close(r->nvrtc);
    lg_free(r->modules);
    lg_free(r->cache_dir);
    buf_clear(&r->log);
    lg_free(r);
}

static LgStatus load_module(CudaRegistry *r, Module *m, LgError *err) {
    Buf cubin;
    buf_init(&cubin);
    LgStatus status =
        cuda_cubin(r->nvrtc, m->source, r->device->arch, r->cache_dir, &cubin, &m->cached, err);
    if (status == LG_OK) {
        int code = r->device->driver.module_load(&m->module, cubin.data);
        if (code != 0)
            status = cuda_fail(&r->device->driver, code, m->source->stem, err);
    }
    buf_clear(&cubin);
    return status;
}

static Module *module_of(CudaRegistry *r, const CudaSource *source) {
    for (int i = 0; i < r->count; i++)
        if (r->modules[i].source == source)
            return &r->modules[i];
    Module *m = &r->modules[r->count++];
    m->source = source;
    if (load_module(r, m, &m->why) != LG_OK)
        m->module = NULL;
    return m;
}

void *cuda_registry_find(CudaRegistry *r, const char *module, const char *kernel) {
    const CudaSource *source = cuda_source_find(module, r->device->arch, r->target);
    buf_printf(&r->log, "cuda %s: module %s, kernel %s: ", r->device->arch, module, kernel);
    if (!source) {
        buf_puts(&r->log, "no such module\n");
        return NULL;
    }
    buf_printf(&r->log, "%s/%s.cu: ", source->folder, source->stem);
    void *function = NULL;
    Module *m = module_of(r, source);
    if (!m->module)
        buf_printf(&r->log, "cannot be loaded: %s\n", m->why.message);
    else if (!cuda_source_has(source, kernel) ||
             r->device->driver.module_function(&function, m->module, kernel) != 0)
        buf_puts(&r->log, "no such kernel in it\n");
    else
        buf_printf(&r->log, "found (%s)\n", m->cached ? "from the cache" : "compiled");
    return function;
}

LgStatus cuda_registry_require(CudaRegistry *r, const char *module, const char *kernel, void **out,
                               LgError *err) {
    size_t from = r->log.len;
    void *function = cuda_registry_find(r, module, kernel);
    if (!function)
        return lg_fail(err, LG_DEVICE, 0, "%.*s", (int)(r->log.len - from - 1), r->log.data + from);
    *out = function;
    return LG_OK;
}

LgStatus cuda_registry_program(CudaRegistry *r, const char *name, const char *text, void **module,
                               bool *cached, LgError *err) {
    const CudaSource source = {
        .folder = "program", .stem = name, .module = name, .kernels = "", .text = text};
    Module m = {.source = &source};
    LG_TRY(load_module(r, &m, err));
    *module = m.module;
    *cached = m.cached;
    return LG_OK;
}

const char *cuda_registry_log(const CudaRegistry *r) {
    return r->log.data;
}

/* The table looks kernels up in something that is const to it; ours keeps a record. */
typedef struct Lookup {
    CudaRegistry *registry;
} Lookup;

static LoraHandle find_kernel(const void *lookup, const char *module, const char *kernel) {
    return cuda_registry_find(((const Lookup *)lookup)->registry, module, kernel);
}

/* A kernel that wants more shared memory than the device's blocks may have is as good as missing.
 */
static bool give_shared(CudaRegistry *r, void *function, int bytes) {
    const CudaDevice *d = r->device;
    if (!function)
        return false;
    if ((uint64_t)bytes <= d->block_shared_bytes &&
        d->driver.function_set(function, CUDA_FUNCTION_SHARED, bytes) == 0)
        return true;
    buf_printf(&r->log, "cuda: not used: %d bytes of shared memory are needed, a block has %llu\n",
               bytes, (unsigned long long)d->block_shared_bytes);
    return false;
}

LgStatus cuda_lora_kernels(CudaRegistry *r, LoraKernels *out, LgError *err) {
    Lookup lookup = {r};
    LoraKernels k;
    LG_TRY(lora_kernels_resolve(find_kernel, &lookup, "cuda", &k, &r->log, err));
    if (!give_shared(r, k.gemm_tc_k, CUDA_GEMM_TC_SHARED))
        k.gemm_tc_k = NULL;
    if (!give_shared(r, k.gemm_tc_acc_k, CUDA_GEMM_TC_SHARED))
        k.gemm_tc_acc_k = NULL;
    *out = k;
    return LG_OK;
}

static void print_kernels(CudaRegistry *r, const CudaSource *s, Buf *out) {
    const Module *m = module_of(r, s);
    for (const char *p = s->kernels; *p;) {
        char name[96];
        size_t len = strcspn(p, " ");
        void *function = NULL;
        int registers = 0, spilled = 0;
        snprintf(name, sizeof name, "%.*s", (int)len, p);
        p += len + (p[len] == ' ');
        bool found =
            m->module && r->device->driver.module_function(&function, m->module, name) == 0;
        if (found) {
            r->device->driver.function_get(&registers, FUNCTION_REGISTERS, function);
            r->device->driver.function_get(&spilled, FUNCTION_LOCAL_BYTES, function);
        }
        buf_printf(out, "%-22s %-29s %s/%s.cu", s->module, name, s->folder, s->stem);
        if (found)
            buf_printf(out, "  %d registers, %d bytes spilled, %s\n", registers, spilled,
                       m->cached ? "cached" : "compiled");
        else
            buf_printf(out, "  missing: %s\n", m->module ? "no such kernel" : m->why.message);
    }
}

LgStatus cuda_registry_print(CudaRegistry *r, Buf *out, LgError *err) {
    const CudaDevice *d = r->device;
    buf_printf(out, "%s: %s, %d multiprocessors, driver %d.%d, NVRTC %s\n", d->name, d->arch,
               d->sm_count, d->driver_version / 1000, d->driver_version % 1000 / 10,
               nvrtc_version(r->nvrtc));
    for (const CudaSource *s = lg_cuda_sources; s->stem; s++)
        if (cuda_source_find(s->module, d->arch, r->target) == s)
            print_kernels(r, s, out);
    return out->failed ? lg_fail_memory(err) : LG_OK;
}
