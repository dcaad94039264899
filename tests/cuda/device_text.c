#include "device_text.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"

static char *replaced(const char *text, const char *from, const char *to) {
    const char *at = strstr(text, from);
    if (!at) {
        fprintf(stderr, "cuda_check: there is no \"%s\" to change\n", from);
        exit(1);
    }
    size_t before = (size_t)(at - text), n = strlen(to);
    char *out = room(strlen(text) + n + 1);
    memcpy(out, text, before);
    memcpy(out + before, to, n);
    strcpy(out + before + n, at + strlen(from));
    return out;
}

void *load_text(Gpu *g, const char *name, const char *text, const char *header, const char *from,
                const char *to) {
    NvrtcHeader headers[16];
    char *changed = NULL;
    int count = 0;
    LgError err;
    Buf cubin;
    void *module = NULL;
    for (const NvrtcHeader *h = lg_cuda_headers; h->name && count < 16; h++) {
        headers[count] = *h;
        if (header && strcmp(h->name, header) == 0)
            headers[count].text = changed = replaced(h->text, from, to);
        count++;
    }
    char *own = header && !changed ? replaced(text, from, to) : NULL;
    NvrtcSource source = {name, own ? own : text, headers, count};
    buf_init(&cubin);
    must(nvrtc_compile(g->nvrtc, &source, g->device->arch, &cubin, &err), &err);
    must_code(g, g->device->driver.module_load(&module, cubin.data), name);
    buf_clear(&cubin);
    free(changed);
    free(own);
    return module;
}

void *load_file(Gpu *g, const char *file) {
    LgError err;
    Buf text;
    char path[256];
    snprintf(path, sizeof path, "tests/cuda/%s", file);
    buf_init(&text);
    must(file_read(path, 1 << 20, &text, &err), &err);
    void *module = load_text(g, path, text.data, NULL, NULL, NULL);
    buf_clear(&text);
    return module;
}

void *kernel_of(Gpu *g, void *module, const char *name) {
    void *kernel = NULL;
    must_code(g, g->device->driver.module_function(&kernel, module, name), name);
    return kernel;
}
