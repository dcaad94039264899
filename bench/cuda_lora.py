#!/usr/bin/env python3
"""Times of the adapter kernels (cuda_check --bench OUT.csv) beside other engines' on the same machine: cuda_lora.py OURS.csv PEERS.csv [--all].

A cell is a group, rank, rows and adapters. Of each peer the best kernel counts; ratio: the fastest peer's time over ours (above 1: we are faster)."""
import csv
import math
import sys

KEY = ("model", "group", "rank", "rows", "rows_with_adapter", "adapters")
SKIP = {"base", "torch"}


def cells(path, stage):
    out = {}
    for r in csv.DictReader(open(path)):
        if r["stage"] == stage and r["state"] == "cold" and r["us_median"]:
            key = tuple(int(r[k]) if r[k].isdigit() else r[k] for k in KEY)
            out.setdefault(key, []).append(r)
    return out


def main():
    ours, peers = cells(sys.argv[1], "shrink+expand"), cells(sys.argv[2], "shrink+expand")
    ratios, layer = {}, {}
    for key in sorted(ours, key=str):
        rivals = [r for r in peers.get(key, []) if r["peer"] not in SKIP]
        if not rivals:
            continue
        best = min(rivals, key=lambda r: float(r["us_median"]))
        mine = min((r for r in ours[key] if not r["kernel"].endswith("-plain") and r["kernel"] != "apply"), key=lambda r: float(r["us_median"]))
        a, b, floor = float(mine["us_median"]), float(best["us_median"]), float(mine["floor_us"])
        ratios[key] = b / a
        whole = layer.setdefault((key[0], key[2], *key[3:]), [0.0, 0.0, 0.0])
        for i, v in enumerate((a, b, floor)):
            whole[i] += v
        if "--all" in sys.argv:
            print(f"{key[0]:14} {key[1]:8} rank {key[2]:<3} {key[3]:>5}/{key[5]:<3} {mine['kernel']:12} {a:8.2f} us, floor {floor:6.2f}, "
                  f"{best['peer']} {best['kernel']} {b:8.2f}, ratio {b / a:.2f}")
    print("model, rank, rows/adapters: ours, fastest peer (us, all groups that both have), ratio, share of the floor")
    for (model, rank, rows, with_, adapters), (a, b, floor) in sorted(layer.items(), key=str):
        print(f"{model:14} rank {rank:<3} {rows:>5}/{adapters:<3} {a:8.1f} {b:8.1f}  {b / a:5.2f}  {floor / a:5.2f}")
    values = list(ratios.values())
    print(f"{len(values)} cells: geometric mean {math.exp(sum(map(math.log, values)) / len(values)):.2f}, slower in {sum(v < 1 for v in values)}, "
          f"worst {min(values):.2f}, best {max(values):.2f}")


main()
