#!/usr/bin/env python3
"""What refreshes by drift save and cost, next to refreshes by period, in turn and with one compute thread.

  refresh_drift.py build/bin/sestina inputs/tiny_soap.toml --every 1 10 50 --bound 0.05 0.2 0.5 --check 1 10 --repeats 3

A row is a way to start refreshes: sides that were refreshed in all updates, and that as a part of what every = 1 refreshes;
means of the training loss over ten updates up to a quarter, half and the whole of the run, the last validation loss; and
seconds of refreshes and looks in an update (the least over the repeats), and of an update as a whole (their medians, of which
the least)."""

import argparse
import json
import pathlib
import statistics
import tempfile

from compare_builds import train_lines

HEADER = ("| refreshes | sides refreshed | of all | loss at 1/4 | at 1/2 | at the end | validation | refreshes, ms an update "
          "| update, ms |\n|---|---|---|---|---|---|---|---|---|")


def run(arguments, overrides):
    with tempfile.TemporaryDirectory() as folder:
        command = [arguments.sestina, "train", "-i", arguments.deck, "-d", f"{folder}/run", f"run.steps={arguments.steps}",
                   "run.threads=1", "run.deterministic=true", "metrics.every=1", f"metrics.eval_every={arguments.steps}",
                   "checkpoint.every=0", *arguments.override, *overrides]
        lines = train_lines(command, pathlib.Path(folder, "run"), 1, 1)
        metrics = pathlib.Path(folder, "run", "metrics.jsonl").read_text().splitlines()
    validation = [line["loss"] for line in map(json.loads, metrics) if line["kind"] == "val"]
    return lines, validation[-1]


def by_drift(bound, check):
    return ["optimizer.refresh.every=drift", f"optimizer.refresh.drift_bound={bound}", f"optimizer.refresh.drift_check={check}"]


def measure(arguments, overrides):
    """(lines of the first run, validation loss, least ms of refreshes in an update, least median ms of an update)."""
    runs = [run(arguments, overrides) for _ in range(arguments.repeats)]
    refreshes = min(sum(line["refresh_wait_s"] for line in lines) / len(lines) for lines, _ in runs)
    update = min(statistics.median(line["step_s"] for line in lines) for lines, _ in runs)
    return *runs[0], 1e3 * refreshes, 1e3 * update


def row(name, sides, of_all, measured):
    lines, validation, refreshes, update = measured
    losses = [statistics.mean(line["loss"] for line in lines[:end][-10:]) for end in (len(lines) // 4, len(lines) // 2, len(lines))]
    print(f"| {name} | {sides} | {100 * sides / of_all:.1f} % | " + " | ".join(f"{loss:.4f}" for loss in losses) +
          f" | {validation:.4f} | {refreshes:.2f} | {update:.1f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sestina")
    parser.add_argument("deck")
    parser.add_argument("--every", type=int, nargs="+", default=[1, 10, 50])
    parser.add_argument("--bound", type=float, nargs="+", default=[0.1, 0.2, 0.4])
    parser.add_argument("--check", type=int, nargs="+", default=[10])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--override", nargs="+", default=[], help="of all runs")
    arguments = parser.parse_args()
    few = argparse.Namespace(**vars(arguments) | {"steps": 8})
    sides = max(line["refreshed_sides"] for line in run(few, by_drift(1e-9, 4))[0])
    of_all = sides * arguments.steps
    print(f"{sides} sides, {arguments.steps} updates\n\n{HEADER}")
    for every in arguments.every:
        row(f"every {every}", sides * (arguments.steps // every), of_all,
            measure(arguments, [f"optimizer.refresh.every={every}"]))
    for check in arguments.check:
        for bound in arguments.bound:
            measured = measure(arguments, by_drift(bound, check))
            row(f"drift above {bound:g}, looks every {check}", sum(line["refreshed_sides"] for line in measured[0]), of_all, measured)


if __name__ == "__main__":
    main()
