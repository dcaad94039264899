/* Names of the two kinds of programs. */
#include "ir/provenance.h"

#include <stddef.h>

static const char *const provenance_names[] = {
    [PROVENANCE_COMPILED] = "Compiled",
    [PROVENANCE_HAND_WRITTEN] = "HandWritten",
};

const char *provenance_text(ProvenanceKind kind) {
    size_t count = sizeof provenance_names / sizeof provenance_names[0];
    return (size_t)kind < count ? provenance_names[kind] : "unknown";
}
