#!/usr/bin/env python3
"""Trains the model of inputs/compare_optimizers.toml with each optimizer on the same tokens and says which is better.

  sestina data tokenize TEXT_FOLDER -o build/compare/tokens
  compare_optimizers.py --sestina build/bin/sestina --tokens build/compare/tokens --work build/compare --jobs 2
  compare_optimizers.py --work build/compare --table            the table and the plot alone

Each optimizer is tried with every learning rate of its grid (seed 1), then with two more seeds at the best one. A run
that is complete is not repeated, one that was interrupted goes on. Judged by the validation loss on held-out documents:
the update and the seconds of training at which an optimizer first reaches the loss that AdamW ends with.
"""

import argparse
import concurrent.futures
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "regression"))
import line_plot
import training_runs as runs

SEEDS = (1, 2, 3)
# Name -> (overrides, peak learning rates).
OPTIMIZERS = {
    "adamw": ([], (1e-3, 3e-3, 1e-2)),
    "muon": (["optimizer.kind=muon"], (3e-3, 1e-2, 3e-2)),
    "normuon": (["optimizer.kind=normuon"], (3e-3, 1e-2, 3e-2)),
    "adamuon": (["optimizer.kind=adamuon"], (3e-3, 1e-2, 3e-2)),
    "shampoo": (["optimizer.kind=shampoo"], (1e-3, 3e-3, 1e-2)),
    "soap": (["optimizer.kind=soap"], (3e-3, 1e-2, 3e-2)),
    "soap-muon": (["optimizer.kind=soap-muon", "optimizer.scale=match_rms_adamw"], (3e-3, 1e-2, 3e-2)),
    "kl-shampoo": (["optimizer.kind=kl-shampoo"], (1e-2, 3e-2, 1e-1)),
    "kl-soap": (["optimizer.kind=kl-soap"], (3e-3, 1e-2, 3e-2)),
    "basis-rotation": (["optimizer.kind=basis-rotation", "optimizer.factor_beta=0.95"], (3e-3, 1e-2, 3e-2)),
    "galore": (["optimizer.kind=galore", "optimizer.refresh.every=100"], (3e-3, 1e-2, 3e-2)),
    "apollo": (["optimizer.kind=apollo", "optimizer.refresh.every=100"], (3e-3, 1e-2, 3e-2)),
}


def run_dir(work, name, lr, seed):
    return work / f"{name}_lr{lr:g}_seed{seed}"


def train(args, name, lr, seed):
    folder = run_dir(args.work, name, lr, seed)
    if runs.complete(folder, args.steps):
        return
    arguments = [*OPTIMIZERS[name][0], *args.override, f"schedule.lr={lr:g}", f"run.seed={seed}", "checkpoint.keep=1",
                 f'data.source=[{{format="megatron", path="{args.tokens.resolve()}"}}]']
    if name != "adamw":
        arguments.append(f"optimizer.scalar.lr={args.scalar_lr:g}")
    fine = runs.train(args.sestina, args.deck, folder, args.steps, arguments)
    print(f"{name:15} lr {lr:g} seed {seed}: {final_loss(args.work, name, lr, seed, args.steps) if fine else 'diverged'}", flush=True)


def final_loss(work, name, lr, seed, steps):
    return runs.final_loss(run_dir(work, name, lr, seed), steps)


def best_lr(args, name):
    return min(OPTIMIZERS[name][1], key=lambda lr: final_loss(args.work, name, lr, 1, args.steps))


def table(args, names):
    adamw = best_lr(args, "adamw")
    goal = statistics.mean(final_loss(args.work, "adamw", adamw, seed, args.steps) for seed in args.seeds)
    rows = []
    for name in names:
        lr = best_lr(args, name)
        curves = [runs.curve(run_dir(args.work, name, lr, seed)) for seed in args.seeds
                  if runs.complete(run_dir(args.work, name, lr, seed), args.steps)]
        if not curves:
            continue
        finals = [points[-1][2] for points in curves]
        hits = [hit for hit in (runs.reached(points, goal) for points in curves) if hit]
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
    order = sorted(names, key=lambda name: final_loss(args.work, name, best_lr(args, name), args.seeds[0], args.steps))
    curves = []
    for number, name in enumerate(order):
        points = runs.curve(run_dir(args.work, name, best_lr(args, name), args.seeds[0]))
        late = [(step, loss) for step, _, loss in points if step >= args.steps / 6]
        curves.append((name, late, number, "5 3" if name == "adamw" else ""))
    line_plot.write_svg(path, curves, "Optimizers on the same tokens", "update", "validation loss (nats per byte)")


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
    parser.add_argument("--scalar-lr", type=float, default=3e-3, help="of AdamW next to a matrix optimizer")
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
