#!/usr/bin/env python3
"""The CPU bars: Ligature and llama.cpp in turns on the same GGUF, and ratios of Ligature with itself. Writes a CSV with its conditions.

Every ratio is the median over alternations of (ours / theirs) within one alternation, since either side moves by a fifth within minutes
on a shared machine."""
import argparse
import csv
import datetime
import json
import os
import platform
import random
import statistics
import struct
import subprocess
import tempfile
import time


def run(args, **kw):
    r = subprocess.run(args, capture_output=True, text=True, **kw)
    if r.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, args))[:300]}: exit {r.returncode}\n{r.stderr[-2000:]}")
    return r.stdout


class Ours:
    def __init__(self, root, threads, cache):
        self.exe = os.path.join(root, "build/release/ligature")
        self.threads, self.cache = threads, cache

    def json(self, model, *args):
        return json.loads(run([self.exe, "run", model, "--json", "--greedy", "--threads", str(self.threads), "--cache", self.cache, *args]))

    def decode(self, model, n, *args):
        t = self.json(model, "--ids", "1,2,3,4", "-n", str(n), *args)["timing"]
        return t["decode_tokens"] / t["decode_s"]

    def prefill(self, model, n, *args):
        ids = ",".join(str(100 + i % 900) for i in range(n))
        t = self.json(model, "--ids", ids, "-n", "1", *args)["timing"]
        return t["prefill_tokens"] / t["prefill_s"]


def llama(exe, gguf, threads, prompt, new):
    out = json.loads(run([exe, "-m", gguf, "-t", str(threads), "-p", str(prompt), "-n", str(new), "-r", "1", "-o", "json"]))
    return out[-1]["avg_ts"]


def write_random(folder, config, tensors):
    """A checkpoint with random bf16 weights (the words of one random block repeat with different offsets)."""
    os.makedirs(folder, exist_ok=True)
    json.dump(config, open(os.path.join(folder, "config.json"), "w"))
    header, at = {}, 0
    for name, shape in tensors:
        size = 2
        for s in shape:
            size *= s
        header[name] = dict(dtype="BF16", shape=shape, data_offsets=[at, at + size])
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = random.Random(7)
    block = b"".join(struct.pack("<f", rng.gauss(0, 0.02))[2:] for _ in range(1 << 20))
    with open(os.path.join(folder, "model.safetensors.part"), "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, shape in tensors:
            size = 2
            for s in shape:
                size *= s
            while size > 0:
                start = rng.randrange(0, 1 << 19) * 2
                piece = block[start:start + min(size, len(block) - start)]
                out.write(piece)
                size -= len(piece)
    os.rename(os.path.join(folder, "model.safetensors.part"), os.path.join(folder, "model.safetensors"))


def qwen_config(architecture, model_type, e, f, v, layers, heads, kv, d, **more):
    return dict(architectures=[architecture], attention_bias=False, head_dim=d, hidden_act="silu", hidden_size=e, intermediate_size=f,
                max_position_embeddings=4096, model_type=model_type, num_attention_heads=heads, num_hidden_layers=layers, num_key_value_heads=kv,
                rms_norm_eps=1e-6, rope_scaling=None, rope_theta=1000000.0, sliding_window=None, tie_word_embeddings=True,
                torch_dtype="bfloat16", use_cache=True, use_sliding_window=False, vocab_size=v, **more)


def qwen_tensors(e, v, layers, heads, kv, d, mlp):
    tensors = [("model.embed_tokens.weight", [v, e]), ("model.norm.weight", [e])]
    for i in range(layers):
        p = f"model.layers.{i}."
        tensors += [(p + "input_layernorm.weight", [e]), (p + "post_attention_layernorm.weight", [e]),
                    (p + "self_attn.q_proj.weight", [heads * d, e]), (p + "self_attn.k_proj.weight", [kv * d, e]), (p + "self_attn.v_proj.weight", [kv * d, e]),
                    (p + "self_attn.o_proj.weight", [e, heads * d]), (p + "self_attn.q_norm.weight", [d]), (p + "self_attn.k_norm.weight", [d]),
                    *((p + name, shape) for name, shape in mlp)]
    return tensors


def write_qwen_06b(folder):
    """Qwen3-0.6B's shape (1.2 GB)."""
    if os.path.exists(os.path.join(folder, "model.safetensors")):
        return
    e, layers, heads, kv, d, f, v = 1024, 28, 16, 8, 128, 3072, 151936
    mlp = [("mlp.gate_proj.weight", [f, e]), ("mlp.up_proj.weight", [f, e]), ("mlp.down_proj.weight", [e, f])]
    write_random(folder, qwen_config("Qwen3ForCausalLM", "qwen3", e, f, v, layers, heads, kv, d), qwen_tensors(e, v, layers, heads, kv, d, mlp))


def write_moe(folder):
    """64 experts of which a token takes 4 (1.9 GB, of which a token needs a sixth)."""
    if os.path.exists(os.path.join(folder, "model.safetensors")):
        return
    e, layers, heads, kv, d, f, v, x = 1024, 12, 16, 4, 64, 384, 32000, 64
    mlp = [("mlp.gate.weight", [x, e])]
    for i in range(x):
        p = f"mlp.experts.{i}."
        mlp += [(p + "gate_proj.weight", [f, e]), (p + "up_proj.weight", [f, e]), (p + "down_proj.weight", [e, f])]
    config = qwen_config("Qwen3MoeForCausalLM", "qwen3_moe", e, f, v, layers, heads, kv, d, num_experts=x, num_experts_per_tok=4, moe_intermediate_size=f,
                         norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[])
    write_random(folder, config, qwen_tensors(e, v, layers, heads, kv, d, mlp))


def alternate(rounds, *sides):
    """[(a, b, …)]: every side once a round, in turns."""
    return [tuple(side() for side in sides) for _ in range(rounds)]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--root", required=True)
    p.add_argument("--gguf", required=True)
    p.add_argument("--llama", required=True)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--only", default="")
    a = p.parse_args()
    work = os.path.join(a.root, "build/bench")
    os.makedirs(work, exist_ok=True)
    ours = Ours(a.root, a.threads, os.path.join(work, "cache"))
    adapters = os.path.join(a.root, "examples/smollm2/adapters")
    rows = []

    def wanted(name):
        return not a.only or any(o in name for o in a.only.split(","))

    def report(name, unit, samples, bar, better):
        ratios = [x / y for x, y in samples]
        row = dict(bar=name, ours=statistics.median(x for x, _ in samples), other=statistics.median(y for _, y in samples), unit=unit,
                   ratio=statistics.median(ratios), ratio_min=min(ratios), ratio_max=max(ratios), wanted=f"{better} {bar}",
                   met=statistics.median(ratios) >= bar if better == ">=" else statistics.median(ratios) <= bar, rounds=len(samples))
        rows.append(row)
        print(f"{name}: ours {row['ours']:.3f}, other {row['other']:.3f} {unit}; ratio {row['ratio']:.3f} [{row['ratio_min']:.3f}, {row['ratio_max']:.3f}], "
              f"wanted {better} {bar}: {'met' if row['met'] else 'NOT met'}", flush=True)

    ours.decode(a.gguf, 2)
    if wanted("decode"):
        report("decode against llama.cpp", "tokens/s", alternate(a.rounds, lambda: ours.decode(a.gguf, 128), lambda: llama(a.llama, a.gguf, a.threads, 0, 128)), 1.2, ">=")
    if wanted("prefill"):
        report("prefill 512 against llama.cpp", "tokens/s", alternate(a.rounds, lambda: ours.prefill(a.gguf, 512), lambda: llama(a.llama, a.gguf, a.threads, 512, 0)), 1.5, ">=")
    if wanted("eight"):
        names = ["sql", "extract", "redact", "triage"]
        batch = os.path.join(work, "eight.jsonl")
        with open(batch, "w") as f:
            for i in range(8):
                f.write(json.dumps(dict(ids=[1, 2, 3, 4], adapter=f"{names[i % 4]}{i}", n=128)) + "\n")
        load = [x for i in range(8) for x in ("--adapter", f"{names[i % 4]}{i}={adapters}/{names[i % 4]}")]

        def eight():
            t = ours.json(a.gguf, "--batch", batch, *load)["timing"]
            return t["decode_tokens"] / t["decode_s"]
        report("eight sequences with eight adapters against llama.cpp one at a time (no adapter there)", "tokens/s",
               alternate(a.rounds, eight, lambda: llama(a.llama, a.gguf, a.threads, 0, 128)), 4.0, ">=")
    if wanted("adapter"):
        def base():
            return ours.decode(a.gguf, 128)
        report("one r=8 adapter on all linears, time a token against the base", "ratio of times",
               [(1 / x, 1 / y) for x, y in alternate(a.rounds, lambda: ours.decode(a.gguf, 128, "--adapter", f"sql={adapters}/sql"), base)], 1.10, "<=")
        page = os.path.join(work, "llama.lg")
        with open(page, "w") as f:
            f.write("".join(line for line in open(os.path.join(a.root, "models/llama.lg")) if not line.startswith("lora ")))
        ours.decode(a.gguf, 2, "--program", page)
        report("adapters compiled in and unused, time a token against a page without them", "ratio of times",
               [(1 / x, 1 / y) for x, y in alternate(a.rounds, base, lambda: ours.decode(a.gguf, 128, "--program", page))], 1.02, "<=")
    if wanted("bandwidth"):
        folder = os.path.join(work, "qwen3-0.6b-shape")
        write_qwen_06b(folder)
        ours.decode(folder, 2)
        read = sum(os.path.getsize(os.path.join(folder, x)) for x in ["model.safetensors"])
        tool = os.path.join(a.root, "build/release/bandwidth")
        report("bf16 decode of the 0.6B shape, share of read bandwidth", "GB/s",
               alternate(a.rounds, lambda: ours.decode(folder, 24) * read / 1e9, lambda: float(run([tool, str(a.threads)]).split()[0])), 0.75, ">=")
    if wanted("experts"):
        # What a token needs by the plan, and what the machine could have read in the time that it took.
        folder = os.path.join(work, "qwen3-moe-shape")
        write_moe(folder)
        ours.decode(folder, 2)
        need = json.loads(run([ours.exe, "explain", folder, "--json", "--cache", ours.cache]))["weight_bytes"]
        tool = os.path.join(a.root, "build/release/bandwidth")
        report("bf16 decode with 4 of 64 experts, bytes readable in its time against those of the chosen", "GB a token",
               [(bandwidth / speed, need / 1e9) for bandwidth, speed in
                alternate(a.rounds, lambda: float(run([tool, str(a.threads)]).split()[0]), lambda: ours.decode(folder, 48))], 1.4, "<=")
    if wanted("start"):
        def wall(cache):
            start = time.perf_counter()
            run([ours.exe, "run", a.gguf, "--ids", "1,2,3,4", "-n", "1", "--greedy", "--json", "--threads", str(a.threads), "--cache", cache])
            return time.perf_counter() - start
        report("warm start to the first token (whole process)", "s", [(wall(ours.cache), 1.0) for _ in range(a.rounds)], 1.0, "<=")
        cold = []
        for _ in range(3):
            with tempfile.TemporaryDirectory() as d:
                cold.append((wall(d), 20.0))
        report("first start with an empty program cache (of 20 s)", "s", cold, 1.0, "<=")

    commit = run(["git", "-C", a.root, "rev-parse", "HEAD"]).strip()
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
    stamp = datetime.date.today().isoformat()
    path = os.path.join(a.root, "bench/results", f"cpu-{stamp}.csv")
    with open(path, "w", newline="") as f:
        f.write(f"# {stamp}; commit {commit}; {cpu}, {os.cpu_count()} cores, shared machine; {a.threads} threads each; medians of {a.rounds} alternations; "
                f"llama.cpp of llama-cpp-python 0.3.36, GGML_NATIVE\n")
        w = csv.DictWriter(f, fieldnames=list(rows[0]))
        w.writeheader()
        w.writerows(rows)
    print(f"written: {os.path.relpath(path, a.root)}")


if __name__ == "__main__":
    main()

