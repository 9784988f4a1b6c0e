#!/usr/bin/env python3
"""Training whose optimizer state lies on NVMe, at budgets of memory for it of 1/1, 1/2 and 1/4 of that state, next to the same
run with all of it in memory: step seconds, stalls, bytes that move in an update, peaks of resident memory. Python 3.11,
standard library alone.

  regression/bench/state_beyond_memory.py --sestina build/bin/sestina --folder /scratch > regression/reports/state_beyond_memory.md

The folder holds the runs and the scratch files; it must lie on the device that is to be measured. Moments, momenta and
preconditioners lie on it: `optimizer.state_tier = "nvme"`, `optimizer.refresh.tier = "nvme"`. The budget is `optimizer.refresh.host_bytes`.
A peak is the largest resident set of the process up to its last update. The runs of an optimizer must have the same losses.
"""

import argparse
import json
import pathlib
import platform
import shutil
import statistics
import subprocess
import tempfile

DECK = """[model]
family = "llama"
hidden_size = {hidden}
intermediate_size = {mlp}
num_hidden_layers = {layers}
num_attention_heads = 6
vocab_size = 256
max_position_embeddings = 128
[data]
sequence_length = 128
source = [{{ format = "text", path = "{text}" }}]
[train]
global_batch = {batch}
precision = "fp32"
[metrics]
every = 1000
[checkpoint]
every = 0
"""
OPTIMIZERS = {"AdamW": ["optimizer.kind=adamw"], "Muon": ["optimizer.kind=muon"],
              "SOAP": ["optimizer.kind=soap", "optimizer.refresh.every=5"]}
BUDGETS = {"1/1": 1, "1/2": 2, "1/4": 4}
SAVES = ["checkpoint.every=1", "checkpoint.keep=1"]
MIB = 2**20


def call(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def tier_keys(kind, folder):
    tier = ["optimizer.state_tier=nvme", f"optimizer.refresh.path={folder}"]
    return tier + (["optimizer.refresh.tier=nvme"] if kind == "SOAP" else [])


def train(arguments, deck, name, keys, folder):
    run = folder / name
    call([arguments.sestina, "train", "-i", str(deck), "-d", str(run), f"run.steps={arguments.steps}",
          f"run.threads={arguments.threads}", *keys])
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    shutil.rmtree(run)
    return [line for line in lines if line["kind"] == "train"]


def numbers(lines, warm):
    """The medians of what an update takes, after the first ones; bytes and waits are means, for refreshes are not in each."""
    later = lines[warm:]
    mean = lambda key: statistics.fmean(line.get(key, 0) for line in later)
    return {"step": statistics.median(line["step_s"] for line in later), "mean": mean("step_s"), "update": mean("optimizer_s"),
            "refresh": mean("refresh_wait_s"), "waits": mean("tier_waits"), "waited": mean("tier_wait_s"), "read": mean("tier_read_bytes"),
            "written": mean("tier_written_bytes"), "peak": lines[-1]["memory_peak_bytes"]}


def row(name, budget, n, base):
    moved = ["–"] * 4 if budget is None else [f"{n['waits']:.1f}", f"{n['waited']:.3f}", f"{n['read'] / MIB:.1f}", f"{n['written'] / MIB:.1f}"]
    cells = [name, "–" if budget is None else f"{budget / MIB:.1f}", f"{n['step']:.3f}", f"{n['mean']:.3f}",
             f"{n['mean'] / base['mean']:.2f}", f"{n['update'] + n['refresh']:.3f}", *moved, f"{n['peak'] / MIB:.0f}",
             "" if budget is None else f"{(n['peak'] - base['peak']) / MIB:+.0f}"]
    return "| " + " | ".join(cells) + " |"


def table(arguments, deck, kind, folder):
    keys = OPTIMIZERS[kind]
    rank, = json.loads(call([arguments.sestina, "plan", "-i", str(deck), "--json", *keys, *tier_keys(kind, folder)]))["ranks"]
    state = rank["bytes"]["nvme"]
    base_lines = train(arguments, deck, "memory", keys, folder)
    base = numbers(base_lines, arguments.warm)
    print(f"\n{kind}: {state / MIB:.1f} MiB of state on NVMe\n\n"
          "| budget | MiB | step, median s | mean s | next to memory | update and refresh, s | waits | waited, s | read, MiB | written, MiB | "
          "peak RSS, MiB | next to memory |\n|---|---|---|---|---|---|---|---|---|---|---|---|")
    print(row("in memory", None, base, base), flush=True)
    cells = [(name, parts, []) for name, parts in BUDGETS.items()] + [("1/2, saved after each update", 2, SAVES)]
    for name, parts, more in cells:
        budget = -(-state // parts)
        lines = train(arguments, deck, "tier", [*keys, *tier_keys(kind, folder), *more, f"optimizer.refresh.host_bytes={budget}"], folder)
        if [line["loss"] for line in lines] != [line["loss"] for line in base_lines]:
            raise SystemExit(f"{kind}, budget {name}: other losses than in memory")
        print(row(name, budget, numbers(lines, arguments.warm), base), flush=True)


def processor():
    names = [line.split(":")[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {len(names)} processors"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sestina", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--warm", type=int, default=4, help="updates that are left out")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="one optimizer")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = pathlib.Path(name)
        (folder / "text.txt").write_text("The state of an optimizer may be larger than the memory that is left for it.\n" * 4000)
        deck = folder / "deck.toml"
        deck.write_text(DECK.format(hidden=arguments.hidden, mlp=arguments.hidden * 8 // 3, layers=arguments.layers, text=folder / "text.txt", batch=arguments.batch))
        rank, = json.loads(call([arguments.sestina, "plan", "-i", str(deck), "--json"]))["ranks"]
        print(f"{processor()}; {rank['elements'] / 1e6:.1f} million parameters, fp32, {arguments.batch} sequences of 128 tokens, {arguments.threads} threads, "
              f"updates {arguments.warm + 1} to {arguments.steps}.")
        for kind in OPTIMIZERS:
            if arguments.only in ("", kind):
                table(arguments, deck, kind, folder)


if __name__ == "__main__":
    main()
