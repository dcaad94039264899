#!/usr/bin/env python3
"""Writes a C file with the given files as one table: const LgEmbedded SYMBOL[] = {{name, data, size}, ..., {0}}."""
import os
import sys


def main():
    symbol, out, files = sys.argv[1], sys.argv[2], sys.argv[3:]
    lines = ['#include "base/embedded.h"', ""]
    rows = []
    for i, path in enumerate(sorted(files, key=os.path.basename)):
        data = open(path, "rb").read()
        body = ",".join(str(b) for b in data + b"\0")
        lines.append(f"static const unsigned char file_{i}[] = {{{body}}};")
        rows.append(f'    {{"{os.path.basename(path)}", (const char *)file_{i}, {len(data)}}},')
    lines += ["", f"const LgEmbedded {symbol}[] = {{", *rows, "    {0, 0, 0},", "};", ""]
    os.makedirs(os.path.dirname(out), exist_ok=True)
    with open(out, "w") as f:
        f.write("\n".join(lines))


main()
