#!/usr/bin/env python3
"""Writes tests/data/formats/blocks.safetensors: blocks of every stored format, drawn at random, and what other people's code makes of them
(the `gguf` package, torch for f8). Needs numpy, gguf, torch and safetensors from PyPI.

    python3 tools/make_block_goldens.py tests/data/formats/blocks.safetensors
"""
import sys

import gguf
import numpy as np
import torch
from safetensors.numpy import save_file

# Format: where its block has f16 numbers; everything else is drawn as bytes.
HALVES = {
    "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "IQ4_NL": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
}
ELEMENTS = 1024


def drawn_blocks(name, rng):
    elems, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    blocks = rng.integers(0, 256, (ELEMENTS // elems, size), dtype=np.uint8)
    for at in HALVES[name]:
        scale = rng.uniform(-1, 1, len(blocks)) * 2.0 ** rng.integers(-14, 3, len(blocks))
        blocks[:, at:at + 2] = scale.astype(np.float16).reshape(-1, 1).view(np.uint8)
    return blocks.reshape(1, -1)


def main():
    rng = np.random.default_rng(20261201)
    out = {}
    for name in HALVES:
        stored = drawn_blocks(name, rng)
        values = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[name]).astype(np.float32)
        assert values.size == ELEMENTS
        out[name + ".stored"], out[name + ".values"] = stored.ravel(), values.ravel()
    codes = np.arange(256, dtype=np.uint8)
    out["F8_E4M3.stored"] = codes
    out["F8_E4M3.values"] = torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()
    save_file(out, sys.argv[1])


main()
