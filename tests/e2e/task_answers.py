#!/usr/bin/env python3
"""What SmolLM2's adapters answer to held-out requests, all in one batch, against the reference's answers: every one with f32 stores;
with bf16 stores every one whose least margin is 0.5 or more. task_answers.py LIGATURE GGUF DATA; 77: the data is not there."""
import json
import os
import subprocess
import sys
import tempfile

SURE_MARGIN = 0.5
EXE, GGUF, DATA = sys.argv[1:4]
EXAMPLES = os.path.join(DATA, "examples.jsonl")


def ligature(*args):
    return json.loads(subprocess.run([EXE, *args, "--json"], check=True, capture_output=True, text=True).stdout)


def answers(examples, adapters, *options):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as batch:
        for e in examples:
            batch.write(json.dumps(dict(messages=e["messages"], adapter=e["adapter"], n=160)) + "\n")
        batch.flush()
        return ligature("run", GGUF, "--batch", batch.name, "--greedy", *adapters, *options)["sequences"]


def least_margin(sequence, adapter):
    """Over the positions that chose the answer's ids: the last of the prompt, and all of the answer but its last."""
    ids = sequence["prompt_ids"] + sequence["ids"]
    out = ligature("eval", GGUF, "--ids", ",".join(map(str, ids)), "--store", "f32", *adapter)
    return min(p["margin"] for p in out["positions"][len(sequence["prompt_ids"]) - 1:])


def main():
    if not (os.path.exists(GGUF) and os.path.exists(EXAMPLES)):
        print(f"skipped: no {GGUF} or {EXAMPLES}")
        return 77
    examples = [json.loads(line) for line in open(EXAMPLES)]
    names = sorted({e["adapter"] for e in examples})
    folder = {name: ["--adapter", f"{name}={DATA}/adapters/{name}"] for name in names}
    adapters = [x for name in names for x in folder[name]]
    exact, rounded = answers(examples, adapters, "--store", "f32"), answers(examples, adapters)
    failed = sure = 0
    for i, (e, f32, bf16) in enumerate(zip(examples, exact, rounded)):
        if f32["text"] != e["adapter_answer"]:
            failed += 1
            print(f"FAIL request {i} ({e['adapter']}), f32: {f32['text']!r}, the reference: {e['adapter_answer']!r}")
            continue
        margin = least_margin(f32, folder[e["adapter"]])
        sure += margin >= SURE_MARGIN
        if margin >= SURE_MARGIN and bf16["text"] != e["adapter_answer"]:
            failed += 1
            print(f"FAIL request {i} ({e['adapter']}), bf16, least margin {margin:.2f}: {bf16['text']!r}, the reference: {e['adapter_answer']!r}")
    same = sum(b["text"] == e["adapter_answer"] for e, b in zip(examples, rounded))
    print(f"{len(examples)} answers by {len(names)} adapters: {failed} failed; bf16: {same} equal, {sure} of margin {SURE_MARGIN} or more")
    return 1 if failed or not examples or not sure else 0


sys.exit(main())
