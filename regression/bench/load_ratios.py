#!/usr/bin/env python3
"""The table of regression/reports/load_ratios.md, from `sestina plan --json` and counted again here from its owners.

    regression/bench/load_ratios.py build/bin/sestina > table.md
"""
import collections
import json
import re
import statistics
import subprocess
import sys

MODELS = ["qwen3-1.7b", "qwen3-4b", "qwen3-8b", "qwen3-14b", "qwen3-32b"]
KINDS = ["muon", "soap", "shampoo"]
RANKS = [8, 32, 64, 128]
PARTITIONS = ["start-index", "layerwise", "balanced", "optimal"]
SHAPES = {  # layers, hidden, intermediate, query and key widths
    "qwen3-1.7b": (28, 2048, 6144, 2048, 1024), "qwen3-4b": (36, 2560, 9728, 4096, 1024),
    "qwen3-8b": (36, 4096, 12288, 4096, 1024), "qwen3-14b": (40, 5120, 17408, 5120, 1024),
    "qwen3-32b": (64, 5120, 25600, 8192, 1024)}


def cost(kind, rows, cols):
    least, most = sorted((rows, cols))
    if kind == "muon":
        return 5 * (4 * most * least**2 + 2 * least**3)
    product, refresh = (8, 22 / 3) if kind == "soap" else (4, 11)
    return round(sum(product * a * a * b + refresh * a**3 / 10 for a, b in ((rows, cols), (cols, rows)) if a <= 10000))


def costs(model, kind):
    layers, d, f, q, kv = SHAPES[model]
    shape = {"q": (q, d), "k": (kv, d), "v": (kv, d), "o": (d, q), "gate": (f, d), "up": (f, d), "down": (d, f)}
    return {(layer, name): cost(kind, *sides) for layer in range(layers) for name, sides in shape.items()}


def plan(program, model, kind, dp, tp, partition):
    out = subprocess.run(
        [program, "plan", "--json", f"model.preset={model}", f"optimizer.kind={kind}", f"parallel.dp={dp}",
         f"parallel.tp={tp}", f"parallel.partition={partition}"], check=True, capture_output=True, text=True)
    return json.loads(out.stdout)


def counted(answer, price, dp, tp):
    """Largest over mean, from the names, owners and hosts alone; and every shard must be one interval."""
    load = collections.Counter()
    for name, owner in answer["owners"].items():
        layer, which = re.search(r"layers\.(\d+)\..*\.(\w+)_proj", name).groups()
        host = answer["hosts"][name] if tp > 1 else 0
        assert 0 <= owner < dp and 0 <= host < tp, name
        load[owner, host] += price[int(layer), which]
    assert len(answer["owners"]) == len(price) and sum(load.values()) == sum(price.values())
    assert sorted(name for bucket in answer["buckets"] for name in bucket) == sorted(answer["owners"])
    for bucket in answer["buckets"]:
        owners = [answer["owners"][name] for name in bucket]
        assert owners == sorted(owners), "a shard of two pieces"
    return max(load.values()) * dp * tp / sum(load.values())


def main(program):
    print("| model | optimizer | dp x tp | " + " | ".join(PARTITIONS) + " | proven bound | gap of optimal | over dp alone: optimal, bound | planned in |")
    print("|---|---|---|" + "---|" * (len(PARTITIONS) + 4))
    worst, times = 0.0, []
    for model in MODELS:
        for kind in KINDS:
            price = costs(model, kind)
            for tp in (1, 8):
                for dp in RANKS:
                    row = []
                    for partition in PARTITIONS:
                        answer = plan(program, model, kind, dp, tp, partition)
                        stated = answer["ratios"]["hosts" if tp > 1 else "dp"]
                        ratio = counted(answer, price, dp, tp)
                        assert abs(ratio - stated["cost"]) < 1e-6 * ratio, (ratio, stated)
                        row.append(f"{ratio:.4f}")
                    gap, seconds = ratio / stated["bound"] - 1, answer["planning_s"]
                    worst = max(worst, gap)
                    times.append(1e3 * seconds)
                    dp_ratio = answer["ratios"]["dp"]
                    print(f"| {model} | {kind} | {dp} x {tp} | " + " | ".join(row) +
                          f" | {stated['bound']:.4f} | {100 * gap:.4f} % | "
                          f"{dp_ratio['cost']:.4f}, {dp_ratio['bound']:.4f} | {1e3 * seconds:.1f} ms |", flush=True)
    print(f"\nLargest gap of `optimal`: {100 * worst:.5f} %. Planned in {statistics.median(times):.1f} ms (median), "
          f"{max(times):.1f} ms (slowest).")


if __name__ == "__main__":
    main(sys.argv[1])
