#!/usr/bin/env python3
"""Two builds of the program over a list of decks: whether they give the same bits, and how their step times and peaks of memory
compare. For changes that must change no number.

  compare_builds.py OLD/bin/sestina NEW/bin/sestina [--decks inputs/tiny_*.toml] [--steps 12] [--ranks 1] [--pairs 3]

Prints one row per deck: same or DIFFERENT bits (train losses and grad norms of every step, and all tensors of the final
checkpoint), the median step time of the new program over that of the old one in runs made in pairs, and the ratio of their
memory peaks. Ends with 1 when bits differ."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "regression"))
from run_case import tensor_digests  # noqa: E402

LAUNCH = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
SEVERAL = ("tiny_ranks", "tiny_groups", "tiny_moe_ep")  # decks of four ranks


def metric_lines(command, folder, ranks, threads):
    """Trains by this command on so many ranks; all lines of its metrics."""
    if ranks > 1:
        command = ["mpiexec", *LAUNCH, "-n", str(ranks), *command]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_PROC_BIND": "false"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def train_lines(command, folder, ranks, threads):
    """The lines of its steps alone."""
    return [line for line in metric_lines(command, folder, ranks, threads) if line["kind"] == "train"]


def run(program, deck, folder, arguments):
    text = f'data.source=[{{format = "text", path = "{ROOT}/regression/data/harbour.txt"}}]'
    command = [str(program), "train", "-i", str(deck), "-d", str(folder), f"run.steps={arguments.steps}", "metrics.every=1",
               "metrics.eval_every=0", "checkpoint.every=0", "schedule.warmup_steps=4", text, *arguments.overrides]
    return train_lines(command, folder, arguments.ranks, arguments.threads)


def newest_tensors(folder):
    return tensor_digests(folder / "checkpoints/latest")


def compare(deck, arguments):
    same, times, peaks = True, ([], []), ([], [])
    for _ in range(arguments.pairs):
        with tempfile.TemporaryDirectory() as work:
            folders = [pathlib.Path(work) / name for name in ("old", "new")]
            lines = [run(program, deck, folder, arguments) for program, folder in zip((arguments.old, arguments.new), folders)]
            numbers = [[(line["step"], line["loss"], line["grad_norm"]) for line in side] for side in lines]
            same = same and numbers[0] == numbers[1] and newest_tensors(folders[0]) == newest_tensors(folders[1])
            for side, (seconds, bytes_) in enumerate(zip(times, peaks)):
                seconds.append(statistics.median(line["step_s"] for line in lines[side][1:]))
                bytes_.append(max(line["memory_peak_bytes"] for line in lines[side]))
    ratio = statistics.median(new / old for old, new in zip(*times))
    peak = statistics.median(new / old for old, new in zip(*peaks))
    print(f"{deck.stem:24} {'same bits' if same else 'DIFFERENT':10} step time x {ratio:.3f}   memory peak x {peak:.3f}", flush=True)
    return same


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=pathlib.Path)
    parser.add_argument("new", type=pathlib.Path)
    parser.add_argument("--decks", type=pathlib.Path, nargs="*",
                        help="default: tiny ones; those that need several ranks (SEVERAL) on several, all others on one")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--overrides", nargs="*", default=[], metavar="section.key=value")
    arguments = parser.parse_args()
    decks = arguments.decks or [deck for deck in sorted((ROOT / "inputs").glob("tiny_*.toml"))
                                if (deck.stem in SEVERAL) == (arguments.ranks > 1)]
    sys.exit(0 if all([compare(deck, arguments) for deck in decks]) else 1)


if __name__ == "__main__":
    main()
