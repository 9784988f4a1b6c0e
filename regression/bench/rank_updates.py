#!/usr/bin/env python3
"""Updates on several ranks, by who owns what: trains a deck under mpirun once for each partition, in turns, and prints
medians over the updates of the times in metrics.jsonl (each the largest over the ranks). Standard library alone.

  regression/bench/rank_updates.py --sestina build/bin/sestina -i inputs/llama_8m.toml --ranks 2 [--rounds 3] [KEY=VALUE ...]
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

COLUMNS = ("step_s", "forward_backward_s", "reduce_s", "optimizer_s", "gather_s")


def train(arguments, partition, work, number):
    run = pathlib.Path(work) / f"{partition}-{number}"
    command = [arguments.mpiexec, "-n", str(arguments.ranks), arguments.sestina, "train", "-i", arguments.deck, "-d", run,
               f"parallel.partition={partition}", f"run.steps={arguments.steps}", *arguments.keys]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "train"][2:]  # the first two warm up


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sestina", required=True)
    parser.add_argument("-i", dest="deck", required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mpiexec", default="mpirun")
    parser.add_argument("--partitions", default="replicated,layerwise,balanced,optimal")
    parser.add_argument("keys", nargs="*")
    arguments = parser.parse_args()
    lines = {}
    with tempfile.TemporaryDirectory() as work:
        for number in range(arguments.rounds):
            for partition in arguments.partitions.split(","):
                lines.setdefault(partition, []).extend(train(arguments, partition, work, number))
    print("| partition | " + " | ".join(name.removesuffix("_s") + ", ms" for name in COLUMNS) + " | loss |")
    print("|---" * (len(COLUMNS) + 2) + "|")
    for partition, rows in lines.items():
        medians = [statistics.median(row[name] for row in rows) * 1e3 for name in COLUMNS]
        print(f"| {partition} | " + " | ".join(f"{value:.1f}" for value in medians) + f" | {rows[-1]['loss']:.6f} |")


if __name__ == "__main__":
    main()
