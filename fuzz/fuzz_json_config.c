/* config.json into flat keys; what comes out is printed as a flat JSON object, which must give the
 * same keys again; then what it says of quantisation is taken out or refused. */
#include "formats/checkpoint.h"
#include "formats/hf_quantization.h"
#include "fuzz/fuzz.h"

static void print_flat(const Config *c, Buf *out) {
    buf_putc(out, '{');
    for (size_t i = 0; i < config_count(c); i++) {
        buf_puts(out, i ? ",\"" : "\"");
        buf_json_escape(out, config_key(c, i));
        buf_puts(out, "\":");
        config_value_print(config_value(c, i), out);
    }
    buf_putc(out, '}');
}

static void check_same(const Config *a, const Config *b) {
    FUZZ_CHECK(config_count(a) == config_count(b));
    for (size_t i = 0; i < config_count(a); i++) {
        FUZZ_CHECK(lg_str_eq(config_key(a, i), config_key(b, i)));
        FUZZ_CHECK(config_value_eq(config_value(a, i), config_value(b, i)));
    }
}

static void claim_quantization(Config *c) {
    HfQuantization q;
    LgError err = {0};
    if (hf_quantization_claim(c, "input", &q, &err) != LG_OK)
        FUZZ_CHECK(err.message[0]);
    else
        for (size_t i = 0; i < config_count(c); i++)
            FUZZ_CHECK(!lg_str_starts(config_key(c, i), "quantization_config.") ||
                       config_value(c, i)->kind == CONFIG_NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Config *first = config_create();
    Config *second = config_create();
    LgError err = {0};
    Buf flat;
    buf_init(&flat);
    FUZZ_CHECK(first && second);
    LgStatus status = hf_config_parse((LgStr){(const char *)data, size}, "input", first, &err);
    if (status == LG_OK) {
        print_flat(first, &flat);
        FUZZ_CHECK(!flat.failed);
        FUZZ_CHECK(hf_config_parse(buf_view(&flat), "flat", second, &err) == LG_OK);
        check_same(first, second);
        claim_quantization(first);
    } else {
        FUZZ_CHECK(err.status == status && err.message[0]);
    }
    buf_clear(&flat);
    config_destroy(first);
    config_destroy(second);
    return 0;
}
