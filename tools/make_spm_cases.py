#!/usr/bin/env python3
"""Trains a small SentencePiece BPE model and encodes texts with it, by the sentencepiece package and by Hugging Face's
tokenizers package in the settings of published models, into test data.

Usage: make_spm_cases.py OUT.json          (needs: pip install sentencepiece tokenizers protobuf)

OUT: tokens, scores, types (runs of [type, count]), merges, added (added_tokens); texts; pieces: for each text [ids, decoded] of the
package sentencepiece with the prefix space and without; variants: name, set (top-level parts of a tokenizer.json), model (what
replaces parts of its model), drop (tokens that become others), added, cases: for each text [ids, ids with special tokens as text, decoded,
decoded without special tokens], runs: lists of ids and what they decode to.
"""
import copy
import io
import json
import random
import sys
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer

MARK = "\u2581"
WORDS = (
    "the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which one you were her all she there would "
    "their we him been has when who will more no if out so said what up its about into than them can only other new some could time these two may then do "
    "first any my now such like our over man me even most made after also did many before must through back years where much your way well down should "
    "because each just those people mr how too little state good very make world still own see men work long get here between both life being under never "
    "day same another know while last might us great old year off come since against go came right used take three token model layer weight adapter row"
).split()
OTHER = [
    "def forward(self, x):\n    return self.proj(x) + 1.5 * x[0]\n", "for (int i = 0; i < n; i++) {\n\tsum += a[i] * b[i];\n}\n", "Gr\u00fc\u00dfe aus K\u00f6ln, sch\u00f6ne Stra\u00dfen.",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u041a\u0430\u043a \u0434\u0435\u043b\u0430?", "caf\u00e9 na\u00efve r\u00e9sum\u00e9", "1234567890 3.14159 2026-11-30", "https://example.org/a?b=c&d=e",
    "\u65e5\u672c\u8a9e \u4e2d\u6587 \u4e2d\u56fd", "{\"role\": \"user\", \"content\": \"Hi!\"}", "           deep        spaces    here",
]
TEXTS = [
    "", " ", "  ", "a", " a", "Hello world", "Hello  world ", "  leading and trailing  ", "the people of the world, they would know.", "It's 1234567 o'clock!", "x\n\ny\r\nz\n  w\n",
    "\tdef f(x):\n\t\treturn x[0]\n", "            twelve", "caf\u00e9 cafe\u0301 \u212b", "\u4e2d\u6587\u4e2d\u56fd \u65e5\u672c\u8a9e \ud55c\uad6d\uc5b4", "\U0001F600 \U0001F469\u200d\U0001F467 ok \U0001F680\U0001F680",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!", "\x00\x01\x1f\x7f\x0b", "<s>[INST] hi [/INST] there</s>", "<s> a</s> b <s></s>c", "<unk> <s", "<0x41> <0xE4>", MARK + "the" + MARK + MARK + "x", "a" + MARK,
    "no_space_word=here->there", "aaaaaaaaaaaaaaaaaaaaaaaa", "\u00a0\u3000x\u2028y", "the\u0301", "Gr\u00fc\u00dfe", "zq\u0416\u05d0\u0905 xy xyz", " <tool> call </tool>  x", "one<|user|>\n two<|end|> \n three",
]
BYTE_RUNS = [[0xF0, 0x9F, 0x98, 0x80], [0xE4, 0xB8], [0xE4, 0xB8, 0xAD, 0xE6, 0x96, 0x87], [0x41, 0x0A], [0xFF], [0xC3]]


def train():
    rng = random.Random(11)
    lines = []
    for i in range(3000):
        lines.append(" ".join(rng.choice(WORDS) for _ in range(rng.randint(3, 14))) + rng.choice([".", "", "!", "?", ","]))
        if i % 10 == 0:
            lines.extend(OTHER[i // 10 % len(OTHER)].split("\n"))
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=700, model_type="bpe", byte_fallback=True, character_coverage=0.995,
        normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=True, split_digits=True, num_threads=1, minloglevel=2,
        allow_whitespace_only_pieces=True, user_defined_symbols=["<tool>", MARK * 4, MARK * 2, MARK * 3],
    )
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    return proto


def processor(proto, prefix):
    proto = copy.deepcopy(proto)
    proto.normalizer_spec.add_dummy_prefix = prefix
    return sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())


def make_merges(tokens, scores):
    """Every way to cut a token in two tokens, the higher scores first."""
    ids = {text: i for i, text in enumerate(tokens)}
    out = []
    for i, text in enumerate(tokens):
        parts = [(text[:k], text[k:]) for k in range(1, len(text)) if text[:k] in ids and text[k:] in ids]
        out.extend((scores[i], len(a), len(b), a, b) for a, b in sorted(parts, key=lambda p: (ids[p[0]], ids[p[1]])))
    out.sort(key=lambda m: (m[0], m[1], m[2]), reverse=True)
    return [[m[3], m[4]] for m in out]


def runs(values):
    out = []
    for v in values:
        if out and out[-1][0] == v:
            out[-1][1] += 1
        else:
            out.append([v, 1])
    return out


def added(number, content, **flags):
    token = {"id": number, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return dict(token, **flags)


def sequence(key, *steps):
    return {"type": "Sequence", key: list(steps)}


def replace(a, b):
    return {"type": "Replace", "pattern": {"String": a}, "content": b}


def metaspace(scheme, **more):
    return dict({"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme}, **more)


def frame(before, after):
    item = lambda name: {"SpecialToken": {"id": name, "type_id": 0}}
    ids = {"<s>": 1, "</s>": 2}
    return {
        "type": "TemplateProcessing",
        "single": [item(n) for n in before] + [{"Sequence": {"id": "A", "type_id": 0}}] + [item(n) for n in after],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {n: {"id": n, "ids": [ids[n]], "tokens": [n]} for n in before + after},
    }


PREPEND = sequence("normalizers", {"type": "Prepend", "prepend": MARK}, replace(" ", MARK))
FUSED = [replace(MARK, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
PLAIN = sequence("decoders", *FUSED)
STRIPPED = sequence("decoders", *FUSED, STRIP)
LLAMA = {"normalizer": PREPEND, "pre_tokenizer": None, "decoder": STRIPPED, "post_processor": frame(["<s>"], [])}
GEMMA = {
    "normalizer": replace(" ", MARK), "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}, "decoder": PLAIN,
    "post_processor": frame(["<s>"], []),
}


def meta(scheme, decoder=STRIPPED, **more):
    return {"normalizer": None, "pre_tokenizer": metaspace(scheme, **more), "decoder": decoder, "post_processor": frame(["<s>"], [])}


TURNS = [added(700, "<|user|>", rstrip=True), added(701, "<|end|>", rstrip=True), added(702, "[INST]"), added(703, "[/INST]"), added(704, "</tool>", special=False, lstrip=True)]
BYTES = [f"<0x{i:02X}>" for i in range(256)]
VARIANTS = {
    "llama 2": {"set": LLAMA},
    "llama 2 with turns": {"set": LLAMA, "added": TURNS},
    "mistral": {"set": LLAMA, "added": [added(700, "[INST]"), added(701, "[/INST]")]},
    "not legacy": {"set": meta("first", split=False), "added": TURNS},
    "metaspace everywhere": {"set": meta("always", split=False), "added": TURNS},
    "metaspace nowhere": {"set": meta("never", PLAIN, split=False)},
    "metaspace with words": {"set": meta("first", split=True), "added": TURNS},
    "metaspace by its old flag": {"set": {"normalizer": None, "pre_tokenizer": {"type": "Metaspace", "replacement": MARK, "add_prefix_space": True}, "decoder": {"type": "Metaspace", "replacement": MARK, "add_prefix_space": True}}},
    "metaspace decoder that keeps spaces": {"set": meta("never", metaspace("never"))},
    "metaspace behind a split": {"set": dict(LLAMA, normalizer=None, pre_tokenizer=sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, metaspace("first", split=False)))},
    "metaspace behind a split that removes": {"set": dict(LLAMA, normalizer=None, pre_tokenizer=sequence("pretokenizers", {"type": "Split", "pattern": {"Regex": "^."}, "behavior": "Removed", "invert": False}, metaspace("first")))},
    "gemma": {"set": GEMMA},
    "gemma with turns": {"set": GEMMA, "added": TURNS},
    "nfc first": {"set": dict(LLAMA, normalizer=sequence("normalizers", {"type": "NFC"}, {"type": "Prepend", "prepend": MARK}, replace(" ", MARK)))},
    "normalized tokens": {"set": LLAMA, "added": [added(700, "the people", normalized=True, special=False), added(701, " there", normalized=True), added(702, "xy", normalized=True, single_word=True)]},
    "tokens on both sides": {"set": dict(LLAMA, post_processor=frame(["<s>"], ["</s>"]))},
    "no fallback": {"set": LLAMA, "model": {"byte_fallback": False}},
    "no fallback, unknown ones apart": {"set": LLAMA, "model": {"byte_fallback": False, "fuse_unk": False}},
    "no fallback, nothing for unknown ones": {"set": LLAMA, "model": {"byte_fallback": False, "unk_token": None}},
    "some bytes only": {"set": LLAMA, "drop": [b for i, b in enumerate(BYTES) if i >= 0xE0 and i % 2]},
    "some bytes only, unknown ones apart": {"set": LLAMA, "drop": [b for i, b in enumerate(BYTES) if i >= 0xE0 and i % 2], "model": {"fuse_unk": False}},
    "words that are tokens": {"set": meta("first", split=True), "model": {"ignore_merges": True}},
    "several replaces, two spaces stripped": {"set": dict(LLAMA, decoder=sequence("decoders", replace(MARK + "t", " T"), replace(MARK, " "), {"type": "ByteFallback"}, {"type": "Fuse"}, dict(STRIP, start=2)))},
}


def make_tokenizer(vocab, change):
    drop = set(change.get("drop", []))
    ids = {("DROPPED" + str(i) if text in drop else text): i for i, text in enumerate(vocab["tokens"])}
    model = {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "vocab": ids, "merges": vocab["merges"]}
    model.update(change.get("model", {}))
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": vocab["added"] + change.get("added", []), "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None, "model": model}
    whole.update(change["set"])
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump(whole, file)
        file.flush()
        return Tokenizer.from_file(file.name)


def id_runs(vocab):
    """Ids as a model might give them: bytes that make code points and bytes that make none, words between them."""
    first = vocab["tokens"].index("<0x00>")
    the = vocab["tokens"].index(MARK + "the")
    out = [[first + b for b in run] for run in BYTE_RUNS]
    out += [[the] + run for run in out] + [run + [the] for run in out] + [[1] + run + [2, the] for run in out]
    return out + [[1, the, the, 2], [the, 1, the], [MARK and vocab["tokens"].index(MARK), the], [vocab["tokens"].index(MARK * 3), the], [1, vocab["tokens"].index(MARK * 3)]]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    proto = train()
    tokens = [p.piece for p in proto.pieces]
    kinds = [p.type for p in proto.pieces]
    # As llama.cpp's converter writes them: user-defined ones are found in the text before anything else, which for runs of spaces merging does too.
    types = [1 if t == MARK * len(t) else k for t, k in zip(tokens, kinds)]
    scores = [p.score for p in proto.pieces]
    words = [t for t, k in zip(tokens, types) if k == 1]
    vocab = {"tokens": tokens, "scores": scores, "types": runs(types), "merges": make_merges(words, [s for s, k in zip(scores, types) if k == 1]), "added": [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>"), added(tokens.index("<tool>"), "<tool>", special=False)]}
    out = dict(vocab, texts=TEXTS)
    with_prefix, without = processor(proto, True), processor(proto, False)
    out["pieces"] = [[[p.encode(text), p.decode(p.encode(text))] for p in (with_prefix, without)] for text in TEXTS]
    out["variants"] = []
    for name, change in VARIANTS.items():
        tokenizer = make_tokenizer(vocab, change)
        cases = []
        for text in TEXTS:
            tokenizer.encode_special_tokens = False
            ids = tokenizer.encode(text).ids
            tokenizer.encode_special_tokens = True
            decoded = [tokenizer.decode(ids, skip_special_tokens=skip) for skip in (False, True)]
            # tokenizers decodes an added token that a normalizer changed from its normalized form
            cases.append([ids, tokenizer.encode(text).ids] + ([None, None] if name == "normalized tokens" else decoded))
        decoded = [[ids, tokenizer.decode(ids, skip_special_tokens=False)] for ids in id_runs(vocab)]
        out["variants"].append(dict(change, name=name, cases=cases, runs=decoded))
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(out, file, ensure_ascii=True, separators=(",", ":"))
        file.write("\n")
    print(len(tokens), "tokens,", len(vocab["merges"]), "merges,", len(out["variants"]), "variants of", len(TEXTS), "texts")


if __name__ == "__main__":
    main()
