/* SentencePiece-style BPE against the packages sentencepiece and tokenizers
 * (tools/make_spm_cases.py): as GGUF's metadata has it, and as tokenizer.json in the settings of
 * Llama 2, Mistral, Phi-3 and Gemma. */
#include <math.h>

#include "base/clock.h"
#include "base/utf8.h"
#include "tests/unit/text/fixtures.h"

static json_t *file;

static int setup(void **state) {
    (void)state;
    file = fixture_json(LG_TEST_DATA "/text/spm.json");
    return 0;
}

static int teardown(void **state) {
    (void)state;
    json_decref(file);
    return 0;
}

static bool same_ids(const TokenIds *got, const json_t *want) {
    bool same = got->count == json_array_size(want);
    for (size_t i = 0; same && i < got->count; i++)
        same = got->ids[i] == json_integer_value(json_array_get(want, i));
    return same;
}

static TokenIds read_ids(const json_t *list) {
    TokenIds ids = {0};
    for (size_t i = 0; i < json_array_size(list); i++)
        assert_true(token_ids_push(&ids, (int32_t)json_integer_value(json_array_get(list, i))));
    return ids;
}

/* All at once and id by id; every piece of the stream is UTF-8. */
static bool decodes_to(const Tokenizer *t, const json_t *list, bool skip_special, LgStr want) {
    TokenIds ids = read_ids(list);
    LgError err = {0};
    Buf whole, pieces;
    Detok d;
    buf_init(&whole);
    buf_init(&pieces);
    detok_init(&d, t, skip_special);
    for (size_t i = 0; i < ids.count; i++) {
        size_t before = pieces.len;
        assert_int_equal(detok_push(&d, ids.ids[i], &pieces, &err), LG_OK);
        assert_true(utf8_valid(lg_str_sub(buf_view(&pieces), before, pieces.len)));
    }
    detok_finish(&d, &pieces);
    assert_int_equal(tokenizer_decode(t, ids.ids, ids.count, skip_special, &whole, &err), LG_OK);
    assert_true(lg_str_eq(buf_view(&whole), buf_view(&pieces)));
    bool same = lg_str_eq(buf_view(&whole), want);
    if (!same)
        printf("decoded \"%s\", want \"%.*s\"\n", whole.data, LG_STR_ARG(want));
    buf_clear(&whole);
    buf_clear(&pieces);
    token_ids_clear(&ids);
    return same;
}

static bool encodes_to(const Tokenizer *t, LgStr text, bool special_as_text, const json_t *want) {
    TokenIds ids = {0};
    LgError err = {0};
    if (tokenizer_encode(t, text, special_as_text, &ids, &err) != LG_OK)
        fail_msg("%s", err.message);
    bool same = same_ids(&ids, want);
    if (!same) {
        printf("\"%.*s\":", LG_STR_ARG(text));
        for (size_t i = 0; i < ids.count; i++)
            printf(" %d", ids.ids[i]);
        printf("\n");
    }
    token_ids_clear(&ids);
    return same;
}

typedef struct Metadata {
    LgStr *tokens;
    int32_t *types;
    float *scores;
    TokenizerVocab vocab;
} Metadata;

static Metadata read_metadata(void) {
    const json_t *scores = json_object_get(file, "scores"), *runs = json_object_get(file, "types");
    size_t count = json_array_size(scores), n = 0;
    Metadata m = {.tokens = fixture_strings(json_object_get(file, "tokens")),
                  .types = calloc(count, sizeof(int32_t)),
                  .scores = calloc(count, sizeof(float))};
    for (size_t i = 0; i < count; i++)
        m.scores[i] = (float)json_number_value(json_array_get(scores, i));
    for (size_t i = 0; i < json_array_size(runs); i++)
        for (json_int_t k = json_integer_value(json_array_get(json_array_get(runs, i), 1)); k > 0;
             k--)
            m.types[n++] = (int32_t)json_integer_value(json_array_get(json_array_get(runs, i), 0));
    assert_int_equal(n, count);
    m.vocab = (TokenizerVocab){.model = LG_STR("llama"),
                               .pre = LG_STR("default"),
                               .tokens = m.tokens,
                               .token_count = count,
                               .types = m.types,
                               .scores = m.scores};
    return m;
}

static void free_metadata(Metadata *m) {
    free(m->tokens);
    free(m->types);
    free(m->scores);
}

static Tokenizer *make_pieces(bool prefix, const char *architecture) {
    Metadata m = read_metadata();
    Tokenizer *t = NULL;
    LgError err = {0};
    m.vocab.add_space_prefix = prefix;
    m.vocab.architecture = lg_str(architecture);
    if (tokenizer_from_vocab(&m.vocab, &t, &err) != LG_OK)
        fail_msg("%s", err.message);
    free_metadata(&m);
    return t;
}

static void scores_merge_as_sentencepiece_does(void **state) {
    (void)state;
    const json_t *texts = json_object_get(file, "texts"), *cases = json_object_get(file, "pieces");
    size_t failed = 0, checked = 0;
    for (size_t prefix = 0; prefix < 2; prefix++) {
        Tokenizer *t = make_pieces(prefix, "llama");
        for (size_t i = 0; i < json_array_size(texts); i++) {
            LgStr text = lg_json_string(json_array_get(texts, i));
            const json_t *want = json_array_get(json_array_get(cases, i), prefix ? 0 : 1);
            if (memmem(text.ptr, text.len, "<tool>", 6)) /* see the next test */
                continue;
            failed += !encodes_to(t, text, true, json_array_get(want, 0));
            failed += !decodes_to(t, json_array_get(want, 0), false,
                                  lg_json_string(json_array_get(want, 1)));
            checked++;
        }
        tokenizer_destroy(t);
    }
    assert_int_equal(failed, 0);
    assert_true(checked >= 60);
}

static void check_tokens(const Tokenizer *t, const char *text, const char *want) {
    TokenIds ids = {0};
    LgError err = {0};
    Buf got;
    buf_init(&got);
    assert_int_equal(tokenizer_encode(t, lg_str(text), false, &ids, &err), LG_OK);
    const json_t *tokens = json_object_get(file, "tokens");
    for (size_t i = 0; i < ids.count; i++)
        buf_printf(&got, "%s%s", i ? "|" : "",
                   json_string_value(json_array_get(tokens, (size_t)ids.ids[i])));
    assert_string_equal(got.data, want);
    buf_clear(&got);
    token_ids_clear(&ids);
}

#define M "\xe2\x96\x81"

/* As llama.cpp does, which Hugging Face's tokenizers of the time do too ("legacy"). */
static void each_part_between_special_tokens_gets_its_space(void **state) {
    (void)state;
    Tokenizer *with = make_pieces(true, "llama"), *without = make_pieces(false, "gemma3");
    check_tokens(with, "the<s>the</s> the<tool>the",
                 M "the|<s>|" M "the|</s>|" M M "|t|he|<tool>|" M "the");
    check_tokens(without, "the<s> the<tool>the", "t|he|<s>|" M "the|<tool>|t|he");
    tokenizer_destroy(with);
    tokenizer_destroy(without);
}

static void control_tokens_of_phi3_take_the_spaces_behind_them(void **state) {
    (void)state;
    Tokenizer *phi = make_pieces(true, "phi3"), *llama = make_pieces(true, "llama");
    check_tokens(phi, "</s> \n the<s> the", "</s>|" M "the|<s>|" M M "|t|he");
    check_tokens(llama, "</s> the", "</s>|" M M "|t|he");
    tokenizer_destroy(phi);
    tokenizer_destroy(llama);
}

/* Old files have no token types: byte tokens are known by their texts. */
static void byte_tokens_are_known_by_their_texts(void **state) {
    (void)state;
    Metadata m = read_metadata();
    Tokenizer *t = NULL;
    LgError err = {0};
    m.vocab.types = NULL;
    assert_int_equal(tokenizer_from_vocab(&m.vocab, &t, &err), LG_OK);
    check_tokens(t, "\x01<0x41>", "<0x01>|<0x3C>|0|x|4|1|<0x3E>");
    tokenizer_destroy(t);
    free_metadata(&m);
}

static void metadata_that_lacks_scores_is_refused(void **state) {
    (void)state;
    Metadata m = read_metadata();
    Tokenizer *t = NULL;
    LgError err = {0};
    m.scores[5] = (float)NAN;
    assert_int_equal(tokenizer_from_vocab(&m.vocab, &t, &err), LG_BAD_INPUT);
    assert_non_null(strstr(err.message, "the score of token 5 is no number"));
    m.vocab.scores = NULL;
    assert_int_equal(tokenizer_from_vocab(&m.vocab, &t, &err), LG_BAD_INPUT);
    assert_non_null(strstr(err.message, "tokenizer.ggml.scores: the model \"llama\" needs one"));
    assert_null(t);
    free_metadata(&m);
}

static void pieces_of_scores_are_bounded(void **state) {
    (void)state;
    Metadata m = read_metadata();
    static char longest[1025];
    Tokenizer *t = NULL;
    LgError err = {0};
    memset(longest, 'x', sizeof longest);
    m.tokens[699] = (LgStr){longest, sizeof longest};
    assert_int_equal(tokenizer_from_vocab(&m.vocab, &t, &err), LG_LIMIT);
    assert_non_null(strstr(err.message, "(id 699) is longer than 1024 bytes"));
    m.tokens[699].len--;
    assert_int_equal(tokenizer_from_vocab(&m.vocab, &t, &err), LG_OK);
    tokenizer_destroy(t);
    free_metadata(&m);
}

static json_t *make_vocab(const json_t *drop) {
    const json_t *tokens = json_object_get(file, "tokens");
    json_t *vocab = json_object();
    for (size_t i = 0; i < json_array_size(tokens); i++) {
        const json_t *token = json_array_get(tokens, i);
        char name[32];
        bool dropped = false;
        for (size_t k = 0; k < json_array_size(drop) && !dropped; k++)
            dropped = json_equal(json_array_get(drop, k), token);
        snprintf(name, sizeof name, "DROPPED%zu", i);
        LgStr text = dropped ? lg_str(name) : lg_json_string(token);
        json_object_setn_new(vocab, text.ptr, text.len, json_integer((json_int_t)i));
    }
    return vocab;
}

static Tokenizer *make_variant(const json_t *change) {
    json_t *model =
        json_pack("{s:s, s:s, s:b, s:b, s:O}", "type", "BPE", "unk_token", "<unk>", "fuse_unk", 1,
                  "byte_fallback", 1, "merges", json_object_get(file, "merges"));
    json_object_set_new(model, "vocab", make_vocab(json_object_get(change, "drop")));
    if (json_object_get(change, "model"))
        json_object_update(model, json_object_get(change, "model"));
    json_t *added = json_deep_copy(json_object_get(file, "added"));
    if (json_object_get(change, "added"))
        json_array_extend(added, json_object_get(change, "added"));
    json_t *whole = json_pack("{s:o, s:o}", "model", model, "added_tokens", added);
    json_object_update(whole, json_object_get(change, "set"));
    Buf text;
    Tokenizer *t = NULL;
    LgError err = {0};
    buf_init(&text);
    lg_json_print(whole, JSON_COMPACT, &text);
    if (tokenizer_from_json(buf_view(&text), &t, &err) != LG_OK)
        fail_msg("%s: %s", json_string_value(json_object_get(change, "name")), err.message);
    buf_clear(&text);
    json_decref(whole);
    return t;
}

static void every_variant_gives_the_packages_ids_and_texts(void **state) {
    (void)state;
    const json_t *texts = json_object_get(file, "texts");
    const json_t *variants = json_object_get(file, "variants");
    size_t failed = 0;
    for (size_t v = 0; v < json_array_size(variants); v++) {
        const json_t *change = json_array_get(variants, v), *runs = json_object_get(change, "runs");
        Tokenizer *t = make_variant(change);
        size_t before = failed;
        for (size_t i = 0; i < json_array_size(texts); i++) {
            LgStr text = lg_json_string(json_array_get(texts, i));
            const json_t *c = json_array_get(json_object_get(change, "cases"), i);
            failed += !encodes_to(t, text, false, json_array_get(c, 0));
            failed += !encodes_to(t, text, true, json_array_get(c, 1));
            for (size_t skip = 0; skip < 2; skip++) {
                const json_t *want = json_array_get(c, 2 + skip);
                failed += !json_is_null(want) &&
                          !decodes_to(t, json_array_get(c, 0), skip, lg_json_string(want));
            }
        }
        for (size_t i = 0; i < json_array_size(runs); i++)
            failed += !decodes_to(t, json_array_get(json_array_get(runs, i), 0), false,
                                  lg_json_string(json_array_get(json_array_get(runs, i), 1)));
        if (failed > before)
            printf("%s: %zu differ\n", json_string_value(json_object_get(change, "name")),
                   failed - before);
        tokenizer_destroy(t);
    }
    assert_int_equal(failed, 0);
    assert_true(json_array_size(variants) >= 20);
}

/* A character is there as soon as its last byte is; the package takes whole runs of byte tokens, so
 * that one broken byte costs it the characters beside it. */
static void characters_of_byte_tokens_come_one_by_one(void **state) {
    (void)state;
    Tokenizer *t = make_variant(json_array_get(json_object_get(file, "variants"), 0));
    int32_t first = tokenizer_id(t, LG_STR("<0x00>"));
    const unsigned char bytes[] = {0xe4, 0xb8, 0xad, 0xf0, 0x9f, 0x98, 0x80, 0xe4, 0xb8, 0xff};
    static const size_t after[] = {0, 0, 3, 3, 3, 3, 7, 7, 7, 16};
    LgError err = {0};
    Buf out;
    Detok d;
    buf_init(&out);
    detok_init(&d, t, false);
    for (size_t i = 0; i < sizeof bytes; i++) {
        assert_int_equal(detok_push(&d, first + bytes[i], &out, &err), LG_OK);
        assert_int_equal(out.len, after[i]);
    }
    assert_string_equal(out.data, "\xe4\xb8\xad\xf0\x9f\x98\x80"
                                  "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    buf_clear(&out);
    tokenizer_destroy(t);
}

static void check_long(const Tokenizer *t, const char *unit) {
    Buf text, back;
    TokenIds ids = {0};
    LgError err = {0};
    buf_init(&text);
    buf_init(&back);
    while (text.len < (1 << 17))
        buf_puts(&text, unit);
    double start = clock_seconds();
    assert_int_equal(tokenizer_encode_bare(t, buf_view(&text), true, &ids, &err), LG_OK);
    assert_true(clock_seconds() - start < 20); /* a fraction of a second; in squares, hours */
    assert_int_equal(tokenizer_decode(t, ids.ids, ids.count, false, &back, &err), LG_OK);
    assert_true(lg_str_eq(buf_view(&text), buf_view(&back)));
    token_ids_clear(&ids);
    buf_clear(&text);
    buf_clear(&back);
}

/* Without a pre-tokenizer the whole text is one word. */
static void long_texts_take_time_in_proportion(void **state) {
    (void)state;
    static const char *const units[] = {
        "a", " ", "the people ", "\n", "\xe4\xb8\xad", "0", "\xf0\x9f\x98\x80", "x the"};
    Tokenizer *tokenizers[] = {
        make_pieces(true, "llama"),
        make_variant(json_array_get(json_object_get(file, "variants"), 0)),
    };
    for (size_t i = 0; i < 2 * sizeof units / sizeof units[0]; i++)
        check_long(tokenizers[i % 2], units[i / 2]);
    tokenizer_destroy(tokenizers[0]);
    tokenizer_destroy(tokenizers[1]);
}

/* The n-th allocation fails, for every n that there is, in steps that grow. */
static void failed_allocations_leave_nothing(void **state) {
    (void)state;
    Metadata m = read_metadata();
    bool done = false;
    m.vocab.add_space_prefix = m.vocab.add_bos = true;
    m.vocab.bos_id = 1;
    for (long n = 1; !done; n += 1 + n / 20) {
        Tokenizer *t = NULL;
        TokenIds ids = {0};
        LgError err = {0};
        Buf out;
        buf_init(&out);
        lg_alloc_fail_at(n, (int)(n % 2));
        LgStatus status = tokenizer_from_vocab(&m.vocab, &t, &err);
        if (status == LG_OK)
            status = tokenizer_encode(t, LG_STR(" a caf\xc3\xa9 <s> the"), false, &ids, &err);
        if (status == LG_OK)
            status = tokenizer_decode(t, ids.ids, ids.count, false, &out, &err);
        done = lg_alloc_fail_at(0, 0) < n;
        assert_int_equal(status, done ? LG_OK : LG_NO_MEMORY);
        token_ids_clear(&ids);
        buf_clear(&out);
        tokenizer_destroy(t);
    }
    free_metadata(&m);
}

/* Metaspace, normalizers and a decoder that drops: all that copies texts. */
static void failed_allocations_with_tokenizer_json_leave_nothing(void **state) {
    (void)state;
    static const char json[] =
        "{\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"unk_token\":\"u\",\"vocab\":{"
        "\"u\":0,\"_\":1,\"a\":2,\"_a\":3,\"<0xC3>\":4,\"<0xA9>\":5},\"merges\":[\"_ a\"]},"
        "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\","
        "\"prepend\":\" \"},{\"type\":\"Replace\",\"pattern\":{\"String\":\"b\"},"
        "\"content\":\"a\"}]},\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\"},"
        "\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\"_\"}}";
    bool done = false;
    for (long n = 1; !done; n++) {
        Tokenizer *t = NULL;
        TokenIds ids = {0};
        LgError err = {0};
        Buf out;
        buf_init(&out);
        lg_alloc_fail_at(n, (int)(n % 2));
        LgStatus status = tokenizer_from_json(LG_STR(json), &t, &err);
        if (status == LG_OK)
            status = tokenizer_encode(t, LG_STR("b a \xc3\xa9"), false, &ids, &err);
        if (status == LG_OK)
            status = tokenizer_decode(t, ids.ids, ids.count, false, &out, &err);
        done = lg_alloc_fail_at(0, 0) < n;
        assert_int_equal(status, done ? LG_OK : LG_NO_MEMORY);
        if (done)
            assert_string_equal(out.data, "a a <0xC3><0xA9>"); /* nothing fuses bytes here */
        token_ids_clear(&ids);
        buf_clear(&out);
        tokenizer_destroy(t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_merge_as_sentencepiece_does),
        cmocka_unit_test(each_part_between_special_tokens_gets_its_space),
        cmocka_unit_test(control_tokens_of_phi3_take_the_spaces_behind_them),
        cmocka_unit_test(byte_tokens_are_known_by_their_texts),
        cmocka_unit_test(metadata_that_lacks_scores_is_refused),
        cmocka_unit_test(every_variant_gives_the_packages_ids_and_texts),
        cmocka_unit_test(characters_of_byte_tokens_come_one_by_one),
        cmocka_unit_test(pieces_of_scores_are_bounded),
        cmocka_unit_test(long_texts_take_time_in_proportion),
        cmocka_unit_test(failed_allocations_leave_nothing),
        cmocka_unit_test(failed_allocations_with_tokenizer_json_leave_nothing),
    };
    lg_mem_install_hooks();
    return cmocka_run_group_tests(tests, setup, teardown);
}
