#!/usr/bin/env python3
"""Plans of 8 to 4096 ranks: the tables and the plot of regression/reports/scale.md.

    regression/bench/plan_scale.py build/bin/sestina regression/reports      # writes scale.svg, prints the tables
"""
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

RANKS = (8, 64, 512, 4096)
TP = {"plan_qwen3_32b": 8, "plan_llama_13b": 4}
INPUTS = pathlib.Path(__file__).resolve().parents[2] / "inputs"
BATCH = 4  # sequences of each data-parallel rank


def plan(program, deck, ranks):
    """The plan as JSON, with processor seconds and the largest memory of the whole call."""
    tp = TP[deck]
    words = [program, "plan", "--json", "-i", INPUTS / f"{deck}.toml", f"parallel.dp={ranks // tp}", f"train.global_batch={BATCH * ranks // tp}"]
    with tempfile.TemporaryFile() as answer:
        child = subprocess.Popen([str(word) for word in words], stdout=answer)
        _, status, used = os.wait4(child.pid, 0)
        if status:
            sys.exit(f"{words} ended with {os.waitstatus_to_exitcode(status)}")
        answer.seek(0)
        found = json.load(answer)
    return found | {"processor_s": used.ru_utime + used.ru_stime, "most_mib": used.ru_maxrss / 1024}


def row(found, ranks):
    estimate, memory = found["estimate"], found["memory"]["needed_bytes"]
    calls = sum(c["count"] for c in found["collectives"])
    sent = sum(c["bytes"] for c in found["collectives"])
    return [ranks, found["planning_s"] * 1e3, found["processor_s"], found["most_mib"], calls, sent / 1e9, memory / 2**30,
            found["ratios"]["hosts"]["cost"], found["ratios"]["hosts"]["bound"],
            estimate["forward_backward_s"], estimate["optimizer_s"] * 1e3, estimate["network_s"]]


HEAD = ("ranks", "planning, ms", "whole call, processor s", "memory of planning, MiB", "collectives of a step", "buffers of a step, GB",
        "fullest rank, GiB", "loads: largest over mean", "least possible", "model, s", "optimizer, ms", "network, s")


def plot(series, path):
    """Estimated times of a step and the time of planning over the ranks, both axes logarithmic."""
    width, height, left, top = 560, 300, 60, 20
    lowest, highest = 1e-3, 1e2
    x = lambda ranks: left + (width - left - 20) * math.log(ranks / RANKS[0]) / math.log(RANKS[-1] / RANKS[0])
    y = lambda value: top + (height - top - 50) * (1 - math.log(max(value, lowest) / lowest) / math.log(highest / lowest))
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 190}" height="{height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width + 190}" height="{height}" fill="white"/>']
    for power in range(-3, 3):
        out.append(f'<path d="M{left} {y(10**power):.1f}H{width - 20}" stroke="#ddd"/><text x="{left - 8}" y="{y(10**power) + 4:.1f}" text-anchor="end">{10.0**power:g} s</text>')
    for ranks in RANKS:
        out.append(f'<text x="{x(ranks):.1f}" y="{height - 30}" text-anchor="middle">{ranks}</text>')
    out.append(f'<text x="{(left + width) / 2}" y="{height - 10}" text-anchor="middle">ranks</text>')
    colours = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")
    for number, (name, points) in enumerate(series):
        colour, dash = colours[number % 4], ' stroke-dasharray="5 3"' if number >= 4 else ""
        line = " ".join(f"{x(r):.1f},{y(v):.1f}" for r, v in points)
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        out.append(f'<path d="M{width} {top + 20 * number + 8}h24" stroke="{colour}" stroke-width="2"{dash}/><text x="{width + 30}" y="{top + 20 * number + 12}">{name}</text>')
    path.write_text("\n".join([*out, "</svg>"]) + "\n")


def main():
    program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    series = []
    for deck in TP:
        rows = [row(plan(program, deck, ranks), ranks) for ranks in RANKS]
        print(f"\n`inputs/{deck}.toml`, tp {TP[deck]}, {BATCH} sequences on each data-parallel rank\n")
        print("| " + " | ".join(HEAD) + " |\n|" + "---|" * len(HEAD))
        for r in rows:
            print("| " + " | ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in r) + " |")
        model = deck.removeprefix("plan_")
        series += [(f"{model}: {name}", [(r[0], r[column] * scale) for r in rows])
                   for name, column, scale in (("planning", 1, 1e-3), ("model", 9, 1), ("optimizer", 10, 1e-3), ("network", 11, 1))]
    plot(series, folder / "scale.svg")


if __name__ == "__main__":
    main()
