#!/usr/bin/env python3
"""Converts checkpoints to GGUF with llama.cpp's converter and compares what Ligature generates from both: the same ids, step by step.

    pip install torch transformers gguf safetensors sentencepiece
    pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36     (unpack; its vendor/llama.cpp is what --llama wants)
    python3 tools/check_converted_gguf.py --llama llama_cpp_python-0.3.36/vendor/llama.cpp --ligature build/release/ligature \
        --work DIR CHECKPOINT... [--random CHECKPOINT]

--random makes small random checkpoints of further architectures, with the tokenizer of the checkpoint it names, and compares them too.

The converter knows tokenizers by a hash of what they do; a small one it has never seen, so that the value of tokenizer.ggml.pre is given
here. Mistral's files are of architecture "llama", which has no window: those are compared as far as the window reaches.
"""
import argparse
import json
import os
import runpy
import shutil
import subprocess
import sys

PRE = "qwen2"
PROMPTS = [[3, 17, 99, 200], [1000, 7, 7, 7, 512, 40, 41, 42, 43, 44, 1500, 2]]
NEW_TOKENS = 48
TOKENIZER_FILES = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json", "merges.txt"]


def convert(llama, folder, out, outtype):
    """In a process of its own: the converter keeps state and reads sys.argv."""
    sys.path[1:1] = [llama, os.path.join(llama, "gguf-py")]
    from conversion.base import TextModel
    TextModel.get_vocab_base_pre = lambda self, tokenizer: PRE
    TextModel._set_vocab_sentencepiece = TextModel._set_vocab_gpt2
    sys.argv = ["convert_hf_to_gguf.py", folder, "--outfile", out, "--outtype", outtype]
    runpy.run_path(os.path.join(llama, "convert_hf_to_gguf.py"), run_name="__main__")


def random_models(work, tokenizer_of):
    """Small checkpoints whose every weight counts; norms are not all ones, so that an offset of 1 that is lost would show."""
    import torch
    import transformers

    base = dict(vocab_size=2048, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                max_position_embeddings=256, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    kinds = {
        "random-gemma2": transformers.Gemma2Config(**base, head_dim=32, query_pre_attn_scalar=32, sliding_window=32),
        "random-gemma3": transformers.Gemma3TextConfig(**{**base, "num_hidden_layers": 7}, head_dim=32, query_pre_attn_scalar=32,
                                                       sliding_window=32),
        "random-phi3": transformers.Phi3Config(**base, sliding_window=40, original_max_position_embeddings=256),
        "random-phi3-wide": transformers.Phi3Config(**base, sliding_window=None, original_max_position_embeddings=256),
        "random-olmo2": transformers.Olmo2Config(**base),
        "random-mistral": transformers.MistralConfig(**base, sliding_window=None),
        "random-qwen3-untied": transformers.Qwen3Config(**base, head_dim=24, tie_word_embeddings=False),
    }
    folders = []
    for number, (name, config) in enumerate(kinds.items()):
        torch.manual_seed(number)
        model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
        with torch.no_grad():
            for key, weight in model.named_parameters():
                size = 0.3 if "norm" in key else 1.5 / weight.shape[-1] ** 0.5
                weight.add_(torch.randn_like(weight) * size) if "norm" in key else weight.copy_(torch.randn_like(weight) * size)
        folder = os.path.join(work, name)
        model.save_pretrained(folder)
        for file in TOKENIZER_FILES:
            if os.path.exists(os.path.join(tokenizer_of, file)):
                shutil.copy(os.path.join(tokenizer_of, file), folder)
        path = os.path.join(folder, "tokenizer_config.json")
        tokenizer = json.load(open(path))
        tokenizer["tokenizer_class"] = "GPT2Tokenizer"
        json.dump(tokenizer, open(path, "w"))
        folders.append(folder)
    return folders


def generate(args, model, prompt, tokens):
    out = subprocess.run([args.ligature, "run", model, "--ids", ",".join(map(str, prompt)), "-n", str(tokens), "--greedy", "--store", "f32",
                          "--json", "--digest", "--cache", os.path.join(args.work, "cache")], capture_output=True, text=True)
    if out.returncode:
        raise SystemExit(f"{model}: {out.stderr}")
    sequence = json.loads(out.stdout)["sequences"][0]
    return sequence["ids"], sequence["logits_sha256"]


def compare(args, folder):
    name = os.path.basename(folder)
    gguf = os.path.join(args.work, name + ".gguf")
    log = subprocess.run([sys.executable, __file__, "--llama", args.llama, "--convert", folder, gguf, args.outtype], capture_output=True, text=True)
    if log.returncode:
        raise SystemExit(f"{name}: the converter failed\n{log.stderr[-2000:]}")
    config = json.load(open(os.path.join(folder, "config.json")))
    # A window that the file loses is not reached.
    lost = config.get("sliding_window") if config["model_type"] == "mistral" else None
    same = True
    for prompt in PROMPTS:
        tokens = min(NEW_TOKENS, lost - len(prompt)) if lost else NEW_TOKENS
        want, want_bits = generate(args, folder, prompt, tokens)
        got, got_bits = generate(args, gguf, prompt, tokens)
        verdict = "same ids" + (" and bits" if want_bits == got_bits else "") if want == got else f"DIFFERENT: {want} {got}"
        same &= want == got
        print(f"{name}: {len(prompt)} ids in, {tokens} out: {verdict}")
    return same


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--llama", required=True)
    p.add_argument("--ligature")
    p.add_argument("--work", default="converted")
    p.add_argument("--outtype", default="auto")
    p.add_argument("--random")
    p.add_argument("--convert", nargs=3)
    p.add_argument("folders", nargs="*")
    args = p.parse_args()
    args.llama = os.path.abspath(args.llama)
    if args.convert:
        convert(args.llama, *args.convert)
        return
    os.makedirs(args.work, exist_ok=True)
    folders = args.folders + (random_models(args.work, args.random) if args.random else [])
    results = [compare(args, folder.rstrip("/")) for folder in folders]
    if not all(results):
        raise SystemExit("not the same")


main()
