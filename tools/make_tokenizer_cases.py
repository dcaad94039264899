#!/usr/bin/env python3
"""Encodes texts with variants of a tokenizer.json by Hugging Face's tokenizers package, into test data.

Usage: make_tokenizer_cases.py BASE/tokenizer.json OUT.json          (needs: pip install tokenizers)

OUT: texts, and variants: name, set (what replaces top-level parts of BASE), model (what replaces parts of the model),
added (further added tokens), cases: for each text [ids, ids with special tokens as text, decoded].
"""
import copy
import json
import sys
import tempfile

from tokenizers import Tokenizer


def byte_level(**options):
    return dict({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}, **options)


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def digits(individual):
    return {"type": "Digits", "individual_digits": individual}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def added(number, content, **flags):
    token = {"id": number, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    return dict(token, **flags)


LAST = byte_level(use_regex=False)
THREE_DIGITS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
CASED = "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s+(?!\\S)|\\s+"
FRAME = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<|im_end|>", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [2036], "tokens": ["<|im_start|>"]}, "<|im_end|>": {"id": "<|im_end|>", "ids": [2037], "tokens": ["<|im_end|>"]}},
}
FLAGS = [
    added(2040, "<w>", single_word=True, special=True), added(2041, "<l>", lstrip=True, special=True), added(2042, "<r>", rstrip=True, special=True),
    added(2043, "<lr>", lstrip=True, rstrip=True), added(2044, "word", single_word=True), added(2045, "<|im"), added(2046, " two words"),
    added(2047, "aa"), added(2048, "aaab"), added(2049, "cafe\u0301", normalized=True, special=True),
]

VARIANTS = {
    "byte level": {"set": {"pre_tokenizer": byte_level()}},
    "byte level with a space in front": {"set": {"pre_tokenizer": byte_level(add_prefix_space=True)}},
    "no normalizer": {"set": {"normalizer": None}},
    "normalizers in a sequence": {"set": {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]}}},
    "up to three digits": {"set": {"pre_tokenizer": sequence(split(THREE_DIGITS), LAST)}},
    "cased": {"set": {"pre_tokenizer": sequence(split(CASED), LAST)}},
    "digits apart": {"set": {"pre_tokenizer": sequence(digits(True), byte_level())}},
    "digits together, spaces in front": {"set": {"pre_tokenizer": sequence(digits(False), byte_level(add_prefix_space=True))}},
    "sequence in a sequence": {"set": {"pre_tokenizer": sequence(sequence(digits(True), split("[\r\n]")), LAST)}},
    "removed": {"set": {"pre_tokenizer": sequence(split(" ", "Removed", False, "String"), LAST)}},
    "merged with previous": {"set": {"pre_tokenizer": sequence(split("\\s", "MergedWithPrevious"), LAST)}},
    "merged with next": {"set": {"pre_tokenizer": sequence(split("\\s", "MergedWithNext"), LAST)}},
    "contiguous": {"set": {"pre_tokenizer": sequence(split("\\s", "Contiguous"), LAST)}},
    "inverted, removed": {"set": {"pre_tokenizer": sequence(split("\\w+", "Removed", True), LAST)}},
    "inverted, merged with next": {"set": {"pre_tokenizer": sequence(split("\\w", "MergedWithNext", True), LAST)}},
    "empty matches": {"set": {"pre_tokenizer": sequence(split("x*"), LAST)}},
    "empty matches, contiguous": {"set": {"pre_tokenizer": sequence(split("x*", "Contiguous"), LAST)}},
    "lines": {"set": {"pre_tokenizer": sequence(split("^.+$"), LAST)}},
    "escapes": {"set": {"pre_tokenizer": sequence(split("\\v|[\\d\\u0041\\x{42}]|\\W\\S"), LAST)}},
    "look-around": {"set": {"pre_tokenizer": sequence(split("\\s++|(?>a+)b|(?<=c)d|(?<!e)f"), LAST)}},
    "caseless": {"set": {"pre_tokenizer": sequence(split("(?i)ABC|s"), LAST)}},
    "words that are tokens": {"model": {"ignore_merges": True}},
    "merges as texts": {"merges_as_texts": True},
    "unknown bytes": {"without": "abcdefgh", "model": {"unk_token": "UNUSED0"}},
    "unknown bytes, fused": {"without": "abcdefgh", "model": {"unk_token": "UNUSED0", "fuse_unk": True}},
    "lost bytes": {"without": "abcdefgh"},
    "flags of added tokens": {"added": FLAGS},
    "flags of added tokens, no normalizer": {"added": FLAGS, "set": {"normalizer": None}},
    "tokens around": {"set": {"post_processor": FRAME}},
    "tokens around, in a sequence": {"set": {"post_processor": {"type": "Sequence", "processors": [byte_level(), FRAME]}}},
    "no post-processor": {"set": {"post_processor": None, "decoder": {"type": "Sequence", "decoders": [byte_level()]}}},
}

TEXTS = [
    "", " ", "a", "  a  b   c    ", "Hello world, it's 1234567 o'clock!", "I'LL we've DON'T 'S \u017f's", "x\n\ny\r\nz\n  w\n", "\t\tdef f(x):\n\t\treturn x[0]\n",
    "caf\u00e9 cafe\u0301 \u212b A\u030a \uac00 \u1100\u1161", "\u4e2d\u6587\ud55c\uad6d \u0663\u0664 \u00bd\u00b2\u2167", "\U0001F600 \U0001F469\u200d\U0001F467 \u2028\u3000\u00a0x",
    "<|im_start|>user\nhi<|im_end|> <think>x</think><|endoftext|>", "<|im_start><|im_start|", "abcABCaBc xXx aab ab cd ed ef ff", "\x00\x01\x1f\x7f\x85\x0b\x0c",
    "word sword word, wordy <w> a<w> <w>b", " <l> x <r> y <lr> z<r> two words <l><r>", "aaab aaaab aa aaa", "123 4 56 789 0", "self.assertEqual(import_module, None)  # abcdefgh",
    "a.b.c->d::e != f || g && h", "line one\nline two\n\nlast line", "e\u0301\u0316\u0327 q\u0307\u0323 \u0344", "___x__1_2", "trailing space ",
]


def make_variant(base, change):
    tokenizer = copy.deepcopy(base)
    tokenizer.update(change.get("set", {}))
    model = tokenizer["model"]
    for letter in change.get("without", ""):
        number = model["vocab"].pop(letter)
        model["vocab"][f"UNUSED{number}"] = number
    if "without" in change:
        vocab = model["vocab"]
        model["vocab"]["UNUSED0"] = vocab.pop("!")
        model["merges"] = [m for m in model["merges"] if m[0] in vocab and m[1] in vocab and m[0] + m[1] in vocab]
    if change.get("merges_as_texts"):
        model["merges"] = [" ".join(m) for m in model["merges"]]
    model.update(change.get("model", {}))
    tokenizer["added_tokens"] = tokenizer["added_tokens"] + change.get("added", [])
    return tokenizer


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        base = json.load(file)
    out = {"texts": TEXTS, "variants": []}
    for name, change in VARIANTS.items():
        with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
            json.dump(make_variant(base, change), file)
            file.flush()
            tokenizer = Tokenizer.from_file(file.name)
        cases = []
        for text in TEXTS:
            tokenizer.encode_special_tokens = False
            ids = tokenizer.encode(text).ids
            tokenizer.encode_special_tokens = True
            plain = tokenizer.encode(text).ids
            # tokenizers decodes an added token that a normalizer changed from its normalized form, which loses its accents
            skip_decoding = 2049 in ids and not ("set" in change and change["set"].get("normalizer", 1) is None)
            cases.append([ids, plain, None if skip_decoding else tokenizer.decode(ids, skip_special_tokens=False)])
        out["variants"].append(dict(change, name=name, cases=cases))
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(out, file, ensure_ascii=True, separators=(",", ":"))
        file.write("\n")
    print(len(out["variants"]), "variants of", len(TEXTS), "texts")


if __name__ == "__main__":
    main()
