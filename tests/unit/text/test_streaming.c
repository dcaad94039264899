/* Decoding id by id: never a part of a code point, and in the end the same text as decoding all at
 * once. */
#include "base/rng.h"
#include "base/utf8.h"
#include "tests/unit/text/fixtures.h"

static Tokenizer *tiny, *smollm2;

static int setup(void **state) {
    (void)state;
    tiny = fixture_tokenizer_json(LG_TEST_DATA "/text/tiny-tokenizer.json");
    smollm2 = fixture_tokenizer_vocab(LG_TEST_DATA "/text/smollm2-vocab.json");
    return 0;
}

static int teardown(void **state) {
    (void)state;
    tokenizer_destroy(tiny);
    tokenizer_destroy(smollm2);
    return 0;
}

static void check_stream(const Tokenizer *t, const int32_t *ids, size_t count, bool skip_special) {
    LgError err = {0};
    Buf whole, pieces;
    Detok d;
    buf_init(&whole);
    buf_init(&pieces);
    detok_init(&d, t, skip_special);
    for (size_t i = 0; i < count; i++) {
        size_t before = pieces.len;
        assert_int_equal(detok_push(&d, ids[i], &pieces, &err), LG_OK);
        assert_true(utf8_valid(lg_str_sub(buf_view(&pieces), before, pieces.len)));
    }
    detok_finish(&d, &pieces);
    assert_int_equal(tokenizer_decode(t, ids, count, skip_special, &whole, &err), LG_OK);
    assert_true(lg_str_eq(buf_view(&whole), buf_view(&pieces)));
    buf_clear(&whole);
    buf_clear(&pieces);
}

static void random_ids_stream_to_their_decoding(void **state) {
    (void)state;
    const Tokenizer *const tokenizers[] = {tiny, smollm2};
    for (uint64_t run = 0; run < 4000; run++) {
        const Tokenizer *t = tokenizers[run % 2];
        int32_t ids[64];
        size_t count = rng_u64(run, 0) % 64;
        /* Half of the runs take single bytes mostly, which rarely make code points. */
        size_t range = run & 2 ? 300 : tokenizer_vocab_count(t) + 10;
        for (size_t i = 0; i < count; i++)
            ids[i] = (int32_t)(rng_u64(run, i + 1) % range);
        check_stream(t, ids, count, run & 4);
    }
}

static void check_bytes(const char *bytes, const char *want) {
    int32_t ids[16];
    size_t count = 0;
    LgError err = {0};
    Buf out;
    buf_init(&out);
    for (; bytes[count];
         count++) { /* the id of a byte: its symbol is Latin-1's own, or from U+0100 on */
        unsigned char c = (unsigned char)bytes[count];
        unsigned code = c == 0xad ? 0x143 : c >= 0x7f && c <= 0xa0 ? 0x100u + 33u + (c - 0x7fu) : c;
        char symbol[4];
        ids[count] = tokenizer_id(tiny, (LgStr){symbol, (size_t)utf8_encode(code, symbol)});
        assert_true(ids[count] >= 0);
    }
    assert_int_equal(tokenizer_decode(tiny, ids, count, false, &out, &err), LG_OK);
    assert_string_equal(out.data, want);
    buf_clear(&out);
    check_stream(tiny, ids, count, false);
}

#define FFFD "\xef\xbf\xbd"

/* One replacement for each longest beginning of a code point, as in Unicode's advice (chapter 3).
 */
static void broken_bytes_become_replacements(void **state) {
    (void)state;
    check_bytes("a\xc3\xa9z", "a\xc3\xa9z");
    check_bytes("\xe4\xb8", FFFD);
    check_bytes("\xe4\xb8z", FFFD "z");
    check_bytes("\xe4\xb8\xe4\xb8\xad", FFFD "\xe4\xb8\xad");
    check_bytes("\xf0\x9f\x98", FFFD);
    check_bytes("\x80\x80", FFFD FFFD);
    check_bytes("\xed\xa0\x80", FFFD FFFD FFFD);
    check_bytes("\xf4\x90z", FFFD FFFD "z");
    check_bytes("\xc0\xaf", FFFD FFFD);
    check_bytes("\xff\xc3", FFFD FFFD);
}

static void text_comes_when_it_is_certain(void **state) {
    (void)state;
    TokenIds ids = {0};
    LgError err = {0};
    Buf out;
    Detok d;
    buf_init(&out);
    assert_int_equal(tokenizer_encode(tiny, LG_STR("\xf0\x9f\x98\x80!"), false, &ids, &err), LG_OK);
    assert_true(ids.count >= 3);
    detok_init(&d, tiny, false);
    for (size_t i = 0; i + 2 < ids.count; i++) {
        assert_int_equal(detok_push(&d, ids.ids[i], &out, &err), LG_OK);
        assert_int_equal(out.len, 0);
    }
    assert_int_equal(detok_push(&d, ids.ids[ids.count - 2], &out, &err), LG_OK);
    assert_string_equal(out.data, "\xf0\x9f\x98\x80");
    assert_int_equal(detok_push(&d, ids.ids[ids.count - 1], &out, &err), LG_OK);
    assert_string_equal(out.data, "\xf0\x9f\x98\x80!");
    token_ids_clear(&ids);
    buf_clear(&out);
}

static void ids_that_are_no_token_have_no_text(void **state) {
    (void)state;
    const int32_t ids[] = {64, 2040, 2047, 2000000000, 65};
    LgError err = {0};
    Buf out;
    buf_init(&out);
    assert_int_equal(tokenizer_decode(tiny, ids, 5, false, &out, &err), LG_OK);
    assert_string_equal(out.data, "ab");
    assert_int_equal(tokenizer_decode(tiny, (const int32_t[]){-1}, 1, false, &out, &err),
                     LG_BAD_INPUT);
    assert_non_null(strstr(err.message, "token id -1 is negative; ids are 0 to 2039"));
    buf_clear(&out);
}

static void special_tokens_can_be_skipped(void **state) {
    (void)state;
    const int32_t ids[] = {2036, 64, 2038, 65, 2037};
    LgError err = {0};
    Buf out;
    buf_init(&out);
    assert_int_equal(tokenizer_decode(tiny, ids, 5, true, &out, &err), LG_OK);
    assert_string_equal(out.data, "a<think>b"); /* added, but not special */
    assert_true(tokenizer_is_special(tiny, 2036));
    assert_false(tokenizer_is_special(tiny, 2038));
    buf_clear(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_ids_stream_to_their_decoding),
        cmocka_unit_test(broken_bytes_become_replacements),
        cmocka_unit_test(text_comes_when_it_is_certain),
        cmocka_unit_test(ids_that_are_no_token_have_no_text),
        cmocka_unit_test(special_tokens_can_be_skipped),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
