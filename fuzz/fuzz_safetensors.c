/* A safetensors file, then with its scales joined to matrices in f8. */
#include "formats/hf_quantization.h"
#include "formats/safetensors.h"
#include "fuzz/fuzz_tensors.h"

static void join_scales(TensorSet *set, const uint8_t *data, size_t size) {
    const HfQuantization blocks = {128, 128};
    LgError err = {0};
    if (hf_quantization_join(set, &blocks, "input", &err) != LG_OK) {
        FUZZ_CHECK(err.message[0]);
        return;
    }
    fuzz_check_tensors(set, data, size);
    for (size_t i = 0; i < tensor_set_count(set); i++)
        FUZZ_CHECK(tensor_set_at(set, i)->dtype != DTYPE_F8_E4M3 || tensor_set_at(set, i)->scale);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    TensorSet *set = NULL;
    LgError err = {0};
    LgStatus status = safetensors_parse(data, size, "input", &set, &err);
    FUZZ_CHECK((status == LG_OK) == (set != NULL));
    if (set) {
        fuzz_check_tensors(set, data, size);
        join_scales(set, data, size);
    } else {
        FUZZ_CHECK(err.status == status && err.message[0]);
    }
    tensor_set_close(set);
    return 0;
}
