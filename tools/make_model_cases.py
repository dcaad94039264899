#!/usr/bin/env python3
"""Makes tiny random checkpoints, a PEFT adapter for each, and what transformers and PEFT compute with them.

Usage: make_model_cases.py tests/data/made [NAME ...]
Needs: pip install torch==2.15.0 transformers==5.24.0 peft==0.21.2 safetensors==0.8.0 numpy==2.4.6

A second run gives the same files: weights come from numpy's generator under a seed that the name decides, and
everything is computed on the CPU, in f32, by eager attention, without a cache.
"""
import json
import math
import os
import shutil
import sys
import zlib

import numpy as np
import peft
import torch
import transformers
from safetensors.torch import save_file

VERSIONS = {"torch": "2.15.0", "transformers": "5.24.0", "peft": "0.21.2"}
VOCAB = 256
STEPS = 24
LENGTHS = {"p5": 5, "p40": 40, "p100": 100}  # windows are shorter than 40, and 100 crosses the page of 64 positions
SHAPE = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=512, bos_token_id=1, eos_token_id=2, pad_token_id=None)
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def rope(theta, kind="default", **more):
    return dict(rope_theta=theta, rope_type=kind, **more)


# name: config class, its arguments, the modules of the adapter, and how transformers 4 wrote what 5 writes otherwise
# (None: the key was not there).
MODELS = {
    "qwen2-window": (transformers.Qwen2Config, dict(
        num_hidden_layers=3, use_sliding_window=True, sliding_window=16, max_window_layers=1, tie_word_embeddings=True,
        rope_parameters=rope(10000.0)), LINEAR,
        dict(rope_parameters=None, layer_types=None, rope_theta=10000.0, rope_scaling=None)),
    "mistral": (transformers.MistralConfig, dict(
        num_hidden_layers=2, head_dim=24, sliding_window=16, rope_parameters=rope(10000.0)), LINEAR,
        dict(rope_parameters=None, rope_theta=10000.0)),
    "gemma3": (transformers.Gemma3TextConfig, dict(
        num_hidden_layers=4, head_dim=32, sliding_window=16, query_pre_attn_scalar=24, final_logit_softcapping=12.0,
        layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={"full_attention": rope(50000.0, "linear", factor=8.0), "sliding_attention": rope(700.0)}),
        LINEAR + ["embed_tokens"],
        dict(rope_parameters=None, layer_types=None, tie_word_embeddings=None, rope_theta=50000.0, rope_local_base_freq=700.0,
             rope_scaling={"factor": 8.0, "rope_type": "linear"}, sliding_window_pattern=3, _sliding_window_pattern=None, cache_implementation="hybrid")),
    "gemma2": (transformers.Gemma2Config, dict(
        num_hidden_layers=4, head_dim=24, sliding_window=20, query_pre_attn_scalar=16, attn_logit_softcapping=2.0,
        final_logit_softcapping=10.0, rope_parameters=rope(10000.0)), LINEAR,
        dict(rope_parameters=None, layer_types=None, tie_word_embeddings=None, rope_theta=10000.0, cache_implementation="hybrid",
             hidden_act="gelu_pytorch_tanh")),
    "llama-linear": (transformers.LlamaConfig, dict(
        num_hidden_layers=2, head_dim=16, rope_parameters=rope(10000.0, "linear", factor=4.0)), LINEAR,
        dict(rope_parameters=None, rope_theta=10000.0, rope_scaling={"type": "linear", "factor": 4.0})),
    "llama-yarn": (transformers.LlamaConfig, dict(
        num_hidden_layers=2, head_dim=32,
        rope_parameters=rope(1000.0, "yarn", factor=8.0, original_max_position_embeddings=64)), LINEAR,
        dict(rope_parameters=None, rope_theta=1000.0,
             rope_scaling={"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64})),
    "phi3": (transformers.Phi3Config, dict(
        num_hidden_layers=3, sliding_window=24, original_max_position_embeddings=512,
        rope_parameters=rope(10000.0, partial_rotary_factor=0.75)), ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
        dict(rope_parameters=None, rope_theta=10000.0, rope_scaling=None, partial_rotary_factor=0.75)),
    "olmo2": (transformers.Olmo2Config, dict(
        num_hidden_layers=3, tie_word_embeddings=False, rope_parameters=rope(500000.0)), LINEAR,
        dict(rope_parameters=None, rope_theta=500000.0, rope_scaling=None)),
}


def check_versions():
    for name, want in VERSIONS.items():
        have = sys.modules[name].__version__.split("+")[0]
        if have != want:
            sys.exit(f"{name} is {have}; these files are made with {want}")


def fill(module_state, rng, rounded):
    """Weights of a size that makes logits spread; norms near what leaves a vector as it is."""
    for name, t in module_state.items():
        shape = tuple(t.shape)
        if "norm" in name:
            centre = 0.0 if float(t.reshape(-1)[0]) == 0.0 else 1.0
            values = centre + 0.25 * rng.standard_normal(shape)
        elif len(shape) == 1:
            values = 0.5 * rng.standard_normal(shape)
        else:
            values = rng.standard_normal(shape) * (1.5 / math.sqrt(shape[-1]))
        made = torch.tensor(values, dtype=torch.float32)
        t.copy_(made.to(torch.bfloat16).to(torch.float32) if rounded else made)


def top(logits):
    best = torch.topk(logits, 2)
    return int(best.indices[0]), float(best.values[0] - best.values[1])


def run(model, ids, hidden=False):
    with torch.no_grad():
        out = model(input_ids=torch.tensor([ids]), use_cache=False, output_hidden_states=hidden)
    return out.logits[0].float(), out.hidden_states if hidden else None


def reference(model, prompts, stem, hidden):
    outputs, tensors = {}, {}
    for name, prompt in prompts.items():
        ids = prompt["ids"]
        logits, states = run(model, ids, hidden and name == "p5")
        if states is not None:
            tensors["p5.hidden"] = torch.stack([s[0] for s in states]).float().contiguous()
        tensors[f"{name}.last"] = logits[-1].clone()
        each = [top(row) for row in logits]
        greedy = []
        for _ in range(STEPS):
            row = run(model, ids + [g[0] for g in greedy])[0][-1]
            greedy.append(top(row))
        outputs[name] = {
            "n": len(ids), "top1": [e[0] for e in each], "margin": [round(e[1], 6) for e in each],
            "greedy": {"ids": [g[0] for g in greedy], "margin": [round(g[1], 6) for g in greedy]},
        }
    with open(stem + ".json", "w") as f:
        json.dump({"prompts": outputs}, f, separators=(",", ":"))
        f.write("\n")
    save_file(tensors, stem + ".safetensors")


def write_config(folder, config, architecture, spelling4):
    new = json.loads(config.to_json_string(use_diff=True))
    new["architectures"] = [architecture]
    new["dtype"] = "bfloat16"
    old = {k: v for k, v in new.items() if k != "dtype"}
    old["torch_dtype"] = "bfloat16"
    for key, value in spelling4.items():
        old.pop(key, None)
        if value is not None or key == "rope_scaling":
            old[key] = value
    for file, text in (("config.json", new), ("config.v4.json", old)):
        with open(os.path.join(folder, file), "w") as f:
            json.dump(text, f, indent=2, sort_keys=True)
            f.write("\n")
    again = transformers.AutoConfig.from_pretrained(folder, _configuration_file="config.v4.json")
    again.rope_parameters.pop("type", None)  # kept beside rope_type
    for key in ("rope_parameters", "layer_types", "sliding_window", "tie_word_embeddings"):
        if getattr(again, key, None) != getattr(config, key, None):
            sys.exit(f"{folder}: config.v4.json gives another {key}: {getattr(again, key, None)}")


def make(root, name, prompts):
    cls, arguments, targets, spelling4 = MODELS[name]
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    config = cls(**SHAPE, **arguments)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    fill(model.state_dict(), rng, rounded=True)
    model.tie_weights()
    folder = os.path.join(root, "models", name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    tied = config.tie_word_embeddings
    state = {k: v.to(torch.bfloat16).contiguous() for k, v in model.state_dict().items()
             if not (tied and k == "lm_head.weight")}
    save_file(state, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    write_config(folder, config, type(model).__name__, spelling4)
    goldens = os.path.join(root, "goldens", name)
    os.makedirs(goldens, exist_ok=True)
    reference(model, prompts, os.path.join(goldens, "base"), True)

    lora = peft.LoraConfig(r=4, lora_alpha=8, target_modules=targets, task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(model, lora).eval()
    adapted.peft_config["default"].base_model_name_or_path = name
    with torch.no_grad():
        fill({k: v for k, v in adapted.state_dict().items() if "lora_" in k}, rng, rounded=True)
        for key, value in adapted.state_dict().items():
            if "lora_B" in key or "lora_embedding_B" in key:
                value.mul_(0.25)
    folder = os.path.join(root, "adapters", name, "r4-all")
    shutil.rmtree(folder, ignore_errors=True)
    adapted.save_pretrained(folder)
    os.remove(os.path.join(folder, "README.md"))
    path = os.path.join(folder, "adapter_config.json")
    with open(path) as f:
        text = json.load(f)
    text["target_modules"].sort()  # a set, which PEFT writes in any order
    with open(path, "w") as f:
        json.dump(text, f, indent=2, sort_keys=True)
        f.write("\n")
    reference(adapted, prompts, os.path.join(goldens, "r4-all"), False)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    check_versions()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    root = sys.argv[1]
    os.makedirs(os.path.join(root, "goldens"), exist_ok=True)
    rng = np.random.default_rng(20260101)
    prompts = {name: {"n": n, "ids": [int(i) for i in rng.integers(3, VOCAB, n)]} for name, n in LENGTHS.items()}
    with open(os.path.join(root, "goldens", "prompts.json"), "w") as f:
        json.dump(prompts, f, separators=(",", ":"))
        f.write("\n")
    for name in sys.argv[2:] or MODELS:
        make(root, name, prompts)
        print(name)


if __name__ == "__main__":
    with torch.no_grad():
        main()
