#!/usr/bin/env python3
"""What a staleness budget S of refreshes gives and costs on each layout of tensor-parallel ranks and stages: final validation loss,
what an update waits for refreshes, and the bytes that ranks send each other in an update.

  layouts_and_staleness.py build/bin/sestina inputs/tiny_soap_async.toml --stale 0 1 3 5 --seeds 1 2 3

A row is a layout TP x PP (async: its pipeline never waits for the end of an update) under one S; with S = 0 an update
waits for the refresh that it starts and has the bits of inline ones. The deck refreshes asynchronously. Losses are
means over the seeds, with their spread; waits and steps medians over the later half of the updates, of the seed in the middle; bytes
those that `plan` counts for the busiest stage, which tests hold against those that are sent (`regression/unit/mpi/test_counted_bytes.cpp`). Ranks have one thread
each and refresh in one worker, so on a machine with fewer cores than these the times are those of a busy machine: they compare S on
one layout, not one layout with another."""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

from compare_builds import metric_lines

HEADER = ("| TP x PP | S | validation loss | spread | step ms | waits for refreshes ms | oldest preconditioner | MB sent an update |\n"
          "|---|---|---|---|---|---|---|---|")
LAYOUTS = {"1 x 1": (1, []), "2 x 1": (2, ["parallel.tp=2"]), "1 x 2": (2, ["parallel.pp=2"]), "2 x 2": (4, ["parallel.tp=2", "parallel.pp=2"]),
           "1 x 2 async": (2, ["parallel.pp=2", "parallel.schedule=async-1f1b"]),
           "2 x 2 async": (4, ["parallel.tp=2", "parallel.pp=2", "parallel.schedule=async-1f1b"])}


def sent_megabytes(arguments, overrides):
    out = subprocess.run([arguments.sestina, "plan", "-i", arguments.deck, "--json", "parallel.dp=1", *overrides],
                         check=True, capture_output=True, text=True).stdout
    return sum(one["bytes"] for one in json.loads(out)["collectives"]) / 1e6


def train(arguments, ranks, overrides, seed):
    """The lines of metrics.jsonl of one run: of updates, and of evaluations."""
    with tempfile.TemporaryDirectory() as folder:
        command = [arguments.sestina, "train", "-i", arguments.deck, "-d", f"{folder}/run", f"run.steps={arguments.steps}", f"run.seed={seed}",
                   "run.threads=1", "metrics.every=1", f"metrics.eval_every={arguments.steps}", "checkpoint.every=0", *overrides]
        lines = metric_lines(command, pathlib.Path(folder, "run"), ranks, 1)
    return [line for line in lines if line["kind"] == "train"], [line for line in lines if line["kind"] == "val"]


def row(arguments, name, ranks, layout, stale):
    overrides = [f"optimizer.refresh.every={arguments.every}", f"train.micro_batch={arguments.micro_batch}", *layout, f"optimizer.refresh.staleness={stale}",
                 *arguments.override]
    runs = [train(arguments, ranks, overrides, seed) for seed in arguments.seeds]
    losses = [evaluations[-1]["loss"] for _, evaluations in runs]
    updates = runs[len(runs) // 2][0]
    late = updates[len(updates) // 2:]
    waits = sum(line["refresh_wait_s"] for line in late) / len(late)
    spread = statistics.stdev(losses) if len(losses) > 1 else 0
    print(f"| {name} | {stale} | {statistics.mean(losses):.4f} | {spread:.4f} | {1e3 * statistics.median(line['step_s'] for line in late):.1f} "
          f"| {1e3 * waits:.2f} | {max(line['preconditioner_age_max'] for line in late)} | {sent_megabytes(arguments, overrides):.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sestina")
    parser.add_argument("deck")
    parser.add_argument("--stale", type=int, nargs="+", default=[0, 1, 3, 5])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS), choices=list(LAYOUTS))
    parser.add_argument("--override", nargs="+", default=[], help="of all runs")
    arguments = parser.parse_args()
    print(HEADER)
    for name in arguments.layouts:
        for stale in arguments.stale:
            row(arguments, name, *LAYOUTS[name], stale)


if __name__ == "__main__":
    main()
