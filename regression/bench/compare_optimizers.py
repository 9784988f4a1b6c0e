#!/usr/bin/env python3
"""Trains the model of inputs/compare_optimizers.toml with each optimizer on the same tokens and says which is better.

  sestina data tokenize TEXT_FOLDER -o build/compare/tokens
  compare_optimizers.py --sestina build/bin/sestina --tokens build/compare/tokens --work build/compare --jobs 2
  compare_optimizers.py --work build/compare --table            the table and the plot alone (needs matplotlib)

Each optimizer is tried with every learning rate of its grid (seed 1), then with two more seeds at the best one. A run
that is complete is not repeated, one that was interrupted goes on. Judged by the validation loss on held-out documents:
the update and the seconds of training at which an optimizer first reaches the loss that AdamW ends with.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
SEEDS = (1, 2, 3)
# Name -> (overrides, peak learning rates).
OPTIMIZERS = {
    "adamw": ([], (1e-3, 3e-3, 1e-2)),
    "muon": (["optimizer.kind=muon"], (3e-3, 1e-2, 3e-2)),
    "normuon": (["optimizer.kind=normuon"], (3e-3, 1e-2, 3e-2)),
    "adamuon": (["optimizer.kind=adamuon"], (3e-3, 1e-2, 3e-2)),
    "shampoo": (["optimizer.kind=shampoo"], (1e-3, 3e-3, 1e-2)),
    "soap": (["optimizer.kind=soap"], (3e-3, 1e-2, 3e-2)),
    "kl-shampoo": (["optimizer.kind=kl-shampoo"], (1e-2, 3e-2, 1e-1)),
    "kl-soap": (["optimizer.kind=kl-soap"], (3e-3, 1e-2, 3e-2)),
    "basis-rotation": (["optimizer.kind=basis-rotation", "optimizer.factor_beta=0.95"], (3e-3, 1e-2, 3e-2)),
    "galore": (["optimizer.kind=galore", "optimizer.refresh.every=100"], (3e-3, 1e-2, 3e-2)),
    "apollo": (["optimizer.kind=apollo", "optimizer.refresh.every=100"], (3e-3, 1e-2, 3e-2)),
}


def run_dir(work, name, lr, seed):
    return work / f"{name}_lr{lr:g}_seed{seed}"


def lines_of(folder, kind):
    """Lines of a kind in the order of updates; after a resume the later ones count."""
    with open(folder / "metrics.jsonl") as file:
        lines = {line["step"]: line for line in map(json.loads, file) if line["kind"] == kind}
    return [lines[step] for step in sorted(lines)]


def complete(folder, steps):
    try:
        return lines_of(folder, "val")[-1]["step"] >= steps
    except (OSError, IndexError, ValueError):
        return False


def train(args, name, lr, seed):
    folder = run_dir(args.work, name, lr, seed)
    if complete(folder, args.steps):
        return
    command = [args.sestina, "train", "-i", str(args.deck), "-d", str(folder), "-r", "auto",
               *OPTIMIZERS[name][0], *args.override,
               f"run.steps={args.steps}", f"schedule.lr={lr:g}", f"run.seed={seed}", "run.threads=1",
               "checkpoint.keep=1", f'data.source=[{{format="megatron", path="{args.tokens.resolve()}"}}]']
    if name != "adamw":
        command.append(f"optimizer.scalar.lr={args.scalar_lr:g}")
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "out.txt", "w") as out:
        code = subprocess.run(command, stdout=out, stderr=out,
                              env={**os.environ, "OMP_NUM_THREADS": "1", "OMP_PROC_BIND": "false"}).returncode
    final = lines_of(folder, "val")[-1]["loss"] if code == 0 else f"exit code {code}"
    print(f"{name:15} lr {lr:g} seed {seed}: {final}", flush=True)


def final_loss(work, name, lr, seed, steps):
    folder = run_dir(work, name, lr, seed)
    return lines_of(folder, "val")[-1]["loss"] if complete(folder, steps) else float("inf")


def best_lr(args, name):
    return min(OPTIMIZERS[name][1], key=lambda lr: final_loss(args.work, name, lr, 1, args.steps))


def curve(folder):
    """(update, seconds of training, validation loss) of a run; evaluation is not in the seconds."""
    seconds, done, points = 0.0, 0, []
    train_lines = lines_of(folder, "train")
    for val in lines_of(folder, "val"):
        while done < len(train_lines) and train_lines[done]["step"] <= val["step"]:
            seconds += train_lines[done]["step_s"]
            done += 1
        points.append((val["step"], seconds, val["loss"]))
    return points


def reached(points, loss):
    """Update and seconds at which the loss is first reached, between evaluations by straight lines; None: never."""
    for (s0, t0, l0), (s1, t1, l1) in zip(points, points[1:]):
        if l1 <= loss < l0:
            part = (l0 - loss) / (l0 - l1)
            return s0 + part * (s1 - s0), t0 + part * (t1 - t0)
    return None


def table(args, names):
    adamw = best_lr(args, "adamw")
    goal = statistics.mean(final_loss(args.work, "adamw", adamw, seed, args.steps) for seed in args.seeds)
    rows = []
    for name in names:
        lr = best_lr(args, name)
        curves = [curve(run_dir(args.work, name, lr, seed)) for seed in args.seeds
                  if complete(run_dir(args.work, name, lr, seed), args.steps)]
        if not curves:
            continue
        finals = [points[-1][2] for points in curves]
        hits = [hit for hit in (reached(points, goal) for points in curves) if hit]
        rows.append({"name": name, "lr": lr, "loss": statistics.mean(finals),
                     "spread": max(finals) - min(finals), "seeds": len(finals),
                     "updates": statistics.mean(h[0] for h in hits) if len(hits) == len(curves) else None,
                     "seconds": statistics.mean(h[1] for h in hits) if len(hits) == len(curves) else None,
                     "step_ms": 1e3 * statistics.mean(points[-1][1] / points[-1][0] for points in curves)})
    rows.sort(key=lambda row: row["loss"])
    print("| optimizer | best lr | final validation loss | spread over seeds | updates to AdamW's loss | seconds to it | ms per update |")
    print("|---|---|---|---|---|---|---|")
    for r in rows:
        updates, seconds = (f"{r['updates']:.0f}", f"{r['seconds']:.1f}") if r["updates"] else ("not reached", "-")
        print(f"| {r['name']} | {r['lr']:g} | {r['loss']:.4f} | {r['spread']:.4f} ({r['seeds']}) | {updates} | {seconds} | {r['step_ms']:.0f} |")
    return rows


def plot(args, names, path):
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    matplotlib.rcParams["svg.hashsalt"] = "sestina"
    figure, axis = plt.subplots(figsize=(7.5, 4.5))
    order = sorted(names, key=lambda name: final_loss(args.work, name, best_lr(args, name), args.seeds[0], args.steps))
    for name in order:
        points = [p for p in curve(run_dir(args.work, name, best_lr(args, name), args.seeds[0])) if p[0] >= args.steps / 6]
        axis.plot([p[0] for p in points], [p[2] for p in points], label=name, linewidth=1.3,
                  color="black" if name == "adamw" else None, linestyle="--" if name == "adamw" else "-")
    axis.set_xlabel("update")
    axis.set_ylabel("validation loss (nats per byte)")
    axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sestina", default=str(ROOT / "build/bin/sestina"))
    parser.add_argument("--deck", type=pathlib.Path, default=ROOT / "inputs/compare_optimizers.toml")
    parser.add_argument("--tokens", type=pathlib.Path, default=ROOT / "build/compare/tokens")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build/compare")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side, one thread each")
    parser.add_argument("--only", nargs="*", help="optimizers, default all")
    parser.add_argument("--seeds", type=int, nargs="*", default=list(SEEDS))
    parser.add_argument("--scalar-lr", type=float, default=3e-3, help="of AdamW beside a matrix optimizer")
    parser.add_argument("--override", nargs="*", default=[], help="further section.key=value")
    parser.add_argument("--table", action="store_true", help="of the runs there are; trains nothing")
    parser.add_argument("--plot", type=pathlib.Path, help="writes an SVG")
    args = parser.parse_args()
    names = args.only or list(OPTIMIZERS)
    if not args.table:
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(lambda job: train(args, *job), [(n, lr, args.seeds[0]) for n in names for lr in OPTIMIZERS[n][1]]))
            list(pool.map(lambda job: train(args, *job), [(n, best_lr(args, n), s) for n in names for s in args.seeds[1:]]))
    table(args, names)
    if args.plot:
        plot(args, names, args.plot)


if __name__ == "__main__":
    main()
