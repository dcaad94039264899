#!/usr/bin/env python3
"""Writes the tokenizer of a GGUF file as JSON, and its chat template as text: test data without the weights.

Usage: extract_gguf_tokenizer.py MODEL.gguf VOCAB.json [TEMPLATE.jinja]

VOCAB.json: model, pre, tokens (list of texts), types (list of [type, how many tokens in a row]), merges (list of
"left right"), add_bos, add_eos, bos_id, eos_id.
"""
import json
import struct
import sys

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


class Reader:
    def __init__(self, file):
        self.file = file

    def scalar(self, code):
        size = struct.calcsize("<" + code)
        return struct.unpack("<" + code, self.file.read(size))[0]

    def string(self):
        return self.file.read(self.scalar("Q")).decode("utf-8")

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            item_kind = self.scalar("I")
            return [self.value(item_kind) for _ in range(self.scalar("Q"))]
        return self.scalar(SCALARS[kind])


def read_metadata(path):
    with open(path, "rb") as file:
        r = Reader(file)
        if file.read(4) != b"GGUF":
            sys.exit(f"{path}: not a GGUF file")
        version = r.scalar("I")
        if version not in (2, 3):
            sys.exit(f"{path}: version {version}, 2 and 3 are read")
        r.scalar("Q")
        count = r.scalar("Q")
        return {r.string(): r.value(r.scalar("I")) for _ in range(count)}


def runs(values):
    out = []
    for v in values:
        if out and out[-1][0] == v:
            out[-1][1] += 1
        else:
            out.append([v, 1])
    return out


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    meta = read_metadata(sys.argv[1])
    get = lambda key, default=None: meta.get("tokenizer." + key, default)
    vocab = {
        "model": get("ggml.model", ""),
        "pre": get("ggml.pre", ""),
        "add_bos": get("ggml.add_bos_token", False),
        "add_eos": get("ggml.add_eos_token", False),
        "bos_id": get("ggml.bos_token_id", -1),
        "eos_id": get("ggml.eos_token_id", -1),
        "types": runs(get("ggml.token_type", [])),
        "tokens": get("ggml.tokens", []),
        "merges": get("ggml.merges", []),
    }
    with open(sys.argv[2], "w", encoding="utf-8") as out:
        json.dump(vocab, out, ensure_ascii=False, separators=(",", ":"))
        out.write("\n")
    if len(sys.argv) == 4:
        with open(sys.argv[3], "w", encoding="utf-8", newline="") as out:
            out.write(get("chat_template", ""))


if __name__ == "__main__":
    main()
