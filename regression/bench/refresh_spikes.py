#!/usr/bin/env python3
"""What refreshes of preconditioners add to the updates that they fall into: inline, and by a worker for several
staleness budgets S and periods, in turn, with one compute thread.

  refresh_spikes.py build/bin/sestina inputs/tiny_soap.toml --stale 1 3 5 --every 10 20 --override optimizer.basis_refresh=eigh

A row is a run: its median step t_step (of the updates that neither send nor take a refresh); t_refresh, what the refreshes
of one period take in all, in the step or by the worker; what an update waits for them, next to max(0, t_refresh - S t_step),
which it should with one worker; how much longer than the median an update is that sends copies to the worker, and one that
takes results, less what it waits (inline: one that refreshes, with all); and what copies take of all updates of the
optimizer together. Medians over periods, then over --pairs runs."""

import argparse
import pathlib
import statistics
import tempfile

from compare_builds import train_lines

HEADER = ("| refreshes | t_step ms | t_refresh ms | waited ms | max(0, t_refresh - S t_step) ms | at the copies | at the results "
          "| copies in updates |\n|---|---|---|---|---|---|---|---|")


def lines_of(arguments, overrides):
    with tempfile.TemporaryDirectory() as folder:
        command = [arguments.sestina, "train", "-i", arguments.deck, "-d", f"{folder}/run", f"run.steps={arguments.steps}",
                   "run.threads=1", "metrics.every=1", "metrics.eval_every=0", "checkpoint.every=0", *arguments.override,
                   *overrides]
        lines = train_lines(command, pathlib.Path(folder, "run"), 1, 1)
    return {line["step"]: line for line in lines}


def measure(lines, every, stale):
    """(t_step, t_refresh, waited, predicted, longer at copies, longer at results, share of copies); seconds and shares."""
    spent = "refresh_worker_s" if stale else "refresh_wait_s"
    takes = [step for step in lines if step > 2 * every and lines[step][spent] > 0]
    sends = [step - stale for step in takes] if stale else []
    plain = [line["step_s"] for step, line in lines.items() if step > 2 * every and step not in takes and step not in sends]
    t_step = statistics.median(plain)
    t_refresh = statistics.median(lines[step][spent] for step in takes)
    waited = statistics.median(lines[step]["refresh_wait_s"] for step in takes)
    results = statistics.median(lines[step]["step_s"] - (lines[step]["refresh_wait_s"] if stale else 0) for step in takes)
    copies = statistics.median(lines[step]["step_s"] for step in sends) if stale else t_step
    late = [line for step, line in lines.items() if step > 2 * every]
    share = sum(line.get("refresh_copy_s", 0) for line in late) / sum(line["optimizer_s"] for line in late)
    return (t_step, t_refresh, waited, max(0, t_refresh - stale * t_step), copies / t_step - 1, results / t_step - 1, share)


def row(name, runs):
    of = [statistics.median(values) for values in zip(*runs)]
    print(f"| {name} | " + " | ".join(f"{1e3 * x:.1f}" for x in of[:4]) + " | " +
          " | ".join(f"{100 * x:+.1f} %" for x in of[4:6]) + f" | {100 * of[6]:.2f} % |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sestina")
    parser.add_argument("deck")
    parser.add_argument("--stale", type=int, nargs="+", default=[1, 3, 5])
    parser.add_argument("--every", type=int, nargs="+", default=[10])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--override", nargs="+", default=[], help="of all runs")
    arguments = parser.parse_args()
    cases = {}
    for every in arguments.every:
        cases[f"inline, every {every}"] = (every, 0, ["optimizer.refresh.mode=inline"])
        for stale in (stale for stale in arguments.stale if stale < every):
            cases[f"S = {stale}, every {every}"] = (every, stale, ["optimizer.refresh.mode=async",
                                                                   f"optimizer.refresh.staleness={stale}"])
    found = {name: [] for name in cases}
    for _ in range(arguments.pairs):
        for name, (every, stale, overrides) in cases.items():
            found[name].append(measure(lines_of(arguments, [f"optimizer.refresh.every={every}", *overrides]), every, stale))
    print(HEADER)
    for name, runs in found.items():
        row(name, runs)


if __name__ == "__main__":
    main()
