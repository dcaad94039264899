#!/usr/bin/env python3
"""Writes the table of CUDA modules as C: every kernels/cuda/FOLDER/*.cu with its module's name (KERNEL.toml), its kernels and its text, and every header.
Says what is lost where a folder's file takes the place of a common one."""
import os
import re
import sys
import tomllib

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KERNEL = re.compile(r"^LG_KERNEL(?:_OF)?\([^)]*\)\s+(\w+)\(", re.M)


def text_of(path):
    with open(path) as f:
        return f.read()


def array(name, text):
    body = ",".join(str(b) for b in text.encode() + b"\0")
    return f"static const unsigned char {name}[] = {{{body}}};"


def folder_rows(folder, path):
    toml = tomllib.loads(text_of(os.path.join(path, "KERNEL.toml")))
    names = toml.get("modules", {})
    stems = sorted(f[:-3] for f in os.listdir(path) if f.endswith(".cu"))
    for stem in names:
        if stem not in stems:
            sys.exit(f"kernels/cuda/{folder}/KERNEL.toml: [modules] names {stem}, but there is no {stem}.cu")
    rows = []
    for stem in stems:
        text = text_of(os.path.join(path, stem + ".cu"))
        kernels = KERNEL.findall(text)
        if not kernels:
            sys.exit(f"kernels/cuda/{folder}/{stem}.cu: no LG_KERNEL in it")
        rows.append({"folder": folder, "stem": stem, "module": names.get(stem, stem), "kernels": kernels, "text": text})
    return rows, toml.get("target", {}).get("architectures", [])


def check(rows):
    """One file a module in a folder; an override keeps the module's name; what it loses is told."""
    seen, common = {}, {r["stem"]: r for r in rows if r["folder"] == "common"}
    for r in rows:
        key = (r["folder"], r["module"])
        if key in seen:
            sys.exit(f"kernels/cuda/{r['folder']}: {seen[key]}.cu and {r['stem']}.cu are both module {r['module']}")
        seen[key] = r["stem"]
        base = common.get(r["stem"])
        if r["folder"] == "common" or not base:
            continue
        if base["module"] != r["module"]:
            sys.exit(f"kernels/cuda/{r['folder']}/{r['stem']}.cu is module {r['module']}, but the common one is {base['module']}")
        lost = [k for k in base["kernels"] if k not in r["kernels"]]
        print(f"kernels/cuda: {r['folder']}/{r['stem']}.cu replaces common/{r['stem']}.cu; lost there: {', '.join(lost) or 'nothing'}")


def main():
    out, base = sys.argv[1], os.path.join(ROOT, "kernels", "cuda")
    folders = sorted(f for f in os.listdir(base) if os.path.isdir(os.path.join(base, f)))
    folders.sort(key=lambda f: f == "common")  # the common one last: the first that has a module gives it
    rows, targets, lines, headers = [], [], ['#include "backend/cuda/modules.h"', ""], []
    for folder in folders:
        more, architectures = folder_rows(folder, os.path.join(base, folder))
        rows += more
        targets.append((folder, architectures))
        for f in sorted(os.listdir(os.path.join(base, folder))):
            if f.endswith((".cuh", ".h")):
                headers.append((f, text_of(os.path.join(base, folder, f))))
    if len({h[0] for h in headers}) != len(headers):
        sys.exit("kernels/cuda: two headers of one name")
    check(rows)
    for i, r in enumerate(rows):
        lines.append(array(f"source_{i}", r["text"]))
    for i, (_, text) in enumerate(headers):
        lines.append(array(f"header_{i}", text))
    lines += ["", "const CudaSource lg_cuda_sources[] = {"]
    for i, r in enumerate(rows):
        lines.append(f'    {{"{r["folder"]}", "{r["stem"]}", "{r["module"]}", "{" ".join(r["kernels"])}", (const char *)source_{i}}},')
    lines += ["    {0, 0, 0, 0, 0},", "};", "", "const NvrtcHeader lg_cuda_headers[] = {"]
    for i, (name, _) in enumerate(headers):
        lines.append(f'    {{"{name}", (const char *)header_{i}}},')
    lines += ["    {0, 0},", "};", "", "const CudaFolder lg_cuda_folders[] = {"]
    for folder, architectures in targets:
        lines.append(f'    {{"{folder}", "{" ".join(architectures)}"}},')
    lines += ["    {0, 0},", "};", ""]
    os.makedirs(os.path.dirname(out), exist_ok=True)
    with open(out, "w") as f:
        f.write("\n".join(lines))


main()
