"""The sweeps of Canzona's figures on ranks that feel distance (hub.py), by hand: who owns which matrix, alpha of balanced
cuts, what fused exchanges of tensor-parallel ranks save, what updates under waits do; one table for each, in Markdown.

    python3 regression/nodes/far_ranks.py --program build/bin/sestina [--rate-gbit 1] [--delay-ms 1] [--only partitions alpha fusing overlap]

Standard library alone (Python 3.11), for root. A row is the median update of its rounds, the first three of each left out."""

import argparse
import pathlib
import statistics
import tempfile

from hub import Hub

ROOT = pathlib.Path(__file__).resolve().parents[2]
DECK = f"""
run = {{name = "far_ranks", check = "off"}}
model = {{family = "llama", hidden_size = 256, intermediate_size = 688, num_hidden_layers = 8, num_attention_heads = 8, vocab_size = 256}}
data = {{sequence_length = 64, source = [{{format = "text", path = "{ROOT / "regression/data/harbour.txt"}"}}]}}
schedule = {{lr = 1e-3}}
metrics = {{every = 1}}
"""
COLUMNS = ("step_s", "forward_backward_s", "reduce_s", "optimizer_s", "gather_s")
SWEEPS = ["partitions", "alpha", "fusing", "overlap"]
PARTITIONS = ("replicated", "layerwise", "start-index", "balanced", "optimal", "groups")


def cells(name, ranks):
    """Returns the rows of a sweep: label and keys."""
    dp, tp = [f"parallel.dp={ranks}", "parallel.tp=1"], [f"parallel.dp={ranks // 2}", "parallel.tp=2"]
    muon = "optimizer.kind=muon"
    if name == "partitions":
        kinds = {"muon": [muon], "soap": ["optimizer.kind=soap", "optimizer.refresh.every=5"],
                 "shampoo": ["optimizer.kind=shampoo", "optimizer.refresh.every=5", "optimizer.max_dim=256"]}
        rows = [("adamw", [*dp, "optimizer.kind=adamw"])]
        return rows + [(f"{kind}, {p}", [*dp, *keys, f"parallel.partition={p}"]) for kind, keys in kinds.items() for p in PARTITIONS]
    if name == "alpha":
        return [(f"alpha {alpha}", [*dp, muon, "parallel.partition=balanced", f"parallel.alpha={alpha}"]) for alpha in (0, 0.25, 0.5, 0.75, 1)] + [
            (f"cost = {cost}", [*dp, muon, "parallel.partition=balanced", f"parallel.cost={cost}"]) for cost in ("elements", "flops")]
    if name == "overlap":
        stages = [f"parallel.pp={ranks}", "parallel.dp=1", "train.global_batch=8", "train.micro_batch=1"]
        soap = ["optimizer.kind=soap", "optimizer.refresh.every=5"]
        layouts = [("muon, data parallel", [*dp, muon]), ("soap, data parallel", [*dp, *soap]), ("muon, 1F1B", [*stages, muon])]
        ways = [("at the end", "overlap_updates=false"), ("as gradients come", "overlap_updates=true")]
        rows = [("muon, data parallel, layer-wise baseline", [*dp, muon, "parallel.partition=layerwise", "parallel.clip_scope=matrix", "parallel.reduce=all"])]
        return rows + [(f"{label}, {way}", [*keys, "parallel.clip_scope=matrix", f"parallel.{key}"]) for label, keys in layouts for way, key in ways]
    sizes = [("one matrix at a time", 1), ("256 KiB", 1 << 18), ("1 MiB", 1 << 20), ("4 MiB", 1 << 22), ("all at once", 1 << 28)]
    rows = [(f"home, {label}", [*tp, muon, f"parallel.micro_group_bytes={size}"]) for label, size in sizes]
    return rows + [(way, [*tp, muon, f"parallel.tp_update={way}"]) for way in ("duplicated", "distributed")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rate-gbit", type=float, default=1)
    parser.add_argument("--delay-ms", type=float, default=1)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", nargs="+", default=SWEEPS, choices=SWEEPS)
    parser.add_argument("--rows", help="only rows whose label has this in it")
    asked = parser.parse_args()
    hub = Hub(asked.ranks, asked.delay_ms / 1e3, asked.rate_gbit * 1e9 / 8)
    try:
        with tempfile.TemporaryDirectory() as folder:
            deck = pathlib.Path(folder) / "far_ranks.toml"
            deck.write_text(DECK)
            for name in asked.only:
                rows = [row for row in cells(name, asked.ranks) if not asked.rows or asked.rows in row[0]]
                lines = {label: [] for label, _ in rows}
                for _ in range(asked.rounds):
                    for label, keys in rows:
                        lines[label] += hub.train(folder, asked.program, deck, [f"run.steps={asked.steps}", *keys])[3:]
                print(f"\n{name}: {asked.ranks} ranks, {asked.rate_gbit:g} Gbit/s, {asked.delay_ms:g} ms\n")
                print("| | " + " | ".join(column.removesuffix("_s").replace("_", ", ") + ", ms" for column in COLUMNS) + " | loss |")
                print("|---" * (len(COLUMNS) + 2) + "|")
                for label, all_lines in lines.items():
                    medians = [statistics.median(line[column] for line in all_lines) * 1e3 for column in COLUMNS]
                    print(f"| {label} | " + " | ".join(f"{value:.1f}" for value in medians) + f" | {all_lines[-1]['loss']:.6f} |", flush=True)
    finally:
        hub.remove()


if __name__ == "__main__":
    main()
