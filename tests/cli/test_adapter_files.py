#!/usr/bin/env python3
"""Adapters in other files than PEFT's usual ones: the same numbers, so the same bits. test_adapter_files.py LIGATURE DATA"""
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

EXE, DATA = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
CACHE = tempfile.mkdtemp()
IDS = "263,482,306,371,512,285,44,9,1033,77"


def run(*args):
    return subprocess.run([EXE, *map(str, args)], capture_output=True, text=True, timeout=300, env=dict(os.environ, LIGATURE_CACHE=CACHE))


def digest(model, adapter):
    r = run("run", model, "--ids", IDS, "-n", 8, "--greedy", "--json", "--digest", "--adapter", f"a={adapter}")
    if r.returncode:
        raise AssertionError(r.stderr)
    return json.loads(r.stdout)["sequences"][0]["logits_sha256"]


def read_safetensors(path):
    with open(path, "rb") as f:
        data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    for name, t in json.loads(data[8:8 + n]).items():
        if name != "__metadata__":
            begin, end = (x + 8 + n for x in t["data_offsets"])
            yield name, t["dtype"], t["shape"], data[begin:end]


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def write_gguf(path, arch, alpha, tensors, more=()):
    """tensors: name, shape (outermost first), BF16 bytes."""
    keys = [("general.architecture", 8, text(arch)), ("general.type", 8, text("adapter")), ("adapter.type", 8, text("lora"))]
    if alpha is not None:
        keys.append(("adapter.lora.alpha", 6, struct.pack("<f", alpha)))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(text(k) + struct.pack("<I", t) + v for k, t, v in keys)
    body = b""
    for name, shape, data in tensors:
        body += b"\0" * (-len(body) % 32)
        head += text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", x) for x in reversed(shape)) + struct.pack("<IQ", 30, len(body))
        body += data
    with open(path, "wb") as f:
        f.write(head + b"\0" * (-len(head) % 32) + body)


NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def interleave(data, shape, heads):
    """llama.cpp's order of the rows of q and k: the halves of a head by turns."""
    size = len(data) // shape[0]
    rows = [data[i * size:(i + 1) * size] for i in range(shape[0])]
    width = shape[0] // heads
    return b"".join(rows[h * width + half * width // 2 + i] for h in range(heads) for i in range(width // 2) for half in range(2))


def convert(model, folder, arch):
    with open(os.path.join(model, "config.json")) as f:
        config = json.load(f)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, dtype, shape, data in read_safetensors(os.path.join(folder, "adapter_model.safetensors")):
        assert dtype == "BF16"
        parts = name.split(".")
        layer, stem, which = parts[4], NAMES[".".join(parts[5:7])], parts[7]
        if which == "lora_B" and arch == "llama" and stem in heads:
            data = interleave(data, shape, heads[stem])
        yield f"blk.{layer}.{stem}.weight.{which.lower()}", shape, data


class Gguf(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp()

    def pair(self, model, arch):
        model = os.path.join(DATA, "tiny/models", model)
        folder = os.path.join(DATA, "tiny/adapters", os.path.basename(model), "en-r8-all")
        return model, folder, list(convert(model, folder, arch))

    def test_a_gguf_has_the_bits_of_the_folder_that_it_was_made_from(self):
        for name, arch in (("tiny-llama", "llama"), ("tiny-qwen3", "qwen3")):
            model, folder, tensors = self.pair(name, arch)
            path = os.path.join(self.dir, "adapter_model.gguf")
            write_gguf(path, arch, 16.0, tensors)
            want = digest(model, folder)
            self.assertEqual(digest(model, path), want)
            self.assertEqual(digest(model, self.dir), want)
            write_gguf(path, arch, 8.0, tensors)
            self.assertNotEqual(digest(model, path), want)
            report = json.loads(run("inspect", path, "--model", model, "--json").stdout)
            self.assertEqual(len(report["sites"]), 28)
            self.assertEqual(report["tensors"]["applied"], 56)

    def test_rows_in_the_other_order_are_noticed(self):
        model, folder, tensors = self.pair("tiny-llama", "llama")
        path = os.path.join(self.dir, "plain.gguf")
        write_gguf(path, "llama", 16.0, list(convert(model, folder, "qwen3")))
        self.assertNotEqual(digest(model, path), digest(model, folder))

    def test_what_is_no_adapter_is_refused(self):
        model, _, tensors = self.pair("tiny-qwen3", "qwen3")
        path = os.path.join(self.dir, "a.gguf")
        for alpha, list_, words in ((None, tensors, "adapter.lora.alpha is missing"), (float("nan"), tensors, "is no number"),
                                    (16.0, tensors[1:], "has no lora_"), (16.0, [("blk.0.attn_q.weight", [2, 2], b"\0" * 8)], "no lora_a or lora_b"),
                                    (16.0, tensors + [("token_embd.weight.lora_a", [2, 2], b"\0" * 8)], "from PEFT's files only")):
            write_gguf(path, "qwen3", alpha, list_)
            r = run("run", model, "--ids", IDS, "-n", 1, "--adapter", f"a={path}")
            self.assertEqual(r.returncode != 0 and words in r.stderr, True, r.stderr)


class Biases(unittest.TestCase):
    """bias: lora_only on a base that has biases: alone and in company, with and without LoRA beside."""

    def test_replaced_biases_are_those_of_their_rows_alone(self):
        model = os.path.join(DATA, "made/models/qwen2-window")
        folder = os.path.join(DATA, "made/adapters/qwen2-window/r4-all")
        with open(os.path.join(folder, "adapter_config.json")) as f:
            config = json.load(f)
        tensors = {n: (d, s, b) for n, d, s, b in read_safetensors(os.path.join(folder, "adapter_model.safetensors"))}
        outs = {n[:-len("lora_B.weight")]: s[0] for n, (_, s, _) in tensors.items() if n.endswith(("q_proj.lora_B.weight", "k_proj.lora_B.weight", "v_proj.lora_B.weight"))}
        for n, size in outs.items():
            tensors[n + "base_layer.bias"] = ("F32", [size], struct.pack(f"<{size}f", *(((i * 7) % 11 - 5) / 8 for i in range(size))))
        new = tempfile.mkdtemp()
        header, body = {}, b""
        for n, (d, s, b) in tensors.items():
            header[n] = {"dtype": d, "shape": s, "data_offsets": [len(body), len(body) + len(b)]}
            body += b
        head = json.dumps(header).encode()
        with open(os.path.join(new, "adapter_model.safetensors"), "wb") as f:
            f.write(struct.pack("<Q", len(head)) + head + body)

        def save(bias):
            with open(os.path.join(new, "adapter_config.json"), "w") as f:
                json.dump(dict(config, bias=bias), f)

        save("none")
        r = run("run", model, "--ids", "1,2,3", "-n", 1, "--adapter", f"a={new}")
        self.assertIn("does not say that biases are replaced", r.stderr)
        save("lora_only")
        lines = [dict(ids=[5 + i, 9, 12, 3, 44], n=6, **(dict(adapter="ab"[i % 3]) if i % 3 < 2 else {})) for i in range(6)]

        def batch(chosen, *more):
            path = os.path.join(new, "batch.jsonl")
            with open(path, "w") as f:
                f.writelines(json.dumps(x) + "\n" for x in chosen)
            r = run("run", model, "--batch", path, "--greedy", "--json", "--digest", "--adapter", f"a={new}", "--adapter", f"b={folder}", *more)
            self.assertEqual(r.returncode, 0, r.stderr)
            return [(s["ids"], s["logits_sha256"]) for s in json.loads(r.stdout)["sequences"]]
        whole = batch(lines)
        self.assertEqual(batch(lines, "--rows", 3, "--threads", 3), whole)
        for i, line in enumerate(lines):
            self.assertEqual(batch([line])[0], whole[i])
        self.assertEqual([x[0] for x in batch(lines, "--store", "f32")], [x[0] for x in batch(lines, "--store", "f32", "--backend", "interp")])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
