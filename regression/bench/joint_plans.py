#!/usr/bin/env python3
"""The table of regression/reports/joint_plans.md: dp x tp x pp of the decks of large models, from `sestina plan --json`, each
ratio counted again from stages, owners and hosts.

    regression/bench/joint_plans.py build/bin/sestina > table.md
"""
import collections
import json
import pathlib
import re
import subprocess
import sys

from load_ratios import cost

INPUTS = pathlib.Path(__file__).parents[2] / "inputs"
DECKS = {  # layers, hidden, intermediate, query and key widths; ranks of the deck: dp, tp
    "plan_qwen3_32b": (64, 5120, 25600, 8192, 1024, 32, 8), "plan_llama_13b": (40, 5120, 13824, 5120, 5120, 16, 4)}
KINDS = ["muon", "soap", "shampoo"]
STAGES = [1, 2, 4, 8]


def plan(program, deck, kind, dp, tp, pp):
    out = subprocess.run(
        [program, "plan", "-i", INPUTS / f"{deck}.toml", "--json", f"optimizer.kind={kind}", f"parallel.dp={dp}", f"parallel.tp={tp}",
         f"parallel.pp={pp}"], check=True, capture_output=True, text=True)
    return json.loads(out.stdout)


def counted(answer, deck, kind, dp, tp, pp):
    """Loads of all ranks by (stage, dp rank, tp rank), from names, owners, hosts and layers of stages alone."""
    layers, d, f, q, kv, *_ = DECKS[deck]
    shape = {"q": (q, d), "k": (kv, d), "v": (kv, d), "o": (d, q), "gate": (f, d), "up": (f, d), "down": (d, f)}
    ranges = answer["pipeline"]["layers"] if pp > 1 else [[0, layers]]
    assert [b for b, _ in ranges] + [layers] == [0] + [e for _, e in ranges] and len(ranges) == pp
    load = collections.Counter()
    for name, owner in answer["owners"].items():
        layer, which = re.search(r"layers\.(\d+)\..*\.(\w+)_proj", name).groups()
        stage = next(s for s, (begin, end) in enumerate(ranges) if begin <= int(layer) < end)
        host = answer["hosts"][name]
        assert 0 <= owner < dp and 0 <= host < tp, name
        load[stage, owner, host] += cost(kind, *shape[which])
    assert len(answer["owners"]) == 7 * layers
    return load


def ratio(load, ranks):
    return max(load.values()) * ranks / sum(load.values())


def main(program):
    print("| deck | optimizer | dp x tp x pp | ranks | layers of the stages | ratio | proven bound | gap | over dp alone: ratio, bound | planned in |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    worst = 0.0
    for deck, (*_, deck_dp, tp) in DECKS.items():
        for kind in KINDS:
            grids = dict.fromkeys([(deck_dp // pp, pp) for pp in STAGES] + [(deck_dp, pp) for pp in STAGES])
            for dp, pp in grids:
                answer = plan(program, deck, kind, dp, tp, pp)
                stated, over_dp = answer["ratios"]["hosts"], answer["ratios"]["dp"]
                load = counted(answer, deck, kind, dp, tp, pp)
                found = ratio(load, dp * tp * pp)
                assert abs(found - stated["cost"]) < 1e-6 * found, (found, stated)
                assert stated["cost"] >= stated["bound"] * (1 - 1e-9), stated
                gap = stated["cost"] / stated["bound"] - 1
                worst = max(worst, gap)
                sizes = [e - b for b, e in answer["pipeline"]["layers"]] if pp > 1 else [DECKS[deck][0]]
                text = f"{sizes[0]} each" if len(set(sizes)) == 1 else ", ".join(map(str, sizes))
                print(f"| {deck[5:]} | {kind} | {dp} x {tp} x {pp} | {dp * tp * pp} | {text} | {found:.4f} | {stated['bound']:.4f} | "
                      f"{100 * gap:.4f} % | {over_dp['cost']:.4f}, {over_dp['bound']:.4f} | {1e3 * answer['planning_s']:.1f} ms |", flush=True)
    print(f"\nLargest gap: {100 * worst:.4f} %.")


if __name__ == "__main__":
    main(sys.argv[1])
