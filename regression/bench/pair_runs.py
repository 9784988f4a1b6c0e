#!/usr/bin/env python3
"""Step times of one deck under several sets of overrides, in turn, so that a machine that changes changes all of them.

  pair_runs.py build/bin/sestina inputs/llama_8m.toml --pairs 5 --steps 20 --skip 3 \\
      --base train.precision=fp32 --run "adamw: optimizer.kind=adamw" --run "2 x async: parallel.pp=8 parallel.schedule=async-1f1b"

A run is `name: overrides`; `2 x` before them starts two ranks, `-t 1` gives each rank one thread (else --threads). The first one
is the reference. Prints for each run the median, the mean and the longest step in ms (median over the pairs), and the ratio of
its median and mean to the reference's of the same pair: median, least and greatest over the pairs."""

import argparse
import pathlib
import re
import statistics
import tempfile

from compare_builds import train_lines


def parse(text, threads):
    """(name, ranks, threads, overrides) of `name: [N x] [-t T] overrides`."""
    name, _, rest = text.partition(":")
    fields = re.fullmatch(r"\s*(?:(\d+) x\s+)?(?:-t (\d+)\s*)?(.*)", rest)
    return name.strip(), int(fields[1] or 1), int(fields[2] or threads), fields[3].split()


def steps_of(arguments, ranks, threads, overrides):
    with tempfile.TemporaryDirectory() as folder:
        command = [arguments.sestina, "train", "-i", arguments.deck, "-d", f"{folder}/run", f"run.steps={arguments.steps}",
                   "metrics.every=1", "metrics.eval_every=0", "checkpoint.every=0", *arguments.base, *overrides]
        lines = train_lines(command, pathlib.Path(folder, "run"), ranks, threads)
    return [1e3 * line["step_s"] for line in lines][arguments.skip:]


def ratios(values, reference):
    each = [value / base for value, base in zip(values, reference)]
    return f"{statistics.median(each):.3f} ({min(each):.3f} to {max(each):.3f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sestina")
    parser.add_argument("deck")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--skip", type=int, default=3, help="first steps left out")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--base", default=[], type=str.split, help="overrides of all runs")
    parser.add_argument("--run", action="append", required=True)
    arguments = parser.parse_args()
    runs = [parse(text, arguments.threads) for text in arguments.run]
    times = [[steps_of(arguments, *run[1:]) for run in runs] for _ in range(arguments.pairs)]
    medians = [[statistics.median(pair[i]) for pair in times] for i in range(len(runs))]
    means = [[statistics.mean(pair[i]) for pair in times] for i in range(len(runs))]
    print("| run | median ms | mean ms | longest ms | median next to the first | mean next to the first |\n|---|---|---|---|---|---|")
    for i, run in enumerate(runs):
        longest = statistics.median(max(pair[i]) for pair in times)
        print(f"| {run[0]} | {statistics.median(medians[i]):.1f} | {statistics.median(means[i]):.1f} | {longest:.1f} | "
              f"{ratios(medians[i], medians[0])} | {ratios(means[i], means[0])} |", flush=True)


if __name__ == "__main__":
    main()
