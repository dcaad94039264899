/* A safetensors file. */
#include "formats/safetensors.h"
#include "fuzz/fuzz_tensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    TensorSet *set = NULL;
    LgError err = {0};
    LgStatus status = safetensors_parse(data, size, "input", &set, &err);
    FUZZ_CHECK((status == LG_OK) == (set != NULL));
    if (set)
        fuzz_check_tensors(set, data, size);
    else
        FUZZ_CHECK(err.status == status && err.message[0]);
    tensor_set_close(set);
    return 0;
}
