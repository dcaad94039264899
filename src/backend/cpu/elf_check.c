#include "backend/cpu/elf_check.h"

#include <elf.h>
#include <stdbool.h>
#include <string.h>

#include "base/file.h"

#if defined(__x86_64__)
#define HOST_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define HOST_MACHINE EM_AARCH64
#elif defined(__riscv)
#define HOST_MACHINE EM_RISCV
#else
#define HOST_MACHINE EM_NONE
#endif

static bool inside(uint64_t offset, uint64_t bytes, uint64_t size) {
    return offset <= size && bytes <= size - offset;
}

/* What is wrong with the file; NULL: nothing that can be seen from outside. */
static const char *elf_fault(const unsigned char *data, size_t size) {
    Elf64_Ehdr header;
    if (size < sizeof header || memcmp(data, ELFMAG, SELFMAG) != 0)
        return "it is no shared object";
    memcpy(&header, data, sizeof header);
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB ||
        (HOST_MACHINE != EM_NONE && header.e_machine != HOST_MACHINE))
        return "it was compiled for another kind of processor";
    if (header.e_type != ET_DYN || header.e_phentsize != sizeof(Elf64_Phdr))
        return "it is no shared object";
    if (!inside(header.e_phoff, (uint64_t)header.e_phnum * sizeof(Elf64_Phdr), size) ||
        !inside(header.e_shoff, (uint64_t)header.e_shnum * header.e_shentsize, size))
        return "it is truncated";
    for (uint64_t i = 0; i < header.e_phnum; i++) {
        Elf64_Phdr segment;
        memcpy(&segment, data + header.e_phoff + i * sizeof segment, sizeof segment);
        if (!inside(segment.p_offset, segment.p_filesz, size))
            return "it is truncated";
    }
    return NULL;
}

LgStatus elf_check(const char *path, LgError *err) {
    FileMap map;
    LG_TRY(file_map_open(path, &map, err));
    const char *fault = elf_fault(map.data, map.size);
    file_map_close(&map);
    if (fault)
        return lg_fail(err, LG_BAD_INPUT, 0,
                       "cannot load the program \"%s\": %s. A file made by `ligature compile -o` "
                       "on this kind of machine is expected",
                       path, fault);
    return LG_OK;
}
