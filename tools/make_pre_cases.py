#!/usr/bin/env python3
"""Encodes texts with the pre-tokenizers of published models, as their tokenizer.json has them, over the vocabulary of a small tokenizer by
Hugging Face's tokenizers package, into test data: what GGUF's tokenizer.ggml.pre names has to give the same ids.

Usage: make_pre_cases.py BASE/tokenizer.json OUT.json          (needs: pip install tokenizers)

OUT: texts, and for each name: cases, the ids of each text.
"""
import json
import sys
import tempfile

from tokenizers import Tokenizer


def split(pattern, behavior="Isolated"):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": False}


def byte_level(regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": regex}


def digits(individual):
    return {"type": "Digits", "individual_digits": individual}


def llama3(numbers):
    return f"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{{L}}\\p{{N}}]?\\p{{L}}+|{numbers}| ?[^\\s\\p{{L}}\\p{{N}}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"


NFC = {"type": "NFC"}
TEKKEN = "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
GPT_4O = "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
HAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
# The letters that DeepSeek's first models list one by one, as far as test texts have them: Latin, Greek, Cyrillic, Armenian, Georgian, Cherokee, wide Latin.
CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\uff21-\uff3a\uff41-\uff5a"
)
DEEPSEEK_LLM = [
    split("[\r\n]"), split(f"\\s?[{CASED_LETTERS}]+"), split("\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"), split("\\s+$"), split(HAN), digits(False), byte_level(False),
]
DEEPSEEK_CODER = [split("[\r\n]"), split("\\s?\\p{L}+"), split("\\s?\\p{P}+"), split(HAN), digits(True), byte_level(False)]
DEEPSEEK_V3 = [
    split("\\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
    split("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"), byte_level(False),
]

# name: normalizer, steps, ignore_merges
NAMES = {
    "gpt-2": (None, [byte_level(True)], False),
    "olmo": (NFC, [byte_level(True)], False),
    "smollm": (None, [digits(True), byte_level(True)], False),
    "llama-bpe": (None, [split(llama3("\\p{N}{1,3}")), byte_level(False)], True),
    "dbrx": (None, [split(llama3("\\p{N}{1,3}")), byte_level(False)], False),
    "qwen2": (NFC, [split(llama3("\\p{N}")), byte_level(False)], False),
    "tekken": (None, [split(TEKKEN), byte_level(False)], True),
    "gpt-4o": (None, [split(GPT_4O), byte_level(False)], False),
    "deepseek-llm": (None, DEEPSEEK_LLM, False),
    "deepseek-coder": (None, DEEPSEEK_CODER, False),
    "deepseek-v3": (None, DEEPSEEK_V3, False),
}

TEXTS = [
    "", " ", "a  b   c ", "Hello world, it's 1234567 o'clock!", "I'LL we've DON'T 'S HTTPServer camelCaseWord XMLHttp", "x\n\ny\r\nz\n  w\n", "\t\tdef f(x):\n\t\treturn x[0] // 2 /\n/",
    "caf\u00e9 cafe\u0301 \u212b", "\u4e2d\u6587\ud55c\uad6d\u3072\u3089\u30ab\u30bf \u4e2d \u0663\u0664 \u00bd\u00b2\u2167", "\U0001F600 \u2028\u3000\u00a0x\u3001\u3002\uff01\uff0c \u2018q\u2019", "\u041f\u0440\u0438\u0432\u0435\u0442 \u039a\u03b1\u03bb\u03b7\u03bc\u03ad\u03c1\u03b1 \u0571\u0587 \u05e9\u05dc\u05d5\u05dd",
    "a.b.c->d::e != f || g && h $x+y<z^~`", "123 4 56 789 0 1,234.5", "self.assertEqual(import_module, None)  # abcdefgh", "trailing   ", "___x__1_2-#tag @name", "the\u0301 n\u0303 \u0915\u094d\u0937 \u0e01\u0e33", "line\n \n\t\n end\n\n\n",
    "\u00aa\u00ba \u01bb\u0294 \uff21\uff42", "1\u00b2\u00bd2\u21673 \u0665",
]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        base = json.load(file)
    out = {"texts": TEXTS, "names": {}}
    for name, (normalizer, steps, ignore_merges) in NAMES.items():
        base["normalizer"] = normalizer
        base["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
        base["model"]["ignore_merges"] = ignore_merges
        with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
            json.dump(base, file)
            file.flush()
            tokenizer = Tokenizer.from_file(file.name)
        out["names"][name] = [tokenizer.encode(text).ids for text in TEXTS]
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(out, file, ensure_ascii=True, separators=(",", ":"))
        file.write("\n")
    print(len(NAMES), "names,", len(TEXTS), "texts")


if __name__ == "__main__":
    main()
